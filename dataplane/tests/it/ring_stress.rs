//! `sluice ring stress`: what it says of a run, of each mirror, of losses and of what it cannot run.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::common::mirrors::{Shm, tcp_address, until};

/// Records of a short run fit into the ring: none can be overwritten, however slow the machine is.
const SHORT: &str = "--rate 5000 --seconds 0.2 --json";

fn start(words: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["ring", "stress"]).args(words.split_whitespace()).env("SLUICE_LOG", "warn");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts")
}

/// Waits for its end, bounded; nobody runs on after a failed test.
#[track_caller]
fn ended(mut child: Child, words: &str) -> Output {
    let pid = child.id();
    let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        until(&format!("the end of {words}"), || child.try_wait().expect("our own process"))
    }));
    if status.is_err() {
        let _ = child.kill();
    }
    assert_eq!(leftovers(pid), Vec::<String>::new(), "{words}");
    child.wait_with_output().expect("ended")
}

#[track_caller]
fn run(words: &str) -> Output {
    ended(start(words), words)
}

fn leftovers(pid: u32) -> Vec<String> {
    let mark = format!("sluice-stress-{pid}-");
    let files = std::fs::read_dir("/dev/shm").expect("shared memory");
    files.flatten().map(|file| file.file_name().to_string_lossy().into_owned()).filter(|n| n.contains(&mark)).collect()
}

/// The report of a run that must end with `code`.
#[track_caller]
fn report(output: &Output, code: i32) -> Value {
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{told} {}", String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {told}"))
}

#[track_caller]
fn assert_whole(report: &Value, what: &str) {
    let delivery = &report["delivery"];
    assert_eq!(delivery["received"], delivery["expected"], "{what}: {report}");
    assert_eq!((&delivery["ratio"], &report["verdict"]), (&1.0.into(), &"whole".into()), "{what}: {report}");
    for none in ["lost", "holes", "lapped", "skipped", "reordered", "wrong", "foreign"] {
        assert_eq!(delivery[none], 0, "{what}: {none}: {report}");
    }
}

#[test]
fn every_mode_delivers_every_record_in_order() {
    let modes = [
        "",
        "--spin",
        "--even --size 120",
        "--mirror tcp",
        "--mirror tcp --spin --size 32",
        "--mirror udp --dup 2",
        "--mirror udp --inline --even",
        "--mirror udp --spin --inline --size 1024",
        "--mirror multicast --linger-us 50",
        "--mirror multicast --spin --even",
        "--mirror multicast --inline --iface 127.0.0.1",
    ];
    for mode in modes {
        let report = report(&run(&format!("{SHORT} {mode}")), 0);
        assert_whole(&report, mode);
        assert_eq!(report["delivery"]["first"], 1, "the mirror stands before the producer begins: {mode}: {report}");
        assert_eq!((&report["producer"]["pushed"], &report["delivery"]["last"]), (&1_000.into(), &1_000.into()));
        let copies = report["transport"]["duplicate_records"].as_u64().unwrap_or(0);
        assert!(copies > 0 || !mode.contains("--dup"), "{mode}: {report}");
        let datagrams = report["transport"]["datagrams"].as_u64().unwrap_or(0);
        assert_eq!(datagrams > 0, mode.contains("udp") || mode.contains("multicast"), "{mode}: {report}");
    }
}

#[test]
fn what_was_published_before_the_mirror_joined_is_history() {
    for mirror in ["tcp", "udp", "multicast"] {
        let words = format!("--rate 5000 --seconds 0.6 --json --mirror {mirror} --join-after 130ms");
        let report = report(&run(&words), 0);
        assert_whole(&report, &words);
        let first = report["delivery"]["first"].as_u64().expect("a number");
        // 650 records are due by then; a producer that is late has published fewer.
        assert!(first > 1 && first < 3_000, "{report}");
        assert_eq!(report["delivery"]["expected"], 3_001 - first, "{report}");
        assert_eq!(report["transport"]["first"], first, "{report}");
    }
}

