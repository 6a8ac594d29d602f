//! The hosts that other tests stand on: a switch carries unicast and multicast, and nothing is left behind.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use crate::common::hosts::{Host, switch};

#[test]
fn a_switch_carries_unicast_and_multicast_between_hosts() {
    let Some(first) = Host::new("first") else { return };
    let second = Host::new("second").expect("as the first");
    let _switch = switch(&[&first, &second], &["10.7.0.1/24".into(), "10.7.0.2/24".into()]);
    let group = Ipv4Addr::new(239, 7, 0, 1);
    let receiver = second.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:7401").expect("a port");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        socket.join_multicast_v4(&group, &Ipv4Addr::new(10, 7, 0, 2)).expect("joins");
        socket
    });
    first.run(|| {
        let socket = UdpSocket::bind("10.7.0.1:0").expect("a port");
        socket.send_to(b"one", "10.7.0.2:7401").expect("sent");
        socket.send_to(b"all", (group, 7401)).expect("sent");
    });
    let mut seen = Vec::new();
    for _ in 0..2 {
        let mut bytes = [0; 16];
        let (length, from) = receiver.recv_from(&mut bytes).expect("a datagram");
        assert_eq!(from.ip(), Ipv4Addr::new(10, 7, 0, 1));
        seen.push(bytes[..length].to_vec());
    }
    seen.sort();
    assert_eq!(seen, [b"all".to_vec(), b"one".to_vec()]);
}
