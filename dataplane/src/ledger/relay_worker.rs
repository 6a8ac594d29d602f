//! The relay's worker: another server is the source. Each message goes on as it came, while the ledger is still being emitted.
//!
//! The client machine judges and verifies; this file has the connections, on the core's io_uring. A message is copied once, from where
//! the socket's bytes lie into a buffer of the pool, which every subscriber then shares; it is passed on before it is unpacked
//! and hashed, except END, which waits for the verdict. What does not verify ends the relay, and nothing of it is kept.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::time::Duration;

use super::assemble::Limits;
use super::client::{Advanced, Backoff, Client, ClientError};
use super::client_tls::{ClientTls, TlsSession};
use super::event::Item;
use super::hub::Outcome;
use super::message::{Encoded, HEADROOM};
use super::pool::{Buffer, Pool};
use super::query::Range;
use super::retention::run_parts;
use super::stats::RelayCounter;
use super::url::Url;
use crate::runtime::link::LinkSender;
use crate::runtime::worker::{Turn, Worker};
use crate::sync::counters::CounterWriter;
use crate::sys::resolve::Resolver;
use crate::sys::{random, tcp};
use crate::units::{NANOS_PER_MILLI, NANOS_PER_SECOND};
use crate::wire::ledger::{CHUNK_BYTES_MAX, ChunkHeader, Codec, Message};

/// Bytes of one receive of a TLS connection; a plain one is received where the reader keeps it.
const RECEIVE_BYTES: usize = 256 << 10;
/// Most messages of one turn: a ledger of the usual size has 60, and the core's other workers wait meanwhile.
const MESSAGES_PER_TURN: usize = 16;
/// Longest time to look for bytes inside a ledger before the core may sleep: an emission takes 5 to 15 ms, its chunks come at
/// intervals under one; a ledger that stands still for longer has an upstream that does.
const LOOK_NS_MAX: i64 = 20 * NANOS_PER_MILLI;
/// Longest time in which a close is sent to the upstream.
const GOODBYE_NS_MAX: i64 = NANOS_PER_SECOND;
/// A ledger that is open when the relay is to stop is finished within this time, or given up.
const FINISH_NS_MAX: i64 = 5 * NANOS_PER_SECOND;

const CONNECT: u64 = 1 << 40;
const RECEIVE: u64 = 2 << 40;
const SEND: u64 = 3 << 40;
const CANCEL: u64 = 4 << 40;
const KIND: u64 = 0xFF << 40;

/// What a relay is made of.
pub struct RelayParts {
    /// Its name in logs and metrics.
    pub name: String,
    /// The upstream.
    pub url: Url,
    /// Whom to trust where the URL asks for TLS.
    pub tls: Option<ClientTls>,
    /// Value of the requests' `Authorization` field.
    pub authorization: Option<String>,
    /// What is taken at most.
    pub limits: Limits,
    /// Most connections to share a ledger's chunks out to, where the upstream offers it.
    pub flows: usize,
    /// The ledger to begin with where nothing is kept; 0 is the one in flight, or else the next.
    pub start: u32,
    /// The latest ledger that is kept already; the upstream is asked for the one after it.
    pub latest: Option<u32>,
    /// The run that the server announces now.
    pub run: String,
    /// Longest time to a connection, its upgrade included.
    pub dial_timeout: Duration,
    /// A connection whose other side answers nothing for so long is dead.
    pub dead_after: Duration,
    /// Whether the core stays awake while a ledger is open.
    pub spin: bool,
    /// Turns the upstream's name into addresses.
    pub resolver: Resolver,
    /// To the fan-out.
    pub order: LinkSender<Item>,
    /// Where messages live.
    pub pool: Pool,
    /// What is counted.
    pub counters: CounterWriter<RelayCounter>,
}

/// Where the relay is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Until then nothing is tried.
    Waiting(i64),
    /// The name is being looked up.
    Resolving,
    /// There are connections, or there will be.
    Up,
    /// The connections end; after that time they are cut.
    Closing(i64),
    /// Nothing more comes.
    Ended,
}

