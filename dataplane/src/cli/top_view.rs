//! What `sluice top` shows: lines from a status and its rates. No terminal here, so that a test reads the lines.

use std::collections::BTreeMap;

use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::fields::{items, number, word};
use super::lines;
use super::rates::{Rates, emitted};
use super::tables::bucketed;

/// Narrowest first column; below that the numbers are cut off at the right.
const NAME_COLUMNS_MIN: usize = 20;
/// Streams of a feed that are shown, the newest.
const STREAMS_MAX: usize = 16;

/// Bars of a histogram: as many as the page has.
const BARS_MAX: usize = 48;

/// How a piece of text is to look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    /// As it is.
    Plain,
    /// A heading.
    Head,
    /// Beside the point.
    Dim,
    /// As it should be.
    Good,
    /// Worth a look.
    Warn,
    /// Wrong.
    Bad,
}

/// One line: pieces of text.
pub type Line = Vec<(String, Tone)>;

/// Text from outside, safe for a terminal: no control character and nothing that changes the direction of writing.
pub fn clean(text: &str) -> String {
    let visible = |c: char| match c {
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => '·',
        c if c.is_control() => '·',
        c => c,
    };
    text.chars().map(visible).collect()
}

/// `text` in exactly `columns`, cut with "…" or filled with blanks.
fn fit(text: &str, columns: usize, right: bool) -> String {
    if columns == 0 {
        return String::new();
    }
    let text = clean(text);
    let width = text.width();
    if width <= columns {
        let blanks = " ".repeat(columns - width);
        return if right { blanks + &text } else { text + &blanks };
    }
    let (mut cut, mut used) = (String::new(), 0);
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if used + wide + 1 > columns {
            break;
        }
        cut.push(c);
        used += wide;
    }
    cut.push('…');
    cut + &" ".repeat(columns.saturating_sub(used + 1))
}

/// 1234567 as `1,234,567`.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number in at most three digits and a unit of its size.
fn scaled(value: f64, step: f64, units: [&str; 5]) -> String {
    let (mut value, mut at) = (value, 0);
    while value >= step && at < units.len() - 1 {
        value /= step;
        at += 1;
    }
    let digits = usize::from(value < 10.0 && at > 0);
    format!("{value:.digits$} {}", units[at]).trim_end().to_string()
}

/// Bytes in the unit that reads best.
pub(super) fn bytes(value: f64) -> String {
    scaled(value, 1024.0, ["B", "KiB", "MiB", "GiB", "TiB"])
}

/// A duration in whole seconds, as one reads it.
pub(super) fn lasting(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn count(value: &Value) -> String {
    value.as_u64().map_or_else(|| "–".into(), grouped)
}

fn wrong_if(wrong: bool) -> Tone {
    if wrong { Tone::Bad } else { Tone::Plain }
}

/// The whole view: the first line is the head, which stays while the rest scrolls.
pub struct View<'a> {
    status: &'a Value,
    rates: &'a Rates,
    columns: usize,
    lines: Vec<Line>,
}

/// The head line of a status.
pub fn head(status: &Value) -> Line {
    let (health, about) = (&status["health"], &status["appliance"]);
    let state = match (health["healthy"].as_bool(), health["ready"].as_bool()) {
        (Some(true), Some(true)) => ("healthy".to_string(), Tone::Good),
        (Some(false), _) => ("UNHEALTHY".into(), Tone::Bad),
        (Some(true), _) => (clean(word(&health["stage"])), Tone::Warn),
        (None, _) => ("–".into(), Tone::Dim),
    };
    let process = format!("  process {}  up {}  ", about["pid"], lasting(number(&about["uptime_seconds"])));
    vec![(format!("sluice {}", clean(word(&about["version"]))), Tone::Head), (process, Tone::Plain), state]
}

/// Every line below the head, for a terminal of `columns`.
pub fn lines(status: &Value, rates: &Rates, columns: usize) -> Vec<Line> {
    let mut view = View { status, rates, columns, lines: Vec::new() };
    view.reasons();
    view.flow();
    view.feeds();
    view.conservation();
    view.stores();
    view.rings();
    view.readers();
    view.ledger();
    view.process();
    view.cores();
    view.lines.into_iter().map(|line| cut(line, columns)).collect()
}

