//! Health of a real process that loses what it captures: each reason comes with what is wrong, and goes when that is over.
//!
//! What takes a defect of this program (a residue at rest) cannot be had here, and has its test beside the sign.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use sluice::sys::clock;

use super::appliance::{CONTROL, Config, Publisher, Run, emitted, number, output, queues, until, workspace};
use super::capture::SmallDisk;
use super::stall::Held;
use crate::common::netns::{self, Raw, Veth};

/// The whole answer to one path.
fn ask(path: &str) -> String {
    let mut stream = TcpStream::connect(CONTROL).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {CONTROL}\r\n\r\n").expect("it takes a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

/// Waits until `/healthz` answers 503 with a line that begins with `line`.
#[track_caller]
fn unhealthy(line: &str) {
    until(line, || {
        let answer = ask("/healthz");
        (answer.starts_with("HTTP/1.1 503") && answer.lines().any(|told| told.starts_with(line))).then_some(())
    });
}

#[track_caller]
fn healthy() {
    until("all is well", || ask("/healthz").starts_with("HTTP/1.1 200").then_some(()));
}

/// The labels of the reasons that hold.
fn reasons(status: &Value) -> Vec<String> {
    let all = status["health"]["reasons"].as_array().expect("a list");
    all.iter().map(|reason| reason["reason"].as_str().expect("a label").to_string()).collect()
}

fn told(run: &Run, reason: &str) -> usize {
    let label = format!("\"reason\":\"{reason}\"");
    run.log().lines().filter(|line| line.contains(&label)).count()
}

#[test]
fn silent_sides_are_told_and_over_when_they_speak() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let (a, b) = (Veth::new("a", 1, 1500), Veth::new("b", 1, 1500));
        let feed = "link = 1024\nhold = \"50ms\"\nside_timeout = \"1s\"";
        let config = Config { sides: vec![&a.inside, &b.inside], feed, ..Config::default() };
        let run = Run::start(directory, &config);
        let senders = [&a, &b].map(|side| Raw::sender(&side.outside));
        let mut publisher = Publisher::new(7, 120);
        // Nothing has come since the start: that is said as such.
        unhealthy("sides_silent: feed \"deep\": no side is live; nothing has come since the start");
        let mut speak = |who: &[&Raw], until_holds: &dyn Fn(&Value) -> bool| {
            until("what the sides say is seen", || {
                let frame = publisher.frame(1);
                who.iter().for_each(|sender| sender.send(&frame));
                until_holds(&run.status()).then_some(())
            });
        };
        let both: Vec<&Raw> = senders.iter().collect();
        speak(&both, &|status| emitted(status) > 10 && reasons(status).is_empty());
        healthy();
        // One side is enough to be healthy, and is shown.
        speak(&both[1..], &|status| reasons(status) == ["side_silent"]);
        healthy();
        let before = told(&run, "sides_silent");
        unhealthy("sides_silent: feed \"deep\": no side is live, for");
        let checked = output(directory, &["stat", "--control", CONTROL, "--check"]);
        assert_eq!(checked.status.code(), Some(1), "{}", String::from_utf8_lossy(&checked.stdout));
        speak(&both, &|status| reasons(status).is_empty());
        healthy();
        assert_eq!(told(&run, "sides_silent"), before + 2, "one line as it began, one as it ended: {}", run.log());
        run.stop();
    });
}

