//! One connection: its machine, its socket, and what is on its way.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::super::hub::Stored;
use super::super::session::Connection;
use super::gate::Entered;
use super::secure::TlsSession;
use crate::sys::uring::Frozen;
use crate::sys::uring::shared::Batch;

/// Something to send.
pub(super) type Part = Arc<dyn Frozen>;

/// Where a connection is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Its machine decides.
    Open,
    /// Everything was sent, and our half is ended; what still comes is dropped until the other half ends, or this time is over.
    Lingering(i64),
    /// It ends as soon as the kernel gives its requests back.
    Closing,
}

/// A read of a stored ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    /// None.
    No,
    /// Wanted, from this frame on.
    Wanted(Stored, u32),
    /// Under way.
    Started,
}

/// A connection.
pub(super) struct Peer {
    pub(super) machine: Connection,
    pub(super) socket: OwnedFd,
    pub(super) address: IpAddr,
    pub(super) entered: Option<Entered>,
    pub(super) stage: Stage,
    pub(super) receiving: bool,
    pub(super) sending: bool,
    /// Something live is in what is being sent.
    pub(super) sending_live: bool,
    pub(super) reading: Reading,
    /// Frames of the stored ledger at hand.
    pub(super) stored_frames: u32,
    /// What the connection did not take of the last send.
    pub(super) rest: Option<Box<Batch>>,
    /// TLS, where it is spoken.
    pub(super) tls: Option<Box<TlsSession>>,
    /// What was encrypted and is being sent.
    pub(super) cipher: Option<Arc<Vec<u8>>>,
    /// Frames of a stored ledger that go next.
    pub(super) stash: Vec<Part>,
    /// The machine has no more to say.
    pub(super) ended: bool,
    /// The other side has ended its half.
    pub(super) eof: bool,
    /// It stands in the queue of those that are polled.
    pub(super) queued: bool,
    /// What the other side had acknowledged when it was looked at last, and when it is looked at next; only while it takes nothing.
    pub(super) acked: Option<u64>,
    pub(super) ack_look_ns: i64,
    /// How fast it took what it was given, when that was last enough to tell; bytes/s.
    pub(super) rate: Option<u64>,
}

impl Peer {
    pub(super) fn new(machine: Connection, socket: OwnedFd, address: IpAddr) -> Peer {
        Peer {
            machine,
            socket,
            address,
            entered: None,
            stage: Stage::Open,
            receiving: false,
            sending: false,
            sending_live: false,
            reading: Reading::No,
            stored_frames: 0,
            rest: None,
            tls: None,
            cipher: None,
            stash: Vec::new(),
            ended: false,
            eof: false,
            queued: false,
            acked: None,
            ack_look_ns: i64::MAX,
            rate: None,
        }
    }

    /// Whether nothing that was given to the kernel is still there.
    pub(super) fn is_idle(&self) -> bool {
        !self.receiving && !self.sending && self.reading != Reading::Started
    }

    /// Whether everything that the machine gave was sent.
    pub(super) fn is_drained(&self) -> bool {
        !self.sending && self.rest.is_none() && self.stash.is_empty()
    }
}
