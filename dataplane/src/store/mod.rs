//! The store: `.tri` segments of checksummed blocks, seekable by (stream, sequence) and by time.
//!
//! May use: `wire`, `sys`, `config`, `units` (only `store_worker` uses `runtime`; `block*` files use neither `sys` nor `runtime`).
//! Never does: hold a frame token across a turn; rewrite a sector; stop the capture.

use crate::units::{Side, StreamId};
pub use crate::wire::block::{Codec, FLAG_LATE_FILL, NO_TIME, RecordKind, StampSource};
use crate::wire::segment::{Protocol, SessionId, SessionKey};

mod block_fill;
mod block_loss;
mod block_writer;
mod error;
pub mod export;
pub mod files;
pub mod io;
mod query;
mod reader;
pub mod retention;
pub mod scan;
mod sync_store;
mod verify;

pub use block_fill::ClockState;
pub use block_loss::{LOSS_RANGES_MAX, LossCount, LossLog, LossRange, LostCause};
pub use block_writer::{BlockBuffer, Counters, Fault, Op, SegmentGrant, StoreWriter, SyncPolicy, WriterSettings};
pub use error::StoreError;
pub use query::{Found, Query, QueryCost, Select, Step};
pub use reader::{Reader, Segment, StreamInfo};
pub use sync_store::{Closed, SyncSettings, SyncStore};
pub use verify::{Verified, verify};

/// What is known of a record besides its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordMeta {
    /// What the record says.
    pub kind: RecordKind,
    /// The side that delivered it.
    pub side: Side,
    /// Twelve bits; [`FLAG_LATE_FILL`] is the only one so far.
    pub flags: u16,
    /// The stream, registered with `stream_begin`.
    pub stream: StreamId,
    /// Its sequence in the stream; for a gap its first (the body's first eight bytes, little-endian, are its last).
    pub sequence: u64,
    /// Capture time, UTC ns.
    pub capture_ns: i64,
    /// The publisher's send time, UTC ns, or [`NO_TIME`].
    pub send_ns: i64,
}

impl RecordMeta {
    /// A merged message without a send time.
    pub fn message(stream: StreamId, side: Side, sequence: u64, capture_ns: i64) -> RecordMeta {
        RecordMeta { kind: RecordKind::Message, side, flags: 0, stream, sequence, capture_ns, send_ns: NO_TIME }
    }
}

/// The key under which the store knows a stream: session and the run's creation id, `iex-tp/0x8004/1/0x43810000/r0`.
pub fn stream_key(session: &SessionKey, run: u32) -> String {
    format!("{session}/r{run}")
}

/// The session and run behind a stream's key; `None` for a key of another kind.
pub fn parse_key(key: &str) -> Option<(SessionKey, u32)> {
    let (session, run) = key.rsplit_once("/r")?;
    let run = run.parse().ok()?;
    if let Some(id) = session.strip_prefix("moldudp64/") {
        let mut bytes = [b' '; 10];
        bytes.get_mut(..id.len())?.copy_from_slice(id.as_bytes());
        let session = SessionId(bytes);
        return Some((SessionKey { protocol: Protocol::MoldUdp64, protocol_id: 0, channel: 0, session }, run));
    }
    let mut parts = session.strip_prefix("iex-tp/0x")?.split('/');
    let protocol_id = u16::from_str_radix(parts.next()?, 16).ok()?;
    let channel = parts.next()?.parse().ok()?;
    let id = u32::from_str_radix(parts.next()?.strip_prefix("0x")?, 16).ok()?;
    if parts.next().is_some() {
        return None;
    }
    let session = SessionId::from_u32(id);
    Some((SessionKey { protocol: Protocol::IexTp, protocol_id, channel, session }, run))
}

/// The key of a side's raw frames: `raw/FEED/A`.
pub fn raw_key(feed: &str, side: Side) -> String {
    format!("raw/{feed}/{side}")
}
