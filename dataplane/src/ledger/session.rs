//! One subscriber as a pure machine: its request, its upgrade, then ledger after ledger from what is kept, and on into the flow.
//!
//! A subscriber is a cursor. Behind the flow it gets whole ledgers from memory or from the store, with stamps of zero; at the flow
//! it gets messages as they appear. When the flow moves on while it is inside a ledger, that delivery is given up and the ledger
//! is sent again, whole, from what is kept. It has no queue and holds no ledger, only a place in one, so its memory is bounded by
//! what it is sending; it is never dropped for lagging, only for leaving retention (4001) or for taking nothing for [`WRITE_NS_MAX`].

use std::sync::Arc;

use super::client::RUN_FIELD;
use super::hub::{Hub, Kept, Outcome, Stored};
use super::message::Encoded;
use super::query::{self, Range};
use super::share::{self, Asked, FLOWS_FIELD, Offer, Share};
use crate::units::NANOS_PER_SECOND;
use crate::wire::http::{self, Refusal, Request};
use crate::wire::ledger::close;
use crate::wire::websocket::{self, ControlKind, Event, FrameReader, Sender};

/// Longest time in which a connection takes nothing of what is being sent: the protocol's bound. One that takes a byte now and
/// then is never dropped.
pub const WRITE_NS_MAX: i64 = 10_000_000_000;
/// Longest time from a connection's beginning to its whole request: a request is one packet, and a round trip is under a second.
pub const REQUEST_NS_MAX: i64 = 10_000_000_000;
/// Longest time to wait for the other side's half of a close; its library waits about as long for ours.
pub const CLOSE_NS_MAX: i64 = 5_000_000_000;
/// Most times that a request's head is parsed: it is looked at when a line is whole, and has at most [`http::HEADERS_MAX`] lines and
/// three.
const LOOKS_MAX: u32 = 2 * http::HEADERS_MAX as u32;
/// Most control frames of a connection within a second: the peer's client sends none of its own but its close, and a person's tool a
/// ping now and then. Each costs the core a receive and perhaps an answer.
pub const CONTROLS_PER_SECOND_MAX: u32 = 64;
/// Most bytes of a subscriber's message: it has nothing to say but its close, and the peer's server reads as much.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Which ledgers a subscriber still gets, and where in one it is.
#[derive(Debug)]
pub struct Cursor {
    range: Range,
    share: Share,
    /// The ledger at hand or next; 0 while a subscriber of the tip waits for the first emission.
    next: u32,
    at: At,
    /// The hub's when it began.
    epoch: u64,
    abandons: u64,
}

#[derive(Debug)]
enum At {
    /// Between two ledgers.
    Between,
    /// In the flow of this round: the message that comes next.
    Live { next: usize, round: u64 },
    /// In a kept ledger that was in memory: the message that comes next. It is looked up anew at each step, since whoever held the
    /// ledger would keep all of it in memory for as long as its subscriber likes.
    Kept(usize),
    /// In a stored ledger's frames.
    Stored(Stored, u32),
}

/// What a cursor's subscriber gets next.
#[derive(Clone, Debug)]
pub enum Next {
    /// This message.
    Message(Arc<Encoded>),
    /// The frames of a stored ledger from this one on; how many were taken is told with [`Cursor::took`].
    Stored(Stored, u32),
    /// Nothing now.
    Wait,
    /// The end: a close code and its reason.
    Close(u16, String),
}

impl Cursor {
    /// A cursor at the start of a range, for a share of each ledger.
    pub fn new(range: Range, share: Share, hub: &Hub) -> Cursor {
        Cursor { range, share, next: range.start(), at: At::Between, epoch: hub.epoch(), abandons: 0 }
    }

    /// Whether what it gives next is of the flow, or will be: it is not behind.
    pub fn is_live(&self, hub: &Hub) -> bool {
        match &self.at {
            At::Live { .. } => true,
            At::Between => self.next == 0 || hub.kept(self.next).is_none(),
            At::Kept(_) | At::Stored(..) => false,
        }
    }

    /// Live deliveries given up since the last call.
    pub fn take_abandons(&mut self) -> u64 {
        std::mem::take(&mut self.abandons)
    }

