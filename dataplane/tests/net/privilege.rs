//! What is left of root when the gate opens: nothing, in no thread; and what a NIC may not do behind the capture's back.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use super::appliance::{Config, Publisher, Run, check_store, done, emitted, get, output, until, workspace};
use crate::common::netns::{self, Raw, Veth, command, ip};

/// Bytes of each message: 3,000 of them are more than five segments of 512 KiB.
const BODY_BYTES: usize = 1_000;
const MESSAGES: u64 = 3_000;

/// A field of every thread's status: its words.
fn threads(process: u32, field: &str) -> Vec<(String, Vec<String>)> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let status = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status")).ok();
    let of = |status: String| {
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name).map(str::to_string));
        let words = line(field).expect("the field").split_whitespace().map(str::to_string).collect();
        (line("Name:").expect("a name").trim().to_string(), words)
    };
    let found: Vec<_> = tasks.filter_map(|task| status(task.expect("readable"))).map(of).collect();
    assert!(found.len() > 3, "cores, log, files, control: {found:?}");
    found
}

#[track_caller]
fn check_powerless(process: u32, user: Option<u32>) {
    for field in ["CapEff:", "CapPrm:", "CapAmb:", "CapInh:"] {
        for (name, words) in threads(process, field).into_iter().filter(|(name, _)| !name.starts_with("iou-")) {
            assert_eq!(words, ["0000000000000000"], "{field} of thread {name}");
        }
    }
    for (name, words) in threads(process, "Uid:") {
        let users: BTreeSet<u32> = words.iter().map(|word| word.parse().expect("a number")).collect();
        assert_eq!(users, BTreeSet::from([user.unwrap_or(0)]), "user of thread {name}");
    }
}

fn locked_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).expect("the field");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn sealed(store: &Path) -> usize {
    let names = std::fs::read_dir(store).expect("a store").map(|entry| entry.expect("readable").path());
    names.filter(|path| path.extension().is_some_and(|extension| extension == "tri")).count()
}

/// A user that every Debian has; its number.
fn nobody() -> u32 {
    nix::unistd::User::from_name("nobody").expect("readable").expect("Debian has it").uid.as_raw()
}

fn send_all(veth: &Veth, run: &Run) {
    let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(7, BODY_BYTES));
    for sent in 1..=MESSAGES {
        sender.send(&publisher.frame(1));
        // Half a receive ring at a time: this is about rights, not about rates.
        if sent % 256 == 0 {
            run.until("they came", |status| emitted(status) == sent);
        }
    }
    run.until("all came", |status| emitted(status) == MESSAGES);
}

#[test]
fn as_another_user_without_any_capability_segments_are_rotated_and_the_ring_is_made() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let veth = Veth::new("v", 2, 1500);
        let ring = format!("/dev/shm/sluice-privilege-{}", std::process::id());
        let run = Run::start(
            directory,
            &Config {
                sides: vec![&veth.inside],
                store: "segment = \"512KiB\"\nblock = \"128KiB\"\nblocks_in_flight = 16",
                feed: &format!("link = 1024\npublish = \"{ring}\""),
                control: "\n[process]\nuser = \"nobody\"",
                ..Config::default()
            },
        );
        check_powerless(run.id(), Some(nobody()));
        assert!(locked_kib(run.id()) > 8 << 10, "{} KiB are locked", locked_kib(run.id()));
        send_all(&veth, &run);
        check_powerless(run.id(), Some(nobody()));
        assert!(sealed(&directory.join("store")) >= 3, "{}", sealed(&directory.join("store")));
        for path in [directory.join("store"), ring.clone().into()] {
            assert_eq!(std::fs::metadata(&path).expect("there").uid(), nobody(), "{}", path.display());
        }
        let report = run.stop();
        check_store(&report, directory);
        done(directory, &["store", "verify", "store"]);
        let _ = std::fs::remove_file(ring);
    });
}

#[test]
fn root_without_a_user_to_become_keeps_no_capability_either() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 1, 1500);
        let config = Config {
            sides: vec![&veth.inside],
            store: "segment = \"512KiB\"\nblock = \"128KiB\"",
            ..Config::default()
        };
        let run = Run::start(folder.path(), &config);
        check_powerless(run.id(), None);
        assert!(run.log().contains("runs as root, without capabilities: set process.user"), "{}", run.log());
        send_all(&veth, &run);
        let report = run.stop();
        check_store(&report, folder.path());
        assert!(sealed(&folder.path().join("store")) >= 3);
    });
}

