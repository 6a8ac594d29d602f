//! Where ledgers come from: sources, the source's worker and the encoders on real cores, down to the order that the fan-out takes.

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sluice::config::Idle;
use sluice::ledger::chunker::Cut;
use sluice::ledger::codec::Policy;
use sluice::ledger::encode_worker::{EncodeParts, EncodeWorker};
use sluice::ledger::event::{Item, Job};
use sluice::ledger::hub::Outcome;
use sluice::ledger::message::Encoded;
use sluice::ledger::pool::Pool;
use sluice::ledger::source::{Poll, Source, SourceError, synthetic as synthetic_source};
use sluice::ledger::source_counters::{EncodeCounter, SourceCounter};
use sluice::ledger::source_worker::{self, ENCODER_QUEUE, Emitting, EncoderEnd, SourceParts, SourceWorker};
use sluice::ledger::synthetic::{self, Shape};
use sluice::ledger::unpack::Unpacker;
use sluice::runtime::launch::{CorePlan, Launched, launch};
use sluice::runtime::link::{Doorbell, LinkReceiver, link};
use sluice::runtime::worker::{Turn, Worker};
use sluice::sync::counters::{CounterReader, counters};
use sluice::wire::ledger::{Begin, Codec, End, Message, decode};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A ledger as it came out of the order, checked against its END.
#[derive(Debug)]
struct Played {
    begin: Begin,
    end: End,
    bytes: Vec<u8>,
    /// Lengths and codecs of the chunks.
    chunks: Vec<(usize, Codec)>,
    fallbacks: usize,
}

#[derive(Debug)]
enum Seen {
    Ledger(Played),
    Finished(Outcome, Option<String>),
}

/// Stands in for the fan-out: takes the order, and each packed chunk from its encoder's link.
struct Collector {
    order: LinkReceiver<Item>,
    encoders: Vec<LinkReceiver<Encoded>>,
    /// The encoder whose message comes next.
    awaited: Option<usize>,
    open: Option<Played>,
    unpacker: Unpacker,
    seen: crossbeam_channel::Sender<Seen>,
    stopping: bool,
    /// Nothing is taken while this is set.
    held: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

impl Collector {
    fn chunk(&mut self, message: &Encoded) {
        let played = self.open.as_mut().expect("a chunk is of an open ledger");
        let Ok(Message::Chunk(header, payload)) = decode(message.message()) else { panic!("no chunk: {message:?}") };
        assert_eq!((header.sequence, header.index as usize), (played.begin.sequence, played.chunks.len()), "in order");
        let mut raw = vec![0; message.raw_bytes()];
        match header.codec {
            Codec::Raw => raw.copy_from_slice(payload),
            Codec::Zstd => assert_eq!(self.unpacker.unpack(payload, &mut raw), Ok(raw.len())),
        }
        played.bytes.extend_from_slice(&raw);
        played.chunks.push((raw.len(), header.codec));
    }

    fn item(&mut self, item: Item) {
        match item {
            Item::Begin(begin) => {
                assert!(self.open.is_none(), "a ledger ends before another begins");
                let end = End { sequence: 0, chunks: 0, bytes: 0, emit_end_ns: 0, xxh64: 0 };
                self.open = Some(Played { begin, end, bytes: Vec::new(), chunks: Vec::new(), fallbacks: 0 });
            }
            Item::Message(message) => self.chunk(&message),
            Item::Fallback(message) => {
                self.open.as_mut().expect("open").fallbacks += 1;
                self.chunk(&message);
            }
            Item::Packed(encoder) => self.awaited = Some(encoder),
            Item::End(end) => {
                let mut played = self.open.take().expect("open");
                assert_eq!(end.sequence, played.begin.sequence);
                assert_eq!((end.chunks as usize, end.bytes as usize), (played.chunks.len(), played.bytes.len()));
                assert_eq!(end.xxh64, xxhash_rust::xxh64::xxh64(&played.bytes, 0), "ledger {}", end.sequence);
                assert!(end.emit_end_ns >= played.begin.emit_start_ns, "stamps in order");
                played.end = end;
                let _ = self.seen.send(Seen::Ledger(played));
            }
            Item::Finished(outcome, reason) => {
                let _ = self.seen.send(Seen::Finished(outcome, reason));
            }
            Item::Run(_) => panic!("only a relay says that"),
        }
    }
}

impl Worker for Collector {
    fn name(&self) -> &str {
        "collector"
    }

    fn stage(&self) -> u8 {
        2
    }

