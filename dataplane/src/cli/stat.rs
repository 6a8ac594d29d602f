//! `sluice stat`: the live counters of a running appliance, from its control server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
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
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    if let Some(path) = &args.from {
        let body = std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("--from {}: {error}", path.display())))?;
        return print_status(&body, &path.display().to_string(), args.json);
    }
    let address = match (&args.control, &args.config) {
        (Some(address), _) => *address,
        (None, Some(path)) => config::load(path).map_err(|error| Failure::usage(error.to_string()))?.control.listen,
        (None, None) => config::Control::default().listen,
    };
    let body = get(address, "/status").map_err(|error| {
        Failure::host(format!(
            "no appliance answers at {address}: {error}; is it running, and is this its control.listen?"
        ))
    })?;
    print_status(&body, &address.to_string(), args.json)
}

fn print_status(body: &str, from: &str, json: bool) -> Outcome {
    if json {
        println!("{}", body.trim_end());
        return Ok(Exit::Done);
    }
    let status: serde_json::Value =
        serde_json::from_str(body).map_err(|error| Failure::usage(format!("{from}: not a status: {error}")))?;
    print!("{}", tables::status(&status));
    Ok(Exit::Done)
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