/// As the unit starts it: an unprivileged user with ambient capabilities; IPC_LOCK in place of its LimitMEMLOCK=infinity, which not
/// every container lets root set.
#[test]
fn ambient_capabilities_are_used_to_start_and_given_up() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let veth = Veth::new("v", 1, 1500);
        let config = Config { sides: vec![&veth.inside], ..Config::default() }.write(directory);
        command("chown", &format!("-R nobody {}", directory.display()));
        let capabilities = "-all,+bpf,+perfmon,+net_admin,+net_raw,+ipc_lock";
        let log = std::fs::File::create(directory.join("run.log")).expect("writable");
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"])
            .args(["--inh-caps", capabilities, "--ambient-caps", capabilities, "--bounding-set", capabilities])
            .args(["--", env!("CARGO_BIN_EXE_sluice"), "run", config])
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("setpriv is there");
        let told = || std::fs::read_to_string(directory.join("run.log")).unwrap_or_default();
        until("it answers", || {
            let ended = child.try_wait().expect("a child of ours");
            assert!(ended.is_none(), "it ended ({ended:?}): {}", told());
            get("/readyz").ok()
        });
        check_powerless(child.id(), Some(nobody()));
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("it runs");
        let ended = until("it ends", || child.try_wait().expect("a child of ours"));
        assert!(ended.success(), "{ended}: {}", told());
    });
}

#[test]
fn a_directory_of_somebody_else_and_a_user_that_is_not_there_are_refused_with_what_to_do() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let veth = Veth::new("v", 1, 1500);
        std::fs::create_dir(directory.join("store")).expect("makes");
        let refused = |process: &str| {
            let control = format!("\n[process]\n{process}");
            let config = Config { sides: vec![&veth.inside], control: &control, ..Config::default() };
            let done = output(directory, &["run", config.write(directory)]);
            (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
        };
        let (code, told) = refused("user = \"nobody\"");
        assert_eq!(code, Some(4), "{told}");
        assert!(told.contains("store: user ") && told.contains("chown "), "{told}");
        let (code, told) = refused("user = \"no-such-user\"");
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains("no user \"no-such-user\" on this host"), "{told}");
        assert!(!directory.join("store").read_dir().expect("there").any(|_| true), "nothing was made");
        ip(&format!("link set {} up", veth.inside));
    });
}

#[test]
fn a_nic_that_gets_other_queues_or_loses_the_program_ends_the_process_with_the_reason() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 2, 1500);
        command("ethtool", &format!("-L {} rx 1 tx 1", veth.inside));
        command("ethtool", &format!("-L {} rx 1 tx 1", veth.outside));
        let config = Config { sides: vec![&veth.inside], ..Config::default() };
        let mut run = Run::start(folder.path(), &config);
        command("ethtool", &format!("-L {} rx 2", veth.inside));
        let code = until("it ends", || run.ended());
        assert_eq!(code, 4, "{}", run.log());
        assert!(run.log().contains("has 2 receive queues now, but had 1"), "{}", run.log());
    });
}

/// What a reload may change changes, what it may not is named, and a file that would be refused changes nothing.
#[test]
fn sighup_takes_bounds_anew_and_names_what_needs_a_restart() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let veth = Veth::new("v", 1, 1500);
        let ledgers = |kept: u32| {
            format!(
                "\n[ledger.serve]\ncore = \"rx\"\nlisten = \"127.0.0.1:8462\"\nsource = \"synthetic\"\nsynthetic_size = \"4KiB\"\n\
                 synthetic_interval = \"20ms\"\nemit_window = \"0ms\"\ndata_dir = \"ledgers\"\nspin = \"never\"\nretention = {kept}\n"
            )
        };
        let (many, few) = (ledgers(10_000), ledgers(3));
        let stores = "segment = \"512KiB\"\nblock = \"128KiB\"";
        let config = Config { sides: vec![&veth.inside], store: stores, control: &many, ..Config::default() };
        let run = Run::start(directory, &config);
        send_all(&veth, &run);
        run.until("ledgers are kept", |status| status["ledger"]["latest"].as_u64() > Some(20));
        assert_eq!(run.status()["ledger"]["oldest"], 1);
        let before = sealed(&directory.join("store"));
        assert!(before >= 4, "{before}");

        std::fs::write(directory.join("config.toml"), "[[core]]\nname = \"rx\"\ncpu = 0\n").expect("writable");
        run.signal(Signal::SIGHUP);
        let told = |text: &'static str| until(text, || run.log().contains(text).then_some(()));
        told("the configuration so far stays");
        assert_eq!(run.status()["ledger"]["oldest"], 1);

        let bounded = "segment = \"512KiB\"\nblock = \"128KiB\"\nretain = \"1MiB\"";
        let feed = "link = 1024\nhold = \"300ms\"";
        Config { store: bounded, feed, control: &few, ..config.clone() }.write(directory);
        run.signal(Signal::SIGHUP);
        told("hold = \\\"300ms\\\" (so far \\\"200ms\\\"): needs a restart");
        told("ledger.serve: retention = 3 (so far 10000): holds from now on");
        run.until("older ledgers go", |status| {
            let number = |key: &str| status["ledger"][key].as_u64().expect("a number");
            number("latest") - number("oldest") <= 3
        });
        until("older segments go", || (sealed(&directory.join("store")) <= 2).then_some(()));

        // Once more: nothing is different from what runs but what needs a restart.
        let lines = run.log().matches("holds from now on").count();
        run.signal(Signal::SIGHUP);
        until("the second reload", || (run.log().matches("needs a restart").count() >= 2).then_some(()));
        assert_eq!(run.log().matches("holds from now on").count(), lines);
        run.stop();
    });
}

