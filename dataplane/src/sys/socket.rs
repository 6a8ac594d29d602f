//! What the process holds besides its AF_XDP sockets so that the feed keeps coming: multicast memberships, receive
//! filters of the NIC, and an eye on the links.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::netlink::{self, Netlink};

/// Most sockets that hold memberships. The kernel's default of 20 a socket (`net.ipv4.igmp_max_memberships`) makes it
/// room for 5,120 groups, more than the XDP program takes.
const SOCKETS_MAX: usize = 256;
/// `MCAST_JOIN_SOURCE_GROUP`'s level for IPv4 (`SOL_IP`).
const SOL_IP: libc::c_int = libc::IPPROTO_IP;
/// `RTMGRP_LINK`, linux/rtnetlink.h.
const LINK_GROUP: u32 = 1;

/// Why a membership, filter or watch could not be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Only multicast groups can be joined.
    #[error("{group} is no multicast group: a unicast feed needs no membership")]
    NotMulticast {
        /// The address.
        group: Ipv4Addr,
    },
    /// The kernel refused the join.
    #[error("joining {group}{from} on interface {interface}: {source}", from = from_source(source_address))]
    Join {
        /// The group.
        group: Ipv4Addr,
        /// The one source, if the join names one.
        source_address: Option<Ipv4Addr>,
        /// Interface index.
        interface: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// More sockets than the bound would be needed.
    #[error(
        "joining {group}: {SOCKETS_MAX} sockets are full: raise net.ipv4.igmp_max_memberships (or igmp_max_msf) with sysctl"
    )]
    TooMany {
        /// The group.
        group: Ipv4Addr,
    },
    /// The kernel refused otherwise.
    #[error("{what}: {source}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

fn from_source(source: &Option<Ipv4Addr>) -> String {
    source.map_or_else(String::new, |source| format!(" from {source}"))
}

/// IGMP memberships, one per (group, interface, source), held until dropped.
///
/// AF_XDP cannot join; the kernel joins and answers the router's queries as long as some socket holds the membership
/// (and the XDP program passes IGMP). The sockets are never bound, so no datagram is ever queued on them.
#[derive(Debug, Default)]
pub struct Memberships {
    sockets: Vec<OwnedFd>,
    joined: Vec<(Ipv4Addr, u32, Option<Ipv4Addr>)>,
}

impl Memberships {
    /// Holds nothing yet.
    pub fn new() -> Memberships {
        Memberships::default()
    }

    /// Joins `group` on the interface with index `interface`, from one `source` or any. Joining again does nothing.
    /// The number of memberships is per socket in the kernel: when one is full (ENOBUFS), the next is opened.
    pub fn join(&mut self, group: Ipv4Addr, interface: u32, source: Option<Ipv4Addr>) -> Result<(), SocketError> {
        if !group.is_multicast() {
            return Err(SocketError::NotMulticast { group });
        }
        let key = (group, interface, source);
        if self.joined.contains(&key) {
            return Ok(());
        }
        if self.sockets.is_empty() {
            self.sockets.push(udp_socket()?);
        }
        loop {
            let last = self.sockets.last().expect("pushed above").as_raw_fd();
            match join(last, group, interface, source) {
                Ok(()) => break,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    if self.sockets.len() == SOCKETS_MAX {
                        return Err(SocketError::TooMany { group });
                    }
                    self.sockets.push(udp_socket()?);
                }
                Err(error) => {
                    return Err(SocketError::Join { group, source_address: source, interface, source: error });
                }
            }
        }
        self.joined.push(key);
        Ok(())
    }

    /// Memberships held.
    pub fn count(&self) -> usize {
        self.joined.len()
    }

    /// Sockets that hold them.
    pub fn socket_count(&self) -> usize {
        self.sockets.len()
    }
}

fn join(fd: RawFd, group: Ipv4Addr, interface: u32, source: Option<Ipv4Addr>) -> io::Result<()> {
    match source {
        None => {
            let request = libc::ip_mreqn {
                imr_multiaddr: in_addr(group),
                imr_address: in_addr(Ipv4Addr::UNSPECIFIED),
                imr_ifindex: interface as libc::c_int,
            };
            set_option(fd, SOL_IP, libc::IP_ADD_MEMBERSHIP, &request)
        }
        Some(source) => {
            // The older IP_ADD_SOURCE_MEMBERSHIP names the interface by address, which it need not have.
            // SAFETY: an all-zero group_source_req is valid.
            let mut request: libc::group_source_req = unsafe { std::mem::zeroed() };
            request.gsr_interface = interface;
            request.gsr_group = storage(group);
            request.gsr_source = storage(source);
            set_option(fd, SOL_IP, libc::MCAST_JOIN_SOURCE_GROUP, &request)
        }
    }
}

fn in_addr(address: Ipv4Addr) -> libc::in_addr {
    libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) }
}

