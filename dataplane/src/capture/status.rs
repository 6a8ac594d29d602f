//! What the capture job shows of itself: `/status`, `/metrics`, the conservation table.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::arbiter_worker::{Loss, ReportDesk};
use super::conservation::{self, Identity, residue};
use super::health::{self, Rest};
use super::metrics;
use super::plan::{FeedView, QueueView, SideView};
use super::quality::{self, FeedBooks};
use super::stats::{ArbiterCounter, QueueCounter, RawReason, SideCounter};
use crate::feed::arbiter::ArbiterReport;
use crate::sync::health::Sign;
use crate::sync::metrics::{Sample, Source};

/// Loss ranges kept for `/status`, the oldest ones: 3 MiB. What came later is only in the counters, and `/status` says how
/// much that is.
const LOSSES_MAX: usize = 65_536;

/// What an interface's XDP program counted on one queue, and how it runs.
#[derive(Clone, Debug, Default)]
pub struct XdpQueue {
    /// Interface (as configured).
    pub interface: String,
    /// Receive queue.
    pub queue: u32,
    /// (reason, count).
    pub counts: Vec<(&'static str, u64)>,
}

/// What an interface really runs as.
#[derive(Clone, Debug, Default)]
pub struct InterfaceMode {
    /// Interface (as configured).
    pub interface: String,
    /// Where the program is attached: `native`, `generic`, ….
    pub xdp: String,
    /// Whether every socket got zero-copy.
    pub zero_copy: bool,
    /// Bytes of a frame's chunk.
    pub chunk_bytes: u32,
    /// Frames over several chunks are taken.
    pub multi_buffer: bool,
}

/// Reads the XDP programs' counters; they stay readable after the detach.
pub type XdpReader = Box<dyn Fn() -> Vec<XdpQueue> + Send + Sync>;

/// The store's side of a feed's books, told by the store job: (feed, stored, store_lost, in_flight) in messages.
pub type StoreBooks = Box<dyn Fn() -> Vec<StoreBook> + Send + Sync>;

/// One feed's messages in its store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoreBook {
    /// The feed.
    pub feed: String,
    /// Messages taken from the link.
    pub taken: u64,
    /// Messages in completed writes.
    pub stored: u64,
    /// Messages that could not be stored.
    pub lost: u64,
    /// Messages in blocks that are not written yet.
    pub in_flight: u64,
}

/// The capture job's status source.
pub struct CaptureStatus {
    queues: Vec<QueueView>,
    sides: Vec<SideView>,
    feeds: Vec<FeedView>,
    damage: Arc<Mutex<Vec<String>>>,
    losses: Mutex<Vec<(String, Loss)>>,
    xdp: XdpReader,
    modes: Vec<InterfaceMode>,
    books: StoreBooks,
    rest: Mutex<Rest>,
}

impl CaptureStatus {
    /// A source over the plan's views.
    pub fn new(
        queues: Vec<QueueView>,
        sides: Vec<SideView>,
        feeds: Vec<FeedView>,
        damage: Arc<Mutex<Vec<String>>>,
        xdp: XdpReader,
        modes: Vec<InterfaceMode>,
        books: StoreBooks,
    ) -> CaptureStatus {
        CaptureStatus {
            queues,
            sides,
            feeds,
            damage,
            losses: Mutex::default(),
            xdp,
            modes,
            books,
            rest: Mutex::default(),
        }
    }

    /// Whether every source has come to its end (files only).
    pub fn ended(&self) -> bool {
        !self.queues.is_empty() && self.queues.iter().all(|queue| queue.counters.get(QueueCounter::Ended) == 1)
    }

    /// Damage found in files, a line each.
    pub fn damage(&self) -> Vec<String> {
        self.damage.lock().expect("nobody panics with it held").clone()
    }

    /// Fresh reports, by feed; waits for the arbiters within a bound.
    pub fn reports(&self) -> Vec<(String, Option<Arc<ArbiterReport>>)> {
        let reports = ReportDesk::read_all(self.feeds.iter().map(|feed| &*feed.desk));
        self.feeds.iter().map(|feed| feed.name.clone()).zip(reports).collect()
    }

    /// Which sides of each feed are live: (feed, side's name, live), in a fixed order.
    pub fn sides_live(&self) -> Vec<(&str, &str, bool)> {
        let sides = self.feeds.iter().flat_map(|feed| {
            let live = feed.counters.get(ArbiterCounter::SidesLive);
            feed.sides
                .iter()
                .enumerate()
                .map(move |(at, side)| (feed.name.as_str(), side.as_str(), live >> at & 1 == 1))
        });
        sides.collect()
    }

    /// Every identity of docs/reference/metrics.md that this job's terms can form.
    pub fn conservation(&self) -> Vec<Identity> {
        self.conservation_of(&self.reports())
    }

