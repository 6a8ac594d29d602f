//! What the feed commands share: segments out of capture files, with every frame accounted for.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::capture::source::file::FileSource;
use crate::wire::packet::{self, LinkType};
use crate::wire::segment::Segment;
use crate::wire::{iextp, moldudp64};

/// Packets between two looks at the progress bar.
pub const PROGRESS_PACKETS: u64 = 4096;

/// A UDP payload that is no segment of a known feed.
const NOT_A_FEED: &str = "not_a_feed";

/// `--protocol` of the commands that read any feed.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// IEX-TP where a payload is one: version 1 and a known message protocol id.
    Auto,
    /// IEX-TP 1.0, any message protocol id.
    IexTp,
    /// MoldUDP64, which nothing in a packet tells apart: every UDP payload is read as it.
    #[value(name = "moldudp64")]
    MoldUdp64,
}

/// What became of the frames of one input. Serialised, it is the `frames` object of the JSON reports.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Frames {
    /// Frames read.
    pub read: u64,
    /// Frames that hold a segment.
    pub matched: u64,
    /// The others, by reason.
    pub skipped: BTreeMap<&'static str, u64>,
}

impl Frames {
    /// The segment of one frame; counts it, or why there is none.
    pub fn segment<'a>(&mut self, frame: &'a [u8], link: LinkType, transport: Transport) -> Option<Segment<'a>> {
        self.read += 1;
        match segment_of(frame, link, transport) {
            Ok(segment) => {
                self.matched += 1;
                Some(segment)
            }
            Err(reason) => {
                *self.skipped.entry(reason).or_default() += 1;
                None
            }
        }
    }

    /// `12 of 15 frames hold a segment (not_udp 3)`.
    pub fn told(&self) -> String {
        let skipped: Vec<String> = self.skipped.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        let why = if skipped.is_empty() { String::new() } else { format!(" ({})", skipped.join(", ")) };
        format!("{} of {} frames hold a segment{why}", self.matched, self.read)
    }
}

fn segment_of(frame: &[u8], link: LinkType, transport: Transport) -> Result<Segment<'_>, &'static str> {
    let payload = packet::udp(frame, link).map_err(|reason| reason.label())?.payload;
    let known = [iextp::TOPS_1_5, iextp::TOPS_1_6, iextp::DEEP_1_0];
    let segment = match transport {
        Transport::MoldUdp64 => moldudp64::parse(payload),
        Transport::IexTp => iextp::parse(payload),
        Transport::Auto => match payload {
            [iextp::VERSION, _, low, high, ..] if known.contains(&u16::from_le_bytes([*low, *high])) => {
                iextp::parse(payload)
            }
            _ => return Err(NOT_A_FEED),
        },
    };
    segment.map_err(|error| error.label())
}

/// One place of damage as the JSON reports tell it.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct FileDamage {
    /// The file.
    pub file: String,
    /// Offset in the unpacked stream, bytes.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

/// The damage that a source met.
pub fn damage_of(source: &FileSource) -> Vec<FileDamage> {
    let file = source.name();
    let told = source.damage().iter();
    let mut list: Vec<FileDamage> =
        told.map(|d| FileDamage { file: file.to_string(), offset: d.offset, what: d.what.clone() }).collect();
    let untold = source.damage_count() - list.len() as u64;
    if let (true, Some(last)) = (untold > 0, list.last()) {
        let what = format!("{untold} more places of damage from here on");
        list.push(FileDamage { file: file.to_string(), offset: last.offset, what });
    }
    list
}

/// Tells damage on standard error.
pub fn print_damage(damage: &[FileDamage]) {
    for damage in damage {
        eprintln!("sluice: {}: damage at offset {}: {}", damage.file, damage.offset, damage.what);
    }
}

/// A bar over packed bytes, on a terminal only.
pub fn progress_bar(total_bytes: Option<u64>) -> ProgressBar {
    match total_bytes {
        Some(total) if io::stderr().is_terminal() => {
            let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {eta}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total).with_style(style)
        }
        _ => ProgressBar::hidden(),
    }
}

/// Parses a duration (`20ms`, `1s 500us`) to ns.
pub fn nanos(text: &str) -> Result<i64, String> {
    let wrong = |what: String| format!("{what}: write it like 20ms, 3s or 250us");
    let duration: Duration = match text {
        "0" => Duration::ZERO,
        _ => humantime::parse_duration(text).map_err(|error| wrong(error.to_string()))?,
    };
    i64::try_from(duration.as_nanos()).map_err(|_| wrong(format!("{text} is longer than 292 years")))
}

/// Parses a probability, 0 to 1, or a percentage (`2%`).
pub fn probability(text: &str) -> Result<f64, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let value = number.trim().parse::<f64>().map_err(|error| error.to_string())? / scale;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(format!("{text} is not within 0 to 1 (or 0% to 100%)")) }
}

/// Prints rows as columns: the first to the left, numbers to the right.
pub fn print_rows(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}
