//! Where ledgers come from: sources, the source's worker and the encoders on real cores, down to the order that the fan-out takes.

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sluice::config::Idle;
use sluice::ledger::archive::{ArchiveSettings, Recorder};
use sluice::ledger::chunker::{Cut, Layout};
use sluice::ledger::codec::Policy;
use sluice::ledger::dump::DumpWriter;
use sluice::ledger::encode_worker::{EncodeParts, EncodeWorker};
use sluice::ledger::event::{Item, Job};
use sluice::ledger::hub::Outcome;
use sluice::ledger::message::Encoded;
use sluice::ledger::order::Order;
use sluice::ledger::pool::Pool;
use sluice::ledger::rpc::mark;
use sluice::ledger::source::captive::{self, CaptiveSettings};
use sluice::ledger::source::file::{self, FileSettings};
use sluice::ledger::source::pipe::{self, PipeSettings};
use sluice::ledger::source::{Poll, Source, SourceError, synthetic as synthetic_source};
use sluice::ledger::source_worker::{self, ENCODER_QUEUE, Emitting, EncoderEnd, SourceParts, SourceWorker};
use sluice::ledger::stats::{EncodeCounter, SourceCounter};
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
    held: Arc<AtomicBool>,
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
        while !self.held.load(Ordering::Relaxed) {
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

/// An encoder that is not begun with until it is let go.
struct Late {
    encoder: EncodeWorker,
    held: Arc<AtomicBool>,
}

impl Worker for Late {
    fn name(&self) -> &str {
        self.encoder.name()
    }

    fn stage(&self) -> u8 {
        self.encoder.stage()
    }

    fn start(&mut self, turn: &mut Turn<'_>) -> Result<Vec<RawFd>, String> {
        self.encoder.start(turn)
    }

    fn turn(&mut self, turn: &mut Turn<'_>) -> usize {
        // Nobody rings when it is let go: it goes on looking.
        if self.held.load(Ordering::Relaxed) { 1 } else { self.encoder.turn(turn) }
    }

    fn stop(&mut self, turn: &mut Turn<'_>) {
        self.encoder.stop(turn);
    }

    fn drained(&self) -> bool {
        self.encoder.drained()
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
    /// The encoders pack nothing while this is set.
    encoders_held: Arc<AtomicBool>,
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
            encoders_held: Arc::default(),
        }
    }
}

impl Setup {
    fn layout(&self) -> Layout {
        let cut = Cut::new(self.chunk_bytes, Some(self.tail_bytes)).expect("a cut");
        Layout { cut, pool: Pool::new(cut.buffer_bytes(), 64) }
    }
}

/// A source that is being played on one core or two; what comes out is on the other end of a channel.
struct Running {
    launched: Option<Launched>,
    seen: crossbeam_channel::Receiver<Seen>,
    counters: CounterReader<SourceCounter>,
    encoders: Vec<CounterReader<EncodeCounter>>,
    held: Arc<AtomicBool>,
}

impl Running {
    fn start(source: Box<dyn Source>, setup: &Setup) -> Running {
        let Layout { cut, pool } = setup.layout();
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
            let encoder = EncodeWorker::new(EncodeParts {
                name: format!("encoder {index}"),
                jobs,
                out,
                pool: pool.clone(),
                level: setup.level,
                spin_while_open: false,
                emitting: emitting.clone(),
                counters: writer,
            });
            let held = setup.encoders_held.clone();
            encode_workers.push(Box::new(Late { encoder, held }) as Box<dyn Worker>);
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
            load: Default::default(),
            renumber: setup.renumber,
            spin_while_open: false,
            drain_ns: 5_000_000_000,
            emitting,
            counters: counter_writer,
        });
        let (seen_in, seen) = crossbeam_channel::unbounded();
        let held = Arc::new(AtomicBool::new(setup.held));
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

