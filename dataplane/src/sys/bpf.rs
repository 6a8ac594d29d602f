//! The XDP program of one interface: load, sockets, attach, counters, detach.
//!
//! Order: make the sockets and fill their fill rings, insert them, then attach (attached first, all early frames fall
//! to the kernel: measured). Detach first on the way out, before the sockets close. The attachment is a BPF link, so
//! that a process that dies leaves nothing behind.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use aya::maps::{HashMap, MapData, MapError, PerCpuArray, XskMap};
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, TestRun, TestRunOptions, Xdp, XdpMode as AyaMode};
use aya::{Ebpf, EbpfError, EbpfLoader};
use sluice_bpf_common::{
    GLOBAL_STAMP, GROUP_FRAGMENT, GROUP_REDIRECT, GROUPS_MAX, MAP_COUNTERS, MAP_GROUPS, MAP_SOCKETS, PROGRAM,
    PROGRAM_FRAGS, REASON_SLOTS, counter_index, group_key,
};
pub use sluice_bpf_common::{METADATA_BYTES, METADATA_MAGIC, Reason};

use super::netlink::{self, Netlink};
use super::nic::{Interface, NicError, XdpAttached};

/// The object that `cargo xtask bpf` built, as `bpf/sluice.bpf.toml` names it.
pub const OBJECT: &[u8] = include_bytes!("../../../bpf/sluice.bpf.o");

/// Verdict "leave the frame to the kernel" (`XDP_PASS`, linux/bpf.h).
pub const XDP_PASS: u32 = 2;
/// Verdict "redirect" (`XDP_REDIRECT`, linux/bpf.h).
pub const XDP_REDIRECT: u32 = 4;

/// A wanted destination of datagrams.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Destination {
    /// Multicast group or unicast address.
    pub address: Ipv4Addr,
    /// UDP port; not 0.
    pub port: u16,
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.address, self.port)
    }
}

/// Where the program is to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XdpMode {
    /// In the driver, or fail.
    Native,
    /// In the kernel's generic receive path.
    Generic,
    /// In the driver, else generic where the driver cannot.
    #[default]
    NativeThenGeneric,
}

/// Settings of one interface's program.
#[derive(Clone, Debug, Default)]
pub struct XdpSettings {
    /// Datagrams to steer.
    pub destinations: Vec<Destination>,
    /// Where to run.
    pub mode: XdpMode,
    /// Load the variant that may see frames of several buffers.
    pub multi_buffer: bool,
    /// Stamp each frame's metadata.
    pub stamp: bool,
    /// Remove a foreign program instead of refusing.
    pub replace: bool,
    /// Accept receive queues without a socket: their frames stay with the kernel and count as `no_socket`. For
    /// interfaces whose steering rules already send the feed to the covered queues.
    pub uncovered_queues: bool,
}

