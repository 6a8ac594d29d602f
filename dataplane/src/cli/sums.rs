//! What a configuration takes: memory by worker, descriptors, threads. Sums over the file; what only the host knows (how many
//! queues an interface has, how large a source's ring is) is counted as the file bounds it.

use serde_json::{Value, json};

use crate::capture::file_worker::FileWorker;
use crate::capture::items::RxItem;
use crate::config::{self, Config, Feed, LedgerServe, LedgerSource, Through};
use crate::feed::handoff::Handoff;
use crate::ledger::archive::OUTSIDE_BYTES_MAX;
use crate::ledger::plan::{POOL_BYTES, POOL_READY_BYTES};
use crate::sys::frames::FrameToken;

/// Bytes of a frame in a UMEM up to MTU 1,770; beyond it twice that, which only the interface tells.
pub(super) const CHUNK_BYTES: u64 = 2_048;
/// A record of a published feed: its descriptor, its metadata, its sequence word (docs/formats/ring.md).
const PUBLISHED_RECORD_BYTES: u64 = 64;
/// What a connection of a serve may hold while it is behind: one frame.
const SERVE_CONNECTION_BYTES: u64 = 1 << 20;
/// Smaller sums are left out of the list: books, histograms, the rings of descriptors.
const SHOWN_BYTES_MIN: u64 = 1 << 20;

/// When memory is taken, and of which kind it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Before the first packet, and pinned by the kernel.
    Locked,
    /// Before the first packet.
    Reserved,
    /// Before the first packet, as a file of shared memory.
    Shared,
    /// Only as it is needed; the most.
    AtMost,
    /// As it is needed, as a file of shared memory; the most.
    SharedAtMost,
}

impl Kind {
    /// The kind in one word or two.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Locked => "pinned",
            Kind::Reserved => "reserved",
            Kind::Shared => "shared",
            Kind::AtMost => "at most",
            Kind::SharedAtMost => "shared, at most",
        }
    }

    /// Whether it is taken before the first packet.
    pub fn is_at_start(self) -> bool {
        matches!(self, Kind::Locked | Kind::Reserved | Kind::Shared)
    }
}

/// Memory of one worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    /// The worker, as in the drawing.
    pub worker: String,
    /// What it is for.
    pub what: &'static str,
    /// Bytes.
    pub bytes: u64,
    /// Its kind.
    pub kind: Kind,
}

/// Memory by worker, in the order of the file.
pub fn memory(config: &Config) -> Vec<Memory> {
    let mut rows = Vec::new();
    let mut row = |worker: String, what, bytes, kind| rows.push(Memory { worker, what, bytes, kind });
    for interface in &config.interfaces {
        let frames = u64::from(interface.frames) * CHUNK_BYTES;
        let queues = u64::from(interface.queues.max(1));
        let (name, kind) = match interface.through {
            Through::AfXdp => ("UMEM", Kind::Locked),
            Through::Libpcap => ("frames", Kind::Reserved),
        };
        let each = if interface.queues == 0 { " (each queue)" } else { "" };
        row(format!("rx {}{each}", interface.name), name, frames * queues, kind);
    }
    for feed in &config.feeds {
        feed_memory(config, feed, &mut row);
    }
    for store in &config.stores {
        let blocks = u64::from(store.blocks_in_flight) * store.block.0;
        row(format!("store {}", store.name), "blocks", blocks, Kind::Locked);
    }
    for mirror in &config.ring.mirrors {
        let name = format!("mirror {}", mirror.name);
        row(name.clone(), "its copy of the ring", mirror.geometry_max.0, Kind::SharedAtMost);
        row(name, "datagrams held back", mirror.hold_back.0, Kind::AtMost);
    }
    for serve in &config.ring.serves {
        let behind = u64::from(serve.connections_max) * SERVE_CONNECTION_BYTES;
        row(format!("serve {}", serve.name), "connections that are behind", behind, Kind::AtMost);
    }
    if let Some(serve) = &config.ledger.serve {
        ledger_memory(serve, &mut row);
    }
    rows.retain(|row| row.bytes >= SHOWN_BYTES_MIN);
    rows
}

