//! The ledger stream byte for byte: messages and generated ledgers that the peer's own programs gave, and whole exchanges as they
//! are on the wire, written down here and read by nothing of ours.

use std::io::Write;
use std::net::TcpListener;

use sluice::ledger::follow::{FollowSettings, Follower};
use sluice::ledger::hub::Outcome;
use sluice::ledger::query::Range;
use sluice::ledger::stats::FanoutCounter;
use sluice::ledger::synthetic::{self, Shape};
use sluice::wire::ledger::{Begin, ChunkHeader, Codec, End, Message, decode};
use xxhash_rust::xxh64::xxh64;

use crate::common::fanout::{Fanout, RUN, settings};
use crate::common::ledger_wire::{ACCEPT, Wire, request};

const BEGIN: &str = "02100000002a112210f47de98115";
const CHUNK: &str = "02110000002a0000000300616263";
const END: &str = "02120000002a000000010000000000000003112210f47de9811644bc2cf5ad770999";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("digits");
    digits.chunks(2).map(byte).collect()
}

#[test]
fn the_golden_messages_are_read_and_written() {
    let begin = Begin { sequence: 42, emit_start_ns: 1_234_567_890_123_456_789 };
    let header = ChunkHeader { sequence: 42, index: 3, codec: Codec::Raw };
    let xxh64 = 0x44bc_2cf5_ad77_0999;
    let end = End { sequence: 42, chunks: 1, bytes: 3, emit_end_ns: 1_234_567_890_123_456_790, xxh64 };
    assert_eq!(begin.encode().to_vec(), hex(BEGIN));
    assert_eq!([&header.encode()[..], b"abc"].concat(), hex(CHUNK));
    assert_eq!(end.encode().to_vec(), hex(END));
    assert_eq!(decode(&hex(BEGIN)), Ok(Message::Begin(begin)));
    assert_eq!(decode(&hex(CHUNK)), Ok(Message::Chunk(header, b"abc")));
    assert_eq!(decode(&hex(END)), Ok(Message::End(end)));
}

#[test]
fn the_generators_ledgers_have_the_peers_hashes() {
    use Shape::{Compressible, Noise};
    for (sequence, bytes, shape, hash) in [
        (1, 15_196_160, Compressible, 0x4d60_738e_4d19_acaf),
        (1, 15_196_160, Noise, 0x0291_aead_e051_d0bc),
        (7, 1024, Noise, 0x5ade_0ff6_dae2_2f90),
        (7, 1024, Compressible, 0xba9e_1115_aa4d_7006),
        (42, 4099, Noise, 0x7173_c1ea_0e26_dcb4),
        (42, 4099, Compressible, 0x9fe6_6c12_06a4_08fb),
        (4_294_967_294, 204_800, Noise, 0x6230_b032_2a45_8430),
        (3, 3, Noise, 0x3188_6f2e_7daf_8ca4),
    ] {
        let mut ledger = vec![0; bytes];
        synthetic::write(sequence, shape, &mut ledger);
        assert_eq!(xxh64(&ledger, 0), hash, "ledger {sequence} of {bytes} bytes, {shape:?}");
    }
}

/// A server that keeps these ledgers.
fn kept(ledgers: &[(u32, &[u8])]) -> Option<Fanout> {
    let mut server = Fanout::start(settings())?;
    ledgers.iter().for_each(|(sequence, bytes)| server.ledger(*sequence, bytes));
    server.until_is(FanoutCounter::Latest, u64::from(ledgers.last()?.0));
    Some(server)
}

#[test]
fn a_replay_is_this_on_the_wire() {
    let Some(server) = kept(&[(42, b"abc")]) else { return };
    let (mut wire, head) = Wire::ask(server.address, "/stream?start=42&end=42");
    let expected = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {ACCEPT}\r\n\
         Sluice-Run: {RUN}\r\n\r\n"
    );
    assert_eq!(head, expected);
    let frames = "82 0e  02 10 0000002a 0000000000000000
        82 0e  02 11 0000002a 00000000 00 616263
        82 22  02 12 0000002a 00000001 0000000000000003 0000000000000000 44bc2cf5ad770999
        88 02  03e8";
    let expected = hex(frames);
    assert_eq!(wire.bytes(expected.len()), expected);
    wire.say(0x88, &[0x03, 0xe8]);
    assert!(wire.rest().is_empty(), "and the connection ends");
}

#[test]
fn chunks_have_the_shortest_frame_headers() {
    let Some(server) = kept(&[(1, &[1; 114]), (2, &[2; 115])]) else { return };
    // These chunks are of 16 KiB at most; frames of more than 65,535 bytes are in the limits' tests.
    let (mut wire, _) = Wire::ask(server.address, "/stream?start=1&end=2");
    assert_eq!(wire.bytes(16)[..2], hex("820e"));
    assert_eq!(wire.bytes(2 + 125)[..2], hex("827d"), "11 + 114 fit in one byte");
    wire.bytes(36);
    wire.bytes(16);
    assert_eq!(wire.bytes(4 + 126)[..4], hex("827e007e"), "11 + 115 do not");
}