fn synthetic_run(
    setup: &Setup,
    count: u32,
    bytes: u64,
    shape: Shape,
    window_ms: i64,
    interval_ms: i64,
) -> Box<dyn Source> {
    let (window_ns, interval_ns) = (window_ms * 1_000_000, interval_ms * 1_000_000);
    let settings = synthetic_source::SyntheticSettings { start: 5, count, bytes, shape, window_ns, interval_ns };
    synthetic_source::open(&settings, setup.layout()).expect("a source")
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
        let running = Running::start(synthetic_run(&setup, 4, bytes, shape, 5, 0), &setup);
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

#[test]
fn a_ledger_is_emitted_over_its_window_and_on_the_grid() {
    let setup = Setup { policy: Policy::Never, encoders: 0, ..Setup::default() };
    let mut running = Running::start(synthetic_run(&setup, 0, 2 << 20, Shape::Noise, 100, 200), &setup);
    let begun = Instant::now();
    let ledgers: Vec<Played> = (0..4).map(|_| running.ledger()).collect();
    // Four begin 0, 200, 400 and 600 ms after the first, and each takes 100.
    assert!(begun.elapsed() >= Duration::from_millis(600), "{:?}", begun.elapsed());
    for pair in ledgers.windows(2) {
        let apart = pair[1].begin.emit_start_ns - pair[0].begin.emit_start_ns;
        assert!((150_000_000..20 * 200_000_000).contains(&apart), "{apart} ns apart");
    }
    for played in &ledgers {
        let emission = played.end.emit_end_ns - played.begin.emit_start_ns;
        assert!((80_000_000..20 * 100_000_000).contains(&emission), "{emission} ns");
    }
    // A stop in the middle of a window lets the ledger end, and no other begin.
    while running.counters.get(SourceCounter::Open) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    running.stop();
    let rest: Vec<Seen> = running.seen.try_iter().collect();
    assert!(matches!(rest[..], [Seen::Ledger(_)]), "the open ledger, whole, and no word of an end: {}", rest.len());
}

#[test]
fn a_stop_between_two_ledgers_is_heard_at_once() {
    let setup = Setup { policy: Policy::Never, encoders: 0, ..Setup::default() };
    let mut running = Running::start(synthetic_run(&setup, 0, 1000, Shape::Noise, 0, 3_600_000), &setup);
    running.ledger();
    let asked = Instant::now();
    running.stop();
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
}

#[test]
fn a_window_of_zero_waits_for_nothing() {
    let setup = Setup { policy: Policy::Never, encoders: 0, ..Setup::default() };
    let running = Running::start(synthetic_run(&setup, 50, 300_000, Shape::Noise, 0, 0), &setup);
    let (ledgers, outcome, _) = running.all();
    assert_eq!((ledgers.len(), outcome), (50, Outcome::Ended));
}

#[test]
fn encoders_that_are_behind_get_no_more() {
    let bytes = 24 << 20;
    for policy in [Policy::Always, Policy::Auto] {
        let encoders_held = Arc::new(AtomicBool::new(true));
        let setup = Setup { chunk_bytes: 64 << 10, own_core: true, policy, encoders_held, ..Setup::default() };
        let running = Running::start(synthetic_run(&setup, 1, bytes, Shape::Compressible, 0, 0), &setup);
        let get = |counter| running.counters.get(counter);
        // The source does not wait for the encoder.
        let end = Instant::now() + PATIENCE;
        while get(SourceCounter::Ledgers) == 0 {
            assert!(Instant::now() < end, "the source is held up by its encoder");
            std::thread::sleep(Duration::from_millis(1));
        }
        setup.encoders_held.store(false, Ordering::Relaxed);
        let (ledgers, ..) = running.all();
        let played = &ledgers[0];
        assert!(played.bytes == made_up(5, bytes as usize, Shape::Compressible));
        assert_eq!(get(SourceCounter::RawFallbacks), played.fallbacks as u64);
        let packed = played.chunks.iter().filter(|(_, codec)| *codec == Codec::Zstd).count();
        // What its queue holds, packed faster; the rest as it is.
        assert_eq!(packed, ENCODER_QUEUE);
        assert!(get(SourceCounter::Hastened) > 0);
        match policy {
            Policy::Always => assert_eq!(get(SourceCounter::RawChunks), 0, "raw only where the queue is full"),
            // Whoever may choose sends raw before that, but for the tail.
            _ => {
                assert!(get(SourceCounter::RawChunks) > 10 * played.fallbacks as u64, "{} fall back", played.fallbacks)
            }
        }
    }
}

#[test]
fn a_source_waits_for_the_order_alone_and_that_is_counted() {
    let setup = Setup {
        policy: Policy::Never,
        encoders: 0,
        chunk_bytes: 4096,
        tail_bytes: 4096,
        order_items: Some(16),
        held: true,
        ..Setup::default()
    };
    let running = Running::start(synthetic_run(&setup, 1, 1 << 20, Shape::Noise, 0, 0), &setup);
    let end = Instant::now() + PATIENCE;
    while running.counters.get(SourceCounter::Waits) == 0 {
        assert!(Instant::now() < end, "the order is never full");
        std::thread::sleep(Duration::from_millis(1));
    }
    running.held.store(false, Ordering::Relaxed);
    let (ledgers, outcome, _) = running.all();
    assert_eq!((ledgers.len(), outcome), (1, Outcome::Ended));
    assert!(ledgers[0].bytes == made_up(5, 1 << 20, Shape::Noise));
    // The order that the plan makes holds a largest ledger.
    assert!(source_worker::order_items(4096, 4096) > (256 << 20) / 4096);
}

/// A source that says what it is told to.
struct Told {
    script: std::vec::IntoIter<Result<Poll, &'static str>>,
}

impl Told {
    fn saying(script: Vec<Result<Poll, &'static str>>) -> Box<dyn Source> {
        Box::new(Told { script: script.into_iter() })
    }

    fn ledgers(sequences: &[u32]) -> Box<dyn Source> {
        let ledger = |&sequence| [Ok(Poll::Begin { sequence, bytes: Some(10) }), Ok(Poll::Bytes(10)), Ok(Poll::End)];
        Told::saying(sequences.iter().flat_map(ledger).collect())
    }
}

impl Source for Told {
    fn description(&self) -> String {
        "told".into()
    }

    fn start(&mut self, _now: i64) -> Result<Vec<RawFd>, SourceError> {
        Ok(Vec::new())
    }

    fn poll(&mut self, room: &mut [u8], _now: i64) -> Result<Poll, SourceError> {
        let room_bytes = room.len().min(10);
        room[..room_bytes].fill(7);
        self.script.next().unwrap_or(Ok(Poll::Finished)).map_err(|what| SourceError(what.into()))
    }
}

/// A source that always has as much as is taken: whoever emits into it waits.
struct Brimful {
    begun: bool,
    left_bytes: usize,
    ended: bool,
    capacity_bytes: Option<usize>,
}

impl Source for Brimful {
    fn description(&self) -> String {
        "brimful".into()
    }

    fn start(&mut self, _now: i64) -> Result<Vec<RawFd>, SourceError> {
        Ok(Vec::new())
    }

    fn poll(&mut self, room: &mut [u8], _now: i64) -> Result<Poll, SourceError> {
        if !std::mem::replace(&mut self.begun, true) {
            return Ok(Poll::Begin { sequence: 3, bytes: Some(self.left_bytes as u64) });
        }
        let bytes = room.len().min(self.left_bytes);
        if bytes == 0 {
            return Ok(if std::mem::replace(&mut self.ended, true) { Poll::Finished } else { Poll::End });
        }
        room[..bytes].fill(7);
        self.left_bytes -= bytes;
        Ok(Poll::Bytes(bytes))
    }

    fn capacity(&self) -> Option<usize> {
        self.capacity_bytes
    }
}

#[test]
fn a_full_pipe_is_read_before_anything_is_packed() {
    for policy in [Policy::Always, Policy::Auto] {
        let setup = Setup { policy, ..Setup::default() };
        let raw = |capacity_bytes| {
            let source = Brimful { begun: false, left_bytes: 8 << 20, ended: false, capacity_bytes };
            let (ledgers, outcome, _) = Running::start(Box::new(source), &setup).all();
            assert_eq!((ledgers.len(), outcome), (1, Outcome::Ended));
            let chunks = &ledgers[0].chunks;
            let raw: Vec<usize> = (0..chunks.len()).filter(|&at| chunks[at].1 == Codec::Raw).collect();
            (raw.first().copied(), raw.len(), ledgers[0].fallbacks)
        };
        // Turns of 1 MiB are four chunks: full in the first two, as it is from the third on.
        let (first, count, fallbacks) = raw(Some(64 << 10));
        assert_eq!((first, count), (Some(8), fallbacks), "{policy:?}");
        assert!(fallbacks >= 24, "{policy:?}: {fallbacks}");
        assert_eq!(raw(None), (None, 0, 0), "{policy:?}: nobody waits for a player");
    }
}

#[test]
fn a_source_that_rewinds_skips_or_repeats_ends_the_run_and_says_so() {
    let setup = Setup { policy: Policy::Never, encoders: 0, ..Setup::default() };
    let run = |source, setup: &Setup| {
        let (ledgers, outcome, reason) = Running::start(source, setup).all();
        (ledgers.iter().map(|played| played.begin.sequence).collect::<Vec<_>>(), outcome, reason)
    };
    assert_eq!(run(Told::ledgers(&[7, 8, 9]), &setup), (vec![7, 8, 9], Outcome::Ended, None));
    for (sequences, text) in [
        ([7, 6], "gave ledger 6 after 7"),
        ([7, 9], "gave ledger 9 after 7"),
        ([7, 7], "gave ledger 7 after 7"),
        ([7, 0], "gave ledger 0"),
    ] {
        let (seen, outcome, reason) = run(Told::ledgers(&sequences), &setup);
        let reason = reason.expect("a reason");
        assert_eq!((seen, outcome), (vec![7], Outcome::Failed), "{reason}");
        assert!(reason.contains(text) && reason.contains("renumber"), "{reason}");
    }
    let renumbered = Setup { renumber: Some(100), ..setup };
    assert_eq!(run(Told::ledgers(&[7, 7, 3, 900]), &renumbered), (vec![100, 101, 102, 103], Outcome::Ended, None));
    let last = Setup { renumber: Some(u32::MAX - 2), ..renumbered };
    let (seen, outcome, _) = run(Told::ledgers(&[1, 2, 3]), &last);
    assert_eq!((seen, outcome), (vec![u32::MAX - 2, u32::MAX - 1], Outcome::Ended), "no sequence is left");
}

#[test]
fn a_sources_failure_is_told_from_its_end() {
    let setup = Setup { policy: Policy::Never, encoders: 0, ..Setup::default() };
    let begin = |bytes| Ok(Poll::Begin { sequence: 3, bytes });
    for (script, text) in [
        (vec![begin(None), Ok(Poll::Bytes(10)), Err("the disk is gone")], "the disk is gone"),
        (vec![begin(Some(20)), Ok(Poll::Bytes(10)), Ok(Poll::End)], "10 bytes came, 20 were declared"),
        (vec![begin(Some(5)), Ok(Poll::Bytes(10))], "10 bytes came, 5 were declared"),
        (vec![begin(Some(300 << 20))], "ledger 3 has 314572800 bytes or more"),
    ] {
        let (ledgers, outcome, reason) = Running::start(Told::saying(script), &setup).all();
        let reason = reason.expect("a reason");
        assert_eq!((ledgers.len(), outcome), (0, Outcome::Failed), "{reason}");
        assert!(reason.contains(text), "{reason}");
    }
}

fn piped(command: &str) -> Box<dyn Source> {
    pipe::open(&PipeSettings { command: command.into(), pipe_bytes: 1 << 20, passphrase: None, cpus: Vec::new() })
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display())
}

