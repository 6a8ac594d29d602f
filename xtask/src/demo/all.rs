//! `cargo xtask demo --all`: every job in one process, a mirror and a follower of ledgers on a second host, and one table from the
//! wire to the mirror's reader.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Demo, Namespace, PATIENCE, Running, compare};
use crate::shell;

/// Rings of the two configurations: the two hosts share /dev/shm.
const RINGS: [&str; 2] = ["/dev/shm/sluice-demo-all", "/dev/shm/sluice-demo-mirror"];
/// Where ledgers are served.
const LEDGERS: &str = "ws://10.77.0.1:8462";
/// Ledgers that the follower verifies: 20 s of them while the session is played.
const LAST_LEDGER: &str = "40";
/// The reader of the mirror's ring ends when nothing has come for so long: longer than the follower may take after the last
/// message, as host 1 publishes a last record when it ends.
const READER_IDLE: &str = "10s";
/// How often a state is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Demo {
    /// Plays the session through everything, and judges.
    pub(super) fn all(&self, speed: &str, silence_max: &str) -> Result<(), String> {
        let (source, site) = (Namespace::make(self)?, Namespace::bare(self)?);
        let _rings = Rings::fresh();
        join(&source, &site)?;
        let configs = ["demo-all.toml", "demo-mirror.toml"];
        let [all, mirror] = configs.map(|name| shell::root().join("config").join(name).to_string_lossy().into_owned());
        self.say("host 1: sluice run config/demo-all.toml (capture, store, ring, serve, ledgers)");
        let mut run = source.start(self, &["run", &all, "--report", "report.json"], "run.log")?;
        self.ready(&source, &mut run, "run.log")?;
        self.say("host 2: sluice run config/demo-mirror.toml, a reader of its ring, a follower of the ledgers");
        let mut copy = site.start(self, &["run", &mirror, "--report", "mirror.json"], "mirror.log")?;
        self.ready(&site, &mut copy, "mirror.log")?;
        self.until("the mirror has a ring", || is_ring(RINGS[1]))?;
        let tail = ["ring", "tail", RINGS[1], "--from", "oldest", "--follow", "--json", "--idle", READER_IDLE];
        let mut reader = site.start(self, &tail, "reader.jsonl")?;
        let follow = ["ledger", "follow", LEDGERS, "--start", "1", "--end", LAST_LEDGER];
        let mut follower = site.start(self, &follow, "follower.log")?;
        let sent = self.play_all(&source, speed, silence_max)?;
        self.say("waiting for the follower");
        self.ended(&mut follower, "ledger follow", "follower.log")?;
        let dropped = dropped(&source)?;
        self.say("stopping host 1 with SIGTERM, waiting for the reader, stopping host 2");
        run.terminate();
        self.ended(&mut run, "sluice run", "run.log")?;
        self.ended(&mut reader, "ring tail", "reader.jsonl")?;
        copy.terminate();
        self.ended(&mut copy, "sluice run", "mirror.log")?;
        drop((source, site));
        self.judge_all(sent, dropped)
    }

    fn ready(&self, space: &Namespace, run: &mut Running, log: &str) -> Result<(), String> {
        self.wait_ready(space, run).map_err(|error| format!("{error}\n{}", self.log(log)))
    }

    fn ended(&self, process: &mut Running, what: &str, log: &str) -> Result<(), String> {
        let status = process.wait(2 * PATIENCE)?;
        status.success().then_some(()).ok_or_else(|| format!("{what} failed ({status}):\n{}", self.log(log)))
    }

    fn until(&self, what: &str, holds: impl Fn() -> bool) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if holds() {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Err(format!("not within {PATIENCE:?}: {what}"))
    }

    /// Frames that the player sent into both sides.
    fn play_all(&self, space: &Namespace, speed: &str, silence_max: &str) -> Result<u64, String> {
        self.say(&format!("playing both sides at {speed} times their own pace"));
        let mut args =
            vec!["feed", "play", "a.pcap", "b.pcap", "--json", "--speed", speed, "--silence-max", silence_max];
        args.extend(["--interface", "tx-a", "--interface", "tx-b"]);
        let mut command = space.command(self, &args);
        let told = shell::output(command.env("SLUICE_LOG", "warn"))?;
        let report: Value = serde_json::from_str(told.trim()).map_err(|error| format!("feed play: {error}: {told}"))?;
        report["sent"].as_u64().ok_or_else(|| format!("feed play: no count in {report}"))
    }

    /// What came out of the mirror's ring, by kind.
    fn read_by(&self, file: &str) -> Result<BTreeMap<String, u64>, String> {
        let path = self.folder.join(file);
        let file = std::fs::File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut kinds = BTreeMap::new();
        for line in BufReader::new(file).lines() {
            let line = line.map_err(|error| format!("{}: {error}", path.display()))?;
            // Log lines share the file.
            let Ok(record) = serde_json::from_str::<Value>(&line) else { continue };
            let lost =
                record["details"]["lapped"].as_u64().unwrap_or(0) + record["details"]["skipped"].as_u64().unwrap_or(0);
            if lost > 0 {
                *kinds.entry("missed".to_string()).or_default() += lost;
            }
            if let Some(kind) = record["kind"].as_str() {
                *kinds.entry(kind.to_string()).or_default() += 1;
            }
        }
        Ok(kinds)
    }

    fn judge_all(&self, sent: u64, dropped: u64) -> Result<(), String> {
        let (status, mirror, truth) = (self.json("report.json")?, self.json("mirror.json")?, self.json("truth.json")?);
        println!();
        print!("{}", shell::output(&mut self.sluice(&["stat", "--from", "report.json"]))?);
        println!();
        let mut faults = compare(&status, &truth);
        let rows = self.rows(&status, &mirror, sent, dropped)?;
        println!("\nfrom the wire to the mirror's reader:");
        for row in &rows {
            println!("  {row}");
            faults.extend((row.residue() != 0).then(|| row.to_string()));
        }
        self.verdict(&status, faults, "the truth file matches, every residue from the wire to the mirror's reader is 0")
    }

    fn rows(&self, status: &Value, mirror: &Value, sent: u64, dropped: u64) -> Result<Vec<Row>, String> {
        let read = self.read_by("reader.jsonl")?;
        let kind = |name: &str| read.get(name).copied().unwrap_or(0);
        let marks: u64 =
            read.iter().filter(|(name, _)| !["message", "missed"].contains(&name.as_str())).map(|(_, n)| n).sum();
        let capture = &status["capture"];
        let mut rows = vec![Row::new(
            "frames",
            ("sent by the player", sent),
            [
                ("refused by the sending end", dropped),
                ("seen by the XDP program and not the host's own", seen(capture)),
            ],
        )];
        rows.extend(tables(capture));
        let feed = &capture["feeds"][0];
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let published = number(&feed["published"]) + number(&feed["published_marks"]);
        let copy = &mirror["ring"]["mirror"][0];
        let mirrored = number(&copy["next"]).saturating_sub(number(&copy["first"]));
        rows.push(Row::new("records", ("published in the ring", published), [("in the mirror's ring", mirrored)]));
        rows.push(Row::new(
            "records",
            ("in the mirror's ring", mirrored),
            [("read as messages", kind("message")), ("read as marks", marks), ("missed by the reader", kind("missed"))],
        ));
        rows.push(Row::new(
            "messages",
            ("published in the ring", number(&feed["published"])),
            [("read from the mirror's ring", kind("message"))],
        ));
        let last: u64 = LAST_LEDGER.parse().map_err(|error| format!("{LAST_LEDGER}: {error}"))?;
        let verified = self.log("follower.log").lines().filter(|line| line.contains("ledger")).count();
        println!(
            "ledgers: 1 to {last} verified at host 2 ({verified} lines of its log), {} served in all",
            number(&status["ledger"]["ledgers"])
        );
        Ok(rows)
    }
}

