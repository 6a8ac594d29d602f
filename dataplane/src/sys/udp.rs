//! UDP sockets: multicast and unicast, several datagrams in one system call each way.
//!
//! Sending takes a train of equal datagrams in one call where the kernel knows `UDP_SEGMENT` (4.18), receiving takes a
//! train that the kernel has put together again (`UDP_GRO`, 5.0) apart. Nothing here waits.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::tcp::{address_bytes, bind, get_option, local_address, read_address, set_option, socket};

/// Longest UDP payload over IPv4: 65,535 − 20 − 8.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Bytes of one receive buffer: the longest datagram, or the longest train put together.
const BUFFER_BYTES: usize = 65_536;
/// Datagrams or trains that one call takes: enough for a turn of 32 datagrams in few calls, and 512 KiB.
pub const CALL_MESSAGES: usize = 8;
/// Most datagrams of one train (`UDP_MAX_SEGMENTS`, 64 until kernel 6.9, then 128).
pub const TRAIN_DATAGRAMS_MAX: usize = 64;
/// Bytes for a message's control data: one `cmsghdr` with an int, and room to spare.
const CONTROL_BYTES: usize = 64;

/// What became of a datagram that was to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// The kernel has it.
    Done,
    /// The socket's queue is full: again later.
    WouldBlock,
    /// Longer than the path, the device or the protocol takes.
    TooLong,
    /// The kernel refused it otherwise (no route, no permission): it is lost, as on the wire.
    Failed,
}

/// A UDP socket that never blocks.
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
    segments: bool,
}

