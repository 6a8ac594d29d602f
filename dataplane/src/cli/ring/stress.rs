//! `sluice ring stress`: publish at a fixed rate for a fixed time, never wait, and say what came, and when.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::serve::linger;
use crate::cli::{Exit, Failure, Outcome};
use crate::config::Linger;
use crate::ring::stress::local::{self, LocalSettings, Transport};
use crate::ring::stress::reader::{self, ReaderSettings};
use crate::ring::stress::report::{
    Counts, Delivery, LocalReport, Percentiles, Produced, ReaderReport, RemoteReport, SourceReport, Verdict,
};
use crate::ring::stress::source::{self, SourceSettings};
use crate::ring::stress::{Load, StressError};
use crate::sys::signal::{Asked, Signals};

/// How often signals are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Arguments of `sluice ring stress`.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Between hosts: one of the two ends.
    #[command(subcommand)]
    between: Option<Between>,
    /// What is published.
    #[command(flatten)]
    load: LoadArgs,
    /// Read a mirror of the ring that gets its records so; without it the ring alone.
    #[arg(long, value_name = "HOW")]
    mirror: Option<How>,
    /// The mirror joins so long after the first record (as `130ms`), and begins with the latest; 0: before it.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
    join_after: Duration,
    /// How often each datagram is sent.
    #[arg(long, value_name = "N", default_value = "1")]
    dup: u8,
    /// Wait so many µs for a frame to fill, or "auto": a frame leaves as soon as the one before it has.
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = linger)]
    linger_us: Linger,
    /// The producer's own thread sends the datagrams.
    #[arg(long)]
    inline: bool,
    /// Nothing sleeps: lowest latency. With fewer than four CPUs the producer steps the server, and the reader the mirror.
    #[arg(long)]
    spin: bool,
    /// Address of the interface of the multicast group.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    iface: Ipv4Addr,
    /// CPUs to pin to: source end and mirror end, or producer, serve, mirror and reader.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Count this record as if it had not come.
    #[arg(long, value_name = "SEQUENCE", hide = true)]
    planted_loss: Option<u64>,
}

/// What is published.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct LoadArgs {
    /// Records a second.
    #[arg(long, value_name = "N", default_value = "100000")]
    rate: u64,
    /// How long.
    #[arg(long, value_name = "SECONDS", default_value = "5")]
    seconds: f64,
    /// Bytes of a record: 32, 56, 64, 120, 128, 248, 256, 504, 512, 1016 or 1024.
    #[arg(long, value_name = "BYTES", default_value = "56")]
    size: u32,
    /// Each record alone at its time; without it, what falls into 50 µs comes at once.
    #[arg(long)]
    even: bool,
    /// Slots of the ring, a power of two.
    #[arg(long, value_name = "SLOTS", default_value = "65536")]
    capacity: u64,
    /// One JSON object in place of text.
    #[arg(long)]
    json: bool,
}

impl LoadArgs {
    fn load(&self) -> Load {
        Load { rate: self.rate, seconds: self.seconds, size: self.size, even: self.even }
    }
}

/// How a mirror gets its records.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum How {
    /// On its TCP connection.
    Tcp,
    /// By UDP to its own address.
    Udp,
    /// By UDP to a multicast group.
    Multicast,
}

/// The two ends of a run between hosts.
#[derive(clap::Subcommand, Debug)]
pub enum Between {
    /// Produce into a ring that `sluice ring serve` serves, and gather what readers on the mirrors' hosts found.
    ///
    /// Readers connect to --listen. When all are there, clocks are compared by probes, the run is made, clocks are compared
    /// again, and the readers send their stamps back, matched by sequence. Nobody is asked for a key: listen on an address
    /// that only the test's hosts reach.
    Source(SourceArgs),
    /// Read a mirror's ring on this host, and send the source what was read and when.
    Reader(ReaderArgs),
}

/// Arguments of `sluice ring stress source`.
#[derive(clap::Args, Debug)]
pub struct SourceArgs {
    /// The ring to make; serve it with `sluice ring serve`.
    ring: PathBuf,
    /// Where readers connect (TCP), for example 10.0.0.5:7500.
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// How many readers there will be.
    #[arg(long, value_name = "N", default_value = "1")]
    readers: usize,
    /// How long they may take to come (as `30s`).
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// Poll in place of sleeping between records.
    #[arg(long)]
    spin: bool,
    /// Pin the producer to this CPU.
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    /// What is published.
    #[command(flatten)]
    load: LoadArgs,
}

