//! The rules of what several sections share: sockets, directories, ring files, groups, the control server.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::Span;
use super::capture::SourceKind;
use super::check::Findings;
use super::check_ring::range;
use super::ledger::{LedgerSource, Listen};
use super::load::Config;
use super::sockets::sockets;

/// A drain is a wait of the stop, and systemd waits longer (`TimeoutStopSec`); shorter than this a full block is not written.
pub(super) const DRAIN_MIN: Span = Span(Duration::from_millis(100));
/// A core sleeps up to 50 ms and the control thread looks every 100 ms: below ten looks a busy host would look like a stall.
pub(super) const STALL_MIN: Span = Span(Duration::from_secs(1));
/// Longer, and nobody is waiting any more.
pub(super) const CONTROL_MAX: Span = Span(Duration::from_secs(3_600));
/// Entries of the XDP program's map of groups: one for each address and port, one more for each address, which later fragments
/// are found by (`sluice-bpf-common::GROUPS_MAX`, held equal by a test).
pub(super) const GROUP_ENTRIES_MAX: usize = 4_096;

pub(super) fn check_shared(config: &Config, findings: &mut Findings) {
    check_control(config, findings);
    check_sockets(config, findings);
    check_directories(config, findings);
    check_ring_files(config, findings);
    check_groups(config, findings);
}

fn check_control(config: &Config, findings: &mut Findings) {
    let control = &config.control;
    let listen = Listen::Address(control.listen);
    if !listen.is_loopback() && !control.insecure {
        findings.add(
            "control: listen",
            format!(
                "is \"{listen}\", which other hosts reach, and the control server answers whoever asks: listen on \"127.0.0.1:{}\" (and reach it over a tunnel, or a proxy that asks for a password), or set insecure = true",
                listen.port()
            ),
        );
    }
    for host in control.hosts.iter().filter(|host| !is_host_name(host)) {
        findings.add(
            "control: hosts",
            format!(
                "has \"{host}\": a name of this host alone is meant, such as \"box7.example.net\", without a scheme, a port or a path (addresses are answered anyway)"
            ),
        );
    }
    range(findings, "control: drain".into(), control.drain, DRAIN_MIN, CONTROL_MAX);
    range(findings, "control: stall".into(), control.stall, STALL_MIN, CONTROL_MAX);
}

/// Whether a text is a name as DNS and resolvers have it: labels of letters, digits, `-` and `_` between points.
fn is_host_name(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(legal);
    text.len() <= 253 && text.strip_suffix('.').unwrap_or(text).split('.').all(label)
}

fn check_sockets(config: &Config, findings: &mut Findings) {
    let sockets = sockets(config);
    for (index, socket) in sockets.iter().enumerate() {
        for other in sockets[..index].iter().filter(|other| other.collides(socket)) {
            findings.add(
                socket.key.clone(),
                format!(
                    "is \"{}\", but {} listens on {} already: take another port",
                    socket.address, other.owner, other.address
                ),
            );
        }
    }
}

/// A directory that is written, and whose.
struct Written {
    key: String,
    owner: String,
    path: PathBuf,
}

fn written(config: &Config) -> Vec<Written> {
    let store = |store: &super::capture::Store| Written {
        key: format!("store \"{}\": path", store.name),
        owner: format!("store \"{}\"'s", store.name),
        path: lexical(&store.path),
    };
    let mut written: Vec<Written> = config.stores.iter().map(store).collect();
    if let Some(serve) = &config.ledger.serve {
        let ledger = |key: &str, owner: &str, path: &Path| Written {
            key: format!("ledger.serve: {key}"),
            owner: owner.into(),
            path: lexical(path),
        };
        written.push(ledger("data_dir", "where ledgers are kept", &serve.segments_dir()));
        if serve.source == LedgerSource::Captive {
            written.push(ledger("storage_dir", "stellar-core's own", &serve.storage_dir()));
        }
    }
    if let Some(dir) = &config.report.dir {
        written.push(Written {
            key: "report: dir".into(),
            owner: "where reports are written".into(),
            path: lexical(dir),
        });
    }
    written
}

