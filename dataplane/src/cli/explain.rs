//! `sluice run --explain`: a configuration drawn: cores with their workers, links, memory, threads, descriptors, and what listens.

use std::fmt::Write;

use super::fields::counted;
use super::sums::{self, Kind};
use crate::config::{self, Config, Idle, LedgerSource, Record, SourceKind, Through};

/// The drawing.
pub fn explain(config: &Config) -> String {
    let mut text = String::new();
    for core in &config.cores {
        let idle = match core.idle {
            Idle::Spin => "spins",
            Idle::Backoff => "backs off",
            Idle::Park => "parks",
        };
        let _ = writeln!(text, "core {} (cpu {}, {idle})", core.name, core.cpu);
        lines(&mut text, workers(config, &core.name));
    }
    for (title, part) in [("links", links(config)), ("memory", memory(config)), ("threads", threads(config))] {
        section(&mut text, title, part);
    }
    section(&mut text, "descriptors", descriptors(config));
    section(&mut text, "listens", listens(config));
    text
}

fn section(text: &mut String, title: &str, part: Vec<String>) {
    let _ = writeln!(text, "{title}");
    lines(text, part);
}

fn lines(text: &mut String, lines: Vec<String>) {
    for line in lines {
        let _ = writeln!(text, "  {}", line.trim_end());
    }
}

/// Queues as far as the file tells: 0 means "all that the host has".
fn queues(interface: &config::Interface) -> String {
    match interface.queues {
        0 => "every queue".into(),
        count => format!("queues 0..{}", count - 1),
    }
}

fn workers(config: &Config, core: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for interface in config.interfaces.iter().filter(|i| i.cores.iter().any(|name| name == core)) {
        let share = match interface.cores.len() {
            1 => String::new(),
            count => format!(" (one of {count} cores in turn)"),
        };
        lines.push(match interface.through {
            Through::AfXdp => {
                format!("rx {}: {}{share}, one AF_XDP socket and UMEM each", interface.name, queues(interface))
            }
            Through::Libpcap => format!("rx {}: libpcap, one queue", interface.name),
        });
    }
    for feed in &config.feeds {
        let files = feed.sides.iter().any(|side| side.source == SourceKind::File);
        if files && feed.sides[0].core.as_deref().unwrap_or(&feed.core) == core {
            lines.push(format!("files {}: {} merged by stamp", feed.name, feed.sides.len()));
        }
    }
    for feed in config.feeds.iter().filter(|feed| feed.core == core) {
        lines.push(format!(
            "arbiter {}: {}, window {} messages, hold {}, side timeout {}",
            feed.name,
            counted(feed.sides.len() as u64, "side"),
            feed.window,
            feed.hold().map_or("no bound".into(), |hold| hold.to_string()),
            feed.side_timeout().map_or("none".into(), |timeout| timeout.to_string())
        ));
        if let Some(ring) = &feed.publish {
            lines.push(format!(
                "  publishes in {}: {} records, arena {}",
                ring.display(),
                feed.publish_capacity,
                feed.publish_arena
            ));
        }
    }
    for store in config.stores.iter().filter(|store| store.core == core) {
        lines.push(format!(
            "store {}: {} blocks of {}, segments of {} in {}",
            store.name,
            store.blocks_in_flight,
            store.block,
            store.segment,
            store.path.display()
        ));
    }
    lines.extend(ring_workers(config, core));
    lines.extend(ledger_workers(config, core));
    if lines.is_empty() {
        lines.push("no worker".into());
    }
    lines
}

fn ring_workers(config: &Config, core: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for mirror in config.ring.mirrors.iter().filter(|mirror| mirror.core == core) {
        let (ring, most) = (mirror.ring.display(), mirror.geometry_max);
        lines.push(format!("mirror {}: {} -> {ring}, at most {most}", mirror.name, mirror.source));
    }
    for serve in config.ring.serves.iter().filter(|serve| serve.core == core) {
        let mut ways = format!("TCP {}", serve.bind);
        if let Some(group) = serve.multicast {
            let _ = write!(ways, ", multicast {group}");
        }
        if let Some(port) = serve.udp {
            let _ = write!(ways, ", UDP from port {port}");
        }
        lines.push(format!("serve {}: {} -> {ways}", serve.name, serve.ring.display()));
    }
    lines
}

