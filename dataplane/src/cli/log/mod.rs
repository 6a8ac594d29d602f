//! The log: lines to standard error through a thread of its own, so that no pinned core waits for whoever reads them.
//!
//! May use: `config`, `sys`.
//! Never does: wait in a thread that speaks; leave something out without counting it.

use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::{self, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, reload};

use crate::config::{Control, LogFormat};
use crate::sys::{clock, privilege, signal};
use limit::{Limiter, Place, WINDOW_MS};

mod limit;

/// Lines that may wait for the reader. One event per state change is far below it; past it lines are dropped, counted.
const LINES_MAX: usize = 4_096;
/// How long the end of the process waits for the last lines.
const FLUSH_BOUND: Duration = Duration::from_secs(1);
/// How often the thread looks whether something was left out that nobody was told of.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// The environment's filter, before any configuration's.
const VARIABLE: &str = "SLUICE_LOG";

enum Line {
    Text(Vec<u8>),
    Flush(Sender<()>),
}

static LINES: OnceLock<Sender<Line>> = OnceLock::new();
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();
static FORMAT: AtomicU8 = AtomicU8::new(LogFormat::Auto as u8);
static LIMITER: LazyLock<Limiter> = LazyLock::new(Limiter::default);
static WRITTEN: AtomicU64 = AtomicU64::new(0);
static DROPPED: AtomicU64 = AtomicU64::new(0);
static LIMITED: AtomicU64 = AtomicU64::new(0);

/// What became of the lines of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogCounts {
    /// Written to standard error.
    pub written: u64,
    /// Dropped because standard error took none.
    pub dropped: u64,
    /// Left out because one place spoke too often.
    pub limited: u64,
}

/// The counts so far.
pub fn counts() -> LogCounts {
    let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
    LogCounts { written: get(&WRITTEN), dropped: get(&DROPPED), limited: get(&LIMITED) }
}

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

/// A line's form, which may change while the process runs.
struct Form {
    terminal: bool,
    /// Standard error goes to the journal.
    journal: bool,
}

impl<S, N> FormatEvent<S, N> for Form
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let form = FORMAT.load(Ordering::Relaxed);
        let text = format::format().with_target(false);
        let (auto, journald) = (form == LogFormat::Auto as u8, form == LogFormat::Journald as u8);
        if journald || (auto && self.journal) {
            // The journal takes the level from the prefix, and keeps the rest as the message (sd-daemon(3)).
            write!(writer, "<{}>", priority(*event.metadata().level()))?;
        }
        if journald {
            // It knows the time as well.
            return text.without_time().with_level(false).with_ansi(false).format_event(context, writer, event);
        }
        let json = form == LogFormat::Json as u8 || (auto && !self.terminal);
        match json {
            true => text.json().format_event(context, writer, event),
            false => text.format_event(context, writer, event),
        }
    }
}

/// Whether standard error is the stream to the journal that systemd has opened for this process: `JOURNAL_STREAM` has its device and
/// inode (systemd.exec(5)). A child whose standard error was led elsewhere has the variable all the same.
fn goes_to_journal() -> bool {
    let told = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let own = io::stderr().as_fd().try_clone_to_owned().and_then(|stderr| File::from(stderr).metadata());
    own.is_ok_and(|own| told == format!("{}:{}", own.dev(), own.ino()))
}

/// The level as syslog numbers it.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Leaves out what one place says too often.
struct Limit;

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let admitted = LIMITER.admits(place(event.metadata()), clock::monotonic_coarse_ms());
        LIMITED.fetch_add(u64::from(!admitted), Ordering::Relaxed);
        admitted
    }
}

fn place(metadata: &'static Metadata<'static>) -> Place {
    let key = std::ptr::from_ref(metadata) as usize;
    Place { key, file: metadata.file().unwrap_or(metadata.target()), line: metadata.line().unwrap_or(0) }
}

