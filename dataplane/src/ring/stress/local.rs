//! Source, serve, mirror and reader in one process, over sockets of this host.
//!
//! Where something may sleep, each has a thread. Where all spin, four threads need four CPUs: with fewer, the producer steps
//! the server between its records and the reader steps the mirror, one thread for each end.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;

use super::pace::{Idle, Parks, Pushed, Spins, histogram, produce};
use super::report::{Copied, LocalReport, Percentiles, Produced};
use super::tally::{Finish, Tally, Told, drain};
use super::{DUE, LOOK, Load, STAMP, StressError, check_stop, new_run, pin, sized};
use crate::config::{Linger, Mirror as MirrorConfig, MirrorStart, Serve as ServeConfig};
use crate::ring::inline::InlineUdp;
use crate::ring::step::{Mirror, Server};
use crate::ring::{ConsumerSettings, InlineSender, Received, RingConsumer, RingProducer, RingSettings, StartAt, Wait};
use crate::sys::clock::{self, monotonic_ns};
use crate::sys::cpu;

/// How long it may take until everything stands: sockets, the mirror's ring, the reader.
const SETUP_NS_MAX: i64 = 10_000_000_000;
/// Threads of a run with a mirror.
const ROLES: usize = 4;

/// How the records travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// On the mirror's TCP connection.
    Tcp,
    /// By UDP to the mirror's own address.
    Udp,
    /// By UDP to a group.
    Multicast,
}

impl Transport {
    /// Its name.
    pub fn label(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
            Transport::Multicast => "multicast",
        }
    }
}

/// A run on one host.
#[derive(Clone, PartialEq, Debug)]
pub struct LocalSettings {
    /// What is published.
    pub load: Load,
    /// How it travels; `None`: the ring alone.
    pub mirror: Option<Transport>,
    /// The mirror begins so long after the producer; 0: before it.
    pub join_after: Duration,
    /// How often each datagram is sent.
    pub dup: u8,
    /// How long a frame waits to be filled.
    pub linger: Linger,
    /// The producer's thread sends the datagrams.
    pub inline: bool,
    /// Nothing sleeps.
    pub spin: bool,
    /// The interface of a multicast group.
    pub interface: Ipv4Addr,
    /// Slots of the ring.
    pub capacity: u64,
    /// CPUs: none; the source's end and the mirror's; or producer, serve, mirror and reader.
    pub cpus: Vec<usize>,
    /// A record that is counted as if it had not come (tests).
    pub planted_loss: Option<u64>,
    /// Where the rings are made.
    pub folder: PathBuf,
}

impl LocalSettings {
    fn check(&self) -> Result<(), StressError> {
        self.load.check()?;
        let bad = |what: &str| Err(StressError::Settings(what.into()));
        let datagrams = matches!(self.mirror, Some(Transport::Udp | Transport::Multicast));
        if self.inline && !datagrams {
            return bad("--inline: the producer sends datagrams: take --mirror udp or --mirror multicast");
        }
        if self.dup == 0 || (self.dup > 1 && !datagrams) {
            return bad("--dup: datagrams are sent 1 to 255 times: take --mirror udp or --mirror multicast");
        }
        if !self.join_after.is_zero() && self.mirror.is_none() {
            return bad("--join-after: nothing joins without --mirror");
        }
        if self.join_after.as_secs_f64() >= self.load.seconds {
            return bad("--join-after: the mirror must join before the run of --seconds ends");
        }
        if ![0, 2, ROLES].contains(&self.cpus.len()) {
            return bad("--cpus: two (source end, mirror end) or four (producer, serve, mirror, reader)");
        }
        if !self.capacity.is_power_of_two() {
            return bad(&format!("--capacity {}: must be a power of two", self.capacity));
        }
        Ok(())
    }

    /// Whether each of the four has a thread of its own.
    fn is_apart(&self) -> bool {
        !self.spin || self.cpus.len() == ROLES || (self.cpus.is_empty() && cpu::allowed().len() >= ROLES)
    }

