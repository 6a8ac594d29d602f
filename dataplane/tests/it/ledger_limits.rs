//! The stream's limits at their true size: a ledger of 256 MiB, a chunk of 8 MiB, the last sequence there is. What is one more is
//! refused before memory is taken for it.

use std::io::Write;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use sluice::ledger::assemble::{Assembler, AssemblyError, Gap, Limits, StreamError};
use sluice::ledger::chunker::{Chunker, ChunkerError, Cut};
use sluice::ledger::client::ClientError;
use sluice::ledger::compress::Packer;
use sluice::ledger::follow::{FollowError, FollowSettings, Follower};
use sluice::ledger::hub::Outcome;
use sluice::ledger::query::Range;
use sluice::wire::ledger::{Begin, ChunkHeader, Codec, End, LEDGER_BYTES_MAX, SEQUENCE_MAX};

use crate::common::fanout::{Fanout, settings};
use crate::common::ledger_wire::{Wire, request};

const CHUNK: usize = 8 << 20;

fn range(start: u32, end: Option<u32>) -> Range {
    Range::new(start, end).expect("a range")
}

/// The messages of a server by hand, without frames.
fn served(messages: Vec<Vec<u8>>) -> (String, std::thread::JoinHandle<Option<u16>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("ws://{}", listener.local_addr().expect("bound"));
    let server = std::thread::spawn(move || {
        let (mut wire, _) = Wire::accept(&listener);
        for message in messages {
            let mut frame = Vec::new();
            sluice::wire::websocket::write_binary(&message, None, &mut frame);
            // The client may have had enough.
            if wire.stream.write_all(&frame).is_err() {
                break;
            }
        }
        let close = wire.heard()?;
        close.payload.first_chunk().map(|code| u16::from_be_bytes(*code))
    });
    (url, server)
}

fn follow(url: &str, range: Range) -> Result<Vec<u32>, ClientError> {
    let settings = FollowSettings { retry_for: Some(Duration::ZERO), ..FollowSettings::default() };
    let mut follower = Follower::new(url, range, settings).expect("a URL");
    let mut sequences = Vec::new();
    loop {
        match follower.next() {
            Ok(Some(received)) => sequences.push(received.ledger.sequence),
            Ok(None) => return Ok(sequences),
            Err(FollowError::Stream { source, .. }) => return Err(source),
            Err(other) => panic!("{other}"),
        }
    }
}

fn begin(sequence: u32) -> Vec<u8> {
    Begin { sequence, emit_start_ns: 0 }.encode().to_vec()
}

fn chunk(sequence: u32, index: u32, codec: Codec, payload: &[u8]) -> Vec<u8> {
    [&ChunkHeader { sequence, index, codec }.encode()[..], payload].concat()
}

fn end(sequence: u32, chunks: u32, ledger: &[u8]) -> Vec<u8> {
    let xxh64 = xxhash_rust::xxh64::xxh64(ledger, 0);
    End { sequence, chunks, bytes: ledger.len() as u64, emit_end_ns: 0, xxh64 }.encode().to_vec()
}

#[test]
fn a_ledger_of_256_mib_passes_and_one_byte_more_does_not() {
    let mut chunker = Chunker::new(Cut::new(CHUNK, None).expect("a cut"));
    let mut packer = Packer::new(1).expect("zstd");
    let mut assembler = Assembler::new(range(1, None), Limits::default()).expect("zstd");
    let zeros = vec![0; CHUNK];
    chunker.begin(1, Some(LEDGER_BYTES_MAX)).expect("exactly the limit");
    assembler.take(&begin(1)).expect("BEGIN");
    for _ in 0..LEDGER_BYTES_MAX / CHUNK as u64 {
        let mut input = &zeros[..];
        while !input.is_empty() {
            if let Some(chunk) = chunker.push(&mut input).expect("within the limit") {
                let message = packer.pack(chunk, chunker.spare());
                assert!(message.message().len() < 4096, "zeros shrink");
                assembler.take(message.message()).expect("a chunk");
            }
        }
    }
    let (last, stated) = chunker.finish(0).expect("whole");
    if let Some(chunk) = last {
        assembler.take(packer.pack(chunk, chunker.spare()).message()).expect("a chunk");
    }
    assert_eq!(stated.bytes, LEDGER_BYTES_MAX);
    let ledger = assembler.take(&stated.encode()).expect("verified").expect("whole");
    assert_eq!(ledger.bytes.len() as u64, LEDGER_BYTES_MAX);

    // One byte more: the source side refuses it when it is declared, and when it comes.
    let one_more = LEDGER_BYTES_MAX + 1;
    let refused = chunker.begin(2, Some(one_more));
    assert_eq!(refused, Err(ChunkerError::LedgerBytes { sequence: 2, bytes: one_more }));
    assert!(
        refused.is_err_and(|error| error
            .to_string()
            .starts_with("ledger 2 has 268435457 bytes or more: at most 268435456"))
    );
    chunker.begin(2, None).expect("of no declared length");
    let mut pushed = Ok(None);
    for _ in 0..=LEDGER_BYTES_MAX / CHUNK as u64 {
        let mut input = &zeros[..];
        while !input.is_empty() && pushed.is_ok() {
            pushed = chunker.push(&mut input);
        }
    }
    assert!(matches!(pushed, Err(ChunkerError::LedgerBytes { sequence: 2, .. })), "{pushed:?}");
    // And so does the client, from a server that does not.
    assembler.take(&begin(2)).expect("BEGIN");
    let packed = zstd::bulk::compress(&zeros, 1).expect("zstd");
    for index in 0..(LEDGER_BYTES_MAX / CHUNK as u64) as u32 {
        assembler.take(&chunk(2, index, Codec::Zstd, &packed)).expect("within the limit");
    }
    let refused = assembler.take(&chunk(2, 32, Codec::Raw, b"x"));
    let expected = AssemblyError::LedgerBytes { sequence: 2, bytes: one_more, limit: LEDGER_BYTES_MAX };
    assert_eq!(refused, Err(StreamError::Protocol(expected)));
}

