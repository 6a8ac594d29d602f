//! The counters of the ring's workers, each owned by one worker, and what the control thread shows of them.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::{Value, json};

use super::inspect::inspect;
use super::mirror::receiver::{MirrorStatus, ReceiverCounters, Transport};
use super::mirror::sender::{Delivery, SenderCounters, SessionStatus};
use crate::sync::counters::{CounterIndex, CounterReader, CounterWriter};
use crate::sync::health::{HealthReason, Shape, Sign};
use crate::sync::metrics::{Metric, Sample, Source};

/// A set of counters copied from a machine's: an enum, its metric names, and the copy.
macro_rules! counter_set {
    ($(#[$doc:meta])* $name:ident of $machine:ty { $($field:ident as $variant:ident: $metric:literal, $help:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $(#[doc = $help] $variant,)*
        }

        impl $name {
            /// Every counter with its metric's name and help.
            pub const ALL: &'static [($name, &'static str, &'static str, &'static str)] =
                &[$(($name::$variant, $metric, $help, stringify!($field)),)*];

            fn copy(counters: &mut CounterWriter<$name>, machine: &$machine) {
                $(counters.set($name::$variant, machine.$field as u64);)*
            }
        }

        impl CounterIndex for $name {
            const COUNT: usize = $name::ALL.len();
            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

/// What a serve worker knows beside its machine's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServeState {
    /// Of the machine.
    pub machine: SenderCounters,
    /// A ring is attached.
    pub attached: bool,
    /// Its last published sequence.
    pub head: u64,
    /// Its life; 0 where the producer gives none.
    pub incarnation: u64,
    /// Its producer lives (holds the file's lock, and beats where it is one that beats).
    pub producer_alive: bool,
    /// It holds the lock, but its heartbeat is old.
    pub producer_stalled: bool,
    /// Connections open.
    pub connections: usize,
    /// Accepts that the kernel refused (no descriptors, no memory).
    pub accepts_failed: u64,
    /// Rings that could not be opened, beside "not there yet".
    pub open_failures: u64,
    /// The worker has ended of itself (`--once`).
    pub ended: bool,
}

counter_set! {
    /// Counters of one `[[ring.serve]]`.
    ServeCounter of ServeState {
        attached as Attached: "sluice_ring_serve_attached", "Whether a ring is there to serve";
        head as Head: "sluice_ring_serve_head_sequence", "Last published sequence of the served ring";
        incarnation as Incarnation: "", "Life of the ring";
        producer_alive as ProducerAlive: "sluice_ring_serve_producer_alive", "Whether the served ring's producer lives";
        producer_stalled as ProducerStalled: "sluice_ring_serve_producer_stalled", "Whether the producer's heartbeat is old";
        connections as Connections: "sluice_ring_serve_connections", "Open connections";
        ended as Ended: "", "Whether the worker has ended of itself";
        accepts_failed as AcceptsFailed: "sluice_ring_serve_failed_accepts", "Accepts that the kernel refused";
        open_failures as OpenFailures: "sluice_ring_serve_failed_opens", "Times that the ring could not be opened";
    }
}

