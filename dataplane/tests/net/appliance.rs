//! The real binary inside a test's namespace: its configuration, its life, its report, and a publisher of segments
//! whose every byte the tests know.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use sluice::sys::nic::Interface;
use sluice::sys::{clock, cpu};

use crate::common::frames::Udp;
use crate::common::netns::Veth;

/// The group and port of every side; `feed generate` uses them too.
pub const GROUP: Ipv4Addr = Ipv4Addr::new(239, 192, 0, 1);
pub const PORT: u16 = 10_378;
/// How long anything that must come may take: far above what it takes, so that only a defect runs into it.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Where the control server listens: each namespace has a loopback of its own.
pub const CONTROL: &str = "127.0.0.1:9480";

/// A program of ours; should this test be killed, it goes too.
pub fn sluice(directory: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", env!("CARGO_BIN_EXE_sluice")]).args(args);
    command.current_dir(directory).stdin(Stdio::null());
    command
}

/// Runs a command of ours to its end.
pub fn output(directory: &Path, args: &[&str]) -> Output {
    sluice(directory, args).output().expect("setpriv (util-linux) is there")
}

/// Runs a command that must end with 0; its standard output.
#[track_caller]
pub fn done(directory: &Path, args: &[&str]) -> String {
    let done = output(directory, args);
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "sluice {}: {}: {told}", args.join(" "), done.status);
    String::from_utf8(done.stdout).expect("text")
}

/// Waits until `look` finds something.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        clock::sleep(Duration::from_millis(10));
    }
}

/// A configuration with one feed and one store "main" in `store`: a side for each interface, further lines by section.
#[derive(Clone)]
pub struct Config<'a> {
    pub sides: Vec<&'a str>,
    pub interface: &'a str,
    pub feed: &'a str,
    pub store: &'a str,
    pub control: &'a str,
    pub groups: Vec<String>,
    /// The arbiter is on the queue's core, and the store alone on the other.
    pub store_alone: bool,
}

impl Default for Config<'_> {
    fn default() -> Self {
        Config {
            sides: Vec::new(),
            interface: "ring = 1024\nframes = 8192\nzero_copy = \"off\"",
            feed: "link = 1024\nhold = \"200ms\"",
            store: "segment = \"8MiB\"",
            control: "",
            groups: vec![format!("{GROUP}:{PORT}")],
            store_alone: false,
        }
    }
}

impl Config<'_> {
    fn text(&self) -> String {
        let cpus = cpu::allowed();
        let (first, last) = (cpus[0], *cpus.last().expect("at least one CPU"));
        let work = if first == last { "rx" } else { "work" };
        let arbiter = if self.store_alone { "rx" } else { work };
        let mut text = format!("[[core]]\nname = \"rx\"\ncpu = {first}\n");
        if first != last {
            text += &format!("[[core]]\nname = \"work\"\ncpu = {last}\n");
        }
        for side in &self.sides {
            text += &format!("[[interface]]\nname = \"{side}\"\ncores = [\"rx\"]\n{}\n", self.interface);
        }
        text += &format!("[[feed]]\nname = \"deep\"\nprotocol = \"iex-tp\"\ncore = \"{arbiter}\"\nstore = \"main\"\n");
        text += &format!("{}\n", self.feed);
        for (name, side) in ["A", "B"].iter().zip(&self.sides) {
            let groups = &self.groups;
            text += &format!("[[feed.side]]\nname = \"{name}\"\ninterface = \"{side}\"\ngroups = {groups:?}\n");
        }
        text += &format!("[[store]]\nname = \"main\"\npath = \"store\"\ncore = \"{work}\"\n{}\n", self.store);
        text + &format!("[control]\n{}\n", self.control)
    }

    /// Writes it into `directory`; its name there.
    pub fn write(&self, directory: &Path) -> &'static str {
        std::fs::write(directory.join("config.toml"), self.text()).expect("writable");
        "config.toml"
    }
}

/// `sluice run`, capturing. Dropped, it is killed.
pub struct Run {
    child: Child,
    directory: PathBuf,
}