/// One connection.
#[derive(Default)]
struct Connection {
    socket: Option<OwnedFd>,
    tls: Option<TlsSession>,
    /// When it was begun.
    since: i64,
    connecting: bool,
    connected: bool,
    receiving: bool,
    sending: bool,
    /// Nothing more comes, and why.
    end: Option<String>,
    /// Its last words are on their way; then it is ended.
    leaving: bool,
    send_spare: Vec<u8>,
    cipher: Vec<u8>,
}

/// The relay's worker.
pub struct RelayWorker {
    parts: RelayParts,
    client: Client,
    phase: Phase,
    address: Option<SocketAddr>,
    /// Connections so far tried one after the other: which of the name's addresses is next.
    attempts: usize,
    connections: Vec<Connection>,
    backoff: Backoff,
    /// Ledgers of the announced run are kept, or were passed on.
    joined: bool,
    /// The answer of the connection that stands was looked at.
    greeted: bool,
    /// The run that is announced is the upstream's own.
    passed: bool,
    /// The ledger that was begun last, while none was verified: where a connection to the tip goes on.
    begun: Option<u32>,
    /// What the link had no room for: another run and the end, at most.
    unsaid: VecDeque<Item>,
    failure_told: bool,
    /// When bytes came last.
    heard_ns: i64,
    now: i64,
    /// When it was told to stop.
    stopping: Option<i64>,
}

impl RelayWorker {
    /// A relay; it connects when it is started.
    ///
    /// # Errors
    /// No memory; a range that cannot be followed; a URL that asks for TLS without [`RelayParts::tls`].
    pub fn new(parts: RelayParts) -> Result<RelayWorker, String> {
        if parts.url.tls && parts.tls.is_none() {
            return Err(format!("relay {}: {}: no TLS was set up for it", parts.name, parts.url));
        }
        let start = match parts.latest {
            Some(latest) => latest.checked_add(1).ok_or("the latest ledger that is kept is the last one there is")?,
            None => parts.start,
        };
        Ok(RelayWorker {
            client: client(&parts, start)?,
            phase: Phase::Waiting(i64::MIN),
            address: None,
            attempts: 0,
            connections: Vec::new(),
            backoff: Backoff::default(),
            joined: parts.latest.is_some(),
            greeted: false,
            passed: false,
            begun: None,
            unsaid: VecDeque::new(),
            failure_told: false,
            heard_ns: i64::MIN,
            now: 0,
            stopping: None,
            parts,
        })
    }

    /// Goes towards a connection; never waits.
    fn advance(&mut self, turn: &mut Turn<'_>) {
        match self.phase {
            Phase::Waiting(until) if turn.now >= until => {
                self.parts.resolver.ask();
                self.phase = Phase::Resolving;
            }
            Phase::Resolving => match self.parts.resolver.answer() {
                None => {}
                Some(Ok(addresses)) => {
                    let address = addresses[self.attempts % addresses.len()];
                    self.attempts = self.attempts.wrapping_add(1);
                    self.begin(turn, address);
                }
                Some(Err(what)) => self.lost(turn, &what),
            },
            Phase::Closing(until) => {
                if turn.now >= until {
                    self.connections.iter_mut().for_each(Connection::cut);
                }
                if self.connections.iter().all(Connection::is_idle) {
                    self.closed(turn.now);
                }
            }
            _ => {}
        }
    }

    /// The first connection of a group.
    fn begin(&mut self, turn: &mut Turn<'_>, address: SocketAddr) {
        self.address = Some(address);
        (self.phase, self.greeted) = (Phase::Up, false);
        self.connections.clear();
        if let Err(what) = self.connect(turn, 0) {
            self.lost(turn, &what);
        }
    }

    /// Connects one flow's socket.
    fn connect(&mut self, turn: &mut Turn<'_>, flow: usize) -> Result<(), String> {
        let address = self.address.ok_or("no address")?;
        let socket = tcp::stream(&address).map_err(|error| format!("socket: {error}"))?;
        let told = |error: std::io::Error| format!("{address}: {error}");
        turn.ring.connect(socket.as_fd(), &address, turn.user_data(CONNECT | flow as u64)).map_err(told)?;
        let tls = match &self.parts.tls {
            Some(tls) if self.parts.url.tls => {
                Some(tls.session(&self.parts.url.host).map_err(|error| error.to_string())?)
            }
            _ => None,
        };
        let since = turn.now;
        self.connections.push(Connection {
            socket: Some(socket),
            tls,
            since,
            connecting: true,
            ..Connection::default()
        });
        Ok(())
    }

