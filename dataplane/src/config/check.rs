//! The rules across sections: everything that can be known to be wrong without touching the host.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddrV4;

use super::capture::{Core, Feed, Interface, SourceKind, Stamp, Store, Through};
use super::check_ledger::check_ledger;
use super::check_ring::{check_rings, range};
use super::check_shared::check_shared;
use super::load::Config;
use super::report::check_report;
use crate::units::SIDES_MAX;

/// Smallest and largest AF_XDP ring: below 64 a batch does not fit; the kernel takes powers of two, and 32,768
/// descriptors of 2 KiB frames are 64 MiB a queue already.
pub(super) const RING_MIN: u32 = 64;
pub(super) const RING_MAX: u32 = 32_768;
/// Largest reorder window: 4 Mi slots of 128 bytes are 512 MiB.
pub(super) const WINDOW_MAX: u32 = 1 << 22;
/// A block must hold the largest message with its headers (64 KiB and 4 KiB of header and table); the largest is the
/// format's (`wire::block::BLOCK_BYTES_MAX`, held equal by a test of the store).
pub(super) const BLOCK_MIN: u64 = 128 << 10;
pub(super) const BLOCK_MAX: u64 = 16 << 20;
/// Blocks of a store: two that are filled and written each in turn at least; with the largest block 64 GiB.
pub(super) const BLOCKS_MIN: u32 = 4;
pub(super) const BLOCKS_MAX: u32 = 4_096;
/// Largest segment: one that no file system in use refuses, as for ledgers.
pub(super) const SEGMENT_MAX: u64 = 1 << 40;
/// zstd's levels; above 19 a level takes hundreds of MiB.
pub(super) const ZSTD_MAX: i32 = 19;
/// The last CPU that `sched_setaffinity` is asked for here: its set has 1,024 (sched_setaffinity(2)).
pub(super) const CPU_MAX: usize = 1_023;
/// Largest UMEM that can be registered: 4 GiB (its length has 32 bits in the kernel), less one huge page to round up to.
pub const UMEM_BYTES_MAX: u64 = (1 << 32) - (2 << 20);
/// Frames of 2 KiB in it. With chunks of 4 KiB it is half of it, which only the interface's MTU tells.
pub(super) const FRAMES_MAX: u32 = (UMEM_BYTES_MAX / 2_048) as u32;
/// Items of a link: a million are 64 MiB of memory, and far more than any UMEM's share.
pub(super) const LINK_MAX: u32 = 1 << 20;
/// A feed's books: each stream has histograms and a list of gaps; a session with 64 open runs is none.
pub(super) const STREAMS_MAX: u32 = 4_096;
pub(super) const RUNS_MAX: u32 = 64;
/// Longest name: an interface's other name has 127 bytes at most (ALTIFNAMSIZ).
pub(super) const NAME_BYTES_MAX: usize = 127;

/// One thing that `run` would refuse: key, value, limit, next step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The key, as `feed "deep" side "B": queues`.
    pub key: String,
    /// What is wrong, and what to do.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "config {}: {}", self.key, self.what)
    }
}

/// Frames that may be out of a queue's hands at once: the fill and receive rings, the link to each feed's arbiter and
/// from there to each store. Below it a burst could starve the fill ring while frames wait in links.
pub fn frames_needed(config: &Config, interface: &Interface) -> u64 {
    let feeds = config
        .feeds
        .iter()
        .filter(|feed| feed.sides.iter().any(|side| side.interface.as_deref() == Some(interface.name.as_str())));
    let links: u64 = feeds.map(|feed| u64::from(feed.link) * (1 + u64::from(feed.store.is_some()))).sum();
    2 * u64::from(interface.ring) + links
}

/// As [`frames_needed`], for the named interface.
pub fn queue_frames_min(config: &Config, interface: &str) -> Option<u64> {
    config.interfaces.iter().find(|i| i.name == interface).map(|i| frames_needed(config, i))
}

