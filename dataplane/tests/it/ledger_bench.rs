//! `sluice ledger bench` as a user types it: small runs of each mode, gates, rows, and what it refuses.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use sluice::ledger::rpc::mark;
use sluice::ledger::synthetic::{self, Shape};

use crate::common::ledger_server::LedgerServer;

/// A run of a few small ledgers takes a fraction of a second; what takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn command(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["ledger", "bench"]).args(args.split_whitespace());
    command
}

/// Runs to the end, which must come in time.
fn run(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let end = Instant::now() + PATIENCE;
    while child.try_wait().expect("waits").is_none() {
        if Instant::now() > end {
            child.kill().expect("runs");
            let output = child.wait_with_output().expect("ends");
            panic!("{command:?} does not end: {output:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("ends")
}

fn bench(args: &str) -> Output {
    run(&mut command(args))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The row of a summary that begins with `name`.
fn row(summary: &str, name: &str) -> String {
    let found = summary.lines().find_map(|line| line.strip_prefix(name));
    found.unwrap_or_else(|| panic!("no row {name:?} in\n{summary}")).trim().to_string()
}

/// Folders that runs left among the temporary files.
fn left_behind(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).expect("readable");
    names.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_starts() {
    for (args, part) in [
        ("stray", "unexpected argument 'stray'"),
        ("--mode elsewhere", "invalid value 'elsewhere' for '--mode"),
        ("--chunk-size 4095", "--chunk-size 4095: a chunk has 4096 to 8388608 bytes"),
        ("--chunk-size 8388609", "--chunk-size 8388609"),
        ("--tail-size 1", "--tail-size 1"),
        ("--synthetic-size 0", "at least 1 byte"),
        ("--synthetic-size 268435457", "--synthetic-size 268435457: a ledger has at most 268435456 bytes"),
        ("--synthetic-size -1", "unexpected argument '-1'"),
        ("--emit-window -5ms", "unexpected argument '-5'"),
        ("--emit-window=-5ms", "is not a duration"),
        ("--emit-window 11ms", "--emit-window 11ms is longer than --synthetic-interval 10ms"),
        ("--count 0", "--count 0: a run has at least 1 ledger"),
        ("--count 4294967295", "--count 4294967295"),
        ("--subscribers 0", "--subscribers 0: 1 to 1000"),
        ("--start 5", "--start and --end belong to the other modes"),
        ("--core-config true", "belongs to --mode local and --mode localtap"),
        ("--pipe-cmd true --verify", "a command's ledgers are only streamed"),
        ("--replay --baseline whole", "--replay and --baseline"),
        ("--baseline whole --compress", "--baseline whole sends ledgers as they are"),
        ("--mode remote --start 9 --end 4", "end 4 is before start 9"),
        ("--mode remote --start 4294967295", "is not streamable"),
        ("--mode remote --end 4294967295", "is not streamable"),
        ("--mode remote --link 5gbit", "--link belongs to --mode loopback"),
        ("--mode remote --stamp peer", "--stamp peer belongs to --mode loopback"),
        ("--mode remote --pipe-cmd true", "belong to --mode local and --mode localtap"),
        ("--mode remote --url nowhere", "nowhere"),
        ("--mode local", "--mode local needs --pipe-cmd COMMAND"),
        ("--mode localtap", "--mode localtap needs --pipe-cmd COMMAND"),
        ("--mode local --core-config x.cfg", "--core-config needs --start"),
        ("--mode local --core-config x.cfg --start 3", "--history-archive-urls"),
        ("--mode local --pipe-cmd true --core-config x.cfg", "one of them"),
        ("--mode local --pipe-cmd true --verify", "--verify"),
        ("--mode local --pipe-cmd true --pipe-size 0", "--pipe-size 0"),
        ("--link fast", "5gbit, 500mbit or 800kbit"),
        ("--gate p99", "\"p99\" is no gate"),
        ("--gate wire:p99=1ms", "delivery, emit, pipeline"),
        ("--spin always", "write open or never"),
        ("--compress=maybe", "write true, false or auto"),
        ("--file-dir nowhere", "--file-dir nowhere"),
        ("--client-cpu 100000", "--client-cpu 100000"),
    ] {
        let output = bench(args);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args}: {told}");
        assert!(told.contains(part), "{args}: {told}");
        assert!(output.stdout.is_empty(), "{args}");
    }
}

#[test]
fn a_loopback_run_has_every_ledger_stamped_and_no_fallback() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = folder.path().join("rows.csv");
    let temporary = folder.path().join("tmp");
    std::fs::create_dir(&temporary).expect("made");
    let output = run(command("--count 8 --verify --cpu --emit-window 2ms --csv").arg(&rows).env("TMPDIR", &temporary));
    let summary = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{summary}{}", text(&output.stderr));
    assert_eq!(row(&summary, "ledgers "), "8 (1 to 8)");
    assert_eq!(row(&summary, "checksum failures "), "0");
    assert_eq!(row(&summary, "verified "), "8 ledgers are byte for byte what was sent");
    assert_eq!(
        row(&summary, "fallbacks "),
        "0 partial deliveries dropped; 0 chunks sent raw because encoding was behind"
    );
    assert_eq!(row(&summary, "replays "), "0 ledgers came from retention");
    assert!(row(&summary, "cpu per ledger ").starts_with("both ends "), "{summary}");
    for name in ["delivery ", "t_emit ", "pipeline ", "pipeline - window ", "inter-arrival "] {
        assert_eq!(row(&summary, name).matches(" ms").count(), 4, "{summary}");
    }
    let csv = std::fs::read_to_string(&rows).expect("written");
    let mut lines = csv.lines();
    let header =
        "sequence,bytes,chunks,since_start_ns,inter_arrival_ns,emit_ns,delivery_ns,pipeline_ns,discarded_partials";
    assert_eq!(lines.next(), Some(header));
    for (line, sequence) in lines.by_ref().zip(1..=8) {
        let fields: Vec<i64> = line.split(',').map(|field| field.parse().expect("every field is there")).collect();
        let [number, bytes, chunks, since_start, gap, emit, delivery, pipeline, discarded] = fields[..] else {
            panic!("{line}")
        };
        assert_eq!((number, bytes, discarded), (sequence, 204_800, 0), "{line}");
        assert!(chunks >= 1 && since_start > 0 && emit >= 1_000_000, "{line}");
        assert_eq!(pipeline, emit + delivery, "{line}");
        assert_eq!(gap == 0, sequence == 1, "{line}");
    }
    assert_eq!(lines.next(), None);
    assert_eq!(left_behind(&temporary), Vec::<String>::new(), "what was retained goes with the run");
}

#[test]
fn gates_are_met_or_missed_and_the_exit_says_so() {
    let output = bench("--count 4 --emit-window 1ms --gate p99=20s,max=20s --gate over:p50=20s");
    let summary = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{summary}{}", text(&output.stderr));
    assert_eq!(summary.matches(", met\n").count(), 3, "{summary}");
    assert!(summary.ends_with("passed\n"), "{summary}");
    // No pipeline is shorter than its window.
    let output = bench("--count 4 --emit-window 5ms --gate p99=20s,pipeline:p50=1ms");
    let summary = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{summary}{}", text(&output.stderr));
    assert!(summary.contains("gate pipeline p50 at most 1.000 ms: ") && summary.contains(", MISSED\n"), "{summary}");
    assert!(summary.ends_with("FAILED\n"), "{summary}");
}

#[test]
fn compressible_ledgers_are_packed_and_verified() {
    let output = bench("--count 3 --compress --verify --json --synthetic-size 1MiB --emit-window 4ms");
    let json = json(&output);
    assert_eq!(output.status.code(), Some(0), "{json} {}", text(&output.stderr));
    assert_eq!((&json["count"], &json["verified"], &json["replays"]), (&3.into(), &3.into(), &0.into()));
    assert!(json["packed_bytes"].as_u64().expect("a number") < json["bytes"].as_u64().expect("a number") / 4, "{json}");
}

#[test]
fn a_whole_ledger_is_sent_after_its_last_byte() {
    let output =
        bench("--count 3 --baseline whole --json --synthetic-size 4MiB --emit-window 20ms --synthetic-interval 60ms");
    let json = json(&output);
    assert_eq!(output.status.code(), Some(0), "{json} {}", text(&output.stderr));
    assert_eq!((&json["count"], &json["delivery"]["samples"]), (&3.into(), &3.into()));
    let output = bench("--count 3 --stamp peer --json --compress --emit-window 2ms");
    assert_eq!((&self::json(&output)["count"], output.status.code()), (&3.into(), Some(0)));
}

#[test]
fn a_crowd_gets_every_ledger_live() {
    let output = bench("--count 4 --subscribers 5 --json --emit-window 5ms --synthetic-interval 50ms --spin never");
    let json = json(&output);
    assert_eq!(output.status.code(), Some(0), "{json} {}", text(&output.stderr));
    assert_eq!((&json["subscribers"], &json["last"]["samples"]), (&5.into(), &4.into()), "{json}");
}

#[test]
fn a_replay_comes_from_retention_and_passes_no_gate() {
    let output = bench("--count 5 --replay --verify --gate p99=1s --emit-window 0ms");
    let summary = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{summary}{}", text(&output.stderr));
    let all = "5 ledgers came from retention; without stamps, so in no row of delivery, t_emit or pipeline";
    assert_eq!(row(&summary, "replays "), all);
    assert!(summary.contains("gate no replays in the window: 5, MISSED\n"), "{summary}");
}

#[test]
fn ledgers_of_a_directory_are_sent_and_verified() {
    let folder = tempfile::tempdir().expect("a folder");
    for (sequence, bytes) in [(70_u32, 5_000), (71, 300_000)] {
        let mut ledger = vec![0; bytes];
        synthetic::write(sequence, Shape::Noise, &mut ledger);
        std::fs::write(folder.path().join(format!("ledger-{sequence}.xdr")), ledger).expect("written");
    }
    let output = run(command("--count 5 --verify --json --emit-window 1ms --file-dir").arg(folder.path()));
    let json = json(&output);
    assert_eq!(output.status.code(), Some(0), "{json} {}", text(&output.stderr));
    assert_eq!((&json["verified"], &json["bytes"]), (&5.into(), &(3 * 5_000 + 2 * 300_000).into()), "{json}");
}

/// A meta stream: headers as a ledger node of protocol 19 writes them (version 0, no upgrades), then zeros.
fn meta_stream(ledgers: &[(u32, usize)]) -> Vec<u8> {
    let mut stream = Vec::new();
    for &(sequence, bytes) in ledgers {
        // Version; hash, header version, three hashes and the close time; upgrades and their kind; hashes; the sequence.
        let words = [vec![0_u32], vec![7; 27], vec![0, 0], vec![8; 16], vec![sequence]].concat();
        let mut meta: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
        meta.resize(bytes, 0);
        stream.extend(mark(meta.len()));
        stream.extend(meta);
    }
    stream
}

#[test]
fn a_pipe_is_measured_whole_and_tapped() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("metas.xdr");
    std::fs::write(&file, meta_stream(&[(9, 3_000), (10, 200_000), (11, 1_500_000)])).expect("written");
    for (mode, tapped) in [("local", false), ("localtap", true)] {
        let rows = folder.path().join(format!("{mode}.csv"));
        let mut command = command(&format!("--mode {mode} --csv {}", rows.display()));
        let output = run(command.args(["--pipe-cmd", &format!("cat {} >&3", file.display())]));
        let summary = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{summary}{}", text(&output.stderr));
        assert_eq!(row(&summary, "ledgers "), "3 (9 to 11)", "{mode}");
        assert!(row(&summary, "delivery ").starts_with("not measured: "), "{summary}");
        assert_eq!(!row(&summary, "t_emit ").starts_with("not measured"), tapped, "{summary}");
        let csv = std::fs::read_to_string(&rows).expect("written");
        let last: Vec<&str> = csv.lines().last().expect("rows").split(',').collect();
        assert_eq!((last[0], last[2], last[6], last[7], last[8]), ("11", "0", "", "", "0"), "{csv}");
        assert_eq!(!last[5].is_empty(), tapped, "{csv}");
    }
    // A command that fails is no run that ended.
    let mut failing = command("--mode local");
    let output = run(failing.args(["--pipe-cmd", &format!("cat {} >&3; exit 7", file.display())]));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stdout).contains("ledgers            3 (9 to 11)"), "what came is told all the same");
    assert!(text(&output.stderr).contains('7'), "{output:?}");
    // Enough is enough: the command is ended.
    let output =
        run(command("--mode localtap --count 1 --pipe-cmd").arg(format!("cat {} >&3; sleep 600", file.display())));
    assert_eq!((output.status.code(), row(&text(&output.stdout), "ledgers ")), (Some(0), "1 (9 to 9)".into()));
}

