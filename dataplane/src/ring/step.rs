//! A server and a mirror that the caller steps: the same workers, on the caller's thread.
//!
//! A step is one bounded turn (at most 32 datagrams, then at most one frame of the stream) and never waits. All steps of
//! one server or mirror are made by one thread: its io_uring belongs to the thread that steps first.

use std::net::SocketAddr;
use std::time::Duration;

use super::error::RingError;
use super::inline::InlineUdp;
use super::mirror::receiver::{MirrorStatus, ReceiverCounters};
use super::mirror::sender::{SenderCounters, SessionStatus};
use super::mirror_worker::MirrorWorker;
use super::plan;
use super::serve_worker::ServeWorker;
use super::stats::{MirrorView, ServeState, ServeView};
use crate::config;
use crate::runtime::worker::{TAG_BITS, Turn, Worker};
use crate::sys::clock;
use crate::sys::uring::{CoreRing, RingError as UringError};

/// Requests queued at most before the kernel is entered.
const RING_ENTRIES: u32 = 256;

/// Why a server or mirror cannot be made or go on.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// Its settings, sockets or files.
    #[error("{0}")]
    Settings(String),
    /// The kernel's io_uring.
    #[error(transparent)]
    Uring(#[from] UringError),
    /// The ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// It cannot go on.
    #[error("{0}")]
    Fault(String),
    /// A system call.
    #[error("io_uring: {0}")]
    Io(#[from] std::io::Error),
}

/// One worker on a ring of its own.
struct Driven<W> {
    // The ring ends first: it gives the worker's memory and sockets back.
    ring: CoreRing,
    worker: W,
    fault: Option<(u16, String)>,
}

impl<W: Worker> Driven<W> {
    fn new(worker: W) -> Result<Driven<W>, StepError> {
        Ok(Driven { ring: CoreRing::new(RING_ENTRIES)?, worker, fault: None })
    }

    fn with<R>(&mut self, now: i64, call: impl FnOnce(&mut W, &mut Turn<'_>) -> R) -> R {
        let mut turn = Turn::new(now, &mut self.ring, 0, &mut self.fault);
        call(&mut self.worker, &mut turn)
    }

    fn begin(&mut self) -> Result<(), StepError> {
        if !self.ring.is_enabled() {
            self.ring.enable(&[], 0)?;
            let started = self.with(clock::monotonic_ns(), |worker, turn| worker.start(turn));
            started.map_err(StepError::Settings)?;
        }
        Ok(())
    }

    #[inline]
    fn step(&mut self) -> Result<usize, StepError> {
        self.begin()?;
        let now = clock::monotonic_ns();
        let moved = self.with(now, |worker, turn| worker.turn(turn));
        let moved = moved + self.completions(now)?;
        match self.fault.take() {
            Some((_, reason)) => Err(StepError::Fault(reason)),
            None => Ok(moved),
        }
    }

    fn completions(&mut self, now: i64) -> Result<usize, StepError> {
        self.ring.submit()?;
        let mut count = 0;
        while let Some(completion) = self.ring.next_completion() {
            let tag = completion.user_data & ((1 << TAG_BITS) - 1);
            self.with(now, |worker, turn| worker.complete(turn, tag, completion.result));
            count += 1;
        }
        Ok(count)
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), StepError> {
        self.begin()?;
        let now = clock::monotonic_ns();
        self.with(now, |worker, turn| worker.before_sleep(turn));
        let moved = self.with(now, |worker, turn| worker.turn(turn));
        if moved == 0 {
            let due = self.worker.deadline().map_or(i64::MAX, |due| due.saturating_sub(clock::monotonic_ns()).max(0));
            self.ring.submit_and_wait(Some(timeout.min(Duration::from_nanos(due as u64))))?;
        }
        self.worker.after_sleep();
        self.completions(clock::monotonic_ns())?;
        Ok(())
    }
}

/// Serves one ring, stepped by the caller.
pub struct Server {
    driven: Driven<ServeWorker>,
    view: ServeView,
}

impl Server {
    /// Binds the sockets of `settings` (`core` and `name` say nothing here). The ring may come later.
    ///
    /// # Errors
    /// An address that cannot be bound, a key file that is none, io_uring switched off.
    pub fn new(settings: &config::Serve) -> Result<Server, StepError> {
        let (mut worker, view) = plan::serve_worker(settings, false).map_err(StepError::Settings)?;
        worker.open_sockets().map_err(StepError::Settings)?;
        Ok(Server { driven: Driven::new(worker)?, view })
    }

    /// Where mirrors connect: the port, when 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        *self.view.address.get().expect("bound by new")
    }

    /// One bounded turn; how much it moved (0: nothing was to be done). Never waits.
    ///
    /// # Errors
    /// The server cannot go on.
    #[inline]
    pub fn step(&mut self) -> Result<usize, StepError> {
        self.driven.step()
    }

    /// Sleeps until something is to be done, at most `timeout`; then step.
    ///
    /// # Errors
    /// As [`Server::step`].
    pub fn wait(&mut self, timeout: Duration) -> Result<(), StepError> {
        self.driven.wait(timeout)
    }

    /// Takes the datagram half out, for the producer's own thread (`RingProducer::with_sender`); this server goes on with
    /// handshake, repair, TCP streams and the heartbeats. It must have been stepped until the ring is attached. `None`:
    /// no ring yet, no UDP transport, or it is out already.
    ///
    /// # Errors
    /// The ring cannot be opened a second time.
    pub fn inline(&mut self) -> Result<Option<InlineUdp>, StepError> {
        self.driven.worker.take_inline()
    }

    /// What the worker knows.
    pub fn state(&self) -> &ServeState {
        self.driven.worker.state()
    }

    /// What was sent so far.
    pub fn counters(&self) -> &SenderCounters {
        self.driven.worker.sender().counters()
    }

    /// The sessions.
    pub fn sessions(&self) -> impl Iterator<Item = SessionStatus> + '_ {
        self.driven.worker.sender().sessions()
    }
}

/// Mirrors one ring, stepped by the caller.
pub struct Mirror {
    driven: Driven<MirrorWorker>,
    view: MirrorView,
}

impl Mirror {
    /// A mirror with `settings` (`core` and `name` say nothing here); it connects as it is stepped.
    ///
    /// # Errors
    /// A key file that is none, io_uring switched off.
    pub fn new(settings: &config::Mirror) -> Result<Mirror, StepError> {
        let (worker, view) = plan::mirror_worker(settings, false).map_err(StepError::Settings)?;
        Ok(Mirror { driven: Driven::new(worker)?, view })
    }

    /// One bounded turn: at most 32 datagrams, then at most one frame of the stream; how much it moved. Never waits.
    ///
    /// # Errors
    /// The mirror cannot go on.
    #[inline]
    pub fn step(&mut self) -> Result<usize, StepError> {
        self.driven.step()
    }

    /// Sleeps until something is to be done, at most `timeout`; then step.
    ///
    /// # Errors
    /// As [`Mirror::step`].
    pub fn wait(&mut self, timeout: Duration) -> Result<(), StepError> {
        self.driven.wait(timeout)
    }

    /// Where it stands.
    pub fn status(&self) -> MirrorStatus {
        self.driven.worker.receiver().status(clock::monotonic_ns())
    }

    /// What happened so far.
    pub fn counters(&self) -> &ReceiverCounters {
        self.driven.worker.receiver().counters()
    }

    /// As `/status` shows it.
    pub fn view(&self) -> &MirrorView {
        &self.view
    }
}