/// The beginning of a LedgerCloseMeta of version 0 as far as its sequence, and so many bytes behind it.
fn meta(sequence: u32, more: usize) -> Vec<u8> {
    let mut bytes = vec![0; 4 + 32 + 4 + 32 + 32 + 8 + 4 + 4 + 64];
    bytes.extend(sequence.to_be_bytes());
    bytes.extend((0..more).map(|index| (index * 31 + sequence as usize) as u8));
    bytes
}

fn framed(metas: &[Vec<u8>]) -> Vec<u8> {
    metas.iter().flat_map(|meta| [&mark(meta.len())[..], meta].concat()).collect()
}

fn file_of(directory: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, bytes).expect("written");
    path
}

fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with(['Z', 'X']))
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The number that a command has written into a file.
fn written_pid(path: &Path) -> u32 {
    let mut pid = None;
    wait_until("a process writes its number", || {
        pid = std::fs::read_to_string(path).ok().and_then(|text| text.strip_suffix('\n')?.parse().ok());
        pid.is_some()
    });
    pid.expect("found")
}

#[test]
fn a_commands_ledgers_come_as_they_were_written_and_its_exit_is_judged() {
    let directory = tempfile::tempdir().expect("a directory");
    let metas = [meta(70, 0), meta(71, 3_000_000), meta(72, 5_000), meta(73, 60)];
    let stream = framed(&metas);
    let path = file_of(directory.path(), "stream", &stream);
    let (whole, setup) = (quoted(&path), Setup::default());
    for (command, outcome, text) in [
        (format!("cat {whole} >&3"), Outcome::Ended, None),
        (format!("cat {whole} >&3; exit 7"), Outcome::Failed, Some("ended with exit code 7")),
        (format!("cat {whole} >&3; kill -s KILL $$"), Outcome::Failed, Some("was ended by signal 9")),
        (format!("cat {whole} >&3; exec 3>&-; sleep 0.2"), Outcome::Ended, None),
        // One byte at a time would be 3 million reads; mark, header and body are cut anywhere.
        (format!("dd if={whole} bs=7001 2>/dev/null >&3"), Outcome::Ended, None),
        // A process of the group goes on after the first one's exit.
        (format!("(sleep 0.2; cat {whole} >&3) & exit 0"), Outcome::Ended, None),
    ] {
        let (ledgers, ended, reason) = Running::start(piped(&command), &setup).all();
        let sequences: Vec<u32> = ledgers.iter().map(|played| played.begin.sequence).collect();
        assert_eq!((&sequences[..], ended), (&[70, 71, 72, 73][..], outcome), "{command}: {reason:?}");
        assert!(ledgers.iter().zip(&metas).all(|(played, meta)| played.bytes == *meta), "{command}");
        assert!(text.is_none_or(|text| reason.as_deref().is_some_and(|reason| reason.contains(text))), "{reason:?}");
    }
    for (bytes, text) in [
        (&stream[..stream.len() - 1], "unexpected EOF"),
        (&stream[..2], "unexpected EOF"),
        (&b"GET / HTTP/1.1"[..], "lacks its top bit"),
        (&[0x80, 0, 0, 40, 9, 9, 9, 9][..], "version 151587081 is unknown"),
    ] {
        let path = file_of(directory.path(), "damaged", bytes);
        let (ledgers, ended, reason) = Running::start(piped(&format!("cat {} >&3", quoted(&path))), &setup).all();
        let reason = reason.expect("a reason");
        assert_eq!((ledgers.len(), ended), (if bytes.len() > 100 { 3 } else { 0 }, Outcome::Failed), "{reason}");
        assert!(reason.contains(text), "{reason}");
    }
    let (_, ended, reason) = Running::start(piped("no-such-command-anywhere"), &setup).all();
    assert!(ended == Outcome::Failed && reason.as_deref().is_some_and(|reason| reason.contains("exit code 127")));
}

