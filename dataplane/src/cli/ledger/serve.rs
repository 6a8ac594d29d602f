//! `sluice ledger serve`: Stream ledgers from a source to subscribers while they are emitted, and keep them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction;

use super::server::Running;
use crate::cli::{Exit, Failure, Outcome};
use crate::config::{
    self, Bytes, Compress, Config, Control, Core, Finding, Idle, Ledger, LedgerServe, LedgerSource, LedgerSpin,
    LedgerSync, Listen, Span,
};
use crate::ledger::files;
use crate::ledger::stats::FanoutCounter;
use crate::sys::cpu;
use crate::sys::signal::{Asked, Signals};

/// How often the control thread looks for an end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Arguments of `sluice ledger serve`.
///
/// Every flag of the peer's server is one of this command's, with the same default; only --listen is this host alone, because
/// beyond it a server asks for TLS and tokens, or for --insecure. Each flag is a key of [ledger.serve] in the configuration of
/// `sluice run`.
#[derive(clap::Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// Where subscribers connect; ":8462" is every address.
    #[arg(long, value_name = "ADDRESS", default_value_t = LedgerServe::default().listen)]
    pub listen: Listen,
    /// Where the ledgers come from: synthetic, captive, file, pipe or follow.
    #[arg(long, value_name = "KIND", default_value_t = LedgerServe::default().source)]
    pub source: LedgerSource,
    /// Lines of the log: error, warn, info, debug or trace; another word is info.
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// The CPU of the fan-out; without it no worker is pinned.
    #[arg(long, value_name = "CPU", help_heading = "Cores")]
    pub core: Option<usize>,
    /// The CPU of the source [default: the fan-out's].
    #[arg(long, value_name = "CPU", requires = "core", help_heading = "Cores")]
    pub source_core: Option<usize>,
    /// The CPUs of the encoders, in turn [default: the source's].
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',', requires = "core", help_heading = "Cores")]
    pub encoder_cores: Vec<usize>,
    /// Look on without sleeping while a ledger is open, or never.
    #[arg(long, value_name = "open|never", default_value_t = LedgerServe::default().spin, help_heading = "Cores")]
    pub spin: LedgerSpin,
    /// What is kept.
    #[command(flatten)]
    pub keep: KeepArgs,
    /// The source.
    #[command(flatten)]
    pub from: SourceArgs,
    /// Chunks.
    #[command(flatten)]
    pub chunks: ChunkArgs,
    /// Who may subscribe, and how many.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// What is kept.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Retention", allow_negative_numbers = true)]
pub struct KeepArgs {
    /// Ledgers kept.
    #[arg(long, value_name = "N", default_value_t = LedgerServe::default().retention)]
    pub retention: u32,
    /// Bytes of segments kept; 0: no bound.
    #[arg(long, value_name = "BYTES", default_value_t = LedgerServe::default().retention_bytes)]
    pub retention_bytes: Bytes,
    /// How long a ledger is kept; 0s: no bound.
    #[arg(long, value_name = "TIME", default_value_t = LedgerServe::default().retention_age, value_parser = config::parse_duration, allow_hyphen_values = true)]
    pub retention_age: Span,
    /// Bytes of a segment.
    #[arg(long, value_name = "BYTES", default_value_t = LedgerServe::default().segment_bytes)]
    pub segment_bytes: Bytes,
    /// Make written ledgers durable: seal (with their segment), every-ledger, or so long after.
    #[arg(long, value_name = "WHEN", default_value_t = LedgerServe::default().sync)]
    pub sync: LedgerSync,
    /// Most bytes of completed ledgers that wait in memory for their write.
    #[arg(long, value_name = "BYTES", default_value_t = LedgerServe::default().backlog_bytes)]
    pub backlog_bytes: Bytes,
    /// The ledgers are kept in DIR/ledgers.
    #[arg(long, value_name = "DIR", default_value = "sluice-data")]
    pub data_dir: OsString,
    /// Begin anew in a directory of another source or network: what it holds goes.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true, action = ArgAction::Set, value_parser = truth)]
    pub reset: bool,
}

