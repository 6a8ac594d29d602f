//! What serving does to the source: nothing. It maps the ring read-only, and sixteen streams are sixteen streams.

use std::path::Path;

use sluice::ring::consumer::StartAt;

use super::appliance::{sluice, until};
use super::ring::{By, PATIENCE, Running, lan, mirror, serve};
use crate::common::hosts::Host;
use crate::common::mirrors::Shm;
use crate::common::rings::{Reader, Writer};

/// The permissions under which a process maps a file, with the bytes mapped: `("r--s", 4096)`.
fn mappings(process: u32, file: &Path) -> Vec<(String, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{process}/maps")).expect("the process runs");
    let name = file.to_str().expect("text");
    let lines = text.lines().filter(|line| line.ends_with(name));
    lines
        .map(|line| {
            let mut words = line.split_whitespace();
            let (from, to) = words.next().expect("a range").split_once('-').expect("a range");
            let number = |text| u64::from_str_radix(text, 16).expect("a number");
            (words.next().expect("permissions").to_owned(), number(to) - number(from))
        })
        .collect()
}

/// The ring that a serve has open, with a mirror that gets records, mapped as `judge` says.
fn served(name: &str, flags: &str, judge: impl Fn(&[(String, u64)])) -> Option<()> {
    let host = Host::new("host")?;
    let (source, copy) = (Shm::new(name), Shm::new(&format!("{name}-m")));
    let writer = Writer::start(source.path(), 1 << 12, 1, 2_000, 2_000);
    let serving = Running::start(&host, &format!("ring serve {} --bind 127.0.0.1:7400 {flags}", source.text()));
    let mirroring = mirror(&host, "127.0.0.1", &copy, "", By::Tcp, "oldest");
    let mut reader = Reader::open(copy.path(), StartAt::Oldest, PATIENCE);
    reader.read_until("records", PATIENCE, |seen| seen.last == 2_000);
    // `setpriv` has become the command by then: it maps the ring.
    let found = until("the serve's mappings", || {
        let found = mappings(serving.child.id(), source.path());
        (!found.is_empty()).then_some(found)
    });
    judge(&found);
    mirroring.end();
    serving.end();
    writer.end();
    Some(())
}

#[test]
fn ring_serve_readonly() {
    let bytes = 128 + 64 * (1 << 12);
    served("readonly-spin", "--spin", |found| {
        assert!(found.iter().all(|(mode, _)| mode == "r--s"), "a spinning serve writes nothing: {found:?}");
        assert!(found.iter().any(|(_, size)| *size >= bytes), "{found:?}");
    });
    served("readonly-park", "", |found| {
        let writable: Vec<_> = found.iter().filter(|(mode, _)| mode.contains('w')).collect();
        assert!(
            writable.iter().all(|(_, size)| *size == 4_096) && writable.len() <= 1,
            "only the header's page may be writable, for the futex: {found:?}"
        );
        assert!(found.iter().any(|(mode, size)| mode == "r--s" && *size >= bytes), "{found:?}");
    });
    // A ring whose file nobody may write can still be served.
    let Some(host) = Host::new("host") else { return };
    let (source, copy) = (Shm::new("readonly-file"), Shm::new("readonly-file-m"));
    let writer = Writer::start(source.path(), 1 << 12, 1, 1_000, 10_000);
    std::fs::set_permissions(source.path(), std::os::unix::fs::PermissionsExt::from_mode(0o444)).expect("its owner");
    let words = format!("ring serve {} --bind 127.0.0.1:7400", source.text());
    let arguments: Vec<&str> = words.split_whitespace().collect();
    let mut command = std::process::Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--reuid", "65534", "--clear-groups", "--bounding-set", "-all", "--"]);
    command.arg(sluice(Path::new("/"), &[]).get_args().nth(3).expect("the binary")).args(&arguments);
    let mut serving = host.spawn(command);
    let mirroring = mirror(&host, "127.0.0.1", &copy, "", By::Tcp, "oldest");
    let mut reader = Reader::open(copy.path(), StartAt::Oldest, PATIENCE);
    reader.read_until("records of a ring that serve may only read", PATIENCE, |seen| seen.last == 1_000);
    let found = mappings(serving.id(), source.path());
    assert!(!found.is_empty() && found.iter().all(|(mode, _)| mode == "r--s"), "{found:?}");
    mirroring.end();
    serving.kill().expect("runs");
    serving.wait().expect("ends");
    writer.end();
}

#[test]
fn ring_16_mirrors_by_tcp_are_all_complete() {
    const MIRRORS: usize = 16;
    const RECORDS: u64 = 4_000;
    let Some((hosts, _switch)) = lan(1 + MIRRORS) else { return };
    let source = Shm::new("sixteen-tcp");
    let copies: Vec<Shm> = (0..MIRRORS).map(|index| Shm::new(&format!("sixteen-tcp-{index}"))).collect();
    let writer = Writer::start(source.path(), 1 << 13, 1, RECORDS, 1_000);
    let serving = serve(&hosts[0], &source, "10.7.0.1", By::Tcp);
    let start = |(index, copy): (usize, &Shm)| mirror(&hosts[index + 1], "10.7.0.1", copy, "", By::Tcp, "oldest");
    let mirroring: Vec<Running> = copies.iter().enumerate().map(start).collect();
    for copy in &copies {
        let mut reader = Reader::open(copy.path(), StartAt::Oldest, PATIENCE);
        reader.read_until("every record", PATIENCE, |seen| seen.last == RECORDS);
        reader.assert_dense();
        assert_eq!(reader.runs[0].first, 1);
    }
    mirroring.into_iter().for_each(Running::end);
    serving.end();
    writer.end();
}
