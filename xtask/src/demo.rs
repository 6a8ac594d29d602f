//! `cargo xtask demo`: the whole pipeline once, on this machine, with a report.
//!
//! As root: a network namespace with two veth pairs, `sluice run config/demo.toml` on them, a generated session played
//! into both sides with seeded loss. Without root: the same workers over the same two captures as files.

mod all;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::shell;

/// Messages of the generated session.
const MESSAGES: &str = "200k";
/// Its packets a second while it trades, in the session's own time: slow, because it is played faster.
const SESSION_RATE: &str = "1500";
/// How many times faster than its own time the session is played.
const SPEED: &str = "12";
/// When side B is silent, in the session's own time: longer than the side timeout as it is played.
const SILENCE: &str = "20s..90s";
/// The session's idle stretches are played this short (in its own time).
const SILENCE_MAX: &str = "200ms";
/// How long the run may take to come up, and to drain.
const PATIENCE: Duration = Duration::from_secs(20);

/// Arguments of `cargo xtask demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Play this capture (IEX DEEP or TOPS; pcap or pcapng, plain, gzip or zstd) in place of a generated session.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// How many times faster than its own time the capture is played [default: 12; with --pcap 1].
    #[arg(long, value_name = "X")]
    speed: Option<f64>,
    /// Seed of the session, the losses and the jitter.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run from files even as root.
    #[arg(long)]
    files: bool,
    /// Every job in one process: capture, store, ring, serve and ledgers, with a mirror and a follower on a second host (as root).
    #[arg(long, conflicts_with_all = ["pcap", "files"])]
    all: bool,
}

/// Runs the task.
pub fn run(args: Args) -> Result<(), String> {
    if args.all && !shell::is_root() {
        return Err("--all makes two network namespaces and captures between them: run it as root".into());
    }
    crate::setup::ensure()?;
    let sluice = build()?;
    let folder = shell::root().join("target/demo");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let demo = Demo { sluice, folder, started: Instant::now() };
    let source = match &args.pcap {
        Some(file) => std::fs::canonicalize(file).map_err(|error| format!("--pcap {}: {error}", file.display()))?,
        None => demo.generate(args.seed)?,
    };
    demo.split(&source, args.seed, args.pcap.is_none())?;
    if args.all {
        return demo.all(&args.speed.map_or_else(|| SPEED.into(), |x| x.to_string()), SILENCE_MAX);
    }
    if shell::is_root() && !args.files {
        let speed =
            args.speed.map_or_else(|| if args.pcap.is_some() { "1".into() } else { SPEED.into() }, |x| x.to_string());
        demo.live(&speed, args.pcap.is_none())?;
    } else {
        demo.run_files()?;
    }
    demo.judge()
}

fn build() -> Result<PathBuf, String> {
    shell::run(&mut shell::cargo(&["build", "--release", "-p", "sluice"]))?;
    Ok(shell::target_folder().join("release/sluice"))
}

struct Demo {
    sluice: PathBuf,
    folder: PathBuf,
    started: Instant,
}

impl Demo {
    fn say(&self, what: &str) {
        println!("[{:5.1} s] {what}", self.started.elapsed().as_secs_f64());
    }

