//! Makes the next ledger ready on a thread of its own, in the buffers of its chunks, so that during an emission nothing is copied.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TryRecvError};

use super::SourceError;
use crate::ledger::chunker::Layout;
use crate::ledger::pool::Buffer;
use crate::sys::cpu::Event;
use crate::sys::{privilege, signal};

/// Ledgers in memory: the one that is being emitted and the one after it.
const LEDGERS: usize = 2;

/// Makes ledgers, one after the other. It may wait (for a disk).
pub(super) trait Maker: Send + 'static {
    /// Lays the next ledger out. `None`: there is no more.
    ///
    /// # Errors
    /// One line for the user; it is not asked again.
    fn next(&mut self, layout: &Layout) -> Result<Option<Laid>, String>;
}

/// A ledger in the buffers of its chunks.
#[derive(Debug)]
pub(super) struct Laid {
    /// Its sequence.
    pub sequence: u32,
    /// Its length.
    pub bytes: usize,
    /// Its chunks that were not taken.
    pub chunks: VecDeque<Buffer>,
}

type Made = Result<Option<Laid>, String>;

/// What is ready.
#[derive(Debug)]
pub(super) enum Ready {
    /// A ledger.
    Ledger(Laid),
    /// It is being made: the descriptor becomes readable.
    NotYet,
    /// There is no more.
    Finished,
}

/// The thread and what it has ready.
pub(super) struct Ahead {
    ready: Receiver<Made>,
    /// `None` once nothing more is wanted.
    wanted: Option<Sender<()>>,
    event: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Ahead {
    /// Starts to make ledgers. To be called where the thread may run: it inherits the CPUs of the caller.
    ///
    /// # Errors
    /// The kernel's, for the thread or the eventfd.
    pub(super) fn start(name: &str, maker: impl Maker, layout: Layout) -> Result<Ahead, SourceError> {
        let failed = |what: &str, error| SourceError(format!("{name} source: no {what}: {error}"));
        let event = Arc::new(Event::new().map_err(|error| failed("eventfd", error))?);
        let (wanted, wants) = crossbeam_channel::bounded(LEDGERS);
        let (done, ready) = crossbeam_channel::bounded(LEDGERS + 1);
        for _ in 0..LEDGERS {
            wanted.send(()).expect("there is room for all of them");
        }
        let rings = event.clone();
        let thread = std::thread::Builder::new().name("sluice-ahead".into());
        let work = move || match privilege::renounce() {
            Ok(()) => make(maker, &layout, &wants, &done, &rings),
            Err(error) => drop(done.send(Err(format!("giving up capabilities: {error}")))),
        };
        let thread = signal::shielded(|| thread.spawn(work));
        let thread = thread.map_err(|error| failed("thread", error))?;
        Ok(Ahead { ready, wanted: Some(wanted), event, thread: Some(thread) })
    }

    /// Readable when something may have become ready.
    pub(super) fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// The next ledger.
    ///
    /// # Errors
    /// As the maker.
    pub(super) fn take(&mut self) -> Result<Ready, SourceError> {
        self.event.clear();
        match self.ready.try_recv() {
            Ok(Ok(Some(laid))) => Ok(Ready::Ledger(laid)),
            Ok(Ok(None)) => Ok(Ready::Finished),
            Ok(Err(reason)) => Err(SourceError(reason)),
            Err(TryRecvError::Empty) => Ok(Ready::NotYet),
            Err(TryRecvError::Disconnected) => {
                Err(SourceError("the thread that makes ledgers ready is gone: see the log above".into()))
            }
        }
    }

    /// Another ledger is to be made: one that was taken is over.
    pub(super) fn make_another(&mut self) {
        if let Some(wanted) = &self.wanted {
            // A thread that has ended makes none.
            let _ = wanted.try_send(());
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.wanted = None;
        // It ends after the ledger that it has at hand.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn make(mut maker: impl Maker, layout: &Layout, wants: &Receiver<()>, done: &Sender<Made>, event: &Event) {
    while wants.recv().is_ok() {
        let made = maker.next(layout);
        let more = matches!(made, Ok(Some(_)));
        if done.send(made).is_err() {
            return;
        }
        event.signal();
        if !more {
            // Stays until nobody listens, so that its end is not taken for a failure.
            while wants.recv().is_ok() {}
            return;
        }
    }
}
