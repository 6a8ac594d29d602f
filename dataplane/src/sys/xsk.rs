//! One receive queue over AF_XDP: a socket, its UMEM and its rings, owned by the thread that made them.
//!
//! A frame is at any time in exactly one place: the fill ring (the kernel's), the receive ring, `free` (at home), or out
//! as a token. Frames of packets that span several buffers go home as soon as they are copied into one jumbo slot: the
//! slots lie at the end of the UMEM and are never given to the kernel.

use std::fmt;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use xsk_rs::config::{BindFlags, FrameSize, Interface as XskInterface, LibxdpFlags, QueueSize};
use xsk_rs::config::{SocketConfig, SocketConfigBuilder, UmemConfig, UmemConfigBuilder};
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue, Umem};

use super::bpf::{METADATA_BYTES, METADATA_MAGIC, missing_capabilities};
use super::clock;
use super::frames::{FrameArea, FrameToken};
use super::nic::{CHUNK_BYTES, CHUNK_HEADROOM_BYTES, FrameChoice, Interface};
use crate::units::AreaId;

/// Descriptors taken from the receive ring, or put into the fill ring, in one go.
const BATCH: usize = 64;
/// Entries of the send and completion rings, which receiving does not use but the kernel wants.
const UNUSED_RING: u32 = 64;
/// Bytes of a huge page on the machines that this runs on; a huge-page UMEM is a multiple of it.
const HUGE_PAGE_BYTES: u32 = 2 << 20;
/// Largest UMEM: a token's offset has 32 bits.
const UMEM_BYTES_MAX: u64 = 1 << 32;
/// Most jumbo slots by default; a slot is out while its packet is, so this bounds multi-buffer packets in flight.
pub const JUMBO_SLOTS_DEFAULT: u32 = 1024;

/// How long a queue that another socket seems to hold is asked for again: the kernel's release of a closed socket takes
/// milliseconds.
const RELEASE_PATIENCE_NS: i64 = 500_000_000;
const RELEASE_POLL: Duration = Duration::from_millis(5);

// linux/if_xdp.h, asm-generic/socket.h
const XDP_STATISTICS: libc::c_int = 7;
const XDP_OPTIONS: libc::c_int = 8;
const XDP_OPTIONS_ZEROCOPY: u32 = 1;
const SO_BUSY_POLL: libc::c_int = 46;
const SO_PREFER_BUSY_POLL: libc::c_int = 69;
const SO_BUSY_POLL_BUDGET: libc::c_int = 70;

/// Whether frames may be written by the NIC straight into the UMEM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ZeroCopy {
    /// Zero-copy, or fail.
    Require,
    /// Zero-copy where the driver can, else copies; [`XskQueue::zero_copy`] tells which.
    #[default]
    Prefer,
    /// Copies.
    Off,
}

/// Busy polling of the queue by the receiving thread, in place of the interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BusyPoll {
    /// `SO_BUSY_POLL` in µs.
    pub microseconds: u32,
    /// `SO_BUSY_POLL_BUDGET` in frames.
    pub budget: u32,
}

/// Settings of one queue.
#[derive(Clone, Debug)]
pub struct XskSettings {
    /// Receive queue.
    pub queue: u32,
    /// The area id that the queue's tokens carry.
    pub area: AreaId,
    /// Frames that circulate. At least fill ring + receive ring + what the links hold; any number.
    pub frame_count: u32,
    /// Chunk size, multi-buffer and longest packet (from [`super::nic::choose_frames`]).
    pub frames: FrameChoice,
    /// Entries of the fill ring, a power of two.
    pub fill_ring: u32,
    /// Entries of the receive ring, a power of two.
    pub receive_ring: u32,
    /// Jumbo slots, when frames may span several buffers.
    pub jumbo_slots: u32,
    /// Zero-copy.
    pub zero_copy: ZeroCopy,
    /// Ask the driver to say when it wants to be woken (off only for drivers that get it wrong).
    pub need_wakeup: bool,
    /// Busy polling.
    pub busy_poll: Option<BusyPoll>,
    /// Try huge pages, fall back to ordinary ones.
    pub huge_pages: bool,
    /// The XDP program stamps frames; `false` stamps them here with `sys::clock`.
    pub stamped: bool,
}

