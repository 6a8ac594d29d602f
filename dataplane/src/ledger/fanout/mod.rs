//! All subscribers of a server: their connections on the core's io_uring, and who is polled when.
//!
//! May use: `sys`, `wire`, and the pure machines of `ledger`. Never does: wait, look at links, or know where ledgers come from.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::archive::{Lost, StoredFrames};
use super::hub::{Hub, Stored};
use super::session::{Connection, Server, Step, TimeLimits};
use super::stats::FanoutCounters;
use crate::sys::tcp;
use crate::sys::uring::CoreRing;
use crate::sys::uring::shared::{Batch, PARTS_MAX};
use crate::units::NANOS_PER_MILLI;

pub(super) mod gate;
mod handshakes;
mod peer;
pub(super) mod secure;
mod stored;
mod waiting;

use gate::{Crowded, DoorOf, Gate};
pub use gate::{GateLimits, TokenCheck};
use handshakes::Handshakes;
use peer::{Peer, Reading, Stage};
pub(super) use secure::TlsServer;
use waiting::Waiting;

/// Most bytes of one send: four chunks of the default size. More would only lengthen the turn: a socket's buffer takes at most 4 MiB
/// by default.
const SEND_BYTES_MAX: usize = 1 << 20;
/// Fewest bytes that a connection may have on its way, however many there are. A message may be longer.
const SEND_BYTES_MIN: usize = 64 << 10;
/// What all connections together may have on their way before each one gets less: it bounds the messages that slow ones keep alive.
const SENDING_BYTES_MAX: usize = 256 << 20;
/// Bytes that subscribers who are behind are given in one turn while a ledger is open: about 0.2 ms of copying between two chunks,
/// which come every 0.13 ms at best.
const REPLAY_TURN_BYTES: usize = 1 << 20;
/// The same while no ledger is open.
const REPLAY_TURN_BYTES_BETWEEN: usize = 8 << 20;
/// Bytes that a connection reads into until its request is whole; a request is under 1 KiB.
const REQUEST_BYTES: usize = 1 << 10;
/// Bytes that a subscriber's connection reads into: it says nothing but its close.
const SUBSCRIBER_BYTES: usize = 160;
/// Most bytes that are encrypted for one connection at a time: what its buffer holds, and some 30 µs of work.
const SECURE_BYTES_MAX: usize = 256 << 10;
/// Most buffers of encrypted bytes that are kept to be used again, each about [`SECURE_BYTES_MAX`] long.
const SPARE_CIPHERS_MAX: usize = 64;
/// Longest buffer that is kept: a chunk of the largest size is rare.
const SPARE_CIPHER_BYTES_MAX: usize = 2 * SECURE_BYTES_MAX;
/// Most batches that are kept to be used again.
const SPARE_BATCHES_MAX: usize = 1_024;
/// How long the other half of a connection that is done may take to end: a client has its answer a round trip later.
const LINGER_NS: i64 = 1_000 * NANOS_PER_MILLI;
/// How often the time-outs of all connections are looked at.
const LOOK_NS: i64 = 100 * NANOS_PER_MILLI;
/// Connections whose time-outs are looked at in one turn: a few µs.
const LOOKS_PER_TURN: usize = 256;
/// Into how many parts a write's time-out is cut, after each of which it is looked at what was acknowledged.
const ACK_LOOKS: i64 = 4;

/// Kinds of completions; the connection's place stands below.
const ACCEPT: u64 = 1 << 40;
const RECEIVE: u64 = 2 << 40;
const SEND: u64 = 3 << 40;
const CANCEL: u64 = 4 << 40;
/// The archive's first tag.
pub(super) const ARCHIVE: u64 = 16 << 40;
const KIND: u64 = 0xFF << 40;

/// How connections are treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AudienceSettings {
    /// Who comes in.
    pub gate: GateLimits,
    /// How long one waits for the other side.
    pub time: TimeLimits,
    /// An idle connection whose other side answers no probe for this long is dead.
    pub dead_after: Duration,
}

/// What everything here works on: the core's ring, the worker's place on it, what there is to give, and the time.
pub(super) struct Context<'a> {
    pub(super) ring: &'a mut CoreRing,
    /// The `user_data` of this worker's tag 0.
    pub(super) base: u64,
    pub(super) hub: &'a mut Hub,
    pub(super) run: &'a str,
    pub(super) now: i64,
}

