//! `sluice feed arbitrate`: Merge the A and B captures of one feed and report what was lost on both.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::segments::{self, FileDamage, Frames, PROGRESS_PACKETS, Transport, nanos};
use crate::capture::source::file::{FileSource, SourceError};
use crate::cli::fields::counted;
use crate::cli::{Exit, Failure, Outcome};
use crate::feed::arbiter::{
    Arbiter, ArbiterReport, ArbiterSettings, Arrival, STREAMS_MAX_DEFAULT, Sink, StreamReport, WINDOW_MESSAGES_DEFAULT,
    WINDOW_MESSAGES_MAX,
};
use crate::feed::histogram::Summary;
use crate::feed::split::{TRUTH_FORMAT, Truth};
use crate::feed::truth::{Comparison, compare};
use crate::store::{FLAG_LATE_FILL, NO_TIME, RecordKind, RecordMeta, StoreError, SyncSettings, SyncStore, session_key};
use crate::units::{Side, StreamId};
use crate::wire::packet::LinkType;
use crate::wire::segment::SessionKey;

/// Differences from the truth that are told; `--json` tells all.
const DIFFERENCES_TOLD: usize = 20;

/// Arguments of `sluice feed arbitrate`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Side A's capture: pcap or pcapng, plain, gzip or zstd.
    pub a: String,
    /// Side B's capture.
    pub b: String,
    /// The truth.json of `feed split`: any difference gives exit code 1.
    #[arg(long)]
    pub truth: Option<PathBuf>,
    /// Where the merged stream is stored: a store's directory, or one file FILE.tri.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Messages that may lie between the next message and the last one held: at least the lag between the sides.
    #[arg(long, default_value_t = WINDOW_MESSAGES_DEFAULT,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(WINDOW_MESSAGES_MAX)))]
    pub window: u32,
    /// Longest wait for a missing message, in the time of the stamps; without it the sides' progress, the window and
    /// the end of the inputs decide.
    #[arg(long, value_parser = nanos)]
    pub hold: Option<i64>,
    /// Silence after which a side counts as dead, in the time of the stamps; without it only the end of its file.
    #[arg(long, value_parser = nanos)]
    pub side_timeout: Option<i64>,
    /// Account every session from sequence 1, also where the captures begin later.
    #[arg(long)]
    pub start_session: bool,
    /// One JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    /// The transport protocol of the feed.
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub protocol: Transport,
}

/// The JSON report.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    arbiter: ArbiterReport,
    frames: [Frames; 2],
    truth: Option<Comparison>,
    stored: Option<u64>,
    damage: Vec<FileDamage>,
}