    fn sluice(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.sluice);
        command.current_dir(&self.folder).args(args).env("SLUICE_LOG", "warn");
        command
    }

    fn generate(&self, seed: u64) -> Result<PathBuf, String> {
        self.say(&format!("generating an IEX DEEP session: {MESSAGES} messages, one restart inside it"));
        let seed = seed.to_string();
        let args = ["feed", "generate", "--protocol", "deep", "--messages", MESSAGES, "--restarts", "1", "--rate"];
        let mut command = self.sluice(&args);
        command.args([SESSION_RATE, "--seed", &seed, "--out", "session.pcapng"]);
        print!("          {}", shell::output(&mut command)?);
        Ok(self.folder.join("session.pcapng"))
    }

    fn split(&self, source: &Path, seed: u64, silence: bool) -> Result<(), String> {
        let seed = seed.to_string();
        let what = if silence { format!(", B silent for {SILENCE} of the session's time") } else { String::new() };
        self.say(&format!("fanning it out into A and B: 2 % loss a side, independent, with jitter{what}"));
        let mut command = self.sluice(&["feed", "split"]);
        command.arg(source);
        command.args(["--out-dir", ".", "--loss-a", "0.02", "--loss-b", "0.02", "--delay-b", "300us"]);
        command.args(["--jitter-a", "200us", "--jitter-b", "200us", "--seed", &seed]);
        if silence {
            command.args(["--silence-b", SILENCE]);
        }
        shell::output(&mut command).map(drop)
    }

    /// Root: AF_XDP on veth pairs in a namespace of its own.
    fn live(&self, speed: &str, own: bool) -> Result<(), String> {
        let space = Namespace::make(self)?;
        let config = self.live_config(own)?;
        self.say(&format!("starting: sluice run {config}, on two veth pairs with two queues each"));
        let mut run = space.start(self, &["run", &config, "--report", "report.json"], "run.log")?;
        let ready = self.wait_ready(&space, &mut run);
        if let Err(error) = ready {
            run.end();
            return Err(format!("{error}\n{}", self.log("run.log")));
        }
        self.say(&format!("playing both sides at {speed} times their own pace"));
        let interfaces = ["--interface", "tx-a", "--interface", "tx-b"];
        let mut args = vec!["feed", "play", "a.pcap", "b.pcap", "--speed", speed, "--silence-max", SILENCE_MAX];
        args.extend(interfaces);
        let mut player = space.start(self, &args, "play.log")?;
        let status = player.child.wait().map_err(|error| error.to_string())?;
        let log = self.log("play.log");
        if !status.success() {
            return Err(format!("the player failed: {log}"));
        }
        println!("          {}", log.lines().last().unwrap_or(""));
        // What is held waits at most for the configuration's hold.
        std::thread::sleep(Duration::from_secs(1));
        self.say("stopping it with SIGTERM");
        run.terminate();
        let status = run.wait(PATIENCE)?;
        if !status.success() {
            return Err(format!("sluice run failed ({status}):\n{}", self.log("run.log")));
        }
        drop(space);
        Ok(())
    }

    /// config/demo.toml as it stands for the demo's own session; with the capture's groups for a capture.
    fn live_config(&self, own: bool) -> Result<String, String> {
        let path = shell::root().join("config/demo.toml");
        if own {
            return Ok(path.to_string_lossy().into_owned());
        }
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut config: toml::Table = text.parse().map_err(|error| format!("{}: {error}", path.display()))?;
        let truth = self.json("truth.json")?;
        let groups = truth["destinations"].as_array().filter(|groups| !groups.is_empty());
        let groups = groups.ok_or("the capture holds no segment of an IEX feed")?;
        let groups: Vec<toml::Value> = groups.iter().filter_map(|group| Some(group.as_str()?.into())).collect();
        for feed in config.get_mut("feed").and_then(|feeds| feeds.as_array_mut()).into_iter().flatten() {
            for side in feed.get_mut("side").and_then(|sides| sides.as_array_mut()).into_iter().flatten() {
                if let Some(side) = side.as_table_mut() {
                    side.insert("groups".into(), groups.clone().into());
                }
            }
        }
        let text = toml::to_string(&config).map_err(|error| error.to_string())?;
        std::fs::write(self.folder.join("pcap.toml"), text).map_err(|error| format!("pcap.toml: {error}"))?;
        Ok("pcap.toml".into())
    }

    fn wait_ready(&self, space: &Namespace, run: &mut Running) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Ok(Some(status)) = run.child.try_wait() {
                return Err(format!("sluice run ended early ({status})"));
            }
            let mut stat = space.command(self, &["stat", "--ready"]);
            if shell::succeeds(&mut stat) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(format!("sluice run did not answer within {PATIENCE:?}"))
    }

    /// No root: the same workers, fed from the two captures as files.
    fn run_files(&self) -> Result<(), String> {
        self.say("no root (or --files): the same arbiter and store, fed from the two captures as files");
        println!(
            "          root would add: the XDP program, AF_XDP sockets on two veth pairs, real time, a silent side timing out"
        );
        let config = self.file_config()?;
        std::fs::write(self.folder.join("files.toml"), config).map_err(|error| format!("files.toml: {error}"))?;
        let mut command = self.sluice(&["run", "files.toml", "--report", "report.json"]);
        shell::output(&mut command).map(drop)
    }

    /// config/demo.toml with files in place of interfaces, and a control port that anybody may have.
    fn file_config(&self) -> Result<String, String> {
        let path = shell::root().join("config/demo.toml");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut config: toml::Table = text.parse().map_err(|error| format!("{}: {error}", path.display()))?;
        config.remove("interface");
        let feeds =
            config.get_mut("feed").and_then(|feeds| feeds.as_array_mut()).ok_or("config/demo.toml has no feed")?;
        for feed in feeds.iter_mut().filter_map(|feed| feed.as_table_mut()) {
            let sides = feed.get_mut("side").and_then(|sides| sides.as_array_mut()).ok_or("a feed has no side")?;
            for (side, file) in sides.iter_mut().filter_map(|side| side.as_table_mut()).zip(["a.pcap", "b.pcap"]) {
                side.remove("interface");
                side.insert("source".into(), "file".into());
                side.insert("file".into(), file.into());
                side.insert("core".into(), "rx".into());
                side.remove("groups");
            }
        }
        config.insert("control".into(), toml::Table::from_iter([("listen".to_string(), "127.0.0.1:0".into())]).into());
        toml::to_string(&config).map_err(|error| error.to_string())
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.join(name)).unwrap_or_default()
    }

    fn json(&self, name: &str) -> Result<Value, String> {
        let path = self.folder.join(name);
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The report, and the comparison with the truth.
    fn judge(&self) -> Result<(), String> {
        let (status, truth) = (self.json("report.json")?, self.json("truth.json")?);
        println!();
        print!("{}", shell::output(&mut self.sluice(&["stat", "--from", "report.json"]))?);
        println!();
        let faults = compare(&status, &truth);
        self.verdict(&status, faults, "the truth file matches, the residue is 0")
    }

    /// Adds what the books and the store say to the differences found so far; `good` is said where there is none.
    fn verdict(&self, status: &Value, mut faults: Vec<String>, good: &str) -> Result<(), String> {
        let residue = status["capture"]["residue"].as_u64();
        if residue != Some(0) {
            faults.push(format!("the conservation table's residue is {residue:?}"));
        }
        self.store(status, &mut faults)?;
        self.say(&format!("the whole run is in {}", self.folder.display()));
        if faults.is_empty() {
            println!("{good}");
            return Ok(());
        }
        Err(format!("the demo found differences:\n  {}", faults.join("\n  ")))
    }

    fn store(&self, status: &Value, faults: &mut Vec<String>) -> Result<(), String> {
        let stored = status["stores"][0]["stored"].as_u64().unwrap_or(0);
        let verify = self.sluice(&["store", "verify", "store"]).output().map_err(|error| error.to_string())?;
        print!("store verify: {}", String::from_utf8_lossy(&verify.stdout));
        if !verify.status.success() {
            faults.push(format!("store verify failed: {}", String::from_utf8_lossy(&verify.stderr)));
        }
        let info: Value =
            serde_json::from_str(&shell::output(&mut self.sluice(&["store", "info", "store", "--json"]))?)
                .map_err(|error| format!("store info: {error}"))?;
        let segments = info["segments"].as_array().map_or(&[][..], Vec::as_slice);
        let bytes: u64 = segments.iter().filter_map(|segment| segment["bytes"].as_u64()).sum();
        let read: u64 = info["streams"]
            .as_array()
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .filter_map(|s| s["data_records"].as_u64())
            .sum();
        println!(
            "store: {} segments, {bytes} bytes, {read} messages by a re-read ({stored} by the writer)",
            segments.len()
        );
        if read != stored {
            faults.push(format!("the store says {stored} messages, a re-read finds {read}"));
        }
        let Some(stream) = info["streams"][0]["key"].as_str() else { return Ok(()) };
        let middle = info["streams"][0]["last_sequence"].as_u64().unwrap_or(2) / 2;
        self.query(&["--stream", stream, "--sequence", &format!("{middle}..{}", middle + 99)])?;
        let at = self.captured_at(stream, middle)?;
        self.query(&["--time", &format!("{at}..{}", at + 10_000_000)])
    }

    /// When a message was captured, by the store.
    fn captured_at(&self, stream: &str, sequence: u64) -> Result<i64, String> {
        let mut command =
            self.sluice(&["store", "query", "store", "--format", "jsonl", "--stream", stream, "--limit", "1"]);
        let line = shell::output(command.args(["--sequence", &sequence.to_string()]))?;
        let record: Value = serde_json::from_str(line.trim()).map_err(|error| format!("store query: {error}"))?;
        record["capture_ns"].as_i64().ok_or_else(|| "store query: a record without capture_ns".into())
    }

    fn query(&self, select: &[&str]) -> Result<(), String> {
        let mut command = self.sluice(&["store", "query", "store", "--stats", "--limit", "100"]);
        let output = command.args(select).output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!("store query {}: {}", select.join(" "), String::from_utf8_lossy(&output.stderr)));
        }
        let rows = String::from_utf8_lossy(&output.stdout).lines().count().saturating_sub(1);
        println!("query {}: {rows} records; {}", select.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }
}