/// What of a line a narrow terminal has room for.
fn cut(line: Line, columns: usize) -> Line {
    let mut left = columns;
    let mut parts = Vec::new();
    for (text, tone) in line {
        let width = text.width();
        if width > left {
            parts.push((fit(&text, left, false), tone));
            break;
        }
        left -= width;
        parts.push((text, tone));
    }
    parts
}

impl View<'_> {
    /// A row: the name takes what the cells (text, columns, tone) leave.
    fn row(&mut self, name: &str, tone: Tone, cells: &[(String, usize, Tone)]) {
        let taken: usize = cells.iter().map(|(_, columns, _)| columns + 1).sum();
        let mut line = vec![(fit(name, self.columns.saturating_sub(taken).max(NAME_COLUMNS_MIN), false), tone)];
        for (text, columns, tone) in cells {
            line.push((format!(" {}", fit(text, *columns, true)), *tone));
        }
        self.lines.push(line);
    }

    fn heading(&mut self, name: &str, cells: &[(&str, usize)]) {
        if !self.lines.is_empty() {
            self.lines.push(Vec::new());
        }
        let cells: Vec<_> = cells.iter().map(|(text, columns)| ((*text).to_string(), *columns, Tone::Dim)).collect();
        self.row(name, Tone::Head, &cells);
    }

    /// Words that break at blanks, with `indent` before each line.
    fn wrapped(&mut self, text: &str, indent: usize, tone: Tone) {
        let room = self.columns.saturating_sub(indent).max(NAME_COLUMNS_MIN);
        let mut line = String::new();
        for word in clean(text).split(' ') {
            if !line.is_empty() && line.width() + 1 + word.width() > room {
                let whole = std::mem::take(&mut line);
                self.lines.push(vec![(" ".repeat(indent) + &whole, tone)]);
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        self.lines.push(vec![(" ".repeat(indent) + &line, tone)]);
    }

    fn reasons(&mut self) {
        for reason in items(&self.status["health"]["reasons"]) {
            let tone = match word(&reason["level"]) {
                "unhealthy" => Tone::Bad,
                "not_ready" => Tone::Warn,
                _ => Tone::Dim,
            };
            let grown = reason["count"].as_u64().map_or(String::new(), |n| format!(" ({} since it began)", grouped(n)));
            let seconds = lasting(reason["for_seconds"].as_f64().unwrap_or(0.0) as u64);
            self.wrapped(&format!("! {}{grown}, for {seconds}", word(&reason["what"])), 0, tone);
        }
    }

    fn flow(&mut self) {
        let about = &self.status["appliance"];
        let names: BTreeMap<&str, &str> =
            items(&about["nodes"]).iter().map(|node| (word(&node["id"]), word(&node["name"]))).collect();
        self.heading("FLOW", &[("rate", 12), ("in all", 24)]);
        for node in items(&about["nodes"]) {
            let id = word(&node["id"]);
            let counted = self.rates.count(id);
            let (rate, total) = match counted {
                None => (String::from("–"), String::from("–")),
                Some(counted) => {
                    let bytewise = counted.unit == "B";
                    let rate = self.rates.per_second(id).map(|rate| match bytewise {
                        true => format!("{}/s", bytes(rate)),
                        false => format!("{}/s", scaled(rate, 1000.0, ["", "k", "M", "G", "T"])),
                    });
                    let total = match bytewise {
                        true => bytes(counted.count as f64),
                        false => format!("{} {}", grouped(counted.count), counted.unit),
                    };
                    (rate.unwrap_or_else(|| "…".into()), total)
                }
            };
            let cells = [(rate, 12, Tone::Head), (total, 24, Tone::Plain)];
            self.row(&format!("{} {}", word(&node["kind"]), word(&node["name"])), Tone::Plain, &cells);
            let to: Vec<&str> = items(&about["edges"])
                .iter()
                .filter(|edge| edge[0] == id)
                .map(|edge| names.get(word(&edge[1])).copied().unwrap_or("?"))
                .collect();
            if !to.is_empty() {
                self.wrapped(&format!("→ {}", to.join(", ")), 2, Tone::Dim);
            }
        }
    }

    fn feeds(&mut self) {
        for feed in items(&self.status["capture"]["feeds"]) {
            let name = word(&feed["feed"]);
            self.heading(
                &format!("FEED {name}"),
                &[("messages", 13), ("lost", 9), ("duplicate", 13), ("late", 7), ("held", 6)],
            );
            let live = items(&feed["sides_live"]);
            for (side, live) in items(&feed["sides"]).iter().zip(live) {
                let (text, tone) = match (*live == true, feed["from_files"] == true) {
                    (true, _) => ("live", Tone::Good),
                    (false, true) => ("at its end", Tone::Dim),
                    (false, false) => ("SILENT", Tone::Bad),
                };
                self.lines.push(vec![(format!("  side {}: ", clean(word(side))), Tone::Plain), (text.into(), tone)]);
            }
            let lost = number(&feed["lost_link_full"]) + number(&feed["lost_copy_pool"]);
            let total = format!("  {} emitted, {} not handed to the store", grouped(emitted(feed)), grouped(lost));
            self.lines.push(vec![(total, wrong_if(lost > 0))]);
            let streams = items(&feed["report"]["streams"]);
            for stream in &streams[streams.len().saturating_sub(STREAMS_MAX)..] {
                self.stream(stream);
            }
        }
    }

    fn stream(&mut self, stream: &Value) {
        let gap = number(&stream["gap"]);
        let cells = [
            (grouped(number(&stream["unique"]) + number(&stream["late_fill"])), 13, Tone::Plain),
            (grouped(gap), 9, wrong_if(gap > 0)),
            (count(&stream["duplicate"]), 13, Tone::Plain),
            (count(&stream["late"]), 7, Tone::Plain),
            (count(&stream["held"]), 6, Tone::Plain),
        ];
        self.row(&format!("  {} (run {})", word(&stream["stream"]), stream["run"]), Tone::Plain, &cells);
        for side in items(&stream["sides"]) {
            let latency = &side["capture_minus_send"];
            let text = format!(
                "side {}: {} lost in {} gaps, {} recovered, {} first; capture - send p50 {}, p99 {}",
                word(&side["side"]),
                count(&side["lost"]),
                items(&side["gaps"]).len(),
                count(&side["recovered"]),
                count(&side["wins"]),
                bucketed(latency["p50_ns"].as_i64().unwrap_or(0)),
                bucketed(latency["p99_ns"].as_i64().unwrap_or(0)),
            );
            self.wrapped(&text, 4, Tone::Dim);
            self.bars("capture - send", &side["capture_minus_send_buckets"]);
        }
        self.bars("A before B by", &stream["lead_buckets"]);
    }

    /// A histogram, where there is one, in the line's width.
    fn bars(&mut self, name: &str, buckets: &Value) {
        // The edges take up to 10 columns each.
        let room = self.columns.saturating_sub(6 + name.width() + 2 + 2 * 11).clamp(1, BARS_MAX);
        if let Some(bars) = lines::bars(buckets, room) {
            self.lines.push(vec![(format!("      {name}: {bars}"), Tone::Dim)]);
        }
    }

    fn conservation(&mut self) {
        let capture = &self.status["capture"];
        if items(&capture["feeds"]).is_empty() {
            return;
        }
        self.heading("CONSERVATION", &[("residue", 14)]);
        let tone = |residue: i64| if residue == 0 { Tone::Good } else { Tone::Warn };
        let all = capture["residue"].as_i64().unwrap_or(0);
        self.row("in all", Tone::Plain, &[(all.to_string(), 14, tone(all))]);
        for identity in items(&capture["conservation"]) {
            let residue = identity["residue"].as_i64().unwrap_or(0);
            self.row(word(&identity["of"]), Tone::Plain, &[(residue.to_string(), 14, tone(residue))]);
            let term = |term: &Value| format!("{} {}", word(&term[0]), count(&term[1]));
            let right: Vec<String> = items(&identity["right"]).iter().map(term).collect();
            self.wrapped(&format!("{} = {}", term(&identity["left"]), right.join(" + ")), 4, Tone::Dim);
        }
    }

    fn stores(&mut self) {
        for store in items(&self.status["stores"]) {
            let columns = [("stored", 15), ("lost", 9), ("in flight", 9), ("written", 9)];
            self.heading(&format!("STORE {}", word(&store["store"])), &columns);
            let lost = number(&store["lost"]);
            let cells = [
                (count(&store["stored"]), 15, Tone::Plain),
                (grouped(lost), 9, wrong_if(lost > 0)),
                (count(&store["in_flight"]), 9, Tone::Plain),
                (bytes(number(&store["written_bytes"]) as f64), 9, Tone::Plain),
            ];
            self.row(&format!("  {}", word(&store["path"])), Tone::Plain, &cells);
            let failed = ["failed_blocks", "failed_syncs", "failed_seals"].map(|key| number(&store[key]));
            let failed: u64 = failed.iter().sum();
            let full = store["full"] == true;
            let text = format!(
                "{} segments sealed, durable up to record {}, {} failed{}",
                count(&store["sealed_segments"]),
                count(&store["durable_arrival"]),
                grouped(failed),
                if full { "; THE FILE SYSTEM IS FULL" } else { "" }
            );
            self.wrapped(&text, 2, wrong_if(full || failed > 0));
            for line in [lines::kept(store), lines::store_bounds(store)].into_iter().flatten() {
                self.wrapped(&line, 2, Tone::Dim);
            }
        }
    }

    fn rings(&mut self) {
        for mirror in items(&self.status["ring"]["mirror"]) {
            let columns = [("next", 14), ("lag", 9), ("left out", 9), ("heard", 9)];
            self.heading(&format!("MIRROR {}", word(&mirror["name"])), &columns);
            let left_out = number(&mirror["gap_records"]);
            let age = mirror["heartbeat_age_seconds"].as_f64().map_or("never".into(), |age| format!("{age:.1} s"));
            let cells = [
                (count(&mirror["next"]), 14, Tone::Plain),
                (count(&mirror["lag"]), 9, Tone::Plain),
                (grouped(left_out), 9, wrong_if(left_out > 0)),
                (age, 9, Tone::Plain),
            ];
            let (state, tone) =
                match (mirror["live"] == true, mirror["silent"] == true, mirror["producer_gone"] == true) {
                    (false, ..) => ("NOT CONNECTED".to_string(), Tone::Bad),
                    (_, true, _) => ("SOURCE SILENT".into(), Tone::Bad),
                    (.., true) => ("PRODUCER GONE".into(), Tone::Bad),
                    _ => (format!("live, {}", word(&mirror["transport"])), Tone::Good),
                };
            self.row(&format!("  {state}"), tone, &cells);
        }
        for serve in items(&self.status["ring"]["serve"]) {
            let columns = [("head", 14), ("mirrors", 9), ("naks", 9), ("gaps", 9)];
            self.heading(&format!("SERVE {}", word(&serve["name"])), &columns);
            let cells = [
                (count(&serve["head"]), 14, Tone::Plain),
                (count(&serve["connections"]), 9, Tone::Plain),
                (count(&serve["naks"]), 9, Tone::Plain),
                (count(&serve["gaps"]), 9, Tone::Plain),
            ];
            let (state, tone) = match (serve["attached"] == true, serve["producer_alive"] == true) {
                (false, _) => ("NO RING", Tone::Bad),
                (_, false) => ("producer gone or stalled", Tone::Warn),
                _ => ("serving", Tone::Good),
            };
            self.row(&format!("  {state}"), tone, &cells);
            for session in items(&serve["sessions"]) {
                let lag = (number(&serve["head"]) + 1).saturating_sub(number(&session["next"]));
                let by = session["delivery"].as_str().unwrap_or("handshake");
                let text = format!("{} by {by}: lag {}", word(&session["peer"]), grouped(lag));
                self.wrapped(&text, 4, Tone::Dim);
            }
        }
    }

    fn readers(&mut self) {
        let lags = lines::reader_lags(self.status);
        if !lags.is_empty() {
            self.heading("READERS", &[]);
        }
        for (ring, line) in lags {
            self.wrapped(&format!("{ring}: {line}"), 2, Tone::Plain);
        }
    }

    fn ledger(&mut self) {
        let ledger = &self.status["ledger"];
        if ledger.is_null() {
            return;
        }
        let columns = [("oldest", 12), ("latest", 12), ("durable", 12), ("subscribers", 11)];
        self.heading("LEDGER", &columns);
        let cells = [
            (count(&ledger["oldest"]), 12, Tone::Plain),
            (count(&ledger["latest"]), 12, Tone::Plain),
            (count(&ledger["durable"]), 12, Tone::Plain),
            (count(&ledger["subscribers"]), 11, Tone::Plain),
        ];
        let state = ledger["ended"].as_str().unwrap_or("running");
        self.row(&format!("  {state}"), wrong_if(state != "running"), &cells);
        let sum = |keys: &[&str]| keys.iter().map(|key| number(&ledger[*key])).sum::<u64>();
        let failed = sum(&["no_space", "disk_failed", "unwritten_dropped", "lost_ledgers"]);
        let ratio = ledger["compression_ratio"].as_f64().map_or("–".into(), |ratio| format!("{ratio:.2}"));
        let slowest = match number(&ledger["slowest"]) {
            0 => "–".into(),
            slowest => format!("{}/s", bytes(slowest as f64)),
        };
        let text = format!(
            "from {}; {} live, the slowest takes {slowest}; compression {ratio}; {} given up as too slow; {} failed or lost",
            word(&ledger["source"]),
            count(&ledger["live"]),
            grouped(sum(&["live_abandons", "write_timeouts"])),
            grouped(failed),
        );
        self.wrapped(&text, 2, wrong_if(failed > 0));
        self.wrapped(&lines::subscriber_lag(ledger), 2, Tone::Plain);
        if let Some(bounds) = lines::ledger_bounds(ledger) {
            self.wrapped(&bounds, 2, Tone::Dim);
        }
        if !ledger["relay"].is_null() && ledger["relay"]["connected"] != 1 {
            self.wrapped("THE UPSTREAM SERVER IS NOT CONNECTED", 2, Tone::Bad);
        }
    }

    fn process(&mut self) {
        let Some(process) = lines::process(self.status) else { return };
        self.heading("PROCESS AND CLOCK", &[]);
        self.wrapped(&process, 2, Tone::Plain);
        if let Some((clock, good)) = lines::clock(self.status) {
            self.wrapped(&clock, 2, if good { Tone::Plain } else { Tone::Warn });
        }
    }

    fn cores(&mut self) {
        self.heading("CORES", &[]);
        for core in items(&self.status["appliance"]["cores"]) {
            let workers: Vec<&str> = items(&core["workers"]).iter().map(word).collect();
            let text = format!(
                "{} (cpu {}, {}): {}",
                word(&core["name"]),
                core["cpu"],
                word(&core["idle"]),
                workers.join(", ")
            );
            self.wrapped(&text, 2, Tone::Plain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(lines: &[Line]) -> Vec<String> {
        lines.iter().map(|line| line.iter().map(|(text, _)| text.as_str()).collect()).collect()
    }

    /// A status with something of every job, and names that mean harm.
    fn status() -> Value {
        json!({
            "appliance": {"version": "0.1.0", "pid": 7, "uptime_seconds": 75,
                "cores": [{"name": "rx", "cpu": 0, "idle": "park", "workers": ["arbiter deep", "store main"]}],
                "nodes": [{"id": "feed deep", "kind": "feed", "name": "deep"}, {"id": "store main", "kind": "store", "name": "main"}],
                "edges": [["feed deep", "store main"]]},
            "health": {"healthy": false, "ready": true, "stage": "running", "reasons": [
                {"level": "unhealthy", "what": "store \"main\": records could not be stored", "count": 1200, "for_seconds": 130.4}]},
            "capture": {"residue": 0, "conservation": [{"of": "feed deep", "left": ["handed", 1500], "right": [["taken", 1500]], "residue": 0}],
                "feeds": [{"feed": "deep", "sides": ["A", "B"], "sides_live": [true, false], "report": {"streams": [
                    {"stream": "iex\u{1b}[31mtp", "run": 0, "unique": 1_234_567, "late_fill": 0, "gap": 3,
                    "lead_buckets": [[-2_000, 1], [900, 8], [1_000, 8]],
                    "sides": [{"side": "A", "lost": 5, "capture_minus_send_buckets": [[20_000, 9], [40_000, 1]]}]}]}}]},
            "stores": [{"store": "main", "path": "/var/lib/x", "stored": 1500, "lost": 2, "full": true,
                "kept_bytes": 3 << 20, "kept_segments": 3, "free_bytes": 5_u64 << 30, "total_bytes": 9_u64 << 30, "deleted_bytes": 0,
                "bounds": {"bytes_max": 64 << 20, "age_seconds_max": null, "free_bytes_min": 1 << 30}}],
            "process": {"pid": 7, "version": "0.1.0", "user": "sluice", "user_id": 998, "resident_bytes": 120 << 20, "threads": 9,
                "descriptors": 40, "descriptors_max": 1024,
                "clock": {"steps": 0, "synchronized": false, "tai_offset_known": true, "tai_offset_seconds": 37}},
            "ring": {"mirror": [{"name": "m", "live": false}], "serve": [{"name": "s", "attached": true, "producer_alive": true,
                "head": 10, "sessions": [{"peer": "h:1", "next": 8, "delivery": "tcp"}]}],
                "published": [{"feed": "deep", "ring": "/r", "readers": 2, "slowest_reader_lag": 12}]},
            "ledger": {"source": "synthetic", "oldest": 1, "latest": 9, "subscribers": 2, "median_lag": 0, "p99_lag": 3, "slowest_lag": 4,
                "bounds": {"ledgers_max": 40, "bytes_max": null, "age_seconds_max": null}},
        })
    }

    #[test]
    fn every_job_is_shown_within_the_terminals_width() {
        let mut rates = Rates::default();
        rates.push(0, &status());
        for columns in [80, 60, 132] {
            let lines = text(&lines(&status(), &rates, columns));
            for line in &lines {
                assert!(line.width() <= columns, "{columns} columns: {line:?} has {}", line.width());
                assert!(!line.contains('\u{1b}'), "{line:?}");
            }
            let all = lines.join("\n");
            for part in [
                "! store \"main\": records could not be stored (1,200 since it began), for 2 min",
                "1,234,567",
                "side B: SILENT",
                "THE FILE SYSTEM IS FULL",
                "NOT CONNECTED",
                "h:1 by tcp: lag 3",
                "handed 1,500 = taken 1,500",
                "arbiter deep, store main",
                "capture - send: 20.0 µs █▁ 40.0 µs",
                "A before B by: -2000 ns ▁██ 1000 ns",
                "3 segments kept, 3.0 MiB on the disk; 5.0 GiB of 9.0 GiB free",
                "bounds: retain 64 MiB, retain_age none, free_min 1.0 GiB",
                "bounds: retention 40, retention_bytes none",
                "lag of subscribers: median 0, p99 3, slowest 4 ledgers",
                "/r: 2 registered readers, the slowest 12 records behind",
                "process 7 of user sluice, version 0.1.0, up 75 s; 120 MiB resident",
                "clock NOT SYNCHRONISED; TAI - UTC 37 s; never stepped",
            ] {
                let flat = all.replace("\n    ", " ").replace("\n  ", " ").replace('\n', " ");
                assert!(flat.contains(part) || columns == 60, "{part:?} is not in\n{all}");
            }
        }
        assert_eq!(text(&[head(&status())]), ["sluice 0.1.0  process 7  up 75 s  UNHEALTHY"]);
    }

    #[test]
    fn an_empty_status_is_shown_as_well() {
        let rates = Rates::default();
        assert!(text(&lines(&json!({}), &rates, 80)).iter().all(|line| line.width() <= 80));
    }

    #[test]
    fn words_fit_their_columns() {
        assert_eq!(fit("abc", 5, true), "  abc");
        assert_eq!(fit("abcdef", 4, false), "abc…");
        assert_eq!(fit("日本語", 4, false), "日… ");
        assert_eq!(clean("a\u{1b}[2J\u{202e}b\n"), "a·[2J·b·");
        assert_eq!([0, 999, 1_000, 12_345_678].map(grouped), ["0", "999", "1,000", "12,345,678"]);
        assert_eq!(scaled(1_530.0, 1000.0, ["", "k", "M", "G", "T"]), "1.5 k");
        assert_eq!(bytes(10.0 * 1024.0), "10 KiB");
    }
}
