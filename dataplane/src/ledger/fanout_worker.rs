//! The fan-out worker: takes the ledgers in the source's order, publishes them, and sends each message to every subscriber.
//!
//! What there is to give is `hub`, what one subscriber gets is `session`, who is polled when is `fanout`; this file has the links
//! and the core's turn.

use std::net::SocketAddr;
use std::os::fd::{AsFd, RawFd};
use std::sync::Arc;

use super::archive::{ARCHIVE_TAGS, Archive, ArchivePort};
use super::event::Item;
use super::fanout::{ARCHIVE, Audience, Context};
pub use super::fanout::{AudienceSettings, GateLimits, TokenCheck};
use super::hub::{Hub, Outcome, Stored};
use super::load::Load;
use super::message::Encoded;
use super::retention::{Facts, run_parts};
use super::stats::{FanoutBooks, FanoutCounter};
use crate::runtime::link::LinkReceiver;
use crate::runtime::worker::{Turn, Worker};
use crate::sys::{clock, random, tcp};
use crate::units::NANOS_PER_MILLI;
use crate::wire::ledger::{Begin, End};

/// Items of the order that are taken in one turn: a ledger of 14.5 MiB has 60, and what is published goes out in the same turn.
const ITEMS_PER_TURN: usize = 64;
/// How long writes to the disk are put off for what is live: longer than a ledger's emission, and short beside its cadence.
const WRITE_DELAY_NS_MAX: i64 = 50 * NANOS_PER_MILLI;
/// How long after the last send: what the kernel has taken is not on the wire yet. The largest send buffer by default, 4 MiB, takes 7 ms
/// at 5 Gbit/s, and a write of 14.5 MiB takes some CPU away for as long.
const WRITE_GRACE_NS: i64 = 10 * NANOS_PER_MILLI;
/// Longest time without anything new inside a ledger after which the core may sleep: the source's own bound.
const STALL_NS: i64 = 100 * NANOS_PER_MILLI;
/// How often counters are shown.
const SHOW_NS: i64 = 20 * NANOS_PER_MILLI;
/// How a fan-out works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FanoutSettings {
    /// How connections are treated.
    pub audience: AudienceSettings,
    /// Most bytes of memory of completed ledgers that wait for their write.
    pub backlog_bytes: u64,
    /// How long subscribers may take to be let go when the worker stops, or the source has ended.
    pub drain_ns: i64,
    /// The core goes on looking while a ledger is open and somebody subscribes.
    pub spin: bool,
}

/// What a fan-out worker is made of.
pub struct FanoutParts {
    /// Its name.
    pub name: String,
    /// Where it listens; port 0 takes any free one, and the view tells which.
    pub listen: SocketAddr,
    /// The source's order.
    pub order: LinkReceiver<Item>,
    /// Each encoder's messages, by its number.
    pub encoders: Vec<LinkReceiver<Encoded>>,
    /// How it works.
    pub settings: FanoutSettings,
    /// The run as it is announced, where nothing is kept on disk.
    pub run: String,
    /// The run is the upstream's, which has not answered yet: nobody is told one before it does, because whoever resumes would take ours
    /// for another history.
    pub awaits_run: bool,
    /// Where ledgers are kept, and what is there; `None`: they are kept in memory, as far as the backlog goes.
    pub archive: Option<(Archive, Vec<Stored>)>,
    /// Whether a token is good; `None`: none is needed.
    pub tokens: Option<TokenCheck>,
    /// The certificate; `None`: connections are plain.
    #[cfg(feature = "ledger-tls")]
    pub tls: Option<super::tls::TlsServer>,
    /// What the source's side is told.
    pub load: Arc<Load>,
    /// Its counters.
    pub books: FanoutBooks,
}