    /// What comes next. A message that is given is taken to be sent, whole and in order; a stored ledger's frames only when
    /// they are told.
    pub fn step(&mut self, hub: &Hub) -> Next {
        if hub.is_cut() {
            return Next::Close(close::RESTART, close::DRAINING.into());
        }
        if hub.epoch() != self.epoch {
            // It comes back, and learns that this is another run.
            return Next::Close(close::RESTART, close::RESET.into());
        }
        match &mut self.at {
            At::Between => self.between(hub),
            At::Live { next, round } => {
                let (next, round) = (*next, *round);
                self.live(hub, next, round)
            }
            At::Kept(next) => {
                let next = *next;
                self.kept(hub, next)
            }
            At::Stored(stored, frame) => Next::Stored(*stored, *frame),
        }
    }

    /// So many frames of the stored ledger at hand were taken. Asserts that it has as many.
    pub fn took(&mut self, frames: u32) {
        let At::Stored(stored, frame) = &mut self.at else { panic!("no stored ledger is at hand") };
        assert!(frames <= stored.frames - *frame, "a ledger's frames are counted");
        *frame += frames;
        if *frame == stored.frames {
            self.done();
        }
    }

    fn done(&mut self) {
        self.at = At::Between;
        // At most one beyond the last sequence that can be streamed, which is a u32.
        self.next += 1;
    }

    /// Inside the flow's ledger, unless the flow has moved on.
    fn live(&mut self, hub: &Hub, next: usize, round: u64) -> Next {
        let flow = hub.flow().filter(|flow| flow.sequence() == self.next);
        let Some(flow) = flow else {
            let missed = hub.missed_end(round).filter(|(place, _)| self.share.next(next, Some(*place)) == *place);
            if let Some((_, end)) = missed {
                self.done();
                return Next::Message(end.clone());
            }
            self.abandons += 1;
            self.at = At::Between;
            return self.between(hub);
        };
        // A ledger that began again is given from its new BEGIN on.
        let next = if flow.round() == round { next } else { 0 };
        let end = flow.is_ended().then(|| flow.messages().len() - 1);
        let next = self.share.next(next, end);
        let Some(message) = flow.messages().get(next) else {
            return match hub.outcome() {
                // An open ledger of a source that has ended will not be completed.
                Some(_) => Next::Close(close::INTERNAL, close::SOURCE_FAILED.into()),
                None => Next::Wait,
            };
        };
        self.at = At::Live { next: next + 1, round: flow.round() };
        if Some(next) == end {
            self.done();
        }
        Next::Message(message.clone())
    }

    /// Inside a kept ledger, wherever it is by now: its frames and their numbers are the same in memory and in the store.
    fn kept(&mut self, hub: &Hub, next: usize) -> Next {
        match hub.kept(self.next) {
            Some(Kept::Memory(replay)) if next < replay.len() => {
                let message = replay[next].clone();
                let next = self.share.next(next + 1, Some(replay.len() - 1));
                self.at = At::Kept(next);
                if next == replay.len() {
                    self.done();
                }
                Next::Message(message)
            }
            Some(Kept::Stored(stored)) if next < stored.frames as usize => {
                // Frames are counted in a u32.
                self.at = At::Stored(*stored, next as u32);
                Next::Stored(*stored, next as u32)
            }
            // It left retention before it was sent whole. Another of its number is not it, where a source went back.
            _ => {
                let (oldest, latest) = hub.bounds();
                Next::Close(close::TOO_FAR_BEHIND, close::too_far_behind(oldest, latest))
            }
        }
    }

    fn between(&mut self, hub: &Hub) -> Next {
        let open = hub.flow().filter(|flow| !flow.is_ended()).map(|flow| flow.sequence());
        if self.next == 0
            && let Some(flow) = hub.flow()
        {
            // The tip: the ledger in flight from its first chunk, else the one after it.
            self.next = open.unwrap_or(flow.sequence() + 1);
        }
        if self.range.end().is_some_and(|end| self.next > end) {
            return Next::Close(close::NORMAL, String::new());
        }
        let in_flight = self.next != 0 && open == Some(self.next);
        if hub.is_draining() && !in_flight {
            return Next::Close(close::RESTART, close::DRAINING.into());
        }
        if in_flight && let Some(flow) = hub.flow() {
            return self.live(hub, 0, flow.round());
        }
        match hub.kept(self.next) {
            Some(_) => self.kept(hub, 0),
            None => self.outside(hub, open),
        }
    }

