//! What of a configuration listens where, and which two cannot listen side by side.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::ledger::Listen;
use super::load::Config;

/// How a socket is spoken to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Tcp => "TCP",
            Transport::Udp => "UDP",
        })
    }
}

/// One socket that others may reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Socket {
    /// The key that says so, as in a finding.
    pub key: String,
    /// Whose it is, as `ring.serve "ticks"`.
    pub owner: String,
    /// How it is spoken to.
    pub transport: Transport,
    /// Its address, as the file has it.
    pub address: Listen,
    /// What a stranger has to show; `None`: nothing.
    pub proof: Option<&'static str>,
}

impl Socket {
    /// Whether the two cannot listen side by side, as far as their addresses tell. Port 0 is any free one.
    pub fn collides(&self, other: &Socket) -> bool {
        let same = self.transport == other.transport && self.address.port() == other.address.port();
        same && self.address.port() != 0 && overlap(self.ip(), other.ip())
    }

    fn ip(&self) -> IpAddr {
        match self.address {
            Listen::Port(_) => IpAddr::from([0_u16; 8]),
            Listen::Address(address) => address.ip().to_canonical(),
        }
    }
}

/// Whether one address takes what comes to the other. The wildcard of IPv6 is that of IPv4 too (`net.ipv6.bindv6only` is 0).
fn overlap(one: IpAddr, other: IpAddr) -> bool {
    let takes = |wild: IpAddr, ip: IpAddr| wild.is_unspecified() && (wild.is_ipv6() || ip.is_ipv4());
    one == other || takes(one, other) || takes(other, one)
}

/// Every listening socket, in the order in which they are checked: control, rings, ledgers.
pub fn sockets(config: &Config) -> Vec<Socket> {
    let tcp = |key: String, owner: String, address: Listen, proof| Socket {
        key,
        owner,
        transport: Transport::Tcp,
        address,
        proof,
    };
    let mut sockets =
        vec![tcp("control: listen".into(), "[control]".into(), Listen::Address(config.control.listen), None)];
    for serve in &config.ring.serves {
        let owner = format!("ring.serve \"{}\"", serve.name);
        let proof = serve.key_file.is_some().then_some("the pre-shared key");
        sockets.push(tcp(format!("{owner}: bind"), owner.clone(), Listen::Address(serve.bind), proof));
        if let Some(port) = serve.udp {
            sockets.push(Socket {
                key: format!("{owner}: udp"),
                owner,
                transport: Transport::Udp,
                address: Listen::Address(SocketAddr::new(serve.bind.ip(), port)),
                proof: proof.or(Some("a token that TCP gave")),
            });
        }
    }
    if let Some(serve) = &config.ledger.serve {
        let proof = serve.tokens.is_some().then_some("a bearer token");
        sockets.push(tcp("ledger.serve: listen".into(), "ledger.serve".into(), serve.listen, proof));
    }
    sockets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(address: &str) -> Socket {
        let address = address.parse().expect("an address");
        Socket { key: String::new(), owner: String::new(), transport: Transport::Tcp, address, proof: None }
    }

    #[test]
    fn two_sockets_collide_where_one_takes_what_is_meant_for_the_other() {
        for (one, other, collides) in [
            ("10.0.0.1:7", "10.0.0.1:7", true),
            ("10.0.0.1:7", "10.0.0.1:8", false),
            ("10.0.0.1:7", "10.0.0.2:7", false),
            ("0.0.0.0:7", "10.0.0.2:7", true),
            ("0.0.0.0:7", "0.0.0.0:7", true),
            ("0.0.0.0:7", "[::]:7", true),
            ("0.0.0.0:7", "[::1]:7", false),
            ("[::]:7", "[::1]:7", true),
            (":7", "127.0.0.1:7", true),
            (":7", ":7", true),
            ("[::ffff:10.0.0.1]:7", "10.0.0.1:7", true),
            ("[::ffff:0.0.0.0]:7", "10.0.0.1:7", true),
            ("127.0.0.1:0", "127.0.0.1:0", false),
        ] {
            let (one_socket, other_socket) = (socket(one), socket(other));
            assert_eq!(one_socket.collides(&other_socket), collides, "{one} {other}");
            assert_eq!(other_socket.collides(&one_socket), collides, "{other} {one}");
        }
        let datagrams = Socket { transport: Transport::Udp, ..socket("0.0.0.0:7") };
        assert!(!datagrams.collides(&socket("0.0.0.0:7")), "TCP and UDP have ports of their own");
    }
}