/// The worker.
pub struct FanoutWorker {
    parts: FanoutParts,
    hub: Hub,
    archive: Option<Archive>,
    /// When the archive had its last turn.
    archive_ns: i64,
    draining: bool,
    audience: Option<Audience>,
    /// The encoder whose message is the order's next.
    awaited: Option<usize>,
    /// When something was published last.
    published_ns: i64,
    /// When something live was last on its way.
    live_ns: i64,
    /// The archive's writes wait for what is live.
    put_off: bool,
    /// A ledger is whole, and its subscribers were not looked at yet.
    survey: bool,
    /// A ledger began, and nobody was told yet.
    begun: bool,
    /// The end of a ledger that goes out after its beginning was told.
    held: Option<End>,
    /// Why the source failed.
    failure: Option<String>,
    show_at: i64,
    /// When the worker was stopped, or the source ended.
    stopping: Option<i64>,
    finished: Option<i64>,
    /// END is stamped here and not by the source.
    stamps_drained: bool,
    now: i64,
}

impl FanoutWorker {
    /// A worker that is not started.
    pub fn new(mut parts: FanoutParts) -> FanoutWorker {
        let (archive, stored) = parts.archive.take().unzip();
        if let Some(archive) = &archive {
            parts.run = archive.run().to_string();
        }
        FanoutWorker {
            parts,
            hub: Hub::new(&stored.unwrap_or_default()),
            archive,
            archive_ns: 0,
            published_ns: i64::MIN / 2,
            live_ns: i64::MIN / 2,
            put_off: false,
            survey: false,
            draining: false,
            audience: None,
            awaited: None,
            begun: false,
            held: None,
            failure: None,
            show_at: 0,
            stopping: None,
            finished: None,
            stamps_drained: false,
            now: 0,
        }
    }

    /// Stamps END when everything of its ledger has come from the encoders, as the peer does, for a measurement beside it.
    pub fn stamping_drained(mut self) -> FanoutWorker {
        self.stamps_drained = true;
        self
    }

    /// Takes what the source's side has for it, as far as a turn goes, and to the end of a ledger at most; how many items. An end
    /// waits until whoever is at the tip was told of the beginning: who comes to a ledger that is complete gets it as a replay.
    fn publish(&mut self) -> usize {
        let mut taken = 0;
        while taken < ITEMS_PER_TURN {
            if let Some(encoder) = self.awaited {
                // The order says that it comes; an encoder that is behind is waited for.
                let Some(message) = self.parts.encoders[encoder].pop() else { break };
                self.awaited = None;
                self.chunk(message);
            } else if let Some(end) = self.held.take_if(|_| !self.begun) {
                self.end(&end);
                return taken + 1;
            } else if self.held.is_some() {
                break;
            } else {
                let Some(item) = self.parts.order.pop() else { break };
                self.take(item);
            }
            taken += 1;
        }
        taken
    }

    fn take(&mut self, item: Item) {
        if matches!(item, Item::Begin(_) | Item::Run(_)) && std::mem::take(&mut self.parts.awaits_run) {
            self.audience.iter_mut().for_each(|audience| audience.shut(None));
        }
        match item {
            Item::Begin(begin) => self.begin(&begin),
            Item::Message(message) => self.chunk(message),
            Item::Fallback(message) => {
                self.hub.count_raw_fallback();
                self.chunk(message);
            }
            Item::Packed(encoder) => {
                assert!(encoder < self.parts.encoders.len(), "the order names encoder {encoder}, which there is not");
                self.awaited = Some(encoder);
            }
            Item::End(end) if self.stamps_drained => self.held = Some(End { emit_end_ns: clock::utc_ns(), ..end }),
            Item::End(end) => self.held = Some(end),
            Item::Run(run) => self.change_run(run),
            Item::Finished(outcome, reason) => self.finish_source(outcome, reason),
        }
    }

    fn begin(&mut self, begin: &Begin) {
        self.begun = true;
        let open = self.hub.open_sequence();
        if open == Some(begin.sequence) {
            return self.hub.begin_again(begin);
        }
        if open.is_some() || self.hub.would_reset(begin.sequence) {
            let latest = self.hub.bounds().1;
            tracing::warn!(latest, open, next = begin.sequence, "the source does not go on: retention is reset");
            self.reset(None, None, begin.sequence);
        }
        self.hub.begin(begin);
    }

    /// What is kept cannot be joined with what follows: another run begins.
    fn reset(&mut self, id: Option<[u8; 16]>, network: Option<[u8; 8]>, start: u32) {
        self.hub.reset();
        if let Some(archive) = &mut self.archive {
            archive.reset(id, network, start);
            self.parts.run = archive.run().to_string();
        }
        self.tell_run();
    }

