//! The peer's mirror on our serve and ours on its, over sockets, in the three transports.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ringfire::{MirrorBuilder, MirrorStart, MulticastConfig, ReplicaServer};

use crate::common::mirrors::{Checker, Shm, Source, Tick, Way, group, mirror, serve, tcp_address, udp_port, until};

/// A mirror of the peer's on a thread of its own, until the test ends.
struct PeerMirror {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl PeerMirror {
    fn start(source: &str, ring: &std::path::Path, way: Way) -> PeerMirror {
        let stop = Arc::new(AtomicBool::new(false));
        let (source, ring, stopped) = (source.to_string(), ring.to_path_buf(), stop.clone());
        let thread = std::thread::spawn(move || {
            let wanted = || {
                let interface = if way == Way::Multicast { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
                let mirror = MirrorBuilder::new().start(MirrorStart::Oldest).unicast(way == Way::Unicast).spin(true);
                mirror.interface(interface).connect(source.as_str(), &ring).ok()
            };
            let mut mirror = until("our serve answers the peer's mirror", wanted);
            // What it calls multicast is any way of datagrams.
            assert_eq!((mirror.is_multicast(), mirror.is_unicast()), (way != Way::Tcp, way == Way::Unicast));
            while !stopped.load(Ordering::Relaxed) {
                match mirror.step() {
                    Ok(true) => {}
                    Ok(false) => std::thread::yield_now(),
                    Err(_) => return,
                }
            }
        });
        PeerMirror { stop, thread: Some(thread) }
    }
}

impl Drop for PeerMirror {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the peer's mirror panicked");
        }
    }
}

#[test]
fn the_peers_mirror_follows_our_serve() {
    for way in Way::ALL {
        let (ring, copy) = (Shm::new("source"), Shm::new("peer-copy"));
        let mut source = Source::create(&ring, 1 << 14, 21);
        source.push(300, 0);
        let bind = tcp_address();
        let served = serve(&ring, &bind, &way.serve());
        let peer = PeerMirror::start(&bind, &copy, way);
        let mut reader = Checker::attach(&copy, 21);
        reader.whole_until(300);
        source.push(5_000, 16);
        reader.whole_until(5_300);
        source.push(1, 0);
        reader.whole_until(5_301);
        // And the peer's own reader on it.
        let mut theirs = ringfire::RingConsumer::<Tick>::builder().start_from_oldest().attach(&*copy).expect("opens");
        assert_eq!(theirs.try_recv().map(|tick| tick[0]), Some(1), "{way:?}");
        drop(peer);
        drop(served);
    }
}

#[test]
fn our_mirror_follows_the_peers_serve() {
    for way in Way::ALL {
        let (ring, copy) = (Shm::new("peer-source"), Shm::new("copy"));
        let mut producer = ringfire::RingProducer::<Tick>::create(&*ring, 1 << 14).expect("makes");
        let mut push = |count: u64| {
            for _ in 0..count {
                let next = producer.published_sequence() + 1;
                producer.push(&crate::common::mirrors::tick(22, next));
                if next.is_multiple_of(16) {
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            }
        };
        push(300);
        let bind = tcp_address();
        let mut server = ReplicaServer::bind(&*ring, bind.as_str()).expect("binds");
        match way {
            Way::Tcp => {}
            Way::Unicast => server = server.unicast(udp_port(), 1_472),
            Way::Multicast => {
                let group: SocketAddrV4 = group().parse().expect("a group");
                server =
                    server.multicast(MulticastConfig::new(*group.ip(), group.port()).interface(Ipv4Addr::LOCALHOST));
            }
        }
        // Its threads have no end; they end with the test's process.
        server.spawn().expect("a thread");
        let _mirrored = mirror(&bind, &copy, "oldest", way.mirror());
        let mut reader = Checker::attach(&copy, 22);
        reader.whole_until(300);
        push(5_000);
        reader.whole_until(5_300);
        push(1);
        reader.whole_until(5_301);
        assert_eq!(reader.first, Some(1), "{way:?}");
    }
}
