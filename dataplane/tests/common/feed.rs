//! Synthetic feeds: a publisher of IEX-TP segments whose every body tells its own run and sequence, a sink that writes
//! down all that an arbiter gives out, and checks of it that know nothing of how the arbiter works.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sluice::feed::arbiter::{Arbiter, Arrival, Sink};
use sluice::units::{Side, StreamId};
use sluice::wire::segment::{Framing, Protocol, Segment, SegmentKind, SessionId, SessionKey};

/// 2026-01-02 10:00:00 UTC: where synthetic time begins.
pub const EPOCH_NS: i64 = 1_767_348_000_000_000_000;

/// A DEEP session.
pub fn session(id: u32) -> SessionKey {
    SessionKey { protocol: Protocol::IexTp, protocol_id: 0x8004, channel: 1, session: SessionId::from_u32(id) }
}

/// One published segment.
#[derive(Clone, Debug, PartialEq)]
pub struct Packet {
    pub key: SessionKey,
    pub run: u32,
    pub kind: SegmentKind,
    pub first: u64,
    pub count: u32,
    pub offset: Option<u64>,
    pub send_ns: Option<i64>,
    pub framing: Framing,
    pub block: Vec<u8>,
}

impl Packet {
    pub fn segment(&self) -> Segment<'_> {
        Segment {
            session: self.key,
            kind: self.kind,
            first: self.first,
            count: self.count,
            offset: self.offset,
            send_ns: self.send_ns,
            framing: self.framing,
            block: &self.block,
        }
    }

    pub fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    pub fn send(&self) -> i64 {
        self.send_ns.unwrap_or(0)
    }
}

/// The body of one message: type, flags, time, run, sequence, then padding that depends on the sequence (some longer
/// than a window slot).
pub fn body(run: u32, sequence: u64, time_ns: i64) -> Vec<u8> {
    let padding = match sequence % 97 {
        13 => 300,
        14 => 106,
        15 => 107,
        n => (n % 40) as usize,
    };
    let mut body = vec![0x38, 1];
    body.extend_from_slice(&time_ns.to_le_bytes());
    body.extend_from_slice(&run.to_le_bytes());
    body.extend_from_slice(&sequence.to_le_bytes());
    body.extend(std::iter::repeat_n(sequence as u8, padding));
    body
}

/// Publishes one session, run after run.
#[derive(Clone, Debug)]
pub struct Publisher {
    pub key: SessionKey,
    pub run: u32,
    pub next: u64,
    pub offset: u64,
    pub now_ns: i64,
}

impl Publisher {
    pub fn new(id: u32) -> Publisher {
        Publisher { key: session(id), run: 0, next: 1, offset: 0, now_ns: EPOCH_NS }
    }

    /// A segment of `count` messages; a heartbeat for 0.
    pub fn packet(&mut self, count: u32) -> Packet {
        self.now_ns += 10_000;
        let mut block = Vec::new();
        for sequence in self.next..self.next + u64::from(count) {
            let body = body(self.run, sequence, self.now_ns - 500);
            block.extend_from_slice(&(body.len() as u16).to_le_bytes());
            block.extend_from_slice(&body);
        }
        let packet = Packet {
            key: self.key,
            run: self.run,
            kind: if count == 0 { SegmentKind::Heartbeat } else { SegmentKind::Data },
            first: self.next,
            count,
            offset: Some(self.offset),
            send_ns: Some(self.now_ns),
            framing: Framing::U16Le,
            block,
        };
        self.next += u64::from(count);
        self.offset += packet.block.len() as u64;
        packet
    }

    pub fn packets(&mut self, counts: &[u32]) -> Vec<Packet> {
        counts.iter().map(|&count| self.packet(count)).collect()
    }

    /// Passes over `messages` messages of 30 bytes that no one will see.
    pub fn skip(&mut self, messages: u64) {
        self.next += messages;
        self.offset += messages * 32;
    }

    /// Goes back to sequence 1 and offset 0 after `silence_ns`.
    pub fn restart(&mut self, silence_ns: i64) {
        self.run += 1;
        (self.next, self.offset) = (1, 0);
        self.now_ns += silence_ns;
    }
}

/// One thing that an arbiter gave out.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Begin { stream: u32, base: u64 },
    Message { stream: u32, sequence: u64, side: Side, body: Vec<u8>, late_fill: bool },
    Gap { stream: u32, first: u64, last: u64 },
    End { stream: u32 },
    Side { side: Side, live: bool },
}

/// Writes everything down, in order.
#[derive(Default)]
pub struct Recorder {
    pub events: Vec<Event>,
    /// `last` of the arrival in process was told.
    pub last_told: bool,
    /// Calls of `emit_arrival`, for the tests of parts.
    pub parts: Vec<(u64, u64, bool, bool)>,
}

impl Sink for Recorder {
    fn stream_begin(&mut self, stream: StreamId, _: &SessionKey, _: u32, base: u64) {
        self.events.push(Event::Begin { stream: stream.0, base });
    }