/// Every finding of a configuration, in the order of the file.
pub fn check(config: &Config) -> Vec<Finding> {
    let mut findings = Findings::default();
    check_names(config, &mut findings);
    for interface in &config.interfaces {
        check_interface(config, interface, &mut findings);
    }
    for feed in &config.feeds {
        check_feed(config, feed, &mut findings);
    }
    for store in &config.stores {
        check_store(config, store, &mut findings);
    }
    check_rings(config, &mut findings);
    check_ledger(config, &mut findings);
    check_shared(config, &mut findings);
    check_report(config, &mut findings);
    findings.0
}

#[derive(Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn add(&mut self, key: impl Into<String>, what: impl Into<String>) {
        self.0.push(Finding { key: key.into(), what: what.into() });
    }

    pub(super) fn core(&mut self, config: &Config, key: String, core: &str) {
        if !config.cores.iter().any(|c| c.name == core) {
            let known: Vec<&str> = config.cores.iter().map(|c| c.name.as_str()).collect();
            self.add(key, format!("no [[core]] is named \"{core}\"; there are {known:?}"));
        }
    }
}

fn check_names(config: &Config, findings: &mut Findings) {
    if config.cores.is_empty() {
        findings.add("core", "there is none: add [[core]] with name and cpu");
    }
    if config.feeds.is_empty() && config.ring.is_empty() && config.ledger.is_empty() {
        findings.add(
            "feed",
            "there is none, and neither ring nor ledger: add [[feed]] with at least one [[feed.side]], [[ring.serve]], [[ring.mirror]] or [ledger.serve]",
        );
    }
    let kinds: [(&str, Vec<&str>); 6] = [
        ("core", config.cores.iter().map(|c| c.name.as_str()).collect()),
        ("interface", config.interfaces.iter().map(|c| c.name.as_str()).collect()),
        ("feed", config.feeds.iter().map(|c| c.name.as_str()).collect()),
        ("store", config.stores.iter().map(|c| c.name.as_str()).collect()),
        ("ring.serve", config.ring.serves.iter().map(|c| c.name.as_str()).collect()),
        ("ring.mirror", config.ring.mirrors.iter().map(|c| c.name.as_str()).collect()),
    ];
    for (kind, names) in kinds {
        let mut seen = BTreeSet::new();
        for name in names {
            check_name(kind, name, findings);
            if !seen.insert(name) {
                findings.add(format!("{kind} \"{name}\""), "two have this name: rename one");
            }
        }
    }
    check_cores(&config.cores, findings);
    check_store_cores(config, findings);
}

/// A name stands in metrics, reports and the names of threads.
fn check_name(kind: &str, name: &str, findings: &mut Findings) {
    if name.is_empty() {
        findings.add(format!("{kind}: name"), "is empty: give it a name");
    } else if name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        findings.add(
            format!("{kind}: name"),
            format!(
                "{name:?} has {} bytes, but a name has at most {NAME_BYTES_MAX} and no control character",
                name.len()
            ),
        );
    }
}

fn check_cores(cores: &[Core], findings: &mut Findings) {
    let mut cpus: BTreeMap<usize, &str> = BTreeMap::new();
    for core in cores {
        let key = format!("core \"{}\": cpu", core.name);
        range(findings, key.clone(), core.cpu, 0, CPU_MAX);
        if let Some(other) = cpus.insert(core.cpu, &core.name) {
            findings.add(
                key,
                format!(
                    "{} is core \"{other}\"'s already: one thread per CPU; let their workers share one [[core]]",
                    core.cpu
                ),
            );
        }
    }
}

fn check_store_cores(config: &Config, findings: &mut Findings) {
    let mut store_cores = BTreeMap::new();
    for store in &config.stores {
        if let Some(other) = store_cores.insert(&store.core, &store.name) {
            findings.add(
                format!("store \"{}\": core", store.name),
                format!("core \"{}\" is store \"{other}\"'s already: a core's io_uring registers one store's blocks; give each store a core of its own", store.core),
            );
        }
    }
}

