//! From a store's configuration to its worker, its files' thread and what others may know of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::files::{Files, FilesSettings, Notify, Room};
use super::retention::{BOUNDS, Retention};
use super::store_worker::{StoreCounter, StoreWorker, StreamBooks, StreamCell, StreamNames};
use super::{Codec, LostCause, StampSource, StoreError, SyncPolicy, WriterSettings};
use crate::config::{Fsync, Store};
use crate::feed::handoff::Handoff;
use crate::runtime::link::{Doorbell, LinkReceiver, LinkSender};
use crate::runtime::worker::Worker;
use crate::sync::counters::{CounterReader, counters};
use crate::sync::health::{HealthReason, Shape, Sign};
use crate::sync::latest::Latest;
use crate::sync::metrics::{Metric, Sample};
use crate::sys::frames::{Areas, FrameToken};
use crate::units::{SIDES_MAX, Side, StreamId};

const STORE: &[&str] = &["store"];
const STORE_FEED: &[&str] = &["store", "feed"];
const STORE_REASON: &[&str] = &["store", "reason"];
/// The identities of the capture's conservation table of which this job counts terms.
const HANDED: &[&str] = &["handed to the store = taken by the store"];
const KEPT: &[&str] = &["unique + late_fill = stored + store_lost + in_flight"];

const COUNTERS: [(StoreCounter, Metric); 16] = [
    (StoreCounter::FailedSeals, Metric::counter("sluice_store_failed_seals", STORE, "Segments whose seal failed")),
    (StoreCounter::FailedSyncs, Metric::counter("sluice_store_failed_syncs", STORE, "Syncs that failed")),
    (StoreCounter::Syncs, Metric::counter("sluice_store_syncs", STORE, "Syncs done")),
    (
        StoreCounter::Stored,
        Metric::counter("sluice_store_stored_records", STORE, "Messages and raw frames in completed writes"),
    ),
    (StoreCounter::WrittenBytes, Metric::counter("sluice_store_written_bytes", STORE, "Bytes of completed writes")),
    (
        StoreCounter::FailedBlocks,
        Metric::counter("sluice_store_failed_blocks", STORE, "Blocks whose write failed for good"),
    ),
    (StoreCounter::Retried, Metric::counter("sluice_store_retried_writes", STORE, "Writes tried again")),
    (StoreCounter::Sealed, Metric::counter("sluice_store_sealed_segments", STORE, "Segments sealed")),
    (StoreCounter::FreeBlocks, Metric::gauge("sluice_store_free_blocks", STORE, "Free blocks of the pool")),
    (
        StoreCounter::InFlight,
        Metric::gauge("sluice_store_in_flight_records", STORE, "Messages and raw frames in blocks under way"),
    ),
    (
        StoreCounter::Durable,
        Metric::gauge(
            "sluice_store_durable_records",
            STORE,
            "Arrival index below which every record is durable or counted as lost",
        ),
    ),
    (
        StoreCounter::Full,
        Metric::gauge("sluice_store_full", STORE, "Whether the file system is full: 0 again after a second with room"),
    ),
    (
        StoreCounter::FullTimes,
        Metric::counter("sluice_store_full_times", STORE, "Times that the file system became full"),
    ),
    (
        StoreCounter::FailedSegments,
        Metric::counter(
            "sluice_store_failed_segments",
            STORE,
            "Tries to make a segment that failed, 5 a second while the file system is full",
        ),
    ),
    (
        StoreCounter::StoredMarks,
        Metric::counter(
            "sluice_store_stored_mark_records",
            STORE,
            "Marks of streams (gaps, beginnings, ends) in completed writes, beside messages and raw frames",
        ),
    ),
    (
        StoreCounter::LostMarks,
        Metric::counter(
            "sluice_store_lost_mark_records",
            STORE,
            "Marks of streams that could not be stored, beside messages and raw frames",
        ),
    ),
];
const LOST: Metric =
    Metric::counter("sluice_store_lost_records", STORE_REASON, "Messages and raw frames that could not be stored");
const KEPT_BYTES: Metric = Metric::gauge(
    "sluice_store_kept_bytes",
    STORE,
    "Bytes that the store's segments take on the disk, those being written and made ahead included; looked at every 5 s",
);
const KEPT_SEGMENTS: Metric = Metric::gauge("sluice_store_kept_segments", STORE, "How many segments these are");
const FREE_BYTES: Metric =
    Metric::gauge("sluice_store_free_bytes", STORE, "Bytes of the store's file system that are free to a plain user");
const TOTAL_BYTES: Metric = Metric::gauge("sluice_store_total_bytes", STORE, "Bytes of the store's file system in all");
const DELETED_BYTES: Metric =
    Metric::counter("sluice_store_deleted_bytes", STORE, "Bytes that segments deleted by retention took");
