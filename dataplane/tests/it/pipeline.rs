//! The threaded pipeline from frames to a sealed store, in process and without root. What is right is decided by what
//! was published and what the store gives when it is read again, never by the pipeline's own word alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use sluice::feed::arbiter::ArbiterReport;
use sluice::feed::generate::{Product, Settings};
use sluice::feed::intervals::{self, Range};
use sluice::feed::split::SideSplit;
use sluice::feed::truth::compare;
use sluice::sync::metrics::Source;
use sluice::wire::moldudp64;

use crate::common::frames::Udp;
use crate::common::memory_queue::{Facts, Faults, MemoryQueue, Pace, Scripted};
use crate::common::pipeline::{
    Finished, HOLDING, Lines, PATIENT, Running, SMALL_STORE, Sides, Stored, Tampering, file_config, files, live_config,
    merged, mold_sides, number, reread, reread_torn, robbed_before_the_arbiter, sides, start, two_queues, write_pcap,
};

/// The generator's group of side A; both interfaces carry it.
const GROUP: &str = "239.192.0.1:10378";

fn session(messages: u64, seed: u64, restarts: u32) -> Settings {
    Settings { restarts, idle_every: 0, ..Settings::new(Product::Deep, messages, seed) }
}

fn lossy(loss_a: f64, loss_b: f64) -> [SideSplit; 2] {
    let side =
        |loss, delay_ns| SideSplit { loss, duplicate: 0.01, delay_ns, jitter_ns: 40_000, ..SideSplit::default() };
    [side(loss_a, 0), side(loss_b, 15_000)]
}

fn lines<'a>(feed: &'a str, store: &'a str) -> Lines<'a> {
    Lines { protocol: "iex-tp", feed, store }
}

/// Σ of a term over a list of the status.
fn sum(status: &serde_json::Value, of: &str, term: &str) -> u64 {
    status[of].as_array().expect("a list").iter().map(|part| number(&part[term])).sum()
}

/// One queue a side, all frames at once as there is room.
fn queues(
    sides: &Sides,
    frames: u32,
    pace: Pace,
    faults: Faults,
) -> (BTreeMap<&'static str, Vec<MemoryQueue>>, Vec<Arc<Facts>>) {
    let queue = |packets: &Vec<Scripted>| MemoryQueue::new(packets.clone(), frames, frames as usize / 2, pace, faults);
    let [a, b] = [queue(&sides.packets[0]), queue(&sides.packets[1])];
    let facts = vec![a.facts(), b.facts()];
    (BTreeMap::from([("a", vec![a]), ("b", vec![b])]), facts)
}

/// Ranges in any order, joined.
fn joined(ranges: impl IntoIterator<Item = Range>) -> Vec<Range> {
    let mut ranges: Vec<Range> = ranges.into_iter().collect();
    ranges.sort_by_key(|range| range.first);
    intervals::joined(ranges)
}

fn ranges(of: impl IntoIterator<Item = u64>) -> Vec<Range> {
    joined(of.into_iter().map(|n| Range { first: n, last: n }))
}

