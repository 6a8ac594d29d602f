//! What the host answers to calls rather than in files, and what to ask for. `calls.json` of a capture.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::host::{Directory, Fact, Link, Told, Trial, Unread, unread};
use super::lists;
use crate::config::Config;
use crate::sys::file;
use crate::sys::host::{self, WallClock};
use crate::sys::nic::{self, Interface};
use crate::sys::xsk::{XskError, XskQueue, XskSettings, ZeroCopy};
use crate::units::AreaId;

/// The version of `calls.json`.
const FORMAT: u32 = 1;
/// Programs whose presence means something here.
const PROGRAMS: [&str; 9] =
    ["irqbalance", "chronyd", "ntpd", "systemd-timesyncd", "ptp4l", "phc2sys", "ts2phc", "tuned", "sluice"];
/// The kernel cuts a program's name after 15 bytes.
const COMM_BYTES_MAX: usize = 15;
/// Ring and frames of a trial: the smallest that sockets of ours take; nothing is received on it.
const TRIAL_RING: u32 = 64;
const TRIAL_FRAMES: u32 = 256;
/// Entries of a directory that are looked at to find a file in it.
const ENTRIES_MAX: usize = 1_000;

/// What to look at.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Asked {
    /// Interfaces; none: those that have a device.
    pub interfaces: Vec<String>,
    /// CPUs; none: all.
    pub cpus: Vec<usize>,
    /// Directories that are written to.
    pub directories: Vec<PathBuf>,
    /// Interfaces that may be used although the default route leaves through them.
    pub forced: BTreeSet<String>,
}

impl Asked {
    /// What a configuration is about.
    pub fn of(config: Option<&Config>) -> Asked {
        let Some(config) = config else { return Asked::default() };
        let mut directories: Vec<PathBuf> = config.stores.iter().map(|store| store.path.clone()).collect();
        directories.extend(config.ledger.serve.iter().map(|serve| serve.data_dir.clone()));
        let rings = config.feeds.iter().filter_map(|feed| feed.publish.as_deref());
        let rings = rings.chain(config.ring.mirrors.iter().map(|mirror| mirror.ring.as_path()));
        directories.extend(rings.filter_map(|ring| Some(ring.parent()?.to_path_buf())));
        directories.sort_unstable();
        directories.dedup();
        let interfaces = config.interfaces.iter();
        Asked {
            interfaces: interfaces.clone().map(|interface| interface.name.clone()).collect(),
            cpus: config.cores.iter().map(|core| core.cpu).collect(),
            directories,
            forced: interfaces.filter(|interface| interface.force).map(|interface| interface.name.clone()).collect(),
        }
    }
}

/// The answers.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
pub struct Calls {
    /// 1.
    pub format: u32,
    /// Files that were not readable.
    #[serde(default)]
    pub denied: Vec<String>,
    /// Interfaces, by the name they were asked for by.
    #[serde(default)]
    pub interfaces: BTreeMap<String, Fact<InterfaceCalls>>,
    /// The wall clock's discipline.
    #[serde(default = "unread")]
    pub wall: Fact<WallClock>,
    /// Directories.
    #[serde(default)]
    pub directories: BTreeMap<PathBuf, Directory>,
    /// Programs of interest, and whether one of that name runs.
    #[serde(default)]
    pub programs: BTreeMap<String, bool>,
    /// CPUs that irqbalance was told to keep off.
    #[serde(default = "unread")]
    pub irqbalance_banned: Fact<Vec<usize>>,
}

/// One interface's answers.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct InterfaceCalls {
    /// The link.
    pub link: Link,
    /// Its driver.
    pub told: Told,
}

impl Calls {
    /// Asks this host. `trial`: bind an AF_XDP socket in zero-copy mode to queue 0 of each interface, and close it.
    pub fn live(asked: &Asked, trial: bool) -> Calls {
        let names = if asked.interfaces.is_empty() { devices() } else { asked.interfaces.clone() };
        let interface = |name: String| {
            let answers = interface_calls(&name, trial.then(|| asked.forced.contains(&name)));
            (name, answers)
        };
        let processes = processes();
        let banned = processes.iter().find(|(name, _)| name == "irqbalance").map(|(_, number)| banned_cpus(*number));
        let own = std::process::id();
        let runs = |program: &str| {
            let comm = program.get(..COMM_BYTES_MAX).unwrap_or(program);
            processes.iter().any(|(name, number)| name == comm && *number != own)
        };
        Calls {
            format: FORMAT,
            denied: Vec::new(),
            interfaces: names.into_iter().map(interface).collect(),
            wall: fact(host::wall_clock()),
            directories: asked.directories.iter().map(|path| (path.clone(), directory(path))).collect(),
            programs: PROGRAMS.iter().map(|program| ((*program).to_owned(), runs(program))).collect(),
            irqbalance_banned: banned.unwrap_or_else(unread),
        }
    }

