//! Reading a feed ring: records with their streams resolved.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::blob::BlobConsumer;
use super::consumer::{ConsumerSettings, Received, StartAt};
use super::error::RingError;
use super::wait::Wait;
use crate::wire::feed_meta::{FeedMeta, FeedRecord};

/// Longest stream key that is kept: the longest that is written has some 60 bytes.
const KEY_BYTES_MAX: usize = 256;
/// Most streams that are remembered: the most that a feed may have.
const STREAMS_MAX: usize = 4_096;

/// Follows a feed ring.
#[derive(Debug)]
pub struct FeedFollower {
    consumer: BlobConsumer<FeedMeta>,
    streams: BTreeMap<u32, String>,
    body: Vec<u8>,
}

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Followed<'a> {
    /// The ring's own sequence.
    pub ring_sequence: u64,
    /// Its fixed part.
    pub meta: FeedMeta,
    /// What it is; `None`: a kind that is not known here.
    pub record: Option<FeedRecord>,
    /// The stream's key; `None` until its beginning was told, at the latest after half a ring.
    pub stream: Option<&'a str>,
    /// The message's body; empty otherwise.
    pub body: &'a [u8],
    /// A gap's last sequence.
    pub gap_last: Option<u64>,
    /// [`FeedFollower::lapped`] when it was read: what is more than before was lost in front of it.
    pub lapped: u64,
    /// [`FeedFollower::skipped`] when it was read.
    pub skipped: u64,
}

impl FeedFollower {
    /// Attaches to the ring at `path`.
    ///
    /// # Errors
    /// No such ring, or not a feed's.
    pub fn open(path: &Path, start: StartAt, settings: &ConsumerSettings) -> Result<FeedFollower, RingError> {
        let consumer = BlobConsumer::open(path, start, settings)?;
        Ok(FeedFollower { consumer, streams: BTreeMap::new(), body: Vec::new() })
    }

    /// Waits for the next record, at most `timeout`. When the ring is replaced, what was known of streams is forgotten: the
    /// new producer's indexes are its own.
    ///
    /// # Errors
    /// As [`BlobConsumer::recv`].
    pub fn recv(&mut self, wait: Wait, timeout: Duration) -> Result<Received<Followed<'_>>, RingError> {
        let (sequence, meta) = match self.consumer.recv(wait, timeout, &mut self.body)? {
            Received::Record { sequence, record } => (sequence, record.meta),
            Received::TimedOut => return Ok(Received::TimedOut),
            Received::Died => return Ok(Received::Died),
            Received::Stalled => return Ok(Received::Stalled),
            Received::Resumed => return Ok(Received::Resumed),
            Received::Replaced { followed, incarnation } => {
                self.streams.clear();
                return Ok(Received::Replaced { followed, incarnation });
            }
        };
        let record = FeedRecord::of(meta.kind);
        if record == Some(FeedRecord::StreamBegin)
            && self.body.len() <= KEY_BYTES_MAX
            && (self.streams.len() < STREAMS_MAX || self.streams.contains_key(&meta.stream_index))
            && self.streams.get(&meta.stream_index).is_none_or(|known| known.as_bytes() != self.body)
        {
            self.streams.insert(meta.stream_index, String::from_utf8_lossy(&self.body).into_owned());
        }
        let gap_last = match record {
            Some(FeedRecord::Gap) => self.body.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)),
            _ => None,
        };
        let body: &[u8] = if record == Some(FeedRecord::Message) { &self.body } else { &[] };
        let stream = self.streams.get(&meta.stream_index).map(String::as_str);
        let (lapped, skipped) = (self.consumer.lapped(), self.consumer.skipped());
        let record = Followed { ring_sequence: sequence, meta, record, stream, body, gap_last, lapped, skipped };
        Ok(Received::Record { sequence, record })
    }

    /// Records that were overwritten before they were read.
    pub fn lapped(&self) -> u64 {
        self.consumer.lapped()
    }

    /// Sequences that the ring never held (a mirror's).
    pub fn skipped(&self) -> u64 {
        self.consumer.skipped()
    }

    /// Which life of the ring it reads.
    pub fn incarnation(&self) -> u64 {
        self.consumer.incarnation()
    }
}