#[test]
fn chunks_leave_while_the_command_still_writes_its_ledger() {
    let directory = tempfile::tempdir().expect("a directory");
    let stream = framed(&[meta(9, 600_000)]);
    let (first, rest) = stream.split_at(400_000);
    let (first, rest) = (file_of(directory.path(), "first", first), file_of(directory.path(), "rest", rest));
    let go = directory.path().join("go");
    let command = format!(
        "cat {} >&3; while [ ! -e {} ]; do sleep 0.02; done; cat {} >&3",
        quoted(&first),
        quoted(&go),
        quoted(&rest)
    );
    let running = Running::start(piped(&command), &Setup::default());
    wait_until("the first chunk leaves", || running.counters.get(SourceCounter::Chunks) == 1);
    assert_eq!(running.counters.get(SourceCounter::Open), 1);
    std::fs::write(&go, b"").expect("written");
    let played = running.ledger();
    assert_eq!(played.begin.sequence, 9);
    assert!(played.bytes == meta(9, 600_000));
}

#[test]
fn a_stop_ends_the_whole_group_although_an_escaped_process_holds_the_pipe() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let stream = file_of(directory.path(), "stream", &framed(&[meta(5, 100)]));
    // One that left the group, one that ignores SIGTERM, and the shell.
    let command = format!(
        "setsid sh -c 'echo $$ > {escaped}; exec sleep 1000' & (trap '' TERM; sh -c 'echo $PPID' > {stubborn}; \
         while :; do sleep 1; done) & echo $$ > {shell}; cat {stream} >&3; wait",
        escaped = path("escaped").display(),
        stubborn = path("stubborn").display(),
        shell = path("shell").display(),
        stream = quoted(&stream),
    );
    let mut running = Running::start(piped(&command), &Setup::default());
    running.ledger();
    let [escaped, stubborn, shell] = ["escaped", "stubborn", "shell"].map(|name| written_pid(&path(name)));
    assert!([escaped, stubborn, shell].iter().all(|pid| is_running(*pid)));
    let asked = Instant::now();
    running.stop();
    assert!(asked.elapsed() < Duration::from_secs(15), "5 s until SIGKILL: {:?}", asked.elapsed());
    wait_until("the group's end", || !is_running(stubborn) && !is_running(shell));
    assert!(is_running(escaped), "who left the group is not ours");
    let ended = std::process::Command::new("kill").arg(escaped.to_string()).status();
    assert!(ended.is_ok_and(|status| status.success()), "the test leaves nobody behind");
}

