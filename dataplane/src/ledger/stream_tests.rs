//! Server and client machines against each other, and each against bytes made by hand.

use std::collections::HashMap;
use std::sync::Arc;

use super::assemble::{AssemblyError, Gap, Limits, StreamError};
use super::chunker::{Chunker, Cut};
use super::client::{Advanced, Backoff, Client, ClientError, Polled, Truncated};
use super::compress::Packer;
use super::hub::{Hub, Kept, Outcome, Stored};
use super::message::Encoded;
use super::query::Range;
use super::session::{CLOSE_NS_MAX, CONTROLS_PER_SECOND_MAX, Connection, REQUEST_NS_MAX, Server, Step, WRITE_NS_MAX};
use super::synthetic::{self, Shape};
use super::url::Url;
use crate::wire::http;
use crate::wire::ledger::{Begin, SEQUENCE_MAX};
use crate::wire::websocket::{self, ControlKind, Event, FrameError, FrameReader, Sender};

const RUN: &str = "00112233-4455-6677-8899-aabbccddeeff";
const MS: i64 = 1_000_000;

fn range(start: u32, end: u32) -> Range {
    Range::new(start, (end != 0).then_some(end)).expect("a range")
}

/// A server's inside: a hub, what publishes to it, and a store that writes when told.
struct World {
    hub: Hub,
    chunker: Chunker,
    packer: Packer,
    bytes: usize,
    store: HashMap<u32, Vec<Arc<Encoded>>>,
    run: String,
    now: i64,
}

impl World {
    fn new() -> World {
        World {
            hub: Hub::default(),
            chunker: Chunker::new(Cut::new(4096, None).expect("a cut")),
            packer: Packer::new(1).expect("zstd"),
            bytes: 20_000,
            store: HashMap::new(),
            run: RUN.into(),
            now: 0,
        }
    }

    fn ledger_bytes(&self, sequence: u32) -> Vec<u8> {
        let shape = if sequence.is_multiple_of(2) { Shape::Noise } else { Shape::Compressible };
        let mut bytes = vec![0; self.bytes + sequence as usize % 7];
        synthetic::write(sequence, shape, &mut bytes);
        bytes
    }

    /// Publishes the beginning of a ledger and its first `chunks` chunks; the rest of its bytes.
    fn open(&mut self, sequence: u32, chunks: usize) -> Vec<u8> {
        let bytes = self.ledger_bytes(sequence);
        self.chunker.begin(sequence, None).expect("begins");
        self.hub.begin(&Begin { sequence, emit_start_ns: 100 + i64::from(sequence) });
        let mut input = &bytes[..];
        for _ in 0..chunks {
            self.publish(&mut input);
        }
        input.to_vec()
    }

    fn publish(&mut self, input: &mut &[u8]) {
        if let Some(chunk) = self.chunker.push(input).expect("fits") {
            self.hub.chunk(self.packer.pack(chunk, self.chunker.spare()));
        }
    }

    /// Publishes the rest of a ledger and its end.
    fn complete(&mut self, rest: &[u8]) {
        let mut input = rest;
        while !input.is_empty() {
            self.publish(&mut input);
        }
        let (last, end) = self.chunker.finish(200 + i64::from(self.now == 0)).expect("whole");
        if let Some(chunk) = last {
            self.hub.chunk(chunk.into_message());
        }
        let replay = self.hub.end(&end);
        self.store.insert(end.sequence, replay.to_vec());
    }

    fn ledger(&mut self, sequence: u32) {
        let rest = self.open(sequence, 0);
        self.complete(&rest);
    }

    /// All that is in memory is written.
    fn write(&mut self) {
        let (oldest, latest) = self.hub.bounds();
        for sequence in oldest..=latest {
            if let Some(Kept::Memory(replay)) = self.hub.kept(sequence) {
                let (frames, wire_bytes) = (replay.len() as u32, super::hub::wire_bytes(replay));
                self.hub.stored(Stored { sequence, frames, wire_bytes, segment: 1, offset: 0 });
            }
        }
    }
}

/// A subscriber: its client machine, and the connection that serves it.
struct Subscriber {
    client: Client,
    connection: Connection,
    url: Url,
    connected: bool,
    /// (sequence, bytes, live, discarded partials).
    got: Vec<(u32, Vec<u8>, bool, u32)>,
    ended: Option<Result<(), ClientError>>,
}

impl Subscriber {
    fn new(range: Range) -> Subscriber {
        let mut subscriber = Subscriber {
            client: Client::new(range, Limits::default()).expect("zstd"),
            connection: Connection::new(0),
            url: Url::parse("ws://h:8462").expect("a URL"),
            connected: false,
            got: Vec::new(),
            ended: None,
        };
        subscriber.reconnect(0);
        subscriber
    }

    fn reconnect(&mut self, now: i64) {
        self.client.connect(&self.url, None, [7; 24]);
        (self.connection, self.connected, self.ended) = (Connection::new(now), true, None);
    }

    /// Moves bytes both ways until nothing moves; the server sends at most `most` messages.
    fn pump_some(&mut self, world: &mut World, most: usize) {
        let mut sent = 0;
        while self.connected && self.ended.is_none() {
            let out = self.client.output().to_vec();
            self.client.sent(out.len());
            let server = Server { run: &world.run, subscribers: 1 };
            self.connection.on_bytes(&out, &world.hub, server, world.now);
            if sent == most {
                break;
            }
            let bytes = match self.connection.poll(&mut world.hub, world.now) {
                Step::Wait if out.is_empty() => break,
                Step::Wait => continue,
                Step::End => {
                    self.connected = false;
                    break;
                }
                Step::Bytes(bytes) => bytes,
                Step::Message(message) => {
                    sent += 1;
                    message.frame().to_vec()
                }
                Step::Stored(stored, frame) => {
                    sent += 1;
                    self.connection.took(1, world.now);
                    world.store[&stored.sequence][frame as usize].frame().to_vec()
                }
            };
            self.connection.progress(true, world.now);
            self.client.feed(&bytes);
            self.read();
        }
        if !self.connected && self.ended.is_none() {
            self.ended = Some(self.client.disconnected());
        }
    }

    fn read(&mut self) {
        loop {
            match self.client.poll() {
                Ok(Polled::Ledger(ledger)) => {
                    let live = ledger.is_live();
                    assert!(live || (ledger.emit_start_ns, ledger.emit_end_ns) == (0, 0), "both stamps or none");
                    self.got.push((ledger.sequence, ledger.bytes.to_vec(), live, ledger.discarded_partials));
                }
                Ok(Polled::Wait) => return,
                Ok(Polled::Done) => {
                    self.ended = Some(Ok(()));
                    return;
                }
                Err(error) => {
                    self.ended = Some(Err(error));
                    return;
                }
            }
        }
    }

    fn pump(&mut self, world: &mut World) {
        self.pump_some(world, usize::MAX);
    }