/// A certificate for the loopback with its key, where the configuration looks for them, and once more under its own name.
fn certificate(directory: &Path, name: &str) -> String {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_string()]).expect("a certificate");
    let authority = format!("{name}.pem");
    for file in ["cert.pem", &authority] {
        std::fs::write(directory.join(file), made.cert.pem()).expect("writable");
    }
    std::fs::write(directory.join("key.pem"), made.signing_key.serialize_pem()).expect("writable");
    authority
}

/// A token, where the configuration looks for it, and once more under its own name.
fn token(directory: &Path, name: &str) -> String {
    let text = format!("{name}-0123456789abcdef\n");
    std::fs::write(directory.join("tokens"), &text).expect("writable");
    let file = format!("{name}.token");
    std::fs::write(directory.join(&file), text).expect("writable");
    file
}

/// Whether a new client that trusts this authority and brings this token gets a ledger; what it said.
fn follows(directory: &Path, authority: &str, token: &str) -> Result<(), String> {
    let words = format!(
        "ledger follow wss://127.0.0.1:8462 --ca {authority} --token-file {token} --start 1 --end 2 --retry-for 0s"
    );
    let done = output(directory, &words.split_whitespace().collect::<Vec<_>>());
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    if done.status.success() { Ok(()) } else { Err(told) }
}

/// New secrets and another level of the log, without a restart.
#[test]
fn sighup_takes_certificate_tokens_and_the_logs_level_anew() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let veth = Veth::new("v", 1, 1500);
        let ledgers = "\n[ledger.serve]\ncore = \"rx\"\nlisten = \"127.0.0.1:8462\"\nsource = \"synthetic\"\n\
                       synthetic_size = \"4KiB\"\nsynthetic_interval = \"20ms\"\nemit_window = \"0ms\"\n\
                       data_dir = \"ledgers\"\nspin = \"never\"\ncert = \"cert.pem\"\nkey = \"key.pem\"\n\
                       tokens = \"tokens\"\n";
        let [info, error] = ["info", "error"].map(|level| format!("log = \"{level}\"{ledgers}"));
        let (old, old_token) = (certificate(directory, "old"), token(directory, "old"));
        let config = Config { sides: vec![&veth.inside], control: &info, ..Config::default() };
        // With the variable set the configuration's level would not hold.
        let run = Run::start_in(directory, &config, &[]);
        run.until("ledgers are there", |status| status["ledger"]["latest"].as_u64() > Some(2));
        follows(directory, &old, &old_token).expect("the first pair");

        let (new, new_token) = (certificate(directory, "new"), token(directory, "new"));
        follows(directory, &old, &old_token).expect("nothing changes by itself");
        run.signal(Signal::SIGHUP);
        let told = |text: &'static str| until(text, || run.log().contains(text).then_some(()));
        told("certificate read again");
        told("tokens read again");
        follows(directory, &new, &new_token).expect("the new pair");
        let refused = follows(directory, &new, &old_token).expect_err("the old token");
        assert!(refused.contains("401"), "{refused}");
        let refused = follows(directory, &old, &new_token).expect_err("the old certificate is not shown any more");
        assert!(refused.to_lowercase().contains("certificate"), "{refused}");

        Config { control: &error, ..config }.write(directory);
        run.signal(Signal::SIGHUP);
        told("holds from now on");
        // A file that would be refused is an error, and told.
        std::fs::write(directory.join("config.toml"), "[[core]]\nname = \"rx\"\ncpu = 0\n").expect("writable");
        run.signal(Signal::SIGHUP);
        told("the configuration so far stays");
        follows(directory, &new, &new_token).expect("it goes on");
        let log = run.log();
        let (before, after) = log.split_once("holds from now on").expect("told");
        assert!(before.contains("\"INFO\""), "{log}");
        let others: Vec<&str> = after.lines().skip(1).filter(|line| !line.contains("\"ERROR\"")).collect();
        assert!(others.is_empty(), "below the new level: {others:?}");
        assert!(after.contains("\"ERROR\""), "{log}");
        run.stop();
    });
}
