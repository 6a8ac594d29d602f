//! `sluice ledger follow`: Follow a ledger server: verify each ledger, then print, store or pass it on.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use crate::cli::{Exit, Failure, Outcome};
use crate::ledger::client::ClientError;
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
    /// Give up when there was no connection for this long, such as 30s; 0s makes the first loss final.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub retry_for: Option<Duration>,
    /// One JSON object a ledger instead of text.
    #[arg(long, conflicts_with = "stdout_framed")]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let range = Range::new(args.start, args.end).map_err(|error| Failure::usage(error.to_string()))?;
    let settings = FollowSettings { retry_for: args.retry_for, ..FollowSettings::default() };
    let mut follower = Follower::with_notice(&args.url, range, settings, log).map_err(failure)?;
    let dump =
        args.out.as_deref().map(DumpWriter::open).transpose().map_err(|error| Failure::host(error.to_string()))?;
    let mut output = io::stdout().lock();
    let ended = loop {
        let received = match follower.next() {
            Ok(Some(received)) => received,
            Ok(None) => break Ok(Exit::Done),
            Err(error) => break Err(failure(error)),
        };
        if let Some(dump) = &dump {
            let ledger = &received.ledger;
            dump.put(ledger.sequence, ledger.bytes).map_err(|error| Failure::host(error.to_string()))?;
        }
        match write(&mut output, &args, &received) {
            Ok(()) => {}
            // Whoever reads has had enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                follower.stop();
                break Ok(Exit::Done);
            }
            Err(error) => break Err(Failure::host(format!("standard output: {error}"))),
        }
    };
    if let Some(dump) = &dump {
        dump.sync().map_err(|error| Failure::host(error.to_string()))?;
    }
    ended
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
        FollowError::Url(_) | FollowError::Tls { .. } => Exit::Usage,
        FollowError::Connect { .. } | FollowError::Host(_) | FollowError::Cancelled => Exit::Host,
        FollowError::Stream { source, .. } => match source {
            ClientError::Refused { status, .. } if *status < 500 => Exit::Usage,
            ClientError::Refused { .. } | ClientError::Disconnected { .. } | ClientError::Closed { .. } => Exit::Host,
            _ => Exit::Difference,
        },
    };
    Failure { message: error.to_string(), exit }
}
