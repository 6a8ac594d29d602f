//! `sluice ledger import` and `export` as a user types them: dumps, data lakes, meta streams, with real ledgers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sluice::ledger::archive::Reader;
use sluice::ledger::galexie;
use sluice::ledger::rpc::{Part, RecordReader, mark};
use sluice::ledger::synthetic::{self, Shape};

use crate::common;

const PASSPHRASE: &str = "Test SDF Network ; September 2015";

fn sluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).arg("ledger").args(args).output().expect("the binary runs")
}

/// Runs a command that has to end with `code`; what it printed.
fn expect(code: i32, args: &[&str]) -> String {
    let output = sluice(args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    text
}

fn import(code: i32, source: &Path, data_dir: &Path, more: &[&str]) -> String {
    let fixed = ["import", text(source), "--data-dir", text(data_dir), "--network-passphrase", PASSPHRASE];
    expect(code, &[&fixed[..], more].concat())
}

fn export(code: i32, data_dir: &Path, out: &Path, more: &[&str]) -> String {
    expect(code, &[&["export", text(data_dir), "--out", text(out)][..], more].concat())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

fn uring() -> bool {
    let has = sluice::sys::uring::CoreRing::new(8).is_ok();
    if !has {
        common::skip("no io_uring", true);
    }
    has
}

/// The files of a directory and of those in it, by their names from there.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![directory.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(directory).expect("inside");
                files.insert(text(name).into(), fs::read(&path).expect("a file"));
            }
        }
    }
    files
}

/// The ledgers of a meta stream of the shared data.
fn records(path: &Path) -> Vec<(u32, Vec<u8>)> {
    let mut stream = fs::read(path).expect("readable");
    if path.extension().is_some_and(|extension| extension == "zstd") {
        stream = zstd::stream::decode_all(&stream[..]).expect("zstd");
    }
    let (mut reader, mut ledgers, mut rest) = (RecordReader::default(), Vec::new(), &stream[..]);
    loop {
        match reader.next(&mut rest).expect("a meta stream") {
            Part::Begin { sequence, .. } => ledgers.push((sequence, Vec::new())),
            Part::Body(bytes) => ledgers.last_mut().expect("begun").1.extend_from_slice(bytes),
            Part::End => {}
            Part::More => return ledgers,
        }
    }
}

/// Thirty real ledgers in a chain, 10048 to 10077, each over a megabyte.
fn chain(data: &Path) -> (PathBuf, Vec<(u32, Vec<u8>)>) {
    let path = data.join("stellar/framed/rpc-load-test-ledgers-v25-80c982d.xdr.zstd");
    let ledgers = records(&path);
    assert_eq!(
        ledgers.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(),
        (10_048..=10_077).collect::<Vec<_>>()
    );
    (path, ledgers)
}

fn kept(data_dir: &Path) -> (Reader, (u32, u32)) {
    let reader = Reader::open(&data_dir.join("ledgers")).expect("a directory");
    let bounds = reader.bounds();
    (reader, bounds)
}

#[test]
fn every_real_batch_goes_through_an_import_and_comes_out_the_same() {
    let Some(data) = common::data().filter(|_| uring()) else { return };
    let home = tempfile::tempdir().expect("a directory");
    let (kept_in, lake, dump) = (home.path().join("kept"), home.path().join("lake"), home.path().join("dump"));
    let said = import(0, &data.join("stellar/batch"), &kept_in, &[]);
    assert!(said.contains("ledgers 997 to 999 imported: 3"), "{said}");
    export(0, &kept_in, &lake, &["--galexie", "--network-passphrase", PASSPHRASE]);
    export(0, &kept_in, &dump, &[]);
    let (lake, dump) = (files(&lake), files(&dump));
    assert_eq!(lake.len(), 4, "three objects and a manifest");
    assert_eq!(dump.len(), 3);
    let manifest = r#"{"networkPassphrase":"Test SDF Network ; September 2015","version":"1.0","compression":"zstd","ledgersPerBatch":1,"batchesPerPartition":64000}"#;
    assert_eq!(lake[".config.json"], manifest.as_bytes());
    for (name, object) in files(&data.join("stellar/batch")) {
        let original = galexie::unpack(&object).expect("a batch");
        let key = format!("FFFFFFFF--0-63999/{}", name.replace(".zstd", ".zst"));
        assert_eq!(galexie::unpack(&lake[&key]).expect("a batch"), original, "{key}");
        let (sequence, ledger) = galexie::split(&original).expect("one ledger")[0];
        assert_eq!(dump[&format!("ledger-{sequence}.xdr")], ledger);
        let lone = data.join(format!("stellar/lcm/testbucket-{sequence}-v1.xdr"));
        assert_eq!(ledger, fs::read(lone).expect("its lone meta"));
    }
}

