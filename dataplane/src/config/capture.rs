//! The sections of the capture job.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::quantity::{Bytes, Span};
use super::report::LogFormat;

/// Bytes of a copy frame: the longest UDP payload with a record's header fits.
pub const COPY_FRAME_BYTES: u32 = 66 << 10;

/// What a core does when its workers have nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// Polls for ever: lowest latency, a whole CPU.
    Spin,
    /// Polls, then yields its CPU between polls.
    Backoff,
    /// Polls briefly, then sleeps in the kernel until something arrives.
    Park,
}

/// `[[core]]`: one pinned thread.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Core {
    /// The name that workers refer to.
    pub name: String,
    /// The CPU.
    pub cpu: usize,
    /// What it does without work.
    #[serde(default = "Core::idle_default")]
    pub idle: Idle,
}

impl Core {
    fn idle_default() -> Idle {
        Idle::Park
    }
}

/// Whether an AF_XDP socket must, may or must not run in zero-copy mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ZeroCopy {
    /// The start fails where the driver cannot.
    Require,
    /// Zero-copy where the driver can, else copy; the mode got is shown and exported.
    Prefer,
    /// Copy mode.
    Off,
}

/// Where the XDP program hooks in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AttachMode {
    /// In the driver; the start fails where it cannot.
    Native,
    /// In the driver, else in the generic path; the mode got is shown.
    Auto,
    /// In the generic path.
    Generic,
}

/// Where capture stamps come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Stamp {
    /// The XDP program reads the kernel's TAI clock.
    Software,
    /// The NIC's own stamp. Refused with its reason where kernel, driver or loader cannot give it.
    Hardware,
}

/// Which frames the NIC lets through beside its own address and joined groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Promiscuous {
    /// What is joined.
    Off,
    /// Every multicast group.
    AllMulticast,
    /// Everything.
    On,
}

/// Through what an interface is captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Through {
    /// AF_XDP sockets, one per receive queue.
    AfXdp,
    /// libpcap, as one queue (a build with the feature `libpcap`).
    Libpcap,
}

/// `[[interface]]`: how a NIC is captured. One program, one XSKMAP; one socket, one UMEM, one worker per queue.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// The interface's name or altname.
    pub name: String,
    /// Through what it is captured.
    #[serde(default = "Interface::through_default")]
    pub through: Through,
    /// Cores that serve its receive queues: queue *i* runs on core *i* modulo their number.
    pub cores: Vec<String>,
    /// Receive queues to open, from 0; 0 means all that the interface has. Fewer than it has is refused.
    #[serde(default)]
    pub queues: u32,
    /// Zero-copy policy.
    #[serde(default = "Interface::zero_copy_default")]
    pub zero_copy: ZeroCopy,
    /// Where the program attaches.
    #[serde(default = "Interface::mode_default")]
    pub mode: AttachMode,
    /// Frames of each queue's UMEM.
    #[serde(default = "Interface::frames_default")]
    pub frames: u32,
    /// Descriptors of each receive and fill ring; a power of two.
    #[serde(default = "Interface::ring_default")]
    pub ring: u32,
    /// Back the UMEM with huge pages where there are any.
    #[serde(default)]
    pub huge_pages: bool,
    /// Stamp source.
    #[serde(default = "Interface::stamp_default")]
    pub stamp: Stamp,
    /// Let more than the joined groups through the NIC.
    #[serde(default = "Interface::promiscuous_default")]
    pub promiscuous: Promiscuous,
    /// Take the place of a foreign XDP program.
    #[serde(default)]
    pub replace: bool,
    /// Use the interface even if the default route leaves through it.
    #[serde(default)]
    pub force: bool,
}

impl Interface {
    /// An interface of which only the name is given.
    pub fn new(name: String) -> Interface {
        Interface {
            name,
            through: Interface::through_default(),
            cores: Vec::new(),
            queues: 0,
            zero_copy: Interface::zero_copy_default(),
            mode: Interface::mode_default(),
            frames: Interface::frames_default(),
            ring: Interface::ring_default(),
            huge_pages: false,
            stamp: Interface::stamp_default(),
            promiscuous: Interface::promiscuous_default(),
            replace: false,
            force: false,
        }
    }

    fn through_default() -> Through {
        Through::AfXdp
    }
    fn zero_copy_default() -> ZeroCopy {
        ZeroCopy::Prefer
    }
    fn mode_default() -> AttachMode {
        AttachMode::Auto
    }
    fn frames_default() -> u32 {
        16_384
    }
    fn ring_default() -> u32 {
        4_096
    }
    fn stamp_default() -> Stamp {
        Stamp::Software
    }
    fn promiscuous_default() -> Promiscuous {
        Promiscuous::Off
    }
}