/// All connections.
pub(super) struct Audience {
    settings: AudienceSettings,
    gate: Gate,
    tokens: Option<TokenCheck>,
    tls: Option<TlsServer>,
    listener: Option<OwnedFd>,
    accepting: bool,
    peers: Vec<Option<Peer>>,
    free: Vec<u32>,
    /// What each of them waits for; who waits for nothing has a part in no publish.
    waiting: Waiting,
    /// TLS handshakes that wait for their turn.
    handshakes: Handshakes,
    /// Connections to be polled, each once.
    ready: VecDeque<u32>,
    /// Those of them that are behind, while the others are polled.
    behind: VecDeque<u32>,
    /// Connections that want a read of a stored ledger.
    wanted: VecDeque<u32>,
    /// Boxed, because that is how the ring takes and gives them.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Batch>>,
    /// Buffers of encrypted bytes.
    ciphers: Vec<Arc<Vec<u8>>>,
    /// What was decrypted.
    plain: Vec<u8>,
    sending: usize,
    sending_live: usize,
    sending_bytes: usize,
    look_at: i64,
    look_from: usize,
    next_id: u64,
    /// Ledgers behind, of each subscriber's connection, while they are sorted.
    lags: Vec<u64>,
    pub(super) counters: FanoutCounters,
}

impl Audience {
    /// Nobody yet. `seed` is a random number: subscriptions of several flows are numbered from it.
    pub(super) fn new(
        settings: AudienceSettings,
        tokens: Option<TokenCheck>,
        tls: Option<TlsServer>,
        listener: OwnedFd,
        seed: u64,
    ) -> Audience {
        Audience {
            settings,
            gate: Gate::new(settings.gate),
            tokens,
            tls,
            listener: Some(listener),
            accepting: false,
            peers: Vec::new(),
            free: Vec::new(),
            waiting: Waiting::default(),
            handshakes: Handshakes::default(),
            ready: VecDeque::new(),
            behind: VecDeque::new(),
            wanted: VecDeque::new(),
            spare: Vec::new(),
            ciphers: Vec::new(),
            plain: Vec::new(),
            sending: 0,
            sending_live: 0,
            sending_bytes: 0,
            look_at: 0,
            look_from: 0,
            next_id: seed,
            lags: Vec::new(),
            counters: FanoutCounters::default(),
        }
    }

    /// Subscribers; one with several flows counts once.
    pub(super) fn subscribers(&self) -> usize {
        self.gate.subscribers()
    }

    /// Whether there is no connection.
    pub(super) fn is_empty(&self) -> bool {
        self.gate.connections() == 0
    }

    /// Whether something live is on its way.
    pub(super) fn is_sending_live(&self) -> bool {
        self.sending_live > 0
    }

    /// Nobody is taken in any more, and who has asked for nothing yet is let go: there is nothing to drain.
    pub(super) fn close_door(&mut self, cx: &mut Context<'_>) {
        // The request holds the listener open.
        let _ = cx.ring.cancel(cx.base | ACCEPT, cx.base | CANCEL);
        self.listener = None;
        for at in 0..self.peers.len() {
            if self.peers[at].as_ref().is_some_and(|peer| peer.machine.is_waiting_for_request()) {
                self.cut(at);
            }
        }
    }

    fn accept(&mut self, cx: &mut Context<'_>) {
        let Some(listener) = &self.listener else { return };
        self.accepting = cx.ring.accept(listener.as_fd(), cx.base | ACCEPT).is_ok();
    }

    /// A completion of a connection's request.
    pub(super) fn complete(&mut self, cx: &mut Context<'_>, tag: u64, result: i32) {
        let at = (tag & !KIND) as usize;
        match tag & KIND {
            ACCEPT => self.accepted(cx, result),
            RECEIVE => self.received(cx, at, result),
            SEND => self.sent(cx, at, result),
            CANCEL => {}
            other => unreachable!("no request is made with tag {other:#x}"),
        }
    }