fn check_interface(config: &Config, interface: &Interface, findings: &mut Findings) {
    let key = |field: &str| format!("interface \"{}\": {field}", interface.name);
    if interface.cores.is_empty() {
        findings.add(key("cores"), "is empty: name the core that serves each receive queue");
    }
    for core in &interface.cores {
        findings.core(config, key("cores"), core);
    }
    if !interface.ring.is_power_of_two() || !(RING_MIN..=RING_MAX).contains(&interface.ring) {
        findings.add(
            key("ring"),
            format!("is {}, but must be a power of two from {RING_MIN} to {RING_MAX}", interface.ring),
        );
    }
    let needed = frames_needed(config, interface);
    if u64::from(interface.frames) < needed {
        findings.add(
            key("frames"),
            format!(
                "is {}, but the fill ring, the receive ring and the links can hold {needed} at once: raise it to {needed}, or lower ring or link",
                interface.frames
            ),
        );
    }
    if interface.frames > FRAMES_MAX {
        findings.add(
            key("frames"),
            format!("is {}, but a UMEM has at most 4GiB, which are {FRAMES_MAX} frames: lower it", interface.frames),
        );
    }
    if interface.through == Through::Libpcap {
        check_libpcap(interface, findings);
    }
    if interface.stamp == Stamp::Hardware {
        findings.add(
            key("stamp"),
            "is \"hardware\", but the NIC's receive stamp needs a device-bound program that calls bpf_xdp_metadata_rx_timestamp, which the BPF loader used here cannot load (no kfuncs, no device binding): use \"software\"",
        );
    }
    let used =
        config.feeds.iter().flat_map(|f| &f.sides).any(|s| s.interface.as_deref() == Some(interface.name.as_str()));
    if !used {
        findings.add(
            format!("interface \"{}\"", interface.name),
            "no feed side uses it: remove it, or name it in a [[feed.side]]",
        );
    }
}

fn check_libpcap(interface: &Interface, findings: &mut Findings) {
    let key = |field: &str| format!("interface \"{}\": {field}", interface.name);
    if !cfg!(feature = "libpcap") {
        findings.add(
            key("through"),
            "is \"libpcap\", but this build has no libpcap: build with --features libpcap, or write \"af_xdp\"",
        );
    }
    if interface.queues > 1 {
        findings.add(
            key("queues"),
            format!("is {}, but libpcap takes an interface as one queue: write 0 or 1", interface.queues),
        );
    }
}

/// Most copy frames: 1 GiB of them, and far below where a frame's offset would pass a u32.
pub(super) const COPY_FRAMES_MAX: u32 = (1 << 30) / super::COPY_FRAME_BYTES;

/// Bytes of the reorder window for each of its messages: two slots of 128.
pub const WINDOW_BYTES_PER_MESSAGE: u64 = 2 * 128;

/// Copy frames that a full reorder window can take at once: two 128-byte slots a message, and between each two a gap
/// (the arbiter's slot count, a record's 32-byte header, a gap's 40 bytes).
fn copy_frames_needed(window: u32) -> u64 {
    let bytes = u64::from(window) * (WINDOW_BYTES_PER_MESSAGE + 32 + 40);
    bytes.div_ceil(u64::from(super::COPY_FRAME_BYTES)) + 1
}

