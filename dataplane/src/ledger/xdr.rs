//! Whether a ledger is what it should be inside: a `LedgerCloseMeta` of its own sequence.

use stellar_xdr::{LedgerCloseMeta, Limits, ReadXdr};

/// Deepest nesting of a meta. Real ones nest a few dozen deep; this many levels fit a thread's stack of 2 MiB.
const DEPTH_MAX: u32 = 500;

/// Why a ledger is not taken for one.
#[derive(Debug, thiserror::Error)]
pub enum XdrError {
    /// Not the XDR of a meta.
    #[error("ledger {sequence}: not a LedgerCloseMeta of {bytes} bytes: {what}")]
    Decode {
        /// The ledger, as the stream names it.
        sequence: u32,
        /// Its bytes.
        bytes: usize,
        /// What the decoder says.
        what: String,
    },
    /// A meta of another ledger.
    #[error("ledger {sequence} holds the meta of ledger {found}")]
    Sequence {
        /// The ledger, as the stream names it.
        sequence: u32,
        /// What is in it.
        found: u32,
    },
}

/// Decodes a whole ledger, with bounds on depth and bytes, and compares its sequence.
///
/// # Errors
/// See [`XdrError`].
pub fn check(sequence: u32, ledger: &[u8]) -> Result<(), XdrError> {
    let limits = Limits { depth: DEPTH_MAX, len: ledger.len() };
    let meta = LedgerCloseMeta::from_xdr(ledger, limits);
    let meta = meta.map_err(|error| XdrError::Decode { sequence, bytes: ledger.len(), what: error.to_string() })?;
    let header = match &meta {
        LedgerCloseMeta::V0(meta) => &meta.ledger_header,
        LedgerCloseMeta::V1(meta) => &meta.ledger_header,
        LedgerCloseMeta::V2(meta) => &meta.ledger_header,
    };
    match header.header.ledger_seq {
        found if found == sequence => Ok(()),
        found => Err(XdrError::Sequence { sequence, found }),
    }
}
