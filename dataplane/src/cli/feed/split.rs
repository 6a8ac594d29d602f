//! `sluice feed split`: Fan one capture out into A and B with seeded loss and delay, and a truth file.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::fs::File;
use std::io::BufWriter;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use super::segments::{self, Frames, PROGRESS_PACKETS, Transport, nanos, probability};
use crate::capture::source::file::{FilePacket, FileSource};
use crate::cli::fields::counted;
use crate::cli::{Exit, Failure, Outcome};
use crate::feed::split::{Copies, SideSplit, Splitter};
use crate::wire::packet::{self, LinkType};
use crate::wire::pcap::PcapWriter;

/// Arguments of `sluice feed split`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The capture: pcap or pcapng, plain, gzip or zstd; `-` reads standard input.
    pub file: String,
    /// Where a.pcap, b.pcap and truth.json go; made when absent.
    #[arg(long)]
    pub out_dir: PathBuf,
    /// Probability that side A loses a packet: 0 to 1, or a percentage.
    #[arg(long, value_parser = probability, default_value = "0")]
    pub loss_a: f64,
    /// Probability that side B loses a packet.
    #[arg(long, value_parser = probability, default_value = "0")]
    pub loss_b: f64,
    /// Added to the stamps of side A.
    #[arg(long, value_parser = nanos, default_value = "0")]
    pub delay_a: i64,
    /// Added to the stamps of side B.
    #[arg(long, value_parser = nanos, default_value = "0")]
    pub delay_b: i64,
    /// Up to this much more is added to each stamp of side A; the order of the side stays, unless --reorder is given.
    #[arg(long, value_parser = nanos, default_value = "0")]
    pub jitter_a: i64,
    /// Up to this much more is added to each stamp of side B.
    #[arg(long, value_parser = nanos, default_value = "0")]
    pub jitter_b: i64,
    /// Side A is silent from A to B after the first packet ("50s..60s"): it loses every packet in between.
    #[arg(long, value_name = "A..B", value_parser = silence)]
    pub silence_a: Option<(i64, i64)>,
    /// Side B is silent from A to B after the first packet.
    #[arg(long, value_name = "A..B", value_parser = silence)]
    pub silence_b: Option<(i64, i64)>,
    /// Probability that a packet that a side keeps comes twice.
    #[arg(long, value_parser = probability, default_value = "0")]
    pub duplicate: f64,
    /// Let jitter change the order of a side.
    #[arg(long)]
    pub reorder: bool,
    /// The seed: the same one gives the same split.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The transport protocol of the feed, for the truth file.
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub protocol: Transport,
}

/// Reads "50s..60s".
fn silence(text: &str) -> Result<(i64, i64), String> {
    let wrong = || format!("\"{text}\" is not a span of time: write for example \"50s..60s\"");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let (from, to) = (nanos(from)?, nanos(to)?);
    if from < to { Ok((from, to)) } else { Err(wrong()) }
}

/// One packet on its way to a side's file.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Delayed {
    stamp_ns: i64,
    /// Order of decision: ties keep it.
    number: u64,
    original_bytes: u32,
    data: Vec<u8>,
}

/// One side's file. Packets wait until no earlier stamp can come any more.
struct SideFile {
    path: PathBuf,
    writer: PcapWriter<BufWriter<File>>,
    waiting: BinaryHeap<Reverse<Delayed>>,
    delay_ns: i64,
    numbered: u64,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let mut source = FileSource::open(&args.file)?;
    let side = |loss, delay_ns, jitter_ns, silence_ns| SideSplit {
        silence_ns,
        loss,
        duplicate: args.duplicate,
        delay_ns,
        jitter_ns,
        reorder: args.reorder,
    };
    let sides = [
        side(args.loss_a, args.delay_a, args.jitter_a, args.silence_a),
        side(args.loss_b, args.delay_b, args.jitter_b, args.silence_b),
    ];
    std::fs::create_dir_all(&args.out_dir).map_err(|error| failed(&args.out_dir, &error))?;
    let mut splitter = Splitter::new(args.seed, &sides);
    let mut destinations = BTreeSet::new();
    let frames = split(&mut source, &mut splitter, &sides, &args, &mut destinations)?;
    let mut truth = splitter.truth();
    truth.destinations =
        destinations.iter().map(|&(address, port)| SocketAddr::new(address, port).to_string()).collect();
    let path = args.out_dir.join("truth.json");
    let json = serde_json::to_string_pretty(&truth).expect("a truth is plain data");
    std::fs::write(&path, json + "\n").map_err(|error| failed(&path, &error))?;
    println!("{}", frames.told());
    for side in &truth.sides {
        println!("side {}: {} packets written, {} dropped", side.side, side.packets_written, side.packets_dropped);
    }
    let residual: u64 = truth.streams.iter().map(|s| crate::feed::intervals::count(&s.residual)).sum();
    let (streams, lost) = (counted(truth.streams.len() as u64, "stream"), counted(residual, "message"));
    println!("{streams}; {lost} lost on both sides; truth in {}", path.display());
    let damage = segments::damage_of(&source);
    segments::print_damage(&damage);
    if frames.matched == 0 {
        return Err(Failure::usage(format!("{}: no segment in {} frames: give --protocol", args.file, frames.read)));
    }
    Ok(if damage.is_empty() { Exit::Done } else { Exit::Damage })
}

