//! AF_PACKET senders: whole Ethernet frames out of an interface, from memory, at a pace.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::clock;

/// Most frames handed to the kernel in one call, and so the longest burst. 32 frames at 10 Gbit/s and 1,500 bytes are
/// 38 µs of line time: receivers' rings hold many times that.
pub const BATCH_MAX: usize = 32;
/// Shortest sleep worth its wake-up: waking costs 5 to 50 µs on a virtual machine. Shorter waits spin.
const SLEEP_NS_MIN: i64 = 50_000;
/// Longest sleep, so that a request to stop is seen.
const SLEEP_NS_MAX: i64 = 50_000_000;
/// Behind schedule by more than this, the schedule moves: a sender that was stopped must not flood on its return.
const LAG_NS_MAX: i64 = 100_000_000;
/// Pause when the driver's queue is full: some packets leave a 1 Gbit/s link in this time.
const FULL_PAUSE: Duration = Duration::from_micros(20);
/// A queue that stays full this long belongs to a link that is not moving.
const FULL_NS_MAX: i64 = 5_000_000_000;
/// Send buffer asked for, in bytes: 32 frames of 9,000 bytes with the kernel's bookkeeping, several times over.
const BUFFER_BYTES: libc::c_int = 4 * 1024 * 1024;

/// Why frames cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The right to open a packet socket is missing.
    #[error(
        "interface {interface:?}: sending whole frames needs CAP_NET_RAW: run as root, or \
         \"setcap cap_net_raw+ep\" the program"
    )]
    Permission {
        /// The interface.
        interface: String,
    },
    /// The interface is down.
    #[error("interface {interface:?} is down after {sent} frames: \"ip link set {interface} up\"")]
    Down {
        /// The interface.
        interface: String,
        /// Frames sent before.
        sent: u64,
    },
    /// The interface's queue stays full.
    #[error("interface {interface:?}: its queue took nothing for 5 s after {sent} frames: is the link up?")]
    Stalled {
        /// The interface.
        interface: String,
        /// Frames sent before.
        sent: u64,
    },
    /// Any other answer of the kernel.
    #[error("interface {interface:?}: {what}: {source}")]
    Kernel {
        /// The interface.
        interface: String,
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// What became of one call of [`PacketSender::send`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// So many frames from the front were taken, at least one.
    Frames(usize),
    /// The first frame is longer than the interface takes; nothing was sent.
    TooLong,
    /// The queue is full; nothing was sent.
    Full,
}

/// A packet socket bound to one interface, for sending only.
#[derive(Debug)]
pub struct PacketSender {
    fd: OwnedFd,
    interface: String,
    bypass: bool,
    sent: u64,
}

