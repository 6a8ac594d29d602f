//! The store on a real file system: round trips, cuts at every byte, flipped bits, recovery, retention, locks.

use std::fs;
use std::path::{Path, PathBuf};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use sluice::store::retention::{Retention, SWEEP_EVERY_NS, Sweeper, enforce, list};
use sluice::store::scan::Depth;
use sluice::store::{
    Codec, FLAG_LATE_FILL, NO_TIME, Reader, RecordKind, RecordMeta, Select, Step, StoreError, SyncSettings, SyncStore,
    verify,
};
use sluice::units::{Side, StreamId};
use sluice::wire::segment::{Protocol, SessionId, SessionKey};

const SESSION: SessionKey = SessionKey {
    protocol: Protocol::IexTp,
    protocol_id: 0x8004,
    channel: 1,
    session: SessionId([0, 0, 0x81, 0x43, 0, 0, 0, 0, 0, 0]),
};

/// A record as it is kept in the tests' memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    pub stream: String,
    pub kind: RecordKind,
    pub side: Side,
    pub flags: u16,
    pub sequence: u64,
    pub capture_ns: i64,
    pub send_ns: i64,
    pub body: Vec<u8>,
}

fn small() -> SyncSettings {
    SyncSettings { block_bytes: 8192, blocks_in_flight: 4, segment_bytes: 1 << 20, ..SyncSettings::default() }
}

/// `count` messages over two streams and two sides, with late fills and gaps in between.
fn records(seed: u64, count: u64) -> Vec<(StreamId, Kept)> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut next = [1u64, 1000];
    let mut out = Vec::new();
    for at in 0..count {
        let stream = random.random_range(0..2usize);
        let mut kept = Kept {
            stream: format!("{SESSION}/r{stream}"),
            kind: RecordKind::Message,
            side: Side(random.random_range(0..2)),
            flags: 0,
            sequence: next[stream],
            capture_ns: 1_000_000 * at as i64 + random.random_range(0..500),
            send_ns: if stream == 0 { 7 * at as i64 } else { NO_TIME },
            body: vec![random.random(); random.random_range(0..200)],
        };
        match random.random_range(0..50) {
            0 => {
                kept.kind = RecordKind::Gap;
                kept.body = (kept.sequence + 4).to_le_bytes().to_vec();
                next[stream] += 5;
            }
            1 if kept.sequence > 20 => {
                kept.flags = FLAG_LATE_FILL;
                kept.sequence -= 15;
            }
            _ => next[stream] += 1,
        }
        out.push((StreamId(stream as u32), kept));
    }
    out
}

fn write_all(store: &mut SyncStore, records: &[(StreamId, Kept)]) {
    for run in 0..2 {
        store.stream_begin(StreamId(run), &SESSION, run);
    }
    for (stream, kept) in records {
        let meta = RecordMeta {
            kind: kept.kind,
            side: kept.side,
            flags: kept.flags,
            stream: *stream,
            sequence: kept.sequence,
            capture_ns: kept.capture_ns,
            send_ns: kept.send_ns,
        };
        store.append(&meta, &kept.body).unwrap();
    }
}

pub(crate) fn read_all(reader: &mut Reader, select: Select) -> (Vec<Kept>, usize) {
    let keys: Vec<String> = reader.streams().iter().map(|stream| stream.key.clone()).collect();
    let (mut out, mut damage, mut arrival) = (Vec::new(), 0, None);
    let mut query = reader.query(select);
    while let Some(step) = query.step().unwrap() {
        match step {
            Step::Record(found) => {
                assert!(arrival.is_none_or(|before| before < found.arrival), "arrival order");
                arrival = Some(found.arrival);
                out.push(Kept {
                    stream: keys[found.stream].clone(),
                    kind: found.header.kind,
                    side: found.header.side,
                    flags: found.header.flags,
                    sequence: found.header.sequence,
                    capture_ns: found.header.capture_ns,
                    send_ns: found.header.send_ns,
                    body: found.body.to_vec(),
                });
            }
            Step::Damage(_) => damage += 1,
        }
    }
    (out, damage)
}

fn kept(records: &[(StreamId, Kept)]) -> Vec<Kept> {
    records.iter().map(|(_, kept)| kept.clone()).collect()
}

#[test]
fn what_is_written_is_read_in_order_with_every_field() {
    for (seed, settings) in [
        (1, small()),
        (2, SyncSettings { uring: false, ..small() }),
        (3, SyncSettings { codec: Codec::Zstd, ..small() }),
        (4, SyncSettings { direct: true, segment_bytes: 64 << 10, ..small() }),
        (5, SyncSettings { block_bytes: 1 << 20, ..small() }),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let records = records(seed, 3000);
        let mut store = SyncStore::create(directory.path(), settings).unwrap();
        write_all(&mut store, &records);
        let closed = store.close().unwrap();
        assert_eq!(closed.counters.stored_data + closed.counters.stored_marks, 3000, "seed {seed}");
        assert!(closed.losses.is_empty());
        let mut reader = Reader::open(directory.path()).unwrap();
        assert!(reader.damage().is_empty());
        assert!(reader.segments().iter().all(|segment| segment.sealed));
        assert_eq!(read_all(&mut reader, Select::All), (kept(&records), 0), "seed {seed}");
        let found = verify(directory.path(), |_, _| ()).unwrap();
        assert_eq!((found.records, found.damage.len(), found.arrival_holes), (3000, 0, 0), "seed {seed}");
    }
}

#[test]
fn a_query_finds_exactly_the_range() {
    let directory = tempfile::tempdir().unwrap();
    let records = records(9, 5000);
    let settings = SyncSettings { block_bytes: 64 << 10, segment_bytes: 256 << 10, ..small() };
    let mut store = SyncStore::create(directory.path(), settings).unwrap();
    write_all(&mut store, &records);
    store.close().unwrap();
    let mut reader = Reader::open(directory.path()).unwrap();
    assert!(reader.segments().len() > 1);
    let mut random = Pcg64Mcg::seed_from_u64(99);
    for _ in 0..200 {
        let run = random.random_range(0..2u32);
        let stream = reader.find_stream(&format!("/r{run}")).unwrap();
        let first = random.random_range(0..4000u64);
        let last = first + random.random_range(0..50);
        let expected: Vec<Kept> = kept(&records)
            .into_iter()
            .filter(|kept| {
                let end = if kept.kind == RecordKind::Gap { kept.sequence + 4 } else { kept.sequence };
                kept.stream.ends_with(&format!("/r{run}")) && kept.sequence <= last && end >= first
            })
            .collect();
        assert_eq!(read_all(&mut reader, Select::Sequence { stream, first, last }), (expected, 0));
        let from = random.random_range(0..5_000_000_000i64);
        let to = from + random.random_range(0..20_000_000);
        let expected: Vec<Kept> =
            kept(&records).into_iter().filter(|kept| (from..=to).contains(&kept.capture_ns)).collect();
        assert_eq!(read_all(&mut reader, Select::Time { from, to, stream: None }), (expected, 0));
    }
    let wanted = reader.find_stream("0x8004");
    assert!(matches!(wanted, Err(StoreError::Stream { candidates, .. }) if candidates.len() == 2));
}

