//! Serve and mirror as processes over the loopback: three transports, late joiners, hubs, and the restart of each part.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use sluice::ring::raw::RawWriter;
use sluice::ring::{Producer, RingSettings};

use crate::common::mirrors::{Checker, Shm, Sluice, Source, Way, mirror, serve, tcp_address, until};

/// Slots of most rings here.
const CAPACITY: u64 = 1 << 14;

#[test]
fn every_transport_copies_the_ring() {
    for way in Way::ALL {
        let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
        let mut source = Source::create(&ring, CAPACITY, 1);
        source.push(500, 0);
        let bind = tcp_address();
        let served = serve(&ring, &bind, &way.serve());
        let mirrored = mirror(&bind, &copy, "oldest", &[way.mirror(), &["--json"]].concat());
        let mut reader = Checker::attach(&copy, 1);
        reader.whole_until(500);
        assert_eq!(reader.first, Some(1), "{way:?}");
        source.push(10_000, 16);
        reader.whole_until(10_500);
        source.push(1, 0);
        reader.whole_until(10_501);
        way.assert_delivered(&mirrored.terminate_json(), 1_000);
        assert_eq!(served.terminate(), Some(0), "{way:?}");
    }
}

#[test]
fn two_copies_of_each_datagram_are_one_record() {
    for way in [Way::Unicast, Way::Multicast] {
        let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
        let mut source = Source::create(&ring, CAPACITY, 2);
        let bind = tcp_address();
        let mut more = way.serve();
        more.extend(["--dup".into(), "2".into(), "--linger-us".into(), "50".into()]);
        let _served = serve(&ring, &bind, &more);
        let mirrored = mirror(&bind, &copy, "oldest", &[way.mirror(), &["--json"]].concat());
        until("it is there", || mirrored.log().contains(way.told()).then_some(()));
        source.push(2_000, 8);
        Checker::attach(&copy, 2).whole_until(2_000);
        let told = mirrored.terminate_json();
        way.assert_delivered(&told, 500);
        let again = told["duplicate_records"].as_u64().max(told["replayed"].as_u64());
        assert!(again > Some(20), "the second copies came: {told}");
    }
}

#[test]
fn a_hub_passes_on_what_it_mirrors() {
    let ways = [(Way::Tcp, Way::Unicast), (Way::Unicast, Way::Tcp), (Way::Multicast, Way::Multicast)];
    for (first, second) in ways {
        let (ring, hub, leaf) = (Shm::new("source"), Shm::new("hub"), Shm::new("leaf"));
        let mut source = Source::create(&ring, CAPACITY, 3);
        let (bind, site) = (tcp_address(), tcp_address());
        let _serve = serve(&ring, &bind, &first.serve());
        let hub_mirror = mirror(&bind, &hub, "oldest", &[first.mirror(), &["--json"]].concat());
        let _site = serve(&hub, &site, &second.serve());
        let leaf_mirror = mirror(&site, &leaf, "oldest", &[second.mirror(), &["--json"]].concat());
        until("both are there", || {
            (hub_mirror.log().contains(first.told()) && leaf_mirror.log().contains(second.told())).then_some(())
        });
        source.push(3_000, 16);
        let mut reader = Checker::attach(&leaf, 3);
        reader.whole_until(3_000);
        second.assert_delivered(&leaf_mirror.terminate_json(), 500);
        first.assert_delivered(&hub_mirror.terminate_json(), 500);
        assert_eq!(reader.first, Some(1), "{first:?} {second:?}");
    }
}

/// A mirror may begin at what is still there, at a sequence, or at what comes next.
#[test]
fn late_joiners_begin_where_they_ask() {
    for way in Way::ALL {
        let ring = Shm::new("source");
        let mut source = Source::create(&ring, 1_024, 4);
        source.push(5_000, 0);
        let bind = tcp_address();
        let _served = serve(&ring, &bind, &way.serve());
        for (from, first) in [("oldest", 0), ("4500", 4_500), ("latest", u64::MAX), ("17", 0)] {
            let copy = Shm::new("copy");
            let before = source.head();
            let _mirrored = mirror(&bind, &copy, from, way.mirror());
            until("the copy", || RawWriter::resume_point(&copy).filter(|point| point.next > before));
            source.push(1, 0);
            let mut reader = Checker::attach(&copy, 4);
            reader.whole_until(source.head());
            // The oldest of the copy is gone by the time the reader attaches, if the new record came first.
            let oldest = before - 1_023;
            let expected = first.clamp(oldest, before + 1);
            let seen = reader.first.expect("it read");
            assert!(
                seen == expected || (expected == oldest && seen == oldest + 1),
                "{way:?} {from}: {seen}, not {expected}"
            );
        }
    }
}

#[test]
fn a_killed_mirror_resumes_its_file_without_a_gap() {
    for way in Way::ALL {
        let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
        let mut source = Source::create(&ring, CAPACITY, 5);
        let bind = tcp_address();
        let _served = serve(&ring, &bind, &way.serve());
        let mirrored = mirror(&bind, &copy, "oldest", way.mirror());
        source.push(1_000, 16);
        let mut reader = Checker::attach(&copy, 5);
        reader.whole_until(1_000);
        mirrored.kill();
        source.push(1_000, 16);
        let _again = mirror(&bind, &copy, "resume", way.mirror());
        // The same file goes on: the reader stays where it is.
        reader.whole_until(2_000);
        source.push(10, 1);
        reader.whole_until(2_010);
    }
}

