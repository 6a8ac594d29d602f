//! `sluice ledger follow`: Follow a ledger server: verify each ledger, then print, store or pass it on.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::consumer::Consumer;
use crate::cli::{Exit, Failure, Outcome};
use crate::config::{parse_bytes, parse_duration};
use crate::ledger::assemble::{Ledger, Limits};
use crate::ledger::bearer;
use crate::ledger::client::ClientError;
use crate::ledger::client_tls::TlsError;
use crate::ledger::dump::DumpWriter;
use crate::ledger::follow::{FollowError, FollowSettings, Follower, Notice, Received};
use crate::ledger::query::Range;
use crate::ledger::rpc;

/// Arguments of `sluice ledger follow`.
///
/// Every ledger is complete and verified before anything is done with it, and each comes once, in order. When the connection is
/// lost, another one goes on after the last verified ledger.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The server: ws://HOST:PORT, with a path where it is not /stream.
    pub url: String,
    /// The first ledger; 0 is the one in flight, or else the next.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub start: u32,
    /// The last ledger; without it the stream is followed until its source ends.
    #[arg(long, value_name = "M")]
    pub end: Option<u32>,
    /// Write each ledger to DIR/ledger-<sequence>.xdr.
    #[arg(long, value_name = "DIR", conflicts_with = "stdout_framed")]
    pub out: Option<PathBuf>,
    /// Write each ledger to standard output behind a record mark, as a ledger node writes its meta stream.
    #[arg(long)]
    pub stdout_framed: bool,
    /// Start CMD with the shell and write each ledger to its descriptor 3, as --stdout-framed does; its end ends the run.
    ///
    /// A consumer that was written for a ledger node's meta pipe (fd:3) is fed unchanged. Its standard input is empty, its outputs
    /// are this command's. Where it is slow, only this client waits.
    #[arg(long, value_name = "CMD", conflicts_with_all = ["stdout_framed", "json"])]
    pub exec: Option<String>,
    /// Decode each ledger as a LedgerCloseMeta and compare its sequence; a mismatch ends the run.
    #[arg(long)]
    pub check_xdr: bool,
    /// Send the token in FILE (its first line) as Authorization: Bearer.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Trust the certificate authorities in this PEM file too, with wss:// and https://.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Share each ledger's chunks out to as many connections, where the server offers it; for networks that cap one.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub flows: u8,
    /// Look for bytes without sleeping while a ledger is open: 40 to 60 µs sooner, for a CPU meanwhile.
    #[arg(long)]
    pub spin: bool,
    /// Refuse a ledger of more bytes, such as 64MiB; negative: of any size.
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = parse_limit, allow_hyphen_values = true)]
    pub max_ledger_size: i64,
    /// Refuse a chunk of more bytes, as sent and unpacked; 0: 8MiB; negative: as sent, of any size.
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_limit, allow_hyphen_values = true)]
    pub max_chunk_size: i64,
    /// Longest time to a connection, its upgrade included.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    pub dial_timeout: Duration,
    /// Give up when there was no connection for this long, such as 30s; 0s makes the first loss final.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub retry_for: Option<Duration>,
    /// One JSON object a ledger instead of text.
    #[arg(long, conflicts_with = "stdout_framed")]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    if args.check_xdr && cfg!(not(feature = "check-xdr")) {
        return Err(Failure::usage("--check-xdr: this program was built without the feature \"check-xdr\""));
    }
    let range = Range::new(args.start, args.end).map_err(|error| Failure::usage(error.to_string()))?;
    let mut follower =
        Follower::with_notice(&args.url, range, settings(&args)?, log as fn(Notice<'_>)).map_err(failure)?;
    let dump =
        args.out.as_deref().map(DumpWriter::open).transpose().map_err(|error| Failure::host(error.to_string()))?;
    let cancel = follower.canceller();
    let mut consumer = args.exec.as_deref().map(|command| Consumer::start(command, cancel)).transpose()?;
    let ended = follow(&args, &mut follower, dump.as_ref(), consumer.as_mut());
    if let Some(dump) = &dump {
        dump.sync().map_err(|error| Failure::host(error.to_string()))?;
    }
    // A failure of the stream is told before that of a command which was cut off by it.
    let consumed = consumer.map_or(Ok(Exit::Done), Consumer::finish);
    ended.and_then(|exit| consumed.map(|_| exit))
}

fn settings(args: &Args) -> Result<FollowSettings, Failure> {
    let token = args.token_file.as_deref().map(bearer::read).transpose();
    let authorization = token.map_err(|error| Failure::usage(error.to_string()))?;
    Ok(FollowSettings {
        limits: Limits::of_options(args.max_ledger_size, args.max_chunk_size),
        dial_timeout: args.dial_timeout,
        retry_for: args.retry_for,
        authorization,
        authorities: args.ca.clone(),
        flows: usize::from(args.flows),
        spin: args.spin,
    })
}

/// Passes ledgers on until the stream, or whoever takes them, has had enough.
fn follow(
    args: &Args,
    follower: &mut Follower<fn(Notice<'_>)>,
    dump: Option<&DumpWriter>,
    mut consumer: Option<&mut Consumer>,
) -> Outcome {
    let mut output = io::stdout().lock();
    loop {
        let received = match follower.next() {
            Ok(Some(received)) => received,
            // A command that ended has cancelled the stream; how it ended is told by itself.
            Err(FollowError::Cancelled) if consumer.is_some() => return Ok(Exit::Done),
            Ok(None) => return Ok(Exit::Done),
            Err(error) => return Err(failure(error)),
        };
        check(args, &received.ledger)?;
        if let Some(dump) = dump {
            let ledger = &received.ledger;
            dump.put(ledger.sequence, ledger.bytes).map_err(|error| Failure::host(error.to_string()))?;
        }
        let goes_on = match &mut consumer {
            Some(consumer) => consumer.write(received.ledger.bytes)?,
            None => match write(&mut output, args, &received) {
                Ok(()) => true,
                // Whoever reads has had enough.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => false,
                Err(error) => return Err(Failure::host(format!("stdout: {error}"))),
            },
        };
        if !goes_on {
            follower.stop();
            return Ok(Exit::Done);
        }
    }
}

/// What is looked at in a ledger beyond its checksum.
fn check(args: &Args, ledger: &Ledger<'_>) -> Result<(), Failure> {
    let framed = args.stdout_framed || args.exec.is_some();
    if framed && ledger.bytes.len() > rpc::RECORD_BYTES_MAX {
        let (sequence, bytes, most) = (ledger.sequence, ledger.bytes.len(), rpc::RECORD_BYTES_MAX);
        return Err(Failure::host(format!("ledger {sequence} has {bytes} bytes, a record at most {most}")));
    }
    #[cfg(feature = "check-xdr")]
    if args.check_xdr {
        let checked = crate::ledger::xdr::check(ledger.sequence, ledger.bytes);
        return checked.map_err(|error| Failure { message: error.to_string(), exit: Exit::Difference });
    }
    Ok(())
}

/// Reads a limit in bytes; any negative one is none.
fn parse_limit(text: &str) -> Result<i64, String> {
    match text.strip_prefix('-') {
        Some(rest) => parse_bytes(rest).map(|_| -1),
        None => parse_bytes(text).map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX)),
    }
}

