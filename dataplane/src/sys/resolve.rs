//! Names of hosts: looked up on a thread of its own, because the resolver may take seconds, and a core never waits.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use super::privilege;

/// Turns one name into addresses, each time that it is asked.
pub struct Resolver {
    fixed: Option<SocketAddr>,
    ask: Sender<()>,
    answers: Receiver<Result<Vec<SocketAddr>, String>>,
}

impl Resolver {
    /// A resolver of `name` (`host:port`), with a thread unless it is an address already.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn new(name: &str) -> Result<Resolver, String> {
        let (ask, asked) = channel::<()>();
        let (answer, answers) = channel();
        let fixed = name.parse().ok();
        if fixed.is_none() {
            let name = name.to_string();
            // It ends with the resolver: `ask` closes.
            let work = move || {
                if let Err(error) = privilege::renounce() {
                    let _ = answer.send(Err(format!("giving up capabilities: {error}")));
                    return;
                }
                while asked.recv().is_ok() {
                    if answer.send(resolve(&name)).is_err() {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name("sluice-resolve".into());
            thread.spawn(work).map_err(|error| format!("resolver thread: {error}"))?;
        }
        Ok(Resolver { fixed, ask, answers })
    }

    /// Asks for the addresses.
    pub fn ask(&self) {
        // A thread that is gone answers nothing, and `answer` says so.
        let _ = self.ask.send(());
    }

    /// The answer, once it is there: at least one address, those of IPv4 first.
    pub fn answer(&self) -> Option<Result<Vec<SocketAddr>, String>> {
        if let Some(address) = self.fixed {
            return Some(Ok(vec![address]));
        }
        match self.answers.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err("the resolver's thread is gone".into())),
        }
    }
}

/// IPv4 first: a mirror's datagrams are IPv4.
fn resolve(name: &str) -> Result<Vec<SocketAddr>, String> {
    let addresses = name.to_socket_addrs().map_err(|error| format!("{name}: {error}"))?;
    let mut addresses: Vec<SocketAddr> = addresses.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    if addresses.is_empty() { Err(format!("{name}: the name has no address")) } else { Ok(addresses) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn names_are_resolved_beside_the_core() {
        let fixed = Resolver::new("127.0.0.1:7400").expect("an address");
        assert_eq!(fixed.answer(), Some(Ok(vec!["127.0.0.1:7400".parse().expect("an address")])));
        let named = Resolver::new("localhost:7400").expect("a thread");
        assert_eq!(named.answer(), None);
        named.ask();
        for _ in 0..1_000 {
            if let Some(answer) = named.answer() {
                assert_eq!(answer.map(|addresses| addresses[0].port()), Ok(7400));
                return;
            }
            crate::sys::clock::sleep(Duration::from_millis(10));
        }
        panic!("no answer");
    }
}