#[test]
fn one_file_is_written_when_a_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("merged.tri");
    let records = records(11, 2000);
    let mut store = SyncStore::create(&path, small()).unwrap();
    write_all(&mut store, &records);
    store.close().unwrap();
    let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(names, std::slice::from_ref(&path));
    assert_eq!(read_all(&mut Reader::open(&path).unwrap(), Select::All).0, kept(&records));
    assert!(matches!(SyncStore::create(&path, small()), Err(StoreError::Exists(_))));
    let empty = directory.path().join("empty.tri");
    SyncStore::create(&empty, small()).unwrap().close().unwrap();
    assert_eq!(read_all(&mut Reader::open(&empty).unwrap(), Select::All).0, []);
}

/// A small unsealed segment: (its bytes, its records, offset after each block, records up to there).
fn unsealed(seed: u64, count: u64, per_block: usize) -> (Vec<u8>, Vec<Kept>, Vec<(usize, usize)>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("whole.tri");
    let records = records(seed, count);
    let mut store = SyncStore::create(&path, small()).unwrap();
    for part in records.chunks(per_block) {
        write_all(&mut store, part);
        store.flush().unwrap();
    }
    store.close().unwrap();
    let bytes = fs::read(&path).unwrap();
    let reader = Reader::open(&path).unwrap();
    let blocks = &reader.segments()[0].index.blocks;
    let mut so_far = 0;
    let ends = blocks.iter().map(|block| {
        so_far += block.record_count as usize;
        ((block.offset + block.padded_bytes()) as usize, so_far)
    });
    let ends: Vec<_> = ends.collect();
    let cut = ends.last().unwrap().0;
    (bytes[..cut].to_vec(), kept(&records), ends)
}

/// Bytes of a block that matter: its padding may be cut off without loss.
fn block_end(bytes: &[u8], begin: usize) -> usize {
    sluice::wire::block::BlockHeader::parse(&bytes[begin..]).unwrap().block_bytes() + begin
}

#[test]
fn a_cut_at_every_byte_keeps_every_whole_block_and_tells_the_tear() {
    let (bytes, records, ends) = unsealed(21, 55, 20);
    assert!(ends.len() >= 3, "{ends:?}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0000000001-aabbccdd.tri.partial");
    let mut begins = vec![4096];
    begins.extend(ends.iter().map(|end| end.0));
    fs::write(&path, &bytes).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for cut in (0..=bytes.len()).rev() {
        file.set_len(cut as u64).unwrap();
        let whole = ends.iter().enumerate().take_while(|(at, _)| block_end(&bytes, begins[*at]) <= cut).last();
        let (whole_end, expected) = whole.map_or((4096, 0), |(_, end)| *end);
        // The segment header's own bytes: 128 and a body of 64.
        if cut < 192 {
            let opened = Reader::open_with(directory.path(), Depth::Full).unwrap();
            assert!(opened.segments().is_empty() && opened.damage().len() == 1, "cut at {cut}");
            continue;
        }
        let mut reader = Reader::open_with(directory.path(), Depth::Full).unwrap();
        let (found, damage) = read_all(&mut reader, Select::All);
        assert_eq!(found, records[..expected], "cut at {cut}");
        assert_eq!(damage, 0, "cut at {cut}");
        if cut > whole_end {
            let [tear] = reader.damage() else { panic!("cut at {cut}: {:?}", reader.damage()) };
            assert_eq!((tear.offset as usize, tear.file.as_path()), (whole_end, path.as_path()), "cut at {cut}");
            assert!(expected == 0 || !tear.lost.is_empty(), "cut at {cut}: no first sequence lost");
        } else {
            assert!(reader.damage().is_empty(), "cut at {cut}: {:?}", reader.damage());
        }
    }
}

#[test]
fn opening_for_writing_after_a_cut_seals_what_is_whole_and_goes_on() {
    let (bytes, records_before, ends) = unsealed(22, 220, 60);
    for cut in [ends[0].0 - 1, ends[0].0, ends[0].0 + 1, ends[1].0 + 4095, bytes.len() - 4096] {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("0000000007-aabbccdd.tri.partial"), &bytes[..cut]).unwrap();
        let expected =
            ends.iter().rev().find(|end| end.0 - 4095 <= cut && block_fits(&bytes, end.0, cut)).map_or(0, |end| end.1);
        let mut store = SyncStore::create(directory.path(), small()).unwrap();
        let more = records(23, 50);
        write_all(&mut store, &more);
        let closed = store.close().unwrap();
        let mut reader = Reader::open_with(directory.path(), Depth::Full).unwrap();
        let mut all = records_before[..expected].to_vec();
        all.extend(kept(&more));
        assert_eq!(read_all(&mut reader, Select::All).0, all, "cut at {cut}");
        assert!(reader.segments().iter().all(|segment| segment.sealed));
        assert!(
            reader
                .segments()
                .iter()
                .all(|segment| segment.info.number != 7 || segment.path.ends_with("0000000007-aabbccdd.tri"))
        );
        assert!(closed.files.iter().all(|file| file.to_string_lossy().contains("/0000000008-")), "{:?}", closed.files);
    }
}

fn block_fits(bytes: &[u8], end: usize, cut: usize) -> bool {
    let begin =
        (4096..end).step_by(4096).rev().find(|&at| sluice::wire::block::BlockHeader::parse(&bytes[at..]).is_ok());
    block_end(bytes, begin.unwrap()) <= cut
}

#[test]
fn a_flipped_bit_costs_its_block_only_and_is_told() {
    let (bytes, records, ends) = unsealed(31, 400, 55);
    let mut random = Pcg64Mcg::seed_from_u64(32);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0000000001-aabbccdd.tri.partial");
    for _ in 0..500 {
        let at = random.random_range(4096..bytes.len());
        let block = ends.iter().position(|end| at < end.0).unwrap();
        let begin = if block == 0 { 4096 } else { ends[block - 1].0 };
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << random.random_range(0..8);
        fs::write(&path, &flipped).unwrap();
        let mut reader = Reader::open_with(directory.path(), Depth::Full).unwrap();
        let (found, damage) = read_all(&mut reader, Select::All);
        assert_eq!(damage, 0);
        if at >= block_end(&bytes, begin) {
            assert_eq!(found, records, "padding is not data (byte {at})");
            continue;
        }
        let before = if block == 0 { 0 } else { ends[block - 1].1 };
        let expected: Vec<Kept> = [&records[..before], &records[ends[block].1..]].concat();
        assert_eq!(found, expected, "bit at byte {at}");
        let told = &reader.damage()[0];
        assert_eq!(told.offset as usize, begin, "bit at byte {at}: {told}");
        let lost = (ends[block].1 - before) as u64;
        assert!(told.records == Some(lost) || block + 1 == ends.len() || block == 0, "bit at byte {at}: {told}");
        // The lazy reader finds it too, when it gets there.
        let mut lazy = Reader::open(directory.path()).unwrap();
        let told = lazy.damage().len();
        let (found, damage) = read_all(&mut lazy, Select::All);
        assert!(told + damage > 0 && found.len() >= expected.len(), "bit at byte {at}");
        assert!(verify(directory.path(), |_, _| ()).unwrap().damage.len() == 1, "bit at byte {at}");
    }
}