/// Arguments of `sluice ring stress reader`.
#[derive(clap::Args, Debug)]
pub struct ReaderArgs {
    /// The mirror's ring on this host; it may come later.
    ring: PathBuf,
    /// Where the source listens, for example 10.0.0.5:7500.
    #[arg(long, value_name = "ADDRESS")]
    source: SocketAddr,
    /// How long source and ring may take to be there (as `30s`).
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// Poll in place of sleeping between records.
    #[arg(long)]
    spin: bool,
    /// Pin the reading thread to this CPU.
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    /// One JSON object in place of text.
    #[arg(long)]
    json: bool,
    /// Show a clock that is ahead by so many ns.
    #[arg(long, value_name = "NS", default_value = "0", allow_negative_numbers = true, hide = true)]
    clock_ahead_ns: i64,
    /// Count this record as if it had not come.
    #[arg(long, value_name = "SEQUENCE", hide = true)]
    planted_loss: Option<u64>,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let stop = watch_signals()?;
    match args.between {
        None => one_host(args, &stop),
        Some(Between::Source(args)) => source(args, &stop),
        Some(Between::Reader(args)) => reader(args, &stop),
    }
}

/// SIGINT and SIGTERM end a run, and its files go.
fn watch_signals() -> Result<Arc<AtomicBool>, Failure> {
    let signals = Signals::take().map_err(|error| Failure::host(format!("signalfd: {error}")))?;
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let watch = move || {
        loop {
            match signals.wait(LOOK_EVERY) {
                Ok(Some(Asked::Stop)) | Err(_) => return told.store(true, Ordering::Relaxed),
                Ok(_) => {}
            }
        }
    };
    // It ends with the process.
    let spawned = std::thread::Builder::new().name("sluice-signals".into()).spawn(watch);
    spawned.map_err(|error| Failure::host(format!("a thread: {error}")))?;
    Ok(stop)
}

fn failed(error: StressError) -> Failure {
    match error.is_usage() {
        true => Failure::usage(error.to_string()),
        false => Failure::host(error.to_string()),
    }
}

fn exit(verdict: Verdict) -> Exit {
    match verdict {
        Verdict::Whole => Exit::Done,
        Verdict::Gaps => Exit::Damage,
        Verdict::Broken => Exit::Difference,
    }
}

fn one_host(args: Args, stop: &AtomicBool) -> Outcome {
    let settings = LocalSettings {
        load: args.load.load(),
        mirror: args.mirror.map(|how| match how {
            How::Tcp => Transport::Tcp,
            How::Udp => Transport::Udp,
            How::Multicast => Transport::Multicast,
        }),
        join_after: args.join_after,
        dup: args.dup,
        linger: args.linger_us,
        inline: args.inline,
        spin: args.spin,
        interface: args.iface,
        capacity: args.load.capacity,
        cpus: args.cpus,
        planted_loss: args.planted_loss,
        folder: "/dev/shm".into(),
    };
    let report = local::run(&settings, stop).map_err(failed)?;
    match args.load.json {
        true => println!("{}", report.json()),
        false => print_local(&report),
    }
    Ok(exit(report.verdict()))
}

fn source(args: SourceArgs, stop: &AtomicBool) -> Outcome {
    let settings = SourceSettings {
        load: args.load.load(),
        ring: args.ring,
        capacity: args.load.capacity,
        listen: args.listen,
        readers: args.readers,
        wait: args.wait,
        spin: args.spin,
        cpu: args.cpu,
    };
    let report =
        source::run(&settings, stop, |address| tracing::info!(%address, "readers may come")).map_err(failed)?;
    match args.load.json {
        true => println!("{}", report.json()),
        false => print_source(&report),
    }
    let silent: Vec<&String> = report.readers.iter().filter_map(|reader| reader.as_ref().err()).collect();
    match silent.first() {
        Some(what) => Err(Failure::host(format!("{} reader(s) told nothing; the first: {what}", silent.len()))),
        None => Ok(exit(report.verdict())),
    }
}