    /// The CPU of producer (0), serve (1), mirror (2) or reader (3).
    fn cpu(&self, role: usize) -> Option<usize> {
        match self.cpus.len() {
            ROLES => self.cpus.get(role).copied(),
            _ => self.cpus.get(role / 2).copied(),
        }
    }

    fn serve(&self, ring: &Path) -> Result<ServeConfig, StressError> {
        let mut serve = ServeConfig::new("stress", "stress", ring.into(), SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        serve.dup = self.dup;
        serve.linger = self.linger;
        match self.mirror {
            Some(Transport::Udp) => serve.udp = Some(free_port()?),
            Some(Transport::Multicast) => {
                // A group of the administratively scoped block that follows from the process: two runs do not meet.
                let pid = std::process::id();
                let group = Ipv4Addr::new(239, 255, (pid >> 8) as u8, pid as u8);
                serve.multicast = Some(SocketAddrV4::new(group, free_port()?));
                serve.interface = self.interface;
            }
            _ => {}
        }
        Ok(serve)
    }

    fn mirror(&self, source: SocketAddr, copy: &Path) -> MirrorConfig {
        let mut mirror = MirrorConfig::new("stress", "stress", source.to_string(), copy.into());
        mirror.from = MirrorStart::Latest;
        mirror.unicast = self.mirror == Some(Transport::Udp);
        mirror.interface = self.interface;
        mirror
    }
}

/// A UDP port that is free now.
fn free_port() -> Result<u16, StressError> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    socket.map(|address| address.port()).map_err(StressError::io("a UDP port"))
}

/// Runs it. `stop` ends it early.
///
/// # Errors
/// Settings that cannot be run, a host that cannot give what is needed, or `stop`.
pub fn run(settings: &LocalSettings, stop: &AtomicBool) -> Result<LocalReport, StressError> {
    settings.check()?;
    sized!(settings.load.size, run_sized(settings, stop))
}

/// The rings' files, gone with the run.
struct Paths {
    source: PathBuf,
    copy: PathBuf,
}

impl Drop for Paths {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.source);
        let _ = std::fs::remove_file(&self.copy);
    }
}

/// What the threads tell each other.
struct Talk<'a> {
    settings: &'a LocalSettings,
    paths: &'a Paths,
    run: u64,
    stop: &'a AtomicBool,
    /// Where the server listens.
    address: OnceLock<SocketAddr>,
    /// The mirror gets records.
    live: AtomicBool,
    /// The reader is on its ring.
    attached: AtomicBool,
    /// When the first record is due; 0: not known yet.
    start_ns: AtomicI64,
    /// The last record, once it is published.
    last: AtomicU64,
    /// Everything is read or given up.
    over: AtomicBool,
    /// The mirror has ended: the server may.
    unmirrored: AtomicBool,
    failure: Mutex<Option<StressError>>,
}

impl Talk<'_> {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || self.stop.load(Ordering::Relaxed)
    }

    /// Whether the server goes on: as long as the mirror, whose connection would break otherwise.
    fn serves(&self) -> bool {
        !self.is_over() || !self.unmirrored.load(Ordering::Acquire)
    }

    /// A thread's end: its failure ends all.
    fn end<T>(&self, result: Result<T, StressError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(error);
                self.over.store(true, Ordering::Release);
                None
            }
        }
    }

    /// Waits until `look` gives something; `what` is said if that takes too long.
    fn until<T>(&self, what: &str, mut look: impl FnMut() -> Result<Option<T>, StressError>) -> Result<T, StressError> {
        let end = monotonic_ns() + SETUP_NS_MAX;
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if self.is_over() {
                return Err(StressError::Stopped);
            }
            if monotonic_ns() > end {
                return Err(StressError::Failed(format!("{what}: not within {} s", SETUP_NS_MAX / 1_000_000_000)));
            }
        }
    }

    fn is_ready(&self) -> bool {
        let mirrored = self.settings.mirror.is_some();
        if mirrored && !self.settings.join_after.is_zero() {
            return self.address.get().is_some();
        }
        // Set by the other threads after what they did: nothing of it is read here, so the order does not matter.
        self.attached.load(Ordering::Acquire) && (!mirrored || self.live.load(Ordering::Acquire))
    }

    /// When the mirror may connect, once that is known.
    fn joins_ns(&self) -> Option<i64> {
        if self.settings.join_after.is_zero() {
            return Some(0);
        }
        let start = self.start_ns.load(Ordering::Acquire);
        (start != 0).then(|| start + self.settings.join_after.as_nanos() as i64)
    }
}