#[test]
fn a_flipped_bit_in_a_sealed_segment_never_yields_a_wrong_byte() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.tri");
    let records = records(41, 600);
    let mut store = SyncStore::create(&path, SyncSettings { block_bytes: 32 << 10, ..small() }).unwrap();
    write_all(&mut store, &records);
    store.close().unwrap();
    let (bytes, records) = (fs::read(&path).unwrap(), kept(&records));
    let mut random = Pcg64Mcg::seed_from_u64(42);
    for _ in 0..500 {
        let at = random.random_range(0..bytes.len());
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << random.random_range(0..8);
        fs::write(&path, &flipped).unwrap();
        let Ok(mut reader) = Reader::open(&path) else {
            assert!(at < 4096, "byte {at}: a reader must open whatever has a header");
            continue;
        };
        let (found, damage) = read_all(&mut reader, Select::All);
        assert!(found.iter().all(|record| records.contains(record)), "byte {at}: a record that was never written");
        assert!(found.len() == records.len() || damage + reader.damage().len() > 0, "byte {at}: silent loss");
    }
}

#[test]
fn random_bytes_are_refused_without_a_panic() {
    let mut random = Pcg64Mcg::seed_from_u64(51);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0000000001-aabbccdd.tri");
    let (whole, _, _) = unsealed(52, 100, 100);
    for _ in 0..300 {
        let mut bytes = whole.clone();
        // Damage in runs: lengths and counts get wild values.
        for _ in 0..random.random_range(1..20) {
            let at = random.random_range(0..bytes.len() - 8);
            bytes[at..at + 8].copy_from_slice(&random.random::<u64>().to_le_bytes());
        }
        fs::write(&path, &bytes).unwrap();
        if let Ok(mut reader) = Reader::open_with(directory.path(), Depth::Full) {
            read_all(&mut reader, Select::All);
        }
        let _ = verify(directory.path(), |_, _| ());
    }
}

/// Writes the checksums of the block at `begin` anew, so that only what its fields say is wrong; false where that
/// cannot even be parsed.
fn forge(bytes: &mut [u8], begin: usize, chunks_too: bool) -> bool {
    use sluice::wire::block::{BlockHeader, BlockIndex, CHUNK_ENTRY_BYTES, HEADER_BYTES, chunk_checksum};
    let block = &mut bytes[begin..];
    let Ok(header) = BlockHeader::parse(block) else { return false };
    if header.block_bytes() > block.len() {
        return false;
    }
    let index_at = HEADER_BYTES + header.records_bytes as usize;
    if chunks_too && let Ok(index) = BlockIndex::parse(&header, &block[index_at..header.block_bytes()]) {
        for (number, chunk) in index.chunks.iter().enumerate() {
            let span = index.chunk_span(&header, number);
            let Some(records) = block[HEADER_BYTES..index_at].get(span) else { continue };
            let mut chunk = *chunk;
            chunk.checksum = chunk_checksum(records);
            chunk.encode(&mut block[index_at + number * CHUNK_ENTRY_BYTES..]);
        }
    }
    header.seal(&mut block[..header.block_bytes()]);
    true
}

#[test]
fn wild_fields_under_right_checksums_are_refused_or_read_without_a_panic() {
    use sluice::store::known_runs;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0000000001-aabbccdd.tri");
    let file = directory.path().join("whole.tri");
    let mut store = SyncStore::create(&file, small()).unwrap();
    for part in records(61, 200).chunks(50) {
        write_all(&mut store, part);
        store.flush().unwrap();
    }
    store.close().unwrap();
    let whole = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let magic = |at: &usize| whole[*at..].starts_with(&sluice::wire::block::MAGIC);
    let begins: Vec<usize> = (4096..whole.len()).step_by(4096).filter(magic).collect();
    let wild = [0, 1, u64::from(u32::MAX), u64::MAX, i64::MAX as u64, 1 << 31, 0xffff];
    for seed in 0..250 {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut bytes = whole.clone();
        let mut forged = false;
        for _ in 0..random.random_range(1..4) {
            let begin = begins[random.random_range(0..begins.len())];
            let header = sluice::wire::block::BlockHeader::parse(&whole[begin..]).unwrap();
            let records = if random.random() { 0 } else { header.records_bytes as usize };
            let from = if random.random_range(0..4) == 0 { 64 } else { 128 + records };
            let at = begin + random.random_range(from..header.block_bytes() - 8);
            let value = if random.random() { wild[random.random_range(0..wild.len())] } else { random.random() };
            let width = [2, 4, 8][random.random_range(0..3)];
            bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            forged |= forge(&mut bytes, begin, records == 0);
        }
        for partial in [false, true] {
            let path = if partial { path.with_extension("tri.partial") } else { path.clone() };
            fs::write(&path, &bytes).unwrap();
            let read = std::panic::catch_unwind(|| {
                if let Ok(mut reader) = Reader::open_with(directory.path(), Depth::Full) {
                    let streams = 0..reader.streams().len();
                    let mut selects: Vec<Select> =
                        streams.map(|stream| Select::Sequence { stream, first: 5, last: 5000 }).collect();
                    selects.push(Select::All);
                    selects.push(Select::Time { from: 0, to: i64::MAX, stream: None });
                    for select in selects {
                        let mut query = reader.query(select);
                        while let Ok(Some(_)) = query.step() {}
                    }
                }
                let _ = verify(directory.path(), |_, _| ());
                known_runs(directory.path()).unwrap();
                if partial {
                    let _ = sluice::store::files::recover(&path);
                }
            });
            assert!(read.is_ok(), "seed {seed}, partial {partial}, forged {forged}");
            for file in list(directory.path()).unwrap() {
                fs::remove_file(file.path).unwrap();
            }
        }
    }
}

#[test]
fn two_writers_on_one_directory_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = SyncStore::create(directory.path(), small()).unwrap();
    assert!(matches!(SyncStore::create(directory.path(), small()), Err(StoreError::Locked(_))));
    assert!(Reader::open(directory.path()).unwrap().is_live());
    first.close().unwrap();
    SyncStore::create(directory.path(), small()).unwrap().close().unwrap();
}

