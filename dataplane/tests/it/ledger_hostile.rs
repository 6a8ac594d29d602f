//! Subscribers that mean no good: slow handshakes, endless heads, frames against the rules, thousands that say nothing. Each is
//! cut off or borne in bounded memory, and nobody else notices.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use sluice::ledger::fanout_worker::FanoutSettings;
use sluice::ledger::stats::FanoutCounter;
use sluice::sys::clock;
use sluice::wire::websocket::{self, ControlKind};

use crate::common::fanout::{Fanout, Got, Raw, ledger_bytes, request, settings, within};

fn hurried() -> FanoutSettings {
    let mut settings = settings();
    settings.audience.time.request_ns = 500_000_000;
    settings
}

/// Publishes a ledger and sees it at a subscriber.
fn assert_unhurt(server: &mut Fanout, good: &mut Raw, sequence: u32) {
    server.ledger(sequence, &ledger_bytes(sequence, 30_000));
    let got = good.until(|got| matches!(got, Got::End(..)));
    assert_eq!(got.last(), Some(&Got::End(sequence, true)));
}

/// Whether the server ends the connection.
fn ends(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time-out");
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn handshakes_that_do_not_come_to_an_end_are_ended() {
    let Some(mut server) = Fanout::start(hurried()) else { return };
    let mut good = Raw::subscribe(server.address, "start=1");
    let mut silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(server.address).expect("connects")).collect();
    let mut slow = TcpStream::connect(server.address).expect("connects");
    let mut sent = 0;
    for byte in request("/stream") {
        // A byte each 20 ms: the whole request would take seconds.
        if slow.write_all(&[byte]).is_err() {
            break;
        }
        sent += 1;
        clock::sleep(Duration::from_millis(20));
    }
    assert!(sent < request("/stream").len(), "it is cut off before it has said all");
    assert!(silent.iter_mut().all(ends));
    server.until_is(FanoutCounter::RequestTimeouts, 21);
    assert_unhurt(&mut server, &mut good, 1);
}

#[test]
fn heads_that_are_none_or_too_long_are_answered_and_ended() {
    let Some(mut server) = Fanout::start(settings()) else { return };
    let mut good = Raw::subscribe(server.address, "start=1");
    let long = format!("GET /stream HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(40_000));
    let many = format!("GET /stream HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(100));
    let cases: [(&[u8], &str); 8] = [
        (long.as_bytes(), "431"),
        (many.as_bytes(), "400"),
        (b"\x16\x03\x01\x02\x00\x01", "400"),
        (b"GET /stream HTTP/1.1\r\n\r\n", "426"),
        (b"GET /nothing HTTP/1.1\r\n\r\n", "404"),
        (b"POST /stream HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "405"),
        (b"GET /stream?start=x HTTP/1.1\r\n\r\n", "400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"),
    ];
    for (bytes, status) in cases {
        let mut raw = Raw::ask(server.address, bytes);
        let answer = raw.rest();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
    }
    server.until_is(FanoutCounter::RefusedRequest, cases.len() as u64);
    server.until_is(FanoutCounter::Connections, 1);
    assert_unhurt(&mut server, &mut good, 1);
}

/// A client's frame with any first two bytes.
fn frame(first: u8, masked: bool, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    let bit = if masked { 0x80 } else { 0 };
    match payload.len() {
        short @ 0..126 => frame.push(bit | short as u8),
        long => {
            frame.push(bit | 126);
            frame.extend((long as u16).to_be_bytes());
        }
    }
    if masked {
        frame.extend([0; 4]);
    }
    frame.extend_from_slice(payload);
    frame
}

#[test]
fn a_subscriber_that_speaks_or_breaks_a_rule_is_cut_off() {
    let Some(mut server) = Fanout::start(settings()) else { return };
    let mut good = Raw::subscribe(server.address, "start=1");
    let fragments = [frame(0x02, true, b"a"), frame(0x00, true, b"b"), frame(0x80, true, b"c")].concat();
    let endless: Vec<u8> = (0..64).flat_map(|at| frame(if at == 0 { 0x02 } else { 0 }, true, &[7; 100])).collect();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("a message", frame(0x82, true, b"hello")),
        ("text", frame(0x81, true, b"hello")),
        ("without a mask", frame(0x82, false, b"hello")),
        ("in parts", fragments),
        ("in parts without end", endless),
        ("longer than is taken", frame(0x82, true, &[0; 2_000])),
        ("a length of 2^63", [&[0x82, 0xFF][..], &[0x7F; 8], &[0; 4]].concat()),
        ("reserved bits", frame(0xC2, true, b"x")),
        ("a reserved kind", frame(0x83, true, b"x")),
        ("a long ping", frame(0x89, true, &[0; 126])),
        ("a ping in parts", frame(0x09, true, b"x")),
        ("a continuation of nothing", frame(0x80, true, b"x")),
        ("a close of one byte", frame(0x88, true, b"x")),
        ("a close that is no UTF-8", frame(0x88, true, &[0x03, 0xE8, 0xFF, 0xFE])),
        ("a close with a code that nobody sends", frame(0x88, true, &[0x03, 0xED])),
    ];
    for (sequence, (what, bytes)) in (1..).zip(cases) {
        let mut bad = Raw::subscribe(server.address, "");
        bad.stream.write_all(&bytes).expect("writes");
        assert!(ends(&mut bad.stream), "{what}");
        assert_unhurt(&mut server, &mut good, sequence);
    }
    server.until_is(FanoutCounter::Connections, 1);
}

#[test]
fn pings_are_answered_and_a_flood_of_them_is_cut_off() {
    let Some(mut server) = Fanout::start(settings()) else { return };
    let mut good = Raw::subscribe(server.address, "start=1");
    let mut pinging = Raw::subscribe(server.address, "");
    let mut ping = Vec::new();
    websocket::write_control(ControlKind::Ping, b"are you there", Some([1, 2, 3, 4]), &mut ping);
    pinging.stream.write_all(&ping).expect("writes");
    let mut pong = [0; 15];
    pinging.stream.read_exact(&mut pong).expect("a pong");
    assert_eq!(&pong[2..], b"are you there");
    // It reads no answer any more.
    pinging.stream.set_nonblocking(true).expect("non-blocking");
    let flood = ping.repeat(1_000);
    let end = clock::monotonic_ns() + 300_000_000;
    while clock::monotonic_ns() < end {
        let _ = pinging.stream.write(&flood);
    }
    server.until_is(FanoutCounter::Subscribers, 1);
    (1..=5).for_each(|sequence| assert_unhurt(&mut server, &mut good, sequence));
}

#[test]
fn who_reads_nothing_does_not_slow_the_others() {
    let Some(mut server) = Fanout::start(settings()) else { return };
    server.chunk_bytes = 256 << 10;
    let stalled: Vec<Raw> = (0..20).map(|_| Raw::subscribe(server.address, "start=1")).collect();
    let mut good = Raw::subscribe(server.address, "start=1");
    server.until_is(FanoutCounter::Subscribers, 21);
    let mut slowest = 0;
    for sequence in 1..=12 {
        let begun = clock::monotonic_ns();
        server.ledger(sequence, &ledger_bytes(sequence, 4 << 20));
        let got = good.until(|got| matches!(got, Got::End(..)));
        assert!(matches!(got.last(), Some(Got::End(of, _)) if *of == sequence));
        slowest = slowest.max(clock::monotonic_ns() - begun);
    }
    // Tens of ms are usual here, the ledger's making included.
    assert!(slowest < 5_000_000_000, "a ledger took {slowest} ns");
    // Each holds at most one send of messages that all share.
    assert!(server.view.get(FanoutCounter::SendingBytes) <= 20 * (2 << 20));
    drop(stalled);
    server.until_is(FanoutCounter::Subscribers, 1);
}

/// Lets this process have more descriptors, as far as it may; how many that are.
fn descriptors() -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    let wanted = hard.min(8_192).max(soft);
    match setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) {
        Ok(()) => wanted,
        Err(_) => soft,
    }
}

