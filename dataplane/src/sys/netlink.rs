//! The few rtnetlink exchanges that interface look-up, link watching and XDP need; no more of the protocol.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Longest answer to a request for one link: about 2 KiB with statistics; SR-IOV functions are not asked for.
const ANSWER_BYTES_MAX: usize = 32 * 1024;
const HEADER_BYTES: usize = 16;
/// Bytes of `struct ifinfomsg`, which opens every link message.
pub(super) const IFINFO_BYTES: usize = 16;
/// Attribute type bits that are flags (nested, byte order).
const TYPE_MASK: u16 = 0x3fff;

/// An rtnetlink socket of the calling thread's network namespace.
#[derive(Debug)]
pub(super) struct Netlink {
    fd: OwnedFd,
    sequence: u32,
}

/// One message: its type and what follows the header.
#[derive(Debug)]
pub(super) struct Message {
    pub kind: u16,
    pub body: Vec<u8>,
}

impl Netlink {
    /// Opens the socket and joins the multicast `groups` (a bit mask; 0 for request and answer only).
    pub fn open(groups: u32, non_blocking: bool) -> io::Result<Netlink> {
        Netlink::open_family(libc::NETLINK_ROUTE, groups, non_blocking)
    }

    /// As [`Netlink::open`], for a family other than routing.
    pub fn open_family(family: libc::c_int, groups: u32, non_blocking: bool) -> io::Result<Netlink> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | if non_blocking { libc::SOCK_NONBLOCK } else { 0 };
        // SAFETY: socket() takes no pointer.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, family) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an all-zero sockaddr_nl is valid.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = groups;
        // SAFETY: `address` is a valid sockaddr_nl and its size is given.
        let result = unsafe {
            libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_nl>() as libc::socklen_t)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Netlink { fd, sequence: 0 })
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Sends one request and returns the first message of the answer (none for a bare acknowledgement).
    pub fn request(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Option<Message>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
        message.extend_from_slice(&((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&(flags | libc::NLM_F_REQUEST as u16).to_ne_bytes());
        message.extend_from_slice(&self.sequence.to_ne_bytes());
        message.extend_from_slice(&0_u32.to_ne_bytes());
        message.extend_from_slice(body);
        // SAFETY: `message` is readable for its length.
        let sent = unsafe { libc::send(self.fd(), message.as_ptr().cast(), message.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut messages = Vec::new();
        self.receive(&mut messages)?;
        let Some(message) = messages.into_iter().next() else {
            return Err(io::Error::other("netlink gave an empty answer"));
        };
        if message.kind != libc::NLMSG_ERROR as u16 {
            return Ok(Some(message));
        }
        match word(&message.body).map(u32::cast_signed) {
            Some(0) => Ok(None),
            Some(code) => Err(io::Error::from_raw_os_error(-code)),
            None => Err(io::Error::other("netlink error message without a code")),
        }
    }

    /// Reads one datagram and appends its messages. `WouldBlock` when there is none (non-blocking sockets).
    pub fn receive(&mut self, messages: &mut Vec<Message>) -> io::Result<()> {
        let mut buffer = vec![0_u8; ANSWER_BYTES_MAX];
        // SAFETY: `buffer` is writable for its length.
        let received = unsafe { libc::recv(self.fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_TRUNC) };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        if received as usize > buffer.len() {
            return Err(io::Error::other(format!("netlink message of {received} bytes, room for {}", buffer.len())));
        }
        let mut rest = &buffer[..received as usize];
        while let Some((header, _)) = rest.split_at_checked(HEADER_BYTES) {
            let bytes = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
            if bytes < HEADER_BYTES || bytes > rest.len() {
                break;
            }
            let kind = u16::from_ne_bytes([header[4], header[5]]);
            messages.push(Message { kind, body: rest[HEADER_BYTES..bytes].to_vec() });
            rest = &rest[bytes.next_multiple_of(4).min(rest.len())..];
        }
        Ok(())
    }
}

/// A `struct ifinfomsg` that names the interface by index (0: an attribute will name it).
pub(super) fn ifinfo(index: u32) -> Vec<u8> {
    let mut body = vec![0_u8; IFINFO_BYTES];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body
}

/// Appends an attribute, padded to 4 bytes.
pub(super) fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The attributes in `bytes`, as (type, value); ends at the first malformed one.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let header = rest.get(..4)?;
        let bytes = u16::from_ne_bytes([header[0], header[1]]) as usize;
        let kind = u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK;
        let value = rest.get(4..bytes)?;
        rest = &rest[bytes.next_multiple_of(4).min(rest.len())..];
        Some((kind, value))
    })
}

/// A native 32-bit attribute value.
pub(super) fn word(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(value.get(..4)?.try_into().ok()?))
}

/// A zero-terminated string attribute value.
pub(super) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_end_at_the_first_malformed_one() {
        let mut body = Vec::new();
        push_attribute(&mut body, 3, b"eth1\0");
        push_attribute(&mut body, 4 | 0x8000, &1500_u32.to_ne_bytes());
        assert_eq!(body.len() % 4, 0);
        let whole: Vec<(u16, Vec<u8>)> = attributes(&body).map(|(kind, value)| (kind, value.to_vec())).collect();
        assert_eq!(whole, [(3, b"eth1\0".to_vec()), (4, 1500_u32.to_ne_bytes().to_vec())]);
        for cut in 0..body.len() {
            assert!(attributes(&body[..cut]).count() <= 1 + usize::from(cut == body.len()), "cut at {cut}");
        }
        let zero_length = [0_u8; 8];
        assert_eq!(attributes(&zero_length).count(), 0);
    }
}