impl UdpSocket {
    /// A socket bound to `address`. With `share`, other sockets of this host may bind the same (several mirrors of one
    /// group on one host each get every datagram).
    ///
    /// # Errors
    /// As `socket` and `bind`.
    pub fn bind(address: &SocketAddr, share: bool) -> io::Result<UdpSocket> {
        let fd = socket(address, libc::SOCK_DGRAM)?;
        if share {
            set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, &1_i32)?;
        }
        bind(&fd, address)?;
        // A kernel without trains does not know the option.
        let segments = get_option(fd.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT).is_ok();
        Ok(UdpSocket { fd, segments })
    }

    /// The same socket for another thread (a second descriptor of it).
    ///
    /// # Errors
    /// As `fcntl(F_DUPFD)`: no descriptors left.
    pub fn shared(&self) -> io::Result<UdpSocket> {
        Ok(UdpSocket { fd: self.fd.try_clone()?, segments: self.segments })
    }

    /// Fixes the other end: datagrams go there without naming it, and the kernel drops what comes from elsewhere.
    ///
    /// # Errors
    /// As `connect(2)`: no route.
    pub fn connect(&self, to: &SocketAddr) -> io::Result<()> {
        let (storage, bytes) = address_bytes(to);
        // SAFETY: `storage` holds an address of `bytes` bytes.
        match unsafe { libc::connect(self.fd.as_raw_fd(), (&raw const storage).cast(), bytes) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Joins `group` on the interface that has the address `interface` (unspecified: where the route to the group leads).
    ///
    /// # Errors
    /// As `IP_ADD_MEMBERSHIP`: ENODEV when no interface has that address.
    pub fn join(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        let request = libc::ip_mreqn { imr_multiaddr: in_addr(group), imr_address: in_addr(interface), imr_ifindex: 0 };
        set_option(self.as_fd(), libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &request)
    }

    /// How multicast leaves: through the interface with the address `interface` (unspecified: by route), with `ttl`, and
    /// also to receivers on this host.
    ///
    /// # Errors
    /// As `setsockopt(2)`: EADDRNOTAVAIL when no interface has that address.
    pub fn send_multicast(&self, interface: Ipv4Addr, ttl: u8) -> io::Result<()> {
        set_option(self.as_fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, &i32::from(ttl))?;
        set_option(self.as_fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, &1_i32)?;
        if interface.is_unspecified() {
            return Ok(());
        }
        let request = libc::ip_mreqn {
            imr_multiaddr: in_addr(Ipv4Addr::UNSPECIFIED),
            imr_address: in_addr(interface),
            imr_ifindex: 0,
        };
        set_option(self.as_fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &request)
    }

    /// Asks for a receive buffer of `bytes`; what the kernel granted, which is twice that for its own overhead. Past
    /// `net.core.rmem_max` only with CAP_NET_ADMIN.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn receive_buffer(&self, bytes: usize) -> io::Result<usize> {
        self.buffer(bytes, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)
    }

    /// As [`UdpSocket::receive_buffer`], for sending (`net.core.wmem_max`).
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn send_buffer(&self, bytes: usize) -> io::Result<usize> {
        self.buffer(bytes, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)
    }

    fn buffer(&self, bytes: usize, force: libc::c_int, plain: libc::c_int) -> io::Result<usize> {
        let asked = i32::try_from(bytes).unwrap_or(i32::MAX);
        if set_option(self.as_fd(), libc::SOL_SOCKET, force, &asked).is_err() {
            set_option(self.as_fd(), libc::SOL_SOCKET, plain, &asked)?;
        }
        Ok(get_option(self.as_fd(), libc::SOL_SOCKET, plain)?.max(0) as usize)
    }

    /// Lets a read look into the device's queue for so long before it says that nothing is there (`SO_BUSY_POLL`).
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN when raised above the system's setting.
    pub fn busy_poll(&self, time: Duration) -> io::Result<()> {
        let microseconds = time.as_micros().min(1_000_000) as libc::c_int;
        set_option(self.as_fd(), libc::SOL_SOCKET, libc::SO_BUSY_POLL, &microseconds)
    }

    /// Takes trains whole, as the kernel puts them together; false where it does not know that.
    pub fn receive_trains(&self) -> bool {
        set_option(self.as_fd(), libc::SOL_UDP, libc::UDP_GRO, &1_i32).is_ok()
    }

    /// Whether trains can be sent.
    pub fn sends_trains(&self) -> bool {
        self.segments
    }

    /// The address that it is bound to.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        local_address(self.as_fd())
    }

    /// Sends `bytes` to `to`, or to the other end that [`UdpSocket::connect`] fixed. With `segment` they are a train:
    /// each datagram that long, the last one shorter if it does not come out even, at most [`TRAIN_DATAGRAMS_MAX`] and
    /// [`DATAGRAM_BYTES_MAX`] in all; only where [`UdpSocket::sends_trains`].
    pub fn send(&self, to: Option<&SocketAddr>, bytes: &[u8], segment: Option<u16>) -> Sent {
        let outcome = match segment {
            None => self.send_one(to, bytes),
            Some(segment) => self.send_train(to, bytes, segment),
        };
        match outcome {
            0.. => Sent::Done,
            _ => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Sent::WouldBlock,
                Some(libc::EMSGSIZE) => Sent::TooLong,
                // A train that the device or the path does not take (EINVAL: longer than its MTU; EIO: no checksums).
                Some(libc::EINVAL | libc::EIO) if segment.is_some() => Sent::TooLong,
                _ => Sent::Failed,
            },
        }
    }

    fn send_one(&self, to: Option<&SocketAddr>, bytes: &[u8]) -> isize {
        let fd = self.fd.as_raw_fd();
        let Some(to) = to else {
            // SAFETY: `bytes` is readable for its length.
            return unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        };
        let (storage, length) = address_bytes(to);
        let address = (&raw const storage).cast();
        // SAFETY: as above, and `storage` holds an address of `length` bytes.
        unsafe { libc::sendto(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL, address, length) }
    }

    fn send_train(&self, to: Option<&SocketAddr>, bytes: &[u8], segment: u16) -> isize {
        let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = Control([0; CONTROL_BYTES]);
        // SAFETY: an all-zero msghdr is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: these compute lengths only.
        let (space, length) = unsafe { (libc::CMSG_SPACE(2), libc::CMSG_LEN(2)) };
        message.msg_controllen = space as usize;
        // SAFETY: the control buffer is aligned for a cmsghdr and longer than `space`, so the first header and its two
        // bytes of data lie inside it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_UDP;
            (*header).cmsg_type = libc::UDP_SEGMENT;
            (*header).cmsg_len = length as usize;
            libc::CMSG_DATA(header).cast::<u16>().write_unaligned(segment);
        }
        let named = to.map(address_bytes);
        if let Some((storage, length)) = &named {
            message.msg_name = std::ptr::from_ref(storage).cast_mut().cast();
            message.msg_namelen = *length;
        }
        // SAFETY: every pointer in `message` is to a local or to `bytes`, each valid for its stated length; the kernel only
        // reads them.
        unsafe { libc::sendmsg(self.fd.as_raw_fd(), &message, libc::MSG_NOSIGNAL) }
    }

    /// Receives what is there into `batch`, at most `max` datagrams and trains (and its room) in one call; how many. One at
    /// a time is the fastest for a single one: the call does not look for a second.
    ///
    /// # Errors
    /// As `recvmmsg(2)`; that nothing is there, and what an earlier datagram met on its way (ECONNREFUSED), are no
    /// errors.
    pub fn receive(&self, batch: &mut ReceiveBatch, max: usize) -> io::Result<usize> {
        batch.reset();
        let max = max.clamp(1, CALL_MESSAGES);
        let flags = libc::MSG_DONTWAIT;
        let fd = self.fd.as_raw_fd();
        // SAFETY: every pointer in the headers is to memory that `batch` owns, valid for its stated length.
        let got = unsafe { libc::recvmmsg(fd, batch.headers.as_mut_ptr(), max as _, flags as _, std::ptr::null_mut()) };
        if got < 0 {
            return match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                error if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ECONNREFUSED)) => Ok(0),
                error => Err(error),
            };
        }
        batch.filled = got as usize;
        Ok(batch.filled)
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn in_addr(address: Ipv4Addr) -> libc::in_addr {
    libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) }
}

