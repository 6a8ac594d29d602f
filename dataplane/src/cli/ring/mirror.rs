//! `sluice ring mirror SOURCE RING`: keeps a copy of another host's ring.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use super::live::{self, CORE, CoreArgs};
use super::serve::name;
use crate::cli::{Failure, Outcome};
use crate::config::{Bytes, Mirror, MirrorStart, Ring, Span};
use crate::ring::plan;
use crate::ring::stats::MirrorCounter;

/// Arguments of `sluice ring mirror`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The source: address or name, and port, for example 10.0.0.5:7400.
    pub source: String,
    /// The local ring's file.
    pub ring: PathBuf,
    /// Where it begins: latest, oldest, resume (behind what the file holds) or a sequence; after the first connection it
    /// always resumes.
    #[arg(long, value_name = "START", default_value = "latest")]
    pub from: MirrorStart,
    /// Address of the interface on which the group is joined [default: as the route to the group says].
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0", hide_default_value = true)]
    pub iface: Ipv4Addr,
    /// Ask for UDP unicast even if the source offers multicast.
    #[arg(long)]
    pub unicast: bool,
    /// End with the first connection.
    #[arg(long)]
    pub once: bool,
    /// Pause before the first reconnection, ms; it doubles up to 2 s (or this, if longer).
    #[arg(long, value_name = "N", default_value = "500")]
    pub reconnect_ms: u64,
    /// Largest ring that a source may announce: it is made in memory at once.
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    pub geometry_max: Bytes,
    /// What both commands have.
    #[command(flatten)]
    pub core: CoreArgs,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let mut mirror = Mirror::new(name(&args.ring), CORE, args.source, args.ring);
    mirror.from = args.from;
    mirror.interface = args.iface;
    mirror.unicast = args.unicast;
    mirror.key_file = args.core.key_file.clone();
    mirror.geometry_max = args.geometry_max;
    mirror.reconnect = Span(Duration::from_millis(args.reconnect_ms));
    mirror.reconnect_max = Span(mirror.reconnect_max.0.max(mirror.reconnect.0));
    live::check(&args.core, Ring { mirrors: vec![mirror.clone()], ..Ring::default() })?;
    let (worker, view) = plan::plan_mirror(&mirror, args.once).map_err(Failure::usage)?;
    let exit = live::run(&args.core, worker, || view.get(MirrorCounter::Ended) == 1, || view.status())?;
    match view.end.get() {
        Some(Err(what)) => Err(Failure::host(what.clone())),
        _ => Ok(exit),
    }
}