#[test]
fn batches_of_several_ledgers_are_taken_apart_where_they_were_joined() {
    let Some(data) = common::data().filter(|_| uring()) else { return };
    let home = tempfile::tempdir().expect("a directory");
    let (stream, ledgers) = chain(&data);
    let kept_in = home.path().join("kept");
    import(0, &stream, &kept_in, &[]);
    assert_eq!(kept(&kept_in).1, (10_048, 10_077));
    let lake = home.path().join("lake");
    let layout = ["--galexie", "--network-passphrase", PASSPHRASE, "--ledgers-per-file", "7"];
    let said = export(0, &kept_in, &lake, &[&layout[..], &["--files-per-partition", "10"]].concat());
    // 10050 is 7 × 1435 + 5: batches begin at 10052.
    assert!(said.contains("ledgers 10052 to 10072 written: 3 objects") && said.contains("9 ledgers"), "{said}");
    let names: Vec<String> = files(&lake).into_keys().collect();
    assert!(names.contains(&"FFFFD8E5--10010-10079/FFFFD8BB--10052-10058.xdr.zst".into()), "{names:?}");
    let again = home.path().join("again");
    // Listed, and by known keys with a beginning.
    import(0, &lake, &again, &["--end", "10055"]);
    assert_eq!(kept(&again).1, (10_052, 10_055));
    let said = import(0, &lake, &again, &[]);
    assert!(said.contains("ledgers 10056 to 10072 imported"), "{said}");
    let mut reader = kept(&again).0;
    for (sequence, ledger) in &ledgers[4..25] {
        assert!(reader.read(*sequence).expect("whole").bytes == ledger, "{sequence}");
    }
    let said = import(0, &lake, &again, &[]);
    assert!(said.contains("nothing new"), "{said}");
    // By known keys as well: an object of the older suffix, and one that is missing.
    let mixed = home.path().join("mixed");
    import(0, &lake, &mixed, &["--end", "10055"]);
    let middle = lake.join("FFFFD8E5--10010-10079/FFFFD8B4--10059-10065.xdr.zst");
    fs::rename(&middle, middle.with_extension("zstd")).expect("renamed");
    let said = import(0, &lake, &mixed, &[]);
    assert!(said.contains("ledgers 10056 to 10072 imported"), "{said}");
    let holed = home.path().join("holed");
    import(0, &lake, &holed, &["--end", "10055"]);
    fs::rename(middle.with_extension("zstd"), lake.join("aside")).expect("renamed");
    let said = import(1, &lake, &holed, &[]);
    assert!(said.contains("ledger 10059 is missing: 10066 comes next"), "{said}");
    assert_eq!(kept(&holed).1, (10_052, 10_058), "what came before the hole is kept");
    fs::rename(lake.join("aside"), &middle).expect("renamed");
    // Another layout, and another network, at the same place.
    let said = export(2, &kept_in, &lake, &["--galexie", "--network-passphrase", PASSPHRASE]);
    assert!(said.contains("7 ledgers a file"), "{said}");
    let said = export(2, &kept_in, &lake, &["--galexie", "--network-passphrase", "another"]);
    assert!(said.contains("the right one"), "{said}");
    let fixed = ["import", text(&lake), "--data-dir", text(&again), "--network-passphrase", "another"];
    assert!(expect(2, &fixed).contains(PASSPHRASE));
}

