//! Rings between processes: sleepers that must wake, and kill -9 of producers and readers at any moment.
//!
//! The other process is this test binary again, told by an environment variable to play a part.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use sluice::ring::raw::RawReader;
use sluice::ring::{
    BlobConsumer, BlobProducer, ConsumerSettings, Received, RingConsumer, RingProducer, RingSettings, StartAt, Wait,
};
use sluice::sync::gate::Barrier;
use sluice::sys::futex;

use crate::ring::{Line, RingPath, line, sleeper, small, woken};

/// The part that a process plays, and its paths and numbers.
const PART: &str = "SLUICE_RING_PART";
/// Far beyond what any step takes.
const LONG: Duration = Duration::from_secs(30);

/// A process that is killed at the end, however the test ends.
struct Part(Child);

impl Part {
    fn start(part: &str, words: &[&str]) -> Part {
        let mut command = Command::new(std::env::current_exe().expect("a test binary"));
        command.args(["--exact", "ring_processes::plays_its_part", "--nocapture"]);
        command.env(PART, [&[part], words].concat().join(" "));
        command.stdout(Stdio::null()).stdin(Stdio::null());
        Part(command.spawn().expect("the test binary runs"))
    }

    /// The same in a PID namespace of its own, where it is process 1; `None` where the host forbids it.
    fn start_in_namespace(part: &str, words: &[&str]) -> Option<Part> {
        let unshare = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child"];
        let allowed = Command::new("unshare").args(unshare).arg("true").stderr(Stdio::null()).status();
        if !allowed.is_ok_and(|status| status.success()) {
            crate::common::skip("no PID namespace for this user (unshare --user --pid)", false);
            return None;
        }
        let mut command = Command::new("unshare");
        command.args(unshare).arg(std::env::current_exe().expect("a test binary"));
        command.args(["--exact", "ring_processes::plays_its_part", "--nocapture"]);
        command.env(PART, [&[part], words].concat().join(" "));
        command.stdout(Stdio::null()).stdin(Stdio::null());
        Some(Part(command.spawn().expect("unshare runs")))
    }

