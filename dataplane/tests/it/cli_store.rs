//! `sluice store …` as a user types it: what it prints and how it ends.

use std::path::Path;
use std::process::{Command, Output};

use sluice::store::{RecordKind, RecordMeta, SyncSettings, SyncStore};
use sluice::units::{Side, StreamId};
use sluice::wire::segment::{Protocol, SessionId, SessionKey};

fn sluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// A store with an IEX-TP and a MoldUDP64 stream: 300 messages, two sides, one gap.
fn store(path: &Path) {
    let settings = SyncSettings { block_bytes: 16384, segment_bytes: 64 << 10, ..SyncSettings::default() };
    let mut store = SyncStore::create(path, settings).unwrap();
    let iex = SessionKey {
        protocol: Protocol::IexTp,
        protocol_id: 0x8004,
        channel: 1,
        session: SessionId::from_u32(0x4381_0000),
    };
    let mold =
        SessionKey { protocol: Protocol::MoldUdp64, protocol_id: 0, channel: 0, session: SessionId(*b"000000000A") };
    store.stream_begin(StreamId(0), &iex, 0);
    store.stream_begin(StreamId(1), &mold, 0);
    for at in 0..300u64 {
        let stream = StreamId((at % 3 == 2).into());
        let side = Side((at % 2) as u8);
        let mut meta = RecordMeta::message(stream, side, at + 1, 1_500_000_000_000_000_000 + at as i64 * 1_000_000);
        meta.send_ns = if stream.0 == 0 { meta.capture_ns - 1500 } else { meta.send_ns };
        if at == 150 {
            meta.kind = RecordKind::Gap;
            store.append(&meta, &(at + 1).to_le_bytes()).unwrap();
            continue;
        }
        store.append(&meta, &vec![at as u8; 10 + at as usize % 90]).unwrap();
    }
    store.close().unwrap();
}