/// Each store, the kept ledgers, a ledger node and the reports have a directory of their own, and none lies in another's: what deletes the oldest
/// files, or copies a directory away, would meet files of somebody else.
fn check_directories(config: &Config, findings: &mut Findings) {
    let written = written(config);
    for (index, one) in written.iter().enumerate() {
        for other in &written[..index] {
            let (path, theirs) = (one.path.display(), other.path.display());
            let (key, what) = if one.path == other.path {
                (&one.key, format!("leads to \"{path}\", which is {} already", other.owner))
            } else if one.path.starts_with(&other.path) {
                (&one.key, format!("leads to \"{path}\", inside of \"{theirs}\", which is {}", other.owner))
            } else if other.path.starts_with(&one.path) {
                (&one.key, format!("leads to \"{path}\", and \"{theirs}\" inside of it is {}", other.owner))
            } else {
                continue;
            };
            findings.add(key.clone(), format!("{what}: one directory each"));
        }
    }
}

/// A ring has one writer, and a mirror that is served where it comes from would copy itself.
fn check_ring_files(config: &Config, findings: &mut Findings) {
    let mut writers: BTreeMap<PathBuf, String> = BTreeMap::new();
    let feeds = config.feeds.iter().filter_map(|feed| {
        let path = feed.publish.as_ref()?;
        Some((format!("feed \"{}\"", feed.name), "publish", path))
    });
    let mirrors =
        config.ring.mirrors.iter().map(|mirror| (format!("ring.mirror \"{}\"", mirror.name), "ring", &mirror.ring));
    for (owner, key, path) in feeds.chain(mirrors) {
        if let Some(other) = writers.get(&lexical(path)) {
            findings.add(
                format!("{owner}: {key}"),
                format!(
                    "is \"{}\", which {other} writes already: a ring has one writer; take a file of its own",
                    path.display()
                ),
            );
            continue;
        }
        writers.insert(lexical(path), owner);
    }
}

/// A (group, port) on one interface belongs to one side of one feed, and the program has room for so many.
fn check_groups(config: &Config, findings: &mut Findings) {
    let mut owners: BTreeMap<(&str, SocketAddrV4), String> = BTreeMap::new();
    for feed in &config.feeds {
        for side in feed.sides.iter().filter(|side| side.source == SourceKind::AfXdp) {
            let owner = format!("feed \"{}\" side \"{}\"", feed.name, side.name);
            let Some(interface) = side.interface.as_deref() else { continue };
            for group in &side.groups {
                // What is no group is the side's own finding.
                let Ok(address) = group.parse::<SocketAddrV4>() else { continue };
                if let Some(other) = owners.insert((interface, address), owner.clone()) {
                    let what = match other == owner {
                        true => format!("{group} stands there twice: remove one"),
                        false => format!(
                            "{group} on {interface} is {other}'s already: a group and port on one interface belong to one side"
                        ),
                    };
                    findings.add(format!("{owner}: groups"), what);
                }
            }
        }
    }
    for interface in &config.interfaces {
        let of_it = owners.keys().filter(|(name, _)| *name == interface.name);
        let addresses: std::collections::BTreeSet<_> = of_it.clone().map(|(_, group)| *group.ip()).collect();
        let entries = of_it.count() + addresses.len();
        if entries > GROUP_ENTRIES_MAX {
            findings.add(
                format!("interface \"{}\"", interface.name),
                format!(
                    "its groups take {entries} entries (one for each address and port, one more for each address), but the program has room for {GROUP_ENTRIES_MAX}: take another port of the NIC for some of the feeds"
                ),
            );
        }
    }
}