    fn start(&mut self, _turn: &mut Turn<'_>) -> Result<Vec<RawFd>, String> {
        Ok(Vec::new())
    }

    fn turn(&mut self, _turn: &mut Turn<'_>) -> usize {
        let mut moved = 0;
        while !self.held.load(std::sync::atomic::Ordering::Relaxed) {
            if let Some(encoder) = self.awaited {
                let Some(message) = self.encoders[encoder].pop() else { break };
                self.awaited = None;
                self.chunk(&message);
            } else {
                let Some(item) = self.order.pop() else { break };
                self.item(item);
            }
            moved += 1;
        }
        moved
    }

    fn stop(&mut self, _turn: &mut Turn<'_>) {
        self.stopping = true;
    }

    fn drained(&self) -> bool {
        self.stopping && self.order.is_empty() && self.encoders.iter().all(LinkReceiver::is_empty)
    }
}

/// How a source is played.
struct Setup {
    chunk_bytes: usize,
    tail_bytes: usize,
    policy: Policy,
    level: i32,
    encoders: usize,
    /// Encoders on a core of their own.
    own_core: bool,
    renumber: Option<u32>,
    order_items: Option<usize>,
    held: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            chunk_bytes: 256 << 10,
            tail_bytes: 32 << 10,
            policy: Policy::Auto,
            level: 1,
            encoders: 1,
            own_core: false,
            renumber: None,
            order_items: None,
            held: false,
        }
    }
}

/// A source that is being played on one core or two; what comes out is on the other end of a channel.
struct Running {
    launched: Option<Launched>,
    seen: crossbeam_channel::Receiver<Seen>,
    counters: CounterReader<SourceCounter>,
    encoders: Vec<CounterReader<EncodeCounter>>,
    held: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

impl Running {
    fn start(source: Box<dyn Source>, setup: &Setup) -> Running {
        let cut = Cut::new(setup.chunk_bytes, Some(setup.tail_bytes)).expect("a cut");
        let pool = Pool::new(cut.buffer_bytes(), 64);
        let (main, other) = (Doorbell::new().expect("an eventfd"), Doorbell::new().expect("an eventfd"));
        let items = setup.order_items.unwrap_or(source_worker::order_items(setup.chunk_bytes, setup.tail_bytes));
        let (order_in, order) = link(items, &main);
        let emitting = Emitting::default();
        let (counter_writer, counter_reader) = counters();
        let (mut ends, mut outs, mut encode_workers, mut encode_counters) = (vec![], vec![], vec![], vec![]);
        for index in 0..setup.encoders {
            let doorbell = if setup.own_core { &other } else { &main };
            let (jobs_in, jobs): (_, LinkReceiver<Job>) = link(ENCODER_QUEUE, doorbell);
            let (out, out_end) = link(items, &main);
            let (writer, reader) = counters();
            ends.push(EncoderEnd { jobs: jobs_in, done: reader.clone() });
            outs.push(out_end);
            encode_counters.push(reader);
            encode_workers.push(Box::new(EncodeWorker::new(EncodeParts {
                name: format!("encoder {index}"),
                jobs,
                out,
                pool: pool.clone(),
                level: setup.level,
                spin_while_open: false,
                emitting: emitting.clone(),
                counters: writer,
            })) as Box<dyn Worker>);
        }
        let worker = SourceWorker::new(SourceParts {
            name: "source".into(),
            source,
            cut,
            pool,
            buffers_ready: 4,
            order: order_in,
            encoders: ends,
            policy: setup.policy,
            level: setup.level,
            links: None,
            renumber: setup.renumber,
            spin_while_open: false,
            drain_ns: 5_000_000_000,
            emitting,
            counters: counter_writer,
        });
        let (seen_in, seen) = crossbeam_channel::unbounded();
        let held = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(setup.held));
        let collector = Collector {
            order,
            encoders: outs,
            awaited: None,
            open: None,
            unpacker: Unpacker::new().expect("zstd"),
            seen: seen_in,
            stopping: false,
            held: held.clone(),
        };
        let mut workers: Vec<Box<dyn Worker>> = vec![Box::new(worker)];
        let mut own = Vec::new();
        if setup.own_core { &mut own } else { &mut workers }.extend(encode_workers);
        workers.push(Box::new(collector));
        let core = |name: &str, doorbell, workers| CorePlan {
            name: name.into(),
            cpu: None,
            idle: Idle::Park,
            io_cpus: Vec::new(),
            doorbell,
            workers,
        };
        let mut cores = vec![core("main", main, workers)];
        if setup.own_core {
            cores.push(core("encoders", other, own));
        }
        let launched = launch(cores).expect("starts");
        launched.go();
        Running { launched: Some(launched), seen, counters: counter_reader, encoders: encode_counters, held }
    }