    fn connected(&mut self, turn: &mut Turn<'_>, flow: usize, result: i32) {
        let Some(connection) = self.connections.get_mut(flow) else { return };
        connection.connecting = false;
        let Some(socket) = &connection.socket else { return };
        if self.phase != Phase::Up {
            return;
        }
        if result < 0 {
            let error = std::io::Error::from_raw_os_error(-result);
            let address = self.address.map_or(String::new(), |address| address.to_string());
            return self.lost(turn, &format!("{address}: {error}"));
        }
        let _ = tcp::tune(socket.as_fd(), self.parts.dead_after);
        connection.connected = true;
        let nonce = match random::bytes() {
            Ok(nonce) => nonce,
            Err(error) => return turn.fail(format!("relay {}: random bytes: {error}", self.parts.name)),
        };
        let authorization = self.parts.authorization.as_deref();
        match flow {
            0 => self.client.connect(&self.parts.url, authorization, nonce),
            _ => self.client.connect_flow(flow, &self.parts.url, authorization, nonce),
        }
    }

    /// Takes what was received, as far as the link has room; how many messages, and whether more bytes are needed.
    fn take(&mut self, turn: &mut Turn<'_>) -> (usize, bool) {
        let mut taken = 0;
        while self.phase == Phase::Up && taken < MESSAGES_PER_TURN && self.has_room() {
            let step = self.client.answered().and_then(|_| {
                if self.client.is_streaming() && !self.greeted {
                    return Ok(None);
                }
                let RelayParts { order, pool, .. } = &mut self.parts;
                self.client.message(&mut |message| forward(order, pool, message)).map(Some)
            });
            match step {
                Ok(None) => self.greet(turn),
                Ok(Some(Advanced::Wait)) => return (taken, true),
                Ok(Some(Advanced::Message)) => {
                    taken += 1;
                    if self.client.last().is_none() {
                        self.begun = self.client.open();
                    }
                }
                Ok(Some(Advanced::Ledger)) => {
                    taken += 1;
                    self.verified();
                    if self.stopping.is_some() {
                        self.leave(turn);
                        break;
                    }
                }
                Ok(Some(Advanced::Done)) => {
                    self.finish(turn, Outcome::Ended, None);
                    break;
                }
                Err(error) => {
                    self.failed(turn, &error);
                    break;
                }
            }
        }
        self.parts.counters.add(RelayCounter::Waits, u64::from(!self.has_room()));
        (taken, false)
    }

    /// The upstream has answered: its run passes through, if it has one.
    fn greet(&mut self, turn: &mut Turn<'_>) {
        self.greeted = true;
        self.failure_told = false;
        let run = told(self.client.run());
        let passes = run.is_some();
        self.parts.counters.add(RelayCounter::Connections, 1);
        self.parts.counters.set(RelayCounter::Connected, 1);
        tracing::info!(relay = self.parts.name, upstream = %self.parts.url, run = run.as_deref().unwrap_or("not told"), "connected");
        match run {
            Some(run) if run != self.parts.run && self.joined => self.other_run(turn, Some(run)),
            // Nothing of the run that was announced so far was given to anybody.
            Some(run) if run != self.parts.run => self.announce(run),
            Some(_) => self.confirm(),
            // A peer's server has no run to tell; what is kept was given one here, unless it came from one that has.
            None if self.passed => self.other_run(turn, None),
            None => self.confirm(),
        }
        self.passed |= passes;
    }

    /// The announced run is the right one: where nothing of it was given yet, the fan-out waits to hear so.
    fn confirm(&mut self) {
        if !self.joined {
            self.say(Item::Run(self.parts.run.clone()));
        }
    }

    /// The upstream streams another run than the one of the ledgers so far; one that says nothing of it gets a name here.
    fn other_run(&mut self, turn: &mut Turn<'_>, run: Option<String>) {
        let before = &self.parts.run;
        tracing::warn!(
            relay = self.parts.name,
            before,
            ?run,
            "the upstream streams another run: what is kept ends here"
        );
        self.parts.counters.add(RelayCounter::Runs, 1);
        self.passed = false;
        let run = run.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
        self.begin_anew(turn, self.parts.start, run);
    }

