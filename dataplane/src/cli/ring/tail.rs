//! `sluice ring tail`: print a ring's records as they come; a feed ring's decoded.

use std::io::{StdoutLock, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::failure;
use crate::cli::{Exit, Failure, Outcome};
use crate::feed::messages::{Message, Value as Field};
use crate::ring::follow::{FeedFollower, Followed};
use crate::ring::inspect::inspect;
use crate::ring::liveness::Producer;
use crate::ring::raw::{RawRead, RawReader};
use crate::ring::{ConsumerSettings, Received, StartAt, Wait};
use crate::sys::clock;
use crate::wire::feed_meta::{FeedMeta, FeedRecord};
use crate::wire::ring::signature;

/// How long one wait lasts: the wake of a publication ends it early.
const WAIT: Duration = Duration::from_millis(100);
/// Looks before a sleep: a printer is in no hurry.
const SPINS: u32 = 0;
/// Pause between two looks at a ring of unknown records that has nothing new.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Arguments of `sluice ring tail`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The ring's file.
    pub ring: PathBuf,
    /// The first record: `latest` (the newest there is), `head` (what comes from now on), `oldest`, or a sequence.
    #[arg(long, default_value = "latest", value_parser = start)]
    pub from: StartAt,
    /// End after so many records.
    #[arg(long, value_name = "RECORDS")]
    pub count: Option<u64>,
    /// End when no record has come for so long (as `500ms`, `2s`).
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub idle: Option<Duration>,
    /// Go on with the next ring at this path when the producer ends or is replaced.
    #[arg(long)]
    pub follow: bool,
    /// One JSON object a record.
    #[arg(long)]
    pub json: bool,
    /// Print records as bytes, a feed's too.
    #[arg(long)]
    pub hex: bool,
}

fn start(text: &str) -> Result<StartAt, String> {
    match text {
        "latest" => Ok(StartAt::Latest),
        "head" => Ok(StartAt::Head),
        "oldest" => Ok(StartAt::Oldest),
        number => match number.parse() {
            Ok(sequence) if sequence > 0 && sequence < u64::MAX => Ok(StartAt::Sequence(sequence)),
            _ => Err("write latest, head, oldest or a sequence from 1".into()),
        },
    }
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let geometry = inspect(&args.ring).map_err(failure)?.header.geometry;
    let mut out = Out { out: std::io::stdout().lock(), json: args.json };
    let told = match geometry.schema_sig == signature::<FeedMeta>() && geometry.has_arena() && !args.hex {
        true => feed(&args, &mut out),
        false => bytes(&args, &mut out),
    };
    match told {
        // Whoever read us has enough.
        Err(Ended::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(Exit::Done),
        Err(Ended::Output(error)) => Err(Failure::host(format!("stdout: {error}"))),
        Err(Ended::Ring(failure)) => Err(failure),
        Ok(()) => Ok(Exit::Done),
    }
}

/// Why the printing ended early.
enum Ended {
    Output(std::io::Error),
    Ring(Failure),
}

impl From<std::io::Error> for Ended {
    fn from(error: std::io::Error) -> Ended {
        Ended::Output(error)
    }
}

struct Out<'a> {
    out: StdoutLock<'a>,
    json: bool,
}

impl Out<'_> {
    /// A line that is no record.
    fn marker(&mut self, what: &str, details: Value) -> std::io::Result<()> {
        match self.json {
            true => writeln!(self.out, "{}", json!({"marker": what, "details": details})),
            false if details.is_null() => writeln!(self.out, "-- {what}"),
            false => writeln!(self.out, "-- {what} {details}"),
        }
    }
}

