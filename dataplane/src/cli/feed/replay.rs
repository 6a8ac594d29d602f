//! `sluice feed replay`: a capture from memory through the stages, timed.

use serde_json::json;

use crate::capture::replay::{CoreReplay, Image, ReplaySettings, replay};
use crate::cli::{Exit, Failure, Outcome};
use crate::config::{FeedProtocol, parse_rate};
use crate::sys::cpu;

/// Arguments of `sluice feed replay`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The capture file (pcap or pcapng, plain, gzip or zstd; "-" for standard input).
    pub file: String,
    /// Cores to run on; each is pinned and replays the whole capture by itself.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub cores: usize,
    /// Packets per second on each core (k and m are thousands and millions); without it as fast as it goes.
    #[arg(long, value_name = "R", value_parser = parse_rate)]
    pub rate: Option<f64>,
    /// Arbitrate too: every packet comes on side A, then on side B.
    #[arg(long)]
    pub arbiter: bool,
    /// Passes over the capture; sequences and offsets are rewritten so that the passes join.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub loops: u64,
    /// The feed's protocol.
    #[arg(long, default_value = "iex-tp", value_parser = protocol)]
    pub protocol: FeedProtocol,
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Reads a protocol's name.
pub fn protocol(text: &str) -> Result<FeedProtocol, String> {
    match text {
        "iex-tp" => Ok(FeedProtocol::IexTp),
        "moldudp64" => Ok(FeedProtocol::MoldUdp64),
        other => Err(format!("\"{other}\" is not a protocol: \"iex-tp\" or \"moldudp64\"")),
    }
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let cpus = cpu::allowed();
    if args.cores == 0 || args.cores > cpus.len() {
        return Err(Failure::usage(format!(
            "--cores {}: this process may use {} CPUs ({cpus:?})",
            args.cores,
            cpus.len()
        )));
    }
    if args.loops == 0 {
        return Err(Failure::usage("--loops 0: at least 1"));
    }
    let image = Image::load(&args.file, args.protocol).map_err(|error| Failure::usage(error.to_string()))?;
    if image.packets() == 0 {
        return Err(Failure::usage(format!(
            "{}: no segment of the protocol in it ({} other frames): is --protocol right?",
            args.file, image.skipped
        )));
    }
    let settings = ReplaySettings { loops: args.loops, rate: args.rate, arbiter: args.arbiter };
    let (skipped, damage, bytes) = (image.skipped, image.damage, image.bytes());
    let threads: Vec<_> = cpus[..args.cores]
        .iter()
        .map(|&cpu| {
            let image = image.clone();
            std::thread::spawn(move || replay(image, Some(cpu), &settings))
        })
        .collect();
    let mut cores = Vec::new();
    for thread in threads {
        cores.push(
            thread.join().map_err(|_| Failure { message: "a replay thread panicked".into(), exit: Exit::Internal })?,
        );
    }
    if args.json {
        println!(
            "{}",
            json!({"file": args.file, "skipped": skipped, "damage": damage, "bytes": bytes, "cores": cores.iter().map(core_json).collect::<Vec<_>>()})
        );
    } else {
        println!(
            "{}: {} packets, {bytes} bytes in memory, {skipped} other frames left out",
            args.file,
            image.packets()
        );
        cores.iter().for_each(print_core);
    }
    Ok(if damage > 0 { Exit::Damage } else { Exit::Done })
}

const PERCENTILES: [(&str, f64); 4] = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("max", 100.0)];

fn core_json(core: &CoreReplay) -> serde_json::Value {
    let stage = |histogram: &hdrhistogram::Histogram<u64>, scale: f64| {
        let mut values: serde_json::Map<String, serde_json::Value> = PERCENTILES
            .iter()
            .map(|(name, p)| ((*name).to_string(), json!(histogram.value_at_percentile(*p) as f64 / scale)))
            .collect();
        values.insert("mean".into(), json!(histogram.mean() / scale));
        serde_json::Value::Object(values)
    };
    let stages: serde_json::Map<String, serde_json::Value> =
        core.stages.iter().map(|(name, times)| ((*name).to_string(), stage(times, 1_000.0))).collect();
    json!({
        "cpu": core.cpu, "packets": core.packets, "messages": core.messages, "gaps": core.gaps,
        "emitted": core.emitted, "seconds": core.wall_ns as f64 / 1e9,
        "packets_per_second": core.packets as f64 / (core.wall_ns as f64 / 1e9),
        "ns_per_packet": core.wall_ns as f64 / core.packets as f64,
        "stage_ns_per_packet": stages,
        "latency_ns": core.latency.as_ref().map(|latency| stage(latency, 1.0)),
    })
}

fn print_core(core: &CoreReplay) {
    let pinned = core.cpu.map_or("not pinned".to_string(), |cpu| format!("cpu {cpu}"));
    println!(
        "{pinned}: {} packets, {} messages, {} gaps in {:.3} s: {:.2} M packets/s, {:.1} ns a packet in all",
        core.packets,
        core.messages,
        core.gaps,
        core.wall_ns as f64 / 1e9,
        core.packets as f64 * 1e3 / core.wall_ns as f64,
        core.wall_ns as f64 / core.packets as f64
    );
    for (name, times) in &core.stages {
        let values: Vec<String> = PERCENTILES
            .iter()
            .map(|(p, at)| format!("{p} {:.1}", times.value_at_percentile(*at) as f64 / 1e3))
            .collect();
        println!("  {name:<18} ns a packet: mean {:.1}, {}", times.mean() / 1e3, values.join(", "));
    }
    if let Some(latency) = &core.latency {
        let values: Vec<String> =
            PERCENTILES.iter().map(|(p, at)| format!("{p} {}", latency.value_at_percentile(*at))).collect();
        println!("  schedule to done   ns: {}", values.join(", "));
    }
    println!("  checksum {:016x}", core.checksum);
}