    /// The next ledger is neither kept nor in flight.
    fn outside(&self, hub: &Hub, open: Option<u32>) -> Next {
        let (oldest, latest) = hub.bounds();
        let first = if oldest == 0 { open } else { Some(oldest) };
        if self.next != 0 && first.is_some_and(|first| self.next < first) {
            return Next::Close(close::TOO_FAR_BEHIND, close::too_far_behind(oldest, latest));
        }
        // A gap between what is kept and the flow would be a ledger that nobody can give; a reset drops what was kept.
        match (hub.outcome(), self.range.end()) {
            (None, _) => Next::Wait,
            (Some(Outcome::Failed), _) => Next::Close(close::INTERNAL, close::SOURCE_FAILED.into()),
            (Some(Outcome::Ended), None) => Next::Close(close::NORMAL, close::SOURCE_ENDED.into()),
            (Some(Outcome::Ended), Some(_)) => Next::Close(close::GOING_AWAY, close::SOURCE_ENDED_SHORT.into()),
        }
    }
}

/// What a connection's owner does next.
#[derive(Clone, Debug)]
pub enum Step {
    /// Send these bytes.
    Bytes(Vec<u8>),
    /// Send this message's frame.
    Message(Arc<Encoded>),
    /// Read and check frames of this stored ledger from that one on, send them, tell [`Connection::took`]; or
    /// [`Connection::lost`] where they cannot be read.
    Stored(Stored, u32),
    /// Nothing now.
    Wait,
    /// End the connection; what was given before is sent first.
    End,
}

/// What the owner tells of the server.
#[derive(Clone, Copy, Debug)]
pub struct Server<'a> {
    /// The run, as announced; see [`super::retention::Run`].
    pub run: &'a str,
    /// Subscribers at the moment.
    pub subscribers: usize,
}

/// What a server decides of a request beside its range. As it stands it is open to everybody, without flows and limits.
pub trait Door {
    /// Whether who asks may have the stream: the value of `Authorization`, and of the parameter `token`.
    fn admits(&mut self, _authorization: Option<&str>, _token: Option<&str>) -> bool {
        true
    }

    /// The server's clock at this moment, ns since the Unix epoch: what `/healthz` tells, so that a client can measure how far it is from
    /// its own. `None`: it is not told.
    fn utc_ns(&self) -> Option<i64> {
        None
    }

    /// Most flows of a subscription; 0: flows are not spoken of.
    fn flows_max(&self) -> u32 {
        0
    }

    /// Of how many flows this subscription is; `None`: it is not known.
    fn flows_of(&self, _id: u64) -> Option<u32> {
        None
    }

    /// One more connection that is sent a stream: `share` of the subscription `id`, which begins with its first. `None`: no flows were
    /// asked for. The subscription's id, where the field is to be answered.
    ///
    /// # Errors
    /// A limit is reached.
    fn enter(&mut self, _share: Share, _id: Option<u64>, _flows: bool) -> Result<Option<u64>, Refusal> {
        Ok(None)
    }
}

/// A door that is open.
#[derive(Clone, Copy, Default, Debug)]
pub struct OpenDoor;

impl Door for OpenDoor {}

enum State {
    /// Waiting for a whole request.
    Request,
    /// An answer that ends the connection is on its way.
    Reply,
    Streaming(Cursor),
    /// Our close is on its way; the other side's has not come.
    Closing,
    /// Nothing more is sent or read.
    Gone,
}

/// One connection to a server.
pub struct Connection {
    state: State,
    reader: FrameReader,
    out: Vec<u8>,
    /// When the present wait for the other side began: for its request, or for its half of a close.
    since_ns: i64,
    /// When the other side last took something of what is being sent; `None` while nothing is.
    sending_ns: Option<i64>,
    limits: TimeLimits,
    /// How often the request's head was parsed.
    looks: u32,
    /// Control frames since the second began that is counted.
    controls: u32,
    controls_ns: i64,
    cut_off: bool,
    answered: Option<u16>,
}

/// How long a connection waits for the other side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeLimits {
    /// For its whole request.
    pub request_ns: i64,
    /// For it to take something of what is being sent.
    pub write_ns: i64,
    /// For its half of a close.
    pub close_ns: i64,
}

impl Default for TimeLimits {
    fn default() -> TimeLimits {
        TimeLimits { request_ns: REQUEST_NS_MAX, write_ns: WRITE_NS_MAX, close_ns: CLOSE_NS_MAX }
    }
}

