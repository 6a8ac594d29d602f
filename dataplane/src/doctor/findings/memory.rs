//! Memory for pools: enough, lockable, in huge pages, not swapped.

use super::{Report, Rule, bytes};
use crate::config::Config;

const ROOM: Rule = Rule {
    id: "memory.room",
    why: "pools are made and touched at the start: what does not fit ends the start, or the process later",
};
const HUGE: Rule = Rule {
    id: "memory.huge_pages",
    why: "a UMEM in pages of 4 KiB misses the TLB on every frame; without enough huge pages it falls back, and a ring \
          that demands them does not start",
};
const MEMLOCK: Rule = Rule {
    id: "memory.memlock",
    why: "the kernel locks a UMEM and the blocks of an io_uring: above the limit the start ends with ENOBUFS or ENOMEM",
};
const TRANSPARENT: Rule = Rule {
    id: "memory.thp",
    why: "\"madvise\" gives huge pages to those who ask; \"always\" also gives everybody the pauses of making them",
};
const SWAP: Rule = Rule {
    id: "memory.swap",
    why: "what is not locked (windows, indexes, connections) can be swapped out, and a core then waits for a disk",
};

pub(super) const RULES: &[&Rule] = &[&ROOM, &HUGE, &MEMLOCK, &TRANSPARENT, &SWAP];

const HUGE_PAGE_BYTES: u64 = 2 << 20;
const CAP_IPC_LOCK: u32 = 14;
/// The host keeps this much beside the pools.
const SPARE_BYTES: u64 = 512 << 20;

pub(super) fn judge(report: &mut Report<'_>) {
    room(report);
    huge_pages(report);
    memlock(report);
    transparent(report);
    swap(report);
}

/// Bytes of all blocks that the stores' io_urings hold.
fn block_bytes(config: &Config) -> u64 {
    config.stores.iter().map(|store| u64::from(store.blocks_in_flight).saturating_mul(store.block.0)).sum()
}

/// Bytes of rings that are made here: 64 a record, and the bodies.
fn ring_bytes(config: &Config) -> u64 {
    let published = config.feeds.iter().filter(|feed| feed.publish.is_some());
    published.map(|feed| feed.publish_capacity.saturating_mul(64).saturating_add(feed.publish_arena.0)).sum()
}

fn room(report: &mut Report<'_>) {
    let host = report.host;
    let Some(available) = report.known(&ROOM, "", "MemAvailable", &host.memory.available_bytes).copied() else {
        return;
    };
    let Some(config) = report.config else {
        return report.ok(&ROOM, "", format!("{} available", bytes(available)));
    };
    let umem: u64 = report.interfaces.iter().map(super::Captured::umem_bytes).sum();
    let windows: u64 = config.feeds.iter().map(|feed| u64::from(feed.window) * 256).sum();
    let copies: u64 = config.feeds.iter().map(|feed| u64::from(feed.copy_frames) * (66 << 10)).sum();
    let backlog: u64 = config.ledger.serve.iter().map(|serve| serve.backlog_bytes.0).sum();
    let needed = [umem, windows, copies, backlog, block_bytes(config), ring_bytes(config)]
        .into_iter()
        .fold(0, u64::saturating_add);
    let seen = format!("{} for pools, {} available", bytes(needed), bytes(available));
    let look = format!("sluice run {} --explain   # which pool takes how much", report.path);
    if needed > available {
        report.fail(&ROOM, "", seen, look);
    } else if needed.saturating_add(SPARE_BYTES) > available {
        report.warn(&ROOM, "", seen, look);
    } else {
        report.ok(&ROOM, "", seen);
    }
}

fn huge_pages(report: &mut Report<'_>) {
    let host = report.host;
    let Some(config) = report.config else { return };
    let umem: u64 = report
        .interfaces
        .iter()
        .filter(|interface| interface.section.huge_pages)
        .map(|interface| {
            let queue = u64::from(interface.section.frames) * interface.chunk_bytes();
            u64::from(interface.nic.link.rx_queues) * queue.div_ceil(HUGE_PAGE_BYTES)
        })
        .sum();
    let demanded: u64 = config
        .feeds
        .iter()
        .filter(|feed| feed.publish.is_some() && feed.publish_huge_pages)
        .map(|feed| {
            feed.publish_capacity.saturating_mul(64).saturating_add(feed.publish_arena.0).div_ceil(HUGE_PAGE_BYTES)
        })
        .sum();
    let needed = umem + demanded;
    if needed == 0 {
        return report.ok(&HUGE, "", "none are asked for");
    }
    let Some(free) = report.known(&HUGE, "", "huge pages of 2 MiB", &host.memory.huge_pages_free).copied() else {
        return;
    };
    let all = host.memory.huge_pages.unwrap_or(free);
    let seen = format!("{needed} pages of 2 MiB are asked for, {free} of {all} are free");
    let command = format!("sysctl -w vm.nr_hugepages={}   # and into /etc/sysctl.d", all - free.min(all) + needed);
    match (free >= needed, free >= demanded) {
        (true, _) => report.ok(&HUGE, "", seen),
        (false, true) => report.warn(&HUGE, "", seen, command),
        (false, false) => report.fail(&HUGE, "", format!("{seen}; publish_huge_pages demands {demanded}"), command),
    }
}

fn memlock(report: &mut Report<'_>) {
    let host = report.host;
    let limit = &host.process.locked_bytes;
    let Some(limit) = report.known(&MEMLOCK, "", "the limit of locked memory", limit).copied() else { return };
    let holds = host.process.capabilities.is_ok_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1);
    let umem: u64 = report.interfaces.iter().map(super::Captured::umem_bytes).sum();
    let needed = umem.saturating_add(report.config.map_or(0, block_bytes));
    let allowed = if limit.soft == u64::MAX { "no limit".into() } else { bytes(limit.soft) };
    let seen = format!("{} to lock; limit here: {allowed}", bytes(needed));
    if holds || limit.soft >= needed {
        let why = if holds { " (CAP_IPC_LOCK: not bound by it)" } else { "" };
        report.ok(&MEMLOCK, "", format!("{seen}{why}"));
    } else {
        let command = "ulimit -l unlimited   # in this shell; sluice.service has LimitMEMLOCK=infinity";
        report.warn(&MEMLOCK, "", seen, command);
    }
}

fn transparent(report: &mut Report<'_>) {
    let host = report.host;
    let absent = "this kernel has none";
    let chosen = &host.memory.transparent;
    let Some(chosen) = report.known_or(&TRANSPARENT, "", "transparent_hugepage", chosen, absent) else { return };
    match chosen.as_str() {
        "madvise" => report.ok(&TRANSPARENT, "", "\"madvise\""),
        other => {
            let command = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled   # or sluice-tune apply";
            report.warn(&TRANSPARENT, "", format!("\"{other}\""), command);
        }
    }
}

fn swap(report: &mut Report<'_>) {
    let host = report.host;
    let Some(swaps) = report.known_or(&SWAP, "", "/proc/swaps", &host.memory.swaps, "this kernel has none") else {
        return;
    };
    if swaps.is_empty() {
        report.ok(&SWAP, "", "no swap");
    } else {
        let command = format!("swapoff {}   # and out of /etc/fstab", swaps.join(" "));
        report.warn(&SWAP, "", format!("swap on {}", swaps.join(", ")), command);
    }
}
