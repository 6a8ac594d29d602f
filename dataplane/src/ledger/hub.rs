//! What a server has to give: the ledger in flight, and the completed ones that are kept, in memory or in the store.
//!
//! One writer (the source's side) publishes, every subscriber's machine reads; nobody waits for anybody. Each message is encoded
//! once and shared. A completed ledger is kept in memory until its write is done ([`Hub::stored`]).

use std::collections::VecDeque;
use std::sync::Arc;

use super::message::Encoded;
use crate::wire::ledger::{Begin, End, SEQUENCE_MAX};

/// Most messages that room is made for when a ledger begins: four times what a ledger of 14.5 MiB has.
const MESSAGES_AHEAD_MAX: usize = 256;

/// Where a ledger's frames lie in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored {
    /// The ledger.
    pub sequence: u32,
    /// Its frames: BEGIN, chunks and END, with stamps of zero.
    pub frames: u32,
    /// Bytes of the frames together.
    pub wire_bytes: u64,
    /// The segment.
    pub segment: u64,
    /// Where its record begins in the segment.
    pub offset: u64,
}

/// A completed ledger's frames in memory, as a replay sends them: stamps of zero.
pub type Replay = Arc<[Arc<Encoded>]>;

/// Where a kept ledger is.
#[derive(Clone, Debug)]
pub enum Kept {
    /// Its write is not done.
    Memory(Replay),
    /// In the store.
    Stored(Stored),
}

/// How a source ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It had no more.
    Ended,
    /// It failed.
    Failed,
}

/// The ledger in flight, or the last one while no other has begun.
#[derive(Debug)]
pub struct Flow {
    sequence: u32,
    /// Rises with each time that a ledger begins, or begins again: places among the messages are of one round.
    round: u64,
    messages: Vec<Arc<Encoded>>,
    ended: bool,
}

impl Flow {
    /// The ledger.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Tells this flow from one before, also where a ledger began again.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Its messages so far.
    pub fn messages(&self) -> &[Arc<Encoded>] {
        &self.messages
    }

    /// Whether END is among them.
    pub fn is_ended(&self) -> bool {
        self.ended
    }
}

/// What there is to give. See the module's head.
#[derive(Default)]
pub struct Hub {
    flow: Option<Flow>,
    rounds: u64,
    /// The round of the flow before, END of it, and END's place among the messages: who misses nothing else gets it with its stamps.
    last_end: Option<(u64, usize, Arc<Encoded>)>,
    /// Completed ledgers, dense and ascending from `oldest`.
    kept: VecDeque<Kept>,
    oldest: u32,
    memory_bytes: u64,
    outcome: Option<Outcome>,
    draining: bool,
    cut: bool,
    counters: HubCounters,
}

/// What a hub counts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct HubCounters {
    /// Live deliveries that were given up because the source had moved on.
    pub live_abandons: u64,
    /// Chunks that went out raw because encoding was behind.
    pub raw_fallbacks: u64,
    /// Ledgers that left retention before they were written: the store was too slow, or failed.
    pub unwritten_dropped: u64,
    /// Times that retention began anew because the source did not go on where it ended.
    pub resets: u64,
    /// Times that an open ledger began again.
    pub restarts: u64,
}

impl Hub {
    /// A hub over what a store holds: dense and ascending. Asserts that it is.
    pub fn new(stored: &[Stored]) -> Hub {
        let dense = stored.windows(2).all(|pair| pair[0].sequence.checked_add(1) == Some(pair[1].sequence));
        assert!(dense, "a store's ledgers are dense and ascending");
        Hub {
            oldest: stored.first().map_or(0, |first| first.sequence),
            kept: stored.iter().map(|&stored| Kept::Stored(stored)).collect(),
            ..Hub::default()
        }
    }

    /// The oldest and the latest kept ledger; 0 and 0 while there is none.
    pub fn bounds(&self) -> (u32, u32) {
        match self.kept.len() {
            0 => (0, 0),
            // Sequences are u32, so there are never more.
            kept => (self.oldest, self.oldest + (kept - 1) as u32),
        }
    }

    /// Whether a ledger that begins now would make retention begin anew.
    pub fn would_reset(&self, sequence: u32) -> bool {
        !self.kept.is_empty() && self.bounds().1.checked_add(1) != Some(sequence)
    }

    /// The source begins a ledger. Where it does not go on after the latest kept one, all that was kept is dropped first;
    /// whether it was. Asserts that none is open, that nothing has finished, and a sequence that can be streamed.
    pub fn begin(&mut self, begin: &Begin) -> bool {
        assert!(self.outcome.is_none(), "the source has finished");
        assert!(self.flow.as_ref().is_none_or(|flow| flow.ended), "a ledger is open");
        assert!((1..=SEQUENCE_MAX).contains(&begin.sequence), "a sequence that can be streamed");
        let reset = self.would_reset(begin.sequence);
        if reset {
            self.reset();
        }
        self.open(begin);
        reset
    }