counter_set! {
    /// Counters of one `[[ring.serve]]`'s machine.
    SenderCounter of SenderCounters {
        accepted as Accepted: "sluice_ring_serve_accepted_connections", "Connections taken";
        refused as Refused: "sluice_ring_serve_refused_connections", "Connections refused by a limit";
        closed as Closed: "sluice_ring_serve_closed_connections", "Sessions ended by the source";
        unauthenticated as Unauthenticated: "sluice_ring_serve_unauthenticated_connections", "Sessions ended for lack of the key";
        stream_records as StreamRecords: "sluice_ring_serve_stream_records", "Records sent on TCP streams, repair not included";
        stream_bytes as StreamBytes: "sluice_ring_serve_stream_bytes", "Bytes for TCP streams";
        datagram_heartbeats as DatagramHeartbeats: "sluice_ring_serve_datagram_heartbeats", "Heartbeats in datagrams, each once";
        datagram_records as DatagramRecords: "sluice_ring_serve_datagram_records", "Records sent in datagrams, each once";
        datagrams as Datagrams: "sluice_ring_serve_datagrams", "Datagrams sent, copies and destinations included";
        datagrams_failed as DatagramsFailed: "sluice_ring_serve_failed_datagrams", "Datagrams that the socket lost";
        oversized_records as OversizedRecords: "sluice_ring_serve_oversized_records", "Records too long for a datagram, left to TCP";
        heartbeats as Heartbeats: "sluice_ring_serve_heartbeats", "Heartbeats on TCP streams";
        naks as Naks: "sluice_ring_serve_naks", "Repair requests";
        repaired_records as RepairedRecords: "sluice_ring_serve_repaired_records", "Records sent as repair";
        naks_dropped as NaksDropped: "sluice_ring_serve_dropped_naks", "Repair requests for nothing that is published, or too many at once";
        naks_delayed as NaksDelayed: "sluice_ring_serve_delayed_naks", "Times that repair waited for its rate";
        gaps as Gaps: "sluice_ring_serve_gaps", "Ranges that the ring no longer held";
        punches as Punches: "sluice_ring_serve_punches", "PUNCH datagrams taken";
        punches_dropped as PunchesDropped: "sluice_ring_serve_dropped_punches", "PUNCH datagrams dropped: wrong, foreign or too many";
        punches_expired as PunchesExpired: "sluice_ring_serve_expired_punches", "Unicast destinations dropped in silence";
        restarts as Restarts: "sluice_ring_serve_ring_restarts", "Rings that took the place of an earlier one";
    }
}

/// What a mirror worker knows beside its machine's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MirrorState {
    /// A connection exists.
    pub connected: bool,
    /// The handshake is done.
    pub live: bool,
    /// 0 none, 1 TCP stream, 2 multicast, 3 unicast.
    pub transport: u8,
    /// Next sequence of the local ring.
    pub next: u64,
    /// First sequence of the local ring's file.
    pub first: u64,
    /// Highest sequence that the source is known to have sent.
    pub source_head: u64,
    /// What the mirror is behind.
    pub lag: u64,
    /// Since the source was last heard, ns; 2^64 − 1: never.
    pub heartbeat_age_ns: u64,
    /// Since the last datagram came, ns; 2^64 − 1: none has.
    pub datagram_age_ns: u64,
    /// The source is silent.
    pub silent: bool,
    /// The source says that its ring's producer is dead or stalls.
    pub producer_gone: bool,
    /// The source's incarnation.
    pub incarnation: u64,
    /// The session is authenticated.
    pub authenticated: bool,
    /// Datagrams held back now.
    pub held_datagrams: usize,
    /// Their bytes.
    pub held_bytes: usize,
    /// Attempts to connect that failed.
    pub connect_failures: u64,
    /// The worker has ended of itself (`--once`).
    pub ended: bool,
}

impl MirrorState {
    pub(super) fn of(status: &MirrorStatus, now: i64) -> MirrorState {
        MirrorState {
            connected: status.connected,
            live: status.live,
            transport: match status.transport {
                None => 0,
                Some(Transport::Stream) => 1,
                Some(Transport::Multicast(_)) => 2,
                Some(Transport::Unicast(_)) => 3,
            },
            next: status.next,
            first: status.first,
            source_head: status.source_head,
            lag: status.source_head.saturating_add(1).saturating_sub(status.next.max(1)),
            datagram_age_ns: status.datagram_ns.map_or(u64::MAX, |came| now.saturating_sub(came).max(0) as u64),
            heartbeat_age_ns: status.heard_ns.map_or(u64::MAX, |heard| now.saturating_sub(heard).max(0) as u64),
            silent: status.silent,
            producer_gone: status.producer_gone,
            incarnation: status.incarnation,
            authenticated: status.authenticated,
            held_datagrams: status.held_datagrams,
            held_bytes: status.held_bytes,
            connect_failures: 0,
            ended: false,
        }
    }
}