fn split(
    source: &mut FileSource,
    splitter: &mut Splitter,
    sides: &[SideSplit; 2],
    args: &Args,
    destinations: &mut BTreeSet<(IpAddr, u16)>,
) -> Result<Frames, Failure> {
    let bar = segments::progress_bar(source.progress().1);
    let mut frames = Frames::default();
    let mut files: Option<(LinkType, Vec<SideFile>)> = None;
    let mut copies: [Copies; 2] = Default::default();
    while let Some(packet) = source.next()? {
        let segment = frames.segment(packet.data, packet.link, args.protocol);
        if segment.is_some()
            && let Ok(view) = packet::udp(packet.data, packet.link)
        {
            destinations.insert((view.dst, view.dst_port));
        }
        splitter.split(packet.capture_ns, segment.as_ref(), &mut copies);
        if files.is_none() {
            files = Some((packet.link, open_sides(&args.out_dir, packet.link, sides)?));
        }
        let Some((link, files)) = &mut files else { continue };
        if *link != packet.link {
            let what = format!("packet {} has link type {:?}, those before {link:?}", packet.index, packet.link);
            return Err(Failure::usage(format!("{}: {what}: a pcap file holds one; split them first", args.file)));
        }
        for (file, copies) in files.iter_mut().zip(&copies) {
            file.take(&packet, copies)?;
        }
        if packet.index % PROGRESS_PACKETS == 0 {
            bar.set_position(source.progress().0);
        }
    }
    bar.finish_and_clear();
    let files = match files {
        Some((_, files)) => files,
        None => open_sides(&args.out_dir, LinkType::from_value(1), sides)?,
    };
    files.into_iter().try_for_each(SideFile::finish)?;
    Ok(frames)
}

fn open_sides(directory: &Path, link: LinkType, sides: &[SideSplit; 2]) -> Result<Vec<SideFile>, Failure> {
    let open = |(name, side): (&str, &SideSplit)| {
        let path = directory.join(name);
        let file = File::create(&path).map_err(|error| failed(&path, &error))?;
        let writer = PcapWriter::new(BufWriter::new(file), link).map_err(|error| failed(&path, &error))?;
        Ok(SideFile { path, writer, waiting: BinaryHeap::new(), delay_ns: side.delay_ns, numbered: 0 })
    };
    ["a.pcap", "b.pcap"].into_iter().zip(sides).map(open).collect()
}

impl SideFile {
    fn take(&mut self, packet: &FilePacket<'_>, copies: &Copies) -> Result<(), Failure> {
        for stamp_ns in copies.iter().flatten() {
            self.numbered += 1;
            self.waiting.push(Reverse(Delayed {
                stamp_ns: *stamp_ns,
                number: self.numbered,
                original_bytes: packet.original_bytes,
                data: packet.data.to_vec(),
            }));
        }
        self.write_until(packet.capture_ns.saturating_add(self.delay_ns))
    }

    fn write_until(&mut self, stamp_ns: i64) -> Result<(), Failure> {
        while self.waiting.peek().is_some_and(|Reverse(next)| next.stamp_ns <= stamp_ns) {
            let Some(Reverse(next)) = self.waiting.pop() else { break };
            let written = self.writer.packet(next.stamp_ns, next.original_bytes, &next.data);
            written.map_err(|error| failed(&self.path, &error))?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), Failure> {
        self.write_until(i64::MAX)?;
        let path = self.path;
        self.writer.finish().map(|_| ()).map_err(|error| failed(&path, &error))
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::host(format!("{}: {error}", path.display()))
}