/// Holds one store against what was published. `lost`: what the pipeline says that it could not store, by run.
/// With `in_order` nothing may have come late.
fn holds_the_truth(
    streams: &BTreeMap<String, Stored>,
    sides: &Sides,
    report: &ArbiterReport,
    lost: &BTreeMap<u32, Vec<Range>>,
    in_order: bool,
) {
    let merged = merged(streams);
    assert_eq!(merged.len(), report.streams.len(), "streams in the store");
    for (run, (stored, stream)) in merged.iter().zip(&report.streams).enumerate() {
        let run = run as u32;
        let ordered: Vec<u64> = stored.messages.iter().filter(|(_, late, _)| !late).map(|(n, ..)| *n).collect();
        assert!(ordered.is_sorted_by(|a, b| a < b), "run {run}: not strictly ascending");
        let all: BTreeSet<u64> = stored.messages.iter().map(|(n, ..)| *n).collect();
        assert_eq!(all.len(), stored.messages.len(), "run {run}: a message is stored twice");
        assert!(!in_order || ordered.len() == all.len(), "run {run}: late fills");
        for (sequence, _, body) in &stored.messages {
            let published = sides.bodies.get(&(run, *sequence));
            assert!(
                Some(body) == published,
                "run {run}: message {sequence}: {:#?}",
                report.streams.iter().map(|s| (&s.stream, s.counts, &s.gaps)).collect::<Vec<_>>()
            );
        }
        let nothing = Vec::new();
        let lost = lost.get(&run).unwrap_or(&nothing);
        let stored_ranges = ranges(all);
        assert_eq!(intervals::intersection(&stored_ranges, lost), [], "run {run}: stored and told as lost");
        assert_eq!(intervals::intersection(&stored_ranges, &stream.gaps), [], "run {run}: stored and told as a gap");
        let told = joined(stored_ranges.iter().chain(lost).chain(&stream.gaps).copied());
        let whole = Range { first: stream.counts.base, last: stream.counts.frontier - 1 };
        assert_eq!(told, [whole], "run {run}: stored, lost and gaps do not make up the whole");
        if in_order && lost.is_empty() {
            let gaps: Vec<Range> = stored.gaps.iter().map(|&(first, last)| Range { first, last }).collect();
            assert_eq!(joined(gaps), stream.gaps, "run {run}: gap records");
        }
    }
}

fn nothing_lost() -> BTreeMap<u32, Vec<Range>> {
    BTreeMap::new()
}

/// What the store and the arbiter say that was lost on the way to the disk, by run; the counts must agree with it.
fn told_lost(finished: &Finished) -> BTreeMap<u32, Vec<Range>> {
    let mut lost: BTreeMap<u32, Vec<Range>> = BTreeMap::new();
    let range = |value: &serde_json::Value| Range { first: number(&value["first"]), last: number(&value["last"]) };
    let mut by_store = 0;
    for loss in finished.store["losses"].as_array().expect("losses") {
        let run = sluice::store::parse_key(loss["stream"].as_str().expect("a key")).expect("a merged stream").1;
        by_store += range(loss).count();
        lost.entry(run).or_default().push(range(loss));
    }
    assert_eq!(by_store, number(&finished.store["lost"]), "the store's ranges and its count");
    let mut by_arbiter = 0;
    for loss in finished.capture["not_handed_to_store"].as_array().expect("losses") {
        by_arbiter += range(loss).count();
        lost.entry(number(&loss["stream"]) as u32).or_default().push(range(loss));
    }
    let counted = finished.feed("lost_link_full") + finished.feed("lost_copy_pool");
    assert_eq!(by_arbiter, counted, "the arbiter's ranges and its counts");
    assert_eq!(number(&finished.capture["not_handed_unlisted"]), 0);
    lost.into_iter().map(|(run, ranges)| (run, joined(ranges))).collect()
}

fn file_run(directory: &Path, sides: &Sides, feed: &str, store: &str, tampering: &Tampering) -> Finished {
    let running = start_files(directory, sides, feed, store, tampering);
    running.wait_for_files();
    running.stop()
}

fn start_files(directory: &Path, sides: &Sides, feed: &str, store: &str, tampering: &Tampering) -> Running {
    let paths = ["a.pcap", "b.pcap"].map(|name| directory.join(name));
    for (path, packets) in paths.iter().zip(&sides.packets) {
        write_pcap(path, packets);
    }
    let config = file_config(&directory.join("store"), &lines(feed, store), [&paths[0], &paths[1]]);
    start(&config, BTreeMap::new(), tampering)
}

#[test]
fn arbiter_truth_threaded() {
    for (seed, restarts) in [(1, 0), (7, 1), (42, 3)] {
        let directory = tempfile::tempdir().expect("a directory");
        let sides = sides(&session(6_000, seed, restarts), seed, &lossy(0.03, 0.04));
        let finished = file_run(directory.path(), &sides, "", SMALL_STORE, &Tampering::default());
        finished.balanced();
        let comparison = compare(&sides.truth, &finished.report);
        assert!(comparison.equal(), "seed {seed}: {comparison:?}");
        assert!(comparison.residual > 0, "seed {seed}: nothing was lost on both sides: the test proves nothing");
        let streams = reread(&directory.path().join("store"));
        assert_eq!(streams.len(), restarts as usize + 1);
        let stamps = || sides.packets.iter().flatten().map(|packet| packet.capture_ns);
        let span = stamps().min().expect("packets")..=stamps().max().expect("packets");
        let mut gap_times = streams.values().flat_map(|stored| &stored.gap_times);
        assert!(gap_times.all(|at| span.contains(at)), "a file's gaps lie in the file's time");
        holds_the_truth(&streams, &sides, &finished.report, &nothing_lost(), true);
    }
}

