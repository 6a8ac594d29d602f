//! Tables for people, from the status's JSON: what `run`, `stat` and the demo print.

use std::fmt::Write;

use serde_json::Value;

use super::fields::{items, number, word};
use super::lines;
use crate::feed::histogram::LONGEST_NS;

/// The whole status.
pub fn status(status: &Value) -> String {
    let mut text = String::new();
    let capture = &status["capture"];
    for mode in items(&capture["interfaces"]) {
        let _ = writeln!(
            text,
            "interface {}: xdp {}, {}, {} byte chunks{}",
            word(&mode["interface"]),
            word(&mode["xdp"]),
            if mode["zero_copy"] == true { "zero-copy" } else { "copy mode" },
            mode["chunk_bytes"],
            if mode["multi_buffer"] == true { ", multi-buffer" } else { "" }
        );
    }
    if !items(&capture["queues"]).is_empty() {
        queues(capture, &mut text);
    }
    for feed in items(&capture["feeds"]) {
        self::feed(feed, &mut text);
    }
    for store in items(&status["stores"]) {
        self::store(store, &mut text);
    }
    if !items(&capture["queues"]).is_empty() || (status["ring"].is_null() && status["ledger"].is_null()) {
        conservation(capture, &mut text);
    }
    rings(&status["ring"], &mut text);
    for (ring, line) in lines::reader_lags(status) {
        let _ = writeln!(text, "ring {ring}: {line}");
    }
    ledger(&status["ledger"], &mut text);
    let clock = lines::clock(status).map(|(line, _)| line);
    for line in [lines::process(status), clock].into_iter().flatten() {
        let _ = writeln!(text, "{line}");
    }
    for line in items(&capture["damage"]) {
        let _ = writeln!(text, "damage: {}", word(line));
    }
    text
}

/// Whether it is healthy, and a line for each reason.
pub fn health(status: &Value) -> String {
    let health = &status["health"];
    if health.is_null() {
        return String::new();
    }
    let mut text = format!(
        "{}, {}\n",
        if health["healthy"] == true { "healthy" } else { "UNHEALTHY" },
        if health["ready"] == true { "ready" } else { "not ready" }
    );
    for reason in items(&health["reasons"]) {
        let count = reason["count"].as_u64().map_or(String::new(), |count| format!(" ({count} since it began)"));
        let seconds = reason["for_seconds"].as_f64().unwrap_or(0.0) as u64;
        let (label, what) = (word(&reason["reason"]), word(&reason["what"]));
        let _ = writeln!(text, "  {label}: {what}{count}, for {seconds} s");
    }
    text
}

fn ledger(ledger: &Value, text: &mut String) {
    if ledger.is_null() {
        return;
    }
    let sum = |keys: &[&str]| keys.iter().map(|key| number(&ledger[*key])).sum::<u64>();
    let _ = writeln!(
        text,
        "ledger: {} on {}, run {}, {}; ledgers {} to {} kept, durable to {}, {} published",
        word(&ledger["source"]),
        ledger["address"].as_str().unwrap_or("no address yet"),
        word(&ledger["run"]),
        ledger["ended"].as_str().unwrap_or("running"),
        number(&ledger["oldest"]),
        number(&ledger["latest"]),
        number(&ledger["durable"]),
        number(&ledger["ledgers"])
    );
    let _ = writeln!(
        text,
        "  {} subscribers ({} live), {} bytes sent, {} given up as too slow, {} writes failed, {} ledgers lost{}",
        number(&ledger["subscribers"]),
        number(&ledger["live"]),
        number(&ledger["sent_bytes"]),
        sum(&["live_abandons", "write_timeouts"]),
        sum(&["no_space", "disk_failed"]),
        sum(&["unwritten_dropped", "lost_ledgers"]),
        match ledger["relay"]["connected"].as_u64() {
            Some(0) => "; THE UPSTREAM SERVER IS NOT CONNECTED",
            _ => "",
        }
    );
    let _ = writeln!(text, "  {}", lines::subscriber_lag(ledger));
    if let Some(bounds) = lines::ledger_bounds(ledger) {
        let _ = writeln!(text, "  {bounds}");
    }
}