impl PacketSender {
    /// Opens a sender on the interface with this name and index. Where the kernel allows it, frames pass the queueing
    /// discipline by (`PACKET_QDISC_BYPASS`), straight into the driver.
    ///
    /// # Errors
    /// [`SendError::Permission`], or the kernel's answer.
    pub fn open(interface: &str, index: u32) -> Result<PacketSender, SendError> {
        let kernel = |what| {
            let source = io::Error::last_os_error();
            SendError::Kernel { interface: interface.to_owned(), what, source }
        };
        // SAFETY: plain integers; protocol 0 means that nothing is ever received.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(match io::Error::last_os_error().raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => SendError::Permission { interface: interface.to_owned() },
                _ => kernel("opening a packet socket"),
            });
        }
        // SAFETY: `fd` is a descriptor that was just opened and that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an all-zero sockaddr_ll is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = index as i32;
        let bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `address` is valid for `bytes` for the duration of the call.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), bytes) } != 0 {
            return Err(kernel("binding a packet socket"));
        }
        let bypass = set(&fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1);
        // Both are wishes: without CAP_NET_ADMIN the second is bounded by net.core.wmem_max.
        if !set(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, BUFFER_BYTES) {
            set(&fd, libc::SOL_SOCKET, libc::SO_SNDBUF, BUFFER_BYTES);
        }
        Ok(PacketSender { fd, interface: interface.to_owned(), bypass, sent: 0 })
    }

    /// Whether frames pass the queueing discipline by.
    pub fn bypasses_queueing(&self) -> bool {
        self.bypass
    }

    /// Frames that the kernel took so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Hands the first [`BATCH_MAX`] of `frames` to the kernel; which of them it took.
    ///
    /// # Errors
    /// [`SendError::Down`], or the kernel's answer.
    pub fn send(&mut self, frames: &[IoSlice<'_>]) -> Result<Sent, SendError> {
        let count = frames.len().min(BATCH_MAX);
        assert!(count > 0, "a batch has a frame");
        // SAFETY: an all-zero mmsghdr is a valid value.
        let mut messages: [libc::mmsghdr; BATCH_MAX] = unsafe { std::mem::zeroed() };
        for (message, frame) in messages.iter_mut().zip(&frames[..count]) {
            // An IoSlice is an iovec by its documentation; the kernel only reads through it.
            message.msg_hdr.msg_iov = std::ptr::from_ref(frame).cast_mut().cast();
            message.msg_hdr.msg_iovlen = 1;
        }
        loop {
            // SAFETY: the first `count` headers are valid and point to frames that outlive the call.
            let taken = unsafe { libc::sendmmsg(self.fd.as_raw_fd(), messages.as_mut_ptr(), count as u32, 0) };
            if taken > 0 {
                self.sent += taken as u64;
                return Ok(Sent::Frames(taken as usize));
            }
            let source = io::Error::last_os_error();
            let interface = || self.interface.clone();
            match source.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::ENOBUFS | libc::EAGAIN) => return Ok(Sent::Full),
                Some(libc::EMSGSIZE) => return Ok(Sent::TooLong),
                Some(libc::ENETDOWN | libc::ENXIO) => {
                    return Err(SendError::Down { interface: interface(), sent: self.sent });
                }
                _ => return Err(SendError::Kernel { interface: interface(), what: "sending", source }),
            }
        }
    }
}