#[test]
fn a_file_waits_for_the_disk_and_for_the_links() {
    let seed = 5;
    let directory = tempfile::tempdir().expect("a directory");
    let sides = sides(&session(20_000, seed, 0), seed, &lossy(0.02, 0.02));
    let tampering = Tampering::default();
    tampering.disk_stalls.store(true, Relaxed);
    let store = "segment = \"16MiB\"\nblock = \"128KiB\"\nblocks_in_flight = 4\nflush = \"50ms\"\n";
    let running = start_files(directory.path(), &sides, "link = 64\n", store, &tampering);
    // The stall ends when everything before the disk is full, and not before.
    let received = |running: &Running| number(&running.capture.glance()["queues"][0]["received"]);
    let (mut before, mut same) = (0, 0);
    running.wait("a full pipeline", |running| {
        let now = received(running);
        same = if now == before && now > 0 { same + 1 } else { 0 };
        before = now;
        same > 50
    });
    tampering.disk_stalls.store(false, Relaxed);
    running.wait_for_files();
    let finished = running.stop();
    finished.balanced();
    assert_eq!(told_lost(&finished), nothing_lost());
    assert!(compare(&sides.truth, &finished.report).equal());
    holds_the_truth(&reread(&directory.path().join("store")), &sides, &finished.report, &nothing_lost(), true);
}

#[test]
fn conservation_with_every_kind_of_loss() {
    let seed = 11;
    let directory = tempfile::tempdir().expect("a directory");
    let sides = sides(&session(30_000, seed, 0), seed, &lossy(0.05, 0.05));
    let faults = Faults { ring_full_every: 97, starved_every: 101, ..Faults::default() };
    let queue = |packets| MemoryQueue::new(packets, 512, 128, Pace::Free, faults);
    let queues: BTreeMap<&str, Vec<MemoryQueue>> = ["a", "b"]
        .into_iter()
        .zip(&sides.packets)
        .map(|(side, packets)| (side, two_queues(packets).map(queue).into()))
        .collect();
    let facts: Vec<Arc<Facts>> = queues.values().flatten().map(MemoryQueue::facts).collect();
    let feed = format!("{PATIENT}link = 64\nwindow = 512\ncopy_frames = 1\n");
    let config = live_config(directory.path(), &lines(&feed, SMALL_STORE), 512, GROUP);
    let tampering = Tampering::default();
    tampering.core_blocks.store(true, Relaxed);
    tampering.arbiter_blocks.store(true, Relaxed);
    let running = start(&config, queues, &tampering);
    let count = |running: &Running, of: &str, term: &str| sum(&running.capture.glance(), of, term);
    running.wait("a full link before the arbiter", |r| count(r, "queues", "link_full") > 0);
    tampering.arbiter_blocks.store(false, Relaxed);
    running.wait("a full link before the store", |r| {
        count(r, "feeds", "lost_link_full") > 0 || facts.iter().all(|facts| facts.get(|f| &f.left) == 0)
    });
    tampering.core_blocks.store(false, Relaxed);
    running.wait_for(&facts);
    let finished = running.stop();
    finished.balanced();
    assert!(finished.queues("rx_ring_full") > 0 && finished.queues("rx_dropped") > 0);
    assert!(finished.queues("link_full") > 0);
    assert!(finished.feed("lost_link_full") > 0 && finished.feed("lost_copy_pool") > 0);
    let lost = told_lost(&finished);
    assert!(!lost.is_empty());
    holds_the_truth(&reread(directory.path()), &sides, &finished.report, &lost, false);
}