    /// Reads `calls.json` of a capture.
    ///
    /// # Errors
    /// One line for the user.
    pub fn load(directory: &Path) -> Result<Calls, String> {
        let path = directory.join("calls.json");
        let text = std::fs::read_to_string(&path).map_err(|error| {
            format!("{}: {error}: give the folder that \"sluice doctor --capture\" wrote", path.display())
        })?;
        let calls: Calls = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        if calls.format != FORMAT {
            let what = format!("format {}, but this version reads {FORMAT}", calls.format);
            return Err(format!("{}: {what}: use the version of sluice that wrote it", path.display()));
        }
        Ok(calls)
    }

    /// Writes it into a capture.
    ///
    /// # Errors
    /// One line for the user.
    pub fn save(&self, directory: &Path) -> Result<(), String> {
        let path = directory.join("calls.json");
        let text = serde_json::to_string_pretty(self).map_err(|error| format!("{}: {error}", path.display()))?;
        std::fs::write(&path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// A call's result as a fact: what is refused for want of a privilege is told apart from what is not there.
fn fact<T>(result: io::Result<T>) -> Fact<T> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Unread::Denied,
        _ => Unread::Absent,
    })
}

/// Interfaces behind which there is a device: no loopback, bridge, tunnel or veth.
fn devices() -> Vec<String> {
    let has_device = |name: &String| {
        let driver = Interface::find(name).ok().and_then(|interface| interface.driver_told().ok());
        driver.is_some_and(|driver| !driver.bus.is_empty() && driver.bus != "N/A" && driver.bus != "tap")
    };
    host::interface_names().unwrap_or_default().into_iter().filter(has_device).collect()
}

/// `trial`: whether it may be made although a default route leaves through the interface; none: not made.
fn interface_calls(name: &str, trial: Option<bool>) -> Fact<InterfaceCalls> {
    let interface = Interface::find(name).map_err(|_| Unread::Absent)?;
    let clock_index = fact(interface.clock_index()).and_then(|index| index.ok_or(Unread::Absent));
    Ok(InterfaceCalls {
        link: Link {
            name: interface.name.clone(),
            index: interface.index,
            alternative_names: interface.alternative_names.clone(),
            mtu: interface.mtu,
            up: interface.up,
            carrier: interface.carrier,
            rx_queues: interface.rx_queues().unwrap_or(interface.rx_queues_max),
            xdp: interface.xdp.map(|(mode, program)| (mode.label().to_owned(), program)),
            addresses: host::ipv4_addresses(&interface.name).unwrap_or_default(),
        },
        told: Told {
            driver: fact(interface.driver_told()),
            channels: fact(interface.channels()),
            rings: fact(interface.rings()),
            coalescing: fact(interface.coalescing()),
            features: fact(interface.features()),
            indirection: fact(interface.indirection()),
            flow_rules: fact(interface.flow_rules()),
            xdp: fact(interface.xdp_features()).and_then(|told| told.ok_or(Unread::Absent)),
            clock: clock_index.and_then(|index| fact(host::nic_clock(index))),
            clock_index,
            trial: trial.map(|forced| trial_bind(&interface, forced)),
        },
    })
}

/// Binds a socket in zero-copy mode to queue 0 and closes it. No program is attached and nothing is steered to it; some
/// drivers reset the queue for it (docs/design/0044-what-the-doctor-may-touch.md).
fn trial_bind(interface: &Interface, forced: bool) -> Trial {
    if interface.carries_default_route() && !forced {
        return Trial::LeftAlone("the default route leaves through it".into());
    }
    if let Some((mode, program)) = interface.xdp {
        return Trial::LeftAlone(format!("XDP program {program} is attached ({})", mode.label()));
    }
    let frames = match nic::choose_frames(interface, None, None) {
        Ok(frames) => frames,
        Err(error) => return Trial::Refused(error.to_string()),
    };
    let settings = XskSettings {
        frame_count: TRIAL_FRAMES,
        fill_ring: TRIAL_RING,
        receive_ring: TRIAL_RING,
        jumbo_slots: 1,
        zero_copy: ZeroCopy::Require,
        huge_pages: false,
        stamped: false,
        ..XskSettings::new(0, AreaId(0), frames)
    };
    match XskQueue::open(interface, &settings) {
        Ok(queue) if queue.zero_copy() => Trial::ZeroCopy,
        Ok(_) => Trial::Copy,
        Err(error @ XskError::Busy { .. }) => Trial::LeftAlone(error.to_string()),
        Err(error @ XskError::Capability { .. }) => Trial::LeftAlone(format!("not possible without root: {error}")),
        Err(error) => Trial::Refused(error.to_string()),
    }
}

