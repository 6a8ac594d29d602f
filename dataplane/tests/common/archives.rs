//! A retention directory at work without a server: ledgers that the tests know, an archive, a hub and a ring.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sluice::ledger::archive::{Archive, ArchivePort, ArchiveSettings, Lost, Opened, StoredFrames};
use sluice::ledger::assemble::{Assembler, Limits};
use sluice::ledger::chunker::{Chunker, Cut};
use sluice::ledger::compress::Packer;
use sluice::ledger::hub::{Hub, Kept, Stored};
use sluice::ledger::keeper::{KeeperSettings, SyncPolicy};
use sluice::ledger::query::Range;
use sluice::ledger::retention::{Bounds, Facts};
use sluice::ledger::synthetic::{self, Shape};
use sluice::sys::clock;
use sluice::sys::uring::CoreRing;
use sluice::wire::ledger::{Begin, Message, decode};
use sluice::wire::websocket::{Event, FrameReader, Sender};

/// Far beyond what any step takes.
pub const LONG: Duration = Duration::from_secs(60);
/// The tag of the archive's first request; the ring has no other.
const TAG: u64 = 7 << 48;

/// The bytes of a ledger: 1 byte to 300 kB, of either shape.
pub fn ledger(sequence: u32) -> Vec<u8> {
    let mut bytes = vec![0; 1 + sequence as usize * 7919 % 300_000];
    let shape = if sequence.is_multiple_of(2) { Shape::Compressible } else { Shape::Noise };
    synthetic::write(sequence, shape, &mut bytes);
    bytes
}

pub fn keeper(ledgers_max: u32) -> KeeperSettings {
    KeeperSettings {
        bounds: Bounds { ledgers_max, bytes_max: None, age_ns_max: None },
        segment_bytes: 1 << 20,
        sync: SyncPolicy::EveryLedger,
        retry_ns: 1_000_000,
    }
}

pub fn settings(directory: &Path, start: u32) -> ArchiveSettings {
    ArchiveSettings {
        directory: directory.join("ledgers"),
        keeper: keeper(1_000),
        source: "synthetic".into(),
        network: [7; 8],
        start,
        reset: false,
    }
}

/// A server without its network: an archive, a hub, a ring.
pub struct Kit {
    ring: CoreRing,
    /// The archive.
    pub archive: Archive,
    /// What is served.
    pub hub: Hub,
    chunker: Chunker,
    packer: Packer,
}

impl Kit {
    /// Opens a directory.
    pub fn open(settings: &ArchiveSettings) -> (Kit, Opened) {
        let (archive, opened) = Archive::open(settings, clock::utc_ns()).expect("opens");
        let mut ring = CoreRing::new(64).expect("a ring");
        ring.enable(&[], 2).expect("enables");
        let chunker = Chunker::new(Cut::new(65_536, None).expect("a cut"));
        let packer = Packer::new(1).expect("zstd");
        (Kit { ring, archive, hub: Hub::new(&opened.stored), chunker, packer }, opened)
    }

    /// Completes a ledger, after a reset where it does not go on.
    pub fn put(&mut self, sequence: u32, bytes: &[u8]) {
        if self.hub.would_reset(sequence) {
            self.archive.reset(None, None, sequence);
        }
        self.hub.begin(&Begin { sequence, emit_start_ns: 5 });
        self.chunker.begin(sequence, Some(bytes.len() as u64)).expect("short enough");
        let mut rest = bytes;
        while !rest.is_empty() {
            if let Some(chunk) = self.chunker.push(&mut rest).expect("as declared") {
                let spare = self.chunker.spare();
                self.hub.chunk(self.packer.pack(chunk, spare));
            }
        }
        let (last, end) = self.chunker.finish(9).expect("whole");
        last.into_iter().for_each(|chunk| self.hub.chunk(chunk.into_message()));
        let replay = self.hub.end(&end);
        let facts = Facts { sequence, raw_bytes: end.bytes, xxh64: end.xxh64, completed_ns: clock::utc_ns() };
        self.archive.offer(facts, replay);
    }