#[test]
fn two_queues_a_side_recover_what_the_other_side_lost() {
    let seed = 12;
    let directory = tempfile::tempdir().expect("a directory");
    let sides = sides(&session(10_000, seed, 0), seed, &lossy(0.03, 0.03));
    let queue = |packets| MemoryQueue::new(packets, 2_048, 512, Pace::PerSecond(20_000), Faults::default());
    let queues: BTreeMap<&str, Vec<MemoryQueue>> = ["a", "b"]
        .into_iter()
        .zip(&sides.packets)
        .map(|(side, packets)| (side, two_queues(packets).map(queue).into()))
        .collect();
    let facts: Vec<Arc<Facts>> = queues.values().flatten().map(MemoryQueue::facts).collect();
    let feed = format!("{PATIENT}link = 16384\n");
    let config = live_config(directory.path(), &lines(&feed, SMALL_STORE), 2_048, GROUP);
    let running = start(&config, queues, &Tampering::default());
    running.wait_for(&facts);
    let finished = running.stop();
    finished.balanced();
    assert_eq!((finished.queues("link_full"), told_lost(&finished)), (0, nothing_lost()));
    let comparison = compare(&sides.truth, &finished.report);
    assert!(comparison.equal() && comparison.residual > 0, "{comparison:?}");
    holds_the_truth(&reread(directory.path()), &sides, &finished.report, &nothing_lost(), false);
}

#[test]
fn a_frame_that_vanishes_before_the_queue_shows_a_residue() {
    let seed = 13;
    let directory = tempfile::tempdir().expect("a directory");
    let sides = sides(&session(5_000, seed, 0), seed, &lossy(0.0, 0.0));
    let faults = Faults { swallow_every: 1_000, ..Faults::default() };
    let (queues, facts) = queues(&sides, 1_024, Pace::Free, faults);
    let config = live_config(directory.path(), &lines(PATIENT, SMALL_STORE), 1_024, GROUP);
    let running = start(&config, queues, &Tampering::default());
    running.wait_for(&facts);
    let finished = running.stop();
    let swallowed: u64 = sides.packets.iter().map(|packets| packets.len() as u64 / 1_000).sum();
    assert!(swallowed > 0);
    assert_eq!(finished.residue, swallowed, "{:#}", finished.capture["conservation"]);
}

#[test]
fn a_token_that_vanishes_in_a_link_shows_a_residue() {
    let seed = 14;
    let directory = tempfile::tempdir().expect("a directory");
    let sides = sides(&session(10_000, seed, 0), seed, &lossy(0.0, 0.0));
    // Most messages must travel in frames of their own: what the first emission waits for (`hold`) shares copy frames.
    let (queues, facts) = queues(&sides, 1_024, Pace::PerSecond(20_000), Faults::default());
    let feed = "hold = \"1ms\"\nside_timeout = \"1h\"\n";
    let config = live_config(directory.path(), &lines(feed, SMALL_STORE), 1_024, GROUP);
    let running = start(&config, queues, &Tampering { steal_every: 1_000, ..Tampering::default() });
    running.wait_for(&facts);
    let finished = running.stop();
    assert!(finished.residue > 0, "{:#}", finished.capture["conservation"]);
    let table = finished.capture["conservation"].as_array().expect("a table");
    let broken: Vec<&str> =
        table.iter().filter(|row| row["residue"] != 0).filter_map(|row| row["name"].as_str()).collect();
    assert!(broken.contains(&"handed to the store = taken by the store"), "{broken:?}");
    assert!(finished.queues("frames_home") < finished.queues("frames"), "a stolen frame is not at home");
}

#[test]
fn a_token_that_vanishes_before_the_arbiter_shows_a_residue() {
    let seed = 19;
    let sides = sides(&session(5_000, seed, 0), seed, &lossy(0.0, 0.0));
    let packets = sides.packets[0].clone();
    let (stolen, rest) = (packets.len() as u64 / 1_000, packets.len());
    let (table, residue, missing) = robbed_before_the_arbiter(packets, 1_024, 1_000);
    assert!(stolen > 0, "{rest} packets");
    assert_eq!(missing, stolen, "frames that did not come home");
    let broken = table.as_array().expect("a table").iter().filter(|row| row["residue"] != 0);
    let broken: Vec<&str> = broken.filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(broken, ["messages passed on by the queues = messages taken by the arbiter"], "{residue}: {table:#}");
    let (_, residue, missing) = robbed_before_the_arbiter(sides.packets[0].clone(), 1_024, u64::MAX);
    assert_eq!((residue, missing), (0, 0), "without a theft there is none");
}

