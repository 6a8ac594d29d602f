//! The capture job's metrics: the table, and the samples that are made from it.

use super::conservation::{COUNTS, FRONTIER, HANDED, PASSED_ON, PUBLISHED, RECEIVED, REDIRECTED, STORED, TAKEN};
use super::plan::{FeedView, QueueView, SideView};
use super::stats::{ArbiterCounter, QueueCounter, RawReason, SideCounter};
use super::status::XdpQueue;
use crate::feed::arbiter::{ArbiterReport, SideReport, StreamReport};
use crate::sync::metrics::{Metric, Sample};

const QUEUE: &[&str] = &["source", "queue"];
const QUEUE_REASON: &[&str] = &["source", "queue", "reason"];
const FEED: &[&str] = &["feed"];
const FEED_REASON: &[&str] = &["feed", "reason"];
const STREAM: &[&str] = &["feed", "stream"];
const STREAM_REASON: &[&str] = &["feed", "stream", "reason"];
const STREAM_SIDE: &[&str] = &["feed", "stream", "side"];

const QUEUES: [(QueueCounter, Metric); 11] = [
    (
        QueueCounter::Received,
        Metric::counter("sluice_capture_frames", QUEUE, "Packets taken from the source")
            .in_identities(&[REDIRECTED, RECEIVED]),
    ),
    (QueueCounter::Bytes, Metric::counter("sluice_capture_frame_bytes", QUEUE, "Bytes of the packets taken")),
    (
        QueueCounter::DataSegments,
        Metric::counter("sluice_capture_data_segments", QUEUE, "Segments with messages passed on")
            .in_identities(&[RECEIVED]),
    ),
    (
        QueueCounter::Heartbeats,
        Metric::counter("sluice_capture_heartbeats", QUEUE, "Heartbeats passed on").in_identities(&[RECEIVED]),
    ),
    (
        QueueCounter::LinkFull,
        Metric::counter("sluice_capture_link_full_frames", QUEUE, "Packets dropped because a link was full")
            .in_identities(&[RECEIVED]),
    ),
    (
        QueueCounter::Unstamped,
        Metric::counter("sluice_capture_unstamped_frames", QUEUE, "Packets without a stamp in their metadata"),
    ),
    (
        QueueCounter::RxDropped,
        Metric::counter("sluice_capture_rx_dropped_frames", QUEUE, "Packets that the socket dropped")
            .in_identities(&[REDIRECTED]),
    ),
    (
        QueueCounter::RxRingFull,
        Metric::counter("sluice_capture_rx_ring_full_frames", QUEUE, "Packets that found the receive ring full")
            .in_identities(&[REDIRECTED]),
    ),
    (
        QueueCounter::FillRingEmpty,
        Metric::counter("sluice_capture_fill_ring_empty", QUEUE, "Times the fill ring was empty"),
    ),
    (
        QueueCounter::RawLinkFull,
        Metric::counter(
            "sluice_capture_raw_link_full_frames",
            QUEUE,
            "Raw-only packets whose bytes were wanted, dropped because a link was full",
        ),
    ),
    (QueueCounter::FramesHome, Metric::gauge("sluice_capture_home_frames", QUEUE, "Frames in no other worker's hands")),
];

const RAW_ONLY: Metric =
    Metric::counter("sluice_capture_raw_only_frames", QUEUE_REASON, "Packets that are no segment of a feed")
        .in_identities(&[RECEIVED]);
const XDP_FRAMES: Metric = Metric::counter(
    "sluice_capture_xdp_frames",
    &["interface", "queue", "reason"],
    "Frames that the XDP program saw, by what it did with them",
)
.in_identities(&[REDIRECTED]);
/// How an interface really runs.
pub const ZERO_COPY: Metric = Metric::gauge(
    "sluice_capture_zero_copy",
    &["interface", "xdp"],
    "Whether every socket of the interface runs in zero-copy mode",
);
/// Which sides speak.
pub const SIDE_LIVE: Metric =
    Metric::gauge("sluice_capture_side_live", &["feed", "side"], "Whether the side counts as live in any session");
/// The metric that must be 0.
pub const RESIDUE: Metric = Metric::gauge(
    "sluice_capture_conservation_residue",
    &[],
    "Sum of the residues of the conservation table; in flight while running, 0 when drained",
);

const SIDE: Metric = Metric::counter(
    "sluice_capture_side_messages",
    &["feed", "side", "queue"],
    "Messages of the segments that a queue passed on to the arbiter",
)
.in_identities(&[PASSED_ON]);
const SIDE_LINK_FULL: Metric = Metric::counter(
    "sluice_capture_side_link_full_messages",
    &["feed", "side", "queue"],
    "Messages dropped at a queue because the link to the arbiter was full",
);

