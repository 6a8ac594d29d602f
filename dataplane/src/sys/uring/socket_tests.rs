//! Sockets and futexes on the ring, over the loopback.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::{Completion, CoreRing};
use crate::sys::tcp;

fn ring() -> Option<CoreRing> {
    match CoreRing::new(16) {
        Ok(mut ring) => {
            ring.enable(&[], 0).expect("enables");
            Some(ring)
        }
        Err(error) => {
            eprintln!("SKIPPED io_uring: {error}");
            None
        }
    }
}

/// The completion under `user_data`, within a bound.
fn wait(ring: &mut CoreRing, user_data: u64) -> Completion {
    for _ in 0..100 {
        while let Some(completion) = ring.next_completion() {
            if completion.user_data == user_data {
                return completion;
            }
        }
        ring.submit_and_wait(Some(Duration::from_millis(100))).expect("waits");
    }
    panic!("no completion of {user_data}");
}

#[test]
fn a_connection_is_accepted_read_written_and_ended() {
    let Some(mut ring) = ring() else { return };
    let listener = tcp::listen(&"127.0.0.1:0".parse().expect("an address")).expect("listens");
    let address = tcp::local_address(listener.as_fd()).expect("bound");
    ring.accept(listener.as_fd(), 1).expect("queues");
    for round in 0..3 {
        let mut client = TcpStream::connect(address).expect("connects");
        assert!(wait(&mut ring, 1).outcome().is_ok());
        let socket: OwnedFd = ring.take_descriptor().expect("a connection");
        assert!(ring.take_descriptor().is_none(), "once");
        if !ring.more() {
            ring.accept(listener.as_fd(), 1).expect("queues");
        }
        client.write_all(b"hello").expect("writes");
        ring.receive(socket.as_fd(), Vec::with_capacity(64), 64, 2).expect("queues");
        assert_eq!(wait(&mut ring, 2).outcome(), Ok(5));
        let mut bytes = ring.take_bytes().expect("the buffer");
        assert_eq!(bytes, b"hello");
        bytes.extend_from_slice(&vec![round; 3 << 20]);
        let length = bytes.len();
        let sent = length - 5;
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            client.read_to_end(&mut all).expect("reads");
            all
        });
        ring.send(socket.as_fd(), bytes, 5..length, 3).expect("queues");
        assert_eq!(wait(&mut ring, 3).outcome(), Ok(sent as u32), "a send is whole");
        assert_eq!(ring.take_bytes().map(|bytes| bytes.len()), Some(sent + 5));
        ring.receive(socket.as_fd(), Vec::with_capacity(64), 64, 4).expect("queues");
        ring.submit().expect("submits");
        tcp::shutdown(socket.as_fd(), Shutdown::Both);
        assert_eq!(wait(&mut ring, 4).outcome(), Ok(0), "a shutdown ends what waits");
        assert_eq!(reader.join().expect("reads"), vec![round; sent]);
    }
}

#[test]
fn a_connect_succeeds_fails_and_is_cancelled() {
    let Some(mut ring) = ring() else { return };
    let listener = tcp::listen(&"127.0.0.1:0".parse().expect("an address")).expect("listens");
    let address = tcp::local_address(listener.as_fd()).expect("bound");
    let socket = tcp::stream(&address).expect("a socket");
    ring.connect(socket.as_fd(), &address, 1).expect("queues");
    assert_eq!(wait(&mut ring, 1).result, 0);
    drop(listener);
    let refused = tcp::stream(&address).expect("a socket");
    ring.connect(refused.as_fd(), &address, 2).expect("queues");
    assert!(wait(&mut ring, 2).result < 0);
    ring.receive(socket.as_fd(), Vec::with_capacity(8), 8, 3).ok();
    assert!(!ring.cancel(9, 4).expect("queues"), "there is none");
    // The reset of the listener's end may come first; either way the receive ends.
    let _ = ring.cancel(3, 4).expect("queues");
    wait(&mut ring, 3);
    assert!(ring.take_bytes().is_some());
}

#[test]
fn a_ring_that_ends_with_requests_in_flight_takes_their_memory_back() {
    let Some(mut ring) = ring() else { return };
    let (left, right) = nix::sys::socket::socketpair(
        nix::sys::socket::AddressFamily::Unix,
        nix::sys::socket::SockType::Stream,
        None,
        nix::sys::socket::SockFlag::empty(),
    )
    .expect("a pair");
    for tag in 0..4 {
        ring.receive(left.as_fd(), Vec::with_capacity(4096), 4096, tag).expect("queues");
    }
    ring.submit().expect("submits");
    drop(ring);
    nix::unistd::write(&right, &[7; 100]).expect("writes");
    let mut late = [0; 100];
    assert_eq!(nix::unistd::read(&left, &mut late).expect("reads"), 100, "nobody else takes the bytes any more");
}

#[test]
fn a_futex_wait_ends_with_a_wake_and_at_once_when_the_word_has_changed() {
    let Some(mut ring) = ring() else { return };
    if !ring.knows_futex_wait() {
        eprintln!("SKIPPED futex wait: this kernel does not know it");
        return;
    }
    let word = AtomicU32::new(5);
    ring.futex_wait(&word, 4, 1).expect("queues");
    assert_eq!(wait(&mut ring, 1).outcome(), Err(libc::EAGAIN));
    ring.futex_wait(&word, 5, 2).expect("queues");
    ring.submit_and_wait(Some(Duration::from_millis(1))).expect("waits");
    assert!(ring.next_completion().is_none());
    // SAFETY: the word is alive; a wake reads nothing of it.
    let woken = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    assert_eq!(woken, 1);
    assert_eq!(wait(&mut ring, 2).result, 0);
}

#[test]
fn more_completions_than_the_queue_holds_all_come() {
    let Some(mut ring) = ring() else { return };
    let pairs: Vec<_> = (0..100).map(|_| std::os::unix::net::UnixStream::pair().expect("a pair")).collect();
    for (at, (left, _)) in pairs.iter().enumerate() {
        ring.receive(left.as_fd(), Vec::with_capacity(8), 8, at as u64).expect("queues");
    }
    ring.submit().expect("submits");
    for (_, right) in &pairs {
        (&*right).write_all(b"x").expect("writes");
    }
    // 16 requests make room for 32 completions.
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..1_000 {
        ring.submit().expect("submits");
        while let Some(completion) = ring.next_completion() {
            assert_eq!((completion.result, ring.take_bytes().expect("bytes").as_slice()), (1, &b"x"[..]));
            seen.insert(completion.user_data);
        }
        if seen.len() == pairs.len() {
            return;
        }
        crate::sys::clock::sleep(Duration::from_millis(1));
    }
    panic!("{} of {} came", seen.len(), pairs.len());
}
