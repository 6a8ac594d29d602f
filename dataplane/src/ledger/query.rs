//! Which ledgers a subscriber asks for: the `start` and `end` of a request, with the peer's own texts of refusal.

use std::fmt;

use crate::wire::ledger::SEQUENCE_MAX;

/// A range of ledgers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    start: u32,
    end: Option<u32>,
}

impl Range {
    /// From the ledger in flight or else the next one, without end.
    pub const TIP: Range = Range { start: 0, end: None };

    /// From `start` (0: the tip) to `end` (`None`: without end), both included.
    ///
    /// # Errors
    /// An end that is 0 or before the start, and the last u32 for either.
    pub fn new(start: u32, end: Option<u32>) -> Result<Range, QueryError> {
        if let Some(sequence) = [Some(start), end].into_iter().flatten().find(|&sequence| sequence > SEQUENCE_MAX) {
            return Err(QueryError::Ceiling { sequence });
        }
        match end {
            Some(0) => Err(QueryError::EndZero),
            Some(end) if end < start => Err(QueryError::Backwards { start, end }),
            _ => Ok(Range { start, end }),
        }
    }

    /// The first ledger; 0 is the tip.
    pub fn start(&self) -> u32 {
        self.start
    }

    /// The last ledger; `None`: without end.
    pub fn end(&self) -> Option<u32> {
        self.end
    }

    /// Whether it begins at the tip.
    pub fn is_tip(&self) -> bool {
        self.start == 0
    }
}

/// Why a request's range is refused; the texts are those that the peer answers with status 400.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueryError {
    /// Not a number of 32 bits.
    #[error("invalid {parameter} parameter {}", Quoted(value))]
    NotANumber {
        /// `start` or `end`.
        parameter: &'static str,
        /// What was given.
        value: String,
    },
    /// An end of 0.
    #[error("invalid end parameter: 0")]
    EndZero,
    /// An end before the start.
    #[error("end {end} is before start {start}")]
    Backwards {
        /// The start.
        start: u32,
        /// The end.
        end: u32,
    },
    /// A sequence that is never streamed.
    #[error("ledger {sequence} is the last representable sequence and is not streamable")]
    Ceiling {
        /// It.
        sequence: u32,
    },
}

/// Reads the range of a request's query (what follows the `?`). Only the first value of a parameter counts; others are none
/// of ours; a blank one is as if it were absent.
///
/// # Errors
/// See [`QueryError`].
pub fn parse(query: &str) -> Result<Range, QueryError> {
    let start = number(query, "start")?.unwrap_or(0);
    let end = number(query, "end")?;
    Range::new(start, end)
}

fn number(query: &str, parameter: &'static str) -> Result<Option<u32>, QueryError> {
    let Some(value) = first_value(query, parameter) else { return Ok(None) };
    if value.trim().is_empty() {
        return Ok(None);
    }
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    match value.parse() {
        Ok(number) if digits => Ok(Some(number)),
        _ => Err(QueryError::NotANumber { parameter, value }),
    }
}

/// The first value of a parameter, decoded; pairs whose escapes are broken are passed over.
pub(super) fn first_value(query: &str, parameter: &str) -> Option<String> {
    query
        .split('&')
        .filter(|pair| !pair.contains(';'))
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .find_map(|(name, value)| (decode(name)? == parameter).then(|| decode(value)).flatten())
}

/// A query's part with `%xx` and `+` resolved; `None` where an escape is broken.
pub(super) fn decode(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let (hex, after) = rest.split_first_chunk::<2>()?;
                rest = after;
                let digit = |byte: u8| char::from(byte).to_digit(16);
                (digit(hex[0])? * 16 + digit(hex[1])?) as u8
            }
            other => other,
        });
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// A value between quotes as the peer prints it.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                c if u32::from(c) < 0x80 && c.is_control() => write!(f, "\\x{:02x}", u32::from(c))?,
                c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
                c => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let range = |start, end| Range::new(start, end).expect("a range");
        for (query, expected) in [
            ("", Range::TIP),
            ("start=0", Range::TIP),
            ("start=&end=", Range::TIP),
            ("start=%20&end=+", Range::TIP),
            ("start", Range::TIP),
            ("start=7", range(7, None)),
            ("start=7&end=9", range(7, Some(9))),
            ("end=2", range(0, Some(2))),
            ("start=5&end=5", range(5, Some(5))),
            ("token=x%zz&start=7&start=abc", range(7, None)),
            ("st%61rt=%37", range(7, None)),
            ("start=%zz&start=3", range(3, None)),
            ("start=4294967294&end=4294967294", range(SEQUENCE_MAX, Some(SEQUENCE_MAX))),
        ] {
            assert_eq!(parse(query), Ok(expected), "{query:?}");
        }
    }

    #[test]
    fn refusals_have_the_peers_words() {
        for (query, text) in [
            ("start=abc", "invalid start parameter \"abc\""),
            ("start=-1", "invalid start parameter \"-1\""),
            ("start=%2B1", "invalid start parameter \"+1\""),
            ("start=4294967296", "invalid start parameter \"4294967296\""),
            ("start=1.5", "invalid start parameter \"1.5\""),
            ("start=1_0", "invalid start parameter \"1_0\""),
            ("start=%20%22%0a1", "invalid start parameter \" \\\"\\n1\""),
            ("end=x", "invalid end parameter \"x\""),
            ("start=1&end=0", "invalid end parameter: 0"),
            ("end=0", "invalid end parameter: 0"),
            ("start=9&end=4", "end 4 is before start 9"),
            ("start=4294967295", "ledger 4294967295 is the last representable sequence and is not streamable"),
            ("start=1&end=4294967295", "ledger 4294967295 is the last representable sequence and is not streamable"),
        ] {
            assert_eq!(parse(query).map_err(|error| error.to_string()), Err(text.into()), "{query:?}");
        }
    }
}
