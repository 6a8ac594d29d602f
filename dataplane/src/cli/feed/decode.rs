//! `sluice feed decode`: Decode every message of a capture, one row a message.

use std::io::{self, IsTerminal, StdoutLock, Write};
use std::ops::ControlFlow;

use indicatif::{ProgressBar, ProgressStyle};

use super::live::{self, LiveArgs, LiveReport, Seen};
use crate::capture::source::file::{FileSource, SourceError};
use crate::cli::{Exit, Failure, Outcome};
use crate::feed::rows::{Decoder, RowFormat};
use crate::wire::packet::{LinkType, PacketReason};
use crate::wire::segment::{Protocol, SegmentError};

/// Rows are handed to standard output in pieces of about this size: one system call for some thousand rows.
const OUTPUT_BYTES: usize = 256 * 1024;
/// Packets between two looks at the progress bar.
const PROGRESS_PACKETS: u64 = 4_096;

/// Arguments of `sluice feed decode`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The capture: pcap or pcapng, plain, gzip or zstd; `-` reads standard input.
    #[arg(required_unless_present = "interface", conflicts_with_all = ["interface", "source", "groups", "bound", "promiscuous", "replace", "force"])]
    pub file: Option<String>,
    /// A live look in place of a file.
    #[command(flatten)]
    pub live: LiveArgs,
    /// How rows are written. The columns are the same in both.
    #[arg(long, value_enum, default_value_t = Format::Csv)]
    pub format: Format,
    /// The transport protocol of the feed. MoldUDP64 carries any exchange's messages; their rows hold the raw body.
    #[arg(long, value_enum, default_value_t = Transport::IexTp)]
    pub protocol: Transport,
}

/// `--format`.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Comma-separated, with a header line.
    Csv,
    /// One JSON object a line.
    Jsonl,
}

/// `--protocol`.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// IEX-TP 1.0: DEEP 1.0, TOPS 1.6, TOPS 1.5.
    IexTp,
    /// MoldUDP64.
    #[value(name = "moldudp64")]
    MoldUdp64,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let format = match args.format {
        Format::Csv => RowFormat::Csv,
        Format::Jsonl => RowFormat::Jsonl,
    };
    let protocol = match args.protocol {
        Transport::IexTp => Protocol::IexTp,
        Transport::MoldUdp64 => Protocol::MoldUdp64,
    };
    // A file that cannot be opened is said before the header line.
    let source = args.file.as_deref().map(FileSource::open).transpose()?;
    let mut rows = Rows::new(Decoder::new(protocol, format));
    let ended = match source {
        Some(source) => decode_file(source, &mut rows),
        None => decode_live(&args.live, &mut rows),
    };
    match ended {
        Ok(exit) => Ok(exit),
        // Who reads the rows has seen enough (`| head`).
        Err(Stop::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Done),
        Err(Stop::Output(error)) => Err(Failure::host(format!("stdout: {error}"))),
        Err(Stop::Refused(failure)) => Err(failure),
    }
}

/// What ends a decode early.
enum Stop {
    Refused(Failure),
    Output(io::Error),
}

impl From<SourceError> for Stop {
    fn from(error: SourceError) -> Stop {
        Stop::Refused(error.into())
    }
}

/// Rows on their way to standard output.
struct Rows {
    decoder: Decoder,
    output: StdoutLock<'static>,
    waiting: Vec<u8>,
}

impl Rows {
    fn new(decoder: Decoder) -> Rows {
        let mut waiting = Vec::with_capacity(2 * OUTPUT_BYTES);
        decoder.header(&mut waiting);
        Rows { decoder, output: io::stdout().lock(), waiting }
    }

