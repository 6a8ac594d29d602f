//! Makes the next ledger ready on a thread of its own, so that during an emission a read is only a copy.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TryRecvError};

use super::SourceError;
use crate::sys::cpu::Event;
use crate::sys::signal;

/// Ledgers in memory: the one that is being emitted and the one after it.
const BUFFERS: usize = 2;

/// Makes ledgers, one after the other. It may wait (for a disk).
pub(super) trait Maker: Send + 'static {
    /// Writes the next ledger over `ledger`; its sequence. `None`: there is no more.
    ///
    /// # Errors
    /// One line for the user; it is not asked again.
    fn next(&mut self, ledger: &mut Vec<u8>) -> Result<Option<u32>, String>;
}

type Made = Result<Option<(u32, Vec<u8>)>, String>;

/// What is ready.
#[derive(Debug)]
pub(super) enum Ready {
    /// A ledger.
    Ledger(u32, Vec<u8>),
    /// It is being made: the descriptor becomes readable.
    NotYet,
    /// There is no more.
    Finished,
}

/// The thread and what it has ready.
pub(super) struct Ahead {
    ready: Receiver<Made>,
    /// `None` once nothing more is wanted.
    empty: Option<Sender<Vec<u8>>>,
    event: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Ahead {
    /// Starts to make ledgers. To be called where the thread may run: it inherits the CPUs of the caller.
    ///
    /// # Errors
    /// The kernel's, for the thread or the eventfd.
    pub(super) fn start(name: &str, maker: impl Maker) -> Result<Ahead, SourceError> {
        let failed = |what: &str, error| SourceError(format!("{name} source: no {what}: {error}"));
        let event = Arc::new(Event::new().map_err(|error| failed("eventfd", error))?);
        let (empty, empties) = crossbeam_channel::bounded(BUFFERS);
        let (done, ready) = crossbeam_channel::bounded(BUFFERS + 1);
        for _ in 0..BUFFERS {
            empty.send(Vec::new()).expect("there is room for all buffers");
        }
        let rings = event.clone();
        let thread = std::thread::Builder::new().name("sluice-ahead".into());
        let thread = signal::shielded(|| thread.spawn(move || make(maker, &empties, &done, &rings)));
        let thread = thread.map_err(|error| failed("thread", error))?;
        Ok(Ahead { ready, empty: Some(empty), event, thread: Some(thread) })
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
            Ok(Ok(Some((sequence, ledger)))) => Ok(Ready::Ledger(sequence, ledger)),
            Ok(Ok(None)) => Ok(Ready::Finished),
            Ok(Err(reason)) => Err(SourceError(reason)),
            Err(TryRecvError::Empty) => Ok(Ready::NotYet),
            Err(TryRecvError::Disconnected) => {
                Err(SourceError("the thread that makes ledgers ready is gone: see the log above".into()))
            }
        }
    }

    /// A ledger's buffer is to be used again.
    pub(super) fn give_back(&mut self, buffer: Vec<u8>) {
        if let Some(empty) = &self.empty {
            // A thread that has ended wants none.
            let _ = empty.try_send(buffer);
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.empty = None;
        // It ends after the ledger that it has at hand.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn make(mut maker: impl Maker, empties: &Receiver<Vec<u8>>, done: &Sender<Made>, event: &Event) {
    while let Ok(mut ledger) = empties.recv() {
        let made = maker.next(&mut ledger).map(|sequence| sequence.map(|sequence| (sequence, ledger)));
        let more = matches!(made, Ok(Some(_)));
        if done.send(made).is_err() {
            return;
        }
        event.signal();
        if !more {
            // Stays until nobody listens, so that its end is not taken for a failure.
            while empties.recv().is_ok() {}
            return;
        }
    }
}