    fn sequences(&self) -> Vec<u32> {
        self.got.iter().map(|got| got.0).collect()
    }

    fn assert_bytes(&self, world: &World) {
        assert!(self.got.iter().all(|(sequence, bytes, ..)| *bytes == world.ledger_bytes(*sequence)));
    }

    fn error(&self) -> &ClientError {
        match &self.ended {
            Some(Err(error)) => error,
            other => panic!("no error: {other:?}"),
        }
    }
}

#[test]
fn a_bounded_range_is_replayed_from_memory_and_store() {
    let mut world = World::new();
    (5..=9).for_each(|sequence| world.ledger(sequence));
    world.write();
    (10..=12).for_each(|sequence| world.ledger(sequence));
    let mut subscriber = Subscriber::new(range(6, 11));
    subscriber.pump(&mut world);
    assert_eq!(subscriber.sequences(), (6..=11).collect::<Vec<_>>());
    assert_eq!(subscriber.ended, Some(Ok(())));
    subscriber.assert_bytes(&world);
    assert!(subscriber.got.iter().all(|got| !got.2), "a replay has no stamps");
}

#[test]
fn a_replay_joins_the_flow_without_a_gap_or_a_duplicate() {
    let mut world = World::new();
    (1..=3).for_each(|sequence| world.ledger(sequence));
    world.write();
    let rest = world.open(4, 2);
    let mut subscriber = Subscriber::new(range(2, 0));
    subscriber.pump(&mut world);
    assert_eq!(subscriber.sequences(), [2, 3]);
    world.complete(&rest);
    subscriber.pump(&mut world);
    for sequence in 5..=8 {
        let rest = world.open(sequence, 3);
        subscriber.pump(&mut world);
        world.complete(&rest);
        subscriber.pump(&mut world);
    }
    assert_eq!(subscriber.sequences(), (2..=8).collect::<Vec<_>>());
    let live: Vec<bool> = subscriber.got.iter().map(|got| got.2).collect();
    assert_eq!(live, [false, false, true, true, true, true, true]);
    subscriber.assert_bytes(&world);
}

#[test]
fn the_tip_joins_the_ledger_in_flight_from_its_first_chunk() {
    let mut world = World::new();
    let mut early = Subscriber::new(Range::TIP);
    early.pump(&mut world);
    let rest = world.open(7, 1);
    early.pump(&mut world);
    world.complete(&rest);
    let rest = world.open(8, 3);
    let mut inside = Subscriber::new(Range::TIP);
    inside.pump(&mut world);
    world.complete(&rest);
    inside.pump(&mut world);
    let mut between = Subscriber::new(Range::TIP);
    between.pump(&mut world);
    world.ledger(9);
    for (subscriber, expected, live) in [(&mut inside, vec![8, 9], true), (&mut between, vec![9], false)] {
        subscriber.pump(&mut world);
        assert_eq!(subscriber.sequences(), expected);
        assert_eq!(subscriber.got[0].2, live, "who comes after a ledger is complete gets it without stamps");
    }
    early.pump(&mut world);
    assert_eq!(early.sequences().first(), Some(&7), "anchored by the first emission");
}

#[test]
fn a_future_start_waits_and_a_stale_one_is_told() {
    let mut world = World::new();
    (8..=10).for_each(|sequence| world.ledger(sequence));
    let mut future = Subscriber::new(range(12, 12));
    future.pump(&mut world);
    assert!(future.got.is_empty() && future.ended.is_none());
    assert_eq!(future.connection.waits_for(), Some(12));
    let mut stale = Subscriber::new(range(3, 0));
    stale.pump(&mut world);
    assert_eq!(stale.error(), &ClientError::TooFarBehind { requested: 3, bounds: Some((8, 10)) });
    assert!(stale.got.is_empty());
    (11..=13).for_each(|sequence| world.ledger(sequence));
    future.pump(&mut world);
    assert_eq!((future.sequences(), &future.ended), (vec![12], &Some(Ok(()))));
}

#[test]
fn a_ledger_pruned_under_a_replay_is_told_after_what_was_sent() {
    let mut world = World::new();
    (1..=10).for_each(|sequence| world.ledger(sequence));
    world.write();
    let mut subscriber = Subscriber::new(range(2, 0));
    let frames = world.store[&2].len() + 2;
    subscriber.pump_some(&mut world, frames);
    world.hub.prune(8);
    subscriber.pump(&mut world);
    assert_eq!(subscriber.sequences(), [2, 3], "what was begun is finished");
    assert_eq!(subscriber.error(), &ClientError::TooFarBehind { requested: 4, bounds: Some((8, 10)) });
}

#[test]
fn a_replay_from_memory_goes_on_from_the_store_and_holds_no_ledger() {
    let mut world = World::new();
    (1..=3).for_each(|sequence| world.ledger(sequence));
    let chunk = match world.hub.kept(2) {
        Some(Kept::Memory(replay)) => Arc::downgrade(&replay[1]),
        other => panic!("not in memory: {other:?}"),
    };
    let (mut first, mut stalled) = (Subscriber::new(range(2, 3)), Subscriber::new(range(2, 3)));
    first.pump_some(&mut world, 3);
    stalled.pump_some(&mut world, 1);
    world.write();
    // The test's own store and nobody else.
    assert_eq!(chunk.strong_count(), 1, "a subscriber that stalls keeps nothing in memory");
    first.pump(&mut world);
    stalled.pump(&mut world);
    for subscriber in [&first, &stalled] {
        assert_eq!((subscriber.sequences(), &subscriber.ended), (vec![2, 3], &Some(Ok(()))));
        assert_eq!(subscriber.got[0].3, 0, "in one piece");
        subscriber.assert_bytes(&world);
    }
}

#[test]
fn a_ledger_that_leaves_memory_unwritten_under_a_replay_is_told() {
    let mut world = World::new();
    (1..=4).for_each(|sequence| world.ledger(sequence));
    let mut subscriber = Subscriber::new(range(1, 0));
    let frames = world.store[&1].len() + 2;
    subscriber.pump_some(&mut world, frames);
    world.hub.prune(4);
    subscriber.pump(&mut world);
    assert_eq!(subscriber.sequences(), [1]);
    assert_eq!(subscriber.error(), &ClientError::TooFarBehind { requested: 2, bounds: Some((4, 4)) });
}

#[test]
fn a_shorter_ledger_of_the_same_number_is_not_taken_for_the_one_at_hand() {
    for written in [false, true] {
        let mut world = World::new();
        world.ledger(1);
        let mut subscriber = Subscriber::new(range(1, 0));
        let frames = world.store[&1].len();
        subscriber.pump_some(&mut world, frames - 1);
        world.hub.prune(2);
        world.bytes = 100;
        world.ledger(1);
        if written {
            world.write();
        }
        subscriber.pump(&mut world);
        assert!(subscriber.got.is_empty());
        assert_eq!(subscriber.error(), &ClientError::TooFarBehind { requested: 1, bounds: Some((1, 1)) });
    }
}

