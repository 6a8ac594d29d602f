//! The rules of the ring job's sections.

use std::collections::BTreeMap;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::Path;
use std::time::Duration;

use super::capture::Idle;
use super::check::{Finding, Findings};
use super::check_ledger::warn_ledger;
use super::load::Config;
use super::ring::{Linger, Mirror, Serve};
use super::{Bytes, Span};

/// Smallest and largest datagram: a header with one record of 8 bytes, and what UDP over IPv4 carries.
pub(super) const MTU_MIN: u32 = 24;
pub(super) const MTU_MAX: u32 = 65_507;
/// Copies of a datagram: sixteen survive any chance loss, and more would only be load.
pub(super) const DUP_MAX: u8 = 16;
/// The frame header counts records in 16 bits.
pub(super) const BATCH_MAX: u32 = 65_535;
/// Longest linger. No heartbeat overtakes waiting records, and mirrors call a source silent after 250 ms without one.
pub(super) const LINGER_MAX: Duration = Duration::from_millis(100);
/// Most connections of one serve: each keeps a receive buffer and, while it is behind, a frame of 1 MiB.
pub(super) const CONNECTIONS_MAX: u32 = 4_096;
/// Datagrams a second taken from outside: a million would be a core's whole work.
pub(super) const PUNCH_RATE_MAX: u32 = 1_000_000;
/// A mirror says HELLO at once; a minute is a link that nobody could use.
pub(super) const HELLO_MAX: Duration = Duration::from_secs(60);
/// Between two heartbeats of a stream and after what no router remembers a connection.
pub(super) const DEAD_MIN: Duration = Duration::from_secs(1);
pub(super) const DEAD_MAX: Duration = Duration::from_secs(3_600);
/// Below one frame of 1 MiB a second nothing would be repaired; beyond a terabyte there is no network.
pub(super) const REPAIR_RATE_MIN: Bytes = Bytes(1 << 20);
pub(super) const REPAIR_RATE_MAX: Bytes = Bytes(1 << 40);
/// Past it a ring's datagrams held back would be more than any ring.
pub(super) const HOLD_BACK_MAX: Bytes = Bytes(16 << 30);
/// A mirror that pauses for longer than a day is switched off.
pub(super) const RECONNECT_MIN: Duration = Duration::from_millis(1);
pub(super) const RECONNECT_MAX: Duration = Duration::from_secs(86_400);
/// A mirror's file has a header, and slots.
pub(super) const GEOMETRY_MIN: u64 = 4_096;
/// One datagram must fit.
pub(super) const HOLD_BACK_MIN: u64 = 65_536;
/// Below it heartbeats, a millisecond apart at best, would not come in time; nor those of a stream, 200 ms apart.
pub(super) const SILENCE_MIN: Duration = Duration::from_millis(10);
pub(super) const STREAM_SILENCE_MIN: Duration = Duration::from_millis(400);
/// Past it the connection has been given up (`ring::mirror::receiver::DEAD_NS`).
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(5);

const NO_RING: &str = "is empty: name the ring's file, for example \"/dev/shm/ticks\"";

pub(super) fn check_rings(config: &Config, findings: &mut Findings) {
    for serve in &config.ring.serves {
        check_serve(config, serve, findings);
    }
    for mirror in &config.ring.mirrors {
        check_mirror(config, mirror, findings);
    }
    check_among(config, findings);
}

/// Every finding that `run` lives with: it is told, and changes nothing. `cpus` is what this process may run on.
pub fn warn(config: &Config, cpus: usize) -> Vec<Finding> {
    let mut warnings = Findings::default();
    let spins = |core: &str| config.cores.iter().any(|c| c.name == core && c.idle == Idle::Spin);
    let mut rings: BTreeMap<&Path, &str> = BTreeMap::new();
    for serve in &config.ring.serves {
        if let Some(other) = rings.insert(&serve.ring, &serve.name) {
            warnings.add(
                format!("ring.serve \"{}\": ring", serve.name),
                format!(
                    "is served by \"{other}\" too: every record is read and sent twice; one serve takes any number of mirrors in every transport"
                ),
            );
        }
    }
    for core in config.cores.iter().filter(|core| core.idle == Idle::Spin) {
        let serves = config.ring.serves.iter().filter(|serve| serve.core == core.name).count();
        let workers = serves + config.ring.mirrors.iter().filter(|mirror| mirror.core == core.name).count();
        if workers > 1 {
            warnings.add(
                format!("core \"{}\": idle", core.name),
                format!(
                    "is \"spin\" with {workers} ring workers on one core: each waits for the others' turns; give each a [[core]] of its own"
                ),
            );
        }
    }
    let spinning = config.cores.iter().filter(|core| core.idle == Idle::Spin).count();
    if let Some(mirror) = config.ring.mirrors.iter().find(|mirror| spins(&mirror.core))
        && spinning >= cpus
    {
        warnings.add(
            format!("ring.mirror \"{}\": core", mirror.name),
            format!(
                "spins, and of {cpus} CPUs {spinning} spin: its readers have none left and wait for time slices of milliseconds; two CPUs for a spinning mirror with readers, or idle = \"park\""
            ),
        );
    } else if let Some(serve) = config.ring.serves.iter().find(|serve| spins(&serve.core))
        && spinning >= cpus
    {
        warnings.add(
            format!("ring.serve \"{}\": core", serve.name),
            format!(
                "spins, and of {cpus} CPUs {spinning} spin: the producer has none left and waits for time slices of milliseconds; use idle = \"park\", or more CPUs"
            ),
        );
    }
    warnings.0.extend(warn_ledger(config, cpus));
    warnings.0
}