/// The path without `.`, `..` and doubled slashes. Neither links nor the working directory are looked at: that is for those who
/// touch files.
pub(super) fn lexical(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if plain.file_name().is_some_and(|name| name != "..") => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use crate::config::{check, parse};

    const ALL: &str = r#"
        [[core]]
        name = "c"
        cpu = 0
        [[core]]
        name = "d"
        cpu = 1
        [[interface]]
        name = "eth1"
        cores = ["c"]
        frames = 65536
        [[feed]]
        name = "x"
        protocol = "iex-tp"
        core = "c"
        store = "one"
        publish = "/dev/shm/x"
        [[feed.side]]
        name = "A"
        interface = "eth1"
        groups = ["239.1.1.1:1"]
        [[feed]]
        name = "y"
        protocol = "iex-tp"
        core = "c"
        publish = "/dev/shm/y"
        [[feed.side]]
        name = "A"
        interface = "eth1"
        groups = ["239.1.1.2:1"]
        [[store]]
        name = "one"
        path = "/data/one"
        core = "c"
        [[store]]
        name = "two"
        path = "/data/two"
        core = "d"
        [[ring.serve]]
        name = "s"
        core = "c"
        ring = "/dev/shm/x"
        bind = "0.0.0.0:7400"
        udp = 7403
        [[ring.mirror]]
        name = "m"
        core = "c"
        source = "10.0.0.9:7400"
        ring = "/dev/shm/m"
        [ledger.serve]
        core = "c"
        data_dir = "/data/ledgers"
        [control]
        listen = "127.0.0.1:9480"
    "#;

    #[test]
    fn what_two_sections_cannot_both_have_is_told_with_both_names() {
        assert_eq!(check(&parse(ALL).expect("parses")), []);
        let named = ALL.replace("[control]", "[control]\nhosts = [\"box7.example.net\", \"box_7.\"]");
        assert_eq!(check(&parse(&named).expect("parses")), []);
        for (from, to, told) in [
            ("127.0.0.1:9480", "0.0.0.0:9480", "control: listen: is \"0.0.0.0:9480\", which other hosts reach"),
            (
                "[control]",
                "[control]\nhosts = [\"box7:9480\"]",
                "control: hosts: has \"box7:9480\": a name of this host",
            ),
            (
                "0.0.0.0:7400",
                "127.0.0.1:9480",
                "ring.serve \"s\": bind: is \"127.0.0.1:9480\", but [control] listens on 127.0.0.1:9480",
            ),
            ("0.0.0.0:7400", "[::]:9480", "ring.serve \"s\": bind: is \"[::]:9480\", but [control] listens"),
            (
                "0.0.0.0:7400",
                "0.0.0.0:8462",
                "ledger.serve: listen: is \"127.0.0.1:8462\", but ring.serve \"s\" listens",
            ),
            (
                "/data/two",
                "/data/./one/",
                "store \"two\": path: leads to \"/data/one\", which is store \"one\"'s already",
            ),
            ("/data/two", "/data/one/two", "inside of \"/data/one\", which is store \"one\"'s"),
            (
                "/data/one",
                "/data/two/one",
                "store \"two\": path: leads to \"/data/two\", and \"/data/two/one\" inside of it is store \"one\"'s",
            ),
            (
                "[control]",
                "[report]\ndir = \"/data/one/reports\"\n[control]",
                "report: dir: leads to \"/data/one/reports\", inside of \"/data/one\", which is store \"one\"'s",
            ),
            (
                "/data/ledgers",
                "/data/two",
                "ledger.serve: data_dir: leads to \"/data/two/ledgers\", inside of \"/data/two\"",
            ),
            (
                "/data/two",
                "/data/ledgers/ledgers",
                "ledger.serve: data_dir: leads to \"/data/ledgers/ledgers\", which is store",
            ),
            (
                "/dev/shm/y",
                "/dev/shm/../shm/x",
                "feed \"y\": publish: is \"/dev/shm/../shm/x\", which feed \"x\" writes already",
            ),
            ("/dev/shm/m", "/dev/shm/y", "ring.mirror \"m\": ring: is \"/dev/shm/y\", which feed \"y\" writes already"),
            (
                "239.1.1.2:1",
                "239.1.1.1:1",
                "feed \"y\" side \"A\": groups: 239.1.1.1:1 on eth1 is feed \"x\" side \"A\"'s",
            ),
            (
                "\"239.1.1.2:1\"",
                "\"239.1.1.2:1\", \"239.1.1.2:1\"",
                "feed \"y\" side \"A\": groups: 239.1.1.2:1 stands there twice",
            ),
        ] {
            assert!(ALL.contains(from), "{from}");
            let findings = check(&parse(&ALL.replace(from, to)).expect("parses"));
            let texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
            assert!(texts.len() == 1 && texts[0].contains(told), "{to}: {told}: {texts:#?}");
        }
    }

    #[test]
    fn the_control_server_listens_beyond_the_host_only_when_told() {
        let open = ALL.replace("127.0.0.1:9480", "0.0.0.0:9480").replace("[control]", "[control]\ninsecure = true");
        assert_eq!(check(&parse(&open).expect("parses")), []);
    }

    #[test]
    fn more_groups_than_the_program_has_room_for_are_counted() {
        let many: Vec<String> = (0..2_049).map(|port| format!("\"239.1.1.2:{}\"", port + 1)).collect();
        let fits = ALL.replace("\"239.1.1.2:1\"", &many.join(", "));
        assert_eq!(check(&parse(&fits).expect("parses")), []);
        let hosts: Vec<String> = (0..2_049).map(|at| format!("\"239.2.{}.{}:1\"", at / 250, at % 250)).collect();
        let findings = check(&parse(&ALL.replace("\"239.1.1.2:1\"", &hosts.join(", "))).expect("parses"));
        assert!(findings.len() == 1 && findings[0].what.contains("4100 entries"), "{findings:?}");
    }
}