impl XskSettings {
    /// Defaults for one queue: rings of 8,192 and 16,384 frames (what the measured rates need), need_wakeup, stamps.
    pub fn new(queue: u32, area: AreaId, frames: FrameChoice) -> XskSettings {
        XskSettings {
            queue,
            area,
            frame_count: 24_576,
            frames,
            fill_ring: 8192,
            receive_ring: 8192,
            jumbo_slots: JUMBO_SLOTS_DEFAULT,
            zero_copy: ZeroCopy::Prefer,
            need_wakeup: true,
            busy_poll: None,
            huge_pages: true,
            stamped: true,
        }
    }

    /// Frames in one jumbo slot; 0 without multi-buffer.
    fn frames_per_slot(&self) -> u32 {
        if self.frames.multi_buffer { self.frames.packet_bytes_max.div_ceil(self.frames.frame_bytes) } else { 0 }
    }

    /// Frames of the UMEM: those that circulate, and the jumbo slots.
    pub fn umem_frames(&self) -> u64 {
        u64::from(self.frame_count) + u64::from(self.frames_per_slot()) * u64::from(self.jumbo_slots)
    }

    /// Bytes of the UMEM, which are locked into memory.
    pub fn umem_bytes(&self) -> u64 {
        self.umem_frames() * u64::from(self.frames.frame_bytes)
    }
}

/// Why a queue cannot be opened or asked.
#[derive(Debug, thiserror::Error)]
pub enum XskError {
    /// A setting is out of its range.
    #[error("interface {interface:?} queue {queue}: {what}")]
    Settings {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// Setting, value, limit.
        what: String,
    },
    /// No right to open AF_XDP sockets.
    #[error(
        "interface {interface:?} queue {queue}: opening an AF_XDP socket: {source}: missing {missing}: run as root, or \
         \"setcap cap_bpf,cap_perfmon,cap_net_admin,cap_net_raw,cap_ipc_lock=ep\" on the binary"
    )]
    Capability {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// The capabilities that capturing needs and this thread has not.
        missing: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The UMEM may not be locked.
    #[error(
        "interface {interface:?} queue {queue}: a UMEM of {bytes} bytes is beyond the memory-lock limit of {limit} \
         bytes: add CAP_IPC_LOCK, or set LimitMEMLOCK=infinity (ulimit -l), or lower frames"
    )]
    Memlock {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// Bytes asked for.
        bytes: u64,
        /// The soft limit.
        limit: u64,
    },
    /// The interface has no such queue.
    #[error(
        "interface {interface:?}: queue {queue} asked for, but it has {queues}: lower it, or run \
         \"ethtool -L {interface} combined {}\"", queue + 1
    )]
    NoSuchQueue {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// Queues that it has.
        queues: u32,
    },
    /// The driver has no zero-copy here.
    #[error(
        "interface {interface:?} queue {queue}: driver {driver} gives no zero-copy ({source}): \
         set zero_copy = \"prefer\" or \"off\""
    )]
    NoZeroCopy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// Its driver.
        driver: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The queue has a socket already.
    #[error("interface {interface:?} queue {queue} is bound by another AF_XDP socket: stop the other capture")]
    Busy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// The kernel is too old for frames of several buffers.
    #[error(
        "interface {interface:?} queue {queue}: the kernel refuses multi-buffer sockets ({source}): kernel 6.6 or later \
         is needed (and driver support for zero-copy), or lower the MTU to fit one chunk"
    )]
    NoMultiBuffer {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Any other refusal.
    #[error("interface {interface:?} queue {queue}: {what}: {source}")]
    Kernel {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The kernel's counters of the socket (`XDP_STATISTICS`, the version of kernel 5.9).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct XskStatistics {
    /// Packets that the socket had no way to take: in copy mode an empty fill ring, or too long for a chunk.
    pub rx_dropped: u64,
    /// Descriptors of the fill ring that named no frame.
    pub rx_invalid_descs: u64,
    /// Descriptors of the send ring that named no frame.
    pub tx_invalid_descs: u64,
    /// Packets lost because the receive ring was full.
    pub rx_ring_full: u64,
    /// Times that the kernel found the fill ring empty: a diagnostic (in copy mode inside `rx_dropped` already).
    pub rx_fill_ring_empty_descs: u64,
    /// Times that the kernel found the send ring empty.
    pub tx_ring_empty_descs: u64,
}

/// What the queue itself counted; single writer, read by its thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct XskCounters {
    /// Packets taken from the receive ring (one of several buffers counts once, at its last).
    pub received: u64,
    /// Of these, without a valid stamp although the program should stamp: stamped here instead.
    pub unstamped: u64,
    /// Of the received, spread over several buffers and made linear.
    pub multi_buffer: u64,
    /// Of the received, longer than a jumbo slot: dropped here, no token given.
    pub oversize: u64,
    /// Times that the driver was woken because it asked for it.
    pub wakeups: u64,
    /// Receive calls that found no jumbo slot free and left packets in the ring.
    pub jumbo_waits: u64,
}

