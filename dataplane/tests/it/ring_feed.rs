//! The published feed: what readers of the ring get is what the store keeps, in its order, whatever the disk does.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde_json::Value;
use sluice::feed::generate::{Product, Settings};
use sluice::feed::split::SideSplit;
use sluice::ring::follow::FeedFollower;
use sluice::ring::{ConsumerSettings, Received, StartAt, Wait};
use sluice::wire::feed_meta::{FeedMeta, FeedRecord, StampOrigin};

use crate::common::memory_queue::{Faults, MemoryQueue, Pace};
use crate::common::mirrors::Shm;
use crate::common::pipeline::{
    HOLDING, Lines, PATIENT, Tampering, file_config, live_config, merged, number, reread, sides, start, write_pcap,
};

/// The generator's group of side A; both interfaces carry it.
const GROUP: &str = "239.192.0.1:10378";
/// How long a reader waits for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Both sides lose, and B is later.
fn lossy(later_ns: i64) -> [SideSplit; 2] {
    let side = |delay_ns| SideSplit { loss: 0.04, delay_ns, jitter_ns: 40_000, ..SideSplit::default() };
    [side(0), side(later_ns)]
}

/// What a reader of the ring got of one stream.
#[derive(Default, Debug)]
struct Published {
    messages: Vec<(u64, Vec<u8>)>,
    gaps: Vec<(u64, u64)>,
    ended: bool,
}

/// Reads a feed ring to the end of its producer; panics on what must never be.
fn read_to_the_end(mut follower: FeedFollower, stamp: StampOrigin) -> BTreeMap<String, Published> {
    let mut streams: BTreeMap<String, Published> = BTreeMap::new();
    let (mut next, mut frontier) = (1, BTreeMap::<u32, u64>::new());
    loop {
        let record = match follower.recv(Wait::default(), PATIENCE).expect("a readable ring") {
            Received::Record { record, .. } => record,
            Received::Died => break,
            // A machine that is busy with other tests holds the publisher up.
            Received::Stalled | Received::Resumed => continue,
            other => panic!("{other:?} while reading"),
        };
        assert_eq!(record.ring_sequence, next, "the ring's own sequence is dense");
        next += 1;
        let FeedMeta { stream_index, sequence, stamp_source, pad, .. } = record.meta;
        assert_eq!((stamp_source, pad), (stamp as u8, [0; 6]));
        let key = record.stream.expect("a stream is told before its records").to_owned();
        let stream = streams.entry(key).or_default();
        let frontier = frontier.entry(stream_index).or_insert(sequence);
        match record.record.expect("a known kind") {
            FeedRecord::StreamBegin => {}
            FeedRecord::Message => {
                assert_eq!(sequence, *frontier, "in order, and whatever is missing is told before");
                *frontier = sequence + 1;
                stream.messages.push((sequence, record.body.to_vec()));
            }
            FeedRecord::Gap => {
                let last = record.gap_last.expect("a gap has an end");
                assert_eq!(sequence, *frontier, "a gap stands where it is");
                *frontier = last + 1;
                stream.gaps.push((sequence, last));
            }
            FeedRecord::StreamEnd => stream.ended = true,
            FeedRecord::SideState => {}
        }
    }
    assert_eq!((follower.lapped(), follower.skipped()), (0, 0));
    streams
}

