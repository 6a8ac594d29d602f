//! Retention on real files: kill -9 at any moment, damage, other sources, other processes, replays through the ring.
//!
//! The process that is killed is this test binary again, told by an environment variable to write.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use sluice::ledger::archive::{
    Archive, ArchiveError, ArchiveSettings, Began, IMPORTED, Reader, RecordError, Recorder, segment_name,
};
use sluice::ledger::hub::Stored;
use sluice::ledger::keeper::SyncPolicy;
use sluice::ledger::synthetic::{self, Shape};
use sluice::sys::clock;
use sluice::sys::uring::CoreRing;

use crate::common;
use crate::common::archives::{Kit, keeper, ledger, settings};

/// What a process that plays the writer is told.
const PART: &str = "SLUICE_ARCHIVE_PART";
/// Whether this host has io_uring; says so where not.
fn has_uring() -> bool {
    let has = CoreRing::new(8).is_ok();
    if !has {
        common::skip("no io_uring", true);
    }
    has
}

fn segment_files(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory.join("ledgers"))
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}

#[test]
fn ledgers_are_written_replayed_and_there_when_it_opens_again() {
    if !has_uring() {
        return;
    }
    let path = tempfile::tempdir().expect("a directory");
    let (mut kit, opened) = Kit::open(&settings(path.path(), 10));
    assert_eq!((opened.began, opened.stored.len()), (Began::New, 0));
    let run = kit.archive.run().clone();
    assert_eq!((run.epoch, run.start), (1, 10));
    for sequence in 10..=40 {
        kit.put(sequence, &ledger(sequence));
    }
    kit.settle();
    for sequence in (10..=40).chain([25, 10, 40]) {
        assert_eq!(kit.replay(sequence).expect("read"), ledger(sequence), "{sequence}");
    }
    let read = kit.archive.read_counters();
    assert!(read.given >= 34 && read.again == 0 && read.lost == 0, "{read:?}");
    kit.close();
    for name in ["segment-1.ledgers", "README", "segment-0000000009.ledgers.tmp"] {
        fs::write(path.path().join("ledgers").join(name), b"foreign").expect("written");
    }

    let (mut kit, opened) = Kit::open(&settings(path.path(), 41));
    assert_eq!((opened.began, opened.torn, opened.unreadable), (Began::GoesOn, vec![], vec![]));
    assert_eq!((kit.hub.bounds(), kit.archive.run()), ((10, 40), &run));
    kit.put(41, &ledger(41));
    kit.settle();
    for sequence in 10..=41 {
        assert_eq!(kit.replay(sequence).expect("read"), ledger(sequence), "{sequence}");
    }
    drop(kit);
    let mut reader = Reader::open(&path.path().join("ledgers")).expect("a directory");
    assert_eq!((reader.bounds(), reader.run()), ((10, 41), Some(&run)));
    for sequence in (10..=41).chain([30, 31, 12]) {
        assert_eq!(reader.read(sequence).expect("whole").bytes, ledger(sequence), "{sequence}");
    }
    assert!(reader.read(42).is_err() && reader.read(9).is_err());
}

#[test]
fn a_large_ledger_is_replayed_in_pieces_that_are_read_ahead() {
    if !has_uring() {
        return;
    }
    let path = tempfile::tempdir().expect("a directory");
    let mut keep = settings(path.path(), 1);
    keep.keeper.segment_bytes = 64 << 20;
    let (mut kit, _) = Kit::open(&keep);
    let mut bytes = vec![0; 14_500_000];
    for sequence in 1..=3 {
        synthetic::write(sequence, Shape::Noise, &mut bytes);
        kit.put(sequence, &bytes);
        kit.settle();
    }
    for sequence in 1..=3 {
        synthetic::write(sequence, Shape::Noise, &mut bytes);
        assert!(kit.replay(sequence).expect("read") == bytes, "{sequence}");
    }
    let read = kit.archive.read_counters();
    // 14.5 MB in pieces of at most 1 MiB, each read once: what is read ahead is what is asked for next.
    assert!((42..=60).contains(&read.done) && read.given + 2 >= read.done, "{read:?}");
    kit.close();
}