    /// The feeds' cumulative books for the data-quality report, with fresh reports, and the packets that came without a stamp.
    pub fn quality(&self) -> (Vec<FeedBooks>, u64) {
        let stores = (self.books)();
        let feed = |(feed, (_, report)): (&FeedView, &(String, Option<Arc<ArbiterReport>>))| {
            let store = stores.iter().find(|book| book.feed == feed.name);
            quality::feed_books(feed, &self.sides, report.as_deref(), store)
        };
        let feeds = self.feeds.iter().zip(&self.reports()).map(feed).collect();
        (feeds, self.queues.iter().map(|queue| queue.counters.get(QueueCounter::Unstamped)).sum())
    }

    /// Capture stamps of each feed's first and last message, UTC ns; 0: none came.
    pub fn stamps_ns(&self) -> Vec<(i64, i64)> {
        let get = |feed: &FeedView, counter| feed.counters.get(counter) as i64;
        let stamps = |feed| (get(feed, ArbiterCounter::FirstStamp), get(feed, ArbiterCounter::LastStamp));
        self.feeds.iter().map(stamps).collect()
    }

    fn conservation_of(&self, reports: &[(String, Option<Arc<ArbiterReport>>)]) -> Vec<Identity> {
        let mut table = Vec::new();
        let xdp = (self.xdp)();
        for queue in &self.queues {
            self.frame_identities(queue, &xdp, &mut table);
        }
        let books = (self.books)();
        for (feed, (_, report)) in self.feeds.iter().zip(reports) {
            let book = books.iter().find(|book| book.feed == feed.name);
            self.feed_identities(feed, report.as_deref(), book, &mut table);
        }
        table
    }

    fn frame_identities(&self, queue: &QueueView, xdp: &[XdpQueue], table: &mut Vec<Identity>) {
        let of = format!("{} queue {}", queue.source, queue.queue);
        let get = |counter| queue.counters.get(counter);
        let program = xdp.iter().find(|x| x.interface == queue.source && x.queue == queue.queue);
        if let Some(redirected) = program.and_then(|x| x.counts.iter().find(|(name, _)| *name == "redirected")) {
            table.push(Identity::new(
                of.clone(),
                conservation::REDIRECTED,
                ("redirected", redirected.1),
                vec![
                    ("received", get(QueueCounter::Received)),
                    ("rx_dropped", get(QueueCounter::RxDropped)),
                    ("rx_ring_full", get(QueueCounter::RxRingFull)),
                ],
            ));
        }
        table.push(Identity::new(
            of,
            conservation::RECEIVED,
            ("received", get(QueueCounter::Received)),
            vec![
                ("data_segments", get(QueueCounter::DataSegments)),
                ("heartbeats", get(QueueCounter::Heartbeats)),
                ("raw_only", RawReason::all().map(|reason| get(QueueCounter::RawOnly(reason))).sum()),
                ("link_full", get(QueueCounter::LinkFull)),
            ],
        ));
    }

    fn feed_identities(
        &self,
        feed: &FeedView,
        report: Option<&ArbiterReport>,
        book: Option<&StoreBook>,
        table: &mut Vec<Identity>,
    ) {
        let of = format!("feed {}", feed.name);
        let sides = self.sides.iter().filter(|side| side.feed == feed.name);
        let sent: u64 = sides.map(|side| side.counters.get(SideCounter::Messages)).sum();
        table.push(Identity::new(
            of.clone(),
            conservation::PASSED_ON,
            ("passed_on", sent),
            vec![("taken", feed.counters.get(ArbiterCounter::Messages))],
        ));
        let Some(report) = report else { return };
        stream_identities(&of, feed, report, table);
        let emitted: u64 = report.streams.iter().map(|s| s.counts.unique + s.counts.late_fill).sum();
        let (taken, stored, lost, in_flight) = match book {
            Some(book) => (book.taken, book.stored, book.lost, book.in_flight),
            None => (0, 0, 0, 0),
        };
        if feed.publish.is_some() {
            let unique: u64 = report.streams.iter().map(|s| s.counts.unique).sum();
            table.push(Identity::new(
                of.clone(),
                conservation::PUBLISHED,
                ("unique", unique),
                vec![
                    ("published", feed.counters.get(ArbiterCounter::Published)),
                    ("publish_refused", feed.counters.get(ArbiterCounter::PublishRefused)),
                ],
            ));
        }
        let dropped = feed.counters.get(ArbiterCounter::LostLinkFull) + feed.counters.get(ArbiterCounter::LostCopyPool);
        let not_stored = feed.counters.get(ArbiterCounter::NotStored);
        table.push(Identity::new(
            of.clone(),
            conservation::HANDED,
            ("handed", feed.counters.get(ArbiterCounter::Handed)),
            vec![("taken", taken)],
        ));
        table.push(Identity::new(
            of,
            conservation::STORED,
            ("emitted", emitted),
            vec![
                ("stored", stored),
                ("store_lost", lost + dropped),
                ("in_flight", in_flight),
                ("not_stored", not_stored),
            ],
        ));
    }