/// The addresses of this host's interfaces, without doubles; empty where the kernel does not tell them.
pub fn own_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let mut addresses: Vec<IpAddr> = interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        })
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Control data, aligned as the kernel's header wants it.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

/// Received datagrams, handed out one by one.
pub struct ReceiveBatch {
    bytes: Vec<u8>,
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<Control>,
    vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    filled: usize,
    at: usize,
    within: usize,
}

// SAFETY: the pointers in `vectors` and `headers` are to the heap memory of the other fields, which moves with the struct's
// ownership and is reached through `&mut self` only.
unsafe impl Send for ReceiveBatch {}

impl Default for ReceiveBatch {
    fn default() -> ReceiveBatch {
        // SAFETY: all-zero values of these C structures are valid.
        let (name, header): (libc::sockaddr_storage, libc::mmsghdr) = unsafe { std::mem::zeroed() };
        let mut batch = ReceiveBatch {
            bytes: vec![0; CALL_MESSAGES * BUFFER_BYTES],
            names: vec![name; CALL_MESSAGES],
            controls: vec![Control([0; CONTROL_BYTES]); CALL_MESSAGES],
            vectors: Vec::with_capacity(CALL_MESSAGES),
            headers: vec![header; CALL_MESSAGES],
            filled: CALL_MESSAGES,
            at: 0,
            within: 0,
        };
        for buffer in batch.bytes.chunks_mut(BUFFER_BYTES) {
            batch.vectors.push(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: BUFFER_BYTES });
        }
        batch.reset();
        batch
    }
}

impl ReceiveBatch {
    /// Whether every datagram has been handed out.
    pub fn is_empty(&self) -> bool {
        self.at == self.filled
    }

    /// Forgets what has not been handed out.
    pub fn clear(&mut self) {
        self.reset();
    }

    /// Readies the headers that the last call used.
    fn reset(&mut self) {
        for at in 0..self.filled {
            let header = &mut self.headers[at].msg_hdr;
            header.msg_name = (&raw mut self.names[at]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_iov = &raw mut self.vectors[at];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut self.controls[at]).cast();
            header.msg_controllen = CONTROL_BYTES;
            header.msg_flags = 0;
        }
        (self.filled, self.at, self.within) = (0, 0, 0);
    }

    /// What has not been handed out of the first message that is left: where it came from, its bytes, and how long each
    /// datagram in them is (the last may be shorter). Follow with [`ReceiveBatch::consume`].
    #[inline]
    pub fn front(&mut self) -> Option<(SocketAddr, &[u8], u16)> {
        while self.at < self.filled {
            let header = &self.headers[self.at];
            let length = (header.msg_len as usize).min(BUFFER_BYTES);
            let cut = header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
            let source = if cut { None } else { read_address(&self.names[self.at]) };
            let Some(source) = source else {
                (self.at, self.within) = (self.at + 1, 0);
                continue;
            };
            let whole = length.clamp(1, usize::from(u16::MAX));
            let segment = segment_bytes(&header.msg_hdr).map_or(whole, |bytes| bytes.min(whole)) as u16;
            let start = self.at * BUFFER_BYTES;
            return Some((source, &self.bytes[start + self.within..start + length], segment));
        }
        None
    }

    /// So many bytes of [`ReceiveBatch::front`] are done with.
    #[inline]
    pub fn consume(&mut self, bytes: usize) {
        if self.at < self.filled {
            self.within += bytes;
            if self.within >= self.headers[self.at].msg_len as usize {
                (self.at, self.within) = (self.at + 1, 0);
            }
        }
    }

