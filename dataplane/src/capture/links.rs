//! The links of the captured interfaces: whether they are up, and how often that changed. The control thread writes, what
//! answers a scrape reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::sync::metrics::{Metric, Sample, Source};

const UP: Metric =
    Metric::gauge("sluice_capture_link_up", &["interface"], "Whether the captured interface is up and has a carrier");
const CHANGES: Metric =
    Metric::counter("sluice_capture_link_changes", &["interface"], "Times that the interface went up or down");

/// Every metric of the links.
pub fn metrics() -> Vec<Metric> {
    vec![UP, CHANGES]
}

struct Link {
    interface: String,
    up: AtomicBool,
    changes: AtomicU64,
}

/// The captured interfaces' links.
pub struct Links(Vec<Link>);

impl Links {
    /// The links as they are: (interface as configured, up).
    pub fn new(interfaces: impl IntoIterator<Item = (String, bool)>) -> Links {
        let link = |(interface, up)| Link { interface, up: AtomicBool::new(up), changes: AtomicU64::new(0) };
        Links(interfaces.into_iter().map(link).collect())
    }

    /// Notes a link's state; whether that is another than before. One thread writes.
    pub fn set(&self, interface: &str, up: bool) -> bool {
        let Some(link) = self.0.iter().find(|link| link.interface == interface) else { return false };
        let changed = link.up.swap(up, Ordering::Relaxed) != up;
        link.changes.fetch_add(u64::from(changed), Ordering::Relaxed);
        changed
    }
}

impl Source for Links {
    fn samples(&self, out: &mut Vec<Sample>) {
        for link in &self.0 {
            let up = f64::from(u8::from(link.up.load(Ordering::Relaxed)));
            out.push(UP.sample(&[&link.interface], up));
            out.push(CHANGES.sample(&[&link.interface], link.changes.load(Ordering::Relaxed) as f64));
        }
    }

    fn status(&self) -> (&'static str, Value) {
        let link = |link: &Link| {
            json!({
                "interface": link.interface, "up": link.up.load(Ordering::Relaxed),
                "changes": link.changes.load(Ordering::Relaxed),
            })
        };
        ("links", self.0.iter().map(link).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_counts() {
        let links = Links::new([("eth1".to_string(), true), ("eth2".to_string(), false)]);
        assert!(!links.set("eth1", true), "as before");
        assert!(links.set("eth1", false));
        assert!(!links.set("eth1", false), "told again");
        assert!(links.set("eth1", true));
        assert!(!links.set("eth3", true), "not captured");
        let mut samples = Vec::new();
        links.samples(&mut samples);
        let values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
        assert_eq!(values, [1.0, 2.0, 0.0, 0.0]);
    }
}
