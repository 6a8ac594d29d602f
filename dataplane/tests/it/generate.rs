//! The generated fixtures: the seed gives their bytes, decoding them gives the foreign decoder's values, nothing is
//! lost in them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flate2::read::GzDecoder;
use sluice::capture::source::file::FileSource;
use sluice::feed::rows::{Decoder, RowFormat};
use sluice::wire::iextp::Header;
use sluice::wire::packet;
use sluice::wire::segment::Protocol;

/// (protocol, messages) of each fixture; the other settings are the same.
const FIXTURES: [(&str, &str); 2] = [("deep", "4059"), ("tops", "3986")];

fn fixture(protocol: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/{protocol}-2000.pcapng.gz"))
}

fn golden(protocol: &str, kind: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden");
    String::from_utf8(unpacked(&folder.join(format!("{protocol}-2000.pcapng.{kind}.csv.gz")))).unwrap()
}

fn unpacked(path: &Path) -> Vec<u8> {
    let file = std::fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

fn generate(args: &[&str]) -> Output {
    let mut sluice = Command::new(env!("CARGO_BIN_EXE_sluice"));
    sluice.args(["feed", "generate"]).args(args).output().unwrap()
}

#[test]
fn the_seed_gives_the_fixtures_bytes() {
    let folder = tempfile::tempdir().unwrap();
    for (protocol, messages) in FIXTURES {
        for name in ["again.pcapng", "again.pcapng.gz"] {
            let out = folder.path().join(name);
            let out = out.to_str().unwrap();
            let args = ["--protocol", protocol, "--messages", messages, "--seed", "2000", "--restarts", "1"];
            let done = generate(&[&args[..], &["--idle-every", "400", "--out", out, "--json"]].concat());
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
            assert_eq!((report["packets"].as_u64(), report["runs"].as_u64()), (Some(2_000), Some(2)));
            let bytes = match name.ends_with(".gz") {
                true => unpacked(Path::new(out)),
                false => std::fs::read(out).unwrap(),
            };
            assert!(bytes == unpacked(&fixture(protocol)), "{protocol}: the seed gives other bytes than the fixture");
        }
    }
}

#[test]
fn the_fixtures_decode_to_the_foreign_decoders_values() {
    for (protocol, _) in FIXTURES {
        let mut source = FileSource::open(fixture(protocol).to_str().unwrap()).unwrap();
        let mut decoder = Decoder::new(Protocol::IexTp, RowFormat::Csv);
        let mut rows = Vec::new();
        decoder.header(&mut rows);
        while let Some(packet) = source.next().unwrap() {
            decoder.frame(packet.index, packet.data, packet.link, &mut rows);
        }
        let (rows, golden) = (String::from_utf8(rows).unwrap(), golden(protocol, "messages"));
        for (line, (ours, theirs)) in rows.lines().zip(golden.lines()).enumerate() {
            assert_eq!(ours, theirs, "{protocol}, line {}", line + 1);
        }
        assert_eq!(rows.len(), golden.len(), "{protocol}: one ends before the other");
    }
}

#[test]
fn the_fixtures_headers_are_the_foreign_readers() {
    for (protocol, _) in FIXTURES {
        let mut source = FileSource::open(fixture(protocol).to_str().unwrap()).unwrap();
        let mut golden = golden(protocol, "segments").lines().skip(1).map(String::from).collect::<Vec<_>>().into_iter();
        let mut runs = HashMap::new();
        while let Some(packet) = source.next().unwrap() {
            let view = packet::udp(packet.data, packet.link).unwrap();
            let header = Header::read(view.payload).unwrap();
            // A run begins at sequence 1 after higher ones; within it nothing is lost.
            let (run, next, offset) = runs.entry(header.session).or_insert((0, 1, 0));
            if header.first == 1 && *next > 1 {
                (*run, *next, *offset) = (*run + 1, 1, 0);
            }
            assert_eq!((header.first, header.offset), (*next, *offset), "{protocol}, packet {}", packet.index);
            (*next, *offset) = (*next + u64::from(header.count), *offset + u64::from(header.payload_length));
            let mut row = String::new();
            let bytes = packet.data.len();
            write!(row, "{},{},{bytes},{},", packet.index, packet.capture_ns, packet.original_bytes).unwrap();
            write!(row, "{},{},{},{},", view.src, view.src_port, view.dst, view.dst_port).unwrap();
            write!(row, "0x{:04x},{},0x{:08x},{run},", header.protocol_id, header.channel, header.session).unwrap();
            write!(row, "{},{},{},", header.payload_length, header.count, header.offset).unwrap();
            write!(row, "{},{}", header.first, header.send_ns).unwrap();
            assert_eq!(Some(row), golden.next(), "{protocol}");
        }
        assert_eq!((source.damage_count(), golden.next()), (0, None));
    }
}

#[test]
fn nothing_is_lost_in_the_fixtures() {
    for (protocol, messages) in FIXTURES {
        let fixture = fixture(protocol);
        let mut sluice = Command::new(env!("CARGO_BIN_EXE_sluice"));
        let done = sluice.args(["feed", "gaps", "--json"]).arg(fixture).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        let streams = report["streams"].as_array().unwrap();
        assert_eq!(streams.len(), 2, "one restart: {report}");
        for stream in streams {
            assert_eq!(stream["gaps"], serde_json::json!([]), "{stream}");
            assert_eq!((&stream["duplicates"], &stream["reordered"]), (&0.into(), &0.into()), "{stream}");
        }
        let all: u64 = streams.iter().map(|stream| stream["messages"].as_u64().unwrap()).sum();
        assert_eq!(all.to_string(), messages);
    }
}

#[test]
fn two_sides_are_two_interfaces_of_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("ab.pcapng");
    let out = out.to_str().unwrap();
    let groups = ["--group", "239.1.1.1,239.1.1.2", "--port", "4000"];
    let done =
        generate(&[&["--protocol", "deep", "--messages", "2k", "--sides", "2", "--out", out], &groups[..]].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut source = FileSource::open(out).unwrap();
    let mut counts = [0u64; 2];
    while let Some(packet) = source.next().unwrap() {
        let view = packet::udp(packet.data, packet.link).unwrap();
        let side = packet.interface as usize;
        assert_eq!(view.dst.to_string(), ["239.1.1.1", "239.1.1.2"][side]);
        assert_eq!(view.dst_port, 4000);
        counts[side] += 1;
    }
    assert!(counts[0] > 0 && counts[0] == counts[1], "{counts:?}");
    assert_eq!(source.interface_name(1), Some("B"));
}

#[test]
fn impossible_sessions_are_usage_errors() {
    let good = ["--protocol", "deep", "--out", "/dev/null", "--messages"];
    for (rest, said) in [
        (&["99"][..], "raise it to 100"),
        (&["1k", "--restarts", "64"], "at most 63"),
        (&["1k", "--sides", "0"], "sides = 0"),
        (&["1k", "--sides", "9"], "1 to 4"),
        (&["1k", "--sides", "2", "--port", "1,2,3"], "one for each side"),
        (&["1.5"], "not a whole number"),
        (&["1k", "--start", "yesterday"], "2024-03-15T13:29:50Z"),
    ] {
        let done = generate(&[&good[..], rest].concat());
        let told = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{rest:?}: {told}");
        assert!(told.contains(said), "{rest:?}: {told}");
    }
    let done = generate(&["--protocol", "deep", "--messages", "1k", "--out", "/nowhere/x.pcapng"]);
    assert_eq!(done.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&done.stderr).contains("/nowhere/x.pcapng"));
}