fn ledger_workers(config: &Config, core: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let Some(serve) = &config.ledger.serve else { return lines };
    if serve.source_core() == core {
        lines.push(match (serve.source, &serve.upstream) {
            (LedgerSource::Follow, Some(url)) => format!("ledger relay: {url}, chunks passed on as they come"),
            (source, _) => {
                format!("ledger source: {source}, chunks of {}, the last of {}", serve.chunk_size, serve.tail_size())
            }
        });
    }
    let encoders = serve.encoder_cores().iter().filter(|name| **name == core).count();
    if encoders > 0 {
        let (compress, level) = (serve.compress, serve.compress_level);
        lines.push(format!("ledger encoders: {encoders}, zstd {level}, compress \"{compress}\""));
    }
    if serve.core == core {
        let tls = if serve.cert.is_some() { "TLS" } else { "no TLS" };
        let tokens = if serve.tokens.is_some() { "tokens" } else { "no tokens" };
        lines.push(format!(
            "ledger fan-out: {}, {tls}, {tokens}, at most {} subscribers; {} ledgers in segments of {} in {}",
            serve.listen,
            serve.subscribers_max,
            serve.retention,
            serve.segment_bytes,
            serve.segments_dir().display()
        ));
    }
    lines
}

fn links(config: &Config) -> Vec<String> {
    let mut lines = Vec::new();
    for feed in &config.feeds {
        for side in feed.sides.iter().filter(|side| side.source == SourceKind::AfXdp) {
            let interface = side.interface.as_deref().unwrap_or("?");
            let to = format!("arbiter {} side {}", feed.name, side.name);
            lines.push(format!("rx {interface} (each queue) -> {to}: {} items", feed.link));
        }
        if feed.is_files() {
            let sides: Vec<&str> = feed.sides.iter().map(|side| side.name.as_str()).collect();
            lines.push(format!(
                "files {0} -> arbiter {0} sides {1}: {2} items",
                feed.name,
                sides.join(", "),
                feed.link
            ));
        }
        if let Some(store) = &feed.store {
            let what = match feed.record {
                Record::Merged => "messages",
                Record::Raw => "frames",
                Record::Both => "messages and frames",
            };
            lines.push(format!("arbiter {} -> store {store}: {} items ({what})", feed.name, feed.link));
        }
        if let Some(ring) = &feed.publish {
            lines.push(format!(
                "arbiter {} -> ring {}: {} records, whoever reads",
                feed.name,
                ring.display(),
                feed.publish_capacity
            ));
        }
    }
    for interface in &config.interfaces {
        let frames = interface.frames;
        lines.push(format!("arbiters, stores -> rx {} (each queue): {frames} frames home, each", interface.name));
    }
    lines.extend(ring_links(config));
    lines.extend(ledger_links(config));
    if lines.is_empty() {
        lines.push("none".into());
    }
    lines
}

/// Rings are files of shared memory: who writes them, who reads them here.
fn ring_links(config: &Config) -> Vec<String> {
    let mut lines = Vec::new();
    for mirror in &config.ring.mirrors {
        let ring = mirror.ring.display();
        lines.push(format!(
            "{} -> mirror {} -> ring {ring}: as many records as the source's",
            mirror.source, mirror.name
        ));
    }
    for serve in &config.ring.serves {
        let own = config.feeds.iter().find(|feed| feed.publish.as_ref() == Some(&serve.ring));
        let copy = config.ring.mirrors.iter().find(|mirror| mirror.ring == serve.ring);
        let from = match (own, copy) {
            (Some(feed), _) => format!(" (feed {}'s)", feed.name),
            (None, Some(mirror)) => format!(" (mirror {}'s)", mirror.name),
            (None, None) => " (another process's)".into(),
        };
        lines.push(format!("ring {}{from} -> serve {} -> mirrors", serve.ring.display(), serve.name));
    }
    lines
}