/// A packet of several buffers in the making. `slot` is `None` while an oversize one is swallowed.
#[derive(Debug)]
struct Assembly {
    slot: Option<u32>,
    bytes: u32,
    capture_ns: i64,
}

/// One receive queue. `Send`, not `Sync`; make it on the pinned thread that will use it, so that its memory is local.
pub struct XskQueue {
    interface: String,
    settings: XskSettings,
    // Dropped in this order: rings (the last closes the socket), then the UMEM's handle.
    receive: RxQueue,
    fill: FillQueue,
    _send: TxQueue,
    _completion: CompQueue,
    umem: Umem,
    memory: Memory,
    /// Logarithm of the chunk size: a frame number is an address shifted by it.
    frame_shift: u32,
    /// A descriptor of every frame that circulates, by frame.
    descriptors: Box<[FrameDesc]>,
    free: Vec<u32>,
    /// Descriptors taken from the receive ring and not looked at yet: `staged[staged_from..staged_to]`.
    staged: Box<[FrameDesc]>,
    staged_from: usize,
    staged_to: usize,
    scratch: Box<[FrameDesc]>,
    assembly: Option<Assembly>,
    /// First frames of the free jumbo slots.
    jumbo_free: Vec<u32>,
    counters: XskCounters,
    zero_copy: bool,
    huge_pages: bool,
}

/// The UMEM's bytes.
#[derive(Clone, Copy)]
struct Memory {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: `base` points into the UMEM that the same `XskQueue` keeps; access is through `&mut XskQueue` alone.
unsafe impl Send for Memory {}

impl Memory {
    /// The stamp before the frame at `offset`, if the XDP program wrote one. The magic is zeroed, so that the chunk's
    /// next frame cannot show this one's stamp.
    #[inline]
    fn take_stamp(self, offset: u32) -> Option<u64> {
        // struct Metadata: tai_ns (8), queue (4), magic (4).
        assert!(METADATA_BYTES as u32 <= offset && offset as usize <= self.bytes, "a frame without room before it");
        // SAFETY: the 16 bytes before `offset` lie inside the UMEM by the assertion; the frame is ours (it came out of
        // the receive ring and no token for it exists yet), so neither the kernel nor another thread touches them.
        unsafe {
            let at = self.base.add(offset as usize - METADATA_BYTES);
            let magic = at.add(12).cast::<u32>();
            if magic.read_unaligned() != METADATA_MAGIC {
                return None;
            }
            magic.write_unaligned(0);
            Some(at.cast::<u64>().read_unaligned())
        }
    }