    /// kill -9.
    fn kill(&mut self) {
        self.0.kill().expect("ours");
        self.0.wait().expect("ours");
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test by itself: the other process of the tests below.
#[test]
fn plays_its_part() {
    let Ok(words) = std::env::var(PART) else { return };
    let words: Vec<&str> = words.split(' ').collect();
    let number = |index: usize| words[index].parse::<u64>().expect("a number");
    let path = |index: usize| PathBuf::from(words[index]);
    match words[0] {
        "answer" => answer(&path(1), &path(2), number(3)),
        "produce" => produce(&path(1), &path(2), number(3)),
        "read" => read_for_ever(&path(1)),
        "sleep" => sleep_for_ever(&path(1)),
        "read-only" => read_without_leave(&path(1), &path(2)),
        other => panic!("no part {other}"),
    }
}

/// Whether the parent is still there.
fn orphaned(parent: u64) -> bool {
    std::os::unix::process::parent_id() != parent as u32
}

fn open(path: &Path, start: StartAt) -> RingConsumer<Line> {
    let begun = Instant::now();
    loop {
        match RingConsumer::open(path, start, &ConsumerSettings::default()) {
            Ok(reader) => return reader,
            Err(error) => assert!(begun.elapsed() < LONG, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Pushes one record for each that comes, after a moment of random length: it meets the sleeper at every step of its sleep.
fn answer(asks: &Path, answers: &Path, parent: u64) {
    let mut random = Pcg64Mcg::seed_from_u64(parent);
    let mut answers = RingProducer::<Line>::create(answers, &small(8)).expect("made");
    let mut asks = open(asks, StartAt::Oldest);
    while !orphaned(parent) {
        if asks
            .recv(Wait::Backoff, Duration::from_millis(100))
            .is_ok_and(|asked| matches!(asked, Received::Record { .. }))
        {
            for _ in 0..random.random_range(0..3_000) {
                std::hint::spin_loop();
            }
            answers.push(&line(answers.sequence() + 1));
        }
    }
}

#[test]
fn no_wake_is_lost_between_processes() {
    let (asks, answers) = (RingPath::new("futex-asks"), RingPath::new("futex-answers"));
    let mut asking = RingProducer::<Line>::create(&asks, &small(8)).expect("made");
    if asking.barrier() != Barrier::Sleeper {
        // Then the producer's own fence would be what is tested, and the model does that.
        crate::common::skip("membarrier(GLOBAL_EXPEDITED) is not to be had here", false);
        return;
    }
    let parent = std::process::id().to_string();
    let _answering = Part::start("answer", &[asks.to_str().expect("text"), answers.to_str().expect("text"), &parent]);
    open(&answers, StartAt::Oldest);
    let reader = RawReader::open(&answers, true).expect("a ring");
    let word = reader.futex().expect("opened to sleep");
    let begun = Instant::now();
    let (mut sequence, mut slept) = (0, 0);
    while begun.elapsed() < Duration::from_secs(2) {
        sequence = asking.push(&line(sequence + 1));
        while reader.head() < sequence {
            if let Some(value) = reader.announce(sequence) {
                let asleep = Instant::now();
                futex::wait(word, value, LONG);
                reader.withdraw();
                assert!(asleep.elapsed() < LONG / 2, "the wake for record {sequence} was lost");
                slept += 1;
            }
        }
    }
    println!("{sequence} round trips, {slept} sleeps");
    assert!(slept > 0, "nobody slept in {sequence} round trips");
}

/// Writes a ring of records and one of blobs as fast as it can, for ever.
fn produce(records: &Path, blobs: &Path, parent: u64) {
    let heartbeat = RingSettings { heartbeat: true, ..small(16) };
    let mut records = RingProducer::<Line>::create(records, &heartbeat).expect("made");
    let mut blobs = BlobProducer::<u64>::create(blobs, &small(16), 2048).expect("made");
    while !orphaned(parent) {
        for _ in 0..1_000 {
            let sequence = records.push(&line(records.sequence() + 1));
            let words = [sequence; 40];
            let length = 8 * (1 + sequence as usize % 40);
            blobs.push(&sequence, 0, &zerocopy::IntoBytes::as_bytes(&words)[..length]).expect("short");
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Reads whole records of one life after the other, until `lives` producers were killed.
#[test]
fn producers_are_killed_at_any_moment() {
    const LIVES: usize = 6;
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let (records, blobs) = (RingPath::new("kill-records"), RingPath::new("kill-blobs"));
    let parent = std::process::id().to_string();
    let words = [records.to_str().expect("text"), blobs.to_str().expect("text"), parent.as_str()];
    let mut part = Part::start("produce", &words);
    open(&records, StartAt::Oldest);
    let follow = ConsumerSettings { follow: true, ..ConsumerSettings::default() };
    let mut reader = RingConsumer::<Line>::open(&records, StartAt::Oldest, &follow).expect("a ring");
    let mut blob_reader = loop {
        match BlobConsumer::<u64>::open(&blobs, StartAt::Oldest, &follow) {
            Ok(reader) => break reader,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let mut incarnations = vec![reader.incarnation()];
    for life in 0..LIVES {
        let kill_at = Instant::now() + Duration::from_millis(random.random_range(1..60));
        let mut killed: Option<Instant> = None;
        let (mut last, mut died) = (0, false);
        loop {
            if killed.is_none() && Instant::now() >= kill_at {
                part.kill();
                killed = Some(Instant::now());
            }
            match reader.recv(Wait::Futex { spins: 16 }, Duration::from_millis(5)).expect("readable") {
                Received::Record { sequence, record } => {
                    assert_eq!(record, line(sequence), "record {sequence} of life {life} is torn");
                    assert!(sequence > last, "{sequence} after {last} in life {life}");
                    last = sequence;
                }
                Received::Died => {
                    let took = killed.expect("it dies only when killed").elapsed();
                    assert!(took < Duration::from_secs(5), "its death was noticed after {took:?}");
                    assert!(!std::mem::replace(&mut died, true), "said once");
                    part = Part::start("produce", &words);
                }
                Received::Replaced { followed, incarnation } => {
                    assert!(followed && died && !incarnations.contains(&incarnation));
                    incarnations.push(incarnation);
                    break;
                }
                // A producer on a busy machine may be late with its beats, a killed one is.
                Received::Stalled | Received::Resumed | Received::TimedOut => {}
            }
            let words =
                |view: &sluice::ring::BlobView<'_>| (0..view.len() / 8).map(|at| view.word(at)).collect::<Vec<_>>();
            while let Some(seen) = blob_reader.view(words) {
                if let Ok((record, words)) = seen {
                    assert!(words.iter().all(|word| *word == Some(record.meta)), "blob {} is torn", record.sequence);
                    assert_eq!(record.meta, record.sequence);
                }
                if killed.is_none() {
                    break;
                }
            }
            assert!(killed.is_none_or(|killed| killed.elapsed() < LONG), "no successor in life {life}");
        }
        let mut out = Vec::new();
        let replaced = (0..10_000).any(|_| {
            let received = blob_reader.recv(Wait::Backoff, Duration::from_millis(5), &mut out).expect("readable");
            matches!(received, Received::Replaced { followed: true, .. })
        });
        assert!(replaced, "the blobs' reader follows in life {life}");
    }
}

/// Reads a lossless ring until it is killed.
fn read_for_ever(path: &Path) {
    let mut reader = open(path, StartAt::Head);
    loop {
        let _ = reader.recv(Wait::Backoff, Duration::from_millis(100));
    }
}

/// A lossless producer goes on when one of its readers is killed, and the others lose nothing.
#[test]
fn readers_are_killed_at_any_moment() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let path = RingPath::new("kill-readers");
    let settings = RingSettings { lossless: true, readers_max: Some(4), ..small(64) };
    let mut producer = RingProducer::<Line>::create(&path, &settings).expect("made");
    let mut reader = open(&path, StartAt::Oldest);
    let (mut part, mut kills) = (Part::start("read", &[path.to_str().expect("text")]), 0);
    let mut kill_at = Instant::now() + Duration::from_millis(100);
    let mut sequence = 0;
    let begun = Instant::now();
    while kills < 6 {
        for _ in 0..32 {
            sequence = producer.push(&line(sequence + 1));
        }
        while let Some(record) = reader.try_recv() {
            assert_eq!(record, line(reader.cursor() - 1));
        }
        if Instant::now() >= kill_at {
            part.kill();
            kills += 1;
            part = Part::start("read", &[path.to_str().expect("text")]);
            kill_at = Instant::now() + Duration::from_millis(random.random_range(20..120));
        }
        assert!(begun.elapsed() < LONG, "the producer is held up by the dead after {kills} kills");
    }
    assert_eq!((reader.lapped(), reader.cursor()), (0, sequence + 1));
}

/// A ring that waits for nobody lists its readers all the same, and can be rid of the dead ones.
#[test]
fn dead_readers_of_a_ring_that_waits_for_nobody_are_freed() {
    let path = RingPath::new("prune-lossy");
    let settings = RingSettings { readers_max: Some(3), ..small(64) };
    let mut producer = RingProducer::<Line>::create(&path, &settings).expect("made");
    let mut part = Part::start("read", &[path.to_str().expect("text")]);
    let readers = || sluice::ring::inspect::inspect(&path).expect("a ring").readers.len();
    let begun = Instant::now();
    while readers() == 0 {
        assert!(begun.elapsed() < LONG, "the reader never came");
        std::thread::sleep(Duration::from_millis(1));
    }
    let reader = open(&path, StartAt::Oldest);
    assert!(reader.is_registered());
    assert_eq!((producer.prune_readers(), readers()), (0, 2), "both live");
    part.kill();
    assert_eq!((producer.prune_readers(), readers()), (1, 1));
}

/// A reader in another PID namespace is process 1 there: here that number always lives. Its lock tells when it is dead, and
/// that it is not while it reads.
#[test]
fn a_reader_s_death_in_another_pid_namespace_is_seen() {
    let path = RingPath::new("namespace-reader");
    let settings = RingSettings { lossless: true, readers_max: Some(2), ..small(64) };
    let mut producer = RingProducer::<Line>::create(&path, &settings).expect("made");
    let registered = || std::fs::read(&*path).expect("there")[128] != 0;
    let Some(mut part) = Part::start_in_namespace("read", &[path.to_str().expect("text")]) else { return };
    let begun = Instant::now();
    while !registered() {
        assert!(begun.elapsed() < LONG, "the reader never came");
        std::thread::sleep(Duration::from_millis(1));
    }
    for sequence in 1..=10_000 {
        producer.push(&line(sequence));
    }
    assert_eq!(producer.prune_readers(), 0, "it lives");
    part.kill();
    for sequence in 10_001..=20_000 {
        producer.push(&line(sequence));
    }
    assert!(!registered());
}

/// A producer in another PID namespace: its death is seen here.
#[test]
fn a_producer_s_death_in_another_pid_namespace_is_seen() {
    let (records, blobs) = (RingPath::new("namespace-records"), RingPath::new("namespace-blobs"));
    // Process 1 of a namespace has no parent in it: number 0.
    let words = [records.to_str().expect("text"), blobs.to_str().expect("text"), "0"];
    let Some(mut part) = Part::start_in_namespace("produce", &words) else { return };
    let mut reader = open(&records, StartAt::Oldest);
    for _ in 0..1_000 {
        let received = reader.recv(Wait::Futex { spins: 16 }, Duration::from_secs(1)).expect("readable");
        assert_ne!(received, Received::Died);
    }
    part.kill();
    let killed = Instant::now();
    while reader.recv(Wait::Futex { spins: 16 }, Duration::from_millis(5)).expect("readable") != Received::Died {
        assert!(killed.elapsed() < Duration::from_secs(5), "its death was not noticed");
    }
}

/// Sleeps on the ring for ever.
fn sleep_for_ever(path: &Path) {
    let reader = loop {
        match RawReader::open(path, true) {
            Ok(reader) => break reader,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    while let Some(value) = reader.announce(u64::MAX - 2) {
        futex::wait(reader.futex().expect("opened to sleep"), value, LONG);
        // Killed here at the latest: a wake for nothing.
        reader.withdraw();
    }
}

/// A reader that is killed in its sleep stays announced: the producer forgets it after a while, and not the living.
#[test]
fn a_sleeper_killed_in_its_sleep_is_forgotten() {
    let path = RingPath::new("kill-sleeper");
    let mut producer = RingProducer::<Line>::create(&path, &small(8)).expect("made");
    let waiting = || std::fs::read(&*path).expect("there")[56];
    let mut part = Part::start("sleep", &[path.to_str().expect("text")]);
    let begun = Instant::now();
    while waiting() == 0 {
        assert!(begun.elapsed() < LONG, "it never slept");
        std::thread::sleep(Duration::from_millis(1));
    }
    part.kill();
    assert_eq!(waiting(), 1);
    let killed = Instant::now();
    while waiting() > 0 {
        producer.push(&line(producer.sequence() + 1));
        assert!(killed.elapsed() < LONG, "it is woken for ever");
        std::thread::sleep(Duration::from_micros(100));
    }
    assert!(killed.elapsed() >= Duration::from_millis(900), "not at once: it might live");
    // The living are woken as before.
    let sequence = producer.sequence() + 1;
    let asleep = sleeper(&path, sequence);
    producer.push(&line(sequence));
    woken(asleep);
}

/// The same while another reader lives and sleeps again and again: that one is woken each time, the dead one never.
#[test]
fn a_killed_sleeper_is_forgotten_beside_a_living_one() {
    let path = RingPath::new("kill-beside");
    let mut producer = RingProducer::<Line>::create(&path, &small(1 << 16)).expect("made");
    let waiting = || std::fs::read(&*path).expect("there")[56];
    let mut part = Part::start("sleep", &[path.to_str().expect("text")]);
    let begun = Instant::now();
    while waiting() == 0 {
        assert!(begun.elapsed() < LONG, "it never slept");
        std::thread::sleep(Duration::from_millis(1));
    }
    part.kill();
    let mut reader = open(&path, StartAt::Head);
    let living = std::thread::spawn(move || {
        while let Ok(Received::Record { record, .. }) = reader.recv(Wait::Futex { spins: 0 }, LONG) {
            if record == [0; 7] {
                return true;
            }
        }
        false
    });
    let killed = Instant::now();
    // The dead one keeps the count above 0 for as long as it is in it.
    let forgotten = loop {
        producer.push(&line(producer.sequence() + 1));
        match waiting() {
            0 => break true,
            _ if killed.elapsed() > LONG / 2 => break false,
            _ => std::thread::sleep(Duration::from_micros(200)),
        }
    };
    producer.push(&[0; 7]);
    assert!(living.join().expect("no panic"), "the living are woken");
    assert!(forgotten, "it is woken for ever");
}

/// Reads with the default settings, which would enter the registry and sleep, what it may not write.
fn read_without_leave(records: &Path, lossless: &Path) {
    let mut reader =
        RingConsumer::<Line>::open(records, StartAt::Oldest, &ConsumerSettings::default()).expect("readable");
    assert!(!reader.is_registered());
    assert_eq!(reader.try_recv(), Some(line(1)));
    let received = reader.recv(Wait::Futex { spins: 0 }, Duration::from_millis(5)).expect("no follower");
    assert_eq!(received, Received::TimedOut, "it backs off instead");
    RawReader::open(records, true).expect_err("it asked to sleep");
    let error = RingConsumer::<Line>::open(lossless, StartAt::Oldest, &ConsumerSettings::default())
        .expect_err("its producer would not wait for it");
    assert!(error.to_string().contains("mode and owner"), "{error}");
}

/// By another user than the producer's, and than root, whom no mode stops.
#[test]
fn a_reader_that_may_not_write_reads_all_the_same() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    /// "nobody".
    const OTHER: u32 = 65_534;

    let (records, waiting) = (RingPath::new("leave"), RingPath::new("leave-lossless"));
    let settings = RingSettings { readers_max: Some(4), ..small(8) };
    let mut producer = RingProducer::<Line>::create(&records, &settings).expect("made");
    let _waiting = RingProducer::<Line>::create(&waiting, &RingSettings { lossless: true, ..settings }).expect("made");
    producer.push(&line(1));
    for path in [&records, &waiting] {
        std::fs::set_permissions(&**path, std::fs::Permissions::from_mode(0o444)).expect("ours");
    }
    let words = [records.to_str().expect("text"), waiting.to_str().expect("text")];
    if std::fs::metadata("/proc/self").expect("a /proc").uid() != 0 {
        return read_without_leave(&records, &waiting);
    }
    let mut command = Command::new(std::env::current_exe().expect("a test binary"));
    command.args(["--exact", "ring_processes::plays_its_part", "--nocapture"]);
    command.env(PART, [&["read-only"], &words[..]].concat().join(" "));
    command.stdout(Stdio::null()).stdin(Stdio::null()).current_dir("/").uid(OTHER).gid(OTHER);
    match command.status() {
        Ok(status) => assert!(status.success(), "{status}"),
        Err(error) => crate::common::skip(&format!("user {OTHER} cannot run this test: {error}"), false),
    }
}
