//! A subscriber as a pure machine: bytes of a connection go in, verified ledgers come out, and after a connection is lost the
//! next one goes on after the last verified ledger, exactly once.
//!
//! The machine outlives its connections: [`Client::connect`] begins each. It reads no clock and opens no socket;
//! `ledger::follow` is a front that does.

use super::assemble::{Assembler, Ledger, Limits, StreamError};
use super::query::Range;
use super::url::Url;
use crate::wire::http::{self, HeadError, UpgradeError};
use crate::wire::ledger::{close, message_bytes_max};
use crate::wire::websocket::{self, ControlKind, Event, FrameError, FrameReader, Sender};

/// The answer's field that names the run (the server's extension; a peer's server has none).
pub const RUN_FIELD: &str = "Sluice-Run";

/// Most bytes of a refusal's text that are kept: the peer's are one line.
const REFUSAL_BYTES_MAX: usize = 4 << 10;

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
            ClientError::Disconnected { .. } => true,
            ClientError::Closed { code, .. } => *code != Some(close::NORMAL),
            ClientError::Refused { status, .. } => *status >= 500 || *status == 429,
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
    /// A verified ledger: [`Client::ledger`].
    Ledger,
    /// More bytes are needed.
    Wait,
    /// Nothing more comes, and nothing is missing.
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No connection.
    Idle,
    /// Waiting for the answer's head.
    Answer,
    /// Reading a refusal's text: its status, and the bytes that it will have.
    Refused(u16, usize),
    Streaming,
    /// Nothing more is wanted.
    Done,
}

/// The machine.
pub struct Client {
    assembler: Assembler,
    reader: FrameReader,
    state: State,
    out: Vec<u8>,
    key: [u8; 16],
    masks: u64,
    /// The run of the connection before, once a ledger of it was verified.
    run: Option<Option<String>>,
    run_now: Option<String>,
}

impl Client {
    /// A subscriber of a range.
    ///
    /// # Errors
    /// As zstd: no memory.
    pub fn new(range: Range, limits: Limits) -> std::io::Result<Client> {
        Ok(Client {
            assembler: Assembler::new(range, limits)?,
            reader: FrameReader::new(Sender::Server, message_bytes_max(limits.chunk_bytes_max)),
            state: State::Idle,
            out: Vec::new(),
            key: [0; 16],
            masks: 0,
            run: None,
            run_now: None,
        })
    }

    /// A connection is there: the request that asks for the rest of the range becomes its first output. `authorization` is the
    /// value of that field. Asserts that something is still wanted.
    pub fn connect(&mut self, url: &Url, authorization: Option<&str>, nonce: Nonce) {
        self.assembler.cut();
        self.reader.reset();
        self.key.copy_from_slice(&nonce[..16]);
        let mut seed = [0; 8];
        seed.copy_from_slice(&nonce[16..]);
        self.masks = u64::from_le_bytes(seed);
        let extra: Vec<(&str, &str)> = authorization.map(|value| ("Authorization", value)).into_iter().collect();
        self.out = http::upgrade_request(&url.authority(), &url.target(&self.assembler.rest()), self.key, &extra);
        self.state = State::Answer;
    }

    /// Bytes to send; told with [`Client::sent`].
    pub fn output(&self) -> &[u8] {
        &self.out
    }