#[test]
fn a_command_that_is_gone_is_not_waited_for_although_its_pipe_is_held_open() {
    let directory = tempfile::tempdir().expect("a directory");
    let escaped = directory.path().join("escaped");
    let stream = file_of(directory.path(), "stream", &framed(&[meta(5, 100)]));
    let command = format!(
        "setsid sh -c 'echo $$ > {}; exec sleep 1000' & cat {} >&3; while [ ! -s {} ]; do sleep 0.02; done; exit 3",
        escaped.display(),
        quoted(&stream),
        escaped.display()
    );
    let (ledgers, ended, reason) = Running::start(piped(&command), &Setup::default()).all();
    let killed = std::process::Command::new("kill").arg(written_pid(&escaped).to_string()).status();
    assert!(killed.is_ok_and(|status| status.success()));
    assert_eq!((ledgers.len(), ended), (1, Outcome::Failed));
    assert!(reason.as_deref().is_some_and(|reason| reason.contains("exit code 3")), "{reason:?}");
}

/// A stand-in for stellar-core: tells of its calls, and writes ledgers 98 to 103 when it is run.
fn core_stub(directory: &Path, info: &str, run: &str) -> CaptiveSettings {
    let log = directory.join("calls");
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {log}\ncase $1 in\noffline-info) {info};;\nrun) pwd >> {log}; {run};;\nesac\n",
        log = quoted(&log)
    );
    let binary = file_of(directory, "stub-core", script.as_bytes());
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o755)).expect("executable");
    let config = file_of(directory, "core.cfg", b"NETWORK_PASSPHRASE = \"Made Up\"\n");
    CaptiveSettings {
        binary: Some(binary),
        config: Some(config),
        archives: vec!["https://history.example.org/a".into()],
        storage: directory.join("storage"),
        start: 100,
        passphrase: None,
        pipe_bytes: 1 << 20,
        cpus: Vec::new(),
    }
}

