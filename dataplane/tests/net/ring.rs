//! Rings across hosts: the commands `ring serve` and `ring mirror` in namespaces joined by a switch or a router.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sluice::ring::consumer::StartAt;

use super::appliance::{sluice, until};
use crate::common::hosts::{Host, cable, switch};
use crate::common::mirrors::Shm;
use crate::common::rings::{Reader, Writer};

/// How long anything that must come may take: far above what it takes, so that only a defect runs into it.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Records of a ring: at the rates below none is overwritten before a mirror has it.
const CAPACITY: u64 = 1 << 16;
/// Where sources listen.
const PORT: u16 = 7400;

/// A command of ours in a host; ended with the test.
pub(super) struct Running {
    pub(super) child: Child,
    words: String,
}

impl Running {
    pub(super) fn start(host: &Host, words: &str) -> Running {
        let arguments: Vec<&str> = words.split_whitespace().collect();
        let mut command = sluice(Path::new("/"), &arguments);
        if arguments.contains(&"--json") {
            command.stdout(std::process::Stdio::piped());
        }
        let child = host.spawn(command);
        Running { child, words: format!("{}: sluice {words}", host.name) }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("the command runs");
    }

    /// SIGTERM: it ends well.
    #[track_caller]
    pub(super) fn end(mut self) {
        assert!(self.child.try_wait().expect("a child").is_none(), "{} has ended by itself", self.words);
        self.signal(Signal::SIGTERM);
        let status = until("the command ends", || self.child.try_wait().expect("a child"));
        assert!(status.success(), "{}: {status}", self.words);
    }

    /// SIGTERM; the JSON that it printed at its end.
    #[track_caller]
    fn told(self) -> serde_json::Value {
        self.signal(Signal::SIGTERM);
        self.report()
    }

    /// Waits for its own end, which must be a good one; the JSON that it printed.
    #[track_caller]
    fn report(mut self) -> serde_json::Value {
        let status = until("the command ends", || self.child.try_wait().expect("a child"));
        let mut text = String::new();
        let mut out = self.child.stdout.take().expect("a pipe");
        std::io::Read::read_to_string(&mut out, &mut text).expect("text");
        assert!(status.success(), "{}: {status}: {text}", self.words);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}: {text}", self.words))
    }

    /// kill -9.
    fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().expect("a child");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Hosts `10.7.0.1`, `10.7.0.2`, … on one switch.
pub(super) fn lan(count: usize) -> Option<(Vec<Host>, Host)> {
    let hosts: Vec<Host> = (1..=count).map(|number| Host::new(&format!("host {number}"))).collect::<Option<_>>()?;
    let addresses: Vec<String> = (1..=count).map(|number| format!("10.7.0.{number}/24")).collect();
    let switch = switch(&hosts.iter().collect::<Vec<_>>(), &addresses);
    Some((hosts, switch))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    Tcp,
    Unicast,
    Multicast,
}

impl By {
    const ALL: [By; 3] = [By::Tcp, By::Unicast, By::Multicast];

    /// The flags of a source at `address`.
    fn serve(self, address: &str) -> String {
        match self {
            By::Tcp => String::new(),
            By::Unicast => "--udp 7403".into(),
            By::Multicast => format!("--multicast 239.255.0.1:7401 --iface {address}"),
        }
    }

    /// The flags of a mirror at `address`.
    fn mirror(self, address: &str) -> String {
        match self {
            By::Tcp => String::new(),
            By::Unicast => "--unicast".into(),
            By::Multicast => format!("--iface {address}"),
        }
    }
}

pub(super) fn serve(host: &Host, ring: &Shm, address: &str, by: By) -> Running {
    Running::start(host, &format!("ring serve {} --bind {address}:{PORT} {}", ring.text(), by.serve(address)))
}

pub(super) fn mirror(host: &Host, source: &str, ring: &Shm, address: &str, by: By, from: &str) -> Running {
    let flags = by.mirror(address);
    Running::start(
        host,
        &format!("ring mirror {source}:{PORT} {} --from {from} --reconnect-ms 100 --json {flags}", ring.text()),
    )
}

/// That a mirror got records in datagrams, not all as repair by the connection beside them.
#[track_caller]
fn assert_by_datagrams(told: &serde_json::Value) {
    let get = |key: &str| told[key].as_u64().unwrap_or_else(|| panic!("{key} in {told}"));
    assert!(get("datagrams") > 0 && get("records") - get("repaired_records") > 1_000, "{told}");
}

