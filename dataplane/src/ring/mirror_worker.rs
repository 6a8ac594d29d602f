//! The mirror worker: one connection to the source on the core's io_uring, one datagram socket by plain calls, one ring.
//!
//! The machine (`mirror::receiver`) decides what is written; this file has sockets, the ring's file and reconnection. A
//! turn takes at most 32 datagrams, then at most one frame of the stream.

use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::mirror::receiver::{
    DATAGRAMS_PER_STEP, DEAD_NS, MirrorHost, MirrorSettings, MirrorStatus, OpenFailed, OpenMode, Receiver, ResumePoint,
    StreamStep, Transport,
};
use super::mirror::{CloseReason, StreamPoll};
use super::raw::{RawSettings, RawWriter};
use super::sockets::Outlets;
use super::stats::{MirrorBooks, MirrorState};
use super::told::Told;
use crate::runtime::worker::{Turn, Worker};
use crate::sys::resolve::Resolver;
use crate::sys::udp::{CALL_MESSAGES, ReceiveBatch, UdpSocket};
use crate::sys::{tcp, udp};
use crate::units::{NANOS_PER_MILLI, NANOS_PER_SECOND};
use crate::wire::ring::Geometry;

/// Bytes of one receive: a frame of the peer's default batch fits several times.
const RECEIVE_BYTES: usize = 256 << 10;
/// Unhandled bytes of the stream above which no more are received, unless a frame needs them: one whole frame of 1 MiB
/// and what came with it.
const STREAM_BYTES_MAX: usize = 2 << 20;
/// How long a connection may take to be made.
const CONNECT_NS_MAX: i64 = 5 * NANOS_PER_SECOND;
/// How often counters are shown, the ring's heartbeat beats and limits by time are looked at: well within the 250 ms in
/// which a stall is to be seen.
const LOOK_NS: i64 = 10 * NANOS_PER_MILLI;

/// A session that delivered for so long was no attempt that failed: the next one may follow it at once.
const STEADY_NS: i64 = NANOS_PER_SECOND;

/// Connections that are made at once one after the other: a ring that was replaced is one, that it holds another history
/// the next. A source that never gets beyond these is waited for.
const HURRIES_MAX: u8 = 2;

/// A source that is heard for so long while none of its datagrams comes has its datagrams' path blocked: it is said, and
/// the group joined anew each time (an interface that was made again has forgotten).
const DATAGRAMS_LATE_NS: i64 = 5 * NANOS_PER_SECOND;

const CONNECT: u64 = 1 << 40;
const RECEIVE: u64 = 2 << 40;
const SEND: u64 = 3 << 40;
const READABLE: u64 = 4 << 40;
const CANCEL: u64 = 5 << 40;

/// What a mirror worker is made of.
pub(super) struct MirrorParts {
    pub(super) name: String,
    pub(super) source: String,
    pub(super) settings: MirrorSettings,
    pub(super) interface: Ipv4Addr,
    pub(super) reconnect: Duration,
    pub(super) reconnect_max: Duration,
    pub(super) receive_buffer: usize,
    pub(super) once: bool,
    pub(super) seed: [u8; 32],
    pub(super) resolver: Resolver,
    pub(super) books: MirrorBooks,
    /// Set when the worker ends of itself.
    pub(super) end: Arc<OnceLock<Result<(), String>>>,
}

/// The local ring's file, as the machine asks for it.
pub(super) struct Host {
    pub(super) path: PathBuf,
    pub(super) settings: RawSettings,
    /// Why the ring could not be opened last.
    pub(super) failure: Option<String>,
}

impl MirrorHost for Host {
    type Ring = RawWriter;

    fn resume_point(&mut self) -> Option<ResumePoint> {
        let found = RawWriter::resume_point(&self.path)?;
        Some(ResumePoint { next: found.next, incarnation: found.incarnation, geometry: found.geometry })
    }