/// A seal renames its segment. Whoever lists the directory at that moment must not miss it.
#[test]
fn a_segment_that_gets_its_final_name_is_listed() {
    let directory = tempfile::tempdir().unwrap();
    let name = |number: u64, ending: &str| directory.path().join(format!("{number:010}-00000000.tri{ending}"));
    (1..=40).for_each(|number| drop(fs::File::create(name(number, ".partial")).unwrap()));
    std::thread::scope(|scope| {
        let seals = scope.spawn(|| {
            for number in 1..=40 {
                fs::rename(name(number, ".partial"), name(number, "")).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        while !seals.is_finished() {
            assert_eq!(list(directory.path()).unwrap().len(), 40);
        }
    });
    assert!(list(directory.path()).unwrap().iter().all(|file| file.sealed));
}

#[test]
fn a_reader_follows_a_store_that_is_being_written() {
    let directory = tempfile::tempdir().unwrap();
    let records = records(61, 4000);
    let settings = SyncSettings { segment_bytes: 128 << 10, ..small() };
    let mut store = SyncStore::create(directory.path(), settings).unwrap();
    let mut reader = Reader::open(directory.path()).unwrap();
    let mut seen = 0;
    for part in records.chunks(500) {
        write_all(&mut store, part);
        store.flush().unwrap();
        reader.refresh().unwrap();
        let (found, damage) = read_all(&mut reader, Select::All);
        seen += part.len();
        assert_eq!(damage + reader.damage().len(), 0);
        assert_eq!(found.len(), seen, "everything that was flushed is seen");
    }
    store.close().unwrap();
    reader.refresh().unwrap();
    assert_eq!(read_all(&mut reader, Select::All), (kept(&records), 0));
}

fn filled(segments: usize) -> (tempfile::TempDir, Vec<PathBuf>) {
    let directory = tempfile::tempdir().unwrap();
    let settings = SyncSettings { segment_bytes: 64 << 10, ..small() };
    let mut store = SyncStore::create(directory.path(), settings).unwrap();
    for run in 0..2 {
        store.stream_begin(StreamId(run), &SESSION, run);
    }
    let mut sequence = 1;
    while store.counters().sealed_segments < segments as u64 {
        store.append(&RecordMeta::message(StreamId(0), Side::A, sequence, sequence as i64), &[5; 900]).unwrap();
        sequence += 1;
    }
    store.close().unwrap();
    let files = list(directory.path()).unwrap().into_iter().map(|file| file.path).collect();
    (directory, files)
}

#[test]
fn retention_deletes_the_oldest_one_at_a_time_until_each_bound_holds() {
    let (directory, files) = filled(6);
    let total: u64 = list(directory.path()).unwrap().iter().map(|file| file.disk_bytes).sum();
    // A file that no index knows, older than all, counts and goes first.
    let foreign = directory.path().join("foreign.tri");
    fs::write(&foreign, vec![1; 100_000]).unwrap();
    let left = |directory: &Path| list(directory).unwrap().into_iter().map(|file| file.path).collect::<Vec<_>>();
    let bytes = Retention { bytes_max: Some(total - 1), ..Retention::default() };
    let removed = enforce(directory.path(), &bytes, 0).unwrap();
    assert_eq!(removed.iter().map(|removed| &removed.path).collect::<Vec<_>>(), [&foreign, &files[0]]);
    assert_eq!(left(directory.path()), files[1..]);
    assert_eq!(enforce(directory.path(), &bytes, 0).unwrap(), []);
    let newest = list(directory.path()).unwrap().iter().map(|file| file.modified_ns).max().unwrap();
    let age = Retention { age_ns_max: Some(3600 * 1_000_000_000), ..Retention::default() };
    assert_eq!(enforce(directory.path(), &age, newest).unwrap(), []);
    let second = fs::File::open(&files[1]).unwrap();
    second.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(7200)).unwrap();
    let removed = enforce(directory.path(), &age, newest).unwrap();
    assert_eq!(removed.iter().map(|removed| (&removed.path, removed.bound)).collect::<Vec<_>>(), [(&files[1], "age")]);
    let free = Retention { free_bytes_min: Some(1), ..Retention::default() };
    assert_eq!(enforce(directory.path(), &free, newest).unwrap(), []);
    let total = sluice::sys::file::space(directory.path()).unwrap().total_bytes;
    let unreachable = Retention { free_bytes_min: Some(total + 1), ..Retention::default() };
    let refused = enforce(directory.path(), &unreachable, newest).expect_err("no deletion reaches that");
    assert!(refused.to_string().contains("lower the bound"), "{refused}");
    assert_eq!(left(directory.path()), files[2..], "nothing is deleted for it");
    let free = Retention { free_bytes_min: Some(total), ..Retention::default() };
    let removed = enforce(directory.path(), &free, newest).unwrap();
    assert_eq!(removed.iter().map(|removed| &removed.path).collect::<Vec<_>>(), files[2..].iter().collect::<Vec<_>>());
    assert!(removed.iter().all(|removed| removed.bound == "free"));
}

#[test]
fn open_segments_do_not_count_against_the_bound_and_left_over_ones_do() {
    let (directory, files) = filled(4);
    let open = [directory.path().join("0000000090-aa.tri.partial"), directory.path().join("0000000091-bb.tri.partial")];
    open.iter().for_each(|path| fs::write(path, vec![1; 128 << 10]).unwrap());
    let sealed = |files: &[sluice::store::retention::SegmentFile]| -> u64 {
        files.iter().filter(|file| file.sealed).map(|file| file.disk_bytes).sum()
    };
    let retention = Retention { bytes_max: Some(sealed(&list(directory.path()).unwrap())), ..Retention::default() };
    let mut sweeper = Sweeper::new(retention);
    let paths: Vec<&Path> = open.iter().map(PathBuf::as_path).collect();
    assert_eq!(sweeper.sweep(directory.path(), &paths, 0, 0).unwrap().removed, []);
    // The second is no longer the writer's: what a crash left counts like the rest.
    let removed = sweeper.sweep(directory.path(), &paths[..1], 0, 0).unwrap().removed;
    assert_eq!(
        removed.iter().map(|removed| &removed.path).collect::<Vec<_>>(),
        files.iter().take(removed.len()).collect::<Vec<_>>()
    );
    assert!(!removed.is_empty() && open.iter().all(|path| path.exists()));
}

#[test]
fn a_clock_that_is_set_forward_costs_one_segment_each_sweep_at_most() {
    const HOUR: i64 = 3600 * 1_000_000_000;
    let (directory, files) = filled(4);
    let left = || list(directory.path()).unwrap().len();
    let newest = list(directory.path()).unwrap().iter().map(|file| file.modified_ns).max().unwrap();
    let age = Retention { age_ns_max: Some(HOUR), ..Retention::default() };
    let mut sweeper = Sweeper::new(age);
    let mut sweep = |utc, monotonic| sweeper.sweep(directory.path(), &[], utc, monotonic).unwrap();
    assert_eq!(sweep(newest, 0), Default::default());
    let first = sweep(newest + 30 * HOUR, 1);
    assert_eq!((first.removed.len(), left()), (1, files.len() - 1));
    assert!(first.doubt.as_ref().is_some_and(|doubt| doubt.contains("107999 s")), "{:?}", first.doubt);
    // Many calls in one interval (a seal asks too), then one of the next; the clock comes back and nothing goes.
    assert_eq!(sweep(newest + 30 * HOUR, 2), Default::default());
    assert_eq!(sweep(newest + 30 * HOUR, SWEEP_EVERY_NS + 1).removed.len(), 1);
    assert_eq!(sweep(newest, 3 * SWEEP_EVERY_NS), Default::default());
    for turn in 4..40 {
        sweep(newest + 30 * HOUR, turn * SWEEP_EVERY_NS);
    }
    assert_eq!(
        list(directory.path()).unwrap().iter().map(|file| &file.path).collect::<Vec<_>>(),
        [files.last().unwrap()]
    );
    // A process that starts under the wrong clock is as careful: it sees only old segments.
    let (directory, files) = filled(4);
    let first = Sweeper::new(age).sweep(directory.path(), &[], newest + 30 * HOUR, 0).unwrap();
    assert_eq!((first.removed.len(), first.removed[0].path == files[0]), (1, true));
    assert!(first.doubt.is_some());
}

#[test]
fn a_bounded_store_stays_within_its_bound_while_it_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let retention = Retention { bytes_max: Some(400 << 10), ..Retention::default() };
    let settings = SyncSettings { segment_bytes: 64 << 10, retention, ..small() };
    let mut store = SyncStore::create(directory.path(), settings).unwrap();
    store.stream_begin(StreamId(0), &SESSION, 0);
    for sequence in 1..3000 {
        store.append(&RecordMeta::message(StreamId(0), Side::A, sequence, sequence as i64), &[5; 900]).unwrap();
    }
    let sealed = store.close().unwrap().counters.sealed_segments;
    let files = list(directory.path()).unwrap();
    let total: u64 = files.iter().map(|file| file.disk_bytes).sum();
    assert!(sealed > files.len() as u64 && total <= 400 << 10, "{sealed} sealed, {} left, {total} bytes", files.len());
    let mut reader = Reader::open(directory.path()).unwrap();
    assert_eq!(read_all(&mut reader, Select::All).0.last().unwrap().sequence, 2999, "the newest stay");
}

#[test]
fn a_left_over_file_without_a_record_is_swept_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("0000000003-00000000.tri.partial"), vec![0; 1 << 20]).unwrap();
    fs::write(directory.path().join("0000000004-00000000.tri.partial"), b"").unwrap();
    SyncStore::create(directory.path(), small()).unwrap().close().unwrap();
    assert_eq!(list(directory.path()).unwrap(), []);
}