    /// The first `bytes` of [`Client::output`] were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.out.drain(..bytes);
    }

    /// Room to read into, never empty.
    pub fn space(&mut self) -> &mut [u8] {
        self.reader.space()
    }

    /// The first `bytes` of [`Client::space`] were read.
    pub fn filled(&mut self, bytes: usize) {
        self.reader.filled(bytes);
    }

    /// Takes bytes that were read elsewhere.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.reader.feed(bytes);
    }

    /// The last ledger that was verified.
    pub fn last(&self) -> Option<u32> {
        self.assembler.last()
    }

    /// Whether all that was asked for was verified.
    pub fn is_complete(&self) -> bool {
        self.assembler.is_complete()
    }

    /// What the server says of its run; a peer's server says nothing.
    pub fn run(&self) -> Option<&str> {
        self.run_now.as_deref()
    }

    /// Whether the upgrade is done.
    pub fn is_streaming(&self) -> bool {
        self.state == State::Streaming
    }

    /// The next ledger of what was read. Poll until it says [`Polled::Wait`] before reading more.
    ///
    /// # Errors
    /// See [`ClientError`]: the connection is at its end; send [`Client::output`] (a close, where one is due) and end it.
    pub fn poll(&mut self) -> Result<Polled<'_>, ClientError> {
        Ok(match self.advance()? {
            Advanced::Ledger => Polled::Ledger(self.ledger().expect("a ledger was just completed")),
            Advanced::Wait => Polled::Wait,
            Advanced::Done => Polled::Done,
        })
    }

    /// As [`Client::poll`], without lending: [`Client::ledger`] does.
    ///
    /// # Errors
    /// As [`Client::poll`].
    pub fn advance(&mut self) -> Result<Advanced, ClientError> {
        self.answered()?;
        if self.assembler.is_complete() && self.state == State::Streaming {
            self.close(close::NORMAL, close::RANGE_COMPLETE);
        }
        match self.state {
            State::Done => Ok(Advanced::Done),
            State::Idle | State::Answer | State::Refused(..) => Ok(Advanced::Wait),
            State::Streaming => self.step(),
        }
    }

    /// Reads no further than the answer to the request; a ledger never comes of it.
    ///
    /// # Errors
    /// As [`Client::poll`].
    pub fn answered(&mut self) -> Result<Advanced, ClientError> {
        if self.state == State::Answer {
            self.answer()?;
        }
        match self.state {
            State::Refused(status, bytes) if self.reader.unread().len() >= bytes => Err(self.refused(status)),
            _ => Ok(Advanced::Wait),
        }
    }

    /// The ledger that was completed last, until more is read.
    pub fn ledger(&self) -> Option<Ledger<'_>> {
        self.assembler.verified()
    }

    /// The connection ended. `Ok`: nothing is missing.
    ///
    /// # Errors
    /// [`ClientError::Disconnected`], or the refusal whose text ended so.
    pub fn disconnected(&mut self) -> Result<(), ClientError> {
        let state = std::mem::replace(&mut self.state, State::Idle);
        let inside = self.assembler.open();
        self.assembler.cut();
        match state {
            State::Done => Ok(()),
            State::Refused(status, _) => Err(self.refused(status)),
            _ => Err(ClientError::Disconnected { inside }),
        }
    }

    /// Nobody wants more: a close becomes the last output.
    pub fn stop(&mut self) {
        if self.state == State::Streaming {
            self.close(close::NORMAL, close::CONSUMER_DONE);
        }
        self.state = State::Done;
    }

    /// Reads the answer's head, if it is whole.
    fn answer(&mut self) -> Result<(), ClientError> {
        let Some(response) = http::parse_response(self.reader.unread())? else { return Ok(()) };
        let bytes = response.bytes;
        if response.status != 101 {
            let stated = response.fields.first("content-length").and_then(|length| length.parse::<usize>().ok());
            self.state = State::Refused(response.status, stated.unwrap_or(REFUSAL_BYTES_MAX).min(REFUSAL_BYTES_MAX));
        } else {
            http::judge_upgraded(&response, self.key)?;
            self.run_now = response.fields.first(RUN_FIELD).map(String::from);
            if let Some(before) = self.run.as_ref().filter(|&before| *before != self.run_now) {
                return Err(ClientError::RunChanged { before: before.clone(), now: self.run_now.clone() });
            }
            self.state = State::Streaming;
        }
        self.reader.skip(bytes);
        Ok(())
    }

    fn refused(&self, status: u16) -> ClientError {
        let text = String::from_utf8_lossy(self.reader.unread());
        let line: String = text.lines().next().unwrap_or("").chars().filter(|c| !c.is_control()).collect();
        ClientError::Refused { status, text: line.trim().into() }
    }

    /// Handles frames up to a message that completes a ledger, which [`Client::ledger`] lends.
    fn step(&mut self) -> Result<Advanced, ClientError> {
        loop {
            let key = self.next_mask();
            let end = match self.reader.next() {
                Ok(None) => return Ok(Advanced::Wait),
                Ok(Some(Event::Binary(message))) => match self.assembler.push(message) {
                    Ok(false) => continue,
                    Ok(true) => {
                        self.run = Some(self.run_now.clone());
                        return Ok(Advanced::Ledger);
                    }
                    Err(error) => Ended::Broken(error.into(), close::PROTOCOL),
                },
                Ok(Some(Event::Ping(payload))) => {
                    // One answer to the latest ping is enough (RFC 6455, 5.5.3); what is unsent bounds them.
                    if self.out.is_empty() {
                        websocket::write_control(ControlKind::Pong, payload, Some(key), &mut self.out);
                    }
                    continue;
                }
                Ok(Some(Event::Pong)) => continue,
                Ok(Some(Event::Close { code, reason })) => {
                    // The peer's server waits for the echo.
                    websocket::write_close(code.unwrap_or(close::NORMAL), "", Some(key), &mut self.out);
                    Ended::Closed(judge_close(&self.assembler, code, reason))
                }
                Err(error) => Ended::Broken(error.into(), error.close_code()),
            };
            return match end {
                Ended::Closed(judged) => {
                    self.state = State::Done;
                    self.assembler.cut();
                    judged.map(|()| Advanced::Done)
                }
                Ended::Broken(error, code) => {
                    self.close(code, "");
                    Err(error)
                }
            };
        }
    }

    fn close(&mut self, code: u16, reason: &str) {
        let key = self.next_mask();
        websocket::write_close(code, reason, Some(key), &mut self.out);
        self.state = State::Done;
    }

    /// The next frame's mask (splitmix64 over the connection's random seed).
    fn next_mask(&mut self) -> [u8; 4] {
        self.masks = self.masks.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.masks;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed >> 32) as u32).to_le_bytes()
    }
}

enum Ended {
    Closed(Result<(), ClientError>),
    Broken(ClientError, u16),
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
