//! The ledger stream from end to end over loopback: real metas and made-up ledgers, `sluice ledger follow` as a user types it.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use sluice::ledger::assemble::{AssemblyError, StreamError};
use sluice::ledger::client::{ClientError, Truncated};
use sluice::ledger::dump;
use sluice::ledger::follow::{FollowError, FollowSettings, Follower, Notice};
use sluice::ledger::order::{Order, OrderError};
use sluice::ledger::query::Range;
use sluice::ledger::rpc::{Part, RecordReader, ledger_sequence, mark};
use sluice::ledger::synthetic::{self, Shape};

use crate::common;
use crate::common::ledger_server::LedgerServer;

fn sluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(["ledger", "follow"]).args(args).output().expect("the binary runs")
}

fn range(start: u32, end: Option<u32>) -> Range {
    Range::new(start, end).expect("a range")
}

/// The records of a meta stream, fed in pieces.
fn records(stream: &[u8], piece: usize) -> Vec<(u32, Vec<u8>)> {
    let mut reader = RecordReader::default();
    let mut ledgers: Vec<(u32, Vec<u8>)> = Vec::new();
    for mut input in stream.chunks(piece) {
        loop {
            match reader.next(&mut input).expect("a meta stream") {
                Part::Begin { sequence, bytes } => ledgers.push((sequence, Vec::with_capacity(bytes as usize))),
                Part::Body(bytes) => ledgers.last_mut().expect("begun").1.extend_from_slice(bytes),
                Part::End => {}
                Part::More => break,
            }
        }
    }
    reader.finish().expect("whole");
    ledgers
}

/// Every ledger of a file of the shared data, whatever way it is kept, with its own sequence.
pub(crate) fn metas(path: &Path) -> Vec<(u32, Vec<u8>)> {
    let mut bytes = std::fs::read(path).expect("readable");
    let name = path.file_name().and_then(|name| name.to_str()).expect("text");
    if name.ends_with(".zstd") {
        bytes = zstd::stream::decode_all(&bytes[..]).expect("zstd");
    }
    match path.parent().and_then(|folder| folder.file_name()).and_then(|name| name.to_str()) {
        Some("framed") => records(&bytes, 65_536),
        // LedgerCloseMetaBatch: first, last, count, then the metas; those here hold one.
        Some("batch") => vec![(u32::from_be_bytes(bytes[..4].try_into().expect("four")), bytes[12..].to_vec())],
        _ => vec![(ledger_sequence(&bytes).expect("a meta").expect("whole"), bytes)],
    }
}

/// Files of the shared data under `stellar/`, with what its manifest says of them.
pub(crate) fn manifest(data: &Path) -> Vec<(std::path::PathBuf, String)> {
    let text = std::fs::read_to_string(data.join("MANIFEST.tsv")).expect("a manifest");
    let lines = text.lines().filter(|line| line.starts_with("stellar/") && !line.contains("lcm-index"));
    lines
        .map(|line| {
            // file, kind, bytes, sha256, repository, path, commit, what must come out, more
            let columns: Vec<&str> = line.split('\t').collect();
            (data.join(columns[0]), columns[7].to_string())
        })
        .collect()
}

/// The sequences that the manifest states: `seq A`, `seq A..B`, `seqs A..B` or `seqs [A, B, …]`.
fn stated_sequences(text: &str) -> Option<Vec<u32>> {
    let (_, rest) = text.split_once("seq")?;
    let rest = rest.trim_start_matches('s').trim_start();
    if let Some(list) = rest.strip_prefix('[') {
        return list.split(']').next()?.split(',').map(|number| number.trim().parse().ok()).collect();
    }
    let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
    let first = numbers.next()?.parse().ok()?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let last = if rest[digits..].starts_with("..") { numbers.next()?.parse().ok()? } else { first };
    Some((first..=last).collect())
}

#[test]
fn every_real_meta_has_the_sequence_that_other_decoders_found() {
    let Some(data) = common::data() else { return };
    let mut compared = 0;
    for (path, stated) in manifest(&data) {
        let found: Vec<u32> = metas(&path).iter().map(|(sequence, _)| *sequence).collect();
        assert!(!found.is_empty(), "{}", path.display());
        if let Some(expected) = stated_sequences(&stated) {
            assert_eq!(found, expected, "{}", path.display());
            compared += 1;
        }
    }
    assert!(compared >= 30, "the manifest states the sequences of {compared} files");
}

#[test]
fn records_do_not_depend_on_how_a_stream_is_cut() {
    let Some(data) = common::data() else { return };
    for name in ["all-kept-lcm.framed.xdr", "core-test-lcm-next-HerderTests-370dd5e0af5cfa8d.xdr"] {
        let stream = std::fs::read(data.join("stellar/framed").join(name)).expect("readable");
        let whole = records(&stream, stream.len());
        for piece in [7, 4095, 65_536] {
            assert!(records(&stream, piece) == whole, "{name} in pieces of {piece}");
        }
        let again: Vec<u8> = whole.iter().flat_map(|(_, meta)| [&mark(meta.len())[..], meta].concat()).collect();
        assert!(again == stream, "{name}: written again, it is the same stream");
    }
}