    /// Takes loss ranges off the arbiters' links; to be called often, so that the links have room.
    pub fn collect_losses(&self) {
        let mut losses = self.losses.lock().expect("nobody panics with it held");
        for feed in &self.feeds {
            let mut link = feed.losses.lock().expect("nobody panics with it held");
            while let Some(loss) = link.pop() {
                if losses.len() < LOSSES_MAX {
                    losses.push((feed.name.clone(), loss));
                }
            }
        }
    }
}

fn stream_identities(of: &str, feed: &FeedView, report: &ArbiterReport, table: &mut Vec<Identity>) {
    let offered: u64 = report.streams.iter().map(|s| s.counts.offered).sum::<u64>() + report.unattributed.offered;
    table.push(Identity::new(
        of.to_string(),
        conservation::TAKEN,
        ("taken", feed.counters.get(ArbiterCounter::Messages)),
        vec![("streams", offered)],
    ));
    for stream in &report.streams {
        let counts = &stream.counts;
        table.push(Identity::new(
            stream.stream.clone(),
            conservation::COUNTS,
            ("offered", counts.offered),
            vec![
                ("unique", counts.unique),
                ("duplicate", counts.duplicate),
                ("late_fill", counts.late_fill),
                ("late", counts.late),
                ("rejected", counts.rejected_wild + counts.rejected_overflow + counts.rejected_limit),
                ("held", counts.held),
                ("pending", counts.pending),
            ],
        ));
        table.push(Identity::new(
            stream.stream.clone(),
            conservation::FRONTIER,
            ("frontier − base", counts.frontier - counts.base),
            vec![
                ("unique", counts.unique),
                ("late_fill", counts.late_fill),
                ("gap", counts.gap),
                ("held", counts.held),
                ("missing", stream.missing),
            ],
        ));
    }
}

impl Source for CaptureStatus {
    fn samples(&self, out: &mut Vec<Sample>) {
        for queue in &self.queues {
            metrics::queue(queue, out);
        }
        (self.xdp)().iter().for_each(|program| metrics::program(program, out));
        for mode in &self.modes {
            let zero_copy = f64::from(u8::from(mode.zero_copy));
            out.push(metrics::ZERO_COPY.sample(&[&mode.interface, &mode.xdp], zero_copy));
        }
        let reports = self.reports();
        for (feed, report) in &reports {
            let Some(report) = report else { continue };
            report.streams.iter().for_each(|stream| metrics::stream(feed, stream, out));
            metrics::unattributed(feed, report, out);
        }
        for feed in &self.feeds {
            metrics::feed(feed, out);
        }
        for (feed, side, live) in self.sides_live() {
            out.push(metrics::SIDE_LIVE.sample(&[feed, side], f64::from(u8::from(live))));
        }
        for side in &self.sides {
            metrics::side(side, &self.queues[side.queue], out);
        }
        out.push(metrics::RESIDUE.sample(&[], residue(&self.conservation_of(&reports)) as f64));
    }

    fn status(&self) -> (&'static str, Value) {
        ("capture", self.status_of(&self.reports()))
    }

    fn health(&self, now: i64, out: &mut Vec<Sign>) {
        for queue in &self.queues {
            out.push(health::frames_lost(queue));
        }
        for feed in &self.feeds {
            health::feed(feed, out);
        }
        let messages: u64 = self.feeds.iter().map(|feed| feed.counters.get(ArbiterCounter::Messages)).sum();
        let mut rest = self.rest.lock().expect("nobody panics with it held");
        out.extend(rest.sign(messages, now, || residue(&self.conservation())));
    }
}

impl CaptureStatus {
    /// The status with the reports there are: it waits for no arbiter, so its streams may be old.
    pub fn glance(&self) -> Value {
        let newest = |feed: &FeedView| (feed.name.clone(), feed.desk.newest());
        self.status_of(&self.feeds.iter().map(newest).collect::<Vec<_>>())
    }

