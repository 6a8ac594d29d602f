//! What the workers share of the kernel: the datagram sockets as the machines see them, and the source's name.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

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
    /// The device or the path has refused a train whose datagrams it took one by one: none is tried any more.
    pub(super) single: bool,
}

impl Outlets {
    /// The same sockets for another thread.
    pub(super) fn shared(&self) -> std::io::Result<Outlets> {
        let multicast = self.multicast.as_ref().map(UdpSocket::shared).transpose()?;
        let unicast = self.unicast.as_ref().map(UdpSocket::shared).transpose()?;
        Ok(Outlets { multicast, unicast, connected: self.connected, single: self.single })
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
        if !self.single && socket.sends_trains() {
            match socket.send(named, bytes, Some(segment)) {
                Sent::TooLong => {}
                other => return outcome(other),
            }
        }
        // One by one. What the socket's queue has no room for half way is lost, as on the wire, and asked for again.
        let mut sent = 0;
        for datagram in bytes.chunks(usize::from(segment)) {
            match socket.send(named, datagram, None) {
                Sent::Done => sent += 1,
                Sent::WouldBlock if sent > 0 => continue,
                other => return outcome(other),
            }
        }
        self.single = true;
        SendOutcome::Sent
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

/// Turns the source's name into an address on a thread of its own: the resolver may take seconds, and a core never waits.
pub(super) struct Resolver {
    fixed: Option<SocketAddr>,
    ask: Sender<()>,
    answers: Receiver<Result<SocketAddr, String>>,
}

impl Resolver {
    /// A resolver of `source` (`host:port`), with a thread unless it is an address already.
    ///
    /// # Errors
    /// When no thread can be made.
    pub(super) fn new(source: &str) -> Result<Resolver, String> {
        let (ask, asked) = channel::<()>();
        let (answer, answers) = channel();
        let fixed = source.parse().ok();
        if fixed.is_none() {
            let source = source.to_string();
            // It ends with the resolver: `ask` closes.
            let work = move || {
                while asked.recv().is_ok() {
                    if answer.send(resolve(&source)).is_err() {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name("sluice-resolve".into());
            thread.spawn(work).map_err(|error| format!("resolver thread: {error}"))?;
        }
        Ok(Resolver { fixed, ask, answers })
    }

    /// Asks for the address.
    pub(super) fn ask(&self) {
        // A thread that is gone answers nothing, and `answer` says so.
        let _ = self.ask.send(());
    }

    /// The answer, once it is there.
    pub(super) fn answer(&self) -> Option<Result<SocketAddr, String>> {
        if let Some(address) = self.fixed {
            return Some(Ok(address));
        }
        match self.answers.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err("the resolver's thread is gone".into())),
        }
    }
}

/// IPv4 first: datagrams are IPv4.
fn resolve(source: &str) -> Result<SocketAddr, String> {
    let addresses = source.to_socket_addrs().map_err(|error| format!("{source}: {error}"))?;
    let mut addresses: Vec<SocketAddr> = addresses.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    addresses.first().copied().ok_or_else(|| format!("{source}: the name has no address"))
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

    #[test]
    fn names_are_resolved_beside_the_core() {
        let fixed = Resolver::new("127.0.0.1:7400").expect("an address");
        assert_eq!(fixed.answer(), Some(Ok("127.0.0.1:7400".parse().expect("an address"))));
        let named = Resolver::new("localhost:7400").expect("a thread");
        assert_eq!(named.answer(), None);
        named.ask();
        for _ in 0..1_000 {
            if let Some(answer) = named.answer() {
                assert_eq!(answer.map(|address| address.port()), Ok(7400));
                return;
            }
            crate::sys::clock::sleep(Duration::from_millis(10));
        }
        panic!("no answer");
    }
}
