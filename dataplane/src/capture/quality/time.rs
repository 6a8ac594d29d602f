//! Days and moments as text, by the proleptic Gregorian calendar.

use std::fmt;
use std::str::FromStr;

use super::DAY_NS;
use crate::units::NANOS_PER_SECOND;

/// A day, in days since 1970-01-01. Where a day does not begin at midnight it has the name of the date on which it begins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Day(pub i64);

impl Day {
    /// The day of a moment, where days begin so many seconds after midnight UTC.
    pub fn at(utc_ns: i64, begins_s: u32) -> Day {
        Day((utc_ns - i64::from(begins_s) * NANOS_PER_SECOND).div_euclid(DAY_NS))
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil(self.0);
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

impl FromStr for Day {
    type Err = String;

    fn from_str(text: &str) -> Result<Day, String> {
        let wrong = || format!("\"{text}\" is no day: write it as 2026-11-30");
        // What reads as another day than it was written (the 31st of November) is none.
        let shape = text.len() == 10
            && text.bytes().enumerate().all(|(at, byte)| match at {
                4 | 7 => byte == b'-',
                _ => byte.is_ascii_digit(),
            });
        if !shape {
            return Err(wrong());
        }
        let number = |range: std::ops::Range<usize>| text[range].parse::<i64>().map_err(|_| wrong());
        let day = days(number(0..4)?, number(5..7)?, number(8..10)?);
        if day.to_string() == text { Ok(day) } else { Err(wrong()) }
    }
}

/// Days from March on, of a year that begins there: its leap day is its last, and months follow one rule (153 days in 5).
fn days(year: i64, month: i64, day: i64) -> Day {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    // 719,468 days lie between 0000-03-01 and 1970-01-01.
    Day(365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year - 719_468)
}

fn civil(day: i64) -> (i64, i64, i64) {
    let since = day + 719_468;
    let era = since.div_euclid(146_097);
    let of_era = since.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// A moment as RFC 3339 in UTC with nanoseconds: always of one length (of years with four digits), so that texts sort as
/// moments do.
pub fn instant(utc_ns: i64) -> String {
    let (seconds, ns) = (utc_ns.div_euclid(NANOS_PER_SECOND), utc_ns.rem_euclid(NANOS_PER_SECOND));
    let (day, second) = (Day(seconds.div_euclid(86_400)), seconds.rem_euclid(86_400));
    format!("{day}T{:02}:{:02}:{:02}.{ns:09}Z", second / 3_600, second / 60 % 60, second % 60)
}

/// The moment that [`instant`] wrote.
pub fn parse_instant(text: &str) -> Option<i64> {
    let day: Day = text.get(..10)?.parse().ok()?;
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let seconds = number(11..13)? * 3_600 + number(14..16)? * 60 + number(17..19)?;
    let utc_ns = day.0.checked_mul(DAY_NS)?.checked_add(seconds * NANOS_PER_SECOND + number(20..29)?)?;
    (instant(utc_ns) == text).then_some(utc_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_moments_go_to_text_and_back() {
        for (text, number) in [("1970-01-01", 0), ("2000-02-29", 11_016), ("2026-11-30", 20_787), ("1969-12-31", -1)] {
            assert_eq!(Day(number).to_string(), text);
            assert_eq!(text.parse(), Ok(Day(number)));
        }
        for number in (-800_000..800_000).step_by(17).chain(19_000..21_000) {
            let text = Day(number).to_string();
            assert!(!(0..=2_932_896).contains(&number) || text.parse() == Ok(Day(number)), "{text}");
        }
        for wrong in ["2026-11-31", "2026-02-29", "2026-1-01", "26-11-30", "2026-13-01", "", "2026-11-30T"] {
            assert!(wrong.parse::<Day>().is_err(), "{wrong}");
        }
        let moment = 1_795_996_799_000_000_001;
        assert_eq!(instant(moment), "2026-11-29T23:59:59.000000001Z");
        assert_eq!(parse_instant(&instant(moment)), Some(moment));
        assert_eq!(parse_instant("2026-11-29T23:59:59Z"), None);
    }

    #[test]
    fn a_day_may_begin_at_another_time() {
        let moment = parse_instant("2026-11-30T05:59:59.999999999Z").expect("a moment");
        assert_eq!(Day::at(moment, 0).to_string(), "2026-11-30");
        assert_eq!(Day::at(moment, 6 * 3_600).to_string(), "2026-11-29");
        assert_eq!(Day::at(moment + 1, 6 * 3_600).to_string(), "2026-11-30");
    }
}