fn check_feed(config: &Config, feed: &Feed, findings: &mut Findings) {
    let key = |field: &str| format!("feed \"{}\": {field}", feed.name);
    findings.core(config, key("core"), &feed.core);
    if let Some(store) = &feed.store
        && !config.stores.iter().any(|s| &s.name == store)
    {
        findings.add(key("store"), format!("no [[store]] is named \"{store}\": add it, or remove the key"));
    }
    if feed.sides.is_empty() || feed.sides.len() > SIDES_MAX {
        findings.add(key("side"), format!("there are {}, but a feed has 1 to {SIDES_MAX}", feed.sides.len()));
    }
    if feed.window == 0 || feed.window > WINDOW_MAX {
        findings.add(key("window"), format!("is {}, but must be from 1 to {WINDOW_MAX} messages", feed.window));
    }
    range(findings, key("link"), feed.link, RING_MIN, LINK_MAX);
    check_publish(feed, findings);
    let copies = copy_frames_needed(feed.window);
    if feed.copy_frames > COPY_FRAMES_MAX {
        findings.add(key("copy_frames"), format!("is {}, but at most {COPY_FRAMES_MAX} (1 GiB)", feed.copy_frames));
    }
    if u64::from(feed.copy_frames) < copies {
        findings.add(
            key("copy_frames"),
            format!("is {}, but a full window of {} messages can take {copies} when it empties at once: raise it, or lower window", feed.copy_frames, feed.window),
        );
    }
    range(findings, key("streams_max"), feed.streams_max, 1, STREAMS_MAX);
    range(findings, key("runs_max"), feed.runs_max, 1, RUNS_MAX);
    if feed.sides.iter().any(|s| s.source == SourceKind::File)
        && feed.sides.iter().any(|s| s.source != SourceKind::File)
    {
        findings.add(
            key("side"),
            "some sides are files and some are live: their clocks differ; make them all one or the other",
        );
    }
    for (index, side) in feed.sides.iter().enumerate() {
        check_name(&format!("feed \"{}\" side", feed.name), &side.name, findings);
        if feed.sides[..index].iter().any(|other| other.name == side.name) {
            findings.add(format!("feed \"{}\" side \"{}\"", feed.name, side.name), "two have this name: rename one");
        }
        check_side(config, feed, side, findings);
    }
}

/// Smallest arena of a published feed: two of the longest messages (64 KiB), so that the one being read is not the one
/// being written. Largest capacity and arena: 2^30 slots of 64 bytes and 1 TiB lie beyond any machine's /dev/shm.
pub(super) const PUBLISH_ARENA_MIN: u64 = 128 << 10;
pub(super) const PUBLISH_ARENA_MAX: u64 = 1 << 40;
pub(super) const PUBLISH_CAPACITY_MIN: u64 = 64;
pub(super) const PUBLISH_CAPACITY_MAX: u64 = 1 << 30;

fn check_publish(feed: &Feed, findings: &mut Findings) {
    let key = |field: &str| format!("feed \"{}\": {field}", feed.name);
    let (capacity, arena) = (feed.publish_capacity, feed.publish_arena.0);
    if !capacity.is_power_of_two() || !(PUBLISH_CAPACITY_MIN..=PUBLISH_CAPACITY_MAX).contains(&capacity) {
        let what = format!(
            "is {capacity}, but must be a power of two from {PUBLISH_CAPACITY_MIN} to {PUBLISH_CAPACITY_MAX} records"
        );
        findings.add(key("publish_capacity"), what);
    }
    if !arena.is_power_of_two() || !(PUBLISH_ARENA_MIN..=PUBLISH_ARENA_MAX).contains(&arena) {
        let what =
            format!("is {arena} bytes, but must be a power of two from 128KiB (two of the longest messages) to 1TiB");
        findings.add(key("publish_arena"), what);
    }
    let Some(path) = &feed.publish else { return };
    if !path.is_absolute() {
        let what = format!("is \"{}\", but must be an absolute path: write \"/dev/shm/{0}\"", path.display());
        findings.add(key("publish"), what);
    }
}