    fn verified(&mut self) {
        self.backoff.reset();
        self.joined = true;
        let Some(ledger) = self.client.ledger() else { return };
        let counters = &mut self.parts.counters;
        counters.add(RelayCounter::Ledgers, 1);
        counters.add(RelayCounter::Bytes, ledger.packed_bytes);
        counters.add(RelayCounter::Restarts, u64::from(ledger.discarded_partials));
        counters.set(RelayCounter::Latest, u64::from(ledger.sequence));
    }

    /// From here on the ledgers are of another run, or do not go on with what was passed on. The link has room (looked at).
    fn announce(&mut self, run: String) {
        self.parts.run.clone_from(&run);
        self.say(Item::Run(run));
    }

    fn say(&mut self, item: Item) {
        self.unsaid.push_back(item);
        self.speak();
    }

    /// Gives the link what it had no room for.
    fn speak(&mut self) {
        while let Some(item) = self.unsaid.pop_front() {
            if let Err(item) = self.parts.order.push(item) {
                return self.unsaid.push_front(item);
            }
        }
    }

    /// Whether the link takes a message.
    fn has_room(&self) -> bool {
        self.unsaid.is_empty() && self.parts.order.free() > 0
    }

    /// The stream broke off: another connection, another beginning, or the end.
    fn failed(&mut self, turn: &mut Turn<'_>, error: &ClientError) {
        match error {
            ClientError::RunChanged { now, .. } => self.other_run(turn, told(now.as_deref())),
            ClientError::TooFarBehind { requested, bounds: Some((oldest, latest)) }
                if *oldest > 0 && (self.joined || self.begun.is_some()) =>
            {
                tracing::warn!(
                    relay = self.parts.name,
                    requested,
                    oldest,
                    latest,
                    "the upstream does not have the next ledger any more: what is kept ends here"
                );
                self.parts.counters.add(RelayCounter::Gaps, 1);
                self.begin_anew(turn, *oldest, self.parts.run.clone());
            }
            // It has begun anew itself and keeps nothing yet: the ledger that is in flight there will be its oldest.
            error @ ClientError::TooFarBehind { bounds: Some((0, _)), .. } => self.lost(turn, &error.to_string()),
            error if error.is_retryable() => self.lost(turn, &error.to_string()),
            error => {
                let reason = format!("upstream {}: {error}", self.parts.url);
                self.finish(turn, Outcome::Failed, Some(reason));
            }
        }
    }

    /// What follows does not go on with what was: the server is told, and the upstream is asked for another beginning.
    fn begin_anew(&mut self, turn: &mut Turn<'_>, start: u32, run: String) {
        match client(&self.parts, start) {
            Ok(client) => {
                self.hang_up(turn);
                self.client = client;
                (self.joined, self.begun) = (false, None);
                self.announce(run);
            }
            Err(what) => self.finish(turn, Outcome::Failed, Some(what)),
        }
    }

    /// No connection, or none any more: the next one is tried after a pause that grows.
    fn lost(&mut self, turn: &mut Turn<'_>, what: &str) {
        self.parts.counters.add(RelayCounter::Disconnects, 1);
        if !std::mem::replace(&mut self.failure_told, true) {
            tracing::warn!(relay = self.parts.name, upstream = %self.parts.url, what, "no connection to the upstream; it is tried again");
        }
        self.hang_up(turn);
    }

    /// Ends the connections; what the client still says is sent.
    fn hang_up(&mut self, turn: &mut Turn<'_>) {
        self.parts.counters.set(RelayCounter::Connected, 0);
        self.phase = Phase::Closing(turn.now + GOODBYE_NS_MAX);
        for flow in 0..self.connections.len() {
            self.connections[flow].leaving = true;
            self.send(turn, flow);
            let connection = &mut self.connections[flow];
            if connection.connecting {
                let _ = turn.ring.cancel(turn.user_data(CONNECT | flow as u64), turn.user_data(CANCEL));
            } else if !connection.sending {
                connection.cut();
            }
        }
    }