fn reader(args: ReaderArgs, stop: &AtomicBool) -> Outcome {
    let settings = ReaderSettings {
        ring: args.ring,
        source: args.source,
        wait: args.wait,
        spin: args.spin,
        cpu: args.cpu,
        clock_ahead_ns: args.clock_ahead_ns,
        planted_loss: args.planted_loss,
    };
    let report = reader::run(&settings, stop).map_err(failed)?;
    match args.json {
        true => println!("{}", report.json()),
        false => print_reader(&report),
    }
    Ok(exit(report.verdict()))
}

fn print_local(report: &LocalReport) {
    print_produced(&report.produced, report.mirror.unwrap_or("no mirror"));
    print_delivery(&report.counts, &report.delivery);
    if let Some(copied) = &report.copied {
        println!(
            "mirror     from {}; NAKs {}, repaired {}, gaps {} ({} records), again {}, early {}, datagrams {}",
            copied.first,
            copied.naks,
            copied.repaired,
            copied.gaps,
            copied.gap_records,
            copied.duplicates,
            copied.early,
            copied.datagrams
        );
    }
    println!("us              p50        p90        p99      p99.9        max");
    print_percentiles("push-read", &report.latency);
    print_percentiles("due-read", &report.latency_from_schedule);
    print_percentiles("late push", &report.produced.lateness);
    print_verdict(report.verdict());
}

fn print_produced(produced: &Produced, how: &str) {
    let Load { rate, seconds, size, .. } = produced.load;
    let spacing = match produced.load.burst() {
        1 => "evenly".to_string(),
        burst => format!("{burst} at once"),
    };
    println!("load       {how}: {size} bytes at {rate}/s for {seconds} s, {spacing}");
    println!("published  {} at {:.0}/s", produced.pushed, produced.rate);
}

fn print_delivery(counts: &Counts, delivery: &Delivery) {
    println!(
        "delivered  {} of {} ({:.4} %), {} to {}; lost {}, lapped {} (in gaps {}), reordered {}, wrong {}",
        delivery.received,
        delivery.expected,
        delivery.ratio() * 100.0,
        delivery.first,
        delivery.last,
        delivery.lost,
        counts.lapped,
        counts.skipped,
        counts.reordered,
        counts.wrong
    );
}

fn print_percentiles(what: &str, of: &Percentiles) {
    print!("{what:<10}");
    [of.p50, of.p90, of.p99, of.p999, of.max].iter().for_each(|ns| print!(" {:>10.1}", *ns as f64 / 1e3));
    println!();
}

fn print_verdict(verdict: Verdict) {
    println!(
        "verdict    {}",
        match verdict {
            Verdict::Whole => "whole: every record, in order",
            Verdict::Gaps => "gaps: records are missing, and the ring says which",
            Verdict::Broken => "broken: records are missing without a word, out of order or damaged",
        }
    );
}

fn print_source(report: &SourceReport) {
    print_produced(&report.produced, "source");
    println!("us              p50        p90        p99      p99.9        max");
    print_percentiles("late push", &report.produced.lateness);
    for reader in &report.readers {
        match reader {
            Ok(reader) => print_remote(reader),
            Err(what) => println!("reader     {what}"),
        }
    }
    print_verdict(report.verdict());
}

fn print_remote(reader: &RemoteReport) {
    println!("reader     {}", reader.peer);
    print_delivery(&reader.counts, &reader.delivery);
    println!(
        "clock      ahead by {} ns, then by {} ns ({:+.2} ppm); known to ±{} ns ({} and {} probes)",
        reader.clock.before.offset_ns,
        reader.clock.after.offset_ns,
        reader.clock.drift_ppm(),
        reader.clock.bound_ns(),
        reader.clock.before.probes,
        reader.clock.after.probes
    );
    let bound = reader.clock.bound_ns() as f64 / 1e3;
    print_percentiles("one way", &reader.one_way);
    match reader.is_blurred() {
        false => println!("           each ±{bound:.1} us, {} records timed", reader.one_way.count),
        true => println!(
            "           each ±{bound:.1} us, which is more than the median: these figures say only that it is that short"
        ),
    }
}

fn print_reader(report: &ReaderReport) {
    print_delivery(&report.counts, &report.delivery);
    print_verdict(report.verdict());
}
