//! A subscriber as a pure machine: bytes of a connection go in, verified ledgers come out, and after a connection is lost the
//! next one goes on after the last verified ledger, exactly once.
//!
//! The machine outlives its connections: [`Client::connect`] begins each. It reads no clock and opens no socket;
//! `ledger::follow` is a front that does.

use super::assemble::{Assembler, AssemblyError, Ledger, Limits, StreamError};
use super::line::{Came, Line, State};
use super::merge::{FLOWS_MAX, Merge, Verdict};
use super::query::Range;
use super::url::Url;
use crate::wire::http::{HeadError, UpgradeError};
use crate::wire::ledger::{Message, close, decode};
use crate::wire::websocket::FrameError;

/// The answer's field that names the run (the server's extension; a peer's server has none).
pub const RUN_FIELD: &str = "Sluice-Run";

/// Random bytes that a connection needs: 16 for its key, 8 that its masks are drawn from.
pub type Nonce = [u8; 24];

/// Why a stream ended, other than by being complete.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClientError {
    /// A message that does not belong where it came, or a gap.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A frame that breaks WebSocket's rules, or a message over the limit.
    #[error("protocol: {0}")]
    Frame(#[from] FrameError),
    /// The answer to the request is no HTTP.
    #[error("handshake: {0}")]
    Head(#[from] HeadError),
    /// The answer does not upgrade as it should.
    #[error("handshake: {0}")]
    Upgrade(#[from] UpgradeError),
    /// The answer offers flows in a way that cannot be read.
    #[error("handshake: Sluice-Flows: {value:?}: max=<flows>; id=<name> is understood")]
    Offer {
        /// The field's value.
        value: String,
    },
    /// Flows of one ledger that do not fit together although each was legal. They may be of two emissions, with other chunks: the next
    /// connection is one alone, and judges.
    #[error("the flows of ledger {sequence} do not fit together: {error}")]
    Mixed {
        /// The ledger.
        sequence: u32,
        /// What does not fit.
        error: AssemblyError,
    },
    /// The server refused the request.
    #[error("the server refused: status {status}: {text}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The first line of its text.
        text: String,
    },
    /// An orderly close before all that was asked for.
    #[error("truncated: {0}")]
    Truncated(Truncated),
    /// The next ledger is older than what the server retains.
    #[error("too far behind: ledger {requested} was requested, {}", Bounds(*bounds))]
    TooFarBehind {
        /// The ledger that was wanted.
        requested: u32,
        /// Oldest and latest retained ledger; `None` where the server's reason does not say.
        bounds: Option<(u32, u32)>,
    },
    /// The server that answers now streams another run than the one before.
    #[error("the run changed: it was {before:?}, the server now has {now:?}; ledgers of two runs must not be joined")]
    RunChanged {
        /// The run of the ledgers so far; `None`: the server gave none.
        before: Option<String>,
        /// The run that the server states now.
        now: Option<String>,
    },
    /// One connection of a subscription was left behind by the others, or by a server that began anew between two of them: all of
    /// them begin anew.
    #[error("the flows of the subscription came apart")]
    FlowsApart,
    /// Closed for another reason.
    #[error("the server closed: code {}: {reason:?}", code.map_or("none".into(), |code| code.to_string()))]
    Closed {
        /// The close code; `None` where none was given.
        code: Option<u16>,
        /// The reason.
        reason: String,
    },
    /// The connection ended without a close.
    #[error("the connection ended without a close{}", Inside(*inside))]
    Disconnected {
        /// The ledger at hand.
        inside: Option<u32>,
    },
}

/// What is missing after an orderly close.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Truncated {
    /// The range's end.
    #[error("got through ledger {last}, requested through {end}")]
    Short {
        /// The last ledger that was verified.
        last: u32,
        /// The range's end.
        end: u32,
    },
    /// Everything.
    #[error("received no ledgers, requested [{start},{end}]")]
    Nothing {
        /// The range's start.
        start: u32,
        /// The range's end.
        end: u32,
    },
    /// The rest of a ledger.
    #[error("stream closed mid-assembly of ledger {sequence}")]
    Inside {
        /// The ledger.
        sequence: u32,
    },
}

struct Bounds(Option<(u32, u32)>);