    fn open(
        &mut self,
        geometry: &Geometry,
        first: u64,
        incarnation: u64,
        mode: OpenMode,
    ) -> Result<RawWriter, OpenFailed> {
        let opened = match mode {
            OpenMode::Adopt => RawWriter::adopt(&self.path, geometry, &self.settings),
            OpenMode::Fresh => {
                RawWriter::create(&self.path, geometry, first, incarnation, &self.settings).map(|mut ring| {
                    // Readers that attach before the first record begin where it will be.
                    ring.publish();
                    Some(ring)
                })
            }
        };
        let what = match opened {
            Ok(Some(ring)) => return Ok(ring),
            Ok(None) => format!("ring {}: it is no copy of the source's any more", self.path.display()),
            Err(error) => error.to_string(),
        };
        // Said with the connection's end.
        self.failure = Some(what);
        Err(OpenFailed)
    }
}

/// Where the connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    /// Until then nothing is tried.
    Waiting(i64),
    /// The name is being looked up.
    Resolving,
    /// The connection is being made, since then.
    Connecting(i64),
    /// It is there.
    Up,
    /// It has ended; its requests are not done yet.
    Closing,
    /// No more is made (`--once`, or the worker stops).
    Ended,
}

/// The mirror worker.
pub(super) struct MirrorWorker {
    parts: MirrorParts,
    receiver: Receiver<Host>,
    link: Link,
    source: Option<SocketAddr>,
    socket: Option<OwnedFd>,
    connecting: bool,
    /// The connection took too long: it is being cancelled.
    late: bool,
    receiving: bool,
    sending: bool,
    /// What has come on the stream; handled up to `handled`.
    stream: Vec<u8>,
    handled: usize,
    need: usize,
    /// Nothing more comes on the stream, and why.
    stream_end: Option<String>,
    receive_spare: Vec<u8>,
    send_spare: Vec<u8>,
    transport: Option<Transport>,
    group: Option<UdpSocket>,
    outlets: Outlets,
    batch: Box<ReceiveBatch>,
    polled: bool,
    poll_number: u64,
    stale_poll: Option<u64>,
    pause: Duration,
    /// The last connection was ended so that the next is made at once.
    hurried: bool,
    /// So many were, one after the other.
    hurries: u8,
    /// What was said of connections that did not come to live, since the last that did.
    told: Told,
    was_live: bool,
    live_since: Option<i64>,
    was_silent: bool,
    was_gone: bool,
    /// Since when datagrams are waited for; when that was last told.
    datagrams_late_ns: Option<i64>,
    late_told: bool,
    own_addresses_taken: bool,
    connect_failures: u64,
    look_at: i64,
    stopping: bool,
}

impl MirrorWorker {
    pub(super) fn new(parts: MirrorParts, host: Host) -> MirrorWorker {
        MirrorWorker {
            receiver: Receiver::new(parts.settings.clone(), host, parts.seed),
            pause: parts.reconnect,
            parts,
            link: Link::Waiting(i64::MIN),
            source: None,
            socket: None,
            connecting: false,
            late: false,
            receiving: false,
            sending: false,
            stream: Vec::with_capacity(2 * RECEIVE_BYTES),
            handled: 0,
            need: 1,
            stream_end: None,
            receive_spare: Vec::with_capacity(2 * RECEIVE_BYTES),
            send_spare: Vec::new(),
            transport: None,
            group: None,
            outlets: Outlets { connected: true, ..Outlets::default() },
            batch: Box::default(),
            polled: false,
            poll_number: 0,
            stale_poll: None,
            hurried: false,
            hurries: 0,
            told: Told::default(),
            was_live: false,
            live_since: None,
            was_silent: false,
            was_gone: false,
            datagrams_late_ns: None,
            late_told: false,
            own_addresses_taken: false,
            connect_failures: 0,
            look_at: i64::MIN,
            stopping: false,
        }
    }

    pub(super) fn receiver(&self) -> &Receiver<Host> {
        &self.receiver
    }