    // Without TLS there is no session to come to.
    #[cfg_attr(not(feature = "ledger-tls"), allow(unreachable_code, unused_mut))]
    fn accepted(&mut self, cx: &mut Context<'_>, result: i32) {
        self.accepting = cx.ring.more();
        let Some(socket) = cx.ring.take_descriptor() else {
            self.counters.accepts_failed += u64::from(result < 0 && self.listener.is_some());
            return;
        };
        if self.listener.is_none() {
            return;
        }
        // One that has gone already has no address.
        let Ok(peer) = tcp::peer_address(socket.as_fd()) else { return };
        match self.gate.connect(peer.ip()) {
            Ok(()) => {}
            Err(Crowded::All) => {
                self.counters.refused_connections += 1;
                return;
            }
            Err(Crowded::Address) => {
                self.counters.refused_address_connections += 1;
                return;
            }
        }
        let _ = tcp::tune_patiently(socket.as_fd(), self.settings.dead_after);
        self.counters.accepted += 1;
        let machine = Connection::with_limits(cx.now, self.settings.time);
        let mut peer = Peer::new(machine, socket, peer.ip());
        if let Some(tls) = &mut self.tls {
            match tls.session() {
                Ok(session) => peer.tls = Some(Box::new(session)),
                Err(_) => {
                    self.counters.refused_tls += 1;
                    return self.gate.disconnect(peer.address, None);
                }
            }
        }
        let at = match self.free.pop() {
            Some(at) => at as usize,
            None => {
                self.peers.push(None);
                self.peers.len() - 1
            }
        };
        self.peers[at] = Some(peer);
        self.waiting.set(at, None);
        self.receive(cx, at, Vec::new());
    }

    fn receive(&mut self, cx: &mut Context<'_>, at: usize, mut bytes: Vec<u8>) {
        let Some(peer) = self.peers[at].as_mut() else { return };
        let most = if peer.machine.is_subscriber() { SUBSCRIBER_BYTES } else { REQUEST_BYTES };
        bytes.clear();
        if bytes.capacity() > most {
            bytes = Vec::new();
        }
        bytes.reserve_exact(most);
        peer.receiving = cx.ring.receive(peer.socket.as_fd(), bytes, most, cx.base | RECEIVE | at as u64).is_ok();
        if !peer.receiving {
            self.cut(at);
        }
    }

    fn received(&mut self, cx: &mut Context<'_>, at: usize, result: i32) {
        let bytes = cx.ring.take_bytes();
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else { return };
        peer.receiving = false;
        let Some(bytes) = bytes.filter(|_| result > 0) else { return self.hung_up(at, result) };
        if peer.stage == Stage::Open && peer.tls.as_ref().is_some_and(|session| session.is_handshaking()) {
            // Nothing more is received until then, and its place stays its own.
            peer.receiving = true;
            return self.handshakes.put_aside(at as u32, bytes);
        }
        self.take_in(cx, at, bytes);
    }

    /// Steps of handshakes, as many as a turn may take.
    fn shake_hands(&mut self, cx: &mut Context<'_>) {
        for _ in 0..self.handshakes.allowed(cx.hub.open_sequence().is_some(), cx.now) {
            let Some((at, bytes)) = self.handshakes.take() else { return };
            if let Some(peer) = self.peers[at as usize].as_mut() {
                peer.receiving = false;
                self.take_in(cx, at as usize, bytes);
            }
        }
    }

    /// What came on a connection.
    fn take_in(&mut self, cx: &mut Context<'_>, at: usize, bytes: Vec<u8>) {
        let Some(peer) = self.peers[at].as_mut() else { return };
        match peer.stage {
            Stage::Closing => return self.forget_if_idle(at),
            // What comes after the end is dropped.
            Stage::Lingering(_) => {}
            Stage::Open => {
                let mut bytes = &bytes[..];
                let mut said_all = false;
                if let Some(session) = &mut peer.tls {
                    self.plain.clear();
                    if session.on_bytes(bytes).is_err() {
                        self.counters.refused_tls += u64::from(session.is_handshaking());
                        // Its last word tells the client why.
                        peer.ended = true;
                    }
                    session.read_plain(&mut self.plain);
                    (bytes, said_all) = (&self.plain, session.peer_closed());
                }
                let server = Server { run: cx.run, subscribers: self.gate.subscribers() };
                let mut door = DoorOf {
                    gate: &mut self.gate,
                    tokens: self.tokens.as_mut(),
                    address: peer.address,
                    fresh_id: self.next_id,
                    entered: &mut peer.entered,
                };
                let asked = peer.machine.is_waiting_for_request();
                peer.machine.on_bytes_at(bytes, cx.hub, server, &mut door, cx.now);
                if asked && let Some(status) = peer.machine.answered() {
                    // The limits' and the tokens' refusals are counted where they are made.
                    self.counters.refused_request += u64::from(status >= 400 && !matches!(status, 401 | 429 | 503));
                    // An odd step goes through every number before it repeats one.
                    self.next_id = self.next_id.wrapping_add(0x9E37_79B9_7F4A_7C15);
                }
                self.make_ready(at);
                if said_all {
                    return self.hung_up(at, 0);
                }
            }
        }
        self.receive(cx, at, bytes);
    }

