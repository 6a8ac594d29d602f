//! The serve worker: one ring, its listener, its mirrors' connections on the core's io_uring, its datagrams by plain calls.
//!
//! The machine (`mirror::sender`) decides what is sent; this file has sockets, the ring's file and the core's sleep.

use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Producer;
use super::inline::{InlineShared, InlineUdp};
use super::mirror::sender::{Delivery, Room, Sender, ServeSettings, SessionId};
use super::mirror::{CloseReason, StreamPoll};
use super::raw::RawReader;
use super::sockets::Outlets;
use super::stats::{ServeBooks, ServeState};
use super::step::StepError;
use crate::runtime::worker::{Turn, Worker};
use crate::sys::tcp;
use crate::sys::udp::{CALL_MESSAGES, ReceiveBatch, UdpSocket};
use crate::units::NANOS_PER_MILLI;

/// Datagrams per turn: as many as a mirror's step takes.
const DATAGRAMS_PER_TURN: usize = 32;
/// What a mirror sends are frames of 16 to 60 bytes, a NAK each round trip: room for a burst of them.
const RECEIVE_BYTES: usize = 4_096;
/// Bytes that a send buffer begins with: four frames of the default batch of 56-byte records. It grows to 1 MiB at most.
const SEND_BYTES: usize = 64 << 10;
/// Bytes that all streams may take from the ring in one turn, between two looks at the live records: about 50 µs of copying.
const TURN_BYTES: usize = 256 << 10;
/// Bytes of one send, and what one stream may take in a turn: each that is done shows that the mirror reads, at 13 kB/s or more.
const PART_BYTES: usize = 64 << 10;
/// Most bytes of send buffers kept for the next sends; a buffer beyond is freed.
const SPARE_BYTES_MAX: usize = 64 << 20;
/// How often counters are shown, limits by time are looked at and (where nothing wakes a sleeping core) the ring.
const LOOK_NS: i64 = NANOS_PER_MILLI;
/// How often a producer that sends its own datagrams is looked after: the heartbeat's interval is twice this.
const INLINE_LOOK_NS: i64 = NANOS_PER_MILLI / 2;
/// How often the ring's file is looked at: a death or a replacement is known well within the stated 250 ms.
const FILE_LOOK_NS: i64 = 50 * NANOS_PER_MILLI;
/// How often a producer that died is looked for again: the file of a mirror, served by a hub, may be taken over.
const LOOK_AGAIN_NS: i64 = 500 * NANOS_PER_MILLI;
/// How often the list of sessions is shown.
const SESSIONS_LOOK_NS: i64 = 200 * NANOS_PER_MILLI;
/// How long a stopping worker goes on sending what has been published.
const DRAIN_NS: i64 = 200 * NANOS_PER_MILLI;
/// Send buffer asked for datagrams: bursts of GSO trains, four of the longest.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// Kinds of completions; the connection's place stands below.
const ACCEPT: u64 = 1 << 40;
const PUNCH: u64 = 2 << 40;
const FUTEX: u64 = 3 << 40;
const RECEIVE: u64 = 4 << 40;
const SEND: u64 = 5 << 40;
const CANCEL: u64 = 6 << 40;
const KIND: u64 = 0xFF << 40;

/// What a serve worker is made of.
pub(super) struct ServeParts {
    pub(super) name: String,
    pub(super) ring: PathBuf,
    pub(super) bind: SocketAddr,
    pub(super) settings: ServeSettings,
    pub(super) interface: std::net::Ipv4Addr,
    pub(super) futex: bool,
    pub(super) dead_after: Duration,
    pub(super) once: bool,
    pub(super) seed: [u8; 32],
    pub(super) books: ServeBooks,
    pub(super) address: Arc<OnceLock<SocketAddr>>,
}

struct Connection {
    id: SessionId,
    socket: OwnedFd,
    peer: SocketAddr,
    receiving: bool,
    sending: bool,
    /// So much was sent of the buffer before the part that is being sent.
    sent: usize,
    closing: bool,
}