#[test]
fn the_report_has_what_scripts_read() {
    let report = report(&run(&format!("{SHORT} --mirror udp")), 0);
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(
        keys(&report),
        "delivery latency_from_schedule_ns latency_ns mirror producer transport verdict",
        "{report}"
    );
    assert_eq!(keys(&report["producer"]), "achieved_rate burst even lateness_ns pushed rate seconds size", "{report}");
    assert_eq!(
        keys(&report["delivery"]),
        "expected first foreign holes lapped last lost ratio received reordered skipped wrong",
        "{report}"
    );
    assert_eq!(
        keys(&report["transport"]),
        "connections datagrams duplicate_records early_datagrams first gap_records gaps naks repaired_records",
        "{report}"
    );
    for times in ["latency_ns", "latency_from_schedule_ns"] {
        assert_eq!(keys(&report[times]), "count max p50 p90 p99 p999", "{report}");
        assert_eq!(report[times]["count"], 1_000, "{report}");
        let rising: Vec<u64> =
            ["p50", "p90", "p99", "p999", "max"].map(|key| report[times][key].as_u64().expect("ns")).into();
        assert!(rising.is_sorted() && rising[0] > 0, "{report}");
    }
    assert!(report["producer"]["achieved_rate"].as_f64().expect("a rate") > 0.0, "{report}");
    let text = run("--rate 5000 --seconds 0.1 --mirror tcp");
    let text = String::from_utf8(text.stdout).expect("text");
    for part in ["delivered  500 of 500 (100.0000 %)", "push-read", "late push", "verdict    whole"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn what_cannot_be_run_is_refused() {
    for (words, part) in [
        ("--rate 0", "--rate 0"),
        ("--rate 100000001", "at most 100000000"),
        ("--seconds 0", "--seconds 0"),
        ("--seconds nan", "--seconds"),
        ("--size 57", "--size 57"),
        ("--capacity 1000", "power of two"),
        ("--inline", "--mirror udp"),
        ("--inline --mirror tcp", "--mirror udp"),
        ("--dup 2 --mirror tcp", "--dup"),
        ("--dup 0 --mirror udp", "--dup"),
        ("--join-after 1s", "--mirror"),
        ("--join-after 5s --mirror tcp", "before the run"),
        ("--cpus 0,1,2", "--cpus"),
        ("--cpus 100000,100000", "cannot pin"),
        ("--mirror pigeon", "multicast"),
        ("--linger-us soon", "microseconds"),
        ("--burst 7", "--burst"),
        ("source /dev/shm/none --listen 127.0.0.1:0 --readers 0", "--readers 0"),
        ("source /dev/shm/none --listen 127.0.0.1:0 --readers 17", "at most 16"),
        ("reader /dev/shm/none", "--source"),
    ] {
        let output = run(words);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words}: {told}");
        // The limits are told as "1 to N".
        assert!(told.contains(part) || told.contains(&part.replace("at most", "1 to")), "{words}: {told}");
    }
}

#[test]
fn a_loss_without_a_word_is_told_from_a_gap_by_the_exit_code() {
    let lost = report(&run(&format!("{SHORT} --mirror udp --planted-loss 500")), 1);
    assert_eq!((&lost["delivery"]["lost"], &lost["verdict"]), (&1.into(), &"broken".into()), "{lost}");
    assert_eq!(lost["delivery"]["received"], 999, "{lost}");
    // Bursts of 500 into a ring of 64: no reader gets all, and each knows what it missed.
    let lapped = report(&run("--rate 10000000 --seconds 0.02 --capacity 64 --json"), 3);
    assert_eq!((&lapped["delivery"]["lost"], &lapped["verdict"]), (&0.into(), &"gaps".into()), "{lapped}");
    assert!(lapped["delivery"]["holes"].as_u64().expect("a number") > 0, "{lapped}");
    assert_eq!(lapped["delivery"]["holes"], lapped["delivery"]["lapped"], "{lapped}");
    // Through a mirror that is lapped too: what it left out it declared.
    for mirror in ["tcp", "udp"] {
        let words = format!("--rate 2000000 --seconds 0.05 --capacity 64 --json --mirror {mirror}");
        let gaps = report(&run(&words), 3);
        assert_eq!(gaps["delivery"]["lost"], 0, "{gaps}");
        assert!(gaps["transport"]["gap_records"].as_u64().expect("a number") > 0, "{gaps}");
    }
}

#[test]
fn a_run_that_is_stopped_leaves_nothing() {
    // However long it is until the next record.
    let words = "--seconds 3000 --rate 1 --mirror udp";
    let child = start(words);
    let pid = child.id();
    until("the rings", || (leftovers(pid).len() == 2).then_some(()));
    kill(Pid::from_raw(pid as i32), Signal::SIGTERM).expect("our own process");
    let output = ended(child, words);
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&output.stderr).contains("stopped before its end"));
}

