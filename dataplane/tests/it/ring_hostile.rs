//! What strangers and broken peers may cost: bounded time and memory, and never a wrong record. Each probe of the peer that
//! succeeded against it, over real sockets. Frames are built here by hand, from the protocol's description.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use sluice::ring::raw::RawWriter;
use sluice::sys::clock::monotonic_ns;

use crate::common::mirrors::{Checker, Shm, Sluice, Source, Way, group, mirror, serve, tcp_address, udp_port, until};

const HELLO: u8 = 1;
const GEOMETRY: u8 = 2;
const DATA: u8 = 3;
const GAP: u8 = 4;
const NAK: u8 = 6;
const PUNCH: u8 = 8;
const OLDEST: u64 = u64::MAX;

fn frame(kind: u8, flags: u8, count: u16, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, flags];
    bytes.extend(count.to_le_bytes());
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(sequence.to_le_bytes());
    bytes.extend(payload);
    bytes
}

/// HELLO as the peer's mirror says it; `flags` 1: can take datagrams, 2: prefers its own.
fn hello(wanted: u64, flags: u8) -> Vec<u8> {
    let mut payload = 0x5249_4E47_4D49_5252_u64.to_le_bytes().to_vec();
    payload.extend(1_u32.to_le_bytes());
    payload.extend([flags, 0, 0, 0]);
    frame(HELLO, 0, 0, wanted, &payload)
}

/// A configuration with one serve and these keys beside the required ones.
fn appliance(ring: &Shm, bind: &str, more: &str) -> (Sluice, Shm) {
    let config = Shm::new("config");
    let text = format!(
        "[[core]]\nname = \"r\"\ncpu = 0\n[[ring.serve]]\nname = \"s\"\ncore = \"r\"\nring = \"{}\"\nbind = \"{bind}\"\n{more}\n\
         [control]\nlisten = \"{}\"\n",
        ring.text(),
        tcp_address()
    );
    std::fs::write(&*config, text).expect("writes");
    (Sluice::start(&["run", config.text()]), config)
}

fn connect(bind: &str) -> TcpStream {
    until("it listens", || TcpStream::connect(bind).ok())
}

fn threads(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Threads:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// CPU time of a process, in ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or("");
    after.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

#[test]
fn four_hundred_sockets_that_say_nothing_cost_no_thread_and_are_closed() {
    let ring = Shm::new("source");
    let mut source = Source::create(&ring, 1_024, 31);
    let bind = tcp_address();
    let (served, _config) = appliance(&ring, &bind, "hello_timeout = \"500ms\"\nconnections_per_address_max = 300");
    until("it runs", || served.log().contains("running; stop with").then_some(()));
    let before = threads(served.pid());
    let mut silent: Vec<TcpStream> = (0..400).map(|_| TcpStream::connect(&bind).expect("connects")).collect();
    // A mirror that comes afterwards is served all the same, as soon as there is room.
    let copy = Shm::new("copy");
    let _mirrored = mirror(&bind, &copy, "oldest", &[]);
    source.push(100, 8);
    Checker::attach(&copy, 31).whole_until(100);
    assert_eq!(threads(served.pid()), before, "no thread for a connection");
    for socket in &mut silent {
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("sets");
        let end = socket.read(&mut [0; 16]);
        assert!(matches!(end, Ok(0)) || end.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
    }
}

#[test]
fn idle_mirrors_of_an_idle_ring_cost_next_to_nothing() {
    let ring = Shm::new("source");
    let _source = Source::create(&ring, 1_024, 32);
    let bind = tcp_address();
    let served = serve(&ring, &bind, &[]);
    drop(connect(&bind));
    let idle: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut socket = TcpStream::connect(&bind).expect("connects");
            socket.write_all(&hello(0, 1)).expect("writes");
            socket.read_exact(&mut [0; 64]).expect("GEOMETRY");
            socket
        })
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    let (before, since) = (ticks(served.pid()), monotonic_ns());
    std::thread::sleep(Duration::from_secs(2));
    let used = (ticks(served.pid()) - before) as f64 * 10.0;
    let part = used / ((monotonic_ns() - since) as f64 / 1e6);
    assert!(part < 0.5, "{} idle mirrors take {:.0} % of a CPU", idle.len(), part * 100.0);
}

/// Blind PUNCH datagrams neither take a mirror's stream nor start one.
#[test]
fn blind_punches_get_nothing() {
    let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
    let mut source = Source::create(&ring, 1 << 14, 33);
    let (bind, port) = (tcp_address(), udp_port());
    let _served = serve(&ring, &bind, &["--udp".into(), port.to_string()]);
    let _mirrored = mirror(&bind, &copy, "oldest", &["--unicast"]);
    source.push(10, 1);
    let mut reader = Checker::attach(&copy, 33);
    reader.whole_until(10);
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("binds");
    stranger.set_nonblocking(true).expect("sets");
    for token in 1..=4_u64 {
        for session in 0..=255 {
            stranger.send_to(&frame(PUNCH, session, 0, token, &[]), ("127.0.0.1", port)).expect("sends");
        }
    }
    source.push(2_000, 16);
    reader.whole_until(2_010);
    assert!(stranger.recv(&mut [0; 2_048]).is_err(), "a datagram went to the stranger");
}