/// The source.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Source", allow_negative_numbers = true)]
pub struct SourceArgs {
    /// The source's first ledger; 0 is 1, or as the source says. Captive needs one.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub start_ledger: u32,
    /// file, synthetic: a ledger's bytes come over this long.
    #[arg(long, value_name = "TIME", default_value_t = LedgerServe::default().emit_window, value_parser = config::parse_duration, allow_hyphen_values = true)]
    pub emit_window: Span,
    /// file: from one ledger's begin to the next one's.
    #[arg(long, value_name = "TIME", default_value_t = LedgerServe::default().cadence, value_parser = config::parse_duration, allow_hyphen_values = true)]
    pub cadence: Span,
    /// captive: the node's passphrase, if it is not as --core-config says; pipe, file: what subscribers are told.
    #[arg(long, value_name = "TEXT")]
    pub network_passphrase: Option<String>,
    /// captive: the binary [default: stellar-core from PATH].
    #[arg(long, value_name = "FILE")]
    pub core_binary: Option<OsString>,
    /// captive: stellar-core's configuration file.
    #[arg(long, value_name = "FILE")]
    pub core_config: Option<OsString>,
    /// captive: where history archives are.
    #[arg(long, value_name = "URL,URL", value_delimiter = ',')]
    pub history_archive_urls: Vec<String>,
    /// captive: the node's own directory [default: captive-core in --data-dir].
    #[arg(long, value_name = "DIR")]
    pub storage_dir: Option<OsString>,
    /// pipe: the command whose descriptor 3 carries the ledgers.
    #[arg(long, value_name = "CMD")]
    pub pipe_cmd: Option<String>,
    /// pipe, captive: bytes asked of the kernel for the pipe.
    #[arg(long, value_name = "BYTES", default_value_t = LedgerServe::default().pipe_size)]
    pub pipe_size: Bytes,
    /// file: a directory of ledgers, or a framed file.
    #[arg(long, value_name = "DIR")]
    pub file_dir: Option<OsString>,
    /// file: how many ledgers in all; 0: its ledgers again and again.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub file_count: u32,
    /// Number ledgers from --start-ledger on, whatever they say [default: true for file, false for others].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = truth)]
    pub renumber: Option<bool>,
    /// synthetic: bytes of a ledger.
    #[arg(long, value_name = "BYTES", default_value_t = LedgerServe::default().synthetic_size)]
    pub synthetic_size: Bytes,
    /// synthetic: ledgers that compress about as real ones do.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true, action = ArgAction::Set, value_parser = truth)]
    pub synthetic_compressible: bool,
    /// synthetic: from one ledger's begin to the next one's.
    #[arg(long, value_name = "TIME", default_value_t = LedgerServe::default().synthetic_interval, value_parser = config::parse_duration, allow_hyphen_values = true)]
    pub synthetic_interval: Span,
    /// synthetic: how many; 0: without end.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub synthetic_count: u32,
    /// follow: the server whose ledgers are passed on.
    #[arg(long, value_name = "URL")]
    pub upstream: Option<String>,
    /// follow: a file with the bearer token.
    #[arg(long, value_name = "FILE")]
    pub upstream_token_file: Option<OsString>,
    /// follow: certificates (PEM) that the server's is checked against [default: the host's].
    #[arg(long, value_name = "FILE")]
    pub upstream_ca: Option<OsString>,
    /// follow: connections over which the chunks are spread, where the server offers that.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub upstream_flows: u32,
}

/// Chunks.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Chunks", allow_negative_numbers = true)]
pub struct ChunkArgs {
    /// Bytes of a chunk.
    #[arg(long, value_name = "BYTES", default_value_t = LedgerServe::default().chunk_size)]
    pub chunk_size: Bytes,
    /// Bytes of a ledger's last chunks.
    #[arg(long, value_name = "BYTES", default_value_t = LedgerServe::default().tail_size)]
    pub tail_size: Bytes,
    /// Compress chunks: auto (unless the link has slack), always (also true, or nothing), never (also false).
    #[arg(long, value_name = "WHEN", num_args = 0..=1, default_missing_value = "always", default_value_t = LedgerServe::default().compress, value_parser = compress)]
    pub compress: Compress,
    /// The zstd level; a smaller one is taken under load.
    #[arg(long, value_name = "LEVEL", default_value_t = LedgerServe::default().compress_level)]
    pub compress_level: i32,
    /// Encoders; 0: one for each of their CPUs.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub compress_workers: u32,
}