/// Two readers, and others that are none: they cost nothing.
#[test]
fn readers_elsewhere_send_their_stamps_back() {
    let (ring, listen) = (Shm::new("stress"), tcp_address());
    let load = "--rate 5000 --seconds 0.4 --readers 2 --json";
    let source = start(&format!("source {} --listen {listen} {load}", ring.text()));
    let mut strangers: Vec<TcpStream> =
        (0..3).map(|_| until("the source listens", || TcpStream::connect(&listen).ok())).collect();
    strangers[0].write_all(b"GET / HTTP/1.1\r\n\r\n").expect("writes");
    strangers[1].write_all(&[1, 0, 0, 0, 255, 255, 255, 127]).expect("writes");
    let aheads = [3_600_000_000_000_i64, -86_400_000_000_000];
    let readers = aheads.map(|ahead| {
        let words = format!("reader {} --source {listen} --clock-ahead-ns {ahead} --json", ring.text());
        (start(&words), words)
    });
    for (child, words) in readers {
        assert_whole(&report(&ended(child, &words), 0), &words);
    }
    let report = report(&ended(source, "source"), 0);
    assert_eq!(report["producer"]["pushed"], 2_000, "{report}");
    let found = report["readers"].as_array().expect("readers");
    assert_eq!(found.len(), 2, "{report}");
    let mut left = aheads.to_vec();
    for reader in found {
        assert_whole(reader, "a reader");
        assert_eq!((&reader["one_way_ns"]["count"], &reader["timed_every"]), (&2_000.into(), &1.into()), "{reader}");
        let offset = |when: &str, key: &str| reader["clock"][when][key].as_i64().expect("ns");
        left.retain(|ahead| {
            ["before", "after"].iter().any(|when| (offset(when, "offset_ns") - ahead).abs() > offset(when, "bound_ns"))
        });
        assert_eq!(reader["error_bound_ns"], offset("before", "bound_ns").max(offset("after", "bound_ns")));
        // One clock behind both: nothing arrives before it was sent, beyond the bound of the error.
        let p50 = reader["one_way_ns"]["p50"].as_i64().expect("ns");
        assert!(p50 > -reader["error_bound_ns"].as_i64().expect("ns"), "{reader}");
        assert_eq!(reader["bound_exceeds_p50"], reader["error_bound_ns"].as_i64().expect("ns") > p50, "{reader}");
    }
    assert!(left.is_empty(), "not found: {left:?} in {report}");
}

#[test]
fn a_reader_that_loses_a_record_is_told_by_both_ends() {
    let (ring, listen) = (Shm::new("stress"), tcp_address());
    let source = start(&format!("source {} --listen {listen} --rate 5000 --seconds 0.1 --json", ring.text()));
    let words = format!("reader {} --source {listen} --planted-loss 77 --json", ring.text());
    let reader = start(&words);
    for (child, words) in [(reader, words.as_str()), (source, "source")] {
        let report = report(&ended(child, words), 1);
        assert_eq!(report["verdict"], "broken", "{report}");
    }
}

#[test]
fn readers_that_do_not_come_are_not_waited_for_for_ever() {
    let (ring, listen) = (Shm::new("stress"), tcp_address());
    let words = format!("source {} --listen {listen} --wait 200ms", ring.text());
    let source = start(&words);
    let _silent = until("the source listens", || TcpStream::connect(&listen).ok());
    let output = ended(source, &words);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(4) && told.contains("0 of 1 readers"), "{told}");
    assert!(!ring.exists(), "the ring goes with its producer");
    let words = format!("reader {} --source {listen} --wait 200ms", ring.text());
    let output = run(&words);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(4) && told.contains("--source"), "{told}");
}
