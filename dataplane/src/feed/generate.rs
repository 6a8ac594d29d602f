//! A deterministic, spec-true IEX session: the same settings give the same bytes on every machine.
//!
//! A session opens with heartbeats whose first sequence is 1, spins through its directory, trades, and closes; in idle
//! stretches it sends a heartbeat a second. A restart is a silence after which sequence and offset begin anew under the
//! same session id, as a real DEEP capture does it. Only integers decide, so no machine's mathematics library can
//! change a byte.

use core::fmt;
use core::net::Ipv4Addr;
use std::collections::VecDeque;

use rand_pcg::Pcg64Mcg;

use crate::units::{NANOS_PER_MILLI, NANOS_PER_SECOND, SIDES_MAX, Side};
use crate::wire::iextp::{self, Header};
use crate::wire::packet::{UdpHeader, VLAN_NONE};

mod market;

use market::{Body, Market, below};

/// Fewest messages of a run: its opening spin over the fewest symbols and its close (78 in all) leave room to trade.
pub const MESSAGES_PER_RUN_MIN: u64 = 100;
/// Most restarts of a session: the arbiter keeps at most 64 streams of a feed by default, and each run is one.
pub const RESTARTS_MAX: u32 = 63;
/// Bytes of messages in one segment at most: an Ethernet MTU of 1,500 less the IPv4, UDP and segment headers.
const BLOCK_BYTES_MAX: usize = 1_500 - 20 - 8 - iextp::HEADER_BYTES;
/// Silence after which a heartbeat is sent. Real captures: 1.000 to 1.003 s.
const HEARTBEAT_NS: i64 = NANOS_PER_SECOND;
/// How much later than that a heartbeat may come.
const HEARTBEAT_JITTER_NS: u64 = 3 * NANOS_PER_MILLI as u64;
/// Heartbeats before the first message of a run: 5 to 10. Real DEEP: 23 at the start of a day, fewer after a restart.
const OPENING_HEARTBEATS: (u64, u64) = (5, 10);
/// Heartbeats after the last message of a run.
const CLOSING_HEARTBEATS: u64 = 3;
/// Silence before a restart, ns: 30 to 120 s, beyond every liveness limit. Real DEEP: 410 s.
const RESTART_SILENCE_NS: (u64, u64) = (30 * NANOS_PER_SECOND as u64, 120 * NANOS_PER_SECOND as u64);
/// An idle stretch, ns: long enough for one to five heartbeats.
const IDLE_NS: (u64, u64) = (1_500 * NANOS_PER_MILLI as u64, 5_500 * NANOS_PER_MILLI as u64);
/// From a message's event to the segment's send time, ns. Real TOPS: 4 to 60 µs.
const SEND_DELAY_NS: (u64, u64) = (4_000, 60_000);
/// From send time to capture, ns; side B's path is longer by [`SIDE_DELAY_NS`] a side.
const PATH_DELAY_NS: (u64, u64) = (20_000, 45_000);
/// What each further side's path takes longer, ns: below the usual spacing of packets, so that the sides interleave.
const SIDE_DELAY_NS: i64 = 12_000;

/// Which of the exchange's products a session carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Product {
    /// DEEP 1.0: price levels.
    Deep,
    /// TOPS 1.6: best bid and offer.
    Tops,
}

impl Product {
    /// The message protocol id of the segment header.
    pub fn protocol_id(self) -> u16 {
        match self {
            Product::Deep => iextp::DEEP_1_0,
            Product::Tops => iextp::TOPS_1_6,
        }
    }
}

/// Where one side's packets come from and go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Carriage {
    /// Source address; the source MAC is a locally administered one made from it.
    pub source: Ipv4Addr,
    /// Source port.
    pub source_port: u16,
    /// Multicast group, or a unicast address.
    pub group: Ipv4Addr,
    /// Destination port.
    pub port: u16,
}

impl Carriage {
    /// The carriage of `side` where nothing else is said: an administratively scoped group (RFC 2365), so that a
    /// played session cannot be taken for the exchange's own, and a documentation address (RFC 5737) as its source.
    pub fn of(side: Side) -> Carriage {
        let number = side.0 + 1;
        Carriage {
            source: Ipv4Addr::new(198, 51, 100, number),
            source_port: 10_378,
            group: Ipv4Addr::new(239, 192, 0, number),
            port: 10_378,
        }
    }
}