    /// Copies `bytes` bytes of a fragment into a jumbo slot.
    #[inline]
    fn copy(self, from: u32, to: u32, bytes: u32) {
        let (from, to, bytes) = (from as usize, to as usize, bytes as usize);
        assert!(from + bytes <= self.bytes && to + bytes <= self.bytes, "a fragment outside the UMEM");
        // SAFETY: both ranges lie inside the UMEM. The fragment's frame came out of the receive ring and the slot out of
        // `jumbo_free`: nobody else holds either, and slots never overlap frames of the kernel.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(from), self.base.add(to), bytes) }
    }
}

impl XskQueue {
    /// Opens the socket of (`interface`, queue), makes its UMEM on the calling thread and fills the fill ring. Insert
    /// [`XskQueue::fd`] into the XDP program, then attach.
    pub fn open(interface: &Interface, settings: &XskSettings) -> Result<XskQueue, XskError> {
        let context = Context { interface, queue: settings.queue };
        context.check(settings)?;
        let (umem, descriptors, huge_pages) = context.umem(settings)?;
        let (send, receive, rings) = context.socket_patiently(settings, &umem)?;
        let Some((fill, completion)) = rings else {
            return Err(context.kernel("opening the socket", io::Error::other("no fill ring")));
        };
        let fd = receive.fd().as_raw_fd();
        let options: u32 = get_option(fd, XDP_OPTIONS).map_err(|e| context.kernel("reading XDP_OPTIONS", e))?;
        if let Some(busy_poll) = settings.busy_poll {
            set_busy_poll(fd, busy_poll).map_err(|e| context.kernel("setting busy polling", e))?;
        }
        let memory = Memory { base: base_of(&umem, &descriptors), bytes: settings.umem_bytes() as usize };
        let mut queue = XskQueue {
            interface: interface.name.clone(),
            receive,
            fill,
            _send: send,
            _completion: completion,
            umem,
            memory,
            frame_shift: settings.frames.frame_bytes.ilog2(),
            staged: vec![descriptors[0]; BATCH].into(),
            scratch: vec![descriptors[0]; BATCH].into(),
            free: (0..settings.frame_count).rev().collect(),
            jumbo_free: jumbo_slots(settings),
            descriptors: descriptors.into(),
            staged_from: 0,
            staged_to: 0,
            assembly: None,
            counters: XskCounters::default(),
            zero_copy: options & XDP_OPTIONS_ZEROCOPY != 0,
            huge_pages,
            settings: settings.clone(),
        };
        queue.refill();
        Ok(queue)
    }

    /// Receives up to `max` packets and hands each token to `take`; how many it was. `tai_offset_ns` is TAI − UTC.
    ///
    /// Frames that are at home go into the fill ring first, and the driver is woken if it asks for it: a caller that
    /// keeps calling recovers from an empty fill ring. Never blocks.
    #[inline]
    pub fn receive(&mut self, max: usize, tai_offset_ns: i64, mut take: impl FnMut(FrameToken)) -> usize {
        self.keep_filled();
        let mut now = None;
        let mut taken = 0;
        while taken < max {
            if self.staged_from == self.staged_to && !self.stage(max - taken) {
                break;
            }
            if self.settings.frames.multi_buffer && self.jumbo_free.is_empty() && self.needs_slot() {
                self.counters.jumbo_waits += 1;
                break;
            }
            let descriptor = self.staged[self.staged_from];
            self.staged_from += 1;
            if let Some(token) = self.token(descriptor, tai_offset_ns, &mut now) {
                take(token);
                taken += 1;
            }
        }
        taken
    }

    /// Takes a frame home; it reaches the fill ring at the latest with the next [`XskQueue::receive`].
    #[inline]
    pub fn recycle(&mut self, token: FrameToken) {
        assert!(token.area == self.settings.area, "a token of another area came home");
        if token.frame < self.settings.frame_count {
            self.free.push(token.frame);
            assert!(self.free.len() <= self.settings.frame_count as usize, "a frame came home twice");
            if self.free.len() >= BATCH {
                self.refill();
            }
        } else {
            self.jumbo_free.push(token.frame);
            assert!(self.jumbo_free.len() <= self.settings.jumbo_slots as usize, "a jumbo slot came home twice");
        }
    }

    /// Takes frames home and refills.
    pub fn recycle_batch(&mut self, tokens: impl IntoIterator<Item = FrameToken>) {
        tokens.into_iter().for_each(|token| self.recycle(token));
        self.refill();
    }

    /// Puts every frame that is at home into the fill ring, as far as that has room; how many it was.
    pub fn refill(&mut self) -> usize {
        let mut filled = 0;
        while !self.free.is_empty() {
            let wanted = self.free.len().min(BATCH);
            let room = (self.fill.nb_free(wanted as u32) as usize).min(wanted);
            if room == 0 {
                break;
            }
            let from = self.free.len() - room;
            for (slot, frame) in self.scratch.iter_mut().zip(&self.free[from..]) {
                *slot = self.descriptors[*frame as usize];
            }
            // SAFETY: the descriptors are of this UMEM, and their frames were in `free`: at home, in no ring, no token
            // out. They leave `free` below.
            let produced = unsafe { self.fill.produce(&self.scratch[..room]) };
            assert!(produced == room, "the fill ring took {produced} of {room} that it had room for");
            self.free.truncate(from);
            filled += produced;
        }
        filled
    }