pub(super) fn range<T: PartialOrd + std::fmt::Display>(findings: &mut Findings, key: String, value: T, from: T, to: T) {
    if value < from || value > to {
        findings.add(key, format!("is {value}, but must be from {from} to {to}"));
    }
}

fn check_serve(config: &Config, serve: &Serve, findings: &mut Findings) {
    let key = |field: &str| format!("ring.serve \"{}\": {field}", serve.name);
    findings.core(config, key("core"), &serve.core);
    if serve.ring.as_os_str().is_empty() {
        findings.add(key("ring"), NO_RING);
    }
    if let Some(group) = serve.multicast {
        if !group.ip().is_multicast() || group.port() == 0 {
            findings.add(
                key("multicast"),
                format!(
                    "{group} is no multicast group and port: write one from 224.0.0.0/4, for example \"239.255.0.1:7401\""
                ),
            );
        }
        if Some(group.port()) == serve.udp {
            findings.add(
                key("udp"),
                format!(
                    "{} is the group's port as well: mirrors on this host could not bind it; take another",
                    group.port()
                ),
            );
        }
    }
    let datagrams = serve.multicast.is_some() || serve.udp.is_some();
    if datagrams && serve.bind.is_ipv6() && !serve.bind.ip().is_unspecified() {
        findings.add(key("bind"), format!("is {}, but multicast and UDP are IPv4: bind an IPv4 address", serve.bind));
    }
    if serve.interface.is_multicast() || serve.interface.is_broadcast() {
        findings
            .add(key("interface"), format!("{} is no interface's address: name one of this host's", serve.interface));
    }
    if serve.udp == Some(0) {
        findings.add(key("udp"), "is 0: mirrors are told the port, so it must be a fixed one, for example 7403");
    }
    range(findings, key("mtu"), serve.mtu, MTU_MIN, MTU_MAX);
    range(findings, key("dup"), serve.dup, 1, DUP_MAX);
    range(findings, key("batch"), serve.batch, 1, BATCH_MAX);
    range(findings, key("connections_max"), serve.connections_max, 1, CONNECTIONS_MAX);
    range(findings, key("connections_per_address_max"), serve.connections_per_address_max, 1, CONNECTIONS_MAX);
    range(findings, key("punch_rate"), serve.punch_rate, 1, PUNCH_RATE_MAX);
    if let Linger::Fixed(time) = serve.linger
        && time > LINGER_MAX
    {
        findings.add(key("linger"), format!("is {}, but must be at most {}", Span(time), Span(LINGER_MAX)));
    }
    range(findings, key("hello_timeout"), serve.hello_timeout, Span(SILENCE_MIN), Span(HELLO_MAX));
    range(findings, key("dead_after"), serve.dead_after, Span(DEAD_MIN), Span(DEAD_MAX));
    range(findings, key("repair_rate"), serve.repair_rate, REPAIR_RATE_MIN, REPAIR_RATE_MAX);
}

