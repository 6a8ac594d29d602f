//! Lines that `sluice stat` and `sluice top` have in common: a piece of a status in words.

use serde_json::Value;

use super::fields::{items, number, word};
use super::top_view::{bytes, grouped, lasting};

/// The process: who it is, and what it takes of the host.
pub fn process(status: &Value) -> Option<String> {
    let process = &status["process"];
    let pid = process["pid"].as_u64()?;
    let user = match (process["user"].as_str(), process["user_id"].as_u64()) {
        (Some(name), _) => name.to_string(),
        (None, Some(id)) => id.to_string(),
        (None, None) => "–".into(),
    };
    let up = number(&status["appliance"]["uptime_seconds"]);
    Some(format!(
        "process {pid} of user {user}, version {}, up {}; {} resident, {} threads, {} of {} descriptors",
        word(&process["version"]),
        lasting(up),
        bytes(number(&process["resident_bytes"]) as f64),
        grouped(number(&process["threads"])),
        grouped(number(&process["descriptors"])),
        grouped(number(&process["descriptors_max"])),
    ))
}

/// The wall clock, and whether it is as it should be.
pub fn clock(status: &Value) -> Option<(String, bool)> {
    let clock = &status["process"]["clock"];
    clock["steps"].as_u64()?;
    let kept = match clock["synchronized"].as_bool() {
        Some(true) => "synchronised",
        Some(false) => "NOT SYNCHRONISED",
        None => "state not known (adjtimex is refused)",
    };
    let error = |key: &str| clock[key].as_f64().map(|seconds| super::tables::nanos((seconds * 1e9) as i64));
    let off = match (error("estimated_error_seconds"), error("maximum_error_seconds")) {
        (Some(estimated), Some(maximum)) => format!(", off by {estimated}, at most {maximum}"),
        _ => String::new(),
    };
    let tai = match clock["tai_offset_known"].as_bool() {
        Some(true) => format!("TAI - UTC {} s", clock["tai_offset_seconds"]),
        _ => "TAI - UTC not set".into(),
    };
    let steps = match number(&clock["steps"]) {
        0 => "never stepped".into(),
        steps => format!("stepped {steps} times, last by {} s", clock["last_step_seconds"]),
    };
    Some((format!("clock {kept}{off}; {tai}; {steps}"), clock["synchronized"] == true))
}

/// What retention keeps of a store.
pub fn kept(store: &Value) -> Option<String> {
    let kept = store["kept_bytes"].as_u64()?;
    let size = |key: &str| bytes(number(&store[key]) as f64);
    Some(format!(
        "{} segments kept, {} on the disk; {} of {} free; {} deleted by retention",
        grouped(number(&store["kept_segments"])),
        bytes(kept as f64),
        size("free_bytes"),
        size("total_bytes"),
        size("deleted_bytes"),
    ))
}

/// The bounds of a store, by their names in the configuration.
pub fn store_bounds(store: &Value) -> Option<String> {
    let bounds = &store["bounds"];
    bounds.is_object().then(|| {
        format!(
            "bounds: retain {}, retain_age {}, free_min {}",
            size(&bounds["bytes_max"]),
            age(&bounds["age_seconds_max"]),
            size(&bounds["free_bytes_min"])
        )
    })
}

/// The bounds of the kept ledgers, by their names in the configuration.
pub fn ledger_bounds(ledger: &Value) -> Option<String> {
    let bounds = &ledger["bounds"];
    bounds.is_object().then(|| {
        format!(
            "bounds: retention {}, retention_bytes {}, retention_age {}",
            grouped(number(&bounds["ledgers_max"])),
            size(&bounds["bytes_max"]),
            age(&bounds["age_seconds_max"])
        )
    })
}

fn size(bound: &Value) -> String {
    bound.as_u64().map_or_else(|| "none".into(), |bound| bytes(bound as f64))
}

fn age(bound: &Value) -> String {
    bound.as_f64().map_or_else(|| "none".into(), |seconds| lasting(seconds as u64))
}

/// How far the subscribers of the ledgers are behind.
pub fn subscriber_lag(ledger: &Value) -> String {
    let [median, p99, slowest] = ["median_lag", "p99_lag", "slowest_lag"].map(|key| grouped(number(&ledger[key])));
    format!("lag of subscribers: median {median}, p99 {p99}, slowest {slowest} ledgers")
}

/// How far the registered readers of each ring of this process are behind, where they are known: (ring, line).
pub fn reader_lags(status: &Value) -> Vec<(&str, String)> {
    let rings = items(&status["ring"]["published"]).iter().chain(items(&status["ring"]["mirror"]));
    let line = |ring: &'_ Value| {
        let lag = grouped(ring["slowest_reader_lag"].as_u64()?);
        let readers = number(&ring["readers"]);
        let lag = if readers == 0 { String::new() } else { format!(", the slowest {lag} records behind") };
        Some(format!("{readers} registered readers{lag}"))
    };
    rings.filter_map(|ring| Some((word(&ring["ring"]), line(ring)?))).collect()
}

