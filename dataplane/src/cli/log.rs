//! The log: lines to standard error through a thread of its own, so that no pinned core waits for whoever reads them.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use tracing_subscriber::EnvFilter;

use tracing_subscriber::fmt::MakeWriter;

use crate::sys::{privilege, signal};

/// Lines that may wait for the reader. One event per state change is far below it; past it lines are dropped, counted.
const LINES_MAX: usize = 4_096;
/// How long the end of the process waits for the last lines.
const FLUSH_BOUND: Duration = Duration::from_secs(1);

enum Line {
    Text(Vec<u8>),
    Flush(Sender<()>),
}

static LINES: OnceLock<Sender<Line>> = OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// One line under construction; it goes to the thread when dropped.
struct LineWriter(Vec<u8>);

impl Write for LineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        let line = Line::Text(std::mem::take(&mut self.0));
        if LINES.get().is_none_or(|lines| lines.try_send(line).is_err()) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Lines;

impl MakeWriter<'_> for Lines {
    type Writer = LineWriter;

    fn make_writer(&self) -> LineWriter {
        LineWriter(Vec::with_capacity(256))
    }
}

/// Starts the log: text on a terminal, JSON lines elsewhere; `filter`, else `SLUICE_LOG`, filters (default `info`).
pub fn start_with(filter: Option<&str>) {
    let (lines, inbox) = bounded(LINES_MAX);
    let write = move || {
        let mut given_up = false;
        for line in inbox {
            // Not at the start: a change of user has to be the same for all threads. Where it is refused, it writes all the same.
            if !given_up && privilege::renounces() {
                given_up = true;
                let _ = privilege::renounce();
            }
            match line {
                Line::Text(text) => drop(io::stderr().write_all(&text)),
                Line::Flush(done) => drop(done.send(())),
            }
            let dropped = DROPPED.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                let _ = writeln!(io::stderr(), "sluice: {dropped} log lines were dropped: standard error took none");
            }
        }
    };
    let thread = signal::shielded(|| std::thread::Builder::new().name("sluice-log".into()).spawn(write));
    if thread.is_err() || LINES.set(lines).is_err() {
        return;
    }
    let filter = match filter {
        Some(filter) => EnvFilter::new(filter),
        None => EnvFilter::try_from_env("SLUICE_LOG").unwrap_or_else(|_| EnvFilter::new("info")),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(Lines).with_target(false);
    if io::stderr().is_terminal() {
        builder.init();
    } else {
        builder.json().init();
    }
}

/// Waits, within a bound, until the lines so far are written.
pub fn flush() {
    let Some(lines) = LINES.get() else { return };
    let (done, wait) = bounded(1);
    if lines.send_timeout(Line::Flush(done), FLUSH_BOUND).is_ok() {
        let _ = wait.recv_timeout(FLUSH_BOUND);
    }
}