fn check_mirror(config: &Config, mirror: &Mirror, findings: &mut Findings) {
    let key = |field: &str| format!("ring.mirror \"{}\": {field}", mirror.name);
    findings.core(config, key("core"), &mirror.core);
    if mirror.ring.as_os_str().is_empty() {
        findings.add(key("ring"), NO_RING);
    }
    let port = mirror.source.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    if !matches!(port, Some(Ok(1..))) {
        findings.add(
            key("source"),
            format!("\"{}\" is no host and port: write for example \"10.0.0.5:7400\"", mirror.source),
        );
    }
    if mirror.interface.is_multicast() || mirror.interface.is_broadcast() {
        findings
            .add(key("interface"), format!("{} is no interface's address: name one of this host's", mirror.interface));
    }
    if mirror.geometry_max.0 < GEOMETRY_MIN {
        findings.add(key("geometry_max"), format!("is {}, but at least {}", mirror.geometry_max, Bytes(GEOMETRY_MIN)));
    }
    range(findings, key("hold_back"), mirror.hold_back, Bytes(HOLD_BACK_MIN), HOLD_BACK_MAX);
    range(findings, key("reconnect"), mirror.reconnect, Span(RECONNECT_MIN), Span(RECONNECT_MAX));
    if mirror.reconnect_max < mirror.reconnect {
        findings.add(
            key("reconnect_max"),
            format!("is {}, but reconnect is {}: it is the longest pause", mirror.reconnect_max, mirror.reconnect),
        );
    }
    range(findings, key("silence"), mirror.silence, Span(SILENCE_MIN), Span(SILENCE_MAX));
    range(findings, key("silence_stream"), mirror.silence_stream, Span(STREAM_SILENCE_MIN), Span(SILENCE_MAX));
}

/// What two rings cannot both have.
fn check_among(config: &Config, findings: &mut Findings) {
    let mut groups: BTreeMap<SocketAddrV4, &str> = BTreeMap::new();
    for serve in &config.ring.serves {
        let key = |field: &str| format!("ring.serve \"{}\": {field}", serve.name);
        if let Some(group) = serve.multicast
            && let Some(other) = groups.insert(group, &serve.name)
        {
            findings.add(
                key("multicast"),
                format!(
                    "{group} is serve \"{other}\"'s already: mirrors would get both rings; take another group or port"
                ),
            );
        }
        for mirror in config.ring.mirrors.iter().filter(|mirror| mirror.ring == serve.ring) {
            let own = mirror.source.parse::<SocketAddr>().is_ok_and(|source| reaches(serve.bind, source));
            if own {
                findings.add(
                    format!("ring.mirror \"{}\": source", mirror.name),
                    format!("{} is serve \"{}\", which serves this very ring: it would copy itself; name the host it comes from", mirror.source, serve.name),
                );
            }
        }
    }
}

/// Whether a connection to `source` on this host ends at a socket bound to `bind`, as far as the addresses tell.
fn reaches(bind: SocketAddr, source: SocketAddr) -> bool {
    let same = bind.ip() == source.ip() || (bind.ip().is_unspecified() && source.ip().is_loopback());
    same && bind.port() == source.port()
}

#[cfg(test)]
mod tests {
    use crate::config::{check, parse, warn};

    const GOOD: &str = r#"
        [[core]]
        name = "ring"
        cpu = 0
        [[core]]
        name = "other"
        cpu = 1
        [[ring.serve]]
        name = "ticks"
        core = "ring"
        ring = "/dev/shm/ticks"
        bind = "0.0.0.0:7400"
        multicast = "239.255.0.1:7401"
        udp = 7403
        [[ring.serve]]
        name = "bars"
        core = "ring"
        ring = "/dev/shm/bars"
        bind = "0.0.0.0:7410"
        [[ring.mirror]]
        name = "book"
        core = "ring"
        source = "10.0.0.5:7400"
        ring = "/dev/shm/book"
        [[ring.mirror]]
        name = "news"
        core = "other"
        source = "source.example:7500"
        ring = "/dev/shm/news"
    "#;

    #[test]
    fn a_good_file_has_neither_finding_nor_warning() {
        let config = parse(GOOD).expect("parses");
        assert_eq!(check(&config), []);
        assert_eq!(warn(&config, 2), []);
    }