    /// The open ledger begins again: what came of it is dropped, and whoever was inside gets it from its new BEGIN on. Asserts that
    /// it is open.
    pub fn begin_again(&mut self, begin: &Begin) {
        assert!(self.open_sequence() == Some(begin.sequence), "only the open ledger begins again");
        self.counters.restarts += 1;
        self.open(begin);
    }

    fn open(&mut self, begin: &Begin) {
        self.rounds += 1;
        // A ledger has about as many messages as the one before.
        let mut messages =
            Vec::with_capacity(self.flow.as_ref().map_or(0, |flow| flow.messages.len()).min(MESSAGES_AHEAD_MAX));
        messages.push(Arc::new(Encoded::begin(begin)));
        self.flow = Some(Flow { sequence: begin.sequence, round: self.rounds, messages, ended: false });
    }

    /// What was kept and what is open cannot be joined with what follows: both are dropped, and no subscriber goes on.
    pub fn reset(&mut self) {
        self.kept.clear();
        self.memory_bytes = 0;
        self.last_end = None;
        self.flow = None;
        self.counters.resets += 1;
    }

    /// The ledger that is open.
    pub fn open_sequence(&self) -> Option<u32> {
        self.flow.as_ref().filter(|flow| !flow.ended).map(|flow| flow.sequence)
    }

    /// A chunk of the open ledger. Asserts that there is one.
    pub fn chunk(&mut self, chunk: Encoded) {
        let flow = self.flow.as_mut().filter(|flow| !flow.ended).expect("a ledger is open");
        flow.messages.push(Arc::new(chunk));
    }

    /// The open ledger is complete; it is kept in memory from now on, and this is what a store has to write. Asserts that one is
    /// open and that END is of it.
    pub fn end(&mut self, end: &End) -> Replay {
        let flow = self.flow.as_mut().filter(|flow| !flow.ended).expect("a ledger is open");
        let chunks = flow.messages.len() - 1;
        assert_eq!((flow.sequence, chunks), (end.sequence, end.chunks as usize), "END is of the open ledger");
        let mut replay = Vec::with_capacity(chunks + 2);
        replay.push(Arc::new(Encoded::begin(&Begin { sequence: end.sequence, emit_start_ns: 0 })));
        replay.extend_from_slice(&flow.messages[1..]);
        replay.push(Arc::new(Encoded::end(&End { emit_end_ns: 0, ..*end })));
        let message = Arc::new(Encoded::end(end));
        self.last_end = Some((flow.round, flow.messages.len(), message.clone()));
        flow.messages.push(message);
        flow.ended = true;
        let replay: Replay = replay.into();
        if self.kept.is_empty() {
            self.oldest = end.sequence;
        }
        self.kept.push_back(Kept::Memory(replay.clone()));
        self.memory_bytes += held_bytes(&replay);
        replay
    }

    /// A ledger's write is done: its copy in memory goes. One that left retention meanwhile is passed over.
    pub fn stored(&mut self, stored: Stored) {
        let Some(index) = self.index(stored.sequence) else { return };
        if let Kept::Memory(replay) = &self.kept[index] {
            self.memory_bytes -= held_bytes(replay);
        }
        self.kept[index] = Kept::Stored(stored);
    }

    /// Ledgers before `oldest` leave retention.
    pub fn prune(&mut self, oldest: u32) {
        while self.oldest < oldest
            && let Some(kept) = self.kept.pop_front()
        {
            if let Kept::Memory(replay) = kept {
                self.memory_bytes -= held_bytes(&replay);
                self.counters.unwritten_dropped += 1;
            }
            self.oldest += 1;
        }
    }

    /// Bounds what waits for the store: while it has more than `bytes_max`, the oldest unwritten ledger leaves retention, and
    /// what is older with it. The last one stays: it is the flow's own memory.
    pub fn bound_memory(&mut self, bytes_max: u64) {
        while self.memory_bytes > bytes_max {
            let unwritten = |kept: &Kept| matches!(kept, Kept::Memory(_));
            match self.kept.iter().position(unwritten) {
                Some(index) if index + 1 < self.kept.len() => self.prune(self.oldest + index as u32 + 1),
                _ => return,
            }
        }
    }

    /// Bytes of memory that completed ledgers hold whose write is not done: their buffers and not their frames, which are shorter by as
    /// much as was packed.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// The source has ended; the first outcome stays.
    pub fn finish(&mut self, outcome: Outcome) {
        self.outcome.get_or_insert(outcome);
    }

