//! Where ledgers come from: a command's pipe, a ledger node, files, a generator.
//!
//! May use: `sys`, and the pure parts of `ledger`. Never does: wait, or know who the ledgers are for.

mod ahead;
pub mod captive;
pub mod file;
pub mod held;
mod paced;
pub mod pipe;
pub mod synthetic;

use std::os::fd::RawFd;

use sha2::{Digest, Sha256};
use xxhash_rust::xxh64::xxh64;

use super::pool::Buffer;

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
#[derive(Clone, Debug, thiserror::Error)]
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

    /// The open ledger's next chunk in its buffer, as a [`Layout`](super::chunker::Layout) puts it, from a source that has ledgers whole before they are
    /// emitted. Asked for where a chunk begins; the room of [`Source::poll`] is then the rest of that buffer, and nothing is
    /// written into it.
    fn chunk(&mut self) -> Option<Buffer> {
        None
    }

    /// Bytes that may lie in it unread before whoever emits has to wait; `None`: nobody waits, a player's ledgers only come later.
    fn capacity(&self) -> Option<usize> {
        None
    }

    /// When it has something to do even if nothing becomes readable (monotonic ns).
    fn deadline(&self) -> Option<i64> {
        None
    }

    /// Nothing more is wanted: a process is asked to end, and ended. Called once; then until it says true.
    fn stop(&mut self, _now: i64) -> bool {
        true
    }
}

/// Bytes of a description in which what is described is told in full: with the kind and a hash they stay below 400.
const TOLD_BYTES_MAX: usize = 360;

/// A source's description: its kind and what it is of; of a long text the beginning, and a hash that tells it apart.
fn described(kind: &str, of: &str) -> String {
    if of.len() <= TOLD_BYTES_MAX {
        return format!("{kind} {of}");
    }
    let mut end = TOLD_BYTES_MAX;
    while !of.is_char_boundary(end) {
        end -= 1;
    }
    format!("{kind} {}… {:016x}", &of[..end], xxh64(of.as_bytes(), 0))
}

/// The first 8 bytes of the SHA-256 of a network's passphrase; zero without one.
pub fn network_of(passphrase: Option<&str>) -> [u8; 8] {
    let Some(passphrase) = passphrase else { return [0; 8] };
    let digest = Sha256::digest(passphrase.as_bytes());
    digest.first_chunk().copied().expect("a digest has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_short_and_tells_long_ones_apart() {
        assert_eq!(described("pipe", "cat x"), "pipe cat x");
        let long = |last: &str| described("pipe", &("ä".repeat(300) + last));
        assert!(long("a").len() <= 400 && long("a") != long("b"), "{}", long("a"));
    }

    #[test]
    fn a_network_is_the_beginning_of_its_hash() {
        // SHA-256 of the public network's passphrase, as every Stellar SDK has it: 7ac33997544e3175…
        let public = network_of(Some("Public Global Stellar Network ; September 2015"));
        assert_eq!(public, [0x7a, 0xc3, 0x39, 0x97, 0x54, 0x4e, 0x31, 0x75]);
        assert_eq!(network_of(None), [0; 8]);
    }
}