/// Opens the ring as soon as it is there.
fn open(ring: &Shm) -> FeedFollower {
    let settings = ConsumerSettings::default();
    for _ in 0..60_000 {
        if let Ok(follower) = FeedFollower::open(ring.path(), StartAt::Oldest, &settings) {
            return follower;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{} does not come", ring.text());
}

#[test]
fn ring_feed_holds_what_the_store_keeps_in_its_order() {
    for (seed, restarts) in [(3, 0), (8, 2)] {
        let directory = tempfile::tempdir().expect("a directory");
        let ring = Shm::new(&format!("feed-{seed}"));
        let session = Settings { restarts, idle_every: 0, ..Settings::new(Product::Deep, 20_000, seed) };
        let sides = sides(&session, seed, &lossy(15_000));
        let paths = ["a.pcap", "b.pcap"].map(|name| directory.path().join(name));
        for (path, packets) in paths.iter().zip(&sides.packets) {
            write_pcap(path, packets);
        }
        let feed = format!("publish = \"{}\"\npublish_capacity = 65536\n", ring.text());
        let lines = Lines { protocol: "iex-tp", feed: &feed, store: "segment = \"16MiB\"\n" };
        let config = file_config(&directory.path().join("store"), &lines, [&paths[0], &paths[1]]);
        let running = start(&config, BTreeMap::new(), &Tampering::default());
        let reader = std::thread::spawn({
            let follower = open(&ring);
            move || read_to_the_end(follower, StampOrigin::File)
        });
        running.wait_for_files();
        let finished = running.stop();
        finished.balanced();
        let published = reader.join().expect("the reader ends well");
        let stored = reread(&directory.path().join("store"));
        let (published, stored): (Vec<&Published>, _) = (published.values().collect(), merged(&stored));
        assert_eq!(published.len(), stored.len());
        assert_eq!(published.len(), restarts as usize + 1);
        for (published, stored) in published.iter().zip(stored) {
            let kept: Vec<(u64, Vec<u8>)> = stored.messages.iter().map(|(n, _, body)| (*n, body.clone())).collect();
            assert_eq!(published.messages, kept, "seed {seed}");
            assert_eq!(published.gaps, stored.gaps, "seed {seed}");
            assert!(!published.gaps.is_empty(), "seed {seed}: nothing was lost: the test proves nothing");
        }
        assert_eq!(finished.feed("published"), published.iter().map(|s| s.messages.len() as u64).sum::<u64>());
        assert_eq!(finished.feed("publish_refused"), 0);
    }
}

#[test]
fn ring_feed_does_not_wait_for_a_disk_that_stands_still() {
    let seed = 21;
    let directory = tempfile::tempdir().expect("a directory");
    let ring = Shm::new("feed-stall");
    let session = Settings { restarts: 0, idle_every: 0, ..Settings::new(Product::Deep, 30_000, seed) };
    let sides = sides(&session, seed, &lossy(15_000));
    let frames = 2 * 4_096 + 2 * 4_096;
    let queue = |packets: &Vec<_>| {
        MemoryQueue::new(packets.clone(), frames, frames as usize / 2, Pace::PerSecond(50_000), Faults::default())
    };
    let [a, b] = [queue(&sides.packets[0]), queue(&sides.packets[1])];
    let facts = vec![a.facts(), b.facts()];
    let feed = format!("{PATIENT}publish = \"{}\"\n", ring.text());
    let store = "segment = \"16MiB\"\nblock = \"128KiB\"\nblocks_in_flight = 2\nflush = \"50ms\"\n";
    let config = live_config(directory.path(), &Lines { protocol: "iex-tp", feed: &feed, store }, frames, GROUP);
    let tampering = Tampering::default();
    tampering.disk_stalls.store(true, Relaxed);
    let running = start(&config, BTreeMap::from([("a", vec![a]), ("b", vec![b])]), &tampering);
    let reader = std::thread::spawn({
        let follower = open(&ring);
        move || read_to_the_end(follower, StampOrigin::Software)
    });
    // The disk completes nothing while the whole session passes, and the ring has all of it.
    running.wait_for(&facts);
    running.wait("every arbitrated message in the ring", |running| {
        let reports = running.capture.reports();
        let streams = reports.iter().filter_map(|(_, report)| report.as_ref()).flat_map(|report| &report.streams);
        let unique: u64 = streams.map(|stream| stream.counts.unique).sum();
        let status = running.capture.glance();
        let passed = |queue: &Value| number(&queue["data_segments"]) + number(&queue["heartbeats"]);
        let passed: u64 = status["queues"].as_array().expect("queues").iter().map(passed).sum();
        let feed = &status["feeds"][0];
        number(&feed["segments"]) == passed && unique > 1_000 && number(&feed["published"]) == unique
    });
    assert!(tampering.disk_stalls.load(Relaxed));
    tampering.disk_stalls.store(false, Relaxed);
    let finished = running.stop();
    finished.balanced();
    let published = reader.join().expect("the reader ends well");
    let messages: u64 = published.values().map(|stream| stream.messages.len() as u64).sum();
    assert_eq!(messages, finished.feed("published"));
    let lost = finished.feed("lost_link_full") + finished.feed("lost_copy_pool") + number(&finished.store["lost"]);
    assert!(lost > 0, "the disk lost nothing: the stall proves nothing");
}

#[test]
fn ring_feed_never_publishes_a_late_fill() {
    let seed = 5;
    let directory = tempfile::tempdir().expect("a directory");
    let ring = Shm::new("feed-late");
    let session = Settings { restarts: 0, idle_every: 0, ..Settings::new(Product::Deep, 8_000, seed) };
    let sides = sides(&session, seed, &lossy(20_000_000));
    let paths = ["a.pcap", "b.pcap"].map(|name| directory.path().join(name));
    for (path, packets) in paths.iter().zip(&sides.packets) {
        write_pcap(path, packets);
    }
    // A window far below the lag of the sides: it forces gaps that are filled late.
    let feed = format!("{HOLDING}window = 8\npublish = \"{}\"\n", ring.text());
    let lines = Lines { protocol: "iex-tp", feed: &feed, store: "segment = \"16MiB\"\n" };
    let config = file_config(&directory.path().join("store"), &lines, [&paths[0], &paths[1]]);
    let running = start(&config, BTreeMap::new(), &Tampering::default());
    let reader = std::thread::spawn({
        let follower = open(&ring);
        move || read_to_the_end(follower, StampOrigin::File)
    });
    running.wait_for_files();
    let finished = running.stop();
    finished.balanced();
    let published = reader.join().expect("the reader ends well");
    let stored = reread(&directory.path().join("store"));
    let late: usize = stored.values().flat_map(|s| &s.messages).filter(|(_, late, _)| *late).count();
    assert!(late > 0, "nothing came late: the test proves nothing");
    let kept: u64 = stored.values().flat_map(|s| &s.messages).filter(|(_, late, _)| !late).count() as u64;
    assert_eq!(published.values().map(|s| s.messages.len() as u64).sum::<u64>(), kept);
}

/// A feed of files, published by the real binary and printed by `ring tail`, while `ring stat` looks on.
#[test]
fn ring_feed_tail_decodes_a_published_feed() {
    let directory = tempfile::tempdir().expect("a directory");
    let ring = Shm::new("feed-tail");
    let mut publisher = sluice::ring::publish::FeedPublisher::new(sluice::ring::publish::PublishSettings {
        path: ring.path().into(),
        capacity: 1 << 12,
        arena_bytes: 1 << 20,
        huge_pages: false,
        numa_node: None,
        stamp: StampOrigin::File,
    });
    let session = Settings { restarts: 0, idle_every: 0, ..Settings::new(Product::Deep, 500, 4) };
    publish(&mut publisher, &session);
    let tail = |arguments: &[&str]| {
        let command =
            Command::new(env!("CARGO_BIN_EXE_sluice")).args(["ring", "tail", ring.text()]).args(arguments).output();
        let done = command.expect("runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("text")
    };
    let text = tail(&["--from", "oldest", "--idle", "100ms", "--json"]);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines[0]["kind"], "stream_begin");
    let messages: Vec<&Value> = lines.iter().filter(|line| line["kind"] == "message").collect();
    assert_eq!(messages.len(), 500);
    for (index, message) in messages.iter().enumerate() {
        assert_eq!(message["sequence"], index + 1);
        assert!(message["fields"]["timestamp_ns"].is_i64(), "decoded: {message}");
        assert!(message["message"].as_str().is_some_and(|kind| kind.len() == 1), "{message}");
    }
    assert_eq!(tail(&["--from", "oldest", "--count", "3"]).lines().count(), 3);
    assert!(tail(&["--from", "2", "--count", "1", "--hex"]).starts_with("2 "));
    // Nobody turns the publisher here: its last beat is too old for a living one.
    std::thread::sleep(Duration::from_millis(200));
    let stat = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["ring", "stat", ring.text(), "--json"])
        .output()
        .expect("runs");
    let stat: Value = serde_json::from_slice(&stat.stdout).expect("JSON");
    assert_eq!((&stat["feed"], &stat["producer"], &stat["head"]), (&true.into(), &"stalled".into(), &501.into()));
    assert_eq!((&stat["element_size"], &stat["slots_straddle_lines"]), (&64.into(), &false.into()));
    let missing = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["ring", "stat", "/dev/shm/sluice-test-none"])
        .output()
        .expect("runs");
    assert_eq!(missing.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/dev/shm/sluice-test-none"));
    drop(directory);
}

/// Publishes a generated session without loss, as an arbiter would.
fn publish(publisher: &mut sluice::ring::publish::FeedPublisher, session: &Settings) {
    use sluice::feed::publish::{PublishedMessage, Publisher};
    use sluice::units::{Side, StreamId};
    use sluice::wire::packet::{self, LinkType};
    publisher.start().expect("a ring");
    let mut generator = sluice::feed::generate::Generator::new(session.clone()).expect("good settings");
    let mut begun = false;
    while let Some(packet) = generator.next_packet() {
        let view = packet::udp(packet.frame, LinkType::Ethernet).expect("a UDP frame");
        let segment = sluice::wire::iextp::parse(view.payload).expect("a segment");
        if !std::mem::replace(&mut begun, true) {
            publisher.stream_begin(StreamId(0), &segment.session, 0, segment.first, packet.capture_ns);
        }
        for (sequence, body) in (segment.first..).zip(segment.messages()) {
            publisher.message(&PublishedMessage {
                stream: StreamId(0),
                side: Side::A,
                sequence,
                capture_ns: packet.capture_ns,
                send_ns: segment.send_ns,
                body,
            });
        }
        publisher.turn(0);
    }
}