#[test]
fn window_keeps_no_frames() {
    let seed = 15;
    let directory = tempfile::tempdir().expect("a directory");
    let mut sides = sides(&session(12_000, seed, 0), seed, &[SideSplit::default(); 2]);
    // Side A has a hole early on, and side B says nothing: what follows must be held.
    sides.packets[0].remove(20);
    sides.packets[1].clear();
    let frames = 256;
    let (queues, facts) = queues(&sides, frames, Pace::Released, Faults::default());
    let feed = format!("{HOLDING}window = 4096\ncopy_frames = 64\n");
    let config = live_config(directory.path(), &lines(&feed, SMALL_STORE), frames, GROUP);
    let running = start(&config, queues, &Tampering::default());
    let held = |running: &Running| {
        let report = running.capture.reports().remove(0).1;
        report.map_or(0, |report| report.streams.iter().map(|stream| stream.counts.held).sum())
    };
    facts[0].released.store(1_800, Relaxed);
    running.wait("a full window", |running| held(running) > 2_500);
    running.wait("every frame at home", |_| facts[0].get(|f| &f.home) == u64::from(frames));
    let counted = |running: &Running| number(&running.capture.glance()["queues"][0]["frames_home"]);
    running.wait("the worker's own count", |running| counted(running) == u64::from(frames));
    assert!(held(&running) > 2_500, "they are held still");
    // Beyond the window: it advances by itself, and the ring goes on.
    facts[0].released.store(u64::MAX, Relaxed);
    running.wait_for(&facts);
    let finished = running.stop();
    finished.balanced();
    assert_eq!(told_lost(&finished), nothing_lost());
    holds_the_truth(&reread(directory.path()), &sides, &finished.report, &nothing_lost(), false);
}

/// Packets of a side that are released at once.
const STEP: u64 = 500;

/// Both sides at 50,000 packets a second each, while something is set in the second third of the way. Everything must be
/// accounted for, the rings must never lack a frame, and there must have been a loss.
fn stalled(feed: &str, store: &str, tampering: &Tampering, stalls: &AtomicBool) {
    let seed = 16;
    let directory = tempfile::tempdir().expect("a directory");
    let sides = sides(&session(60_000, seed, 1), seed, &lossy(0.01, 0.01));
    // Twice the rings and both links: what `check` asks for.
    let frames = 2 * 4_096 + 2 * 4_096;
    let (queues, facts) = queues(&sides, frames, Pace::PerSecond(50_000), Faults::default());
    let config = live_config(directory.path(), &lines(&format!("{PATIENT}{feed}"), store), frames, GROUP);
    let arbitrated = |running: &Running| {
        let released =
            |facts: &Arc<Facts>| facts.get(|f| &f.released).min(facts.get(|f| &f.left) + facts.get(|f| &f.redirected));
        let came = facts.iter().all(|facts| facts.get(|f| &f.redirected) >= released(facts));
        let status = running.capture.status().1;
        let passed = |term: &str| sum(&status, "queues", term);
        let redirected: u64 = facts.iter().map(|facts| facts.get(|f| &f.redirected)).sum();
        came && passed("received") == redirected
            && sum(&status, "feeds", "segments") == passed("data_segments") + passed("heartbeats")
    };
    facts.iter().for_each(|facts| facts.released.store(0, Relaxed));
    let running = start(&config, queues, tampering);
    let most = sides.packets.iter().map(Vec::len).max().expect("two sides") as u64;
    let mut released = 0;
    while released < most {
        // In steps below the link before the arbiter: how fast this machine runs the arbiter is no matter here.
        released += STEP;
        stalls.store((most / 3..2 * most / 3).contains(&released), Relaxed);
        facts.iter().for_each(|facts| facts.released.store(released, Relaxed));
        running.wait("a step", arbitrated);
    }
    stalls.store(false, Relaxed);
    running.wait_for(&facts);
    let finished = running.stop();
    finished.balanced();
    for facts in &facts {
        assert_eq!(facts.get(|f| &f.starved), 0, "the ring had no frame: {} at home", facts.get(|f| &f.home_min));
    }
    let rings = ["rx_ring_full", "rx_dropped", "link_full"].map(|term| finished.queues(term));
    assert_eq!(rings, [0, 0, 0], "ring full, dropped, link full");
    let lost = told_lost(&finished);
    assert!(!lost.is_empty(), "nothing was lost: the stall proves nothing");
    holds_the_truth(&reread(directory.path()), &sides, &finished.report, &lost, false);
}