    /// Goes towards a connection; never waits.
    fn advance(&mut self, turn: &mut Turn<'_>) {
        match self.link {
            Link::Waiting(until) if turn.now >= until => {
                self.parts.resolver.ask();
                self.link = Link::Resolving;
            }
            Link::Resolving => match self.parts.resolver.answer() {
                None => {}
                Some(Ok(addresses)) => self.connect(turn, addresses[0]),
                Some(Err(what)) => self.failed(turn.now, &what),
            },
            Link::Connecting(since) if turn.now - since > CONNECT_NS_MAX => {
                (self.link, self.late) = (Link::Connecting(turn.now), true);
                let _ = turn.ring.cancel(turn.user_data(CONNECT), turn.user_data(CANCEL));
            }
            Link::Closing if !self.connecting && !self.receiving && !self.sending => self.closed(turn.now),
            _ => {}
        }
    }

    fn connect(&mut self, turn: &mut Turn<'_>, address: SocketAddr) {
        let socket = match tcp::stream(&address) {
            Ok(socket) => socket,
            Err(error) => return self.failed(turn.now, &format!("socket: {error}")),
        };
        match turn.ring.connect(socket.as_fd(), &address, turn.user_data(CONNECT)) {
            Ok(()) => {
                (self.link, self.connecting) = (Link::Connecting(turn.now), true);
                (self.socket, self.source) = (Some(socket), Some(address));
            }
            Err(error) => self.failed(turn.now, &format!("{address}: {error}")),
        }
    }

    /// An attempt came to nothing: the next one is made after a pause that grows.
    fn failed(&mut self, now: i64, what: &str) {
        self.connect_failures += 1;
        if let Some(untold) = self.told.take(what) {
            tracing::warn!(
                mirror = self.parts.name,
                source = self.parts.source,
                what,
                untold,
                "no connection to the source"
            );
        }
        (self.socket, self.hurried) = (None, false);
        if self.parts.once {
            return self.end(Err(format!("no connection to {}: {what}", self.parts.source)));
        }
        self.link = Link::Waiting(now + self.pause.as_nanos() as i64);
        self.pause = (self.pause * 2).min(self.parts.reconnect_max.max(self.parts.reconnect));
    }

    fn connected(&mut self, turn: &mut Turn<'_>, result: i32) {
        self.connecting = false;
        let late = std::mem::take(&mut self.late);
        let (Some(socket), Some(address), Link::Connecting(_)) = (&self.socket, self.source, self.link) else { return };
        if result < 0 {
            let error = match late {
                true => format!("no answer in {} s", CONNECT_NS_MAX / NANOS_PER_SECOND),
                false => std::io::Error::from_raw_os_error(-result).to_string(),
            };
            return self.failed(turn.now, &format!("{address}: {error}"));
        }
        // A source on this host sends from whichever of the host's addresses its way out has.
        let own = tcp::local_address(socket.as_fd()).is_ok_and(|local| local.ip() == address.ip());
        if own && !std::mem::replace(&mut self.own_addresses_taken, true) {
            udp::own_addresses().into_iter().for_each(|own| self.receiver.also_from(own));
        }
        let _ = tcp::tune(socket.as_fd(), Duration::from_nanos(DEAD_NS as u64));
        // Said when it is live: a source that takes connections and ends them would say it for ever.
        tracing::debug!(mirror = self.parts.name, %address, "connected");
        self.link = Link::Up;
        self.stream.clear();
        (self.handled, self.need, self.stream_end) = (0, 1, None);
        self.receiver.connected(address, turn.now);
        self.receive(turn);
    }

