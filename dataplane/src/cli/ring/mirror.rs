//! `sluice ring mirror SOURCE RING`: keeps a copy of another host's ring.

use std::net::{IpAddr, Ipv4Addr};
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
    /// Pause before each reconnection, ms [default: 500 before the first, doubling up to 2,000].
    #[arg(long, value_name = "N")]
    pub reconnect_ms: Option<u64>,
    /// Take datagrams from this address too: a source with several, whose multicast leaves by another than the one it is
    /// reached at. May be given more than once.
    #[arg(long, value_name = "ADDRESS")]
    pub datagrams_from: Vec<IpAddr>,
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
    mirror.datagrams_from = args.datagrams_from;
    if let Some(pause) = args.reconnect_ms.map(|ms| Span(Duration::from_millis(ms))) {
        (mirror.reconnect, mirror.reconnect_max) = (pause, pause);
    }
    live::check(&args.core, Ring { mirrors: vec![mirror.clone()], ..Ring::default() })?;
    let (worker, view) = plan::plan_mirror(&mirror, args.once).map_err(Failure::usage)?;
    let exit = live::run(&args.core, worker, || view.get(MirrorCounter::Ended) == 1, || view.status())?;
    match view.end.get() {
        Some(Err(what)) => Err(Failure::host(what.clone())),
        _ => Ok(exit),
    }
}
