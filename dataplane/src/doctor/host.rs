//! The state of a host, as plain data: what the findings are functions of.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::sys::ethtool::{Channels, Coalescing, Driver, Feature, FlowRule, Rings, XdpFeatures};
use crate::sys::host::{NicClock, WallClock};

/// Why something is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unread {
    /// The host has no such thing.
    Absent,
    /// It takes a privilege to see it.
    Denied,
    /// What was read is not what was expected.
    Garbled,
}

/// Something that was looked at.
pub type Fact<T> = Result<T, Unread>;

/// What a fact is before anybody looked.
pub fn unread<T>() -> Fact<T> {
    Err(Unread::Absent)
}

/// Everything that is looked at.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
pub struct HostState {
    /// The kernel and its settings.
    pub kernel: Kernel,
    /// This process's rights and limits.
    pub process: Process,
    /// CPUs.
    pub processors: Processors,
    /// Memory and its nodes.
    pub memory: Memory,
    /// Clocks.
    pub clock: Clock,
    /// The network stack's settings.
    pub network: Network,
    /// Interfaces, by the name they were asked for by. A name without an interface is absent.
    pub interfaces: BTreeMap<String, Fact<Nic>>,
    /// Directories that are written to.
    pub directories: BTreeMap<PathBuf, Directory>,
    /// Programs of interest, and whether one of that name runs.
    pub programs: BTreeMap<String, bool>,
    /// CPUs that irqbalance was told to keep off, where it runs.
    pub irqbalance_banned: Fact<Vec<usize>>,
}

/// The kernel.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
pub struct Kernel {
    /// `6.1.0-18-amd64`.
    pub release: Fact<String>,
    /// Its command line.
    pub command_line: Fact<String>,
    /// `kernel.io_uring_disabled`: 0, 1 (but for a group) or 2. Absent before 6.6.
    pub io_uring_disabled: Fact<u32>,
    /// `kernel.io_uring_group`.
    pub io_uring_group: Fact<i64>,
    /// `kernel.unprivileged_bpf_disabled`.
    pub unprivileged_bpf_disabled: Fact<u32>,
    /// It has AF_XDP sockets.
    pub af_xdp: Fact<bool>,
    /// `fs.pipe-max-size`, bytes.
    pub pipe_bytes_max: Fact<u64>,
    /// `fs.file-max`.
    pub files_max: Fact<u64>,
    /// `kernel.numa_balancing`.
    pub numa_balancing: Fact<u32>,
}

/// A resource limit; `u64::MAX` is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub struct Limit {
    /// In force.
    pub soft: u64,
    /// Up to which the process may raise it.
    pub hard: u64,
}

/// The doctor's own process.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
pub struct Process {
    /// Its effective user.
    pub user: Fact<u32>,
    /// Its groups.
    pub groups: Fact<Vec<u32>>,
    /// Its effective capabilities, as bits.
    pub capabilities: Fact<u64>,
    /// CPUs that it may run on.
    pub cpus_allowed: Fact<Vec<usize>>,
    /// Open files.
    pub files: Fact<Limit>,
    /// Bytes of locked memory.
    pub locked_bytes: Fact<Limit>,
}

/// All CPUs.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
pub struct Processors {
    /// Those that run.
    pub online: Fact<Vec<usize>>,
    /// Those that the scheduler leaves alone (`isolcpus`).
    pub isolated: Fact<Vec<usize>>,
    /// Those without a tick while one thread runs (`nohz_full`).
    pub nohz_full: Fact<Vec<usize>>,
    /// Those of the configuration (all without one), one by one.
    pub each: BTreeMap<usize, Processor>,
}

/// One CPU.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
pub struct Processor {
    /// `performance`, `schedutil`, … Absent where the host, or the hypervisor below it, decides alone.
    pub governor: Fact<String>,
    /// What it may fall into when idle.
    pub idle_states: Fact<Vec<IdleState>>,
    /// The CPUs of the same physical core, itself among them.
    pub siblings: Fact<Vec<usize>>,
}

/// One idle state.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub struct IdleState {
    /// `C6`.
    pub name: String,
    /// How long it takes to leave it.
    pub exit_us: u32,
    /// Switched off.
    pub disabled: bool,
}

/// Memory.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
pub struct Memory {
    /// NUMA nodes.
    pub nodes: BTreeMap<u32, Node>,
    /// Bytes that new pools can have without swapping.
    pub available_bytes: Fact<u64>,
    /// Pages of 2 MiB: free.
    pub huge_pages_free: Fact<u64>,
    /// Pages of 2 MiB: all.
    pub huge_pages: Fact<u64>,
    /// `always`, `madvise` or `never`.
    pub transparent: Fact<String>,
    /// Swap areas.
    pub swaps: Fact<Vec<String>>,
}

