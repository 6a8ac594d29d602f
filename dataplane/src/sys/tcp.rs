//! Stream sockets: made, bound and tuned here; accepted, connected, read and written by the core's io_uring.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::clock;

/// Connections that wait to be accepted; one turn of a core takes them all, so this is for bursts only.
const BACKLOG: libc::c_int = 128;
/// Unanswered keepalive probes after which the connection is dead.
const KEEPALIVE_PROBES: libc::c_int = 3;

/// How long an address that is in use is asked for again. A killed process's io_uring gives its sockets back some time
/// after the process is gone (10 to 100 ms seen on 6.18), and whoever restarts it is faster.
const BIND_PATIENCE_NS: i64 = 2_000_000_000;
/// Pause between two attempts.
const BIND_PAUSE: Duration = Duration::from_millis(20);

/// What to do about an address that cannot be listened on.
pub fn unbound(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrNotAvailable => {
            "take an address of this host (\"ip address\" lists them), or 0.0.0.0 for all"
        }
        io::ErrorKind::PermissionDenied => "take a port from 1024 on, or allow CAP_NET_BIND_SERVICE",
        _ => "take another port, or stop what listens there",
    }
}

/// Binds, patiently as long as the address is in use: 2 s.
///
/// # Errors
/// The last attempt's.
pub fn patiently<T>(mut bind: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let end = clock::monotonic_ns() + BIND_PATIENCE_NS;
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && clock::monotonic_ns() < end => {
                clock::sleep(BIND_PAUSE);
            }
            other => return other,
        }
    }
}

/// An open socket's descriptor.
pub(super) fn socket(address: &SocketAddr, kind: libc::c_int) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: socket() takes no pointer.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` is a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `address` as the kernel reads it, and its length.
pub(super) fn address_bytes(address: &SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: an all-zero sockaddr_storage is valid.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let bytes = match address {
        SocketAddr::V4(v4) => {
            let address = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage is larger than sockaddr_in and aligned for every socket address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(address) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let address = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above for sockaddr_in6.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(address) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, bytes as libc::socklen_t)
}

/// The address in what the kernel wrote; `None` for another family.
pub(super) fn read_address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that a sockaddr_in is in it; every bit pattern is valid.
            let v4 = unsafe { std::ptr::from_ref(storage).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above for sockaddr_in6.
            let v6 = unsafe { std::ptr::from_ref(storage).cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let (flow, scope) = (v6.sin6_flowinfo, v6.sin6_scope_id);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), flow, scope)))
        }
        _ => None,
    }
}

pub(super) fn bind(fd: &OwnedFd, address: &SocketAddr) -> io::Result<()> {
    let (storage, bytes) = address_bytes(address);
    // SAFETY: `storage` holds an address of `bytes` bytes.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const storage).cast(), bytes) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The address that a socket is bound to.
///
/// # Errors
/// As `getsockname(2)`.
pub fn local_address(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    // SAFETY: the pointers given are valid for the call's length.
    name(|address, bytes| unsafe { libc::getsockname(fd.as_raw_fd(), address, bytes) })
}

/// The address of the other end.
///
/// # Errors
/// As `getpeername(2)`: a connection that is gone has none.
pub fn peer_address(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    // SAFETY: as above.
    name(|address, bytes| unsafe { libc::getpeername(fd.as_raw_fd(), address, bytes) })
}

fn name(call: impl FnOnce(*mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int) -> io::Result<SocketAddr> {
    // SAFETY: an all-zero sockaddr_storage is valid.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut bytes = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    if call((&raw mut storage).cast(), &mut bytes) != 0 {
        return Err(io::Error::last_os_error());
    }
    let address = read_address(&storage).ok_or(io::ErrorKind::InvalidData)?;
    // A connection over IPv4 to a socket that takes both: its address is the IPv4 one.
    Ok(match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::V4(SocketAddrV4::new(v4, v6.port())),
            None => address,
        },
        v4 => v4,
    })
}

pub(super) fn set_option<T>(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: `value` is readable for its size; T is a plain structure of libc or an integer.
    let result = unsafe {
        let bytes = size_of::<T>() as libc::socklen_t;
        libc::setsockopt(fd.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), bytes)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(any(test, feature = "mirror"))]
pub(super) fn get_option(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` is writable for `bytes` bytes.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, (&raw mut value).cast(), &mut bytes) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// A listening socket on `address`; a port that is still in TIME_WAIT is taken.
///
/// # Errors
/// As `socket`, `bind` and `listen`.
pub fn listen(address: &SocketAddr) -> io::Result<OwnedFd> {
    use std::os::fd::AsFd;
    let fd = socket(address, libc::SOCK_STREAM)?;
    set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, &1_i32)?;
    bind(&fd, address)?;
    // SAFETY: listen() takes no pointer.
    match unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) } {
        0 => Ok(fd),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A socket to connect to `address` with.
///
/// # Errors
/// As `socket(2)`.
pub fn stream(address: &SocketAddr) -> io::Result<OwnedFd> {
    socket(address, libc::SOCK_STREAM)
}

/// How a connection behaves: no Nagle delay, and dead after `dead_after` without an answer, whether something was sent
/// (`TCP_USER_TIMEOUT`) or not (keepalive).
///
/// # Errors
/// As `setsockopt(2)`.
pub fn tune(fd: BorrowedFd<'_>, dead_after: Duration) -> io::Result<()> {
    let milliseconds = dead_after.as_millis().clamp(1_000, i32::MAX as u128) as libc::c_uint;
    let idle = (dead_after.as_secs() / 2).clamp(1, 32_767) as libc::c_int;
    let interval = (idle / KEEPALIVE_PROBES).max(1);
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1_i32)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &milliseconds)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1_i32)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &idle)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, &interval)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, &KEEPALIVE_PROBES)
}

