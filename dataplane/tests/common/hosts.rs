//! Hosts for tests of what crosses a network: namespaces of their own, joined by veth pairs, a switch, a router.
//!
//! A host is an anonymous namespace that a sleeping thread holds open. Nothing has a name outside the test, so nothing is
//! left behind: when the test ends, however it ends, the kernel removes namespaces, links and rules.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use nix::sched::{CloneFlags, setns, unshare};

use super::netns::{can, ip};

/// One host.
pub struct Host {
    /// Its name in messages.
    pub name: String,
    namespace: File,
    thread: i32,
    spawns: Option<Sender<(Command, Sender<std::io::Result<Child>>)>>,
    holder: Option<JoinHandle<()>>,
}

impl Host {
    /// A host with `lo` up; `None`, having said so, without the privilege.
    pub fn new(name: &str) -> Option<Host> {
        if !can() {
            return None;
        }
        let (spawns, asked) = channel::<(Command, Sender<std::io::Result<Child>>)>();
        let (tell, told) = channel();
        let holder = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace for this thread");
            ip("link set lo up");
            let namespace = File::open("/proc/thread-self/ns/net").expect("the namespace's file");
            tell.send((namespace, nix::unistd::gettid().as_raw())).expect("the maker waits");
            while let Ok((mut command, answer)) = asked.recv() {
                let _ = answer.send(command.spawn());
            }
        });
        let (namespace, thread) = told.recv().expect("a namespace");
        Some(Host { name: name.into(), namespace, thread, spawns: Some(spawns), holder: Some(holder) })
    }

    /// Runs `body` on a thread inside the host; a panic in it goes on in the caller.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(self.namespace.as_fd(), CloneFlags::CLONE_NEWNET).expect("enters the host");
                body()
            });
            match thread.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Runs `ip` with the words of `arguments` in the host.
    pub fn ip(&self, arguments: &str) {
        self.run(|| ip(arguments));
    }

    /// Starts a process in the host, from the thread that holds the host: what dies with its parent (`setpriv
    /// --pdeathsig`) dies with that thread.
    pub fn spawn(&self, command: Command) -> Child {
        let words = format!("{command:?}");
        let (answer, child) = channel();
        self.spawns.as_ref().expect("held").send((command, answer)).expect("the holder lives");
        child.recv().expect("the holder answers").unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    /// Loads nftables rules in the host.
    pub fn nft(&self, rules: &str) {
        use std::io::Write;
        self.run(|| {
            let mut nft = Command::new("nft")
                .args(["-f", "-"])
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap_or_else(|error| panic!("nft: {error}"));
            nft.stdin.take().expect("a pipe").write_all(rules.as_bytes()).expect("nft reads its rules");
            assert!(nft.wait().expect("nft ends").success(), "nft refuses {rules}");
        });
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.spawns.take());
        if let Some(holder) = self.holder.take() {
            let _ = holder.join();
        }
    }
}

/// A cable: interface `a.1` of host `a.0` with address `a.2`, and the same of `b`.
pub fn cable(a: (&Host, &str, &str), b: (&Host, &str, &str)) {
    let (a_host, a_name, a_address) = a;
    let (b_host, b_name, b_address) = b;
    a_host.ip(&format!("link add {a_name} type veth peer name {b_name} netns {}", b_host.thread));
    for (host, name, address) in [(a_host, a_name, a_address), (b_host, b_name, b_address)] {
        if !address.is_empty() {
            host.ip(&format!("address add {address} dev {name}"));
        }
        host.ip(&format!("link set {name} addrgenmode none up"));
    }
}

/// A switch that the given hosts hang on: host *i* gets interface `eth0` with address `addresses[i]` (with its prefix
/// length) and routes multicast through it.
pub fn switch(hosts: &[&Host], addresses: &[String]) -> Host {
    let switch = Host::new("switch").expect("the hosts could be made");
    // Without snooping every port gets every group, as an unmanaged switch does.
    switch.ip("link add br0 type bridge mcast_snooping 0");
    switch.ip("link set br0 up");
    for (index, (host, address)) in hosts.iter().zip(addresses).enumerate() {
        let port = format!("port{index}");
        cable((host, "eth0", address), (&switch, &port, ""));
        switch.ip(&format!("link set {port} master br0"));
        host.ip("route add 224.0.0.0/4 dev eth0");
    }
    switch
}