#[test]
fn ring_transports_deliver_every_record_in_order() {
    for by in By::ALL {
        let Some((hosts, _switch)) = lan(2) else { return };
        let (source, copy) = (Shm::new(&format!("lan-{by:?}")), Shm::new(&format!("lan-{by:?}-m")));
        let writer = Writer::start(source.path(), CAPACITY, 1, 20_000, 20_000);
        let serving = serve(&hosts[0], &source, "10.7.0.1", by);
        let mirroring = mirror(&hosts[1], "10.7.0.1", &copy, "10.7.0.2", by, "oldest");
        let mut reader = Reader::open(copy.path(), StartAt::Oldest, PATIENCE);
        reader.read_until(&format!("every record by {by:?}"), PATIENCE, |seen| seen.last == 20_000);
        reader.assert_dense();
        assert_eq!((reader.runs.len(), reader.runs[0].first), (1, 1), "{by:?}");
        let told = mirroring.told();
        match by {
            By::Tcp => assert_eq!(told["datagrams"], 0, "{told}"),
            By::Unicast | By::Multicast => assert_by_datagrams(&told),
        }
        serving.end();
        writer.end();
    }
}

#[test]
fn ring_16_mirrors_cost_the_source_no_more_datagrams_than_one() {
    let mut sent = Vec::new();
    for mirrors in [1, 16] {
        let Some((hosts, _switch)) = lan(1 + mirrors) else { return };
        let source = Shm::new(&format!("sixteen-{mirrors}"));
        let copies: Vec<Shm> = (0..mirrors).map(|index| Shm::new(&format!("sixteen-{mirrors}-{index}"))).collect();
        // The ring is there and silent while the mirrors join: what counts is the stream.
        let writer = Writer::start(source.path(), 1 << 12, 1, 1, 1);
        let serving = serve(&hosts[0], &source, "10.7.0.1", By::Multicast);
        let mirroring: Vec<Running> = (0..mirrors)
            .map(|index| {
                let address = format!("10.7.0.{}", index + 2);
                mirror(&hosts[index + 1], "10.7.0.1", &copies[index], &address, By::Multicast, "latest")
            })
            .collect();
        let mut readers: Vec<Reader> =
            copies.iter().map(|copy| Reader::open(copy.path(), StartAt::Oldest, PATIENCE)).collect();
        writer.end();
        // A new life of the producer, followed by every mirror; then the stream, counted at the source's port.
        let writer = Writer::start(source.path(), 1 << 12, 2, 3_000, 1_000);
        for reader in &mut readers {
            reader.read_until("the first record", PATIENCE, |seen| seen.life == 2 && seen.count >= 1);
        }
        let (packets, records) = (multicast_sent(&hosts[0]), writer.written());
        until("the records are written", || (writer.written() == 3_000).then_some(()));
        for reader in &mut readers {
            reader.read_until("every record", PATIENCE, |seen| seen.last == 3_000);
            reader.assert_dense();
        }
        sent.push((multicast_sent(&hosts[0]) - packets) as f64 / (3_000 - records) as f64);
        mirroring.into_iter().for_each(Running::end);
        serving.end();
        writer.end();
    }
    // Heartbeats of idle milliseconds are in both; sixteen times as many would be 16.
    assert!(sent[1] < 2.0 * sent[0] + 1.0, "datagrams per record with 1 and 16 mirrors: {sent:?}");
}

/// Multicast packets that a host's eth0 has sent, as nobody but the kernel counts them: of the source's own port.
fn multicast_sent(host: &Host) -> u64 {
    let text = host.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat").expect("the host's counters"));
    let mut lines = text.lines().filter(|line| line.starts_with("IpExt:")).map(str::split_whitespace);
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let found = names.zip(values).find(|(name, _)| *name == "OutMcastPkts").expect("the counter");
    found.1.parse().expect("a number")
}

#[test]
fn ring_nat_is_opened_from_inside_and_the_stream_comes_through() {
    let Some(source_host) = Host::new("source") else { return };
    let (router, inside) = (Host::new("router").expect("root"), Host::new("inside").expect("root"));
    cable((&source_host, "eth0", "198.51.100.1/24"), (&router, "wan", "198.51.100.2/24"));
    cable((&router, "lan", "192.168.7.1/24"), (&inside, "eth0", "192.168.7.2/24"));
    inside.ip("route add default via 192.168.7.1");
    router.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("forwards"));
    router.nft(
        "table ip nat {
             chain post {
                 type nat hook postrouting priority 100;
                 oifname \"wan\" masquerade
             }
         }
         table ip filter {
             chain forward {
                 type filter hook forward priority 0; policy drop;
                 iifname \"lan\" accept
                 ct state established,related accept
             }
         }
         ",
    );
    let (source, copy) = (Shm::new("nat"), Shm::new("nat-m"));
    let writer = Writer::start(source.path(), CAPACITY, 1, 20_000, 10_000);
    let serving = Running::start(
        &source_host,
        &format!("ring serve {} --bind 198.51.100.1:{PORT} --udp 7403 --dup 2", source.text()),
    );
    let mirroring = mirror(&inside, "198.51.100.1", &copy, "", By::Unicast, "oldest");
    let mut reader = Reader::open(copy.path(), StartAt::Oldest, PATIENCE);
    reader.read_until("every record through the router", PATIENCE, |seen| seen.last == 20_000);
    reader.assert_dense();
    // There is no other way than through the router: UDP came back along the way that PUNCH made.
    assert_by_datagrams(&mirroring.told());
    serving.end();
    writer.end();
}

