//! `sluice store export`: Write a store as pcapng, pcap, CSV or Parquet.

use std::path::PathBuf;

use serde_json::json;

use super::{failure, parse_range, parse_times, print_damage, progress_bar};
use crate::cli::{Failure, Outcome};
use crate::store::export::{self, Format};
use crate::store::{Reader, Select};

/// The formats by name.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum FormatName {
    /// pcapng: ns stamps, one interface per side. Merged messages become frames of one message each, whose stream offsets are made: the store keeps
    /// none, and a missing message counts for 34 bytes.
    Pcapng,
    /// pcap: ns stamps, all sides in one.
    Pcap,
    /// CSV: one row a record, the body in hexadecimal.
    Csv,
    /// Parquet: one row a record (needs a build with the feature `parquet`).
    Parquet,
}

/// Arguments of `sluice store export`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A store's directory, or one .tri file.
    pub path: PathBuf,
    /// The format.
    #[arg(long, value_enum)]
    pub format: FormatName,
    /// The file to write; it must not exist.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Only this stream: its key, or a part of it that no other has.
    #[arg(long)]
    pub stream: Option<String>,
    /// Only these sequences, inclusive; needs --stream.
    #[arg(long, value_name = "A..B", requires = "stream", conflicts_with = "time")]
    pub sequence: Option<String>,
    /// Only these capture times, inclusive: RFC 3339 or ns since the Unix epoch.
    #[arg(long, value_name = "A..B")]
    pub time: Option<String>,
    /// One JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let mut reader = Reader::open(&args.path).map_err(failure)?;
    let select = select(&args, &reader)?;
    let format = match args.format {
        FormatName::Pcapng => Format::Pcapng,
        FormatName::Pcap => Format::Pcap,
        FormatName::Csv => Format::Csv,
        FormatName::Parquet => Format::Parquet,
    };
    let bar = progress_bar(false);
    bar.set_length(reader.segments().iter().map(|segment| segment.index.records()).sum());
    let exported = export::export(&mut reader, select, format, &args.out, |done| bar.set_position(done));
    bar.finish_and_clear();
    let exported = exported.map_err(failure)?;
    if args.json {
        let damage: Vec<_> = exported.damage.iter().map(super::damage_json).collect();
        println!(
            "{}",
            json!({
                "out": args.out, "records": exported.records, "read_back": exported.read_back,
                "skipped": exported.skipped, "sides": exported.sides, "damage": damage,
            })
        );
    } else {
        println!("{}: {} records written, {} read back", args.out.display(), exported.records, exported.read_back);
        if exported.skipped > 0 {
            println!("  {} records have no place in this format (gaps, begins, ends)", exported.skipped);
        }
    }
    Ok(print_damage(&exported.damage, !args.json))
}

fn select(args: &Args, reader: &Reader) -> Result<Select, Failure> {
    let stream = args.stream.as_deref().map(|wanted| reader.find_stream(wanted)).transpose();
    let stream = stream.map_err(|error| Failure::usage(error.to_string()))?;
    if let Some(time) = &args.time {
        let (from, to) = parse_times(time)?;
        return Ok(Select::Time { from, to, stream });
    }
    let (first, last) = args.sequence.as_deref().map_or(Ok((0, u64::MAX)), parse_range)?;
    Ok(stream.map_or(Select::All, |stream| Select::Sequence { stream, first, last }))
}