/// 200 requests for everything are answered within the rate, and another mirror is served meanwhile.
#[test]
fn a_flood_of_naks_is_answered_within_its_rate() {
    let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
    let mut source = Source::create(&ring, 1 << 16, 34);
    source.push(1 << 16, 0);
    let (bind, rate) = (tcp_address(), 4 << 20);
    let more = format!("udp = {}\nrepair_rate = \"{rate}B\"", udp_port());
    let (_served, _config) = appliance(&ring, &bind, &more);
    let mut socket = connect(&bind);
    socket.write_all(&hello(0, 3)).expect("writes");
    for _ in 0..200 {
        socket.write_all(&frame(NAK, 0, 0, 1, &u64::MAX.to_le_bytes())).expect("writes");
    }
    socket.set_read_timeout(Some(Duration::from_millis(50))).expect("sets");
    let (begin, mut taken, mut bytes) = (monotonic_ns(), 0, vec![0; 1 << 20]);
    while monotonic_ns() - begin < 2_000_000_000 {
        match socket.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => taken += count,
            Err(_) => {}
        }
    }
    let seconds = (monotonic_ns() - begin) as f64 / 1e9;
    // The rate, a second's worth at once, and a frame; all of it would be 200 times 3.7 MB.
    let most = (seconds + 1.0) * f64::from(rate) + f64::from(4 << 20);
    assert!(taken as f64 <= most, "{taken} bytes in {seconds} s, at most {most}");
    let _mirrored = mirror(&bind, &copy, "latest", &["--unicast"]);
    until("a copy", || RawWriter::resume_point(&copy));
    until("it delivers", || {
        source.push(1, 0);
        RawWriter::resume_point(&copy).filter(|point| point.next > source.head())
    });
}

/// Datagrams from an address that is not the source's are dropped, whatever they say.
#[test]
fn forged_data_from_elsewhere_is_not_written() {
    let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
    let mut source = Source::create(&ring, 1 << 14, 35);
    let (bind, group) = (tcp_address(), group());
    let more = ["--multicast".into(), group.clone(), "--iface".into(), "127.0.0.1".into()];
    let _served = serve(&ring, &bind, &more);
    let mut mirrored =
        Sluice::start(&["ring", "mirror", &bind, copy.text(), "--from", "oldest", "--iface", "127.0.0.1", "--json"]);
    source.push(4, 1);
    let mut reader = Checker::attach(&copy, 35);
    reader.whole_until(4);
    let stranger = UdpSocket::bind("127.0.0.2:0").expect("binds");
    nix::sys::socket::setsockopt(&stranger, nix::sys::socket::sockopt::IpMulticastLoop, &true).expect("sets");
    for session in 0..=255 {
        for sequence in [5, 6, 9_000, u64::MAX - 1] {
            stranger.send_to(&frame(DATA, session, 1, sequence, &[0xEE; 56]), &group).expect("sends");
        }
    }
    source.push(100, 4);
    reader.whole_until(104);
    mirrored.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(mirrored.wait().code(), Some(0));
    let log = mirrored.log();
    let foreign = log.split("\"foreign\":").nth(1).and_then(|rest| rest.split([',', '}']).next());
    let foreign: u64 = foreign.and_then(|count| count.parse().ok()).expect("a count");
    assert!(foreign > 0, "the stranger's datagrams came and were counted: {log}");
}

/// A source that says what none may say: the mirror closes, writes nothing, and touches no memory for it.
#[test]
fn a_hostile_source_is_given_up() {
    let geometry = |capacity: u64, element: u32| {
        let mut payload = capacity.to_le_bytes().to_vec();
        payload.extend(element.to_le_bytes());
        payload.extend(0x11_u32.to_le_bytes());
        payload.extend(0_u64.to_le_bytes());
        payload.extend(0_u32.to_le_bytes());
        payload.extend(128_u32.to_le_bytes());
        payload.extend([0; 16]);
        frame(GEOMETRY, 0, 0, 1, &payload)
    };
    let small = geometry(1_024, 64);
    let with = |more: Vec<u8>| [small.clone(), more].concat();
    let cases = [
        ("a ring of 8 TiB", geometry(1 << 37, 64), false),
        ("a ring of 2^63 slots", geometry(1 << 63, 64), false),
        ("slots of 0 bytes", geometry(1_024, 0), false),
        ("a capacity that is no power of two", geometry(1_000, 64), false),
        ("a gap to the last number", with(frame(GAP, 0, 0, u64::MAX, &[])), true),
        ("a record at the last number", with(frame(DATA, 0, 1, u64::MAX - 1, &[1; 56])), true),
        ("a frame that is too short", with(frame(DATA, 0, 2, 1, &[1; 56])), true),
        ("no frame at all", vec![0xFF; 400], false),
    ];
    for (what, bytes, makes_a_ring) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let (source, copy) = (listener.local_addr().expect("bound").to_string(), Shm::new("copy"));
        let mirrored = mirror(&source, &copy, "oldest", &[]);
        // It comes again and again, and is closed from its side each time.
        for _ in 0..3 {
            let (mut socket, _) = listener.accept().expect("accepts");
            socket.set_read_timeout(Some(Duration::from_secs(20))).expect("sets");
            let _ = socket.write_all(&bytes);
            let mut rest = Vec::new();
            let end = socket.read_to_end(&mut rest);
            let reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
            assert!(end.as_ref().is_ok_and(|_| true) || end.as_ref().is_err_and(reset), "{what}: {end:?}");
        }
        match RawWriter::resume_point(&copy) {
            Some(point) => assert!(makes_a_ring && point.next == 1, "{what}: {point:?}"),
            None => assert!(!makes_a_ring, "{what}: {}", mirrored.log()),
        }
        assert_eq!(mirrored.terminate(), Some(0), "{what}");
    }
}

