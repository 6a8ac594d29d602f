//! The flags of `ledger bench`, checked: what a run is refused for, before anything is started.

use std::time::Duration;

use super::{Args, Stamp};
use crate::cli::Failure;
use crate::config::{
    Bytes, Compress, Config, Core, Idle, Ledger, LedgerServe, LedgerSource, LedgerTrial, Listen, Span,
};
use crate::ledger::bench::summary::Mode;
use crate::ledger::dump;
use crate::ledger::query::Range;
use crate::sys::cpu;
use crate::wire::ledger::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, LEDGER_BYTES_MAX, SEQUENCE_MAX};

/// Ledgers of a loopback run that was told no number (the peer's).
const COUNT_DEFAULT: u32 = 100;
/// The window of a loopback run that was told none (the peer's).
const WINDOW_DEFAULT: Span = Span(Duration::from_millis(5));
/// Most clients of one run: each has a thread and a descriptor, and the server's own limit is not what is measured here.
const SUBSCRIBERS_MAX: u32 = 1_000;
/// Most ledgers of one run: their samples are kept in memory, about 100 bytes each.
const COUNT_MAX: u32 = 10_000_000;

/// `--compress`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packing(pub Compress);

impl std::str::FromStr for Packing {
    type Err = String;

    fn from_str(text: &str) -> Result<Packing, String> {
        match text {
            "true" | "always" => Ok(Packing(Compress::Always)),
            "false" | "never" => Ok(Packing(Compress::Never)),
            "auto" => Ok(Packing(Compress::Auto)),
            _ => Err("write true, false or auto".into()),
        }
    }
}

impl std::fmt::Display for Packing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Compress::Always => "true",
            Compress::Never => "false",
            Compress::Auto => "auto",
        })
    }
}

/// A run's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The flags.
    pub args: Args,
    /// Where the ledgers come from.
    pub mode: Mode,
    /// What the clients ask for.
    pub range: Range,
    /// After how many ledgers the run ends; `None`: it goes on.
    pub count: Option<u32>,
    /// The window of the source, where it is known.
    pub window: Option<Span>,
    /// The CPUs of the server in this run.
    pub server_cpus: Vec<usize>,
    /// The clients' CPU.
    pub client_cpu: Option<usize>,
}

impl Settings {
    /// Whether the ledgers compress.
    pub fn is_compressible(&self) -> bool {
        match self.mode {
            Mode::Remote => self.args.remote_compressible,
            _ => self.args.compress.0 != Compress::Never,
        }
    }

    /// The configuration of the server of a loopback run.
    pub fn config(&self, listen: std::net::SocketAddr, data_dir: std::path::PathBuf) -> Config {
        let args = &self.args;
        let name = |cpu: &usize| format!("cpu{cpu}");
        let count = self.count.unwrap_or(COUNT_DEFAULT);
        let serve = LedgerServe {
            core: name(&self.server_cpus[0]),
            encoder_cores: self.server_cpus.iter().map(name).collect(),
            listen: Listen::Address(listen),
            source: match (&args.file_dir, &args.pipe_cmd) {
                (Some(_), _) => LedgerSource::File,
                (None, Some(_)) => LedgerSource::Pipe,
                (None, None) => LedgerSource::Synthetic,
            },
            pipe_cmd: args.pipe_cmd.clone(),
            // The clients ask for the first.
            renumber: Some(args.file_dir.is_some() || args.pipe_cmd.is_some()),
            pipe_size: args.pipe_size,
            data_dir,
            emit_window: self.window.unwrap_or(WINDOW_DEFAULT),
            cadence: args.synthetic_interval,
            file_dir: args.file_dir.clone(),
            file_count: count,
            synthetic_size: args.synthetic_size,
            synthetic_compressible: self.is_compressible(),
            synthetic_interval: args.synthetic_interval,
            synthetic_count: count,
            chunk_size: args.chunk_size,
            tail_size: Bytes(args.tail_size.0.min(args.chunk_size.0)),
            compress: args.compress.0,
            compress_level: args.compress_level,
            spin: args.spin,
            // Each flow of a subscriber is a connection.
            subscribers_max: args.subscribers * u32::from(args.flows) + 1,
            subscribers_per_address_max: args.subscribers * u32::from(args.flows) + 1,
            // The namespaces of a link are this run's own.
            insecure: args.link.is_some() || args.as_server.is_some(),
            trial: LedgerTrial {
                hold_for: if args.replay { 0 } else { args.subscribers },
                whole: args.baseline.is_some(),
                stamp_drained: args.stamp == Stamp::Peer,
                stay: args.replay,
            },
            ..LedgerServe::default()
        };
        let cores = self.server_cpus.iter().map(|cpu| Core { name: name(cpu), cpu: *cpu, idle: Idle::Park }).collect();
        Config { cores, ledger: Ledger { serve: Some(serve) }, ..Config::default() }
    }
}