    fn emit_arrival(&mut self, stream: StreamId, a: &Arrival<'_>, from: u64, to: u64, last: bool, late_fill: bool) {
        assert!(a.segment.first <= from && from < to && to <= a.segment.first + u64::from(a.segment.count));
        assert!(!self.last_told, "a part after the last one");
        self.last_told = last;
        self.parts.push((from, to, last, late_fill));
        let skip = (from - a.segment.first) as usize;
        for (sequence, body) in (from..to).zip(a.segment.messages().skip(skip)) {
            let (stream, side, body) = (stream.0, a.side, body.to_vec());
            self.events.push(Event::Message { stream, sequence, side, body, late_fill });
        }
    }

    fn emit_held(&mut self, stream: StreamId, sequence: u64, side: Side, _: i64, _: i64, body: &[u8]) {
        let (stream, body) = (stream.0, body.to_vec());
        self.events.push(Event::Message { stream, sequence, side, body, late_fill: false });
    }

    fn emit_late_copy(&mut self, stream: StreamId, sequence: u64, side: Side, _: i64, _: i64, body: &[u8]) {
        let (stream, body) = (stream.0, body.to_vec());
        self.events.push(Event::Message { stream, sequence, side, body, late_fill: true });
    }

    fn gap(&mut self, stream: StreamId, first: u64, last: u64) {
        self.events.push(Event::Gap { stream: stream.0, first, last });
    }

    fn stream_end(&mut self, stream: StreamId) {
        self.events.push(Event::End { stream: stream.0 });
    }

    fn side_state(&mut self, _: &SessionKey, side: Side, live: bool) {
        self.events.push(Event::Side { side, live });
    }
}

/// What a stream's events add up to.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    pub base: u64,
    pub next: u64,
    pub ended: bool,
    pub emitted: u64,
    pub late_filled: u64,
    /// Lost and not filled, one by one; but for the gaps of a million and more, which stand in `huge`.
    pub lost: BTreeSet<u64>,
    pub huge: Vec<(u64, u64)>,
    pub bodies: BTreeMap<u64, Vec<u8>>,
}

impl Recorder {
    /// Gives one segment to an arbiter.
    pub fn give(&mut self, arbiter: &mut Arbiter, side: Side, packet: &Packet, now: i64) {
        self.last_told = false;
        let arrival = Arrival { side, capture_ns: now, segment: packet.segment() };
        arbiter.on_segment(&arrival, now, self);
    }

    /// Replays the events: every stream begins once, then messages and gaps follow one another without a hole or a
    /// step back, late fills lie in declared gaps, nothing follows the end.
    pub fn merged(&self) -> Result<HashMap<u32, Merged>, String> {
        let mut streams: HashMap<u32, Merged> = HashMap::new();
        for event in &self.events {
            apply(&mut streams, event).map_err(|what| format!("{what}: {event:?}"))?;
        }
        Ok(streams)
    }

    /// The sequences emitted in order, of stream `stream`.
    pub fn sequences(&self, stream: u32) -> Vec<u64> {
        let of = |event: &Event| match event {
            Event::Message { stream: s, sequence, late_fill: false, .. } if *s == stream => Some(*sequence),
            _ => None,
        };
        self.events.iter().filter_map(of).collect()
    }
}

fn apply(streams: &mut HashMap<u32, Merged>, event: &Event) -> Result<(), String> {
    let known = |streams: &HashMap<u32, Merged>, stream| match streams.get(stream) {
        None => Err("a stream that has not begun".to_string()),
        Some(merged) if merged.ended => Err("a stream that has ended".to_string()),
        Some(_) => Ok(()),
    };
    match event {
        Event::Begin { stream, base } => {
            let merged = Merged { base: *base, next: *base, ..Merged::default() };
            if streams.insert(*stream, merged).is_some() {
                return Err("begins twice".into());
            }
        }
        Event::Message { stream, sequence, body, late_fill, .. } => {
            known(streams, stream)?;
            let merged = streams.get_mut(stream).expect("known");
            if *late_fill {
                let in_huge = merged.huge.iter().any(|(first, last)| (first..=last).contains(&sequence));
                if !merged.lost.remove(sequence) && (!in_huge || merged.bodies.contains_key(sequence)) {
                    return Err("a late fill outside any gap".into());
                }
                merged.late_filled += 1;
            } else {
                if *sequence != merged.next {
                    return Err(format!("expected {}", merged.next));
                }
                merged.next += 1;
                merged.emitted += 1;
            }
            merged.bodies.insert(*sequence, body.clone());
        }
        Event::Gap { stream, first, last } => {
            known(streams, stream)?;
            let merged = streams.get_mut(stream).expect("known");
            if *first != merged.next || last < first {
                return Err(format!("a gap where {} is next", merged.next));
            }
            if last - first < 1_000_000 {
                merged.lost.extend(*first..=*last);
            } else {
                merged.huge.push((*first, *last));
            }
            merged.next = last + 1;
        }
        Event::End { stream } => {
            known(streams, stream)?;
            streams.get_mut(stream).expect("known").ended = true;
        }
        Event::Side { .. } => {}
    }
    Ok(())
}