#[test]
fn a_captive_core_is_brought_to_its_first_ledger_and_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let metas: Vec<Vec<u8>> = (98..104).map(|sequence| meta(sequence, 400_000)).collect();
    let stream = file_of(directory.path(), "stream", &framed(&metas));
    let run = format!("cat {} >&3", quoted(&stream));
    let settings = core_stub(directory.path(), "exit 1", &run);
    let calls = || std::fs::read_to_string(directory.path().join("calls")).expect("it was called");
    let (ledgers, ended, reason) = Running::start(captive::open(&settings).expect("complete"), &Setup::default()).all();
    assert_eq!((ended, reason), (Outcome::Ended, None));
    let sequences: Vec<u32> = ledgers.iter().map(|played| played.begin.sequence).collect();
    assert_eq!(sequences, [100, 101, 102, 103], "what comes before the start is passed over");
    assert!(ledgers.iter().zip(&metas[2..]).all(|(played, meta)| played.bytes == *meta));
    let storage = settings.storage.canonicalize().expect("made");
    let conf = format!("--conf {}", storage.join("captive-core.cfg").display());
    let expected = [
        format!("offline-info {conf}"),
        format!("new-db {conf} --console"),
        format!("catchup 99/0 {conf} --console"),
        format!("run {conf} --console --metadata-output-stream fd:3"),
        storage.display().to_string(),
    ];
    assert_eq!(calls().lines().collect::<Vec<_>>(), expected);

    // A database that reaches to before the start is gone on with; one that is beyond it is not.
    for (num, calls_made) in [(99, 3), (97, 3), (100, 5), (1, 5)] {
        std::fs::remove_file(directory.path().join("calls")).expect("there");
        let info = format!("echo '{{\"info\": {{ \"ledger\" : {{ \"num\" : {num}, \"hash\" : \"x\" }} }} }}'");
        let info = info.replace(" : {", " : {\n");
        let settings = core_stub(directory.path(), &info, &run);
        let (ledgers, ..) = Running::start(captive::open(&settings).expect("complete"), &Setup::default()).all();
        assert_eq!((ledgers.len(), calls().lines().count()), (4, calls_made), "at {num}: {}", calls());
    }
}