/// Ends the others should this thread panic.
struct Fuse<'a>(&'a AtomicBool);

impl Drop for Fuse<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Release);
        }
    }
}

/// Says that the mirror has ended, however it did.
struct Unmirrored<'a>(&'a AtomicBool);

impl Drop for Unmirrored<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What the threads found.
#[derive(Default)]
struct Ends {
    pushed: Option<Pushed>,
    datagrams: u64,
    copied: Option<Copied>,
    read: Option<Read>,
}

/// What the reader found.
struct Read {
    tally: Tally,
    latency: Histogram<u64>,
    from_schedule: Histogram<u64>,
}

fn run_sized<const W: usize>(settings: &LocalSettings, stop: &AtomicBool) -> Result<LocalReport, StressError> {
    let name = |what: &str| settings.folder.join(format!("sluice-stress-{}-{what}", std::process::id()));
    let paths = Paths { source: name("source"), copy: name("copy") };
    let _ = std::fs::remove_file(&paths.copy);
    let talk = Talk {
        settings,
        paths: &paths,
        run: new_run()?,
        stop,
        address: OnceLock::new(),
        live: AtomicBool::new(false),
        attached: AtomicBool::new(false),
        start_ns: AtomicI64::new(0),
        last: AtomicU64::new(0),
        over: AtomicBool::new(false),
        unmirrored: AtomicBool::new(false),
        failure: Mutex::new(None),
    };
    let ring = RingSettings { capacity: settings.capacity, ..RingSettings::default() };
    let producer = RingProducer::<[u64; W]>::create(&paths.source, &ring)?;
    let ends = match (settings.mirror, settings.is_apart()) {
        (None, _) => alone(&talk, producer),
        (Some(_), true) => apart(&talk, producer),
        (Some(_), false) => paired(&talk, producer),
    };
    if let Some(failure) = talk.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(failure);
    }
    check_stop(stop)?;
    Ok(report(settings, &ends))
}

fn report(settings: &LocalSettings, ends: &Ends) -> LocalReport {
    let (pushed, read) = (ends.pushed.as_ref().expect("no failure"), ends.read.as_ref().expect("no failure"));
    let copied = ends.copied.map(|copied| Copied { datagrams: ends.datagrams, ..copied });
    let mirror = copied.map(|copied| (copied.first, copied.undeclared));
    LocalReport {
        mirror: settings.mirror.map(Transport::label),
        produced: Produced::of(&settings.load, pushed),
        counts: *read.tally.counts(),
        delivery: read.tally.counts().delivery(mirror.or(Some((1, 0))), pushed.count),
        copied,
        latency: Percentiles::of_histogram(&read.latency),
        latency_from_schedule: Percentiles::of_histogram(&read.from_schedule),
    }
}

/// The ring alone: a producer and a reader.
fn alone<const W: usize>(talk: &Talk, producer: RingProducer<[u64; W]>) -> Ends {
    std::thread::scope(|scope| {
        let source = scope.spawn(move || {
            let _fuse = Fuse(&talk.over);
            talk.end(produce_alone(talk, producer).map(|(pushed, _)| pushed))
        });
        let reader = scope.spawn(|| {
            let _fuse = Fuse(&talk.over);
            talk.end(read_alone::<W>(talk, &talk.paths.source, 2))
        });
        let pushed = source.join().expect("the producer does not panic");
        Ends { pushed, read: reader.join().expect("the reader does not panic"), ..Ends::default() }
    })
}

