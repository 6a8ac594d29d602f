//! Several flows of one subscription: which connection has the next message of the ledger, and what of it is to be dropped.
//!
//! Chunk *i* of a ledger comes on flow *i* mod N, BEGIN and END on all. Each flow is a stream in order of its own; a server may begin a ledger again on
//! one of them, and that flow's chunks then come again. So the next chunk is always the next thing on one flow, and a
//! reader that takes only from that one needs no queue: what the others have waits in their sockets.
//!
//! Chunks of two emissions have the same bytes unless the source began anew with other cuts, which shows only in the ledger's length and
//! checksum.

use super::assemble::AssemblyError;
use crate::wire::ledger::{End, Message};

/// The answer's field that offers several flows (the server's extension; a peer's server has none).
pub const FLOWS_FIELD: &str = "Sluice-Flows";
/// Most flows that a client asks for: a flow is worth it only where one is capped by the network (about 5 Gbit/s), and no link
/// that ledgers go over has room for more.
pub const FLOWS_MAX: usize = 16;
/// Longest name of a group of flows: a UUID, and some room.
const ID_BYTES_MAX: usize = 64;

/// What a server offers with [`FLOWS_FIELD`]: `max=M; id=X`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Most flows of one subscription.
    pub max: usize,
    /// The name of this subscription, for its further flows.
    pub id: String,
}

impl Offer {
    /// Reads the field's value; `None` where it is not as it should be.
    pub fn parse(value: &str) -> Option<Offer> {
        let part = |name: &str| {
            let mut pairs = value.split(';').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
        };
        let (max, id) = (part("max")?.parse().ok()?, part("id")?);
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' || byte == b'.';
        let legal = (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(legal);
        (max > 0 && legal).then(|| Offer { max, id: id.into() })
    }
}

/// What becomes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is the ledger's next message.
    Take,
    /// Another flow had it already, or this one before it began again.
    Drop,
    /// As [`Verdict::Drop`]: the flow begins the ledger at hand again.
    Again,
}

/// Where one flow is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Between,
    /// Inside a ledger, after so many of its chunks.
    Inside {
        sequence: u32,
        chunks: u32,
    },
}

/// Puts the messages of several flows into the ledger's order.
#[derive(Debug)]
pub struct Merge {
    flows: Vec<At>,
    /// The ledger at hand.
    open: Option<u32>,
    /// Its chunk that comes next.
    next: u32,
    /// END of the ledger before, whose other ENDs still come.
    ended: Option<End>,
}

impl Merge {
    /// A merge of so many flows. Asserts that there is one.
    pub fn new(flows: usize) -> Merge {
        assert!((1..=FLOWS_MAX).contains(&flows), "a subscription has flows");
        Merge { flows: vec![At::Between; flows], open: None, next: 0, ended: None }
    }

    /// Flows.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// The flow that has the next message.
    pub fn due(&self) -> usize {
        self.next as usize % self.flows.len()
    }

    /// Judges the next message of a flow, which is the one that is due.
    ///
    /// # Errors
    /// A message that has no place in its flow, or that says other things than another flow did.
    pub fn judge(&mut self, flow: usize, message: &Message<'_>) -> Result<Verdict, AssemblyError> {
        assert_eq!(flow, self.due(), "only the flow that is due is read");
        match message {
            Message::Begin(begin) => self.begin(flow, begin.sequence),
            Message::Chunk(header, _) => self.chunk(flow, header.sequence, header.index),
            Message::End(end) => self.end(flow, end),
        }
    }

    fn begin(&mut self, flow: usize, found: u32) -> Result<Verdict, AssemblyError> {
        let again = match self.flows[flow] {
            At::Inside { sequence, .. } if sequence != found => {
                return Err(AssemblyError::OtherBegin { open: sequence, found });
            }
            At::Inside { .. } => true,
            At::Between => false,
        };
        let verdict = match self.open {
            // Of the ledger before: its other flows were faster.
            _ if again && self.open != Some(found) => Verdict::Drop,
            // A flow that no chunk of the last ledgers was on is read only now, and still at one that is complete.
            Some(open) if found < open => Verdict::Drop,
            Some(open) if open != found => return Err(AssemblyError::OtherBegin { open, found }),
            Some(_) if again => Verdict::Again,
            Some(_) => Verdict::Drop,
            None => {
                (self.open, self.next) = (Some(found), 0);
                Verdict::Take
            }
        };
        self.flows[flow] = At::Inside { sequence: found, chunks: 0 };
        Ok(verdict)
    }

    fn chunk(&mut self, flow: usize, found: u32, index: u32) -> Result<Verdict, AssemblyError> {
        let count = self.flows.len() as u64;
        let expected = self.place(flow, "CHUNK", found)?;
        let At::Inside { chunks, .. } = &mut self.flows[flow] else { unreachable!("it has a place inside a ledger") };
        if u64::from(index) != flow as u64 + u64::from(*chunks) * count {
            return Err(AssemblyError::ChunkIndex { sequence: found, expected, found: index });
        }
        *chunks += 1;
        if self.open != Some(found) || index < self.next {
            return Ok(Verdict::Drop);
        }
        self.next = index.saturating_add(1);
        Ok(Verdict::Take)
    }