#[test]
fn slow_disk_costs_the_rings_nothing() {
    let store = "segment = \"16MiB\"\nblock = \"128KiB\"\nblocks_in_flight = 4\nflush = \"50ms\"\n";
    let tampering = Tampering::default();
    let stalls = tampering.disk_stalls.clone();
    stalled("", store, &tampering, &stalls);
}

#[test]
fn a_blocked_store_core_costs_the_rings_nothing() {
    // The session restarts while the store's link is full: its second stream must be known all the same.
    let tampering = Tampering::default();
    let stalls = tampering.core_blocks.clone();
    stalled("link = 1024\ncopy_frames = 128\n", SMALL_STORE, &tampering, &stalls);
}

/// The frames of a side as the store must give them: stamp and bytes, in the order of arrival.
fn frames_of(packets: &[Scripted]) -> Vec<(i64, Vec<u8>)> {
    packets.iter().map(|packet| (packet.capture_ns, packet.frame.to_vec())).collect()
}

#[test]
fn raw_frames_are_stored_side_by_side_whatever_the_merged_record_is() {
    let seed = 17;
    let mut sides = sides(&session(4_000, seed, 1), seed, &lossy(0.02, 0.02));
    // A datagram to the feed's group that is no segment has bytes too.
    let stray = Udp::to(Ipv4Addr::new(239, 192, 0, 1), 10_378, b"no segment").frame();
    let capture_ns = sides.packets[1][100].capture_ns;
    sides.packets[1].insert(100, Scripted { capture_ns, frame: stray.into() });
    for (record, has_merged, has_raw) in [("merged", true, false), ("raw", false, true), ("both", true, true)] {
        let directory = tempfile::tempdir().expect("a directory");
        let feed = format!("record = \"{record}\"\n");
        let finished = file_run(directory.path(), &sides, &feed, SMALL_STORE, &Tampering::default());
        finished.balanced();
        assert!(compare(&sides.truth, &finished.report).equal());
        let streams = reread(&directory.path().join("store"));
        if has_merged {
            holds_the_truth(&streams, &sides, &finished.report, &nothing_lost(), true);
        } else {
            assert!(merged(&streams).iter().all(|stored| stored.messages.is_empty()), "{record}");
        }
        for (side, packets) in ["A", "B"].iter().zip(&sides.packets) {
            let stored = streams.get(&format!("raw/f/{side}"));
            assert_eq!(stored.is_some(), has_raw, "{record}: side {side}");
            let Some(stored) = stored else { continue };
            assert!(stored.raw.is_sorted_by(|x, y| x.0 + 1 == y.0), "{record}: raw sequences have holes");
            let found: Vec<(i64, Vec<u8>)> = stored.raw.iter().map(|(_, at, bytes)| (*at, bytes.clone())).collect();
            assert!(found == frames_of(packets), "{record}: side {side}: {} frames", found.len());
        }
    }
}

/// A MoldUDP64 session of `packets` datagrams of one to five messages, with heartbeats and an end.
fn mold(packets: u64) -> Vec<(i64, Vec<u8>)> {
    let group = Ipv4Addr::new(239, 192, 0, 1);
    let mut next = 1;
    let mut frames = Vec::new();
    for packet in 0..packets {
        let count = if packet % 50 == 0 { 0 } else { (packet % 5 + 1) as u16 };
        let last = packet + 1 == packets;
        let shown = if last { moldudp64::END_OF_SESSION } else { count };
        let header = moldudp64::Header { session: *b"S001      ", sequence: next, count: shown };
        let mut payload = header.encode().to_vec();
        let end = if last { next } else { next + u64::from(count) };
        for sequence in next..end {
            let body: Vec<u8> =
                sequence.to_be_bytes().iter().copied().cycle().take(8 + sequence as usize % 60).collect();
            moldudp64::write_message(&body, &mut payload);
        }
        next = end;
        let capture_ns = 1_710_509_390_000_000_000 + packet as i64 * 20_000;
        frames.push((capture_ns, Udp::to(group, 10_378, &payload).frame()));
    }
    frames
}

