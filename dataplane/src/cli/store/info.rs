//! `sluice store info`: Summarise a store: segments, streams, sequence and time ranges.

use std::path::PathBuf;

use serde_json::json;

use super::{failure, print_damage, time_text};
use crate::cli::Outcome;
use crate::cli::fields::counted;
use crate::store::files::uuid_text;
use crate::store::scan::Depth;
use crate::store::{Reader, Segment, StreamInfo};

/// Arguments of `sluice store info`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A store's directory, or one .tri file.
    pub path: PathBuf,
    /// One JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let reader = Reader::open_with(&args.path, Depth::Full).map_err(failure)?;
    if args.json {
        println!("{}", as_json(&reader));
    } else {
        as_text(&reader);
    }
    Ok(print_damage(reader.damage(), !args.json))
}

fn totals(segment: &Segment) -> (u64, u64, Option<(i64, i64)>) {
    let blocks = &segment.index.blocks;
    let bytes = blocks.iter().map(|block| block.padded_bytes()).sum();
    let times = blocks.iter().map(|block| (block.time_min, block.time_max));
    (segment.index.records(), bytes, times.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))))
}

fn as_text(reader: &Reader) {
    let state = if reader.is_live() { ", being written" } else { "" };
    println!(
        "{}: {}, {}{state}",
        reader.path().display(),
        counted(reader.segments().len() as u64, "segment"),
        counted(reader.streams().len() as u64, "stream")
    );
    for segment in reader.segments() {
        let (records, bytes, times) = totals(segment);
        let name =
            segment.path.file_name().map_or_else(|| segment.path.display().to_string(), |n| n.to_string_lossy().into());
        let state = if segment.sealed { "sealed" } else { "open" };
        let span = times.map_or(String::new(), |(min, max)| format!(", {} .. {}", time_text(min), time_text(max)));
        let blocks = counted(segment.index.blocks.len() as u64, "block");
        println!("  {name}: {state}, {blocks}, {}, {bytes} bytes{span}", counted(records, "record"));
    }
    for stream in reader.streams() {
        let StreamInfo { key, data_records, late_fills, mark_records, sequences, .. } = stream;
        let span = sequences.map_or("no data".into(), |(first, last)| format!("sequences {first} .. {last}"));
        let (records, marks) = (counted(*data_records, "record"), counted(*mark_records, "mark"));
        println!("  {key}: {records} ({late_fills} late), {span}, {marks}");
    }
}

fn as_json(reader: &Reader) -> serde_json::Value {
    let segments = reader.segments().iter().map(|segment| {
        let (records, bytes, times) = totals(segment);
        let last = segment.index.blocks.last();
        json!({
            "file": segment.path, "number": segment.info.number, "uuid": uuid_text(&segment.info.uuid),
            "sealed": segment.sealed, "created_ns": segment.info.created_ns, "blocks": segment.index.blocks.len(),
            "records": records, "bytes": bytes,
            "time_min_ns": times.map(|times| times.0), "time_max_ns": times.map(|times| times.1),
            "stamp_source": last.map(|block| block.stamp_source.name()),
            "clock_epoch": last.map(|block| block.clock_epoch), "tai_offset_s": last.map(|block| block.tai_offset_s),
        })
    });
    let streams = reader.streams().iter().map(|stream| {
        json!({
            "key": stream.key, "data_records": stream.data_records, "late_fills": stream.late_fills,
            "mark_records": stream.mark_records, "first_sequence": stream.sequences.map(|range| range.0),
            "last_sequence": stream.sequences.map(|range| range.1), "segments": stream.segments.len(),
        })
    });
    json!({
        "path": reader.path(), "live": reader.is_live(), "segments": segments.collect::<Vec<_>>(),
        "streams": streams.collect::<Vec<_>>(),
        "damage": reader.damage().iter().map(super::damage_json).collect::<Vec<_>>(),
    })
}