const NOT_HANDED: Metric = Metric::counter(
    "sluice_capture_not_handed_messages",
    FEED_REASON,
    "Messages that could not be handed to the store",
)
.in_identities(&[STORED]);
const FEEDS: [(ArbiterCounter, Metric); 8] = [
    (
        ArbiterCounter::Published,
        Metric::counter("sluice_capture_published_messages", FEED, "Messages published in the feed's ring")
            .in_identities(&[PUBLISHED]),
    ),
    (
        ArbiterCounter::PublishedMarks,
        Metric::counter(
            "sluice_capture_published_mark_records",
            FEED,
            "Gaps, beginnings and ends of streams, and side states published in the feed's ring",
        ),
    ),
    (
        ArbiterCounter::PublishRefused,
        Metric::counter(
            "sluice_capture_publish_refused_messages",
            FEED,
            "Messages that the feed's ring could not take",
        )
        .in_identities(&[PUBLISHED]),
    ),
    (
        ArbiterCounter::Messages,
        Metric::counter("sluice_capture_arbiter_messages", FEED, "Messages taken by the arbiter")
            .in_identities(&[PASSED_ON, TAKEN]),
    ),
    (
        ArbiterCounter::Handed,
        Metric::counter("sluice_capture_handed_messages", FEED, "Messages handed to the store")
            .in_identities(&[HANDED]),
    ),
    (
        ArbiterCounter::NotStored,
        Metric::counter("sluice_capture_not_stored_messages", FEED, "Messages that no store is configured for")
            .in_identities(&[STORED]),
    ),
    (
        ArbiterCounter::LostRaw,
        Metric::counter("sluice_capture_lost_raw_frames", FEED, "Raw frames that could not be handed to the store"),
    ),
    (
        ArbiterCounter::LostMarks,
        Metric::counter("sluice_capture_lost_mark_records", FEED, "Gap records that could not be handed to the store"),
    ),
];

const UNATTRIBUTED: Metric = Metric::counter(
    "sluice_capture_unattributed_messages",
    FEED_REASON,
    "Messages rejected before any stream: \"limit\" means that streams_max or runs_max is used up",
)
.in_identities(&[TAKEN]);

/// A term of a stream's report.
type Of<R> = fn(&R) -> u64;

const STREAMS: [(Of<StreamReport>, Metric); 11] = [
    (
        |stream| stream.counts.unique,
        Metric::counter("sluice_capture_unique_messages", STREAM, "Messages emitted in order")
            .in_identities(&[COUNTS, FRONTIER, PUBLISHED, STORED]),
    ),
    (
        |stream| stream.counts.duplicate,
        Metric::counter("sluice_capture_duplicate_messages", STREAM, "Messages that had come already")
            .in_identities(&[COUNTS]),
    ),
    (
        |stream| stream.counts.late_fill,
        Metric::counter("sluice_capture_late_fill_messages", STREAM, "Messages that came after their gap was declared")
            .in_identities(&[COUNTS, FRONTIER, STORED]),
    ),
    (
        |stream| stream.counts.late,
        Metric::counter("sluice_capture_late_messages", STREAM, "Other messages below the next one")
            .in_identities(&[COUNTS]),
    ),
    (
        |stream| stream.counts.offered,
        Metric::counter("sluice_capture_offered_messages", STREAM, "Messages of all sides")
            .in_identities(&[TAKEN, COUNTS]),
    ),
    (
        |stream| stream.counts.frontier - stream.counts.base,
        Metric::counter("sluice_capture_frontier_messages", STREAM, "Highest accepted end minus base")
            .in_identities(&[FRONTIER]),
    ),
    (
        |stream| stream.counts.held,
        Metric::gauge("sluice_capture_held_messages", STREAM, "Messages in the reorder window")
            .in_identities(&[COUNTS, FRONTIER]),
    ),
    (
        |stream| stream.counts.pending,
        Metric::gauge("sluice_capture_pending_messages", STREAM, "Messages in pending suspects")
            .in_identities(&[COUNTS]),
    ),
    (
        |stream| stream.missing,
        Metric::gauge("sluice_capture_missing_messages", STREAM, "Messages neither held nor declared lost yet")
            .in_identities(&[FRONTIER]),
    ),
    (
        |stream| stream.counts.gap,
        Metric::gauge("sluice_capture_gap_messages", STREAM, "Messages lost on every side, net of late fills")
            .in_identities(&[FRONTIER]),
    ),
    (
        |stream| stream.gaps.len() as u64,
        Metric::gauge("sluice_capture_gap_ranges", STREAM, "Ranges that those messages make, of the youngest 65,536"),
    ),
];

const REJECTED: Metric = Metric::counter(
    "sluice_capture_rejected_messages",
    STREAM_REASON,
    "Messages rejected: \"wild\" was confirmed by nobody, \"overflow\" fits no i64, \"limit\" found runs_max used up",
)
.in_identities(&[COUNTS]);