#[test]
fn a_stalled_subscriber_gets_its_ledger_again_and_catches_up() {
    let mut world = World::new();
    world.ledger(1);
    let rest = world.open(2, 3);
    let (mut slow, mut fast) = (Subscriber::new(Range::TIP), Subscriber::new(Range::TIP));
    slow.pump_some(&mut world, 2);
    fast.pump(&mut world);
    world.complete(&rest);
    fast.pump(&mut world);
    (3..=5).for_each(|sequence| world.ledger(sequence));
    world.write();
    slow.pump(&mut world);
    fast.pump(&mut world);
    assert_eq!(slow.sequences(), [2, 3, 4, 5]);
    assert_eq!((slow.got[0].2, slow.got[0].3), (false, 1), "sent again without stamps, one partial dropped");
    assert_eq!(world.hub.counters().live_abandons, 1);
    assert_eq!((fast.sequences(), fast.got[0].2, fast.got[0].3), (vec![2, 3, 4, 5], true, 0), "others are not hurt");
    slow.assert_bytes(&world);
}

#[test]
fn who_misses_only_the_end_gets_it_with_its_stamps() {
    let mut world = World::new();
    let rest = world.open(2, 0);
    let mut subscriber = Subscriber::new(Range::TIP);
    let chunks = world.ledger_bytes(2).len().div_ceil(4096);
    subscriber.pump(&mut world);
    world.complete(&rest);
    subscriber.pump_some(&mut world, chunks);
    world.open(3, 1);
    subscriber.pump(&mut world);
    assert_eq!((subscriber.sequences(), subscriber.got[0].2, subscriber.got[0].3), (vec![2], true, 0));
    assert_eq!(world.hub.counters().live_abandons, 0);
}

#[test]
fn an_end_of_the_source_is_told_by_what_was_asked_for() {
    let ended = |range, outcome| {
        let mut world = World::new();
        (3..=4).for_each(|sequence| world.ledger(sequence));
        world.hub.finish(outcome);
        let mut subscriber = Subscriber::new(range);
        subscriber.pump(&mut world);
        (subscriber.sequences(), subscriber.ended.expect("ended"))
    };
    let truncated = |truncated| Err(ClientError::Truncated(truncated));
    assert_eq!(ended(range(3, 0), Outcome::Ended), (vec![3, 4], Ok(())), "without an end: clean");
    assert_eq!(ended(range(3, 4), Outcome::Ended), (vec![3, 4], Ok(())));
    assert_eq!(ended(range(3, 9), Outcome::Ended), (vec![3, 4], truncated(Truncated::Short { last: 4, end: 9 })));
    assert_eq!(ended(range(5, 9), Outcome::Ended), (vec![], truncated(Truncated::Nothing { start: 5, end: 9 })));
    assert_eq!(ended(range(0, 2), Outcome::Ended), (vec![], Ok(())), "a tip that is past its end");
    assert_eq!(ended(Range::TIP, Outcome::Ended), (vec![], Ok(())));
    let failed = ClientError::Closed { code: Some(1011), reason: "source failed".into() };
    assert_eq!(ended(range(3, 9), Outcome::Failed), (vec![3, 4], Err(failed)));
}

#[test]
fn a_source_that_fails_inside_a_ledger_closes_at_once() {
    let mut world = World::new();
    world.open(3, 2);
    let mut subscriber = Subscriber::new(Range::TIP);
    subscriber.pump(&mut world);
    world.hub.finish(Outcome::Failed);
    subscriber.pump(&mut world);
    assert_eq!(subscriber.error(), &ClientError::Closed { code: Some(1011), reason: "source failed".into() });
}

#[test]
fn the_last_sequence_ends_a_stream_and_nothing_wraps() {
    let mut world = World::new();
    (SEQUENCE_MAX - 1..=SEQUENCE_MAX).for_each(|sequence| world.ledger(sequence));
    world.write();
    world.hub.finish(Outcome::Ended);
    let mut subscriber = Subscriber::new(range(SEQUENCE_MAX - 1, 0));
    subscriber.pump(&mut world);
    assert_eq!(subscriber.sequences(), [SEQUENCE_MAX - 1, SEQUENCE_MAX]);
    assert_eq!(subscriber.ended, Some(Ok(())));
}

#[test]
fn a_drain_lets_who_keeps_up_finish_and_others_go_between_ledgers() {
    let draining = ClientError::Closed { code: Some(1012), reason: "server draining".into() };
    let mut world = World::new();
    (1..=5).for_each(|sequence| world.ledger(sequence));
    let rest = world.open(6, 2);
    let mut live = Subscriber::new(Range::TIP);
    let mut replaying = Subscriber::new(range(2, 0));
    let mut waiting = Subscriber::new(range(20, 0));
    live.pump(&mut world);
    waiting.pump(&mut world);
    replaying.pump_some(&mut world, 2);
    world.hub.drain();
    for subscriber in [&mut live, &mut replaying, &mut waiting] {
        subscriber.pump(&mut world);
    }
    assert_eq!((replaying.sequences(), replaying.error()), (vec![2], &draining));
    assert_eq!(waiting.error(), &draining);
    assert!(draining.is_retryable());
    assert_eq!(live.ended, None);
    world.complete(&rest);
    live.pump(&mut world);
    assert_eq!((live.sequences(), live.error()), (vec![6], &draining));
    // A drain is bounded: then even who is inside a ledger is let go.
    let mut world = World::new();
    world.open(1, 2);
    let mut inside = Subscriber::new(Range::TIP);
    inside.pump(&mut world);
    world.hub.cut();
    inside.pump(&mut world);
    assert_eq!(inside.error(), &draining);
}

#[test]
fn who_was_connected_before_a_reset_gets_no_ledger_of_another_run() {
    let mut world = World::new();
    (1..=10).for_each(|sequence| world.ledger(sequence));
    let stored: Vec<Stored> =
        (1..=10).map(|sequence| Stored { sequence, frames: 7, wire_bytes: 0, segment: 1, offset: 0 }).collect();
    world.hub = Hub::new(&stored);
    let mut subscriber = Subscriber::new(range(3, 0));
    let frames = world.store[&3].len();
    subscriber.pump_some(&mut world, frames);
    assert_eq!(subscriber.sequences(), [3]);
    world.run = "another".into();
    world.ledger(4);
    subscriber.pump(&mut world);
    assert_eq!(subscriber.error(), &ClientError::Closed { code: Some(1012), reason: "retention reset".into() });
    subscriber.reconnect(0);
    subscriber.pump(&mut world);
    assert_eq!(subscriber.sequences(), [3]);
    let changed = ClientError::RunChanged { before: Some(RUN.into()), now: Some("another".into()) };
    assert_eq!(subscriber.error(), &changed);
}