#[test]
fn a_killed_serve_is_found_again_without_a_gap() {
    for way in Way::ALL {
        let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
        let mut source = Source::create(&ring, CAPACITY, 6);
        let (bind, more) = (tcp_address(), way.serve());
        let served = serve(&ring, &bind, &more);
        let _mirrored = mirror(&bind, &copy, "oldest", way.mirror());
        source.push(1_000, 16);
        let mut reader = Checker::attach(&copy, 6);
        reader.whole_until(1_000);
        served.kill();
        source.push(1_000, 16);
        let _again = serve(&ring, &bind, &more);
        reader.whole_until(2_000);
        source.push(10, 1);
        reader.whole_until(2_010);
    }
}

/// A new producer is a new history: a new file, never a splice. The reader is told, and follows.
#[test]
fn a_restarted_producer_is_followed_with_a_new_file() {
    for (way, killed) in Way::ALL.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
        let mut source = Source::create_kept(&ring, CAPACITY, 7, killed);
        let bind = tcp_address();
        let _served = serve(&ring, &bind, &way.serve());
        let _mirrored = mirror(&bind, &copy, "oldest", way.mirror());
        source.push(1_000, 16);
        let mut reader = Checker::attach(&copy, 7);
        reader.whole_until(1_000);
        drop(source);
        let mut source = Source::create(&ring, CAPACITY, 8);
        // Past the first history's number, so that a splice would not be seen by sequence.
        source.push(1_500, 16);
        until("the reader is told", || (reader.ring.producer() == Producer::Replaced).then_some(()));
        assert_eq!(reader.take(), 0, "{way:?}: nothing of the new history is in the old file");
        let mut reader = Checker::attach(&copy, 8);
        reader.until(1_500);
        source.push(10, 1);
        reader.until(1_510);
        assert_eq!(reader.holes, [], "{way:?}");
    }
}

#[test]
fn a_serve_waits_for_its_ring() {
    let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
    let bind = tcp_address();
    let served = serve(&ring, &bind, &[]);
    let _mirrored = mirror(&bind, &copy, "oldest", &[]);
    until("the serve says so", || served.log().contains("no ring to serve yet").then_some(()));
    let mut source = Source::create(&ring, CAPACITY, 9);
    source.push(100, 1);
    Checker::attach(&copy, 9).whole_until(100);
}

/// While a source says nothing, the copy's own heartbeat stops, and its readers can tell; it beats again afterwards.
#[test]
fn a_silent_source_shows_in_the_copy() {
    for way in Way::ALL {
        let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
        let mut source = Source::create(&ring, CAPACITY, 10);
        let bind = tcp_address();
        let served = serve(&ring, &bind, &way.serve());
        let mirrored = mirror(&bind, &copy, "oldest", way.mirror());
        source.push(10, 1);
        let mut reader = Checker::attach(&copy, 10);
        reader.whole_until(10);
        assert_eq!(reader.ring.producer(), Producer::Alive, "{way:?}");
        served.signal(Signal::SIGSTOP);
        until("the stall is seen", || (reader.ring.producer() == Producer::Stalled).then_some(()));
        until("the mirror says so", || mirrored.log().contains("the source is silent").then_some(()));
        served.signal(Signal::SIGCONT);
        until("the beat is seen", || (reader.ring.producer() == Producer::Alive).then_some(()));
        source.push(10, 1);
        reader.whole_until(20);
    }
}

/// A producer that dies while its serve lives on shows in the copy, and in the copy's copy, as a stall; a hub that takes its
/// file over again shows as alive.
#[test]
fn a_dead_producer_shows_down_the_line() {
    for way in Way::ALL {
        let (ring, hub, leaf) = (Shm::new("source"), Shm::new("hub"), Shm::new("leaf"));
        let mut source = Source::create_kept(&ring, CAPACITY, 20, true);
        let (bind, site) = (tcp_address(), tcp_address());
        let _serve = serve(&ring, &bind, &way.serve());
        let first = mirror(&bind, &hub, "oldest", way.mirror());
        let _site = serve(&hub, &site, &way.serve());
        let _leaf = mirror(&site, &leaf, "oldest", way.mirror());
        source.push(10, 1);
        let mut readers = [Checker::attach(&hub, 20), Checker::attach(&leaf, 20)];
        readers.iter_mut().for_each(|reader| reader.whole_until(10));
        let all = |readers: &mut [Checker; 2], wanted: Producer| {
            until(&format!("{way:?}: {wanted:?}"), || {
                readers.iter_mut().all(|reader| reader.ring.producer() == wanted).then_some(())
            });
        };
        all(&mut readers, Producer::Alive);
        // The hub is killed and takes its file over: the leaf is told of the one and of the other.
        first.kill();
        until("the leaf stalls", || (readers[1].ring.producer() == Producer::Stalled).then_some(()));
        let _hub = mirror(&bind, &hub, "resume", way.mirror());
        until("the leaf goes on", || (readers[1].ring.producer() == Producer::Alive).then_some(()));
        readers[0] = Checker::attach(&hub, 20);
        drop(source);
        all(&mut readers, Producer::Stalled);
        let mut source = Source::create(&ring, CAPACITY, 21);
        source.push(5, 1);
        Checker::attach_new(&leaf, 21).until(5);
    }
}

