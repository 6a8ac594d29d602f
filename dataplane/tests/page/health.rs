//! The probes of a real process: what is wrong is said with its reason, and over when it is over.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};

use sluice::sync::health::HealthReason;

use crate::common::mirrors::{Shm, Sluice, Source, serve, tcp_address, until};

/// The whole answer of one path.
fn ask(control: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(control).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn stat(control: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["stat", "--control", control]).args(more).output().expect("our own program")
}

#[test]
fn a_mirror_and_a_relay_without_their_sources_are_told_and_over_when_they_come() {
    let (control, source, upstream) = (tcp_address(), tcp_address(), tcp_address());
    let (ring, copy) = (Shm::new("health-source"), Shm::new("health-copy"));
    let folder = tempfile::tempdir().expect("a directory");
    let cpu = sluice::sys::cpu::allowed()[0];
    let text = format!(
        "core = [{{ name = \"one\", cpu = {cpu} }}]\n\
         [[ring.mirror]]\nname = \"book\"\ncore = \"one\"\nsource = \"{source}\"\nring = \"{}\"\nreconnect = \"50ms\"\n\
         [ledger.serve]\ncore = \"one\"\nlisten = \"{}\"\nsource = \"follow\"\nupstream = \"ws://{upstream}\"\ndata_dir = \"{}\"\n\
         [control]\nlisten = \"{control}\"\n",
        copy.text(),
        tcp_address(),
        folder.path().join("relay").display(),
    );
    let config = folder.path().join("health.toml");
    std::fs::write(&config, text).expect("writable");
    let appliance = Sluice::start(&["run", config.to_str().expect("text")]);

    let told = until("it is started and its upstream unknown", || {
        ask(&control, "/readyz").filter(|answer| answer.contains("ledger_not_begun"))
    });
    assert!(told.starts_with("HTTP/1.1 503"), "{told}");
    let told = until("the mirror has been without its source for 10 s", || {
        ask(&control, "/healthz").filter(|answer| answer.starts_with("HTTP/1.1 503"))
    });
    let line = format!("mirror_disconnected: mirror \"book\": it has no session with {source}, for ");
    assert!(told.contains(&line), "{told}");
    let (checked, whole) = (stat(&control, &["--check"]), stat(&control, &[]));
    assert_eq!((checked.status.code(), whole.status.code()), (Some(1), Some(0)));
    let text = String::from_utf8(checked.stdout).expect("text");
    assert!(text.starts_with("UNHEALTHY, not ready\n") && text.contains("  mirror_disconnected: "), "{text}");
    let text = String::from_utf8(whole.stdout).expect("text");
    assert!(text.contains("UNHEALTHY") && text.contains("THE UPSTREAM SERVER IS NOT CONNECTED"), "{text}");

    let _producer = Source::create(&ring, 1 << 10, 1);
    let _served = serve(&ring, &source, &[]);
    let data = folder.path().join("upstream");
    let data = data.to_str().expect("text");
    let served = ["ledger", "serve", "--listen", &upstream, "--source", "synthetic", "--data-dir", data];
    let _upstream = Sluice::start(&served);
    until("both are there, and 5 s are calm", || {
        let well = |path| ask(&control, path).is_some_and(|answer| answer.ends_with("\r\n\r\nok\n"));
        (well("/healthz") && well("/readyz")).then_some(())
    });
    assert_eq!(stat(&control, &["--check"]).status.code(), Some(0));
    let log = appliance.log();
    let lines = |part: &str| log.lines().filter(|line| line.contains(part)).count();
    assert_eq!(lines("unhealthy: mirror"), 1, "one line when it begins\n{log}");
    assert_eq!(lines("over: mirror"), 1, "one when it ends\n{log}");
    assert_eq!(appliance.terminate(), Some(0));
}

#[test]
fn the_manual_has_every_reason_with_what_it_does() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating/monitor.md");
    let text = std::fs::read_to_string(path).expect("the manual");
    for reason in HealthReason::ALL {
        let row = format!("| `{}` | {} |", reason.label(), reason.level().label().replace('_', " "));
        assert!(text.contains(&row), "docs/operating/monitor.md has no row that begins with {row}");
    }
}