/// The serve worker.
pub(super) struct ServeWorker {
    parts: ServeParts,
    sender: Sender<RawReader>,
    state: ServeState,
    listener: Option<OwnedFd>,
    accepting: bool,
    outlets: Outlets,
    punches: Option<Box<ReceiveBatch>>,
    punch_polled: bool,
    punch_waits: bool,
    connections: Vec<Option<Connection>>,
    free: Vec<u32>,
    /// The connection that has its turn first.
    first: usize,
    /// Of streams, one frame a turn.
    stepped: bool,
    /// What the next session appends to.
    outgoing: Vec<u8>,
    spare: Vec<Vec<u8>>,
    spare_bytes: usize,
    futex_armed: bool,
    futex_number: u64,
    futex_known: bool,
    announced: bool,
    missing_told: bool,
    served_one: bool,
    inline: Option<Arc<InlineShared>>,
    inline_look_at: i64,
    look_at: i64,
    file_look_at: i64,
    look_again_at: i64,
    sessions_look_at: i64,
    stopping: Option<i64>,
    /// The last turn found nothing to send.
    idle: bool,
    now: i64,
}

impl ServeWorker {
    pub(super) fn new(parts: ServeParts) -> ServeWorker {
        ServeWorker {
            sender: Sender::new(parts.settings.clone(), parts.seed),
            parts,
            state: ServeState::default(),
            listener: None,
            accepting: false,
            outlets: Outlets::default(),
            punches: None,
            punch_polled: false,
            punch_waits: false,
            connections: Vec::new(),
            free: Vec::new(),
            first: 0,
            stepped: false,
            outgoing: Vec::with_capacity(SEND_BYTES),
            spare: Vec::new(),
            spare_bytes: 0,
            futex_armed: false,
            futex_number: 0,
            futex_known: false,
            announced: false,
            missing_told: false,
            served_one: false,
            inline: None,
            inline_look_at: 0,
            look_at: 0,
            file_look_at: 0,
            look_again_at: 0,
            sessions_look_at: 0,
            stopping: None,
            idle: false,
            now: 0,
        }
    }

    /// Of the streams only one frame goes out in a turn: a caller has its own work between turns.
    pub(super) fn bound_turns(&mut self) {
        self.stepped = true;
    }

    pub(super) fn state(&self) -> &ServeState {
        &self.state
    }

    pub(super) fn sender(&self) -> &Sender<RawReader> {
        &self.sender
    }

    /// The datagram half, for a producer that sends its own. `None` without a ring, without a UDP transport, or when it is
    /// out already.
    pub(super) fn take_inline(&mut self) -> Result<Option<InlineUdp>, StepError> {
        if self.sender.ring().is_none() {
            return Ok(None);
        }
        let ring = RawReader::open(&self.parts.ring, false)?;
        // Punches are still taken here: the socket is shared.
        let outlets = self.outlets.shared()?;
        let Some(live) = self.sender.detach_live() else { return Ok(None) };
        let shared = Arc::new(InlineShared::new(live, ring, outlets));
        self.inline = Some(shared.clone());
        Ok(Some(InlineUdp::new(shared)))
    }

    /// Carries changes of the destinations to the producer's half, and sends its heartbeats while it is idle.
    fn look_after_inline(&mut self, now: i64) -> usize {
        let Some(inline) = &self.inline else { return 0 };
        self.sender.look_after_detached(inline.counters(), now);
        let mut updates = std::iter::from_fn(|| self.sender.next_live_update()).peekable();
        if updates.peek().is_some() {
            inline.update(updates, now);
        }
        inline.send(now, DATAGRAMS_PER_TURN)
    }

