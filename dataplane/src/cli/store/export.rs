//! `sluice store export`: Write a store as pcapng, pcap, CSV or Parquet.

use crate::cli::{Failure, Outcome};

/// Arguments of `sluice store export`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> Outcome {
    Err(Failure::usage("store export: this build does not have it yet"))
}