fn feed(args: &Args, out: &mut Out<'_>) -> Result<(), Ended> {
    let settings =
        ConsumerSettings { name: "sluice ring tail".into(), follow: args.follow, ..ConsumerSettings::default() };
    let opened = FeedFollower::open(&args.ring, args.from, &settings).map_err(failure);
    let mut follower = opened.map_err(Ended::Ring)?;
    let (mut records, mut losses) = (0, (0, 0));
    let mut idle_since = clock::monotonic_ns();
    while args.count.is_none_or(|count| records < count) {
        match follower.recv(Wait::Futex { spins: SPINS }, WAIT).map_err(|error| Ended::Ring(failure(error)))? {
            Received::Record { record, .. } => {
                missed(out, &mut losses, (record.lapped, record.skipped))?;
                print_feed(out, &record)?;
                records += 1;
                idle_since = clock::monotonic_ns();
            }
            Received::TimedOut => {
                out.out.flush()?;
                if is_over(args.idle, idle_since) {
                    return Ok(());
                }
            }
            Received::Died => {
                out.marker("the producer has ended", Value::Null)?;
                if !args.follow {
                    return Ok(());
                }
            }
            Received::Stalled => out.marker("the producer stalls", Value::Null)?,
            Received::Resumed => out.marker("the producer is back", Value::Null)?,
            Received::Replaced { followed, incarnation } => {
                out.marker("another ring is at this path", json!({"incarnation": format!("{incarnation:#018x}")}))?;
                if !followed {
                    return Ok(());
                }
            }
        }
        missed(out, &mut losses, (follower.lapped(), follower.skipped()))?;
    }
    Ok(())
}

/// Says what was lost since the last time: before the record that follows the loss.
fn missed(out: &mut Out<'_>, losses: &mut (u64, u64), now: (u64, u64)) -> std::io::Result<()> {
    let before = std::mem::replace(losses, now);
    if now == before {
        return Ok(());
    }
    out.marker("records were missed", json!({"lapped": now.0 - before.0, "skipped": now.1 - before.1}))
}

fn is_over(idle: Option<Duration>, since_ns: i64) -> bool {
    idle.is_some_and(|idle| clock::monotonic_ns() - since_ns >= idle.as_nanos() as i64)
}

/// A feed's record as (key, value) pairs in a fixed order.
fn print_feed(out: &mut Out<'_>, record: &Followed<'_>) -> std::io::Result<()> {
    let meta = &record.meta;
    let kind = record.record.map_or("unknown", FeedRecord::label);
    let stream = record.stream.map_or_else(|| format!("#{}", meta.stream_index), str::to_owned);
    let side = char::from(b'A'.wrapping_add(meta.side));
    let send = (meta.send_ns != FeedMeta::NO_SEND_TIME).then_some(meta.send_ns);
    let (message, fields) = decoded(record);
    if out.json {
        let mut line = Map::new();
        line.insert("ring_sequence".into(), json!(record.ring_sequence));
        line.insert("kind".into(), json!(kind));
        line.insert("stream".into(), json!(stream));
        line.insert("sequence".into(), json!(meta.sequence));
        line.insert("last".into(), json!(record.gap_last));
        line.insert("side".into(), json!(side.to_string()));
        line.insert("flags".into(), json!(meta.flags));
        line.insert("capture_ns".into(), json!(meta.capture_ns));
        line.insert("send_ns".into(), json!(send));
        line.insert("stamp_source".into(), json!(meta.stamp_source));
        line.insert("clock_epoch".into(), json!(meta.clock_epoch));
        line.insert("body".into(), json!(hex(record.body)));
        line.insert("message".into(), json!(message));
        line.insert("fields".into(), Value::Object(fields));
        return writeln!(out.out, "{}", Value::Object(line));
    }
    let range = match (record.record, record.gap_last) {
        (Some(FeedRecord::Gap), Some(last)) => format!("{} .. {last}", meta.sequence),
        (Some(FeedRecord::SideState), _) => {
            format!("{side} {}", if meta.flags & FeedMeta::FLAG_LIVE != 0 { "live" } else { "silent" })
        }
        _ => format!("{} {side}", meta.sequence),
    };
    // The key is another process's: what a terminal would obey is written out.
    let stream = stream.escape_debug();
    write!(out.out, "{} {stream} {kind} {range} captured {}", record.ring_sequence, meta.capture_ns)?;
    if let Some(send) = send {
        write!(out.out, " sent {send}")?;
    }
    match message {
        Some(name) => {
            write!(out.out, " {}", name.escape_debug())?;
            fields.iter().try_for_each(|(name, value)| write!(out.out, " {name}={}", plain(value)))?;
        }
        None if !record.body.is_empty() => write!(out.out, " {}", hex(record.body))?,
        None => {}
    }
    writeln!(out.out)
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), |text| text.escape_debug().to_string())
}

