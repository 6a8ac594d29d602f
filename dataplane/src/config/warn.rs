//! What of a whole file `run` lives with, but is hardly meant: cores without work, keys that nobody looks at, groups twice.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;

use super::capture::{Idle, Record, SourceKind, Stamp, Through};
use super::check::{Finding, Findings};
use super::ledger::Listen;
use super::load::Config;

/// Every finding about a whole configuration that `run` lives with. `cpus` are those that this process may run on, which is only
/// of use on the host that the file is for.
pub fn warn_whole(config: &Config, cpus: &[usize]) -> Vec<Finding> {
    let mut warnings = Findings::default();
    warn_cores(config, cpus, &mut warnings);
    warn_capture(config, &mut warnings);
    warn_groups(config, &mut warnings);
    if config.process.group.is_some() && config.process.user.is_none() {
        warnings.add("process: group", "is given without user: it is not looked at; name the user, or remove it");
    }
    let listen = Listen::Address(config.control.listen);
    if config.control.insecure && listen.is_loopback() {
        warnings.add(
            "control: insecure",
            format!("is true, but \"{listen}\" needs no exception: remove it, so that a later change is refused"),
        );
    }
    warnings.0
}

/// The cores that a worker names.
fn with_work(config: &Config) -> BTreeSet<&str> {
    let mut cores = BTreeSet::new();
    for interface in &config.interfaces {
        let count = match interface.queues {
            0 => interface.cores.len(),
            queues => interface.cores.len().min(queues as usize),
        };
        cores.extend(interface.cores[..count].iter().map(String::as_str));
    }
    for feed in &config.feeds {
        cores.insert(feed.core.as_str());
        if feed.is_files() {
            cores.extend(feed.sides.first().and_then(|side| side.core.as_deref()));
        }
    }
    cores.extend(config.stores.iter().map(|store| store.core.as_str()));
    cores.extend(config.ring.serves.iter().map(|serve| serve.core.as_str()));
    cores.extend(config.ring.mirrors.iter().map(|mirror| mirror.core.as_str()));
    if let Some(serve) = &config.ledger.serve {
        cores.extend([serve.core.as_str(), serve.source_core()]);
        cores.extend(serve.encoder_cores());
    }
    cores
}

/// Whether a worker names the core.
pub fn has_work(config: &Config, core: &str) -> bool {
    with_work(config).contains(core)
}

fn warn_cores(config: &Config, cpus: &[usize], warnings: &mut Findings) {
    let used = with_work(config);
    for core in &config.cores {
        if !used.contains(core.name.as_str()) {
            warnings.add(
                format!("core \"{}\"", core.name),
                "has no worker, and is not started: name it where it is meant, or remove it",
            );
        }
    }
    let left = cpus.iter().any(|cpu| config.cores.iter().all(|core| core.cpu != *cpu));
    let spinning = config.cores.iter().find(|core| core.idle == Idle::Spin && used.contains(core.name.as_str()));
    if let (false, Some(core)) = (left, spinning) {
        warnings.add(
            format!("core \"{}\": idle", core.name),
            format!(
                "is \"spin\", and no CPU of {cpus:?} is left without a [[core]]: control, files' threads and the kernel's workers wait for slices of it; leave one CPU out, or use \"park\""
            ),
        );
    }
}

fn warn_capture(config: &Config, warnings: &mut Findings) {
    for store in &config.stores {
        if !config.feeds.iter().any(|feed| feed.store.as_deref() == Some(store.name.as_str())) {
            warnings.add(
                format!("store \"{}\"", store.name),
                "no feed is written to it: name it in a [[feed]] as store, or remove it",
            );
        }
    }
    for interface in &config.interfaces {
        let libpcap = interface.through == Through::Libpcap;
        let of_xdp = interface.huge_pages || interface.replace || interface.stamp != Stamp::Software;
        if libpcap && of_xdp {
            warnings.add(
                format!("interface \"{}\": through", interface.name),
                "is \"libpcap\": huge_pages, replace and stamp belong to AF_XDP and are not looked at",
            );
        }
    }
    for feed in &config.feeds {
        if feed.store.is_none() && feed.record != Record::Merged {
            warnings.add(
                format!("feed \"{}\": record", feed.name),
                "is given, but the feed has no store: nothing is recorded",
            );
        }
        for side in &feed.sides {
            let keys = match side.source {
                SourceKind::AfXdp => [("file", side.file.is_some()), ("core", side.core.is_some())],
                SourceKind::File => [("interface", side.interface.is_some()), ("", false)],
            };
            for (key, _) in keys.iter().filter(|(_, given)| *given) {
                let kind = if side.source == SourceKind::File { "file" } else { "af_xdp" };
                warnings.add(
                    format!("feed \"{}\" side \"{}\": {key}", feed.name, side.name),
                    format!("is given, but source is \"{kind}\": it is not looked at"),
                );
            }
        }
        let readers: BTreeSet<&str> = feed.sides.iter().filter_map(|side| side.core.as_deref()).collect();
        if let (true, 2.., Some(first)) = (feed.is_files(), readers.len(), feed.sides[0].core.as_deref()) {
            warnings.add(
                format!("feed \"{}\": side", feed.name),
                format!(
                    "names {} cores, but one worker merges all files, on the first side's \"{first}\"",
                    readers.len()
                ),
            );
        }
    }
}

