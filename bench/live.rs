//! The whole pipeline on live traffic: `sluice feed play` into a veth pair in a namespace of its own, `sluice run` with
//! queue worker, arbiter and store behind it, everything on two CPUs; at each rate the frames sent, received, and the
//! messages re-read from the store. `cargo bench --bench live [-- RATES]`; needs root.
//!
//! Loss is judged by what a re-read of the sealed store finds, not by counters.

// A measurement may read the clock; the product reads it in `sys::clock` alone.
#![allow(clippy::disallowed_methods)]

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use sluice::sys::clock;
use sluice::wire::iextp;
use sluice::wire::packet::{LinkType, UdpHeader, VLAN_NONE};
use sluice::wire::pcap::PcapWriter;

const FRAME_BYTES: usize = 128;
/// Ethernet, IP and UDP 42, IEX-TP 40, a length 2.
const BODY_BYTES: usize = FRAME_BYTES - 42 - 40 - 2;
const SECONDS: u64 = 10;
/// The curve: each rate this often, interleaved.
const RATES: [u64; 6] = [100_000, 200_000, 300_000, 400_000, 500_000, 600_000];
const ROUNDS: usize = 3;
/// The rate that must come through whole.
const TARGET: u64 = 400_000;
const GROUPS: [Ipv4Addr; 2] = [Ipv4Addr::new(239, 192, 0, 1), Ipv4Addr::new(239, 192, 0, 2)];
const PORT: u16 = 10_378;
/// After the last frame: what is in flight arrives, holds run out.
const SETTLE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(60);

const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");
const MAKE: &str = "set -e
ip link set lo up
ip link add tx0 type veth peer name rx0
for end in tx0 rx0; do
  echo 1 > /proc/sys/net/ipv6/conf/$end/disable_ipv6
  ip link set $end up
done
echo ready
exec cat >/dev/null";

/// A child that does not outlive this program.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn end(mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it runs");
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if let Some(status) = self.0.try_wait().expect("a child of ours") {
                return assert!(status.success(), "sluice run: {status}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("sluice run did not end within {PATIENCE:?}");
    }
}

/// The namespace lives as long as its holder, and the holder as long as this program's pipe to it.
struct Namespace(Running);

impl Namespace {
    fn make() -> Namespace {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sh", "-c", MAKE]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("unshare (util-linux)");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        assert_eq!(line.trim(), "ready", "the namespace could not be made");
        Namespace(Running(child))
    }

    fn sluice(&self, cpu: Option<usize>, args: &[&str], folder: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.0.0.id().to_string(), "--", "setpriv", "--pdeathsig", "KILL", "--"]);
        if let Some(cpu) = cpu {
            command.args(["taskset", "-c", &cpu.to_string()]);
        }
        command.arg(SLUICE).args(args).current_dir(folder).env("SLUICE_LOG", "info");
        command
    }
}

/// A capture of `packets` frames of one message each; on two sides each message comes twice in a row.
fn write_capture(path: &Path, packets: u64, sides: u64) {
    let file = BufWriter::with_capacity(1 << 20, File::create(path).expect("a file"));
    let mut writer = PcapWriter::new(file, LinkType::Ethernet).expect("a capture");
    let mut block = Vec::new();
    iextp::write_message(&[b'8'; BODY_BYTES], &mut block);
    let mut frame = Vec::new();
    let now = clock::utc_ns();
    for packet in 0..packets {
        let (message, side) = (packet / sides, (packet % sides) as usize);
        let header = UdpHeader {
            src_mac: [2, 0, 0, 0, 0, 1],
            vlan: VLAN_NONE,
            src: Ipv4Addr::new(10, 0, 0, 1),
            dst: GROUPS[side],
            src_port: 40_000,
            dst_port: PORT,
            identification: 0,
        };
        let segment = iextp::Header {
            version: iextp::VERSION,
            protocol_id: iextp::DEEP_1_0,
            channel: 1,
            session: 7,
            payload_length: block.len() as u16,
            count: 1,
            first: 1 + message,
            offset: message * block.len() as u64,
            send_ns: now,
            ..Default::default()
        };
        frame.clear();
        header.write_frame(&[&segment.encode()[..], &block].concat(), &mut frame);
        assert_eq!(frame.len(), FRAME_BYTES);
        writer.packet(packet as i64, frame.len() as u32, &frame).expect("written");
    }
    writer.finish().expect("written");
}

fn configuration(store: &Path, sides: u64, cpu: usize) -> String {
    let mut text = format!(
        "[[core]]\nname = \"work\"\ncpu = {cpu}\n\
         [[interface]]\nname = \"rx0\"\ncores = [\"work\"]\nzero_copy = \"off\"\n\
         [[feed]]\nname = \"deep\"\nprotocol = \"iex-tp\"\ncore = \"work\"\nstore = \"live\"\n\
         [[store]]\nname = \"live\"\npath = {store:?}\ncore = \"work\"\n"
    );
    for side in 0..sides as usize {
        text += &format!(
            "[[feed.side]]\nname = \"{}\"\ninterface = \"rx0\"\ngroups = [\"{}:{PORT}\"]\n",
            ["A", "B"][side],
            GROUPS[side]
        );
    }
    // Sides belong to the feed: the store's table comes after them.
    let (store, rest) = (text.find("[[store]]").expect("there"), text.find("[[feed.side]]").expect("there"));
    format!("{}{}{}", &text[..store], &text[rest..], &text[store..rest])
}