fn parse_time(text: &str) -> Result<Duration, String> {
    match parse_duration(text)?.0 {
        time if time.is_zero() => Err("no connection is made in no time: write 1s or more".into()),
        time => Ok(time),
    }
}

/// What standard output gets of a ledger.
fn write(output: &mut impl Write, args: &Args, received: &Received<'_>) -> io::Result<()> {
    let ledger = &received.ledger;
    if args.stdout_framed {
        output.write_all(&rpc::mark(ledger.bytes.len()))?;
        output.write_all(ledger.bytes)?;
    } else if args.json {
        let object = json!({
            "sequence": ledger.sequence, "bytes": ledger.bytes.len(), "chunks": ledger.chunks,
            "packed_bytes": ledger.packed_bytes, "xxh64": format!("{:016x}", ledger.xxh64),
            "emit_start_ns": ledger.emit_start_ns, "emit_end_ns": ledger.emit_end_ns,
            "received_ns": received.received_ns, "discarded_partials": ledger.discarded_partials,
        });
        writeln!(output, "{object}")?;
    } else {
        let delivery = match ledger.is_live() {
            true => format!("{:.3} ms after its last byte", (received.received_ns - ledger.emit_end_ns) as f64 / 1e6),
            false => "replayed".into(),
        };
        writeln!(
            output,
            "ledger {}: {} bytes, {} chunks, {delivery}",
            ledger.sequence,
            ledger.bytes.len(),
            ledger.chunks
        )?;
    }
    output.flush()
}

fn log(notice: Notice<'_>) {
    match notice {
        Notice::Connected { run } => tracing::info!(run = run.unwrap_or("not told"), "connected"),
        Notice::Retrying { error, wait_ns } => {
            tracing::warn!(wait_ms = wait_ns / 1_000_000, "{error}; connecting again");
        }
    }
}

/// The failure of a stream, with its exit code: what the server or its ledgers did wrong is a difference.
fn failure(error: FollowError) -> Failure {
    let exit = match &error {
        FollowError::Tls { source: TlsError::Session(_), .. } => Exit::Host,
        FollowError::Url(_) | FollowError::Authorization | FollowError::Tls { .. } => Exit::Usage,
        FollowError::Connect { .. } | FollowError::Host(_) | FollowError::Cancelled => Exit::Host,
        FollowError::Stream { source, .. } => match source {
            ClientError::Refused { status, .. } if *status < 500 => Exit::Usage,
            ClientError::Refused { .. } | ClientError::Disconnected { .. } | ClientError::Closed { .. } => Exit::Host,
            _ => Exit::Difference,
        },
    };
    Failure { message: error.to_string(), exit }
}