/// Four threads.
fn apart<const W: usize>(talk: &Talk, producer: RingProducer<[u64; W]>) -> Ends {
    let (give, take) = sync_channel(1);
    std::thread::scope(|scope| {
        let source = scope.spawn(move || {
            let _fuse = Fuse(&talk.over);
            talk.end(match talk.settings.inline {
                true => await_inline(talk, &take).and_then(|inline| produce_inline(talk, producer.with_sender(inline))),
                false => produce_alone(talk, producer).map(|(pushed, _)| (pushed, 0)),
            })
        });
        let serve = scope.spawn(move || {
            let _fuse = Fuse(&talk.over);
            talk.end(serve(talk, &give))
        });
        let mirror = scope.spawn(|| {
            let _fuse = Fuse(&talk.over);
            talk.end(mirror(talk))
        });
        let reader = scope.spawn(|| {
            let _fuse = Fuse(&talk.over);
            talk.end(read_alone::<W>(talk, &talk.paths.copy, 3))
        });
        let told = "no thread of a run panics";
        let (pushed, inline) = source.join().expect(told).unzip();
        Ends {
            pushed,
            datagrams: serve.join().expect(told).unwrap_or_default() + inline.unwrap_or_default(),
            copied: mirror.join().expect(told),
            read: reader.join().expect(told),
        }
    })
}

/// Two threads that spin.
fn paired<const W: usize>(talk: &Talk, producer: RingProducer<[u64; W]>) -> Ends {
    std::thread::scope(|scope| {
        let source = scope.spawn(move || {
            let _fuse = Fuse(&talk.over);
            talk.end(produce_and_serve(talk, producer))
        });
        let reader = scope.spawn(|| {
            let _fuse = Fuse(&talk.over);
            talk.end(mirror_and_read::<W>(talk))
        });
        let (pushed, datagrams) = source.join().expect("the producer does not panic").unzip();
        let (copied, read) = reader.join().expect("the reader does not panic").unzip();
        Ends { pushed, datagrams: datagrams.unwrap_or_default(), copied, read }
    })
}

/// Publishes the load once everything stands, and keeps the ring until it is read.
fn publish<const W: usize, S: InlineSender>(
    talk: &Talk,
    producer: &mut RingProducer<[u64; W], S>,
    idle: &mut impl Idle,
) -> Result<Pushed, StressError> {
    talk.until("the mirror and its reader", || {
        idle.idle(1_000_000)?;
        Ok(talk.is_ready().then_some(()))
    })?;
    // The others are told first.
    let start_ns = monotonic_ns() + 2_000_000;
    talk.start_ns.store(start_ns, Ordering::Release);
    let pushed = produce(producer, (&talk.settings.load, talk.run, start_ns), idle, |_, _| {}, talk.stop)?;
    talk.last.store(pushed.count, Ordering::Release);
    Ok(pushed)
}

fn produce_alone<const W: usize, S: InlineSender>(
    talk: &Talk,
    mut producer: RingProducer<[u64; W], S>,
) -> Result<(Pushed, RingProducer<[u64; W], S>), StressError> {
    pin(talk.settings.cpu(0))?;
    let pushed = match talk.settings.spin {
        true => publish(talk, &mut producer, &mut Spins),
        false => publish(talk, &mut producer, &mut Parks),
    }?;
    while !talk.is_over() {
        clock::sleep(Duration::from_millis(1));
    }
    Ok((pushed, producer))
}

/// With the datagrams that it sent.
fn produce_inline<const W: usize>(
    talk: &Talk,
    producer: RingProducer<[u64; W], InlineUdp>,
) -> Result<(Pushed, u64), StressError> {
    let (pushed, mut producer) = produce_alone(talk, producer)?;
    Ok((pushed, sent(&mut producer)))
}

/// Datagrams that the producer sent; the server, which has the other hand on the sockets, is idle by then.
fn sent<const W: usize>(producer: &mut RingProducer<[u64; W], InlineUdp>) -> u64 {
    let counters = (0..100).find_map(|_| producer.sender().counters());
    counters.map_or(0, |counters| counters.datagrams)
}

fn await_inline(talk: &Talk, from: &Receiver<InlineUdp>) -> Result<InlineUdp, StressError> {
    talk.until("the server's sockets", || Ok(from.recv_timeout(LOOK).ok()))
}

