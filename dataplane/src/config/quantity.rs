//! Durations and byte counts as people write them: `"20ms"`, `"1GiB"`.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// A duration, written `"250us"`, `"20ms"`, `"3s"`, `"1h"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Span(pub Duration);

impl Span {
    /// The duration in ns.
    pub fn nanos(self) -> i64 {
        self.0.as_nanos().min(i64::MAX as u128) as i64
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = humantime::format_duration(self.0).to_string();
        f.write_str(&text.replace(' ', ""))
    }
}

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        humantime::parse_duration(text)
            .map(Span)
            .map_err(|error| format!("\"{text}\" is not a duration ({error}); write for example \"20ms\" or \"3s\""))
    }
}

/// Units of a duration as Go writes it, and their ns. Longer ones first where one begins another.
const GO_UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads a duration as a command line has it: all that the TOML takes, and all that Go's flags do (`"1.5s"`, `"1h2m0.5s"`,
/// `"+5ms"`, `"0"`).
///
/// # Errors
/// Names the text and what would be right; a negative one is told apart.
pub fn parse_duration(text: &str) -> Result<Span, String> {
    if let Some(rest) = text.strip_prefix('-')
        && (go_nanos(rest).is_some() || rest.parse::<Span>().is_ok())
    {
        return Err(format!("\"{text}\" is negative: write 0s or more"));
    }
    match go_nanos(text.strip_prefix('+').unwrap_or(text)) {
        Some(nanos) => Ok(Span(Duration::from_nanos(nanos))),
        None => text.parse(),
    }
}

fn go_nanos(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let mut rest = text;
    let mut sum = 0_u64;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (whole, fraction) = rest[..number].split_once('.').unwrap_or((&rest[..number], ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let unit_end =
            rest[number..].find(|c: char| c.is_ascii_digit() || c == '.').map_or(rest.len(), |at| number + at);
        let unit = GO_UNITS.iter().find(|(name, _)| *name == &rest[number..unit_end])?.1;
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        sum = sum.checked_add(whole.checked_mul(unit)?)?.checked_add(fraction_nanos(fraction, unit)?)?;
        rest = &rest[unit_end..];
    }
    (sum > 0 || !text.is_empty()).then_some(sum).filter(|_| i64::try_from(sum).is_ok())
}

/// The ns of a fraction's digits, cut off below one.
fn fraction_nanos(digits: &str, unit: u64) -> Option<u64> {
    // Nine digits and more than a nanosecond's of an hour: what lies beyond is less than one ns in sum.
    let digits = &digits[..digits.len().min(18)];
    if digits.is_empty() {
        return Some(0);
    }
    let value: u128 = digits.parse().ok()?;
    u64::try_from(value * u128::from(unit) / 10_u128.pow(digits.len() as u32)).ok()
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A number of bytes, written `"64KiB"`, `"1GiB"`, `"5TB"`, or a bare number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Bytes(pub u64);

/// Units, largest first, so that the shortest exact text wins.
const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("B", 1),
];

/// Reads a number of bytes.
///
/// # Errors
/// Names the text and what would be right.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is not a size; write for example \"64KiB\", \"1GiB\" or \"5TB\"");
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit = match text[digits..].trim() {
        "" => 1,
        unit => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(wrong)?.1,
    };
    number.checked_mul(unit).ok_or_else(wrong)
}

/// Reads a rate per second: `250`, `100k`, `1.5m`.
///
/// # Errors
/// Names the text and what would be right.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    let wrong = || format!("\"{text}\" is not a rate; write for example \"250\", \"100k\" or \"1.5m\" (per second)");
    let (number, factor) = match text.trim().to_ascii_lowercase() {
        lower if lower.ends_with('k') => (lower[..lower.len() - 1].to_string(), 1e3),
        lower if lower.ends_with('m') => (lower[..lower.len() - 1].to_string(), 1e6),
        lower => (lower, 1.0),
    };
    let rate: f64 = number.parse().map_err(|_| wrong())?;
    if rate.is_finite() && rate > 0.0 { Ok(rate * factor) } else { Err(wrong()) }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, unit) =
            UNITS.iter().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit)).unwrap_or(&("B", 1));
        write!(f, "{}{name}", self.0 / unit)
    }
}

impl std::str::FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        parse_bytes(text).map(Bytes)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "must be a size in quotes, for example \"64KiB\", or a number of bytes")]
        enum Either {
            Number(u64),
            Text(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(number) => Ok(Bytes(number)),
            Either::Text(text) => parse_bytes(&text).map(Bytes).map_err(D::Error::custom),
        }
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_print() {
        for (text, bytes) in
            [("64KiB", 65_536), ("1GiB", 1 << 30), ("5TB", 5_000_000_000_000), ("7", 7), ("3 mb", 3_000_000)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        assert_eq!(Bytes(1 << 20).to_string(), "1MiB");
        assert_eq!(Bytes(1_500).to_string(), "1500B");
        for bad in ["", "MiB", "-1", "1XB", "99999999999TiB"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_of_a_command_line_are_gos_and_ours() {
        for (text, nanos) in [
            ("7500us", 7_500_000_u64),
            ("15ms", 15_000_000),
            ("600ms", 600_000_000),
            ("1s", 1_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5ms", 500_000),
            ("1.ms", 1_000_000),
            ("1h2m0.5s", 3_720_500_000_000),
            ("3\u{b5}s", 3_000),
            ("3\u{3bc}s", 3_000),
            ("1.9ns", 1),
            ("0.333333333333333333333h", 1_199_999_999_999),
            ("0", 0),
            ("0s", 0),
            ("+5ms", 5_000_000),
            ("1day", 86_400_000_000_000),
            ("2 min", 120_000_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Span(Duration::from_nanos(nanos))), "{text}");
        }
        for (text, part) in [
            ("-5ms", "is negative: write 0s or more"),
            ("-0.5s", "is negative"),
            ("", "is not a duration"),
            ("-", "is not a duration"),
            ("5", "is not a duration"),
            ("ms", "is not a duration"),
            (".s", "is not a duration"),
            ("1.2.3s", "is not a duration"),
            ("5 parsecs", "is not a duration"),
            ("99999999999999999999h", "is not a duration"),
        ] {
            let error = parse_duration(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn rates_take_k_and_m() {
        assert_eq!(parse_rate("100k"), Ok(100_000.0));
        assert_eq!(parse_rate("1.5M"), Ok(1_500_000.0));
        for bad in ["", "0", "-5", "x", "inf"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
    }
}