/// Residual gaps and message counts of every stream against the truth.
fn compare(status: &Value, truth: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let empty = Vec::new();
    let streams = status["capture"]["feeds"][0]["report"]["streams"].as_array().unwrap_or(&empty);
    let expected = truth["streams"].as_array().unwrap_or(&empty);
    let (mut emitted, mut wanted, mut recovered) = (0, 0, 0);
    for stream in expected.iter().filter(|stream| stream["arrived"] == true) {
        let name = format!("session {} run {}", stream["session"], stream["run"]);
        let session = stream["session"].as_str().unwrap_or("?");
        let found = streams
            .iter()
            .find(|s| s["run"] == stream["run"] && s["stream"].as_str().is_some_and(|key| key.contains(session)));
        let Some(found) = found else {
            faults.push(format!("{name}: the arbiter has no such stream"));
            continue;
        };
        // Before its base and behind its frontier the arbiter can know of nothing: a loss there is no gap.
        let (base, frontier) = (found["base"].as_u64().unwrap_or(0), found["frontier"].as_u64().unwrap_or(0));
        let residual = clip(&ranges(&stream["residual"]), base, frontier);
        let gaps = ranges(&found["gaps"]);
        if residual != gaps {
            faults.push(format!("{name}: lost on both sides by the truth {residual:?}, by the arbiter {gaps:?}"));
        }
        let lost: u64 = ranges(&stream["residual"]).iter().map(|(first, last)| last - first + 1).sum();
        let unique = found["unique"].as_u64().unwrap_or(0) + found["late_fill"].as_u64().unwrap_or(0);
        let messages = stream["messages"].as_u64().unwrap_or(0);
        emitted += unique;
        wanted += messages - lost;
        if unique != messages - lost {
            faults
                .push(format!("{name}: {messages} messages, {lost} of them lost on both sides, but {unique} came out"));
        }
        let sides = found["sides"].as_array().unwrap_or(&empty);
        recovered += sides.iter().filter_map(|side| side["recovered"].as_u64()).sum::<u64>();
    }
    println!("messages emitted: {emitted}, by the truth {wanted}; recovered from the other side: {recovered}");
    faults
}