#[test]
fn a_smaller_retention_holds_from_the_opening_on() {
    if !has_uring() {
        return;
    }
    let path = tempfile::tempdir().expect("a directory");
    let (mut kit, _) = Kit::open(&settings(path.path(), 1));
    (1..=60).for_each(|sequence| kit.put(sequence, &ledger(sequence)));
    kit.settle();
    kit.close();
    let before = segment_files(path.path()).len();
    let (mut kit, opened) = Kit::open(&ArchiveSettings { keeper: keeper(10), ..settings(path.path(), 61) });
    assert_eq!((opened.stored.len(), kit.hub.bounds()), (10, (51, 60)));
    kit.put(61, &ledger(61));
    kit.settle();
    kit.until("deleted", |kit| kit.archive.counters().deleted >= 2);
    assert_eq!(kit.hub.bounds(), (52, 61));
    assert!(segment_files(path.path()).len() < before);
    assert_eq!(kit.replay(52).expect("read"), ledger(52));
    kit.close();
}

#[test]
fn another_source_or_network_is_refused_and_a_reset_lets_it_go() {
    if !has_uring() {
        return;
    }
    let path = tempfile::tempdir().expect("a directory");
    let mine = settings(path.path(), 5);
    let (mut kit, _) = Kit::open(&mine);
    (5..=9).for_each(|sequence| kit.put(sequence, &ledger(sequence)));
    kit.settle();
    let first = kit.archive.run().clone();
    kit.close();
    let other_source = ArchiveSettings { source: "captive".into(), ..settings(path.path(), 10) };
    let other_network = ArchiveSettings { network: [8; 8], ..settings(path.path(), 10) };
    for other in [&other_source, &other_network] {
        let error = Archive::open(other, 0).err().expect("refused");
        assert!(matches!(error, ArchiveError::Another { oldest: 5, latest: 9, .. }), "{error}");
        let text = error.to_string();
        for told in ["ledgers 5 to 9", "synthetic", "0707070707070707", "reset = true"] {
            assert!(text.contains(told), "{told}: {text}");
        }
        assert!(text.contains("captive") || text.contains("0808080808080808"), "{text}");
    }
    // A source that does not tell its network is taken for the one that was there.
    let (kit, opened) = Kit::open(&ArchiveSettings { network: [0; 8], ..settings(path.path(), 10) });
    assert_eq!((opened.began, kit.archive.run()), (Began::GoesOn, &first));
    kit.close();
    let (kit, opened) = Kit::open(&ArchiveSettings { reset: true, ..other_source.clone() });
    assert!(matches!(opened.began, Began::Reset { latest: 9, .. }), "{:?}", opened.began);
    assert_eq!((kit.hub.bounds(), kit.archive.run().epoch), ((0, 0), 2));
    assert_ne!(kit.archive.run().id, first.id);
    kit.close();
    assert!(segment_files(path.path()).is_empty(), "nothing of the other is left");
}

#[test]
fn the_same_source_that_starts_elsewhere_begins_another_run() {
    if !has_uring() {
        return;
    }
    let path = tempfile::tempdir().expect("a directory");
    let (mut kit, _) = Kit::open(&settings(path.path(), 5));
    (5..=9).for_each(|sequence| kit.put(sequence, &ledger(sequence)));
    kit.settle();
    let first = kit.archive.run().clone();
    kit.close();
    // Not known before it comes: it goes on, until the first ledger says otherwise.
    let (mut kit, opened) = Kit::open(&settings(path.path(), 0));
    assert_eq!((opened.began, kit.hub.bounds()), (Began::GoesOn, (5, 9)));
    kit.put(100, &ledger(100));
    kit.settle();
    let second = kit.archive.run().clone();
    assert_eq!((kit.hub.bounds(), second.epoch, second.start), ((100, 100), 2, 100));
    assert_ne!(second.id, first.id);
    kit.close();
    for (start, began) in [(101, Began::GoesOn), (102, Began::Reset { found: second.clone(), latest: 100 })] {
        let (kit, opened) = Kit::open(&settings(path.path(), start));
        assert_eq!(opened.began, began, "{start}");
        assert_eq!(kit.archive.run().id == second.id, start == 101);
        drop(kit);
    }
}

