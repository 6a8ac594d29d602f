//! Where ledgers come from: a command's pipe, a ledger node, files, a generator.
//!
//! May use: `sys`, and the pure parts of `ledger`. Never does: wait, or know who the ledgers are for.

mod ahead;
pub mod held;
mod paced;
pub mod synthetic;

use std::os::fd::RawFd;

/// What a source did when it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poll {
    /// A ledger begins; its length, where the source knows it. The next call gives its bytes.
    Begin {
        /// Its sequence.
        sequence: u32,
        /// Its bytes.
        bytes: Option<u64>,
    },
    /// So many bytes of the open ledger were written to the start of the room; at least 1.
    Bytes(usize),
    /// The open ledger is complete.
    End,
    /// Nothing now: ask again when a descriptor of [`Source::start`] is readable, or at [`Source::deadline`].
    Wait,
    /// There is no more, and that is as it should be.
    Finished,
}

/// Why a source cannot go on. The message names the thing, the value and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);

/// A source of ledgers: asked again and again on one core, never waiting.
///
/// The sequences are what the source says; who asks checks that they are dense and ascending.
pub trait Source: Send {
    /// What it is, in at most 400 bytes: two runs with the same description and network are of the same source.
    fn description(&self) -> String;

    /// The first 8 bytes of the SHA-256 of the network's passphrase; zero where it has none.
    fn network(&self) -> [u8; 8] {
        [0; 8]
    }

    /// Begins. What it returns is watched, and wakes the core when it is readable.
    ///
    /// # Errors
    /// It cannot begin.
    fn start(&mut self, now: i64) -> Result<Vec<RawFd>, SourceError>;

    /// The next of it. `room` is where the open ledger's bytes go; never empty, and not looked at between two ledgers. `now` is
    /// monotonic, ns.
    ///
    /// # Errors
    /// It cannot go on; it is not asked again.
    fn poll(&mut self, room: &mut [u8], now: i64) -> Result<Poll, SourceError>;

    /// When it has something to do even if nothing becomes readable (monotonic ns).
    fn deadline(&self) -> Option<i64> {
        None
    }

    /// Nothing more is wanted: a process is asked to end, and ended. Called once; then until it says true.
    fn stop(&mut self, _now: i64) -> bool {
        true
    }
}
