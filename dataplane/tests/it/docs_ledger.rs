//! The operator's page of the ledger server names metrics that exist.

use std::collections::BTreeSet;

use sluice::ledger::stats::{EncodeCounter, FanoutCounter, RelayCounter, SourceCounter};

#[test]
fn the_metrics_of_the_page_exist() {
    let page = include_str!("../../../docs/operating/ledger.md");
    let mut metrics: BTreeSet<&str> = BTreeSet::new();
    metrics.extend(SourceCounter::ALL.iter().map(|shown| shown.metric));
    metrics.extend(EncodeCounter::ALL.iter().map(|shown| shown.metric));
    metrics.extend(RelayCounter::ALL.iter().map(|shown| shown.metric));
    metrics.extend(FanoutCounter::ALL.iter().map(|shown| shown.metric));
    // Made of two of them when it is asked for.
    metrics.insert("sluice_ledger_compression_ratio");
    let name = |c: char| c.is_ascii_lowercase() || c == '_';
    let mut named = 0;
    for part in page.split("sluice_ledger_").skip(1) {
        let end = part.find(|c| !name(c)).unwrap_or(part.len());
        let metric = format!("sluice_ledger_{}", &part[..end]);
        assert!(
            metrics.contains(metric.trim_end_matches("_total")),
            "{metric} of docs/operating/ledger.md is no metric"
        );
        named += 1;
    }
    assert!(named > 15, "{named}");
}