#[test]
fn a_cut_connection_is_resumed_after_the_last_verified_ledger() {
    let mut world = World::new();
    (1..=6).for_each(|sequence| world.ledger(sequence));
    let per_ledger = world.store[&1].len();
    for cut in 0..per_ledger * 6 {
        let mut subscriber = Subscriber::new(range(1, 6));
        subscriber.pump_some(&mut world, cut);
        assert_eq!(subscriber.ended, None, "{cut}");
        let inside = (cut % per_ledger != 0).then_some((cut / per_ledger) as u32 + 1);
        assert_eq!(subscriber.client.disconnected(), Err(ClientError::Disconnected { inside }), "{cut}");
        subscriber.reconnect(0);
        subscriber.pump(&mut world);
        assert_eq!(subscriber.sequences(), [1, 2, 3, 4, 5, 6], "{cut}");
        assert_eq!(subscriber.ended, Some(Ok(())));
        subscriber.assert_bytes(&world);
    }
}

#[test]
fn eight_subscribers_get_the_same_shared_messages() {
    let mut world = World::new();
    let mut subscribers: Vec<Subscriber> = (0..8).map(|_| Subscriber::new(Range::TIP)).collect();
    for sequence in 1..=5 {
        let rest = world.open(sequence, 2);
        subscribers.iter_mut().for_each(|subscriber| subscriber.pump(&mut world));
        world.complete(&rest);
        subscribers.iter_mut().for_each(|subscriber| subscriber.pump(&mut world));
    }
    for subscriber in &subscribers {
        assert_eq!(subscriber.sequences(), [1, 2, 3, 4, 5]);
        assert!(subscriber.got.iter().all(|got| got.2));
        subscriber.assert_bytes(&world);
    }
}

#[test]
fn a_ledger_of_twelve_mebibytes_makes_the_round() {
    let mut world = World::new();
    world.bytes = 12 << 20;
    world.chunker = Chunker::new(Cut::new(256 << 10, None).expect("a cut"));
    (1..=2).for_each(|sequence| world.ledger(sequence));
    let mut subscriber = Subscriber::new(range(1, 2));
    subscriber.pump(&mut world);
    assert_eq!(subscriber.sequences(), [1, 2]);
    subscriber.assert_bytes(&world);
}

// The server's side of HTTP and WebSocket.

/// What a server answers to these bytes, and whether it ends the connection then.
fn answer(world: &mut World, request: &str) -> (String, bool) {
    let mut connection = Connection::new(0);
    connection.on_bytes(request.as_bytes(), &world.hub, Server { run: RUN, subscribers: 3 }, 0);
    let mut answer = Vec::new();
    loop {
        match connection.poll(&mut world.hub, 0) {
            Step::Bytes(bytes) => answer.extend(bytes),
            Step::Wait => return (String::from_utf8(answer).expect("text"), false),
            Step::End => return (String::from_utf8(answer).expect("text"), true),
            step => panic!("{step:?}"),
        }
    }
}

fn upgrade(target: &str) -> String {
    String::from_utf8(http::upgrade_request("h", target, [1; 16], &[])).expect("text")
}

#[test]
fn http_is_answered_as_the_peer_answers_it() {
    let mut world = World::new();
    (8..=9).for_each(|sequence| world.ledger(sequence));
    let cases = [
        (upgrade("/stream?start=abc"), "HTTP/1.1 400 ", "invalid start parameter \"abc\"\n"),
        (upgrade("/stream?end=0"), "HTTP/1.1 400 ", "invalid end parameter: 0\n"),
        (upgrade("/stream?start=9&end=4"), "HTTP/1.1 400 ", "end 4 is before start 9\n"),
        ("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n".into(), "HTTP/1.1 426 ", "websocket\n"),
        ("GET /stream?end=0 HTTP/1.1\r\nHost: h\r\n\r\n".into(), "HTTP/1.1 400 ", "parameter: 0\n"),
        (upgrade("/other"), "HTTP/1.1 404 ", "not found\n"),
        (upgrade("/stream").replace("Host: h", "Host: h\r\nOrigin: http://evil"), "HTTP/1.1 403 ", "host\n"),
        ("\x16\x03\x01".into(), "HTTP/1.1 400 ", "\n"),
    ];
    for (request, status, end) in cases {
        let (answer, ended) = answer(&mut world, &request);
        assert!(answer.starts_with(status) && answer.ends_with(end) && ended, "{request}: {answer}");
    }
    for method in ["GET", "POST", "DELETE", "HEAD"] {
        let (answer, ended) = answer(&mut world, &format!("{method} /healthz HTTP/1.1\r\nHost: h\r\n\r\n"));
        let health = "{\"oldest\":8,\"latest\":9,\"subscribers\":3,\"live_abandons\":0,\"raw_fallbacks\":0,";
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("application/json") && ended);
        assert_eq!(answer.contains(health), method != "HEAD", "{answer}");
    }
    let (answer, ended) = answer(&mut world, &upgrade("/stream?start=99&token=x"));
    assert!(answer.starts_with("HTTP/1.1 101 ") && !ended);
    assert!(answer.contains(&format!("Sluice-Run: {RUN}\r\n")));
}

#[test]
fn a_request_that_trickles_is_parsed_line_by_line() {
    let mut world = World::new();
    let mut bytewise = Connection::new(0);
    let request = upgrade("/stream?start=9").replace("Host: h", &format!("Host: h\r\nX: {}", "x".repeat(10_000)));
    for byte in request.as_bytes().chunks(1) {
        assert!(!bytewise.is_subscriber());
        send(&mut bytewise, &world, byte);
    }
    assert!(bytewise.is_subscriber());
    // The first line, and one for each that ends: never one a byte.
    assert!(bytewise.looks() <= 2 + request.lines().count() as u32, "{}", bytewise.looks());
    let mut empty = Connection::new(0);
    for _ in 0..1_000 {
        send(&mut empty, &world, b"\r\n");
    }
    assert_eq!((empty.answered(), empty.looks() < 1_000), (Some(400), true), "lines without end");
    let mut endless = Connection::new(0);
    send(&mut endless, &world, b"GET /");
    for _ in 0..http::HEAD_BYTES_MAX {
        send(&mut endless, &world, b"x");
    }
    assert_eq!(endless.answered(), Some(431));
    let mut other = Connection::new(0);
    send(&mut other, &world, &[22, 3, 1, 2, 0]);
    assert_eq!(other.answered(), Some(400), "what is no HTTP is told at once");
    assert!(matches!(other.poll(&mut world.hub, 0), Step::Bytes(_)));
}

/// An upgraded connection, and a way to send frames to it.
fn upgraded(world: &mut World, target: &str) -> Connection {
    let mut connection = Connection::new(0);
    connection.on_bytes(upgrade(target).as_bytes(), &world.hub, Server { run: RUN, subscribers: 0 }, 0);
    assert!(matches!(connection.poll(&mut world.hub, 0), Step::Bytes(_)));
    connection.progress(true, 0);
    assert!(connection.is_subscriber());
    connection
}

