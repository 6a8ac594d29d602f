//! The clients of a run: each a thread that follows the stream; the first one's ledgers are the rows.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::clock as offset;
use super::server::{Meter, Server};
use super::settings::Settings;
use crate::cli::{Exit, Failure};
use crate::config::LedgerSpin;
use crate::ledger::assemble::{AssemblyError, StreamError};
use crate::ledger::bearer;
use crate::ledger::bench::payload::{self, Mismatch, Synthetic};
use crate::ledger::bench::sample::{Sample, Sampler};
use crate::ledger::bench::summary::{Clock, Cpu, Measured, Mode};
use crate::ledger::client::ClientError;
use crate::ledger::dump;
use crate::ledger::follow::{Cancel, FollowError, FollowSettings, Follower};
use crate::ledger::synthetic::Shape;
use crate::sys::netns::Namespace;
use crate::sys::signal::{Asked, Signals};
use crate::sys::{clock, cpu};

/// How often the control thread looks for an end, and shows how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Samples that have room before the first ledger comes, so that no vector grows in the middle of a run of usual length.
const SAMPLES_RESERVED: usize = 16_384;

/// What a client measured.
#[derive(Default)]
struct Client {
    samples: Vec<Sample>,
    verified: u64,
    /// CPU time of its thread between the first and the last ledger.
    cpu_ns: i64,
    /// What the meter showed after the first and after the last ledger.
    marks: Option<(Mark, Mark)>,
    failed: Option<Broken>,
}

/// CPU time so far.
#[derive(Clone, Copy)]
struct Mark {
    own_ns: i64,
    server_ns: Option<i64>,
    machine_ns: Option<i64>,
}

/// Why a client ended before its end.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Follow(#[from] FollowError),
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    #[error(transparent)]
    Dump(#[from] dump::DumpError),
    #[error("{0}")]
    Host(String),
}

impl Broken {
    fn is_checksum(&self) -> bool {
        let Broken::Follow(FollowError::Stream { source: ClientError::Stream(error), .. }) = self else { return false };
        matches!(error, StreamError::Protocol(AssemblyError::Checksum { .. }))
    }

    fn exit(&self) -> Exit {
        match self {
            Broken::Follow(FollowError::Url(_) | FollowError::Tls { .. } | FollowError::Authorization) => Exit::Usage,
            Broken::Follow(FollowError::Stream { source: ClientError::Refused { status, .. }, .. })
                if *status < 500 =>
            {
                Exit::Usage
            }
            Broken::Follow(FollowError::Stream { .. }) | Broken::Mismatch(_) => Exit::Difference,
            Broken::Follow(_) | Broken::Dump(_) | Broken::Host(_) => Exit::Host,
        }
    }
}

/// Runs the clients, and the server where the run has one.
pub fn run(settings: &Settings) -> Result<(Measured, Option<Failure>), Failure> {
    let signals = Signals::take().map_err(|error| Failure::host(format!("signalfd: {error}")))?;
    let server = match settings.mode {
        Mode::Loopback => Some(Server::start(settings)?),
        _ => None,
    };
    let url = server.as_ref().map_or_else(|| settings.args.url.clone(), Server::url);
    let clock = match settings.mode {
        Mode::Loopback => Clock::Same,
        _ => offset::offset(&url),
    };
    let mut interrupted = match &server {
        Some(server) if settings.args.replay => server.await_filled(settings.count.unwrap_or(0), &signals)?,
        _ => false,
    };
    let crowd = Crowd::start(settings, &url, server.as_ref())?;
    if interrupted {
        crowd.cancel();
    }
    let bar = progress(settings.count);
    let mut fault = None;
    while !crowd.has_ended() {
        match signals.wait(LOOK_EVERY) {
            Ok(Some(Asked::Stop)) => {
                interrupted = true;
                crowd.cancel();
            }
            Ok(_) => {}
            Err(error) => return Err(Failure::host(format!("waiting for signals: {error}"))),
        }
        if let Some(what) = server.as_ref().and_then(Server::fault)
            && fault.is_none()
        {
            fault = Some(what);
            crowd.cancel();
        }
        bar.set_position(u64::from(crowd.arrived.load(Ordering::Relaxed)));
    }
    bar.finish_and_clear();
    // Where one has failed, the others would wait for a source that waits for it.
    crowd.cancel();
    let clients = crowd.join();
    let (raw_fallbacks, stopped) = match server.map(Server::stop) {
        Some(Ok(raw_fallbacks)) => (Some(raw_fallbacks), Ok(())),
        Some(Err(late)) => (None, Err(late)),
        None => (offset::health(&url).and_then(|health| health["raw_fallbacks"].as_u64()), Ok(())),
    };
    let (mut measured, mut failed) = gather(settings, clients, interrupted);
    (measured.clock, measured.raw_fallbacks) = (Some(clock), raw_fallbacks);
    if let Some(what) = fault {
        measured.ended_by = Some(what.clone());
        failed = Some(Failure::host(what));
    }
    if let Err(late) = stopped {
        failed.get_or_insert(late);
    }
    Ok((measured, failed))
}