#[test]
fn a_captive_core_that_fails_or_begins_too_late_fails_the_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let stream = file_of(directory.path(), "stream", &framed(&[meta(101, 10)]));
    for (info, run, text) in [
        ("exit 1", format!("cat {} >&3", quoted(&stream)), "began with ledger 101: start_ledger = 100 is past"),
        ("exit 1", "echo no such ledger >&2; exit 4".into(), "ended with exit code 4"),
    ] {
        let settings = core_stub(directory.path(), info, &run);
        let (ledgers, ended, reason) =
            Running::start(captive::open(&settings).expect("complete"), &Setup::default()).all();
        let reason = reason.expect("a reason");
        assert_eq!((ledgers.len(), ended), (0, Outcome::Failed), "{reason}");
        assert!(reason.contains(text) && reason.contains("stub-core"), "{reason}");
    }
}

fn played_file(path: &Path) -> FileSettings {
    FileSettings {
        path: path.into(),
        kept: None,
        first: None,
        count: 0,
        cycle: false,
        window_ns: 0,
        interval_ns: 0,
        passphrase: None,
    }
}

/// What a run of these sequences must bring: all, or those before the first that does not follow.
fn in_order(sequences: &[u32]) -> (usize, Outcome) {
    let mut order = Order::default();
    let dense = sequences.iter().take_while(|sequence| order.check(**sequence).is_ok()).count();
    (dense, if dense == sequences.len() { Outcome::Ended } else { Outcome::Failed })
}

