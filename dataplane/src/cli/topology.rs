//! What the appliance is made of, for the status page and `sluice top`: cores with their workers, nodes, and what flows
//! from which to which. It is fixed at the start; the numbers are in the jobs' own parts of the status.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::capture::plan::QueueCounts;
use crate::config::{Config, LedgerSource, SourceKind};
use crate::runtime::health::core_signs;
use crate::runtime::launch::Pulse;
use crate::sync::health::Sign;
use crate::sync::metrics::{Sample, Source};
use crate::sys::clock;

/// The process's own part of the status, and its cores' health.
pub struct Topology {
    fixed: Value,
    started_ns: i64,
    pulses: Vec<Pulse>,
    stall: Duration,
}

impl Topology {
    /// From the configuration, the queues that the host has, and the workers as (core, name).
    pub fn new(config: &Config, queues: &QueueCounts, workers: &[(&str, &str)]) -> Topology {
        let mut graph = Graph::default();
        graph.capture(config, queues);
        graph.rings(config);
        graph.ledger(config);
        let cores: Vec<Value> = config
            .cores
            .iter()
            .map(|core| {
                let own = workers.iter().filter(|(of, _)| *of == core.name).map(|(_, name)| *name);
                json!({"name": core.name, "cpu": core.cpu, "idle": core.idle, "workers": own.collect::<Vec<_>>()})
            })
            .collect();
        let fixed = json!({
            "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id(),
            "started_utc_ms": clock::utc_ns() / 1_000_000,
            "cores": cores, "nodes": graph.nodes, "edges": graph.edges,
        });
        Topology { fixed, started_ns: clock::monotonic_ns(), pulses: Vec::new(), stall: Duration::MAX }
    }

    /// The same with the started cores' pulses, which `stall` bounds.
    #[must_use]
    pub fn watching(self, pulses: &[Pulse], stall: Duration) -> Topology {
        Topology { pulses: pulses.to_vec(), stall, ..self }
    }
}

impl Source for Topology {
    fn samples(&self, _out: &mut Vec<Sample>) {}

    fn status(&self) -> (&'static str, Value) {
        let mut status = self.fixed.clone();
        status["uptime_seconds"] = json!((clock::monotonic_ns() - self.started_ns) / 1_000_000_000);
        ("appliance", status)
    }

    fn health(&self, _now: i64, out: &mut Vec<Sign>) {
        core_signs(&self.pulses, self.stall, out);
    }
}

/// Nodes in columns from left to right: what comes in, what orders it, what keeps it, what passes it on.
#[derive(Default)]
struct Graph {
    nodes: Vec<Value>,
    edges: Vec<(String, String)>,
}

impl Graph {
    fn node(&mut self, id: &str, kind: &str, column: u8, name: &str, core: Option<&str>) {
        if !self.nodes.iter().any(|node| node["id"] == id) {
            self.nodes.push(json!({"id": id, "kind": kind, "column": column, "name": name, "core": core}));
        }
    }

    fn edge(&mut self, from: &str, to: &str) {
        self.edges.push((from.into(), to.into()));
    }

    fn capture(&mut self, config: &Config, queues: &QueueCounts) {
        for interface in &config.interfaces {
            for queue in 0..queues.get(&interface.name).copied().unwrap_or(interface.queues) {
                let id = format!("queue {} {queue}", interface.name);
                let core = interface.cores.get(queue as usize % interface.cores.len().max(1)).map(String::as_str);
                self.node(&id, "queue", 0, &format!("{} queue {queue}", interface.name), core);
                for feed in &config.feeds {
                    if feed.sides.iter().any(|side| side.interface.as_deref() == Some(&interface.name)) {
                        self.edge(&id, &format!("feed {}", feed.name));
                    }
                }
            }
        }
        for feed in &config.feeds {
            let id = format!("feed {}", feed.name);
            if feed.sides.iter().any(|side| side.source == SourceKind::File) {
                let files = format!("files {}", feed.name);
                let core = feed.sides[0].core.as_deref().unwrap_or(&feed.core);
                self.node(&files, "files", 0, &format!("files of {}", feed.name), Some(core));
                self.edge(&files, &id);
            }
            self.node(&id, "feed", 1, &feed.name, Some(&feed.core));
            if let Some(store) = &feed.store {
                self.edge(&id, &format!("store {store}"));
            }
            if let Some(ring) = &feed.publish {
                let ring = self.ring(ring);
                self.edge(&id, &ring);
            }
        }
        for store in &config.stores {
            self.node(&format!("store {}", store.name), "store", 2, &store.name, Some(&store.core));
        }
    }