impl std::fmt::Display for Bounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some((oldest, latest)) => write!(f, "the server retains {oldest} to {latest}"),
            None => f.write_str("the server does not say what it retains"),
        }
    }
}

struct Inside(Option<u32>);

impl std::fmt::Display for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |sequence| write!(f, ", inside ledger {sequence}"))
    }
}

impl ClientError {
    /// Whether another connection may go on where this one ended. What breaks the protocol, what is missing after an orderly
    /// end, another run, and a request that the server will refuse again, are final.
    pub fn is_retryable(&self) -> bool {
        match self {
            ClientError::Disconnected { .. } | ClientError::Mixed { .. } | ClientError::FlowsApart => true,
            ClientError::Closed { code, .. } => *code != Some(close::NORMAL),
            // 409: the group that a further flow belongs to is not known any more.
            ClientError::Refused { status, .. } => *status >= 500 || matches!(*status, 409 | 429),
            _ => false,
        }
    }
}

/// What a connection came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polled<'a> {
    /// A verified ledger.
    Ledger(Ledger<'a>),
    /// More bytes are needed.
    Wait,
    /// Nothing more comes, and nothing is missing: send what [`Client::output`] holds and end the connection.
    Done,
}

/// As [`Polled`], without the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advanced {
    /// A message that completed no ledger ([`Client::message`] only).
    Message,
    /// A verified ledger: [`Client::ledger`].
    Ledger,
    /// More bytes are needed.
    Wait,
    /// Nothing more comes, and nothing is missing.
    Done,
}

/// The machine.
pub struct Client {
    assembler: Assembler,
    limits: Limits,
    /// The connections; the first one always exists.
    lines: Vec<Line>,
    merge: Merge,
    /// Most flows that are asked for.
    flows_max: usize,
    /// The first ledger that the lines were asked for; `None` at the tip until it begins.
    first: Option<u32>,
    /// Most flows of this connection: [`Client::flows_max`], or 1 after flows that did not fit together.
    flows_now: usize,
    /// The flows of the connection before did not fit together.
    mixed: bool,
    /// The run of the connection before, once a ledger of it was verified.
    run: Option<Option<String>>,
    run_now: Option<String>,
}

impl Client {
    /// A subscriber of a range, over one connection.
    ///
    /// # Errors
    /// As zstd: no memory.
    pub fn new(range: Range, limits: Limits) -> std::io::Result<Client> {
        Client::with_flows(range, limits, 1)
    }

    /// A subscriber of a range, over as many connections as the server offers, and at most `flows` (at least 1, at most
    /// [`FLOWS_MAX`]). [`Client::lines`] says how many there should be.
    ///
    /// # Errors
    /// As zstd: no memory.
    pub fn with_flows(range: Range, limits: Limits, flows: usize) -> std::io::Result<Client> {
        Ok(Client {
            assembler: Assembler::new(range, limits)?,
            limits,
            lines: vec![Line::new(limits.chunk_bytes_max)],
            merge: Merge::new(1),
            flows_max: flows.clamp(1, FLOWS_MAX),
            flows_now: 1,
            mixed: false,
            first: None,
            run: None,
            run_now: None,
        })
    }

    /// A connection is there: the request that asks for the rest of the range becomes its first output. `authorization` is the
    /// value of that field. Asserts that something is still wanted. Connections of before are over with it.
    pub fn connect(&mut self, url: &Url, authorization: Option<&str>, nonce: Nonce) {
        self.assembler.cut();
        self.lines.iter_mut().for_each(|line| _ = line.disconnected());
        self.merge = Merge::new(1);
        self.flows_now = if std::mem::take(&mut self.mixed) { 1 } else { self.flows_max };
        let rest = self.assembler.rest();
        self.first = (!rest.is_tip()).then_some(rest.start());
        let mut target = url.target(&rest);
        // A stranger's `id` would be taken for that of a subscription.
        if self.flows_now > 1 && !url.has_parameter("id") {
            target = target.replacen('?', &format!("?flows={}&", self.flows_now), 1);
        }
        self.lines[0].connect(url, &target, authorization, nonce);
    }

    /// How many connections there should be: 1 until the first one is answered and knows where it begins, then as many as the
    /// server agreed to. Those beyond the first are begun with [`Client::connect_flow`].
    pub fn lines(&self) -> usize {
        if self.first.is_some() && !self.is_complete() { self.flows() } else { 1 }
    }