/// As [`tune`], for a connection whose other side may be slow for as long as it likes: only an idle one dies by `dead_after`. With
/// `TCP_USER_TIMEOUT` the kernel would also end one whose window stays closed, although the other side answers each probe.
///
/// # Errors
/// As `setsockopt(2)`.
pub fn tune_patiently(fd: BorrowedFd<'_>, dead_after: Duration) -> io::Result<()> {
    let idle = (dead_after.as_secs() / 2).clamp(1, 32_767) as libc::c_int;
    let interval = (idle / KEEPALIVE_PROBES).max(1);
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1_i32)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1_i32)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &idle)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, &interval)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, &KEEPALIVE_PROBES)
}

/// What the kernel has measured of a connection's sending side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Delivery {
    /// Bytes that the other side's kernel has acknowledged, in all.
    pub acked_bytes: u64,
    /// How fast it took them, if it was given enough to tell, bytes/s. What was sent in small bursts says nothing: a link's buffer takes
    /// those at any speed.
    pub bytes_per_second: Option<u64>,
}

/// Bytes of `struct tcp_info` (linux/tcp.h) up to and with `tcpi_delivery_rate`, which is there since 4.9.
const TCP_INFO_BYTES: usize = 168;
/// The byte whose lowest bit is `tcpi_delivery_rate_app_limited`: the rate was measured while too little was sent.
const APP_LIMITED_AT: usize = 7;
/// Where `tcpi_bytes_acked` stands in it.
const BYTES_ACKED_AT: usize = 120;
/// Where `tcpi_delivery_rate` stands in it.
const DELIVERY_RATE_AT: usize = 160;

