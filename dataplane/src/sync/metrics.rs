//! Metrics: what the jobs export, collected on the control thread from counters that the workers own.

use std::sync::Arc;

/// Kind of a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// One sample: `sluice_<job>_<noun>_<unit>` (`_total` is added for counters), labels, value.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// The metric's name without `_total`.
    pub name: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// Labels, in a fixed order per name.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: f64,
}

/// What a job shows of itself: its samples and its part of `/status`.
pub trait Source: Send + Sync {
    /// The samples of this instant.
    fn samples(&self, out: &mut Vec<Sample>);
    /// The job's part of `/status`: (key, value).
    fn status(&self) -> (&'static str, serde_json::Value);
}

/// Every source of the process.
#[derive(Clone, Default)]
pub struct Sources(Vec<Arc<dyn Source>>);

impl Sources {
    /// Adds one.
    pub fn add(&mut self, source: Arc<dyn Source>) {
        self.0.push(source);
    }

    /// All samples, grouped by name in order of first appearance.
    pub fn samples(&self) -> Vec<Sample> {
        let mut samples = Vec::new();
        for source in &self.0 {
            source.samples(&mut samples);
        }
        let mut order: Vec<&'static str> = Vec::new();
        for sample in &samples {
            if !order.contains(&sample.name) {
                order.push(sample.name);
            }
        }
        samples.sort_by_key(|sample| order.iter().position(|name| *name == sample.name));
        samples
    }

    /// The parts of `/status`.
    pub fn status(&self) -> serde_json::Map<String, serde_json::Value> {
        self.0.iter().map(|source| source.status()).map(|(key, value)| (key.to_string(), value)).collect()
    }
}