/// Who may subscribe, and how many.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Subscribers", allow_negative_numbers = true)]
pub struct AccessArgs {
    /// TLS: the certificate chain (PEM); read again on SIGHUP.
    #[arg(long, value_name = "FILE")]
    pub cert: Option<OsString>,
    /// TLS: its key (PEM); read again on SIGHUP.
    #[arg(long, value_name = "FILE")]
    pub key: Option<OsString>,
    /// A file of bearer tokens, one a line; read again on SIGHUP.
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<OsString>,
    /// Listen beyond this host without TLS or tokens.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true, action = ArgAction::Set, value_parser = truth)]
    pub insecure: bool,
    /// Most subscribers.
    #[arg(long, value_name = "N", default_value_t = LedgerServe::default().subscribers_max)]
    pub subscribers_max: u32,
    /// Most subscribers from one address.
    #[arg(long, value_name = "N", default_value_t = LedgerServe::default().subscribers_per_address_max)]
    pub subscribers_per_address_max: u32,
    /// Most connections over which one subscriber may spread its chunks.
    #[arg(long, value_name = "N", default_value_t = LedgerServe::default().flows_max)]
    pub flows_max: u32,
    /// A connection whose host shows no sign of life for so long is closed.
    #[arg(long, value_name = "TIME", default_value_t = LedgerServe::default().dead_after, value_parser = config::parse_duration, allow_hyphen_values = true)]
    pub dead_after: Span,
    /// How long the stop waits for subscribers to get the ledger in flight.
    #[arg(long, value_name = "TIME", default_value_t = LedgerServe::default().drain, value_parser = config::parse_duration, allow_hyphen_values = true)]
    pub drain: Span,
}

/// A boolean as Go's flags take it.
fn truth(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("write true or false".into()),
    }
}

fn compress(text: &str) -> Result<Compress, String> {
    match text {
        "auto" => Ok(Compress::Auto),
        "always" => Ok(Compress::Always),
        "never" => Ok(Compress::Never),
        other => match truth(other) {
            Ok(true) => Ok(Compress::Always),
            Ok(false) => Ok(Compress::Never),
            Err(_) => Err("write auto, always (or true), never (or false)".into()),
        },
    }
}

/// What the arguments amount to.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// The server, and the cores that it names; checked.
    pub config: Config,
    /// Whether the cores are pinned to their CPUs.
    pub pinned: bool,
}

impl Settings {
    /// The server.
    pub fn serve(&self) -> &LedgerServe {
        self.config.ledger.serve.as_ref().expect("settings of a server have one")
    }
}

