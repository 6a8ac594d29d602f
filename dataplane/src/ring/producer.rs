//! Writing a ring of fixed records.

use std::marker::PhantomData;
use std::path::Path;
use std::time::Duration;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::error::RingError;
use super::flow::{Blocked, Flow};
use super::raw::RawReader;
use super::view;
use super::writer::{Place, Writer, new_incarnation};
use crate::sync::gate::Barrier;
use crate::sync::slots;
use crate::wire::ring::{Geometry, Shape, Stride, signature};

/// Plain data: every byte of it means something and any bytes are one, so that it may cross processes. (Types derive
/// zerocopy's `FromBytes`, `IntoBytes` and `Immutable` for it, and are aligned to at most 8.)
///
/// Records of 56 or 120 bytes are read fastest: [`fills_lines`] lets the compiler hold a type to that.
pub trait Record: FromBytes + IntoBytes + Immutable + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + 'static> Record for T {}

/// Whether each record of this type fills whole cache lines together with its sequence word (56 or 120 bytes, for example):
/// then no slot lies across two. For a `const` assertion beside a record type:
///
/// ```
/// const _: () = assert!(sluice::ring::fills_lines::<[u64; 7]>(), "a record of 56 bytes takes one line");
/// ```
pub const fn fills_lines<T: Record>() -> bool {
    let line = Stride::LINE_BYTES;
    (slots::SEQUENCE_WORD_BYTES + crate::wire::ring::padded(size_of::<T>())).is_multiple_of(line)
}

const _: () = assert!(fills_lines::<[u64; 7]>() && !fills_lines::<[u64; 8]>() && fills_lines::<[u8; 120]>());

/// What a producer's own thread does after each publication, in the time of the push: a sender of datagrams, for example.
pub trait InlineSender {
    /// Records up to `sequence` are published (one more than before, or a batch).
    fn published(&mut self, sequence: u64);
}

/// Nobody sends: a push ends with the wake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NoSender;

impl InlineSender for NoSender {
    #[inline(always)]
    fn published(&mut self, _sequence: u64) {}
}

/// Entries of the reader registry where a ring has one and nothing else is said: the peer's number.
pub const READERS_DEFAULT: u32 = 32;

/// How a ring is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingSettings {
    /// Slots; a power of two.
    pub capacity: u64,
    /// Whether the producer waits for its slowest registered reader instead of lapping it.
    pub lossless: bool,
    /// Entries of the reader registry. `None`: [`READERS_DEFAULT`] for lossless rings and rings of blobs, else none.
    pub readers_max: Option<u32>,
    /// A lossless producer puts out a reader that makes no progress for this long while it waits for it; `None`: never (a
    /// stopped reader stops the producer).
    pub reader_stall_max: Option<Duration>,
    /// Whether sequences may be missing.
    pub sparse: bool,
    /// How far apart slots lie.
    pub stride: Stride,
    /// Whether the peer's readers must be able to attach; refuses [`Stride::Line`].
    pub interop: bool,
    /// Whether the memory must be huge pages.
    pub huge_pages: bool,
    /// The NUMA node that the memory must come from.
    pub numa_node: Option<u32>,
    /// Whether the producer gives a sign of life with each push (a coarse clock and a store, some ns); an idle one calls
    /// `beat` at least every 50 ms.
    pub heartbeat: bool,
    /// Whether the file stays when the producer ends.
    pub keep: bool,
    /// Permission bits of the file, before the umask.
    pub mode: u32,
}

impl Default for RingSettings {
    fn default() -> Self {
        RingSettings {
            // A few ms of the busiest feeds, some MiB with records of a line.
            capacity: 65_536,
            lossless: false,
            readers_max: None,
            reader_stall_max: None,
            sparse: false,
            stride: Stride::Exact,
            interop: true,
            huge_pages: false,
            numa_node: None,
            heartbeat: false,
            keep: false,
            mode: 0o660,
        }
    }
}

impl RingSettings {
    /// The shape of a ring of `T` (or of blobs with a `T` each).
    pub(super) fn shape<T>(&self, arena_bytes: Option<u64>) -> Result<Shape, RingError> {
        if self.stride == Stride::Line && self.interop {
            return Err(RingError::StrideInterop);
        }
        let readers_default = if self.lossless || arena_bytes.is_some() { READERS_DEFAULT } else { 0 };
        Ok(Shape {
            capacity: self.capacity,
            record_bytes: size_of::<T>(),
            record_align: align_of::<T>(),
            schema_sig: signature::<T>(),
            lossless: self.lossless,
            readers_max: self.readers_max.unwrap_or(readers_default),
            sparse: self.sparse,
            stride: self.stride,
            arena_bytes,
        })
    }

    pub(super) fn create(&self, path: &Path, shape: &Shape) -> Result<Core, RingError> {
        let layout = |source| RingError::Layout { path: path.into(), source };
        let geometry = Geometry::of(shape).map_err(layout)?;
        let header = Writer::header(geometry, new_incarnation()?, self.heartbeat);
        let RingSettings { mode, keep, huge_pages, numa_node, .. } = *self;
        let writer = Writer::create(&Place { path, mode, keep, huge_pages, numa_node }, &header, 1)?;
        let flow = |registry| Flow::new(registry, geometry.capacity, self.reader_stall_max);
        let flow = writer.registry().filter(|_| self.lossless).map(flow);
        let limit = if flow.is_some() { 0 } else { u64::MAX };
        Ok(Core { writer, limit, flow })
    }
}

/// What producers of records and of blobs share.
#[derive(Debug)]
pub(super) struct Core {
    pub writer: Writer,
    /// Sequences below it may be written at once.
    pub limit: u64,
    pub flow: Option<Flow>,
}