counter_set! {
    /// Counters of one `[[ring.mirror]]`.
    MirrorCounter of MirrorState {
        connected as Connected: "sluice_ring_mirror_connected", "Whether the connection to the source is made";
        live as Live: "sluice_ring_mirror_live", "Whether records are being written";
        transport as Transport: "", "How they come";
        next as Next: "sluice_ring_mirror_next_sequence", "Next sequence of the local ring";
        first as First: "", "First sequence of the local ring's file";
        source_head as SourceHead: "sluice_ring_mirror_source_head_sequence", "Highest sequence that the source is known to have sent";
        lag as Lag: "sluice_ring_mirror_lag_records", "Records that the mirror is behind";
        heartbeat_age_ns as HeartbeatAge: "", "Since the source was last heard";
        datagram_age_ns as DatagramAge: "", "Since the last datagram came";
        silent as Silent: "sluice_ring_mirror_source_silent", "Whether the source is silent";
        producer_gone as ProducerGone: "sluice_ring_mirror_source_producer_gone", "Whether the source says that its ring's producer is dead or stalls";
        incarnation as Incarnation: "", "The source's life";
        authenticated as Authenticated: "sluice_ring_mirror_authenticated", "Whether the source proved the key";
        held_datagrams as HeldDatagrams: "sluice_ring_mirror_held_datagrams", "Datagrams held back behind a hole";
        held_bytes as HeldBytes: "sluice_ring_mirror_held_bytes", "Their bytes";
        connect_failures as ConnectFailures: "sluice_ring_mirror_failed_connects", "Attempts to connect that failed";
        ended as Ended: "", "Whether the worker has ended of itself";
    }
}

counter_set! {
    /// Counters of one `[[ring.mirror]]`'s machine.
    ReceiverCounter of ReceiverCounters {
        connections as Connections: "sluice_ring_mirror_connections", "Connections made";
        rings as Rings: "sluice_ring_mirror_rings", "Ring files begun";
        resumed as Resumed: "sluice_ring_mirror_resumed_sessions", "Sessions that continued the local ring";
        records as Records: "sluice_ring_mirror_records", "Records written";
        bytes as Bytes: "sluice_ring_mirror_record_bytes", "Their bytes";
        frames as Frames: "sluice_ring_mirror_frames", "Frames of the stream";
        datagrams as Datagrams: "sluice_ring_mirror_datagrams", "Datagrams looked at";
        duplicate_records as DuplicateRecords: "sluice_ring_mirror_duplicate_records", "Records that came again";
        repaired_records as RepairedRecords: "sluice_ring_mirror_repaired_records", "Records written from repair";
        held as Held: "sluice_ring_mirror_early_datagrams", "Datagrams that came early and were held back";
        held_refused as HeldRefused: "sluice_ring_mirror_refused_early_datagrams", "Datagrams that came early and were not held: no room, or too far ahead";
        held_dropped as HeldDropped: "sluice_ring_mirror_dropped_early_datagrams", "Datagrams that were held back and given up";
        held_conflicts as HeldConflicts: "sluice_ring_mirror_conflicting_datagrams", "Datagrams that contradicted a held one";
        naks as Naks: "sluice_ring_mirror_naks", "Repair requests";
        naks_repeated as NaksRepeated: "sluice_ring_mirror_repeated_naks", "Of these, repeats";
        gaps as Gaps: "sluice_ring_mirror_gaps", "Jumps of the local ring";
        gap_records as GapRecords: "sluice_ring_mirror_gap_records", "Sequences that they left out";
        punches as Punches: "sluice_ring_mirror_punches", "PUNCH datagrams sent";
        heartbeats as Heartbeats: "sluice_ring_mirror_heartbeats", "Heartbeats of the source";
        foreign as Foreign: "sluice_ring_mirror_foreign_datagrams", "Datagrams that are not from the source's address";
        other_session as OtherSession: "sluice_ring_mirror_other_session_datagrams", "Datagrams of another session";
        malformed as Malformed: "sluice_ring_mirror_malformed_datagrams", "Datagrams that are no frame of this ring";
        forged as Forged: "sluice_ring_mirror_forged_datagrams", "Datagrams whose MAC is wrong";
        replayed as Replayed: "sluice_ring_mirror_replayed_datagrams", "Datagrams seen before";
        unwritable_records as UnwritableRecords: "sluice_ring_mirror_unwritable_records", "Records that the local ring did not take";
    }
}

/// The writing end of a serve worker's counters.
pub(super) struct ServeBooks {
    pub(super) state: CounterWriter<ServeCounter>,
    pub(super) machine: CounterWriter<SenderCounter>,
    pub(super) sessions: std::sync::Arc<Mutex<Vec<SessionStatus>>>,
}