    /// Flows of the connection that stands.
    fn flows(&self) -> usize {
        let offer = self.lines[0].offer().filter(|_| self.lines[0].is_streaming());
        offer.map_or(1, |offer| offer.max.min(self.flows_now))
    }

    /// The connection for a further flow is there, from 1 to [`Client::lines`] − 1 (asserted).
    pub fn connect_flow(&mut self, flow: usize, url: &Url, authorization: Option<&str>, nonce: Nonce) {
        let flows = self.flows();
        assert!((1..self.lines()).contains(&flow), "flow {flow} of {flows}");
        let (Some(first), Some(offer)) = (self.first, self.lines[0].offer()) else {
            unreachable!("a further flow is asked for only when the first one says what it is part of")
        };
        // What the first one alone has completed meanwhile is not asked for again.
        let first = self.last().map_or(first, |last| first.max(last + 1));
        let rest = Range::new(first, self.assembler.range().end()).expect("the first of the lines has this range");
        let ours = format!("?flow={flow}&flows={flows}&id={}&", offer.id);
        let target = url.target(&rest).replacen('?', &ours, 1);
        while self.lines.len() <= flow {
            self.lines.push(Line::new(self.limits.chunk_bytes_max));
        }
        self.lines[flow].connect(url, &target, authorization, nonce);
    }

    /// One of the connections. Asserts that it was begun.
    pub fn line(&mut self, flow: usize) -> &mut Line {
        &mut self.lines[flow]
    }

    /// The connection whose bytes are needed next; the others can wait.
    pub fn due(&self) -> usize {
        self.merge.due()
    }

    /// Bytes to send on the only connection; told with [`Client::sent`].
    pub fn output(&self) -> &[u8] {
        self.lines[0].output()
    }

