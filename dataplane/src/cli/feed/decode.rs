//! `sluice feed decode`: Decode every message of a capture, one row a message.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

use crate::capture::source::file::{FileSource, SourceError};
use crate::cli::{Exit, Failure, Outcome};
use crate::feed::rows::{Decoder, RowFormat};
use crate::wire::packet::PacketReason;
use crate::wire::segment::{Protocol, SegmentError};

/// Rows are handed to standard output in pieces of about this size: one system call for some thousand rows.
const OUTPUT_BYTES: usize = 256 * 1024;
/// Packets between two looks at the progress bar.
const PROGRESS_PACKETS: u64 = 4_096;

/// Arguments of `sluice feed decode`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The capture: pcap or pcapng, plain, gzip or zstd; `-` reads standard input.
    pub file: String,
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
    let mut source = FileSource::open(&args.file)?;
    let format = match args.format {
        Format::Csv => RowFormat::Csv,
        Format::Jsonl => RowFormat::Jsonl,
    };
    let protocol = match args.protocol {
        Transport::IexTp => Protocol::IexTp,
        Transport::MoldUdp64 => Protocol::MoldUdp64,
    };
    let mut decoder = Decoder::new(protocol, format);
    match decode(&mut source, &mut decoder) {
        Ok(()) => Ok(report(&source, &decoder)),
        // Who reads the rows has seen enough (`| head`).
        Err(Stop::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Done),
        Err(Stop::Output(error)) => Err(Failure::host(format!("standard output: {error}"))),
        Err(Stop::Source(error)) => Err(error.into()),
    }
}

/// What ends a decode early.
enum Stop {
    Source(SourceError),
    Output(io::Error),
}

fn decode(source: &mut FileSource, decoder: &mut Decoder) -> Result<(), Stop> {
    let bar = progress_bar(source.progress().1);
    let mut output = io::stdout().lock();
    let mut rows = Vec::with_capacity(2 * OUTPUT_BYTES);
    decoder.header(&mut rows);
    while let Some(packet) = source.next().map_err(Stop::Source)? {
        let index = packet.index;
        decoder.frame(index, packet.data, packet.link, &mut rows);
        if rows.len() >= OUTPUT_BYTES {
            output.write_all(&rows).map_err(Stop::Output)?;
            rows.clear();
        }
        if index % PROGRESS_PACKETS == 0 {
            bar.set_position(source.progress().0);
        }
    }
    bar.finish_and_clear();
    output.write_all(&rows).map_err(Stop::Output)?;
    output.flush().map_err(Stop::Output)
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

/// Tells on standard error what could not be made rows of; the exit says whether there was any damage.
fn report(source: &FileSource, decoder: &Decoder) -> Exit {
    let name = source.name();
    for damage in source.damage() {
        eprintln!("sluice: {name}: damage at offset {}: {}", damage.offset, damage.what);
    }
    let untold = source.damage_count() - source.damage().len() as u64;
    if untold > 0 {
        eprintln!("sluice: {name}: {untold} more places of damage");
    }
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
    if source.damage_count() > 0 || counts.short > 0 { Exit::Damage } else { Exit::Done }
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