    fn next(&self) -> Seen {
        match self.seen.recv_timeout(PATIENCE) {
            Ok(seen) => seen,
            Err(error) => panic!("nothing came: {error}; fault {:?}", self.launched.as_ref().and_then(Launched::fault)),
        }
    }

    fn ledger(&self) -> Played {
        match self.next() {
            Seen::Ledger(played) => played,
            Seen::Finished(outcome, reason) => panic!("{outcome:?}: {reason:?}"),
        }
    }

    /// The ledgers up to the source's end, and that.
    fn all(&self) -> (Vec<Played>, Outcome, Option<String>) {
        let mut ledgers = Vec::new();
        loop {
            match self.next() {
                Seen::Ledger(played) => ledgers.push(played),
                Seen::Finished(outcome, reason) => return (ledgers, outcome, reason),
            }
        }
    }

    fn stop(&mut self) {
        self.launched.take().expect("running").stop(Duration::from_secs(20)).expect("drains");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(launched) = self.launched.take() {
            let _ = launched.stop(Duration::from_secs(20));
        }
    }
}

fn made_up(sequence: u32, bytes: usize, shape: Shape) -> Vec<u8> {
    let mut ledger = vec![0; bytes];
    synthetic::write(sequence, shape, &mut ledger);
    ledger
}

fn synthetic_run(count: u32, bytes: u64, shape: Shape, window_ms: i64, interval_ms: i64) -> Box<dyn Source> {
    let (window_ns, interval_ns) = (window_ms * 1_000_000, interval_ms * 1_000_000);
    let settings = synthetic_source::SyntheticSettings { start: 5, count, bytes, shape, window_ns, interval_ns };
    synthetic_source::open(&settings).expect("a source")
}

#[test]
fn made_up_ledgers_come_out_of_every_kind_of_encoding_as_they_went_in() {
    let bytes = (3 << 20) + 12_345;
    for (policy, encoders, own_core, shape) in [
        (Policy::Never, 0, false, Shape::Compressible),
        (Policy::Always, 1, false, Shape::Compressible),
        (Policy::Auto, 1, true, Shape::Compressible),
        (Policy::Always, 4, true, Shape::Compressible),
        (Policy::Auto, 3, false, Shape::Noise),
    ] {
        let setup = Setup { policy, encoders, own_core, ..Setup::default() };
        let running = Running::start(synthetic_run(4, bytes, shape, 5, 0), &setup);
        let (ledgers, outcome, reason) = running.all();
        assert_eq!((outcome, reason), (Outcome::Ended, None), "{policy:?}");
        let sequences: Vec<u32> = ledgers.iter().map(|played| played.begin.sequence).collect();
        assert_eq!(sequences, [5, 6, 7, 8], "{policy:?}");
        for played in &ledgers {
            assert!(played.bytes == made_up(played.begin.sequence, bytes as usize, shape), "{policy:?}");
            let lengths: Vec<usize> = played.chunks.iter().map(|(bytes, _)| *bytes).collect();
            assert_eq!(lengths[..12], [256 << 10; 12]);
            assert_eq!(lengths[12..], [12_345]);
            let packed = played.chunks.iter().filter(|(_, codec)| *codec == Codec::Zstd).count();
            match (policy, shape) {
                (Policy::Never, _) | (_, Shape::Noise) => assert_eq!(packed, 0),
                (Policy::Always, _) => assert_eq!(packed + played.fallbacks, played.chunks.len()),
                _ => assert!(packed > 0),
            }
        }
        let chunks = ledgers.iter().map(|played| played.chunks.len() as u64).sum::<u64>();
        let get = |counter| running.counters.get(counter);
        assert_eq!((get(SourceCounter::Ledgers), get(SourceCounter::Latest)), (4, 8));
        assert_eq!((get(SourceCounter::Bytes), get(SourceCounter::Chunks)), (4 * bytes, chunks));
        let given: u64 = running.encoders.iter().map(|encoder| encoder.get(EncodeCounter::Chunks)).sum();
        assert_eq!(given + get(SourceCounter::RawChunks) + get(SourceCounter::RawFallbacks), chunks, "none is lost");
        let fallbacks = ledgers.iter().map(|played| played.fallbacks as u64).sum::<u64>();
        assert_eq!((get(SourceCounter::RawFallbacks), get(SourceCounter::Waits)), (fallbacks, 0));
    }
}