/// What one run found.
struct Outcome {
    asked: u64,
    sent: u64,
    rate: f64,
    veth_dropped: u64,
    received: u64,
    ring_full: u64,
    wanted: u64,
    stored: u64,
}

impl Outcome {
    /// Frames and messages that did not come through, in parts per million of the frames sent.
    fn lost_ppm(&self) -> f64 {
        let frames = self.sent - self.received.min(self.sent);
        let messages = self.wanted - self.stored.min(self.wanted);
        frames.max(messages) as f64 * 1e6 / self.sent as f64
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("readable")).expect("JSON")
}

fn await_running(log: &Path) {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if std::fs::read_to_string(log).is_ok_and(|text| text.contains("running; stop with")) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("sluice run does not start: {}", std::fs::read_to_string(log).unwrap_or_default());
}

fn measure(space: &Namespace, folder: &Path, rate: u64, seconds: u64, sides: u64) -> Outcome {
    let store = folder.join("store");
    let capture = memory().join(format!("sluice-live-{}.pcap", std::process::id()));
    write_capture(&capture, rate * seconds, sides);
    let cpus = sluice::sys::cpu::allowed();
    let (first, last) = (cpus[0], *cpus.last().expect("one"));
    std::fs::write(folder.join("live.toml"), configuration(&store, sides, last)).expect("written");
    let log = folder.join("run.log");
    let out = File::create(&log).expect("a log");
    let mut command = space.sluice(None, &["run", "live.toml", "--report", "report.json"], folder);
    let run = command.stdin(Stdio::null()).stdout(out.try_clone().expect("a copy")).stderr(out).spawn();
    let run = Running(run.expect("sluice run"));
    await_running(&log);
    let played = space
        .sluice(
            Some(first),
            &[
                "feed",
                "play",
                &capture.display().to_string(),
                "--interface",
                "tx0",
                "--rate",
                &rate.to_string(),
                "--json",
            ],
            folder,
        )
        .stderr(Stdio::inherit())
        .output()
        .expect("sluice feed play");
    std::fs::remove_file(&capture).expect("removed");
    std::thread::sleep(SETTLE);
    run.end();
    let played: Value = serde_json::from_slice(&played.stdout).expect("a report");
    let report = json(&folder.join("report.json"));
    let info = Command::new(SLUICE).args(["store", "info", "--json"]).arg(&store).output().expect("sluice store info");
    let info: Value = serde_json::from_slice(&info.stdout).expect("a report");
    std::fs::remove_dir_all(&store).expect("removed");
    let queues = report["capture"]["queues"].as_array().expect("queues");
    let sum = |name: &str| queues.iter().filter_map(|queue| queue[name].as_u64()).sum();
    let streams = info["streams"].as_array().expect("streams");
    let sent = played["sent"].as_u64().expect("a number");
    Outcome {
        asked: rate,
        sent,
        rate: played["frames_per_second"].as_f64().expect("a number"),
        veth_dropped: played["dropped"].as_u64().expect("a number"),
        received: sum("received"),
        ring_full: sum("rx_ring_full") + sum("rx_dropped"),
        wanted: sent.div_ceil(sides),
        stored: streams.iter().filter_map(|stream| stream["data_records"].as_u64()).sum(),
    }
}

fn memory() -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    if shm.is_dir() { shm } else { std::env::temp_dir() }
}

fn main() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: needs root (a network namespace, XDP)");
        return;
    }
    let small = common::is_test();
    let asked: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let rates = match (small, asked.is_empty()) {
        (true, _) => vec![2_000],
        (false, true) => RATES.to_vec(),
        (false, false) => asked,
    };
    let (rounds, seconds) = if small { (1, 1) } else { (ROUNDS, SECONDS) };
    let folder = common::disk_folder();
    let space = Namespace::make();
    let mut outcomes = Vec::new();
    for round in 0..rounds {
        for sides in [1, 2] {
            // Two sides at one rate: the curve is one side's, where every frame must be stored.
            let rates: Vec<u64> = rates.iter().copied().filter(|&rate| sides == 1 || small || rate == TARGET).collect();
            // Up, then down: what drifts with time does not look like the rate's doing.
            let order: Vec<u64> = if round % 2 == 0 { rates.clone() } else { rates.iter().rev().copied().collect() };
            for rate in order {
                let found = measure(&space, folder.path(), rate, seconds, sides);
                println!(
                    "{sides} side(s), {} frames/s asked, {:.0} reached: {} sent, {} dropped by veth, {} by the socket, \
                     {} received; {} of {} messages in the store: {:.1} ppm lost",
                    found.asked,
                    found.rate,
                    found.sent,
                    found.veth_dropped,
                    found.ring_full,
                    found.received,
                    found.stored,
                    found.wanted,
                    found.lost_ppm()
                );
                outcomes.push((sides, found));
            }
        }
    }
    for sides in [1, 2] {
        for &rate in &rates {
            let of: Vec<&Outcome> = outcomes
                .iter()
                .filter(|(s, found)| (*s, found.asked) == (sides, rate))
                .map(|(_, found)| found)
                .collect();
            if of.is_empty() {
                continue;
            }
            let name = format!("live/{sides}_side/{}k", rate / 1_000);
            common::figure(
                &format!("{name}/lost"),
                "ppm",
                &of.iter().map(|found| found.lost_ppm()).collect::<Vec<_>>(),
            );
            common::figure(
                &format!("{name}/reached"),
                "frames/s",
                &of.iter().map(|found| found.rate).collect::<Vec<_>>(),
            );
        }
    }
}