fn check_side(config: &Config, feed: &Feed, side: &super::capture::Side, findings: &mut Findings) {
    let key = |field: &str| format!("feed \"{}\" side \"{}\": {field}", feed.name, side.name);
    for group in &side.groups {
        if group.parse::<SocketAddrV4>().is_ok_and(|group| group.port() > 0 && !group.ip().is_unspecified()) {
            continue;
        }
        findings.add(
            key("groups"),
            format!("\"{group}\" is not an IPv4 address and port: write for example \"233.215.21.4:10378\""),
        );
    }
    match side.source {
        SourceKind::AfXdp => {
            match &side.interface {
                None => findings.add(key("interface"), "is missing: name the interface that receives this side"),
                Some(name) if !config.interfaces.iter().any(|i| &i.name == name) => {
                    findings
                        .add(key("interface"), format!("no [[interface]] is named \"{name}\": add one with its cores"));
                }
                Some(_) => {}
            }
            if side.groups.is_empty() {
                findings.add(key("groups"), "is empty: name the groups (or addresses) and ports that carry this side");
            }
        }
        SourceKind::File => {
            if side.file.as_deref() == Some(std::path::Path::new("-")) {
                findings.add(
                    key("file"),
                    "is \"-\": a pinned core never waits for input; name a file, or use \"sluice feed arbitrate\"",
                );
            }
            if side.file.is_none() {
                findings.add(key("file"), "is missing: name the capture file");
            }
            match &side.core {
                None => findings.add(key("core"), "is missing: name the core that reads the file"),
                Some(core) => findings.core(config, key("core"), core),
            }
        }
    }
}

fn check_store(config: &Config, store: &Store, findings: &mut Findings) {
    let key = |field: &str| format!("store \"{}\": {field}", store.name);
    findings.core(config, key("core"), &store.core);
    check_store_sizes(store, findings);
    range(findings, key("blocks_in_flight"), store.blocks_in_flight, BLOCKS_MIN, BLOCKS_MAX);
    for (name, time) in [("flush", store.flush), ("fsync_interval", store.fsync_interval)] {
        if time.0.is_zero() {
            findings.add(key(name), "is 0s, but must be above: write for example \"1s\"");
        }
    }
    if store.path.as_os_str().is_empty() {
        findings.add(key("path"), "is empty: name the directory of the store");
    }
    check_store_feeds(config, store, findings);
    if !(0..=ZSTD_MAX).contains(&store.zstd) {
        findings.add(key("zstd"), format!("is {}, but must be from 0 (off) to {ZSTD_MAX}", store.zstd));
    }
}

/// Blocks, segments, and what is kept of them.
fn check_store_sizes(store: &Store, findings: &mut Findings) {
    let key = |field: &str| format!("store \"{}\": {field}", store.name);
    let blocks = |count: u64| super::Bytes(count.saturating_mul(store.block.0));
    if !(BLOCK_MIN..=BLOCK_MAX).contains(&store.block.0) || !store.block.0.is_multiple_of(4_096) {
        let (least, most) = (super::Bytes(BLOCK_MIN), super::Bytes(BLOCK_MAX));
        findings
            .add(key("block"), format!("is {}, but must be a multiple of 4KiB from {least} to {most}", store.block));
    }
    if store.segment < blocks(4) || store.segment.0 > SEGMENT_MAX {
        let most = super::Bytes(SEGMENT_MAX);
        findings.add(
            key("segment"),
            format!("is {}, but must be from four blocks ({}) to {most}", store.segment, blocks(4)),
        );
    }
    let two = super::Bytes(store.segment.0.saturating_mul(2));
    if store.retain.0 != 0 && store.retain < two {
        findings.add(
            key("retain"),
            format!(
                "is {}, but must hold at least two sealed segments ({two}; the two that are written or ready come on top), or be 0",
                store.retain
            ),
        );
    }
}