fn send(connection: &mut Connection, world: &World, bytes: &[u8]) {
    send_at(connection, world, bytes, 0);
}

fn send_at(connection: &mut Connection, world: &World, bytes: &[u8], now: i64) {
    connection.on_bytes(bytes, &world.hub, Server { run: RUN, subscribers: 0 }, now);
}

fn control(kind: ControlKind, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    websocket::write_control(kind, payload, Some([1, 2, 3, 4]), &mut frame);
    frame
}

#[test]
fn pings_are_answered_and_a_close_is_echoed() {
    let mut world = World::new();
    let mut connection = upgraded(&mut world, "/stream?start=9");
    send(&mut connection, &world, &control(ControlKind::Ping, b"hi"));
    send(&mut connection, &world, &control(ControlKind::Ping, b"again"));
    send(&mut connection, &world, &control(ControlKind::Pong, b""));
    let Step::Bytes(pong) = connection.poll(&mut world.hub, 0) else { panic!("a pong") };
    assert_eq!(pong, [&[0x8a, 2][..], b"hi"].concat(), "one answer while one is unsent");
    assert!(matches!(connection.poll(&mut world.hub, 0), Step::Wait));
    let mut close = Vec::new();
    websocket::write_close(1000, "consumer done", Some([0; 4]), &mut close);
    send(&mut connection, &world, &close);
    let Step::Bytes(echo) = connection.poll(&mut world.hub, 0) else { panic!("an echo") };
    assert_eq!(echo, [0x88, 2, 3, 232]);
    assert!(matches!(connection.poll(&mut world.hub, 0), Step::End));
}

#[test]
fn a_subscriber_that_speaks_or_breaks_a_rule_is_cut_off() {
    let binary = |payload: &[u8]| {
        let mut frame = Vec::new();
        websocket::write_binary(payload, Some([1, 2, 3, 4]), &mut frame);
        frame
    };
    let mut unmasked = Vec::new();
    websocket::write_control(ControlKind::Ping, b"", None, &mut unmasked);
    let bad_close = control(ControlKind::Close, &[3, 232, 0xff]);
    for bytes in [binary(b"hello"), binary(&[0; 1025]), unmasked, bad_close, vec![0x81, 0x80, 0, 0, 0, 0]] {
        let mut world = World::new();
        world.ledger(9);
        let mut connection = upgraded(&mut world, "/stream?start=9");
        send(&mut connection, &world, &bytes);
        assert!(matches!(connection.poll(&mut world.hub, 0), Step::End), "{bytes:x?}");
    }
}

#[test]
fn who_floods_with_control_frames_is_cut_off() {
    for kind in [ControlKind::Ping, ControlKind::Pong] {
        let mut world = World::new();
        let mut connection = upgraded(&mut world, "/stream?start=9");
        let frame = control(kind, b"x");
        for second in 0..3 {
            for _ in 0..CONTROLS_PER_SECOND_MAX {
                send_at(&mut connection, &world, &frame, second * 1_000 * MS + 1);
            }
            assert!(connection.is_subscriber(), "as many a second as it may");
        }
        send_at(&mut connection, &world, &frame, 2_000 * MS + 2);
        assert!(connection.is_cut_off());
        assert!(matches!(connection.poll(&mut world.hub, 0), Step::End));
    }
}

#[test]
fn an_idle_subscriber_is_small_whatever_it_sends() {
    let mut world = World::new();
    let mut connection = Connection::new(0);
    let request = upgrade("/stream?start=9").replace("Host: h", &format!("Host: h\r\nX: {}", "x".repeat(15_000)));
    for part in request.as_bytes().chunks(1000) {
        send(&mut connection, &world, part);
    }
    assert!(matches!(connection.poll(&mut world.hub, 0), Step::Bytes(_)) && connection.is_subscriber());
    for second in 0..100 {
        send_at(&mut connection, &world, &control(ControlKind::Ping, &[7; 125]), second * 1_000 * MS);
        assert!(matches!(connection.poll(&mut world.hub, 0), Step::Bytes(_)));
    }
    assert!(connection.memory_bytes() <= 8 << 10, "{}", connection.memory_bytes());
    // Pings without end while nothing is sent: one answer waits.
    for second in 100..10_000 {
        send_at(&mut connection, &world, &control(ControlKind::Ping, &[7; 125]), second * 1_000 * MS);
    }
    assert!(connection.is_subscriber());
    assert!(connection.memory_bytes() <= 8 << 10, "{}", connection.memory_bytes());
    // A message in parts is bounded as one in one piece is.
    let part = [0x02, 0xfe, 4, 0, 0, 0, 0, 0];
    send(&mut connection, &world, &[&part[..], &[0; 1024]].concat());
    send(&mut connection, &world, &[&[0x00][..], &part[1..], &[0; 1024]].concat());
    assert!(matches!(connection.poll(&mut world.hub, 0), Step::End));
    assert!(connection.memory_bytes() <= 8 << 10, "{}", connection.memory_bytes());
}

#[test]
fn every_wait_for_the_other_side_is_bounded() {
    let mut world = World::new();
    world.ledger(9);
    // A request that drips in.
    let mut slow = Connection::new(5);
    send(&mut slow, &world, b"GET /str");
    assert_eq!(slow.waits_for(), None, "nothing that is published concerns it");
    assert_eq!(slow.deadline(), Some(5 + REQUEST_NS_MAX));
    slow.on_time(5 + REQUEST_NS_MAX - 1);
    assert!(matches!(slow.poll(&mut world.hub, 0), Step::Wait));
    slow.on_time(5 + REQUEST_NS_MAX);
    assert!(matches!(slow.poll(&mut world.hub, 0), Step::End));
    // One that takes nothing, and one that takes a byte now and then.
    let mut frozen = upgraded(&mut world, "/stream?start=9");
    assert_eq!(frozen.deadline(), None, "an idle subscriber may wait for ever");
    assert!(matches!(frozen.poll(&mut world.hub, 100), Step::Message(_)));
    assert_eq!(frozen.deadline(), Some(100 + WRITE_NS_MAX));
    frozen.progress(false, 200 * MS);
    assert_eq!(frozen.deadline(), Some(200 * MS + WRITE_NS_MAX));
    frozen.on_time(200 * MS + WRITE_NS_MAX);
    assert!(matches!(frozen.poll(&mut world.hub, 0), Step::End));
    // What goes out without its knowledge, also when it has no more to say.
    let mut ended = upgraded(&mut world, "/stream?start=9");
    send(&mut ended, &world, &control(ControlKind::Close, &[3, 232]));
    assert!(matches!(ended.poll(&mut world.hub, 0), Step::Bytes(_)));
    ended.progress(true, 0);
    assert!(matches!(ended.poll(&mut world.hub, 0), Step::End));
    assert_eq!(ended.deadline(), None);
    ended.sending(3);
    ended.sending(4);
    assert_eq!(ended.deadline(), Some(3 + WRITE_NS_MAX));
    // A close that is not echoed.
    let mut closing = upgraded(&mut world, "/stream?start=9&end=9");
    while !matches!(closing.poll(&mut world.hub, 7), Step::Wait) {}
    closing.progress(true, 7);
    assert_eq!(closing.deadline(), Some(7 + CLOSE_NS_MAX));
    closing.on_time(7 + CLOSE_NS_MAX);
    assert!(closing.is_cut_off());
}