    fn chunk(&mut self, message: Encoded) {
        if let Some(audience) = &mut self.audience {
            audience.counters.chunks += 1;
            audience.counters.raw_bytes += message.raw_bytes() as u64;
            audience.counters.packed_bytes += message.frame().len() as u64;
        }
        self.hub.chunk(message);
    }

    fn end(&mut self, end: &End) {
        let replay = self.hub.end(end);
        if let Some(archive) = &mut self.archive {
            let completed_ns = if end.emit_end_ns > 0 { end.emit_end_ns } else { clock::utc_ns() };
            let facts = Facts { sequence: end.sequence, raw_bytes: end.bytes, xxh64: end.xxh64, completed_ns };
            archive.offer(facts, replay);
        }
        if let Some(audience) = &mut self.audience {
            audience.counters.ledgers += 1;
            self.survey = true;
        }
    }

    /// Looks how the subscribers stand, once a ledger, when its END is on its way: it is a system call for each.
    fn survey(&mut self) {
        let Some(audience) = &mut self.audience else { return };
        let (live, slowest) = audience.live(&self.hub);
        let lag = audience.lag(&self.hub);
        self.parts.load.set_live_subscribers(live);
        self.parts.load.set_slowest(slowest);
        (audience.counters.live, audience.counters.slowest) = (live as u64, slowest.unwrap_or(0));
        let counters = &mut audience.counters;
        [counters.median_lag, counters.p99_lag, counters.slowest_lag] = lag;
    }

    fn change_run(&mut self, run: String) {
        // The run that it is already: ledgers are missing. What is kept goes, the name stays.
        if run == self.parts.run && self.hub.bounds() == (0, 0) && self.hub.open_sequence().is_none() {
            return;
        }
        let parts = run_parts(&run);
        tracing::info!(
            before = self.parts.run,
            now = if parts.is_some() { run.as_str() } else { "one with a name that is not passed on" },
            "what follows does not go on with what is kept: retention is reset"
        );
        self.reset(parts.map(|parts| parts.0), parts.map(|parts| parts.1), 0);
        if self.archive.is_none() {
            // Header fields and JSON escape nothing: what has not the form of a run gets a name of its own, as in an archive.
            self.parts.run = parts.map_or_else(|| uuid::Uuid::new_v4().to_string(), |_| run);
            self.tell_run();
        }
    }

    fn tell_run(&self) {
        if let Ok(mut shown) = self.parts.books.run.lock() {
            shown.clone_from(&self.parts.run);
        }
    }

    fn finish_source(&mut self, outcome: Outcome, reason: Option<String>) {
        match outcome {
            // The source's side has said so.
            Outcome::Ended => {}
            Outcome::Failed => {
                let reason = reason.unwrap_or_else(|| "it gave no reason".into());
                tracing::error!(%reason, "the source failed");
                self.failure.get_or_insert(reason);
            }
        }
        self.hub.finish(outcome);
        self.finished.get_or_insert(self.now);
    }

    /// Ends what takes too long after a stop or the source's end; tells when all is done. Whether there is news for subscribers.
    fn wind_up(&mut self) -> bool {
        let Some(since) = self.stopping.or(self.finished) else { return false };
        let cut = self.now - since > self.parts.settings.drain_ns && !self.hub.is_cut();
        if cut {
            self.hub.cut();
        }
        let taken = self.parts.order.is_empty() && self.awaited.is_none() && self.held.is_none();
        if taken
            && !std::mem::replace(&mut self.draining, true)
            && let Some(archive) = &mut self.archive
        {
            archive.drain();
        }
        if self.finished.is_some() && self.is_wound_up(since) {
            let _ = self.parts.books.end.set(self.failure.clone().map_or(Ok(()), Err));
        }
        cut
    }

    /// Whether everybody was let go, or had the time to be.
    fn is_wound_up(&self, since: i64) -> bool {
        let settings = &self.parts.settings;
        let longest = settings.drain_ns + settings.audience.time.close_ns;
        let gone = self.audience.as_ref().is_none_or(Audience::is_empty);
        let written = self.draining && self.archive.as_ref().is_none_or(Archive::is_drained);
        gone && written || self.now - since > longest
    }

