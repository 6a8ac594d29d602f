//! `sluice store`: look at, search, verify, export and prune a store.
//!
//! May use: every library module. Never does: more than parse, call and print.

use serde_json::json;

use super::{Exit, Failure, Outcome};
use crate::store::StoreError;
use crate::store::scan::Damage;

pub mod export;
pub mod info;
pub mod prune;
pub mod query;
pub mod verify;

/// The verbs of `sluice store`.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Summarise a store: segments, streams, sequence and time ranges.
    Info(info::Args),
    /// Print records by stream and sequence range, or by time range.
    Query(query::Args),
    /// Check every checksum and the order of a store.
    Verify(verify::Args),
    /// Write a store as pcapng, pcap, CSV or Parquet.
    Export(export::Args),
    /// Delete the oldest segments down to a bound.
    Prune(prune::Args),
}

/// Runs one verb.
pub fn run(command: Command) -> Outcome {
    match command {
        Command::Info(args) => info::run(args),
        Command::Query(args) => query::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Export(args) => export::run(args),
        Command::Prune(args) => prune::run(args),
    }
}

/// The failure of a command, with its exit code.
pub(crate) fn failure(error: StoreError) -> Failure {
    let exit = match &error {
        StoreError::Export { .. } => Exit::Difference,
        StoreError::Stream { .. } | StoreError::NoStore(_) | StoreError::Exists(_) | StoreError::Unsupported(_) => {
            Exit::Usage
        }
        StoreError::Unreachable { .. } => Exit::Usage,
        StoreError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Exit::Usage,
        StoreError::Format { .. } | StoreError::Kept { .. } => Exit::Damage,
        StoreError::Io { .. } | StoreError::Locked(_) | StoreError::Ring(_) | StoreError::Lost { .. } => Exit::Host,
    };
    Failure { message: error.to_string(), exit }
}

/// Says each damage on standard error when `aloud`; the exit code that it leads to.
fn print_damage(damage: &[Damage], aloud: bool) -> Exit {
    if aloud {
        damage.iter().for_each(|damage| eprintln!("damage: {damage}"));
    }
    if damage.is_empty() { Exit::Done } else { Exit::Damage }
}

fn damage_json(damage: &Damage) -> serde_json::Value {
    let lost: Vec<_> = damage
        .lost
        .iter()
        .map(|lost| json!({ "stream": lost.stream, "first": lost.first, "last": lost.last }))
        .collect();
    json!({
        "file": damage.file, "offset": damage.offset, "bytes": damage.bytes, "what": damage.what,
        "records": damage.records, "lost": lost,
    })
}

/// A bar on standard error; nothing is drawn when that is no terminal.
fn progress_bar(bytes: bool) -> indicatif::ProgressBar {
    let bar = indicatif::ProgressBar::new(0);
    let text = if bytes { "{wide_bar} {bytes}/{total_bytes} {eta}" } else { "{wide_bar} {pos}/{len} {eta}" };
    if let Ok(style) = indicatif::ProgressStyle::with_template(text) {
        bar.set_style(style);
    }
    bar
}

/// `A..B` (inclusive), `A..`, `..B`, or one value.
fn split_range(text: &str) -> (Option<&str>, Option<&str>) {
    match text.split_once("..") {
        None => (Some(text), Some(text)),
        Some((first, last)) => {
            let last = last.strip_prefix('=').unwrap_or(last);
            ((!first.is_empty()).then_some(first), (!last.is_empty()).then_some(last))
        }
    }
}

fn parse_range(text: &str) -> Result<(u64, u64), Failure> {
    let wrong = |what: &str| Failure::usage(format!("sequences {text:?}: {what}: write A..B, such as 100..200"));
    let number = |part: &str| part.trim().parse::<u64>().map_err(|_| wrong(&format!("{part:?} is not a number")));
    let (first, last) = split_range(text);
    let range = (first.map_or(Ok(0), number)?, last.map_or(Ok(u64::MAX), number)?);
    if range.0 > range.1 { Err(wrong("the first is above the last")) } else { Ok(range) }
}

fn parse_times(text: &str) -> Result<(i64, i64), Failure> {
    let wrong = |what: String| {
        Failure::usage(format!("times {text:?}: {what}: write A..B, each like 2018-01-27T14:30:00.5Z or ns since 1970"))
    };
    let time = |part: &str| {
        let part = part.trim();
        if let Ok(ns) = part.parse::<i64>() {
            return Ok(ns);
        }
        let parsed = humantime::parse_rfc3339_weak(part).map_err(|error| wrong(format!("{part:?}: {error}")))?;
        let since =
            parsed.duration_since(std::time::UNIX_EPOCH).map_err(|_| wrong(format!("{part:?} is before 1970")))?;
        i64::try_from(since.as_nanos()).map_err(|_| wrong(format!("{part:?} is too late")))
    };
    let (first, last) = split_range(text);
    let range = (first.map_or(Ok(i64::MIN), time)?, last.map_or(Ok(i64::MAX), time)?);
    if range.0 > range.1 { Err(wrong("the first is after the last".into())) } else { Ok(range) }
}

/// A number of bytes with an optional decimal (k, M, G, T) or binary (Ki, Mi, Gi, Ti) unit.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().trim_end_matches('B');
    let powers = [
        ("", 1),
        ("k", 1000),
        ("K", 1000),
        ("M", 1000_u64.pow(2)),
        ("G", 1000_u64.pow(3)),
        ("T", 1000_u64.pow(4)),
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
    ];
    let factor = powers.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let value = number.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    value.ok_or_else(|| format!("{text:?} is not a number of bytes, such as 500G or 2Ti"))
}

/// A capture time as RFC 3339 with nanoseconds; before 1970 as the number.
pub(crate) fn time_text(ns: i64) -> String {
    match u64::try_from(ns) {
        Ok(ns) => {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(ns);
            humantime::format_rfc3339_nanos(time).to_string()
        }
        Err(_) => ns.to_string(),
    }
}