    /// The other side ended its half, or the connection broke.
    fn hung_up(&mut self, at: usize, result: i32) {
        let Some(peer) = self.peers[at].as_mut() else { return };
        peer.eof = true;
        // Who asks and ends his half at once still gets his answer.
        if peer.stage == Stage::Open && result == 0 && peer.machine.is_replying() {
            return self.make_ready(at);
        }
        self.cut(at);
    }

    fn sent(&mut self, cx: &mut Context<'_>, at: usize, result: i32) {
        let batch = cx.ring.take_batch();
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else { return };
        peer.sending = false;
        self.sending -= 1;
        self.sending_live -= usize::from(peer.sending_live);
        let Some(mut batch) = batch else { return self.cut(at) };
        self.sending_bytes -= batch.bytes();
        if result <= 0 || peer.stage != Stage::Open {
            self.keep(batch);
            return self.cut(at);
        }
        batch.advance(result as usize);
        (peer.acked, peer.ack_look_ns) = (None, i64::MAX);
        self.counters.sends += 1;
        self.counters.sent_bytes += result as u64;
        if batch.is_empty() {
            if let Some(cipher) = peer.cipher.take().filter(|cipher| cipher.capacity() <= SPARE_CIPHER_BYTES_MAX)
                && self.ciphers.len() < SPARE_CIPHERS_MAX
            {
                self.ciphers.push(cipher);
            }
            peer.machine.progress(peer.stash.is_empty(), cx.now);
            self.keep(batch);
        } else {
            self.counters.partial_sends += 1;
            peer.machine.progress(false, cx.now);
            peer.rest = Some(batch);
        }
        self.make_ready(at);
    }

    fn keep(&mut self, mut batch: Box<Batch>) {
        batch.clear();
        if self.spare.len() < SPARE_BATCHES_MAX {
            self.spare.push(batch);
        }
    }

    fn make_ready(&mut self, at: usize) {
        if let Some(peer) = self.peers[at].as_mut()
            && !std::mem::replace(&mut peer.queued, true)
        {
            self.ready.push_back(at as u32);
        }
    }

