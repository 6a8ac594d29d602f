//! What each node of the topology has counted, and how fast: from successive statuses.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;

use super::fields::{items, number, word};

/// Rates are means over so many intervals: one second's burst does not hide the next one's silence for long.
const INTERVALS: usize = 5;

/// A node's count and what it counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    /// The count.
    pub count: u64,
    /// `messages`, …; `B` for bytes.
    pub unit: &'static str,
}

/// Every node's count, by the node's id.
pub type Counts = BTreeMap<String, Counted>;

/// Messages that a feed has emitted, over all its streams.
pub fn emitted(feed: &Value) -> u64 {
    let streams = items(&feed["report"]["streams"]).iter();
    streams.map(|stream| number(&stream["unique"]) + number(&stream["late_fill"])).sum()
}

/// What the status says of each node.
pub fn counted(status: &Value) -> Counts {
    let mut counts = Counts::new();
    let mut put = |id: String, count: u64, unit: &'static str| {
        counts.entry(id).or_insert(Counted { count, unit });
    };
    for queue in items(&status["capture"]["queues"]) {
        let (source, received) = (word(&queue["source"]), number(&queue["received"]));
        match source.strip_prefix("files of ") {
            Some(feed) => put(format!("files {feed}"), received, "packets"),
            None => put(format!("queue {source} {}", queue["queue"]), received, "frames"),
        }
    }
    for feed in items(&status["capture"]["feeds"]) {
        put(format!("feed {}", word(&feed["feed"])), emitted(feed), "messages");
        if let Some(ring) = feed["publish"].as_str() {
            let published = number(&feed["published"]) + number(&feed["published_marks"]);
            put(format!("ring {ring}"), published, "records");
        }
    }
    for store in items(&status["stores"]) {
        put(format!("store {}", word(&store["store"])), number(&store["stored"]), "records");
    }
    for mirror in items(&status["ring"]["mirror"]) {
        put(format!("peer {}", word(&mirror["source"])), number(&mirror["bytes"]), "B");
        put(format!("mirror {}", word(&mirror["name"])), number(&mirror["records"]), "records");
        put(format!("ring {}", word(&mirror["ring"])), number(&mirror["records"]), "records");
    }
    for serve in items(&status["ring"]["serve"]) {
        let sent = number(&serve["datagram_records"]) + number(&serve["stream_records"]);
        put(format!("serve {}", word(&serve["name"])), sent, "records");
        put(format!("ring {}", word(&serve["ring"])), number(&serve["head"]), "records");
    }
    let ledger = &status["ledger"];
    if !ledger.is_null() {
        let source = if ledger["from"].is_null() { &ledger["relay"] } else { &ledger["from"] };
        put("ledger source".into(), number(&source["bytes"]), "B");
        put("ledger".into(), number(&ledger["sent_bytes"]), "B");
    }
    counts
}

/// The last statuses' counts.
#[derive(Default)]
pub struct Rates {
    samples: VecDeque<(i64, Counts)>,
    process: Option<u64>,
}

impl Rates {
    /// Takes a status that came at `now` (monotonic ns). Another process begins anew.
    pub fn push(&mut self, now: i64, status: &Value) {
        let process = status["appliance"]["pid"].as_u64();
        if std::mem::replace(&mut self.process, process) != process {
            self.samples.clear();
        }
        self.samples.push_back((now, counted(status)));
        if self.samples.len() > INTERVALS + 1 {
            self.samples.pop_front();
        }
    }

    /// What the node has counted.
    pub fn count(&self, id: &str) -> Option<Counted> {
        self.samples.back()?.1.get(id).copied()
    }

    /// A second's count; `None` before there are two statuses.
    pub fn per_second(&self, id: &str) -> Option<f64> {
        let ((from, before), (to, now)) = (self.samples.front()?, self.samples.back()?);
        let grown = now.get(id)?.count.checked_sub(before.get(id)?.count)?;
        (to > from).then(|| grown as f64 / ((to - from) as f64 / 1e9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SECOND: i64 = 1_000_000_000;

    fn status(process: u64, stored: u64) -> Value {
        json!({"appliance": {"pid": process}, "stores": [{"store": "main", "stored": stored}]})
    }

    #[test]
    fn a_rate_is_the_mean_of_the_last_intervals() {
        let mut rates = Rates::default();
        assert_eq!((rates.count("store main"), rates.per_second("store main")), (None, None));
        rates.push(0, &status(1, 1_000));
        assert_eq!(rates.count("store main"), Some(Counted { count: 1_000, unit: "records" }));
        assert_eq!(rates.per_second("store main"), None);
        for second in 1..=20 {
            rates.push(second * SECOND, &status(1, 1_000 + 50 * second as u64));
        }
        assert_eq!(rates.per_second("store main"), Some(50.0));
        rates.push(21 * SECOND, &status(2, 7));
        assert_eq!(rates.per_second("store main"), None, "a restarted process counts from 0");
    }

    #[test]
    fn every_job_is_counted_under_its_node() {
        let status = json!({
            "capture": {
                "queues": [{"source": "eth1", "queue": 1, "received": 5}, {"source": "files of deep", "received": 6}],
                "feeds": [{"feed": "deep", "publish": "/r", "published": 3, "published_marks": 1,
                           "report": {"streams": [{"unique": 8, "late_fill": 1}, {"unique": 2, "late_fill": 0}]}}],
            },
            "ring": {"serve": [{"name": "s", "ring": "/r", "head": 9, "datagram_records": 4, "stream_records": 2}],
                     "mirror": [{"name": "m", "source": "h:1", "ring": "/q", "records": 7, "bytes": 70}]},
            "ledger": {"from": {"bytes": 100}, "sent_bytes": 40},
        });
        let shown: Vec<(String, u64)> = counted(&status).into_iter().map(|(id, counted)| (id, counted.count)).collect();
        let expected = [
            ("feed deep", 11),
            ("files deep", 6),
            ("ledger", 40),
            ("ledger source", 100),
            ("mirror m", 7),
            ("peer h:1", 70),
            ("queue eth1 1", 5),
            ("ring /q", 7),
            ("ring /r", 4),
            ("serve s", 6),
        ];
        assert_eq!(shown, expected.map(|(id, count)| (id.to_string(), count)));
    }
}
