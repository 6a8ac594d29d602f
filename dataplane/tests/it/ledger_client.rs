//! The client's ways to a server: several flows, TLS, tokens, a thread that does not sleep, an async front, a consumer of its own.

use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Command, Output};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use sluice::ledger::assemble::{AssemblyError, Limits, StreamError};
use sluice::ledger::bearer;
use sluice::ledger::client::ClientError;
use sluice::ledger::client_tls::TlsError;
use sluice::ledger::follow::{FollowError, FollowSettings, Follower, Notice};
use sluice::ledger::query::Range;
use sluice::ledger::rpc::mark;
use sluice::ledger::stats::FanoutCounter;
use sluice::ledger::stream::LedgerStream;
use sluice::ledger::tls::TlsServer;

use crate::common;
use crate::common::between::Between;
use crate::common::fanout::{self, Fanout, ledger_bytes};
use crate::common::ledger_server::LedgerServer;
use crate::common::relays::{Relay, Told, wait};
use crate::ledger::{manifest, metas};

fn range(start: u32, end: Option<u32>) -> Range {
    Range::new(start, end).expect("a range")
}

/// Seven chunks and a half of the fan-out's 16 KiB.
fn ledger(sequence: u32) -> Vec<u8> {
    ledger_bytes(sequence, 122_880 + sequence as usize)
}

fn flows(flows: usize) -> FollowSettings {
    FollowSettings { flows, ..FollowSettings::default() }
}

/// Follows to the end; every ledger must be the next one, byte for byte. The last one, and how many connections there were.
fn follow(url: &str, start: u32, end: Option<u32>, settings: FollowSettings) -> (u32, usize) {
    let mut connections = 0;
    let notice = |notice: Notice<'_>| connections += usize::from(matches!(notice, Notice::Connected { .. }));
    let mut follower = Follower::with_notice(url, range(start, end), settings, notice).expect("a URL");
    let mut last = None;
    while let Some(received) = follower.next().expect("verified") {
        let sequence = received.ledger.sequence;
        assert!(last.is_none_or(|last| last + 1 == sequence), "{sequence} after {last:?}");
        assert!(received.ledger.bytes == ledger(sequence), "ledger {sequence}");
        last = Some(sequence);
    }
    drop(follower);
    (last.expect("ledgers"), connections)
}

#[test]
fn several_flows_share_the_chunks_of_a_ledger() {
    for count in [2, 3, 8] {
        let Some(mut server) = Fanout::start(fanout::settings()) else { return };
        (1..=3).for_each(|sequence| server.ledger(sequence, &ledger(sequence)));
        let proxy = Between::start(server.address, Box::new(|_| None), None);
        let url = format!("ws://{}", proxy.address);
        let follower = std::thread::spawn(move || follow(&url, 1, Some(9), flows(count)));
        server.until_is(FanoutCounter::Connections, count as u64);
        (4..=9).for_each(|sequence| server.ledger(sequence, &ledger(sequence)));
        assert_eq!(follower.join().expect("follows"), (9, 1));
        assert_eq!(proxy.connections(), count, "as many connections as flows");
    }
}

#[test]
fn flows_of_the_tip_begin_where_the_first_one_does() {
    let Some(mut server) = Fanout::start(fanout::settings()) else { return };
    server.ledger(5, &ledger(5));
    let url = server.url();
    let follower = std::thread::spawn(move || follow(&url, 0, Some(8), flows(3)));
    server.until_is(FanoutCounter::Connections, 1);
    server.begin(6);
    server.chunks(&ledger(6)[..40_000]);
    server.until_is(FanoutCounter::Connections, 3);
    server.chunks(&ledger(6)[40_000..]);
    server.end();
    (7..=8).for_each(|sequence| server.ledger(sequence, &ledger(sequence)));
    assert_eq!(follower.join().expect("follows"), (8, 1));
}