/// Names and numbers of all processes that are visible.
fn processes() -> Vec<(String, u32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let named = |number: u32| {
        let name = std::fs::read_to_string(format!("/proc/{number}/comm")).ok()?;
        Some((name.trim_end().to_owned(), number))
    };
    numbers.filter_map(named).collect()
}

/// irqbalance takes the CPUs that it keeps off from its environment.
fn banned_cpus(process: u32) -> Fact<Vec<usize>> {
    let environment = fact(std::fs::read(format!("/proc/{process}/environ")))?;
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let list = environment.split('\0').find_map(|entry| entry.strip_prefix("IRQBALANCE_BANNED_CPULIST="));
    lists::parse(list.unwrap_or_default()).ok_or(Unread::Garbled)
}

fn directory(path: &Path) -> Directory {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let existing = absolute.ancestors().find(|part| part.exists()).unwrap_or(Path::new("/"));
    let existing = existing.canonicalize().unwrap_or_else(|_| existing.to_path_buf());
    let space = fact(file::space(&existing));
    let mounts = fact(std::fs::read_to_string("/proc/self/mountinfo"));
    let mount = mounts.and_then(|mounts| mount_of(&mounts, &existing).ok_or(Unread::Absent));
    Directory {
        kind: mount.clone().map(|(kind, _)| kind),
        available_bytes: space.map(|space| space.available_bytes),
        total_bytes: space.map(|space| space.total_bytes),
        direct_align_bytes: direct_align(&existing, mount),
        existing,
    }
}

/// Kind and device number of the file system that holds `path`.
fn mount_of(mounts: &str, path: &Path) -> Option<(String, String)> {
    // "36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/root rw": the later of two at one place covers the other.
    let mounts = mounts.lines().filter_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let fields: Vec<&str> = place.split(' ').collect();
        let at = PathBuf::from(fields.get(4)?.replace("\\040", " "));
        Some((at, kind.split(' ').next()?.to_owned(), (*fields.get(2)?).to_owned()))
    });
    let holding = mounts.filter(|(at, _, _)| path.starts_with(at));
    holding.max_by_key(|(at, _, _)| at.components().count()).map(|(_, kind, device)| (kind, device))
}

/// From a file that is there, else from the device's block size.
fn direct_align(existing: &Path, mount: Fact<(String, String)>) -> Fact<u32> {
    let entries = std::fs::read_dir(existing).ok().into_iter().flatten().flatten().take(ENTRIES_MAX);
    let mut files = entries.map(|entry| entry.path()).filter(|path| path.is_file());
    if let Some(found) = files.next() {
        return fact(host::direct_alignment(&found))?.ok_or(Unread::Absent);
    }
    let device = format!("/sys/dev/block/{}", mount?.1);
    let sizes = ["queue", "../queue"].map(|folder| format!("{device}/{folder}/logical_block_size"));
    let size = sizes.iter().find_map(|size| std::fs::read_to_string(size).ok()).ok_or(Unread::Absent)?;
    size.trim().parse().map_err(|_| Unread::Garbled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_holds_a_path() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      30 22 0:40 / /mnt/a\\040b rw shared:1 - nfs4 host:/x rw\n\
                      31 22 259:1 / /var/lib rw - xfs /dev/nvme0n1p1 rw\n\
                      32 22 9:0 / /var/lib rw - ext4 /dev/md0 rw\n";
        let of = |path: &str| mount_of(mounts, Path::new(path)).map(|(kind, device)| format!("{kind} {device}"));
        assert_eq!(of("/var/lib/sluice").as_deref(), Some("ext4 9:0"), "the later one covers");
        assert_eq!(of("/var/library").as_deref(), Some("ext4 8:1"));
        assert_eq!(of("/mnt/a b/c").as_deref(), Some("nfs4 0:40"));
        assert_eq!(mount_of("garbage\n1 2 -\n - \n", Path::new("/")), None);
    }

    #[test]
    fn calls_come_back_from_their_file() {
        let asked = Asked { interfaces: vec!["lo".into(), "no-such".into()], ..Asked::default() };
        let calls = Calls::live(&asked, false);
        assert_eq!(calls.interfaces["no-such"], Err(Unread::Absent));
        assert!(calls.interfaces["lo"].is_ok());
        let folder = tempfile::tempdir().expect("a folder");
        calls.save(folder.path()).expect("saved");
        assert_eq!(Calls::load(folder.path()), Ok(calls));
    }
}
