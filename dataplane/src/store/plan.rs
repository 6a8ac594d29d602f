//! From a store's configuration to its worker, its files' thread and what others may know of it.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::files::{Files, FilesSettings, Notify};
use super::retention::Retention;
use super::store_worker::{StoreCounter, StoreWorker, StreamBooks, StreamCell, StreamNames};
use super::{Codec, LostCause, StampSource, StoreError, SyncPolicy, WriterSettings};
use crate::config::{Config, Finding, Fsync, Store};
use crate::feed::handoff::Handoff;
use crate::runtime::link::{Doorbell, LinkReceiver, LinkSender};
use crate::runtime::worker::Worker;
use crate::sync::counters::{CounterReader, counters};
use crate::sync::latest::Latest;
use crate::sync::metrics::{Kind, Sample};
use crate::sys::frames::{Areas, FrameToken};
use crate::units::{SIDES_MAX, Side, StreamId};

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

/// What of the stores' directories `run` would refuse. Changes nothing.
pub fn check_files(config: &Config) -> Vec<Finding> {
    let is_other = |store: &&Store| store.path.exists() && !store.path.is_dir();
    let told = |store: &Store| Finding {
        key: format!("store \"{}\": path", store.name),
        what: format!("is \"{}\", which is no directory: name one, or what can be made one", store.path.display()),
    };
    config.stores.iter().filter(is_other).map(told).collect()
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
        let per_feed = cells.len() / self.feeds.len().max(1);
        let messages = per_feed - SIDES_MAX;
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
        let named: [(&'static str, &'static str, Kind, StoreCounter); 12] = [
            ("sluice_store_failed_seals", "Segments whose seal failed", Kind::Counter, StoreCounter::FailedSeals),
            ("sluice_store_failed_syncs", "Syncs that failed", Kind::Counter, StoreCounter::FailedSyncs),
            ("sluice_store_syncs", "Syncs done", Kind::Counter, StoreCounter::Syncs),
            (
                "sluice_store_stored_records",
                "Messages and raw frames in completed writes",
                Kind::Counter,
                StoreCounter::Stored,
            ),
            ("sluice_store_written_bytes", "Bytes of completed writes", Kind::Counter, StoreCounter::WrittenBytes),
            (
                "sluice_store_failed_blocks",
                "Blocks whose write failed for good",
                Kind::Counter,
                StoreCounter::FailedBlocks,
            ),
            ("sluice_store_retried_writes", "Writes tried again", Kind::Counter, StoreCounter::Retried),
            ("sluice_store_sealed_segments", "Segments sealed", Kind::Counter, StoreCounter::Sealed),
            ("sluice_store_free_blocks", "Free blocks of the pool", Kind::Gauge, StoreCounter::FreeBlocks),
            (
                "sluice_store_in_flight_records",
                "Messages and raw frames in blocks under way",
                Kind::Gauge,
                StoreCounter::InFlight,
            ),
            (
                "sluice_store_durable_records",
                "Arrival index below which every record is durable or counted as lost",
                Kind::Gauge,
                StoreCounter::Durable,
            ),
            ("sluice_store_full", "Whether the file system is known to be full", Kind::Gauge, StoreCounter::Full),
        ];
        for (name, help, kind, counter) in named {
            let labels = vec![("store", self.name.clone())];
            out.push(Sample { name, help, kind, labels, value: self.counters.get(counter) as f64 });
        }
        for cause in LostCause::ALL {
            out.push(Sample {
                name: "sluice_store_lost_records",
                help: "Messages and raw frames that could not be stored",
                kind: Kind::Counter,
                labels: vec![("store", self.name.clone()), ("reason", cause.label().to_string())],
                value: self.counters.get(StoreCounter::Lost(cause)) as f64,
            });
        }
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
        let names = self.names.lock().expect("nobody panics with it held");
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
            "lost_by_cause": causes, "in_flight": get(StoreCounter::InFlight),
            "written_bytes": get(StoreCounter::WrittenBytes), "written_blocks": get(StoreCounter::WrittenBlocks),
            "failed_blocks": get(StoreCounter::FailedBlocks), "retried_writes": get(StoreCounter::Retried),
            "syncs": get(StoreCounter::Syncs), "failed_syncs": get(StoreCounter::FailedSyncs),
            "sealed_segments": get(StoreCounter::Sealed), "failed_seals": get(StoreCounter::FailedSeals),
            "free_blocks": get(StoreCounter::FreeBlocks), "full": get(StoreCounter::Full) == 1,
            "durable_arrival": get(StoreCounter::Durable), "next_arrival": get(StoreCounter::Next),
            "streams": streams, "losses": losses, "losses_truncated": truncated, "told": told,
        })
    }
}
