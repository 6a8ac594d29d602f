//! `sluice ring serve RING`: sends a ring of this host to mirrors.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use super::live::{self, CORE, CoreArgs};
use crate::cli::{Failure, Outcome};
use crate::config::{Linger, Ring, Serve};
use crate::ring::plan;
use crate::ring::stats::ServeCounter;

/// Arguments of `sluice ring serve`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The ring's file; it may come later, and be replaced.
    pub ring: PathBuf,
    /// Where mirrors connect (TCP), for example 0.0.0.0:7400.
    #[arg(long, value_name = "ADDRESS")]
    pub bind: SocketAddr,
    /// Send live records to this multicast group and port, once for all mirrors.
    #[arg(long, value_name = "GROUP:PORT")]
    pub multicast: Option<SocketAddrV4>,
    /// Address of the interface that multicast leaves through [default: as the route to the group says].
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0", hide_default_value = true)]
    pub iface: Ipv4Addr,
    /// Send live records by UDP from this port to each mirror that asks for it.
    #[arg(long, value_name = "PORT")]
    pub udp: Option<u16>,
    /// How often each datagram is sent.
    #[arg(long, value_name = "N", default_value = "1")]
    pub dup: u8,
    /// Payload bytes of a datagram: the path's MTU less 28.
    #[arg(long, value_name = "BYTES", default_value = "1472")]
    pub mtu: u32,
    /// Routers that multicast passes.
    #[arg(long, value_name = "N", default_value = "1")]
    pub ttl: u8,
    /// Wait so many µs for a frame to fill, or "auto": a frame leaves as soon as the one before it has.
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = linger)]
    pub linger_us: Linger,
    /// Most records of a frame.
    #[arg(long, value_name = "N", default_value = "256")]
    pub batch: u32,
    /// Take one TCP mirror and end when it disconnects; not with --multicast or --udp.
    #[arg(long, conflicts_with_all = ["multicast", "udp"])]
    pub once: bool,
    /// What both commands have.
    #[command(flatten)]
    pub core: CoreArgs,
}

pub(super) fn linger(text: &str) -> Result<Linger, String> {
    match text {
        "auto" => Ok(Linger::Auto),
        number => match number.parse() {
            Ok(microseconds) => Ok(Linger::Fixed(Duration::from_micros(microseconds))),
            Err(_) => Err("write \"auto\" or a number of microseconds".into()),
        },
    }
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let serve = Serve {
        multicast: args.multicast,
        interface: args.iface,
        ttl: args.ttl,
        udp: args.udp,
        mtu: args.mtu,
        dup: args.dup,
        linger: args.linger_us,
        batch: args.batch,
        key_file: args.core.key_file.clone(),
        // What never sleeps is woken by nobody: nothing of the ring has to be writable.
        futex: !args.core.spin,
        ..Serve::new(name(&args.ring), CORE, args.ring.clone(), args.bind)
    };
    live::check(&args.core, Ring { serves: vec![serve.clone()], ..Ring::default() })?;
    let (worker, view) = plan::plan_serve(&serve, args.once).map_err(Failure::usage)?;
    live::run(&args.core, worker, || view.get(ServeCounter::Ended) == 1, || view.status())
}

/// The ring's file name: what logs call it.
pub(super) fn name(ring: &std::path::Path) -> String {
    ring.file_name().map_or_else(|| "ring".into(), |name| name.to_string_lossy().into_owned())
}
