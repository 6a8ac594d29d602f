//! Datagrams of a mirror by plain calls and by io_uring, on the loopback, sender and receiver on one CPU each: one way
//! from the stamp before the send to the return of the receive, spinning and parked; and what a datagram costs to send.
//! `cargo bench --bench mirror_io`. Decides `docs/design/0011-mirror-io.md`.

// A measurement may read the clock; the product reads it in `sys::clock` alone.
#![allow(clippy::disallowed_methods)]

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluice::sys::clock::monotonic_ns;
use sluice::sys::cpu;
use sluice::sys::udp::{CALL_MESSAGES, ReceiveBatch, Sent, UdpSocket};
use sluice::sys::uring::CoreRing;

mod common;

const DATAGRAM_BYTES: usize = 64 + 16;
const ROUNDS: usize = 5;
const SAMPLES: u64 = 4_000;
const LOCAL: [u8; 4] = [127, 0, 0, 1];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// By calls; a receive takes up to 8 at once.
    Plain,
    /// By calls; a receive takes one, and more only after that.
    Single,
    /// By io_uring.
    Uring,
}

fn pair() -> (UdpSocket, UdpSocket) {
    let receiver = UdpSocket::bind(&SocketAddr::from((LOCAL, 0)), false).expect("binds");
    receiver.receive_buffer(8 << 20).expect("takes a size");
    let sender = UdpSocket::bind(&SocketAddr::from((LOCAL, 0)), false).expect("binds");
    sender.send_buffer(4 << 20).expect("takes a size");
    sender.connect(&receiver.local_address().expect("bound")).expect("connects");
    (sender, receiver)
}

fn ring() -> CoreRing {
    let mut ring = CoreRing::new(64).expect("io_uring");
    ring.enable(&[], 0).expect("enables");
    ring
}

/// Sends `SAMPLES` stamped datagrams at `rate` a second.
fn send_all(socket: &UdpSocket, how: How, rate: u64) {
    let mut ring = ring();
    let pause = 1_000_000_000 / rate as i64;
    let mut due = monotonic_ns() + 1_000_000;
    let mut bytes = vec![0_u8; DATAGRAM_BYTES];
    for _ in 0..SAMPLES {
        while monotonic_ns() < due {
            std::hint::spin_loop();
        }
        due += pause;
        bytes[..8].copy_from_slice(&monotonic_ns().to_le_bytes());
        match how {
            How::Plain | How::Single => {
                socket.send(None, &bytes, None);
            }
            How::Uring => {
                let whole = 0..bytes.len();
                ring.send(socket.as_fd(), bytes, whole, 1).map_err(|(error, _)| error).expect("queues");
                ring.submit().expect("submits");
                while ring.next_completion().is_none() {
                    ring.submit().expect("submits");
                }
                bytes = ring.take_bytes().expect("the buffer");
            }
        }
    }
}

fn age(bytes: &[u8]) -> u64 {
    let stamp = bytes.first_chunk::<8>().map_or(0, |stamp| i64::from_le_bytes(*stamp));
    (monotonic_ns() - stamp).max(0) as u64
}

/// Receives until told to end; the ages.
fn receive_all(socket: &UdpSocket, how: How, park: bool, end: &AtomicBool) -> Vec<u64> {
    let mut ages = Vec::with_capacity(SAMPLES as usize);
    let mut ring = ring();
    let mut batch = ReceiveBatch::default();
    if how == How::Uring {
        ring.receive(socket.as_fd(), Vec::with_capacity(2_048), 2_048, 1).map_err(|(error, _)| error).expect("queues");
    }
    let (mut polled, mut idle) = (false, 0);
    while !end.load(Ordering::Relaxed) {
        let before = ages.len();
        let mut calls = if how == How::Single { 1 } else { CALL_MESSAGES };
        while how != How::Uring && socket.receive(&mut batch, calls).expect("receives") > 0 {
            while let Some((_, bytes)) = batch.next_datagram() {
                ages.push(age(bytes));
            }
            calls = CALL_MESSAGES;
        }
        if park && ages.len() == before && idle > 20 {
            if how != How::Uring && !polled {
                ring.poll_once(socket.as_fd(), 2).expect("queues");
                polled = true;
            }
            ring.submit_and_wait(Some(Duration::from_millis(50))).expect("waits");
        } else {
            ring.submit().expect("submits");
        }
        while let Some(completion) = ring.next_completion() {
            if completion.user_data == 2 {
                polled = false;
                continue;
            }
            let mut bytes = ring.take_bytes().expect("the buffer");
            ages.push(age(&bytes));
            bytes.clear();
            ring.receive(socket.as_fd(), bytes, 2_048, 1).map_err(|(error, _)| error).expect("queues");
        }
        idle = if ages.len() > before { 0 } else { idle + 1 };
    }
    ages
}