#[test]
fn chunk_sizes_of_4_kib_to_8_mib_are_possible() {
    for bytes in [4096, 256 << 10, CHUNK] {
        assert!(Cut::new(bytes, None).is_ok(), "{bytes}");
    }
    for bytes in [0, 4095, CHUNK + 1] {
        assert_eq!(Cut::new(bytes, None).err(), Some(ChunkerError::ChunkBytes { bytes }));
    }
}

#[test]
fn a_chunk_of_8_mib_passes_and_one_byte_more_does_not() {
    let ledger = vec![7; CHUNK];
    let whole = vec![begin(5), chunk(5, 0, Codec::Raw, &ledger), end(5, 1, &ledger)];
    let (url, server) = served(whole);
    assert_eq!(follow(&url, range(5, Some(5))), Ok(vec![5]));
    assert_eq!(server.join().expect("the server ends"), Some(1000));
    // As a message: over the limit by its length alone.
    let more = vec![7; CHUNK + 1];
    let (url, server) = served(vec![begin(5), chunk(5, 0, Codec::Raw, &more)]);
    let refused = follow(&url, range(5, Some(5)));
    assert!(matches!(refused, Err(ClientError::Frame(_))), "{refused:?}");
    // The server may have been cut off while it was still sending.
    assert!(matches!(server.join().expect("the server ends"), Some(1009) | None));
    // When unpacked.
    let packed = zstd::bulk::compress(&more, 1).expect("zstd");
    let (url, server) = served(vec![begin(5), chunk(5, 0, Codec::Zstd, &packed)]);
    let refused = follow(&url, range(5, Some(5)));
    let protocol = matches!(refused, Err(ClientError::Stream(StreamError::Protocol(AssemblyError::Unpack { .. }))));
    assert!(protocol, "{refused:?}");
    assert_eq!(server.join().expect("the server ends"), Some(1002));
}

#[test]
fn a_length_that_is_only_stated_takes_no_memory() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("ws://{}", listener.local_addr().expect("bound"));
    let server = std::thread::spawn(move || {
        let (mut wire, _) = Wire::accept(&listener);
        // 2^62 bytes are announced.
        wire.stream.write_all(&[0x82, 127, 0x40, 0, 0, 0, 0, 0, 0, 0]).expect("sent");
        wire.heard().map(|close| close.payload[..2].to_vec())
    });
    let refused = follow(&url, range(5, None));
    assert!(matches!(refused, Err(ClientError::Frame(_))), "{refused:?}");
    assert_eq!(server.join().expect("the server ends"), Some(1009_u16.to_be_bytes().to_vec()));
}

#[test]
fn the_last_sequence_is_streamed_and_the_one_after_it_is_nowhere() {
    let Some(mut server) = Fanout::start(settings()) else { return };
    (SEQUENCE_MAX - 1..=SEQUENCE_MAX).for_each(|sequence| server.ledger(sequence, b"late"));
    server.finish(Outcome::Ended);
    let last = vec![SEQUENCE_MAX - 1, SEQUENCE_MAX];
    assert_eq!(follow(&server.url(), range(SEQUENCE_MAX - 1, None)), Ok(last.clone()), "without an end");
    assert_eq!(follow(&server.url(), range(SEQUENCE_MAX - 1, Some(SEQUENCE_MAX))), Ok(last));
    let (mut wire, head) = Wire::ask(server.address, "/stream?start=4294967295");
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    let text = String::from_utf8(wire.rest()).expect("text");
    assert_eq!(text, "ledger 4294967295 is the last representable sequence and is not streamable\n");
    assert!(Range::new(u32::MAX, None).is_err() && Range::new(1, Some(u32::MAX)).is_err());
    for arguments in [["--start", "4294967295"], ["--end", "4294967295"]] {
        let mut follow = Command::new(env!("CARGO_BIN_EXE_sluice"));
        let output =
            follow.args(["ledger", "follow", &server.url()]).args(arguments).output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    }
    // A server that goes on past it.
    let (url, server) = served(vec![begin(SEQUENCE_MAX), end(SEQUENCE_MAX, 0, b""), begin(u32::MAX)]);
    assert_eq!(follow(&url, range(SEQUENCE_MAX, None)), Ok(vec![SEQUENCE_MAX]), "nothing after it is read");
    assert_eq!(server.join().expect("the server ends"), Some(1000));
    for sequence in [0, u32::MAX] {
        let (url, server) = served(vec![begin(sequence)]);
        let gap = ClientError::Stream(StreamError::Gap(Gap::Outside { found: sequence }));
        assert_eq!(follow(&url, Range::TIP), Err(gap));
        assert_eq!(server.join().expect("the server ends"), Some(1002));
    }
}

#[test]
fn a_request_has_16_kib_at_most() {
    let Some(server) = Fanout::start(settings()) else { return };
    let long = request("/stream").replace("Host: h", &format!("Host: h\r\nX: {}", "x".repeat(16 << 10)));
    let answer = String::from_utf8(Wire::send(server.address, long.as_bytes()).rest()).expect("text");
    assert!(answer.starts_with("HTTP/1.1 431 ") || answer.is_empty(), "{answer}");
    let fits = request("/stream").replace("Host: h", &format!("Host: h\r\nX: {}", "x".repeat(12 << 10)));
    let head = Wire::send(server.address, fits.as_bytes()).head();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
}