#[test]
fn who_takes_the_rest_slowly_has_its_time_to_answer_the_close() {
    let mut world = World::new();
    world.ledger(9);
    let mut closing = upgraded(&mut world, "/stream?start=9&end=9");
    while !matches!(closing.poll(&mut world.hub, 0), Step::Wait) {}
    let mut now = 0;
    for _ in 0..10 {
        now += CLOSE_NS_MAX - 1;
        closing.on_time(now);
        assert!(!closing.is_cut_off(), "its close is not on its way yet");
        closing.progress(false, now);
    }
    closing.progress(true, now);
    assert_eq!(closing.deadline(), Some(now + CLOSE_NS_MAX), "from when all was sent");
    // And one that takes nothing has no more than any other.
    let mut stalled = upgraded(&mut world, "/stream?start=9&end=9");
    while !matches!(stalled.poll(&mut world.hub, 0), Step::Wait) {}
    assert_eq!(stalled.deadline(), Some(WRITE_NS_MAX));
}

// The client against bytes made by hand.

/// A client that was answered with this head; its first request.
fn answered(range: Range, head: impl FnOnce(&str) -> Vec<u8>) -> (Client, String) {
    let mut client = Client::new(range, Limits::default()).expect("zstd");
    let url = Url::parse("ws://h:1/x?start=5&token=t&end=6").expect("a URL");
    client.connect(&url, Some("Bearer secret"), [3; 24]);
    let request = String::from_utf8(client.output().to_vec()).expect("text");
    client.sent(request.len());
    let parsed = http::parse_request(request.as_bytes()).expect("HTTP").expect("whole");
    let accept = http::judge_upgrade(&parsed).expect("an upgrade");
    client.feed(&head(&accept));
    (client, request)
}

fn streaming(range: Range) -> Client {
    let (mut client, _) = answered(range, |accept| http::upgrade_response(accept, &[]));
    assert!(matches!(client.poll(), Ok(Polled::Wait)) && client.is_streaming());
    client
}

fn feed_close(client: &mut Client, code: u16, reason: &str) {
    let mut frame = Vec::new();
    websocket::write_close(code, reason, None, &mut frame);
    client.feed(&frame);
}

/// A whole ledger of one chunk, framed.
fn whole(sequence: u32) -> Vec<u8> {
    let mut world = World::new();
    world.bytes = 100;
    world.ledger(sequence);
    world.hub.flow().expect("a flow").messages().iter().flat_map(|message| message.frame().to_vec()).collect()
}

/// Ledgers that come out before the end, and how it ends.
fn outcome(client: &mut Client) -> (Vec<u32>, Result<(), ClientError>) {
    let mut got = Vec::new();
    loop {
        match client.poll() {
            Ok(Polled::Ledger(ledger)) => got.push(ledger.sequence),
            Ok(Polled::Done) => return (got, Ok(())),
            Ok(Polled::Wait) => return (got, client.disconnected()),
            Err(error) => return (got, Err(error)),
        }
    }
}

/// The frames that a client has to send.
fn sent_frames(client: &Client) -> Vec<String> {
    let mut reader = FrameReader::new(Sender::Client, 1024);
    reader.feed(client.output());
    let mut frames = Vec::new();
    while let Ok(Some(event)) = reader.next() {
        frames.push(format!("{event:?}"));
    }
    frames
}

#[test]
fn a_request_asks_for_the_range_and_keeps_what_is_not_ours() {
    let (_, request) = answered(range(7, 9), |accept| http::upgrade_response(accept, &[]));
    assert!(request.starts_with("GET /x?token=t&start=7&end=9 HTTP/1.1\r\nHost: h:1\r\n"), "{request}");
    assert!(request.contains("Authorization: Bearer secret\r\n"));
    let (_, request) = answered(Range::TIP, |accept| http::upgrade_response(accept, &[]));
    assert!(request.starts_with("GET /x?token=t&start=0 HTTP/1.1\r\n"), "{request}");
}

#[test]
fn a_client_stops_at_its_ranges_end_though_the_server_goes_on() {
    let mut client = streaming(range(4, 5));
    client.feed(&[whole(4), whole(5), whole(6)].concat());
    assert_eq!(outcome(&mut client), (vec![4, 5], Ok(())));
    let close = Event::Close { code: Some(1000), reason: "range complete" };
    assert_eq!(sent_frames(&client), [format!("{close:?}")]);
    let mut client = streaming(Range::TIP);
    client.stop();
    let close = Event::Close { code: Some(1000), reason: "consumer done" };
    assert_eq!(sent_frames(&client), [format!("{close:?}")]);
    assert_eq!(client.poll(), Ok(Polled::Done));
}

#[test]
fn an_orderly_close_is_judged_by_what_came() {
    let closed = |range, bytes: Vec<u8>, code, reason: &str| {
        let mut client = streaming(range);
        client.feed(&bytes);
        feed_close(&mut client, code, reason);
        let (_, ended) = outcome(&mut client);
        let echo = Event::Close { code: Some(code), reason: "" };
        assert_eq!(sent_frames(&client), [format!("{echo:?}")], "a close is echoed");
        ended
    };
    let partial = || Encoded::begin(&Begin { sequence: 4, emit_start_ns: 0 }).frame().to_vec();
    let text = |ended: Result<(), ClientError>| ended.map_err(|error| error.to_string());
    for code in [1000, 1001] {
        assert_eq!(closed(range(4, 0), whole(4), code, ""), Ok(()));
        assert_eq!(
            text(closed(range(4, 9), whole(4), code, "")),
            Err("truncated: got through ledger 4, requested through 9".into())
        );
        assert_eq!(
            text(closed(range(4, 9), vec![], code, "")),
            Err("truncated: received no ledgers, requested [4,9]".into())
        );
        for range in [range(4, 9), range(4, 0)] {
            let inside = "truncated: stream closed mid-assembly of ledger 4";
            assert_eq!(text(closed(range, partial(), code, "")), Err(inside.into()));
        }
        assert_eq!(closed(range(0, 9), vec![], code, ""), Ok(()), "a tip that was past its end");
    }
    let behind = |requested, bounds| Err(ClientError::TooFarBehind { requested, bounds });
    let reason = "too far behind: oldest=25 latest=29";
    assert_eq!(closed(range(4, 0), vec![], 4001, reason), behind(4, Some((25, 29))));
    assert_eq!(closed(range(4, 0), whole(4), 4001, "gone"), behind(5, None));
    let other = closed(range(4, 0), vec![], 1011, "source failed").expect_err("an error");
    assert_eq!(other, ClientError::Closed { code: Some(1011), reason: "source failed".into() });
}

