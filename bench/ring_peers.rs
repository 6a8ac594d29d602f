//! The contenders of the hand-off benchmark behind one seam: what it costs is what each of them costs, all is inlined.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use sluice::ring::{ConsumerSettings, RingConsumer, RingProducer, RingSettings, StartAt};

use crate::pinned::Line;

/// A record of `WORDS` words: word 0 is a stamp or a number, the last word repeats it.
pub type Record<const WORDS: usize> = [u64; WORDS];

/// The end that sends.
pub trait Sender<const WORDS: usize>: Send {
    /// Hands one record over; waits where the contender cannot lose records and is full.
    fn send(&mut self, record: &Record<WORDS>);

    /// Hands all over; the contender's own batch call where it has one.
    fn send_batch(&mut self, records: &[Record<WORDS>]) {
        for record in records {
            self.send(record);
        }
    }
}

/// The end that receives.
pub trait Receiver<const WORDS: usize>: Send {
    /// A record, if one is there.
    fn receive(&mut self) -> Option<Record<WORDS>>;

    /// Takes what is there; how many.
    fn receive_batch(&mut self, into: &mut [Record<WORDS>]) -> usize {
        let mut count = 0;
        while count < into.len() {
            let Some(record) = self.receive() else { break };
            into[count] = record;
            count += 1;
        }
        count
    }
}

/// What hands records from one thread to another.
pub trait Contender<const WORDS: usize> {
    /// As the table and the figures name it.
    const NAME: &'static str;
    /// Has a batch call of its own.
    const BATCH: bool;
    /// Holds more than one record (the floors hold one, so they have no throughput).
    const QUEUE: bool = true;
    type Sender: Sender<WORDS>;
    type Receiver: Receiver<WORDS>;

    /// A fresh one with room for `capacity` records; `folder` is for contenders that live in files.
    fn open(folder: &Path, capacity: usize) -> (Self::Sender, Self::Receiver);
}