    /// Receives more of the stream, as long as what is unhandled is within its bound.
    fn receive(&mut self, turn: &mut Turn<'_>) {
        let unhandled = self.stream.len() - self.handled;
        let full = unhandled >= STREAM_BYTES_MAX.max(self.need);
        if self.link != Link::Up || self.receiving || full || self.stream_end.is_some() {
            return;
        }
        let Some(socket) = &self.socket else { return };
        let mut bytes = std::mem::take(&mut self.receive_spare);
        bytes.clear();
        bytes.reserve(RECEIVE_BYTES);
        match turn.ring.receive(socket.as_fd(), bytes, RECEIVE_BYTES, turn.user_data(RECEIVE)) {
            Ok(()) => self.receiving = true,
            Err((error, bytes)) => {
                self.receive_spare = bytes;
                turn.fail(format!("io_uring receive: {error}"));
            }
        }
    }

    fn received(&mut self, turn: &mut Turn<'_>, result: i32) {
        self.receiving = false;
        let Some(bytes) = turn.ring.take_bytes() else { return };
        if self.link != Link::Up || result <= 0 {
            self.receive_spare = bytes;
            self.stream_end.get_or_insert_with(|| match result {
                0 => "the source closed the connection".to_string(),
                error => std::io::Error::from_raw_os_error(-error).to_string(),
            });
            return;
        }
        self.receiver.heard(turn.now);
        if self.handled == self.stream.len() {
            self.receive_spare = std::mem::replace(&mut self.stream, bytes);
        } else {
            self.stream.drain(..self.handled);
            self.stream.extend_from_slice(&bytes);
            self.receive_spare = bytes;
        }
        self.handled = 0;
    }

    /// At most one frame of the stream.
    fn take_frame(&mut self, turn: &mut Turn<'_>) -> usize {
        let unhandled = &self.stream[self.handled..];
        if self.link != Link::Up || unhandled.len() < self.need {
            return 0;
        }
        match self.receiver.on_bytes(unhandled, turn.now) {
            StreamStep::Frame { bytes } => {
                (self.handled, self.need) = (self.handled + bytes, 1);
                if let Err(what) = self.follow_transport() {
                    self.lost(turn.now, Err(&what));
                }
                1
            }
            StreamStep::Need { bytes } => {
                self.need = bytes.max(unhandled.len() + 1);
                0
            }
            StreamStep::Close(reason) => {
                self.close(turn.now, reason);
                1
            }
        }
    }

    /// Opens the datagram socket that the source's way of delivery asks for. The local ring is there by now, every page of
    /// it touched: nothing waits in the socket while memory is made.
    fn follow_transport(&mut self) -> Result<(), String> {
        let transport = self.receiver.transport();
        if transport == self.transport {
            return Ok(());
        }
        self.close_datagrams();
        self.transport = transport;
        let told = |what: &str, error: std::io::Error| format!("{what}: {error}");
        match transport {
            None | Some(Transport::Stream) => {}
            Some(Transport::Multicast(group)) => {
                let socket = UdpSocket::bind(&group.into(), true).map_err(|error| told("binding the group", error))?;
                self.tune(&socket);
                socket.join(*group.ip(), self.parts.interface).map_err(|error| {
                    let interface = self.parts.interface;
                    format!("joining {group} on {interface}: {error}; name an interface's own address (--iface)")
                })?;
                self.group = Some(socket);
            }
            Some(Transport::Unicast(to)) => {
                let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
                let socket = UdpSocket::bind(&any, false).map_err(|error| told("a datagram socket", error))?;
                self.tune(&socket);
                socket.connect(&to).map_err(|error| told("the way to the source's port", error))?;
                self.outlets.unicast = Some(socket);
            }
        }
        Ok(())
    }

    /// Leaves the group. A poll that waits holds its socket open, so it is taken back at the next turn.
    fn close_datagrams(&mut self) {
        self.transport = None;
        (self.group, self.outlets.unicast) = (None, None);
        if std::mem::take(&mut self.polled) {
            self.stale_poll = Some(self.poll_number);
        }
        self.poll_number = (self.poll_number + 1) & 0xFFFF;
        self.batch.clear();
    }

