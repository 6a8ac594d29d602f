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
mod known;
pub mod plan;
mod query;
mod reader;
pub mod retention;
pub mod scan;
mod store_worker;
mod sync_store;
mod verify;

pub use block_fill::ClockState;
pub use block_loss::{LOSS_RANGES_MAX, LossCount, LossLog, LossRange, LostCause};
pub use block_writer::{BlockBuffer, Counters, Fault, Op, SegmentGrant, StoreWriter, SyncPolicy, WriterSettings};
pub use error::StoreError;
pub use known::{KnownRuns, known_runs};
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
///
/// Different sessions have different keys: of a MoldUDP64 session's ten bytes only the padding behind is left out, and
/// what is not a visible character, `/` and `\` are written `\x20`.
pub fn stream_key(session: &SessionKey, run: u32) -> String {
    format!("{}/r{run}", session_key(session))
}

/// The part of a stream's key that names the session.
pub fn session_key(session: &SessionKey) -> String {
    match session.protocol {
        Protocol::IexTp => session.to_string(),
        Protocol::MoldUdp64 => format!("moldudp64/{}", escape(padded_end(&session.session.0))),
    }
}

/// Without the padding behind: the width is known, so no two ids become the same.
fn padded_end(id: &[u8]) -> &[u8] {
    &id[..id.iter().rposition(|&byte| byte != b' ').map_or(0, |last| last + 1)]
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'/' | b'\\' => text.push_str(&format!("\\x{byte:02x}")),
            byte if byte.is_ascii_graphic() => text.push(byte.into()),
            byte => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

/// The ten bytes behind an escaped session id; `None` for what [`escape`] does not write.
fn unescape(text: &str) -> Option<[u8; 10]> {
    let mut bytes = [b' '; 10];
    let mut places = bytes.iter_mut();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let place = places.next()?;
        (*place, rest) = match first {
            b'\\' => {
                let (digits, after) = after.strip_prefix(b"x")?.split_at_checked(2)?;
                (u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?, after)
            }
            byte if byte.is_ascii_graphic() => (byte, after),
            _ => return None,
        };
    }
    Some(bytes)
}

/// The session and run behind a stream's key; `None` for a key of another kind.
pub fn parse_key(key: &str) -> Option<(SessionKey, u32)> {
    let (session, run) = key.rsplit_once("/r")?;
    let run = run.parse().ok()?;
    if let Some(id) = session.strip_prefix("moldudp64/") {
        let session = SessionId(unescape(id)?);
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

/// What the keys of raw frames begin with.
const RAW_PREFIX: &str = "raw/";

/// The key of a side's raw frames: `raw/FEED/A`.
pub fn raw_key(feed: &str, side: Side) -> String {
    format!("{RAW_PREFIX}{feed}/{side}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mold(id: [u8; 10]) -> SessionKey {
        SessionKey { protocol: Protocol::MoldUdp64, protocol_id: 0, channel: 0, session: SessionId(id) }
    }

    #[test]
    fn keys_of_moldudp64_sessions_keep_what_is_not_padding() {
        let keys = [*b"A         ", *b" A        ", *b"A B       ", *b"A/r1\\x20  ", [b' '; 10], [0; 10]];
        let keys = keys.map(|id| stream_key(&mold(id), 3));
        let zeros = format!("moldudp64/{}/r3", "\\x00".repeat(10));
        let expected = [
            "moldudp64/A/r3",
            "moldudp64/\\x20A/r3",
            "moldudp64/A\\x20B/r3",
            "moldudp64/A\\x2fr1\\x5cx20/r3",
            "moldudp64//r3",
            &zeros,
        ];
        assert_eq!(keys, expected);
    }

    proptest! {
        #[test]
        fn a_key_names_one_session_and_run(
            id in prop_oneof![
                any::<[u8; 10]>(),
                prop::array::uniform10(prop::sample::select(&b" A/r1\\x20"[..])),
            ],
            run: u32,
            (protocol_id, channel, number) in any::<(u16, u32, u32)>(),
        ) {
            let iex = SessionKey { protocol: Protocol::IexTp, protocol_id, channel, session: SessionId::from_u32(number) };
            for session in [mold(id), iex] {
                let key = stream_key(&session, run);
                prop_assert!(key.len() <= crate::wire::block::KEY_BYTES_MAX);
                prop_assert_eq!(parse_key(&key), Some((session, run)), "{}", key);
            }
        }

        #[test]
        fn no_text_stops_the_parser(text in "\\PC{0,40}", id in "[ -~]{0,30}") {
            parse_key(&text);
            parse_key(&format!("moldudp64/{id}/r1"));
        }
    }
}