/// Why the program cannot be loaded, attached or asked.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The kernel refused for want of a capability.
    #[error(
        "{what}: {source}: missing {missing}: run as root, or \"setcap \
         cap_bpf,cap_perfmon,cap_net_admin,cap_net_raw,cap_ipc_lock=ep\" on the binary"
    )]
    Capability {
        /// What was tried.
        what: &'static str,
        /// The capabilities that capturing needs and this thread has not.
        missing: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another XDP program holds the interface.
    #[error(
        "interface {interface:?} already runs XDP program {id} {name:?} ({mode}): it is left alone; \
         stop its owner, or set replace = true"
    )]
    Foreign {
        /// The interface.
        interface: String,
        /// Program id, as in `bpftool prog show id`.
        id: u32,
        /// Program name (up to 15 bytes); empty when it may not be read.
        name: String,
        /// Mode it is attached in.
        mode: &'static str,
    },
    /// The MTU needs several buffers a frame and the program was loaded for one.
    #[error(
        "interface {interface:?}: driver {driver} refuses a single-buffer XDP program at MTU {mtu}: \
         set multi_buffer = true, or lower the MTU"
    )]
    Mtu {
        /// The interface.
        interface: String,
        /// Its driver.
        driver: String,
        /// Its MTU.
        mtu: u32,
    },
    /// The driver refuses native mode.
    #[error(
        "interface {interface:?}: driver {driver} refuses XDP in {mode} mode with {queues} queues ({source}): {remedy}"
    )]
    Mode {
        /// The interface.
        interface: String,
        /// Its driver.
        driver: String,
        /// The mode asked for.
        mode: &'static str,
        /// Receive queues in use.
        queues: u32,
        /// What to try.
        remedy: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Receive queues without a socket.
    #[error(
        "interface {interface:?} receives on {queues} queues, but queue {queue} has no socket: its frames would pass \
         by: give it a worker, or run \"ethtool -L {interface} combined {sockets}\""
    )]
    UncoveredQueue {
        /// The interface.
        interface: String,
        /// Queues in use after the attach.
        queues: u32,
        /// The first without a socket.
        queue: u32,
        /// Sockets that there are.
        sockets: u32,
    },
    /// A queue index that the interface can never have.
    #[error("interface {interface:?}: queue {queue}, but it has at most {queues_max}")]
    NoSuchQueue {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// Most that it can have.
        queues_max: u32,
    },
    /// The destinations do not fit the map, or one of them is impossible.
    #[error("destinations: {0}")]
    Destinations(String),
    /// The attachment would outlive this process.
    #[error(
        "interface {interface:?}: the kernel gave no BPF link, so that a crash would leave the program attached: \
         kernel 6.1 or later is needed"
    )]
    NoLink {
        /// The interface.
        interface: String,
    },
    /// The object is not usable: a defect of ours or a file that is no object of ours.
    #[error("XDP object: {0}")]
    Object(String),
    /// The kernel refused otherwise.
    #[error("{what}: {source}")]
    Kernel {
        /// What was tried.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The interface cannot be asked.
    #[error(transparent)]
    Nic(#[from] NicError),
}

/// Counts of one receive queue, summed over CPUs, in the order of [`Reason::ALL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueCounters {
    counts: [u64; Reason::ALL.len()],
}

impl QueueCounters {
    /// The count of one reason.
    pub fn get(&self, reason: Reason) -> u64 {
        self.counts[reason as usize]
    }

    /// Frames that the program saw on the queue: the sum of the exclusive reasons.
    pub fn seen(&self) -> u64 {
        Reason::ALL.iter().filter(|reason| **reason != Reason::MetadataFailed).map(|reason| self.get(*reason)).sum()
    }

    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &QueueCounters) -> QueueCounters {
        let mut counts = self.counts;
        counts.iter_mut().zip(earlier.counts).for_each(|(count, before)| *count = count.wrapping_sub(before));
        QueueCounters { counts }
    }
}

/// Runs of a program and their time, as the kernel measured them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProgramCost {
    /// Frames that it ran on.
    pub runs: u64,
    /// Their time together, in ns, the two clock readings around each included.
    pub nanoseconds: u64,
}

/// Makes the kernel measure every BPF program of the host until the descriptor is closed. It costs each run two clock
/// readings, so it is for measurements, not for operation.
pub fn enable_cost() -> Result<OwnedFd, BpfError> {
    let (fd, _) = bpf(BPF_ENABLE_STATS, [BPF_STATS_RUN_TIME, 0, 0, 0])
        .map_err(|source| BpfError::Kernel { what: "enabling BPF statistics".into(), source })?;
    // SAFETY: the call gave a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What the program said to one frame in [`XdpProgram::test_run`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TestVerdict {
    /// [`XDP_PASS`], [`XDP_REDIRECT`], …
    pub action: u32,
    /// The frame as the program left it.
    pub frame: Vec<u8>,
}

/// The program of one interface, loaded and (after [`XdpProgram::attach`]) attached. Dropping it detaches.
pub struct XdpProgram {
    interface: Interface,
    settings: XdpSettings,
    link: Option<FdLink>,
    attached: Option<XdpAttached>,
    sockets: XskMap<MapData>,
    counters: PerCpuArray<MapData, u64>,
    inserted: Vec<bool>,
    ebpf: Ebpf,
}

impl XdpProgram {
    /// Loads the embedded object for `interface`, its maps as large as the interface's queues. Nothing is attached.
    pub fn load(interface: &Interface, settings: &XdpSettings) -> Result<XdpProgram, BpfError> {
        XdpProgram::load_object(OBJECT, interface, settings)
    }