#[test]
fn an_imported_directory_is_gone_on_with_by_any_source_of_its_network() {
    if !has_uring() {
        return;
    }
    let path = tempfile::tempdir().expect("a directory");
    let (mut recorder, _) =
        Recorder::open(&ArchiveSettings { source: IMPORTED.into(), ..settings(path.path(), 0) }).expect("opens");
    (5..=9).for_each(|sequence| recorder.put(sequence, &ledger(sequence)).expect("put"));
    assert!(matches!(recorder.put(11, &ledger(11)), Err(RecordError::Order(_))));
    assert_eq!(recorder.finish().expect("finished"), Some(9));
    let (mut kit, opened) = Kit::open(&settings(path.path(), 10));
    assert_eq!((opened.began, kit.hub.bounds()), (Began::GoesOn, (5, 9)));
    kit.put(10, &ledger(10));
    kit.settle();
    assert_eq!(kit.replay(5).expect("read"), ledger(5));
    kit.close();
    let other = ArchiveSettings { network: [8; 8], ..settings(path.path(), 11) };
    assert!(matches!(Archive::open(&other, 0), Err(ArchiveError::Another { .. })));
}

#[test]
fn two_processes_do_not_share_a_directory_and_a_reader_does_not_mind() {
    if !has_uring() {
        return;
    }
    let path = tempfile::tempdir().expect("a directory");
    let mut writer = Writer::start(path.path(), &["1", "1000000", "50", "seal"]);
    writer.until(5);
    let error = Archive::open(&settings(path.path(), 0), 0).err().expect("refused");
    assert!(matches!(error, ArchiveError::Locked(_)), "{error}");
    for _ in 0..20 {
        let mut reader = Reader::open(&path.path().join("ledgers")).expect("read beside its writer");
        let (oldest, latest) = reader.bounds();
        for sequence in [oldest, (oldest + latest) / 2, latest] {
            assert_eq!(reader.read(sequence).expect("whole").bytes, ledger(sequence));
        }
    }
    writer.kill();
    assert!(Archive::open(&settings(path.path(), 0), 0).is_ok(), "a dead process holds no lock");
}

#[test]
fn a_flipped_bit_is_never_served() {
    if !has_uring() {
        return;
    }
    let seed = seed();
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    for _ in 0..12 {
        let path = tempfile::tempdir().expect("a directory");
        let (mut kit, _) = Kit::open(&settings(path.path(), 1));
        (1..=8).for_each(|sequence| kit.put(sequence, &ledger(sequence)));
        kit.settle();
        let hit = random.random_range(1..=8);
        let stored = kit.stored(hit);
        let record_bytes = 80 + 12 * u64::from(stored.frames) + stored.wire_bytes;
        let at = stored.offset + random.random_range(0..record_bytes);
        flip(&path.path().join("ledgers").join(segment_name(stored.segment)), at, random.random_range(0..8));
        for sequence in (1..=8).rev() {
            if kit.hub.kept(sequence).is_none() {
                assert!(sequence < hit, "seed {seed}");
                continue;
            }
            match kit.replay(sequence) {
                Ok(bytes) => assert!(sequence != hit && bytes == ledger(sequence), "seed {seed}: {sequence}, {hit}"),
                Err(lost) => {
                    assert_eq!((lost.sequence, sequence), (hit, hit), "seed {seed}");
                    assert_eq!(kit.hub.bounds().0, if hit == 8 { 0 } else { hit + 1 }, "it left, and all before it");
                }
            }
        }
        let read = kit.archive.read_counters();
        assert!(read.again >= 1 && read.lost == 1, "seed {seed}: {read:?}");
        kit.close();
    }
}

