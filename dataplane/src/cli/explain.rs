//! `sluice run --explain`: workers, links, cores and memory of a configuration, drawn.

use std::fmt::Write;

use crate::config::{self, Bytes, Config, LedgerSource, Record, SourceKind};

/// Slot bytes of the reorder window, with the window's two slots per message.
const WINDOW_BYTES_PER_MESSAGE: u64 = 2 * 128;

/// The drawing.
pub fn explain(config: &Config) -> String {
    let mut text = String::new();
    for core in &config.cores {
        let _ = writeln!(text, "core {} (cpu {}, {:?})", core.name, core.cpu, core.idle);
        for line in workers(config, &core.name) {
            let _ = writeln!(text, "  {line}");
        }
    }
    text.push_str("links\n");
    for line in links(config) {
        let _ = writeln!(text, "  {line}");
    }
    text.push_str("memory\n");
    for (what, bytes) in memory(config) {
        let _ = writeln!(text, "  {:<40} {:>10}", what, Bytes(bytes).to_string());
    }
    let total: u64 = memory(config).iter().map(|(_, bytes)| bytes).sum();
    let _ = writeln!(text, "  {:<40} {:>7} MiB", "in all", total >> 20);
    text
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
        lines.push(format!("rx {}: {}{share}, one AF_XDP socket and UMEM each", interface.name, queues(interface)));
    }
    for feed in &config.feeds {
        let files = feed.sides.iter().any(|side| side.source == SourceKind::File);
        if files && feed.sides[0].core.as_deref().unwrap_or(&feed.core) == core {
            lines.push(format!("files {}: {} merged by stamp", feed.name, feed.sides.len()));
        }
    }
    for feed in config.feeds.iter().filter(|feed| feed.core == core) {
        lines.push(format!(
            "arbiter {}: {} sides, window {} messages, hold {}, side timeout {}",
            feed.name,
            feed.sides.len(),
            feed.window,
            feed.hold().map_or("no bound".into(), |hold| hold.to_string()),
            feed.side_timeout().map_or("none".into(), |timeout| timeout.to_string())
        ));
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
        for side in &feed.sides {
            let from = match (&side.interface, &side.file) {
                (Some(interface), _) => format!("rx {interface} (each queue)"),
                (None, Some(file)) => format!("files {} ({})", feed.name, file.display()),
                (None, None) => "?".into(),
            };
            lines.push(format!("{from} -> arbiter {} side {}: {} items", feed.name, side.name, feed.link));
        }
        if let Some(store) = &feed.store {
            let what = match feed.record {
                Record::Merged => "messages",
                Record::Raw => "frames",
                Record::Both => "messages and frames",
            };
            lines.push(format!("arbiter {} -> store {store}: {} items ({what})", feed.name, feed.link));
        }
    }
    for interface in &config.interfaces {
        lines.push(format!("arbiter, store -> rx {}: {} frames home, each", interface.name, interface.frames));
    }
    if let Some(serve) = &config.ledger.serve {
        let from = if serve.source == LedgerSource::Follow { "relay" } else { "source" };
        lines.push(format!("ledger {from} -> fan-out: what comes, in order"));
        for (index, core) in serve.encoder_cores().iter().enumerate() {
            lines.push(format!(
                "ledger source -> encoder {index} ({core}) -> fan-out: chunks; behind, they go as they are"
            ));
        }
    }
    lines
}

fn memory(config: &Config) -> Vec<(String, u64)> {
    let mut rows = Vec::new();
    for interface in &config.interfaces {
        rows.push((
            format!("UMEM of each queue of {} (2 KiB chunks)", interface.name),
            u64::from(interface.frames) * 2048,
        ));
    }
    for feed in &config.feeds {
        rows.push((format!("reorder window of {}", feed.name), u64::from(feed.window) * WINDOW_BYTES_PER_MESSAGE));
        rows.push((
            format!("copy pool of {}", feed.name),
            u64::from(feed.copy_frames) * u64::from(config::COPY_FRAME_BYTES),
        ));
    }
    for mirror in &config.ring.mirrors {
        rows.push((format!("datagrams held back by mirror {}", mirror.name), mirror.hold_back.0));
    }
    for store in &config.stores {
        rows.push((format!("blocks of store {}", store.name), u64::from(store.blocks_in_flight) * store.block.0));
    }
    if let Some(serve) = &config.ledger.serve {
        rows.push(("ledgers that wait for their write, at most".into(), serve.backlog_bytes.0));
    }
    rows
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
