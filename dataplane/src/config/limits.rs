//! Between which values each key may lie, for the reference page and the schema. The rules themselves are `check`'s, and a test
//! holds the two equal: one step beyond a limit is a finding, the limit itself is none.

use std::time::Duration;

use super::check::{
    BLOCK_MAX, BLOCK_MIN, BLOCKS_MAX, BLOCKS_MIN, COPY_FRAMES_MAX, CPU_MAX, FRAMES_MAX, LINK_MAX, PUBLISH_ARENA_MAX,
    PUBLISH_ARENA_MIN, PUBLISH_CAPACITY_MAX, PUBLISH_CAPACITY_MIN, RING_MAX, RING_MIN, RUNS_MAX, SEGMENT_MAX,
    STREAMS_MAX, WINDOW_MAX, ZSTD_MAX,
};
use super::check_ledger as ledger;
use super::check_ring as ring;
use super::check_shared::{CONTROL_MAX, DRAIN_MIN, STALL_MIN};
use super::report::KEEP_MAX;
use super::{Bytes, Span};

/// A value of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// A number.
    Count(i64),
    /// Bytes.
    Bytes(Bytes),
    /// A duration.
    Time(Span),
}

impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Amount::Count(count) => count.fmt(f),
            Amount::Bytes(bytes) => bytes.fmt(f),
            Amount::Time(time) => time.fmt(f),
        }
    }
}

/// The bounds of a key.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The section, as `ring.serve`.
    pub section: &'static str,
    /// The key.
    pub key: &'static str,
    /// The least value; `None`: the type's.
    pub least: Option<Amount>,
    /// The largest value; `None`: the type's.
    pub most: Option<Amount>,
    /// What else must hold, for people; often empty.
    pub also: &'static str,
}

impl Limit {
    /// The bounds in words; empty without any.
    pub fn words(&self) -> String {
        let bounds = match (self.least, self.most) {
            (Some(least), Some(most)) => format!("{least} to {most}"),
            (Some(least), None) => format!("at least {least}"),
            (None, Some(most)) => format!("at most {most}"),
            (None, None) => String::new(),
        };
        match (bounds.is_empty(), self.also.is_empty()) {
            (_, true) => bounds,
            (true, false) => self.also.into(),
            (false, false) => format!("{bounds}; {}", self.also),
        }
    }
}

/// The limit of a key, if it has one.
pub fn limit(section: &str, key: &str) -> Option<&'static Limit> {
    LIMITS.iter().find(|limit| limit.section == section && limit.key == key)
}

const fn count(section: &'static str, key: &'static str, least: i64, most: i64, also: &'static str) -> Limit {
    Limit { section, key, least: Some(Amount::Count(least)), most: Some(Amount::Count(most)), also }
}

const fn bytes(section: &'static str, key: &'static str, least: u64, most: u64, also: &'static str) -> Limit {
    let (least, most) = (Some(Amount::Bytes(Bytes(least))), Some(Amount::Bytes(Bytes(most))));
    Limit { section, key, least, most, also }
}

const fn time(section: &'static str, key: &'static str, least: Duration, most: Duration) -> Limit {
    let (least, most) = (Some(Amount::Time(Span(least))), Some(Amount::Time(Span(most))));
    Limit { section, key, least, most, also: "" }
}

const fn rule(section: &'static str, key: &'static str, also: &'static str) -> Limit {
    Limit { section, key, least: None, most: None, also }
}

const fn at_least(section: &'static str, key: &'static str, least: Amount, also: &'static str) -> Limit {
    Limit { section, key, least: Some(least), most: None, also }
}

const fn at_most(section: &'static str, key: &'static str, most: Amount, also: &'static str) -> Limit {
    Limit { section, key, least: None, most: Some(most), also }
}

const NS: Amount = Amount::Time(Span(Duration::from_nanos(1)));

