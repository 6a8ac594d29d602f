//! The wall clock is set, forward and back, while the whole process runs: for this one process only, by a library
//! (`wall_clock.c`) between it and the C library. What the kernel reads itself is not set: the stamps that the XDP program
//! takes of frames, and files' times. (Debian's libfaketime does not do: it allocates at its first look at the clock, which
//! our allocator takes while it begins.)

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};

use serde_json::Value;

use super::appliance::{Config, Run, check_store, done, emitted, get, until, workspace};
use super::faults::{Load, load};
use crate::common::mirrors::Shm;
use crate::common::netns::{self, Veth, command};

/// Everything that goes by the wall clock beside capture and store: a ring's epoch, ledgers that are kept by age.
const LEDGERS: &str = "\n[ledger.serve]\ncore = \"work\"\nlisten = \"127.0.0.1:8462\"\nsource = \"synthetic\"\n\
     synthetic_size = \"16KiB\"\nsynthetic_interval = \"50ms\"\nemit_window = \"5ms\"\nretention_age = \"30m\"\n\
     data_dir = \"ledgers\"\nspin = \"never\"\n";

/// A process's own wall clock.
struct WallClock {
    library: PathBuf,
    hours: PathBuf,
}

impl WallClock {
    /// Builds the library in `directory`, with the compiler that every build of this project needs.
    fn new(directory: &Path) -> WallClock {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/net/wall_clock.c");
        let clock = WallClock { library: directory.join("wall_clock.so"), hours: directory.join("hours") };
        command("cc", &format!("-O2 -Wall -Werror -shared -fPIC {source} -o {}", clock.library.display()));
        clock.set(0);
        clock
    }

    /// Sets it so many hours from the true time, at once. (One byte is never half written.)
    fn set(&self, hours: i8) {
        let file = std::fs::File::options().write(true).create(true).truncate(false).open(&self.hours);
        file.and_then(|file| file.write_at(&hours.to_ne_bytes(), 0)).expect("writable");
    }

    /// What a process needs in its environment to go by it.
    fn variables(&self) -> [(&str, &str); 3] {
        [
            ("LD_PRELOAD", self.library.to_str().expect("text")),
            ("WALL_CLOCK_HOURS", self.hours.to_str().expect("text")),
            ("SLUICE_LOG", "info"),
        ]
    }
}

/// The epoch of the newest record in the ring.
fn ring_epoch(directory: &Path, ring: &Shm) -> Option<u64> {
    let told = done(directory, &["ring", "tail", ring.text(), "--count", "1", "--json"]);
    serde_json::from_str::<Value>(told.lines().last()?).ok()?["clock_epoch"].as_u64()
}

/// The process saw that its clock was set by this, said so, and goes on as before.
fn check_step(run: &Run, directory: &Path, ring: &Shm, steps: u64, seconds: i64) {
    let clock = |status: &Value| status["process"]["clock"].clone();
    let status = run.until("the step is seen", |status| clock(status)["steps"].as_u64() >= Some(steps));
    let seen = clock(&status)["last_step_seconds"].as_f64().expect("a number");
    assert_eq!(clock(&status)["steps"], steps, "each step is one: {}", clock(&status));
    assert!((seen - seconds as f64).abs() < 1.0, "set by {seen} s, but {seconds} was asked for");
    let lines =
        || run.log().lines().filter(|line| line.contains("times on either side are not to be compared")).count();
    until("the step is in the log, once", || (lines() == steps as usize).then_some(()));
    let metrics = get("/metrics").expect("answers");
    let counted = format!("sluice_clock_steps_total {steps}");
    assert!(metrics.lines().any(|line| line.trim_end_matches(".0") == counted), "{counted:?} is not in\n{metrics}");
    // A clock that was set is told of; it makes nothing unhealthy.
    for path in ["/healthz", "/readyz"] {
        assert!(get(path).is_ok(), "{path} after a step: {:#}", run.status()["health"]);
    }
    let before = emitted(&status);
    run.until("the capture goes on", |status| emitted(status) > before + 1_000);
    until("the ring's records are of the next epoch", || (ring_epoch(directory, ring)? == steps).then_some(()));
}

#[test]
fn a_wall_clock_that_is_set_forward_and_back_is_told_and_costs_nothing() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let (a, b) = (Veth::new("a", 1, 1500), Veth::new("b", 1, 1500));
        let ring = Shm::new("clock");
        let config = Config {
            sides: vec![&a.inside, &b.inside],
            feed: &format!("link = 1024\nhold = \"200ms\"\npublish = \"{}\"", ring.text()),
            store: "segment = \"4MiB\"\nflush = \"50ms\"",
            control: LEDGERS,
            ..Config::default()
        };
        let clock = WallClock::new(directory);
        let run = Run::start_in(directory, &config, &clock.variables());
        let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let _load = Load(&stop);
            scope.spawn(|| load(7, [&a, &b], 120, &stop, &sent));
            run.until("messages and ledgers come", |status| {
                emitted(status) > 500 && status["ledger"]["durable"].as_u64() > Some(0)
            });
            clock.set(1);
            check_step(&run, directory, &ring, 1, 3_600);
            clock.set(-1);
            check_step(&run, directory, &ring, 2, -7_200);
        });
        run.until("what is in flight arrives", |status| status["capture"]["residue"] == 0);
        // A step makes nothing older: by age nothing left, although the clock went an hour and half an hour is kept.
        assert!(run.log().contains("kept ledgers are not taken to be older for it"), "{}", run.log());
        let ledgers = run.status()["ledger"].clone();
        assert_eq!(ledgers["oldest"], 1, "{ledgers}");
        let latest = ledgers["durable"].as_u64().expect("a sequence");
        let report = run.stop();
        check_store(&report, directory);
        done(directory, &["store", "verify", "store"]);
        done(directory, &["ledger", "export", "ledgers", "--out", "dump"]);
        for sequence in 1..=latest {
            assert!(directory.join(format!("dump/ledger-{sequence}.xdr")).exists(), "ledger {sequence} of {latest}");
        }
        let info: Value = serde_json::from_str(&done(directory, &["store", "info", "store", "--json"])).expect("JSON");
        let last = info["segments"].as_array().and_then(|segments| segments.last()).expect("a segment");
        assert_eq!(last["clock_epoch"], 2, "{info}");
    });
}
