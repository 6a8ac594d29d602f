//! `sluice stat`: the live counters of a running appliance, from its control server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Exit, Failure, Outcome, tables};
use crate::config;

/// How long the appliance may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer: a status of 64 feeds with 64 streams each is below 8 MiB.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Arguments of `sluice stat`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The configuration of the running appliance (for `control.listen`).
    pub config: Option<PathBuf>,
    /// The control server's address, in place of the configuration's.
    #[arg(long, value_name = "ADDRESS")]
    pub control: Option<SocketAddr>,
    /// A status that `run --report` wrote, in place of a running appliance's.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "control"])]
    pub from: Option<PathBuf>,
    /// The whole status as one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Print only whether it is healthy, a line for each reason, and end with 1 where it is not. Without this the health is
    /// part of what is printed, and changes no exit code.
    #[arg(long, conflicts_with = "json")]
    pub check: bool,
    /// The same for whether it is ready: started, and not about to end.
    #[arg(long, conflicts_with_all = ["json", "check"])]
    pub ready: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    if let Some(path) = &args.from {
        let body = std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("--from {}: {error}", path.display())))?;
        return print_status(&body, &path.display().to_string(), &args);
    }
    let address = address(args.control, args.config.as_deref())?;
    let body = get(address, "/status").map_err(|error| {
        Failure::host(format!(
            "no appliance answers at {address}: {error}; is it running, and is this its control.listen?"
        ))
    })?;
    print_status(&body, &address.to_string(), &args)
}

/// The control server's address: as given, else as configured, else the default.
///
/// # Errors
/// As the configuration's.
pub fn address(control: Option<SocketAddr>, config: Option<&Path>) -> Result<SocketAddr, Failure> {
    match (control, config) {
        (Some(address), _) => Ok(address),
        (None, Some(path)) => {
            let config = config::load(path).map_err(|error| Failure::usage(error.to_string()))?;
            Ok(config.control.listen)
        }
        (None, None) => Ok(config::Control::default().listen),
    }
}

fn print_status(body: &str, from: &str, args: &Args) -> Outcome {
    if args.json {
        println!("{}", body.trim_end());
        return Ok(Exit::Done);
    }
    let status: serde_json::Value =
        serde_json::from_str(body).map_err(|error| Failure::usage(format!("{from}: not a status: {error}")))?;
    if !args.check && !args.ready {
        // A status from a file is of the drain: its health is of no use any more.
        if args.from.is_none() {
            print!("{}", tables::health(&status));
        }
        print!("{}", tables::status(&status));
        return Ok(Exit::Done);
    }
    let asked = &status["health"][if args.ready { "ready" } else { "healthy" }];
    let well = asked
        .as_bool()
        .ok_or_else(|| Failure::usage(format!("{from}: this status has no health: another version wrote it")))?;
    print!("{}", tables::health(&status));
    Ok(if well { Exit::Done } else { Exit::Difference })
}

/// One GET; the body.
///
/// # Errors
/// As the socket says, or the answer's status line.
pub fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_string()),
        Some((head, _)) => Err(std::io::Error::other(head.lines().next().unwrap_or("no status line").to_string())),
        None => Err(std::io::Error::other("the answer has no body")),
    }
}