/// One side's file, one packet ahead.
struct Input {
    source: FileSource,
    side: Side,
    frames: Frames,
    sessions: HashSet<SessionKey>,
    /// The packet to be processed next.
    head: Option<Head>,
    data: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Head {
    capture_ns: i64,
    link: LinkType,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let truth = args.truth.as_deref().map(read_truth).transpose()?;
    let mut inputs = [Input::open(&args.a, Side::A)?, Input::open(&args.b, Side::B)?];
    let mut output = open_output(args.out.as_deref())?;
    let settings = ArbiterSettings {
        window_messages: args.window,
        hold_ns: args.hold,
        side_timeout_ns: args.side_timeout,
        start_session: args.start_session,
        streams_max: STREAMS_MAX_DEFAULT,
        ..ArbiterSettings::files(2)
    };
    let mut arbiter = Arbiter::new(settings);
    merge(&mut inputs, &mut arbiter, &mut output, args.protocol)?;
    let stored = output.close(args.out.as_deref())?;
    shared_session(&inputs)?;
    let report = arbiter.report();
    let damage: Vec<FileDamage> = inputs.iter().flat_map(|input| segments::damage_of(&input.source)).collect();
    let [a, b] = inputs;
    let truth = truth.map(|truth| compare(&truth, &report));
    let report = Report { arbiter: report, frames: [a.frames, b.frames], truth, stored, damage };
    if args.json {
        println!("{}", serde_json::to_string(&report).expect("a report is plain data"));
    } else {
        print_report(&report, args.out.as_deref());
        segments::print_damage(&report.damage);
    }
    if let Some(residue) = arbiter.check_conservation().first() {
        return Err(Failure { message: format!("the books do not balance: {residue:?}"), exit: Exit::Internal });
    }
    Ok(match &report.truth {
        Some(comparison) if !comparison.equal() => Exit::Difference,
        _ if !report.damage.is_empty() => Exit::Damage,
        _ => Exit::Done,
    })
}

/// Feeds both files to the arbiter in the order of their stamps, ties A first.
fn merge(
    inputs: &mut [Input; 2],
    arbiter: &mut Arbiter,
    output: &mut Output,
    transport: Transport,
) -> Result<(), Failure> {
    let total = inputs.iter().map(|input| input.source.progress().1).sum::<Option<u64>>();
    let bar = segments::progress_bar(total);
    let mut now = i64::MIN;
    for input in inputs.iter_mut() {
        input.advance()?;
        if input.head.is_none() {
            arbiter.end_side(input.side, now, output);
        }
    }
    let mut packets = 0u64;
    while let Some(side) = earlier(inputs) {
        let input = &mut inputs[side];
        let Some(head) = input.head else { break };
        now = now.max(head.capture_ns);
        if let Some(segment) = input.frames.segment(&input.data, head.link, transport) {
            input.sessions.insert(segment.session);
            let arrival = Arrival { side: input.side, capture_ns: head.capture_ns, segment };
            arbiter.on_segment(&arrival, now, output);
        }
        output.check()?;
        input.advance()?;
        if input.head.is_none() {
            arbiter.end_side(input.side, now, output);
        }
        packets += 1;
        if packets.is_multiple_of(PROGRESS_PACKETS) {
            bar.set_position(inputs.iter().map(|input| input.source.progress().0).sum());
        }
    }
    bar.finish_and_clear();
    arbiter.finish(now, output);
    output.check()
}

fn earlier(inputs: &[Input; 2]) -> Option<usize> {
    match (inputs[0].head, inputs[1].head) {
        (Some(a), Some(b)) => Some(usize::from(b.capture_ns < a.capture_ns)),
        (Some(_), None) => Some(0),
        (None, Some(_)) => Some(1),
        (None, None) => None,
    }
}

impl Input {
    fn open(path: &str, side: Side) -> Result<Input, SourceError> {
        let source = FileSource::open(path)?;
        let (frames, sessions) = (Frames::default(), HashSet::new());
        Ok(Input { source, side, frames, sessions, head: None, data: Vec::new() })
    }

    /// Copies the next packet out of the source, so that the other file can be read while it waits.
    fn advance(&mut self) -> Result<(), SourceError> {
        self.head = self.source.next()?.map(|packet| {
            self.data.clear();
            self.data.extend_from_slice(packet.data);
            Head { capture_ns: packet.capture_ns, link: packet.link }
        });
        Ok(())
    }
}

/// Two captures of different feeds would merge into nonsense: that is an error.
fn shared_session(inputs: &[Input; 2]) -> Result<(), Failure> {
    let [a, b] = inputs;
    if a.sessions.intersection(&b.sessions).next().is_some() {
        return Ok(());
    }
    let told = |input: &Input| {
        let mut names: Vec<String> = input.sessions.iter().map(SessionKey::to_string).collect();
        names.sort();
        let names = if names.is_empty() { "no stream".to_string() } else { names.join(", ") };
        format!("{} has {names}", input.source.name())
    };
    let what = format!("the inputs share no stream: {}; {}", told(a), told(b));
    Err(Failure::usage(format!("{what}: give two captures of one feed, or --protocol")))
}

fn read_truth(path: &Path) -> Result<Truth, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::host(format!("{}: {e}", path.display())))?;
    let truth: Truth = serde_json::from_str(&text)
        .map_err(|e| Failure::usage(format!("{}: not a truth file: {e}", path.display())))?;
    if truth.format != TRUTH_FORMAT {
        let what = format!("format \"{}\", but this sluice reads \"{TRUTH_FORMAT}\"", truth.format);
        return Err(Failure::usage(format!("{}: {what}: split again", path.display())));
    }
    Ok(truth)
}

