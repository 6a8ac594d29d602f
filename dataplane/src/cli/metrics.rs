//! The metrics' reference: the tables that the jobs make their samples from, as one page.

use std::fmt::Write;

use super::quality;
use crate::sync::metrics::{Kind, Metric};
use crate::{capture, ledger, ring, runtime, store};

/// Every metric, by job.
pub fn table() -> Vec<(&'static str, Vec<Metric>)> {
    let mut capture = capture::metrics::metrics();
    capture.extend(capture::links::metrics());
    vec![
        ("Process", runtime::vitals::metrics()),
        ("Health", runtime::health::metrics()),
        ("Capture", capture),
        ("Store", store::plan::metrics()),
        ("Report", quality::metrics()),
        ("Ring", ring::stats::metrics()),
        ("Ledger", ledger::stats::metrics()),
    ]
}

/// The identities that the metrics are terms of, in order of appearance.
fn identities(table: &[(&'static str, Vec<Metric>)]) -> Vec<&'static str> {
    let mut known = Vec::new();
    for identity in table.iter().flat_map(|(_, metrics)| metrics).flat_map(|metric| metric.identities) {
        if !known.contains(identity) {
            known.push(*identity);
        }
    }
    known
}

/// The page.
pub fn markdown() -> String {
    let table = table();
    let identities = identities(&table);
    let mut page = String::from(
        "# Metrics\n\n\
         Written by `cargo xtask docs` from the program itself; a check fails when it is stale.\n\n\
         `sluice run` answers a scrape at `[control] listen`, path `/metrics`, as OpenMetrics text. Counters begin at 0 with \
         the process. What is a state of the books (`gap_messages`, `side_lost_messages`, …) is a gauge, because a late copy \
         lowers it: use `delta`, not `rate`. A job that is not configured has no samples, and neither has what is not known \
         (the age of a datagram before the first has come).\n\n\
         ## Identities\n\n\
         The conservation table's identities, in messages or frames. Each term is counted by another worker; the number \
         stands beside the metrics that are terms of it. `sluice_capture_conservation_residue` is the sum of what does not \
         add up: in flight while running, 0 when drained.\n\n",
    );
    for (at, identity) in identities.iter().enumerate() {
        let _ = writeln!(page, "{}. {identity}", at + 1);
    }
    for (job, metrics) in &table {
        let _ = write!(page, "\n## {job}\n\n| metric | type | labels | unit | meaning | identity |\n");
        page.push_str("| --- | --- | --- | --- | --- | --- |\n");
        metrics.iter().for_each(|metric| row(metric, &identities, &mut page));
    }
    page
}

fn row(metric: &Metric, identities: &[&str], page: &mut String) {
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    };
    let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
    let number = |identity: &&str| identities.iter().position(|known| known == identity).map(|at| (at + 1).to_string());
    let numbers: Vec<String> = metric.identities.iter().filter_map(number).collect();
    let _ = writeln!(
        page,
        "| `{}` | {kind} | {} | {} | {} | {} |",
        metric.scraped_name(),
        labels.join(", "),
        metric.unit(),
        metric.help,
        numbers.join(", ")
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// As docs/operating/monitor.md tells them: feed, side, queue, stream, reason; and the name of what a metric is about.
    const LABELS: &[&str] = &[
        "feed",
        "side",
        "queue",
        "stream",
        "reason",
        "interface",
        "source",
        "xdp",
        "store",
        "serve",
        "mirror",
        "core",
        "version",
    ];

    #[test]
    fn names_labels_and_help_keep_to_the_rules() {
        let mut names = BTreeSet::new();
        for (job, metric) in table().into_iter().flat_map(|(job, metrics)| metrics.into_iter().map(move |m| (job, m))) {
            let name = metric.name;
            assert!(names.insert(name), "{name} is there twice");
            let prefixes: &[&str] = match job {
                "Process" => &["sluice_process_", "sluice_clock_", "sluice_core_", "sluice_log_"],
                "Health" => &["sluice_health_"],
                "Capture" => &["sluice_capture_"],
                "Store" => &["sluice_store_"],
                "Report" => &["sluice_report_"],
                "Ring" => &["sluice_ring_serve_", "sluice_ring_mirror_", "sluice_ring_published_"],
                _ => &["sluice_ledger_"],
            };
            assert!(prefixes.iter().any(|prefix| name.starts_with(prefix)), "{name} is of {job}");
            assert!(!name.ends_with("_total"), "{name}: the ending is added");
            let scaled =
                ["nano", "micro", "milli", "minutes", "hours", "kilo", "mega", "kib", "mib", "bits", "percent"];
            assert!(
                !name.split('_').any(|word| scaled.iter().any(|unit| word.starts_with(unit))),
                "{name}: Prometheus wants base units: seconds, bytes"
            );
            assert!(
                name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'),
                "{name}"
            );
            assert!(metric.labels.iter().all(|label| LABELS.contains(label)), "{name}: {:?}", metric.labels);
            assert!(!metric.help.is_empty() && !metric.help.ends_with('.') && !metric.help.contains('|'), "{name}");
        }
    }

    #[test]
    fn every_identity_of_the_table_has_its_terms() {
        use crate::capture::conservation::*;
        let known = identities(&table());
        let all = [REDIRECTED, RECEIVED, PASSED_ON, TAKEN, COUNTS, FRONTIER, PUBLISHED, HANDED, STORED];
        assert_eq!(known.iter().collect::<BTreeSet<_>>(), all.iter().collect::<BTreeSet<_>>());
        let page = markdown();
        assert!(page.contains("| `sluice_capture_frames_total` | counter | `source`, `queue` | frames |"), "{page}");
        assert!(page.contains("| `sluice_store_full` | gauge | `store` | 0 or 1 |"), "{page}");
    }
}