impl Run {
    /// Starts it and waits until it captures.
    #[track_caller]
    pub fn start(directory: &Path, config: &Config) -> Run {
        Run::start_in(directory, config, &[("SLUICE_LOG", "info")])
    }

    /// The same with these variables in its environment, and no other of ours.
    #[track_caller]
    pub fn start_in(directory: &Path, config: &Config, variables: &[(&str, &str)]) -> Run {
        let config = config.write(directory);
        let log = std::fs::File::create(directory.join("run.log")).expect("writable");
        let mut command = sluice(directory, &["run", config, "--report", "report.json"]);
        command.env_remove("SLUICE_LOG").envs(variables.iter().copied());
        let child = command.stdout(Stdio::null()).stderr(log).spawn().expect("starts");
        let mut run = Run { child, directory: directory.into() };
        until("the appliance answers", || {
            let ended = run.child.try_wait().expect("a child of ours");
            assert!(ended.is_none(), "it ended ({ended:?}): {}", run.log());
            get("/readyz").ok()
        });
        run
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("run.log")).unwrap_or_default()
    }

    /// Its live status.
    pub fn status(&self) -> Value {
        let body = get("/status").unwrap_or_else(|error| panic!("/status: {error}: {}", self.log()));
        serde_json::from_str(&body).expect("JSON")
    }

    /// Waits until the status, once asked for anew, satisfies `holds`.
    #[track_caller]
    pub fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let status = self.status();
            if holds(&status) {
                return status;
            }
            let told = serde_json::to_string_pretty(&status).expect("JSON");
            assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}: {told}");
            clock::sleep(Duration::from_millis(10));
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("it runs");
    }

    /// Stops it, and waits until each of its threads is: the signal's sender does not.
    pub fn halt(&self) {
        self.signal(Signal::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        until("all of its threads are stopped", || {
            let mut tasks = std::fs::read_dir(&tasks).expect("it runs");
            let stopped = tasks.all(|task| {
                let stat = std::fs::read_to_string(task.expect("a task").path().join("stat")).expect("it runs");
                stat.rsplit_once(')').expect("a name").1.starts_with(" T")
            });
            stopped.then_some(())
        });
    }

    /// Its exit code, if it has ended by itself.
    pub fn ended(&mut self) -> Option<i32> {
        self.child.try_wait().expect("a child of ours").map(|status| status.code().unwrap_or(-1))
    }

    /// Kills it with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("a child of ours");
    }

    /// SIGTERM; it must drain and end with 0. Its report, with every residue 0.
    #[track_caller]
    pub fn stop(self) -> Value {
        self.stop_by(Signal::SIGTERM)
    }

    /// The same by another signal.
    #[track_caller]
    pub fn stop_by(mut self, signal: Signal) -> Value {
        self.signal(signal);
        let status = until("it drains and ends", || self.child.try_wait().expect("a child of ours"));
        let report = std::fs::read_to_string(self.directory.join("report.json")).unwrap_or_default();
        assert!(status.success(), "{status}: {}\n{report}", self.log());
        let report: Value = serde_json::from_str(&report).expect("JSON");
        check_identities(&report);
        report
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One GET from the appliance's control server.
pub fn get(path: &str) -> std::io::Result<String> {
    sluice::cli::stat::get(CONTROL.parse().expect("an address"), path)
}

/// Every row of the conservation table is there and has residue 0.
#[track_caller]
pub fn check_identities(report: &Value) {
    let table = report["capture"]["conservation"].as_array().expect("a table");
    assert!(table.len() >= 5, "frames of each queue, feed, streams: {table:?}");
    let open: Vec<&Value> = table.iter().filter(|row| row["residue"] != 0).collect();
    assert!(open.is_empty(), "residues: {open:#?}");
}

/// (sent) = what the sending end dropped + what the program on the other end saw.
#[track_caller]
pub fn check_sent(report: &Value, veth: &Veth, sent: u64) {
    let dropped = Interface::find(&veth.outside).expect("there").statistics().expect("readable").tx_dropped;
    let of = |rows: &Value| -> Vec<Value> { rows.as_array().expect("rows").clone() };
    let mut seen = 0;
    for queue in of(&report["capture"]["xdp"]).iter().filter(|queue| queue["interface"] == veth.inside.as_str()) {
        let frames = queue["frames"].as_object().expect("counts");
        let exclusive = frames.iter().filter(|(reason, _)| *reason != "metadata_failed");
        seen += exclusive.map(|(_, count)| count.as_u64().expect("a count")).sum::<u64>();
    }
    assert_eq!(sent, dropped + seen, "{}: sent = dropped by the sending end {dropped} + seen {seen}", veth.outside);
}

/// Sum of a counter over the queues of an interface.
pub fn queues(report: &Value, interface: &str, counter: &str) -> u64 {
    let rows = report["capture"]["queues"].as_array().expect("queues");
    let mine = rows.iter().filter(|row| row["source"] == interface);
    mine.map(|row| row[counter].as_u64().unwrap_or_else(|| panic!("{counter} in {row}"))).sum()
}

/// The arbiter's streams.
pub fn streams(report: &Value) -> Vec<Value> {
    report["capture"]["feeds"][0]["report"]["streams"].as_array().cloned().unwrap_or_default()
}

/// A number of a stream's report.
#[track_caller]
pub fn number(stream: &Value, name: &str) -> u64 {
    stream[name].as_u64().unwrap_or_else(|| panic!("{name} in {stream:#}"))
}

/// Messages that came out, late fills included, of all streams.
pub fn emitted(report: &Value) -> u64 {
    streams(report).iter().map(|stream| number(stream, "unique") + number(stream, "late_fill")).sum()
}

/// Ranges as a set of numbers.
pub fn set(ranges: &Value) -> BTreeSet<u64> {
    let pair = |range: &Value| range[0].as_u64().expect("first")..=range[1].as_u64().expect("last");
    ranges.as_array().expect("ranges").iter().flat_map(pair).collect()
}

/// Every message in a store by a re-read: by stream, sequence to body.
#[track_caller]
pub fn stored(directory: &Path, store: &str) -> BTreeMap<String, BTreeMap<u64, Vec<u8>>> {
    read_rows(&done(directory, &["store", "query", store, "--format", "jsonl"]))
}

/// As [`stored`], from the rows of a query.
pub fn read_rows(rows: &str) -> BTreeMap<String, BTreeMap<u64, Vec<u8>>> {
    let mut streams: BTreeMap<String, BTreeMap<u64, Vec<u8>>> = BTreeMap::new();
    for line in rows.lines() {
        let row: Value = serde_json::from_str(line).expect("JSON");
        if row["kind"] != "message" {
            continue;
        }
        let stream = streams.entry(row["stream"].as_str().expect("a key").to_owned()).or_default();
        let sequence = row["sequence"].as_u64().expect("a sequence");
        let twice = stream.insert(sequence, unhex(row["body"].as_str().expect("a body")));
        assert!(twice.is_none(), "message {sequence} is stored twice");
    }
    streams
}

pub fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("text"), 16).expect("hex")).collect()
}

