//! The datagrams of one served ring: each new record once to the group and to every mirror that punched.
//!
//! Part of a [`super::sender::Sender`], or taken out of it ([`super::sender::Sender::detach_live`]) by a producer that
//! sends its own datagrams; updates then travel from the one to the other.

use core::net::SocketAddr;

use super::sender::SessionId;
use super::{Datagrams, SourceRing};
use crate::units::NANOS_PER_SECOND;

/// A unicast destination whose PUNCH has not come for this long is dropped: three of the keep-alives that come every 5 s.
pub const PUNCH_NS_MAX: i64 = 16 * NANOS_PER_SECOND;
/// Most datagrams that one GSO send carries (the kernel's UDP_MAX_SEGMENTS is 64 before Linux 6.9, 128 after).
pub const SEGMENTS_MAX: usize = 64;

/// A destination came, moved or went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveUpdate {
    /// Whose.
    pub id: SessionId,
    /// Where its datagrams go from now on; `None`: nowhere.
    pub to: Option<LiveTarget>,
}

/// One unicast destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveTarget {
    /// Its address.
    pub address: SocketAddr,
}

/// What a [`LiveSender`] counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LiveCounters {
    /// Records sent (each once, whatever the copies and destinations).
    pub records: u64,
    /// Datagrams handed to the socket, copies and destinations included.
    pub datagrams: u64,
    /// Datagrams that the socket lost.
    pub failed: u64,
    /// Records too long for a datagram: mirrors fetch them over TCP.
    pub oversized_records: u64,
    /// Heartbeats (each once).
    pub heartbeats: u64,
}

/// The half of a sender that makes datagrams.
pub struct LiveSender {
    counters: LiveCounters,
}

impl LiveSender {
    /// Sends what is new in `ring`, at most about `max` datagrams, or a heartbeat when one is due; says how many were handed
    /// over.
    pub fn poll<R: SourceRing>(&mut self, _ring: &mut R, _now: i64, _out: &mut impl Datagrams, _max: usize) -> usize {
        0
    }

    /// Takes a change of the destinations.
    pub fn update(&mut self, _update: LiveUpdate) {}

    /// When a heartbeat or a lingering datagram is due.
    pub fn deadline(&self) -> Option<i64> {
        None
    }

    /// What happened so far.
    pub fn counters(&self) -> &LiveCounters {
        &self.counters
    }
}