    /// The socket, for the XDP program's map and for polling (readable: packets wait).
    pub fn fd(&self) -> RawFd {
        self.receive.fd().as_raw_fd()
    }

    /// The UMEM, for those who hold the queue's tokens. It lives as long as any clone.
    pub fn area(&self) -> FrameArea {
        let keep: Arc<Umem> = Arc::new(self.umem.clone());
        // SAFETY: `keep` holds the mapping. The kernel writes only frames that are in the fill ring, and this queue only
        // frames and slots that are at home: never one whose token is out.
        unsafe { FrameArea::new(self.memory.base, self.memory.bytes, keep) }
    }

    /// Packets (buffers, of multi-buffer packets) that wait to be received.
    pub fn available(&mut self) -> u32 {
        self.receive.nb_avail_exact() + (self.staged_to - self.staged_from) as u32
    }

    /// Waits until packets can be received or `timeout_ms` has passed (-1: for ever); whether some can. Wakes a driver
    /// that sleeps.
    pub fn wait(&mut self, timeout_ms: i32) -> io::Result<bool> {
        if self.staged_from != self.staged_to {
            return Ok(true);
        }
        self.receive.poll(timeout_ms)
    }

    /// The kernel's counters of the socket.
    pub fn statistics(&self) -> Result<XskStatistics, XskError> {
        get_option(self.fd(), XDP_STATISTICS).map_err(|source| XskError::Kernel {
            interface: self.interface.clone(),
            queue: self.settings.queue,
            what: "reading XDP_STATISTICS",
            source,
        })
    }

    /// The queue's own counters.
    pub fn counters(&self) -> XskCounters {
        self.counters
    }

    /// Whether the socket really got zero-copy.
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Whether the UMEM really lies in huge pages.
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }

    /// Receive queue.
    pub fn queue(&self) -> u32 {
        self.settings.queue
    }

    /// The area id that the tokens carry.
    pub fn area_id(&self) -> AreaId {
        self.settings.area
    }

    /// Tokens that can be out at once: the capacity that a return link needs so that a return cannot fail.
    pub fn tokens_max(&self) -> u32 {
        self.settings.frame_count + if self.settings.frames.multi_buffer { self.settings.jumbo_slots } else { 0 }
    }

    /// Frames at home, outside the fill ring (jumbo slots not counted).
    pub fn frames_at_home(&self) -> u32 {
        self.free.len() as u32
    }

    /// Takes up to `max` descriptors from the receive ring into `staged`; whether there are any.
    fn stage(&mut self, max: usize) -> bool {
        let wanted = max.min(BATCH);
        // SAFETY: `staged` holds descriptors of this UMEM, all of them looked at already; the ring overwrites them.
        self.staged_to = unsafe { self.receive.consume(&mut self.staged[..wanted]) };
        self.staged_from = 0;
        self.staged_to > 0
    }

    /// Whether the next staged descriptor opens a packet of several buffers.
    fn needs_slot(&self) -> bool {
        self.assembly.is_none() && self.staged[self.staged_from].has_more_frames()
    }

    /// The token that the descriptor completes, if it does.
    #[inline]
    fn token(&mut self, descriptor: FrameDesc, tai_offset_ns: i64, now: &mut Option<i64>) -> Option<FrameToken> {
        let (offset, bytes) = (descriptor.addr() as u32, descriptor.lengths().data() as u32);
        let frame = offset >> self.frame_shift;
        assert!(frame < self.settings.frame_count, "the receive ring named frame {frame}, which is not the kernel's");
        if self.assembly.is_some() || descriptor.has_more_frames() {
            return self.assemble(descriptor, frame, offset, bytes, tai_offset_ns, now);
        }
        let capture_ns = self.stamp(offset, tai_offset_ns, now);
        self.counters.received += 1;
        Some(FrameToken { area: self.settings.area, frame, offset, bytes, capture_ns })
    }