#[test]
fn a_live_ledger_is_stamped_and_the_same_ledger_replayed_is_not() {
    let Some(mut server) = kept(&[(1, b"")]) else { return };
    let (mut wire, _) = Wire::ask(server.address, "/stream");
    server.ledger(2, b"abc");
    server.finish(Outcome::Ended);
    let (frames, close) = wire.frames();
    assert_eq!(close, Some((1000, "source ended".into())));
    let messages: Vec<Message<'_>> = frames.iter().map(|frame| decode(&frame.payload).expect("a message")).collect();
    let [Message::Begin(begin), Message::Chunk(header, b"abc"), Message::End(end)] = messages[..] else {
        panic!("{messages:?}")
    };
    assert_eq!((begin.sequence, header.index, end.xxh64), (2, 0, 0x44bc_2cf5_ad77_0999));
    assert!(begin.emit_start_ns > 0 && end.emit_end_ns >= begin.emit_start_ns);
    let (mut wire, _) = Wire::ask(server.address, "/stream?start=1");
    let (frames, _) = wire.frames();
    assert_eq!(frames[0].payload, hex("02 10 00000001 0000000000000000"));
    assert_eq!(frames[1].payload, hex("02 12 00000001 00000000 0000000000000000 0000000000000000 ef46db3751d8e999"));
    assert_eq!(frames[2].payload, hex("02 10 00000002 0000000000000000"));
}

#[test]
fn http_answers_are_these() {
    let ledgers: Vec<(u32, &[u8])> = (25..=29).map(|sequence| (sequence, &b"x"[..])).collect();
    let Some(server) = kept(&ledgers) else { return };
    let answer = |request: &str| {
        let mut wire = Wire::send(server.address, request.as_bytes());
        String::from_utf8(wire.rest()).expect("text")
    };
    let refusal = |status: &str, more: &str, text: &str| {
        let length = text.len() + 1;
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n{more}\
             Connection: close\r\n\r\n{text}\n"
        )
    };
    let bad = |query: &str, text: &str| {
        assert_eq!(answer(&request(&format!("/stream?{query}"))), refusal("400 Bad Request", "", text), "{query}");
    };
    bad("start=abc", "invalid start parameter \"abc\"");
    bad("start=-1", "invalid start parameter \"-1\"");
    bad("end=4294967296", "invalid end parameter \"4294967296\"");
    bad("end=0", "invalid end parameter: 0");
    bad("start=9&end=4", "end 4 is before start 9");
    bad("start=4294967295", "ledger 4294967295 is the last representable sequence and is not streamable");
    bad("end=4294967295", "ledger 4294967295 is the last representable sequence and is not streamable");
    let plain = answer("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(plain.starts_with("HTTP/1.1 426 Upgrade Required\r\n") && plain.contains("\r\nUpgrade: websocket\r\n"));
    assert_eq!(answer("GET / HTTP/1.1\r\nHost: h\r\n\r\n"), refusal("404 Not Found", "", "404 page not found"));
    let foreign = answer(&request("/stream").replace("Host: h", "Host: h\r\nOrigin: http://other"));
    assert!(foreign.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{foreign}");
    let fields = format!(
        "{{\"oldest\":25,\"latest\":29,\"subscribers\":0,\"live_abandons\":0,\"raw_fallbacks\":0,\"run\":\"{RUN}\",\"now_ns\":"
    );
    for method in ["GET", "POST", "PUT"] {
        let healthy = answer(&format!("{method} /healthz HTTP/1.1\r\nHost: h\r\n\r\n"));
        let (head, body) = healthy.split_once("\r\n\r\n").expect("a head");
        let length = body.len();
        let expected = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close"
        );
        assert_eq!(head, expected);
        // The server's clock is the last thing in it.
        let now_ns = body.strip_prefix(&fields).and_then(|rest| rest.strip_suffix("}\n")).expect("one line of JSON");
        assert!(now_ns.parse::<i64>().is_ok_and(|now_ns| now_ns > 0), "{body}");
    }
}

#[test]
fn a_peers_server_is_read_however_it_cuts_its_frames() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let server = std::thread::spawn(move || {
        let (mut wire, request) = Wire::accept(&listener);
        let mut chunk = hex(CHUNK);
        chunk[9] = 0;
        // A message in one frame, one in three with a ping between them, one more.
        let mut bytes = [&hex("820e")[..], &hex(BEGIN)].concat();
        bytes.extend(
            [&hex("0205")[..], &chunk[..5], &hex("890270 71"), &hex("0000"), &hex("8009"), &chunk[5..]].concat(),
        );
        bytes.extend([&hex("8222")[..], &hex(END)].concat());
        for byte in bytes {
            wire.stream.write_all(&[byte]).expect("sent");
        }
        let pong = wire.heard().expect("a pong");
        let close = wire.heard().expect("a close");
        (request, pong, close)
    });
    let range = Range::new(42, Some(42)).expect("a range");
    let mut follower =
        Follower::new(&format!("ws://{address}/?token=a&start=1"), range, FollowSettings::default()).expect("a URL");
    let received = follower.next().expect("a ledger").expect("one");
    assert_eq!((received.ledger.bytes, received.ledger.emit_start_ns), (&b"abc"[..], 1_234_567_890_123_456_789));
    assert_eq!(received.ledger.emit_end_ns, 1_234_567_890_123_456_790);
    assert!(follower.next().expect("the end").is_none());
    drop(follower);
    let (request, pong, close) = server.join().expect("the server ends");
    let key = request.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).expect("a key");
    assert_eq!(key.len(), 24);
    let expected = format!(
        "GET /stream?token=a&start=42&end=42 HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    );
    assert_eq!(request, expected);
    assert_eq!((pong.first, &pong.payload[..]), (0x8a, &b"pq"[..]));
    assert_eq!((close.first, &close.payload[..]), (0x88, &[&hex("03e8")[..], b"range complete"].concat()[..]));
}