const DELETED_SEGMENTS: Metric = Metric::counter(
    "sluice_store_deleted_segments",
    STORE_REASON,
    "Segments deleted by retention: for \"bytes\" (retain), \"age\" (retain_age) or \"free\" (free_min)",
);
const FEED_TAKEN: Metric =
    Metric::counter("sluice_store_taken_messages", STORE_FEED, "Messages taken from the feed's arbiter")
        .in_identities(HANDED);
const FEED_STORED: Metric =
    Metric::counter("sluice_store_stored_messages", STORE_FEED, "Messages of the feed in completed writes")
        .in_identities(KEPT);
const FEED_LOST: Metric =
    Metric::counter("sluice_store_lost_messages", STORE_FEED, "Messages of the feed that could not be stored")
        .in_identities(KEPT);
const FEED_IN_FLIGHT: Metric =
    Metric::gauge("sluice_store_in_flight_messages", STORE_FEED, "Messages of the feed in blocks under way")
        .in_identities(KEPT);

/// Every metric of the job.
pub fn metrics() -> Vec<Metric> {
    let counters = COUNTERS.iter().map(|(_, metric)| *metric);
    let room = [KEPT_BYTES, KEPT_SEGMENTS, FREE_BYTES, TOTAL_BYTES, DELETED_BYTES, DELETED_SEGMENTS];
    let feeds = [FEED_TAKEN, FEED_STORED, FEED_LOST, FEED_IN_FLIGHT];
    counters.chain([LOST]).chain(room).chain(feeds).collect()
}

/// What a store's worker is made of.
pub struct StoreParts {
    /// Its section.
    pub settings: Store,
    /// One link per feed.
    pub inputs: Vec<LinkReceiver<Handoff<FrameToken>>>,
    /// The feeds' names, in the order of `inputs`.
    pub feeds: Vec<String>,
    /// Most streams of any of the feeds.
    pub streams_max: u32,
    /// The way home of each area's frames.
    pub returns: Vec<Option<LinkSender<FrameToken>>>,
    /// Frames' bytes.
    pub areas: Areas,
    /// Where the frames' stamps come from.
    pub stamp_source: StampSource,
    /// The worker's core's doorbell: the files' thread rings it.
    pub doorbell: Arc<Doorbell>,
}

/// Loss ranges and other words of a store for the control thread.
#[derive(Default)]
pub struct StoreDesk {
    /// (stream key, cause, first, last).
    pub losses: Vec<(String, &'static str, u64, u64)>,
    /// More ranges were lost than the list holds; the counters stay exact.
    pub losses_truncated: bool,
    /// What the files' thread said: recoveries, removals, troubles; newest last.
    pub told: Vec<String>,
}

/// What is known of a running store.
pub struct StoreView {
    name: String,
    path: String,
    feeds: Vec<String>,
    counters: CounterReader<StoreCounter>,
    books: Vec<StreamBooks>,
    names: Arc<Mutex<StreamNames>>,
    desk: Arc<Mutex<StoreDesk>>,
    retention: Latest<Retention>,
    room: Arc<Room>,
}

/// One feed's messages in its store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FeedBook {
    /// The feed.
    pub feed: String,
    /// Messages taken from the link.
    pub taken: u64,
    /// Messages in completed writes.
    pub stored: u64,
    /// Messages lost.
    pub lost: u64,
    /// Messages in blocks under way.
    pub in_flight: u64,
}

/// Streams of one feed in a store's numbering: its own, then one for the raw frames of each side.
pub(super) fn ids_per_feed(streams_max: u32) -> u32 {
    streams_max + SIDES_MAX as u32
}

/// The store's number of a feed's stream.
pub(super) fn store_stream(feed: usize, streams_max: u32, stream: StreamId) -> StreamId {
    StreamId(feed as u32 * ids_per_feed(streams_max) + stream.0)
}

/// The store's number of a side's raw frames.
pub(super) fn raw_stream(feed: usize, streams_max: u32, side: Side) -> StreamId {
    StreamId(feed as u32 * ids_per_feed(streams_max) + streams_max + u32::from(side.0))
}