    fn assemble(
        &mut self,
        descriptor: FrameDesc,
        frame: u32,
        offset: u32,
        bytes: u32,
        tai_offset_ns: i64,
        now: &mut Option<i64>,
    ) -> Option<FrameToken> {
        let mut assembly = match self.assembly.take() {
            Some(assembly) => assembly,
            None => Assembly {
                // `receive` has seen to it that there is one.
                slot: Some(self.jumbo_free.pop().expect("a free jumbo slot")),
                bytes: 0,
                capture_ns: self.stamp(offset, tai_offset_ns, now),
            },
        };
        let frame_bytes = self.settings.frames.frame_bytes;
        if let Some(slot) = assembly.slot {
            if assembly.bytes + bytes <= self.settings.frames_per_slot() * frame_bytes {
                self.memory.copy(offset, slot * frame_bytes + assembly.bytes, bytes);
                assembly.bytes += bytes;
            } else {
                self.jumbo_free.push(slot);
                assembly.slot = None;
            }
        }
        self.free.push(frame);
        if descriptor.has_more_frames() {
            self.assembly = Some(assembly);
            return None;
        }
        self.counters.received += 1;
        self.counters.multi_buffer += 1;
        let Some(slot) = assembly.slot else {
            self.counters.oversize += 1;
            return None;
        };
        let Assembly { bytes, capture_ns, .. } = assembly;
        Some(FrameToken { area: self.settings.area, frame: slot, offset: slot * frame_bytes, bytes, capture_ns })
    }

    /// Capture time of the frame at `offset`, UTC ns; the clock is read at most once a call of `receive`.
    #[inline]
    fn stamp(&mut self, offset: u32, tai_offset_ns: i64, now: &mut Option<i64>) -> i64 {
        if self.settings.stamped {
            if let Some(tai_ns) = self.memory.take_stamp(offset) {
                return tai_ns as i64 - tai_offset_ns;
            }
            self.counters.unstamped += 1;
        }
        *now.get_or_insert_with(clock::utc_ns)
    }

    /// Before each receive: frames into the fill ring, and a wake-up if the driver asks for one.
    #[inline]
    fn keep_filled(&mut self) {
        if !self.free.is_empty() {
            self.refill();
        }
        if self.settings.busy_poll.is_some() {
            self.kick();
        } else if self.settings.need_wakeup && self.fill.needs_wakeup() {
            self.counters.wakeups += 1;
            self.kick();
        }
    }

    /// Makes the driver look at the rings: an empty, non-blocking receive. Its result says nothing that the rings and
    /// the statistics do not.
    #[cold]
    fn kick(&self) {
        // SAFETY: no buffer is given, so nothing is written.
        unsafe { libc::recv(self.fd(), std::ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
    }
}

impl fmt::Debug for XskQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XskQueue")
            .field("interface", &self.interface)
            .field("settings", &self.settings)
            .field("zero_copy", &self.zero_copy)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// First frames of the jumbo slots, which follow the circulating frames.
fn jumbo_slots(settings: &XskSettings) -> Vec<u32> {
    let per_slot = settings.frames_per_slot();
    let count = if per_slot == 0 { 0 } else { settings.jumbo_slots };
    (0..count).rev().map(|slot| settings.frame_count + slot * per_slot).collect()
}

/// The address of the UMEM's first byte.
fn base_of(umem: &Umem, descriptors: &[FrameDesc]) -> *mut u8 {
    let mut first = descriptors[0];
    let offset = first.addr();
    // SAFETY: the descriptor is of this UMEM, whose frames have not been given to anyone yet.
    let mut data = unsafe { umem.data_mut(&mut first) };
    // The contents are empty, but they begin at the descriptor's place. The pointer made from the address is valid for
    // the whole mapping, which is no Rust object and whose address libxdp has been given.
    let at = data.contents_mut().as_mut_ptr();
    std::ptr::with_exposed_provenance_mut(at.expose_provenance() - offset)
}

type Rings = (TxQueue, RxQueue, Option<(FillQueue, CompQueue)>);

/// Whose opening it is, for the errors.
struct Context<'a> {
    interface: &'a Interface,
    queue: u32,
}

impl Context<'_> {
    fn kernel(&self, what: &'static str, source: io::Error) -> XskError {
        XskError::Kernel { interface: self.interface.name.clone(), queue: self.queue, what, source }
    }