#[test]
fn a_real_stream_that_skips_fails_the_sources_contract() {
    let Some(data) = common::data() else { return };
    let mut order = Order::default();
    let metas = metas(&data.join("stellar/framed/load-test-ledgers-v22.xdr.zstd"));
    let checked: Result<(), OrderError> = metas.iter().try_for_each(|(sequence, _)| order.check(*sequence));
    assert_eq!(checked, Err(OrderError::NotNext { last: 95, found: 98 }));
}

#[test]
fn every_real_meta_reaches_the_follower_byte_for_byte() {
    let Some(data) = common::data() else { return };
    let server = LedgerServer::start();
    // Renumbered, because the files are not one history.
    let mut all: Vec<Vec<u8>> = Vec::new();
    for (path, _) in manifest(&data) {
        all.extend(metas(&path).into_iter().map(|(_, meta)| meta));
    }
    for (index, meta) in all.iter().enumerate() {
        server.publisher().ledger(index as u32 + 1, meta);
    }
    server.publisher().finish();
    let output = sluice(&[&server.url(), "--start", "1", "--stdout-framed"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let expected: Vec<u8> = all.iter().flat_map(|meta| [&mark(meta.len())[..], meta].concat()).collect();
    assert!(output.stdout == expected, "{} bytes of {}", output.stdout.len(), expected.len());

    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().to_str().expect("text");
    let output = sluice(&[&server.url(), "--start", "3", "--end", "7", "--out", out]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(dump::bounds(directory.path()).expect("a dump"), (3, 7));
    for sequence in 3..=7 {
        let ledger = dump::read(directory.path(), sequence).expect("there");
        assert!(ledger == all[sequence as usize - 1], "ledger {sequence}");
    }
}

fn ledger(sequence: u32) -> Vec<u8> {
    let mut bytes = vec![0; 50_000 + sequence as usize];
    synthetic::write(sequence, if sequence.is_multiple_of(2) { Shape::Noise } else { Shape::Compressible }, &mut bytes);
    bytes
}

#[test]
fn a_connection_that_is_cut_again_and_again_is_resumed() {
    let server = LedgerServer::start();
    (1..=12).for_each(|sequence| server.publisher().ledger(sequence, &ledger(sequence)));
    // One ledger and a half to each connection.
    server.publisher().cut_after = Some(90_000);
    let mut connections = 0;
    let notice = |notice: Notice<'_>| connections += u32::from(matches!(notice, Notice::Connected { .. }));
    let mut follower =
        Follower::with_notice(&server.url(), range(2, Some(11)), FollowSettings::default(), notice).expect("a URL");
    let mut expected = 2;
    while let Some(received) = follower.next().expect("resumed") {
        assert_eq!(received.ledger.sequence, expected);
        assert!(received.ledger.bytes == ledger(expected));
        expected += 1;
    }
    drop(follower);
    assert_eq!(expected, 12);
    assert!(connections >= 5, "{connections} connections");
}

#[test]
fn live_ledgers_are_stamped_and_printed() {
    let server = LedgerServer::start();
    let url = server.url();
    let follower = std::thread::spawn(move || sluice(&[&url, "--start", "1", "--end", "3", "--json"]));
    let waited = sluice::sys::clock::monotonic_ns() + 20_000_000_000;
    server.publisher().ledger(1, &ledger(1));
    for sequence in 2..=3 {
        assert!(sluice::sys::clock::monotonic_ns() < waited);
        sluice::sys::clock::sleep(Duration::from_millis(20));
        server.publisher().ledger(sequence, &ledger(sequence));
    }
    let output = follower.join().expect("the follower ends");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<serde_json::Value> = String::from_utf8(output.stdout)
        .expect("text")
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.iter().map(|line| line["sequence"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(2), Some(3)]);
    for line in &lines {
        let sequence = line["sequence"].as_u64().expect("a number") as u32;
        assert_eq!(line["bytes"].as_u64(), Some(u64::from(50_000 + sequence)));
        let xxh64 = format!("{:016x}", xxhash_rust::xxh64::xxh64(&ledger(sequence), 0));
        assert_eq!(line["xxh64"].as_str(), Some(xxh64.as_str()));
    }
}

#[test]
fn each_end_has_its_exit_code() {
    let server = LedgerServer::start();
    let (url, once) = (server.url(), ["--retry-for", "0s"]);
    (5..=6).for_each(|sequence| server.publisher().ledger(sequence, &ledger(sequence)));
    let code = |args: &[&str]| {
        let output = sluice(&[args, &once].concat());
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    let (stale, text) = code(&[&url, "--start", "3"]);
    assert_eq!(stale, Some(1), "{text}");
    assert!(text.contains("too far behind: ledger 3 was requested, the server retains 5 to 6"), "{text}");
    server.publisher().finish();
    let (short, text) = code(&[&url, "--start", "5", "--end", "9"]);
    assert_eq!(short, Some(1), "{text}");
    assert!(text.contains("got through ledger 6, requested through 9"), "{text}");
    assert_eq!(code(&[&url, "--start", "5"]).0, Some(0));
    assert_eq!(code(&[&url, "--start", "9", "--end", "4"]).0, Some(2));
    assert_eq!(code(&[&url, "--start", "4294967295"]).0, Some(2));
    assert_eq!(code(&["wss://127.0.0.1:1"]).0, Some(4), "nobody listens");
    assert_eq!(code(&["127.0.0.1:1"]).0, Some(2));
    let (missing, text) = code(&[&format!("{url}/nowhere")]);
    assert_eq!(missing, Some(2), "{text}");
    assert!(text.contains("status 404"), "{text}");
    drop(server);
    assert_eq!(code(&[&url]).0, Some(4), "nobody listens");
}

#[test]
fn a_server_that_lies_is_found_out() {
    use std::io::{Read, Write};
    // A server by hand: it upgrades, then sends one ledger with a wrong checksum.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("ws://{}", listener.local_addr().expect("bound"));
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a follower");
        let mut request = vec![0; 4096];
        let bytes = stream.read(&mut request).expect("a request");
        let parsed = sluice::wire::http::parse_request(&request[..bytes]).expect("HTTP").expect("whole");
        let accept = sluice::wire::http::judge_upgrade(&parsed).expect("an upgrade");
        let mut answer = sluice::wire::http::upgrade_response(&accept, &[]);
        let begin = sluice::wire::ledger::Begin { sequence: 7, emit_start_ns: 0 };
        let end = sluice::wire::ledger::End { sequence: 7, chunks: 0, bytes: 0, emit_end_ns: 0, xxh64: 1 };
        sluice::wire::websocket::write_binary(&begin.encode(), None, &mut answer);
        sluice::wire::websocket::write_binary(&end.encode(), None, &mut answer);
        stream.write_all(&answer).expect("sent");
        let mut close = Vec::new();
        let _ = stream.read_to_end(&mut close);
        close
    });
    let mut follower = Follower::new(&url, Range::TIP, FollowSettings::default()).expect("a URL");
    let error = follower.next().expect_err("a wrong checksum");
    let FollowError::Stream { source: ClientError::Stream(StreamError::Protocol(error)), .. } = error else {
        panic!("{error}")
    };
    assert!(matches!(error, AssemblyError::Checksum { sequence: 7, stated: 1, .. }));
    assert!(matches!(follower.next(), Ok(None)), "and stays at its end");
    drop(follower);
    let close = server.join().expect("the server ends");
    assert_eq!(close[0], 0x88, "the server was told");
}

#[test]
fn an_orderly_end_before_the_range_is_complete_is_final() {
    let server = LedgerServer::start();
    server.publisher().ledger(4, &ledger(4));
    server.publisher().finish();
    let mut follower = Follower::new(&server.url(), range(4, Some(5)), FollowSettings::default()).expect("a URL");
    assert!(follower.next().is_ok_and(|received| received.is_some()));
    match follower.next() {
        Err(FollowError::Stream { source: ClientError::Truncated(truncated), .. }) => {
            assert_eq!(truncated, Truncated::Short { last: 4, end: 5 });
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_follower_is_cancelled_wherever_it_waits() {
    // Between two ledgers, inside one (this server cuts nothing: it stops sending), and between two connections.
    let server = LedgerServer::start();
    server.publisher().ledger(1, &ledger(1));
    server.publisher().open(2, &ledger(2));
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    for (url, start) in [(server.url(), 3), (server.url(), 1), (format!("ws://{nobody}"), 0)] {
        let mut follower = Follower::new(&url, range(start, None), FollowSettings::default()).expect("a URL");
        let cancel = follower.canceller();
        let waits = std::thread::spawn(move || {
            loop {
                match follower.next() {
                    Ok(Some(_)) => {}
                    other => return (other.map(|received| received.is_some()), follower.next().is_ok()),
                }
            }
        });
        sluice::sys::clock::sleep(Duration::from_millis(150));
        let asked = sluice::sys::clock::monotonic_ns();
        cancel.cancel();
        let (ended, then_silent) = waits.join().expect("the follower ends");
        assert!(matches!(ended, Err(FollowError::Cancelled)), "{url} from {start}: {ended:?}");
        assert!(then_silent);
        assert!(sluice::sys::clock::monotonic_ns() - asked < 5_000_000_000, "{url} from {start}");
    }
}
