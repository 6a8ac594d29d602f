//! `sluice store query`: Print records by stream and sequence range, or by time range.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use serde_json::json;

use super::{failure, parse_range, parse_times, print_damage};
use crate::cli::{Exit, Failure, Outcome, output};
use crate::store::export::csv;
use crate::store::{Found, NO_TIME, Reader, Select, Step, StreamInfo};
use crate::sys::clock;

/// How records are printed.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// One CSV row a record, with a header line.
    Csv,
    /// One JSON object a line.
    Jsonl,
    /// A line of facts, then the body as a hex dump.
    Hex,
}

/// Arguments of `sluice store query`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A store's directory, or one .tri file.
    pub path: PathBuf,
    /// The stream: its key, or a part of it that no other has.
    #[arg(long)]
    pub stream: Option<String>,
    /// Sequences, inclusive.
    ///
    /// `A..B`, `A..` or one number. Needs --stream, unless the store has only one.
    #[arg(long, value_name = "A..B", conflicts_with = "time")]
    pub sequence: Option<String>,
    /// Capture times, inclusive.
    ///
    /// `A..B`, each RFC 3339 or ns since the Unix epoch; either may be left out.
    #[arg(long, value_name = "A..B")]
    pub time: Option<String>,
    /// How records are printed.
    #[arg(long, value_enum, default_value = "csv")]
    pub format: Format,
    /// Stop after this many records.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Say on standard error how long it took and what was read.
    #[arg(long)]
    pub stats: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let opened_at = clock::monotonic_ns();
    let mut reader = Reader::open(&args.path).map_err(failure)?;
    let select = select(&args, &reader)?;
    let mut damage = reader.damage().to_vec();
    let mut out = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    let mut line = Vec::new();
    if args.format == Format::Csv {
        line.extend_from_slice(format!("{}\n", csv::COLUMNS.join(",")).as_bytes());
    }
    let keys: Vec<String> = reader.streams().iter().map(|stream| stream.key.clone()).collect();
    let asked = select;
    let begun_at = clock::monotonic_ns();
    let (mut records, mut first_at) = (0, None);
    let mut query = reader.query(select);
    while args.limit.is_none_or(|limit| records < limit) {
        let Some(step) = query.step().map_err(failure)? else { break };
        match step {
            Step::Record(found) => {
                first_at.get_or_insert_with(clock::monotonic_ns);
                print(&mut line, args.format, &keys[found.stream], &found);
                records += 1;
            }
            Step::Damage(found) => damage.push(*found),
        }
        if !write(&mut out, &mut line)? {
            return Ok(Exit::Done);
        }
    }
    let (ended_at, cost) = (clock::monotonic_ns(), query.cost());
    if !write(&mut out, &mut line)? || !output::written(out.flush())? {
        return Ok(Exit::Done);
    }
    if let (0, Select::Sequence { stream, .. }, Some(_)) = (records, &asked, &args.sequence) {
        eprintln!("sluice: {}", nothing(&reader.streams()[*stream], args.sequence.as_deref().unwrap_or_default()));
    }
    if args.stats {
        let micros = |from: i64, to: i64| (to - from) as f64 / 1000.0;
        eprintln!(
            "opened in {:.1} us; first record after {:.1} us; {records} records in {:.1} us; {} blocks, {} chunks, {} bytes read",
            micros(opened_at, begun_at),
            micros(begun_at, first_at.unwrap_or(ended_at)),
            micros(begun_at, ended_at),
            cost.blocks,
            cost.chunks,
            cost.bytes
        );
    }
    Ok(print_damage(&damage, true))
}

/// Why no record was found: what the stream holds.
fn nothing(stream: &StreamInfo, asked: &str) -> String {
    let held = match stream.sequences {
        Some((first, last)) => format!("the stream holds {first} to {last}"),
        None => "the stream holds no data".into(),
    };
    format!("no record of {} has a sequence in {asked}: {held}", stream.key)
}

/// Writes and empties the line; false when the reader of our output has gone (a pipe into `head`).
fn write(out: &mut impl Write, line: &mut Vec<u8>) -> Result<bool, Failure> {
    let result = out.write_all(line);
    line.clear();
    output::written(result)
}

fn select(args: &Args, reader: &Reader) -> Result<Select, Failure> {
    let stream = args.stream.as_deref().map(|wanted| reader.find_stream(wanted)).transpose();
    let stream = stream.map_err(|error| Failure::usage(error.to_string()))?;
    if let Some(time) = &args.time {
        let (from, to) = parse_times(time)?;
        return Ok(Select::Time { from, to, stream });
    }
    let Some(sequence) = &args.sequence else {
        return Ok(match stream {
            Some(stream) => Select::Sequence { stream, first: 0, last: u64::MAX },
            None => Select::All,
        });
    };
    let (first, last) = parse_range(sequence)?;
    let only = || match reader.streams() {
        [_] => Ok(0),
        _ => reader.find_stream("").map_err(|error| Failure::usage(format!("--sequence needs --stream: {error}"))),
    };
    Ok(Select::Sequence { stream: stream.map_or_else(only, Ok)?, first, last })
}

fn print(out: &mut Vec<u8>, format: Format, key: &str, found: &Found<'_>) {
    let header = &found.header;
    match format {
        Format::Csv => csv::line(out, key, found),
        Format::Jsonl => {
            let mut body = Vec::new();
            csv::hex(&mut body, found.body);
            let send = (header.send_ns != NO_TIME).then_some(header.send_ns);
            let row = json!({
                "arrival": found.arrival, "stream": key, "kind": header.kind.name(), "side": header.side.to_string(),
                "flags": header.flags, "sequence": header.sequence, "capture_ns": header.capture_ns,
                "send_ns": send, "bytes": found.body.len(), "body": String::from_utf8_lossy(&body),
            });
            out.extend_from_slice(format!("{row}\n").as_bytes());
        }
        Format::Hex => hex_dump(out, key, found),
    }
}

fn hex_dump(out: &mut Vec<u8>, key: &str, found: &Found<'_>) {
    let header = &found.header;
    let time = super::time_text(header.capture_ns);
    let head = format!(
        "{key} {} {} side {} {time} {} bytes\n",
        header.kind.name(),
        header.sequence,
        header.side,
        found.body.len()
    );
    out.extend_from_slice(head.as_bytes());
    for (row, bytes) in found.body.chunks(16).enumerate() {
        out.extend_from_slice(format!("  {:04x} ", row * 16).as_bytes());
        for byte in bytes {
            out.push(b' ');
            csv::hex(out, &[*byte]);
        }
        let text = bytes.iter().map(|&byte| if (0x20..0x7f).contains(&byte) { char::from(byte) } else { '.' });
        let padding = " ".repeat(3 * (16 - bytes.len()) + 2);
        out.extend_from_slice(format!("{padding}{}\n", text.collect::<String>()).as_bytes());
    }
}
