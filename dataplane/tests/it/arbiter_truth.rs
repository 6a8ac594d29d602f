//! Ground truth: one source split into lossy sides, arbitrated, and held against what was dropped.

use std::collections::BTreeMap;

use sluice::feed::arbiter::{Arbiter, ArbiterReport, ArbiterSettings, Arrival};
use sluice::feed::intervals;
use sluice::feed::split::{Copies, SideSplit, Splitter, Truth};
use sluice::feed::truth::compare;
use sluice::units::Side;

use super::gap_truth::{Captured, segments};
use crate::common;
use crate::common::feed::{Event, Publisher, Recorder};

const MS: i64 = 1_000_000;

/// One way of splitting.
#[derive(Clone, Copy, Debug)]
struct Config {
    seed: u64,
    a: SideSplit,
    b: SideSplit,
}

/// Loss from none to half, delays from none to a second, jitter, duplicates: 6 × 4 configurations.
fn configs() -> Vec<Config> {
    let losses = [(0.0, 0.0), (0.01, 0.01), (0.05, 0.1), (0.3, 0.3), (0.0, 0.5), (0.5, 0.02)];
    let times = [(0, 0, 0, 0.0), (0, 2 * MS, 500_000, 0.0), (30 * MS, 0, 5 * MS, 0.05), (0, 1000 * MS, 1, 0.01)];
    let mut configs = Vec::new();
    for (loss_a, loss_b) in losses {
        for (delay_a, delay_b, jitter_ns, duplicate) in times {
            let side = |loss, delay_ns| SideSplit { loss, duplicate, delay_ns, jitter_ns, ..SideSplit::default() };
            let seed = configs.len() as u64;
            configs.push(Config { seed, a: side(loss_a, delay_a), b: side(loss_b, delay_b) });
        }
    }
    configs
}

/// A source that restarts twice, lags, sends heartbeats and long bodies; for a clone without the data.
fn synthetic() -> Vec<Captured> {
    let mut publisher = Publisher::new(7);
    let mut out = Vec::new();
    for run in 0..3u32 {
        if run > 0 {
            publisher.restart(2_000 * MS);
        }
        // A head and a tail of heartbeats, as on a real day: they tell both ends of the run.
        let counts = (0..1500u32).map(|i| match i {
            0..=9 | 1490.. => 0,
            i => (i * 7 + run) % 5,
        });
        for count in counts {
            publisher.now_ns += 50_000;
            let packet = publisher.packet(count);
            out.push(Captured { capture_ns: packet.send() + 3_000, packet });
        }
    }
    out
}

struct Outcome {
    truth: Truth,
    report: ArbiterReport,
    out: Recorder,
}

fn split_and_arbitrate(source: &[Captured], config: &Config, settings: ArbiterSettings) -> Outcome {
    let mut splitter = Splitter::new(config.seed, &[config.a, config.b]);
    let mut arrivals: Vec<(i64, Side, usize)> = Vec::new();
    let mut copies: [Copies; 2] = Default::default();
    for (at, captured) in source.iter().enumerate() {
        splitter.split(captured.capture_ns, Some(&captured.packet.segment()), &mut copies);
        for (side, copies) in copies.iter().enumerate() {
            arrivals.extend(copies.iter().flatten().map(|&stamp_ns| (stamp_ns, Side(side as u8), at)));
        }
    }
    arrivals.sort_by_key(|&(stamp_ns, side, _)| (stamp_ns, side));
    let mut arbiter = Arbiter::new(settings);
    let mut out = Recorder::default();
    let mut now = i64::MIN;
    for &(stamp_ns, side, at) in &arrivals {
        now = now.max(stamp_ns);
        out.last_told = false;
        let segment = source[at].packet.segment();
        arbiter.on_segment(&Arrival { side, capture_ns: stamp_ns, segment }, now, &mut out);
    }
    arbiter.finish(now, &mut out);
    assert_eq!(arbiter.check_conservation(), [], "{config:?}");
    Outcome { truth: splitter.truth(), report: arbiter.report(), out }
}

/// The source's messages by (run, sequence); runs are told apart by the sequence going back.
fn messages(source: &[Captured]) -> Vec<BTreeMap<u64, Vec<u8>>> {
    let mut runs: Vec<BTreeMap<u64, Vec<u8>>> = vec![BTreeMap::new()];
    let mut end = 0;
    for captured in source {
        let packet = &captured.packet;
        if packet.first < end && packet.offset == Some(0) {
            runs.push(BTreeMap::new());
        }
        end = packet.end();
        let run = runs.last_mut().unwrap();
        run.extend((packet.first..).zip(packet.segment().messages().map(<[u8]>::to_vec)));
    }
    runs
}