/// What to generate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The product.
    pub product: Product,
    /// Messages in all runs together, exactly.
    pub messages: u64,
    /// Seed of everything that is chosen.
    pub seed: u64,
    /// Packets a second while it trades, in the session's own time.
    pub rate: u64,
    /// Time of the first heartbeat, ns since the Unix epoch.
    pub start_ns: i64,
    /// Session id.
    pub session: u32,
    /// Channel.
    pub channel: u32,
    /// Restarts inside the session.
    pub restarts: u32,
    /// One idle stretch in this many packets on average; 0 for none.
    pub idle_every: u64,
    /// One copy of every segment for each side.
    pub sides: Vec<Carriage>,
}

impl Settings {
    /// A session of `messages` of `product` on side A: 20,000 packets a second from 2024-03-15 13:29:50 UTC, an idle
    /// stretch in 1,000 packets, no restart.
    pub fn new(product: Product, messages: u64, seed: u64) -> Settings {
        Settings {
            product,
            messages,
            seed,
            rate: 20_000,
            start_ns: 1_710_509_390 * NANOS_PER_SECOND,
            session: 0x4b21_0000,
            channel: 1,
            restarts: 0,
            idle_every: 1_000,
            sides: vec![Carriage::of(Side::A)],
        }
    }

    fn check(&self) -> Result<(), GenerateError> {
        let runs = u64::from(self.restarts) + 1;
        if self.restarts > RESTARTS_MAX {
            return Err(GenerateError::Restarts(self.restarts));
        }
        if self.messages / runs < MESSAGES_PER_RUN_MIN {
            return Err(GenerateError::Messages { messages: self.messages, runs, least: runs * MESSAGES_PER_RUN_MIN });
        }
        if self.rate == 0 || self.rate > NANOS_PER_SECOND as u64 {
            return Err(GenerateError::Rate(self.rate));
        }
        if self.sides.is_empty() || self.sides.len() > SIDES_MAX {
            return Err(GenerateError::Sides(self.sides.len()));
        }
        Ok(())
    }
}

/// Settings that make no session.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GenerateError {
    /// Too few messages for the opening and the close of each run.
    #[error("messages = {messages}, but {runs} runs open and close with at least {least}: raise it to {least}")]
    Messages {
        /// What was asked.
        messages: u64,
        /// Restarts + 1.
        runs: u64,
        /// The least that works.
        least: u64,
    },
    /// Too many restarts.
    #[error("restarts = {0}, but a session has at most {RESTARTS_MAX}")]
    Restarts(u32),
    /// No rate, or one beyond the clock.
    #[error("rate = {0} packets a second: it must be from 1 to 1,000,000,000")]
    Rate(u64),
    /// No side or too many.
    #[error("sides = {0}: there are 1 to {SIDES_MAX}")]
    Sides(usize),
}

/// One packet of the session, borrowed from the generator.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The side that carries it.
    pub side: Side,
    /// Capture time, ns since the Unix epoch; never falls within a side.
    pub capture_ns: i64,
    /// Run, from 0.
    pub run: u32,
    /// Sequence of the first message; for a heartbeat the next one.
    pub first: u64,
    /// Messages; 0 for a heartbeat.
    pub count: u16,
    /// The whole Ethernet frame, without FCS.
    pub frame: &'a [u8],
}

/// One packet, owned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnedPacket {
    /// The side that carries it.
    pub side: Side,
    /// Capture time, ns since the Unix epoch.
    pub capture_ns: i64,
    /// The whole Ethernet frame, without FCS.
    pub frame: Vec<u8>,
}

/// What a run does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// So many heartbeats, then the opening's messages.
    Open(u64),
    /// The messages of `script`, packed into full segments; then trade.
    Spin,
    /// Events until only the close is left.
    Trade,
    /// The messages of `script`, then quiet.
    Close,
    /// So many heartbeats, then the next run or the end.
    Quiet(u64),
    Done,
}

/// The generator: an endless machine over its own clock that ends with the session.
pub struct Generator {
    settings: Settings,
    market: Market,
    /// Chooses what is not the market's: times and heartbeats.
    rng: Pcg64Mcg,
    /// Chooses the paths' jitter, apart from the session so that the number of sides does not change it.
    path_rng: Pcg64Mcg,
    step: Step,
    run: u32,
    /// Messages that the current run still has to send, its close included.
    left: u64,
    /// Messages of the current run's close.
    close: u64,
    script: VecDeque<Body>,
    event: Vec<Body>,
    /// Send time of the last segment.
    sent_ns: i64,
    /// Send time of the next event.
    due_ns: i64,
    next: u64,
    offset: u64,
    // The segment being handed out: its copies, and how many were.
    payload: Vec<u8>,
    frame: Vec<u8>,
    first: u64,
    count: u16,
    copies: usize,
    captured_ns: [i64; SIDES_MAX],
    identification: u16,
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generator").field("settings", &self.settings).field("run", &self.run).finish_non_exhaustive()
    }
}

