//! Directories that are written to: what file system, how much room, how it is written.

use std::path::Path;

use super::{Report, Rule, bytes};
use crate::doctor::host::Directory;

const FILE_SYSTEM: Rule = Rule {
    id: "disk.file_system",
    why: "segments are preallocated, written around the page cache and made durable: ext4 and xfs do all three; over a \
          network each of them can stall or be refused",
};
const SPACE: Rule = Rule {
    id: "disk.space",
    why: "two segments are preallocated at the start; retention deletes by whole segments, and what is below free_min is \
          deleted for",
};
const DIRECT: Rule = Rule {
    id: "disk.direct",
    why: "blocks are written in multiples of 4 KiB; a device that asks for more refuses them, and one that has no direct \
          I/O lets the page cache decide when the disk is busy",
};
const SHARED_MEMORY: Rule = Rule {
    id: "disk.shared_memory",
    why: "a ring is a file in memory; when the file system is full its writer dies of SIGBUS at the next page",
};

pub(super) const RULES: &[&Rule] = &[&FILE_SYSTEM, &SPACE, &DIRECT, &SHARED_MEMORY];

const GOOD: [&str; 2] = ["ext4", "xfs"];
const NETWORK: [&str; 12] =
    ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.glusterfs", "fuse.sshfs", "lustre", "gpfs", "afs"];
const MEMORY: [&str; 2] = ["tmpfs", "hugetlbfs"];
/// Blocks and their buffers are multiples of it.
const ALIGN_BYTES: u32 = 4_096;

pub(super) fn judge(report: &mut Report<'_>) {
    let Some(config) = report.config else { return };
    let host = report.host;
    for store in &config.stores {
        let key = format!("store \"{}\"", store.name);
        let Some(directory) = host.directories.get(&store.path) else { continue };
        file_system(report, &key, &store.path, directory);
        space(
            report,
            &key,
            directory,
            Wanted {
                segment: store.segment.0,
                keep: store.retain.0,
                key: "retain",
                free_min: store.free_min.0,
                kept_max: None,
            },
        );
        direct(report, &key, directory, store.direct);
    }
    if let Some(serve) = &config.ledger.serve {
        let key = "ledger.serve".to_owned();
        if let Some(directory) = host.directories.get(&serve.data_dir) {
            file_system(report, &key, &serve.data_dir, directory);
            let wanted = Wanted {
                segment: serve.segment_bytes.0,
                keep: serve.retention_bytes.0,
                key: "retention_bytes",
                free_min: 0,
                kept_max: Some(serve.retention),
            };
            space(report, &key, directory, wanted);
        }
    }
    for feed in &config.feeds {
        let Some(directory) =
            feed.publish.as_deref().and_then(Path::parent).and_then(|path| host.directories.get(path))
        else {
            continue;
        };
        let needed = feed.publish_capacity.saturating_mul(64).saturating_add(feed.publish_arena.0);
        shared_memory(report, &format!("feed \"{}\"", feed.name), directory, needed);
    }
}

fn file_system(report: &mut Report<'_>, key: &str, path: &Path, directory: &Directory) {
    let at = shown(path, directory);
    let Some(kind) = report.known(&FILE_SYSTEM, key, "its file system", &directory.kind) else { return };
    if NETWORK.contains(&kind.as_str()) || kind.starts_with("fuse.") {
        let seen = format!("{at}: {kind}, a network file system");
        report.fail(
            &FILE_SYSTEM,
            key,
            seen,
            "findmnt -t ext4,xfs   # local file systems that are there; move it to one",
        );
    } else if MEMORY.contains(&kind.as_str()) {
        let remedy = report.set("put it on a disk with ext4 or xfs");
        report.warn(&FILE_SYSTEM, key, format!("{at}: {kind}: gone at a reboot"), remedy);
    } else if GOOD.contains(&kind.as_str()) {
        report.ok(&FILE_SYSTEM, key, format!("{at}: {kind}"));
    } else {
        let seen = format!("{at}: {kind}: not tried; ext4 and xfs are");
        let command = format!("findmnt -T {}   # and move it to ext4 or xfs", directory.existing.display());
        report.warn(&FILE_SYSTEM, key, seen, command);
    }
}