    fn tune(&self, socket: &UdpSocket) {
        socket.receive_trains();
        // Twice what was asked for is what the kernel says where it granted all.
        match socket.receive_buffer(self.parts.receive_buffer) {
            Ok(granted) if granted / 2 < self.parts.receive_buffer => tracing::warn!(
                mirror = self.parts.name,
                asked = self.parts.receive_buffer,
                granted = granted / 2,
                "receive buffer is smaller than asked: bursts may be lost; raise net.core.rmem_max"
            ),
            Ok(_) => {}
            Err(error) => tracing::warn!(mirror = self.parts.name, %error, "receive buffer"),
        }
    }

    /// At most [`DATAGRAMS_PER_STEP`] datagrams.
    fn take_datagrams(&mut self, turn: &mut Turn<'_>) -> usize {
        let Some(socket) = self.group.as_ref().or(self.outlets.unicast.as_ref()) else { return 0 };
        let mut taken = 0;
        let mut call = 1;
        while taken < DATAGRAMS_PER_STEP {
            // A single record is not kept waiting while the kernel looks for a second; what has piled up comes together.
            if self.batch.is_empty() && !matches!(socket.receive(&mut self.batch, call), Ok(1..)) {
                break;
            }
            call = CALL_MESSAGES;
            while let Some((from, bytes, segment)) = self.batch.front() {
                let room = (DATAGRAMS_PER_STEP - taken) * usize::from(segment);
                let part = &bytes[..bytes.len().min(room)];
                let used = self.receiver.on_datagrams(from, part, segment, turn.now).clamp(1, part.len().max(1));
                taken += used.div_ceil(usize::from(segment));
                self.batch.consume(used);
                if taken >= DATAGRAMS_PER_STEP {
                    break;
                }
            }
        }
        taken
    }

    fn send(&mut self, turn: &mut Turn<'_>) -> usize {
        if self.sending || self.link != Link::Up || self.stream_end.is_some() {
            return 0;
        }
        let mut bytes = std::mem::take(&mut self.send_spare);
        bytes.clear();
        match self.receiver.poll_stream(&mut bytes, turn.now) {
            StreamPoll::Idle => {
                self.send_spare = bytes;
                0
            }
            StreamPoll::Close(reason) => {
                self.send_spare = bytes;
                self.close(turn.now, reason);
                1
            }
            StreamPoll::Data => {
                let Some(socket) = &self.socket else { return 0 };
                let length = bytes.len();
                match turn.ring.send(socket.as_fd(), bytes, 0..length, turn.user_data(SEND)) {
                    Ok(()) => self.sending = true,
                    Err((error, _)) => turn.fail(format!("io_uring send: {error}")),
                }
                1
            }
        }
    }

    fn sent(&mut self, turn: &mut Turn<'_>, result: i32) {
        self.sending = false;
        let Some(bytes) = turn.ring.take_bytes() else { return };
        let whole = usize::try_from(result) == Ok(bytes.len());
        self.send_spare = bytes;
        if !whole {
            self.stream_end.get_or_insert_with(|| "the connection broke".to_string());
        }
    }

    /// The machine ends the connection.
    fn close(&mut self, now: i64, reason: CloseReason) {
        // The next connection gets what this one could not: it is made at once.
        let steady = self.live_since.is_some_and(|since| now - since >= STEADY_NS);
        let hurries = if steady { 0 } else { self.hurries };
        let hurry = matches!(reason, CloseReason::SourceReplaced | CloseReason::OtherHistory) && hurries < HURRIES_MAX;
        let failure = self.receiver.host_mut().failure.take();
        let what = failure.map_or_else(|| reason.to_string(), |failure| format!("{reason}: {failure}"));
        self.lost(now, Err(&what));
        (self.hurried, self.hurries) = (hurry, if hurry { hurries + 1 } else { 0 });
    }

