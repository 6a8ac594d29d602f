//! `cargo xtask fetch DATE DEEP|TOPS`: one day of IEX HIST into data/, which git ignores.
//!
//! The index is IEX's own (documented HIST API): a JSON list of the day's files with link, feed, version and size.
//! The download resumes where it stopped, and only a file of the stated size gets its final name.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::Deserialize;

use crate::shell;

/// The index; `SLUICE_HIST_URL` names another one (a mirror, a test).
const INDEX: &str = "https://iextrading.com/api/1.0/hist";
/// How often an interrupted download is taken up again before the task gives up.
const ATTEMPTS: u32 = 10;
/// curl: the server does not resume.
const CURL_RANGE: i32 = 33;

/// Arguments of `cargo xtask fetch`.
#[derive(clap::Args)]
pub struct Args {
    /// The trading day, YYYYMMDD.
    #[arg(value_parser = day)]
    date: String,
    /// The feed.
    #[arg(value_enum, ignore_case = true)]
    feed: Feed,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Feed {
    /// DEEP 1.0.
    Deep,
    /// TOPS, the newest version of that day.
    Tops,
}

/// One file of the index.
#[derive(Deserialize)]
struct Entry {
    link: String,
    feed: String,
    version: String,
    size: Size,
}

/// The index writes sizes as text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Text(String),
    Number(u64),
}

impl Size {
    fn bytes(&self) -> Option<u64> {
        match self {
            Size::Text(text) => text.parse().ok(),
            Size::Number(number) => Some(*number),
        }
    }
}

fn day(text: &str) -> Result<String, String> {
    let digits: String = text.chars().filter(|letter| *letter != '-').collect();
    let right = digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_digit());
    right.then_some(digits).ok_or_else(|| "write the day as 20191224".into())
}

/// Runs the task.
pub fn run(args: Args) -> Result<(), String> {
    crate::setup::ensure()?;
    let index = std::env::var("SLUICE_HIST_URL").unwrap_or_else(|_| INDEX.into());
    let path = fetch(&index, &shell::root().join("data"), &args.date, args.feed)?;
    println!("fetch: {}", path.display());
    Ok(())
}

/// Brings the day's file into `folder`; its path.
fn fetch(index: &str, folder: &Path, date: &str, feed: Feed) -> Result<PathBuf, String> {
    let entry = look_up(index, date, feed)?;
    let size = entry.size.bytes().ok_or("fetch: the index states no size")?;
    let path = folder.join(format!("{date}_IEXTP1_{}{}.pcap.gz", entry.feed, entry.version));
    if length(&path) == Some(size) {
        println!("fetch: already there, {size} bytes");
        return Ok(path);
    }
    std::fs::create_dir_all(folder).map_err(|error| format!("fetch: {}: {error}", folder.display()))?;
    println!("fetch: {} {} of {date}: {size} bytes ({:.1} GB)", entry.feed, entry.version, size as f64 / 1e9);
    let part = path.with_extension("gz.part");
    download(&entry.link, &part, size)?;
    std::fs::rename(&part, &path).map_err(|error| format!("fetch: {}: {error}", path.display()))?;
    Ok(path)
}

fn length(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|metadata| metadata.len())
}

fn look_up(index: &str, date: &str, feed: Feed) -> Result<Entry, String> {
    let url = format!("{index}?date={date}");
    let output = shell::command("curl")
        .args(["--fail", "--location", "--silent", "--show-error", "--max-time", "60", &url])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("fetch: cannot start curl: {error}"))?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "fetch: the index of IEX HIST cannot be reached: {}\n  it is {url}\n  from a machine that reaches it, \
             bring the day's file here into data/; a mirror is named by SLUICE_HIST_URL",
            told.trim()
        ));
    }
    let unreadable = |error: &dyn std::fmt::Display| format!("fetch: {url}: not the index that was expected: {error}");
    let entries: Vec<Entry> = serde_json::from_slice(&output.stdout).map_err(|error| unreadable(&error))?;
    let name = if feed == Feed::Deep { "DEEP" } else { "TOPS" };
    let mut right: Vec<Entry> = entries.into_iter().filter(|entry| entry.feed == name).collect();
    // TOPS 1.5 and 1.6 were published side by side.
    right.sort_by(|a, b| a.version.cmp(&b.version));
    right.pop().ok_or_else(|| format!("fetch: the index has no {name} for {date}: was it a trading day?"))
}