#[test]
fn a_bad_object_is_named_and_what_is_whole_is_kept() {
    let Some(data) = common::data().filter(|_| uring()) else { return };
    let home = tempfile::tempdir().expect("a directory");
    let (_, ledgers) = chain(&data);
    let lake = home.path().join("lake");
    fs::create_dir(&lake).expect("made");
    let layout = galexie::Layout { ledgers_per_file: 2, files_per_partition: 1 };
    let put = |first: u32, metas: &[Vec<u8>]| {
        let key = layout.key(layout.batch(first));
        fs::write(lake.join(&key), galexie::encode(first, metas).expect("packed")).expect("written");
        key
    };
    let metas: Vec<Vec<u8>> = ledgers.iter().map(|(_, bytes)| bytes.clone()).collect();
    for pair in 0..4 {
        put(10_048 + 2 * pair, &metas[2 * pair as usize..2 * pair as usize + 2]);
    }
    let good: BTreeMap<String, Vec<u8>> = files(&lake);
    let bad_key = layout.key(layout.batch(10_052));
    let unpacked = galexie::unpack(&good[&bad_key]).expect("a batch");
    let second_at = 12 + metas[4].len();
    let mut flipped = unpacked.clone();
    flipped[second_at + 60] ^= 1;
    let mut lies = unpacked.clone();
    lies[7] += 1;
    let packed = |bytes: &[u8]| zstd::bulk::compress(bytes, 1).expect("packed");
    let swapped = galexie::encode(10_052, &[metas[4].clone(), metas[6].clone()]).expect("packed");
    let mut cut = good[&bad_key].clone();
    cut.truncate(cut.len() / 2);
    let bad = [
        (cut, "not zstd"),
        (packed(&flipped), "ledger 10053"),
        (packed(&lies), "holds 2"),
        (packed(&unpacked[..second_at + 100]), "ledger 10053"),
        (swapped, "ledger 10053"),
        (good[&layout.key(layout.batch(10_050))].clone(), "10050 to 10051"),
        (Vec::new(), "bytes"),
    ];
    for (at, (object, what)) in bad.iter().enumerate() {
        fs::write(lake.join(&bad_key), object).expect("written");
        let kept_in = home.path().join(format!("kept-{at}"));
        let said = import(3, &lake, &kept_in, &[]);
        assert!(said.contains(&bad_key) && said.contains(what), "{what}: {said}");
        assert_eq!(kept(&kept_in).1, (10_048, 10_051), "{what}");
        fs::write(lake.join(&bad_key), &good[&bad_key]).expect("written");
        let said = import(0, &lake, &kept_in, &[]);
        assert!(said.contains("ledgers 10052 to 10055 imported"), "{said}");
    }
    fs::remove_file(lake.join(&bad_key)).expect("removed");
    let said = import(1, &lake, &home.path().join("gap"), &[]);
    assert!(said.contains("ledger 10052 is missing: 10054 comes next"), "{said}");
}

#[test]
fn a_dump_goes_through_and_an_import_is_gone_on_with() {
    let Some(data) = common::data().filter(|_| uring()) else { return };
    let home = tempfile::tempdir().expect("a directory");
    let (_, ledgers) = chain(&data);
    let (dump, kept_in, out) = (home.path().join("dump"), home.path().join("kept"), home.path().join("out"));
    fs::create_dir(&dump).expect("made");
    let put = |(sequence, bytes): &(u32, Vec<u8>)| {
        fs::write(dump.join(format!("ledger-{sequence}.xdr")), bytes).expect("written");
    };
    ledgers[..5].iter().for_each(put);
    import(0, &dump, &kept_in, &["--start", "10049"]);
    ledgers[5..10].iter().for_each(put);
    fs::write(dump.join("README"), "foreign").expect("written");
    let said = import(0, &dump, &kept_in, &["--json"]);
    assert!(said.contains("\"ledgers\":5") && said.contains("\"oldest\":10049,"), "{said}");
    export(0, &kept_in, &out, &["--start", "10050", "--end", "10056"]);
    let exported = files(&out);
    assert_eq!(exported.len(), 7);
    for (sequence, bytes) in &ledgers[2..9] {
        assert!(exported[&format!("ledger-{sequence}.xdr")] == *bytes, "{sequence}");
    }
    assert!(export(2, &kept_in, &out, &["--start", "10048"]).contains("10049 to 10057 are"));
    // Under another name.
    put(&(10_058, ledgers[11].1.clone()));
    assert!(import(3, &dump, &kept_in, &[]).contains("ledger 10059, where 10058 should be"));
    // What follows in sequence and not in the chain.
    fs::remove_file(dump.join("ledger-10058.xdr")).expect("removed");
    let other = tempfile::tempdir().expect("a directory");
    assert!(import(2, other.path(), &kept_in, &[]).contains("no ledger-<sequence>.xdr and no batch"));
}