#[test]
fn an_interrupt_ends_a_run_with_its_summary() {
    let mut command = command("--count 100000 --emit-window 1ms");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    std::thread::sleep(Duration::from_millis(700));
    let interrupted = Instant::now();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGINT)
        .expect("it runs");
    let output = child.wait_with_output().expect("ends");
    assert!(interrupted.elapsed() < PATIENCE);
    let summary = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{summary}{}", text(&output.stderr));
    assert_eq!(row(&summary, "ended early "), "interrupted");
    // On a busy machine it may not have come to its second ledger yet.
    row(&summary, "inter-arrival ");
}

#[test]
fn a_remote_run_measures_whoever_serves() {
    let server = LedgerServer::start();
    let ledger = |sequence: u32| {
        let mut bytes = vec![0; 30_000];
        synthetic::write(sequence, Shape::Compressible, &mut bytes);
        bytes
    };
    for sequence in 1..=2 {
        server.publisher().ledger(sequence, &ledger(sequence));
    }
    let url = server.url();
    let mut command =
        command(&format!("--mode remote --url {url} --start 1 --count 5 --verify --remote-compressible --json"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let end = Instant::now() + PATIENCE;
    for sequence in 3.. {
        if child.try_wait().expect("waits").is_some() || Instant::now() > end {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        server.publisher().ledger(sequence, &ledger(sequence));
    }
    let _ = child.kill();
    let output = child.wait_with_output().expect("ended");
    let json = json(&output);
    assert_eq!(output.status.code(), Some(0), "{json} {}", text(&output.stderr));
    assert_eq!((&json["count"], &json["verified"], &json["mode"]), (&5.into(), &5.into(), &"remote".into()), "{json}");
    assert!(json["replays"].as_u64() >= Some(2), "what was there before: {json}");
    // What was asked to be made again is noise: nothing of it is equal, and the run says so.
    let output = bench(&format!("--mode remote --url {url} --start 1 --count 5 --verify"));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let differs = "ledger 1 differs from what was sent: byte ";
    assert!(text(&output.stderr).contains(differs) && row(&text(&output.stdout), "ended early ").contains(differs));
    // Nobody there.
    drop(server);
    let output = bench(&format!("--mode remote --url {url} --count 1"));
    assert_eq!(output.status.code(), Some(4), "{output:?}");
}