impl Connection {
    /// A connection that was accepted at `now` (monotonic ns).
    pub fn new(now: i64) -> Connection {
        Connection::with_limits(now, TimeLimits::default())
    }

    /// As [`Connection::new`], with other limits.
    pub fn with_limits(now: i64, limits: TimeLimits) -> Connection {
        Connection {
            state: State::Request,
            // A request's head is read through the same buffer; frames are bounded from their first header on.
            reader: FrameReader::new(Sender::Client, MESSAGE_BYTES_MAX),
            out: Vec::new(),
            since_ns: now,
            sending_ns: None,
            limits,
            looks: 0,
            controls: 0,
            controls_ns: now,
            cut_off: false,
            answered: None,
        }
    }

    /// Whether it is a subscriber: upgraded, and not closing.
    pub fn is_subscriber(&self) -> bool {
        matches!(self.state, State::Streaming(_))
    }

    /// Bytes of memory that it holds beside the messages that it shares.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Connection>() + self.reader.memory_bytes() + self.out.capacity()
    }

    /// Whether what it is sent next is of the flow, or will be.
    pub fn is_live(&self, hub: &Hub) -> bool {
        matches!(&self.state, State::Streaming(cursor) if cursor.is_live(hub))
    }

    /// The ledger that it waits for when a poll said so; 0: the first that comes. `None`: nothing that is published concerns it.
    pub fn waits_for(&self) -> Option<u32> {
        match &self.state {
            State::Streaming(cursor) => Some(cursor.next),
            _ => None,
        }
    }

    /// Which chunks it carries.
    pub fn share(&self) -> Share {
        match &self.state {
            State::Streaming(cursor) => cursor.share,
            _ => Share::WHOLE,
        }
    }

    /// Whether it waits for a request.
    pub fn is_waiting_for_request(&self) -> bool {
        matches!(self.state, State::Request)
    }

    /// How often its request's head was parsed.
    #[cfg(test)]
    pub(super) fn looks(&self) -> u32 {
        self.looks
    }

    /// The status of the answer to its request, once there is one.
    pub fn answered(&self) -> Option<u16> {
        self.answered
    }

    /// Whether it was cut off: the other side broke a rule or a time-out, or is gone. What ends otherwise is ended in order.
    pub fn is_cut_off(&self) -> bool {
        self.cut_off
    }

    /// Bytes came, and the server's door is open. Reading may go on while something is being sent.
    pub fn on_bytes(&mut self, bytes: &[u8], hub: &Hub, server: Server<'_>, now: i64) {
        self.on_bytes_at(bytes, hub, server, &mut OpenDoor, now);
    }

    /// As [`Connection::on_bytes`], at a door that decides.
    pub fn on_bytes_at(&mut self, bytes: &[u8], hub: &Hub, server: Server<'_>, door: &mut dyn Door, now: i64) {
        if matches!(self.state, State::Reply | State::Gone) {
            return;
        }
        // A head is whole with the end of a line; the first bytes tell what is no HTTP at all. Parsed at each byte, one that trickles
        // would cost the square of its length.
        let look = bytes.contains(&b'\n') || self.looks == 0;
        self.reader.feed(bytes);
        if matches!(self.state, State::Request) && (look || self.reader.unread().len() >= http::HEAD_BYTES_MAX) {
            self.looks += 1;
            self.request(hub, server, door);
        }
        if matches!(self.state, State::Streaming(_) | State::Closing) {
            self.frames(now);
        }
    }

    /// The other side ended the connection, or it broke.
    pub fn on_closed(&mut self) {
        self.cut();
    }

    fn cut(&mut self) {
        self.out.clear();
        (self.state, self.cut_off) = (State::Gone, true);
    }

    /// What to do next. What is given is taken to be sent, whole and in order; ask again as long as something may be added to
    /// what is on its way.
    pub fn poll(&mut self, hub: &mut Hub, now: i64) -> Step {
        // A pong or a close goes between two messages, and between two runs of a stored ledger's frames.
        if !self.out.is_empty() {
            self.sending_ns.get_or_insert(now);
            return Step::Bytes(std::mem::take(&mut self.out));
        }
        let next = match &mut self.state {
            State::Request | State::Closing => return Step::Wait,
            State::Reply | State::Gone => {
                self.state = State::Gone;
                return Step::End;
            }
            State::Streaming(cursor) => {
                let next = cursor.step(hub);
                hub.count_abandons(cursor.take_abandons());
                next
            }
        };
        match next {
            Next::Wait => Step::Wait,
            Next::Message(message) => {
                self.sending_ns.get_or_insert(now);
                Step::Message(message)
            }
            Next::Stored(stored, frame) => Step::Stored(stored, frame),
            Next::Close(code, reason) => {
                let mut frame = Vec::new();
                websocket::write_close(code, &reason, None, &mut frame);
                (self.state, self.since_ns) = (State::Closing, now);
                self.sending_ns.get_or_insert(now);
                Step::Bytes(frame)
            }
        }
    }

    /// So many frames of the stored ledger that was asked for are on their way.
    pub fn took(&mut self, frames: u32, now: i64) {
        self.sending_ns.get_or_insert(now);
        if let State::Streaming(cursor) = &mut self.state {
            cursor.took(frames);
        }
    }

    /// Frames of a stored ledger cannot be read, or are not what was written: the connection ends as it stands, between two
    /// messages, so that the subscriber sees a broken connection and no wrong byte. Where another read fails too, the owner takes the
    /// ledger out of retention ([`Hub::prune`]): whoever asks for it again is told, and does not come back for ever.
    pub fn lost(&mut self) {
        self.cut();
    }

    /// The other side took some of what is being sent; `drained`: all of it.
    pub fn progress(&mut self, drained: bool, now: i64) {
        self.sending_ns = (!drained).then_some(now);
        if drained && self.is_closing() {
            self.close_later(now);
        }
    }

    /// Something is on its way that was not asked for here, such as a session's own records: it is to be taken in the same time.
    pub fn sending(&mut self, now: i64) {
        self.sending_ns.get_or_insert(now);
    }

    /// Since when the other side has taken nothing of what is being sent; `None`: nothing is, or it just took something.
    pub fn sending_since(&self) -> Option<i64> {
        self.sending_ns
    }

    /// Whether an answer that ends the connection is on its way, which is sent even to who has ended his half.
    pub fn is_replying(&self) -> bool {
        matches!(self.state, State::Reply)
    }

    /// When [`Connection::on_time`] is to be called.
    pub fn deadline(&self) -> Option<i64> {
        let waiting = match self.state {
            State::Request => Some(self.since_ns + self.limits.request_ns),
            // Before our close is on its way there is nothing to answer: who takes slowly what stands before it has the time to.
            State::Closing if self.sending_ns.is_none() => Some(self.since_ns + self.limits.close_ns),
            _ => None,
        };
        let sending = self.sending_ns.map(|since| since + self.limits.write_ns);
        [waiting, sending].into_iter().flatten().min()
    }

    /// Whether it waits for the other side's half of a close.
    pub fn is_closing(&self) -> bool {
        matches!(self.state, State::Closing)
    }

    /// The other side still takes what was sent before our close: the wait for its half begins anew.
    pub fn close_later(&mut self, now: i64) {
        self.since_ns = now;
    }

    /// Gives a connection up whose time is over; the next poll says so.
    pub fn on_time(&mut self, now: i64) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.cut();
        }
    }

    /// Reads the request, if it is whole, and answers it.
    fn request(&mut self, hub: &Hub, server: Server<'_>, door: &mut dyn Door) {
        let (bytes, answer) = match http::parse_request(self.reader.unread()) {
            Ok(None) if self.looks < LOOKS_MAX => return,
            Ok(None) => {
                (0, Answer::refusal(&Refusal::new(400, "the request comes in too many pieces: send its head at once")))
            }
            Ok(Some(request)) => (request.bytes, answer(&request, hub, server, door)),
            Err(error) => {
                let status = if error == http::HeadError::TooLong { 431 } else { 400 };
                (0, Answer::refusal(&Refusal::new(status, error.to_string())))
            }
        };
        self.reader.skip(bytes);
        self.reader.shrink();
        match answer {
            Answer::Reply(status, reply) => {
                (self.out, self.state, self.answered) = (reply, State::Reply, Some(status));
            }
            Answer::Upgrade(reply, range, share) => {
                (self.out, self.state) = (reply, State::Streaming(Cursor::new(range, share, hub)));
                self.answered = Some(101);
            }
        }
    }

    /// One more control frame; whether there are too many.
    fn is_flood(&mut self, now: i64) -> bool {
        if now - self.controls_ns >= NANOS_PER_SECOND {
            (self.controls, self.controls_ns) = (0, now);
        }
        self.controls += 1;
        self.controls > CONTROLS_PER_SECOND_MAX
    }

    /// A subscriber's frames: only pings, pongs and its close have a meaning.
    fn frames(&mut self, now: i64) {
        loop {
            match self.reader.next() {
                Ok(None) => return,
                Ok(Some(Event::Pong)) => {
                    if self.is_flood(now) {
                        return self.cut();
                    }
                }
                Ok(Some(Event::Ping(payload))) => {
                    // The latest unanswered ping is enough; what is unsent bounds them.
                    if matches!(self.state, State::Streaming(_)) && self.out.is_empty() {
                        websocket::write_control(ControlKind::Pong, payload, None, &mut self.out);
                    }
                    if self.is_flood(now) {
                        return self.cut();
                    }
                }
                Ok(Some(Event::Close { code, .. })) => {
                    if matches!(self.state, State::Closing) {
                        self.state = State::Gone;
                    } else {
                        websocket::write_close(code.unwrap_or(close::NORMAL), "", None, &mut self.out);
                        (self.state, self.since_ns) = (State::Reply, now);
                    }
                    return;
                }
                // One that speaks, or breaks a rule, is cut off without a word, as the peer's server does.
                Ok(Some(Event::Binary(_))) | Err(_) => {
                    self.cut();
                    return;
                }
            }
        }
    }
}