impl ServeBooks {
    pub(super) fn write(&mut self, state: &ServeState) {
        ServeCounter::copy(&mut self.state, state);
        SenderCounter::copy(&mut self.machine, &state.machine);
    }
}

/// The writing end of a mirror worker's counters.
pub(super) struct MirrorBooks {
    pub(super) state: CounterWriter<MirrorCounter>,
    pub(super) machine: CounterWriter<ReceiverCounter>,
}

impl MirrorBooks {
    pub(super) fn write(&mut self, state: &MirrorState, machine: &ReceiverCounters) {
        MirrorCounter::copy(&mut self.state, state);
        ReceiverCounter::copy(&mut self.machine, machine);
    }
}

/// What is known of a running serve.
pub struct ServeView {
    /// Its name.
    pub name: String,
    /// The ring's file.
    pub ring: String,
    /// Its core.
    pub core: String,
    /// Where it listens; the port, when 0 was asked for.
    pub address: std::sync::Arc<std::sync::OnceLock<std::net::SocketAddr>>,
    pub(super) state: CounterReader<ServeCounter>,
    pub(super) machine: CounterReader<SenderCounter>,
    pub(super) sessions: std::sync::Arc<Mutex<Vec<SessionStatus>>>,
}

/// What is known of a running mirror.
pub struct MirrorView {
    /// Its name.
    pub name: String,
    /// The source.
    pub source: String,
    /// The local ring's file.
    pub ring: String,
    /// Its core.
    pub core: String,
    /// How it ended of itself: `Ok` when the source closed the connection (`--once`).
    pub end: std::sync::Arc<std::sync::OnceLock<Result<(), String>>>,
    pub(super) state: CounterReader<MirrorCounter>,
    pub(super) machine: CounterReader<ReceiverCounter>,
}

impl ServeView {
    /// One counter of the worker.
    pub fn get(&self, counter: ServeCounter) -> u64 {
        self.state.get(counter)
    }

    /// One counter of the machine.
    pub fn machine(&self, counter: SenderCounter) -> u64 {
        self.machine.get(counter)
    }

    /// As JSON.
    pub fn status(&self) -> Value {
        let get = |counter| self.state.get(counter);
        let sessions = self.sessions.lock().map(|sessions| sessions.clone()).unwrap_or_default();
        let mut status = json!({
            "name": self.name, "ring": self.ring, "core": self.core,
            "address": self.address.get().map(ToString::to_string),
            "attached": get(ServeCounter::Attached) == 1,
            "head": get(ServeCounter::Head),
            "incarnation": format!("{:016x}", get(ServeCounter::Incarnation)),
            "producer_alive": get(ServeCounter::ProducerAlive) == 1,
            "producer_stalled": get(ServeCounter::ProducerStalled) == 1,
            "connections": get(ServeCounter::Connections),
            "accepts_failed": get(ServeCounter::AcceptsFailed),
            "open_failures": get(ServeCounter::OpenFailures),
            "sessions": sessions.iter().map(session).collect::<Vec<_>>(),
        });
        for (counter, _, _, key) in SenderCounter::ALL {
            status[*key] = self.machine.get(*counter).into();
        }
        status
    }
}

fn session(session: &SessionStatus) -> Value {
    json!({
        "peer": session.peer.to_string(),
        "delivery": session.delivery.map(|delivery| match delivery {
            Delivery::Stream => "tcp",
            Delivery::Multicast => "multicast",
            Delivery::Unicast => "udp",
        }),
        "datagrams_to": session.datagrams_to.map(|to| to.to_string()),
        "next": session.next,
        "extended": session.extended,
        "authenticated": session.authenticated,
    })
}

impl MirrorView {
    /// One counter of the worker.
    pub fn get(&self, counter: MirrorCounter) -> u64 {
        self.state.get(counter)
    }

    /// One counter of the machine.
    pub fn machine(&self, counter: ReceiverCounter) -> u64 {
        self.machine.get(counter)
    }