#[test]
fn an_abrupt_end_is_an_error_that_can_be_resumed() {
    let mut client = streaming(range(4, 0));
    client.feed(&whole(4));
    let (got, ended) = outcome(&mut client);
    assert_eq!((got, ended), (vec![4], Err(ClientError::Disconnected { inside: None })));
    assert!(ClientError::Disconnected { inside: None }.is_retryable());
    for error in [
        ClientError::Truncated(Truncated::Inside { sequence: 1 }),
        ClientError::TooFarBehind { requested: 1, bounds: None },
        ClientError::Stream(StreamError::Gap(Gap::Outside { found: 0 })),
        ClientError::Frame(FrameError::Text),
        ClientError::RunChanged { before: None, now: None },
        ClientError::Refused { status: 400, text: String::new() },
        ClientError::Closed { code: Some(1000), reason: String::new() },
    ] {
        assert!(!error.is_retryable(), "{error}");
    }
    assert!(ClientError::Refused { status: 503, text: String::new() }.is_retryable());
}

#[test]
fn what_breaks_the_protocol_ends_the_stream_with_a_close() {
    let text = vec![0x81, 1, b'a'];
    let masked = vec![0x82, 0x80, 0, 0, 0, 0];
    let big = vec![0x82, 127, 0, 0, 0, 0, 0, 0x80, 0, 12];
    let mut junk = Vec::new();
    websocket::write_binary(b"\x02\x99\0\0\0\x04", None, &mut junk);
    let kind = crate::wire::ledger::MessageError::Kind { found: 0x99 };
    let limit = (8 << 20) + 11;
    for (bytes, error, code) in [
        (text, ClientError::Frame(FrameError::Text), 1003),
        (masked, ClientError::Frame(FrameError::Masked), 1002),
        (big, ClientError::Frame(FrameError::TooBig { bytes: limit as u64 + 1, limit }), 1009),
        (junk, ClientError::Stream(StreamError::Protocol(AssemblyError::Message(kind))), 1002),
    ] {
        let mut client = streaming(range(4, 0));
        client.feed(&[whole(4), bytes, whole(5)].concat());
        assert_eq!(outcome(&mut client), (vec![4], Err(error)));
        let close = Event::Close { code: Some(code), reason: "" };
        assert_eq!(sent_frames(&client), [format!("{close:?}")]);
    }
}

#[test]
fn a_refusal_is_told_with_the_servers_own_words() {
    let refusal = http::refusal_response(&http::Refusal::new(400, "end 4 is before start 9"));
    let (mut client, _) = answered(Range::TIP, |_| refusal);
    let refused = ClientError::Refused { status: 400, text: "end 4 is before start 9".into() };
    assert_eq!(outcome(&mut client), (vec![], Err(refused)));
    let unbounded = b"HTTP/1.1 503 Busy\r\n\r\nlater".to_vec();
    let (mut client, _) = answered(Range::TIP, |_| unbounded);
    assert!(matches!(client.poll(), Ok(Polled::Wait)));
    assert_eq!(client.disconnected(), Err(ClientError::Refused { status: 503, text: "later".into() }));
    let (mut client, _) = answered(Range::TIP, |_| http::upgrade_response("wrong", &[]));
    assert!(matches!(client.poll(), Err(ClientError::Upgrade(http::UpgradeError::Accept))));
    let (mut client, _) = answered(Range::TIP, |_| b"SSH-2.0-x\r\n".to_vec());
    assert!(matches!(client.poll(), Err(ClientError::Head(_))));
}

#[test]
fn pings_are_answered_between_messages() {
    let mut client = streaming(range(4, 0));
    client.feed(&[vec![0x89, 2, b'h', b'i'], whole(4)].concat());
    assert!(matches!(client.poll(), Ok(Polled::Ledger(_))));
    let mut reader = FrameReader::new(Sender::Client, 1024);
    reader.feed(client.output());
    assert_eq!(reader.next(), Ok(Some(Event::Pong)));
    assert_eq!(client.output().len(), 8, "masked");
}

#[test]
fn waits_double_and_spread_and_begin_again() {
    let mut backoff = Backoff::default();
    let waits: Vec<i64> = (0..20).map(|_| backoff.next_ns(u64::MAX)).collect();
    assert!(waits[0] <= Backoff::FIRST_NS && waits[0] > Backoff::FIRST_NS * 9 / 10);
    assert!(waits[1] > waits[0] && *waits.last().expect("one") <= Backoff::MOST_NS);
    assert_eq!(backoff.next_ns(0), Backoff::MOST_NS / 2);
    backoff.reset();
    assert_eq!(backoff.next_ns(0), Backoff::FIRST_NS / 2);
}

// Several flows of one subscription.

/// A client of `flows` flows whose first connection was answered with this run and offer.
fn offered(range: Range, flows: usize, run: &str, offer: &str) -> (Client, Url) {
    let mut client = Client::with_flows(range, Limits::default(), flows).expect("zstd");
    let url = Url::parse("ws://h:1").expect("a URL");
    client.connect(&url, None, [3; 24]);
    answer_line(&mut client, 0, run, offer);
    (client, url)
}

/// Answers the request of a connection; what it asked for.
fn answer_line(client: &mut Client, flow: usize, run: &str, offer: &str) -> String {
    let request = String::from_utf8(client.line(flow).output().to_vec()).expect("text");
    client.line(flow).sent(request.len());
    let parsed = http::parse_request(request.as_bytes()).expect("HTTP").expect("whole");
    let accept = http::judge_upgrade(&parsed).expect("an upgrade");
    let head = http::upgrade_response(&accept, &[("Sluice-Run", run), ("Sluice-Flows", offer)]);
    client.line(flow).feed(&head);
    parsed.target.to_string()
}

/// The frames of the world's last ledger that flow `flow` of `flows` carries.
fn shared_out(world: &World, flow: usize, flows: usize) -> Vec<u8> {
    let messages = world.hub.flow().expect("a flow").messages();
    let last = messages.len() - 1;
    let carried = |at: usize| at == 0 || at == last || (at - 1) % flows == flow;
    let carried = messages.iter().enumerate().filter(|(at, _)| carried(*at));
    carried.flat_map(|(_, message)| message.frame().to_vec()).collect()
}