/// The sequenced protocol of a feed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
pub enum FeedProtocol {
    /// IEX-TP 1.0.
    #[serde(rename = "iex-tp")]
    IexTp,
    /// MoldUDP64.
    #[serde(rename = "moldudp64")]
    MoldUdp64,
}

/// Where a session's sequence is taken to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum StartAt {
    /// At the first segment seen.
    First,
    /// At 1: what was sent before the capture began is a gap.
    Session,
}

/// What of a feed is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Record {
    /// The arbitrated messages.
    Merged,
    /// Every frame of every side.
    Raw,
    /// Both.
    Both,
}

/// Where a side's frames come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// An AF_XDP interface (`interface`).
    AfXdp,
    /// A capture file (`file`), replayed as fast as it is taken; its stamps are the time.
    File,
}

/// `[[feed.side]]`: one copy of the feed.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Side {
    /// Its name; sides are A, B, … in the order of the file.
    pub name: String,
    /// Where its frames come from.
    #[serde(default = "Side::source_default")]
    pub source: SourceKind,
    /// The interface (af_xdp).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The capture file (file).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The core that reads the file (file).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<String>,
    /// Destination addresses and ports, `"233.215.21.4:10378"`: multicast groups are joined.
    #[serde(default)]
    pub groups: Vec<String>,
}

impl Side {
    fn source_default() -> SourceKind {
        SourceKind::AfXdp
    }
}

/// `[[feed]]`: one sequenced feed, its sides and its arbiter.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Feed {
    /// Its name in metrics and reports.
    pub name: String,
    /// Its protocol.
    pub protocol: FeedProtocol,
    /// The arbiter's core.
    pub core: String,
    /// Its sides.
    #[serde(rename = "side")]
    pub sides: Vec<Side>,
    /// The store that it is written to; none: only counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// The shared-memory ring that its arbitrated stream is published in (`/dev/shm/…`); none: not published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish: Option<PathBuf>,
    /// Records that the ring holds; a power of two.
    #[serde(default = "Feed::publish_capacity_default")]
    pub publish_capacity: u64,
    /// Bytes of the ring's arena, in which the messages' bodies lie; a power of two.
    #[serde(default = "Feed::publish_arena_default")]
    pub publish_arena: Bytes,
    /// Demand huge pages for the ring: without them the feed does not start.
    #[serde(default)]
    pub publish_huge_pages: bool,
    /// The NUMA node of the ring's memory; none: where the arbiter's core first touches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish_numa_node: Option<u32>,
    /// What is stored.
    #[serde(default = "Feed::record_default")]
    pub record: Record,
    /// Reorder window, in messages.
    #[serde(default = "Feed::window_default")]
    pub window: u32,
    /// How long a held message waits for what is missing before it. Live feeds: 20 ms if not given; files: no bound if
    /// not given, so that a truth can be met exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Span>,
    /// After how long a silent side counts as dead. Live feeds: 3 s if not given; files: only at their end if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side_timeout: Option<Span>,
    /// A jump above this many messages is suspect until confirmed.
    #[serde(default = "Feed::jump_max_default")]
    pub jump_max: u64,
    /// A send time this far ahead of the capture time is suspect.
    #[serde(default = "Feed::send_skew_max_default")]
    pub send_skew_max: Span,
    /// Where a session begins.
    #[serde(default = "Feed::start_default")]
    pub start: StartAt,
    /// Most streams (sessions × runs).
    #[serde(default = "Feed::streams_max_default")]
    pub streams_max: u32,
    /// Most open runs per session.
    #[serde(default = "Feed::runs_max_default")]
    pub runs_max: u32,
    /// Items of each link between a queue and the arbiter, and between the arbiter and the store.
    #[serde(default = "Feed::link_default")]
    pub link: u32,
    /// Frames of 66 KiB in which what the reorder window gives back travels to the store; a full window must fit.
    #[serde(default = "Feed::copy_frames_default")]
    pub copy_frames: u32,
}

impl Feed {
    fn record_default() -> Record {
        Record::Merged
    }
    fn publish_capacity_default() -> u64 {
        65_536
    }
    fn publish_arena_default() -> Bytes {
        Bytes(64 << 20)
    }
    fn window_default() -> u32 {
        65_536
    }
    /// `hold` of a live feed that does not give one.
    pub const HOLD_LIVE: Span = Span(std::time::Duration::from_millis(20));
    /// `side_timeout` of a live feed that does not give one.
    pub const SIDE_TIMEOUT_LIVE: Span = Span(std::time::Duration::from_secs(3));

    /// Whether its sides are files.
    pub fn is_files(&self) -> bool {
        self.sides.iter().any(|side| side.source == SourceKind::File)
    }

    /// The hold in force; `None`: no bound.
    pub fn hold(&self) -> Option<Span> {
        self.hold.or((!self.is_files()).then_some(Feed::HOLD_LIVE))
    }