#[test]
fn ring_loss_is_repaired_from_the_source_ring() {
    for by in [By::Unicast, By::Multicast] {
        let Some((hosts, _switch)) = lan(2) else { return };
        // Of what reaches the mirror by UDP every fiftieth datagram is lost, and now and then eight in a row.
        hosts[1].nft(
            "table ip loss {
                 chain in {
                     type filter hook input priority 0;
                     ip protocol udp numgen inc mod 50 7 drop
                     ip protocol udp numgen inc mod 400 < 8 drop
                 }
             }
             ",
        );
        let (source, copy) = (Shm::new(&format!("loss-{by:?}")), Shm::new(&format!("loss-{by:?}-m")));
        let writer = Writer::start(source.path(), CAPACITY, 1, 30_000, 15_000);
        let serving = serve(&hosts[0], &source, "10.7.0.1", by);
        let mirroring = mirror(&hosts[1], "10.7.0.1", &copy, "10.7.0.2", by, "oldest");
        let mut reader = Reader::open(copy.path(), StartAt::Oldest, PATIENCE);
        reader.read_until(&format!("every record by {by:?}"), PATIENCE, |seen| seen.last == 30_000);
        reader.assert_dense();
        assert_eq!(reader.losses(), (0, 0), "{by:?}");
        let told = mirroring.told();
        assert_by_datagrams(&told);
        assert!(told["naks"].as_u64() > Some(0) && told["repaired_records"].as_u64() > Some(0), "{by:?}: {told}");
        serving.end();
        writer.end();
    }
}

#[test]
fn ring_hub_serves_a_site_with_the_sources_numbers() {
    let Some((hosts, _switch)) = lan(4) else { return };
    let (source, hub) = (Shm::new("hub-source"), Shm::new("hub"));
    let leaves = [Shm::new("hub-leaf-0"), Shm::new("hub-leaf-1")];
    let writer = Writer::start(source.path(), CAPACITY, 1, 20_000, 10_000);
    let serving =
        Running::start(&hosts[0], &format!("ring serve {} --bind 10.7.0.1:{PORT} --udp 7403 --dup 2", source.text()));
    let hub_mirror = mirror(&hosts[1], "10.7.0.1", &hub, "", By::Unicast, "oldest");
    until("the hub's ring", || hub.path().exists().then_some(()));
    let hub_serve = serve(&hosts[1], &hub, "10.7.0.2", By::Multicast);
    let mut mirrors = vec![mirror(&hosts[2], "10.7.0.2", &leaves[0], "10.7.0.3", By::Multicast, "oldest")];
    // A leaf that comes late, over TCP, from where it is now.
    until("half of the records", || (writer.written() > 10_000).then_some(()));
    mirrors.push(mirror(&hosts[3], "10.7.0.2", &leaves[1], "10.7.0.4", By::Multicast, "latest"));
    for leaf in &leaves {
        let mut reader = Reader::open(leaf.path(), StartAt::Oldest, PATIENCE);
        reader.read_until("every record at the leaf", PATIENCE, |seen| seen.last == 20_000);
        reader.assert_dense();
    }
    mirrors.into_iter().for_each(Running::end);
    hub_serve.end();
    hub_mirror.end();
    serving.end();
    writer.end();
}

/// Who is killed and started again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Restarted {
    Producer,
    Serve,
    Mirror,
}

#[test]
fn ring_restarts_are_followed_in_every_transport() {
    for by in By::ALL {
        for who in [Restarted::Producer, Restarted::Serve, Restarted::Mirror] {
            let Some((hosts, _switch)) = lan(2) else { return };
            restarted(&hosts, by, who);
        }
    }
}