impl Core {
    /// Whether the next sequence may be written at once.
    #[inline(always)]
    pub fn is_free(&self) -> bool {
        self.writer.next < self.limit
    }

    /// Looks at the registry; whether the next sequence may be written.
    #[cold]
    #[inline(never)]
    pub fn refresh(&mut self) -> bool {
        let Some(flow) = &mut self.flow else { return true };
        let free = flow.refresh(self.writer.next);
        self.limit = flow.limit;
        free
    }

    /// Waits until the next sequence may be written.
    #[cold]
    #[inline(never)]
    pub fn wait_for_readers(&mut self) {
        if self.refresh() {
            return;
        }
        // Sleeping readers must see all there is, or both would wait.
        self.writer.publish();
        let mut blocked = Blocked::default();
        while !self.refresh() {
            self.pause(&mut blocked);
        }
    }

    pub fn pause(&mut self, blocked: &mut Blocked) {
        if let Some(flow) = &mut self.flow {
            flow.pause(blocked, self.writer.file.as_ref());
        }
        self.writer.beat_if_asked();
    }

    pub fn prune(&mut self) -> u64 {
        match &mut self.flow {
            Some(flow) => flow.prune(self.writer.file.as_ref(), true),
            // Nobody is waited for, but entries are few: a reader that finds none is not listed.
            None => {
                let registry = self.writer.registry();
                registry.map_or(0, |registry| view::prune(self.writer.file.as_ref(), &registry, |_, _| false))
            }
        }
    }
}

/// Writes the records of a ring: the only producer, as long as it lives.
#[derive(Debug)]
pub struct RingProducer<T, S = NoSender> {
    core: Core,
    sender: S,
    record: PhantomData<fn(T)>,
}

impl<T: Record> RingProducer<T> {
    /// Makes a ring at `path`; one left there by a dead producer is replaced (readers keep the old one whole).
    ///
    /// # Errors
    /// Another producer holds the path, the settings have no layout, or the host cannot give the memory.
    pub fn create(path: &Path, settings: &RingSettings) -> Result<RingProducer<T>, RingError> {
        const { assert!(align_of::<T>() <= 8, "a slot's payload is aligned to 8") };
        let core = settings.create(path, &settings.shape::<T>(None)?)?;
        Ok(RingProducer { core, sender: NoSender, record: PhantomData })
    }

    /// The same producer, whose thread calls `sender` after each publication. A push then takes as long as the call.
    pub fn with_sender<S: InlineSender>(self, sender: S) -> RingProducer<T, S> {
        RingProducer { core: self.core, sender, record: PhantomData }
    }
}

impl<T: Record, S: InlineSender> RingProducer<T, S> {
    #[inline(always)]
    fn write(&mut self, record: &T) {
        let writer = &mut self.core.writer;
        slots::write(writer.slot(writer.next), writer.next, record.as_bytes());
        writer.next += 1;
    }

    #[inline(always)]
    fn publish(&mut self) -> u64 {
        let sequence = self.core.writer.next - 1;
        self.core.writer.publish();
        self.sender.published(sequence);
        sequence
    }

    /// Publishes a record; its sequence. A lossless producer waits for its slowest reader first, if need be.
    #[inline(always)]
    pub fn push(&mut self, record: &T) -> u64 {
        if !self.core.is_free() {
            self.core.wait_for_readers();
        }
        self.write(record);
        self.publish()
    }

    /// Publishes a record, unless a lossless producer had to wait for it.
    ///
    /// # Errors
    /// [`RingError::Full`]; nothing was written.
    #[inline]
    pub fn try_push(&mut self, record: &T) -> Result<u64, RingError> {
        if !self.core.is_free() && !self.core.refresh() {
            return Err(RingError::Full);
        }
        self.write(record);
        Ok(self.publish())
    }

    /// Publishes records one after the other, the head once; the sequence of the last (of the last ever, without any).
    #[inline]
    pub fn push_batch(&mut self, records: &[T]) -> u64 {
        for record in records {
            if !self.core.is_free() {
                self.core.wait_for_readers();
            }
            self.write(record);
        }
        if records.is_empty() { self.sequence() } else { self.publish() }
    }

    /// The sequence of the last record; 0 before the first.
    pub fn sequence(&self) -> u64 {
        self.core.writer.next - 1
    }

    /// Gives a sign of life, where the settings ask for it: for producers that are idle, at least every 50 ms.
    pub fn beat(&self) {
        self.core.writer.beat_if_asked();
    }

    /// Frees the registry entries of dead readers now; how many. A lossless producer does it when it has to wait; in other
    /// rings a new reader takes a dead one's entry over.
    pub fn prune_readers(&mut self) -> u64 {
        self.core.prune()
    }

    /// Readers that a lossless producer put out because they made no progress.
    pub fn evicted_readers(&self) -> u64 {
        self.core.flow.as_ref().map_or(0, |flow| flow.evicted)
    }

    /// The ring's layout.
    pub fn geometry(&self) -> &Geometry {
        &self.core.writer.geometry
    }

    /// Which life of the ring this is.
    pub fn incarnation(&self) -> u64 {
        self.core.writer.incarnation
    }

    /// Who orders publication before the look for sleepers: the sleepers, or (where the kernel has no such membarrier) the
    /// producer by a fence at each publication.
    pub fn barrier(&self) -> Barrier {
        self.core.writer.barrier
    }

    /// The inline sender.
    pub fn sender(&mut self) -> &mut S {
        &mut self.sender
    }

    /// Reads the same memory (no file is opened): what an inline sender sends from.
    pub fn reader(&self) -> RawReader {
        RawReader::of(self.core.writer.view())
    }
}