/// A serve that goes away behind a dead producer brings nobody back: the mirror's log does not say so.
#[test]
fn an_end_of_a_connection_is_no_news_of_the_producer() {
    for way in Way::ALL {
        let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
        let mut source = Source::create_kept(&ring, CAPACITY, 22, true);
        let bind = tcp_address();
        let served = serve(&ring, &bind, &way.serve());
        let mirrored = mirror(&bind, &copy, "oldest", way.mirror());
        source.push(10, 1);
        Checker::attach(&copy, 22).whole_until(10);
        drop(source);
        until("it is told", || mirrored.log().contains("the source's producer is gone or stalls").then_some(()));
        served.terminate();
        until("the connection is over", || mirrored.log().contains("connection ended").then_some(()));
        // The pass that ends a connection logs what it changed: another line is the proof that it is over.
        until("it tries again", || mirrored.log().contains("no connection to the source").then_some(()));
        assert!(!mirrored.log().contains("is there again"), "{way:?}: {}", mirrored.log());
    }
}

/// The mappings of the serve process: slots read-only; of what it may write only the header's page, and none without futex.
#[test]
fn a_serve_maps_the_ring_read_only() {
    let ring = Shm::new("source");
    let mut source = Source::create(&ring, CAPACITY, 11);
    source.push(10, 0);
    let (bind, copy) = (tcp_address(), Shm::new("copy"));
    let served = serve(&ring, &bind, &Way::Unicast.serve());
    let _mirrored = mirror(&bind, &copy, "oldest", &["--unicast"]);
    Checker::attach(&copy, 11).whole_until(10);
    let (writable, readable) = mappings(served.pid(), &ring);
    let bytes = std::fs::metadata(&*ring).expect("the ring").len().next_multiple_of(4_096);
    assert_eq!(readable, bytes, "the whole ring, to read");
    assert_eq!(writable, 4_096, "one page, to sleep");
    let config = Shm::new("config");
    let text = format!(
        "[[core]]\nname=\"r\"\ncpu=0\n[[ring.serve]]\nname=\"s\"\ncore=\"r\"\nring=\"{}\"\nbind=\"{}\"\nfutex=false\n[control]\nlisten=\"127.0.0.1:0\"\n",
        ring.text(),
        tcp_address()
    );
    std::fs::write(&*config, text).expect("writes");
    let appliance = Sluice::start(&["run", config.text()]);
    until("it serves", || (mappings(appliance.pid(), &ring).1 == bytes).then_some(()));
    assert_eq!(mappings(appliance.pid(), &ring).0, 0, "nothing to write without futex");
    assert_eq!(appliance.terminate(), Some(0));
}

/// Bytes of `ring` that a process has mapped (writable, read-only).
fn mappings(pid: u32, ring: &Path) -> (u64, u64) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let (mut writable, mut readable) = (0, 0);
    for line in maps.lines().filter(|line| line.ends_with(ring.to_str().expect("ASCII"))) {
        let mut parts = line.split_whitespace();
        let (range, mode) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        let (from, to) = range.split_once('-').expect("a range");
        let number = |text| u64::from_str_radix(text, 16).expect("an address");
        *(if mode.contains('w') { &mut writable } else { &mut readable }) += number(to) - number(from);
    }
    (writable, readable)
}

