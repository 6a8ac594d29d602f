//! Network namespaces and veth pairs for the tests that need root.
//!
//! A namespace belongs to a thread, so the test's body runs on a thread of its own that enters a namespace made for
//! it. It is anonymous: when its last thread and descriptor are gone, the kernel removes it with every link, program
//! and socket in it, also after a panic or a kill. Nothing outside is touched.

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType};

/// Whether this process may make namespaces; says the skip otherwise (a failure under `CI=true`).
pub fn can() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        super::skip("needs root (network namespaces, XDP)", true);
    }
    root
}

/// Runs `body` on a new thread inside a new network namespace with `lo` up; a panic in it fails the calling test.
/// Returns `None`, having said so, without the privilege.
pub fn run<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if !can() {
        return None;
    }
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network namespace for this thread");
        ip("link set lo up");
        body()
    });
    match thread.expect("a thread").join() {
        Ok(value) => Some(value),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Runs `ip` with the words of `arguments` in the calling thread's namespace; panics with its message when it fails.
pub fn ip(arguments: &str) {
    command("ip", arguments);
}

/// Runs `program` with the words of `arguments` in the calling thread's namespace; its standard output.
pub fn command(program: &str, arguments: &str) -> String {
    let done = Command::new(program).args(arguments.split_whitespace()).output();
    let done = done.unwrap_or_else(|error| panic!("{program} {arguments}: {error}"));
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {arguments}: {}: {told}", done.status);
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// A veth pair inside the calling thread's namespace. `outside` sends, `inside` is captured on.
///
/// Both ends in one namespace: frames are sent raw, so no address or route decides where they go.
pub struct Veth {
    pub outside: String,
    pub inside: String,
}

impl Veth {
    /// Makes the pair with `queues` queues a side and the MTU, both ends up, IPv6 noise off.
    pub fn new(name: &str, queues: u32, mtu: u32) -> Veth {
        let veth = Veth { outside: format!("{name}o"), inside: format!("{name}i") };
        let Veth { outside, inside } = &veth;
        let each = format!("numrxqueues {queues} numtxqueues {queues} mtu {mtu}");
        ip(&format!("link add {outside} {each} type veth peer name {inside} {each}"));
        for link in [outside, inside] {
            // Neighbour discovery would add frames to what the tests count.
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{link}/disable_ipv6"), "1");
            ip(&format!("link set {link} addrgenmode none up"));
        }
        veth
    }

    /// Gives the captured end an address, so that the kernel answers for it.
    pub fn address(&self, cidr: &str) {
        ip(&format!("address add {cidr} dev {}", self.inside));
    }
}

/// A raw socket that sends whole frames out of one interface, and (with [`Raw::listening`]) hears what comes in on it.
pub struct Raw {
    fd: OwnedFd,
    address: LinkAddr,
}

impl Raw {
    /// Sends only: nothing is queued on the socket.
    pub fn sender(interface: &str) -> Raw {
        Raw::open(interface, None)
    }

    /// Sends, and hears every frame of every interface of the namespace; see [`Raw::heard`].
    pub fn listening(interface: &str) -> Raw {
        Raw::open(interface, Some(SockProtocol::EthAll))
    }

    fn open(interface: &str, protocol: Option<SockProtocol>) -> Raw {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = nix::sys::socket::socket(AddressFamily::Packet, SockType::Raw, flags, protocol).expect("as root");
        let addresses = nix::ifaddrs::getifaddrs().expect("interfaces");
        let link = addresses.filter(|entry| entry.interface_name == interface);
        let address = link.filter_map(|entry| entry.address?.as_link_addr().copied()).next();
        Raw { fd, address: address.unwrap_or_else(|| panic!("{interface} has no link address")) }
    }

    /// Sends one frame; waits while the interface has no room.
    pub fn send(&self, frame: &[u8]) {
        loop {
            match nix::sys::socket::sendto(self.fd.as_raw_fd(), frame, &self.address, MsgFlags::empty()) {
                Ok(bytes) => return assert_eq!(bytes, frame.len()),
                Err(nix::Error::ENOBUFS | nix::Error::EAGAIN) => std::thread::yield_now(),
                Err(error) => panic!("sending {} bytes: {error}", frame.len()),
            }
        }
    }

    /// Sends one frame; whether the interface took it (a link that is down does not).
    pub fn try_send(&self, frame: &[u8]) -> bool {
        nix::sys::socket::sendto(self.fd.as_raw_fd(), frame, &self.address, MsgFlags::empty()).is_ok()
    }

    /// The next frame that came in on the interface, if one waits.
    pub fn heard(&self) -> Option<Vec<u8>> {
        let mut buffer = vec![0_u8; 65_536];
        loop {
            let (bytes, from) = nix::sys::socket::recvfrom::<LinkAddr>(self.fd.as_raw_fd(), &mut buffer).ok()?;
            if from.is_some_and(|from| from.ifindex() == self.address.ifindex()) {
                buffer.truncate(bytes);
                return Some(buffer);
            }
        }
    }
}