    /// Gives subscribers what there is for them.
    fn serve(&mut self, turn: &mut Turn<'_>, changed: bool) -> usize {
        self.begun = false;
        let base = turn.user_data(0);
        let Some(audience) = &mut self.audience else { return 0 };
        let mut cx = Context { ring: turn.ring, base, hub: &mut self.hub, run: &self.parts.run, now: turn.now };
        let sends = audience.poll(&mut cx, changed);
        sends + usize::from(audience.has_ready())
    }

    /// Gives the archive its turn, and its reads to who wants them. Writes are put off while something live is on its way, but not for
    /// a subscriber that does not take it: then for as long as a ledger's last chunks take.
    fn look_after_archive(&mut self, turn: &mut Turn<'_>, published: bool) -> usize {
        let (Some(archive), Some(audience)) = (&mut self.archive, &mut self.audience) else { return 0 };
        let (base, now) = (turn.user_data(0), turn.now);
        let tag = base | ARCHIVE;
        let mut port = ArchivePort { ring: turn.ring, hub: &mut self.hub, tag, now, utc_ns: clock::utc_ns() };
        let mut work = 0;
        let fresh = now - self.published_ns < WRITE_DELAY_NS_MAX;
        if audience.is_sending_live() {
            self.live_ns = now;
        }
        self.put_off = published || (fresh && now - self.live_ns < WRITE_GRACE_NS);
        if !self.put_off || now - self.archive_ns > WRITE_DELAY_NS_MAX {
            self.archive_ns = now;
            work += archive.turn(&mut port);
        } else {
            work += archive.turn_reads(&mut port);
        }
        while let Some((at, stored, frame)) = audience.next_wanted() {
            if let Some(read) = archive.read(&mut port, stored, frame, u64::from(at)) {
                audience.read(at as usize, read, now);
            }
            work += 1;
        }
        while let Some((waiter, read)) = archive.next_read() {
            audience.read(waiter as usize, read, now);
            work += 1;
        }
        work
    }

    fn show(&mut self) {
        self.show_at = self.now + SHOW_NS;
        let Some(audience) = &mut self.audience else { return };
        let (bounds, counted, memory_bytes) = (self.hub.bounds(), self.hub.counters(), self.hub.memory_bytes());
        let counters = audience.count();
        (counters.oldest, counters.latest) = (u64::from(bounds.0), u64::from(bounds.1));
        counters.memory_bytes = memory_bytes;
        counters.live_abandons = counted.live_abandons;
        counters.raw_fallbacks = counted.raw_fallbacks;
        counters.unwritten_dropped = counted.unwritten_dropped;
        counters.resets = counted.resets;
        counters.restarts = counted.restarts;
        if let Some(archive) = &self.archive {
            let (written, read) = (archive.counters(), archive.read_counters());
            counters.durable = archive.durable().map_or(0, u64::from);
            (counters.written, counters.written_bytes) = (written.written, written.bytes);
            (counters.passed_over, counters.no_space) = (written.passed_over, written.no_space);
            (counters.disk_failed, counters.deleted_segments) = (written.failed, written.deleted);
            (counters.replay_reads, counters.replay_bytes) = (read.done, read.bytes);
            (counters.damaged_reads, counters.lost_ledgers) = (read.again, read.lost);
        }
        FanoutCounter::write(&mut self.parts.books.counters, counters);
    }

    fn listen(&self) -> Result<std::os::fd::OwnedFd, String> {
        let listen = self.parts.listen;
        tcp::patiently(|| tcp::listen(&listen))
            .map_err(|error| format!("listen = \"{listen}\": {error}; {}", tcp::unbound(&error)))
    }
}

impl Worker for FanoutWorker {
    fn name(&self) -> &str {
        &self.parts.name
    }

    /// After the source and the encoders.
    fn stage(&self) -> u8 {
        2
    }