#[test]
fn flags_are_the_peers_and_wrong_ones_are_refused() {
    let refused = |args: &[&str], part: &str| {
        let mut process = Sluice::start(args);
        assert_eq!(process.wait().code(), Some(2), "{args:?}: {}", process.log());
        assert!(process.log().contains(part), "{args:?}: {}", process.log());
    };
    let serve = ["ring", "serve", "/dev/shm/none", "--bind", "127.0.0.1:1"];
    let with = |more: &[&'static str]| [&serve[..], more].concat();
    refused(&["ring", "serve", "/dev/shm/none"], "--bind");
    refused(&with(&["--colour", "3"]), "--colour");
    refused(&with(&["--mtu", "many"]), "--mtu");
    refused(&with(&["--mtu", "10"]), "--mtu: is 10");
    refused(&with(&["--dup", "0"]), "--dup: is 0");
    refused(&with(&["--batch", "70000"]), "--batch: is 70000");
    refused(&with(&["--multicast", "10.0.0.1:7401"]), "--multicast: 10.0.0.1:7401 is no multicast group");
    refused(&with(&["--once", "--udp", "7403"]), "--udp");
    refused(&with(&["--linger-us", "soon"]), "--linger-us");
    refused(&with(&["--key-file", "/nonexistent"]), "--key-file");
    refused(&["ring", "mirror", "127.0.0.1:1", "/dev/shm/none", "--from", "newest"], "--from");
    refused(&["ring", "mirror", "127.0.0.1", "/dev/shm/none"], "the source");
    let mut nobody = Sluice::start(&["ring", "mirror", &tcp_address(), "/dev/shm/none", "--once"]);
    assert_eq!(nobody.wait().code(), Some(4), "{}", nobody.log());
}

#[test]
fn once_is_one_mirror_and_one_connection() {
    let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
    let mut source = Source::create(&ring, CAPACITY, 12);
    source.push(100, 0);
    let bind = tcp_address();
    let mut served = Sluice::start(&["ring", "serve", ring.text(), "--bind", &bind, "--once"]);
    let mirrored = mirror(&bind, &copy, "oldest", &[]);
    Checker::attach(&copy, 12).whole_until(100);
    mirrored.kill();
    assert_eq!(served.wait().code(), Some(0), "{}", served.log());
    // One that only knocks is none.
    let mut served = Sluice::start(&["ring", "serve", ring.text(), "--bind", &bind, "--once"]);
    drop(until("it listens", || std::net::TcpStream::connect(&bind).ok()));
    std::thread::sleep(Duration::from_millis(50));
    let copy = Shm::new("copy");
    let mirrored = mirror(&bind, &copy, "oldest", &[]);
    Checker::attach(&copy, 12).whole_until(100);
    mirrored.kill();
    assert_eq!(served.wait().code(), Some(0), "{}", served.log());
    let copy = Shm::new("copy");
    // And the other way round: the mirror ends with its source.
    let again = serve(&ring, &bind, &[]);
    until("it listens", || std::net::TcpStream::connect(&bind).ok());
    let mut mirrored = Sluice::start(&["ring", "mirror", &bind, copy.text(), "--from", "oldest", "--once", "--json"]);
    Checker::attach(&copy, 12).whole_until(100);
    assert_eq!(again.terminate(), Some(0));
    assert_eq!(mirrored.wait().code(), Some(0), "{}", mirrored.log());
    assert!(mirrored.log().contains("\"records\":100"), "{}", mirrored.log());
    // One that is asked to end has not failed.
    let (_again, copy) = (serve(&ring, &bind, &[]), Shm::new("copy"));
    until("it listens", || std::net::TcpStream::connect(&bind).ok());
    let mirrored = mirror(&bind, &copy, "oldest", &["--once"]);
    Checker::attach(&copy, 12).whole_until(100);
    assert_eq!(mirrored.terminate(), Some(0));
}

/// The recipes of the documents that the product was asked from, on the loopback; only addresses differ.
#[test]
fn the_recipes_run() {
    // LAN: one datagram for all mirrors.
    let (ring, copy) = (Shm::new("ticks"), Shm::new("copy"));
    let mut source = Source::create(&ring, CAPACITY, 13);
    let (bind, group) = (tcp_address(), crate::common::mirrors::group());
    let _serve = Sluice::start(&[
        "ring",
        "serve",
        ring.text(),
        "--bind",
        &bind,
        "--multicast",
        &group,
        "--iface",
        "127.0.0.1",
        "--spin",
    ]);
    let _mirror = Sluice::start(&["ring", "mirror", &bind, copy.text(), "--iface", "127.0.0.1", "--spin"]);
    joins(&mut source, &copy, 13);

    // Anywhere: unicast, sent twice. And the hub of a site.
    let (ring, copy, leaf) = (Shm::new("ticks"), Shm::new("copy"), Shm::new("leaf"));
    let mut source = Source::create(&ring, CAPACITY, 14);
    let (bind, site) = (tcp_address(), tcp_address());
    let (wan, lan) = (crate::common::mirrors::udp_port().to_string(), crate::common::mirrors::udp_port().to_string());
    let _serve = Sluice::start(&["ring", "serve", ring.text(), "--bind", &bind, "--udp", &wan, "--dup", "2"]);
    let _mirror = Sluice::start(&["ring", "mirror", &bind, copy.text(), "--unicast"]);
    joins(&mut source, &copy, 14);
    let _site = Sluice::start(&["ring", "serve", copy.text(), "--bind", &site, "--udp", &lan]);
    let _leaf = Sluice::start(&["ring", "mirror", &site, leaf.text(), "--unicast"]);
    joins(&mut source, &leaf, 14);
}

/// A mirror that began at the latest gets all that comes after it has joined.
fn joins(source: &mut Source, copy: &Path, history: u64) {
    let open = || std::fs::metadata(copy).ok().filter(|file| file.len() > 0);
    until("the copy", || {
        source.push(1, 0);
        open()
    });
    let mut reader = Checker::attach(copy, history);
    until("it delivers", || {
        source.push(1, 0);
        (reader.take() > 0).then_some(())
    });
    source.push(500, 8);
    reader.whole_until(source.head());
}

/// What a lap costs a mirror that is stopped is what it costs a reader of the source that is as slow.
#[test]
fn after_a_gap_readers_of_the_copy_are_as_lapped_as_readers_of_the_source() {
    for way in Way::ALL {
        let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
        let mut source = Source::create(&ring, 1_024, 15);
        let bind = tcp_address();
        let _served = serve(&ring, &bind, &way.serve());
        let mirrored = mirror(&bind, &copy, "oldest", way.mirror());
        source.push(100, 1);
        let mut remote = Checker::attach(&copy, 15);
        remote.whole_until(100);
        let mut local = Checker::attach(&ring, 15);
        local.whole_until(100);
        mirrored.signal(Signal::SIGSTOP);
        // More than the ring and, with datagrams, than the socket holds; in bursts, so that the serve keeps up.
        source.push(400_000, 512);
        mirrored.signal(Signal::SIGCONT);
        let head = source.head();
        remote.until(head);
        local.until(head);
        let got = |reader: &Checker| reader.ring.cursor() - 1 - 100 - reader.lapped();
        assert!(local.lapped() > 300_000, "{way:?}: {}", local.lapped());
        assert_eq!(got(&local) + local.lapped(), head - 100, "{way:?}");
        assert_eq!(got(&remote) + remote.lapped(), head - 100, "{way:?}: holes {:?}", remote.holes);
        let told: u64 = remote.holes.iter().map(|(from, to)| to - from + 1).sum();
        assert_eq!(remote.lapped(), told, "{way:?}");
    }
}

/// The library's stepped server and mirror: a step never waits, and moves at most 32 datagrams and one frame.
#[test]
fn mirror_step_bound() {
    use sluice::config::{Mirror as MirrorConfig, MirrorStart, Serve};
    use sluice::ring::step::{Mirror, Server};

    for way in Way::ALL {
        let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
        let mut source = Source::create(&ring, 1 << 16, 16);
        let mut settings = Serve::new("s", "", ring.0.clone(), "127.0.0.1:0".parse().expect("an address"));
        match way {
            Way::Tcp => {}
            Way::Unicast => settings.udp = Some(crate::common::mirrors::udp_port()),
            Way::Multicast => {
                settings.multicast = Some(crate::common::mirrors::group().parse().expect("a group"));
                settings.interface = std::net::Ipv4Addr::LOCALHOST;
            }
        }
        let mut server = Server::new(&settings).expect("binds");
        let mut wanted = MirrorConfig::new("m", "", server.address().to_string(), copy.0.clone());
        wanted.from = MirrorStart::Oldest;
        wanted.unicast = way == Way::Unicast;
        wanted.interface = std::net::Ipv4Addr::LOCALHOST;
        let mut mirror = Mirror::new(&wanted).expect("made");
        let end = std::time::Instant::now() + crate::common::mirrors::BOUND;
        let (mut datagrams_most, mut frames_most) = (0, 0);
        while mirror.status().next < 40_001 {
            assert!(std::time::Instant::now() < end, "{way:?}: {:?} {:?}", mirror.status(), server.counters());
            if mirror.status().live && source.head() < 40_000 {
                source.push(2_000, 0);
            }
            for _ in 0..40 {
                server.step().expect("steps");
            }
            let before = *mirror.counters();
            mirror.step().expect("steps");
            let after = mirror.counters();
            datagrams_most = datagrams_most.max(after.datagrams - before.datagrams);
            frames_most = frames_most.max(after.frames - before.frames);
        }
        assert!(datagrams_most <= 32 && frames_most <= 1, "{way:?}: {datagrams_most} datagrams, {frames_most} frames");
        match way {
            Way::Tcp => assert_eq!(datagrams_most, 0),
            _ => assert!(datagrams_most > 1, "{way:?}: the bound was not reached for"),
        }
        Checker::attach(&copy, 16).whole_until(40_000);
        mirror.wait(Duration::from_millis(1)).expect("waits");
        server.wait(Duration::from_millis(1)).expect("waits");
    }
}

/// The producer's own thread sends the datagrams; the server does the rest.
#[test]
fn an_inline_producer_sends_its_own_datagrams() {
    use sluice::config::{Mirror as MirrorConfig, MirrorStart, Serve};
    use sluice::ring::RingProducer;
    use sluice::ring::step::{Mirror, Server};

    for way in [Way::Unicast, Way::Multicast] {
        let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
        let settings = RingSettings { capacity: CAPACITY, ..RingSettings::default() };
        let producer = RingProducer::<crate::common::mirrors::Tick>::create(&ring, &settings).expect("makes");
        let mut settings = Serve::new("s", "", ring.0.clone(), "127.0.0.1:0".parse().expect("an address"));
        match way {
            Way::Unicast => settings.udp = Some(crate::common::mirrors::udp_port()),
            _ => {
                settings.multicast = Some(crate::common::mirrors::group().parse().expect("a group"));
                settings.interface = std::net::Ipv4Addr::LOCALHOST;
            }
        }
        let mut server = Server::new(&settings).expect("binds");
        server.step().expect("steps");
        let inline = server.inline().expect("opens").expect("a UDP transport");
        assert!(server.inline().expect("opens").is_none(), "once");
        let mut producer = producer.with_sender(inline);
        let mut wanted = MirrorConfig::new("m", "", server.address().to_string(), copy.0.clone());
        wanted.from = MirrorStart::Oldest;
        wanted.unicast = way == Way::Unicast;
        wanted.interface = std::net::Ipv4Addr::LOCALHOST;
        let mut mirror = Mirror::new(&wanted).expect("made");
        let end = std::time::Instant::now() + crate::common::mirrors::BOUND;
        while mirror.status().next < 5_001 {
            assert!(std::time::Instant::now() < end, "{way:?}: {:?} {:?}", mirror.status(), server.counters());
            let head = producer.sequence();
            if mirror.status().live && head < 5_000 {
                producer.push(&crate::common::mirrors::tick(17, head + 1));
            }
            server.step().expect("steps");
            mirror.step().expect("steps");
        }
        Checker::attach(&copy, 17).whole_until(5_000);
        let counters = producer.sender().counters().expect("nobody else is at it");
        assert!(counters.datagrams > 1_000, "{way:?}: {counters:?}");
        // Idle, the server's heartbeats go on.
        let heard = mirror.counters().heartbeats;
        until("heartbeats of an idle producer", || {
            server.step().expect("steps");
            mirror.step().expect("steps");
            (mirror.counters().heartbeats > heard + 2).then_some(())
        });
    }
}

/// By IPv6 (always the stream: datagrams are IPv4), and a source by its name.
#[test]
fn a_source_has_any_address_or_a_name() {
    let ring = Shm::new("source");
    let mut source = Source::create(&ring, CAPACITY, 19);
    source.push(100, 0);
    let port = tcp_address().rsplit(':').next().expect("a port").to_string();
    for way in Way::ALL {
        let served = serve(&ring, &format!("[::]:{port}"), &way.serve());
        for from in [format!("[::1]:{port}"), format!("127.0.0.1:{port}"), format!("localhost:{port}")] {
            let copy = Shm::new("copy");
            let mirrored = mirror(&from, &copy, "oldest", way.mirror());
            Checker::attach(&copy, 19).whole_until(100);
            let way = if from.starts_with('[') { Way::Tcp } else { way };
            until(&format!("{from} by {way:?}"), || mirrored.log().contains(way.told()).then_some(()));
        }
        assert_eq!(served.terminate(), Some(0));
    }
}

/// Blobs of every length, those that no datagram carries among them; lengths, flags and bytes are the source's.
#[test]
fn blobs_are_copied_in_every_transport() {
    use sluice::ring::{BlobConsumer, BlobProducer, ConsumerSettings, StartAt};

    const LENGTHS: [usize; 9] = [0, 1, 63, 64, 1_400, 1_500, 9_000, 64_000, 200_000];
    let blob = |sequence: u64| -> Vec<u8> {
        let length = LENGTHS[sequence as usize % LENGTHS.len()];
        (0..length).map(|at| (at as u64 ^ sequence.wrapping_mul(31)) as u8).collect()
    };
    for way in Way::ALL {
        let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
        let settings = RingSettings { capacity: 256, ..RingSettings::default() };
        let mut source = BlobProducer::<[u64; 2]>::create(&ring, &settings, 16 << 20).expect("makes");
        let mut push = |count: u64| {
            for _ in 0..count {
                let next = source.sequence() + 1;
                source.push(&[next, !next], next as u32, &blob(next)).expect("it fits");
                std::thread::sleep(Duration::from_micros(300));
            }
            source.sequence()
        };
        push(30);
        let bind = tcp_address();
        let _served = serve(&ring, &bind, &way.serve());
        let _mirrored = mirror(&bind, &copy, "oldest", way.mirror());
        let open = || BlobConsumer::<[u64; 2]>::open(&copy, StartAt::Oldest, &ConsumerSettings::default()).ok();
        let mut reader = until("the copy", open);
        let last = push(200);
        let (mut expected, mut bytes) = (1, Vec::new());
        until("every blob", || {
            while let Some(record) = reader.try_recv(&mut bytes) {
                assert_eq!(record.sequence, expected, "{way:?}");
                assert_eq!((record.meta, record.flags), ([expected, !expected], expected as u32), "{way:?}");
                assert_eq!(bytes, blob(expected), "{way:?}: blob {expected}");
                expected += 1;
            }
            (expected > last).then_some(())
        });
    }
}

/// A configuration with rings alone runs, and shows what it does.
#[test]
fn an_appliance_of_rings_shows_its_counters() {
    let (ring, hub, config) = (Shm::new("source"), Shm::new("hub"), Shm::new("config"));
    let mut source = Source::create(&ring, CAPACITY, 18);
    let (bind, site, control) = (tcp_address(), tcp_address(), tcp_address());
    let udp = crate::common::mirrors::udp_port();
    let text = format!(
        "[[core]]\nname = \"r\"\ncpu = 0\n\
         [[ring.serve]]\nname = \"source\"\ncore = \"r\"\nring = \"{}\"\nbind = \"{bind}\"\nudp = {udp}\n\
         [[ring.mirror]]\nname = \"hub\"\ncore = \"r\"\nsource = \"{bind}\"\nring = \"{}\"\nfrom = \"oldest\"\nreconnect = \"10ms\"\n\
         [[ring.serve]]\nname = \"site\"\ncore = \"r\"\nring = \"{}\"\nbind = \"{site}\"\n\
         [control]\nlisten = \"{control}\"\n",
        ring.text(),
        hub.text(),
        hub.text()
    );
    std::fs::write(&*config, text).expect("writes");
    let appliance = Sluice::start(&["run", config.text()]);
    let leaf = Shm::new("leaf");
    let _leaf = mirror(&site, &leaf, "oldest", &[]);
    source.push(1_000, 8);
    Checker::attach(&leaf, 18).whole_until(1_000);
    let get = |path: &str| sluice::cli::stat::get(control.parse().expect("an address"), path).ok();
    let metrics = until("the counters", || {
        get("/metrics").filter(|text| text.contains("sluice_ring_mirror_records_total{mirror=\"hub\"} 1000"))
    });
    for part in [
        "sluice_ring_serve_connections{serve=\"source\"} 1",
        "sluice_ring_serve_connections{serve=\"site\"} 1",
        "sluice_ring_serve_producer_alive{serve=\"source\"} 1",
        "sluice_ring_mirror_live{mirror=\"hub\"} 1",
        "sluice_ring_mirror_source_silent{mirror=\"hub\"} 0",
        "sluice_ring_mirror_gaps_total{mirror=\"hub\"} 0",
    ] {
        assert!(metrics.contains(part), "{part} in\n{metrics}");
    }
    let status = until("the sessions", || {
        let status: serde_json::Value = serde_json::from_str(&get("/status")?).expect("JSON");
        status["ring"]["serve"][0]["sessions"][0].is_object().then_some(status)
    });
    assert_eq!(status["ring"]["mirror"][0]["next"], 1_001, "{status}");
    assert_eq!(status["ring"]["serve"][0]["sessions"][0]["delivery"], "udp", "{status}");
    let mut stat = Sluice::start(&["stat", "--control", &control]);
    assert_eq!(stat.wait().code(), Some(0));
    assert!(stat.log().contains("mirror hub: ") && stat.log().contains("serve site: "), "{}", stat.log());
    assert_eq!(appliance.terminate(), Some(0));
}

/// A relay that lets the source's bytes through at so many per second; each of its buffers is short.
fn slow_path(to: &str, bytes_per_second: usize) -> String {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback");
    let address = listener.local_addr().expect("bound").to_string();
    let to = to.to_string();
    std::thread::spawn(move || {
        for mirror in listener.incoming() {
            let (Ok(mut mirror), Ok(mut source)) = (mirror, TcpStream::connect(&to)) else { continue };
            nix::sys::socket::setsockopt(&source, nix::sys::socket::sockopt::RcvBuf, &(32 << 10)).expect("an option");
            let (mut from, mut back) = (mirror.try_clone().expect("a handle"), source.try_clone().expect("a handle"));
            std::thread::spawn(move || std::io::copy(&mut from, &mut back));
            std::thread::spawn(move || {
                let mut bytes = vec![0; bytes_per_second / 100];
                while let Ok(count @ 1..) = source.read(&mut bytes)
                    && mirror.write_all(&bytes[..count]).is_ok()
                {
                    std::thread::sleep(Duration::from_micros(1_000_000 * count as u64 / bytes_per_second as u64));
                }
                let _ = mirror.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    address
}

/// A record that is on its way for longer than silence may last.
#[test]
fn a_long_blob_comes_over_a_slow_path() {
    use sluice::ring::{BlobConsumer, BlobProducer, ConsumerSettings, StartAt};

    let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
    let settings = RingSettings { capacity: 16, ..RingSettings::default() };
    let mut source = BlobProducer::<u64>::create(&ring, &settings, 32 << 20).expect("makes");
    let blob: Vec<u8> = (0..12_u32 << 20).map(|at| (at >> 8 ^ at) as u8).collect();
    source.push(&7, 1, &blob).expect("it fits");
    let bind = tcp_address();
    let _served = serve(&ring, &bind, &[]);
    until("it listens", || std::net::TcpStream::connect(&bind).ok());
    // 8 s of it, and the limits are 5 s.
    let _mirrored = mirror(&slow_path(&bind, 3 << 19), &copy, "oldest", &[]);
    let open = || BlobConsumer::<u64>::open(&copy, StartAt::Oldest, &ConsumerSettings::default()).ok();
    let (mut reader, mut bytes) = (until("the copy", open), Vec::new());
    let record = until("the blob", || reader.try_recv(&mut bytes));
    assert_eq!((record.sequence, record.meta, record.flags), (1, 7, 1));
    assert!(bytes == blob);
}

/// The pause is for sources that are not there: one that restarts is followed at once, each time.
#[test]
fn every_restart_of_a_producer_is_followed_without_a_pause() {
    let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
    let mut source = Source::create(&ring, CAPACITY, 1);
    source.push(10, 0);
    let bind = tcp_address();
    let _served = serve(&ring, &bind, &[]);
    until("it listens", || std::net::TcpStream::connect(&bind).ok());
    let log = ["ring", "mirror", &bind, copy.text(), "--from", "oldest", "--reconnect-ms", "60000"];
    let _mirrored = Sluice::start(&log);
    Checker::attach_new(&copy, 1).whole_until(10);
    for history in 2..5 {
        // Long enough for a session that counts.
        std::thread::sleep(Duration::from_millis(1_500));
        drop(source);
        source = Source::create(&ring, CAPACITY, history);
        source.push(10, 0);
        Checker::attach_new(&copy, history).whole_until(10);
    }
}

/// A step of a server sends at most 32 datagrams and one frame, however many mirrors wait for how much.
#[test]
fn server_step_bound() {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use sluice::config::Serve;
    use sluice::ring::step::Server;
    use sluice::wire::mirror::{HEADER_BYTES, Header, Hello, WANT_NEW, WANT_OLDEST, hello_flag, kind};

    let ring = Shm::new("source");
    let mut source = Source::create(&ring, CAPACITY, 1);
    source.push(10_000, 0);
    let mut settings = Serve::new("s", "", ring.0.clone(), "127.0.0.1:0".parse().expect("an address"));
    settings.udp = Some(crate::common::mirrors::udp_port());
    let mut server = Server::new(&settings).expect("binds");
    let connect = |server: &mut Server, wanted: u64, flags: u8| {
        let mut socket = TcpStream::connect(server.address()).expect("connects");
        socket.write_all(&Hello { wanted, flags }.encode()).expect("writes");
        socket.set_nonblocking(true).expect("an option");
        (socket, Vec::<u8>::new(), 0u64)
    };
    server.step().expect("steps");
    let mut streams: Vec<_> = (0..8).map(|_| connect(&mut server, WANT_OLDEST, 0)).collect();
    let mut silent: Vec<_> = (0..8).map(|_| connect(&mut server, WANT_NEW, hello_flag::UNICAST)).collect();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("the loopback");
    let end = std::time::Instant::now() + crate::common::mirrors::BOUND;
    let mut punched = 0;
    while streams.iter().any(|(.., records)| *records < 10_000) || server.counters().datagram_records < 5_000 {
        assert!(std::time::Instant::now() < end, "{:?}", server.counters());
        if punched == silent.len() && source.head() < 15_000 {
            source.push(500, 0);
        }
        let before = *server.counters();
        server.step().expect("steps");
        let after = *server.counters();
        assert!(after.datagrams - before.datagrams <= 32, "{before:?} {after:?}");
        assert!(after.stream_records - before.stream_records <= 256, "{before:?} {after:?}");
        for (socket, bytes, records) in &mut streams {
            let mut more = [0; 65_536];
            while let Ok(count @ 1..) = socket.read(&mut more) {
                bytes.extend_from_slice(&more[..count]);
            }
            let mut at = 0;
            while let Ok(header) = Header::decode(&bytes[at..])
                && bytes.len() - at >= header.frame_bytes()
            {
                *records += if header.kind == kind::DATA { u64::from(header.count) } else { 0 };
                at += header.frame_bytes();
            }
            bytes.drain(..at);
        }
        for (socket, bytes, told) in silent.iter_mut().filter(|(.., told)| *told == 0) {
            let mut more = [0; 256];
            if let Ok(count @ 1..) = socket.read(&mut more) {
                bytes.extend_from_slice(&more[..count]);
            }
            if let Some(payload) = bytes.get(2 * HEADER_BYTES + 48..2 * HEADER_BYTES + 64) {
                let token = u32::from_le_bytes(payload[10..14].try_into().expect("four bytes"));
                let punch = Header::bare(kind::PUNCH, payload[9], u64::from(token)).encode();
                udp.send_to(&punch, ("127.0.0.1", settings.udp.expect("set"))).expect("sends");
                (*told, punched) = (1, punched + 1);
            }
        }
    }
}

const SOURCE: &str = "SLUICE_TEST_SOURCE";

/// Not a test by itself: the producer that the next one kills.
#[test]
fn plays_the_source() {
    let Ok(words) = std::env::var(SOURCE) else { return };
    let (path, history) = words.split_once(' ').expect("a path and a number");
    let mut source = Source::create(Path::new(path), CAPACITY, history.parse().expect("a number"));
    loop {
        source.push(16, 16);
    }
}

/// kill -9 of the producer's process while it publishes; the next one is another history.
#[test]
fn a_producer_killed_as_it_publishes_is_followed() {
    struct Killed(std::process::Child);
    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    for way in Way::ALL {
        let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
        let bind = tcp_address();
        let _served = serve(&ring, &bind, &way.serve());
        let _mirrored = mirror(&bind, &copy, "oldest", way.mirror());
        for history in 1..6 {
            let mut command = std::process::Command::new(std::env::current_exe().expect("a test binary"));
            command.args(["--exact", "ring_mirror::plays_the_source", "--nocapture"]);
            command.env(SOURCE, format!("{} {history}", ring.text())).stdout(std::process::Stdio::null());
            let producer = Killed(command.spawn().expect("the test binary runs"));
            let mut reader = Checker::attach_new(&copy, history);
            reader.until(500);
            // Not at rest: it publishes in this moment.
            drop(producer);
            let dead = || (reader.ring.producer() != Producer::Alive).then_some(());
            until("the reader is told", dead);
            reader.take();
            assert_eq!(reader.holes, [], "{way:?}: history {history} is whole up to its end");
        }
    }
}