fn seed() -> u64 {
    let seed = std::env::var("SLUICE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| clock::utc_ns() as u64);
    eprintln!("SLUICE_SEED={seed}");
    seed
}

fn flip(path: &Path, at: u64, bit: u32) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("a segment");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("there");
    file.write_all_at(&[byte[0] ^ (1 << bit)], at).expect("written");
}

#[test]
fn a_torn_tail_is_cut_and_told_wherever_it_is_torn() {
    if !has_uring() {
        return;
    }
    let seed = seed();
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let path = tempfile::tempdir().expect("a directory");
    let (mut kit, _) = Kit::open(&settings(path.path(), 1));
    (1..=4).for_each(|sequence| kit.put(sequence, &ledger(sequence)));
    kit.settle();
    let places: BTreeMap<u32, Stored> = (1..=4).map(|sequence| (sequence, kit.stored(sequence))).collect();
    assert!(places.values().all(|stored| stored.segment == 1), "one segment, unsealed");
    drop(kit);
    let file = path.path().join("ledgers").join(segment_name(1));
    let whole = fs::read(&file).expect("a segment");
    for _ in 0..40 {
        let cut = random.random_range(512..whole.len());
        fs::write(&file, &whole[..cut]).expect("written");
        let (archive, opened) = Archive::open(&settings(path.path(), 0), 0).expect("opens");
        let end = |stored: &Stored| stored.offset + 80 + 12 * u64::from(stored.frames) + stored.wire_bytes;
        let kept: Vec<Stored> = places.values().copied().filter(|stored| end(stored) <= cut as u64).collect();
        assert_eq!(opened.stored, kept, "seed {seed}, cut {cut}");
        let good = kept.last().map_or(512, end);
        assert_eq!(opened.torn.len(), usize::from(good != cut as u64), "seed {seed}, cut {cut}");
        for torn in &opened.torn {
            assert_eq!((torn.at, torn.bytes, &torn.path), (good, cut as u64 - good, &file));
        }
        assert_eq!(fs::metadata(&file).expect("there").len(), good, "seed {seed}: what is torn is cut");
        drop(archive);
    }
}

#[test]
fn a_segment_that_is_missing_or_damaged_in_the_middle_ends_what_is_served() {
    if !has_uring() {
        return;
    }
    let path = tempfile::tempdir().expect("a directory");
    let (mut kit, _) = Kit::open(&settings(path.path(), 1));
    (1..=60).for_each(|sequence| kit.put(sequence, &ledger(sequence)));
    kit.settle();
    let middle = kit.stored(30).segment;
    let after = (30..=60).find(|&sequence| kit.stored(sequence).segment > middle).expect("later segments");
    kit.close();
    let file = path.path().join("ledgers").join(segment_name(middle));
    let bytes = fs::read(&file).expect("a segment");
    flip(&file, 100, 3);
    let (archive, opened) = Archive::open(&settings(path.path(), 0), 0).expect("opens");
    assert_eq!(opened.stored.first().map(|stored| stored.sequence), Some(after));
    assert!(opened.unreadable.len() == 1 && opened.unreadable[0].path == file, "{:?}", opened.unreadable);
    assert!(opened.left_out > 0);
    drop(archive);
    fs::write(&file, &bytes).expect("written");
    fs::remove_file(&file).expect("removed");
    let (mut kit, opened) = Kit::open(&settings(path.path(), 61));
    assert_eq!((opened.began, kit.hub.bounds()), (Began::GoesOn, (after, 60)));
    kit.put(61, &ledger(61));
    kit.settle();
    assert_eq!(kit.replay(after).expect("read"), ledger(after));
    kit.close();
    let (kit, _) = Kit::open(&settings(path.path(), 62));
    assert_eq!(kit.hub.bounds(), (after, 61));
}