/// Opens the directory (recovering what a crash left) and makes the worker.
///
/// # Errors
/// When the directory cannot be made, locked or read.
pub fn store_worker(parts: StoreParts) -> Result<(Box<dyn Worker>, Arc<StoreView>), StoreError> {
    let settings = &parts.settings;
    let bell = parts.doorbell.clone();
    let notify: Notify = Box::new(move || bell.event.signal());
    let (files, arrival_first) = Files::start(files_settings(settings), notify)?;
    let (writer, reader) = counters();
    let ids = ids_per_feed(parts.streams_max) as usize * parts.feeds.len();
    let books: StreamBooks = (0..ids).map(|_| StreamCell::default()).collect();
    let names = Arc::new(Mutex::new(StreamNames::default()));
    let desk = Arc::new(Mutex::new(StoreDesk::default()));
    let view = StoreView {
        name: settings.name.clone(),
        path: settings.path.display().to_string(),
        feeds: parts.feeds.clone(),
        counters: reader,
        books: vec![books.clone()],
        names: names.clone(),
        desk: desk.clone(),
        retention: files.retention(),
        room: files.room(),
    };
    let writer_settings = writer_settings(settings, arrival_first);
    let worker = StoreWorker::new(parts, writer_settings, files, writer, books, names, desk)?;
    Ok((Box::new(worker), Arc::new(view)))
}

fn files_settings(store: &Store) -> FilesSettings {
    FilesSettings {
        directory: store.path.clone(),
        single: None,
        preallocate_bytes: store.segment.0,
        block_bytes: store.block.0 as u32,
        direct: store.direct,
        retention: retention(store),
    }
}

/// The bounds of a store.
pub fn retention(store: &Store) -> Retention {
    let bound = |bytes: u64| (bytes > 0).then_some(bytes);
    Retention {
        bytes_max: bound(store.retain.0),
        age_ns_max: Some(store.retain_age.nanos()).filter(|&age| age > 0),
        free_bytes_min: bound(store.free_min.0),
    }
}

fn writer_settings(store: &Store, arrival_first: u64) -> WriterSettings {
    WriterSettings {
        block_bytes: store.block.0 as usize,
        flush_ns: store.flush.nanos(),
        segment_bytes: store.segment.0,
        segment_ns: Some(store.rotate.nanos()).filter(|&rotate| rotate > 0),
        sync: match store.fsync {
            Fsync::Seal => SyncPolicy::Never,
            Fsync::Interval => SyncPolicy::Interval(store.fsync_interval.nanos()),
            Fsync::Block => SyncPolicy::EveryBlock,
        },
        codec: if store.zstd > 0 { Codec::Zstd } else { Codec::None },
        zstd_level: store.zstd.max(1),
        arrival_first,
        ..WriterSettings::default()
    }
}

/// Every feed's books over all stores. Raw frames are not messages and are left out.
pub fn store_books(views: &[Arc<StoreView>]) -> Vec<FeedBook> {
    views.iter().flat_map(|view| view.feed_books()).collect()
}

impl StoreView {
    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Other bounds: they hold from the files' thread's next look on, seconds later.
    pub fn set_retention(&self, retention: Retention) {
        self.retention.set(retention);
    }

    fn feed_books(&self) -> Vec<FeedBook> {
        let cells = &self.books[0];
        // A store that no feed writes to has no cells.
        let per_feed = cells.len() / self.feeds.len().max(1);
        let messages = per_feed.saturating_sub(SIDES_MAX);
        let book = |(index, feed): (usize, &String)| {
            let mut book = FeedBook { feed: feed.clone(), ..FeedBook::default() };
            for cell in &cells[index * per_feed..index * per_feed + messages] {
                let [taken, stored, lost, in_flight] = cell.read();
                book.taken += taken;
                book.stored += stored;
                book.lost += lost;
                book.in_flight += in_flight;
            }
            book
        };
        self.feeds.iter().enumerate().map(book).collect()
    }

    /// Messages and raw frames in completed writes, as of the last write.
    pub fn stored(&self) -> u64 {
        self.counters.get(StoreCounter::Stored)
    }

    fn lost(&self) -> u64 {
        LostCause::ALL.iter().map(|&cause| self.counters.get(StoreCounter::Lost(cause))).sum()
    }

    /// The store's samples.
    pub fn samples(&self, out: &mut Vec<Sample>) {
        let name = self.name.as_str();
        for (counter, metric) in &COUNTERS {
            out.push(metric.sample(&[name], self.counters.get(*counter) as f64));
        }
        for cause in LostCause::ALL {
            out.push(LOST.sample(&[name, cause.label()], self.counters.get(StoreCounter::Lost(cause)) as f64));
        }
        let room = |value: &AtomicU64| value.load(Ordering::Relaxed) as f64;
        for (metric, value) in [
            (&KEPT_BYTES, &self.room.kept_bytes),
            (&KEPT_SEGMENTS, &self.room.kept_segments),
            (&FREE_BYTES, &self.room.free_bytes),
            (&TOTAL_BYTES, &self.room.total_bytes),
            (&DELETED_BYTES, &self.room.deleted_bytes),
        ] {
            out.push(metric.sample(&[name], room(value)));
        }
        for (bound, count) in BOUNDS.iter().zip(&self.room.deleted_segments) {
            out.push(DELETED_SEGMENTS.sample(&[name, bound], room(count)));
        }
        for book in self.feed_books() {
            for (metric, value) in [
                (&FEED_TAKEN, book.taken),
                (&FEED_STORED, book.stored),
                (&FEED_LOST, book.lost),
                (&FEED_IN_FLIGHT, book.in_flight),
            ] {
                out.push(metric.sample(&[name, &book.feed], value as f64));
            }
        }
    }