    /// Polls whom something may have come for: who waits for it, where the hub has changed (`published`), and all that are ready.
    /// Who is behind is bounded by what a turn may give. How many sends were made.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, published: bool) -> usize {
        let mut sends = 0;
        self.shake_hands(cx);
        if published {
            let (reached, mut from) = (self.waiting.reached(cx.hub), 0);
            while let Some(at) = self.waiting.next(from, reached) {
                from = at + 1;
                if self.peers[at].as_ref().is_some_and(|peer| !peer.sending) {
                    sends += usize::from(self.fill(cx, at) > 0);
                }
            }
        }
        while let Some(at) = self.ready.pop_front() {
            let Some(peer) = self.peers[at as usize].as_mut() else { continue };
            peer.queued = false;
            if peer.machine.is_subscriber() && !peer.machine.is_live(cx.hub) {
                peer.queued = true;
                self.behind.push_back(at);
            } else {
                sends += usize::from(self.fill(cx, at as usize) > 0);
            }
        }
        let open = cx.hub.open_sequence().is_some();
        let mut left = if open { REPLAY_TURN_BYTES } else { REPLAY_TURN_BYTES_BETWEEN };
        while left > 0
            && let Some(at) = self.behind.pop_front()
        {
            let Some(peer) = self.peers[at as usize].as_mut() else { continue };
            peer.queued = false;
            let given = self.fill(cx, at as usize);
            sends += usize::from(given > 0);
            left = left.saturating_sub(given);
        }
        // Who had no turn is the first next time.
        std::mem::swap(&mut self.ready, &mut self.behind);
        sends
    }

    /// Whether somebody could be given something at once.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty() || self.handshakes.is_due()
    }

    /// Gives a connection what comes next, in one send. How many bytes that are.
    fn fill(&mut self, cx: &mut Context<'_>, at: usize) -> usize {
        let Some(peer) = self.peers[at].as_mut() else { return 0 };
        if peer.sending || peer.stage != Stage::Open {
            return 0;
        }
        let mut share = (SENDING_BYTES_MAX / (self.sending + 1)).clamp(SEND_BYTES_MIN, SEND_BYTES_MAX);
        if peer.tls.is_some() {
            if let Some(rest) = peer.rest.take() {
                // Encrypted already.
                return self.send(cx, at, rest);
            }
            share = share.min(SECURE_BYTES_MAX);
        }
        let mut batch = peer.rest.take().or_else(|| self.spare.pop()).unwrap_or_default();
        peer.stash.drain(..).for_each(|part| batch.push(part));
        self.waiting.set(at, None);
        while batch.bytes() < share && batch.parts() < PARTS_MAX && !peer.ended && peer.reading == Reading::No {
            match peer.machine.poll(cx.hub, cx.now) {
                Step::Bytes(bytes) => batch.push(Arc::new(bytes)),
                Step::Message(message) => batch.push(message),
                Step::Stored(stored, frame) => {
                    peer.reading = Reading::Wanted(stored, frame);
                    peer.stored_frames = stored.frames;
                    self.wanted.push_back(at as u32);
                }
                Step::Wait => {
                    self.waiting.set(at, peer.machine.waits_for());
                    break;
                }
                Step::End => peer.ended = true,
            }
        }
        if peer.ended && peer.machine.is_cut_off() {
            self.keep(batch);
            self.cut(at);
            return 0;
        }
        if peer.tls.is_some() && !self.encrypt(at, &mut batch) {
            self.keep(batch);
            self.cut(at);
            return 0;
        }
        if batch.is_empty() {
            self.keep(batch);
            self.end_if_drained(cx, at);
            return 0;
        }
        if let Some(peer) = self.peers[at].as_mut() {
            // What TLS itself has to say is nothing that the machine knows of.
            peer.machine.sending(cx.now);
        }
        self.send(cx, at, batch)
    }

    /// Puts what a batch holds, and what TLS itself has to say, into it as one encrypted part. False: the session is over.
    fn encrypt(&mut self, at: usize, batch: &mut Batch) -> bool {
        let Some(peer) = self.peers[at].as_mut() else { return false };
        let Some(session) = &mut peer.tls else { return false };
        let mut buffer = self.ciphers.pop().unwrap_or_default();
        let out = Arc::get_mut(&mut buffer).expect("a spare buffer is nobody's");
        out.clear();
        session.take_cipher(out);
        let encrypted = batch.iter().all(|part| session.encrypt(part, out).is_ok());
        if peer.ended {
            session.close();
        }
        session.take_cipher(out);
        batch.clear();
        if out.is_empty() {
            self.ciphers.push(buffer);
        } else {
            batch.push(buffer.clone());
            peer.cipher = Some(buffer);
        }
        encrypted
    }

    fn send(&mut self, cx: &mut Context<'_>, at: usize, batch: Box<Batch>) -> usize {
        let Some(peer) = self.peers[at].as_mut() else { return 0 };
        let bytes = batch.bytes();
        peer.ack_look_ns = cx.now + self.settings.time.write_ns / ACK_LOOKS;
        match cx.ring.send_batch(peer.socket.as_fd(), batch, SEND_BYTES_MAX, cx.base | SEND | at as u64) {
            Ok(()) => {
                peer.sending = true;
                peer.sending_live = peer.machine.is_live(cx.hub);
                self.sending += 1;
                self.sending_live += usize::from(peer.sending_live);
                self.sending_bytes += bytes;
                bytes.min(SEND_BYTES_MAX)
            }
            Err((_, batch)) => {
                self.keep(batch);
                self.cut(at);
                0
            }
        }
    }

    /// Ends a connection that has said everything: our half first, so that the other side reads all of it.
    fn end_if_drained(&mut self, cx: &mut Context<'_>, at: usize) {
        let Some(peer) = self.peers[at].as_mut() else { return };
        if !peer.ended || !peer.is_drained() || peer.stage != Stage::Open {
            return;
        }
        if peer.eof {
            return self.close(at);
        }
        peer.stage = Stage::Lingering(cx.now + LINGER_NS);
        tcp::shutdown(peer.socket.as_fd(), Shutdown::Write);
        self.leave(at);
    }

    /// Ends a connection at once; what was not sent is forgotten.
    fn cut(&mut self, at: usize) {
        let Some(peer) = self.peers[at].as_mut() else { return };
        if peer.stage == Stage::Open {
            tcp::forget_unsent(peer.socket.as_fd());
        }
        self.close(at);
    }

    /// Ends a connection; its place is free once its requests are done.
    fn close(&mut self, at: usize) {
        let Some(peer) = self.peers[at].as_mut() else { return };
        if peer.stage != Stage::Closing {
            peer.stage = Stage::Closing;
            peer.machine.on_closed();
            tcp::shutdown(peer.socket.as_fd(), Shutdown::Both);
        }
        peer.stash.clear();
        let rest = peer.rest.take();
        if peer.reading != Reading::Started {
            peer.reading = Reading::No;
        }
        if let Some(rest) = rest {
            self.keep(rest);
        }
        self.forget_if_idle(at);
    }

    /// What a subscriber had taken of the limits is free for others; its connection still counts.
    fn leave(&mut self, at: usize) {
        let Some(peer) = self.peers[at].as_mut() else { return };
        if let Some(entered) = peer.entered.take() {
            self.gate.leave(peer.address, entered);
        }
    }

    fn forget_if_idle(&mut self, at: usize) {
        let done = |peer: &Peer| peer.stage == Stage::Closing && peer.is_idle();
        if self.peers[at].as_ref().is_some_and(done)
            && let Some(peer) = self.peers[at].take()
        {
            self.gate.disconnect(peer.address, peer.entered);
            self.free.push(at as u32);
        }
    }

    /// The next connection that wants a read of a stored ledger, and what of it.
    pub(super) fn next_wanted(&mut self) -> Option<(u32, Stored, u32)> {
        while let Some(at) = self.wanted.pop_front() {
            if let Some(peer) = self.peers[at as usize].as_mut()
                && let Reading::Wanted(stored, frame) = peer.reading
            {
                peer.reading = Reading::Started;
                return Some((at, stored, frame));
            }
        }
        None
    }

    /// A read of a stored ledger is done.
    pub(super) fn read(&mut self, at: usize, read: Result<Arc<StoredFrames>, Lost>, now: i64) {
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else { return };
        peer.reading = Reading::No;
        if peer.stage != Stage::Open {
            return self.forget_if_idle(at);
        }
        match read {
            Ok(frames) => {
                let (first, all) = (frames.first(), peer.stored_frames);
                stored::parts(frames.clone(), first, all, peer.machine.share(), &mut peer.stash);
                peer.machine.took(frames.frames(), now);
            }
            Err(_) => peer.machine.lost(),
        }
        self.make_ready(at);
    }

    /// Time-outs, a part of all connections at a time; and the listener, where it stopped accepting.
    pub(super) fn look(&mut self, cx: &mut Context<'_>) {
        if cx.now < self.look_at {
            return;
        }
        if self.look_from == 0 && !self.accepting {
            self.accept(cx);
        }
        let end = (self.look_from + LOOKS_PER_TURN).min(self.peers.len());
        for at in self.look_from..end {
            self.look_at(cx, at);
        }
        self.look_from = if end == self.peers.len() { 0 } else { end };
        if self.look_from == 0 {
            self.look_at = cx.now + LOOK_NS;
        }
    }

    fn look_at(&mut self, cx: &mut Context<'_>, at: usize) {
        let Some(peer) = self.peers[at].as_mut() else { return };
        match peer.stage {
            Stage::Closing => return,
            Stage::Lingering(until) => {
                if cx.now >= until {
                    self.close(at);
                }
                return;
            }
            Stage::Open => {}
        }
        if peer.sending && cx.now >= peer.ack_look_ns {
            // A socket's buffer may be large and its other side slow: what that has acknowledged is progress as well.
            peer.ack_look_ns = cx.now + self.settings.time.write_ns / ACK_LOOKS;
            let acked = tcp::delivery(peer.socket.as_fd()).ok().map(|delivery| delivery.acked_bytes);
            if peer.acked.is_some() && acked > peer.acked {
                peer.machine.progress(false, cx.now);
            }
            peer.acked = acked;
        }
        if peer.machine.deadline().is_some_and(|deadline| deadline <= cx.now) {
            self.time_is_over(cx, at);
        }
    }

    fn time_is_over(&mut self, cx: &mut Context<'_>, at: usize) {
        let Some(peer) = self.peers[at].as_mut() else { return };
        if peer.machine.is_closing() && peer.is_drained() {
            // The kernel has our close, and what came before it; who takes that slowly has not had its turn to answer yet.
            let acked = tcp::delivery(peer.socket.as_fd()).ok().map(|delivery| delivery.acked_bytes);
            if acked.is_some() && std::mem::replace(&mut peer.acked, acked) != acked {
                return peer.machine.close_later(cx.now);
            }
            return self.close(at);
        }
        let (asks, sends) = (peer.machine.is_waiting_for_request(), peer.machine.sending_since().is_some());
        self.counters.request_timeouts += u64::from(asks);
        self.counters.write_timeouts += u64::from(!asks && sends);
        peer.machine.on_time(cx.now);
        self.cut(at);
    }

    /// When the time-outs are looked at next, or a handshake may go on; `None`: there are none.
    pub(super) fn deadline(&self) -> Option<i64> {
        let look = (!self.is_empty() || !self.accepting).then_some(self.look_at);
        [look, self.handshakes.deadline()].into_iter().flatten().min()
    }

    /// Why nobody is sent a stream; `None`: whoever comes is.
    pub(super) fn shut(&mut self, why: Option<&'static str>) {
        self.gate.shut = why;
    }

    /// Subscribers that follow live, and the rate of the slowest; `None` where one of them was never given enough to tell.
    pub(super) fn live(&mut self, hub: &Hub) -> (usize, Option<u64>) {
        let (mut live, mut slowest) = (0, Some(u64::MAX));
        for peer in self.peers.iter_mut().flatten().filter(|peer| peer.machine.is_live(hub)) {
            let known = tcp::delivery(peer.socket.as_fd()).ok().and_then(|delivery| delivery.bytes_per_second);
            peer.rate = known.or(peer.rate);
            live += 1;
            slowest = slowest.and_then(|slowest| Some(slowest.min(peer.rate?)));
        }
        (live, slowest.filter(|_| live > 0))
    }

    /// How many ledgers the subscribers' connections are behind: the median, the one that 99 of 100 are not behind, the most.
    pub(super) fn lag(&mut self, hub: &Hub) -> [u64; 3] {
        let end = u64::from(hub.bounds().1) + 1;
        self.lags.clear();
        let streaming = self.peers.iter().flatten().filter(|peer| peer.machine.is_subscriber());
        // Who waits for the first ledger that comes is not behind.
        let next = streaming.filter_map(|peer| peer.machine.waits_for());
        self.lags.extend(next.map(|next| if next == 0 { 0 } else { end.saturating_sub(u64::from(next)) }));
        self.lags.sort_unstable();
        let count = self.lags.len();
        [count / 2, count * 99 / 100, count.saturating_sub(1)].map(|at| self.lags.get(at).copied().unwrap_or(0))
    }

    /// Ends every connection at once.
    pub(super) fn end_all(&mut self) {
        for at in 0..self.peers.len() {
            self.cut(at);
        }
    }

    /// Counters, up to date.
    pub(super) fn count(&mut self) -> &mut FanoutCounters {
        let refused = self.gate.refused;
        let counters = &mut self.counters;
        counters.subscribers = self.gate.subscribers() as u64;
        counters.connections = self.gate.connections() as u64;
        counters.sending_bytes = self.sending_bytes as u64;
        counters.refused_subscribers = refused.subscribers;
        counters.refused_address = refused.address;
        counters.refused_early = refused.early;
        counters.refused_token = refused.token;
        counters
    }
}