    /// The next datagram: where it came from, and its bytes.
    #[inline]
    pub fn next_datagram(&mut self) -> Option<(SocketAddr, &[u8])> {
        let (source, bytes, segment) = self.front()?;
        let length = bytes.len().min(usize::from(segment));
        let start = self.at * BUFFER_BYTES + self.within;
        self.consume(length);
        Some((source, &self.bytes[start..start + length]))
    }
}

/// The length of each datagram of a train, if the message is one.
fn segment_bytes(message: &libc::msghdr) -> Option<usize> {
    if message.msg_controllen < size_of::<libc::cmsghdr>() {
        return None;
    }
    // SAFETY: the kernel has written `msg_controllen` bytes of whole control messages into an aligned buffer that long; the
    // macros walk inside it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_UDP && (*header).cmsg_type == libc::UDP_GRO {
                let bytes = libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned();
                return usize::try_from(bytes).ok().filter(|&bytes| bytes > 0);
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    /// Receives until `count` datagrams are there, within a bound.
    fn take(socket: &UdpSocket, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut batch = ReceiveBatch::default();
        let mut taken = Vec::new();
        for _ in 0..2_000 {
            socket.receive(&mut batch, CALL_MESSAGES).expect("receives");
            while let Some((from, bytes)) = batch.next_datagram() {
                taken.push((from, bytes.to_vec()));
            }
            if taken.len() >= count {
                break;
            }
            crate::sys::clock::sleep(Duration::from_millis(1));
        }
        taken
    }

    #[test]
    fn datagrams_come_with_their_source_in_order() {
        let receiver = UdpSocket::bind(&local(), false).expect("binds");
        let sender = UdpSocket::bind(&local(), false).expect("binds");
        let to = receiver.local_address().expect("bound");
        for number in 0..20_u8 {
            assert_eq!(sender.send(Some(&to), &vec![number; 1 + usize::from(number)], None), Sent::Done);
        }
        let taken = take(&receiver, 20);
        assert_eq!(taken.len(), 20);
        for (number, (from, bytes)) in taken.iter().enumerate() {
            assert_eq!(*from, sender.local_address().expect("bound"));
            assert_eq!(*bytes, vec![number as u8; 1 + number]);
        }
        assert_eq!(sender.send(Some(&to), &vec![0; DATAGRAM_BYTES_MAX + 1], None), Sent::TooLong);
    }

    #[test]
    fn a_train_arrives_as_its_datagrams() {
        for whole in [false, true] {
            let receiver = UdpSocket::bind(&local(), false).expect("binds");
            receiver.receive_buffer(4 << 20).expect("takes a size");
            let sender = UdpSocket::bind(&local(), false).expect("binds");
            sender.connect(&receiver.local_address().expect("bound")).expect("connects");
            if !sender.sends_trains() || (whole && !receiver.receive_trains()) {
                eprintln!("SKIPPED trains: this kernel does not know them");
                return;
            }
            let train: Vec<u8> = (0..10 * 300 + 17).map(|at| (at / 300) as u8).collect();
            assert_eq!(sender.send(None, &train, Some(300)), Sent::Done);
            let taken = take(&receiver, 11);
            assert_eq!(taken.len(), 11);
            for (number, (_, bytes)) in taken.iter().enumerate() {
                assert_eq!(*bytes, vec![number as u8; if number < 10 { 300 } else { 17 }]);
            }
        }
    }

    #[test]
    fn a_group_on_the_loopback_reaches_every_member() {
        let group = Ipv4Addr::new(239, 255, 77, 1);
        let first = UdpSocket::bind(&SocketAddr::from((group, 0)), true).expect("binds");
        let to = first.local_address().expect("bound");
        let second = UdpSocket::bind(&to, true).expect("shares");
        for member in [&first, &second] {
            member.join(group, Ipv4Addr::LOCALHOST).expect("joins");
        }
        let sender = UdpSocket::bind(&SocketAddr::from(([0, 0, 0, 0], 0)), false).expect("binds");
        sender.send_multicast(Ipv4Addr::LOCALHOST, 1).expect("sets");
        sender.connect(&to).expect("connects");
        assert_eq!(sender.send(None, b"both", None), Sent::Done);
        for member in [&first, &second] {
            assert_eq!(take(member, 1).first().map(|(_, bytes)| bytes.clone()), Some(b"both".to_vec()));
        }
    }
}