    fn check(&self, settings: &XskSettings) -> Result<(), XskError> {
        let refuse =
            |what: String| Err(XskError::Settings { interface: self.interface.name.clone(), queue: self.queue, what });
        for (name, entries) in [("fill_ring", settings.fill_ring), ("receive_ring", settings.receive_ring)] {
            if !entries.is_power_of_two() {
                return refuse(format!("{name} = {entries}: must be a power of two"));
            }
        }
        let FrameChoice { frame_bytes, multi_buffer, packet_bytes_max } = settings.frames;
        if !CHUNK_BYTES.contains(&frame_bytes) {
            return refuse(format!("frame_bytes = {frame_bytes}: only 2048 and 4096 are possible"));
        }
        if !multi_buffer && packet_bytes_max > frame_bytes - CHUNK_HEADROOM_BYTES {
            let limit = frame_bytes - CHUNK_HEADROOM_BYTES;
            return refuse(format!(
                "packets of {packet_bytes_max} bytes, but a {frame_bytes}-byte chunk holds {limit}"
            ));
        }
        if settings.frame_count < settings.receive_ring.max(BATCH as u32) {
            let (frames, ring) = (settings.frame_count, settings.receive_ring);
            return refuse(format!("frames = {frames}: fewer than the receive ring's {ring} entries: raise it"));
        }
        if multi_buffer && settings.jumbo_slots == 0 {
            return refuse("jumbo_slots = 0: multi-buffer packets need at least one".into());
        }
        if settings.umem_bytes() + u64::from(HUGE_PAGE_BYTES) > UMEM_BYTES_MAX {
            return refuse(format!("a UMEM of {} bytes: the limit is 4 GiB: lower frames", settings.umem_bytes()));
        }
        Ok(())
    }

    /// The UMEM, in huge pages if asked for and possible; then it is rounded up to whole huge pages, whose last frames
    /// stay unused.
    fn umem(&self, settings: &XskSettings) -> Result<(Umem, Vec<FrameDesc>, bool), XskError> {
        let config = self.umem_config(settings)?;
        let frames = settings.umem_frames() as u32;
        if settings.huge_pages {
            let rounded = frames.next_multiple_of(HUGE_PAGE_BYTES / settings.frames.frame_bytes);
            if let Ok((umem, descriptors)) = Umem::new(config, at_least_one(rounded), true) {
                return Ok((umem, descriptors, true));
            }
        }
        match Umem::new(config, at_least_one(frames), false) {
            Ok((umem, descriptors)) => Ok((umem, descriptors, false)),
            Err(error) => Err(self.umem_error(settings, source_of(&error))),
        }
    }

    fn umem_config(&self, settings: &XskSettings) -> Result<UmemConfig, XskError> {
        let invalid = |what: &'static str| self.kernel(what, io::ErrorKind::InvalidInput.into());
        let frame_size = FrameSize::new(settings.frames.frame_bytes).map_err(|_| invalid("frame_bytes"))?;
        let fill = QueueSize::new(settings.fill_ring).map_err(|_| invalid("fill_ring"))?;
        let unused = QueueSize::new(UNUSED_RING).map_err(|_| invalid("completion ring"))?;
        let mut builder = UmemConfigBuilder::new();
        builder.frame_size(frame_size).fill_queue_size(fill).comp_queue_size(unused);
        builder.build().map_err(|_| invalid("UMEM settings"))
    }

    fn umem_error(&self, settings: &XskSettings, source: io::Error) -> XskError {
        let (interface, queue) = (self.interface.name.clone(), self.queue);
        match source.raw_os_error() {
            Some(libc::EPERM) => XskError::Capability { interface, queue, missing: missing_capabilities(), source },
            Some(libc::ENOBUFS) => {
                XskError::Memlock { interface, queue, bytes: settings.umem_bytes(), limit: memlock_limit() }
            }
            _ => XskError::Kernel { interface, queue, what: "making the UMEM", source },
        }
    }

    /// A closed socket's queue is released by kernel work that runs a little later: a restart would find it busy.
    fn socket_patiently(&self, settings: &XskSettings, umem: &Umem) -> Result<Rings, XskError> {
        let deadline = clock::monotonic_ns() + RELEASE_PATIENCE_NS;
        loop {
            match self.socket(settings, umem) {
                Err(XskError::Busy { .. }) if clock::monotonic_ns() < deadline => clock::sleep(RELEASE_POLL),
                result => return result,
            }
        }
    }

