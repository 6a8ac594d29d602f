//! What the XDP program and user space agree on, byte for byte.
//!
//! What it is for: map keys and names, counter reasons, the frame metadata.
//! May use: `core` alone (it is compiled for the BPF target too). Never does: anything at run time.
#![no_std]

/// Name of the map of wanted destinations: hash of [`GroupKey`] to [`GROUP_REDIRECT`] | [`GROUP_FRAGMENT`].
pub const MAP_GROUPS: &str = "GROUPS";
/// Name of the map of sockets: receive queue to AF_XDP socket.
pub const MAP_SOCKETS: &str = "SOCKETS";
/// Name of the per-CPU array of counters, indexed by [`counter_index`].
pub const MAP_COUNTERS: &str = "COUNTERS";
/// Name of the global that switches the metadata stamp: 0 off, anything else on.
pub const GLOBAL_STAMP: &str = "STAMP";
/// The program for frames that lie in one buffer.
pub const PROGRAM: &str = "sluice";
/// The same program, declared able to see multi-buffer frames (`xdp.frags`).
pub const PROGRAM_FRAGS: &str = "sluice_frags";

/// Most destinations in the map of groups, the per-address fragment entries included.
///
/// The largest published feeds (OPRA) have 48 groups a side; 4,096 entries cost under 300 KiB.
pub const GROUPS_MAX: u32 = 4096;

/// Receive queues that the maps have room for unless the loader says otherwise (it sizes them from the interface).
pub const QUEUES_DEFAULT: u32 = 64;

/// Group flag: a datagram to this address and port is redirected.
pub const GROUP_REDIRECT: u32 = 1;
/// Group flag: this address (port 0 in the key) is wanted, so its IP fragments are worth counting.
pub const GROUP_FRAGMENT: u32 = 2;

/// Key of the map of groups: 8 bytes, so that the kernel hashes two words.
///
/// In memory: address (4, network order), port (2, network order), zero (2).
pub type GroupKey = u64;

/// The key of datagrams to `address`:`port`; port 0 is the key of the address's fragments.
#[inline(always)]
pub const fn group_key(address: [u8; 4], port: u16) -> GroupKey {
    let port = port.to_be_bytes();
    u64::from_ne_bytes([address[0], address[1], address[2], address[3], port[0], port[1], 0, 0])
}

/// Why a counter moved. [`Reason::Redirected`] to [`Reason::NoSocket`] are exclusive: every frame that the program
/// sees counts under exactly one of them. [`Reason::MetadataFailed`] is told beside `Redirected`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Reason {
    /// Handed to the socket of its receive queue (whether the socket had room is the socket's own statistic).
    Redirected = 0,
    /// Not wanted: left to the kernel.
    Passed = 1,
    /// A fragment of a datagram to a wanted address: left to the kernel, which reassembles; never captured.
    Fragment = 2,
    /// The frame ends inside a header that it announces, or announces an impossible one: left to the kernel.
    Truncated = 3,
    /// Wanted, but its receive queue has no socket: left to the kernel.
    NoSocket = 4,
    /// Redirected without a stamp, because the driver gives no room for metadata.
    MetadataFailed = 5,
}

impl Reason {
    /// Every reason, in the order of the counters.
    pub const ALL: [Reason; 6] = [
        Reason::Redirected,
        Reason::Passed,
        Reason::Fragment,
        Reason::Truncated,
        Reason::NoSocket,
        Reason::MetadataFailed,
    ];

    /// The reason's name in counters, logs and JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Reason::Redirected => "redirected",
            Reason::Passed => "passed",
            Reason::Fragment => "fragment",
            Reason::Truncated => "truncated",
            Reason::NoSocket => "no_socket",
            Reason::MetadataFailed => "metadata_failed",
        }
    }
}

/// Slots that a queue takes in the counter array: [`Reason::ALL`] rounded up to a power of two.
pub const REASON_SLOTS: u32 = 8;

/// Index of (queue, reason) in the counter array.
#[inline(always)]
pub const fn counter_index(queue: u32, reason: Reason) -> u32 {
    queue.wrapping_mul(REASON_SLOTS).wrapping_add(reason as u32)
}

/// Bytes of the metadata that stand directly before the frame's first byte.
pub const METADATA_BYTES: usize = 16;
/// Marks metadata that this program wrote. User space zeroes it after reading, so that a later frame in the same
/// buffer, whose stamp failed, cannot show the earlier one's.
pub const METADATA_MAGIC: u32 = 0x534c_4331;

/// What the program writes before the frame, in native byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Metadata {
    /// `bpf_ktime_get_tai_ns` when the program saw the frame.
    pub tai_ns: u64,
    /// Receive queue as the driver reported it.
    pub queue: u32,
    /// [`METADATA_MAGIC`].
    pub magic: u32,
}

const _: () = assert!(core::mem::size_of::<Metadata>() == METADATA_BYTES);