    /// Nothing of the connections is under way any more.
    fn closed(&mut self, now: i64) {
        self.connections.clear();
        if self.stopping.is_some() {
            self.phase = Phase::Ended;
            return;
        }
        // A connection to the tip that broke inside its first ledger goes on with that one.
        if self.client.range().is_tip()
            && self.client.last().is_none()
            && let Some(begun) = self.begun
            && let Ok(client) = client(&self.parts, begun)
        {
            self.client = client;
        }
        let wait_ns = self.backoff.next_ns(random::bytes().map_or(0, u64::from_le_bytes));
        self.phase = Phase::Waiting(now + wait_ns);
    }

    /// Nothing more comes from the upstream.
    fn finish(&mut self, turn: &mut Turn<'_>, outcome: Outcome, reason: Option<String>) {
        match &reason {
            Some(reason) => tracing::error!(relay = self.parts.name, reason, "the relay ends"),
            None => tracing::info!(relay = self.parts.name, "the upstream's source has ended"),
        }
        self.say(Item::Finished(outcome, reason));
        self.stopping.get_or_insert(turn.now);
        self.hang_up(turn);
    }

    /// The relay stops by the operator's will.
    fn leave(&mut self, turn: &mut Turn<'_>) {
        self.client.stop();
        self.hang_up(turn);
    }

    /// Connects the further flows that the upstream agreed to.
    fn open_flows(&mut self, turn: &mut Turn<'_>) {
        let lines = self.client.lines();
        self.parts.counters.set(RelayCounter::Flows, lines as u64);
        while self.greeted && self.connections.len() < lines {
            if let Err(what) = self.connect(turn, self.connections.len()) {
                return self.lost(turn, &what);
            }
        }
    }

    /// Sends, receives, and looks at limits; whether the connections stand.
    fn move_bytes(&mut self, turn: &mut Turn<'_>, drained: bool) {
        for flow in 0..self.connections.len() {
            let connection = &self.connections[flow];
            if let Some(what) = &connection.end
                && drained
            {
                let what = what.clone();
                let error = self.client.flow_disconnected(flow).err();
                let what = error.as_ref().filter(|error| !error.is_retryable()).map_or(what, ToString::to_string);
                match error {
                    Some(error) if !error.is_retryable() => self.failed(turn, &error),
                    _ => self.lost(turn, &what),
                }
                return;
            }
            let streaming = connection.connected && self.client.line(flow).is_streaming();
            if !streaming && turn.now - connection.since > self.parts.dial_timeout.as_nanos() as i64 {
                let seconds = self.parts.dial_timeout.as_secs_f64();
                return self.lost(turn, &format!("no answer in {seconds} s"));
            }
            self.send(turn, flow);
            // The flow whose turn it is, and those that are being answered: what the others have can wait in their sockets.
            if drained && (!streaming || flow == self.client.due()) {
                self.receive(turn, flow);
            }
        }
    }

    fn send(&mut self, turn: &mut Turn<'_>, flow: usize) {
        let connection = &mut self.connections[flow];
        let Some(socket) = connection.socket.as_ref().filter(|_| connection.connected && !connection.sending) else {
            return;
        };
        let line = self.client.line(flow);
        let mut bytes = std::mem::take(&mut connection.send_spare);
        bytes.clear();
        match &mut connection.tls {
            None => line.take_output(&mut bytes),
            Some(tls) => {
                let said = line.output().len();
                // A session that takes no more has an end of its own, which the next receive tells.
                let _ = tls.write_plain(line.output());
                line.sent(said);
                if connection.leaving {
                    tls.close();
                }
                tls.take_cipher(&mut bytes);
            }
        }
        if bytes.is_empty() {
            connection.send_spare = bytes;
            return;
        }
        let length = bytes.len();
        match turn.ring.send(socket.as_fd(), bytes, 0..length, turn.user_data(SEND | flow as u64)) {
            Ok(()) => connection.sending = true,
            Err((error, _)) => turn.fail(format!("io_uring send: {error}")),
        }
    }

    fn sent(&mut self, turn: &mut Turn<'_>, flow: usize, result: i32) {
        let Some(connection) = self.connections.get_mut(flow) else { return };
        connection.sending = false;
        let Some(bytes) = turn.ring.take_bytes() else { return };
        let whole = usize::try_from(result) == Ok(bytes.len());
        connection.send_spare = bytes;
        if connection.leaving {
            connection.cut();
        } else if !whole {
            connection.end.get_or_insert_with(|| "the connection broke".to_string());
        }
    }