    fn status_of(&self, reports: &[(String, Option<Arc<ArbiterReport>>)]) -> Value {
        self.collect_losses();
        let table = self.conservation_of(reports);
        let queues: Vec<Value> = self.queues.iter().map(queue_json).collect();
        let sides: Vec<Value> = self
            .sides
            .iter()
            .map(|side| {
                let get = |counter| side.counters.get(counter);
                json!({
                    "feed": side.feed, "side": side.side.to_string(),
                    "source": self.queues[side.queue].source, "queue": self.queues[side.queue].queue,
                    "segments": get(SideCounter::Segments), "messages": get(SideCounter::Messages),
                    "link_full": get(SideCounter::LinkFull), "link_full_messages": get(SideCounter::LinkFullMessages),
                })
            })
            .collect();
        let feeds: Vec<Value> =
            self.feeds.iter().zip(reports).map(|(feed, (_, report))| feed_json(feed, report.as_deref())).collect();
        let xdp: Vec<Value> = (self.xdp)()
            .iter()
            .map(|x| {
                let counts: serde_json::Map<String, Value> =
                    x.counts.iter().map(|(name, count)| ((*name).to_string(), json!(count))).collect();
                json!({"interface": x.interface, "queue": x.queue, "frames": counts})
            })
            .collect();
        let modes: Vec<Value> = self
            .modes
            .iter()
            .map(|mode| {
                json!({"interface": mode.interface, "xdp": mode.xdp, "zero_copy": mode.zero_copy,
                       "chunk_bytes": mode.chunk_bytes, "multi_buffer": mode.multi_buffer})
            })
            .collect();
        let losses = self.losses.lock().expect("nobody panics with it held");
        let listed: u64 = losses.iter().map(|(_, loss)| loss.last - loss.first + 1).sum();
        let lost = |feed: &FeedView| {
            feed.counters.get(ArbiterCounter::LostLinkFull) + feed.counters.get(ArbiterCounter::LostCopyPool)
        };
        // A range that is still growing is not listed yet.
        let unlisted = self.feeds.iter().map(lost).sum::<u64>().saturating_sub(listed);
        let losses: Vec<Value> = losses
            .iter()
            .map(|(feed, loss)| {
                json!({"feed": feed, "stream": loss.stream.0, "cause": loss.cause, "first": loss.first, "last": loss.last})
            })
            .collect();
        json!({
            "interfaces": modes, "xdp": xdp, "queues": queues, "sides": sides, "feeds": feeds,
            "not_handed_to_store": losses, "not_handed_unlisted": unlisted, "damage": self.damage(),
            "conservation": table, "residue": residue(&table),
        })
    }
}

const QUEUE_TOTALS: [(&str, QueueCounter); 11] = [
    ("received", QueueCounter::Received),
    ("bytes", QueueCounter::Bytes),
    ("data_segments", QueueCounter::DataSegments),
    ("heartbeats", QueueCounter::Heartbeats),
    ("link_full", QueueCounter::LinkFull),
    ("unstamped", QueueCounter::Unstamped),
    ("rx_dropped", QueueCounter::RxDropped),
    ("rx_ring_full", QueueCounter::RxRingFull),
    ("fill_ring_empty", QueueCounter::FillRingEmpty),
    ("frames_home", QueueCounter::FramesHome),
    ("raw_link_full", QueueCounter::RawLinkFull),
];

fn queue_json(queue: &QueueView) -> Value {
    let mut map = serde_json::Map::new();
    map.insert("source".into(), json!(queue.source));
    map.insert("queue".into(), json!(queue.queue));
    map.insert("core".into(), json!(queue.core));
    map.insert("frames".into(), json!(queue.frames));
    for (name, counter) in QUEUE_TOTALS {
        map.insert(name.into(), json!(queue.counters.get(counter)));
    }
    let raw: serde_json::Map<String, Value> = RawReason::all()
        .map(|reason| (reason.label().to_string(), json!(queue.counters.get(QueueCounter::RawOnly(reason)))))
        .collect();
    map.insert("raw_only".into(), Value::Object(raw));
    Value::Object(map)
}

fn feed_json(feed: &FeedView, report: Option<&ArbiterReport>) -> Value {
    let get = |counter| feed.counters.get(counter);
    let live = get(ArbiterCounter::SidesLive);
    let sides_live: Vec<bool> = (0..feed.sides.len()).map(|at| live >> at & 1 == 1).collect();
    json!({
        "feed": feed.name, "sides": feed.sides, "sides_live": sides_live, "from_files": feed.from_files, "core": feed.core, "store": feed.store, "publish": feed.publish,
        "published": get(ArbiterCounter::Published), "published_marks": get(ArbiterCounter::PublishedMarks),
        "publish_refused": get(ArbiterCounter::PublishRefused),
        "segments": get(ArbiterCounter::Segments), "messages": get(ArbiterCounter::Messages),
        "handed": get(ArbiterCounter::Handed), "handed_raw": get(ArbiterCounter::HandedRaw),
        "lost_link_full": get(ArbiterCounter::LostLinkFull), "lost_copy_pool": get(ArbiterCounter::LostCopyPool),
        "lost_raw": get(ArbiterCounter::LostRaw), "not_stored": get(ArbiterCounter::NotStored),
        "copy_frames": feed.copy_frames, "copy_frames_home": get(ArbiterCounter::CopyFramesHome),
        "lost_marks": get(ArbiterCounter::LostMarks), "report": report,
    })
}