    /// Subscribers are let go between two ledgers; those that keep up get the one in flight.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// The time to drain is over: subscribers are let go between two messages.
    pub fn cut(&mut self) {
        (self.draining, self.cut) = (true, true);
    }

    /// A kept ledger.
    pub fn kept(&self, sequence: u32) -> Option<&Kept> {
        self.kept.get(self.index(sequence)?)
    }

    /// Changes whenever what was kept was dropped for a source that did not go on with it: no subscriber may be given ledgers
    /// of both.
    pub fn epoch(&self) -> u64 {
        self.counters.resets
    }

    /// The ledger in flight, or the last one.
    pub fn flow(&self) -> Option<&Flow> {
        self.flow.as_ref()
    }

    /// END of the flow before this one, and its place among the messages, where that flow was of this round.
    pub fn missed_end(&self, round: u64) -> Option<(usize, &Arc<Encoded>)> {
        let (of, place, end) = self.last_end.as_ref()?;
        (*of == round).then_some((*place, end))
    }

    /// How the source ended, once it has.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// Whether subscribers are being let go.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether they are let go inside a ledger.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// What was counted.
    pub fn counters(&self) -> HubCounters {
        self.counters
    }

    /// Counts a chunk that went out raw because encoding was behind.
    pub fn count_raw_fallback(&mut self) {
        self.counters.raw_fallbacks += 1;
    }

    /// Counts what subscribers gave up.
    pub fn count_abandons(&mut self, abandons: u64) {
        self.counters.live_abandons += abandons;
    }

    /// The body of `/healthz`: the peer's fields, then ours.
    pub fn health(&self, subscribers: usize, run: &str) -> String {
        let (oldest, latest) = self.bounds();
        let HubCounters { live_abandons, raw_fallbacks, .. } = self.counters;
        // A run is a UUID and hexadecimal digits: nothing to escape.
        format!(
            "{{\"oldest\":{oldest},\"latest\":{latest},\"subscribers\":{subscribers},\"live_abandons\":{live_abandons},\
             \"raw_fallbacks\":{raw_fallbacks},\"run\":\"{run}\"}}\n"
        )
    }

    fn index(&self, sequence: u32) -> Option<usize> {
        let index = sequence.checked_sub(self.oldest)? as usize;
        (index < self.kept.len()).then_some(index)
    }
}

/// Bytes of a ledger's frames.
pub fn wire_bytes(replay: &[Arc<Encoded>]) -> u64 {
    replay.iter().map(|message| message.frame().len() as u64).sum()
}