    /// As JSON.
    pub fn status(&self) -> Value {
        let get = |counter| self.state.get(counter);
        let age = get(MirrorCounter::HeartbeatAge);
        let datagram_age = get(MirrorCounter::DatagramAge);
        let readers = readers(Path::new(&self.ring));
        let mut status = json!({
            "name": self.name, "source": self.source, "ring": self.ring, "core": self.core,
            "readers": readers.map(|(count, _)| count), "slowest_reader_lag": readers.map(|(_, lag)| lag),
            "connected": get(MirrorCounter::Connected) == 1,
            "live": get(MirrorCounter::Live) == 1,
            "transport": match get(MirrorCounter::Transport) { 1 => "tcp", 2 => "multicast", 3 => "udp", _ => "none" },
            "next": get(MirrorCounter::Next),
            "first": get(MirrorCounter::First),
            "source_head": get(MirrorCounter::SourceHead),
            "lag": get(MirrorCounter::Lag),
            "datagram_age_seconds": (datagram_age != u64::MAX).then_some(datagram_age as f64 / 1e9),
            "heartbeat_age_seconds": (age != u64::MAX).then_some(age as f64 / 1e9),
            "silent": get(MirrorCounter::Silent) == 1,
            "producer_gone": get(MirrorCounter::ProducerGone) == 1,
            "incarnation": format!("{:016x}", get(MirrorCounter::Incarnation)),
            "authenticated": get(MirrorCounter::Authenticated) == 1,
            "held_now": {"datagrams": get(MirrorCounter::HeldDatagrams), "bytes": get(MirrorCounter::HeldBytes)},
            "connect_failures": get(MirrorCounter::ConnectFailures),
        });
        for (counter, _, _, key) in ReceiverCounter::ALL {
            status[*key] = self.machine.get(*counter).into();
        }
        status
    }
}

const SERVE: &[&str] = &["serve"];
const MIRROR: &[&str] = &["mirror"];
const FEED: &[&str] = &["feed"];

const HEARTBEAT_AGE: Metric =
    Metric::gauge("sluice_ring_mirror_heartbeat_age_seconds", MIRROR, "Since the source was last heard");
const DATAGRAM_AGE: Metric =
    Metric::gauge("sluice_ring_mirror_datagram_age_seconds", MIRROR, "Since the last datagram of the source came");
const STREAM_SESSIONS: Metric =
    Metric::gauge("sluice_ring_serve_stream_sessions", SERVE, "Mirrors that get their records by TCP");
const DATAGRAM_SESSIONS: Metric =
    Metric::gauge("sluice_ring_serve_datagram_sessions", SERVE, "Mirrors that get their records by datagrams");
const STREAM_LAG: [Metric; 2] = [
    Metric::gauge(
        "sluice_ring_serve_median_stream_lag_records",
        SERVE,
        "Records that the median mirror with TCP delivery was not sent yet",
    ),
    Metric::gauge(
        "sluice_ring_serve_slowest_stream_lag_records",
        SERVE,
        "Records that the slowest mirror with TCP delivery was not sent yet",
    ),
];
const READERS: [Metric; 2] = [
    Metric::gauge("sluice_ring_published_readers", FEED, "Registered readers of the feed's ring that live"),
    Metric::gauge("sluice_ring_mirror_readers", MIRROR, "Registered readers of the local ring that live"),
];
const READER_LAG: [Metric; 2] = [
    Metric::gauge(
        "sluice_ring_published_slowest_reader_lag_records",
        FEED,
        "Records that the slowest registered reader of the feed's ring has not read; readers that do not register are not seen",
    ),
    Metric::gauge(
        "sluice_ring_mirror_slowest_reader_lag_records",
        MIRROR,
        "Records that the slowest registered reader of the local ring has not read; readers that do not register are not seen",
    ),
];

impl ServeCounter {
    fn metric(self, name: &'static str, help: &'static str) -> Metric {
        match self {
            ServeCounter::AcceptsFailed | ServeCounter::OpenFailures => Metric::counter(name, SERVE, help),
            _ => Metric::gauge(name, SERVE, help),
        }
    }
}

impl MirrorCounter {
    fn metric(self, name: &'static str, help: &'static str) -> Metric {
        match self {
            MirrorCounter::ConnectFailures => Metric::counter(name, MIRROR, help),
            _ => Metric::gauge(name, MIRROR, help),
        }
    }
}