/// Where the merged stream goes: a store, or nowhere.
struct Output {
    store: Option<SyncStore>,
    /// The first error of the store, to be raised after the call that met it.
    error: Option<StoreError>,
    /// Messages appended.
    appended: u64,
    /// The capture time of the latest message, for records that have none of their own.
    latest_ns: i64,
}

fn open_output(path: Option<&Path>) -> Result<Output, Failure> {
    let open = |path| SyncStore::create(path, SyncSettings::default());
    let store = path.map(open).transpose().map_err(store_failure)?;
    Ok(Output { store, error: None, appended: 0, latest_ns: 0 })
}

fn store_failure(error: StoreError) -> Failure {
    Failure::host(error.to_string())
}

impl Output {
    fn append(&mut self, meta: RecordMeta, body: &[u8]) {
        self.appended += u64::from(meta.kind == RecordKind::Message);
        self.latest_ns = self.latest_ns.max(meta.capture_ns);
        if let (Some(store), None) = (&mut self.store, &self.error) {
            self.error = store.append(&meta, body).err();
        }
    }

    fn check(&mut self) -> Result<(), Failure> {
        self.error.take().map_or(Ok(()), |error| Err(store_failure(error)))
    }

    /// Seals the store. Returns the messages stored, where there is a store.
    fn close(&mut self, path: Option<&Path>) -> Result<Option<u64>, Failure> {
        let Some(store) = self.store.take() else { return Ok(None) };
        let closed = store.close().map_err(store_failure)?;
        for damage in &closed.damage {
            eprintln!("sluice: {}: earlier damage: {damage:?}", path.unwrap_or(Path::new("")).display());
        }
        Ok(Some(self.appended))
    }
}

impl Sink for Output {
    fn stream_begin(&mut self, stream: StreamId, key: &SessionKey, run: u32, _base: u64) {
        if let Some(store) = &mut self.store {
            let known = store.known_runs().next_run(key);
            if known > 0 && run == 0 {
                let session = session_key(key);
                eprintln!(
                    "sluice: the store holds this session already, up to {session}/r{}: it is kept again, from {session}/r{known} on",
                    known - 1
                );
            }
            store.stream_begin(stream, key, known + run);
        }
    }

    fn emit_arrival(&mut self, stream: StreamId, a: &Arrival<'_>, from: u64, to: u64, _last: bool, late_fill: bool) {
        if self.store.is_none() {
            return;
        }
        let send_ns = a.segment.send_ns.unwrap_or(NO_TIME);
        let skip = (from - a.segment.first) as usize;
        for (sequence, body) in (from..to).zip(a.segment.messages().skip(skip)) {
            let flags = if late_fill { FLAG_LATE_FILL } else { 0 };
            let meta = RecordMeta { flags, send_ns, ..RecordMeta::message(stream, a.side, sequence, a.capture_ns) };
            self.append(meta, body);
        }
    }

    fn emit_held(&mut self, stream: StreamId, sequence: u64, side: Side, capture_ns: i64, send_ns: i64, body: &[u8]) {
        self.append(RecordMeta { send_ns, ..RecordMeta::message(stream, side, sequence, capture_ns) }, body);
    }

    fn emit_late_copy(
        &mut self,
        stream: StreamId,
        sequence: u64,
        side: Side,
        capture_ns: i64,
        send_ns: i64,
        body: &[u8],
    ) {
        let meta = RecordMeta::message(stream, side, sequence, capture_ns);
        self.append(RecordMeta { send_ns, flags: FLAG_LATE_FILL, ..meta }, body);
    }