#[test]
fn a_process_that_goes_on_with_a_store_knows_which_numbers_are_taken() {
    use sluice::store::{KnownRuns, known_runs, raw_key};
    let directory = tempfile::tempdir().unwrap();
    let other = SessionKey { session: SessionId::from_u32(7), ..SESSION };
    let raw = raw_key("feed/r9", Side::A);
    for round in 0..3u32 {
        let mut store = SyncStore::create(directory.path(), small()).unwrap();
        let known = store.known_runs().clone();
        assert_eq!(known.next_run(&SESSION), 2 * round);
        assert_eq!(known.next_run(&other), u32::from(round > 0) * 6);
        assert_eq!(known.next_raw(&raw), 1 + 10 * u64::from(round));
        assert_eq!(known.arrival_next, 13 * u64::from(round));
        for (stream, session, run) in [(0, SESSION, 2 * round), (1, SESSION, 2 * round + 1), (2, other, 5)] {
            store.stream_begin(StreamId(stream), &session, run);
            store.append(&RecordMeta::message(StreamId(stream), Side::A, 1, 1), b"body").unwrap();
        }
        store.stream_begin_key(StreamId(3), &raw);
        for sequence in known.next_raw(&raw)..known.next_raw(&raw) + 10 {
            let meta = RecordMeta::message(StreamId(3), Side::A, sequence, 1);
            store.append(&RecordMeta { kind: RecordKind::Raw, ..meta }, b"frame").unwrap();
        }
        // The second one is not sealed: its blocks say it.
        if round == 1 {
            store.flush().unwrap();
            drop(store);
        } else {
            store.close().unwrap();
        }
    }
    let known = known_runs(directory.path()).unwrap();
    assert_eq!((known.next_run(&SESSION), known.next_raw(&raw), known.arrival_next), (6, 31, 39));
    assert_eq!(known_runs(tempfile::tempdir().unwrap().path()).unwrap(), KnownRuns::default());
}

type Change<'a> = &'a dyn Fn(&mut Vec<u8>);

#[test]
fn recovery_deletes_only_what_holds_nothing() {
    use sluice::store::files::recover;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0000000003-00000000.tri.partial");
    let (whole, _, ends) = unsealed(31, 60, 20);
    let end = ends.last().unwrap().0;
    let write = |change: Change<'_>| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        bytes
    };
    // A flipped bit in the segment header; a header of a later version; a header that never reached the disk.
    let changes: [Change<'_>; 3] = [&|bytes| bytes[70] ^= 1, &|bytes| bytes[24] = 2, &|bytes| bytes[..4096].fill(0)];
    for (place, change) in changes.iter().enumerate() {
        let bytes = write(*change);
        let error = recover(&path).expect_err("it cannot be read");
        assert!(matches!(error, StoreError::Kept { .. }), "change {place}: {error}");
        assert_eq!(fs::read(&path).unwrap(), bytes, "change {place}");
    }
    // A later version is not judged by what follows it.
    fs::write(&path, {
        let mut bytes = whole[..4096].to_vec();
        bytes[24] = 2;
        bytes
    })
    .unwrap();
    assert!(matches!(recover(&path), Err(StoreError::Kept { .. })));
    // Every block torn: nothing can be indexed, but the bytes stay.
    let begins = || std::iter::once(4096).chain(ends.iter().map(|end| end.0)).take(ends.len());
    let bytes = write(&|bytes| begins().for_each(|begin| bytes[begin + 200] ^= 1));
    let (sealed, records, damage) = recover(&path).unwrap();
    assert_eq!((records, damage.len()), (0, ends.len()), "{damage:?}");
    assert_eq!(fs::read(&sealed).unwrap()[..end], bytes[..end]);
    assert_eq!(read_all(&mut Reader::open(directory.path()).unwrap(), Select::All).0, []);
    // A header and nothing else.
    fs::write(&path, &whole[..4096]).unwrap();
    assert_eq!(recover(&path).unwrap().1, 0);
    assert!(!path.exists());
}

#[test]
fn a_segment_made_ahead_and_never_used_is_gone_afterwards_with_direct_writes_too() {
    for direct in [false, true] {
        // The build's own folder: a real file system, where /tmp may be a tmpfs (which knows no O_DIRECT).
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        drop(SyncStore::create(directory.path(), SyncSettings { direct, ..small() }).unwrap());
        assert_eq!(list(directory.path()).unwrap(), [], "direct: {direct}");
    }
}

#[test]
fn a_clock_that_steps_back_leaves_every_time_findable() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = SyncStore::create(directory.path(), small()).unwrap();
    store.stream_begin(StreamId(0), &SESSION, 0);
    let time = |sequence: u64| if sequence < 500 { 10_000 + sequence as i64 } else { 9_000 + sequence as i64 };
    for sequence in 1..1000 {
        store.append(&RecordMeta::message(StreamId(0), Side::A, sequence, time(sequence)), &[5; 100]).unwrap();
    }
    store.close().unwrap();
    let mut reader = Reader::open(directory.path()).unwrap();
    for from in (9_000..11_000).step_by(37) {
        let to = from + 20;
        let expected: Vec<u64> = (1..1000).filter(|&sequence| (from..=to).contains(&time(sequence))).collect();
        let (found, _) = read_all(&mut reader, Select::Time { from, to, stream: None });
        assert_eq!(found.iter().map(|record| record.sequence).collect::<Vec<_>>(), expected, "{from}..={to}");
    }
}