fn feed_memory(config: &Config, feed: &Feed, row: &mut impl FnMut(String, &'static str, u64, Kind)) {
    let name = format!("arbiter {}", feed.name);
    row(name.clone(), "reorder window", u64::from(feed.window) * config::WINDOW_BYTES_PER_MESSAGE, Kind::Reserved);
    let copies = u64::from(feed.copy_frames) * u64::from(config::COPY_FRAME_BYTES);
    row(name.clone(), "copy pool", copies, Kind::Reserved);
    row(name.clone(), "links", links_bytes(config, feed), Kind::Reserved);
    if feed.publish.is_some() {
        let ring = feed.publish_capacity * PUBLISHED_RECORD_BYTES + feed.publish_arena.0;
        row(name, "published ring", ring, Kind::Shared);
    }
    if feed.is_files() {
        let frames = FileWorker::FRAMES as u64 * u64::from(config::COPY_FRAME_BYTES);
        row(format!("files {}", feed.name), "frames", frames, Kind::Reserved);
    }
}

/// The links to and from a feed's arbiter, with those that bring frames home.
fn links_bytes(config: &Config, feed: &Feed) -> u64 {
    let token = size_of::<FrameToken>() as u64;
    let (link, mut bytes) = (u64::from(feed.link), u64::from(feed.copy_frames) * token);
    let homes = 1 + u64::from(feed.store.is_some());
    let of_it = |name: &str| feed.sides.iter().any(|side| side.interface.as_deref() == Some(name));
    for interface in config.interfaces.iter().filter(|interface| of_it(&interface.name)) {
        let queues = u64::from(interface.queues.max(1));
        bytes += queues * (link * size_of::<RxItem>() as u64 + homes * u64::from(interface.frames) * token);
    }
    if feed.is_files() {
        bytes += link * size_of::<RxItem>() as u64 + homes * FileWorker::FRAMES as u64 * token;
    }
    if feed.store.is_some() {
        bytes += link * size_of::<Handoff<FrameToken>>() as u64;
    }
    bytes
}

fn ledger_memory(serve: &LedgerServe, row: &mut impl FnMut(String, &'static str, u64, Kind)) {
    let name = || "ledger fan-out".to_string();
    row(name(), "chunk buffers", POOL_READY_BYTES as u64, Kind::Reserved);
    row(name(), "more chunk buffers", (POOL_BYTES - POOL_READY_BYTES) as u64, Kind::AtMost);
    row(name(), "ledgers that wait for their write", serve.backlog_bytes.0, Kind::AtMost);
    row(name(), "reads for replays", OUTSIDE_BYTES_MAX, Kind::AtMost);
    if serve.source == LedgerSource::Synthetic {
        row("ledger source".into(), "ledgers laid out ahead", 2 * serve.synthetic_size.0, Kind::Reserved);
    }
}

/// Bytes of these kinds.
pub fn total(rows: &[Memory], kinds: impl Fn(Kind) -> bool) -> u64 {
    rows.iter().filter(|row| kinds(row.kind)).map(|row| row.bytes).sum()
}

/// Bytes that are locked: what the kernel pins for itself, or all that is there when the gate opens.
pub fn locked(config: &Config, rows: &[Memory]) -> u64 {
    total(rows, |kind| kind == Kind::Locked || (config.process.lock_memory && kind.is_at_start()))
}

/// Bytes in a unit that reads well, rounded up.
pub fn shown(bytes: u64) -> String {
    match bytes {
        0 => "0 MiB".into(),
        large if large >= 10 << 30 => format!("{} GiB", large.div_ceil(1 << 30)),
        other => format!("{} MiB", other.div_ceil(1 << 20)),
    }
}

/// Descriptors of a process that has no job: standard streams, signals, links and their watch, control with a client, the log's and
/// the resolver's, and as many again for what the C library opens for a moment.
const DESCRIPTORS_OF_NOTHING: u64 = 32;
/// Of a core: its doorbell and its io_uring.
const DESCRIPTORS_OF_A_CORE: u64 = 2;
/// Of an interface: program, link, maps, memberships, the filter.
const DESCRIPTORS_OF_AN_INTERFACE: u64 = 12;
/// Of a feed: the doorbell of its losses, its ring.
const DESCRIPTORS_OF_A_FEED: u64 = 4;
/// Of a store: its lock, the segment that is written, the next, the one that is sealed, a directory that is listed.
const DESCRIPTORS_OF_A_STORE: u64 = 8;
/// Of a serve or a mirror beside its connections: sockets for streams and datagrams, the ring, its folder.
const DESCRIPTORS_OF_A_RING: u64 = 8;
/// Of the ledger job beside its connections: the listener, the lock, segments that are written, sealed or read, a child's pipes.
const DESCRIPTORS_OF_LEDGERS: u64 = 64;
/// Connections that are no subscribers: health checks, and handshakes (`ledger::fanout::gate`).
const DESCRIPTORS_OF_STRANGERS: u64 = 512;

/// Descriptors by what they are for; each the most.
pub fn descriptors(config: &Config) -> Vec<(String, u64)> {
    let mut rows = vec![
        ("the process itself".to_string(), DESCRIPTORS_OF_NOTHING),
        (format!("{} cores", config.cores.len()), config.cores.len() as u64 * DESCRIPTORS_OF_A_CORE),
    ];
    for interface in &config.interfaces {
        let each = if interface.queues == 0 { "one queue" } else { "its queues" };
        let count = DESCRIPTORS_OF_AN_INTERFACE + u64::from(interface.queues.max(1));
        rows.push((format!("interface {}, {each}", interface.name), count));
    }
    for feed in &config.feeds {
        let files = feed.sides.iter().filter(|side| side.file.is_some()).count() as u64;
        rows.push((format!("feed {}", feed.name), DESCRIPTORS_OF_A_FEED + files));
    }
    rows.extend(config.stores.iter().map(|store| (format!("store {}", store.name), DESCRIPTORS_OF_A_STORE)));
    rows.extend(config.ring.mirrors.iter().map(|mirror| (format!("mirror {}", mirror.name), DESCRIPTORS_OF_A_RING)));
    for serve in &config.ring.serves {
        let count = DESCRIPTORS_OF_A_RING + u64::from(serve.connections_max);
        rows.push((format!("serve {}, connections_max {}", serve.name, serve.connections_max), count));
    }
    if let Some(serve) = &config.ledger.serve {
        let count = DESCRIPTORS_OF_LEDGERS
            + DESCRIPTORS_OF_STRANGERS
            + u64::from(serve.subscribers_max)
            + u64::from(serve.upstream_flows);
        rows.push((format!("ledger server, subscribers_max {}", serve.subscribers_max), count));
    }
    rows
}

/// The process's own threads by name; the kernel's io workers come on top, at most two a core.
pub fn threads(config: &Config) -> Vec<String> {
    let working = config.cores.iter().map(|core| core.name.as_str()).filter(|core| config::has_work(config, core));
    let mut threads: Vec<String> = ["main", "log", "control"].map(String::from).to_vec();
    threads.extend((!config.feeds.is_empty()).then(|| "report".to_string()));
    threads.extend(working.map(|core| format!("core {core}")));
    threads.extend(config.stores.iter().map(|store| format!("files of store {}", store.name)));
    let named = |source: &str| source.parse::<std::net::SocketAddr>().is_err();
    let mirrors = config.ring.mirrors.iter().filter(|mirror| named(&mirror.source));
    threads.extend(mirrors.map(|mirror| format!("resolver of mirror {}", mirror.name)));
    match config.ledger.serve.as_ref().map(|serve| serve.source) {
        Some(LedgerSource::File | LedgerSource::Synthetic) => threads.push("player of ledgers".into()),
        Some(LedgerSource::Follow) => threads.push("resolver of the upstream".into()),
        _ => {}
    }
    threads
}

/// The sums as JSON.
pub fn json(config: &Config) -> Value {
    let memory = memory(config);
    let rows: Vec<Value> = memory
        .iter()
        .map(|row| json!({"worker": row.worker, "what": row.what, "bytes": row.bytes, "kind": row.kind.word()}))
        .collect();
    let descriptors = descriptors(config);
    let of: serde_json::Map<String, Value> =
        descriptors.iter().map(|(what, count)| (what.clone(), json!(count))).collect();
    json!({
        "memory": rows,
        "start_bytes": total(&memory, Kind::is_at_start),
        "locked_bytes": locked(config, &memory),
        "shared_bytes": total(&memory, |kind| matches!(kind, Kind::Shared | Kind::SharedAtMost)),
        "most_bytes": total(&memory, |_| true),
        "descriptors": of,
        "descriptors_max": descriptors.iter().map(|(_, count)| count).sum::<u64>(),
        "threads": threads(config),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotated_file_is_summed() {
        let config = config::parse(include_str!("../../../config/default.toml")).expect("parses");
        let memory = memory(&config);
        let bytes = |worker: &str, what: &str| {
            memory
                .iter()
                .find(|row| row.worker == worker && row.what == what)
                .unwrap_or_else(|| panic!("{memory:#?}"))
                .bytes
        };
        assert_eq!(bytes("rx eth1 (each queue)", "UMEM"), 32 << 20);
        assert_eq!(bytes("arbiter deep", "reorder window"), 16 << 20);
        assert_eq!(bytes("arbiter deep", "copy pool"), 33 << 20);
        assert_eq!(bytes("store main", "blocks"), 16 << 20);
        let start = total(&memory, Kind::is_at_start);
        assert_eq!(json(&config)["locked_bytes"].as_u64(), Some(start));
        let mut unlocked = config.clone();
        unlocked.process.lock_memory = false;
        // What the kernel pins in any case: UMEM and blocks.
        assert_eq!(json(&unlocked)["locked_bytes"].as_u64(), Some(48 << 20));
        assert!(start > 48 << 20);
    }

    #[test]
    fn sizes_are_rounded_up() {
        for (bytes, text) in
            [(0, "0 MiB"), (1, "1 MiB"), (5 << 20, "5 MiB"), (1 << 30, "1024 MiB"), ((10 << 30) + 1, "11 GiB")]
        {
            assert_eq!(shown(bytes), text);
        }
    }

    #[test]
    fn connections_make_the_sum_of_descriptors() {
        let config = config::parse(include_str!("../../../config/default.toml")).expect("parses");
        let sum = |config: &Config| descriptors(config).iter().map(|(_, count)| count).sum::<u64>();
        let mut more = config.clone();
        more.ring.serves[0].connections_max += 100;
        more.ledger.serve.as_mut().expect("there").subscribers_max += 1_000;
        assert_eq!(sum(&more), sum(&config) + 1_100);
    }
}