/// Frames that the program saw on both sides, whatever it did with them. What it passed to the kernel is no feed's: the ends
/// of a veth pair greet each other in IPv6.
fn seen(capture: &Value) -> u64 {
    let rows = capture["xdp"].as_array().map_or(&[][..], Vec::as_slice);
    let frames = rows.iter().filter_map(|row| row["frames"].as_object()).flatten();
    frames
        .filter(|(reason, _)| !["metadata_failed", "passed"].contains(&reason.as_str()))
        .filter_map(|(_, count)| count.as_u64())
        .sum()
}

/// The process's own identities, those of the same kind in one row.
fn tables(capture: &Value) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for identity in capture["conservation"].as_array().map_or(&[][..], Vec::as_slice) {
        let name = identity["name"].as_str().unwrap_or("?").to_string();
        let term = |pair: &Value| (pair[0].as_str().unwrap_or("?").to_string(), pair[1].as_u64().unwrap_or(0));
        let terms = identity["right"].as_array().map_or(&[][..], Vec::as_slice).iter().map(term).collect();
        let row = Row { what: name.clone(), total: term(&identity["left"]), terms };
        match rows.iter_mut().find(|known| known.what == name) {
            Some(known) => known.add(&row),
            None => rows.push(row),
        }
    }
    rows
}