#[test]
fn flows_that_are_cut_anywhere_are_resumed_together() {
    let seed: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    eprintln!("SEED={seed}");
    let Some(mut server) = Fanout::start(fanout::settings()) else { return };
    (1..=12).for_each(|sequence| server.ledger(sequence, &ledger(sequence)));
    // Each connection is cut after a part of a ledger's share and some; a ledger is 123 kB, a third of it 41.
    let cut = move |number: usize| {
        let mixed = (seed ^ number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (number < 24).then_some(30_000 + (mixed >> 46) as usize)
    };
    let proxy = Between::start(server.address, Box::new(cut), None);
    let (last, connections) = follow(&format!("ws://{}", proxy.address), 1, Some(12), flows(3));
    assert_eq!(last, 12);
    assert!(connections >= 2, "{connections} connections");
}

#[test]
fn a_server_without_flows_gets_one_connection() {
    let server = LedgerServer::start();
    (1..=4).for_each(|sequence| server.publisher().ledger(sequence, &ledger(sequence)));
    let proxy = Between::start(server.address, Box::new(|_| None), None);
    assert_eq!(follow(&format!("ws://{}", proxy.address), 2, Some(4), flows(8)), (4, 1));
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn a_relay_takes_several_flows_and_gives_one() {
    let Some(mut server) = Fanout::start(fanout::settings()) else { return };
    (1..=3).for_each(|sequence| server.ledger(sequence, &ledger(sequence)));
    let told = Told { start: 1, flows: 3, ..Told::default() };
    let Some(relay) = Relay::start(&server.url(), &told) else { return };
    server.until_is(FanoutCounter::Connections, 3);
    (4..=6).for_each(|sequence| server.ledger(sequence, &ledger(sequence)));
    assert_eq!(follow(&relay.server.url(), 1, Some(6), flows(1)).0, 6);
}

#[test]
fn a_thread_that_spins_inside_ledgers_gets_the_same() {
    let Some(mut server) = Fanout::start(fanout::settings()) else { return };
    server.ledger(1, &ledger(1));
    let url = server.url();
    let settings = FollowSettings { spin: true, ..flows(2) };
    let follower = std::thread::spawn(move || follow(&url, 1, Some(4), settings));
    server.until_is(FanoutCounter::Connections, 2);
    server.begin(2);
    server.chunks(&ledger(2)[..50_000]);
    // Longer than it looks for bytes: it sleeps, and is woken.
    sluice::sys::clock::sleep(Duration::from_millis(60));
    server.chunks(&ledger(2)[50_000..]);
    server.end();
    (3..=4).for_each(|sequence| server.ledger(sequence, &ledger(sequence)));
    assert_eq!(follower.join().expect("follows"), (4, 1));
}

/// A certificate of its own authority for `localhost`: (authority, certificate, key).
fn certificate(folder: &Path) -> (PathBuf, TlsServer) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_string()]).expect("a certificate");
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let server = TlsServer::load(&cert, &key).expect("a pair");
    (cert, server)
}

#[test]
fn ledger_tls_is_spoken_with_an_authority_that_is_trusted_and_with_no_other() {
    let folder = tempfile::tempdir().expect("room");
    let (authority, tls) = certificate(folder.path());
    let Some(mut server) = Fanout::start(fanout::settings()) else { return };
    (1..=6).for_each(|sequence| server.ledger(sequence, &ledger(sequence)));
    let proxy = Between::start(server.address, Box::new(|number| (number == 0).then_some(200_000)), Some(tls));
    let url = format!("wss://localhost:{}", proxy.address.port());
    let settings = |authorities| FollowSettings { authorities, ..flows(2) };
    let (last, connections) = follow(&url, 1, Some(6), settings(Some(authority.clone())));
    assert_eq!(last, 6);
    assert!(connections >= 2, "a connection that breaks is resumed: {connections}");
    // Nobody is asked whether a certificate should be trusted after all.
    let mut follower = Follower::new(&url, range(1, Some(6)), settings(None)).expect("a URL");
    let error = follower.next().expect_err("not trusted");
    assert!(matches!(&error, FollowError::Tls { source: TlsError::Session(_), .. }), "{error}");
    let told = Told {
        start: 1,
        flows: 2,
        tls: Some(sluice::ledger::client_tls::ClientTls::new(Some(&authority)).expect("an authority")),
        ..Told::default()
    };
    let Some(relay) = Relay::start(&url, &told) else { return };
    assert_eq!(follow(&relay.server.url(), 1, Some(6), flows(1)).0, 6);
    std::fs::write(&authority, "no certificate").expect("written");
    let error = Follower::new(&url, range(1, None), settings(Some(authority))).err().expect("no authority");
    assert!(error.to_string().contains("it holds no certificate"), "{error}");
}