    #[test]
    fn every_rule_names_its_key_and_several_are_told_at_once() {
        let cases = [
            ("239.255.0.1:7401", "10.0.0.1:7401", "ring.serve \"ticks\": multicast"),
            ("239.255.0.1:7401", "239.255.0.1:0", "ring.serve \"ticks\": multicast"),
            ("239.255.0.1:7401", "239.255.0.1:7403", "ring.serve \"ticks\": udp"),
            ("udp = 7403", "udp = 0", "ring.serve \"ticks\": udp"),
            ("udp = 7403", "mtu = 23", "ring.serve \"ticks\": mtu"),
            ("udp = 7403", "mtu = 65508", "ring.serve \"ticks\": mtu"),
            ("udp = 7403", "dup = 0", "ring.serve \"ticks\": dup"),
            ("udp = 7403", "dup = 17", "ring.serve \"ticks\": dup"),
            ("udp = 7403", "batch = 65536", "ring.serve \"ticks\": batch"),
            ("udp = 7403", "linger = \"101ms\"", "ring.serve \"ticks\": linger"),
            ("udp = 7403", "connections_max = 0", "ring.serve \"ticks\": connections_max"),
            ("udp = 7403", "hello_timeout = \"1ms\"", "ring.serve \"ticks\": hello_timeout"),
            ("udp = 7403", "interface = \"239.255.0.1\"", "ring.serve \"ticks\": interface"),
            ("0.0.0.0:7400", "[2001:db8::1]:7400", "ring.serve \"ticks\": bind"),
            ("0.0.0.0:7410", "0.0.0.0:7400", "ring.serve \"bars\": bind"),
            ("0.0.0.0:7410", "10.0.0.1:7400", "ring.serve \"bars\": bind"),
            ("0.0.0.0:7410\"", "0.0.0.0:7410\"\nmulticast = \"239.255.0.1:7401\"", "ring.serve \"bars\": multicast"),
            ("0.0.0.0:7410\"", "0.0.0.0:7410\"\nudp = 7403", "ring.serve \"bars\": udp"),
            ("core = \"other\"", "core = \"no\"", "ring.mirror \"news\": core"),
            ("10.0.0.5:7400", "10.0.0.5", "ring.mirror \"book\": source"),
            ("10.0.0.5:7400", ":7400", "ring.mirror \"book\": source"),
            ("/dev/shm/news", "/dev/shm/book", "ring.mirror \"news\": ring"),
            ("/dev/shm/news", "", "ring.mirror \"news\": ring"),
            ("/dev/shm/bars", "", "ring.serve \"bars\": ring"),
            ("/dev/shm/news", "/dev/shm/news\"\ngeometry_max = \"1KiB", "ring.mirror \"news\": geometry_max"),
            ("/dev/shm/news", "/dev/shm/news\"\nhold_back = \"1KiB", "ring.mirror \"news\": hold_back"),
            ("/dev/shm/news", "/dev/shm/news\"\nreconnect = \"0s", "ring.mirror \"news\": reconnect"),
            ("/dev/shm/news", "/dev/shm/news\"\nreconnect_max = \"1ms", "ring.mirror \"news\": reconnect_max"),
            ("/dev/shm/news", "/dev/shm/news\"\nsilence = \"1ms", "ring.mirror \"news\": silence"),
            ("/dev/shm/news", "/dev/shm/news\"\nsilence_stream = \"200ms", "ring.mirror \"news\": silence_stream"),
            (
                "10.0.0.5:7400\"\n        ring = \"/dev/shm/book",
                "127.0.0.1:7400\"\n        ring = \"/dev/shm/ticks",
                "ring.mirror \"book\": source",
            ),
            ("name = \"bars\"", "name = \"ticks\"", "ring.serve \"ticks\""),
            ("name = \"news\"", "name = \"book\"", "ring.mirror \"book\""),
        ];
        for (from, to, key) in cases {
            assert!(GOOD.contains(from), "{from}");
            let findings = check(&parse(&GOOD.replace(from, to)).expect("parses"));
            assert!(findings.iter().any(|f| f.key == key), "{to}: {findings:?}");
        }
        let several = GOOD.replace("udp = 7403", "dup = 0\nmtu = 1\nbatch = 0");
        assert_eq!(check(&parse(&several).expect("parses")).len(), 3);
    }

    #[test]
    fn a_hub_serves_what_it_mirrors() {
        let hub = GOOD.replace("/dev/shm/book", "/dev/shm/ticks");
        assert_eq!(check(&parse(&hub).expect("parses")), []);
    }

    #[test]
    fn workers_that_spin_are_told_what_they_lack() {
        let spin = GOOD.replace("cpu = 0", "cpu = 0\nidle = \"spin\"");
        let told = warn(&parse(&spin).expect("parses"), 8);
        assert!(told.len() == 1 && told[0].what.contains("3 ring workers"), "{told:?}");
        let told = warn(&parse(&spin).expect("parses"), 1);
        assert!(told.iter().any(|w| w.key == "ring.mirror \"book\": core"), "{told:?}");
        let twice = GOOD.replace("/dev/shm/bars", "/dev/shm/ticks");
        assert!(warn(&parse(&twice).expect("parses"), 8).iter().any(|w| w.key == "ring.serve \"bars\": ring"));
    }

    #[test]
    fn unknown_keys_are_refused() {
        for section in ["bind = \"0.0.0.0:7400\"", "source = \"10.0.0.5:7400\""] {
            assert!(GOOD.contains(section));
            let error = parse(&GOOD.replace(section, &format!("{section}\ncolour = 3"))).expect_err("unknown key");
            assert!(error.to_string().contains("colour"), "{error}");
        }
    }
}