/// An IEX message's type and fields; nothing for other feeds and other records.
fn decoded(record: &Followed<'_>) -> (Option<String>, Map<String, Value>) {
    let mut fields = Map::new();
    let is_iex = record.stream.is_some_and(|stream| stream.starts_with("iex-tp/"));
    if !is_iex || record.record != Some(FeedRecord::Message) {
        return (None, fields);
    }
    let Ok(message) = Message::decode(record.body) else { return (None, fields) };
    if let Some(symbol) = message.symbol() {
        fields.insert("symbol".into(), json!(String::from_utf8_lossy(symbol.as_bytes())));
    }
    fields.insert("timestamp_ns".into(), json!(message.timestamp_ns()));
    message.fields(|name, value| {
        fields.insert(name.into(), field(value));
    });
    (Some(char::from(message.kind()).to_string()), fields)
}

fn field(value: Field<'_>) -> Value {
    match value {
        Field::Unsigned(number) => json!(number),
        Field::Signed(number) => json!(number),
        Field::Text(text) => json!(String::from_utf8_lossy(text).trim_end()),
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Records of a type that is not known here: as bytes, blob and all.
fn bytes(args: &Args, out: &mut Out<'_>) -> Result<(), Ended> {
    let open = || RawReader::open(&args.ring, false);
    let mut reader = open().map_err(|error| Ended::Ring(failure(error)))?;
    let mut next = first(args.from, &reader);
    let (mut records, mut idle_since, mut record) = (0, clock::monotonic_ns(), Vec::new());
    let mut read_after_end = false;
    while args.count.is_none_or(|count| records < count) {
        record.clear();
        match reader.read(next, &mut record) {
            RawRead::Record => {
                match out.json {
                    true => writeln!(out.out, "{}", json!({"ring_sequence": next, "bytes": hex(&record)}))?,
                    false => writeln!(out.out, "{next} {}", hex(&record))?,
                }
                (next, records, idle_since) = (next + 1, records + 1, clock::monotonic_ns());
            }
            RawRead::Lapped { oldest } => {
                out.marker("records were missed", json!({"lapped": oldest - next}))?;
                next = oldest;
            }
            RawRead::Absent { next: there } => {
                out.marker("records were missed", json!({"skipped": there - next}))?;
                next = there;
            }
            RawRead::NotYet => {
                out.out.flush()?;
                let found = reader.producer(clock::monotonic_ns());
                let ended = matches!(found, Producer::Died | Producer::Replaced);
                if ended && !std::mem::replace(&mut read_after_end, ended) {
                    // It may have written its last records between the look at the slot and its end.
                    continue;
                }
                read_after_end = ended;
                match found {
                    Producer::Replaced if args.follow => match open() {
                        Ok(successor) => {
                            reader = successor;
                            next = reader.oldest();
                            out.marker("another ring is at this path", Value::Null)?;
                        }
                        // Still being made, or gone again.
                        Err(error) if error.is_not_yet() && !is_over(args.idle, idle_since) => clock::sleep(LOOK_EVERY),
                        Err(error) if error.is_not_yet() => return Ok(()),
                        Err(error) => return Err(Ended::Ring(failure(error))),
                    },
                    Producer::Replaced => {
                        out.marker("another ring is at this path", Value::Null)?;
                        return Ok(());
                    }
                    Producer::Died if !args.follow => {
                        out.marker("the producer has ended", Value::Null)?;
                        return Ok(());
                    }
                    _ if is_over(args.idle, idle_since) => return Ok(()),
                    _ => clock::sleep(LOOK_EVERY),
                }
            }
        }
    }
    Ok(())
}

fn first(from: StartAt, reader: &RawReader) -> u64 {
    match from {
        StartAt::Latest => reader.head().max(1),
        StartAt::Head => reader.head() + 1,
        StartAt::Oldest => reader.oldest(),
        StartAt::Sequence(sequence) => sequence,
    }
}