impl Generator {
    /// A generator at the session's start.
    pub fn new(settings: Settings) -> Result<Generator, GenerateError> {
        settings.check()?;
        let seed = u128::from(settings.seed);
        // A multiplicative generator needs its state's bits spread; the multiplier is that of splitmix64.
        let spread =
            |salt: u128| Pcg64Mcg::new((seed << 64 | seed ^ salt).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ salt << 64);
        let per_run = settings.messages / (u64::from(settings.restarts) + 1);
        let mut generator = Generator {
            market: Market::new(settings.product, per_run, spread(0x6d61_726b_6574)),
            rng: spread(0x7469_6d65),
            path_rng: spread(0x7061_7468),
            step: Step::Done,
            run: 0,
            left: 0,
            close: 0,
            script: VecDeque::new(),
            event: Vec::new(),
            sent_ns: settings.start_ns - HEARTBEAT_NS,
            due_ns: 0,
            next: 1,
            offset: 0,
            payload: Vec::with_capacity(iextp::HEADER_BYTES + BLOCK_BYTES_MAX),
            frame: Vec::with_capacity(1_514),
            first: 1,
            count: 0,
            copies: 0,
            captured_ns: [i64::MIN; SIDES_MAX],
            identification: 0,
            settings,
        };
        generator.copies = generator.settings.sides.len();
        generator.begin_run();
        Ok(generator)
    }

