//! `sluice store verify`: Check every checksum and the order of a store.

use std::path::PathBuf;

use serde_json::json;

use super::{failure, print_damage, progress_bar};
use crate::cli::Outcome;
use crate::cli::fields::counted;
use crate::store;

/// Arguments of `sluice store verify`.
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
    let bar = progress_bar(true);
    let verified = store::verify(&args.path, |done, total| {
        bar.set_length(total.max(done));
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let found = verified.map_err(failure)?;
    if args.json {
        let damage: Vec<_> = found.damage.iter().map(super::damage_json).collect();
        println!(
            "{}",
            json!({
                "segments": found.segments, "blocks": found.blocks, "records": found.records,
                "data_records": found.data_records, "bytes": found.bytes, "arrival_holes": found.arrival_holes,
                "damage": damage,
            })
        );
    } else {
        println!(
            "{}: {}, {}, {}, {} bytes: {}",
            args.path.display(),
            counted(found.segments, "segment"),
            counted(found.blocks, "block"),
            counted(found.records, "record"),
            found.bytes,
            if found.damage.is_empty() { "whole" } else { "damaged" }
        );
        if found.arrival_holes > 0 {
            println!("  {} records were offered to the store and are not in it", found.arrival_holes);
        }
    }
    Ok(print_damage(&found.damage, !args.json))
}