enum Answer {
    Reply(u16, Vec<u8>),
    Upgrade(Vec<u8>, Range, Share),
}

impl Answer {
    fn refusal(refusal: &Refusal) -> Answer {
        Answer::Reply(refusal.status, http::refusal_response(refusal))
    }
}

/// Routes a request: `/stream` upgrades, `/healthz` reports.
fn answer(request: &Request<'_>, hub: &Hub, server: Server<'_>, door: &mut dyn Door) -> Answer {
    let (path, query) = request.path_and_query();
    match path {
        "/healthz" => {
            let mut body = hub.health(server.subscribers, server.run);
            if let (Some(now_ns), Some(end)) = (door.utc_ns(), body.rfind('}')) {
                body.insert_str(end, &format!(",\"now_ns\":{now_ns}"));
            }
            let mut reply = http::response(200, "application/json", &body, &[]);
            if request.method == "HEAD" {
                reply.truncate(reply.len() - body.len());
            }
            Answer::Reply(200, reply)
        }
        "/stream" => match stream(request, query, server, door) {
            Ok((reply, range, share)) => Answer::Upgrade(reply, range, share),
            Err(refusal) => Answer::refusal(&refusal),
        },
        _ => Answer::refusal(&Refusal::new(404, "404 page not found")),
    }
}