/// Of every stream: gaps = what all sides lost; what a re-read of the store finds and what the store says it lost are
/// disjoint and together exactly what the arbiter gave out.
#[track_caller]
pub fn check_store(report: &Value, directory: &Path) {
    let found = stored(directory, "store");
    let losses = report["stores"][0]["losses"].as_array().expect("losses");
    assert_eq!(report["capture"]["not_handed_to_store"], Value::Array(Vec::new()), "no link to the store was full");
    let mut messages = 0;
    for stream in streams(report) {
        let key = stream["stream"].as_str().expect("a key");
        let gaps = set(&stream["gaps"]);
        let sides = stream["sides"].as_array().expect("sides").iter().map(|side| set(&side["gaps"]));
        let lost_by_all = sides.reduce(|a, b| a.intersection(&b).copied().collect()).unwrap_or_default();
        assert_eq!(gaps, lost_by_all, "{key}: gaps = lost by every side");
        let all: BTreeSet<u64> = (number(&stream, "base")..number(&stream, "frontier")).collect();
        let given_out: BTreeSet<u64> = all.difference(&gaps).copied().collect();
        let stored: BTreeSet<u64> = found.get(key).map(|bodies| bodies.keys().copied().collect()).unwrap_or_default();
        let mine = losses.iter().filter(|loss| loss["stream"] == key);
        let lost: BTreeSet<u64> = mine
            .flat_map(|loss| loss["first"].as_u64().expect("first")..=loss["last"].as_u64().expect("last"))
            .collect();
        assert!(stored.is_disjoint(&lost), "{key}: stored and lost at once");
        let both: BTreeSet<u64> = stored.union(&lost).copied().collect();
        let wrong: Vec<u64> = both.symmetric_difference(&given_out).copied().take(20).collect();
        assert!(wrong.is_empty(), "{key}: stored + lost = given out, but for {wrong:?} …; lost {losses:?}");
        messages += stored.len() as u64;
    }
    assert_eq!(report["stores"][0]["stored"].as_u64(), Some(messages), "the writer's count is what a re-read finds");
}