    /// Loads another object of the same sources.
    pub fn load_object(object: &[u8], interface: &Interface, settings: &XdpSettings) -> Result<XdpProgram, BpfError> {
        let groups = group_entries(&settings.destinations)?;
        let queues = interface.rx_queues_max;
        let mut loader = EbpfLoader::new();
        // No relocation against kernel types, so the kernel's BTF need not be parsed.
        loader.btf(None);
        loader.map_max_entries(MAP_SOCKETS, queues).map_max_entries(MAP_COUNTERS, queues * REASON_SLOTS);
        let stamp = u32::from(settings.stamp);
        loader.override_global(GLOBAL_STAMP, &stamp, true);
        let mut ebpf = loader.load(object).map_err(load_error)?;
        // Before any map is taken out: the program holds its maps from here on.
        let name = if settings.multi_buffer { PROGRAM_FRAGS } else { PROGRAM };
        xdp(&mut ebpf, name)?.load().map_err(program_error)?;
        fill_groups(&mut ebpf, &groups)?;
        let sockets = XskMap::try_from(take(&mut ebpf, MAP_SOCKETS)?).map_err(map_error)?;
        let counters = PerCpuArray::try_from(take(&mut ebpf, MAP_COUNTERS)?).map_err(map_error)?;
        Ok(XdpProgram {
            interface: interface.clone(),
            settings: settings.clone(),
            link: None,
            attached: None,
            sockets,
            counters,
            inserted: vec![false; queues as usize],
            ebpf,
        })
    }

    /// Makes `socket` (an AF_XDP socket bound to this interface and queue) the target of the queue's frames. Its fill
    /// ring should be full already. The kernel takes the entry out when the socket closes.
    pub fn insert_socket(&mut self, queue: u32, socket: RawFd) -> Result<(), BpfError> {
        let Some(inserted) = self.inserted.get_mut(queue as usize) else {
            let (interface, queues_max) = (self.interface.name.clone(), self.interface.rx_queues_max);
            return Err(BpfError::NoSuchQueue { interface, queue, queues_max });
        };
        self.sockets.set(queue, socket, 0).map_err(map_error)?;
        *inserted = true;
        Ok(())
    }

    /// Attaches, and says in which mode. Refuses when a foreign program is there (unless `replace`) and when a
    /// receive queue has no socket (unless `uncovered_queues`); the queues are counted after the attach, because some
    /// drivers change their number in it.
    pub fn attach(&mut self) -> Result<XdpAttached, BpfError> {
        assert!(self.link.is_none(), "attached twice");
        self.interface = self.interface.refresh()?;
        if let Some((mode, id)) = self.interface.xdp {
            if !self.settings.replace {
                return Err(self.foreign(mode, id));
            }
            remove_program(&self.interface, mode, id)?;
        }
        self.link = Some(self.attach_link()?);
        self.interface = self.interface.refresh()?;
        let attached = self.interface.xdp.map(|(mode, _)| mode);
        if let Err(error) = self.check_queues() {
            self.detach();
            return Err(error);
        }
        self.attached = attached;
        attached.ok_or_else(|| {
            let source = io::Error::other("the interface shows no program after the attach");
            BpfError::Kernel { what: format!("interface {:?}: attaching XDP", self.interface.name), source }
        })
    }

    /// Detaches; later frames go to the kernel. Does nothing when not attached.
    pub fn detach(&mut self) {
        self.link = None;
        self.attached = None;
    }

    /// The mode really got, while attached.
    pub fn attached(&self) -> Option<XdpAttached> {
        self.attached
    }

    /// The kernel's id of the program, as in `bpftool prog show id`.
    pub fn program_id(&mut self) -> Result<u32, BpfError> {
        let name = if self.settings.multi_buffer { PROGRAM_FRAGS } else { PROGRAM };
        Ok(xdp(&mut self.ebpf, name)?.info().map_err(program_error)?.id())
    }

