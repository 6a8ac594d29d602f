//! An arbitrated feed as a ring of blobs: messages, and between them what happened to their streams.
//!
//! Records are written inside the arbiter's emission and seen by spinning readers at once; sleepers are woken once per
//! turn. The ring's own sequence is dense and independent of the feed's.

use std::path::PathBuf;

use super::blob::BlobProducer;
use super::producer::RingSettings;
use crate::config::Feed;
use crate::feed::publish::{PublishCounts, PublishedMessage, Publisher};
use crate::sys::clock::StepWatch;
use crate::units::{NANOS_PER_MILLI, NANOS_PER_SECOND, Side, StreamId};
use crate::wire::feed_meta::{FeedMeta, FeedRecord, StampOrigin};
use crate::wire::segment::SessionKey;

/// Streams are told again after so many records (or half a ring of them, if that is less), so that whoever comes late can
/// tell what an index means.
pub const TELL_EVERY_RECORDS: u64 = 65_536;
/// Time between two signs of life of an idle publisher: several within the time after which readers call it stalled.
const BEAT_EVERY_NS: i64 = 20 * NANOS_PER_MILLI;
/// Time between two looks for a step of the wall clock.
const CLOCK_EVERY_NS: i64 = NANOS_PER_SECOND;
/// The stream index of a side state whose session has no stream yet.
pub const NO_STREAM: u32 = u32::MAX;

/// How a feed is published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublishSettings {
    /// The ring's file.
    pub path: PathBuf,
    /// Records that it holds; a power of two.
    pub capacity: u64,
    /// Bytes of its arena; a power of two.
    pub arena_bytes: u64,
    /// Whether the memory must be huge pages.
    pub huge_pages: bool,
    /// The NUMA node that the memory must come from.
    pub numa_node: Option<u32>,
    /// Where the feed's capture stamps come from.
    pub stamp: StampOrigin,
}

/// What publishes a feed, if its configuration asks for it.
pub fn publisher(feed: &Feed) -> Option<Box<dyn Publisher>> {
    let settings = PublishSettings {
        path: feed.publish.clone()?,
        capacity: feed.publish_capacity,
        arena_bytes: feed.publish_arena.0,
        huge_pages: feed.publish_huge_pages,
        numa_node: feed.publish_numa_node,
        stamp: if feed.is_files() { StampOrigin::File } else { StampOrigin::Software },
    };
    Some(Box::new(FeedPublisher::new(settings)))
}

/// A stream that has begun.
struct Told {
    stream: StreamId,
    session: SessionKey,
    base: u64,
    key: String,
    ended: bool,
}

/// Publishes one feed.
pub struct FeedPublisher {
    settings: PublishSettings,
    /// Made on the thread that publishes.
    ring: Option<BlobProducer<FeedMeta>>,
    streams: Vec<Told>,
    tell_at: u64,
    counts: PublishCounts,
    capture_ns: i64,
    unpublished: bool,
    beat_at: i64,
    clock: StepWatch,
    clock_at: i64,
    clock_epoch: u8,
}

impl FeedPublisher {
    /// A publisher that makes its ring when it is started.
    pub fn new(settings: PublishSettings) -> FeedPublisher {
        FeedPublisher {
            settings,
            ring: None,
            streams: Vec::new(),
            tell_at: 0,
            counts: PublishCounts::default(),
            capture_ns: 0,
            unpublished: false,
            beat_at: 0,
            clock: StepWatch::default(),
            clock_at: 0,
            clock_epoch: 0,
        }
    }

    fn meta(&self, kind: FeedRecord, stream: u32, sequence: u64, capture_ns: i64) -> FeedMeta {
        FeedMeta {
            stream_index: stream,
            kind: kind as u8,
            sequence,
            capture_ns,
            send_ns: FeedMeta::NO_SEND_TIME,
            stamp_source: self.settings.stamp as u8,
            clock_epoch: self.clock_epoch,
            ..FeedMeta::default()
        }
    }

    /// Writes one record; false if the ring cannot take it.
    #[inline]
    fn write(&mut self, meta: &FeedMeta, blob: &[u8]) -> bool {
        let ring = self.ring.as_mut().expect("started");
        self.unpublished = true;
        ring.write_next(meta, 0, blob).is_ok()
    }

    fn mark(&mut self, meta: &FeedMeta, blob: &[u8]) {
        // Keys and gaps are shorter than any arena.
        if self.write(meta, blob) {
            self.counts.marks += 1;
        }
    }

    /// Records written so far.
    fn written(&self) -> u64 {
        self.ring.as_ref().map_or(0, BlobProducer::sequence)
    }

    fn tell_every(&self) -> u64 {
        TELL_EVERY_RECORDS.min(self.settings.capacity / 2)
    }

    /// Tells every open stream again.
    #[cold]
    fn tell_again(&mut self) {
        for index in 0..self.streams.len() {
            let told = &self.streams[index];
            if told.ended {
                continue;
            }
            let mut meta = self.meta(FeedRecord::StreamBegin, told.stream.0, told.base, self.capture_ns);
            meta.flags = FeedMeta::FLAG_REPEATED;
            let key = std::mem::take(&mut self.streams[index].key);
            self.mark(&meta, key.as_bytes());
            self.streams[index].key = key;
        }
        self.tell_at = self.written() + self.tell_every();
    }
}