/// Every key with a limit, in the order of the sections.
pub const LIMITS: &[Limit] = &[
    count("core", "cpu", 0, CPU_MAX as i64, "one `[[core]]` a CPU"),
    count("interface", "ring", RING_MIN as i64, RING_MAX as i64, "a power of two"),
    at_most("interface", "frames", Amount::Count(FRAMES_MAX as i64), "at least 2 × `ring` + the links behind it"),
    rule("interface", "queues", "as many as the interface has, or 0"),
    count("feed", "window", 1, WINDOW_MAX as i64, "with `copy_frames` that a full window fits"),
    count("feed", "link", RING_MIN as i64, LINK_MAX as i64, ""),
    at_most("feed", "copy_frames", Amount::Count(COPY_FRAMES_MAX as i64), "a full `window` must fit"),
    count("feed", "streams_max", 1, STREAMS_MAX as i64, ""),
    count("feed", "runs_max", 1, RUNS_MAX as i64, ""),
    count("feed", "publish_capacity", PUBLISH_CAPACITY_MIN as i64, PUBLISH_CAPACITY_MAX as i64, "a power of two"),
    bytes("feed", "publish_arena", PUBLISH_ARENA_MIN, PUBLISH_ARENA_MAX, "a power of two"),
    rule("feed", "publish", "an absolute path; one writer a ring"),
    rule("feed.side", "groups", "IPv4 address and port; on one interface each belongs to one side"),
    bytes("store", "block", BLOCK_MIN, BLOCK_MAX, "a multiple of 4KiB"),
    at_most("store", "segment", Amount::Bytes(Bytes(SEGMENT_MAX)), "at least four blocks"),
    count("store", "blocks_in_flight", BLOCKS_MIN as i64, BLOCKS_MAX as i64, ""),
    at_least("store", "flush", NS, ""),
    at_least("store", "fsync_interval", NS, ""),
    count("store", "zstd", 0, ZSTD_MAX as i64, "0 on a core that an arbiter shares"),
    rule("store", "retain", "0B, or at least two segments"),
    rule("store", "path", "one directory each, none inside of another's"),
    count("ring.serve", "mtu", ring::MTU_MIN as i64, ring::MTU_MAX as i64, ""),
    count("ring.serve", "dup", 1, ring::DUP_MAX as i64, ""),
    count("ring.serve", "batch", 1, ring::BATCH_MAX as i64, ""),
    at_most("ring.serve", "linger", Amount::Time(Span(ring::LINGER_MAX)), ""),
    count("ring.serve", "connections_max", 1, ring::CONNECTIONS_MAX as i64, ""),
    count("ring.serve", "connections_per_address_max", 1, ring::CONNECTIONS_MAX as i64, ""),
    time("ring.serve", "hello_timeout", ring::SILENCE_MIN, ring::HELLO_MAX),
    time("ring.serve", "dead_after", ring::DEAD_MIN, ring::DEAD_MAX),
    bytes("ring.serve", "repair_rate", ring::REPAIR_RATE_MIN.0, ring::REPAIR_RATE_MAX.0, ""),
    count("ring.serve", "punch_rate", 1, ring::PUNCH_RATE_MAX as i64, ""),
    rule("ring.serve", "multicast", "a group of 224.0.0.0/4 and a port; one serve each"),
    at_least("ring.serve", "udp", Amount::Count(1), "not the group's port"),
    rule("ring.serve", "bind", "not what another section listens on"),
    rule("ring.serve", "key_file", "16 to 1024 bytes"),
    rule("ring.mirror", "key_file", "16 to 1024 bytes"),
    rule("ring.mirror", "source", "host and port"),
    rule("ring.mirror", "ring", "one writer a ring"),
    at_least("ring.mirror", "geometry_max", Amount::Bytes(Bytes(ring::GEOMETRY_MIN)), ""),
    bytes("ring.mirror", "hold_back", ring::HOLD_BACK_MIN, ring::HOLD_BACK_MAX.0, ""),
    time("ring.mirror", "reconnect", ring::RECONNECT_MIN, ring::RECONNECT_MAX),
    rule("ring.mirror", "reconnect_max", "at least `reconnect`"),
    time("ring.mirror", "silence", ring::SILENCE_MIN, ring::SILENCE_MAX),
    time("ring.mirror", "silence_stream", ring::STREAM_SILENCE_MIN, ring::SILENCE_MAX),
    at_least("ledger.serve", "retention", Amount::Count(1), ""),
    rule("ledger.serve", "retention_bytes", "0B, or at least two segments"),
    bytes("ledger.serve", "segment_bytes", ledger::SEGMENT_MIN.0, ledger::SEGMENT_MAX.0, ""),
    bytes("ledger.serve", "backlog_bytes", ledger::BACKLOG_MIN.0, ledger::BACKLOG_MAX.0, ""),
    at_most(
        "ledger.serve",
        "sync",
        Amount::Time(ledger::DEAD_MAX),
        "\"seal\", \"every-ledger\", or a duration above 0s",
    ),
    at_most("ledger.serve", "start_ledger", Amount::Count(ledger::SEQUENCE_MAX as i64), "above 0 for captive"),
    bytes("ledger.serve", "pipe_size", ledger::PIPE_MIN.0, ledger::PIPE_MAX.0, ""),
    at_most("ledger.serve", "emit_window", Amount::Time(ledger::PACE_MAX), "at most the time between two ledgers"),
    at_most("ledger.serve", "cadence", Amount::Time(ledger::PACE_MAX), ""),
    at_most("ledger.serve", "synthetic_interval", Amount::Time(ledger::PACE_MAX), ""),
    bytes("ledger.serve", "synthetic_size", 1, ledger::LEDGER_MAX.0, ""),
    count("ledger.serve", "upstream_flows", 1, ledger::UPSTREAM_FLOWS_MAX as i64, ""),
    bytes("ledger.serve", "chunk_size", ledger::CHUNK_MIN.0, ledger::CHUNK_MAX.0, ""),
    at_least("ledger.serve", "tail_size", Amount::Bytes(ledger::CHUNK_MIN), "at most `chunk_size`"),
    count("ledger.serve", "compress_level", ledger::LEVEL_MIN as i64, ledger::LEVEL_MAX as i64, "not 0"),
    at_most("ledger.serve", "compress_workers", Amount::Count(ledger::WORKERS_MAX as i64), ""),
    count("ledger.serve", "flows_max", 1, ledger::FLOWS_MAX as i64, ""),
    count("ledger.serve", "subscribers_max", 1, ledger::SUBSCRIBERS_MAX as i64, ""),
    count("ledger.serve", "subscribers_per_address_max", 1, ledger::SUBSCRIBERS_MAX as i64, ""),
    time("ledger.serve", "dead_after", ledger::DEAD_MIN.0, ledger::DEAD_MAX.0),
    at_most("ledger.serve", "drain", Amount::Time(ledger::DEAD_MAX), ""),
    rule("ledger.serve", "listen", "beyond this host only with `cert`, `key` and `tokens`, or `insecure`"),
    rule("ledger.serve", "data_dir", "`ledgers` of it: one directory each, none inside of another's"),
    count("report", "keep", 1, KEEP_MAX as i64, ""),
    rule("report", "dir", "one directory each, none inside of another's"),
    time("control", "drain", DRAIN_MIN.0, CONTROL_MAX.0),
    time("control", "stall", STALL_MIN.0, CONTROL_MAX.0),
    rule("control", "listen", "beyond this host only with `insecure`"),
];