impl Args {
    /// The filter that the log begins with; none: as the environment says.
    pub fn log_filter(&self) -> Option<&'static str> {
        let level = self.log_level.as_deref()?;
        Some(match level.to_ascii_lowercase().as_str() {
            "error" => "error",
            "warn" => "warn",
            "debug" => "debug",
            "trace" => "trace",
            _ => "info",
        })
    }

    /// The cores and, by their names, which worker has which. Without `--core` nothing is pinned: the source has a thread of its
    /// own where there are two CPUs.
    fn cores(&self, cpus: usize) -> (Vec<Core>, LedgerServe) {
        let mut cores: Vec<Core> = Vec::new();
        let mut add = |worker: &str, cpu: usize| match cores.iter().find(|core| core.cpu == cpu) {
            Some(core) => core.name.clone(),
            None => {
                cores.push(Core { name: worker.into(), cpu, idle: Idle::Park });
                worker.to_string()
            }
        };
        let mut serve = LedgerServe::new(add("fan-out", self.core.unwrap_or(0)));
        serve.source_core = match self.core {
            Some(_) => self.source_core.map(|cpu| add("source", cpu)),
            None => (cpus > 1).then(|| add("source", 1)),
        };
        serve.encoder_cores =
            self.encoder_cores.iter().enumerate().map(|(i, cpu)| add(&format!("encoder-{i}"), *cpu)).collect();
        (cores, serve)
    }

    fn serve(&self, mut serve: LedgerServe) -> LedgerServe {
        let (keep, from, chunks, access) = (&self.keep, &self.from, &self.chunks, &self.access);
        serve.listen = self.listen;
        serve.source = self.source;
        serve.spin = self.spin;

        serve.retention = keep.retention;
        serve.retention_bytes = keep.retention_bytes;
        serve.retention_age = keep.retention_age;
        serve.segment_bytes = keep.segment_bytes;
        serve.sync = keep.sync;
        serve.backlog_bytes = keep.backlog_bytes;
        serve.data_dir = PathBuf::from(&keep.data_dir);
        serve.reset = keep.reset;

        serve.start_ledger = from.start_ledger;
        serve.emit_window = from.emit_window;
        serve.cadence = from.cadence;
        serve.network_passphrase = from.network_passphrase.clone().filter(|text| !text.is_empty());
        serve.core_binary = path(&from.core_binary);
        serve.core_config = path(&from.core_config);
        serve.history_archive_urls = from
            .history_archive_urls
            .iter()
            .map(|url| url.trim())
            .filter(|url| !url.is_empty())
            .map(String::from)
            .collect();
        serve.storage_dir = path(&from.storage_dir);
        serve.pipe_cmd = from.pipe_cmd.clone().filter(|text| !text.is_empty());
        serve.pipe_size = from.pipe_size;
        serve.file_dir = path(&from.file_dir);
        serve.file_count = from.file_count;
        serve.renumber = from.renumber;
        serve.synthetic_size = from.synthetic_size;
        serve.synthetic_compressible = from.synthetic_compressible;
        serve.synthetic_interval = from.synthetic_interval;
        serve.synthetic_count = from.synthetic_count;
        serve.upstream = from.upstream.clone().filter(|text| !text.is_empty());
        serve.upstream_token_file = path(&from.upstream_token_file);
        serve.upstream_ca = path(&from.upstream_ca);
        serve.upstream_flows = from.upstream_flows;

        serve.chunk_size = chunks.chunk_size;
        serve.tail_size = chunks.tail_size;
        serve.compress = chunks.compress;
        serve.compress_level = chunks.compress_level;
        serve.compress_workers = chunks.compress_workers;

        serve.cert = path(&access.cert);
        serve.key = path(&access.key);
        serve.tokens = path(&access.tokens);
        serve.insecure = access.insecure;
        serve.subscribers_max = access.subscribers_max;
        serve.subscribers_per_address_max = access.subscribers_per_address_max;
        serve.flows_max = access.flows_max;
        serve.dead_after = access.dead_after;
        serve.drain = access.drain;
        serve
    }
}