const STREAM_SIDES: [(Of<SideReport>, Metric); 4] = [
    (
        |side| side.lost,
        Metric::gauge("sluice_capture_side_lost_messages", STREAM_SIDE, "Messages that the side never delivered"),
    ),
    (
        |side| side.recovered,
        Metric::gauge("sluice_capture_side_recovered_messages", STREAM_SIDE, "Of those, supplied by another side"),
    ),
    (
        |side| side.wins,
        Metric::gauge("sluice_capture_side_wins_messages", STREAM_SIDE, "Messages of which this side's copy was first"),
    ),
    (
        |side| side.counts.reordered,
        Metric::counter(
            "sluice_capture_side_reordered_segments",
            STREAM_SIDE,
            "Segments that came after a later one of their own side",
        ),
    ),
];

/// Every metric of the job.
pub fn metrics() -> Vec<Metric> {
    let alone = [RAW_ONLY, XDP_FRAMES, ZERO_COPY, SIDE_LIVE, SIDE, SIDE_LINK_FULL, NOT_HANDED, UNATTRIBUTED, REJECTED];
    let queues = QUEUES.iter().map(|(_, metric)| *metric);
    let feeds = FEEDS.iter().map(|(_, metric)| *metric);
    let streams = STREAMS.iter().map(|(_, metric)| *metric);
    let sides = STREAM_SIDES.iter().map(|(_, metric)| *metric);
    queues.chain(alone).chain(feeds).chain(streams).chain(sides).chain([RESIDUE]).collect()
}

/// A queue's samples.
pub fn queue(queue: &QueueView, out: &mut Vec<Sample>) {
    let number = queue.queue.to_string();
    for (counter, metric) in &QUEUES {
        out.push(metric.sample(&[&queue.source, &number], queue.counters.get(*counter) as f64));
    }
    for reason in RawReason::all() {
        let value = queue.counters.get(QueueCounter::RawOnly(reason)) as f64;
        out.push(RAW_ONLY.sample(&[&queue.source, &number, reason.label()], value));
    }
}

/// What an XDP program counted on a queue.
pub fn program(program: &XdpQueue, out: &mut Vec<Sample>) {
    let queue = program.queue.to_string();
    for (reason, count) in &program.counts {
        out.push(XDP_FRAMES.sample(&[&program.interface, &queue, reason], *count as f64));
    }
}

/// A side's samples at one queue.
pub fn side(side: &SideView, queue: &QueueView, out: &mut Vec<Sample>) {
    let labels = [side.feed.clone(), side.side.to_string(), format!("{}:{}", queue.source, queue.queue)];
    let labels = [labels[0].as_str(), &labels[1], &labels[2]];
    out.push(SIDE.sample(&labels, side.counters.get(SideCounter::Messages) as f64));
    out.push(SIDE_LINK_FULL.sample(&labels, side.counters.get(SideCounter::LinkFullMessages) as f64));
}

/// An arbiter's samples.
pub fn feed(feed: &FeedView, out: &mut Vec<Sample>) {
    let lost = [("link_full", ArbiterCounter::LostLinkFull), ("copy_pool", ArbiterCounter::LostCopyPool)];
    for (reason, counter) in lost {
        out.push(NOT_HANDED.sample(&[&feed.name, reason], feed.counters.get(counter) as f64));
    }
    for (counter, metric) in &FEEDS {
        out.push(metric.sample(&[&feed.name], feed.counters.get(*counter) as f64));
    }
}

/// Messages that belong to no stream: beyond the limits, or with numbers that cannot be.
pub fn unattributed(feed: &str, report: &ArbiterReport, out: &mut Vec<Sample>) {
    let reasons = [("limit", report.unattributed.rejected_limit), ("overflow", report.unattributed.rejected_overflow)];
    for (reason, count) in reasons {
        out.push(UNATTRIBUTED.sample(&[feed, reason], count as f64));
    }
}

/// A stream's samples.
pub fn stream(feed: &str, stream: &StreamReport, out: &mut Vec<Sample>) {
    for (value, metric) in &STREAMS {
        out.push(metric.sample(&[feed, &stream.stream], value(stream) as f64));
    }
    let counts = &stream.counts;
    let reasons =
        [("wild", counts.rejected_wild), ("overflow", counts.rejected_overflow), ("limit", counts.rejected_limit)];
    for (reason, count) in reasons {
        out.push(REJECTED.sample(&[feed, &stream.stream, reason], count as f64));
    }
    for side in &stream.sides {
        for (value, metric) in &STREAM_SIDES {
            out.push(metric.sample(&[feed, &stream.stream, &side.side.to_string()], value(side) as f64));
        }
    }
}