/// With a key on one side only, or two different ones, nothing is copied; with the same one everything is, in each way.
#[test]
fn a_key_lets_in_who_has_it_and_nobody_else() {
    let (good, other) = (Shm::new("key"), Shm::new("other-key"));
    std::fs::write(&*good, "correct horse battery staple\n").expect("writes");
    std::fs::write(&*other, "incorrect horse battery staple\n").expect("writes");
    for way in Way::ALL {
        let ring = Shm::new("source");
        let mut source = Source::create(&ring, 1 << 14, 36);
        source.push(100, 0);
        let bind = tcp_address();
        let mut more = way.serve();
        more.extend(["--key-file".into(), good.text().into()]);
        let _served = serve(&ring, &bind, &more);
        drop(connect(&bind));
        let with = |key: &'static str| [way.mirror(), &["--key-file", key]].concat();
        let leak = |text: &str| -> &'static str { Box::leak(text.to_string().into_boxed_str()) };
        for more in [way.mirror().to_vec(), with(leak(other.text()))] {
            let copy = Shm::new("copy");
            let mirrored = mirror(&bind, &copy, "oldest", &more);
            until("it is told", || mirrored.log().contains("connection ended").then_some(()));
            assert!(!copy.exists(), "{way:?}: {}", mirrored.log());
        }
        // The peer's own HELLO: refused, not served and not left hanging.
        let mut peer = connect(&bind);
        peer.write_all(&hello(OLDEST, 1)).expect("writes");
        peer.set_read_timeout(Some(Duration::from_secs(20))).expect("sets");
        let mut answer = Vec::new();
        let _ = peer.read_to_end(&mut answer);
        assert!(answer.len() < 64 + 100 * 56, "{way:?}: {} bytes", answer.len());
        let copy = Shm::new("copy");
        let mirrored = mirror(&bind, &copy, "oldest", &with(leak(good.text())));
        let mut reader = Checker::attach(&copy, 36);
        reader.whole_until(100);
        source.push(2_000, 16);
        reader.whole_until(2_100);
        assert!(mirrored.log().contains("\"authenticated\":true"), "{way:?}: {}", mirrored.log());
        // A mirror that demands the key takes nothing from a source without it.
        let (open, copy) = (tcp_address(), Shm::new("copy"));
        let _open = serve(&ring, &open, &way.serve());
        let demands = mirror(&open, &copy, "oldest", &with(leak(good.text())));
        until("it is told", || demands.log().contains("connection ended").then_some(()));
        assert!(!copy.exists(), "{way:?}: {}", demands.log());
    }
}

/// A source that takes connections and ends them (a wrong key, a ring that is too large) is one state, not a line every two seconds.
#[test]
fn a_source_that_ends_every_connection_is_told_of_once() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback");
    let source = listener.local_addr().expect("bound").to_string();
    let copy = Shm::new("copy");
    let mirrored = mirror(&source, &copy, "oldest", &[]);
    for _ in 0..30 {
        drop(listener.accept().expect("it comes again"));
    }
    let lines = |text: &str| mirrored.log().lines().filter(|line| line.contains(text)).count();
    // Whether a close comes as an end or as a reset is the kernel's: two reasons at most; and the source is silent.
    let ended = until("it is told", || Some(lines("connection ended")).filter(|&count| count > 0));
    assert!(ended <= 2 && lines("\"INFO\"") <= 2 && lines("\"WARN\"") <= 3, "{}", mirrored.log());
    // Nobody listens any more: another reason, with how often the one before came.
    drop(listener);
    let told = |text: &str| mirrored.log().lines().find(|line| line.contains(text)).map(String::from);
    until("it is told", || told("no connection to the source"));
    // The line of a second reason has the count up to there.
    let log = mirrored.log();
    let untold = |line| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["fields"]["untold"].as_u64();
    assert!(log.lines().filter_map(untold).sum::<u64>() >= 20, "{log}");
    // A source that delivers ends the silence.
    let ring = Shm::new("source");
    let mut own = Source::create(&ring, 1 << 14, 36);
    own.push(10, 0);
    let _served = serve(&ring, &source, &[]);
    let live = until("it is live", || told("\"mirroring\""));
    assert!(live.contains(&format!("\"source\":\"{source}\"")), "{live}");
    assert_eq!(mirrored.terminate(), Some(0));
}