/// One NUMA node.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
pub struct Node {
    /// Its CPUs.
    pub cpus: Fact<Vec<usize>>,
    /// Its distance to each node, in the order of their numbers; 10 is itself.
    pub distances: Fact<Vec<u32>>,
}

/// Clocks.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
pub struct Clock {
    /// What the kernel reads.
    pub source: Fact<String>,
    /// What it could read.
    pub sources: Fact<String>,
    /// The wall clock's discipline.
    pub wall: Fact<WallClock>,
}

/// The network stack.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
pub struct Network {
    /// `net.ipv4.igmp_max_memberships`, a socket.
    pub memberships_max: Fact<u32>,
    /// `net.core.rmem_max`.
    pub receive_bytes_max: Fact<u64>,
    /// `net.core.wmem_max`.
    pub send_bytes_max: Fact<u64>,
    /// `net.ipv4.conf.all.rp_filter`.
    pub rp_filter_all: Fact<u32>,
    /// Interfaces that a default route leaves through.
    pub default_routes: Fact<Vec<String>>,
}

/// One interface.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
pub struct Nic {
    /// What the kernel's link layer says.
    pub link: Link,
    /// What its driver says.
    pub told: Told,
    /// The node of its slot; −1: the firmware did not say.
    pub node: Fact<i32>,
    /// The CPUs next to its slot.
    pub local_cpus: Fact<Vec<usize>>,
    /// Its interrupts.
    pub interrupts: Fact<Vec<Interrupt>>,
    /// Its receive work is done by kernel threads.
    pub threaded: Fact<bool>,
    /// `net.ipv4.conf.IF.rp_filter`.
    pub rp_filter: Fact<u32>,
    /// Its driver did not come with the kernel.
    pub out_of_tree: Fact<bool>,
}

/// A link.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Link {
    /// The kernel's name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Other names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alternative_names: Vec<String>,
    /// MTU, bytes.
    pub mtu: u32,
    /// Set up.
    pub up: bool,
    /// The link is there.
    pub carrier: bool,
    /// Receive queues now.
    pub rx_queues: u32,
    /// The attached XDP program: mode and number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xdp: Option<(String, u32)>,
    /// IPv4 addresses.
    pub addresses: Vec<Ipv4Addr>,
}

/// What a driver tells when it is asked, and what a trial showed.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(default)]
pub struct Told {
    /// Who it is.
    pub driver: Fact<Driver>,
    /// Queues.
    pub channels: Fact<Channels>,
    /// Rings.
    pub rings: Fact<Rings>,
    /// Interrupt moderation.
    pub coalescing: Fact<Coalescing>,
    /// Features.
    pub features: Fact<BTreeMap<String, Feature>>,
    /// The RSS table.
    pub indirection: Fact<Vec<u32>>,
    /// Steering rules.
    pub flow_rules: Fact<Vec<FlowRule>>,
    /// What XDP can do.
    pub xdp: Fact<XdpFeatures>,
    /// Its clock: the number of `/dev/ptpN`.
    pub clock_index: Fact<u32>,
    /// Its clock against the host's.
    pub clock: Fact<NicClock>,
    /// How a trial bind went; none: not tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial: Option<Trial>,
}

impl Default for Told {
    fn default() -> Self {
        Told {
            driver: unread(),
            channels: unread(),
            rings: unread(),
            coalescing: unread(),
            features: unread(),
            indirection: unread(),
            flow_rules: unread(),
            xdp: unread(),
            clock_index: unread(),
            clock: unread(),
            trial: None,
        }
    }
}

/// How a trial bind in zero-copy mode went.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trial {
    /// Bound, and the kernel says zero-copy.
    ZeroCopy,
    /// Bound, and the kernel says copy.
    Copy,
    /// Refused, with the reason.
    Refused(String),
    /// Left alone, with the reason.
    LeftAlone(String),
}

/// One interrupt.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub struct Interrupt {
    /// Its number.
    pub number: u32,
    /// Who asked for it: `ice-eth1-TxRx-3`.
    pub name: String,
    /// Where it is delivered.
    pub cpus: Fact<Vec<usize>>,
}

/// A directory that is written to.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(default)]
pub struct Directory {
    /// The part of the path that exists.
    pub existing: PathBuf,
    /// The file system's kind.
    pub kind: Fact<String>,
    /// Bytes free to unprivileged users.
    pub available_bytes: Fact<u64>,
    /// Bytes in all.
    pub total_bytes: Fact<u64>,
    /// Alignment that direct I/O asks for.
    pub direct_align_bytes: Fact<u32>,
}

impl Default for Directory {
    fn default() -> Self {
        Directory {
            existing: PathBuf::new(),
            kind: unread(),
            available_bytes: unread(),
            total_bytes: unread(),
            direct_align_bytes: unread(),
        }
    }
}