/// Starts the log: text on a terminal, JSON lines elsewhere, to the journal with their level before each; `filter`, else
/// `SLUICE_LOG`, filters (default `info`).
pub fn start_with(filter: Option<&str>) {
    let (lines, inbox) = bounded(LINES_MAX);
    let thread =
        signal::shielded(|| std::thread::Builder::new().name("sluice-log".into()).spawn(move || write_lines(&inbox)));
    if thread.is_err() || LINES.set(lines).is_err() {
        return;
    }
    let filter = match filter {
        Some(filter) => EnvFilter::new(filter),
        None => EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new("info")),
    };
    let (filter, handle) = reload::Layer::new(filter);
    let terminal = io::stderr().is_terminal();
    let form = Form { terminal, journal: goes_to_journal() };
    let text = tracing_subscriber::fmt::layer().event_format(form).with_ansi(terminal).with_writer(Lines);
    tracing_subscriber::registry().with(filter).with(Limit).with(text).init();
    let _ = FILTER.set(handle);
}

/// Sets what is logged from now on: a level, or levels by module (`info,sluice::ring=debug`).
///
/// # Errors
/// The filter cannot be read, or the log was not started; what was set before stays.
pub fn set_filter(filter: &str) -> Result<(), String> {
    let parsed = EnvFilter::builder().parse(filter).map_err(|error| {
        format!("log filter \"{filter}\": {error}; give a level: error, warn, info, debug or trace")
    })?;
    let handle = FILTER.get().ok_or("the log was not started")?;
    handle.reload(parsed).map_err(|error| format!("log filter \"{filter}\": {error}"))
}

/// Whether the environment's filter stands above the configuration's.
pub fn is_overruled() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Sets the lines' form from now on.
pub fn set_format(format: LogFormat) {
    FORMAT.store(format as u8, Ordering::Relaxed);
}

/// Sets filter and form as the configuration says. `SLUICE_LOG`, where it is set, stays above its filter.
///
/// # Errors
/// As [`set_filter`].
pub fn configure(control: &Control) -> Result<(), String> {
    set_format(control.log_format);
    if is_overruled() { Ok(()) } else { set_filter(&control.log) }
}

fn write_lines(inbox: &Receiver<Line>) {
    let (mut dropped_told, mut given_up) = (0, false);
    loop {
        let line = inbox.recv_timeout(TELL_EVERY);
        // Not at the start: a change of user has to be the same for all threads. Where it is refused, it writes all the same.
        if !given_up && privilege::renounces() {
            given_up = true;
            let _ = privilege::renounce();
        }
        match line {
            Ok(Line::Text(text)) => write_line(&text),
            Ok(Line::Flush(done)) => {
                tell(&mut dropped_told, true);
                while let Ok(Line::Text(text)) = inbox.try_recv() {
                    write_line(&text);
                }
                let _ = done.send(());
            }
            Err(RecvTimeoutError::Timeout) => tell(&mut dropped_told, false),
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if DROPPED.load(Ordering::Relaxed) != dropped_told {
            tell(&mut dropped_told, false);
        }
    }
}

fn write_line(text: &[u8]) {
    WRITTEN.fetch_add(u64::from(io::stderr().write_all(text).is_ok()), Ordering::Relaxed);
}

/// Says what nobody could read: as lines like any other, which the thread finds next in its inbox.
fn tell(dropped_told: &mut u64, all: bool) {
    for (place, lines) in LIMITER.left_out(clock::monotonic_coarse_ms(), all) {
        let (file, line, seconds) = (place.file, place.line, WINDOW_MS / 1_000);
        tracing::warn!(lines, file, line, "lines were left out: one place in the code spoke too often in {seconds} s");
    }
    let dropped = DROPPED.load(Ordering::Relaxed);
    let lines = dropped - std::mem::replace(dropped_told, dropped);
    if lines > 0 {
        tracing::warn!(lines, total = dropped, "log lines were dropped: standard error took none");
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