    /// The interface as it was at the last load or attach.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// What the program has cost so far, while someone holds [`enable_cost`] (or `kernel.bpf_stats_enabled` is set).
    pub fn cost(&mut self) -> Result<ProgramCost, BpfError> {
        let name = if self.settings.multi_buffer { PROGRAM_FRAGS } else { PROGRAM };
        let fd = xdp(&mut self.ebpf, name)?.fd().map_err(program_error)?.as_fd().as_raw_fd();
        let error = |source| BpfError::Kernel { what: "reading the program's cost".into(), source };
        let text = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{fd}")).map_err(error)?;
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        match (field("run_cnt:"), field("run_time_ns:")) {
            (Some(runs), Some(nanoseconds)) => Ok(ProgramCost { runs, nanoseconds }),
            _ => Err(error(io::Error::other("no run_cnt and run_time_ns in fdinfo"))),
        }
    }

    /// Counters of every receive queue that the interface can have, by queue. One system call per (queue, reason).
    pub fn counters(&self) -> Result<Vec<QueueCounters>, BpfError> {
        (0..self.interface.rx_queues_max).map(|queue| self.queue_counters(queue)).collect()
    }

    /// Counters of one receive queue.
    pub fn queue_counters(&self, queue: u32) -> Result<QueueCounters, BpfError> {
        let mut counters = QueueCounters::default();
        for reason in Reason::ALL {
            let per_cpu = self.counters.get(&counter_index(queue, reason), 0).map_err(map_error)?;
            counters.counts[reason as usize] = per_cpu.iter().sum();
        }
        Ok(counters)
    }

    /// Runs the program once on `frame` (14 bytes at least) as if received on `queue`, without a NIC
    /// (`BPF_PROG_TEST_RUN`). The interface must exist in the calling thread's namespace.
    pub fn test_run(&mut self, frame: &[u8], queue: u32) -> Result<TestVerdict, BpfError> {
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        let context = [0, frame.len() as u32, 0, self.interface.index, queue, 0];
        let context: Vec<u8> = context.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut out = vec![0_u8; frame.len() + METADATA_BYTES];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            ..TestRunOptions::default()
        };
        let name = if self.settings.multi_buffer { PROGRAM_FRAGS } else { PROGRAM };
        let result = xdp(&mut self.ebpf, name)?.test_run(options).map_err(program_error)?;
        out.truncate(result.data_size_out as usize);
        Ok(TestVerdict { action: result.return_value, frame: out })
    }

    fn attach_link(&mut self) -> Result<FdLink, BpfError> {
        let first = if self.settings.mode == XdpMode::Generic { AyaMode::Skb } else { AyaMode::Driver };
        match self.attach_in(first) {
            Err(BpfError::Mode { .. }) if self.settings.mode == XdpMode::NativeThenGeneric => {
                self.attach_in(AyaMode::Skb)
            }
            result => result,
        }
    }

    fn attach_in(&mut self, mode: AyaMode) -> Result<FdLink, BpfError> {
        let name = if self.settings.multi_buffer { PROGRAM_FRAGS } else { PROGRAM };
        let program = xdp(&mut self.ebpf, name)?;
        let id = match program.attach_to_if_index(self.interface.index, mode) {
            Ok(id) => id,
            Err(error) => return Err(self.attach_error(mode, error)),
        };
        let link = program.take_link(id).map_err(program_error)?;
        // Where the kernel refuses a link, the loader falls back to an attachment that outlives the process: undone
        // by dropping it.
        FdLink::try_from(link).map_err(|_| BpfError::NoLink { interface: self.interface.name.clone() })
    }

    fn attach_error(&self, mode: AyaMode, error: ProgramError) -> BpfError {
        let interface = self.interface.name.clone();
        let Some(source) = root_io_error(&error) else { return program_error(error) };
        let driver = self.interface.driver();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                BpfError::Capability { what: "attaching the XDP program", missing: missing_capabilities(), source }
            }
            Some(libc::EBUSY | libc::EEXIST) => match self.interface.refresh().map(|interface| interface.xdp) {
                Ok(Some((mode, id))) => self.foreign(mode, id),
                _ => BpfError::Kernel { what: format!("interface {interface:?}: attaching XDP"), source },
            },
            Some(libc::ERANGE) => BpfError::Mtu { interface, driver, mtu: self.interface.mtu },
            _ => {
                let queues = self.interface.rx_queues().unwrap_or(self.interface.rx_queues_max);
                let (mode, remedy) = if mode == AyaMode::Skb {
                    ("generic", "the kernel's log (dmesg) may say more".into())
                } else {
                    let fewer = queues.div_ceil(2);
                    let remedy = format!(
                        "many drivers need spare queues (\"ethtool -L {interface} combined {fewer}\") or LRO and \
                         receive-side hardware GRO off; the kernel's log (dmesg) may say more; or set mode = \"generic\""
                    );
                    ("native", remedy)
                };
                BpfError::Mode { interface, driver, mode, queues, remedy, source }
            }
        }
    }

    fn foreign(&self, mode: XdpAttached, id: u32) -> BpfError {
        let name = program_name(id).unwrap_or_default();
        BpfError::Foreign { interface: self.interface.name.clone(), id, name, mode: mode.label() }
    }

    fn check_queues(&self) -> Result<(), BpfError> {
        if self.settings.uncovered_queues {
            return Ok(());
        }
        let queues = self.interface.rx_queues()?;
        let covered = |queue: &u32| self.inserted.get(*queue as usize) == Some(&true);
        let Some(queue) = (0..queues).find(|queue| !covered(queue)) else { return Ok(()) };
        let sockets = self.inserted.iter().filter(|inserted| **inserted).count() as u32;
        Err(BpfError::UncoveredQueue { interface: self.interface.name.clone(), queues, queue, sockets: sockets.max(1) })
    }
}

