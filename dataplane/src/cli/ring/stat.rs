//! `sluice ring stat`: what a ring shows of itself: layout, head, producer, readers.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::failure;
use crate::cli::{Exit, Outcome};
use crate::ring::inspect::{Inspected, inspect};
use crate::ring::liveness::Producer;
use crate::wire::feed_meta::FeedMeta;
use crate::wire::ring::{flag, signature};

/// Arguments of `sluice ring stat`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The ring's file.
    pub ring: PathBuf,
    /// One JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command. It maps the ring read-only and changes nothing.
pub fn run(args: Args) -> Outcome {
    let status = inspect(&args.ring).map_err(failure)?;
    match args.json {
        true => println!("{}", as_json(&args, &status)),
        false => as_text(&args, &status),
    }
    Ok(Exit::Done)
}

/// The names of the flags that are set.
fn flags(bits: u32) -> Vec<&'static str> {
    const NAMES: [(u32, &str); 7] = [
        (flag::LATEST_WINS, "latest_wins"),
        (flag::LOSSLESS, "lossless"),
        (flag::SINGLE_PRODUCER, "single_producer"),
        (flag::MULTI_PRODUCER, "multi_producer"),
        (flag::ARENA, "arena"),
        (flag::REGISTRY, "registry"),
        (flag::SPARSE, "sparse"),
    ];
    NAMES.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect()
}

fn producer_label(producer: Producer) -> &'static str {
    match producer {
        Producer::Alive => "alive",
        Producer::Stalled => "stalled",
        Producer::Died => "died",
        Producer::Replaced => "replaced",
    }
}

fn is_feed(status: &Inspected) -> bool {
    status.header.geometry.schema_sig == signature::<FeedMeta>() && status.header.geometry.has_arena()
}

fn as_json(args: &Args, status: &Inspected) -> Value {
    let geometry = &status.header.geometry;
    let readers: Vec<Value> = status
        .readers
        .iter()
        .map(|reader| {
            json!({"pid": reader.pid, "name": reader.name, "active": reader.active, "cursor": reader.cursor,
                   "lag": lag(status, reader.cursor), "exists": reader.exists})
        })
        .collect();
    json!({
        "ring": args.ring, "file_bytes": status.file_bytes, "capacity": geometry.capacity,
        "element_size": geometry.element_size, "payload_bytes": geometry.payload_bytes(),
        "slots_straddle_lines": status.slots_straddle_lines(), "flags": flags(geometry.flags),
        "schema_sig": format!("{:#018x}", geometry.schema_sig), "feed": is_feed(status),
        "arena_bytes": geometry.arena_size, "registry_entries": geometry.registry_count,
        "head": status.head, "oldest": status.oldest,
        "producer": producer_label(status.producer), "producer_pid": status.header.producer_pid,
        "incarnation": format!("{:#018x}", status.header.incarnation),
        "heartbeat_age_ms": status.heartbeat_age_ms, "sleepers": status.sleepers, "readers": readers,
    })
}

/// Records between a reader and the head.
fn lag(status: &Inspected, cursor: u64) -> u64 {
    (status.head + 1).saturating_sub(cursor)
}

fn as_text(args: &Args, status: &Inspected) {
    let geometry = &status.header.geometry;
    println!(
        "{}: {} slots of {} bytes (payload {}), {} bytes in all",
        args.ring.display(),
        geometry.capacity,
        geometry.element_size,
        geometry.payload_bytes(),
        status.file_bytes
    );
    if geometry.has_arena() {
        let feed = if is_feed(status) { ", a published feed" } else { "" };
        println!("  blobs: arena of {} bytes{feed}", geometry.arena_size);
    }
    println!("  flags: {}; signature {:#018x}", flags(geometry.flags).join(", "), geometry.schema_sig);
    match status.head {
        0 => println!("  records: none yet"),
        head => println!("  records: {} .. {head} ({} held)", status.oldest, head + 1 - status.oldest),
    }
    let incarnation = match status.header.incarnation {
        0 => "no incarnation".into(),
        incarnation => format!("incarnation {incarnation:#018x}, pid {}", status.header.producer_pid),
    };
    let beat = status.heartbeat_age_ms.map_or(String::new(), |age| format!(", last sign of life {age} ms ago"));
    println!("  producer: {}, {incarnation}{beat}", producer_label(status.producer));
    if status.slots_straddle_lines() {
        println!(
            "  slots straddle cache lines: a record of 56 or 120 bytes fills whole lines, one of {} does not",
            geometry.payload_bytes()
        );
    }
    println!("  sleeping readers: {}; registered: {}", status.sleepers, status.readers.len());
    for reader in &status.readers {
        let gone = if reader.exists { "" } else { ", its process is gone" };
        let passive = if reader.active { "" } else { ", not counted" };
        let lag = lag(status, reader.cursor);
        // Another process gave the name: what a terminal would obey is written out.
        let name = reader.name.escape_debug();
        println!("    pid {} \"{name}\": next {}, {lag} behind{passive}{gone}", reader.pid, reader.cursor);
    }
}