#[test]
fn moldudp64_goes_through_the_same_pipeline() {
    let seed = 18;
    let directory = tempfile::tempdir().expect("a directory");
    let mut split = lossy(0.04, 0.04);
    split[1].duplicate = 0.0;
    let sides = mold_sides(&mold(3_000), seed, &split);
    let (queues, facts) = queues(&sides, 4_096, Pace::Free, Faults::default());
    let feed = format!("{PATIENT}link = 8192\n");
    let lines = Lines { protocol: "moldudp64", feed: &feed, store: SMALL_STORE };
    let config = live_config(directory.path(), &lines, 4_096, GROUP);
    let running = start(&config, queues, &Tampering::default());
    running.wait_for(&facts);
    let finished = running.stop();
    finished.balanced();
    let comparison = compare(&sides.truth, &finished.report);
    assert!(comparison.equal() && comparison.residual > 0, "{comparison:?}");
    let streams = reread(directory.path());
    assert!(streams.contains_key("moldudp64/S001/r0"), "{:?}", streams.keys());
    holds_the_truth(&streams, &sides, &finished.report, &nothing_lost(), false);
}

#[test]
fn a_store_goes_on_after_a_restart_and_after_a_kill() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = directory.path().join("store");
    let run = |seed: u64, id: u32| {
        let settings = Settings { session: id, ..session(4_000, seed, 0) };
        let sides = sides(&settings, seed, &lossy(0.0, 0.0));
        (file_run(directory.path(), &sides, "record = \"both\"\n", SMALL_STORE, &Tampering::default()), sides)
    };
    let (first, first_sides) = run(21, 1);
    first.balanced();
    let (second, _) = run(22, 2);
    second.balanced();
    assert!(number(&second.store["next_arrival"]) > number(&first.store["next_arrival"]), "arrival indexes go on");
    let whole = reread(&store);
    assert_eq!(files(&store, ".tri").len(), 2, "a segment for each run");
    let raw = &whole["raw/f/A"].raw;
    assert!(raw.is_sorted_by(|x, y| x.0 < y.0), "the second run's raw frames repeat the first one's sequences");

    // As kill -9 leaves it: the newest segment is unfinished and torn inside its last block.
    let newest = files(&store, ".tri").pop().expect("two");
    let torn = sluice::store::files::partial_path(&newest);
    std::fs::rename(&newest, &torn).expect("renamed");
    let bytes = std::fs::metadata(&torn).expect("there").len();
    let file = std::fs::OpenOptions::new().write(true).open(&torn).expect("opens");
    file.set_len(bytes / 2).expect("cut");
    drop(file);
    let (third, third_sides) = run(23, 3);
    third.balanced();
    let told = third.store["told"].as_array().expect("lines");
    assert!(told.iter().any(|line| line.as_str().is_some_and(|line| line.starts_with("recovered"))), "{told:?}");
    assert_eq!(files(&store, ".tri").len(), 3);
    let (mended, damage) = reread_torn(&store);
    let name = newest.file_name().expect("a name").to_string_lossy();
    assert!(damage.iter().all(|line| line.contains(&*name)) && damage.len() == 1, "the tear, and only it: {damage:?}");
    for (id, sides) in [(1, &first_sides), (3, &third_sides)] {
        let stored = &mended[&format!("iex-tp/0x8004/1/0x{id:08x}/r0")];
        assert_eq!(stored.messages.len(), sides.bodies.len(), "session {id}");
    }
    let before = whole["iex-tp/0x8004/1/0x00000002/r0"].messages.len();
    let kept = &mended["iex-tp/0x8004/1/0x00000002/r0"].messages;
    assert!(!kept.is_empty() && kept.len() < before, "{} of {before} kept", kept.len());
    assert!(kept.iter().map(|(n, ..)| *n).eq(1..=kept.len() as u64), "what was kept is whole");
}
