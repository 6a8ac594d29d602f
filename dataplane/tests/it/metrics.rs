//! The metrics' table and what is scraped are the same: a process with every job is started, and neither has what the other lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use sluice::capture::links::Links;
use sluice::capture::status::{CaptureStatus, InterfaceMode, XdpQueue};
use sluice::cli::{metrics, stat};
use sluice::feed::generate::{Product, Settings};
use sluice::feed::split::SideSplit;
use sluice::sync::metrics::{Kind, Metric, Sources};

use crate::common::mirrors::{Shm, Sluice, tcp_address, udp_port, until};
use crate::common::pipeline::{sides, write_pcap};

/// What a scrape shows: each metric's kind and the sets of labels of its samples.
#[derive(Default)]
struct Scrape(BTreeMap<String, (String, BTreeSet<Vec<String>>)>);

impl Scrape {
    fn take(&mut self, text: &str) {
        let mut name = String::new();
        for line in text.lines() {
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (metric, kind) = kind.split_once(' ').expect("a name and a kind");
                name = metric.to_string();
                self.0.entry(name.clone()).or_default().0 = kind.to_string();
            } else if !line.starts_with('#') {
                let labels = line.split_once('{').map_or("", |(_, rest)| rest.split_once('}').expect("closed").0);
                // No label of the tests holds a comma.
                let names = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0.to_string()));
                self.0.get_mut(&name).expect("a type before its samples").1.insert(names.collect());
            }
        }
    }

    /// The samples of a source, without a server.
    fn take_sources(&mut self, sources: &Sources) {
        for sample in sources.samples() {
            let kind = if sample.kind == Kind::Counter { "counter" } else { "gauge" };
            let entry = self.0.entry(sample.name.to_string()).or_default();
            entry.0 = kind.to_string();
            entry.1.insert(sample.labels.iter().map(|(name, _)| (*name).to_string()).collect());
        }
    }
}

/// A feed of two files that is stored and published, its ring served and mirrored, a server of ledgers.
fn everything(folder: &Path, control: &str, ledgers: &str, rings: [&Shm; 2]) -> String {
    let split = [
        SideSplit { loss: 0.05, ..SideSplit::default() },
        SideSplit { loss: 0.05, delay_ns: 15_000, ..SideSplit::default() },
    ];
    let made = sides(&Settings { idle_every: 0, ..Settings::new(Product::Deep, 2_000, 7) }, 7, &split);
    let mut text = format!(
        "[[core]]\nname = \"all\"\ncpu = 0\n[control]\nlisten = \"{control}\"\n[report]\ndir = \"{0}/reports\"\n\
         [[store]]\nname = \"main\"\npath = \"{0}/store\"\ncore = \"all\"\nsegment = \"1MiB\"\nblock = \"128KiB\"\ndirect = false\n\
         [[feed]]\nname = \"deep\"\nprotocol = \"iex-tp\"\ncore = \"all\"\nstore = \"main\"\npublish = \"{1}\"\n",
        folder.display(),
        rings[0].text()
    );
    for (name, packets) in ["a", "b"].iter().zip(&made.packets) {
        let file = folder.join(format!("{name}.pcap"));
        write_pcap(&file, packets);
        let file = file.display();
        text += &format!("[[feed.side]]\nname = \"{name}\"\nsource = \"file\"\nfile = \"{file}\"\ncore = \"all\"\n");
    }
    let (serve, udp) = (tcp_address(), udp_port());
    text += &format!(
        "[[ring.serve]]\nname = \"out\"\ncore = \"all\"\nring = \"{}\"\nbind = \"{serve}\"\nudp = {udp}\n\
         [[ring.mirror]]\nname = \"in\"\ncore = \"all\"\nsource = \"{serve}\"\nring = \"{}\"\nunicast = true\nfrom = \"oldest\"\n\
         [ledger.serve]\ncore = \"all\"\nlisten = \"{ledgers}\"\nsource = \"synthetic\"\nsynthetic_interval = \"100ms\"\n\
         data_dir = \"{}/ledgers\"\nsegment_bytes = \"16MiB\"\n",
        rings[0].text(),
        rings[1].text(),
        folder.display()
    );
    text
}

/// A relay of the server above.
fn relay(folder: &Path, control: &str, ledgers: &str) -> String {
    format!(
        "[[core]]\nname = \"all\"\ncpu = 0\n[control]\nlisten = \"{control}\"\n[ledger.serve]\ncore = \"all\"\n\
         listen = \"{}\"\nsource = \"follow\"\nupstream = \"ws://{ledgers}\"\ndata_dir = \"{}/relayed\"\nsegment_bytes = \"16MiB\"\n",
        tcp_address(),
        folder.display()
    )
}

fn start(folder: &Path, name: &str, text: &str) -> Sluice {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("writes");
    Sluice::start(&["run", path.to_str().expect("ASCII")])
}

/// What only a captured interface has.
fn interface_samples(scrape: &mut Scrape) {
    let frames = || vec![XdpQueue { interface: "eth1".into(), queue: 0, counts: vec![("redirected", 7)] }];
    let mode = InterfaceMode { interface: "eth1".into(), xdp: "native".into(), ..InterfaceMode::default() };
    let damage = Arc::new(Mutex::new(Vec::new()));
    let (none, books) = (Vec::new(), Box::new(Vec::new));
    let capture = CaptureStatus::new(Vec::new(), Vec::new(), none, damage, Box::new(frames), vec![mode], books);
    let mut sources = Sources::default();
    sources.add(Arc::new(capture));
    sources.add(Arc::new(Links::new([("eth1".to_string(), true)])));
    scrape.take_sources(&sources);
}

#[test]
fn what_is_scraped_is_what_the_table_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let (control, other, ledgers) = (tcp_address(), tcp_address(), tcp_address());
    let rings = [Shm::new("published"), Shm::new("mirrored")];
    let text = everything(folder.path(), &control, &ledgers, [&rings[0], &rings[1]]);
    let whole = start(folder.path(), "whole.toml", &text);
    let relayed = start(folder.path(), "relay.toml", &relay(folder.path(), &other, &ledgers));
    let table: Vec<Metric> = metrics::table().into_iter().flat_map(|(_, metrics)| metrics).collect();
    let mut scrape = Scrape::default();
    interface_samples(&mut scrape);
    // Some are there only after a while: a first datagram, a first chunk, a first stream.
    until("every metric", || {
        for address in [&control, &other] {
            let address: SocketAddr = address.parse().expect("an address");
            scrape.take(&stat::get(address, "/metrics").unwrap_or_default());
        }
        let missing = table.iter().filter(|metric| !scrape.0.contains_key(metric.name)).count();
        (missing == 0).then_some(()).or_else(|| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            None
        })
    });
    for (name, (kind, labels)) in &scrape.0 {
        let metric = table.iter().find(|metric| metric.name == name);
        let metric = metric.unwrap_or_else(|| panic!("{name} is scraped and not in the table"));
        assert_eq!(kind, if metric.kind == Kind::Counter { "counter" } else { "gauge" }, "{name}");
        let wanted: Vec<String> = metric.labels.iter().map(|label| (*label).to_string()).collect();
        assert_eq!(labels.iter().collect::<Vec<_>>(), [&wanted], "{name}");
    }
    assert_eq!(relayed.terminate(), Some(0));
    assert_eq!(whole.terminate(), Some(0));
}