/// Makes the server and, where the producer sends, takes the datagrams out.
fn begin_server(talk: &Talk) -> Result<(Server, Option<InlineUdp>), StressError> {
    let mut server = Server::new(&talk.settings.serve(&talk.paths.source)?)?;
    let inline = match talk.settings.inline {
        false => None,
        true => Some(talk.until("the server's ring", || {
            server.step()?;
            Ok(server.inline()?)
        })?),
    };
    let _ = talk.address.set(server.address());
    Ok((server, inline))
}

/// Serves until all is over; the datagrams that were sent.
fn serve(talk: &Talk, give: &SyncSender<InlineUdp>) -> Result<u64, StressError> {
    pin(talk.settings.cpu(1))?;
    let (mut server, inline) = begin_server(talk)?;
    if let Some(inline) = inline {
        // The channel holds one, and no more are made.
        let _ = give.send(inline);
    }
    while talk.serves() {
        if server.step()? == 0 && !talk.settings.spin {
            server.wait(LOOK)?;
        }
    }
    Ok(server.counters().datagrams)
}

fn produce_and_serve<const W: usize>(
    talk: &Talk,
    producer: RingProducer<[u64; W]>,
) -> Result<(Pushed, u64), StressError> {
    pin(talk.settings.cpu(0))?;
    let (mut server, inline) = begin_server(talk)?;
    // The ring stays until all is read.
    match inline {
        Some(inline) => {
            let mut producer = producer.with_sender(inline);
            let pushed = publish(talk, &mut producer, &mut server)?;
            step_until_over(talk, &mut server)?;
            Ok((pushed, server.counters().datagrams + sent(&mut producer)))
        }
        None => {
            let mut producer = producer;
            let pushed = publish(talk, &mut producer, &mut server)?;
            step_until_over(talk, &mut server)?;
            Ok((pushed, server.counters().datagrams))
        }
    }
}

fn step_until_over(talk: &Talk, server: &mut Server) -> Result<(), StressError> {
    while talk.serves() {
        server.step()?;
    }
    Ok(())
}

/// Waits for its time, then makes the mirror.
fn begin_mirror(talk: &Talk) -> Result<Mirror, StressError> {
    let address = talk.until("the server", || {
        clock::sleep(Duration::from_millis(1));
        Ok(talk.address.get().copied())
    })?;
    let joins = talk.until("the producer's start", || {
        clock::sleep(Duration::from_millis(1));
        Ok(talk.joins_ns())
    })?;
    while monotonic_ns() < joins && !talk.is_over() {
        let left = (joins - monotonic_ns()).max(0) as u64;
        clock::sleep(Duration::from_nanos(left).min(LOOK));
    }
    Ok(Mirror::new(&talk.settings.mirror(address, &talk.paths.copy))?)
}

fn look_whether_live(talk: &Talk, mirror: &Mirror, live: &mut bool) {
    if !*live && mirror.status().live {
        *live = true;
        talk.live.store(true, Ordering::Release);
    }
}

fn copied(mirror: &Mirror) -> Copied {
    let (counters, status) = (mirror.counters(), mirror.status());
    let passed = status.next.saturating_sub(status.first);
    Copied {
        first: status.first,
        undeclared: passed.saturating_sub(counters.records + counters.gap_records),
        naks: counters.naks,
        repaired: counters.repaired_records,
        gaps: counters.gaps,
        gap_records: counters.gap_records,
        duplicates: counters.duplicate_records,
        early: counters.held,
        datagrams: 0,
        connections: counters.connections,
    }
}

/// Mirrors until all is over.
fn mirror(talk: &Talk) -> Result<Copied, StressError> {
    let _unmirrored = Unmirrored(&talk.unmirrored);
    pin(talk.settings.cpu(2))?;
    let mut mirror = begin_mirror(talk)?;
    let mut live = false;
    while !talk.is_over() {
        if mirror.step()? == 0 && !talk.settings.spin {
            mirror.wait(LOOK)?;
        }
        look_whether_live(talk, &mirror, &mut live);
    }
    Ok(copied(&mirror))
}