#[test]
fn a_full_disk_is_told_and_over_when_there_is_room() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        std::fs::create_dir(directory.join("store")).expect("writable");
        let _disk = SmallDisk::new(&directory.join("store"), 24);
        let filler = directory.join("store/filler");
        std::fs::write(&filler, vec![1; 19 << 20]).expect("room");
        let veth = Veth::new("v", 1, 1500);
        let store =
            "segment = \"4MiB\"\nblock = \"128KiB\"\nblocks_in_flight = 8\nflush = \"50ms\"\nretain = \"64MiB\"";
        let config = Config { sides: vec![&veth.inside], store, ..Config::default() };
        let run = Run::start(directory, &config);
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(7, 1300));
        let mut send = |frames: u64| {
            for _ in 0..frames {
                sender.send(&publisher.frame(1));
                clock::sleep(Duration::from_micros(50));
            }
        };
        let status = until("the disk is full", || {
            send(500);
            let status = run.status();
            let reasons = reasons(&status);
            let both = reasons.contains(&"store_full".into()) && reasons.contains(&"store_losing".into());
            both.then_some(status)
        });
        assert_eq!(status["stores"][0]["bounds"]["bytes_max"], 64 << 20, "what it may keep stands beside what it does");
        unhealthy("store_full: store \"main\": the file system of store is full");
        unhealthy("store_losing: store \"main\": records could not be stored (");
        assert!(ask("/readyz").starts_with("HTTP/1.1 200"), "unhealthy is not \"not ready\"");
        std::fs::remove_file(&filler).expect("there");
        until("it is full no more", || {
            // Little: what is free must last for the calm time.
            send(1);
            (!reasons(&run.status()).contains(&"store_full".into())).then_some(())
        });
        // What was lost stays a reason for a minute after the last loss.
        unhealthy("store_losing: ");
        assert_eq!(told(&run, "store_full"), 2, "one line as it began, one as it ended: {}", run.log());
        run.stop();
    });
}

#[test]
fn messages_that_a_stopped_store_does_not_take_are_told() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 1, 1500);
        let feed = "link = 1024\nhold = \"50ms\"";
        let config = Config {
            sides: vec![&veth.inside],
            feed,
            control: "stall = \"60s\"",
            store_alone: true,
            ..Config::default()
        };
        let run = Run::start(folder.path(), &config);
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(7, 120));
        let mut send = |frames: u64| (0..frames).for_each(|_| sender.send(&publisher.frame(1)));
        send(10);
        run.until("stored", |status| status["stores"][0]["stored"].as_u64() > Some(0));
        let held = Held::new(run.id(), "sluice-work");
        // More than the link to the store holds, and slow enough for the arbiter.
        for _ in 0..40 {
            send(100);
            clock::sleep(Duration::from_millis(5));
        }
        unhealthy("messages_lost: feed \"deep\": messages could not be handed to its store or ring (");
        drop(held);
        let lost = |status: &Value| {
            let ranges = status["capture"]["not_handed_to_store"].as_array().expect("ranges").iter();
            let messages = |range: &Value| number(range, "last") - number(range, "first") + 1;
            number(&status["capture"], "not_handed_unlisted") + ranges.map(messages).sum::<u64>()
        };
        let status = run.until("the store goes on", |status| {
            let stored = status["stores"][0]["stored"].as_u64().expect("a count");
            stored + lost(status) == emitted(status) && status["capture"]["residue"] == 0
        });
        assert!(lost(&status) > 1_000, "{}", lost(&status));
        run.stop();
    });
}

#[test]
fn frames_that_a_stopped_process_lost_are_told() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 1, 1500);
        let run = Run::start(folder.path(), &Config { sides: vec![&veth.inside], ..Config::default() });
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(7, 120));
        let mut send = |frames: u64| (0..frames).for_each(|_| sender.send(&publisher.frame(1)));
        send(10);
        run.until("messages come", |status| emitted(status) > 0);
        assert!(!reasons(&run.status()).contains(&"frames_lost".into()));
        run.halt();
        // Four times what the ring holds.
        send(4_096);
        run.signal(Signal::SIGCONT);
        unhealthy(&format!("frames_lost: {} queue 0: frames were lost on this host", veth.inside));
        // The kernel's counters are read now and then, the link's are always there.
        run.until("most of the frames are counted as lost", |status| {
            let lost = ["rx_ring_full", "rx_dropped", "link_full"].map(|name| queues(status, &veth.inside, name));
            lost.iter().sum::<u64>() > 1_000
        });
        run.stop();
    });
}