fn set(fd: &OwnedFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> bool {
    let bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` is valid for `bytes` for the duration of the call.
    unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), bytes) == 0 }
}

/// Frames to play, in memory: one block of bytes and an index.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    index: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    stamp_ns: i64,
    bytes: u32,
    lane: u16,
}

impl Frames {
    /// No frames.
    pub fn new() -> Frames {
        Frames::default()
    }

    /// Adds a frame for the lane (interface) of this number, captured at `stamp_ns`.
    pub fn push(&mut self, lane: u16, stamp_ns: i64, frame: &[u8]) {
        let (at, bytes) = (self.bytes.len() as u64, frame.len() as u32);
        self.bytes.extend_from_slice(frame);
        self.index.push(Entry { at, stamp_ns, bytes, lane });
    }

    /// Frames in all lanes.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Bytes of all frames.
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Puts the lanes' frames in one order, by stamp; ties go to the lower lane. A lane's own order stays, also where
    /// its stamps fall.
    pub fn merge_lanes(&mut self) {
        let mut latest = vec![i64::MIN; usize::from(u16::MAX) + 1];
        for entry in &mut self.index {
            let latest = &mut latest[usize::from(entry.lane)];
            entry.stamp_ns = entry.stamp_ns.max(*latest);
            *latest = entry.stamp_ns;
        }
        self.index.sort_by_key(|entry| (entry.stamp_ns, entry.lane));
    }

    /// Shortens every silence between two frames to at most `silence_ns_max`.
    pub fn shorten_silences(&mut self, silence_ns_max: i64) {
        let (mut last_ns, mut shift_ns) = (None, 0_i64);
        for entry in &mut self.index {
            let stamp_ns = entry.stamp_ns.saturating_sub(shift_ns);
            let silence_ns = stamp_ns.saturating_sub(last_ns.unwrap_or(stamp_ns));
            shift_ns = shift_ns.saturating_add(silence_ns.saturating_sub(silence_ns_max).max(0));
            entry.stamp_ns = entry.stamp_ns.saturating_sub(shift_ns);
            last_ns = Some(entry.stamp_ns);
        }
    }

    fn frame(&self, index: usize) -> &[u8] {
        let entry = &self.index[index];
        &self.bytes[entry.at as usize..][..entry.bytes as usize]
    }
}

/// When frames leave.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// As fast as the interface takes them.
    Flat,
    /// So many frames a second, all lanes together.
    Rate(f64),
    /// As they were captured, so many times as fast.
    Stamps {
        /// 1 is the capture's own speed.
        speed: f64,
    },
}

impl Pace {
    /// When frame `index` is due, ns after the first.
    fn due_ns(self, frames: &Frames, index: usize) -> i64 {
        match self {
            Pace::Flat => 0,
            Pace::Rate(rate) => (index as f64 * 1e9 / rate) as i64,
            Pace::Stamps { speed } => {
                let since = frames.index[index].stamp_ns.saturating_sub(frames.index[0].stamp_ns);
                (since as f64 / speed) as i64
            }
        }
    }
}

/// What was played.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Played {
    /// Frames that the kernel took, by lane.
    pub sent: Vec<u64>,
    /// Their bytes, by lane.
    pub bytes: Vec<u64>,
    /// Frames longer than their interface takes; not sent.
    pub too_long: u64,
    /// The longest of them, in bytes.
    pub longest: u32,
    /// Times that an interface's queue was full and the sender waited.
    pub full: u64,
    /// How far the schedule moved because the sender was late, ns.
    pub slipped_ns: i64,
    /// From the first frame to the last, ns.
    pub elapsed_ns: i64,
}

/// Sends all frames, each out of the lane that it was pushed for, in order. `each` is called with the number of frames
/// done at least every 50 ms; it returns `false` to stop.
///
/// # Errors
/// What [`PacketSender::send`] gives, and [`SendError::Stalled`].
pub fn play(
    frames: &Frames,
    lanes: &mut [PacketSender],
    pace: Pace,
    each: &mut dyn FnMut(u64) -> bool,
) -> Result<Played, SendError> {
    let mut played = Played { sent: vec![0; lanes.len()], bytes: vec![0; lanes.len()], ..Played::default() };
    let started_ns = clock::monotonic_ns();
    // The schedule's zero; moves when the sender is late beyond measure.
    let mut zero_ns = started_ns;
    let mut full_since_ns = None;
    let mut next = 0;
    while next < frames.len() && each(next as u64) {
        let now_ns = clock::monotonic_ns() - zero_ns;
        let wait_ns = pace.due_ns(frames, next) - now_ns;
        if wait_ns > 0 {
            wait(wait_ns);
            continue;
        }
        if pace != Pace::Flat && wait_ns < -LAG_NS_MAX {
            zero_ns -= wait_ns;
            played.slipped_ns -= wait_ns;
            continue;
        }
        let lane = usize::from(frames.index[next].lane);
        let mut batch = [IoSlice::new(&[]); BATCH_MAX];
        let count = fill(frames, next, pace, now_ns, &mut batch);
        match lanes[lane].send(&batch[..count])? {
            Sent::Frames(taken) => {
                played.sent[lane] += taken as u64;
                played.bytes[lane] += batch[..taken].iter().map(|frame| frame.len() as u64).sum::<u64>();
                next += taken;
                full_since_ns = None;
            }
            Sent::TooLong => {
                played.too_long += 1;
                played.longest = played.longest.max(frames.index[next].bytes);
                next += 1;
            }
            Sent::Full => {
                played.full += 1;
                let now_ns = clock::monotonic_ns();
                if now_ns - *full_since_ns.get_or_insert(now_ns) > FULL_NS_MAX {
                    let PacketSender { interface, sent, .. } = &lanes[lane];
                    return Err(SendError::Stalled { interface: interface.clone(), sent: *sent });
                }
                clock::sleep(FULL_PAUSE);
            }
        }
    }
    played.elapsed_ns = clock::monotonic_ns() - started_ns;
    Ok(played)
}

/// Fills `batch` with the frames from `next` on that are due at `now_ns` and leave by the same lane; how many.
fn fill<'a>(frames: &'a Frames, next: usize, pace: Pace, now_ns: i64, batch: &mut [IoSlice<'a>; BATCH_MAX]) -> usize {
    let lane = frames.index[next].lane;
    let mut count = 0;
    while count < BATCH_MAX && next + count < frames.len() {
        let index = next + count;
        if frames.index[index].lane != lane || pace.due_ns(frames, index) > now_ns {
            break;
        }
        batch[count] = IoSlice::new(frames.frame(index));
        count += 1;
    }
    count
}

fn wait(wait_ns: i64) {
    if wait_ns < SLEEP_NS_MIN {
        std::hint::spin_loop();
        return;
    }
    // Wakes a little early and spins the rest, so that the kernel's timer slack (50 µs) costs nothing.
    clock::sleep(Duration::from_nanos((wait_ns - SLEEP_NS_MIN / 2).min(SLEEP_NS_MAX) as u64));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(stamps: &[(u16, i64)]) -> Frames {
        let mut frames = Frames::new();
        stamps.iter().for_each(|(lane, stamp)| frames.push(*lane, *stamp, &[0; 60]));
        frames
    }

    fn due(frames: &Frames, next: usize, pace: Pace, now_ns: i64) -> usize {
        fill(frames, next, pace, now_ns, &mut [IoSlice::new(&[]); BATCH_MAX])
    }

    #[test]
    fn a_batch_holds_what_is_due_of_one_lane() {
        let hundred: Vec<(u16, i64)> = (0..100).map(|index| (0, index * 1_000)).collect();
        let hundred = frames(&hundred);
        assert_eq!(due(&hundred, 0, Pace::Flat, 0), BATCH_MAX);
        assert_eq!(due(&hundred, 90, Pace::Flat, 0), 10);
        assert_eq!(due(&hundred, 0, Pace::Rate(1e6), 4_000), 5);
        assert_eq!(due(&hundred, 10, Pace::Rate(1e6), 4_000), 0);
        assert_eq!(due(&hundred, 0, Pace::Stamps { speed: 2.0 }, 4_000), 9);
        let mixed = frames(&[(0, 0), (0, 0), (1, 0), (0, 0)]);
        assert_eq!(due(&mixed, 0, Pace::Flat, 0), 2);
        assert_eq!(due(&mixed, 2, Pace::Flat, 0), 1);
    }

    fn stamps(frames: &Frames) -> Vec<(u16, i64)> {
        frames.index.iter().map(|entry| (entry.lane, entry.stamp_ns)).collect()
    }

    #[test]
    fn lanes_merge_by_stamp_and_keep_their_own_order() {
        let mut merged = frames(&[(0, 10), (0, 30), (0, 20), (1, 5), (1, 30), (1, 31)]);
        merged.merge_lanes();
        assert_eq!(stamps(&merged), [(1, 5), (0, 10), (0, 30), (0, 30), (1, 30), (1, 31)]);
    }

    #[test]
    fn silences_are_shortened_and_the_rest_moves_up() {
        let mut quiet = frames(&[(0, 100), (0, 101), (0, 5_000), (0, 5_001), (0, 4_000), (0, 9_000)]);
        quiet.shorten_silences(50);
        // Where stamps fall nothing is shortened; the climb after it is.
        assert_eq!(stamps(&quiet), [(0, 100), (0, 101), (0, 151), (0, 152), (0, -849), (0, -799)]);
        let mut wild = frames(&[(0, i64::MIN), (0, i64::MAX), (0, i64::MIN)]);
        wild.shorten_silences(50);
    }

    #[test]
    fn stamps_that_fall_are_due_at_once() {
        let fallen = frames(&[(0, i64::MAX), (0, i64::MIN), (0, 5)]);
        assert_eq!(due(&fallen, 0, Pace::Stamps { speed: 1.0 }, 0), 3);
    }
}