#[test]
fn a_full_file_system_is_survived_and_writing_goes_on_with_space() {
    let Some(mount) = tiny_file_system(2 << 20) else { return };
    let filler = mount.path().join("filler");
    let settings =
        SyncSettings { segment_bytes: 256 << 10, patience: std::time::Duration::from_millis(300), ..small() };
    let mut store = SyncStore::create(&mount.path().join("store"), settings).unwrap();
    store.stream_begin(StreamId(0), &SESSION, 0);
    let free = sluice::sys::file::space(mount.path()).unwrap().available_bytes;
    fs::write(&filler, vec![0; free as usize]).unwrap();
    let (mut sequence, mut failed) = (1u64, false);
    let mut stored = Vec::new();
    while sequence < 3000 {
        match store.append(&RecordMeta::message(StreamId(0), Side::A, sequence, sequence as i64), &[7; 400]) {
            Ok(()) => stored.push(sequence),
            Err(StoreError::Lost { .. }) if !failed => {
                failed = true;
                fs::remove_file(&filler).unwrap();
                // The thread of files tries again within a second, and on a busy machine later.
                std::thread::sleep(std::time::Duration::from_secs(3));
            }
            Err(error) => panic!("{error}"),
        }
        sequence += 1;
    }
    assert!(failed, "the file system was never full");
    store.close().unwrap();
    let mut reader = Reader::open(&mount.path().join("store")).unwrap();
    let found: Vec<u64> = read_all(&mut reader, Select::All).0.iter().map(|record| record.sequence).collect();
    assert_eq!(found, stored);
}

struct Mount(tempfile::TempDir);

impl Mount {
    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn tiny_file_system(bytes: u64) -> Option<Mount> {
    let directory = tempfile::tempdir().unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "sluice-test"])
        .arg(directory.path())
        .output();
    if mounted.is_ok_and(|output| output.status.success()) {
        return Some(Mount(directory));
    }
    crate::common::skip("mounting a small tmpfs needs root", false);
    None
}

/// Not a test by itself: the process that the next one kills. It appends for ever and tells each durable flush.
#[test]
#[ignore = "the child of kill_nine_loses_nothing_that_was_flushed"]
fn kill_nine_child() {
    let Some(directory) = std::env::var_os("SLUICE_TEST_KILL_DIR") else { return };
    let settings = SyncSettings { segment_bytes: 512 << 10, ..small() };
    let mut store = SyncStore::create(Path::new(&directory), settings).unwrap();
    store.stream_begin(StreamId(0), &SESSION, 0);
    for sequence in 1.. {
        store
            .append(&RecordMeta::message(StreamId(0), Side::A, sequence, sequence as i64), &sequence.to_le_bytes())
            .unwrap();
        if sequence.is_multiple_of(500) {
            store.flush().unwrap();
            println!("flushed {sequence}");
        }
    }
}