    fn ring(&mut self, path: &Path) -> String {
        let id = format!("ring {}", path.display());
        self.node(&id, "ring", 2, &path.display().to_string(), None);
        id
    }

    fn rings(&mut self, config: &Config) {
        for mirror in &config.ring.mirrors {
            let (id, peer) = (format!("mirror {}", mirror.name), format!("peer {}", mirror.source));
            self.node(&peer, "peer", 0, &mirror.source, None);
            self.node(&id, "mirror", 1, &mirror.name, Some(&mirror.core));
            let ring = self.ring(&mirror.ring);
            self.edge(&peer, &id);
            self.edge(&id, &ring);
        }
        for serve in &config.ring.serves {
            let id = format!("serve {}", serve.name);
            let ring = self.ring(&serve.ring);
            self.node(&id, "serve", 3, &serve.name, Some(&serve.core));
            self.edge(&ring, &id);
        }
    }

    fn ledger(&mut self, config: &Config) {
        let Some(serve) = &config.ledger.serve else { return };
        // Without the upstream's address, which may hold a secret; the ledger's own status shows it without.
        let (kind, name) = match serve.source {
            LedgerSource::Follow => ("relay", "upstream server".to_string()),
            _ => ("source", format!("{:?}", serve.source).to_lowercase()),
        };
        self.node("ledger source", kind, 0, &name, Some(serve.source_core()));
        self.node("ledger", "ledger", 3, "ledger.serve", Some(&serve.core));
        self.edge("ledger source", "ledger");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn what_flows_where_is_told_from_the_configuration() {
        let text = r#"
            core = [{ name = "one", cpu = 0 }]
            interface = [{ name = "eth1", cores = ["one"] }]
            store = [{ name = "main", path = "/var/lib/x", core = "one" }]
            [[feed]]
            name = "deep"
            protocol = "iex-tp"
            core = "one"
            store = "main"
            publish = "/dev/shm/deep"
            side = [{ name = "A", interface = "eth1", groups = ["239.0.0.1:1"] }]
            [[ring.serve]]
            name = "out"
            core = "one"
            ring = "/dev/shm/deep"
            bind = "0.0.0.0:7400"
            [[ring.mirror]]
            name = "in"
            core = "one"
            source = "10.0.0.5:7400"
            ring = "/dev/shm/deep"
            [ledger.serve]
            core = "one"
        "#;
        let config = config::parse(text).expect("a configuration");
        let queues = QueueCounts::from([("eth1".to_string(), 2)]);
        let topology = Topology::new(&config, &queues, &[("one", "rx eth1 queue 0"), ("two", "x")]);
        let (key, status) = topology.status();
        assert_eq!(key, "appliance");
        assert_eq!(status["cores"][0]["workers"], json!(["rx eth1 queue 0"]));
        let edges: Vec<(String, String)> = serde_json::from_value(status["edges"].clone()).expect("pairs");
        let shown: Vec<String> = edges.into_iter().map(|(from, to)| format!("{from} > {to}")).collect();
        assert_eq!(
            shown,
            [
                "queue eth1 0 > feed deep",
                "queue eth1 1 > feed deep",
                "feed deep > store main",
                "feed deep > ring /dev/shm/deep",
                "peer 10.0.0.5:7400 > mirror in",
                "mirror in > ring /dev/shm/deep",
                "ring /dev/shm/deep > serve out",
                "ledger source > ledger",
            ]
        );
        // Every end of an edge is a node, and a ring that two know is one node.
        let nodes = status["nodes"].as_array().expect("nodes");
        assert!(shown.iter().flat_map(|edge| edge.split(" > ")).all(|id| nodes.iter().any(|node| node["id"] == id)));
        assert_eq!(nodes.iter().filter(|node| node["kind"] == "ring").count(), 1);
    }
}
