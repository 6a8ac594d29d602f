//! What the source's side gives to the fan-out: one stream in the ledgers' order, whoever packs its chunks.
//!
//! The order is the source's own link. A chunk that an encoder packs stands there as [`Item::Packed`] with the encoder's number,
//! and comes by that encoder's link, which keeps the order of what it was given. So the fan-out needs no search: it takes the
//! order's next item, and where that names an encoder, the next message of that one.

use super::hub::Outcome;
use super::message::{Encoded, RawChunk};
use crate::wire::ledger::{Begin, End};

/// The next thing in the order.
#[derive(Debug)]
pub enum Item {
    /// A ledger begins. With the sequence of the ledger that is open: it begins again, and what came of it is dropped (a relay's
    /// upstream sent it again).
    Begin(Begin),
    /// A chunk as it goes out.
    Message(Encoded),
    /// As [`Item::Message`]: it was to be packed, but that would have been too late.
    Fallback(Encoded),
    /// The next message of this encoder's link.
    Packed(usize),
    /// The ledger is complete.
    End(End),
    /// The source says that it is another run from here on: what is kept cannot be joined with what follows (a relay whose upstream
    /// has another run), and a ledger that is open is never completed. Also with the run that is announced already: some ledgers
    /// are missing (a relay whose upstream does not have them any more). The string is as a server announces it
    /// (`<uuid>; net=<hexadecimal>`, of a stranger's making).
    Run(String),
    /// Nothing more comes; why, where it failed.
    Finished(Outcome, Option<String>),
}

/// What an encoder is given.
#[derive(Debug)]
pub struct Job {
    /// The chunk.
    pub chunk: RawChunk,
    /// The zstd level for it.
    pub level: i32,
}