    fn start(&mut self, turn: &mut Turn<'_>) -> Result<Vec<RawFd>, String> {
        self.now = turn.now;
        let listener = self.listen()?;
        let address = tcp::local_address(listener.as_fd()).map_err(|error| format!("listen: {error}"))?;
        let seed = random::bytes::<8>().map_err(|error| format!("random bytes: {error}"))?;
        let settings = self.parts.settings.audience;
        let tokens = self.parts.tokens.take();
        #[cfg(feature = "ledger-tls")]
        let tls = self.parts.tls.take();
        #[cfg(not(feature = "ledger-tls"))]
        let tls = None;
        self.audience = Some(Audience::new(settings, tokens, tls, listener, u64::from_ne_bytes(seed)));
        if let Some(audience) = self.audience.as_mut().filter(|_| self.parts.awaits_run) {
            audience.shut(Some("the upstream has not answered yet, and nothing is kept: ask again later"));
        }
        let _ = self.parts.books.address.set(address);
        self.tell_run();
        self.turn(turn);
        Ok(Vec::new())
    }

    fn turn(&mut self, turn: &mut Turn<'_>) -> usize {
        self.now = turn.now;
        let mut work = self.publish();
        if work > 0 {
            self.published_ns = turn.now;
        }
        let changed = self.wind_up() || work > 0;
        work += self.serve(turn, changed);
        if self.held.is_some() {
            work += self.publish();
            work += self.serve(turn, true);
        }
        if std::mem::take(&mut self.survey) {
            // What is queued goes first; an error is told by the core's own submit.
            let _ = turn.ring.submit();
            self.survey();
        }
        work += self.look_after_archive(turn, changed);
        let base = turn.user_data(0);
        let Some(audience) = &mut self.audience else { return work };
        let mut cx = Context { ring: turn.ring, base, hub: &mut self.hub, run: &self.parts.run, now: turn.now };
        audience.look(&mut cx);
        cx.hub.bound_memory(self.parts.settings.backlog_bytes);
        if turn.now >= self.show_at {
            self.show();
        }
        work
    }

    fn complete(&mut self, turn: &mut Turn<'_>, tag: u64, result: i32) {
        let base = turn.user_data(0);
        if let Some(archive) = &mut self.archive
            && let Some(of_archive) = tag.checked_sub(ARCHIVE).filter(|&tag| tag < ARCHIVE_TAGS)
        {
            let (hub, now, utc_ns) = (&mut self.hub, turn.now, clock::utc_ns());
            let mut port = ArchivePort { ring: turn.ring, hub, tag: base | ARCHIVE, now, utc_ns };
            return archive.complete(&mut port, of_archive, result);
        }
        let Some(audience) = &mut self.audience else { return };
        let mut cx = Context { ring: turn.ring, base, hub: &mut self.hub, run: &self.parts.run, now: turn.now };
        audience.complete(&mut cx, tag, result);
    }

    fn stays_awake(&self) -> bool {
        let subscribed = self.audience.as_ref().is_some_and(|audience| audience.subscribers() > 0);
        let coming = self.hub.open_sequence().is_some() && self.now - self.published_ns < STALL_NS;
        self.parts.settings.spin && subscribed && coming
    }

    fn deadline(&self) -> Option<i64> {
        let of_archive = self.archive.as_ref().and_then(Archive::deadline);
        // What is put off now gets its turn then, if not before.
        let off_until = (self.published_ns + WRITE_DELAY_NS_MAX).min(self.live_ns + WRITE_GRACE_NS);
        let of_archive = of_archive.map(|at| if self.put_off { at.max(off_until) } else { at });
        let of_audience = self.audience.as_ref().and_then(Audience::deadline);
        [of_archive, of_audience].into_iter().flatten().min()
    }

    fn stop(&mut self, turn: &mut Turn<'_>) {
        self.stopping = Some(turn.now);
        self.hub.drain();
        let base = turn.user_data(0);
        let Some(audience) = &mut self.audience else { return };
        let mut cx = Context { ring: turn.ring, base, hub: &mut self.hub, run: &self.parts.run, now: turn.now };
        audience.close_door(&mut cx);
        audience.poll(&mut cx, true);
    }

    fn drained(&self) -> bool {
        self.stopping.is_some_and(|since| self.is_wound_up(since))
    }

    fn finish(&mut self) {
        if let Some(audience) = &mut self.audience {
            audience.end_all();
        }
        self.show();
    }
}
