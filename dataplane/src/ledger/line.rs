//! One connection of a subscriber as a pure machine: the request, its answer, then messages.
//!
//! It knows nothing of ledgers: `ledger::client` puts them together from one line or, where the server offers several flows, from
//! as many lines as there are flows.

use super::client::{ClientError, Nonce, RUN_FIELD};
use super::merge::{FLOWS_FIELD, Offer};
use super::url::Url;
use crate::wire::http;
use crate::wire::ledger::{close, message_bytes_max};
use crate::wire::websocket::{self, ControlKind, Event, FrameReader, Sender};

/// Most bytes of a refusal's text that are kept: the peer's are one line.
const REFUSAL_BYTES_MAX: usize = 4 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
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

/// What a line came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Came {
    /// More bytes are needed.
    Nothing,
    /// [`Line::message`].
    Message,
    /// The other side closes; the answer is in the output.
    Close {
        /// Its code, if it gave one.
        code: Option<u16>,
        /// Its reason.
        reason: String,
    },
}

/// One connection.
pub struct Line {
    reader: FrameReader,
    state: State,
    out: Vec<u8>,
    key: [u8; 16],
    masks: u64,
    run: Option<String>,
    offer: Option<Offer>,
}

impl Line {
    /// A line for messages with chunks of at most `chunk_bytes_max`.
    pub(super) fn new(chunk_bytes_max: usize) -> Line {
        Line {
            reader: FrameReader::new(Sender::Server, message_bytes_max(chunk_bytes_max)),
            state: State::Idle,
            out: Vec::new(),
            key: [0; 16],
            masks: 0,
            run: None,
            offer: None,
        }
    }

    /// A connection is there: the request for `target` becomes its first output.
    pub(super) fn connect(&mut self, url: &Url, target: &str, authorization: Option<&str>, nonce: Nonce) {
        self.reader.reset();
        self.key.copy_from_slice(&nonce[..16]);
        let mut seed = [0; 8];
        seed.copy_from_slice(&nonce[16..]);
        self.masks = u64::from_le_bytes(seed);
        let extra: Vec<(&str, &str)> = authorization.map(|value| ("Authorization", value)).into_iter().collect();
        self.out = http::upgrade_request(&url.authority(), target, self.key, &extra);
        (self.run, self.offer) = (None, None);
        self.state = State::Answer;
    }

    /// Bytes to send; told with [`Line::sent`].
    pub fn output(&self) -> &[u8] {
        &self.out
    }

    /// The first `bytes` of [`Line::output`] were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.out.drain(..bytes);
    }

    /// Moves what is to be sent into `out`, behind what is there.
    pub fn take_output(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.out);
    }

    /// Room to read into, never empty.
    pub fn space(&mut self) -> &mut [u8] {
        self.reader.space()
    }

    /// The first `bytes` of [`Line::space`] were read.
    pub fn filled(&mut self, bytes: usize) {
        self.reader.filled(bytes);
    }

    /// Takes bytes that were read elsewhere.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.reader.feed(bytes);
    }

    /// The buffer itself, to be filled from its end on, in spare capacity that it has; see [`FrameReader::lend`].
    pub fn lend(&mut self) -> Vec<u8> {
        self.reader.lend()
    }

    /// The buffer of [`Line::lend`] is back.
    pub fn give_back(&mut self, buffer: Vec<u8>) {
        self.reader.give_back(buffer);
    }

    /// Bytes that complete the frame at hand, where its header has come: fewer are of no use.
    pub fn missing(&self) -> usize {
        self.reader.missing()
    }

    /// Whether the upgrade is done.
    pub fn is_streaming(&self) -> bool {
        self.state == State::Streaming
    }

    /// Whether it is connected, or being connected.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Idle | State::Done)
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    /// What the server says of its run.
    pub(super) fn run(&self) -> Option<&str> {
        self.run.as_deref()
    }

    /// The flows that the server offers.
    pub(super) fn offer(&self) -> Option<&Offer> {
        self.offer.as_ref()
    }

    /// Reads the answer to the request, and no further.
    ///
    /// # Errors
    /// A refusal, or what is no answer to this request.
    pub(super) fn answered(&mut self) -> Result<(), ClientError> {
        if self.state == State::Answer {
            self.answer()?;
        }
        match self.state {
            State::Refused(status, bytes) if self.reader.unread().len() >= bytes => Err(self.refused(status)),
            _ => Ok(()),
        }
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
            self.run = response.fields.first(RUN_FIELD).map(String::from);
            self.offer = match response.fields.first(FLOWS_FIELD) {
                None => None,
                Some(value) => Some(Offer::parse(value).ok_or_else(|| ClientError::Offer { value: value.into() })?),
            };
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

    /// The connection ended; the refusal, if its text ended so.
    pub(super) fn disconnected(&mut self) -> (State, Option<ClientError>) {
        let state = std::mem::replace(&mut self.state, State::Idle);
        let refusal = match state {
            State::Refused(status, _) => Some(self.refused(status)),
            _ => None,
        };
        (state, refusal)
    }

    /// Handles frames up to a message.
    ///
    /// # Errors
    /// What breaks WebSocket's rules; the close that is due is in the output.
    pub(super) fn next(&mut self) -> Result<Came, ClientError> {
        if self.state != State::Streaming {
            return Ok(Came::Nothing);
        }
        loop {
            let key = self.next_mask();
            match self.reader.next() {
                Ok(None) => return Ok(Came::Nothing),
                Ok(Some(Event::Binary(_))) => return Ok(Came::Message),
                Ok(Some(Event::Ping(payload))) => {
                    // One answer to the latest ping is enough (RFC 6455, 5.5.3); what is unsent bounds them.
                    if self.out.is_empty() {
                        websocket::write_control(ControlKind::Pong, payload, Some(key), &mut self.out);
                    }
                }
                Ok(Some(Event::Pong)) => {}
                Ok(Some(Event::Close { code, reason })) => {
                    let came = Came::Close { code, reason: reason.into() };
                    // The peer's server waits for the echo.
                    websocket::write_close(code.unwrap_or(close::NORMAL), "", Some(key), &mut self.out);
                    self.state = State::Done;
                    return Ok(came);
                }
                Err(error) => {
                    self.close(error.close_code(), "");
                    return Err(error.into());
                }
            }
        }
    }

    /// The message that came last.
    pub(super) fn message(&self) -> &[u8] {
        self.reader.message()
    }

    /// Nobody wants more: a close is the last output, where the other side is there to hear it.
    pub(super) fn close(&mut self, code: u16, reason: &str) {
        if self.state == State::Streaming {
            let key = self.next_mask();
            websocket::write_close(code, reason, Some(key), &mut self.out);
        }
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