    fn receive(&mut self, turn: &mut Turn<'_>, flow: usize) {
        let connection = &mut self.connections[flow];
        let idle = connection.connected && !connection.receiving && connection.end.is_none();
        let Some(socket) = connection.socket.as_ref().filter(|_| idle) else { return };
        let bytes = match &connection.tls {
            None => self.client.line(flow).lend(),
            Some(_) => {
                let mut bytes = std::mem::take(&mut connection.cipher);
                bytes.clear();
                bytes.reserve(RECEIVE_BYTES);
                bytes
            }
        };
        let room = bytes.capacity() - bytes.len();
        match turn.ring.receive(socket.as_fd(), bytes, room, turn.user_data(RECEIVE | flow as u64)) {
            Ok(()) => connection.receiving = true,
            Err((error, bytes)) => {
                if connection.tls.is_none() {
                    self.client.line(flow).give_back(bytes);
                }
                turn.fail(format!("io_uring receive: {error}"));
            }
        }
    }

    fn received(&mut self, turn: &mut Turn<'_>, flow: usize, result: i32) {
        let Some(connection) = self.connections.get_mut(flow) else { return };
        connection.receiving = false;
        let Some(bytes) = turn.ring.take_bytes() else { return };
        if result > 0 {
            self.heard_ns = turn.now;
        } else {
            connection.end.get_or_insert_with(|| match result {
                0 => "the upstream closed the connection".to_string(),
                error => std::io::Error::from_raw_os_error(-error).to_string(),
            });
        }
        // A client that was given up meanwhile has no use for what it lent.
        if self.phase != Phase::Up {
            return;
        }
        let line = self.client.line(flow);
        match &mut connection.tls {
            None => line.give_back(bytes),
            Some(tls) => {
                if let Err(error) = tls.on_cipher(&bytes, |plain| line.feed(plain)) {
                    connection.end.get_or_insert_with(|| error.to_string());
                }
                connection.cipher = bytes;
            }
        }
    }
}

impl Connection {
    /// Nothing is under way on it.
    fn is_idle(&self) -> bool {
        !self.connecting && !self.receiving && !self.sending
    }

    /// Ends it; what is in flight completes.
    fn cut(&mut self) {
        if let Some(socket) = &self.socket {
            tcp::shutdown(socket.as_fd(), Shutdown::Both);
        }
    }
}

/// A client of the upstream from ledger `start` on.
/// The run that an upstream tells, where it has the form of ours. It goes on into header fields, JSON and the archive as it is, so
/// that nothing else does: an upstream that tells something else counts as one that tells nothing.
fn told(run: Option<&str>) -> Option<String> {
    let told = run.filter(|run| run_parts(run).is_some());
    if let (Some(run), None) = (run, told) {
        tracing::warn!(
            bytes = run.len(),
            "what the upstream tells as its run is none (a UUID, perhaps with a network): it is not passed on"
        );
    }
    told.map(String::from)
}

fn client(parts: &RelayParts, start: u32) -> Result<Client, String> {
    let range = Range::new(start, None).map_err(|error| format!("relay {}: {error}", parts.name))?;
    Client::with_flows(range, parts.limits, parts.flows).map_err(|error| format!("relay {}: {error}", parts.name))
}

/// Passes a message on as it is. The link has room, which was looked at.
fn forward(order: &mut LinkSender<Item>, pool: &Pool, message: &Message<'_>) {
    let item = match message {
        Message::Begin(begin) => Item::Begin(*begin),
        Message::Chunk(header, payload) => Item::Message(shared(pool, *header, payload)),
        Message::End(end) => Item::End(*end),
    };
    assert!(order.push(item).is_ok(), "a message is taken only when the link has room");
    // The fan-out sends it while it is verified here.
    order.flush();
}