/// What a serve's worker shows, where it is a metric.
fn serve_metrics() -> impl Iterator<Item = (ServeCounter, Metric)> {
    let shown = ServeCounter::ALL.iter().filter(|(_, name, ..)| !name.is_empty());
    shown.map(|(counter, name, help, _)| (*counter, counter.metric(name, help)))
}

fn sender_metrics() -> impl Iterator<Item = (SenderCounter, Metric)> {
    SenderCounter::ALL.iter().map(|(counter, name, help, _)| (*counter, Metric::counter(name, SERVE, help)))
}

fn mirror_metrics() -> impl Iterator<Item = (MirrorCounter, Metric)> {
    let shown = MirrorCounter::ALL.iter().filter(|(_, name, ..)| !name.is_empty());
    shown.map(|(counter, name, help, _)| (*counter, counter.metric(name, help)))
}

fn receiver_metrics() -> impl Iterator<Item = (ReceiverCounter, Metric)> {
    ReceiverCounter::ALL.iter().map(|(counter, name, help, _)| (*counter, Metric::counter(name, MIRROR, help)))
}

/// Every metric of the job.
pub fn metrics() -> Vec<Metric> {
    let serves = serve_metrics().map(|(_, metric)| metric).chain(sender_metrics().map(|(_, metric)| metric));
    let sessions = [STREAM_SESSIONS, DATAGRAM_SESSIONS].into_iter().chain(STREAM_LAG);
    let mirrors = mirror_metrics().map(|(_, metric)| metric).chain(receiver_metrics().map(|(_, metric)| metric));
    let ages = [HEARTBEAT_AGE, DATAGRAM_AGE];
    serves.chain(sessions).chain(mirrors).chain(ages).chain(READERS).chain(READER_LAG).collect()
}

/// Registered readers that live, and how far the slowest is behind; `None` where there is no such ring now.
fn readers(ring: &Path) -> Option<(usize, u64)> {
    let ring = inspect(ring).ok()?;
    let behind = ring.readers.iter().filter(|reader| reader.active && reader.exists);
    let behind: Vec<u64> = behind.map(|reader| (ring.head + 1).saturating_sub(reader.cursor)).collect();
    Some((behind.len(), behind.into_iter().max().unwrap_or(0)))
}

fn reader_samples(which: usize, name: &str, ring: &Path, out: &mut Vec<Sample>) {
    let Some((count, lag)) = readers(ring) else { return };
    out.push(READERS[which].sample(&[name], count as f64));
    out.push(READER_LAG[which].sample(&[name], lag as f64));
}

impl ServeView {
    fn samples(&self, out: &mut Vec<Sample>) {
        let name = self.name.as_str();
        for (counter, metric) in serve_metrics() {
            out.push(metric.sample(&[name], self.state.get(counter) as f64));
        }
        for (counter, metric) in sender_metrics() {
            out.push(metric.sample(&[name], self.machine.get(counter) as f64));
        }
        let sessions = self.sessions.lock().map(|sessions| sessions.clone()).unwrap_or_default();
        let streams: Vec<&SessionStatus> =
            sessions.iter().filter(|session| session.delivery == Some(Delivery::Stream)).collect();
        let datagrams = sessions.iter().filter(|session| session.delivery.is_some()).count() - streams.len();
        let head = self.state.get(ServeCounter::Head);
        let mut lags: Vec<u64> = streams.iter().map(|session| (head + 1).saturating_sub(session.next)).collect();
        lags.sort_unstable();
        let lag = [lags.get(lags.len() / 2), lags.last()].map(|lag| lag.copied().unwrap_or(0));
        out.push(STREAM_SESSIONS.sample(&[name], streams.len() as f64));
        out.push(DATAGRAM_SESSIONS.sample(&[name], datagrams as f64));
        for (metric, lag) in STREAM_LAG.iter().zip(lag) {
            out.push(metric.sample(&[name], lag as f64));
        }
    }
}