/// All clients' measurements as one run's.
fn gather(settings: &Settings, mut clients: Vec<Client>, interrupted: bool) -> (Measured, Option<Failure>) {
    let checksum_failures = clients.iter().filter_map(|client| client.failed.as_ref()).filter(|why| why.is_checksum());
    let checksum_failures = checksum_failures.count() as u64;
    let own = |why: &Broken| matches!(why, Broken::Follow(FollowError::Cancelled));
    let broken = clients.iter_mut().filter_map(|client| client.failed.take()).find(|why| !own(why));
    let client_ns: i64 = clients.iter().map(|client| client.cpu_ns).sum();
    let first = clients.remove(0);
    let cpu = first.marks.filter(|_| settings.args.cpu || settings.args.json).map(|(begin, end)| {
        let process_ns = end.own_ns - begin.own_ns;
        let server_ns = match (begin.server_ns, end.server_ns) {
            // A process of its own.
            (Some(begin), Some(end)) => Some(end - begin),
            _ if settings.mode == Mode::Loopback => Some((process_ns - client_ns).max(0)),
            _ => None,
        };
        let machine_ns = end.machine_ns.zip(begin.machine_ns).map(|(end, begin)| end - begin);
        Cpu { ledgers: (first.samples.len() as u64).saturating_sub(1), server_ns, client_ns, machine_ns }
    });
    let failed = broken.map(|why| Failure { message: why.to_string(), exit: why.exit() });
    let ended_by = match (&failed, interrupted) {
        (Some(failure), _) => Some(failure.message.clone()),
        (None, true) => Some("interrupted".into()),
        (None, false) => None,
    };
    let measured = Measured {
        mode: settings.mode,
        samples: first.samples,
        others: clients.into_iter().map(|client| client.samples).collect(),
        window_ns: settings.window.map(|window| window.nanos()),
        checksum_failures,
        verified: settings.args.verify.then_some(first.verified),
        raw_fallbacks: None,
        cpu: cpu.filter(|cpu| cpu.ledgers > 0),
        clock: None,
        ended_by,
    };
    (measured, failed)
}

/// A bar on a terminal; nothing in a pipe.
fn progress(count: Option<u32>) -> ProgressBar {
    let bar = count.map_or_else(ProgressBar::new_spinner, |count| ProgressBar::new(u64::from(count)));
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos} ledgers, {elapsed}") {
        bar.set_style(style);
    }
    bar
}

/// The threads.
struct Crowd {
    threads: Vec<JoinHandle<Client>>,
    cancels: Vec<Cancel>,
    /// Ledgers that the first client has.
    arrived: Arc<AtomicU32>,
    /// A client has failed: set `Relaxed` by its thread, which tells the rest by being joined.
    failed: Arc<AtomicBool>,
}

impl Crowd {
    fn start(settings: &Settings, url: &str, server: Option<&Server>) -> Result<Crowd, Failure> {
        let arrived = Arc::new(AtomicU32::new(0));
        let follow = follow_settings(settings)?;
        let mut crowd = Crowd { threads: Vec::new(), cancels: Vec::new(), arrived, failed: Arc::default() };
        for index in 0..settings.args.subscribers {
            let follower = Follower::new(url, settings.range, follow.clone());
            let follower = follower.map_err(|error| Failure::usage(error.to_string()))?;
            crowd.cancels.push(follower.canceller());
            let seat = Seat {
                first: index == 0,
                cpu: settings.client_cpu,
                count: settings.count,
                arrived: crowd.arrived.clone(),
                failed: crowd.failed.clone(),
                verifier: (settings.args.verify && index == 0).then(|| Verifier::new(settings)).transpose()?,
                meter: server.map(Server::meter).unwrap_or_default(),
                machine: settings.args.cpu,
                host: server.and_then(Server::client_host),
            };
            let thread = std::thread::Builder::new().name(format!("client-{index}"));
            let thread = thread.spawn(move || seat.run(follower));
            crowd.threads.push(thread.map_err(|error| Failure::host(format!("client {index}: no thread: {error}")))?);
        }
        Ok(crowd)
    }

    fn cancel(&self) {
        self.cancels.iter().for_each(Cancel::cancel);
    }

    /// When the first client has failed the others have nothing to wait for.
    fn has_ended(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.threads.iter().all(JoinHandle::is_finished)
    }