/// Judges a request for the stream: who asks, what for, whether it is an upgrade, and whether there is room.
fn stream(
    request: &Request<'_>,
    query: &str,
    server: Server<'_>,
    door: &mut dyn Door,
) -> Result<(Vec<u8>, Range, Share), Refusal> {
    let token = query::first_value(query, "token");
    if !door.admits(request.fields.first("authorization"), token.as_deref()) {
        return Err(Refusal::new(401, "a token is needed: send Authorization: Bearer, or the parameter token"));
    }
    // A bad range is told before anything about the upgrade, as the peer does.
    let range = query::parse(query).map_err(|error| Refusal::new(400, error.to_string()))?;
    let asked = match door.flows_max() {
        0 => None,
        _ => share::parse(query).map_err(|error| Refusal::new(400, error.to_string()))?,
    };
    let accept = http::judge_upgrade(request)?;
    let max = door.flows_max();
    let (share, id) = match asked {
        None => (Share::WHOLE, None),
        Some(Asked::First(flows)) => (Share::new(0, flows.min(max)), None),
        Some(Asked::Other { share, id }) => match door.flows_of(id) {
            Some(flows) if flows == share.flows() => (share, Some(id)),
            Some(flows) => {
                return Err(Refusal::new(400, format!("flows = {}, but this subscription has {flows}", share.flows())));
            }
            None => return Err(Refusal::new(409, "no such subscription: it has ended, or this is another server")),
        },
    };
    let id = door.enter(share, id, asked.is_some())?;
    let offer = id.map(|id| Offer { max, id }.to_string());
    let mut extra = vec![(RUN_FIELD, server.run)];
    extra.extend(offer.as_deref().map(|offer| (FLOWS_FIELD, offer)));
    Ok((http::upgrade_response(&accept, &extra), range, share))
}
