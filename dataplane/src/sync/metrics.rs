//! Metrics: what the jobs export, collected on the control thread from counters that the workers own.

use std::sync::Arc;

use super::health::Sign;

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

/// What a metric is: its line in the reference. A job's samples are made from its table of these, so that none is without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// Its name without `_total`.
    pub name: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// Its labels, in the order of its samples.
    pub labels: &'static [&'static str],
    /// One line of help.
    pub help: &'static str,
    /// The identities of the conservation table in which it is a term.
    pub identities: &'static [&'static str],
}

impl Metric {
    /// One that only grows.
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
        Metric { name, kind: Kind::Counter, labels, help, identities: &[] }
    }

    /// One that goes up and down.
    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
        Metric { name, kind: Kind::Gauge, labels, help, identities: &[] }
    }

    /// The same, as a term of these identities.
    pub const fn in_identities(self, identities: &'static [&'static str]) -> Metric {
        Metric { identities, ..self }
    }

    /// A sample of it; `values` are its labels', in their order.
    pub fn sample(&self, values: &[&str], value: f64) -> Sample {
        assert_eq!(values.len(), self.labels.len(), "{} has the labels {:?}", self.name, self.labels);
        let labels = self.labels.iter().zip(values).map(|(label, value)| (*label, (*value).to_string())).collect();
        Sample { name: self.name, help: self.help, kind: self.kind, labels, value }
    }

    /// Its name as it is scraped.
    pub fn scraped_name(&self) -> String {
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{total}", self.name)
    }

    /// What is counted or measured: the name's last word. `0 or 1` where it answers a question.
    pub fn unit(&self) -> &'static str {
        if self.kind == Kind::Gauge && self.help.starts_with("Whether") {
            return "0 or 1";
        }
        match self.name.rsplit('_').next().unwrap_or(self.name) {
            "second" => "bytes per second",
            "empty" => "times",
            "info" | "ratio" => "none",
            last => last,
        }
    }
}

/// What a job shows of itself: its samples and its part of `/status`.
pub trait Source: Send + Sync {
    /// The samples of this instant.
    fn samples(&self, out: &mut Vec<Sample>);
    /// The job's part of `/status`: (key, value).
    fn status(&self) -> (&'static str, serde_json::Value);
    /// `/report`: the data quality of the day that is not over; one source of the process has it.
    fn report(&self) -> Option<serde_json::Value> {
        None
    }
    /// The signs of trouble of this instant (`now`: monotonic ns). It is asked a few times a second.
    fn health(&self, _now: i64, _out: &mut Vec<Sign>) {}
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

    /// All signs of trouble.
    pub fn health(&self, now: i64) -> Vec<Sign> {
        let mut signs = Vec::new();
        for source in &self.0 {
            source.health(now, &mut signs);
        }
        signs
    }

    /// The parts of `/status`.
    pub fn status(&self) -> serde_json::Map<String, serde_json::Value> {
        self.0.iter().map(|source| source.status()).map(|(key, value)| (key.to_string(), value)).collect()
    }

    /// The answer to `/report`, where a source has one.
    pub fn report(&self) -> Option<serde_json::Value> {
        self.0.iter().find_map(|source| source.report())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_tells_its_name_unit_and_labels() {
        let lost =
            Metric::counter("sluice_store_lost_records", &["store", "reason"], "Records that could not be stored");
        assert_eq!((lost.scraped_name().as_str(), lost.unit()), ("sluice_store_lost_records_total", "records"));
        let sample = lost.sample(&["main", "no_space"], 3.0);
        assert_eq!(sample.labels, [("store", "main".to_string()), ("reason", "no_space".to_string())]);
        let full = Metric::gauge("sluice_store_full", &["store"], "Whether it is full");
        assert_eq!((full.scraped_name().as_str(), full.unit()), ("sluice_store_full", "0 or 1"));
        assert!(std::panic::catch_unwind(|| full.sample(&[], 1.0)).is_err(), "a sample without its label");
    }
}