/// A reader and what it has found so far.
struct Reading<const W: usize> {
    ring: RingConsumer<[u64; W]>,
    read: Read,
    finish: Finish,
}

impl<const W: usize> Reading<W> {
    /// Attaches, if the ring is there.
    fn open(talk: &Talk, path: &Path) -> Option<Reading<W>> {
        let ring = RingConsumer::open(path, StartAt::Oldest, &ConsumerSettings::default()).ok()?;
        let tally = Tally::new(talk.run, talk.settings.planted_loss);
        let read = Read { tally, latency: histogram(), from_schedule: histogram() };
        talk.attached.store(true, Ordering::Release);
        Some(Reading { ring, read, finish: Finish::default() })
    }

    #[inline]
    fn drain(&mut self) -> usize {
        let Read { tally, latency, from_schedule } = &mut self.read;
        drain(&mut self.ring, tally, |_, record, now| time(record, now, latency, from_schedule))
    }

    /// Counts a record that was waited for.
    fn take(&mut self, sequence: u64, record: &[u64; W], now: i64) {
        let Read { tally, latency, from_schedule } = &mut self.read;
        if tally.take(sequence, record, Told::by(&self.ring)) {
            time(record, now, latency, from_schedule);
        }
    }

    /// Whether all has come, or nothing comes any more; `count` records were read since the last look.
    fn is_done(&mut self, talk: &Talk, count: usize) -> bool {
        self.finish.is_done(&talk.last, self.read.tally.last(), count)
    }
}

#[inline]
fn time<const W: usize>(record: &[u64; W], now: i64, latency: &mut Histogram<u64>, from_schedule: &mut Histogram<u64>) {
    latency.saturating_record(now.saturating_sub(record[STAMP] as i64).max(0) as u64);
    from_schedule.saturating_record(now.saturating_sub(record[DUE] as i64).max(0) as u64);
}

/// Reads until all is read or given up, and says so to the others.
fn read_alone<const W: usize>(talk: &Talk, path: &Path, role: usize) -> Result<Read, StressError> {
    pin(talk.settings.cpu(role))?;
    let mut reading = await_ring::<W>(talk, path)?;
    let wait = if talk.settings.spin { Wait::Spin } else { Wait::default() };
    while !talk.is_over() {
        let mut count = reading.drain();
        if count == 0
            && let Received::Record { sequence, record } = reading.ring.recv(wait, LOOK)?
        {
            reading.take(sequence, &record, monotonic_ns());
            count = 1;
        }
        if reading.is_done(talk, count) {
            break;
        }
    }
    talk.over.store(true, Ordering::Release);
    Ok(reading.read)
}

/// Waits for the ring, with a mirror that joins late for its time too.
fn await_ring<const W: usize>(talk: &Talk, path: &Path) -> Result<Reading<W>, StressError> {
    while talk.joins_ns().is_none_or(|at| monotonic_ns() < at) && !talk.is_over() {
        clock::sleep(Duration::from_millis(1));
    }
    talk.until("the mirror's ring", || {
        clock::sleep(Duration::from_micros(200));
        Ok(Reading::<W>::open(talk, path))
    })
}

fn mirror_and_read<const W: usize>(talk: &Talk) -> Result<(Copied, Read), StressError> {
    let _unmirrored = Unmirrored(&talk.unmirrored);
    pin(talk.settings.cpu(2))?;
    let mut mirror = begin_mirror(talk)?;
    let mut live = false;
    let mut reading = talk.until("the mirror's ring", || {
        mirror.step()?;
        Ok(Reading::<W>::open(talk, &talk.paths.copy))
    })?;
    while !talk.is_over() {
        mirror.step()?;
        let count = reading.drain();
        look_whether_live(talk, &mirror, &mut live);
        if reading.is_done(talk, count) {
            break;
        }
    }
    let copied = copied(&mirror);
    talk.over.store(true, Ordering::Release);
    Ok((copied, reading.read))
}