/// The path, and what of it is there.
fn shown(path: &Path, directory: &Directory) -> String {
    if directory.existing.ends_with(path) || directory.existing.as_path() == path {
        path.display().to_string()
    } else {
        format!("{} (not there yet; in {})", path.display(), directory.existing.display())
    }
}

/// What is to lie there, bytes.
struct Wanted {
    segment: u64,
    keep: u64,
    /// The key that says how much is kept.
    key: &'static str,
    free_min: u64,
    /// Ledgers that are kept at most: their bound beside the bytes, which is always there.
    kept_max: Option<u32>,
}

fn space(report: &mut Report<'_>, key: &str, directory: &Directory, wanted: Wanted) {
    let Some(free) = report.known(&SPACE, key, "free space", &directory.available_bytes).copied() else { return };
    let Some(total) = report.known(&SPACE, key, "its size", &directory.total_bytes).copied() else { return };
    let seen = format!("{} free of {}", bytes(free), bytes(total));
    let two = wanted.segment.saturating_mul(2);
    let look = format!("df -h {}", directory.existing.display());
    if free < two.saturating_add(wanted.free_min) {
        let why = match wanted.free_min {
            0 => format!("two segments are {}", bytes(two)),
            free_min => format!("two segments and free_min are {} + {}", bytes(two), bytes(free_min)),
        };
        report.fail(&SPACE, key, format!("{seen}; {why}"), look);
    } else if wanted.keep != 0 && wanted.keep.saturating_add(two).saturating_add(total / 20) > total {
        let seen =
            format!("{seen}; what is to be kept ({}), two segments and 5 % are more than that", bytes(wanted.keep));
        report.fail(&SPACE, key, seen, format!("{look}   # and lower {}", wanted.key));
    } else if wanted.keep == 0 && wanted.free_min == 0 {
        unbounded(report, key, &seen, wanted.kept_max);
    } else {
        report.ok(&SPACE, key, seen);
    }
}

/// No bytes bound it: for ledgers their count does, whatever they take.
fn unbounded(report: &mut Report<'_>, key: &str, seen: &str, kept_max: Option<u32>) {
    if let Some(count) = kept_max {
        return report.ok(
            &SPACE,
            key,
            format!("{seen}; retention = {count} ledgers bounds it, retention_bytes does not"),
        );
    }
    let remedy = report.set("set retain or free_min");
    report.warn(&SPACE, key, format!("{seen}; neither retain nor free_min bounds it"), remedy);
}

fn direct(report: &mut Report<'_>, key: &str, directory: &Directory, wanted: bool) {
    if !wanted {
        return report.ok(&DIRECT, key, "direct = false: through the page cache, by configuration");
    }
    if directory.kind.as_deref() == Ok("tmpfs") {
        let remedy = report.set("put it on a disk, or set direct = false");
        return report.warn(&DIRECT, key, "tmpfs has no direct I/O: blocks go through memory", remedy);
    }
    let align = &directory.direct_align_bytes;
    let Some(align) = report.known(&DIRECT, key, "the alignment that direct I/O needs", align).copied() else { return };
    if align > ALIGN_BYTES {
        let seen = format!("direct I/O needs {align} bytes of alignment, blocks have {ALIGN_BYTES}");
        let remedy = report.set("set direct = false, or use a device with blocks of 4 KiB or less");
        report.fail(&DIRECT, key, seen, remedy);
    } else {
        report.ok(&DIRECT, key, format!("direct I/O, aligned to {align} bytes"));
    }
}

fn shared_memory(report: &mut Report<'_>, key: &str, directory: &Directory, needed: u64) {
    let Some(free) = report.known(&SHARED_MEMORY, key, "free space", &directory.available_bytes).copied() else {
        return;
    };
    let at = directory.existing.display();
    let seen = format!("{} for its ring, {} free in {at}", bytes(needed), bytes(free));
    if free < needed {
        let size = directory.total_bytes.unwrap_or(0).saturating_add(needed);
        report.fail(&SHARED_MEMORY, key, seen, format!("mount -o remount,size={size} {at}   # and into /etc/fstab"));
    } else {
        report.ok(&SHARED_MEMORY, key, seen);
    }
}