/// The one copy of a chunk: from the socket's bytes to a buffer that all subscribers share.
fn shared(pool: &Pool, header: ChunkHeader, payload: &[u8]) -> Encoded {
    let bytes = HEADROOM + payload.len();
    // An upstream may cut larger chunks than the pool is for.
    let mut buffer = if bytes <= pool.buffer_bytes() { pool.take() } else { Buffer::from(vec![0; bytes]) };
    buffer[HEADROOM..bytes].copy_from_slice(payload);
    let stated = match header.codec {
        Codec::Raw => None,
        Codec::Zstd => zstd::zstd_safe::get_frame_content_size(payload).ok().flatten(),
    };
    // What a header states is not verified yet, and is only counted.
    let stated = stated.and_then(|stated| usize::try_from(stated).ok()).map(|stated| stated.min(CHUNK_BYTES_MAX));
    let raw_bytes = stated.unwrap_or(payload.len());
    Encoded::in_place(buffer, header, payload.len(), raw_bytes)
}

impl Worker for RelayWorker {
    fn name(&self) -> &str {
        &self.parts.name
    }

    /// It takes input from outside: it stops first.
    fn stage(&self) -> u8 {
        0
    }

    fn start(&mut self, _turn: &mut Turn<'_>) -> Result<Vec<RawFd>, String> {
        Ok(Vec::new())
    }

    fn turn(&mut self, turn: &mut Turn<'_>) -> usize {
        self.now = turn.now;
        self.speak();
        let (mut work, mut drained) = (0, false);
        if self.phase == Phase::Up {
            (work, drained) = self.take(turn);
        }
        if self.phase == Phase::Up {
            self.open_flows(turn);
        }
        if self.phase == Phase::Up {
            self.move_bytes(turn, drained);
        }
        if let Some(since) = self.stopping
            && self.phase == Phase::Up
            && turn.now - since > FINISH_NS_MAX
        {
            self.leave(turn);
        }
        if self.phase != Phase::Up {
            self.advance(turn);
        }
        self.parts.order.flush();
        work
    }

    fn complete(&mut self, turn: &mut Turn<'_>, tag: u64, result: i32) {
        let flow = (tag & !KIND) as usize;
        match tag & KIND {
            CONNECT => self.connected(turn, flow, result),
            RECEIVE => self.received(turn, flow, result),
            SEND => self.sent(turn, flow, result),
            CANCEL => {}
            other => unreachable!("no request is made with tag {other:#x}"),
        }
    }

    fn stays_awake(&self) -> bool {
        self.parts.spin
            && self.phase == Phase::Up
            && self.client.open().is_some()
            && self.now.saturating_sub(self.heard_ns) < LOOK_NS_MAX
    }

    fn deadline(&self) -> Option<i64> {
        let dial = self.parts.dial_timeout.as_nanos() as i64;
        match self.phase {
            Phase::Waiting(until) | Phase::Closing(until) => Some(until),
            // The resolver's thread wakes nobody.
            Phase::Resolving => Some(self.now + 10 * NANOS_PER_MILLI),
            Phase::Up => {
                let dialing = self.connections.iter().map(|connection| connection.since + dial + 1);
                let leaving = self.stopping.map(|since| since + FINISH_NS_MAX + 1);
                dialing.chain(leaving).filter(|&at| at > self.now).min()
            }
            Phase::Ended => None,
        }
    }

    fn stop(&mut self, turn: &mut Turn<'_>) {
        self.stopping.get_or_insert(turn.now);
        match self.phase {
            // The ledger at hand is finished first.
            Phase::Up if self.client.open().is_some() => {}
            Phase::Up => self.leave(turn),
            Phase::Closing(_) => {}
            _ => self.phase = Phase::Ended,
        }
    }

    fn drained(&self) -> bool {
        self.phase == Phase::Ended && self.unsaid.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_the_form_of_a_run_is_passed_on() {
        let id = "00112233-4455-6677-8899-aabbccddeeff";
        let with_network = format!("{id}; net=0102030405060708");
        for run in [id, &with_network] {
            assert_eq!(told(Some(run)).as_deref(), Some(run), "as it came");
        }
        let long = "a".repeat(16 << 10);
        let quoted = format!("{id}\",\"latest\":9,\"x\":\"");
        for run in ["", "abc", &long, &quoted, "00112233-4455-6677-8899-AABBCCDDEEFF", &format!("{id}; net=01")] {
            assert_eq!(told(Some(run)), None, "{run}");
        }
        assert_eq!(told(None), None);
    }
}