fn refuse<T>(message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::usage(message))
}

/// Checks the flags.
///
/// # Errors
/// What is refused, with the flag, its value, its limit, and what to do.
pub fn check(args: Args) -> Result<Settings, Failure> {
    let mode = Mode::from(args.mode);
    sizes(&args)?;
    let range = Range::new(args.start, (args.end != 0).then_some(args.end))
        .map_err(|error| Failure::usage(format!("--start {} --end {}: {error}", args.start, args.end)))?;
    let window = match mode {
        // A command's window is its own.
        Mode::Loopback if args.pipe_cmd.is_some() => args.emit_window,
        Mode::Loopback => Some(args.emit_window.unwrap_or(WINDOW_DEFAULT)),
        Mode::Remote => args.emit_window,
        Mode::Local | Mode::LocalTap => None,
    };
    let (count, range) = match mode {
        Mode::Loopback => {
            let count = loopback(&args)?;
            (
                Some(count),
                Range::new(1, Some(count)).map_err(|error| Failure::usage(format!("--count {count}: {error}")))?,
            )
        }
        _ => {
            elsewhere(&args, mode)?;
            (args.count, range)
        }
    };
    let allowed = cpu::allowed();
    let (server_cpus, client_cpu) = cpus(&args, mode, &allowed)?;
    Ok(Settings { args, mode, range, count, window, server_cpus, client_cpu })
}

/// Sizes, counts and times.
fn sizes(args: &Args) -> Result<(), Failure> {
    let (chunk, least, most) = (args.chunk_size.0, CHUNK_BYTES_MIN as u64, CHUNK_BYTES_MAX as u64);
    if !(least..=most).contains(&chunk) {
        return refuse(format!("--chunk-size {chunk}: a chunk has {least} to {most} bytes"));
    }
    if args.tail_size.0 < least {
        return refuse(format!("--tail-size {}: a chunk has {least} to {most} bytes", args.tail_size.0));
    }
    if args.synthetic_size.0 > LEDGER_BYTES_MAX {
        return refuse(format!(
            "--synthetic-size {}: a ledger has at most {LEDGER_BYTES_MAX} bytes",
            args.synthetic_size.0
        ));
    }
    if args.synthetic_size.0 == 0 {
        return refuse("--synthetic-size 0: a ledger has at least 1 byte");
    }
    if args.count == Some(0) {
        return refuse("--count 0: a run has at least 1 ledger");
    }
    if let Some(count) = args.count.filter(|&count| count > COUNT_MAX) {
        return refuse(format!("--count {count}: a run keeps the samples of at most {COUNT_MAX} ledgers"));
    }
    if !(1..=SUBSCRIBERS_MAX).contains(&args.subscribers) {
        return refuse(format!("--subscribers {}: 1 to {SUBSCRIBERS_MAX}", args.subscribers));
    }
    if !(1..=i32::MAX as u64).contains(&args.pipe_size.0) {
        return refuse(format!("--pipe-size {}: 1 to {}", args.pipe_size.0, i32::MAX));
    }
    if !(-100..=19).contains(&args.compress_level) {
        return refuse(format!("--compress-level {}: -100 to 19", args.compress_level));
    }
    Ok(())
}