    /// Binds what is to be bound; once.
    pub(super) fn open_sockets(&mut self) -> Result<(), String> {
        if self.listener.is_some() {
            return Ok(());
        }
        let parts = &self.parts;
        let listener = tcp::patiently(|| tcp::listen(&parts.bind))
            .map_err(|error| format!("bind = \"{}\": {error}; {}", parts.bind, tcp::unbound(&error)))?;
        let address = tcp::local_address(listener.as_fd()).map_err(|error| format!("bind: {error}"))?;
        let _ = parts.address.set(address);
        self.listener = Some(listener);
        let any = SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, 0));
        if let Some(multicast) = &parts.settings.multicast {
            let told = |what: &str, error: std::io::Error| {
                let (group, interface) = (multicast.group, parts.interface);
                format!("multicast = \"{group}\" through {interface}: {what}: {error}; name an interface's own address")
            };
            let socket = UdpSocket::bind(&any, false).map_err(|error| told("socket", error))?;
            socket.send_multicast(parts.interface, multicast.ttl).map_err(|error| told("interface", error))?;
            let _ = socket.send_buffer(SEND_BUFFER_BYTES);
            socket.connect(&multicast.group.into()).map_err(|error| told("route", error))?;
            self.outlets.multicast = Some(socket);
        }
        if let Some(port) = parts.settings.unicast_port {
            // From the address that mirrors connected to, where it is one: they take datagrams from nowhere else.
            let ip = if parts.bind.is_ipv4() { parts.bind.ip() } else { any.ip() };
            let socket = tcp::patiently(|| UdpSocket::bind(&SocketAddr::from((ip, port)), false))
                .map_err(|error| format!("udp = {port}: {error}; {}", tcp::unbound(&error)))?;
            let _ = socket.send_buffer(SEND_BUFFER_BYTES);
            self.outlets.unicast = Some(socket);
            self.punches = Some(Box::default());
        }
        Ok(())
    }

    /// Whether somebody is sent new records by this worker. A producer that sends its own datagrams must not have to wake
    /// it with each of them: that costs a push as much as the datagram does.
    fn waits_for_records(&self) -> bool {
        let streams = || self.sender.sessions().any(|session| session.delivery == Some(Delivery::Stream));
        self.state.connections > 0 && (self.inline.is_none() || streams())
    }

    /// Opens the ring, or what has taken its place; looks whether its producer lives.
    fn look_at_file(&mut self, turn: &mut Turn<'_>) {
        let producer = self.look_at_producer(turn.now);
        if producer.is_some_and(|producer| producer != Producer::Replaced && !self.replaced_by_now(producer)) {
            return;
        }
        let opened = RawReader::open(&self.parts.ring, self.parts.futex).or_else(|error| match self.parts.futex {
            // A ring that this process may only read is looked at by time.
            true => RawReader::open(&self.parts.ring, false).map_err(|_| error),
            false => Err(error),
        });
        match opened {
            Ok(ring) => self.attach(turn, ring),
            Err(error) => {
                self.state.open_failures += u64::from(self.parts.ring.exists());
                if !std::mem::replace(&mut self.missing_told, true) {
                    tracing::warn!(serve = self.parts.name, %error, "no ring to serve yet");
                }
            }
        }
    }

    /// What is known of the ring's producer; `None` without a ring. Mirrors are told when there is none any more.
    fn look_at_producer(&mut self, now: i64) -> Option<Producer> {
        let ring = self.sender.ring_mut()?;
        let mut producer = ring.producer(now);
        if producer == Producer::Died && now >= self.look_again_at {
            self.look_again_at = now + LOOK_AGAIN_NS;
            ring.look_again();
            producer = ring.producer(now);
        }
        self.state.producer_alive = producer == Producer::Alive;
        self.state.producer_stalled = producer == Producer::Stalled;
        // A peer's producer need not lock its file: only of ours a free lock means death.
        let gone = ring.incarnation() != 0 && matches!(producer, Producer::Died | Producer::Stalled);
        self.sender.set_producer_alive(!gone);
        Some(producer)
    }

    /// A dead producer's path may lead to a new ring before the next look is due.
    fn replaced_by_now(&self, producer: Producer) -> bool {
        producer == Producer::Died
            && self.sender.ring().and_then(RawReader::path_now) == Some(crate::sys::shm::PathNow::Replaced)
    }

    fn attach(&mut self, turn: &mut Turn<'_>, ring: RawReader) {
        self.withdraw();
        if std::mem::take(&mut self.futex_armed) {
            let wait = turn.user_data(FUTEX | self.futex_number);
            let _ = turn.ring.cancel_wait(wait, turn.user_data(CANCEL));
        }
        self.futex_number = (self.futex_number + 1) & 0xFFFF;
        tracing::info!(
            serve = self.parts.name,
            ring = %self.parts.ring.display(),
            head = ring.head(),
            incarnation = format!("{:016x}", ring.incarnation()),
            "serving"
        );
        (self.state.attached, self.missing_told) = (true, false);
        // A producer's own sender stays with its ring; this one's datagrams are sent here until it is taken out as well.
        self.inline = None;
        self.sender.attach(ring, turn.now);
        self.look_at_producer(turn.now);
    }

    fn accept(&mut self, turn: &mut Turn<'_>) {
        let Some(listener) = &self.listener else { return };
        self.accepting = turn.ring.accept(listener.as_fd(), turn.user_data(ACCEPT)).is_ok();
    }

    fn accepted(&mut self, turn: &mut Turn<'_>, result: i32) {
        self.accepting = turn.ring.more();
        let Some(socket) = turn.ring.take_descriptor() else {
            self.state.accepts_failed += u64::from(result < 0);
            return;
        };
        // One that has gone already has no address.
        let Ok(peer) = tcp::peer_address(socket.as_fd()) else { return };
        if self.stopping.is_some() || (self.parts.once && self.served_one) {
            return;
        }
        let _ = tcp::tune(socket.as_fd(), self.parts.dead_after);
        match self.sender.accept(peer, turn.now) {
            Ok(id) => {
                tracing::debug!(serve = self.parts.name, %peer, "connection");
                let connection =
                    Connection { id, socket, peer, receiving: false, sending: false, sent: 0, closing: false };
                let at = match self.free.pop() {
                    Some(at) => at as usize,
                    None => {
                        self.connections.push(None);
                        self.connections.len() - 1
                    }
                };
                self.connections[at] = Some(connection);
                self.state.connections += 1;
                self.receive(turn, at, Vec::with_capacity(RECEIVE_BYTES));
            }
            Err(refusal) => tracing::debug!(serve = self.parts.name, %peer, %refusal, "connection refused"),
        }
    }

    fn receive(&mut self, turn: &mut Turn<'_>, at: usize, mut bytes: Vec<u8>) {
        let Some(connection) = self.connections[at].as_mut() else { return };
        bytes.clear();
        let tag = turn.user_data(RECEIVE | at as u64);
        connection.receiving = turn.ring.receive(connection.socket.as_fd(), bytes, RECEIVE_BYTES, tag).is_ok();
        if !connection.receiving {
            self.close(at, None);
        }
    }

    fn received(&mut self, turn: &mut Turn<'_>, at: usize, result: i32) {
        let bytes = turn.ring.take_bytes();
        let Some(connection) = self.connections.get_mut(at).and_then(Option::as_mut) else { return };
        connection.receiving = false;
        let (id, closing) = (connection.id, connection.closing);
        match bytes {
            Some(bytes) if result > 0 && !closing => {
                self.sender.on_bytes(id, &bytes, turn.now);
                self.receive(turn, at, bytes);
                if self.parts.once && !self.served_one {
                    self.look_for_the_one();
                }
            }
            _ => {
                self.close(at, None);
                self.forget_if_idle(at);
            }
        }
    }

    /// With `--once`: the first mirror whose handshake is done is the one. Somebody who only knocked was not.
    fn look_for_the_one(&mut self) {
        let Some(one) = self.sender.sessions().find(|session| session.delivery.is_some()).map(|session| session.id)
        else {
            return;
        };
        self.served_one = true;
        for at in 0..self.connections.len() {
            if self.connections[at].as_ref().is_some_and(|connection| connection.id != one) {
                self.close(at, None);
            }
        }
    }

    fn sent(&mut self, turn: &mut Turn<'_>, at: usize, result: i32) {
        let bytes = turn.ring.take_bytes();
        let Some(connection) = self.connections.get_mut(at).and_then(Option::as_mut) else { return };
        connection.sending = false;
        let Some(bytes) = bytes else { return self.forget_if_idle(at) };
        let part = PART_BYTES.min(bytes.len() - connection.sent);
        let whole = usize::try_from(result) == Ok(part);
        let sent = connection.sent + part;
        if whole && sent < bytes.len() && !connection.closing {
            self.sender.on_sent(connection.id, turn.now);
            return self.send_part(turn, at, bytes, sent);
        }
        self.keep_spare(bytes);
        if !whole {
            self.close(at, None);
        }
        self.forget_if_idle(at);
    }

    /// Sends the part that begins at `from` of what a session has to say.
    fn send_part(&mut self, turn: &mut Turn<'_>, at: usize, bytes: Vec<u8>, from: usize) {
        let Some(connection) = self.connections[at].as_mut() else { return };
        connection.sent = from;
        let part = from..bytes.len().min(from + PART_BYTES);
        let tag = turn.user_data(SEND | at as u64);
        connection.sending = turn.ring.send(connection.socket.as_fd(), bytes, part, tag).is_ok();
        if !connection.sending {
            self.close(at, None);
        }
    }

    fn keep_spare(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        if self.spare_bytes + bytes.capacity() <= SPARE_BYTES_MAX {
            self.spare_bytes += bytes.capacity();
            self.spare.push(bytes);
        }
    }

    fn take_spare(&mut self) -> Vec<u8> {
        match self.spare.pop() {
            Some(bytes) => {
                self.spare_bytes -= bytes.capacity();
                bytes
            }
            None => Vec::with_capacity(SEND_BYTES),
        }
    }

    /// Ends a connection; its place is free once its requests are done. With a reason it is the machine's wish.
    fn close(&mut self, at: usize, reason: Option<CloseReason>) {
        let Some(connection) = self.connections[at].as_mut() else { return };
        if connection.closing {
            return;
        }
        connection.closing = true;
        match reason {
            Some(reason) => tracing::debug!(serve = self.parts.name, peer = %connection.peer, %reason, "closed"),
            None => {
                tracing::debug!(serve = self.parts.name, peer = %connection.peer, "gone");
                self.sender.on_closed(connection.id);
            }
        }
        tcp::shutdown(connection.socket.as_fd(), Shutdown::Both);
        self.forget_if_idle(at);
    }

    fn forget_if_idle(&mut self, at: usize) {
        let done = |c: &Connection| c.closing && !c.receiving && !c.sending;
        if self.connections[at].as_ref().is_some_and(done) {
            self.connections[at] = None;
            self.free.push(at as u32);
            self.state.connections -= 1;
        }
    }

    /// Lets sessions that have no send under way send, in turns, as far as a turn's bytes go; none waits for another's. How
    /// many sends.
    fn poll_streams(&mut self, turn: &mut Turn<'_>) -> usize {
        let mut sends = 0;
        let count = self.connections.len();
        let start = self.first;
        let mut left = Room { bytes: TURN_BYTES, frames: if self.stepped { 1 } else { usize::MAX } };
        for at in (start..count).chain(0..start.min(count)) {
            if left.bytes == 0 || left.frames == 0 {
                // Who had none is the first next time.
                self.first = at;
                break;
            }
            let Some(connection) = self.connections[at].as_mut().filter(|c| !c.sending && !c.closing) else { continue };
            let room = Room { bytes: left.bytes.min(PART_BYTES), ..left };
            match self.sender.poll_stream_within(connection.id, room, &mut self.outgoing, turn.now) {
                StreamPoll::Idle => {}
                StreamPoll::Close(reason) => {
                    self.outgoing.clear();
                    self.close(at, Some(reason));
                }
                StreamPoll::Data => {
                    let next = self.take_spare();
                    let bytes = std::mem::replace(&mut self.outgoing, next);
                    left.bytes = left.bytes.saturating_sub(bytes.len());
                    left.frames = if self.stepped { 0 } else { left.frames };
                    self.send_part(turn, at, bytes, 0);
                    sends += 1;
                }
            }
        }
        sends
    }

    /// Takes PUNCH datagrams; a poll says when there are any, so that none costs nothing.
    fn take_punches(&mut self, turn: &mut Turn<'_>) -> usize {
        let (Some(socket), Some(batch)) = (&self.outlets.unicast, &mut self.punches) else { return 0 };
        if !self.punch_polled {
            let tag = turn.user_data(PUNCH);
            self.punch_polled = turn.ring.poll_once(socket.as_fd(), tag).is_ok();
        }
        if !self.punch_waits {
            return 0;
        }
        let mut taken = 0;
        while taken < DATAGRAMS_PER_TURN {
            if batch.is_empty() && !matches!(socket.receive(batch, CALL_MESSAGES), Ok(1..)) {
                self.punch_waits = false;
                break;
            }
            while let Some((from, bytes)) = batch.next_datagram() {
                self.sender.on_datagram(from, bytes, turn.now);
                taken += 1;
            }
        }
        taken
    }

    /// What is looked at by time.
    fn look(&mut self, turn: &mut Turn<'_>) {
        self.look_at = turn.now + LOOK_NS;
        while let Some((id, reason)) = self.sender.next_closed(turn.now) {
            let place = |c: &Option<Connection>| c.as_ref().is_some_and(|c| c.id == id && !c.closing);
            if let Some(at) = self.connections.iter().position(place) {
                self.close(at, Some(reason));
            }
        }
        if !self.accepting && self.stopping.is_none() {
            self.accept(turn);
        }
        if turn.now >= self.file_look_at {
            self.file_look_at = turn.now + FILE_LOOK_NS;
            self.look_at_file(turn);
        }
        if self.parts.once && self.served_one && self.state.connections == 0 {
            self.state.ended = true;
        }
        if let Some(ring) = self.sender.ring() {
            (self.state.head, self.state.incarnation) = (ring.head(), ring.incarnation());
        }
        self.state.machine = *self.sender.counters();
        self.parts.books.write(&self.state);
        if turn.now >= self.sessions_look_at
            && let Ok(mut shown) = self.parts.books.sessions.try_lock()
        {
            self.sessions_look_at = turn.now + SESSIONS_LOOK_NS;
            shown.clear();
            shown.extend(self.sender.sessions());
        }
    }

    fn withdraw(&mut self) {
        if std::mem::take(&mut self.announced)
            && let Some(ring) = self.sender.ring()
        {
            ring.withdraw();
        }
    }
}

