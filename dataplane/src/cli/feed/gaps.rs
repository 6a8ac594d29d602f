//! `sluice feed gaps`: Report gaps, duplicates and reordering of every stream in capture files.

use std::ops::ControlFlow;

use serde::Serialize;

use super::live::{self, LiveArgs, LiveReport, Seen};
use super::segments::{self, FileDamage, Frames, PROGRESS_PACKETS, Transport};
use crate::capture::source::file::{FileSource, SourceError};
use crate::cli::{Exit, Outcome};
use crate::feed::gap::{GapScanner, GapSettings, StreamGaps};
use crate::feed::intervals::Range;
use crate::wire::packet::LinkType;

/// Gap ranges that the table lists per stream; `--json` lists all.
const RANGES_TOLD: usize = 5;

/// Arguments of `sluice feed gaps`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Captures of one side, in order: pcap or pcapng, plain, gzip or zstd; `-` reads standard input.
    ///
    /// Several files are read as one: the second goes on where the first ends. Gaps are a finding, not a failure: the
    /// exit code is 0 with gaps and without, and 3 when a file is damaged.
    #[arg(value_name = "FILE", required_unless_present = "interface", conflicts_with_all = ["interface", "source", "groups", "bound", "promiscuous", "replace", "force"])]
    pub files: Vec<String>,
    /// A live look in place of files.
    #[command(flatten)]
    pub live: LiveArgs,
    /// One JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
    /// The transport protocol of the feed.
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub protocol: Transport,
    /// Most messages that a segment may jump up before a second one confirms it.
    #[arg(long, default_value_t = crate::feed::runs::JUMP_MAX_DEFAULT)]
    pub jump_max: u64,
}

/// The JSON report.
#[derive(Serialize)]
struct Report {
    streams: Vec<StreamGaps>,
    frames: Frames,
    damage: Vec<FileDamage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<LiveReport>,
}

/// What is found as the frames go by.
struct Scan {
    scanner: GapScanner,
    frames: Frames,
    protocol: Transport,
}

impl Scan {
    fn frame(&mut self, data: &[u8], link: LinkType, capture_ns: i64) {
        if let Some(segment) = self.frames.segment(data, link, self.protocol) {
            self.scanner.on_segment(&segment, capture_ns);
        }
    }

    /// Every frame of one file; its damage.
    fn file(&mut self, file: &str) -> Result<Vec<FileDamage>, SourceError> {
        let mut source = FileSource::open(file)?;
        let bar = segments::progress_bar(source.progress().1);
        while let Some(packet) = source.next()? {
            let index = packet.index;
            self.frame(packet.data, packet.link, packet.capture_ns);
            if index % PROGRESS_PACKETS == 0 {
                bar.set_position(source.progress().0);
            }
        }
        bar.finish_and_clear();
        Ok(segments::damage_of(&source))
    }
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let mut settings = GapSettings::default();
    settings.doubt.jump_max = args.jump_max;
    let mut scan = Scan { scanner: GapScanner::new(settings), frames: Frames::default(), protocol: args.protocol };
    let (mut live, mut damage) = (None, Vec::new());
    if args.live.interface.is_some() {
        live = Some(live::look(&args.live, &mut |seen| {
            if let Seen::Frame { data, link, capture_ns } = seen {
                scan.frame(data, link, capture_ns);
            }
            ControlFlow::Continue(())
        })?);
    }
    for file in &args.files {
        damage.extend(scan.file(file)?);
    }
    let Scan { mut scanner, frames, .. } = scan;
    scanner.finish();
    let report = Report { streams: scanner.streams(), frames, damage, live };
    if args.json {
        println!("{}", serde_json::to_string(&report).expect("a report is plain data"));
    } else {
        print_table(&report);
        segments::print_damage(&report.damage);
    }
    print_rejected(&scanner);
    let exit = report.live.as_ref().map_or(Exit::Done, LiveReport::print_lost);
    Ok(if report.damage.is_empty() { exit } else { Exit::Damage })
}

fn print_table(report: &Report) {
    let heads = ["stream", "run", "segments", "heartbeats", "messages", "first", "last", "gaps", "lost"];
    let heads: Vec<&str> = heads.into_iter().chain(["duplicates", "reordered", "unconfirmed", "bytes lost"]).collect();
    let mut rows: Vec<Vec<String>> = vec![heads.iter().map(|head| head.to_string()).collect()];
    for stream in &report.streams {
        let name = match stream.protocol_id {
            0 => format!("{}/{}", stream.protocol, stream.session),
            id => format!("{}/0x{id:04x}/{}/{}", stream.protocol, stream.channel, stream.session),
        };
        let numbers = [
            stream.run as u64,
            stream.segments,
            stream.heartbeats,
            stream.messages,
            stream.first_sequence,
            stream.last_sequence,
            stream.gaps.len() as u64,
            stream.lost(),
            stream.duplicates,
            stream.reordered,
            stream.unconfirmed,
            stream.bytes_lost,
        ];
        rows.push(std::iter::once(name).chain(numbers.iter().map(u64::to_string)).collect());
    }
    super::segments::print_rows(&rows);
    for stream in report.streams.iter().filter(|stream| !stream.gaps.is_empty()) {
        let listed: Vec<String> = stream.gaps.iter().take(RANGES_TOLD).map(range).collect();
        let more = stream.gaps.len().saturating_sub(RANGES_TOLD);
        let more = if more > 0 { format!(" and {more} more ranges (--json lists all)") } else { String::new() };
        println!("{} run {}: lost {}{more}", stream.session, stream.run, listed.join(", "));
    }
    println!("{}", report.frames.told());
}

fn range(range: &Range) -> String {
    if range.first == range.last { range.first.to_string() } else { format!("{}–{}", range.first, range.last) }
}

/// Segments that no stream could be found for: rare, and said on standard error.
fn print_rejected(scanner: &GapScanner) {
    let rejected = [
        (scanner.rejected_wild(), "gave way to later ones that nothing confirmed either (wild)"),
        (scanner.rejected_overflow(), "end beyond an i64 (overflow)"),
        (scanner.rejected_limit(), "belong to streams beyond the limit of 4,096 (limit)"),
    ];
    for (count, why) in rejected.into_iter().filter(|(count, _)| *count > 0) {
        eprintln!("sluice: {count} segments left out: they {why}");
    }
}