impl MirrorView {
    fn samples(&self, out: &mut Vec<Sample>) {
        let name = self.name.as_str();
        for (counter, metric) in mirror_metrics() {
            out.push(metric.sample(&[name], self.state.get(counter) as f64));
        }
        for (counter, metric) in receiver_metrics() {
            out.push(metric.sample(&[name], self.machine.get(counter) as f64));
        }
        let ages = [(&HEARTBEAT_AGE, MirrorCounter::HeartbeatAge), (&DATAGRAM_AGE, MirrorCounter::DatagramAge)];
        for (metric, counter) in ages {
            let age = self.state.get(counter);
            if age != u64::MAX {
                out.push(metric.sample(&[name], age as f64 / 1e9));
            }
        }
        reader_samples(1, name, Path::new(&self.ring), out);
    }
}

/// A feed's ring, as the capture publishes it.
pub struct PublishedView {
    /// The feed.
    pub feed: String,
    /// The ring's file.
    pub ring: PathBuf,
}

/// The ring job's source of metrics and status.
#[derive(Default)]
pub struct RingStatus {
    /// Every serve.
    pub serves: Vec<ServeView>,
    /// Every mirror.
    pub mirrors: Vec<MirrorView>,
    /// Every feed's ring.
    pub published: Vec<PublishedView>,
}

impl RingStatus {
    /// Whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.serves.is_empty() && self.mirrors.is_empty() && self.published.is_empty()
    }
}

impl Source for RingStatus {
    fn samples(&self, out: &mut Vec<Sample>) {
        self.serves.iter().for_each(|view| view.samples(out));
        self.mirrors.iter().for_each(|view| view.samples(out));
        self.published.iter().for_each(|view| reader_samples(0, &view.feed, &view.ring, out));
    }

    fn status(&self) -> (&'static str, Value) {
        let serves: Vec<Value> = self.serves.iter().map(ServeView::status).collect();
        let mirrors: Vec<Value> = self.mirrors.iter().map(MirrorView::status).collect();
        let published = self.published.iter().map(|view| {
            let readers = readers(&view.ring);
            json!({
                "feed": view.feed, "ring": view.ring, "readers": readers.map(|(count, _)| count),
                "slowest_reader_lag": readers.map(|(_, lag)| lag),
            })
        });
        ("ring", json!({"serve": serves, "mirror": mirrors, "published": published.collect::<Vec<_>>()}))
    }

    fn health(&self, _now: i64, out: &mut Vec<Sign>) {
        for serve in &self.serves {
            serve.health(out);
        }
        for mirror in &self.mirrors {
            mirror.health(out);
        }
    }
}

impl ServeView {
    fn health(&self, out: &mut Vec<Sign>) {
        let get = |counter| self.state.get(counter);
        let what = |what: &str| format!("serve \"{}\": {what}", self.name);
        if get(ServeCounter::Attached) == 0 {
            let what = what(&format!("there is no ring at {}", self.ring));
            out.push(Sign::new(HealthReason::ServeWithoutRing, Shape::Holds, self.name.clone(), what));
        // A peer's producer (no incarnation) need not lock its file: whether it lives is not known.
        } else if get(ServeCounter::ProducerAlive) == 0 && get(ServeCounter::Incarnation) != 0 {
            let what = what(match get(ServeCounter::ProducerStalled) {
                0 => "its ring's producer is gone",
                _ => "its ring's producer stalls",
            });
            out.push(Sign::new(HealthReason::ProducerGone, Shape::Holds, self.name.clone(), what));
        }
    }
}

impl MirrorView {
    fn health(&self, out: &mut Vec<Sign>) {
        let get = |counter| self.state.get(counter);
        let mut say = |reason, shape, what: String| {
            out.push(Sign::new(reason, shape, self.name.clone(), format!("mirror \"{}\": {what}", self.name)));
        };
        let gaps = Shape::Grows(self.machine.get(ReceiverCounter::GapRecords));
        say(HealthReason::MirrorGaps, gaps, "records had to be left out".into());
        if get(MirrorCounter::Live) == 0 {
            let what = format!("it has no session with {}", self.source);
            say(HealthReason::MirrorDisconnected, Shape::Holds, what);
        } else if get(MirrorCounter::Silent) == 1 {
            say(HealthReason::MirrorStale, Shape::Holds, format!("its source {} is silent", self.source));
        } else if get(MirrorCounter::ProducerGone) == 1 {
            let what = format!("the producer behind {} is gone or stalls", self.source);
            say(HealthReason::MirrorStale, Shape::Holds, what);
        }
    }
}