#[test]
fn a_segment_file_that_vanishes_under_a_replay_takes_its_ledgers_along() {
    if !has_uring() {
        return;
    }
    let path = tempfile::tempdir().expect("a directory");
    let (mut kit, _) = Kit::open(&settings(path.path(), 1));
    (1..=20).for_each(|sequence| kit.put(sequence, &ledger(sequence)));
    kit.settle();
    let stored = kit.stored(10);
    let file = File::options().write(true).open(path.path().join("ledgers").join(segment_name(stored.segment)));
    file.expect("a segment").set_len(stored.offset + 10).expect("cut");
    assert_eq!(kit.replay(10).expect_err("gone").sequence, 10);
    assert_eq!(kit.hub.bounds().0, 11);
    kit.close();
}

/// A name that leads to a disk that is full.
#[test]
fn a_full_disk_holds_nobody_up_and_is_written_again_when_there_is_space() {
    if !has_uring() {
        return;
    }
    let path = tempfile::tempdir().expect("a directory");
    let full = path.path().join("ledgers").join(format!("{}.tmp", segment_name(1)));
    fs::create_dir_all(full.parent().expect("a directory")).expect("made");
    std::os::unix::fs::symlink("/dev/full", &full).expect("linked");
    let (mut kit, _) = Kit::open(&settings(path.path(), 1));
    for sequence in 1..=6 {
        kit.put(sequence, &ledger(sequence));
        kit.turn();
    }
    kit.until("tried again", |kit| kit.archive.counters().no_space >= 3);
    assert_eq!((kit.hub.bounds(), kit.archive.durable()), ((1, 6), None), "served from memory");
    kit.hub.bound_memory(100_000);
    let (oldest, _) = kit.hub.bounds();
    assert!(oldest > 1 && kit.hub.counters().unwritten_dropped > 0);
    fs::remove_file(&full).expect("removed");
    kit.settle();
    assert!(kit.archive.counters().passed_over > 0);
    assert_eq!(kit.hub.bounds(), (oldest, 6));
    for sequence in oldest..=6 {
        assert_eq!(kit.replay(sequence).expect("read"), ledger(sequence));
    }
    kit.close();
}

/// A process that writes ledgers with increasing sequences until it is killed, and says which are durable.
struct Writer {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    durable: u32,
}

impl Writer {
    fn start(path: &Path, words: &[&str]) -> Writer {
        Writer::run(Command::new(std::env::current_exe().expect("a test binary")), path, words)
    }