#[test]
fn flows_are_asked_for_as_the_server_offers_them() {
    let offer = "max=3; id=00000000000000ab";
    let (mut client, url) = offered(range(7, 9), 8, RUN, offer);
    assert_eq!(client.lines(), 1, "not before the answer is read");
    assert!(matches!(client.advance(), Ok(Advanced::Wait)));
    assert_eq!(client.lines(), 3);
    for flow in 1..3 {
        client.connect_flow(flow, &url, None, [4; 24]);
        let target = answer_line(&mut client, flow, RUN, offer);
        assert_eq!(target, format!("/stream?flow={flow}&flows=3&id=00000000000000ab&start=7&end=9"));
    }
    // At the tip the others wait for the first one's beginning.
    let (mut client, url) = offered(Range::TIP, 2, RUN, offer);
    assert!(matches!(client.advance(), Ok(Advanced::Wait)));
    assert_eq!(client.lines(), 1);
    client.feed(Encoded::begin(&Begin { sequence: 40, emit_start_ns: 5 }).frame());
    assert!(matches!(client.advance(), Ok(Advanced::Wait)));
    assert_eq!(client.lines(), 2);
    client.connect_flow(1, &url, None, [4; 24]);
    let target = answer_line(&mut client, 1, RUN, offer);
    assert_eq!(target, "/stream?flow=1&flows=2&id=00000000000000ab&start=40");
    // One flow is not asked for, and a server that speaks of none is followed over one connection.
    let (_, request) = answered(range(7, 9), |accept| http::upgrade_response(accept, &[]));
    assert!(!request.contains("flows"), "{request}");
    let (mut client, _) = offered(range(7, 9), 4, RUN, "max=1; id=ab");
    assert!(matches!(client.advance(), Ok(Advanced::Wait)));
    assert_eq!(client.lines(), 1);
    for offer in ["max=3", "max=3; id=a b", "id=ab"] {
        let (mut client, _) = offered(range(7, 9), 4, RUN, offer);
        let error = client.advance().expect_err("no such offer");
        assert_eq!(error, ClientError::Offer { value: offer.into() });
    }
}

#[test]
fn flows_that_come_in_any_order_make_each_ledger_once() {
    for seed in 0..200_u64 {
        let mut world = World::new();
        let flows = 2 + seed as usize % 3;
        let offer = "max=4; id=ab";
        let (mut client, url) = offered(range(1, 3), flows, RUN, offer);
        assert!(matches!(client.advance(), Ok(Advanced::Wait)));
        let mut unsent: Vec<Vec<u8>> = vec![Vec::new(); flows];
        for sequence in 1..=3 {
            world.ledger(sequence);
            unsent.iter_mut().enumerate().for_each(|(flow, bytes)| bytes.extend(shared_out(&world, flow, flows)));
        }
        let (mut random, mut connected, mut got) = (seed.wrapping_mul(2) + 1, 1, Vec::new());
        while got.len() < 3 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let flow = (random >> 40) as usize % flows;
            if flow >= connected {
                client.connect_flow(connected, &url, None, [4; 24]);
                answer_line(&mut client, connected, RUN, offer);
                connected += 1;
                continue;
            }
            let piece = ((random >> 20) as usize % 9_000).min(unsent[flow].len());
            let piece: Vec<u8> = unsent[flow].drain(..piece).collect();
            client.line(flow).feed(&piece);
            while client.advance().unwrap_or_else(|error| panic!("seed {seed}: {error}")) == Advanced::Ledger {
                let ledger = client.ledger().expect("verified");
                assert!(ledger.bytes == world.ledger_bytes(ledger.sequence) && ledger.is_live(), "seed {seed}");
                got.push(ledger.sequence);
            }
        }
        assert_eq!(got, [1, 2, 3], "seed {seed}");
        assert_eq!(client.advance(), Ok(Advanced::Done));
    }
}

#[test]
fn flows_of_two_runs_are_never_joined_and_a_lost_group_is_asked_for_anew() {
    let offer = "max=2; id=ab";
    let (mut client, url) = offered(range(7, 9), 2, RUN, offer);
    assert!(matches!(client.advance(), Ok(Advanced::Wait)));
    client.connect_flow(1, &url, None, [4; 24]);
    answer_line(&mut client, 1, "another", offer);
    let error = client.advance().expect_err("another run");
    assert!(matches!(error, ClientError::FlowsApart) && error.is_retryable(), "{error}");
    // The server has forgotten the group: all of it is tried again.
    let (mut client, url) = offered(range(7, 9), 2, RUN, offer);
    assert!(matches!(client.advance(), Ok(Advanced::Wait)));
    client.connect_flow(1, &url, None, [4; 24]);
    client.line(1).feed(&http::refusal_response(&http::Refusal::new(409, "no such subscription")));
    let error = client.advance().expect_err("refused");
    assert!(error.is_retryable(), "{error}");
    client.connect(&url, None, [5; 24]);
    assert_eq!(client.lines(), 1);
}

#[test]
fn flows_that_do_not_fit_together_are_judged_by_one_connection_alone() {
    let offer = "max=2; id=ab";
    let (mut client, url) = offered(range(1, 0), 2, RUN, offer);
    assert!(matches!(client.advance(), Ok(Advanced::Wait)));
    client.connect_flow(1, &url, None, [4; 24]);
    answer_line(&mut client, 1, RUN, offer);
    let (mut world, mut other) = (World::new(), World::new());
    other.chunker = Chunker::new(Cut::new(5000, None).expect("a cut"));
    world.ledger(1);
    other.ledger(1);
    // Flow 1 gives its first chunk, and then, as its server's source began anew, the ledger in other chunks.
    let begun = world.hub.flow().expect("a flow").messages();
    let first: Vec<u8> = [&begun[0], &begun[2]].iter().flat_map(|message| message.frame().to_vec()).collect();
    client.line(1).feed(&first);
    client.line(1).feed(&shared_out(&other, 1, 2));
    client.line(0).feed(&shared_out(&world, 0, 2));
    let error = client.advance().expect_err("they do not fit together");
    assert!(matches!(error, ClientError::Mixed { sequence: 1, .. }) && error.is_retryable(), "{error}");
    // One connection alone is tried next: what does not fit there is the server's fault.
    client.connect(&url, None, [5; 24]);
    assert!(!String::from_utf8_lossy(client.output()).contains("flows="));
    answer_line(&mut client, 0, RUN, offer);
    assert!(matches!(client.advance(), Ok(Advanced::Wait)));
    assert_eq!(client.lines(), 1);
    let end = other.hub.flow().expect("a flow").messages().last().expect("an end");
    [&begun[0], &begun[1], end].iter().for_each(|message| client.feed(message.frame()));
    let error = client.advance().expect_err("it does not fit");
    assert!(!error.is_retryable(), "{error}");
    // After another end as many as before are asked for.
    client.connect(&url, None, [6; 24]);
    assert!(String::from_utf8_lossy(client.output()).contains("flows=2"));
}
