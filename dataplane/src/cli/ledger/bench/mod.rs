//! `sluice ledger bench`: Measure how long after its last byte a ledger is verified at a client.
//!
//! May use: every library module. Never does: work that a server or a client does; it starts them, counts and prints.

use std::io::Write;
use std::path::PathBuf;

use crate::cli::{Exit, Failure, Outcome};
use crate::config::{Bytes, LedgerSpin, Span};
use crate::ledger::bench::csv;
use crate::ledger::bench::gate::{self, Gate};
use crate::ledger::bench::summary::{Measured, Mode, Summary};
use settings::{Packing, Settings};

mod clients;
mod clock;
mod link;
mod local;
mod server;
mod settings;

/// Arguments of `sluice ledger bench`.
///
/// Delivery is from a ledger's last byte at the source to its verification at the client, pipeline from its first byte, t_emit the
/// source's own window between the two. Percentiles are nearest rank. Exits with 1 when a gate is missed or a ledger is not
/// what was sent.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// loopback: a server in this process and a client; remote: the server at --url; local: a pipe in this process, whole ledgers;
    /// localtap: a pipe in this process, from first to last byte.
    #[arg(long, value_enum, default_value_t = ModeArg::Loopback)]
    pub mode: ModeArg,
    /// remote: the server.
    #[arg(long, default_value = "ws://127.0.0.1:8462")]
    pub url: String,
    /// remote: the first ledger; 0 is the one in flight, or else the next. captive: the first ledger to ask for.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub start: u32,
    /// The last ledger; 0: until it is interrupted, or --count.
    #[arg(long, value_name = "M", default_value_t = 0)]
    pub end: u32,
    /// Write a row for each ledger to FILE.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// loopback: bytes of a ledger.
    #[arg(long, value_name = "BYTES", default_value = "204800")]
    pub synthetic_size: Bytes,
    /// loopback: from one ledger's begin to the next one's.
    #[arg(long, value_name = "TIME", default_value = "10ms")]
    pub synthetic_interval: Span,
    /// loopback: a ledger's bytes come over this long (5ms without it). remote: what the server was told, to show pipeline less
    /// the window.
    #[arg(long, value_name = "TIME")]
    pub emit_window: Option<Span>,
    /// loopback: bytes of a chunk.
    #[arg(long, value_name = "BYTES", default_value = "262144")]
    pub chunk_size: Bytes,
    /// loopback: bytes of a ledger's last chunks.
    #[arg(long, value_name = "BYTES", default_value = "32KiB")]
    pub tail_size: Bytes,
    /// loopback: compress chunks, and make ledgers that compress. Alone it is always; auto goes raw where the link has slack.
    #[arg(long, value_name = "true|false|auto", num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true")]
    pub compress: Packing,
    /// loopback: the zstd level; a smaller one is taken under load.
    #[arg(long, value_name = "LEVEL", default_value_t = 1, allow_negative_numbers = true)]
    pub compress_level: i32,
    /// remote: the server's made-up ledgers compress (for --verify).
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value_t = false,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    pub remote_compressible: bool,
    /// Ledgers to measure (loopback: 100 without it; elsewhere all).
    #[arg(long, value_name = "LEDGERS")]
    pub count: Option<u32>,
    /// Compare each ledger with the one that was sent, which is made or read again.
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value_t = false,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    pub verify: bool,
    /// local, localtap: a command that writes its meta stream to descriptor 3.
    #[arg(long, value_name = "COMMAND")]
    pub pipe_cmd: Option<String>,
    /// local, localtap: bytes asked of the kernel for the pipe.
    #[arg(long, value_name = "BYTES", default_value = "1048576")]
    pub pipe_size: Bytes,
    /// local, localtap: stellar-core's binary; without it the one of PATH.
    #[arg(long, value_name = "FILE")]
    pub core_binary: Option<PathBuf>,
    /// local, localtap: stellar-core's configuration file: run stellar-core in place of --pipe-cmd.
    #[arg(long, value_name = "FILE")]
    pub core_config: Option<PathBuf>,
    /// local, localtap: history archives for stellar-core, with commas.
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    pub history_archive_urls: Vec<String>,
    /// local, localtap: stellar-core's own directory; without it one that goes when it ends.
    #[arg(long, value_name = "DIR")]
    pub storage_dir: Option<PathBuf>,
    /// local, localtap: the network's passphrase; without it as the configuration file says.
    #[arg(long, value_name = "TEXT")]
    pub network_passphrase: Option<String>,

    /// Fail unless a percentile is at most this: p99=4ms of delivery, or MEASURE:p50=200us with delivery, emit, pipeline, over
    /// (pipeline less the window), last (of all subscribers) or inter-arrival. Fails also on a wrong checksum, a partial
    /// delivery that was dropped, and a ledger from retention. May be given often.
    #[arg(long, value_name = "GATE", value_delimiter = ',')]
    pub gate: Vec<Gate>,
    /// loopback: "whole" sends a ledger only when its last byte has come: store and forward, for comparison.
    #[arg(long, value_enum)]
    pub baseline: Option<Baseline>,
    /// loopback: when END is stamped: honest, with the source's last byte; peer, when the encoders are done with it.
    #[arg(long, value_enum, default_value_t = Stamp::Honest)]
    pub stamp: Stamp,
    /// loopback: run the server in a network namespace of its own behind a link of this rate, as 5gbit (takes root).
    #[arg(long, value_name = "RATE", value_parser = link::rate)]
    pub link: Option<String>,
    /// Connections that each client shares a ledger's chunks out to, where the server offers it.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub flows: u8,
    /// remote: send the token in FILE (its first line) as Authorization: Bearer.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// remote: trust the certificate authorities in this PEM file too, with wss:// and https://.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Clients; all of them check what they get, and the rows are those of the first.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub subscribers: u32,
    /// Both ends look on without sleeping: open, while a ledger is open; never.
    #[arg(long, value_name = "open|never", default_value = "open")]
    pub spin: LedgerSpin,
    /// loopback: ledgers from a directory of ledger-<sequence>.xdr in place of made-up ones, again and again, numbered anew.
    #[arg(long, value_name = "DIR")]
    pub file_dir: Option<PathBuf>,
    /// loopback: the server has all ledgers in retention before the client asks for the first: how fast a replay is.
    #[arg(long)]
    pub replay: bool,
    /// Show the CPU time per ledger of both ends, over the whole cadence.
    #[arg(long)]
    pub cpu: bool,
    /// loopback: the CPUs of the server, with commas: the first is the fan-out's and the source's, encoders go round all of them.
    /// Without it the first CPU.
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    pub server_cpus: Vec<usize>,
    /// The CPU of the clients. Without it the last one where there are several.
    #[arg(long, value_name = "CPU")]
    pub client_cpu: Option<usize>,
    /// The summary as one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Be the server of a run on this address until standard input ends.
    #[arg(long, hide = true, value_name = "ADDRESS")]
    pub as_server: Option<std::net::SocketAddr>,
}