#[test]
fn every_real_meta_comes_through_the_pipe_and_the_file_source_byte_for_byte() {
    let Some(data) = crate::common::data() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let setup = Setup { policy: Policy::Auto, encoders: 2, own_core: true, ..Setup::default() };
    let renumbered = Setup { renumber: Some(1000), ..Setup { policy: Policy::Always, ..Setup::default() } };
    let (mut files, mut skipping) = (0, 0);
    for (path, _) in crate::ledger::manifest(&data) {
        let metas = crate::ledger::metas(&path);
        let sequences: Vec<u32> = metas.iter().map(|(sequence, _)| *sequence).collect();
        let bodies: Vec<Vec<u8>> = metas.into_iter().map(|(_, meta)| meta).collect();
        let stream = file_of(directory.path(), "stream.xdr", &framed(&bodies));
        let sources = || {
            [
                piped(&format!("cat {} >&3", quoted(&stream))),
                file::open(&played_file(&stream), renumbered.layout()).expect("opens"),
            ]
        };
        for source in sources() {
            let (ledgers, ended, reason) = Running::start(source, &renumbered).all();
            assert_eq!((ledgers.len(), ended), (bodies.len(), Outcome::Ended), "{}: {reason:?}", path.display());
            for (index, (played, body)) in ledgers.iter().zip(&bodies).enumerate() {
                assert_eq!(played.begin.sequence, 1000 + index as u32);
                assert!(played.bytes == *body, "{}: ledger {index}", path.display());
            }
        }
        let (dense, outcome) = in_order(&sequences);
        skipping += usize::from(outcome == Outcome::Failed);
        for source in sources() {
            let (ledgers, ended, reason) = Running::start(source, &setup).all();
            let seen: Vec<u32> = ledgers.iter().map(|played| played.begin.sequence).collect();
            assert_eq!((&seen[..], ended), (&sequences[..dense], outcome), "{}: {reason:?}", path.display());
            assert!(ledgers.iter().zip(&bodies).all(|(played, body)| played.bytes == *body), "{}", path.display());
        }
        files += 1;
    }
    assert!(files >= 35 && skipping > 0, "{files} files, of which {skipping} skip");
}

#[test]
fn a_dump_and_a_retention_directory_are_played_again_and_again_under_new_numbers() {
    let directory = tempfile::tempdir().expect("a directory");
    let dump = directory.path().join("dump");
    let writer = DumpWriter::open(&dump).expect("made");
    let settings = ArchiveSettings {
        directory: directory.path().join("kept"),
        keeper: Default::default(),
        source: "test".into(),
        network: [0; 8],
        start: 41,
        reset: false,
    };
    let (mut recorder, _) = Recorder::open(&settings).expect("opens");
    let ledgers: Vec<Vec<u8>> = (41..44).map(|sequence| made_up(sequence, 700_000, Shape::Compressible)).collect();
    for (sequence, ledger) in (41..).zip(&ledgers) {
        writer.put(sequence, ledger).expect("written");
        recorder.put(sequence, ledger).expect("recorded");
    }
    recorder.finish().expect("durable");
    for path in [&dump, &settings.directory] {
        let cycle = FileSettings { cycle: true, count: 8, ..played_file(path) };
        let setup = Setup { renumber: Some(1), ..Setup::default() };
        let (seen, ended, reason) = Running::start(file::open(&cycle, setup.layout()).expect("opens"), &setup).all();
        assert_eq!((seen.len(), ended), (8, Outcome::Ended), "{reason:?}");
        for (index, played) in seen.iter().enumerate() {
            assert_eq!(played.begin.sequence, 1 + index as u32);
            assert!(played.bytes == ledgers[index % 3], "{}: ledger {index}", path.display());
        }
        let own = FileSettings { first: Some(42), ..played_file(path) };
        let (seen, ..) =
            Running::start(file::open(&own, Setup::default().layout()).expect("opens"), &Setup::default()).all();
        assert_eq!(seen.iter().map(|played| played.begin.sequence).collect::<Vec<_>>(), [42, 43]);
        // A cycle that is not renumbered repeats its sequences: the contract is broken, and the run says so.
        let (seen, ended, _) =
            Running::start(file::open(&cycle, Setup::default().layout()).expect("opens"), &Setup::default()).all();
        assert_eq!((seen.len(), ended), (3, Outcome::Failed));
    }
}