impl Worker for ServeWorker {
    fn name(&self) -> &str {
        &self.parts.name
    }

    /// After the arbiters, which may publish into the ring.
    fn stage(&self) -> u8 {
        2
    }

    fn start(&mut self, turn: &mut Turn<'_>) -> Result<Vec<RawFd>, String> {
        self.now = turn.now;
        self.open_sockets()?;
        self.futex_known = self.parts.futex && turn.ring.knows_futex_wait();
        self.look(turn);
        Ok(Vec::new())
    }

    fn turn(&mut self, turn: &mut Turn<'_>) -> usize {
        self.now = turn.now;
        let mut work = match self.inline {
            None => self.sender.poll_datagrams(turn.now, &mut self.outlets, DATAGRAMS_PER_TURN),
            Some(_) if turn.now < self.inline_look_at => 0,
            Some(_) => {
                self.inline_look_at = turn.now + INLINE_LOOK_NS;
                self.look_after_inline(turn.now)
            }
        };
        work += self.poll_streams(turn);
        work += self.take_punches(turn);
        // A full socket empties within microseconds: that is no time to sleep.
        work += usize::from(self.sender.is_datagram_blocked());
        if turn.now >= self.look_at {
            self.look(turn);
        }
        self.idle = work == 0;
        work
    }