#[test]
fn two_thousand_idle_subscribers_are_borne() {
    let Some(mut server) = Fanout::start(settings()) else { return };
    // Each has two in this process; the rest of the tests need some as well.
    let count = ((descriptors().saturating_sub(600)) / 2).min(2_000) as usize;
    let mut idle: Vec<Raw> = Vec::with_capacity(count);
    for _ in 0..count {
        idle.push(Raw::subscribe(server.address, "start=0"));
    }
    server.until_is(FanoutCounter::Subscribers, count as u64);
    let mut good = Raw::subscribe(server.address, "start=1");
    let begun = clock::monotonic_ns();
    assert_unhurt(&mut server, &mut good, 1);
    for raw in &mut idle {
        let got = raw.until(|got| matches!(got, Got::End(..)));
        assert_eq!(got.len(), 4, "BEGIN, two chunks, END: {got:?}");
    }
    assert!(clock::monotonic_ns() - begun < 30_000_000_000);
    drop(idle);
    server.until_is(FanoutCounter::Subscribers, 1);
    assert_unhurt(&mut server, &mut good, 2);
}

#[test]
fn connections_beyond_the_bound_are_not_taken() {
    let mut small = settings();
    small.audience.gate.subscribers_max = 2;
    small.audience.gate.per_address_max = 2;
    let Some(mut server) = Fanout::start(small) else { return };
    let mut good = Raw::subscribe(server.address, "start=1");
    // Room for 64 others of an address.
    let held: Vec<TcpStream> = (0..80).map(|_| TcpStream::connect(server.address).expect("connects")).collect();
    server.until(FanoutCounter::RefusedAddressConnections, 15);
    assert_unhurt(&mut server, &mut good, 1);
    drop(held);
    server.until_is(FanoutCounter::Connections, 1);
    within("room again", || {
        let mut raw = Raw::ask(server.address, b"GET /healthz HTTP/1.1\r\n\r\n");
        raw.rest().starts_with("HTTP/1.1 200 ").then_some(())
    });
}