/// A publisher of IEX-TP DEEP segments, written out by hand from the specification.
pub struct Publisher {
    pub session: u32,
    pub next: u64,
    offset: u64,
    /// Bytes of each message's body, at least 10.
    pub body_bytes: usize,
}

impl Publisher {
    pub fn new(session: u32, body_bytes: usize) -> Publisher {
        Publisher { session, next: 1, offset: 0, body_bytes }
    }

    /// The body of message `sequence`.
    pub fn body(sequence: u64, bytes: usize) -> Vec<u8> {
        let mut body = vec![0x38, 0];
        body.extend_from_slice(&sequence.to_le_bytes());
        body.resize(bytes, sequence as u8);
        body
    }

    /// The next segment of `count` messages, as a UDP payload.
    pub fn segment(&mut self, count: u16) -> Vec<u8> {
        let mut block = Vec::new();
        for sequence in self.next..self.next + u64::from(count) {
            block.extend_from_slice(&(self.body_bytes as u16).to_le_bytes());
            block.extend_from_slice(&Publisher::body(sequence, self.body_bytes));
        }
        let mut payload = vec![1, 0];
        payload.extend_from_slice(&0x8004_u16.to_le_bytes());
        payload.extend_from_slice(&1_u32.to_le_bytes());
        payload.extend_from_slice(&self.session.to_le_bytes());
        payload.extend_from_slice(&(block.len() as u16).to_le_bytes());
        payload.extend_from_slice(&count.to_le_bytes());
        payload.extend_from_slice(&self.offset.to_le_bytes());
        payload.extend_from_slice(&self.next.to_le_bytes());
        payload.extend_from_slice(&clock::utc_ns().to_le_bytes());
        payload.extend_from_slice(&block);
        self.next += u64::from(count);
        self.offset += block.len() as u64;
        payload
    }

    /// The next segment as a frame to the group.
    pub fn frame(&mut self, count: u16) -> Vec<u8> {
        Udp::to(GROUP, PORT, &self.segment(count)).frame()
    }
}

/// A `sluice feed play` under way.
pub struct Player(Child);

impl Player {
    pub fn start(directory: &Path, file: &str, interface: &str, pace: &[&str]) -> Player {
        let args = [&["feed", "play", file, "--interface", interface, "--json"], pace].concat();
        let mut command = sluice(directory, &args);
        Player(command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("starts"))
    }

    /// Waits for its end; frames sent.
    #[track_caller]
    pub fn sent(mut self) -> u64 {
        let mut told = String::new();
        self.0.stdout.take().expect("piped").read_to_string(&mut told).expect("text");
        let status = self.0.wait().expect("a child of ours");
        assert!(status.success(), "{status}: {told}");
        let report: Value = serde_json::from_str(&told).expect("JSON");
        report["sent"].as_u64().expect("a count")
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until no XDP program is on the interface.
#[track_caller]
pub fn detached(interface: &str) {
    until("nothing is attached", || Interface::find(interface).expect("there").xdp.is_none().then_some(()));
}

/// A temporary directory.
pub fn workspace() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}