fn one_way(send: How, receive: How, park: bool, rate: u64) -> [u64; 4] {
    let (sender, receiver) = pair();
    let end = Arc::new(AtomicBool::new(false));
    let taking = std::thread::spawn({
        let end = end.clone();
        move || {
            cpu::pin(1);
            receive_all(&receiver, receive, park, &end)
        }
    });
    cpu::pin(0);
    std::thread::sleep(Duration::from_millis(20));
    send_all(&sender, send, rate);
    std::thread::sleep(Duration::from_millis(20));
    end.store(true, Ordering::Relaxed);
    let mut ages = taking.join().expect("no panic");
    ages.sort_unstable();
    let at = |part: f64| ages.get((ages.len() as f64 * part) as usize).copied().unwrap_or(0);
    [at(0.5), at(0.99), at(0.999), ages.len() as u64]
}

/// ns for each datagram sent, nobody reading (the receive buffer overflows, which costs less than it holds).
fn send_cost(how: How, batch: usize, segments: usize, bytes: usize) -> f64 {
    const DATAGRAMS: usize = 100_000;
    let (sender, _receiver) = pair();
    let mut ring = ring();
    let mut spare: Vec<Vec<u8>> = (0..batch).map(|_| vec![1; bytes * segments]).collect();
    let segment = (segments > 1).then_some(bytes as u16);
    let begin = monotonic_ns();
    let mut sent = 0;
    while sent < DATAGRAMS {
        match how {
            How::Plain | How::Single => {
                if sender.send(None, &spare[0], segment) == Sent::Done {
                    sent += segments;
                }
            }
            How::Uring => {
                while let Some(bytes) = spare.pop() {
                    let whole = 0..bytes.len();
                    ring.send(sender.as_fd(), bytes, whole, 1).map_err(|(error, _)| error).expect("queues");
                }
                ring.submit().expect("submits");
                while ring.next_completion().is_some() {
                    spare.push(ring.take_bytes().expect("the buffer"));
                    sent += 1;
                }
            }
        }
    }
    (monotonic_ns() - begin) as f64 / sent as f64
}

fn median(mut rows: Vec<[u64; 4]>) -> [u64; 4] {
    let mut middle = [0; 4];
    for (column, value) in middle.iter_mut().enumerate() {
        rows.sort_by_key(|row| row[column]);
        *value = rows[rows.len() / 2][column];
    }
    middle
}

fn main() {
    let rounds = if common::is_test() { 1 } else { ROUNDS };
    let mut cases = Vec::new();
    for rate in [10_000, 50_000] {
        for park in [false, true] {
            for (send, receive) in [
                (How::Plain, How::Plain),
                (How::Plain, How::Single),
                (How::Plain, How::Uring),
                (How::Uring, How::Plain),
                (How::Uring, How::Uring),
            ] {
                cases.push((rate, park, send, receive));
            }
        }
    }
    let mut rows: Vec<Vec<[u64; 4]>> = vec![Vec::new(); cases.len()];
    for _ in 0..rounds {
        for (case, rows) in cases.iter().zip(&mut rows) {
            rows.push(one_way(case.2, case.3, case.1, case.0));
        }
    }
    println!("one way, 80-byte datagrams, ns, medians of {rounds} interleaved rounds of {SAMPLES}");
    println!(
        "{:>8} {:>9} {:>7} {:>8} {:>8} {:>8} {:>8} {:>9}",
        "rate", "receiver", "send", "receive", "p50", "p99", "p99.9", "received"
    );
    for ((rate, park, send, receive), rows) in cases.into_iter().zip(rows) {
        let [p50, p99, p999, count] = median(rows);
        let idle = if park { "parks" } else { "spins" };
        println!("{rate:>8} {idle:>9} {send:>7?} {receive:>8?} {p50:>8} {p99:>8} {p999:>8} {count:>9}");
    }
    println!("\nsending, ns a datagram");
    for (what, how, batch, segments, bytes) in [
        ("send(2), 80 bytes", How::Plain, 1, 1, 80),
        ("io_uring, one a submission, 80 bytes", How::Uring, 1, 1, 80),
        ("io_uring, 32 a submission, 80 bytes", How::Uring, 32, 1, 80),
        ("send(2), 1472 bytes", How::Plain, 1, 1, 1_472),
        ("UDP_SEGMENT, 44 x 1472 bytes", How::Plain, 1, 44, 1_472),
    ] {
        let mut costs: Vec<f64> = (0..rounds).map(|_| send_cost(how, batch, segments, bytes)).collect();
        costs.sort_by(f64::total_cmp);
        println!("{what:<40} {:>8.0}", costs[costs.len() / 2]);
    }
}