/// The same group and port in two feeds, or sent and captured by one process: seldom what is meant.
fn warn_groups(config: &Config, warnings: &mut Findings) {
    let mut feeds: BTreeMap<SocketAddrV4, &str> = BTreeMap::new();
    for feed in &config.feeds {
        for group in feed.sides.iter().flat_map(|side| &side.groups) {
            let Ok(address) = group.parse() else { continue };
            match feeds.get(&address) {
                Some(other) if *other != feed.name => warnings.add(
                    format!("feed \"{}\": groups", feed.name),
                    format!("{group} is feed \"{other}\"'s too, on another interface: both would have every message"),
                ),
                Some(_) => {}
                None => drop(feeds.insert(address, &feed.name)),
            }
        }
    }
    for serve in &config.ring.serves {
        if let Some((group, feed)) = serve.multicast.and_then(|group| Some((group, feeds.get(&group)?))) {
            warnings.add(
                format!("ring.serve \"{}\": multicast", serve.name),
                format!("{group} is also captured by feed \"{feed}\": take another group or port"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{check, parse};

    const GOOD: &str = r#"
        [[core]]
        name = "c"
        cpu = 0
        [[core]]
        name = "d"
        cpu = 1
        [[interface]]
        name = "eth1"
        cores = ["c"]
        [[feed]]
        name = "x"
        protocol = "iex-tp"
        core = "c"
        store = "one"
        [[feed.side]]
        name = "A"
        interface = "eth1"
        groups = ["239.1.1.1:1"]
        [[store]]
        name = "one"
        path = "/data/one"
        core = "d"
    "#;

    #[test]
    fn what_is_hardly_meant_is_told_and_refused_by_nobody() {
        let cpus = [0, 1, 2];
        assert_eq!(warn_whole(&parse(GOOD).expect("parses"), &cpus), []);
        let more = |text: &str| format!("{GOOD}\n{text}");
        for (text, told) in [
            (more("[[core]]\nname = \"e\"\ncpu = 2"), "core \"e\": has no worker"),
            (more("[[store]]\nname = \"two\"\npath = \"/t\"\ncore = \"c\""), "store \"two\": no feed is written to it"),
            (
                GOOD.replace("cores = [\"c\"]", "cores = [\"c\"]\nqueues = 1\n[[core]]\nname = \"e\"\ncpu = 2"),
                "core \"e\": has no worker",
            ),
            (
                GOOD.replace("interface = \"eth1\"", "interface = \"eth1\"\nfile = \"/x\""),
                "feed \"x\" side \"A\": file: is given, but source is \"af_xdp\"",
            ),
            (
                GOOD.replace("store = \"one\"", "record = \"raw\""),
                "feed \"x\": record: is given, but the feed has no store",
            ),
            (more("[process]\ngroup = \"sluice\""), "process: group: is given without user"),
            (
                more("[control]\ninsecure = true"),
                "control: insecure: is true, but \"127.0.0.1:9480\" needs no exception",
            ),
            (
                more(
                    "[[ring.serve]]\nname = \"s\"\ncore = \"c\"\nring = \"/r\"\nbind = \"127.0.0.1:1\"\nmulticast = \"239.1.1.1:1\"",
                ),
                "ring.serve \"s\": multicast: 239.1.1.1:1 is also captured by feed \"x\"",
            ),
        ] {
            let config = parse(&text).expect("parses");
            assert_eq!(check(&config), [], "{told}");
            let warnings: Vec<String> = warn_whole(&config, &cpus).iter().map(ToString::to_string).collect();
            assert!(warnings.iter().any(|warning| warning.contains(told)), "{told}: {warnings:#?}");
        }
    }

    #[test]
    fn a_core_that_spins_leaves_a_cpu_to_the_rest() {
        let spin = GOOD.replace("cpu = 0", "cpu = 0\nidle = \"spin\"");
        let told = |cpus: &[usize]| warn_whole(&parse(&spin).expect("parses"), cpus).len();
        assert_eq!((told(&[0, 1, 2]), told(&[0, 1])), (0, 1));
    }

    #[test]
    fn the_same_group_in_two_feeds_is_told_once() {
        let two = format!(
            "{GOOD}\n[[interface]]\nname = \"eth2\"\ncores = [\"c\"]\n[[feed]]\nname = \"y\"\nprotocol = \"iex-tp\"\ncore = \"c\"\n\
             [[feed.side]]\nname = \"A\"\ninterface = \"eth2\"\ngroups = [\"239.1.1.1:1\"]"
        );
        let config = parse(&two).expect("parses");
        assert_eq!(check(&config), []);
        let told = warn_whole(&config, &[0, 1, 2]);
        assert!(told.len() == 1 && told[0].what.contains("feed \"x\"'s too"), "{told:?}");
    }
}