impl Publisher for FeedPublisher {
    fn start(&mut self) -> Result<(), String> {
        let PublishSettings { capacity, huge_pages, numa_node, .. } = self.settings;
        let settings = RingSettings { capacity, huge_pages, numa_node, heartbeat: true, ..RingSettings::default() };
        let ring = BlobProducer::create(&self.settings.path, &settings, self.settings.arena_bytes);
        self.ring = Some(ring.map_err(|error| error.to_string())?);
        self.tell_at = self.tell_every();
        Ok(())
    }

    fn stream_begin(&mut self, stream: StreamId, key: &SessionKey, run: u32, base: u64, capture_ns: i64) {
        let told = Told { stream, session: *key, base, key: format!("{key}/r{run}"), ended: false };
        let meta = self.meta(FeedRecord::StreamBegin, stream.0, base, capture_ns);
        self.mark(&meta, told.key.as_bytes());
        self.streams.push(told);
    }

    #[inline]
    fn message(&mut self, message: &PublishedMessage<'_>) {
        if self.written() >= self.tell_at {
            self.tell_again();
        }
        self.capture_ns = message.capture_ns;
        let meta = FeedMeta {
            side: message.side.0,
            send_ns: message.send_ns.unwrap_or(FeedMeta::NO_SEND_TIME),
            ..self.meta(FeedRecord::Message, message.stream.0, message.sequence, message.capture_ns)
        };
        match self.write(&meta, message.body) {
            true => self.counts.messages += 1,
            false => self.counts.refused += 1,
        }
    }

    fn gap(&mut self, stream: StreamId, first: u64, last: u64, capture_ns: i64) {
        let meta = self.meta(FeedRecord::Gap, stream.0, first, capture_ns);
        self.mark(&meta, &last.to_le_bytes());
    }

    fn stream_end(&mut self, stream: StreamId, capture_ns: i64) {
        let meta = self.meta(FeedRecord::StreamEnd, stream.0, 0, capture_ns);
        self.mark(&meta, &[]);
        for told in self.streams.iter_mut().filter(|told| told.stream == stream) {
            told.ended = true;
        }
    }

    fn side_state(&mut self, key: &SessionKey, side: Side, live: bool, capture_ns: i64) {
        let stream =
            self.streams.iter().rev().find(|told| told.session == *key).map_or(NO_STREAM, |told| told.stream.0);
        let mut meta = self.meta(FeedRecord::SideState, stream, 0, capture_ns);
        meta.side = side.0;
        meta.flags = if live { FeedMeta::FLAG_LIVE } else { 0 };
        self.mark(&meta, &[]);
    }

    #[inline]
    fn turn(&mut self, now: i64) {
        let Some(ring) = &mut self.ring else { return };
        if std::mem::take(&mut self.unpublished) {
            ring.publish();
            self.beat_at = now + BEAT_EVERY_NS;
        } else if now >= self.beat_at {
            ring.beat();
            self.beat_at = now + BEAT_EVERY_NS;
        }
        if now >= self.clock_at {
            self.clock_epoch = self.clock.look();
            self.clock_at = now + CLOCK_EVERY_NS;
        }
    }

    fn counts(&self) -> PublishCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{BlobConsumer, ConsumerSettings, StartAt};
    use crate::wire::segment::{Protocol, SessionId};

    #[test]
    fn streams_are_told_again_while_they_are_open_and_the_ring_turns() {
        let path = PathBuf::from(format!("/dev/shm/sluice-test-publish-{}", std::process::id()));
        let settings = PublishSettings {
            path: path.clone(),
            capacity: 64,
            arena_bytes: 1 << 17,
            huge_pages: false,
            numa_node: None,
            stamp: StampOrigin::File,
        };
        let mut publisher = FeedPublisher::new(settings);
        publisher.start().expect("a ring");
        let key =
            SessionKey { protocol: Protocol::IexTp, protocol_id: 0x8004, channel: 1, session: SessionId::default() };
        publisher.stream_begin(StreamId(0), &key, 0, 1, 5);
        publisher.stream_begin(StreamId(1), &key, 1, 1, 5);
        publisher.stream_end(StreamId(1), 6);
        for sequence in 1..=1_000_u64 {
            let body = sequence.to_le_bytes();
            publisher.message(&PublishedMessage {
                stream: StreamId(0),
                side: Side::B,
                sequence,
                capture_ns: 7,
                send_ns: None,
                body: &body,
            });
            publisher.turn(sequence as i64);
        }
        let counts = publisher.counts();
        assert_eq!((counts.messages, counts.refused), (1_000, 0));
        assert!(counts.marks >= 3 + 1_000 / 32, "told again every half ring: {counts:?}");
        // Whoever comes now finds the open stream within what the ring holds, and not the ended one.
        let mut late =
            BlobConsumer::<FeedMeta>::open(&path, StartAt::Oldest, &ConsumerSettings::default()).expect("opens");
        let (mut body, mut told) = (Vec::new(), Vec::new());
        while let Some(record) = late.try_recv(&mut body) {
            if record.meta.kind == FeedRecord::StreamBegin as u8 {
                assert_eq!(record.meta.flags, FeedMeta::FLAG_REPEATED);
                told.push((record.meta.stream_index, String::from_utf8(body.clone()).expect("text")));
            }
        }
        assert!(!told.is_empty());
        assert!(told.iter().all(|(stream, text)| *stream == 0 && *text == format!("{key}/r0")), "{told:?}");
        publisher.stream_end(StreamId(0), 8);
        publisher.turn(2_000);
        let end = late.try_recv(&mut body).expect("published").meta;
        assert_eq!((end.kind, end.stream_index, end.sequence, body.len()), (FeedRecord::StreamEnd as u8, 0, 0, 0));
        drop(publisher);
        assert!(!path.exists(), "the ring goes with its producer");
    }
}
