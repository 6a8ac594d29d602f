//! `sluice stat`: the live counters of a running appliance, from its control server.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Exit, Failure, Outcome, output, tables};
use crate::config;
use crate::sys::clock;

/// How long the whole answer may take, from the connection to its last byte.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer: a status of 64 feeds with 64 streams each is below 8 MiB.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// Parts of a status; each has one at least.
const PARTS: [&str; 4] = ["appliance", "capture", "ring", "ledger"];

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
        let body = std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(format!("--from {}: {error}; give a status, as run --report writes it", path.display()))
        })?;
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

/// The text as a status.
///
/// # Errors
/// Where it is no JSON, or has none of the parts that every status has one of.
fn parse(body: &str, from: &str) -> Result<serde_json::Value, Failure> {
    let no_status =
        |why: &str| Failure::usage(format!("{from}: not a status: {why}; run --report writes one, and stat --json"));
    let status: serde_json::Value = serde_json::from_str(body).map_err(|error| no_status(&error.to_string()))?;
    if PARTS.iter().all(|part| status[part].is_null()) {
        return Err(no_status(&format!("it has none of {}", PARTS.join(", "))));
    }
    Ok(status)
}

fn print_status(body: &str, from: &str, args: &Args) -> Outcome {
    let status = parse(body, from)?;
    if args.json {
        println!("{}", body.trim_end());
        return Ok(Exit::Done);
    }
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
    output::print(&tables::health(&status))?;
    Ok(if well { Exit::Done } else { Exit::Difference })
}

/// One GET; the body.
///
/// # Errors
/// As the socket says; `TimedOut` where the whole answer was not there in time; `NotFound` with the body of a 404; else the
/// answer's status line, or that it is too long.
pub fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    body(&exchange(address, path, ANSWER_TIMEOUT, ANSWER_BYTES_MAX)?)
}

/// Asks, and reads to the end: at most `within` in all, and at most `bytes_max`.
fn exchange(address: SocketAddr, path: &str, within: Duration, bytes_max: usize) -> io::Result<String> {
    let end_ns = clock::monotonic_ns() + within.as_nanos() as i64;
    let late = || io::Error::new(ErrorKind::TimedOut, format!("its answer was not whole within {within:?}"));
    let mut stream = TcpStream::connect_timeout(&address, within)?;
    stream.set_write_timeout(Some(within))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let (mut answer, mut part) = (Vec::new(), vec![0; READ_BYTES]);
    loop {
        let left_ns = end_ns - clock::monotonic_ns();
        if left_ns <= 0 {
            return Err(late());
        }
        stream.set_read_timeout(Some(Duration::from_nanos(left_ns as u64)))?;
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(count) if answer.len() + count > bytes_max => {
                return Err(io::Error::other(format!("its answer is longer than {}", shown(bytes_max))));
            }
            Ok(count) => answer.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // What a read says whose time is over.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Err(late()),
            Err(error) => return Err(error),
        }
    }
    String::from_utf8(answer).map_err(|_| io::Error::other("its answer is no text"))
}

fn shown(bytes: usize) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{bytes} bytes") }
}

fn body(answer: &str) -> io::Result<String> {
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_string()),
        Some((head, body)) if head.starts_with("HTTP/1.1 404") => {
            Err(io::Error::new(ErrorKind::NotFound, body.trim_end().to_string()))
        }
        Some((head, _)) => Err(io::Error::other(head.lines().next().unwrap_or("no status line").to_string())),
        None => Err(io::Error::other("the answer has no body")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// What [`exchange`] says of a server that sends `part` again and again, with a pause between.
    fn asked(part: &'static [u8], pause: Duration, within: Duration, bytes_max: usize) -> io::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback");
        let address = listener.local_addr().expect("bound");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().expect("somebody asks");
                // Until who asks has gone.
                while stream.write_all(part).is_ok() {
                    clock::sleep(pause);
                }
            });
            exchange(address, "/status", within, bytes_max)
        })
    }

    #[test]
    fn an_answer_that_trickles_has_an_end_in_all() {
        let begun_ns = clock::monotonic_ns();
        let within = Duration::from_millis(300);
        let error = asked(b"x", Duration::from_millis(50), within, 1 << 20).expect_err("it never ends");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("not whole within 300ms"), "{error}");
        let took_ns = clock::monotonic_ns() - begun_ns;
        assert!(took_ns < 20 * within.as_nanos() as i64, "{took_ns} ns");
    }

    #[test]
    fn an_answer_that_is_too_long_is_told_as_such() {
        let error = asked(&[b'x'; 4_096], Duration::ZERO, ANSWER_TIMEOUT, 1 << 20).expect_err("it is endless");
        assert_eq!(error.to_string(), "its answer is longer than 1 MiB");
        assert_eq!(shown(ANSWER_BYTES_MAX), "64 MiB");
    }

    #[test]
    fn json_that_is_no_status_is_refused() {
        for status in [r#"{"capture":{}}"#, r#"{"ring":{"mirror":[]}}"#] {
            assert!(parse(status, "s.json").is_ok(), "{status}");
        }
        for (text, why) in [("{}", "none of appliance, capture"), ("[1]", "none of"), ("capture", "expected value")] {
            let refused = parse(text, "s.json").expect_err(text);
            assert_eq!(refused.exit, Exit::Usage);
            assert!(
                refused.message.starts_with("s.json: not a status: ") && refused.message.contains(why),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn what_an_answer_says_is_told() {
        assert_eq!(body("HTTP/1.1 200 OK\r\n\r\n{}\n").expect("a body"), "{}\n");
        let absent = body("HTTP/1.1 404 Not Found\r\nX: y\r\n\r\nthere is none\n").expect_err("it is not there");
        assert_eq!((absent.kind(), absent.to_string().as_str()), (ErrorKind::NotFound, "there is none"));
        assert_eq!(body("HTTP/1.1 503 Busy\r\n\r\nx").expect_err("busy").to_string(), "HTTP/1.1 503 Busy");
        assert_eq!(body("HTTP/1.1 200 OK").expect_err("cut").to_string(), "the answer has no body");
    }
}