    fn complete(&mut self, turn: &mut Turn<'_>, tag: u64, result: i32) {
        let at = (tag & !KIND) as usize;
        match tag & KIND {
            ACCEPT => self.accepted(turn, result),
            PUNCH => (self.punch_polled, self.punch_waits) = (false, true),
            // A wait on an earlier ring's word is no longer counted with.
            FUTEX => self.futex_armed &= at as u64 != self.futex_number,
            CANCEL => {}
            RECEIVE => self.received(turn, at, result),
            SEND => self.sent(turn, at, result),
            other => unreachable!("no request is made with tag {other:#x}"),
        }
    }

    /// Announces the sleeper to the producer, as any reader does, and waits on the ring's futex.
    fn before_sleep(&mut self, turn: &mut Turn<'_>) {
        if !self.futex_known || self.announced || !self.waits_for_records() {
            return;
        }
        let Some(ring) = self.sender.ring() else { return };
        let Some(value) = ring.announce(ring.head() + 1) else { return };
        self.announced = true;
        if !self.futex_armed
            && let Some(word) = ring.futex()
        {
            let tag = turn.user_data(FUTEX | self.futex_number);
            self.futex_armed = turn.ring.futex_wait(word, value, tag).is_ok();
        }
    }

    fn after_sleep(&mut self) {
        self.withdraw();
    }