/// A row of bars: a histogram's non-empty buckets (edge in ns, count), as many of them joined as the columns ask for.
pub fn bars(buckets: &Value, columns: usize) -> Option<String> {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let buckets = items(buckets);
    let (first, last) = (buckets.first()?, buckets.last()?);
    let joined = buckets.len().div_ceil(columns.max(1)).max(1);
    let sums: Vec<u64> =
        buckets.chunks(joined).map(|part| part.iter().map(|bucket| number(&bucket[1])).sum()).collect();
    let highest = sums.iter().copied().max()?.max(1);
    // What is not empty shows.
    let bar =
        |sum: &u64| HEIGHTS[(u128::from(*sum) * 8).div_ceil(u128::from(highest)).saturating_sub(1).min(7) as usize];
    let edge = |bucket: &Value| super::tables::bucketed(bucket[0].as_i64().unwrap_or(0));
    Some(format!("{} {} {}", edge(first), sums.iter().map(bar).collect::<String>(), edge(last)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::histogram::LONGEST_NS;
    use serde_json::json;

    #[test]
    fn bars_show_every_bucket_and_fit() {
        let buckets = json!([[1_000, 1], [2_000, 8], [20_000, 4]]);
        assert_eq!(bars(&buckets, 40).as_deref(), Some("1000 ns ▁█▄ 20.0 µs"));
        assert_eq!(bars(&json!([[0, 1], [1, 1], [2, 6], [3, 2]]), 2).as_deref(), Some("0 ns ▂█ 3 ns"));
        let many: Vec<Value> = (0..1_000).map(|edge| json!([edge, u64::MAX / 1_000])).collect();
        let row = bars(&many.into(), 30).expect("bars");
        assert!(row.chars().filter(|bar| *bar == '█').count() == 30 || row.chars().count() <= 30 + 20, "{row}");
        let longest = bars(&json!([[5, 1], [LONGEST_NS, 1]]), 10);
        assert_eq!(longest.as_deref(), Some("5 ns ██ > 4398.0 s"), "its upper edge is not known");
        assert_eq!(bars(&json!([]), 10), None);
        assert_eq!(bars(&Value::Null, 10), None);
    }

    #[test]
    fn bounds_are_told_by_their_keys() {
        let store = json!({"bounds": {"bytes_max": 64 << 20, "age_seconds_max": null, "free_bytes_min": 1 << 30}});
        assert_eq!(store_bounds(&store).as_deref(), Some("bounds: retain 64 MiB, retain_age none, free_min 1.0 GiB"));
        let ledger = json!({"bounds": {"ledgers_max": 10_000, "bytes_max": null, "age_seconds_max": 172_800.0}});
        let told = "bounds: retention 10,000, retention_bytes none, retention_age 2 days";
        assert_eq!(ledger_bounds(&ledger).as_deref(), Some(told));
        assert_eq!((store_bounds(&json!({})), kept(&json!({}))), (None, None), "another version's status");
    }

    #[test]
    fn a_clock_that_cannot_be_read_is_not_called_good() {
        let clock_of = |told: Value| clock(&json!({"process": {"clock": told}}));
        let good = json!({"steps": 0, "synchronized": true, "tai_offset_known": true, "tai_offset_seconds": 37,
            "estimated_error_seconds": 0.000_012, "maximum_error_seconds": 0.25});
        let told = "clock synchronised, off by 12.0 µs, at most 250.0 ms; TAI - UTC 37 s; never stepped";
        assert_eq!(clock_of(good), Some((told.into(), true)));
        let refused = json!({"steps": 2, "last_step_seconds": -1.5, "synchronized": null, "tai_offset_known": false});
        let told = "clock state not known (adjtimex is refused); TAI - UTC not set; stepped 2 times, last by -1.5 s";
        assert_eq!(clock_of(refused), Some((told.into(), false)));
        assert_eq!(clock(&json!({})), None);
    }

    #[test]
    fn lags_are_told_where_they_are_known() {
        let status = json!({"ring": {
            "published": [
                {"ring": "/dev/shm/a", "readers": 2, "slowest_reader_lag": 1_500}, {"ring": "/dev/shm/gone", "readers": null},
            ],
            "mirror": [{"ring": "/dev/shm/b", "readers": 0, "slowest_reader_lag": 0}],
        }});
        let told = [
            ("/dev/shm/a", "2 registered readers, the slowest 1,500 records behind".to_string()),
            ("/dev/shm/b", "0 registered readers".to_string()),
        ];
        assert_eq!(reader_lags(&status), told);
        let ledger = json!({"median_lag": 0, "p99_lag": 3, "slowest_lag": 1_200});
        assert_eq!(subscriber_lag(&ledger), "lag of subscribers: median 0, p99 3, slowest 1,200 ledgers");
    }
}