#[test]
fn a_token_is_sent_and_one_that_is_wrong_is_final() {
    let folder = tempfile::tempdir().expect("room");
    let file = folder.path().join("token");
    std::fs::write(&file, "secret\n").expect("written");
    let check = |authorization: Option<&str>, _: Option<&str>| authorization == Some("Bearer secret");
    let Some(mut server) = Fanout::start_with(
        fanout::settings(),
        fanout::Extra { tokens: Some(Box::new(check)), ..fanout::Extra::default() },
    ) else {
        return;
    };
    (1..=2).for_each(|sequence| server.ledger(sequence, &ledger(sequence)));
    let authorized = || FollowSettings { authorization: Some(bearer::read(&file).expect("a token")), ..flows(2) };
    assert_eq!(follow(&server.url(), 1, Some(2), authorized()), (2, 1));
    let told = Told { start: 1, authorization: authorized().authorization, ..Told::default() };
    let Some(relay) = Relay::start(&server.url(), &told) else { return };
    assert_eq!(follow(&relay.server.url(), 1, Some(2), flows(1)).0, 2);
    let Some(refused) = Relay::start(&server.url(), &Told::default()) else { return };
    refused.wait_for("status 401");
    let wrong = FollowSettings { authorization: Some("Bearer other".into()), ..flows(1) };
    let mut follower = Follower::new(&server.url(), range(1, None), wrong).expect("a URL");
    match follower.next() {
        Err(FollowError::Stream { source: ClientError::Refused { status, .. }, .. }) => assert_eq!(status, 401),
        other => panic!("{other:?}"),
    }
    let split = FollowSettings { authorization: Some("x\r\nHost: y".into()), ..flows(1) };
    assert!(matches!(Follower::new(&server.url(), range(1, None), split), Err(FollowError::Authorization)));
}