/// Downloads `url` to `part`, resuming, until it has `size` bytes.
fn download(url: &str, part: &Path, size: u64) -> Result<(), String> {
    for attempt in 1..=ATTEMPTS {
        let had = length(part).unwrap_or(0);
        if had > size {
            return Err(format!(
                "fetch: {} has {had} bytes, but the index states {size}: the file is another one now; delete it and \
                 try again",
                part.display()
            ));
        }
        if had == size {
            return Ok(());
        }
        if had > 0 {
            println!("fetch: goes on at {had} of {size} bytes");
        }
        let status = shell::command("curl")
            .args(["--fail", "--location", "--show-error", "--continue-at", "-", "--connect-timeout", "30"])
            // A connection that brings less than 1 kB/s for a minute is dead.
            .args(["--speed-limit", "1000", "--speed-time", "60"])
            .args(if std::io::IsTerminal::is_terminal(&std::io::stderr()) { ["--progress-bar"] } else { ["--silent"] })
            .arg("--output")
            .arg(part)
            .arg(url)
            .status()
            .map_err(|error| format!("fetch: cannot start curl: {error}"))?;
        let has = length(part).unwrap_or(0);
        match status.code() {
            Some(CURL_RANGE) => {
                println!("fetch: the server does not resume; begins anew");
                std::fs::remove_file(part).map_err(|error| format!("fetch: {}: {error}", part.display()))?;
            }
            // It ended well, and yet too short or too long.
            Some(0) if has != size => {
                return Err(format!("fetch: {url}: brought {has} bytes, but the index states {size}"));
            }
            // Broken off, but some of it came.
            _ if has > had || status.success() => {}
            _ if attempt == ATTEMPTS || has == 0 => return Err(format!("fetch: {url} cannot be reached ({status})")),
            _ => std::thread::sleep(std::time::Duration::from_secs(1)),
        }
    }
    match length(part) == Some(size) {
        true => Ok(()),
        false => Err(format!("fetch: {url}: broken off {ATTEMPTS} times; run this again to go on")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A server of an index and one file on loopback. The first `cuts` answers with file bytes break off half-way.
    struct Server {
        index: String,
        requests: Arc<AtomicUsize>,
    }

    fn serve(body: Vec<u8>, stated: u64, cuts: usize, resumes: bool) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        std::thread::spawn(move || {
            let mut cuts = cuts;
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let (path, from) = request(&stream);
                if path.starts_with("/hist") {
                    let entry = |feed: &str, version: &str| {
                        format!(
                            r#"{{"link":"http://{address}/file","date":"20191224","feed":"{feed}","version":"{version}",
                                "protocol":"IEXTP1","size":"{stated}"}}"#
                        )
                    };
                    let json = format!("[{},{}]", entry("TOPS", "1.5"), entry("TOPS", "1.6"));
                    answer(&mut stream, "200 OK", "", json.as_bytes(), json.len());
                    continue;
                }
                counted.fetch_add(1, Ordering::Relaxed);
                let from = if resumes { from } else { 0 };
                let rest = &body[from..];
                let sent = if cuts > 0 { rest.len() / 2 } else { rest.len() };
                cuts = cuts.saturating_sub(1);
                let (status, range) = match from {
                    0 => ("200 OK", String::new()),
                    _ => {
                        let range = format!("Content-Range: bytes {from}-{}/{}\r\n", body.len() - 1, body.len());
                        ("206 Partial Content", range)
                    }
                };
                answer(&mut stream, status, &range, &rest[..sent], rest.len());
            }
        });
        Server { index: format!("http://{address}/hist"), requests }
    }

    /// The path asked for, and the first byte of the range.
    fn request(stream: &TcpStream) -> (String, usize) {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
        let path = lines.next().unwrap_or_default().split(' ').nth(1).unwrap_or("").to_string();
        let range = lines.find_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(String::from));
        (path, range.and_then(|range| range.trim_end_matches('-').parse().ok()).unwrap_or(0))
    }

    fn answer(stream: &mut TcpStream, status: &str, more: &str, body: &[u8], stated: usize) {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {stated}\r\n{more}Connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).ok();
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("sluice-fetch-{}-{name}", std::process::id()));
        std::fs::remove_dir_all(&folder).ok();
        folder
    }

    fn has_curl() -> bool {
        let has = shell::find("curl").is_some();
        if !has {
            eprintln!("SKIPPED fetch: no curl");
        }
        has
    }

    fn body() -> Vec<u8> {
        (0..300_000u32).map(|index| (index * 7) as u8).collect()
    }

    #[test]
    fn a_broken_download_resumes_and_the_newest_version_wins() {
        if !has_curl() {
            return;
        }
        let (server, folder) = (serve(body(), 300_000, 2, true), folder("resume"));
        let path = fetch(&server.index, &folder, "20191224", Feed::Tops).unwrap();
        assert_eq!(path.file_name().unwrap(), "20191224_IEXTP1_TOPS1.6.pcap.gz");
        assert!(std::fs::read(&path).unwrap() == body());
        assert_eq!(server.requests.load(Ordering::Relaxed), 3, "two were broken off");
        fetch(&server.index, &folder, "20191224", Feed::Tops).unwrap();
        assert_eq!(server.requests.load(Ordering::Relaxed), 3, "what is there is not fetched again");
        std::fs::remove_dir_all(folder).ok();
    }

    #[test]
    fn a_server_that_does_not_resume_begins_anew() {
        if !has_curl() {
            return;
        }
        let (server, folder) = (serve(body(), 300_000, 1, false), folder("anew"));
        let path = fetch(&server.index, &folder, "20191224", Feed::Tops).unwrap();
        assert!(std::fs::read(&path).unwrap() == body());
        std::fs::remove_dir_all(folder).ok();
    }

    #[test]
    fn a_wrong_size_is_told_and_leaves_no_file() {
        if !has_curl() {
            return;
        }
        let (server, folder) = (serve(body(), 300_001, 0, true), folder("size"));
        let told = fetch(&server.index, &folder, "20191224", Feed::Tops).unwrap_err();
        assert!(told.contains("brought 300000 bytes, but the index states 300001"), "{told}");
        assert!(!folder.join("20191224_IEXTP1_TOPS1.6.pcap.gz").exists());
        std::fs::remove_dir_all(folder).ok();
    }

    #[test]
    fn what_cannot_be_reached_or_is_not_there_is_said_plainly() {
        if !has_curl() {
            return;
        }
        // A port that was just free.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let folder = folder("unreachable");
        let told = fetch(&format!("http://{address}/hist"), &folder, "20191224", Feed::Deep).unwrap_err();
        assert!(told.contains("cannot be reached") && told.contains(&address.to_string()), "{told}");
        assert!(!folder.exists());
        let server = serve(body(), 300_000, 0, true);
        let told = fetch(&server.index, &folder, "20191224", Feed::Deep).unwrap_err();
        assert!(told.contains("has no DEEP for 20191224"), "{told}");
    }

    #[test]
    fn days_are_eight_digits() {
        assert_eq!(day("2019-12-24").as_deref(), Ok("20191224"));
        assert!(day("yesterday").is_err() && day("2019122").is_err());
    }
}