impl fmt::Debug for XdpProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdpProgram")
            .field("interface", &self.interface.name)
            .field("attached", &self.attached)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Drop for XdpProgram {
    fn drop(&mut self) {
        self.detach();
    }
}

/// The map's entries: each destination, and its address once for fragments.
fn group_entries(destinations: &[Destination]) -> Result<Vec<(u64, u32)>, BpfError> {
    let mut entries = std::collections::BTreeMap::new();
    for destination in destinations {
        let Destination { address, port } = *destination;
        if port == 0 || address.is_unspecified() {
            return Err(BpfError::Destinations(format!("{destination}: address and port must not be 0")));
        }
        entries.insert(group_key(address.octets(), port), GROUP_REDIRECT);
        entries.insert(group_key(address.octets(), 0), GROUP_FRAGMENT);
    }
    if entries.is_empty() {
        return Err(BpfError::Destinations("none given: the program would steer nothing".into()));
    }
    if entries.len() > GROUPS_MAX as usize {
        let (count, limit) = (entries.len(), GROUPS_MAX);
        let told = format!("{count} entries (each address takes one more), but the program has room for {limit}");
        return Err(BpfError::Destinations(told));
    }
    Ok(entries.into_iter().collect())
}

fn fill_groups(ebpf: &mut Ebpf, entries: &[(u64, u32)]) -> Result<(), BpfError> {
    let mut groups: HashMap<MapData, u64, u32> = HashMap::try_from(take(ebpf, MAP_GROUPS)?).map_err(map_error)?;
    for (key, flags) in entries {
        groups.insert(key, flags, 0).map_err(map_error)?;
    }
    Ok(())
}

fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<aya::maps::Map, BpfError> {
    ebpf.take_map(name).ok_or_else(|| BpfError::Object(format!("it has no map {name}")))
}

fn xdp<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp, BpfError> {
    let program = ebpf.program_mut(name).ok_or_else(|| BpfError::Object(format!("it has no program {name}")))?;
    program.try_into().map_err(|_| BpfError::Object(format!("{name} is no XDP program")))
}

/// The deepest I/O error in an error's chain of sources, copied.
fn root_io_error(error: &(dyn std::error::Error + 'static)) -> Option<io::Error> {
    let mut found = None;
    let mut next = Some(error);
    while let Some(error) = next {
        found = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error).or(found);
        next = error.source();
    }
    found.map(io::Error::from_raw_os_error)
}

fn load_error(error: EbpfError) -> BpfError {
    match error {
        EbpfError::MapError(error) => map_error(error),
        EbpfError::ProgramError(error) => program_error(error),
        other => BpfError::Object(chain(&other)),
    }
}

fn map_error(error: MapError) -> BpfError {
    let Some(source) = root_io_error(&error) else { return BpfError::Object(chain(&error)) };
    let refused = matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES));
    match &error {
        MapError::CreateError { .. } if refused => {
            BpfError::Capability { what: "creating the BPF maps", missing: missing_capabilities(), source }
        }
        MapError::CreateError { name, .. } => BpfError::Kernel { what: format!("creating BPF map {name}"), source },
        _ => BpfError::Kernel { what: "using a BPF map".into(), source },
    }
}