#[cfg(test)]
mod tests {
    use toml::Value;

    use super::*;
    use crate::config::{check, parse};

    /// The findings about this key with this value in the annotated file.
    fn findings(limit: &Limit, value: Value) -> Vec<String> {
        let mut file: toml::Table = include_str!("../../../config/default.toml").parse().expect("parses");
        let mut table = &mut file;
        for part in limit.section.split('.') {
            let next = table.get_mut(part).unwrap_or_else(|| panic!("no section {}", limit.section));
            table = match next {
                Value::Array(list) => list[0].as_table_mut(),
                other => other.as_table_mut(),
            }
            .expect("a table");
        }
        table.insert(limit.key.into(), value.clone());
        let text = toml::to_string(&file).expect("prints");
        let config = parse(&text).unwrap_or_else(|error| panic!("{} = {value}: {error}", limit.key));
        let key = format!(": {}", limit.key);
        check(&config)
            .into_iter()
            .filter(|finding| finding.key.ends_with(&key))
            .map(|finding| finding.to_string())
            .collect()
    }

    fn value(amount: Amount, step: i64) -> Option<Value> {
        match amount {
            Amount::Count(count) => Some(Value::Integer(count + step)).filter(|_| count + step >= 0 || count < 0),
            Amount::Bytes(Bytes(bytes)) => {
                Some(Value::Integer(bytes as i64 + step)).filter(|_| bytes as i64 + step >= 0)
            }
            Amount::Time(Span(time)) => {
                let nanos = i64::try_from(time.as_nanos()).expect("below 292 years") + step;
                (nanos >= 0).then(|| Value::String(Span(Duration::from_nanos(nanos as u64)).to_string()))
            }
        }
    }

    #[test]
    fn what_the_page_says_is_what_check_does() {
        for limit in LIMITS {
            let of = format!("{}.{}", limit.section, limit.key);
            for (bound, step) in [(limit.least, -1), (limit.most, 1)] {
                let Some(bound) = bound else { continue };
                if let Some(beyond) = value(bound, step) {
                    assert_ne!(findings(limit, beyond.clone()), Vec::<String>::new(), "{of} = {beyond} is beyond");
                }
                // A window of a day does not fit between two ledgers, another rule of the same key.
                if limit.key != "emit_window" {
                    let at = value(bound, 0).expect("a value");
                    assert_eq!(findings(limit, at.clone()), Vec::<String>::new(), "{of} = {at} is allowed");
                }
            }
        }
    }

    #[test]
    fn each_key_has_one_limit_and_words_for_it() {
        for (index, limit) in LIMITS.iter().enumerate() {
            assert!(!limit.words().is_empty(), "{limit:?}");
            let same = |other: &&Limit| (other.section, other.key) == (limit.section, limit.key);
            assert_eq!(LIMITS.iter().position(|other| same(&other)), Some(index), "{limit:?}");
        }
        assert_eq!(limit("interface", "ring").expect("there").words(), "64 to 32768; a power of two");
        assert_eq!(limit("ring.serve", "linger").expect("there").words(), "at most 100ms");
    }
}