    /// Calls the archive with what it needs.
    pub fn with<T>(&mut self, call: impl FnOnce(&mut Archive, &mut ArchivePort<'_>) -> T) -> T {
        let (now, utc_ns) = (clock::monotonic_ns(), clock::utc_ns());
        let mut port = ArchivePort { ring: &mut self.ring, hub: &mut self.hub, tag: TAG, now, utc_ns };
        call(&mut self.archive, &mut port)
    }

    /// One turn of a core.
    pub fn turn(&mut self) {
        self.with(|archive, port| archive.turn(port));
        self.ring.submit_and_wait(Some(Duration::from_millis(1))).expect("waits");
        while let Some(completion) = self.ring.next_completion() {
            self.with(|archive, port| archive.complete(port, completion.user_data - TAG, completion.result));
        }
    }

    /// Turns until something is so.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Kit) -> bool) {
        let end = clock::monotonic_ns() + LONG.as_nanos() as i64;
        while !done(self) {
            assert!(clock::monotonic_ns() < end, "{what}: {:?}", self.archive.counters());
            self.turn();
        }
    }

    /// Writes all that waits.
    pub fn settle(&mut self) {
        self.until("written and durable", |kit| {
            let latest = kit.hub.bounds().1;
            kit.hub.memory_bytes() == 0 && (latest == 0 || kit.archive.durable() == Some(latest))
        });
    }

    /// Drains.
    pub fn close(mut self) {
        self.archive.drain();
        self.until("drained", |kit| kit.archive.is_drained());
    }

    /// Where a ledger lies.
    pub fn stored(&self, sequence: u32) -> Stored {
        match self.hub.kept(sequence) {
            Some(Kept::Stored(stored)) => *stored,
            other => panic!("ledger {sequence} is in the store: {other:?}"),
        }
    }

    /// Reads frames as a subscriber does.
    pub fn frames(&mut self, stored: Stored, frame: u32) -> Result<Arc<StoredFrames>, Lost> {
        if let Some(answer) = self.with(|archive, port| archive.read(port, stored, frame, 3)) {
            return answer;
        }
        let end = clock::monotonic_ns() + LONG.as_nanos() as i64;
        loop {
            assert!(clock::monotonic_ns() < end, "a read");
            self.turn();
            if let Some((waiter, answer)) = self.archive.next_read() {
                assert_eq!(waiter, 3);
                return answer;
            }
        }
    }

    /// A stored ledger as a subscriber gets it.
    pub fn replay(&mut self, sequence: u32) -> Result<Vec<u8>, Lost> {
        let stored = self.stored(sequence);
        let (mut frame, mut wire) = (0, Vec::new());
        while frame < stored.frames {
            let frames = self.frames(stored, frame)?;
            assert_eq!(frames.first(), frame);
            frame += frames.frames();
            wire.extend_from_slice(&frames);
        }
        assert_eq!((frame, wire.len() as u64), (stored.frames, stored.wire_bytes));
        Ok(unframed(sequence, &wire))
    }
}

/// A ledger out of a server's frames, verified, with stamps of zero.
pub fn unframed(sequence: u32, wire: &[u8]) -> Vec<u8> {
    let mut assembler =
        Assembler::new(Range::new(sequence, None).expect("a range"), Limits::default()).expect("an assembler");
    let mut reader = FrameReader::new(Sender::Server, 9 << 20);
    reader.feed(wire);
    while let Some(event) = reader.next().expect("frames") {
        let Event::Binary(message) = event else { panic!("only messages") };
        if let Message::Begin(begin) = decode(message).expect("a message") {
            assert_eq!(begin.emit_start_ns, 0);
        }
        assembler.push(message).expect("in order");
    }
    assembler.verified().expect("whole").bytes.to_vec()
}