    fn end(&mut self, flow: usize, end: &End) -> Result<Verdict, AssemblyError> {
        let sequence = end.sequence;
        let received = self.place(flow, "END", sequence)?;
        // A flow that has given all of its chunks would have its next one at or beyond the count.
        if received < end.chunks {
            return Err(AssemblyError::ChunkCount { sequence, stated: end.chunks, received });
        }
        self.flows[flow] = At::Between;
        if self.open == Some(sequence) {
            if self.next != end.chunks {
                return Err(AssemblyError::ChunkCount { sequence, stated: end.chunks, received: self.next });
            }
            (self.open, self.next, self.ended) = (None, 0, Some(*end));
            return Ok(Verdict::Take);
        }
        let facts = |end: &End| (end.sequence, end.chunks, end.bytes, end.xxh64);
        match &self.ended {
            Some(ended) if facts(ended) == facts(end) => Ok(Verdict::Drop),
            // Of one before that: it was verified by what the other flows said.
            Some(ended) if sequence < ended.sequence => Ok(Verdict::Drop),
            _ => Err(AssemblyError::EndsDiffer { sequence }),
        }
    }

    /// The chunk that a flow inside ledger `found` would have next.
    fn place(&self, flow: usize, name: &'static str, found: u32) -> Result<u32, AssemblyError> {
        match self.flows[flow] {
            At::Between => Err(AssemblyError::NotOpen { name, found }),
            At::Inside { sequence, .. } if sequence != found => {
                Err(AssemblyError::OtherLedger { name, open: sequence, found })
            }
            At::Inside { chunks, .. } => {
                let next = flow as u64 + u64::from(chunks) * self.flows.len() as u64;
                Ok(u32::try_from(next).unwrap_or(u32::MAX))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ledger::{Begin, ChunkHeader, Codec};

    fn begin(sequence: u32) -> Message<'static> {
        Message::Begin(Begin { sequence, emit_start_ns: 0 })
    }

    fn chunk(sequence: u32, index: u32) -> Message<'static> {
        Message::Chunk(ChunkHeader { sequence, index, codec: Codec::Raw }, &[])
    }

    fn end(sequence: u32, chunks: u32) -> Message<'static> {
        Message::End(End { sequence, chunks, bytes: 0, emit_end_ns: 0, xxh64: u64::from(sequence) })
    }

