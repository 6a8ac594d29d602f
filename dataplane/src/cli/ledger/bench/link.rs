//! `--link`: two network namespaces of this run's own, joined by a cable whose way from server to client is shaped.

use std::process::{Child, Command};
use std::sync::Arc;

use crate::cli::Failure;
use crate::sys::netns::Namespace;

/// The server's end of the cable, and what is shaped.
const SERVER: &str = "10.93.0.1";
const CLIENT: &str = "10.93.0.2";
/// Bytes that may leave at once, and the longest that one waits in the shaper. Larger bursts leak whole megabytes at the start of
/// each ledger; with these every millisecond of a transfer is within 6 % of the rate (measured: 4.78 Gbit/s of payload at 5gbit).
const SHAPE: &str = "burst 128kb latency 20ms";

/// Checks a rate as `tc` writes it.
pub fn rate(text: &str) -> Result<String, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let known = ["kbit", "mbit", "gbit"].contains(&&text[digits..]);
    match text[..digits].parse::<u32>() {
        Ok(1..) if known => Ok(text.into()),
        _ => Err("write a rate as 5gbit, 500mbit or 800kbit".into()),
    }
}

/// The two hosts. Nothing of them has a name outside, so nothing is left when they are dropped, and nothing when this process
/// is killed.
pub struct Link {
    server: Namespace,
    client: Arc<Namespace>,
}

impl Link {
    /// Makes them.
    ///
    /// # Errors
    /// Without the privilege, without `ip` and `tc`, and what they refuse.
    pub fn new(rate: &str) -> Result<Link, Failure> {
        let made = || Namespace::new();
        let hosts = made().and_then(|server| Ok(Link { server, client: Arc::new(made()?) }));
        let link = hosts.map_err(|error| {
            Failure::host(format!("--link {rate}: no network namespace: {error}; it takes root (CAP_SYS_ADMIN)"))
        })?;
        let peer = link.client.thread();
        let server = [
            "ip link set lo up".to_string(),
            format!("ip link add to-client type veth peer name to-server netns {peer}"),
            format!("ip address add {SERVER}/30 dev to-client"),
            "ip link set to-client up".into(),
            format!("tc qdisc add dev to-client root tbf rate {rate} {SHAPE}"),
        ];
        let client = [
            "ip link set lo up".to_string(),
            format!("ip address add {CLIENT}/30 dev to-server"),
            "ip link set to-server up".into(),
        ];
        run_all(&link.server, &server)?;
        run_all(&link.client, &client)?;
        Ok(link)
    }

    /// Where the server listens.
    pub fn address(&self) -> std::net::SocketAddr {
        (SERVER.parse::<std::net::Ipv4Addr>().expect("an address"), 8_462).into()
    }

    /// Starts the server's process on its host.
    ///
    /// # Errors
    /// As the start of a process.
    pub fn spawn(&self, command: Command) -> std::io::Result<Child> {
        self.server.spawn(command)
    }

    /// The clients' host.
    pub fn client(&self) -> Arc<Namespace> {
        self.client.clone()
    }
}

fn run_all(host: &Namespace, commands: &[String]) -> Result<(), Failure> {
    let done = host.run(|| commands.iter().try_for_each(|command| run(command)));
    done.map_err(|error| Failure::host(format!("--link: entering a network namespace: {error}")))?
}

fn run(command: &str) -> Result<(), Failure> {
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    let failed = |why: String| Failure::host(format!("--link: \"{command}\": {why}"));
    match Command::new(program).args(words).output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(failed(String::from_utf8_lossy(&done.stderr).trim().replace('\n', "; "))),
        Err(error) => Err(failed(format!("{error}; {program} is in the package iproute2"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_tc() {
        for good in ["5gbit", "10gbit", "500mbit", "1kbit"] {
            assert_eq!(rate(good).as_deref(), Ok(good));
        }
        for bad in ["", "5", "gbit", "0gbit", "5GB", "5gbit; rm", "-5gbit", "5 gbit", "99999999999gbit"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }
}