fn ledger_links(config: &Config) -> Vec<String> {
    let mut lines = Vec::new();
    let Some(serve) = &config.ledger.serve else { return lines };
    let items = crate::ledger::plan::order_capacity(serve);
    let from = if serve.source == LedgerSource::Follow { "relay" } else { "source" };
    lines.push(format!("ledger {from} -> fan-out: {items} items, in order"));
    for (index, core) in serve.encoder_cores().iter().enumerate() {
        lines.push(format!(
            "ledger source -> encoder {index} ({core}): {} chunks, then as they are; -> fan-out: {items} items",
            crate::ledger::source_worker::ENCODER_QUEUE
        ));
    }
    lines
}

fn memory(config: &Config) -> Vec<String> {
    let rows = sums::memory(config);
    let mut lines: Vec<String> = rows
        .iter()
        .map(|row| {
            let what = format!("{}: {}", row.worker, row.what);
            format!("{what:<52} {:>10}  {}", sums::shown(row.bytes), row.kind.word())
        })
        .collect();
    let mut sum = |what: &str, bytes| lines.push(format!("{what:<52} {:>10}", sums::shown(bytes)));
    sum("in all before the first packet", sums::total(&rows, Kind::is_at_start));
    sum("  of it locked (LimitMEMLOCK)", sums::locked(config, &rows));
    sum("  of it in /dev/shm", sums::total(&rows, |kind| kind == Kind::Shared));
    sum("in all at most", sums::total(&rows, |_| true));
    if config.interfaces.iter().any(|interface| interface.queues == 0) {
        lines.push("queues = 0 is counted as one queue: each further one adds its row".into());
    }
    lines
}

fn threads(config: &Config) -> Vec<String> {
    let threads = sums::threads(config);
    vec![format!("{}: {}", threads.len(), threads.join(", "))]
}

fn descriptors(config: &Config) -> Vec<String> {
    let rows = sums::descriptors(config);
    let mut lines: Vec<String> = rows.iter().map(|(what, count)| format!("{what:<52} {count:>10}")).collect();
    let all: u64 = rows.iter().map(|(_, count)| count).sum();
    lines.push(format!("{:<52} {all:>10}", "in all at most (LimitNOFILE)"));
    lines
}

fn listens(config: &Config) -> Vec<String> {
    let mut lines: Vec<String> = config::sockets(config)
        .iter()
        .map(|socket| {
            let reach = if socket.address.is_loopback() { "this host" } else { "every host that reaches it" };
            let proof = socket.proof.map_or("nothing to show".into(), |proof| format!("must show {proof}"));
            format!("{} {:<24} {}: {reach}, {proof}", socket.transport, socket.address.to_string(), socket.owner)
        })
        .collect();
    for feed in &config.feeds {
        for side in feed.sides.iter().filter(|side| side.source == SourceKind::AfXdp) {
            let interface = side.interface.as_deref().unwrap_or("?");
            let groups = side.groups.join(", ");
            lines.push(format!("XDP on {interface}: {groups} (feed {} side {}), whoever sends", feed.name, side.name));
        }
    }
    for mirror in &config.ring.mirrors {
        lines.push(format!("UDP from {}: mirror {}, if the source sends datagrams", mirror.source, mirror.name));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_is_drawn_with_every_worker() {
        let config = config::parse(include_str!("../../../config/demo.toml")).expect("parses");
        let text = explain(&config);
        for part in ["core rx (cpu 0", "rx sluice-a", "arbiter deep: 2 sides", "store demo", "-> store demo", "in all"]
        {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }
}