fn ranges(value: &Value) -> Vec<(u64, u64)> {
    let pair = |range: &Value| Some((range[0].as_u64()?, range[1].as_u64()?));
    value.as_array().map_or_else(Vec::new, |ranges| ranges.iter().filter_map(pair).collect())
}

fn clip(ranges: &[(u64, u64)], base: u64, frontier: u64) -> Vec<(u64, u64)> {
    let clipped = ranges.iter().map(|&(first, last)| (first.max(base), last.min(frontier.saturating_sub(1))));
    clipped.filter(|(first, last)| first <= last).collect()
}

/// A started process. Dropped, it is ended, so that nothing outlives the demo.
struct Running {
    child: Child,
}

impl Running {
    fn terminate(&mut self) {
        let pid = self.child.id().to_string();
        shell::succeeds(Command::new("kill").args(["-TERM", &pid]));
    }

    fn wait(&mut self, bound: Duration) -> Result<std::process::ExitStatus, String> {
        let end = Instant::now() + bound;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.end();
        Err(format!("a process did not end within {bound:?}"))
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.end();
        }
    }
}

/// The demo's network namespace. It goes with the last process that lives in it: a holder whose input is this
/// program's pipe ends when this program does, however that comes about (Ctrl-C, a kill), and takes the namespace,
/// its links and its XDP programs with it.
struct Namespace {
    holder: Running,
}