/// What only loopback has; how many ledgers.
fn loopback(args: &Args) -> Result<u32, Failure> {
    let (window, interval) = (args.emit_window.unwrap_or(WINDOW_DEFAULT), args.synthetic_interval);
    if window > interval {
        return refuse(format!(
            "--emit-window {window} is longer than --synthetic-interval {interval}: a ledger must be over before the next begins"
        ));
    }
    if args.core_config.is_some() {
        return refuse("--core-config belongs to --mode local and --mode localtap");
    }
    if args.pipe_cmd.is_some() && (args.file_dir.is_some() || args.verify || args.replay) {
        return refuse("--pipe-cmd with --file-dir, --verify or --replay: a command's ledgers are only streamed");
    }
    if args.start > 1 || args.end != 0 {
        return refuse("--start and --end belong to the other modes: a loopback run has ledgers 1 to --count");
    }
    if args.replay && args.baseline.is_some() {
        return refuse("--replay and --baseline: a replay has no source to wait for");
    }
    if args.baseline.is_some() && args.compress.0 != Compress::Never {
        return refuse("--baseline whole sends ledgers as they are: leave --compress out");
    }
    if let Some(directory) = &args.file_dir {
        dump::bounds(directory).map_err(|error| Failure::usage(format!("--file-dir {error}")))?;
    }
    let count = args.count.unwrap_or(COUNT_DEFAULT);
    if count > SEQUENCE_MAX {
        return refuse(format!("--count {count}: ledger {SEQUENCE_MAX} is the last that can be streamed"));
    }
    Ok(count)
}

/// What the other modes need, and what they do not have.
fn elsewhere(args: &Args, mode: Mode) -> Result<(), Failure> {
    let name = mode.name();
    for (given, flag) in [
        (args.link.is_some(), "--link"),
        (args.baseline.is_some(), "--baseline"),
        (args.stamp == Stamp::Peer, "--stamp peer"),
        (args.file_dir.is_some(), "--file-dir"),
        (args.replay, "--replay"),
        (!args.server_cpus.is_empty(), "--server-cpus"),
        (args.as_server.is_some(), "--as-server"),
    ] {
        if given {
            return refuse(format!("{flag} belongs to --mode loopback: --mode {name} has no server of its own"));
        }
    }
    if mode == Mode::Remote {
        if args.pipe_cmd.is_some() || args.core_config.is_some() {
            return refuse("--pipe-cmd and --core-config belong to --mode local and --mode localtap");
        }
        return Ok(());
    }
    match (&args.pipe_cmd, &args.core_config) {
        (None, None) => {
            refuse(format!("--mode {name} needs --pipe-cmd COMMAND, or --core-config FILE for stellar-core"))
        }
        (Some(_), Some(_)) => refuse("--pipe-cmd and --core-config: one of them"),
        (None, Some(_)) if args.start == 0 => {
            refuse("--core-config needs --start: the first ledger to ask stellar-core for")
        }
        (None, Some(_)) if args.history_archive_urls.is_empty() => {
            refuse("--core-config needs --history-archive-urls: where stellar-core catches up from")
        }
        _ if args.verify => refuse(format!("--verify: in --mode {name} nothing is sent that could be compared")),
        _ if args.subscribers > 1 => refuse(format!("--subscribers: --mode {name} has none")),
        _ => Ok(()),
    }
}

/// The CPUs of both ends, out of those this process may use.
fn cpus(args: &Args, mode: Mode, allowed: &[usize]) -> Result<(Vec<usize>, Option<usize>), Failure> {
    let known = |flag: &str, cpu: usize| match allowed.contains(&cpu) {
        true => Ok(()),
        false => refuse(format!("{flag} {cpu}: this process may run on {allowed:?}")),
    };
    for &cpu in &args.server_cpus {
        known("--server-cpus", cpu)?;
    }
    if let Some(cpu) = args.client_cpu {
        known("--client-cpu", cpu)?;
    }
    let first = allowed.first().copied().unwrap_or(0);
    let mut server = args.server_cpus.clone();
    server.dedup();
    if server.is_empty() && mode == Mode::Loopback {
        server.push(first);
    }
    let last = allowed.last().copied().filter(|&last| last != first);
    // Many clients, or those of another host's server, run wherever there is room.
    let client = args.client_cpu.or(last.filter(|_| args.subscribers == 1));
    Ok((server, client))
}