    fn deadline(&self) -> Option<i64> {
        // Where nothing else wakes the core for a record it looks by time.
        let woken = !self.waits_for_records() || (self.announced && self.futex_armed);
        let by_time = if woken { self.file_look_at } else { self.look_at };
        let inline = self.inline.is_some() && self.sender.has_datagram_work();
        let inline = if inline { self.inline_look_at } else { i64::MAX };
        Some(self.sender.deadline().unwrap_or(i64::MAX).min(by_time).min(inline))
    }

    fn stop(&mut self, turn: &mut Turn<'_>) {
        self.stopping = Some(turn.now);
        self.idle = false;
        self.state.head = self.sender.ring().map_or(0, RawReader::head);
        // The request holds the listener open.
        let _ = turn.ring.cancel(turn.user_data(ACCEPT), turn.user_data(CANCEL));
        self.listener = None;
    }

    fn drained(&self) -> bool {
        let Some(since) = self.stopping else { return false };
        let sending = self.connections.iter().flatten().any(|connection| connection.sending);
        let behind = self.sender.sessions().any(|session| {
            let streams = session.delivery == Some(Delivery::Stream);
            session.asks || (streams && session.next <= self.state.head && session.next > 0)
        });
        (self.idle && !sending && !behind) || self.now - since > DRAIN_NS
    }

    fn finish(&mut self) {
        self.withdraw();
        for at in 0..self.connections.len() {
            self.close(at, None);
        }
        self.state.machine = *self.sender.counters();
        self.parts.books.write(&self.state);
    }
}