#[test]
fn info_tells_streams_and_segments() {
    let directory = tempfile::tempdir().unwrap();
    store(directory.path());
    let path = directory.path().to_str().unwrap();
    let output = sluice(&["store", "info", path, "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let info = json(&output);
    assert_eq!(info["streams"][0]["key"], "iex-tp/0x8004/1/0x43810000/r0");
    assert_eq!(info["streams"][0]["data_records"], 199);
    assert_eq!(info["streams"][0]["mark_records"], 1);
    assert_eq!(info["streams"][1]["key"], "moldudp64/000000000A/r0");
    assert_eq!(info["streams"][1]["first_sequence"], 3);
    assert_eq!(info["damage"], serde_json::json!([]));
    let output = sluice(&["store", "info", path]);
    assert!(text(&output.stdout).contains("moldudp64/000000000A/r0: 100 records"), "{output:?}");
}

#[test]
fn query_prints_what_was_asked_in_each_format() {
    let directory = tempfile::tempdir().unwrap();
    store(directory.path());
    let path = directory.path().to_str().unwrap();
    let output = sluice(&["store", "query", path, "--stream", "mold", "--sequence", "3..9", "--stats"]);
    assert_eq!(output.status.code(), Some(0));
    let rows = text(&output.stdout);
    let lines: Vec<&str> = rows.lines().collect();
    assert_eq!(lines[0], "arrival,stream,kind,side,flags,sequence,capture_ns,send_ns,bytes,body");
    assert_eq!(lines[1], "2,moldudp64/000000000A/r0,message,A,0,3,1500000000002000000,,12,020202020202020202020202");
    assert_eq!(lines.len(), 4, "{rows}");
    assert!(text(&output.stderr).contains(" us"), "{output:?}");
    let time = ["store", "query", path, "--time", "2017-07-14T02:40:00.149Z..2017-07-14T02:40:00.151Z"];
    let output = sluice(&[&time[..], &["--format", "jsonl"]].concat());
    let kinds: Vec<String> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["kind"].as_str().unwrap().to_string())
        .collect();
    assert_eq!(kinds, ["message", "gap", "message"]);
    let output = sluice(&["store", "query", path, "--format", "hex", "--limit", "1"]);
    assert!(text(&output.stdout).contains("2017-07-14T02:40:00.000000000Z 10 bytes\n  0000  00 00"), "{output:?}");
    let output = sluice(&["store", "query", path, "--stream", "/", "--sequence", "1"]);
    assert_eq!(output.status.code(), Some(2));
    let told = text(&output.stderr);
    assert!(told.contains("iex-tp/0x8004/1/0x43810000/r0, moldudp64/000000000A/r0"), "{told}");
    for wrong in [["--sequence", "9..3"], ["--sequence", "x"], ["--time", "yesterday.."]] {
        let output = sluice(&[&["store", "query", path, "--stream", "mold"], &wrong[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn damage_ends_with_three_and_names_file_and_offset() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("one.tri");
    store(&path);
    let text_path = path.to_str().unwrap();
    assert_eq!(sluice(&["store", "verify", text_path]).status.code(), Some(0));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let output = sluice(&["store", "verify", text_path, "--json"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let found = json(&output);
    assert_eq!(found["damage"][0]["offset"], 4096);
    assert_eq!(found["damage"][0]["lost"][0]["first"], 1);
    let output = sluice(&["store", "query", text_path]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("one.tri"), "{output:?}");
    assert_eq!(sluice(&["store", "info", "/no/such/store"]).status.code(), Some(2));
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(sluice(&["store", "verify", empty.path().to_str().unwrap()]).status.code(), Some(2));
}

#[test]
fn exports_are_read_back_and_a_foreign_reader_counts_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    store(&path);
    let path = path.to_str().unwrap();
    for (format, records) in [("pcapng", 299), ("pcap", 299), ("csv", 300)] {
        let out = directory.path().join(format!("out.{format}"));
        let out = out.to_str().unwrap();
        let output = sluice(&["store", "export", path, "--format", format, "--out", out, "--json"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let told = json(&output);
        assert_eq!((&told["records"], &told["read_back"]), (&records.into(), &records.into()), "{format}");
        let again = sluice(&["store", "export", path, "--format", format, "--out", out]);
        assert_eq!(again.status.code(), Some(2), "an export never overwrites");
        if format != "csv" {
            foreign(out, format);
        }
    }
    let out = directory.path().join("out.parquet");
    let output = sluice(&["store", "export", path, "--format", "parquet", "--out", out.to_str().unwrap()]);
    let expected = if cfg!(feature = "parquet") { 0 } else { 2 };
    assert_eq!((output.status.code(), out.exists()), (Some(expected), expected == 0), "{output:?}");
}

#[test]
fn an_export_with_gaps_has_the_gaps_of_its_store() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
    let (session, store, merged) = (at("session.pcapng"), at("store"), at("merged.pcapng"));
    let done = |args: &[&str]| {
        let output = sluice(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
        output
    };
    done(&["feed", "generate", "--protocol", "deep", "--messages", "20k", "--out", &session]);
    done(&["feed", "split", &session, "--out-dir", &at(""), "--loss-a", "0.1", "--loss-b", "0.1"]);
    done(&["feed", "arbitrate", &at("a.pcap"), &at("b.pcap"), "--out", &store]);
    let again = done(&["feed", "arbitrate", &at("a.pcap"), &at("b.pcap"), "--out", &at("twice")]);
    assert!(again.stderr.is_empty(), "{again:?}");
    let again = done(&["feed", "arbitrate", &at("a.pcap"), &at("b.pcap"), "--out", &at("twice")]);
    let text = text(&again.stderr);
    assert!(text.contains("holds this session already, up to ") && text.contains("/r1 on"), "{text}");
    let told = json(&done(&["store", "export", &store, "--format", "pcapng", "--out", &merged, "--json"]));
    let gaps = json(&done(&["feed", "gaps", &merged, "--json"]));
    let stream = &gaps["streams"][0];
    let number = |name: &str| stream[name].as_u64().unwrap();
    let length = |gap: &serde_json::Value| gap[1].as_u64().unwrap() - gap[0].as_u64().unwrap() + 1;
    let lost: u64 = stream["gaps"].as_array().unwrap().iter().map(length).sum();
    assert!(lost > 50, "{gaps}");
    assert_eq!(number("messages"), told["records"].as_u64().unwrap(), "{gaps}");
    assert_eq!(number("messages") + lost, number("last_sequence") - number("first_sequence") + 1, "{gaps}");
}

/// tshark must see every frame, each of its interface, with whole IP and UDP headers and the message's bytes.
fn foreign(out: &str, format: &str) {
    let fields = ["frame.time_epoch", "frame.interface_id", "ip.checksum.status", "udp.length", "udp.payload"];
    let mut command = Command::new("tshark");
    command.args(["-r", out, "-o", "ip.check_checksum:TRUE", "-T", "fields"]);
    fields.iter().for_each(|field| {
        command.args(["-e", field]);
    });
    let Ok(output) = command.output() else {
        return crate::common::skip("tshark is not installed", false);
    };
    let rows = text(&output.stdout);
    let rows: Vec<Vec<&str>> = rows.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), 299, "{output:?}");
    let mut expected = (0..300u64).filter(|&at| at != 150);
    for row in &rows {
        let at = expected.next().unwrap();
        let nanos = format!("1500000000.{:09}", at * 1_000_000);
        assert!(row[0] == nanos || row[0].starts_with("2017-07-14T02:40:00"), "{row:?}");
        assert!(format == "pcap" || row[1] == (at % 2).to_string(), "{row:?}");
        assert!(row[2] == "1" || row[2] == "Good", "{row:?}");
        let body = vec![at as u8; 10 + at as usize % 90];
        let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(row[4].replace(':', "").ends_with(&hex), "{row:?}");
        let header = if at % 3 == 2 { 20 } else { 40 };
        assert_eq!(row[3], (8 + header + 2 + body.len()).to_string());
    }
}

#[test]
fn prune_deletes_down_to_the_bound() {
    let directory = tempfile::tempdir().unwrap();
    store(directory.path());
    let path = directory.path().to_str().unwrap();
    assert_eq!(sluice(&["store", "prune", path]).status.code(), Some(2), "a bound is needed");
    let output = sluice(&["store", "prune", path, "--max-bytes", "1Ti", "--max-age", "7days", "--json"]);
    assert_eq!((output.status.code(), &json(&output)["bytes"]), (Some(0), &0.into()));
    let output = sluice(&["store", "prune", path, "--min-free", "1000Ti"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("no deletion can reach that; lower the bound"), "{output:?}");
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 1, "nothing was deleted for it");
    let output = sluice(&["store", "prune", path, "--max-bytes", "4k"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stdout).contains("1 segment deleted"), "{output:?}");
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 0);
}

#[test]
fn prune_says_what_it_cannot_delete() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    std::fs::write(directory.path().join("0000000007-0a0b0c0d.tri.partial"), [1; 8192]).unwrap();
    let output = sluice(&["store", "prune", path, "--max-bytes", "1"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let told = text(&output.stdout);
    let wanted = "0 segments deleted, 0 bytes\n--max-bytes is not met: 1 segment left, 8192 bytes: what is left was never sealed";
    assert!(told.starts_with(wanted), "{told}");
    let met = sluice(&["store", "prune", path, "--max-bytes", "1M", "--json"]);
    assert!(json(&met)["unmet"].is_null(), "{met:?}");
}

#[test]
fn a_query_beyond_the_end_says_what_there_is() {
    let directory = tempfile::tempdir().unwrap();
    store(directory.path());
    let path = directory.path().to_str().unwrap();
    let query = |range: &str| sluice(&["store", "query", path, "--stream", "mold", "--sequence", range]);
    let output = query("100000..100002");
    assert_eq!(output.status.code(), Some(0));
    let wanted =
        "sluice: no record of moldudp64/000000000A/r0 has a sequence in 100000..100002: the stream holds 3 to 300\n";
    assert_eq!(text(&output.stderr), wanted);
    assert_eq!(text(&query("3..9").stderr), "");
}
