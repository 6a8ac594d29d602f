//! `sluice store prune`: Delete the oldest segments down to a bound.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::{failure, parse_bytes};
use crate::cli::fields::counted;
use crate::cli::{Exit, Failure, Outcome};
use crate::store::retention::{Retention, Unmet, enforce, unmet};
use crate::sys::clock;

/// Arguments of `sluice store prune`.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("bound").required(true).multiple(true))]
pub struct Args {
    /// A store's directory.
    pub path: PathBuf,
    /// Most bytes that the store's files may take on the disk (k, M, G, T; Ki, Mi, Gi, Ti).
    #[arg(long, group = "bound", value_name = "BYTES", value_parser = parse_bytes)]
    pub max_bytes: Option<u64>,
    /// Longest time since a segment was last written, such as `7days` or `12h`.
    #[arg(long, group = "bound", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub max_age: Option<Duration>,
    /// Fewest bytes that stay free on the file system.
    #[arg(long, group = "bound", value_name = "BYTES", value_parser = parse_bytes)]
    pub min_free: Option<u64>,
    /// One JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    if !args.path.is_dir() {
        return Err(Failure::usage(format!(
            "{}: not a directory: prune works on a store's directory",
            args.path.display()
        )));
    }
    let retention = Retention {
        bytes_max: args.max_bytes,
        age_ns_max: args.max_age.map(|age| i64::try_from(age.as_nanos()).unwrap_or(i64::MAX)),
        free_bytes_min: args.min_free,
    };
    let now = clock::utc_ns();
    let removed = enforce(&args.path, &retention, now).map_err(failure)?;
    let unmet = unmet(&args.path, &retention, now).map_err(failure)?;
    let bytes: u64 = removed.iter().map(|removed| removed.disk_bytes).sum();
    if args.json {
        let files: Vec<_> = removed
            .iter()
            .map(|removed| json!({ "file": removed.path, "bytes": removed.disk_bytes, "bound": removed.bound }))
            .collect();
        println!("{}", json!({ "removed": files, "bytes": bytes, "unmet": unmet.map(|unmet| unmet.bound) }));
    } else {
        for removed in &removed {
            println!("{}: {} bytes ({})", removed.path.display(), removed.disk_bytes, removed.bound);
        }
        println!("{} deleted, {bytes} bytes", counted(removed.len() as u64, "segment"));
        if let Some(unmet) = unmet {
            println!("{}", told(unmet));
        }
    }
    Ok(Exit::Done)
}

/// Which bound does not hold, and why nothing more is deleted for it.
fn told(unmet: Unmet) -> String {
    let option = match unmet.bound {
        "bytes" => "--max-bytes",
        "age" => "--max-age",
        _ => "--min-free",
    };
    let why = match (unmet.segments, unmet.live) {
        (0, _) => "the store has no segment any more",
        (_, true) => "what is left is open in the process that writes the store",
        (_, false) => "what is left was never sealed; the next run over this store does that",
    };
    format!(
        "{option} is not met: {} left, {} bytes: {why}",
        counted(unmet.segments as u64, "segment"),
        unmet.disk_bytes
    )
}