fn rings(ring: &Value, text: &mut String) {
    for mirror in items(&ring["mirror"]) {
        let _ = writeln!(
            text,
            "mirror {}: {} -> {}, {}, next {}, lag {}, {} records, {} gaps of {} records, {} naks, {} repaired{}",
            word(&mirror["name"]),
            word(&mirror["source"]),
            word(&mirror["ring"]),
            if mirror["live"] == true { word(&mirror["transport"]) } else { "not connected" },
            mirror["next"],
            mirror["lag"],
            mirror["records"],
            mirror["gaps"],
            mirror["gap_records"],
            mirror["naks"],
            mirror["repaired_records"],
            match (mirror["silent"] == true, mirror["producer_gone"] == true) {
                (true, _) => "; SOURCE SILENT",
                (false, true) => "; ITS PRODUCER GONE OR STALLED",
                (false, false) => "",
            }
        );
    }
    for serve in items(&ring["serve"]) {
        let _ = writeln!(
            text,
            "serve {}: {} on {}, head {}, {} connections, {} records by datagram in {}, {} by TCP, {} naks, {} repaired, {} gaps{}",
            word(&serve["name"]),
            word(&serve["ring"]),
            word(&serve["address"]),
            serve["head"],
            serve["connections"],
            serve["datagram_records"],
            serve["datagrams"],
            serve["stream_records"],
            serve["naks"],
            serve["repaired_records"],
            serve["gaps"],
            match (serve["attached"] == true, serve["producer_alive"] == true) {
                (false, _) => "; NO RING",
                (true, false) => "; PRODUCER GONE OR STALLED",
                (true, true) => "",
            }
        );
    }
}

fn queues(capture: &Value, text: &mut String) {
    let _ = writeln!(
        text,
        "{:<22} {:>5} {:>11} {:>11} {:>10} {:>9} {:>9} {:>10} {:>9}",
        "source", "queue", "received", "segments", "heartbeats", "raw-only", "link full", "rx dropped", "ring full"
    );
    for queue in items(&capture["queues"]) {
        let raw: u64 = queue["raw_only"].as_object().map_or(0, |raw| raw.values().map(number).sum());
        let _ = writeln!(
            text,
            "{:<22} {:>5} {:>11} {:>11} {:>10} {:>9} {:>9} {:>10} {:>9}",
            word(&queue["source"]),
            number(&queue["queue"]),
            number(&queue["received"]),
            number(&queue["data_segments"]),
            number(&queue["heartbeats"]),
            raw,
            number(&queue["link_full"]),
            number(&queue["rx_dropped"]),
            number(&queue["rx_ring_full"])
        );
    }
    for xdp in items(&capture["xdp"]) {
        let counts: Vec<String> = xdp["frames"].as_object().map_or_else(Vec::new, |frames| {
            frames
                .iter()
                .filter(|(_, count)| number(count) > 0)
                .map(|(reason, count)| format!("{reason} {count}"))
                .collect()
        });
        let _ = writeln!(text, "xdp {} queue {}: {}", word(&xdp["interface"]), xdp["queue"], counts.join(", "));
    }
}

fn feed(feed: &Value, text: &mut String) {
    let live = |(side, live): (&Value, &Value)| match (*live == true, feed["from_files"] == true) {
        (true, _) => format!("{} live", word(side)),
        (false, true) => format!("{} at its end", word(side)),
        (false, false) => format!("{} SILENT", word(side)),
    };
    let sides: Vec<String> = items(&feed["sides"]).iter().zip(items(&feed["sides_live"])).map(live).collect();
    let sides = if sides.is_empty() { String::new() } else { format!(": {}", sides.join(", ")) };
    let _ = writeln!(text, "feed {}{sides}", word(&feed["feed"]));
    for stream in items(&feed["report"]["streams"]) {
        let _ = writeln!(
            text,
            "  {} (run {}): {} messages, {} lost on every side in {} gaps, {} duplicates, {} late fills, {} late",
            word(&stream["stream"]),
            stream["run"],
            stream["unique"],
            stream["gap"],
            items(&stream["gaps"]).len(),
            stream["duplicate"],
            stream["late_fill"],
            stream["late"]
        );
        for side in items(&stream["sides"]) {
            let latency = &side["capture_minus_send"];
            let _ = writeln!(
                text,
                "    side {}: {} lost, {} of them recovered, {} reordered, {} wins; capture - send {}",
                word(&side["side"]),
                side["lost"],
                side["recovered"],
                side["reordered"],
                side["wins"],
                summary(latency)
            );
        }
        let _ = writeln!(
            text,
            "    A before B by {}; send - message {}",
            summary(&stream["lead_a_over_b"]),
            summary(&stream["send_minus_message"])
        );
    }
}