    /// One whose files cannot grow beyond `blocks` of 512 bytes: a write over that is EFBIG, as the signal is passed over.
    fn start_limited(path: &Path, blocks: u32, words: &[&str]) -> Writer {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"")]);
        command.arg(std::env::current_exe().expect("a test binary"));
        Writer::run(command, path, words)
    }

    fn run(mut command: Command, path: &Path, words: &[&str]) -> Writer {
        command.args(["--exact", "ledger_archive::plays_its_part", "--nocapture"]);
        command.env(PART, [&[path.to_str().expect("text")], words].concat().join(" "));
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("the test binary runs");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Writer { child, lines, durable: 0 }
    }

    /// Reads what it says until it has said that `sequence` is durable, or it is gone.
    fn until(&mut self, sequence: u32) {
        while self.durable < sequence && self.line() {}
    }

    fn line(&mut self) -> bool {
        let mut line = String::new();
        if self.lines.read_line(&mut line).expect("a pipe") == 0 {
            return false;
        }
        // A line that a kill cut short says nothing.
        let said = line.strip_prefix("durable ").filter(|line| line.ends_with('\n'));
        if let Some(sequence) = said.and_then(|line| line.trim_end().parse().ok()) {
            self.durable = sequence;
        }
        true
    }

    /// kill -9; what it had said is read to the end.
    fn kill(&mut self) {
        self.child.kill().expect("ours");
        self.child.wait().expect("ours");
        while self.line() {}
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test by itself: the process that writes. Its words: the directory, the first ledger, how many, how many are kept, how it
/// syncs.
#[test]
fn plays_its_part() {
    let Ok(words) = std::env::var(PART) else { return };
    let words: Vec<&str> = words.split(' ').collect();
    let number = |index: usize| words[index].parse::<u32>().expect("a number");
    let path = PathBuf::from(words[0]);
    let mut settings = settings(&path, number(1));
    settings.keeper = keeper(number(3));
    if words[4] == "seal" {
        settings.keeper.sync = SyncPolicy::Seal;
    }
    let (mut recorder, _) = Recorder::open(&settings).expect("opens");
    let mut said = 0;
    for sequence in (number(1)..).take(number(2) as usize) {
        let put = recorder.put(sequence, &ledger(sequence)).and_then(|()| recorder.work());
        if let Err(error) = put {
            println!("failed {error}");
            return;
        }
        if let Some(durable) = recorder.durable().filter(|&durable| durable > said) {
            said = durable;
            println!("durable {durable}");
            std::io::stdout().flush().expect("told");
        }
    }
    recorder.finish().expect("finished");
}

#[test]
fn kill_9_at_any_moment_leaves_all_that_was_durable_and_nothing_torn() {
    if !has_uring() {
        return;
    }
    let seed = seed();
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    for round in 0..4 {
        let path = tempfile::tempdir().expect("a directory");
        // With few kept ones, segments are deleted all the time.
        let kept = if round % 2 == 0 { "40" } else { "100000" };
        let (mut next, mut durable) = (1_u32, 0_u32);
        for kill in 0..6 {
            let sync = if random.random_bool(0.5) { "every" } else { "seal" };
            let mut writer = Writer::start(path.path(), &[&next.to_string(), "1000000", kept, sync]);
            writer.until(next + random.random_range(0..12));
            clock::sleep(Duration::from_micros(random.random_range(0..20_000)));
            writer.kill();
            durable = durable.max(writer.durable);
            let told = format!("seed {seed}, round {round}, kill {kill}");
            let all = ArchiveSettings { keeper: keeper(100_000), ..settings(path.path(), 0) };
            let (mut kit, opened) = Kit::open(&all);
            let (oldest, latest) = kit.hub.bounds();
            assert!(latest >= durable, "{told}: {latest} is the latest, {durable} was durable");
            assert!(latest == 0 || opened.began == Began::GoesOn, "{told}");
            // What waits to be written counts as kept, so that fewer than 40 may be there.
            assert!(oldest <= 1 || kept == "40", "{told}: from {oldest} on");
            for sequence in oldest.max(1)..=latest {
                assert_eq!(kit.replay(sequence).expect("whole"), ledger(sequence), "{told}: {sequence}");
            }
            kit.close();
            next = latest + 1;
        }
        assert!(durable > 0, "seed {seed}: something was written");
    }
}

#[test]
fn files_that_may_not_grow_fail_as_a_disk_does_and_tear_nothing() {
    if !has_uring() {
        return;
    }
    let path = tempfile::tempdir().expect("a directory");
    let mut writer = Writer::start_limited(path.path(), 600, &["1", "1000000", "1000", "every"]);
    writer.until(u32::MAX);
    writer.child.wait().expect("it ends by itself");
    let (mut kit, _) = Kit::open(&settings(path.path(), 0));
    let (oldest, latest) = kit.hub.bounds();
    assert!(oldest == 1 && latest >= writer.durable && writer.durable > 0, "{oldest} to {latest}, {}", writer.durable);
    for sequence in 1..=latest {
        assert_eq!(kit.replay(sequence).expect("whole"), ledger(sequence));
    }
    kit.put(latest + 1, &ledger(latest + 1));
    kit.settle();
    kit.close();
}