#[test]
fn a_ledger_over_the_limit_is_refused_and_none_is_where_there_is_none() {
    let server = LedgerServer::start();
    server.publisher().ledger(1, &ledger(1));
    let limited = |ledger, chunk| FollowSettings { limits: Limits::of_options(ledger, chunk), ..flows(1) };
    let mut follower = Follower::new(&server.url(), range(1, Some(1)), limited(100_000, 0)).expect("a URL");
    match follower.next() {
        Err(FollowError::Stream { source: ClientError::Stream(StreamError::Protocol(error)), .. }) => {
            assert!(matches!(error, AssemblyError::LedgerBytes { sequence: 1, limit: 100_000, .. }), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(follow(&server.url(), 1, Some(1), limited(-1, -1)).0, 1);
    let mut follower = Follower::new(&server.url(), range(1, Some(1)), limited(0, 4096)).expect("a URL");
    match follower.next() {
        Err(FollowError::Stream { source: ClientError::Frame(error), .. }) => {
            assert!(error.to_string().contains("at most 4107 are taken"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

/// Wakes the thread that waits.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The next of a stream, with no runtime at all.
fn next(stream: &mut LedgerStream) -> Option<<LedgerStream as futures_core::Stream>::Item> {
    use futures_core::Stream;
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(poll_fn(|context| Pin::new(&mut *stream).poll_next(context)));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(item) => return item,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(30)),
        }
    }
}

#[test]
fn a_stream_gives_what_the_follower_does() {
    let server = LedgerServer::start();
    (1..=8).for_each(|sequence| server.publisher().ledger(sequence, &ledger(sequence)));
    let mut stream = LedgerStream::new(&server.url(), range(1, Some(9)), flows(1)).expect("a stream");
    let mut kept = Vec::new();
    for sequence in 1..=8 {
        let owned = next(&mut stream).expect("a ledger").expect("verified");
        assert_eq!(owned.sequence, sequence);
        assert!(owned.bytes() == ledger(sequence), "ledger {sequence}");
        assert_eq!(owned.xxh64, xxhash_rust::xxh64::xxh64(owned.bytes(), 0));
        // Some are kept, so that their buffers do not come back.
        if sequence % 3 == 0 {
            kept.push(owned);
        }
    }
    for (owned, sequence) in kept.into_iter().zip([3, 6]) {
        assert!(owned.into_bytes() == ledger(sequence), "ledger {sequence} stays what it was");
    }
    server.publisher().finish();
    let error = next(&mut stream).expect("an end").expect_err("truncated");
    assert!(error.to_string().contains("got through ledger 8, requested through 9"), "{error}");
    assert!(next(&mut stream).is_none());
    // An orderly end is the stream's.
    let mut stream = LedgerStream::new(&server.url(), range(8, None), flows(1)).expect("a stream");
    assert!(next(&mut stream).expect("a ledger").is_ok());
    assert!(next(&mut stream).is_none());
}

#[test]
fn a_stream_that_is_dropped_ends_its_connection_and_holds_few_ledgers() {
    let server = LedgerServer::start();
    (1..=20).for_each(|sequence| server.publisher().ledger(sequence, &ledger(sequence)));
    let proxy = Between::start(server.address, Box::new(|_| None), None);
    let url = format!("ws://{}", proxy.address);
    let gone = Arc::new(());
    let (token, told) = (gone.clone(), Arc::downgrade(&gone));
    let notice = move |_: Notice<'_>| _ = &token;
    let mut stream = LedgerStream::with_notice(&url, range(1, None), flows(1), notice).expect("a stream");
    assert_eq!(next(&mut stream).expect("a ledger").expect("verified").sequence, 1);
    drop(gone);
    drop(stream);
    wait("the thread is gone", || told.upgrade().is_none());
}

fn sluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(["ledger", "follow"]).args(args).output().expect("the binary runs")
}

#[test]
fn a_consumer_of_a_meta_pipe_is_fed_unchanged() {
    let Some(data) = common::data() else { return };
    let server = LedgerServer::start();
    let path = data.join("stellar/framed/all-kept-lcm.framed.xdr");
    let all: Vec<Vec<u8>> = metas(&path).into_iter().map(|(_, meta)| meta).collect();
    assert!(!all.is_empty() && !manifest(&data).is_empty());
    for (index, meta) in all.iter().enumerate() {
        server.publisher().ledger(index as u32 + 1, meta);
    }
    server.publisher().finish();
    let folder = tempfile::tempdir().expect("room");
    let out = folder.path().join("out");
    // What reads descriptor 3, then says so on its own outputs; its standard input is empty.
    let command = format!("cat <&3 >'{}'; cat; echo done", out.display());
    let output = sluice(&[&server.url(), "--start", "1", "--exec", &command]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"done\n");
    let expected: Vec<u8> = all.iter().flat_map(|meta| [&mark(meta.len())[..], meta].concat()).collect();
    assert!(std::fs::read(&out).expect("written") == expected);
}

#[test]
fn the_consumers_end_ends_the_run() {
    let server = LedgerServer::start();
    (1..=3).for_each(|sequence| server.publisher().ledger(sequence, &ledger(sequence)));
    // The source goes on for ever; the command does not, whether it reads or not.
    for (command, code, text) in [
        ("head -c 4 <&3 >/dev/null; exit 0", 0, ""),
        ("sleep 0.2; exit 7", 4, "exit status: 7"),
        ("exec 3<&-; sleep 0.2", 0, ""),
    ] {
        let output = sluice(&[&server.url(), "--start", "1", "--exec", command]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{command}: {stderr}");
        assert!(stderr.contains(text), "{command}: {stderr}");
    }
    // The stream's own failure is told, though the command ends well.
    server.publisher().finish();
    let output = sluice(&[&server.url(), "--start", "1", "--end", "9", "--exec", "cat <&3 >/dev/null"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn metas_are_checked_inside_where_the_program_can() {
    let server = LedgerServer::start();
    server.publisher().ledger(5, b"no meta");
    let args = ["--start", "5", "--end", "5", "--check-xdr"];
    let output = sluice(&[&[&server.url()[..]], &args[..]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if cfg!(not(feature = "check-xdr")) {
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("built without the feature \"check-xdr\""), "{stderr}");
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("ledger 5: not a LedgerCloseMeta of 7 bytes"), "{stderr}");
    let Some(data) = common::data() else { return };
    for (path, _) in manifest(&data) {
        for (sequence, meta) in metas(&path) {
            let server = LedgerServer::start();
            server.publisher().ledger(sequence, &meta);
            let (url, number) = (server.url(), sequence.to_string());
            let output = sluice(&[&url, "--start", &number, "--end", &number, "--check-xdr"]);
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(0), "{}: {stderr}", path.display());
        }
    }
    // Another ledger's meta under this one's number.
    let (path, _) = manifest(&data).remove(0);
    let (sequence, meta) = metas(&path).remove(0);
    let server = LedgerServer::start();
    server.publisher().ledger(sequence + 1, &meta);
    let number = (sequence + 1).to_string();
    let output = sluice(&[&server.url(), "--start", &number, "--end", &number, "--check-xdr"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&format!("holds the meta of ledger {sequence}")), "{stderr}");
}