/// A file name that no other contender of this process has.
fn ring_path(folder: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    folder.join(format!("ring-{}", COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// What the hardware takes: the record and its sequence in as few cache lines as they fill (56 bytes: one; 64 bytes: two),
/// overwritten in place, each word stored and loaded by itself, only the sequence ordered.
///
/// How long a line takes depends on where in the mesh its home is (140 or 190 ns in one run), so each measurement takes
/// another one, as a ring does with every record.
pub struct Floor;

pub struct FloorEnd {
    lines: Arc<[[Line; 2]]>,
    which: usize,
    sequence: u64,
}

/// Lines to choose from: 1 MiB.
const FLOOR_LINES: usize = 4_096;

/// Word `index` of the record: behind the sequence in the first line, then in the second.
fn word(lines: &[Line; 2], index: usize) -> &AtomicU64 {
    if index < 7 { &lines[0].0[index + 1] } else { &lines[1].0[index - 7] }
}

impl<const WORDS: usize> Contender<WORDS> for Floor {
    const NAME: &'static str = "floor";
    const BATCH: bool = false;
    const QUEUE: bool = false;
    type Sender = FloorEnd;
    type Receiver = FloorEnd;

    fn open(_folder: &Path, _capacity: usize) -> (FloorEnd, FloorEnd) {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let lines: Arc<[[Line; 2]]> = (0..FLOOR_LINES).map(|_| Default::default()).collect();
        // A step that has no factor in common with their number.
        let which = COUNT.fetch_add(1, Ordering::Relaxed) * 1_237 % FLOOR_LINES;
        let end = |lines| FloorEnd { lines, which, sequence: 0 };
        (end(lines.clone()), end(lines))
    }
}

impl<const WORDS: usize> Sender<WORDS> for FloorEnd {
    #[inline(always)]
    fn send(&mut self, record: &Record<WORDS>) {
        self.sequence += 1;
        let lines = &self.lines[self.which];
        for (index, value) in record.iter().enumerate() {
            word(lines, index).store(*value, Ordering::Relaxed);
        }
        // Read by the Acquire in `receive`: the words are there before it.
        lines[0].0[0].store(self.sequence, Ordering::Release);
    }
}

impl<const WORDS: usize> Receiver<WORDS> for FloorEnd {
    #[inline(always)]
    fn receive(&mut self) -> Option<Record<WORDS>> {
        let lines = &self.lines[self.which];
        let sequence = lines[0].0[0].load(Ordering::Acquire);
        if sequence == self.sequence {
            return None;
        }
        // A receiver that was off its CPU misses what was overwritten: the floor holds one record.
        self.sequence = sequence;
        Some(std::array::from_fn(|index| word(lines, index).load(Ordering::Relaxed)))
    }
}

/// The peer's ring, latest wins: a slow reader loses records.
pub struct RingfireLossy;
/// The peer's ring with registered readers that its producer waits for.
pub struct RingfireLossless;

fn ringfire<const WORDS: usize>(
    folder: &Path,
    capacity: usize,
    flow: ringfire::FlowControl,
) -> (ringfire::RingProducer<Record<WORDS>>, ringfire::RingConsumer<Record<WORDS>>) {
    let path = ring_path(folder);
    let builder = ringfire::RingProducerBuilder::new(capacity as u64).flow_control(flow);
    let producer = builder.build(&path).expect("a ring of the peer");
    (producer, ringfire::RingConsumer::attach(&path).expect("a reader of the peer"))
}

macro_rules! contender {
    ($name:ident, $shown:literal, $batch:literal, $sender:ty, $receiver:ty, $open:expr) => {
        impl<const WORDS: usize> Contender<WORDS> for $name {
            const NAME: &'static str = $shown;
            const BATCH: bool = $batch;
            type Sender = $sender;
            type Receiver = $receiver;

            fn open(folder: &Path, capacity: usize) -> (Self::Sender, Self::Receiver) {
                let open: fn(&Path, usize) -> (Self::Sender, Self::Receiver) = $open;
                open(folder, capacity)
            }
        }
    };
}

contender!(
    RingfireLossy,
    "ringfire",
    true,
    ringfire::RingProducer<Record<WORDS>>,
    ringfire::RingConsumer<Record<WORDS>>,
    |folder, capacity| ringfire(folder, capacity, ringfire::FlowControl::LossyLatestWins)
);
contender!(
    RingfireLossless,
    "ringfire-lossless",
    true,
    ringfire::RingProducer<Record<WORDS>>,
    ringfire::RingConsumer<Record<WORDS>>,
    |folder, capacity| ringfire(folder, capacity, ringfire::FlowControl::LosslessBackpressure)
);

impl<const WORDS: usize> Sender<WORDS> for ringfire::RingProducer<Record<WORDS>> {
    #[inline(always)]
    fn send(&mut self, record: &Record<WORDS>) {
        self.push(record);
    }

    #[inline(always)]
    fn send_batch(&mut self, records: &[Record<WORDS>]) {
        self.push_batch(records);
    }
}

impl<const WORDS: usize> Receiver<WORDS> for ringfire::RingConsumer<Record<WORDS>> {
    #[inline(always)]
    fn receive(&mut self) -> Option<Record<WORDS>> {
        self.try_recv()
    }

    #[inline(always)]
    fn receive_batch(&mut self, into: &mut [Record<WORDS>]) -> usize {
        self.recv_batch(into)
    }
}

/// A queue in the process's own memory, one producer and one consumer.
pub struct Rtrb;

contender!(Rtrb, "rtrb", true, rtrb::Producer<Record<WORDS>>, rtrb::Consumer<Record<WORDS>>, |_, capacity| {
    rtrb::RingBuffer::new(capacity)
});

impl<const WORDS: usize> Sender<WORDS> for rtrb::Producer<Record<WORDS>> {
    #[inline(always)]
    fn send(&mut self, record: &Record<WORDS>) {
        while self.push(*record).is_err() {
            std::hint::spin_loop();
        }
    }

    #[inline(always)]
    fn send_batch(&mut self, records: &[Record<WORDS>]) {
        let mut rest = records;
        loop {
            (_, rest) = self.push_partial_slice(rest);
            if rest.is_empty() {
                return;
            }
            std::hint::spin_loop();
        }
    }
}

impl<const WORDS: usize> Receiver<WORDS> for rtrb::Consumer<Record<WORDS>> {
    #[inline(always)]
    fn receive(&mut self) -> Option<Record<WORDS>> {
        self.pop().ok()
    }

    #[inline(always)]
    fn receive_batch(&mut self, into: &mut [Record<WORDS>]) -> usize {
        self.pop_partial_slice(into).0.len()
    }
}

/// A bounded channel, many to many.
pub struct Crossbeam;

contender!(
    Crossbeam,
    "crossbeam",
    false,
    crossbeam_channel::Sender<Record<WORDS>>,
    crossbeam_channel::Receiver<Record<WORDS>>,
    |_, capacity| crossbeam_channel::bounded(capacity)
);

impl<const WORDS: usize> Sender<WORDS> for crossbeam_channel::Sender<Record<WORDS>> {
    #[inline(always)]
    fn send(&mut self, record: &Record<WORDS>) {
        while self.try_send(*record).is_err() {
            std::hint::spin_loop();
        }
    }
}

impl<const WORDS: usize> Receiver<WORDS> for crossbeam_channel::Receiver<Record<WORDS>> {
    #[inline(always)]
    fn receive(&mut self) -> Option<Record<WORDS>> {
        self.try_recv().ok()
    }
}

/// Our ring, latest wins.
pub struct Sluice;
/// Our ring with a registered reader that its producer waits for.
pub struct SluiceLossless;

fn sluice<const WORDS: usize>(
    folder: &Path,
    capacity: usize,
    lossless: bool,
) -> (RingProducer<Record<WORDS>>, RingConsumer<Record<WORDS>>) {
    let path = ring_path(folder);
    let settings = RingSettings { capacity: capacity as u64, lossless, ..RingSettings::default() };
    let producer = RingProducer::create(&path, &settings).expect("a ring");
    (producer, RingConsumer::open(&path, StartAt::Head, &ConsumerSettings::default()).expect("a reader"))
}

contender!(
    Sluice,
    "sluice",
    true,
    RingProducer<Record<WORDS>>,
    RingConsumer<Record<WORDS>>,
    |folder, capacity| sluice(folder, capacity, false)
);
contender!(
    SluiceLossless,
    "sluice-lossless",
    true,
    RingProducer<Record<WORDS>>,
    RingConsumer<Record<WORDS>>,
    |folder, capacity| sluice(folder, capacity, true)
);

impl<const WORDS: usize> Sender<WORDS> for RingProducer<Record<WORDS>> {
    #[inline(always)]
    fn send(&mut self, record: &Record<WORDS>) {
        self.push(record);
    }

    #[inline(always)]
    fn send_batch(&mut self, records: &[Record<WORDS>]) {
        self.push_batch(records);
    }
}

impl<const WORDS: usize> Receiver<WORDS> for RingConsumer<Record<WORDS>> {
    #[inline(always)]
    fn receive(&mut self) -> Option<Record<WORDS>> {
        self.try_recv()
    }

    #[inline(always)]
    fn receive_batch(&mut self, into: &mut [Record<WORDS>]) -> usize {
        self.recv_batch(into)
    }
}