    fn join(self) -> Vec<Client> {
        let panicked = |_| Client { failed: Some(Broken::Host("a client panicked".into())), ..Client::default() };
        self.threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    }
}

fn follow_settings(settings: &Settings) -> Result<FollowSettings, Failure> {
    let token = settings.args.token_file.as_deref().map(bearer::read).transpose();
    // A connection that is lost is the end of a measurement. Many clients have no CPU each to spin on.
    let spin = settings.args.spin == LedgerSpin::Open && settings.args.subscribers == 1;
    Ok(FollowSettings {
        retry_for: Some(Duration::ZERO),
        authorization: token.map_err(|error| Failure::usage(error.to_string()))?,
        authorities: settings.args.ca.clone(),
        flows: usize::from(settings.args.flows),
        spin,
        ..FollowSettings::default()
    })
}

/// One client's thread.
struct Seat {
    first: bool,
    cpu: Option<usize>,
    count: Option<u32>,
    arrived: Arc<AtomicU32>,
    failed: Arc<AtomicBool>,
    verifier: Option<Verifier>,
    meter: Meter,
    machine: bool,
    host: Option<Arc<Namespace>>,
}

impl Seat {
    fn run(self, follower: Follower) -> Client {
        let failed = self.failed.clone();
        let client = self.sit(follower);
        failed.fetch_or(client.failed.is_some(), Ordering::Relaxed);
        client
    }

    fn sit(mut self, mut follower: Follower) -> Client {
        let mut client = Client::default();
        client.samples.reserve(SAMPLES_RESERVED);
        if let Some(host) = &self.host
            && let Err(error) = host.enter()
        {
            client.failed = Some(Broken::Host(format!("entering the link's namespace: {error}")));
            return client;
        }
        if let Some(cpu) = self.cpu
            && !cpu::pin(cpu)
        {
            client.failed = Some(Broken::Host(format!("cannot pin to cpu {cpu}")));
            return client;
        }
        if let Err(why) = self.follow(&mut follower, &mut client) {
            client.failed = Some(why);
        }
        client
    }

    fn follow(&mut self, follower: &mut Follower, client: &mut Client) -> Result<(), Broken> {
        let mut sampler = Sampler::new(clock::monotonic_ns());
        let mut cpu_begin_ns = 0;
        while let Some(received) = follower.next()? {
            let ledger = &received.ledger;
            client.samples.push(sampler.streamed(ledger, received.received_ns, clock::monotonic_ns()));
            if let Some(verifier) = &mut self.verifier {
                verifier.verify(ledger.sequence, ledger.bytes)?;
                client.verified += 1;
            }
            let cpu_ns = clock::thread_cpu_ns();
            if client.samples.len() == 1 {
                cpu_begin_ns = cpu_ns;
            }
            client.cpu_ns = cpu_ns - cpu_begin_ns;
            if self.first {
                let mark = self.mark();
                client.marks = Some((client.marks.map_or(mark, |(begin, _)| begin), mark));
                self.arrived.store(client.samples.len() as u32, Ordering::Relaxed);
            }
            if self.count.is_some_and(|count| client.samples.len() >= count as usize) {
                follower.stop();
            }
        }
        Ok(())
    }

    fn mark(&self) -> Mark {
        Mark {
            own_ns: clock::process_cpu_ns(),
            server_ns: self.meter.server_ns(),
            machine_ns: self.machine.then(cpu::busy_ns).flatten(),
        }
    }
}

/// What a ledger is compared with.
enum Verifier {
    Synthetic(Synthetic),
    Dump { directory: std::path::PathBuf, first: u32, ledgers: u32 },
}

impl Verifier {
    fn new(settings: &Settings) -> Result<Verifier, Failure> {
        if let Some(directory) = &settings.args.file_dir {
            let bounds = dump::bounds(directory).map_err(|error| Failure::usage(format!("--file-dir {error}")))?;
            return Ok(Verifier::Dump {
                directory: directory.clone(),
                first: bounds.0,
                ledgers: bounds.1 - bounds.0 + 1,
            });
        }
        let shape = if settings.is_compressible() { Shape::Compressible } else { Shape::Noise };
        let bytes = (settings.mode == Mode::Loopback).then_some(settings.args.synthetic_size.0 as usize);
        Ok(Verifier::Synthetic(Synthetic::new(shape, bytes)))
    }

    fn verify(&mut self, sequence: u32, found: &[u8]) -> Result<(), Broken> {
        match self {
            Verifier::Synthetic(synthetic) => synthetic.verify(sequence, found)?,
            Verifier::Dump { directory, first, ledgers } => {
                let sent = dump::read(directory, *first + (sequence - 1) % *ledgers)?;
                payload::compare(sequence, found, &sent)?;
            }
        }
        Ok(())
    }
}