/// An identity: what went in is the sum of what became of it.
struct Row {
    what: String,
    total: (String, u64),
    terms: Vec<(String, u64)>,
}

impl Row {
    fn new<'a>(what: &str, total: (&str, u64), terms: impl IntoIterator<Item = (&'a str, u64)>) -> Row {
        let terms = terms.into_iter().map(|(name, count)| (name.to_string(), count)).collect();
        Row { what: what.to_string(), total: (total.0.to_string(), total.1), terms }
    }

    fn add(&mut self, other: &Row) {
        self.total.1 += other.total.1;
        for (term, (_, count)) in self.terms.iter_mut().zip(&other.terms) {
            term.1 += count;
        }
    }

    fn residue(&self) -> i128 {
        i128::from(self.total.1) - self.terms.iter().map(|(_, count)| i128::from(*count)).sum::<i128>()
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let terms: Vec<String> = self.terms.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let (name, count) = &self.total;
        write!(f, "{:<10} {count:>9} {name} = {}; residue {}", short(&self.what), terms.join(" + "), self.residue())
    }
}

/// The unit of a row, where its name is a whole identity.
fn short(what: &str) -> &str {
    match what {
        "frames" | "records" | "messages" => what,
        what if what.starts_with("redirected") || what.starts_with("received") => "frames",
        _ => "messages",
    }
}

/// Whether the ring is made: its first word comes last.
fn is_ring(path: &str) -> bool {
    let mut magic = [0; 8];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic != [0; 8]
}

/// A cable between the two hosts.
fn join(source: &Namespace, site: &Namespace) -> Result<(), String> {
    let [first, second] = [source, site].map(|space| space.holder.child.id().to_string());
    let make = ["link", "add", "between", "netns", &first, "type", "veth", "peer", "name", "between", "netns", &second];
    shell::run(Command::new("ip").args(make))?;
    for (space, address) in [(source, "10.77.0.1/24"), (site, "10.77.0.2/24")] {
        for words in [["address", "add", address, "dev", "between"].as_slice(), &["link", "set", "between", "up"]] {
            shell::run(space.host(&["ip"]).args(words))?;
        }
    }
    Ok(())
}

/// Frames that the sending ends of both pairs dropped: the receiving end's ring was full.
fn dropped(space: &Namespace) -> Result<u64, String> {
    let mut total = 0;
    for link in ["tx-a", "tx-b"] {
        let told = shell::output(&mut space.host(&["ip", "-s", "-j", "link", "show", link]))?;
        let told: Value = serde_json::from_str(&told).map_err(|error| format!("ip -s -j link show {link}: {error}"))?;
        let count = told[0]["stats64"]["tx"]["dropped"].as_u64();
        total += count.ok_or_else(|| format!("ip -s -j link show {link}: no count of dropped frames"))?;
    }
    Ok(total)
}

impl Namespace {
    /// A namespace with nothing in it but its loopback.
    fn bare(demo: &Demo) -> Result<Namespace, String> {
        demo.say("making a second one for the mirror's host");
        Namespace::make_with("ip link set lo up\necho ready\nexec cat >/dev/null")
    }

    /// A command of the host's own in it.
    fn host(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.holder.child.id().to_string(), "--"]).args(words).stdin(Stdio::null());
        command
    }
}

/// The demo's rings; gone before and after it.
struct Rings;

impl Rings {
    fn fresh() -> Rings {
        Rings::remove();
        Rings
    }

    fn remove() {
        for ring in RINGS {
            let _ = std::fs::remove_file(ring);
        }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        Rings::remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_of_one_kind_are_one_row_and_what_is_missing_shows() {
        let capture = serde_json::json!({"conservation": [
            {"name": "redirected = received + rx_dropped", "left": ["redirected", 10], "right": [["received", 9], ["rx_dropped", 1]]},
            {"name": "redirected = received + rx_dropped", "left": ["redirected", 5], "right": [["received", 4], ["rx_dropped", 0]]},
        ]});
        let rows = tables(&capture);
        assert_eq!((rows.len(), rows[0].residue()), (1, 1));
        assert_eq!(rows[0].to_string(), "frames            15 redirected = received 13 + rx_dropped 1; residue 1");
    }
}