/// Bytes of memory that a ledger's messages hold.
pub fn held_bytes(replay: &[Arc<Encoded>]) -> u64 {
    replay.iter().map(|message| message.held_bytes() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::message::{HEADROOM, RawChunk};
    use crate::wire::ledger::{Message, decode};

    fn chunk(sequence: u32, index: u32) -> Encoded {
        RawChunk::new(vec![7; HEADROOM + 100], 100, sequence, index).into_message()
    }

    fn end_of(sequence: u32) -> End {
        End { sequence, chunks: 2, bytes: 200, emit_end_ns: 9, xxh64: 1 }
    }

    fn ledger(hub: &mut Hub, sequence: u32) -> bool {
        let reset = hub.begin(&Begin { sequence, emit_start_ns: 8 });
        hub.chunk(chunk(sequence, 0));
        hub.chunk(chunk(sequence, 1));
        hub.end(&end_of(sequence));
        reset
    }

    fn stored(sequence: u32) -> Stored {
        Stored { sequence, frames: 4, wire_bytes: 1, segment: 1, offset: 0 }
    }

    #[test]
    fn a_replay_is_the_flow_without_its_stamps() {
        let mut hub = Hub::default();
        ledger(&mut hub, 5);
        let flow = hub.flow().expect("a flow");
        assert!(flow.is_ended());
        assert_eq!(decode(flow.messages()[0].message()), Ok(Message::Begin(Begin { sequence: 5, emit_start_ns: 8 })));
        let Some(Kept::Memory(replay)) = hub.kept(5) else { panic!("kept in memory") };
        assert_eq!(decode(replay[0].message()), Ok(Message::Begin(Begin { sequence: 5, emit_start_ns: 0 })));
        assert!(Arc::ptr_eq(&replay[1], &flow.messages()[1]), "chunks are shared");
        assert_eq!(decode(replay[3].message()), Ok(Message::End(End { emit_end_ns: 0, ..end_of(5) })));
        assert_eq!(hub.memory_bytes(), held_bytes(replay));
    }

    #[test]
    fn what_is_kept_moves_to_the_store_and_out() {
        let mut hub = Hub::new(&[stored(3), stored(4)]);
        assert_eq!(hub.bounds(), (3, 4));
        assert!(!ledger(&mut hub, 5) && !ledger(&mut hub, 6));
        hub.stored(stored(5));
        assert!(matches!(hub.kept(5), Some(Kept::Stored(_))) && matches!(hub.kept(6), Some(Kept::Memory(_))));
        hub.prune(5);
        assert_eq!((hub.bounds(), hub.counters().unwritten_dropped), ((5, 6), 0));
        hub.stored(stored(6));
        assert_eq!(hub.memory_bytes(), 0);
        hub.stored(stored(3));
        hub.prune(100);
        assert_eq!((hub.bounds(), hub.kept(6).is_none()), ((0, 0), true));
        assert!(!ledger(&mut hub, 7), "nothing is kept, so nothing is reset");
        assert_eq!(hub.bounds(), (7, 7));
    }

    #[test]
    fn a_source_that_does_not_go_on_begins_anew() {
        for next in [2, 4, 6, 100] {
            let mut hub = Hub::new(&[stored(3), stored(4)]);
            assert!(ledger(&mut hub, next), "{next}");
            assert_eq!((hub.bounds(), hub.counters().resets), ((next, next), 1));
        }
        let mut hub = Hub::new(&[stored(SEQUENCE_MAX - 1)]);
        assert!(!ledger(&mut hub, SEQUENCE_MAX));
        assert!(ledger(&mut hub, 1), "after the last sequence there is none to go on with");
    }

    #[test]
    fn what_waits_for_the_store_is_bounded() {
        let mut hub = Hub::new(&[stored(3)]);
        for sequence in 4..=9 {
            ledger(&mut hub, sequence);
        }
        let one = hub.memory_bytes() / 6;
        hub.bound_memory(3 * one);
        assert_eq!((hub.bounds(), hub.memory_bytes(), hub.counters().unwritten_dropped), ((7, 9), 3 * one, 3));
        hub.bound_memory(0);
        assert_eq!((hub.bounds(), hub.memory_bytes()), ((9, 9), one), "the last one stays");
    }

    #[test]
    fn what_waits_is_counted_by_its_buffers() {
        let mut hub = Hub::default();
        for sequence in 1..=3 {
            hub.begin(&Begin { sequence, emit_start_ns: 8 });
            for index in 0..2 {
                // A short frame in the buffer of a long chunk.
                hub.chunk(RawChunk::new(vec![7; 10_000], 100, sequence, index).into_message());
            }
            hub.end(&end_of(sequence));
        }
        assert!((60_000..61_000).contains(&hub.memory_bytes()), "{}", hub.memory_bytes());
        hub.bound_memory(25_000);
        assert_eq!(hub.bounds(), (3, 3));
        hub.stored(stored(3));
        assert_eq!(hub.memory_bytes(), 0);
    }

    #[test]
    fn an_outcome_is_final() {
        let mut hub = Hub::default();
        hub.finish(Outcome::Failed);
        hub.finish(Outcome::Ended);
        assert_eq!(hub.outcome(), Some(Outcome::Failed));
    }

    #[test]
    fn misuse_is_an_assertion() {
        let misused = |misuse: fn(&mut Hub)| {
            let mut hub = Hub::default();
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| misuse(&mut hub))).is_err()
        };
        assert!(misused(|hub| hub.chunk(chunk(1, 0))));
        assert!(misused(|hub| drop(hub.end(&end_of(1)))));
        assert!(misused(|hub| {
            hub.begin(&Begin { sequence: 1, emit_start_ns: 0 });
            hub.begin(&Begin { sequence: 2, emit_start_ns: 0 });
        }));
        assert!(misused(|hub| {
            hub.begin(&Begin { sequence: u32::MAX, emit_start_ns: 0 });
        }));
        assert!(misused(|hub| {
            hub.begin(&Begin { sequence: 1, emit_start_ns: 0 });
            hub.end(&end_of(1));
        }));
        assert!(misused(|hub| {
            hub.finish(Outcome::Ended);
            hub.begin(&Begin { sequence: 1, emit_start_ns: 0 });
        }));
    }

    #[test]
    fn health_has_the_peers_fields_first() {
        let mut hub = Hub::new(&[stored(3), stored(4)]);
        hub.count_raw_fallback();
        hub.count_abandons(2);
        assert_eq!(
            hub.health(7, "x"),
            "{\"oldest\":3,\"latest\":4,\"subscribers\":7,\"live_abandons\":2,\"raw_fallbacks\":1,\"run\":\"x\"}\n"
        );
        assert!(Hub::default().health(0, "").starts_with("{\"oldest\":0,\"latest\":0,"));
    }
}
