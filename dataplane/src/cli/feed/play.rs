//! `sluice feed play`: Send a capture's frames out of an interface.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::capture::source::file::FileSource;
use crate::cli::{Exit, Failure, Outcome};
use crate::config::parse_rate;
use crate::sys::nic::Interface;
use crate::sys::packet_tx::{Frames, Pace, PacketSender, Played, play};
use crate::sys::signal::{Asked, Signals};
use crate::sys::{clock, packet_tx};
use crate::units::{NANOS_PER_MILLI, NANOS_PER_SECOND};
use crate::wire::packet::{ETHERNET_BYTES, LinkType};

/// Most bytes of frames held in memory: a full day of a feed fits; a larger capture is cut first.
const FRAMES_BYTES_MAX: u64 = 16 << 30;
/// Time between two looks at signals and the progress bar.
const LOOK_NS: i64 = 50 * NANOS_PER_MILLI;

/// Arguments of `sluice feed play`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The captures: pcap or pcapng, plain, gzip or zstd; `-` reads standard input. Several are played as one, by stamp.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<String>,
    /// The interface to send from. Given once, all frames leave there. Given several times, each file has its own; of
    /// one file, the first interface's frames go to the first, the second's to the second, and so on.
    #[arg(long, value_name = "IF", required = true)]
    pub interface: Vec<String>,
    /// Frames a second, all interfaces together; takes k and m. Bursts are at most 32 frames.
    #[arg(long, value_parser = parse_rate, value_name = "R", conflicts_with = "speed")]
    pub rate: Option<f64>,
    /// Keep the capture's own pace, so many times as fast. Without this and --rate the pace is the capture's own.
    #[arg(long, value_name = "X")]
    pub speed: Option<f64>,
    /// Send as fast as the interface takes it.
    #[arg(long, conflicts_with_all = ["rate", "speed"])]
    pub flat_out: bool,
    /// Shorten silences of the capture to this (for example 200ms), at its own pace.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "TIME", conflicts_with_all = ["rate", "flat_out"])]
    pub silence_max: Option<Duration>,
    /// Send also from the interface that carries the default route.
    #[arg(long)]
    pub force: bool,
    /// Print the report as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What the captures hold but cannot be sent.
#[derive(Default)]
struct LeftOut {
    /// Damaged places of the files.
    damage: u64,
    not_ethernet: u64,
    cut: u64,
    unmapped: u64,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let pace = pace(&args)?;
    let interfaces = args.interface.iter().map(|name| interface(name, args.force)).collect::<Result<Vec<_>, _>>()?;
    let open = |interface: &Interface| PacketSender::open(&interface.name, interface.index);
    let mut lanes = interfaces.iter().map(open).collect::<Result<Vec<_>, _>>().map_err(failure)?;
    let (frames, left_out) = load(&args)?;
    if frames.is_empty() {
        return Err(Failure::usage(format!("feed play: {}: no frame that can be sent", args.files.join(", "))));
    }
    let before = dropped(&interfaces)?;
    let (played, finished) = send(&frames, &mut lanes, pace)?;
    let dropped = dropped(&interfaces)?.iter().zip(&before).map(|(after, before)| after - before).collect::<Vec<_>>();
    report(&args, &frames, &played, &dropped, &left_out, finished);
    let whole = left_out.damage == 0 && left_out.cut == 0 && played.too_long == 0 && finished;
    Ok(if whole { Exit::Done } else { Exit::Damage })
}

fn failure(error: packet_tx::SendError) -> Failure {
    Failure::host(format!("feed play: {error}"))
}

fn pace(args: &Args) -> Result<Pace, Failure> {
    match (args.flat_out, args.rate, args.speed) {
        (true, ..) => Ok(Pace::Flat),
        (_, Some(rate), _) => Ok(Pace::Rate(rate)),
        (_, _, speed) => {
            let speed = speed.unwrap_or(1.0);
            let right = speed.is_finite() && speed > 0.0;
            right.then_some(Pace::Stamps { speed }).ok_or_else(|| {
                Failure::usage(format!("feed play: --speed {speed}: give a number above 0, or use --flat-out"))
            })
        }
    }
}

fn interface(name: &str, force: bool) -> Result<Interface, Failure> {
    let interface = Interface::find(name).map_err(|error| Failure::host(format!("feed play: {error}")))?;
    if !force && interface.carries_default_route() {
        return Err(Failure::usage(format!(
            "feed play: interface {name:?} carries the default route: a played feed would go out to this host's \
             network: use another interface, or say --force"
        )));
    }
    Ok(interface)
}

/// The captures' frames, in memory: reading a file must not disturb the pace.
fn load(args: &Args) -> Result<(Frames, LeftOut), Failure> {
    let (files, lanes) = (args.files.len(), args.interface.len());
    if files > 1 && lanes > 1 && files != lanes {
        return Err(Failure::usage(format!(
            "feed play: {files} files and {lanes} interfaces: give one interface, or one for each file"
        )));
    }
    let (mut frames, mut left_out) = (Frames::new(), LeftOut::default());
    for (number, file) in args.files.iter().enumerate() {
        let mut source = FileSource::open(file)?;
        let lane = |interface: u32| match (files, lanes) {
            (_, 1) => 0,
            (1, _) => interface as usize,
            _ => number,
        };
        load_file(&mut source, lane, lanes, &mut frames, &mut left_out)?;
    }
    if files > 1 {
        frames.merge_lanes();
    }
    if let Some(silence) = args.silence_max {
        frames.shorten_silences(i64::try_from(silence.as_nanos()).unwrap_or(i64::MAX));
    }
    Ok((frames, left_out))
}