    /// The first `bytes` of [`Client::output`] were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.lines[0].sent(bytes);
    }

    /// Room to read from the only connection into, never empty.
    pub fn space(&mut self) -> &mut [u8] {
        self.lines[0].space()
    }

    /// The first `bytes` of [`Client::space`] were read.
    pub fn filled(&mut self, bytes: usize) {
        self.lines[0].filled(bytes);
    }

    /// Takes bytes that were read elsewhere.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.lines[0].feed(bytes);
    }

    /// The range that was asked for at first.
    pub fn range(&self) -> Range {
        self.assembler.range()
    }

    /// The last ledger that was verified.
    pub fn last(&self) -> Option<u32> {
        self.assembler.last()
    }

    /// The ledger at hand.
    pub fn open(&self) -> Option<u32> {
        self.assembler.open()
    }

    /// Whether all that was asked for was verified.
    pub fn is_complete(&self) -> bool {
        self.assembler.is_complete()
    }

    /// What the server says of its run; a peer's server says nothing.
    pub fn run(&self) -> Option<&str> {
        self.run_now.as_deref()
    }

    /// Whether the first connection's upgrade is done.
    pub fn is_streaming(&self) -> bool {
        self.lines[0].is_streaming()
    }

    /// The next ledger of what was read. Poll until it says [`Polled::Wait`] before reading more.
    ///
    /// # Errors
    /// See [`ClientError`]: the connection is at its end; send [`Client::output`] (a close, where one is due) and end it.
    pub fn poll(&mut self) -> Result<Polled<'_>, ClientError> {
        Ok(match self.advance()? {
            Advanced::Ledger => Polled::Ledger(self.ledger().expect("a ledger was just completed")),
            Advanced::Message | Advanced::Wait => Polled::Wait,
            Advanced::Done => Polled::Done,
        })
    }

    /// As [`Client::poll`], without lending: [`Client::ledger`] does.
    ///
    /// # Errors
    /// As [`Client::poll`].
    pub fn advance(&mut self) -> Result<Advanced, ClientError> {
        loop {
            match self.message(&mut |_| ())? {
                Advanced::Message => {}
                other => return Ok(other),
            }
        }
    }

    /// Takes at most one message, and gives it to `tap` when it has its place: see [`Assembler::push_decoded`].
    ///
    /// # Errors
    /// As [`Client::poll`].
    pub fn message(&mut self, tap: &mut impl FnMut(&Message<'_>)) -> Result<Advanced, ClientError> {
        self.answered()?;
        if self.assembler.is_complete() && self.is_streaming() {
            self.close(close::NORMAL, close::RANGE_COMPLETE);
        }
        match self.lines[0].state() {
            State::Done => Ok(Advanced::Done),
            State::Idle | State::Answer | State::Refused(..) => Ok(Advanced::Wait),
            State::Streaming => self.step(tap),
        }
    }

    /// Reads no further than the answers to the requests; a ledger never comes of it.
    ///
    /// # Errors
    /// As [`Client::poll`].
    pub fn answered(&mut self) -> Result<Advanced, ClientError> {
        for flow in 0..self.lines.len() {
            let line = &mut self.lines[flow];
            if line.is_streaming() || !line.is_open() {
                continue;
            }
            line.answered()?;
            if line.is_streaming() {
                self.judge_run(flow)?;
            }
        }
        Ok(Advanced::Wait)
    }

    /// A connection was answered: its run must be that of the ledgers so far, and of the other connections.
    fn judge_run(&mut self, flow: usize) -> Result<(), ClientError> {
        let now = self.lines[flow].run().map(String::from);
        let before = self.run.clone();
        if flow > 0 && now != self.run_now && before.as_ref().is_none_or(|before| *before == now) {
            // Nothing of the other run was given out: another connection decides which it is.
            self.lines[flow].close(close::NORMAL, close::CONSUMER_DONE);
            return Err(ClientError::FlowsApart);
        }
        if flow == 0 {
            self.run_now.clone_from(&now);
            self.merge = Merge::new(self.flows());
        }
        match before {
            Some(before) if before != now => {
                self.lines[flow].close(close::NORMAL, close::CONSUMER_DONE);
                Err(ClientError::RunChanged { before, now })
            }
            _ => Ok(()),
        }
    }

    /// The ledger that was completed last, until more is read.
    pub fn ledger(&self) -> Option<Ledger<'_>> {
        self.assembler.verified()
    }

    /// Gives the buffer of that ledger away: see [`Assembler::exchange`].
    pub fn exchange(&mut self, other: Vec<u8>) -> Vec<u8> {
        self.assembler.exchange(other)
    }

    /// The only connection ended. `Ok`: nothing is missing.
    ///
    /// # Errors
    /// [`ClientError::Disconnected`], or the refusal whose text ended so.
    pub fn disconnected(&mut self) -> Result<(), ClientError> {
        self.flow_disconnected(0)
    }

    /// One of the connections ended. `Ok`: nothing is missing. Otherwise all are to be ended.
    ///
    /// # Errors
    /// As [`Client::disconnected`].
    pub fn flow_disconnected(&mut self, flow: usize) -> Result<(), ClientError> {
        let (state, refusal) = self.lines[flow].disconnected();
        let inside = self.assembler.open();
        self.assembler.cut();
        match (state, refusal) {
            (State::Done, _) => Ok(()),
            (_, Some(refusal)) => Err(refusal),
            _ => Err(ClientError::Disconnected { inside }),
        }
    }

    /// Nobody wants more: a close becomes the last output.
    pub fn stop(&mut self) {
        self.close(close::NORMAL, close::CONSUMER_DONE);
    }

    fn close(&mut self, code: u16, reason: &str) {
        self.lines.iter_mut().filter(|line| line.state() != State::Idle).for_each(|line| line.close(code, reason));
        if self.lines[0].state() == State::Idle {
            self.lines[0].close(code, reason);
        }
    }

    /// Handles frames up to a message.
    fn step(&mut self, tap: &mut impl FnMut(&Message<'_>)) -> Result<Advanced, ClientError> {
        loop {
            let due = self.merge.due();
            let Some(line) = self.lines.get_mut(due) else { return Ok(Advanced::Wait) };
            match line.next() {
                Ok(Came::Nothing) => return Ok(Advanced::Wait),
                Ok(Came::Message) => {}
                Ok(Came::Close { code, reason }) => {
                    let judged = match judge_close(&self.assembler, code, &reason) {
                        // The flow is too far behind, and the subscription is not.
                        Err(ClientError::TooFarBehind { requested, bounds: Some((oldest, _)) })
                            if self.merge.flows() > 1 && requested >= oldest =>
                        {
                            Err(ClientError::FlowsApart)
                        }
                        judged => judged,
                    };
                    self.close(close::NORMAL, "");
                    self.assembler.cut();
                    return judged.map(|()| Advanced::Done);
                }
                Err(error) => {
                    self.close(close::PROTOCOL, "");
                    return Err(error);
                }
            }
            match self.take(due, tap) {
                Ok(None) => {}
                Ok(Some(false)) => return Ok(Advanced::Message),
                Ok(Some(true)) => {
                    self.run = Some(self.run_now.clone());
                    return Ok(Advanced::Ledger);
                }
                Err(error) => {
                    self.close(close::PROTOCOL, "");
                    return Err(self.judge_mixed(error));
                }
            }
        }
    }

    /// Takes a line's message; whether it completed a ledger, or nothing where another flow had it already.
    fn take(&mut self, due: usize, tap: &mut impl FnMut(&Message<'_>)) -> Result<Option<bool>, StreamError> {
        let message = decode(self.lines[due].message()).map_err(AssemblyError::from)?;
        // One flow alone may begin anew with other chunks; several are put in order first.
        if self.merge.flows() > 1 {
            match self.merge.judge(due, &message)? {
                Verdict::Take => {}
                Verdict::Drop => return Ok(None),
                Verdict::Again => {
                    self.assembler.discarded();
                    return Ok(None);
                }
            }
        }
        let completed = self.assembler.push_decoded(&message, tap)?;
        if let Message::Begin(begin) = &message {
            self.first.get_or_insert(begin.sequence);
        }
        Ok(Some(completed))
    }

    /// Chunks of two emissions of a ledger, which its source may have cut otherwise when it began anew, look alike: a flow that was ahead
    /// holds those of the first. What shows only once they are joined may be nobody's fault.
    fn judge_mixed(&mut self, error: StreamError) -> ClientError {
        use AssemblyError::{Bytes, Checksum, ChunkCount, LedgerBytes};
        match (error, self.assembler.open()) {
            (
                StreamError::Protocol(
                    error @ (Bytes { .. } | Checksum { .. } | ChunkCount { .. } | LedgerBytes { .. }),
                ),
                Some(sequence),
            ) if self.merge.flows() > 1 => {
                self.mixed = true;
                ClientError::Mixed { sequence, error }
            }
            (error, _) => error.into(),
        }
    }
}

/// What an orderly close means for what was asked for. The code is not trusted: what came decides.
fn judge_close(assembler: &Assembler, code: Option<u16>, reason: &str) -> Result<(), ClientError> {
    let range = assembler.range();
    match code {
        _ if assembler.is_complete() => Ok(()),
        Some(close::TOO_FAR_BEHIND) => Err(ClientError::TooFarBehind {
            requested: assembler.rest().start(),
            bounds: close::parse_too_far_behind(reason),
        }),
        Some(close::NORMAL | close::GOING_AWAY) => {
            let truncated = match (assembler.open(), assembler.last(), range.end()) {
                (Some(sequence), ..) => Truncated::Inside { sequence },
                (None, Some(last), Some(end)) => Truncated::Short { last, end },
                (None, None, Some(end)) if !range.is_tip() => Truncated::Nothing { start: range.start(), end },
                // Without an end, or from a tip that is past it: nothing was promised.
                _ => return Ok(()),
            };
            Err(ClientError::Truncated(truncated))
        }
        _ => Err(ClientError::Closed { code, reason: reason.into() }),
    }
}

/// How long to wait before the next connection: doubling from [`Backoff::FIRST_NS`] to [`Backoff::MOST_NS`], each time between
/// half of that and all of it, so that the subscribers of a server that comes back do not come all at once.
#[derive(Clone, Copy, Default, Debug)]
pub struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// The first wait: a restarting server needs about as long to listen again.
    pub const FIRST_NS: i64 = 100_000_000;
    /// The longest wait: what a reader may lag after a long outage, well under the retention of any server.
    pub const MOST_NS: i64 = 10_000_000_000;

    /// The next wait, drawn by `random`.
    pub fn next_ns(&mut self, random: u64) -> i64 {
        let whole = (Self::FIRST_NS << self.attempts.min(16)).min(Self::MOST_NS);
        self.attempts = self.attempts.saturating_add(1);
        whole / 2 + ((u128::from(random) * (whole / 2) as u128) >> 64) as i64
    }

    /// Something came: the next wait is the first again.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}