    /// The connection ends: `Ok` by the other side's doing, `Err` by this one's.
    fn lost(&mut self, now: i64, what: Result<&str, &str>) {
        if self.link != Link::Up {
            return;
        }
        let (Ok(told) | Err(told)) = what;
        self.tell_of_end(told, now);
        self.receiver.disconnected(now);
        self.close_datagrams();
        (self.live_since, self.was_live, self.hurried) = (None, false, false);
        if let Some(socket) = &self.socket {
            tcp::shutdown(socket.as_fd(), Shutdown::Both);
        }
        self.link = Link::Closing;
        if self.parts.once {
            let asked = self.stopping;
            let _ =
                self.parts.end.set(what.map(drop).or_else(|what| if asked { Ok(()) } else { Err(what.to_string()) }));
        }
    }

    /// An end that was asked for is no warning. Any other is said once for each reason until the source is live again.
    fn tell_of_end(&mut self, what: &str, now: i64) {
        let next = self.receiver.status(now).next;
        if self.stopping {
            tracing::info!(mirror = self.parts.name, what, next, "connection ended");
        } else if let Some(untold) = self.told.take(what) {
            tracing::warn!(mirror = self.parts.name, what, next, untold, "connection ended");
        }
    }

    /// Nothing of the connection is under way any more.
    fn closed(&mut self, now: i64) {
        self.socket = None;
        if self.stopping || self.parts.once {
            self.link = Link::Ended;
        } else if self.hurried {
            self.link = Link::Waiting(now);
        } else {
            self.link = Link::Waiting(now + self.pause.as_nanos() as i64);
            self.pause = (self.pause * 2).min(self.parts.reconnect_max.max(self.parts.reconnect));
        }
    }

    fn end(&mut self, result: Result<(), String>) {
        let _ = self.parts.end.set(result);
        self.link = Link::Ended;
    }

    /// What is looked at by time: the ring's heartbeat beats only while the source is heard and its producer lives.
    fn look(&mut self, now: i64) {
        self.look_at = now + LOOK_NS;
        let status = self.receiver.status(now);
        if !status.silent
            && !status.producer_gone
            && let Some(ring) = self.receiver.ring_mut()
        {
            ring.beat();
        }
        if status.live != self.was_live {
            self.was_live = status.live;
            if status.live {
                // A session that delivers starts the pauses anew.
                (self.live_since, self.pause) = (Some(now), self.parts.reconnect);
                let untold = self.told.clear();
                tracing::info!(
                    mirror = self.parts.name,
                    source = self.source.map_or_else(String::new, |source| source.to_string()),
                    untold,
                    transport = status.transport.map_or_else(String::new, |transport| transport.to_string()),
                    next = status.next,
                    incarnation = format!("{:016x}", status.incarnation),
                    authenticated = status.authenticated,
                    "mirroring"
                );
            }
        }
        if status.silent != self.was_silent && status.connected {
            self.was_silent = status.silent;
            match status.silent {
                true => tracing::warn!(mirror = self.parts.name, "the source is silent"),
                false => tracing::info!(mirror = self.parts.name, "the source is heard again"),
            }
        }
        // Who is not told anything any more does not know that it is back.
        if status.producer_gone != self.was_gone && (status.producer_gone || status.live) {
            self.was_gone = status.producer_gone;
            match status.producer_gone {
                true => tracing::warn!(mirror = self.parts.name, "the source's producer is gone or stalls"),
                false => tracing::info!(mirror = self.parts.name, "the source's producer is there again"),
            }
        }
        self.look_for_datagrams(&status, now);
        self.show(now);
    }

    /// Datagrams that do not come make a mirror slow, not wrong: everything then comes as repair.
    fn look_for_datagrams(&mut self, status: &MirrorStatus, now: i64) {
        let waits = status.live && matches!(status.transport, Some(Transport::Multicast(_) | Transport::Unicast(_)));
        if !waits || status.silent {
            self.datagrams_late_ns = None;
            return;
        }
        let since = *self.datagrams_late_ns.get_or_insert(now);
        if status.datagram_ns.is_some_and(|came| came > since) {
            (self.datagrams_late_ns, self.late_told) = (status.datagram_ns, false);
        } else if now - since > DATAGRAMS_LATE_NS {
            self.datagrams_late_ns = Some(now);
            if !std::mem::replace(&mut self.late_told, true) {
                tracing::warn!(
                    mirror = self.parts.name,
                    foreign = self.receiver.counters().foreign,
                    "no datagram comes from a source that is heard by TCP: all comes as repair; a firewall, another interface (--iface) or address (--datagrams-from)?"
                );
            }
            // Asked for again with the next frame of the stream, at the latest the next heartbeat.
            if matches!(status.transport, Some(Transport::Multicast(_))) {
                self.close_datagrams();
            }
        }
    }

