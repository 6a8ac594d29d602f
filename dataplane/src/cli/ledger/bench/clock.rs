//! What the server says of itself over `/healthz`: its counters, and how far its clock is from ours.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::ledger::bench::summary::Clock;
use crate::ledger::url::Url;
use crate::sys::clock;

/// Round trips of one measurement: the shortest of them bounds the offset, and on a network that is not full one of so many is
/// about as short as they get.
const ROUND_TRIPS: usize = 16;
/// Longest time for one of them.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most bytes of an answer: a head and one line.
const ANSWER_BYTES_MAX: u64 = 16 << 10;

/// `/healthz` once: our clock just before the request and just after the answer, and the answer's object.
fn health_once(url: &Url) -> io::Result<(i64, i64, Value)> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (url.host.as_str(), url.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return ask(stream, url),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn ask(mut stream: TcpStream, url: &Url) -> io::Result<(i64, i64, Value)> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", url.authority());
    let before = clock::utc_ns();
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    // The answer is short and comes at once: its first bytes are when it was given.
    let bytes = stream.read(&mut part)?;
    let after = clock::utc_ns();
    answer.extend_from_slice(&part[..bytes]);
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let object =
        serde_json::from_str(body.trim()).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok((before, after, object))
}

/// The server's health; `None` when it does not answer.
pub fn health(url: &str) -> Option<Value> {
    let url = Url::parse(url).ok().filter(|url| !url.tls)?;
    health_once(&url).ok().map(|(_, _, object)| object)
}

/// The offset of the server's clock. Measured by round trips where the server tells its time, else what chrony says of this host.
pub fn offset(url: &str) -> Clock {
    let Ok(url) = Url::parse(url) else { return Clock::Unknown("the URL cannot be read".into()) };
    if is_this_host(&url) {
        return Clock::Same;
    }
    if url.tls {
        return fallback("over TLS no round trip is measured");
    }
    let mut best: Option<(i64, i64)> = None;
    for _ in 0..ROUND_TRIPS {
        match health_once(&url) {
            Ok((before, after, object)) => {
                let Some(theirs) = object["now_ns"].as_i64() else {
                    return fallback("the server's /healthz does not tell its time");
                };
                let trip = judge(before, theirs, after);
                best = Some(best.map_or(trip, |best| if trip.1 < best.1 { trip } else { best }));
            }
            Err(error) => return fallback(&format!("/healthz: {error}")),
        }
    }
    match best {
        Some((offset_ns, bound_ns)) => Clock::Measured {
            offset_ns,
            bound_ns,
            by: format!("the shortest of {ROUND_TRIPS} round trips of /healthz"),
        },
        None => fallback("no round trip"),
    }
}

/// Offset and bound of one round trip: the server told its time somewhere between the two, so it is the middle's, give or take
/// half.
fn judge(before: i64, theirs: i64, after: i64) -> (i64, i64) {
    let trip = after.saturating_sub(before).max(0);
    (theirs.saturating_sub(before.saturating_add(trip / 2)), trip / 2 + trip % 2)
}

/// Without the server's word: chrony's, which speaks only of this host.
fn fallback(why: &str) -> Clock {
    let told = Command::new("chronyc").args(["-c", "tracking"]).output().ok();
    let tracking =
        told.filter(|told| told.status.success()).and_then(|told| tracking(&String::from_utf8_lossy(&told.stdout)));
    match tracking {
        Some((offset, bound)) => Clock::Unknown(format!(
            "{why}; chrony here: {offset:+.6} s from its source, at most {bound:.6} s off; ask chrony on the server's host too"
        )),
        None => Clock::Unknown(format!("{why}; no chrony answers here either")),
    }
}

/// System time offset and its bound (root dispersion and half the root delay), s, of `chronyc -c tracking`.
fn tracking(line: &str) -> Option<(f64, f64)> {
    let fields: Vec<&str> = line.trim().split(',').collect();
    // Reference, its name, stratum, reference time, system time, last offset, rms offset, frequency, residual, skew, root delay,
    // root dispersion, …
    let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((number(4)?, number(11)? + number(10)? / 2.0))
}

/// Whether the URL's host is this one: a loopback address.
fn is_this_host(url: &Url) -> bool {
    match url.host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => url.host == "localhost",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_bounds_the_offset() {
        // They are 1,000 ahead, and the trip took 100.
        assert_eq!(judge(5_000, 6_050, 5_100), (1_000, 50));
        assert_eq!(judge(5_000, 4_000, 5_101), (-1_050, 51));
        assert_eq!(judge(5_000, 5_000, 4_000), (0, 0), "our clock was set back meanwhile");
    }

    #[test]
    fn chronys_line_is_read() {
        let line = "A9FEA97B,169.254.169.123,4,1764493211.1,-0.000002510,0.000001,0.000002,-7.1,0.0,0.02,0.000400,0.000150,16.2,Normal";
        let (offset, bound) = tracking(line).expect("a line");
        assert!((offset + 0.000_002_51).abs() < 1e-12 && (bound - 0.000_35).abs() < 1e-12);
        assert_eq!(tracking("506 Cannot talk to daemon"), None);
    }

    #[test]
    fn one_host_has_one_clock() {
        for (url, same) in [
            ("ws://127.0.0.1:8462", true),
            ("ws://[::1]:8462", true),
            ("ws://localhost", true),
            ("ws://10.0.0.1:8462", false),
            ("ws://core-box:8462", false),
        ] {
            assert_eq!(is_this_host(&Url::parse(url).expect(url)), same, "{url}");
        }
    }
}