    fn socket(&self, settings: &XskSettings, umem: &Umem) -> Result<Rings, XskError> {
        let config = self.socket_config(settings)?;
        let name: XskInterface = self
            .interface
            .name
            .parse()
            .map_err(|_| self.kernel("naming the interface", io::ErrorKind::InvalidInput.into()))?;
        // SAFETY: no default program is loaded (INHIBIT_PROG_LOAD), and the UMEM is used for this socket alone.
        unsafe { Socket::new(config, umem, &name, self.queue) }
            .map_err(|error| self.socket_error(settings, source_of(&error)))
    }

    fn socket_config(&self, settings: &XskSettings) -> Result<SocketConfig, XskError> {
        let invalid = |what: &'static str| self.kernel(what, io::ErrorKind::InvalidInput.into());
        let mut flags = match settings.zero_copy {
            ZeroCopy::Require => BindFlags::XDP_ZEROCOPY,
            ZeroCopy::Prefer => BindFlags::empty(),
            ZeroCopy::Off => BindFlags::XDP_COPY,
        };
        flags.set(BindFlags::XDP_USE_NEED_WAKEUP, settings.need_wakeup);
        flags.set(BindFlags::XDP_USE_SG, settings.frames.multi_buffer);
        let receive = QueueSize::new(settings.receive_ring).map_err(|_| invalid("receive_ring"))?;
        let unused = QueueSize::new(UNUSED_RING).map_err(|_| invalid("send ring"))?;
        let mut builder = SocketConfigBuilder::new();
        builder.rx_queue_size(receive).tx_queue_size(unused).bind_flags(flags);
        // Our own program steers; libxdp must not load its.
        builder.libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD);
        Ok(builder.build())
    }

    fn socket_error(&self, settings: &XskSettings, source: io::Error) -> XskError {
        let (interface, queue) = (self.interface.name.clone(), self.queue);
        let queues = self.interface.rx_queues().unwrap_or(self.interface.rx_queues_max);
        match source.raw_os_error() {
            Some(libc::EPERM) => XskError::Capability { interface, queue, missing: missing_capabilities(), source },
            Some(libc::EBUSY) => XskError::Busy { interface, queue },
            Some(libc::EINVAL) if queue >= queues => XskError::NoSuchQueue { interface, queue, queues },
            // Kernels before 6.6 do not know the flag.
            Some(libc::EINVAL) if settings.frames.multi_buffer => XskError::NoMultiBuffer { interface, queue, source },
            Some(libc::EOPNOTSUPP | libc::EINVAL) if settings.zero_copy == ZeroCopy::Require => {
                XskError::NoZeroCopy { interface, queue, driver: self.interface.driver(), source }
            }
            _ => XskError::Kernel { interface, queue, what: "binding the socket", source },
        }
    }
}

fn at_least_one(frames: u32) -> NonZeroU32 {
    NonZeroU32::new(frames).expect("checked: at least a batch of frames")
}

/// The I/O error behind xsk-rs's errors, which do not show it themselves.
fn source_of(error: &dyn std::error::Error) -> io::Error {
    let code = error.source().and_then(|source| source.downcast_ref::<io::Error>()).and_then(io::Error::raw_os_error);
    code.map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
}

fn memlock_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid, exclusive pointer for the duration of the call.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    limit.rlim_cur
}

/// A socket option of level `SOL_XDP`. An answer of another size is an error: an older kernel's shorter one would leave
/// fields at zero that look like "no loss".
fn get_option<T: Default + Copy>(fd: RawFd, option: libc::c_int) -> io::Result<T> {
    let mut value = T::default();
    let mut bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is writable for `bytes`; T is one of two plain-integer types of this file.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_XDP, option, (&raw mut value).cast(), &raw mut bytes) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if bytes as usize != size_of::<T>() {
        return Err(io::Error::other(format!("{bytes} bytes instead of {}: another kernel ABI", size_of::<T>())));
    }
    Ok(value)
}

fn set_busy_poll(fd: RawFd, busy_poll: BusyPoll) -> io::Result<()> {
    let BusyPoll { microseconds, budget } = busy_poll;
    for (option, value) in [(SO_PREFER_BUSY_POLL, 1), (SO_BUSY_POLL, microseconds), (SO_BUSY_POLL_BUDGET, budget)] {
        let value = value as libc::c_int;
        // SAFETY: `value` is readable for its size.
        let result = unsafe {
            let bytes = size_of_val(&value) as libc::socklen_t;
            libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const value).cast(), bytes)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