fn restarted(hosts: &[Host], by: By, who: Restarted) {
    let what = format!("{who:?} by {by:?}");
    let (source, copy) = (Shm::new(&format!("restart-{by:?}-{who:?}")), Shm::new(&format!("restart-{by:?}-{who:?}-m")));
    let mut writer = Writer::start(source.path(), CAPACITY, 1, u64::MAX / 2_000_000, 2_000);
    let mut serving = serve(&hosts[0], &source, "10.7.0.1", by);
    let mut mirroring = mirror(&hosts[1], "10.7.0.1", &copy, "10.7.0.2", by, "oldest");
    let mut reader = Reader::open(copy.path(), StartAt::Oldest, PATIENCE);
    reader.read_until(&format!("records before: {what}"), PATIENCE, |seen| seen.count > 500);
    let before = *reader.runs.last().expect("a run");
    match who {
        Restarted::Producer => {
            drop(writer);
            writer = Writer::start(source.path(), CAPACITY, 2, u64::MAX / 2_000_000, 2_000);
            reader.read_until(&format!("the new life: {what}"), PATIENCE, |seen| seen.life == 2 && seen.count > 500);
            assert!(reader.runs.len() > 1, "the new life comes after a marker: {:?}", reader.runs);
        }
        Restarted::Serve => {
            serving.kill();
            serving = serve(&hosts[0], &source, "10.7.0.1", by);
            let beyond = writer.written() + 1_000;
            reader.read_until(&format!("records after: {what}"), PATIENCE, |seen| seen.last > beyond);
            assert_eq!(reader.runs.len(), 1, "the same history goes on: {:?}", reader.runs);
        }
        Restarted::Mirror => {
            mirroring.kill();
            mirroring = mirror(&hosts[1], "10.7.0.1", &copy, "10.7.0.2", by, "resume");
            let beyond = writer.written() + 1_000;
            reader.read_until(&format!("records after: {what}"), PATIENCE, |seen| seen.last > beyond);
            assert_eq!(reader.runs.len(), 1, "the same ring goes on: {:?}", reader.runs);
        }
    }
    reader.assert_dense();
    assert!(reader.runs.last().expect("a run").last > before.last || who == Restarted::Producer);
    mirroring.end();
    serving.end();
    drop(writer);
}

/// Another host's clock, ahead by what the reader is told to show, is found within the error that is stated; and what the
/// records took is told in the source's.
#[test]
fn ring_clock_offset_is_found_within_its_bound() {
    for (by, ahead) in [(By::Multicast, 7_777_777_777_i64), (By::Tcp, -86_400_000_000_123)] {
        let Some((hosts, _switch)) = lan(2) else { return };
        let (source, copy) = (Shm::new(&format!("clock-{by:?}")), Shm::new(&format!("clock-{by:?}-m")));
        let start = |host: &Host, words: String| {
            let arguments: Vec<&str> = words.split_whitespace().collect();
            let mut command = sluice(Path::new("/"), &arguments);
            command.stdout(std::process::Stdio::piped());
            Running { child: host.spawn(command), words: format!("{}: sluice {words}", host.name) }
        };
        let load = "--rate 5000 --seconds 0.6 --json";
        let words = format!("ring stress source {} --listen 10.7.0.1:7500 {load}", source.text());
        let producing = start(&hosts[0], words);
        let serving = serve(&hosts[0], &source, "10.7.0.1", by);
        let mirroring = mirror(&hosts[1], "10.7.0.1", &copy, "10.7.0.2", by, "oldest");
        let words =
            format!("ring stress reader {} --source 10.7.0.1:7500 --clock-ahead-ns {ahead} --json", copy.text());
        let reading = start(&hosts[1], words);
        let read = reading.report();
        let told = producing.report();
        assert_eq!((&read["verdict"], &read["delivery"]["received"]), (&"whole".into(), &3_000.into()), "{read}");
        let reader = &told["readers"][0];
        assert_eq!(reader["delivery"], read["delivery"], "{told}");
        for when in ["before", "after"] {
            let clock = &reader["clock"][when];
            let number = |key: &str| clock[key].as_i64().expect("ns");
            let wrong = (number("offset_ns") - ahead).abs();
            assert!(wrong <= number("bound_ns"), "{when}, {by:?}: wrong by {wrong} ns: {told}");
            assert!(number("bound_ns") < 100_000_000, "{when}, {by:?}: a bound that says nothing: {told}");
        }
        let (median, bound) = (&reader["one_way_ns"]["p50"], &reader["error_bound_ns"]);
        let (median, bound) = (median.as_i64().expect("ns"), bound.as_i64().expect("ns"));
        assert!(median > -bound && median < PATIENCE.as_nanos() as i64, "{told}");
        assert_eq!(reader["one_way_ns"]["count"], 3_000, "{told}");
        mirroring.end();
        serving.end();
    }
}