/// A path that is given: the peer's flags take an empty text for none.
fn path(given: &Option<OsString>) -> Option<PathBuf> {
    given.as_ref().filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The configuration that the flags amount to, checked as a file's would be; warnings go to the log.
///
/// # Errors
/// All that is wrong, by the names of the flags.
pub fn settings(args: &Args) -> Result<Settings, Failure> {
    let cpus = cpu::allowed().len();
    let (cores, serve) = args.cores(cpus);
    let ledger = Ledger { serve: Some(args.serve(serve)) };
    let config = Config { cores, ledger, control: Control::none(), ..Config::default() };
    let mut findings = config::check(&config);
    findings.extend(files::check_files(&config));
    if !findings.is_empty() {
        return Err(Failure::usage(findings.iter().map(told).collect::<Vec<_>>().join("\nsluice: ")));
    }
    for warning in config::warn(&config, cpus) {
        tracing::warn!("{}", told(&warning));
    }
    Ok(Settings { config, pinned: args.core.is_some() })
}

/// Runs the command: until a signal, a fault, or the source's end.
pub fn run(args: &Args) -> Outcome {
    let settings = settings(args)?;
    let signals = Signals::take().map_err(|error| Failure::host(format!("signalfd: {error}")))?;
    let running = Running::start(&settings.config, settings.pinned)?;
    let scheme = if settings.serve().cert.is_some() { "wss" } else { "ws" };
    tracing::info!(url = format!("{scheme}://{}/stream", running.address()), "serving ledgers");
    let ended = loop {
        match signals.wait(LOOK_EVERY) {
            Ok(Some(Asked::Stop)) => break Ok(()),
            Ok(Some(Asked::Reload)) => running.reload().reload(),
            Ok(None) => {}
            Err(error) => break Err(format!("waiting for signals: {error}")),
        }
        if let Some(fault) = running.fault() {
            break Err(fault);
        }
        if let Some(ended) = running.ended() {
            break ended.map_err(|reason| format!("the source failed: {reason}"));
        }
    };
    let status = running.status().clone();
    let stopped = running.stop();
    let count = |counter| status.fanout.get(counter);
    tracing::info!(
        ledgers = count(FanoutCounter::Ledgers),
        oldest = count(FanoutCounter::Oldest),
        latest = count(FanoutCounter::Latest),
        raw_fallbacks = count(FanoutCounter::RawFallbacks),
        live_abandons = count(FanoutCounter::LiveAbandons),
        unwritten_dropped = count(FanoutCounter::UnwrittenDropped),
        "stopped"
    );
    ended.map_err(Failure::host)?;
    stopped.map(|()| Exit::Done)
}

/// A finding in the words of the command line.
fn told(finding: &Finding) -> String {
    match finding.key.strip_prefix("ledger.serve: ") {
        Some(key) => format!("--{}: {}", key.replace('_', "-"), with_flags(&finding.what)),
        None => format!("{}: {}", finding.key, finding.what),
    }
}

/// The text with each key of the TOML that it names as the flag of that name.
fn with_flags(what: &str) -> String {
    let mut text = String::with_capacity(what.len());
    // Paths and other values stand in quotes; what is between them is ours.
    for (index, part) in what.split('"').enumerate() {
        if index > 0 {
            text.push('"');
        }
        match index % 2 {
            0 => text.push_str(&keys_to_flags(part)),
            _ => text.push_str(part),
        }
    }
    // A value of a key that was `key = "value"`.
    for source in ["synthetic", "captive", "file", "pipe", "follow"] {
        text = text.replace(&format!("--source = \"{source}\""), &format!("--source {source}"));
    }
    text
}

fn keys_to_flags(part: &str) -> String {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut text = String::with_capacity(part.len());
    let mut rest = part;
    while let Some(at) = rest.find(word) {
        let (before, from) = rest.split_at(at);
        let end = from.find(|c| !word(c)).unwrap_or(from.len());
        let (name, after) = from.split_at(end);
        text.push_str(before);
        rest = after;
        if name.contains('_') && name.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
            text.push_str(&format!("--{}", name.replace('_', "-")));
        } else if let ("source", true) = (name, after.starts_with(" = ")) {
            text.push_str("--source");
        } else if let Some(after) = after.strip_prefix(" = true").filter(|_| name == "insecure") {
            text.push_str("--insecure");
            rest = after;
        } else {
            text.push_str(name);
        }
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &[&str]) -> Result<Args, String> {
        let line = Line::try_parse_from([&["serve"], line].concat());
        line.map(|line| line.args).map_err(|error| error.to_string())
    }

    fn serve(line: &[&str]) -> LedgerServe {
        let args = args(line).expect("parses");
        let (_, serve) = args.cores(1);
        args.serve(serve)
    }

    /// What the command says of a line that it refuses.
    fn refusal(line: &[&str]) -> String {
        settings(&args(line).expect("parses")).expect_err("refused").message
    }

    #[test]
    fn a_line_without_flags_is_a_section_without_keys() {
        assert_eq!(serve(&[]), LedgerServe::new("fan-out"));
        assert!(settings(&args(&[]).expect("parses")).is_ok());
    }

    #[test]
    fn every_flag_of_the_peer_reaches_its_key() {
        let line = "--listen :9000 --source captive --retention 7 --start-ledger 5 --pipe-size 65536 --data-dir d \
                    --log-level debug --chunk-size 4096 --compress=false --compress-workers 3 --emit-window 7500us \
                    --cadence 1.5s --core-binary b --core-config c --history-archive-urls https://a,https://b \
                    --storage-dir s --network-passphrase p --file-dir f --pipe-cmd x --file-count 9 --synthetic-size 1MiB \
                    --synthetic-compressible --synthetic-interval 1m --synthetic-count 4";
        let read = serve(&line.split_whitespace().collect::<Vec<_>>());
        let expected = LedgerServe {
            listen: Listen::Port(9000),
            source: LedgerSource::Captive,
            retention: 7,
            start_ledger: 5,
            pipe_size: Bytes(65_536),
            data_dir: "d".into(),
            chunk_size: Bytes(4_096),
            compress: Compress::Never,
            compress_workers: 3,
            emit_window: Span(std::time::Duration::from_micros(7_500)),
            cadence: Span(std::time::Duration::from_millis(1_500)),
            core_binary: Some("b".into()),
            core_config: Some("c".into()),
            history_archive_urls: vec!["https://a".into(), "https://b".into()],
            storage_dir: Some("s".into()),
            network_passphrase: Some("p".into()),
            file_dir: Some("f".into()),
            pipe_cmd: Some("x".into()),
            file_count: 9,
            synthetic_size: Bytes(1 << 20),
            synthetic_compressible: true,
            synthetic_interval: Span(std::time::Duration::from_secs(60)),
            synthetic_count: 4,
            ..LedgerServe::new("fan-out")
        };
        assert_eq!(read, expected);
        // What the peer's flags have where nothing is given is as if it were not given.
        let empty = "--core-binary= --core-config= --history-archive-urls= --storage-dir= --network-passphrase= --file-dir= --pipe-cmd=";
        assert_eq!(serve(&empty.split_whitespace().collect::<Vec<_>>()), LedgerServe::new("fan-out"));
    }

    #[test]
    fn ours_reach_their_keys() {
        let line = "--retention-bytes 4GiB --retention-age 1h --segment-bytes 2GiB --sync every-ledger --backlog-bytes 8MiB \
                    --reset --renumber=false --upstream ws://u --upstream-token-file t --upstream-ca a --upstream-flows 4 \
                    --tail-size 8KiB --compress-level -3 --spin never --flows-max 2 --subscribers-max 9 \
                    --subscribers-per-address-max 8 --dead-after 5s --drain 0 --cert c --key k --tokens o --insecure";
        let expected = LedgerServe {
            retention_bytes: Bytes(4 << 30),
            retention_age: Span(std::time::Duration::from_secs(3_600)),
            segment_bytes: Bytes(2 << 30),
            sync: LedgerSync::EveryLedger,
            backlog_bytes: Bytes(8 << 20),
            reset: true,
            renumber: Some(false),
            upstream: Some("ws://u".into()),
            upstream_token_file: Some("t".into()),
            upstream_ca: Some("a".into()),
            upstream_flows: 4,
            tail_size: Bytes(8 << 10),
            compress_level: -3,
            spin: LedgerSpin::Never,
            flows_max: 2,
            subscribers_max: 9,
            subscribers_per_address_max: 8,
            dead_after: Span(std::time::Duration::from_secs(5)),
            drain: Span(std::time::Duration::ZERO),
            cert: Some("c".into()),
            key: Some("k".into()),
            tokens: Some("o".into()),
            insecure: true,
            ..LedgerServe::new("fan-out")
        };
        assert_eq!(serve(&line.split_whitespace().collect::<Vec<_>>()), expected);
    }

    #[test]
    fn every_key_of_the_section_has_its_flag() {
        use clap::CommandFactory;
        let command = Line::command();
        let flags: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        let file = include_str!("../../../../config/default.toml");
        let section = file.split_once("[ledger.serve]").expect("the section").1.split_once("\n[").expect("next").0;
        let mut keys = 0;
        for line in section.lines() {
            let Some((key, _)) = line.trim_start_matches("# ").split_once(" = ") else { continue };
            if key.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
                assert!(flags.contains(&key.replace('_', "-").as_str()), "{key}");
                keys += 1;
            }
        }
        assert_eq!(keys + 1, flags.len(), "--log-level is no key; {flags:?}");
    }

    #[test]
    fn compress_and_booleans_are_read_as_both_write_them() {
        for (line, expected) in [
            (&[][..], Compress::Auto),
            (&["--compress"], Compress::Always),
            (&["--compress=true"], Compress::Always),
            (&["--compress=T"], Compress::Always),
            (&["--compress", "always"], Compress::Always),
            (&["--compress", "auto"], Compress::Auto),
            (&["--compress=false"], Compress::Never),
            (&["--compress", "never"], Compress::Never),
        ] {
            assert_eq!(serve(line).compress, expected, "{line:?}");
        }
        for (line, expected) in [
            (&[][..], false),
            (&["--synthetic-compressible"], true),
            (&["--synthetic-compressible=true"], true),
            (&["--synthetic-compressible=0"], false),
            (&["--synthetic-compressible=FALSE"], false),
        ] {
            assert_eq!(serve(line).synthetic_compressible, expected, "{line:?}");
        }
    }

    #[test]
    fn cores_are_named_by_their_workers_and_shared_by_cpu() {
        let cores = |line: &[&str], cpus| {
            let (cores, serve) = args(line).expect("parses").cores(cpus);
            let cores: Vec<String> = cores.iter().map(|core| format!("{}={}", core.name, core.cpu)).collect();
            format!("{} | {} {} {:?}", cores.join(" "), serve.core, serve.source_core(), serve.encoder_cores())
        };
        assert_eq!(cores(&[], 1), "fan-out=0 | fan-out fan-out [\"fan-out\"]");
        assert_eq!(cores(&[], 2), "fan-out=0 source=1 | fan-out source [\"source\"]");
        assert_eq!(cores(&["--core", "3"], 8), "fan-out=3 | fan-out fan-out [\"fan-out\"]");
        assert_eq!(
            cores(&["--core", "3", "--source-core", "2", "--encoder-cores", "2,3,5"], 8),
            "fan-out=3 source=2 encoder-2=5 | fan-out source [\"source\", \"fan-out\", \"encoder-2\"]"
        );
        assert!(args(&["--source-core", "2"]).expect_err("needs the fan-out's").contains("--core"));
    }

    #[test]
    fn log_levels_that_nobody_knows_are_info() {
        for (line, expected) in [
            (&[][..], None),
            (&["--log-level", "DEBUG"], Some("debug")),
            (&["--log-level=warn"], Some("warn")),
            (&["--log-level", "loud"], Some("info")),
            (&["--log-level="], Some("info")),
        ] {
            assert_eq!(args(line).expect("parses").log_filter(), expected, "{line:?}");
        }
    }

    #[test]
    fn what_is_no_value_is_refused_by_its_flag() {
        for (line, parts) in [
            (&["ledgers"][..], &["unexpected argument 'ledgers'"][..]),
            (&["--colour"], &["unexpected argument '--colour'"]),
            (&["--emit-window", "-5ms"], &["'-5ms' for '--emit-window <TIME>'", "is negative: write 0s or more"]),
            (&["--cadence=-1s"], &["'-1s' for '--cadence <TIME>'", "is negative"]),
            (&["--synthetic-interval", "5"], &["--synthetic-interval", "is not a duration"]),
            (&["--retention", "-1"], &["'-1' for '--retention <N>'"]),
            (&["--start-ledger", "4294967296"], &["4294967296 is not in 0..=4294967295"]),
            (&["--chunk-size", "-1"], &["--chunk-size", "is not a size"]),
            (&["--compress=maybe"], &["write auto, always (or true), never (or false)"]),
            (&["--source", "tape"], &["write captive, file, follow, pipe or synthetic"]),
            (&["--insecure=perhaps"], &["write true or false"]),
            (&["--listen", "here"], &["is no address and port"]),
        ] {
            let error = args(line).expect_err("refused");
            assert!(parts.iter().all(|part| error.contains(part)), "{line:?}: {error}");
        }
    }

    /// Every refusal of the peer's server, in the words of this command line.
    #[test]
    fn refusals_name_flags() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().display().to_string();
        std::fs::create_dir(folder.path().join("ledgers")).expect("makes");
        std::os::unix::fs::symlink(folder.path().join("ledgers"), folder.path().join("other")).expect("links");
        let own = format!("{data}/other");
        let dump = format!("{data}/dump");
        std::fs::create_dir(&dump).expect("makes");
        std::fs::write(format!("{dump}/ledger-1.xdr"), "a ledger").expect("writes");
        let table: &[(&[&str], &str)] = &[
            (&["--chunk-size", "4095"], "--chunk-size: is 4095B, but must be from 4KiB to 8MiB"),
            (&["--chunk-size", "8388609"], "--chunk-size: is 8388609B, but must be from 4KiB to 8MiB"),
            (&["--tail-size", "512KiB"], "--tail-size: is 512KiB, but must be from 4KiB to --chunk-size (256KiB)"),
            (
                &["--compress-workers", "65"],
                "--compress-workers: is 65, but must be from 1 to 64, or 0 for one on each core of --encoder-cores",
            ),
            (
                &["--retention", "0"],
                "--retention: is 0, but a subscriber that falls behind needs kept ledgers: at least 1",
            ),
            (&["--pipe-size", "1"], "--pipe-size: is 1B, but must be from 4KiB to 1GiB"),
            (
                &["--emit-window", "1001ms"],
                "--emit-window: is 1s1ms, but --synthetic-interval is 1s: a ledger must be out before the next one begins; lower it, or raise --synthetic-interval",
            ),
            (
                &["--source", "file", "--file-dir", &dump, "--emit-window", "601ms"],
                "--emit-window: is 601ms, but cadence is 600ms: a ledger must be out before the next one begins; lower it, or raise cadence",
            ),
            (&["--synthetic-size", "268435457"], "--synthetic-size: is 268435457B, but must be from 1B to 256MiB"),
            (
                &["--start-ledger", "4294967295"],
                "--start-ledger: is 4294967295, but the last ledger that can be streamed is 4294967294",
            ),
            (
                &["--start-ledger", "4294967294", "--synthetic-count", "2"],
                "--synthetic-count: is 2, which from --start-ledger 4294967294 reaches ledger 4294967295, but the last that can be streamed is 4294967294: lower one of the two",
            ),
            (
                &["--source", "file"],
                "--file-dir: is missing, but --source file needs it: name a directory of ledger-<sequence>.xdr, or a framed file",
            ),
            (
                &["--source", "pipe"],
                "--pipe-cmd: is missing, but --source pipe needs it: write the command whose descriptor 3 carries the ledgers",
            ),
            (
                &["--source", "follow"],
                "--upstream: is missing, but --source follow needs it: write the server's URL, for example \"wss://core.example.net:8462\"",
            ),
            (
                &[
                    "--source",
                    "captive",
                    "--start-ledger",
                    "5",
                    "--history-archive-urls",
                    "https://a",
                    "--core-binary",
                    "/bin/true",
                ],
                "--core-config: is missing, but --source captive needs it: name stellar-core's configuration file",
            ),
            (
                &["--listen", ":8462"],
                "--listen: is \":8462\", which other hosts reach, without TLS (cert and key) and tokens: give them, listen on \"127.0.0.1:8462\" only, or set --insecure",
            ),
            (&["--cert", "c"], "--key: is missing, but cert is given: name the file with the certificate's key"),
            (&["--subscribers-max", "0"], "--subscribers-max: is 0, but must be from 1 to 1000000"),
        ];
        for (line, text) in table {
            assert_eq!(refusal(line), *text);
        }
        let line = ["--source", "file", "--data-dir", &data, "--file-dir", &own];
        assert_eq!(
            refusal(&line),
            format!(
                "--file-dir: is \"{own}\", where this server keeps its own ledgers: copy them elsewhere, or give it another --data-dir"
            )
        );
        let both = refusal(&["--chunk-size", "1", "--retention", "0"]);
        assert_eq!(both.lines().count(), 2, "{both}");
        let tokens = refusal(&["--tokens", "/nonexistent"]);
        assert!(tokens.starts_with("--tokens: \"/nonexistent\": No such file"), "{tokens}");
    }
}