    fn show(&mut self, now: i64) {
        let mut state = MirrorState::of(&self.receiver.status(now), now);
        state.connect_failures = self.connect_failures;
        state.ended = self.link == Link::Ended;
        self.parts.books.write(&state, self.receiver.counters());
    }
}

impl Worker for MirrorWorker {
    fn name(&self) -> &str {
        &self.parts.name
    }

    /// It takes input from outside: it stops first, so that a serve of the same ring passes on what it has.
    fn stage(&self) -> u8 {
        0
    }

    fn start(&mut self, turn: &mut Turn<'_>) -> Result<Vec<RawFd>, String> {
        self.look(turn.now);
        Ok(Vec::new())
    }

    fn turn(&mut self, turn: &mut Turn<'_>) -> usize {
        if self.link != Link::Up {
            self.advance(turn);
        }
        if let Some(number) = self.stale_poll.take() {
            let _ = turn.ring.cancel_wait(turn.user_data(READABLE | number), turn.user_data(CANCEL));
        }
        let mut work = self.take_datagrams(turn);
        let frames = self.take_frame(turn);
        // What came before the end is taken first: the last word may be why it ended.
        if frames == 0
            && self.link == Link::Up
            && let Some(what) = self.stream_end.take()
        {
            self.lost(turn.now, Ok(&what));
        }
        work += frames;
        work += self.receiver.poll_datagrams(turn.now, &mut self.outlets);
        work += self.send(turn);
        self.receive(turn);
        if turn.now >= self.look_at {
            self.look(turn.now);
        }
        work
    }

    fn complete(&mut self, turn: &mut Turn<'_>, tag: u64, result: i32) {
        match tag & (0xFF << 40) {
            CONNECT => self.connected(turn, result),
            RECEIVE => self.received(turn, result),
            SEND => self.sent(turn, result),
            // A poll of an earlier socket is no longer counted with.
            READABLE => self.polled &= tag & 0xFFFF != self.poll_number,
            CANCEL => {}
            other => unreachable!("no request is made with tag {other:#x}"),
        }
    }

    /// A datagram wakes the core; while it is awake it asks the socket itself.
    fn before_sleep(&mut self, turn: &mut Turn<'_>) {
        if self.polled {
            return;
        }
        let tag = turn.user_data(READABLE | self.poll_number);
        if let Some(socket) = self.group.as_ref().or(self.outlets.unicast.as_ref()) {
            self.polled = turn.ring.poll_once(socket.as_fd(), tag).is_ok();
        }
    }

    fn deadline(&self) -> Option<i64> {
        let link = match self.link {
            Link::Waiting(until) => until,
            _ => i64::MAX,
        };
        Some(self.receiver.deadline().unwrap_or(i64::MAX).min(link).min(self.look_at))
    }

    fn stop(&mut self, turn: &mut Turn<'_>) {
        self.stopping = true;
        match self.link {
            Link::Up => self.lost(turn.now, Err("stopped")),
            Link::Connecting(_) => {
                let _ = turn.ring.cancel(turn.user_data(CONNECT), turn.user_data(CANCEL));
                self.link = Link::Closing;
            }
            Link::Closing => {}
            _ => self.link = Link::Ended,
        }
    }

    fn drained(&self) -> bool {
        self.link == Link::Ended
    }

    fn finish(&mut self) {
        let now = crate::sys::clock::monotonic_ns();
        self.show(now);
    }
}