#[test]
fn a_meta_stream_that_skips_fails_as_a_source_does_and_dense_ones_go_through() {
    let Some(data) = common::data().filter(|_| uring()) else { return };
    let mut dense = 0;
    let mut names: Vec<PathBuf> = fs::read_dir(data.join("stellar/framed"))
        .expect("the shared data")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    names.sort();
    for path in names {
        let ledgers = records(&path);
        let home = tempfile::tempdir().expect("a directory");
        let follows = |pair: &[(u32, Vec<u8>)]| pair[0].0 + 1 == pair[1].0;
        let whole = 1 + ledgers.windows(2).take_while(|pair| follows(pair)).count();
        let output =
            sluice(&["import", text(&path), "--data-dir", text(home.path()), "--network-passphrase", PASSPHRASE]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let (mut reader, bounds) = kept(home.path());
        if whole == ledgers.len() {
            assert_eq!(output.status.code(), Some(0), "{}: {said}", path.display());
            dense += 1;
        } else {
            assert_ne!(output.status.code(), Some(0), "{}", path.display());
        }
        assert_eq!(bounds, (ledgers[0].0, ledgers[whole - 1].0), "{}: {said}", path.display());
        for (sequence, bytes) in &ledgers[..whole] {
            assert!(reader.read(*sequence).expect("whole").bytes == bytes, "{}: {sequence}", path.display());
        }
    }
    assert!(dense >= 15, "{dense}");
}

#[test]
fn a_stream_comes_in_by_a_pipe_and_a_torn_one_keeps_what_came() {
    let Some(data) = common::data().filter(|_| uring()) else { return };
    let home = tempfile::tempdir().expect("a directory");
    let (_, ledgers) = chain(&data);
    let mut stream = Vec::new();
    for (_, bytes) in &ledgers[..4] {
        stream.extend_from_slice(&mark(bytes.len()));
        stream.extend_from_slice(bytes);
    }
    stream.truncate(stream.len() - 10);
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["ledger", "import", "-", "--data-dir", text(home.path()), "--network-passphrase", PASSPHRASE]);
    let mut child = command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut input = child.stdin.take().expect("piped");
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut input, &stream));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("no panic").expect("taken");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.contains("10 bytes are missing")), (Some(3), true), "{said}");
    assert_eq!(kept(home.path()).1, (10_048, 10_050));
}

#[test]
fn made_up_ledgers_are_taken_only_when_that_is_said() {
    if !uring() {
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let (dump, kept_in, out) = (home.path().join("dump"), home.path().join("kept"), home.path().join("out"));
    fs::create_dir(&dump).expect("made");
    for sequence in 3..=6 {
        let mut bytes = vec![0; 100_000];
        synthetic::write(sequence, Shape::Noise, &mut bytes);
        fs::write(dump.join(format!("ledger-{sequence}.xdr")), bytes).expect("written");
    }
    assert!(import(3, &dump, &kept_in, &[]).contains("ledger-3.xdr"));
    import(0, &dump, &kept_in, &["--opaque"]);
    export(0, &kept_in, &out, &[]);
    assert_eq!(files(&out), files(&dump));
    let said = export(1, &kept_in, &out, &["--galexie", "--network-passphrase", PASSPHRASE]);
    assert!(said.contains("ledger 3 cannot be put into a batch"), "{said}");
}

#[test]
fn places_that_cannot_be_are_refused_before_anything_is_touched() {
    let home = tempfile::tempdir().expect("a directory");
    let said = export(2, home.path(), Path::new("ftp://x/y"), &[]);
    assert!(said.contains("s3://"), "{said}");
    if !cfg!(feature = "object-store") {
        let said = export(2, home.path(), Path::new("s3://bucket/ledgers"), &[]);
        assert!(said.contains("--features object-store"), "{said}");
    }
    let said = export(2, home.path(), home.path(), &["--galexie"]);
    assert!(said.contains("--network-passphrase"), "{said}");
    export(2, home.path(), home.path(), &["--galexie", "--network-passphrase", "x", "--ledgers-per-file", "0"]);
    assert!(export(4, home.path(), home.path(), &[]).contains("ledgers"));
}