#[test]
fn kill_nine_loses_nothing_that_was_flushed() {
    use std::io::BufRead;
    let directory = tempfile::tempdir().unwrap();
    for round in 0..4 {
        let store = directory.path().join(format!("round-{round}"));
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--nocapture", "--exact", "store::kill_nine_child"])
            .env("SLUICE_TEST_KILL_DIR", &store)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let mut flushed = 0;
        for line in lines {
            // The harness prints the test's name on the same line as its first output.
            if let Some((_, sequence)) = line.unwrap().split_once("flushed ") {
                flushed = sequence.parse().unwrap();
                if flushed >= 3000 * (round + 1) {
                    break;
                }
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let mut reader = Reader::open_with(&store, Depth::Full).unwrap();
        assert!(!reader.is_live());
        let (found, damage) = read_all(&mut reader, Select::All);
        assert_eq!(damage, 0);
        assert!(found.len() as u64 >= flushed, "{} of {flushed} read", found.len());
        assert!(
            found
                .iter()
                .zip(1..)
                .all(|(record, sequence)| record.sequence == sequence && record.body == u64::to_le_bytes(sequence))
        );
        drop(reader);
        // Nothing is asked of anyone: opening again seals what is there and goes on.
        let mut again = SyncStore::create(&store, small()).unwrap();
        again.stream_begin(StreamId(0), &SESSION, 0);
        again.append(&RecordMeta::message(StreamId(0), Side::A, 1 << 40, 0), b"after").unwrap();
        again.close().unwrap();
        let (after, _) = read_all(&mut Reader::open(&store).unwrap(), Select::All);
        assert_eq!(after.len(), found.len() + 1);
        assert!(list(&store).unwrap().iter().all(|file| file.sealed));
    }
}

/// The machine alone, its disk a list of operations.
mod machine {
    use sluice::store::{
        Fault, LostCause, Op, RecordMeta, SegmentGrant, StampSource, StoreWriter, SyncPolicy, WriterSettings,
    };
    use sluice::units::{NANOS_PER_MILLI, NANOS_PER_SECOND, Side, StreamId};
    use sluice::wire::block::SegmentInfo;
    use sluice::wire::segment::Framing;

    const STREAM: StreamId = StreamId(0);

    fn machine(settings: WriterSettings, blocks: usize) -> StoreWriter<Vec<u8>> {
        let settings = WriterSettings { block_bytes: 8192, ..settings };
        let mut writer = StoreWriter::new(settings, vec![vec![0; 8192]; blocks]);
        writer.stream_begin(STREAM, "iex-tp/0x8004/1/0x43810000/r0");
        writer
    }

    fn grant(number: u64) -> SegmentGrant {
        let stamp_source = StampSource::Software;
        let info = SegmentInfo { uuid: [number as u8; 16], number, created_ns: 0, block_bytes: 8192, stamp_source };
        SegmentGrant { info, begin: 4096 }
    }

    fn ops(writer: &mut StoreWriter<Vec<u8>>) -> Vec<Op> {
        std::iter::from_fn(|| writer.next_op()).collect()
    }

    fn message(sequence: u64) -> RecordMeta {
        RecordMeta::message(STREAM, Side::A, sequence, sequence as i64)
    }

    /// Appends messages of 1,000 bytes; seven fill a block.
    fn append(writer: &mut StoreWriter<Vec<u8>>, sequences: std::ops::RangeInclusive<u64>, now: i64) -> u64 {
        sequences.map(|sequence| u64::from(writer.append(&message(sequence), &[1; 1000], now).is_err())).sum()
    }

    fn writes(ops: &[Op]) -> Vec<(usize, usize, u64)> {
        let write = |op: &Op| match op {
            Op::Write { slot, bytes, file_offset, .. } => Some((*slot, *bytes, *file_offset)),
            _ => None,
        };
        ops.iter().filter_map(write).collect()
    }

    #[test]
    fn a_block_is_flushed_and_a_segment_rotated_by_time_without_a_packet() {
        let settings = WriterSettings {
            segment_ns: Some(10 * NANOS_PER_SECOND),
            sync: SyncPolicy::Never,
            ..WriterSettings::default()
        };
        let mut writer = machine(settings, 4);
        assert_eq!(ops(&mut writer), [Op::NextSegment]);
        writer.segment_ready(grant(1), 0);
        assert_eq!(writer.deadline(), None, "nothing to do without a record");
        append(&mut writer, 1..=1, 5);
        assert_eq!(writer.deadline(), Some(5 + NANOS_PER_SECOND));
        writer.on_tick(4 + NANOS_PER_SECOND);
        assert_eq!(ops(&mut writer), []);
        writer.on_tick(5 + NANOS_PER_SECOND);
        let out = ops(&mut writer);
        assert_eq!(writes(&out), [(0, 4096, 4096)], "a partial block is padded to 4 KiB");
        assert!(out.contains(&Op::NextSegment), "the next segment is made ahead");
        writer.on_write(0, Ok(4096), 6 + NANOS_PER_SECOND);
        writer.segment_ready(grant(2), 7 + NANOS_PER_SECOND);
        assert_eq!(writer.deadline(), Some(5 + 10 * NANOS_PER_SECOND));
        writer.on_tick(5 + 10 * NANOS_PER_SECOND);
        let out = ops(&mut writer);
        assert!(matches!(&out[..], [Op::Seal { segment: 1, end: 8192, .. }]), "{out:?}");
        assert_eq!(writer.durable_arrival(), 0);
        writer.on_sealed(1, Ok(()), 0);
        assert_eq!(writer.durable_arrival(), 1, "a seal makes durable");
        assert_eq!(writer.deadline(), None);
    }

    #[test]
    fn a_full_disk_costs_what_finds_no_block_and_writing_resumes_with_space() {
        let mut writer = machine(WriterSettings { sync: SyncPolicy::Never, ..WriterSettings::default() }, 3);
        writer.segment_ready(grant(1), 0);
        // Three blocks of seven fit; the third is open until an eighth record asks for a fourth.
        assert_eq!(append(&mut writer, 1..=21, 0), 0);
        for (slot, _, _) in writes(&ops(&mut writer)) {
            writer.on_write(slot, Err(Fault::NoSpace), 0);
        }
        assert_eq!(append(&mut writer, 22..=40, 1), 19);
        let range = writer.losses().ranges()[0];
        assert_eq!((range.cause, range.first, range.last), (LostCause::NoSpace, 22, 40));
        assert_eq!(writes(&ops(&mut writer)), [], "the disk is left alone for a moment");
        assert_eq!(writer.deadline(), Some(200 * NANOS_PER_MILLI), "and tried again well within a second");
        writer.on_tick(200 * NANOS_PER_MILLI);
        let again = writes(&ops(&mut writer));
        assert_eq!(
            again.iter().map(|write| write.2).collect::<Vec<_>>(),
            [12288, 4096, 20480],
            "each in its own place"
        );
        for (slot, bytes, _) in again {
            writer.on_write(slot, Ok(bytes), 201 * NANOS_PER_MILLI);
        }
        assert_eq!(append(&mut writer, 41..=41, 202 * NANOS_PER_MILLI), 0);
        let counters = writer.counters();
        assert_eq!((counters.appended_data, counters.stored_data, writer.in_flight_data()), (41, 21, 1));
        assert_eq!((writer.losses().data_records(), writer.losses().ranges().len()), (19, 1));
    }

    #[test]
    fn a_failed_write_is_lost_with_its_ranges_and_a_short_one_goes_on() {
        let mut writer = machine(WriterSettings { sync: SyncPolicy::EveryBlock, ..WriterSettings::default() }, 4);
        writer.segment_ready(grant(1), 0);
        append(&mut writer, 1..=22, 0);
        let first = writes(&ops(&mut writer));
        assert_eq!(first.len(), 3, "three writes are out at once");
        writer.on_write(first[1].0, Err(Fault::Io(5)), 0);
        writer.on_write(first[0].0, Ok(5000), 0);
        let rest = writes(&ops(&mut writer));
        assert_eq!(rest, [(first[0].0, 4096, 8192)], "whole sectors only; the rest is written again");
        writer.on_write(first[2].0, Ok(8192), 0);
        assert_eq!(writer.durable_arrival(), 0, "the first block is not there yet");
        writer.on_write(first[0].0, Ok(4096), 0);
        let range = writer.losses().ranges()[0];
        assert_eq!((range.cause, range.first, range.last), (LostCause::WriteError, 8, 14));
        assert_eq!(ops(&mut writer), [Op::Sync { segment: 1 }]);
        writer.on_sync(1, Ok(()), 0);
        // The sync was asked for when only the third block was there: it says nothing of the first.
        assert_eq!(writer.durable_arrival(), 0);
        assert_eq!(ops(&mut writer), [Op::Sync { segment: 1 }]);
        writer.on_sync(1, Ok(()), 0);
        assert_eq!(writer.durable_arrival(), 21, "what was lost is counted, so it does not hold the rest back");
    }

    #[test]
    fn a_failed_sync_stops_the_durable_watermark_for_good() {
        let mut writer = machine(WriterSettings { sync: SyncPolicy::EveryBlock, ..WriterSettings::default() }, 4);
        writer.segment_ready(grant(1), 0);
        for (sequence, result) in [(1, Ok(())), (2, Err(Fault::Io(5))), (3, Ok(()))] {
            append(&mut writer, sequence..=sequence, 0);
            writer.flush(0);
            let (slot, bytes, _) = writes(&ops(&mut writer))[0];
            writer.on_write(slot, Ok(bytes), 0);
            ops(&mut writer);
            writer.on_sync(1, result, 0);
        }
        assert_eq!((writer.durable_arrival(), writer.counters().failed_syncs), (1, 1));
    }

    #[test]
    fn a_seal_without_space_is_tried_again_and_leaves_the_watermark_alone() {
        let settings = WriterSettings { sync: SyncPolicy::Never, ..WriterSettings::default() };
        let settings = WriterSettings { segment_ns: Some(NANOS_PER_SECOND), ..settings };
        let mut writer = machine(settings, 4);
        writer.segment_ready(grant(1), 0);
        append(&mut writer, 1..=7, 0);
        writer.on_tick(NANOS_PER_SECOND);
        let (slot, bytes, _) = writes(&ops(&mut writer))[0];
        writer.on_write(slot, Ok(bytes), NANOS_PER_SECOND);
        writer.segment_ready(grant(2), NANOS_PER_SECOND);
        writer.on_tick(NANOS_PER_SECOND);
        let seal = ops(&mut writer);
        assert!(matches!(&seal[..], [Op::Seal { segment: 1, end: 12288, .. }]), "{seal:?}");
        let mut now = 2 * NANOS_PER_SECOND;
        for _ in 0..3 {
            writer.on_sealed(1, Err(Fault::NoSpace), now);
            assert_eq!(writer.durable_arrival(), 7, "the blocks are on the disk");
            assert_eq!(ops(&mut writer), []);
            now += 200 * NANOS_PER_MILLI;
            assert_eq!(writer.deadline(), Some(now));
            writer.on_tick(now);
            assert_eq!(ops(&mut writer), seal, "the same again");
        }
        writer.on_sealed(1, Err(Fault::NoSpace), now);
        append(&mut writer, 8..=8, now);
        writer.close(now);
        let (slot, bytes, _) = writes(&ops(&mut writer))[0];
        writer.on_write(slot, Ok(bytes), now);
        assert!(matches!(&ops(&mut writer)[..], [Op::Seal { segment: 2, .. }]));
        writer.on_sealed(2, Err(Fault::NoSpace), now);
        assert!(!writer.is_closed(), "space may come as long as nobody gives up");
        writer.give_up(now);
        let counters = writer.counters();
        assert_eq!((writer.is_closed(), counters.failed_seals, counters.retried_seals), (true, 2, 5));
        assert_eq!((writer.durable_arrival(), writer.losses().data_records()), (8, 0));
    }

    #[test]
    fn a_segment_keeps_room_for_its_footer() {
        for (segment_bytes, blocks) in [(4096 + 2 * 8192 + 4096, 2), (4096 + 2 * 8192, 1)] {
            let settings = WriterSettings { segment_bytes, sync: SyncPolicy::Never, ..WriterSettings::default() };
            let mut writer = machine(settings, 8);
            writer.segment_ready(grant(1), 0);
            append(&mut writer, 1..=29, 0);
            let out = ops(&mut writer);
            assert_eq!(writes(&out).len(), blocks, "{segment_bytes}");
            writes(&out).iter().for_each(|&(slot, bytes, _)| writer.on_write(slot, Ok(bytes), 0));
            let sealed = ops(&mut writer).into_iter().find_map(|op| match op {
                Op::Seal { footer, end, .. } => Some(end + footer.len() as u64),
                _ => None,
            });
            assert!(sealed.is_some_and(|bytes| bytes <= segment_bytes), "{sealed:?} of {segment_bytes}");
        }
    }

    #[test]
    fn a_deadline_is_never_in_the_past_while_a_full_disk_holds_up_the_next_segment() {
        let settings = WriterSettings { segment_bytes: 4096 + 8192 + 4096, ..WriterSettings::default() };
        let mut writer = machine(WriterSettings { sync: SyncPolicy::Never, ..settings }, 4);
        writer.segment_ready(grant(1), 0);
        append(&mut writer, 1..=15, 0);
        let (slot, bytes, _) = writes(&ops(&mut writer))[0];
        writer.on_write(slot, Err(Fault::NoSpace), 0);
        writer.segment_failed(Fault::NoSpace);
        let mut now = 0;
        for _ in 0..20 {
            let Some(deadline) = writer.deadline() else { break };
            assert!(deadline > now, "deadline {deadline} at {now}");
            now = deadline;
            writer.on_tick(now);
            if let [(again, ..)] = writes(&ops(&mut writer))[..] {
                writer.on_write(again, Ok(bytes), now);
            }
        }
        assert_eq!(writer.deadline(), None, "only a segment can help");
        let settings = WriterSettings { segment_ns: Some(5), single: true, ..WriterSettings::default() };
        let mut writer = machine(WriterSettings { sync: SyncPolicy::Never, ..settings }, 4);
        writer.segment_ready(grant(1), 0);
        append(&mut writer, 1..=1, 0);
        writer.flush(0);
        assert_eq!(writer.deadline(), None, "a single file does not rotate");
    }

    #[test]
    fn a_stream_that_nobody_registered_is_counted_as_lost() {
        let mut writer = machine(WriterSettings { sync: SyncPolicy::Never, ..WriterSettings::default() }, 4);
        writer.segment_ready(grant(1), 0);
        append(&mut writer, 1..=1, 0);
        let stranger = |sequence| RecordMeta { stream: StreamId(4_000_000_000), ..message(sequence) };
        for sequence in 10..13 {
            assert_eq!(writer.append(&stranger(sequence), b"body", 0), Err(LostCause::Unregistered));
        }
        assert_eq!(writer.append_run(&stranger(13), 2, Framing::U16Le, &[0; 4], 0), Err(LostCause::Unregistered));
        assert_eq!(append(&mut writer, 2..=2, 0), 0);
        let [range] = writer.losses().ranges() else { panic!("{:?}", writer.losses().ranges()) };
        assert_eq!((range.cause, range.first, range.last), (LostCause::Unregistered, 10, 14));
        assert_eq!((writer.losses().data_records(), writer.in_flight_data(), writer.arrival_next()), (5, 2, 7));
        let mut books = [[0; 3]; 1];
        writer.stream_books(&mut books);
        assert_eq!(books, [[0, 0, 2]]);
    }

    #[test]
    fn a_segment_that_cannot_be_made_is_a_write_error() {
        let mut writer = machine(WriterSettings { sync: SyncPolicy::Never, ..WriterSettings::default() }, 2);
        for (sequence, fault, cause) in [
            (15, Fault::NoSpace, LostCause::NoSpace),
            (16, Fault::Io(5), LostCause::WriteError),
            (17, Fault::NoSpace, LostCause::NoSpace),
        ] {
            writer.segment_failed(fault);
            append(&mut writer, 1..=14, 0);
            assert_eq!(writer.append(&message(sequence), &[1; 1000], 0), Err(cause));
        }
        writer.segment_failed(Fault::Io(5));
        writer.close(0);
        writer.give_up(0);
        let last = writer.losses().ranges().last().unwrap();
        assert_eq!(last.cause, LostCause::WriteError);
        assert!(matches!(&ops(&mut writer)[..], [Op::NextSegment]) && writer.is_closed());
    }

    #[test]
    fn a_run_that_does_not_fit_is_split_over_blocks_and_its_rest_counted() {
        let mut writer = machine(WriterSettings { sync: SyncPolicy::Never, ..WriterSettings::default() }, 2);
        writer.segment_ready(grant(1), 0);
        let mut block = Vec::new();
        for length in [1000u16; 20] {
            block.extend_from_slice(&length.to_be_bytes());
            block.resize(block.len() + 1000, 9);
        }
        assert_eq!(writer.append_run(&message(100), 20, Framing::U16Be, &block, 0), Err(LostCause::DiskSlow));
        let range = writer.losses().ranges()[0];
        assert_eq!((range.first, range.last, writer.in_flight_data()), (114, 119, 14));
        assert_eq!(writer.append(&message(120), &[0; 9000], 0), Err(LostCause::TooLong));
        assert_eq!(writer.arrival_next(), 21);
    }

    #[test]
    fn a_block_of_another_clock_begins_with_the_change() {
        use sluice::store::ClockState;
        let mut writer = machine(WriterSettings::default(), 4);
        writer.segment_ready(grant(1), 0);
        append(&mut writer, 1..=2, 0);
        writer.set_clock(ClockState { stamp_source: StampSource::Hardware, epoch: 1, tai_offset_s: 37 }, 0);
        append(&mut writer, 3..=3, 0);
        writer.flush(0);
        let headers = writes(&ops(&mut writer));
        let headers = headers.iter().map(|(slot, _, _)| {
            let header = sluice::wire::block::BlockHeader::parse(writer.block(*slot)).unwrap();
            (header.record_count, header.clock_epoch, header.tai_offset_s, header.stamp_source)
        });
        let expected = [(2, 0, 0, StampSource::Unknown), (1, 1, 37, StampSource::Hardware)];
        assert_eq!(headers.collect::<Vec<_>>(), expected);
    }
}