/// What the kernel has measured.
///
/// # Errors
/// As `getsockopt(2)`; a kernel that tells less.
pub fn delivery(fd: BorrowedFd<'_>) -> io::Result<Delivery> {
    let mut info = [0_u8; TCP_INFO_BYTES];
    let mut bytes = TCP_INFO_BYTES as libc::socklen_t;
    // SAFETY: `info` is writable for `bytes` bytes, and every bit pattern is valid.
    let result = unsafe {
        let out = info.as_mut_ptr().cast();
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, out, &mut bytes)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if (bytes as usize) < TCP_INFO_BYTES {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| info[at + index]));
    let (rate, app_limited) = (word(DELIVERY_RATE_AT), info[APP_LIMITED_AT] & 1 != 0);
    let bytes_per_second = Some(rate).filter(|&rate| rate > 0 && !app_limited);
    Ok(Delivery { acked_bytes: word(BYTES_ACKED_AT), bytes_per_second })
}

/// Lets the connection's end forget what was not sent: its descriptor's close then resets it.
pub fn forget_unsent(fd: BorrowedFd<'_>) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // A connection that is gone already forgets as well.
    let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
}

/// Ends a connection: what is in flight on it completes.
pub fn shutdown(fd: BorrowedFd<'_>, how: Shutdown) {
    let how = match how {
        Shutdown::Read => libc::SHUT_RD,
        Shutdown::Write => libc::SHUT_WR,
        Shutdown::Both => libc::SHUT_RDWR,
    };
    // SAFETY: shutdown() takes no pointer. A connection that is gone already cannot be ended, which is as well.
    unsafe { libc::shutdown(fd.as_raw_fd(), how) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_cannot_be_listened_on_is_told_what_to_do() {
        let taken = listen(&"127.0.0.1:0".parse().expect("an address")).expect("any port");
        let taken = local_address(taken.as_fd()).map(|address| (taken, address)).expect("bound");
        let error = |address: &SocketAddr| listen(address).map(drop).expect_err("it cannot");
        assert!(unbound(&error(&taken.1)).starts_with("take another port"));
        // TEST-NET-1 is no host's (RFC 5737).
        let foreign = error(&"192.0.2.1:7400".parse().expect("an address"));
        assert!(unbound(&foreign).starts_with("take an address of this host"), "{foreign}");
    }

    #[test]
    fn addresses_go_there_and_back() {
        for text in ["127.0.0.1:7400", "[::1]:7400", "239.255.0.1:1", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().expect("an address");
            let (storage, bytes) = address_bytes(&address);
            assert!(bytes as usize <= size_of_val(&storage));
            assert_eq!(read_address(&storage), Some(address));
        }
    }

    #[test]
    fn a_listener_has_its_port_and_takes_its_tuning() {
        let listener = listen(&"127.0.0.1:0".parse().expect("an address")).expect("listens");
        let address = local_address(listener.as_fd()).expect("bound");
        assert_ne!(address.port(), 0);
        let connection = std::net::TcpStream::connect(address).expect("connects");
        tune(connection.as_fd(), Duration::from_secs(10)).expect("tunes");
        assert_eq!(peer_address(connection.as_fd()).expect("connected"), address);
        let user_timeout = get_option(connection.as_fd(), libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT);
        assert_eq!(user_timeout.expect("reads"), 10_000);
    }

    #[test]
    fn what_was_acknowledged_is_counted() {
        use std::io::{Read, Write};
        let listener = listen(&"127.0.0.1:0".parse().expect("an address")).expect("listens");
        let address = local_address(listener.as_fd()).expect("bound");
        let mut client = std::net::TcpStream::connect(address).expect("connects");
        tune_patiently(client.as_fd(), Duration::from_secs(10)).expect("tunes");
        let listener = std::net::TcpListener::from(listener);
        listener.set_nonblocking(false).expect("blocks");
        let (mut server, _) = listener.accept().expect("accepts");
        client.write_all(&[7; 10_000]).expect("writes");
        let mut bytes = [0; 10_000];
        server.read_exact(&mut bytes).expect("reads");
        // The acknowledgement may come a moment after the bytes.
        for _ in 0..1_000 {
            let delivery = delivery(client.as_fd()).expect("TCP_INFO");
            if delivery.acked_bytes >= 10_000 {
                return;
            }
            crate::sys::clock::sleep(Duration::from_millis(1));
        }
        panic!("10,000 bytes are never acknowledged");
    }
}