    /// The store's signs of trouble.
    pub fn health(&self, out: &mut Vec<Sign>) {
        let get = |counter| self.counters.get(counter);
        let failed = get(StoreCounter::FailedBlocks) + get(StoreCounter::FailedSyncs) + get(StoreCounter::FailedSeals);
        let mut say = |reason, shape, what: &str| {
            out.push(Sign::new(reason, shape, self.name.clone(), format!("store \"{}\": {what}", self.name)));
        };
        if get(StoreCounter::Full) == 1 {
            let what = format!("the file system of {} is full", self.path);
            say(HealthReason::StoreFull, Shape::Holds, &what);
        }
        say(HealthReason::StoreLosing, Shape::Grows(self.lost()), "records could not be stored");
        say(HealthReason::StoreFailing, Shape::Grows(failed), "writes, syncs or seals failed for good");
    }

    /// The store's part of `/status`.
    pub fn status(&self) -> Value {
        let get = |counter| self.counters.get(counter);
        // One lock at a time: the worker never takes two either.
        let (losses, told, truncated) = {
            let desk = self.desk.lock().expect("nobody panics with it held");
            (desk.losses.clone(), desk.told.clone(), desk.losses_truncated)
        };
        let losses: Vec<Value> = losses
            .iter()
            .map(|(stream, cause, first, last)| json!({"stream": stream, "cause": cause, "first": first, "last": last}))
            .collect();
        let causes: serde_json::Map<String, Value> = LostCause::ALL
            .iter()
            .map(|&cause| (cause.label().to_string(), json!(get(StoreCounter::Lost(cause)))))
            .collect();
        let room = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let deleted: u64 = self.room.deleted_segments.iter().map(room).sum();
        let names = self.names.lock().expect("nobody panics with it held");
        let bounds = **self.retention.clone().look();
        let streams: Vec<Value> = names
            .0
            .iter()
            .map(|(id, key)| {
                let [taken, stored, lost, in_flight] = self.books[0][id.0 as usize].read();
                json!({"stream": key, "taken": taken, "stored": stored, "lost": lost, "in_flight": in_flight})
            })
            .collect();
        json!({
            "store": self.name, "path": self.path, "feeds": self.feeds,
            "appended": get(StoreCounter::Appended), "stored": get(StoreCounter::Stored), "lost": self.lost(),
            "stored_marks": get(StoreCounter::StoredMarks), "lost_marks": get(StoreCounter::LostMarks),
            "lost_by_cause": causes, "in_flight": get(StoreCounter::InFlight),
            "written_bytes": get(StoreCounter::WrittenBytes), "written_blocks": get(StoreCounter::WrittenBlocks),
            "failed_blocks": get(StoreCounter::FailedBlocks), "retried_writes": get(StoreCounter::Retried),
            "syncs": get(StoreCounter::Syncs), "failed_syncs": get(StoreCounter::FailedSyncs),
            "sealed_segments": get(StoreCounter::Sealed), "failed_seals": get(StoreCounter::FailedSeals),
            "free_blocks": get(StoreCounter::FreeBlocks), "full": get(StoreCounter::Full) == 1,
            "full_times": get(StoreCounter::FullTimes), "failed_segments": get(StoreCounter::FailedSegments),
            "kept_bytes": room(&self.room.kept_bytes), "kept_segments": room(&self.room.kept_segments),
            "free_bytes": room(&self.room.free_bytes), "total_bytes": room(&self.room.total_bytes),
            "deleted_bytes": room(&self.room.deleted_bytes), "deleted_segments": deleted,
            "bounds": {
                "bytes_max": bounds.bytes_max, "age_seconds_max": bounds.age_ns_max.map(|age| age as f64 / 1e9),
                "free_bytes_min": bounds.free_bytes_min,
            },
            "durable_arrival": get(StoreCounter::Durable), "next_arrival": get(StoreCounter::Next),
            "streams": streams, "losses": losses, "losses_truncated": truncated, "told": told,
        })
    }
}