    /// The next packet; `None` after the session's last.
    pub fn next_packet(&mut self) -> Option<Packet<'_>> {
        if self.copies == self.settings.sides.len() {
            if !self.segment() {
                return None;
            }
            self.copies = 0;
        }
        let side = Side(self.copies as u8);
        self.copies += 1;
        let capture_ns = self.capture_time(side);
        let carriage = self.settings.sides[side.index()];
        let [a, b, c, d] = carriage.source.octets();
        let header = UdpHeader {
            src_mac: [0x02, 0, a, b, c, d],
            vlan: VLAN_NONE,
            src: carriage.source,
            dst: carriage.group,
            src_port: carriage.source_port,
            dst_port: carriage.port,
            identification: self.identification,
        };
        self.frame.clear();
        header.write_frame(&self.payload, &mut self.frame);
        Some(Packet { side, capture_ns, run: self.run, first: self.first, count: self.count, frame: &self.frame })
    }

    fn capture_time(&mut self, side: Side) -> i64 {
        let delay = between(&mut self.path_rng, PATH_DELAY_NS) as i64 + SIDE_DELAY_NS * i64::from(side.0);
        let captured = &mut self.captured_ns[side.index()];
        *captured = (self.sent_ns + delay).max(*captured);
        *captured
    }

    /// Builds the next segment into `payload`; `false` at the session's end.
    fn segment(&mut self) -> bool {
        loop {
            match self.step {
                Step::Open(0) => self.step = Step::Spin,
                Step::Open(left) => {
                    self.step = Step::Open(left - 1);
                    self.heartbeat();
                    return true;
                }
                Step::Spin if self.script.is_empty() => {
                    self.step = Step::Trade;
                    self.schedule();
                }
                Step::Close if self.script.is_empty() => self.step = Step::Quiet(CLOSING_HEARTBEATS),
                Step::Spin | Step::Close => {
                    self.scripted();
                    return true;
                }
                Step::Trade if self.left == self.close => self.end_trading(),
                Step::Trade => {
                    match self.due_ns - self.sent_ns > HEARTBEAT_NS + HEARTBEAT_JITTER_NS as i64 {
                        true => self.heartbeat(),
                        false => self.trade(),
                    }
                    return true;
                }
                Step::Quiet(0) => self.end_run(),
                Step::Quiet(left) => {
                    self.step = Step::Quiet(left - 1);
                    self.heartbeat();
                    return true;
                }
                Step::Done => return false,
            }
        }
    }

    fn begin_run(&mut self) {
        let runs = u64::from(self.settings.restarts) + 1;
        let extra = u64::from(u64::from(self.run) < self.settings.messages % runs);
        self.left = self.settings.messages / runs + extra;
        self.step = Step::Open(between(&mut self.rng, OPENING_HEARTBEATS));
        (self.next, self.offset) = (1, 0);
        self.event.clear();
        self.market.open(self.sent_ns + HEARTBEAT_NS, &mut self.event);
        self.script.extend(self.event.drain(..));
        let last = self.run == self.settings.restarts;
        self.close = if last { self.market.close_messages() } else { 0 };
        assert!(self.script.len() as u64 + self.close < MESSAGES_PER_RUN_MIN.max(self.left), "a run too short to open");
    }

    fn end_trading(&mut self) {
        self.step = Step::Close;
        if self.close > 0 {
            self.event.clear();
            self.market.close(self.sent_ns, &mut self.event);
            assert!(self.event.len() as u64 == self.close, "the close has the messages that were kept for it");
            self.script.extend(self.event.drain(..));
        }
    }

    fn end_run(&mut self) {
        if self.run == self.settings.restarts {
            self.step = Step::Done;
            return;
        }
        self.run += 1;
        self.sent_ns += between(&mut self.rng, RESTART_SILENCE_NS) as i64;
        self.begin_run();
    }

    fn heartbeat(&mut self) {
        self.sent_ns += HEARTBEAT_NS + below(&mut self.rng, HEARTBEAT_JITTER_NS) as i64;
        self.payload.clear();
        self.finish(0);
    }

    /// As many messages of the script as fit one segment; the spin runs at line rate.
    fn scripted(&mut self) {
        let event_ns = self.sent_ns + spacing(&mut self.rng, NANOS_PER_SECOND as u64 / self.settings.rate) as i64;
        self.begin(event_ns);
        let mut count = 0;
        while let Some(body) = self.script.front() {
            if self.payload.len() + 2 + body.bytes().len() > iextp::HEADER_BYTES + BLOCK_BYTES_MAX {
                break;
            }
            let mut body = *body;
            body.stamp(event_ns);
            iextp::write_message(body.bytes(), &mut self.payload);
            self.script.pop_front();
            count += 1;
        }
        self.finish(count);
    }

    /// One market event in one segment.
    fn trade(&mut self) {
        self.begin(self.due_ns);
        self.event.clear();
        self.market.event(self.due_ns, self.left - self.close, &mut self.event);
        for body in &self.event {
            iextp::write_message(body.bytes(), &mut self.payload);
        }
        self.finish(self.event.len() as u16);
        self.schedule();
    }

    /// Room for the header, and the send time of a segment whose event was at `event_ns`.
    fn begin(&mut self, event_ns: i64) {
        self.payload.clear();
        self.payload.resize(iextp::HEADER_BYTES, 0);
        let sent_ns = event_ns + between(&mut self.rng, SEND_DELAY_NS) as i64;
        self.sent_ns = sent_ns.max(self.sent_ns + 1);
    }

    /// Writes the header of the segment whose `count` messages stand in `payload`.
    fn finish(&mut self, count: u16) {
        self.payload.resize(self.payload.len().max(iextp::HEADER_BYTES), 0);
        let block_bytes = self.payload.len() - iextp::HEADER_BYTES;
        let header = Header {
            version: iextp::VERSION,
            reserved: 0,
            protocol_id: self.settings.product.protocol_id(),
            channel: self.settings.channel,
            session: self.settings.session,
            payload_length: block_bytes as u16,
            count,
            offset: self.offset,
            first: self.next,
            send_ns: self.sent_ns,
        };
        self.payload[..iextp::HEADER_BYTES].copy_from_slice(&header.encode());
        (self.first, self.count) = (self.next, count);
        self.next += u64::from(count);
        self.offset += block_bytes as u64;
        self.left -= u64::from(count);
        self.identification = self.identification.wrapping_add(1);
    }

    /// When the next event comes: the usual spacing, or after an idle stretch.
    fn schedule(&mut self) {
        let mean = NANOS_PER_SECOND as u64 / self.settings.rate;
        let every = self.settings.idle_every;
        let idle = every > 0 && below(&mut self.rng, every) == 0;
        let pause = if idle { between(&mut self.rng, IDLE_NS) } else { spacing(&mut self.rng, mean) };
        self.due_ns = self.sent_ns + pause as i64;
    }
}

impl Iterator for Generator {
    type Item = OwnedPacket;

    fn next(&mut self) -> Option<OwnedPacket> {
        let packet = self.next_packet()?;
        Some(OwnedPacket { side: packet.side, capture_ns: packet.capture_ns, frame: packet.frame.to_vec() })
    }
}

/// A number from `low` to `high`.
fn between(rng: &mut Pcg64Mcg, (low, high): (u64, u64)) -> u64 {
    low + below(rng, high - low + 1)
}

/// A bursty spacing with this mean: seven of ten come within half of it, three are spread over 5.5 times it
/// (0.7 × 0.25 + 0.3 × 2.75 = 1).
fn spacing(rng: &mut Pcg64Mcg, mean: u64) -> u64 {
    match below(rng, 10) {
        0..7 => below(rng, mean / 2 + 1),
        _ => below(rng, mean * 11 / 2 + 1),
    }
}

#[cfg(test)]
mod tests;