    /// The side timeout in force; `None`: only the end of the input.
    pub fn side_timeout(&self) -> Option<Span> {
        self.side_timeout.or((!self.is_files()).then_some(Feed::SIDE_TIMEOUT_LIVE))
    }

    fn jump_max_default() -> u64 {
        1_000_000
    }
    fn send_skew_max_default() -> Span {
        Span(std::time::Duration::from_secs(60))
    }
    fn start_default() -> StartAt {
        StartAt::First
    }
    fn streams_max_default() -> u32 {
        64
    }
    fn runs_max_default() -> u32 {
        8
    }
    fn link_default() -> u32 {
        4_096
    }
    fn copy_frames_default() -> u32 {
        512
    }
}

/// When a store asks the disk to keep what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Fsync {
    /// Only at the seal of a segment.
    Seal,
    /// Every `fsync_interval`.
    Interval,
    /// After every block.
    Block,
}

/// `[[store]]`: a directory of `.tri` segments.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Store {
    /// The name that feeds refer to.
    pub name: String,
    /// The directory.
    pub path: PathBuf,
    /// The store worker's core.
    pub core: String,
    /// Bytes of a segment, preallocated.
    #[serde(default = "Store::segment_default")]
    pub segment: Bytes,
    /// A segment is sealed after this long even if it is not full; `"0s"`: only when full.
    #[serde(default = "Store::rotate_default")]
    pub rotate: Span,
    /// Bytes of a block.
    #[serde(default = "Store::block_default")]
    pub block: Bytes,
    /// Blocks in memory: being filled, compressed or written.
    #[serde(default = "Store::blocks_default")]
    pub blocks_in_flight: u32,
    /// A block is written after this long even if it is not full.
    #[serde(default = "Store::flush_default")]
    pub flush: Span,
    /// When the disk is asked to keep what was written.
    #[serde(default = "Store::fsync_default")]
    pub fsync: Fsync,
    /// The interval of `fsync = "interval"`.
    #[serde(default = "Store::fsync_interval_default")]
    pub fsync_interval: Span,
    /// zstd level; 0: no compression.
    #[serde(default)]
    pub zstd: i32,
    /// Bypass the page cache where the file system can.
    #[serde(default = "Store::direct_default")]
    pub direct: bool,
    /// Delete the oldest segments above this many bytes; 0: no bound.
    #[serde(default = "Store::zero_bytes")]
    pub retain: Bytes,
    /// Delete segments older than this; `"0s"`: no bound.
    #[serde(default = "Store::zero_span")]
    pub retain_age: Span,
    /// Delete the oldest segments while the file system has less than this free; 0: no bound.
    #[serde(default = "Store::zero_bytes")]
    pub free_min: Bytes,
}

impl Store {
    fn segment_default() -> Bytes {
        Bytes(1 << 30)
    }
    fn rotate_default() -> Span {
        Span(std::time::Duration::from_secs(3600))
    }
    fn block_default() -> Bytes {
        Bytes(256 << 10)
    }
    fn blocks_default() -> u32 {
        64
    }
    fn flush_default() -> Span {
        Span(std::time::Duration::from_secs(1))
    }
    fn fsync_default() -> Fsync {
        Fsync::Interval
    }
    fn fsync_interval_default() -> Span {
        Span(std::time::Duration::from_secs(1))
    }
    fn direct_default() -> bool {
        true
    }
    fn zero_bytes() -> Bytes {
        Bytes(0)
    }
    fn zero_span() -> Span {
        Span(std::time::Duration::ZERO)
    }
}

/// `[control]`: the control thread's HTTP server.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// Where `/status`, `/metrics` and `/healthz` answer.
    pub listen: SocketAddr,
    /// How long a stage of workers may take to drain at the stop.
    pub drain: Span,
    /// A core that makes no round for this long is stalled: the process ends with a reason.
    pub stall: Span,
    /// Listen beyond this host, though whoever reaches the server is answered.
    pub insecure: bool,
    /// Names of this host by which it may be asked beside its own, such as its name in the DNS.
    pub hosts: Vec<String>,
    /// What is logged: a level, or levels by module.
    pub log: String,
    /// The form of a log line.
    pub log_format: LogFormat,
}

impl Control {
    /// Of a command that has no control server, and so none whose port others could want.
    pub fn none() -> Control {
        Control { listen: SocketAddr::from(([127, 0, 0, 1], 0)), ..Control::default() }
    }
}

impl Default for Control {
    fn default() -> Self {
        Control {
            listen: SocketAddr::from(([127, 0, 0, 1], 9480)),
            drain: Span(std::time::Duration::from_secs(10)),
            stall: Span(std::time::Duration::from_secs(10)),
            insecure: false,
            hosts: Vec::new(),
            log: "info".into(),
            log_format: LogFormat::Auto,
        }
    }
}