/// What a store's feeds, and the arbiter on its core, allow.
fn check_store_feeds(config: &Config, store: &Store, findings: &mut Findings) {
    let key = |field: &str| format!("store \"{}\": {field}", store.name);
    let feeds = config.feeds.iter().filter(|feed| feed.store.as_deref() == Some(store.name.as_str()));
    let (files, live): (Vec<&Feed>, Vec<&Feed>) =
        feeds.partition(|feed| feed.sides.iter().any(|side| side.source == SourceKind::File));
    if let (Some(file), Some(live)) = (files.first(), live.first()) {
        findings.add(
            key("name"),
            format!(
                "feed \"{}\" reads files and feed \"{}\" is live: their stamps are two clocks; give each a store",
                file.name, live.name
            ),
        );
    }
    let arbiter = files.iter().chain(&live).find(|feed| feed.core == store.core);
    if let (true, Some(feed)) = (store.zstd > 0, arbiter) {
        findings.add(
            key("zstd"),
            format!("is {}, but core \"{}\" also runs the arbiter of feed \"{}\", which compression would hold up: give the store a core of its own, or set zstd = 0", store.zstd, store.core, feed.name),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Ledger, LedgerServe, Mirror, Ring, Serve, parse};

    const GOOD: &str = r#"
        [[core]]
        name = "rx"
        cpu = 0
        [[core]]
        name = "disk"
        cpu = 1
        [[interface]]
        name = "eth1"
        cores = ["rx"]
        [[feed]]
        name = "deep"
        protocol = "iex-tp"
        core = "rx"
        store = "main"
        [[feed.side]]
        name = "A"
        interface = "eth1"
        groups = ["233.215.21.4:10378"]
        [[store]]
        name = "main"
        path = "/tmp/x"
        core = "disk"
    "#;

    #[test]
    fn a_good_file_has_no_finding() {
        let config = parse(GOOD).expect("parses");
        assert_eq!(check(&config), []);
        assert_eq!(queue_frames_min(&config, "eth1"), Some(16_384));
    }

    #[test]
    fn the_annotated_file_equals_the_defaults() {
        let annotated = parse(include_str!("../../../config/default.toml")).expect("parses");
        let bare = GOOD.replace("path = \"/tmp/x\"", "path = \"/var/lib/sluice/main\"").to_string();
        let mut bare = parse(&bare).expect("parses");
        bare.feeds[0].sides[0].source = SourceKind::AfXdp;
        // Written out in the annotated file: what a live feed gets that does not give them.
        bare.feeds[0].hold = Some(Feed::HOLD_LIVE);
        bare.feeds[0].side_timeout = Some(Feed::SIDE_TIMEOUT_LIVE);
        bare.ring = ring_with_every_default();
        bare.ledger = Ledger { serve: Some(LedgerServe::new("rx")) };
        assert_eq!(annotated, bare);
        let text = toml::to_string(&bare).expect("prints");
        for line in text.lines().filter(|line| line.contains('=')) {
            let key = line.split('=').next().unwrap_or("").trim();
            assert!(
                include_str!("../../../config/default.toml").contains(&format!("{key} = ")),
                "{key} is not in the annotated file"
            );
        }
        assert_eq!(check(&annotated), []);
        assert_eq!(check(&parse(include_str!("../../../config/demo.toml")).expect("parses")), []);
    }

    /// The ring's sections of the annotated file; what has no default is as written there.
    fn ring_with_every_default() -> Ring {
        let bind = "0.0.0.0:7400".parse().expect("an address");
        let serve = Serve {
            multicast: Some("239.255.0.1:7401".parse().expect("a group")),
            udp: Some(7403),
            ..Serve::new("ticks", "rx", "/dev/shm/ticks".into(), bind)
        };
        let mirror = Mirror::new("book", "disk", "10.0.0.5:7400", "/dev/shm/book".into());
        Ring { serves: vec![serve], mirrors: vec![mirror] }
    }

    #[test]
    fn every_rule_names_its_key() {
        let cases = [
            ("cores = [\"rx\"]", "cores = [\"no\"]", "interface \"eth1\": cores"),
            ("cores = [\"rx\"]", "cores = [\"rx\"]\nring = 100", "interface \"eth1\": ring"),
            ("cores = [\"rx\"]", "cores = [\"rx\"]\nframes = 16383", "interface \"eth1\": frames"),
            ("cores = [\"rx\"]", "cores = [\"rx\"]\nstamp = \"hardware\"", "interface \"eth1\": stamp"),
            ("cpu = 1", "cpu = 0", "core \"disk\": cpu"),
            ("name = \"disk\"\n", "name = \"rx\"\n", "core \"rx\""),
            ("store = \"main\"", "store = \"other\"", "feed \"deep\": store"),
            ("store = \"main\"", "store = \"main\"\nwindow = 0", "feed \"deep\": window"),
            ("interface = \"eth1\"", "interface = \"eth9\"", "feed \"deep\" side \"A\": interface"),
            ("233.215.21.4:10378", "233.215.21.4", "feed \"deep\" side \"A\": groups"),
            ("path = \"/tmp/x\"", "path = \"/tmp/x\"\nblock = \"100KiB\"", "store \"main\": block"),
            ("store = \"main\"", "store = \"main\"\ncopy_frames = 100", "feed \"deep\": copy_frames"),
            ("store = \"main\"", "publish = \"deep\"", "feed \"deep\": publish"),
            ("store = \"main\"", "publish_capacity = 1000", "feed \"deep\": publish_capacity"),
            ("store = \"main\"", "publish_arena = \"64KiB\"", "feed \"deep\": publish_arena"),
            ("store = \"main\"", "store = \"main\"\ncopy_frames = 100000", "feed \"deep\": copy_frames"),
            ("path = \"/tmp/x\"", "path = \"/tmp/x\"\nblock = \"32MiB\"", "store \"main\": block"),
            ("core = \"disk\"", "core = \"rx\"\nzstd = 3", "store \"main\": zstd"),
            ("path = \"/tmp/x\"", "path = \"/tmp/x\"\nsegment = \"512KiB\"", "store \"main\": segment"),
            ("path = \"/tmp/x\"", "path = \"/tmp/x\"\nretain = \"1GiB\"", "store \"main\": retain"),
            ("cpu = 1", "cpu = 1024", "core \"disk\": cpu"),
            ("name = \"disk\"\n        cpu", "name = \"di\\u0000sk\"\n        cpu", "core: name"),
            ("cores = [\"rx\"]", "cores = [\"rx\"]\nframes = 3000000", "interface \"eth1\": frames"),
            ("cores = [\"rx\"]", "cores = [\"rx\"]\nthrough = \"libpcap\"\nqueues = 2", "interface \"eth1\": queues"),
            ("store = \"main\"", "store = \"main\"\nlink = 4000000", "feed \"deep\": link"),
            ("store = \"main\"", "store = \"main\"\nruns_max = 65", "feed \"deep\": runs_max"),
            ("233.215.21.4:10378", "233.215.21.4:0", "feed \"deep\" side \"A\": groups"),
            ("path = \"/tmp/x\"", "path = \"/tmp/x\"\nflush = \"0s\"", "store \"main\": flush"),
            ("path = \"/tmp/x\"", "path = \"/tmp/x\"\nsegment = \"2TiB\"", "store \"main\": segment"),
        ];
        for (from, to, key) in cases {
            assert!(GOOD.contains(from), "{from}");
            let config = parse(&GOOD.replace(from, to)).expect("parses");
            let findings = check(&config);
            assert!(findings.iter().any(|f| f.key == key), "{to}: {findings:?}");
        }
    }

    #[test]
    fn unknown_keys_are_refused_with_their_line() {
        let error = parse(&GOOD.replace("cpu = 0", "cpu = 0\ncolour = 3")).expect_err("unknown key");
        assert!(error.to_string().contains("colour"), "{error}");
    }
}