    fn gap(&mut self, stream: StreamId, first: u64, last: u64) {
        let meta = RecordMeta::message(stream, Side::A, first, self.latest_ns);
        self.append(RecordMeta { kind: RecordKind::Gap, ..meta }, &last.to_le_bytes());
    }

    fn stream_end(&mut self, stream: StreamId) {
        let meta = RecordMeta::message(stream, Side::A, 0, self.latest_ns);
        self.append(RecordMeta { kind: RecordKind::StreamEnd, ..meta }, &[]);
    }

    fn side_state(&mut self, _session: &SessionKey, _side: Side, _live: bool) {}
}

fn print_report(report: &Report, out: Option<&Path>) {
    for stream in &report.arbiter.streams {
        print_stream(stream);
    }
    let none = &report.arbiter.unattributed;
    if none.offered + none.segments > 0 {
        println!("in no stream: {} segments, {} messages (overflow, limit)", none.segments, none.offered);
    }
    for (side, frames) in ["A", "B"].iter().zip(&report.frames) {
        println!("side {side}: {}", frames.told());
    }
    if let (Some(stored), Some(out)) = (report.stored, out) {
        println!("{stored} messages stored in {}", out.display());
    }
    let Some(truth) = &report.truth else { return };
    let unseen = match truth.unseen {
        0 => String::new(),
        n => format!("; {n} more were lost on both where no side could tell"),
    };
    if truth.equal() {
        let (streams, lost) = (counted(truth.streams as u64, "stream"), counted(truth.residual, "message"));
        println!("truth: equal ({streams}, {lost} lost on both{unseen})");
        return;
    }
    println!("truth: {}{unseen}", counted(truth.differences.len() as u64, "difference"));
    truth.differences.iter().take(DIFFERENCES_TOLD).for_each(|difference| println!("  {difference}"));
    if truth.differences.len() > DIFFERENCES_TOLD {
        println!("  and more (--json tells all)");
    }
}

fn print_stream(stream: &StreamReport) {
    let c = &stream.counts;
    println!("{} (run {}): {} to {}", stream.stream, stream.run, c.base, c.frontier.saturating_sub(1));
    let gaps = counted(stream.gaps.len() as u64, "gap");
    println!("  emitted {}, late fills {}, lost {} in {gaps}", c.unique, c.late_fill, c.gap);
    let rejected = c.rejected_wild + c.rejected_overflow + c.rejected_limit;
    println!("  duplicates {}, late {}, rejected {rejected}", c.duplicate, c.late);
    let forced = [(c.forced_window, "window"), (c.forced_slots, "slots"), (c.forced_hold, "hold")];
    for (count, by) in forced.into_iter().filter(|(count, _)| *count > 0) {
        println!("  {count} times the {by} forced an advance");
    }
    let heads = ["", "segments", "heartbeats", "messages", "lost", "recovered", "wins", "duplicates", "reordered"];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    for side in &stream.sides {
        let counts = &side.counts;
        let numbers = [
            counts.segments,
            counts.heartbeats,
            counts.messages,
            side.lost,
            side.recovered,
            side.wins,
            counts.duplicates,
            counts.reordered,
        ];
        let name = format!("  side {}", side.side);
        rows.push(std::iter::once(name).chain(numbers.iter().map(u64::to_string)).collect());
    }
    segments::print_rows(&rows);
    print_times("A ahead of B", &stream.lead_a_over_b);
    for side in &stream.sides {
        print_times(&format!("capture − send, {}", side.side), &side.capture_minus_send);
    }
    print_times("send − message", &stream.send_minus_message);
}

fn print_times(name: &str, summary: &Summary) {
    if summary.samples > 0 {
        let s = summary;
        println!(
            "  {name:<19} ns: min {}, p50 {}, p90 {}, p99 {}, max {} ({} of {} negative)",
            s.min_ns, s.p50_ns, s.p90_ns, s.p99_ns, s.max_ns, s.negative, s.samples
        );
    }
}