fn load_file(
    source: &mut FileSource,
    lane: impl Fn(u32) -> usize,
    lanes: usize,
    frames: &mut Frames,
    left_out: &mut LeftOut,
) -> Result<(), Failure> {
    while let Some(packet) = source.next()? {
        let lane = lane(packet.interface);
        if packet.link != LinkType::Ethernet || packet.data.len() < ETHERNET_BYTES {
            left_out.not_ethernet += 1;
        } else if packet.original_bytes as usize > packet.data.len() {
            left_out.cut += 1;
        } else if lane >= lanes {
            left_out.unmapped += 1;
        } else {
            frames.push(lane as u16, packet.capture_ns, packet.data);
        }
        if frames.bytes() > FRAMES_BYTES_MAX {
            return Err(Failure::usage(format!(
                "feed play: {}: more than {} GiB of frames: cut it first, for example with \"editcap -r\"",
                source.name(),
                FRAMES_BYTES_MAX >> 30
            )));
        }
    }
    for damage in source.damage() {
        eprintln!("sluice: {}: damage at offset {}: {}", source.name(), damage.offset, damage.what);
    }
    left_out.damage += source.damage_count();
    Ok(())
}

/// Plays; whether it came to its end (and was not stopped by a signal).
fn send(frames: &Frames, lanes: &mut [PacketSender], pace: Pace) -> Result<(Played, bool), Failure> {
    let signals = Signals::take().map_err(|error| Failure::host(format!("feed play: signalfd: {error}")))?;
    let bar = match io::stderr().is_terminal() {
        true => ProgressBar::new(frames.len() as u64).with_style(
            ProgressStyle::with_template("{bar:40} {pos}/{len} frames, {per_sec}, {eta} left")
                .unwrap_or_else(|_| ProgressStyle::default_bar()),
        ),
        false => ProgressBar::hidden(),
    };
    let (mut finished, mut looked_ns) = (true, clock::monotonic_ns());
    let played = play(frames, lanes, pace, &mut |done| {
        let now_ns = clock::monotonic_ns();
        if now_ns - looked_ns >= LOOK_NS {
            looked_ns = now_ns;
            bar.set_position(done);
            finished = !matches!(signals.wait(Duration::ZERO), Ok(Some(Asked::Stop)));
        }
        finished
    });
    bar.finish_and_clear();
    Ok((played.map_err(failure)?, finished))
}

/// Frames that each interface took and dropped since it exists.
fn dropped(interfaces: &[Interface]) -> Result<Vec<u64>, Failure> {
    let read = |interface: &Interface| Ok(interface.statistics()?.tx_dropped);
    let read: Result<Vec<u64>, crate::sys::nic::NicError> = interfaces.iter().map(read).collect();
    read.map_err(|error| Failure::host(format!("feed play: {error}")))
}

fn report(args: &Args, frames: &Frames, played: &Played, dropped: &[u64], left_out: &LeftOut, finished: bool) {
    let seconds = played.elapsed_ns as f64 / NANOS_PER_SECOND as f64;
    let (sent, bytes): (u64, u64) = (played.sent.iter().sum(), played.bytes.iter().sum());
    let rate = sent as f64 / seconds.max(1e-9);
    if args.json {
        let interfaces = args.interface.iter().enumerate().map(|(lane, name)| {
            serde_json::json!({
                "interface": name, "sent": played.sent[lane], "bytes": played.bytes[lane],
                "dropped": dropped[lane],
            })
        });
        println!(
            "{}",
            serde_json::json!({
                "frames": frames.len(), "sent": sent, "bytes": bytes, "seconds": seconds,
                "frames_per_second": rate, "interfaces": interfaces.collect::<Vec<_>>(),
                "dropped": dropped.iter().sum::<u64>(), "too_long": played.too_long, "queue_full": played.full,
                "slipped_seconds": played.slipped_ns as f64 / NANOS_PER_SECOND as f64, "cut": left_out.cut,
                "not_ethernet": left_out.not_ethernet, "damage": left_out.damage, "unmapped": left_out.unmapped, "finished": finished,
            })
        );
        return;
    }
    println!("{sent} frames sent, {bytes} bytes, {seconds:.3} s, {rate:.0} frames/s");
    if args.interface.len() > 1 {
        for (lane, name) in args.interface.iter().enumerate() {
            println!("  {name}: {} frames, {} bytes", played.sent[lane], played.bytes[lane]);
        }
    }
    for (count, what) in [
        (dropped.iter().sum(), "frames taken by the kernel and dropped by the interface (its own counter)".to_string()),
        (played.too_long, format!("frames longer than the interface takes (up to {} bytes)", played.longest)),
        (left_out.cut, "frames left out: the capture holds only a part of them".to_string()),
        (left_out.not_ethernet, "frames left out: not Ethernet".to_string()),
        (left_out.unmapped, "frames left out: of further interfaces of the capture".to_string()),
        (played.slipped_ns as u64 / NANOS_PER_MILLI as u64, "ms behind: the pace was too fast to keep".to_string()),
    ] {
        if count > 0 {
            eprintln!("sluice: feed play: {count} {what}");
        }
    }
    if !finished {
        eprintln!("sluice: feed play: stopped by a signal, {} frames not sent", frames.len() as u64 - sent);
    }
}