fn storage(address: Ipv4Addr) -> libc::sockaddr_storage {
    // SAFETY: an all-zero sockaddr_storage is valid.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: in_addr(address),
        sin_zero: [0; 8],
    };
    // SAFETY: sockaddr_storage is larger than sockaddr_in and aligned for every socket address.
    unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(address) };
    storage
}

fn udp_socket() -> Result<OwnedFd, SocketError> {
    let what = "opening a UDP socket for memberships";
    // SAFETY: socket() takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    if fd < 0 {
        return Err(SocketError::Kernel { what, source: io::Error::last_os_error() });
    }
    // SAFETY: `fd` is a new descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(fd)
}

fn set_option<T>(fd: RawFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: `value` is readable for its size; T is a plain structure of libc.
    let result = unsafe {
        let bytes = size_of::<T>() as libc::socklen_t;
        libc::setsockopt(fd, level, option, std::ptr::from_ref(value).cast(), bytes)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What the NIC lets through besides its own address and the joined groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admit {
    /// Every frame.
    Promiscuous,
    /// Every multicast frame.
    AllMulticast,
}

/// Promiscuous or all-multicast mode of one interface, held until dropped (the kernel counts the holders).
#[derive(Debug)]
pub struct ReceiveFilter {
    _fd: OwnedFd,
    /// What it lets through.
    pub admit: Admit,
}

impl ReceiveFilter {
    /// Sets the mode on the interface with index `interface`. Needs CAP_NET_RAW.
    pub fn set(interface: u32, admit: Admit) -> Result<ReceiveFilter, SocketError> {
        let error = |source| SocketError::Kernel { what: "setting promiscuous mode (needs CAP_NET_RAW)", source };
        // Protocol 0: the socket receives nothing.
        // SAFETY: socket() takes no pointer.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(error(io::Error::last_os_error()));
        }
        // SAFETY: `fd` is a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mode = match admit {
            Admit::Promiscuous => libc::PACKET_MR_PROMISC,
            Admit::AllMulticast => libc::PACKET_MR_ALLMULTI,
        };
        let request = libc::packet_mreq {
            mr_ifindex: interface as libc::c_int,
            mr_type: mode as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set_option(fd.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request).map_err(error)?;
        Ok(ReceiveFilter { _fd: fd, admit })
    }
}

/// A change of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkEvent {
    /// The link is now in this state.
    State {
        /// Interface index.
        interface: u32,
        /// Set up by the administrator.
        up: bool,
        /// The link is there.
        carrier: bool,
    },
    /// The interface is gone.
    Removed {
        /// Interface index.
        interface: u32,
    },
    /// More changes than the socket holds: read every link of interest again.
    Overrun,
}

/// Changes of all links of the namespace it was opened in, without blocking.
#[derive(Debug)]
pub struct LinkWatcher {
    netlink: Netlink,
    messages: Vec<netlink::Message>,
}

impl LinkWatcher {
    /// Opens the watch. Changes before it are not told: read the links after it.
    pub fn open() -> Result<LinkWatcher, SocketError> {
        let netlink = Netlink::open(LINK_GROUP, true)
            .map_err(|source| SocketError::Kernel { what: "opening a netlink socket to watch links", source })?;
        Ok(LinkWatcher { netlink, messages: Vec::new() })
    }

    /// For polling: readable when there are changes.
    pub fn fd(&self) -> RawFd {
        self.netlink.fd()
    }

    /// The next change, if there is one.
    pub fn change(&mut self) -> Result<Option<LinkEvent>, SocketError> {
        loop {
            while !self.messages.is_empty() {
                if let Some(event) = decode(&self.messages.remove(0)) {
                    return Ok(Some(event));
                }
            }
            match self.netlink.receive(&mut self.messages) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(Some(LinkEvent::Overrun)),
                Err(source) => return Err(SocketError::Kernel { what: "watching links", source }),
            }
        }
    }
}

fn decode(message: &netlink::Message) -> Option<LinkEvent> {
    let interface = netlink::word(message.body.get(4..)?)?;
    let flags = netlink::word(message.body.get(8..)?)?;
    match message.kind {
        libc::RTM_DELLINK => Some(LinkEvent::Removed { interface }),
        libc::RTM_NEWLINK => Some(LinkEvent::State {
            interface,
            up: flags & libc::IFF_UP as u32 != 0,
            carrier: flags & libc::IFF_LOWER_UP as u32 != 0,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unicast_address_is_no_group() {
        let told = Memberships::new().join(Ipv4Addr::new(10, 0, 0, 1), 1, None).expect_err("unicast").to_string();
        assert!(told.contains("10.0.0.1 is no multicast group"), "{told}");
    }

    #[test]
    fn a_quiet_namespace_tells_no_change() {
        let mut watcher = LinkWatcher::open().expect("netlink needs no privilege");
        // Other programs of the host may change links meanwhile; what matters is that the call returns.
        let _ = watcher.change().expect("readable");
    }
}