    fn frame(&mut self, index: u64, data: &[u8], link: LinkType) -> Result<(), Stop> {
        self.decoder.frame(index, data, link, &mut self.waiting);
        if self.waiting.len() >= OUTPUT_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Stop> {
        if !self.waiting.is_empty() {
            self.output.write_all(&self.waiting).and_then(|()| self.output.flush()).map_err(Stop::Output)?;
            self.waiting.clear();
        }
        Ok(())
    }
}

fn decode_file(mut source: FileSource, rows: &mut Rows) -> Result<Exit, Stop> {
    let bar = progress_bar(source.progress().1);
    while let Some(packet) = source.next()? {
        let index = packet.index;
        rows.frame(index, packet.data, packet.link)?;
        if index % PROGRESS_PACKETS == 0 {
            bar.set_position(source.progress().0);
        }
    }
    bar.finish_and_clear();
    rows.flush()?;
    let name = source.name();
    for damage in source.damage() {
        eprintln!("sluice: {name}: damage at offset {}: {}", damage.offset, damage.what);
    }
    let untold = source.damage_count() - source.damage().len() as u64;
    if untold > 0 {
        eprintln!("sluice: {name}: {untold} more places of damage");
    }
    let exit = report(name, &rows.decoder);
    Ok(if source.damage_count() > 0 { Exit::Damage } else { exit })
}

/// Rows of a live look are shown as soon as nothing more waits to be decoded.
fn decode_live(args: &LiveArgs, rows: &mut Rows) -> Result<Exit, Stop> {
    let (mut index, mut stopped) = (0, None);
    let mut take = |seen: Seen<'_>| {
        let done = match seen {
            Seen::Frame { data, link, .. } => {
                index += 1;
                rows.frame(index - 1, data, link)
            }
            Seen::Quiet => rows.flush(),
        };
        match done {
            Ok(()) => ControlFlow::Continue(()),
            Err(stop) => {
                stopped = Some(stop);
                ControlFlow::Break(())
            }
        }
    };
    let looked: LiveReport = live::look(args, &mut take).map_err(Stop::Refused)?;
    if let Some(stop) = stopped {
        return Err(stop);
    }
    rows.flush()?;
    let (exit, lost) = (report(&looked.interface, &rows.decoder), looked.print_lost());
    Ok(if lost == Exit::Done { exit } else { lost })
}

/// A bar over the packed bytes: only where a person looks on and the rows go elsewhere.
fn progress_bar(total_bytes: Option<u64>) -> ProgressBar {
    match total_bytes {
        Some(total) if io::stderr().is_terminal() && !io::stdout().is_terminal() => {
            let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {eta}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total).with_style(style)
        }
        _ => ProgressBar::hidden(),
    }
}

/// Tells on standard error what could not be made rows of; the exit says whether messages were damaged.
fn report(name: &str, decoder: &Decoder) -> Exit {
    let counts = decoder.counts();
    let damaged_frames = [PacketReason::Truncated, PacketReason::BadLength, PacketReason::BadHeader];
    for reason in damaged_frames.into_iter().chain([PacketReason::Fragment]) {
        let count = counts.skipped[reason as usize];
        if count > 0 {
            eprintln!("sluice: {name}: {count} frames left out: {}", reason.label());
        }
    }
    for error in SegmentError::ALL {
        let count = counts.not_segment[error as usize];
        if count > 0 {
            eprintln!("sluice: {name}: {count} UDP payloads left out: {}", error.label());
        }
    }
    if counts.unknown > 0 {
        eprintln!("sluice: {name}: {} messages of unknown types stepped over", counts.unknown);
    }
    if counts.short > 0 {
        eprintln!("sluice: {name}: {} messages shorter than their type's fields left out", counts.short);
    }
    if counts.segments + counts.heartbeats == 0 {
        eprintln!("sluice: {name}: no segment in {} frames: is --protocol right?", counts.frames);
    }
    if counts.short > 0 { Exit::Damage } else { Exit::Done }
}

impl From<SourceError> for Failure {
    /// A file that cannot be read is the host's matter, one that is no capture is the user's.
    fn from(error: SourceError) -> Failure {
        match error {
            SourceError::Open { .. } | SourceError::Read { .. } | SourceError::Live { .. } => {
                Failure::host(error.to_string())
            }
            SourceError::Format { .. } => Failure::usage(error.to_string()),
        }
    }
}