/// A histogram's summary: median, 99th percentile and extremes.
fn summary(value: &Value) -> String {
    if number(&value["samples"]) == 0 {
        return "(no samples)".into();
    }
    let part = |name: &str, shown: fn(i64) -> String| value[name].as_i64().map_or("?".into(), shown);
    let [p50, p99] = ["p50_ns", "p99_ns"].map(|name| part(name, bucketed));
    let [min, max] = ["min_ns", "max_ns"].map(|name| part(name, nanos));
    format!("p50 {p50}, p99 {p99}, min {min}, max {max}")
}

/// A percentile or an edge of a histogram: in the last bucket all that is known is that it is longer.
pub fn bucketed(ns: i64) -> String {
    match ns {
        LONGEST_NS.. => format!("> {}", nanos(LONGEST_NS)),
        ..0 if ns <= -LONGEST_NS => format!("< {}", nanos(-LONGEST_NS)),
        _ => nanos(ns),
    }
}

/// Nanoseconds in the unit that reads best.
pub fn nanos(ns: i64) -> String {
    let size = ns.unsigned_abs();
    match size {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        10_000_000_000..7_200_000_000_000 => format!("{:.1} s", ns as f64 / 1e9),
        _ => format!("{:.1} h", ns as f64 / 3.6e12),
    }
}

fn store(store: &Value, text: &mut String) {
    let _ = writeln!(
        text,
        "store {}: {} records stored, {} lost, {} in flight, {} bytes written, {} segments sealed, durable up to record {}",
        word(&store["store"]),
        store["stored"],
        store["lost"],
        store["in_flight"],
        store["written_bytes"],
        store["sealed_segments"],
        store["durable_arrival"]
    );
    let marks = ["stored_marks", "lost_marks"].map(|name| store[name].as_u64().unwrap_or(0));
    if marks != [0, 0] {
        let _ =
            writeln!(text, "  beside them marks of gaps, beginnings and ends: {} stored, {} lost", marks[0], marks[1]);
    }
    for line in [lines::kept(store), lines::store_bounds(store)].into_iter().flatten() {
        let _ = writeln!(text, "  {line}");
    }
    for loss in items(&store["losses"]) {
        let _ = writeln!(
            text,
            "  lost ({}): {} {}..{}",
            word(&loss["cause"]),
            word(&loss["stream"]),
            loss["first"],
            loss["last"]
        );
    }
}

fn conservation(capture: &Value, text: &mut String) {
    text.push_str("conservation\n");
    for identity in items(&capture["conservation"]) {
        let left = &identity["left"];
        let right: Vec<String> =
            items(&identity["right"]).iter().map(|term| format!("{} {}", word(&term[0]), term[1])).collect();
        let _ = writeln!(
            text,
            "  {}: {} {} = {} | residue {}",
            word(&identity["of"]),
            word(&left[0]),
            left[1],
            right.join(" + "),
            identity["residue"]
        );
    }
    let _ = writeln!(text, "  residue in all: {}", capture["residue"]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_read_well() {
        for (ns, text) in
            [(-50, "-50 ns"), (25_000, "25.0 µs"), (20_000_000, "20.0 ms"), (-3_600_000_000_000, "-3600.0 s")]
        {
            assert_eq!(nanos(ns), text);
        }
        // What has no bucket of its own is told as longer, by however much.
        for (ns, text) in [(LONGEST_NS - 1, "4398.0 s"), (LONGEST_NS, "> 4398.0 s"), (-86_400 << 40, "< -4398.0 s")] {
            assert_eq!(bucketed(ns), text);
        }
    }
    #[test]
    fn bounds_lags_and_the_process_are_told() {
        let told = status(&serde_json::json!({
            "stores": [{"store": "main", "kept_bytes": 3 << 20, "bounds": {"bytes_max": 64 << 20}}],
            "ring": {"published": [{"ring": "/r", "readers": 1, "slowest_reader_lag": 4}]},
            "ledger": {"p99_lag": 3, "bounds": {"ledgers_max": 40}},
            "process": {"pid": 7, "user_id": 998, "clock": {"steps": 1, "last_step_seconds": 2.5}},
        }));
        for part in [
            "\n  bounds: retain 64 MiB, retain_age none, free_min none\n",
            "\n  0 segments kept, 3.0 MiB on the disk;",
            "\nring /r: 1 registered readers, the slowest 4 records behind\n",
            "\n  lag of subscribers: median 0, p99 3, slowest 0 ledgers\n",
            "\n  bounds: retention 40, retention_bytes none, retention_age none\n",
            "\nprocess 7 of user 998, ",
            "stepped 1 times, last by 2.5 s\n",
        ] {
            assert!(told.contains(part), "{part:?} is not in\n{told}");
        }
    }
}