fn check(name: &str, source: &[Captured], config: &Config) {
    let outcome = split_and_arbitrate(source, config, small(ArbiterSettings::files(2)));
    let what = format!("{name} {config:?}");
    let comparison = compare(&outcome.truth, &outcome.report);
    assert_eq!(comparison.differences, Vec::<String>::new(), "{what}");
    assert_eq!(comparison.streams, outcome.report.streams.len(), "{what}");
    // In order, without duplicate or hole that is not told: the recorder's replay fails otherwise.
    let merged = outcome.out.merged().unwrap_or_else(|broken| panic!("{what}: {broken}"));
    let source_runs = messages(source);
    assert_eq!(outcome.report.streams.len(), source_runs.len(), "{what}");
    for (stream, source_run) in outcome.report.streams.iter().zip(&source_runs) {
        assert_eq!((stream.counts.late, stream.counts.late_fill), (0, 0), "{what}");
        let truth = &outcome.truth.streams[stream.run];
        let id = merged_of(&outcome, stream.run);
        let mut wanted = source_run.clone();
        for range in &truth.residual {
            (range.first..=range.last).for_each(|sequence| _ = wanted.remove(&sequence));
        }
        assert!(merged[&id].bodies == wanted, "{what}: run {}: not the source's bytes", stream.run);
        assert_eq!(truth.residual, intervals::joined(intervals::intersection(&truth.dropped[0], &truth.dropped[1])));
        for (side, dropped) in stream.sides.iter().zip(&truth.dropped) {
            let seen = intervals::clip(dropped, stream.counts.base, stream.counts.frontier);
            assert_eq!(side.lost, intervals::count(&seen), "{what} side {}", side.side);
            let residual = intervals::clip(&truth.residual, stream.counts.base, stream.counts.frontier);
            assert_eq!(side.recovered, side.lost - intervals::count(&residual), "{what} side {}", side.side);
        }
    }
}

/// Smaller reservations than the defaults: the sources are small.
fn small(settings: ArbiterSettings) -> ArbiterSettings {
    ArbiterSettings { streams_max: 4, gaps_max: 16_384, ..settings }
}

/// The stream id of the run with this rank: streams are told by their creation id, which the name ends with.
fn merged_of(outcome: &Outcome, run: usize) -> u32 {
    let name = &outcome.report.streams[run].stream;
    name.rsplit("/r").next().unwrap().parse().unwrap()
}

#[test]
fn splits_of_a_synthetic_source() {
    let source = synthetic();
    let configs = configs();
    assert!(configs.len() >= 18);
    configs.iter().for_each(|config| check("synthetic", &source, config));
}

#[test]
fn splits_of_the_deep_capture() {
    let Some(data) = common::data() else { return };
    let source = segments(&data.join("iex/DEEP10.first-7884.pcap.gz"));
    // Every third configuration: the capture has 76,770 messages and this runs in debug builds.
    configs().iter().step_by(3).for_each(|config| check("DEEP10", &source, config));
}

#[test]
fn splits_of_the_tops_capture() {
    let Some(data) = common::data() else { return };
    let source = segments(&data.join("iex/TOPS16.pcapng.gz"));
    configs().iter().skip(1).step_by(3).for_each(|config| check("TOPS16", &source, config));
}

#[test]
fn a_wrong_truth_is_a_difference() {
    let source = synthetic();
    let config = configs()[9];
    let outcome = split_and_arbitrate(&source, &config, small(ArbiterSettings::files(2)));
    assert!(compare(&outcome.truth, &outcome.report).equal());
    assert!(outcome.truth.streams[1].residual.len() > 3);
    let spoil = |change: &dyn Fn(&mut Truth)| {
        let mut truth = outcome.truth.clone();
        change(&mut truth);
        compare(&truth, &outcome.report).differences
    };
    assert_eq!(spoil(&|t| _ = t.streams[1].residual.remove(1)).len(), 1);
    assert_eq!(spoil(&|t| t.streams[1].dropped[1][3].last += 1).len(), 1);
    assert_eq!(spoil(&|t| _ = t.streams.remove(2)).len(), 1);
    assert!(spoil(&|t| t.streams[0].channel += 1).len() >= 4, "no run is where it should be");
}

