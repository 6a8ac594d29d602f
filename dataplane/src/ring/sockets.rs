//! What the workers share of the kernel: the datagram sockets as the machines see them.

use std::net::SocketAddr;

use super::mirror::{Datagrams, Destination, SendOutcome};
use crate::sys::udp::{Sent, UdpSocket};

/// The sending ends of one served ring, or of one mirror.
#[derive(Default)]
pub(super) struct Outlets {
    /// Connected to the group.
    pub(super) multicast: Option<UdpSocket>,
    /// Bound to the unicast port (a source), or connected to the source's (a mirror).
    pub(super) unicast: Option<UdpSocket>,
    /// The other end of `unicast` is fixed.
    pub(super) connected: bool,
    /// Where device or path has refused a train whose datagrams it took one by one: none is tried any more.
    pub(super) single: Vec<Destination>,
}

/// Most destinations that are remembered as such; one more costs the refusal of a train at each burst.
const SINGLE_MAX: usize = 256;

impl Outlets {
    /// The same sockets for another thread.
    pub(super) fn shared(&self) -> std::io::Result<Outlets> {
        let multicast = self.multicast.as_ref().map(UdpSocket::shared).transpose()?;
        let unicast = self.unicast.as_ref().map(UdpSocket::shared).transpose()?;
        Ok(Outlets { multicast, unicast, connected: self.connected, single: self.single.clone() })
    }

    fn socket(&self, to: &Destination) -> Option<(&UdpSocket, Option<SocketAddr>)> {
        match to {
            Destination::Multicast => Some((self.multicast.as_ref()?, None)),
            Destination::Unicast(to) => {
                let named = (!self.connected).then_some(*to);
                Some((self.unicast.as_ref()?, named))
            }
        }
    }
}

impl Datagrams for Outlets {
    fn send(&mut self, to: Destination, bytes: &[u8], segment_bytes: Option<u16>) -> SendOutcome {
        let Some((socket, named)) = self.socket(&to) else { return SendOutcome::Failed };
        let named = named.as_ref();
        let Some(segment) = segment_bytes.filter(|&segment| segment > 0) else {
            return outcome(socket.send(named, bytes, None));
        };
        if socket.sends_trains() && !self.single.contains(&to) {
            match socket.send(named, bytes, Some(segment)) {
                Sent::TooLong => {}
                other => return outcome(other),
            }
        }
        // One by one, as far as the socket's queue has room.
        let mut sent = 0;
        let mut end = SendOutcome::Sent;
        for datagram in bytes.chunks(usize::from(segment)) {
            match socket.send(named, datagram, None) {
                Sent::Done => sent += 1,
                _ if sent > 0 => {
                    end = SendOutcome::SentPart(sent);
                    break;
                }
                other => return outcome(other),
            }
        }
        if self.single.len() < SINGLE_MAX && !self.single.contains(&to) {
            self.single.push(to);
        }
        end
    }
}

fn outcome(sent: Sent) -> SendOutcome {
    match sent {
        Sent::Done => SendOutcome::Sent,
        Sent::WouldBlock => SendOutcome::WouldBlock,
        Sent::TooLong => SendOutcome::TooLong,
        Sent::Failed => SendOutcome::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::udp::ReceiveBatch;
    use std::time::Duration;

    #[test]
    fn a_train_goes_out_whole_or_one_by_one() {
        for single in [false, true] {
            let receiver = UdpSocket::bind(&SocketAddr::from(([127, 0, 0, 1], 0)), false).expect("binds");
            let to = receiver.local_address().expect("bound");
            let sender = UdpSocket::bind(&SocketAddr::from(([127, 0, 0, 1], 0)), false).expect("binds");
            let single = if single { vec![Destination::Unicast(to)] } else { Vec::new() };
            let mut outlets = Outlets { unicast: Some(sender), single, ..Outlets::default() };
            assert_eq!(outlets.send(Destination::Unicast(to), &[1; 250], Some(100)), SendOutcome::Sent);
            assert_eq!(outlets.send(Destination::Multicast, &[1; 250], None), SendOutcome::Failed, "no such socket");
            let (mut batch, mut sizes) = (ReceiveBatch::default(), Vec::new());
            for _ in 0..1_000 {
                receiver.receive(&mut batch, 8).expect("receives");
                while let Some((_, bytes)) = batch.next_datagram() {
                    sizes.push(bytes.len());
                }
                if sizes.len() >= 3 {
                    break;
                }
                crate::sys::clock::sleep(Duration::from_millis(1));
            }
            assert_eq!(sizes, [100, 100, 50]);
        }
    }
}
