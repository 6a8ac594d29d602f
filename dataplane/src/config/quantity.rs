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
        #[serde(untagged)]
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
    fn rates_take_k_and_m() {
        assert_eq!(parse_rate("100k"), Ok(100_000.0));
        assert_eq!(parse_rate("1.5M"), Ok(1_500_000.0));
        for bad in ["", "0", "-5", "x", "inf"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
    }
}