fn program_error(error: ProgramError) -> BpfError {
    let Some(source) = root_io_error(&error) else { return BpfError::Object(chain(&error)) };
    match &error {
        // EACCES without CAP_PERFMON: "pointer arithmetic with it prohibited for !root"; with it, the verifier's verdict.
        ProgramError::LoadError { .. }
            if matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES)) && !effective(CAP_PERFMON) =>
        {
            BpfError::Capability { what: "loading the XDP program", missing: missing_capabilities(), source }
        }
        ProgramError::LoadError { verifier_log, .. } => BpfError::Object(format!("{source}: {verifier_log}")),
        _ => BpfError::Kernel { what: "using the XDP program".into(), source },
    }
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut told = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        told = format!("{told}: {error}");
        next = error.source();
    }
    told
}

// linux/capability.h
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Whether the calling thread has the capability in effect; CAP_SYS_ADMIN stands for the two that were split from it.
fn effective(capability: u32) -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let split = matches!(capability, CAP_BPF | CAP_PERFMON) && set >> CAP_SYS_ADMIN & 1 == 1;
    split || set >> capability & 1 == 1
}

/// The capabilities that capturing needs and the calling thread has not, so that one message is enough.
pub(super) fn missing_capabilities() -> String {
    let needed = [
        (CAP_BPF, "CAP_BPF"),
        (CAP_PERFMON, "CAP_PERFMON"),
        (CAP_NET_ADMIN, "CAP_NET_ADMIN"),
        (CAP_NET_RAW, "CAP_NET_RAW"),
    ];
    let missing: Vec<&str> = needed.iter().filter(|(bit, _)| !effective(*bit)).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        "no capability (a seccomp filter or security module refuses)".into()
    } else {
        missing.join(", ")
    }
}

/// Name of a loaded program; `None` when it is gone or may not be read.
fn program_name(id: u32) -> Option<String> {
    let programs = aya::programs::loaded_programs();
    let mut found = programs.flatten().filter(|program| program.id() == id);
    found.next()?.name_as_str().map(str::to_owned)
}

// Command numbers and structure offsets of bpf(2), linux/bpf.h.
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const BPF_LINK_GET_FD_BY_ID: libc::c_int = 30;
const BPF_LINK_GET_NEXT_ID: libc::c_int = 31;
const BPF_ENABLE_STATS: libc::c_int = 32;
const BPF_LINK_DETACH: libc::c_int = 34;
const BPF_STATS_RUN_TIME: u32 = 0;
const BPF_LINK_TYPE_XDP: u32 = 6;
/// Bound on the search for a link: ids are given upwards, and no host has this many links alive.
const LINKS_MAX: u32 = 65_536;

/// Removes the program `id` from `interface`: detaches its link, or clears a netlink attachment.
fn remove_program(interface: &Interface, mode: XdpAttached, id: u32) -> Result<(), BpfError> {
    let result = match find_link(interface.index, id) {
        Some(link) => {
            let attr = [link.as_raw_fd() as u32, 0, 0, 0];
            bpf(BPF_LINK_DETACH, attr).map(drop)
        }
        None => clear_netlink(interface, mode),
    };
    result.map_err(|source| BpfError::Kernel {
        what: format!("interface {:?}: removing XDP program {id}", interface.name),
        source,
    })
}

/// The link that attaches program `id` to interface `index`.
fn find_link(index: u32, id: u32) -> Option<OwnedFd> {
    let mut last = 0;
    for _ in 0..LINKS_MAX {
        // attr: start_id, next_id, open_flags.
        let attr = bpf(BPF_LINK_GET_NEXT_ID, [last, 0, 0, 0]).ok()?.1;
        last = attr[1];
        let Ok((fd, _)) = bpf(BPF_LINK_GET_FD_BY_ID, [last, 0, 0, 0]) else { continue };
        // SAFETY: the call gave a new descriptor that nobody else owns.
        let link = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut info = [0_u32; 64];
        // attr: bpf_fd, info_len, info (64 bits).
        let at = (&raw mut info) as u64;
        let asked = [link.as_raw_fd() as u32, size_of_val(&info) as u32, at as u32, (at >> 32) as u32];
        // struct bpf_link_info: type, id, prog_id, (pad), then for XDP the interface index.
        if bpf(BPF_OBJ_GET_INFO_BY_FD, asked).is_ok()
            && info[0] == BPF_LINK_TYPE_XDP
            && info[2] == id
            && info[4] == index
        {
            return Some(link);
        }
    }
    None
}