#[test]
fn a_truth_file_reads_back() {
    let source = synthetic();
    let outcome = split_and_arbitrate(&source, &configs()[10], small(ArbiterSettings::files(2)));
    let text = serde_json::to_string(&outcome.truth).unwrap();
    assert_eq!(serde_json::from_str::<Truth>(&text).unwrap(), outcome.truth);
    assert!(
        text.starts_with(r#"{"format":"sluice-split-1","seed":10,"sides":[{"side":"A","loss":0.05"#),
        "{text:.200}"
    );
}

#[test]
fn a_small_window_loses_no_message_only_order() {
    let source = synthetic();
    for window_messages in [1, 8, 64] {
        let config = configs()[7];
        let settings = ArbiterSettings { window_messages, ..small(ArbiterSettings::files(2)) };
        let outcome = split_and_arbitrate(&source, &config, settings);
        outcome.out.merged().unwrap();
        let forced: u64 = outcome.report.streams.iter().map(|s| s.counts.forced_window).sum();
        let fills: u64 = outcome.report.streams.iter().map(|s| s.counts.late_fill).sum();
        assert!(forced > 0 && fills > 0, "window {window_messages}: forced {forced}, late fills {fills}");
        let late = outcome.out.events.iter().filter(|e| matches!(e, Event::Message { late_fill: true, .. })).count();
        assert_eq!(late as u64, fills);
        let comparison = compare(&outcome.truth, &outcome.report);
        assert!(comparison.equal(), "net of late fills the residual is the truth: {:?}", comparison.differences);
    }
}

/// Runs the binary; returns its exit code and standard output.
fn sluice(args: &[&str]) -> (i32, String) {
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_sluice")).args(args).output().unwrap();
    (run.status.code().unwrap(), String::from_utf8(run.stdout).unwrap())
}

#[test]
fn commands_split_arbitrate_and_tell_by_their_exit() {
    let Some(data) = common::data() else { return };
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let source = data.join("iex/DEEP10.first-7884.pcap.gz");
    let source = source.to_str().unwrap();
    let split = ["feed", "split", source, "--out-dir", &at(""), "--loss-a", "5%", "--loss-b", "0.1"];
    let split = [&split[..], &["--delay-b", "2ms", "--jitter-a", "1ms", "--jitter-b", "1ms", "--seed", "4"]].concat();
    assert_eq!(sluice(&split).0, 0);
    let (a, b, truth, out) = (at("a.pcap"), at("b.pcap"), at("truth.json"), at("merged"));
    let (exit, text) = sluice(&["feed", "arbitrate", &a, &b, "--truth", &truth, "--out", &out, "--json"]);
    assert_eq!(exit, 0, "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["truth"]["differences"], serde_json::json!([]));
    let unique: u64 = report["streams"].as_array().unwrap().iter().map(|s| s["unique"].as_u64().unwrap()).sum();
    assert_eq!((report["stored"].as_u64().unwrap(), report["streams"].as_array().unwrap().len()), (unique, 3));
    assert_eq!(sluice(&["store", "verify", &out]).0, 0);

    let mut wrong: Truth = serde_json::from_str(&std::fs::read_to_string(&truth).unwrap()).unwrap();
    wrong.streams[2].residual.pop();
    std::fs::write(&truth, serde_json::to_string(&wrong).unwrap()).unwrap();
    assert_eq!(sluice(&["feed", "arbitrate", &a, &b, "--truth", &truth]).0, 1, "a difference");
    let other = data.join("iex/TOPS16.pcapng.gz");
    assert_eq!(sluice(&["feed", "arbitrate", &a, other.to_str().unwrap()]).0, 2, "no stream in common");
    assert_eq!(sluice(&["feed", "arbitrate", &a, &at("absent.pcap")]).0, 4, "no such file");
}

#[test]
fn gaps_json_has_the_stated_shape() {
    let Some(data) = common::data() else { return };
    let file = data.join("iex/example1.pcap");
    let (exit, text) = sluice(&["feed", "gaps", file.to_str().unwrap(), "--json"]);
    assert_eq!(exit, 3, "the file ends inside a record");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&report), ["damage", "frames", "streams"]);
    assert_eq!(keys(&report["frames"]), ["matched", "read", "skipped"]);
    assert_eq!(keys(&report["damage"][0]), ["file", "offset", "what"]);
    let stream = &report["streams"][0];
    let mut wanted = vec!["protocol", "protocol_id", "channel", "session", "run", "segments", "heartbeats", "messages"];
    wanted.extend(["first_sequence", "last_sequence", "gaps", "duplicates", "reordered", "unconfirmed", "bytes_lost"]);
    wanted.sort();
    assert_eq!(keys(stream), wanted);
    assert_eq!((stream["messages"].as_u64(), stream["last_sequence"].as_u64()), (Some(53), Some(53)));
}