/// Where the ledgers come from.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[value(rename_all = "lower")]
pub enum ModeArg {
    /// A server in this process.
    Loopback,
    /// Another server.
    Remote,
    /// A pipe in this process.
    Local,
    /// A pipe in this process, below the whole ledger.
    LocalTap,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Mode {
        match mode {
            ModeArg::Loopback => Mode::Loopback,
            ModeArg::Remote => Mode::Remote,
            ModeArg::Local => Mode::Local,
            ModeArg::LocalTap => Mode::LocalTap,
        }
    }
}

/// What is compared with.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Baseline {
    /// Store and forward.
    Whole,
}

/// When END is stamped.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stamp {
    /// With the source's last byte.
    Honest,
    /// When the encoders are done with the ledger.
    Peer,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let settings = settings::check(args)?;
    if let Some(address) = settings.args.as_server {
        return server::child(&settings, address);
    }
    // Made before anything runs: a run whose rows cannot be written is not begun.
    let mut rows = settings.args.csv.as_ref().map(|path| Rows::create(path)).transpose()?;
    let (measured, failed) = match settings.mode {
        Mode::Loopback | Mode::Remote => clients::run(&settings)?,
        Mode::Local | Mode::LocalTap => local::run(&settings)?,
    };
    if let Some(rows) = &mut rows {
        rows.write(&measured)?;
    }
    report(&settings, measured, failed)
}

/// Prints the summary and judges the run: `failed` is what ended it.
fn report(settings: &Settings, measured: Measured, failed: Option<Failure>) -> Outcome {
    let (got, asked) = (measured.samples.len(), settings.count.unwrap_or(0) as usize);
    let warning = measured.clock.as_ref().and_then(|clock| clock.warning());
    let summary = Summary::from(measured);
    let (mut lines, mut passed) = match settings.args.gate.as_slice() {
        [] => (Vec::new(), true),
        gates => gate::judge(gates, &summary),
    };
    // A gate over fewer ledgers than were asked for says nothing of those that are missing.
    if !settings.args.gate.is_empty() && got < asked {
        lines.push(format!("gate ledgers: {got} of {asked} came: MISSED"));
        passed = false;
    }
    let mut text = match settings.args.json {
        true => {
            let mut json = summary.json();
            json["gates"] = lines.clone().into();
            json["passed"] = passed.into();
            format!("{json}\n")
        }
        false => format!("{summary}{}", lines.iter().map(|line| format!("{line}\n")).collect::<String>()),
    };
    if !settings.args.json && !lines.is_empty() {
        text.push_str(if passed { "passed\n" } else { "FAILED\n" });
    }
    let printed = std::io::stdout().lock().write_all(text.as_bytes());
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
    match (failed, printed) {
        (Some(failure), _) => Err(failure),
        // Whoever reads us has enough; the exit code still tells.
        (None, Err(error)) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::host(format!("stdout: {error}")))
        }
        _ => Ok(if passed { Exit::Done } else { Exit::Difference }),
    }
}

/// The CSV file.
struct Rows {
    path: PathBuf,
    file: std::fs::File,
}

impl Rows {
    fn create(path: &std::path::Path) -> Result<Rows, Failure> {
        let file =
            std::fs::File::create(path).map_err(|error| Failure::host(format!("{}: {error}", path.display())))?;
        Ok(Rows { path: path.into(), file })
    }

    fn write(&mut self, measured: &Measured) -> Result<(), Failure> {
        let mut text = format!("{}\n", csv::HEADER);
        for sample in &measured.samples {
            text.push_str(&csv::row(sample));
            text.push('\n');
        }
        self.file.write_all(text.as_bytes()).map_err(|error| Failure::host(format!("{}: {error}", self.path.display())))
    }
}