    /// Judges messages, each on the flow that must be due.
    fn judge(merge: &mut Merge, messages: &[(usize, Message<'_>, Verdict)]) {
        for (flow, message, verdict) in messages {
            assert_eq!(merge.due(), *flow, "{message:?}");
            assert_eq!(merge.judge(*flow, message), Ok(*verdict), "{message:?}");
        }
    }

    #[test]
    fn a_flow_that_is_behind_by_whole_ledgers_catches_up() {
        use Verdict::{Drop, Take};
        let mut merge = Merge::new(3);
        judge(&mut merge, &[(0, begin(7), Take), (0, chunk(7, 0), Take), (1, begin(7), Drop), (1, end(7, 1), Take)]);
        judge(&mut merge, &[(0, end(7, 1), Drop), (0, begin(8), Take), (0, chunk(8, 0), Take)]);
        judge(&mut merge, &[(1, begin(8), Drop), (1, end(8, 1), Take), (0, end(8, 1), Drop)]);
        // The third flow has its first chunk now, behind two ledgers that it had no part in.
        judge(&mut merge, &[(0, begin(9), Take), (0, chunk(9, 0), Take), (1, begin(9), Drop), (1, chunk(9, 1), Take)]);
        judge(&mut merge, &[(2, begin(7), Drop), (2, end(7, 1), Drop), (2, begin(8), Drop), (2, end(8, 1), Drop)]);
        judge(&mut merge, &[(2, begin(9), Drop), (2, chunk(9, 2), Take), (0, end(9, 3), Take)]);
        assert!(merge.judge(0, &begin(9)).is_ok(), "again, for whom it may concern");
    }

    #[test]
    fn a_flow_that_is_ahead_is_an_error() {
        let mut merge = Merge::new(2);
        judge(&mut merge, &[(0, begin(7), Verdict::Take), (0, chunk(7, 0), Verdict::Take)]);
        assert_eq!(merge.judge(1, &begin(8)), Err(AssemblyError::OtherBegin { open: 7, found: 8 }));
    }

    /// What a server sends on one flow of a ledger.
    fn share(sequence: u32, chunks: u32, flow: u32, flows: u32) -> Vec<Message<'static>> {
        let own = (flow..chunks).step_by(flows as usize).map(|index| chunk(sequence, index));
        std::iter::once(begin(sequence)).chain(own).chain([end(sequence, chunks)]).collect()
    }

    #[test]
    fn offers_are_read() {
        let offer = |max, id: &str| Some(Offer { max, id: id.into() });
        for (value, expected) in [
            ("max=8; id=00ff", offer(8, "00ff")),
            ("id=a-b_c.D;max=1", offer(1, "a-b_c.D")),
            (" max = 2 ; more=x; id = 7 ", offer(2, "7")),
            ("max=0; id=7", None),
            ("max=x; id=7", None),
            ("max=-1; id=7", None),
            ("max=8", None),
            ("id=7", None),
            ("max=8; id=", None),
            ("max=8; id=a b", None),
            ("max=8; id=a&start=3", None),
            ("", None),
        ] {
            assert_eq!(Offer::parse(value), expected, "{value:?}");
        }
        assert_eq!(Offer::parse(&format!("max=2; id={}", "x".repeat(ID_BYTES_MAX + 1))), None);
    }

    /// A small generator, so that a seed replays a run.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % bound
        }
    }

    /// What a reader sees of flows that begin ledgers again at will is each ledger once, in order.
    #[test]
    fn whatever_begins_again_each_ledger_comes_once_in_order() {
        for seed in 0..2_000 {
            let mut random = Random(seed);
            let flows = 1 + random.below(5) as u32;
            let ledgers: Vec<(u32, u32)> = (7..11).map(|sequence| (sequence, random.below(12) as u32)).collect();
            let mut sent: Vec<std::collections::VecDeque<Message<'static>>> = Vec::new();
            for flow in 0..flows {
                let mut all = Vec::new();
                for &(sequence, chunks) in &ledgers {
                    let whole = share(sequence, chunks, flow, flows);
                    // A flow alone is never put in order here; see the client.
                    while flows > 1 && random.below(3) == 0 {
                        all.extend_from_slice(&whole[..1 + random.below(whole.len() - 1)]);
                    }
                    all.extend(whole);
                }
                sent.push(all.into());
            }
            let mut merge = Merge::new(flows as usize);
            let mut taken = Vec::new();
            while let Some(message) = sent[merge.due()].pop_front() {
                let due = merge.due();
                let verdict = merge.judge(due, &message).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                if verdict == Verdict::Take {
                    taken.push(message);
                }
            }
            let expected: Vec<_> = ledgers.iter().flat_map(|&(s, chunks)| share(s, chunks, 0, 1)).collect();
            assert_eq!(taken, expected, "seed {seed}, {flows} flows");
        }
    }

    #[test]
    fn what_has_no_place_in_its_flow_is_told() {
        /// Judges messages in turn; the first error.
        fn first_error(flows: usize, messages: &[Message<'_>]) -> Result<(), AssemblyError> {
            let mut merge = Merge::new(flows);
            messages.iter().try_for_each(|message| merge.judge(merge.due(), message).map(drop))
        }
        let cases = [
            (vec![chunk(1, 0)], AssemblyError::NotOpen { name: "CHUNK", found: 1 }),
            (vec![end(1, 0)], AssemblyError::NotOpen { name: "END", found: 1 }),
            (vec![begin(1), begin(2)], AssemblyError::OtherBegin { open: 1, found: 2 }),
            (vec![begin(1), chunk(1, 0), begin(2)], AssemblyError::OtherBegin { open: 1, found: 2 }),
            (vec![begin(1), chunk(2, 0)], AssemblyError::OtherLedger { name: "CHUNK", open: 1, found: 2 }),
            (vec![begin(1), chunk(1, 1)], AssemblyError::ChunkIndex { sequence: 1, expected: 0, found: 1 }),
            (
                vec![begin(1), chunk(1, 0), begin(1), chunk(1, 2)],
                AssemblyError::ChunkIndex { sequence: 1, expected: 1, found: 2 },
            ),
            (vec![begin(1), end(1, 1)], AssemblyError::ChunkCount { sequence: 1, stated: 1, received: 0 }),
            (
                vec![begin(1), chunk(1, 0), begin(1), end(1, 0)],
                AssemblyError::ChunkCount { sequence: 1, stated: 0, received: 1 },
            ),
        ];
        for (messages, error) in cases {
            assert_eq!(first_error(2, &messages), Err(error), "{messages:?}");
        }
        // Flow 1 ends ledger 1; flow 0 then says that it has other bytes.
        let mut merge = Merge::new(2);
        for message in [begin(1), chunk(1, 0), begin(1), end(1, 1)] {
            merge.judge(merge.due(), &message).expect("legal");
        }
        let other = Message::End(End { sequence: 1, chunks: 1, bytes: 0, emit_end_ns: 0, xxh64: 99 });
        assert_eq!(merge.judge(0, &other), Err(AssemblyError::EndsDiffer { sequence: 1 }));
    }
}