/// Makes both pairs; inside `unshare --net` it runs as the holder's shell, then waits for its input to close.
const MAKE: &str = "set -e
ip link set lo up
for side in a b; do
  ip link add tx-$side numrxqueues 2 numtxqueues 2 type veth peer name sluice-$side numrxqueues 2 numtxqueues 2
  ip link set tx-$side up
  ip link set sluice-$side up
done
echo ready
exec cat >/dev/null";

impl Namespace {
    fn make(demo: &Demo) -> Result<Namespace, String> {
        demo.say("making a network namespace with two veth pairs");
        Namespace::make_with(MAKE)
    }

    fn make_with(script: &str) -> Result<Namespace, String> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot start unshare (util-linux): {error}"))?;
        let mut line = String::new();
        let stdout = child.stdout.take().ok_or("no pipe from unshare")?;
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)
            .map_err(|error| error.to_string())?;
        let space = Namespace { holder: Running { child } };
        if line.trim() == "ready" {
            return Ok(space);
        }
        Err("the network namespace could not be made: see the error above".into())
    }

    fn command(&self, demo: &Demo, args: &[&str]) -> Command {
        let pid = self.holder.child.id().to_string();
        let mut command = Command::new("nsenter");
        // Should this program be killed, what it started in the namespace goes with it.
        command.args(["--net", "--target", &pid, "--", "setpriv", "--pdeathsig", "KILL", "--"]);
        command.arg(&demo.sluice).args(args);
        command.current_dir(&demo.folder).env("SLUICE_LOG", "info");
        command
    }

    fn start(&self, demo: &Demo, args: &[&str], log: &str) -> Result<Running, String> {
        let file = std::fs::File::create(demo.folder.join(log)).map_err(|error| format!("{log}: {error}"))?;
        let again = file.try_clone().map_err(|error| format!("{log}: {error}"))?;
        let mut command = self.command(demo, args);
        command.stdin(Stdio::null()).stdout(file).stderr(again);
        let child = command.spawn().map_err(|error| format!("cannot start \"{}\": {error}", shell::shown(&command)))?;
        Ok(Running { child })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_difference_from_the_truth_is_found() {
        let truth =
            json!({"streams": [{"session": "0x1", "run": 0, "arrived": true, "messages": 10, "residual": [[3, 4]]}]});
        let status = |gaps: Value, unique: u64| {
            json!({"capture": {"feeds": [{"report": {"streams": [{"stream": "iex-tp/0x8004/1/0x1/r0", "run": 0, "base": 1,
                "frontier": 11, "gaps": gaps, "unique": unique, "late_fill": 0, "sides": []}]}}]}})
        };
        assert_eq!(compare(&status(json!([[3, 4]]), 8), &truth), Vec::<String>::new());
        assert_eq!(compare(&status(json!([[3, 5]]), 8), &truth).len(), 1);
        assert_eq!(compare(&status(json!([[3, 4]]), 9), &truth).len(), 1);
        assert_eq!(compare(&json!({}), &truth).len(), 1);
    }
}
