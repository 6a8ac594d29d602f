//! An encoder: packs the chunks that it is given, in order, a few in a turn, so that a source on the same core goes on being
//! read.

use std::os::fd::RawFd;

use super::compress::Packer;
use super::event::Job;
use super::message::Encoded;
use super::pool::Pool;
use super::source_worker::Emitting;
use super::stats::EncodeCounter;
use crate::runtime::link::{LinkReceiver, LinkSender};
use crate::runtime::worker::{Turn, Worker};
use crate::sync::counters::CounterWriter;
use crate::units::NANOS_PER_MILLI;
use crate::wire::ledger::{CHUNK_HEADER_BYTES, Codec};

/// Bytes packed in one turn: what a source reads in one, so that on a common core neither runs away from the other.
const TURN_BYTES: usize = super::source_worker::TURN_BYTES;

/// How soon an encoder whose link is full looks again: the fan-out does not ring when it takes.
const LOOK_AGAIN_NS: i64 = NANOS_PER_MILLI;

/// What an encode worker is made of.
pub struct EncodeParts {
    /// Its name.
    pub name: String,
    /// Its queue, of [`super::source_worker::ENCODER_QUEUE`].
    pub jobs: LinkReceiver<Job>,
    /// To the fan-out. As long as the order link, so that a fan-out which is behind in the order does not stop it.
    pub out: LinkSender<Encoded>,
    /// Buffers to pack into.
    pub pool: Pool,
    /// The zstd level that it begins with.
    pub level: i32,
    /// Look again and again while a ledger is open, in place of sleeping.
    pub spin_while_open: bool,
    /// Whether one is.
    pub emitting: Emitting,
    /// What it counts.
    pub counters: CounterWriter<EncodeCounter>,
}

/// An encoder.
pub struct EncodeWorker {
    parts: EncodeParts,
    packer: Option<Packer>,
    level: i32,
    /// Packed, but the link was full.
    held: Option<Encoded>,
    look_again_at: i64,
    stopping: bool,
}

impl EncodeWorker {
    /// An encoder that has not begun.
    pub fn new(parts: EncodeParts) -> EncodeWorker {
        EncodeWorker { level: parts.level, parts, packer: None, held: None, look_again_at: 0, stopping: false }
    }

    fn pack(&mut self, job: Job) -> Encoded {
        let packer = self.packer.as_mut().expect("made at the start");
        if job.level != self.level && packer.set_level(job.level).is_ok() {
            self.level = job.level;
        }
        let message = packer.pack(job.chunk, self.parts.pool.take());
        let counters = &mut self.parts.counters;
        counters.add(EncodeCounter::RawBytes, message.raw_bytes() as u64);
        counters.add(EncodeCounter::PackedBytes, message.frame().len() as u64);
        let codec = message.message()[CHUNK_HEADER_BYTES - 1];
        counters.add(EncodeCounter::Unpacked, u64::from(codec == Codec::Raw as u8));
        message
    }

    /// Passes a message on; false when the link is full.
    fn pass(&mut self, message: Encoded, now: i64) -> bool {
        match self.parts.out.push(message) {
            Ok(()) => {
                self.parts.out.flush();
                // Done only now: a chunk that the link does not take still counts as the encoder's load.
                self.parts.counters.add(EncodeCounter::Chunks, 1);
                true
            }
            Err(message) => {
                self.held = Some(message);
                self.look_again_at = now + LOOK_AGAIN_NS;
                false
            }
        }
    }
}

impl Worker for EncodeWorker {
    fn name(&self) -> &str {
        &self.parts.name
    }

    fn stage(&self) -> u8 {
        1
    }

    fn start(&mut self, _turn: &mut Turn<'_>) -> Result<Vec<RawFd>, String> {
        let level = self.level;
        self.packer = Some(Packer::new(level).map_err(|error| format!("zstd at level {level}: {error}"))?);
        Ok(Vec::new())
    }

    fn turn(&mut self, turn: &mut Turn<'_>) -> usize {
        if let Some(message) = self.held.take()
            && !self.pass(message, turn.now)
        {
            return 0;
        }
        let (mut packed, mut bytes) = (0, 0);
        while bytes < TURN_BYTES
            && let Some(job) = self.parts.jobs.pop()
        {
            let message = self.pack(job);
            packed += 1;
            bytes += message.raw_bytes();
            if !self.pass(message, turn.now) {
                self.parts.counters.add(EncodeCounter::Waits, 1);
                break;
            }
        }
        packed
    }

    fn stays_awake(&self) -> bool {
        self.parts.spin_while_open && self.parts.emitting.get()
    }

    fn deadline(&self) -> Option<i64> {
        self.held.as_ref().map(|_| self.look_again_at)
    }

    fn stop(&mut self, _turn: &mut Turn<'_>) {
        self.stopping = true;
    }

    fn drained(&self) -> bool {
        self.stopping && self.held.is_none() && self.parts.jobs.is_empty()
    }
}