/// bpf(2) with the first 16 bytes of its attribute; the attribute as the kernel left it.
fn bpf(command: libc::c_int, attr: [u32; 4]) -> io::Result<(libc::c_int, [u32; 4])> {
    let mut attr = attr;
    // SAFETY: `attr` is writable for the size given, and pointers in it (find_link) are to buffers that outlive the
    // call; the kernel takes missing trailing fields as zero.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attr, size_of_val(&attr)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok((result as libc::c_int, attr)) }
}

/// Clears a program that was attached by netlink (`ip link set … xdp`).
fn clear_netlink(interface: &Interface, mode: XdpAttached) -> io::Result<()> {
    const IFLA_XDP: u16 = 43;
    const IFLA_XDP_FD: u16 = 1;
    const IFLA_XDP_FLAGS: u16 = 3;
    const NESTED: u16 = 0x8000;
    // XDP_FLAGS_SKB_MODE, _DRV_MODE, _HW_MODE, linux/if_link.h.
    let flags: u32 = match mode {
        XdpAttached::Generic => 1 << 1,
        XdpAttached::Native => 1 << 2,
        XdpAttached::Hardware => 1 << 3,
        XdpAttached::Several => 0,
    };
    let mut nested = Vec::new();
    netlink::push_attribute(&mut nested, IFLA_XDP_FD, &(-1_i32).to_ne_bytes());
    netlink::push_attribute(&mut nested, IFLA_XDP_FLAGS, &flags.to_ne_bytes());
    let mut body = netlink::ifinfo(interface.index);
    netlink::push_attribute(&mut body, IFLA_XDP | NESTED, &nested);
    Netlink::open(0, false)?.request(libc::RTM_SETLINK, libc::NLM_F_ACK as u16, &body).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(address: [u8; 4], port: u16) -> Destination {
        Destination { address: address.into(), port }
    }

    #[test]
    fn each_address_takes_one_more_entry_for_its_fragments() {
        let group = [239, 1, 1, 1];
        let entries = group_entries(&[destination(group, 1), destination(group, 2)]).expect("two destinations");
        let mut expected = vec![
            (group_key(group, 0), GROUP_FRAGMENT),
            (group_key(group, 1), GROUP_REDIRECT),
            (group_key(group, 2), GROUP_REDIRECT),
        ];
        expected.sort_unstable();
        assert_eq!(entries, expected);
    }

    #[test]
    fn impossible_destinations_are_refused() {
        assert!(group_entries(&[]).is_err());
        assert!(group_entries(&[destination([239, 1, 1, 1], 0)]).is_err());
        assert!(group_entries(&[destination([0; 4], 1)]).is_err());
        let many: Vec<Destination> = (1..=GROUPS_MAX as u16).map(|port| destination([239, 1, 1, 1], port)).collect();
        let told = group_entries(&many).expect_err("one too many").to_string();
        assert!(told.contains("4097 entries"), "{told}");
        assert!(group_entries(&many[1..]).is_ok());
    }

    #[test]
    fn the_embedded_object_is_the_one_with_our_programs() {
        assert_eq!(&OBJECT[..4], b"\x7fELF");
        for name in [PROGRAM, PROGRAM_FRAGS, MAP_GROUPS, MAP_SOCKETS, MAP_COUNTERS, GLOBAL_STAMP] {
            assert!(OBJECT.windows(name.len()).any(|window| window == name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn counters_add_up_and_subtract() {
        let mut now = QueueCounters { counts: [1, 2, 3, 4, 5, 6] };
        assert_eq!(now.seen(), 15);
        let before = now;
        now.counts[Reason::Redirected as usize] += 10;
        assert_eq!((now.since(&before).seen(), now.since(&before).get(Reason::Passed)), (10, 0));
    }
}
