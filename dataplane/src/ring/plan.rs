//! From the configuration to the ring job's workers.

use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use super::mirror::auth::PresharedKey;
use super::mirror::receiver::{MirrorSettings, Start};
use super::mirror::sender::{Linger, MulticastSettings, ServeSettings};
use super::mirror_worker::{Host, MirrorParts, MirrorWorker};
use super::raw::RawSettings;
use super::serve_worker::{ServeParts, ServeWorker};
use super::stats::{MirrorBooks, MirrorView, PublishedView, RingStatus, ServeBooks, ServeView};
use crate::config::{self, Config, Finding, Idle, MirrorStart};
use crate::runtime::worker::Worker;
use crate::sync::counters::counters;
use crate::sys::file::{open_to_all, unread};
use crate::sys::random;
use crate::sys::resolve::Resolver;
use crate::sys::shm::{RingFile, ShmError};
use crate::wire::ring::MAGIC;

/// Longest key file: a key is read whole, and nothing that long is a key.
const KEY_FILE_BYTES_MAX: u64 = 1_024;

/// So many sessions at their full `repair_rate` is what one serve repairs in all: more would take its core from the live
/// records.
const REPAIR_SESSIONS: u64 = 2;

/// Sessions that are shown without a new allocation on the serve's core.
const SESSIONS_SHOWN: usize = 64;

/// The ring job, planned.
#[derive(Default)]
pub struct RingPlan {
    /// (core name, worker) in polling order: mirrors before serves, so that a hub passes on in the same round.
    pub workers: Vec<(String, Box<dyn Worker>)>,
    /// What the control thread shows.
    pub status: RingStatus,
}

/// Builds the workers of every `[[ring.mirror]]` and `[[ring.serve]]`.
///
/// # Errors
/// One line for the user: a key file that cannot be read, mostly.
pub fn plan(config: &Config) -> Result<RingPlan, String> {
    let mut plan = RingPlan::default();
    for mirror in &config.ring.mirrors {
        let (worker, view) = plan_mirror(mirror, false)?;
        plan.workers.push((mirror.core.clone(), worker));
        plan.status.mirrors.push(view);
    }
    for serve in &config.ring.serves {
        // A core that never sleeps needs nobody to wake it, and then nothing of the ring has to be writable.
        let sleeps = config.cores.iter().any(|core| core.name == serve.core && core.idle == Idle::Park);
        let serve = config::Serve { futex: serve.futex && sleeps, ..serve.clone() };
        let (worker, view) = plan_serve(&serve, false)?;
        plan.workers.push((serve.core.clone(), worker));
        plan.status.serves.push(view);
    }
    let published = |feed: &config::Feed| Some(PublishedView { feed: feed.name.clone(), ring: feed.publish.clone()? });
    plan.status.published = config.feeds.iter().filter_map(published).collect();
    Ok(plan)
}

/// The worker of one serve; with `once` it takes one connection and ends after it.
///
/// # Errors
/// As [`plan`].
pub fn plan_serve(serve: &config::Serve, once: bool) -> Result<(Box<dyn Worker>, ServeView), String> {
    let (worker, view) = serve_worker(serve, once)?;
    Ok((Box::new(worker), view))
}

/// The worker of one mirror; with `once` it ends with its first connection.
///
/// # Errors
/// As [`plan`].
pub fn plan_mirror(mirror: &config::Mirror, once: bool) -> Result<(Box<dyn Worker>, MirrorView), String> {
    let (worker, view) = mirror_worker(mirror, once)?;
    Ok((Box::new(worker), view))
}

pub(super) fn serve_worker(serve: &config::Serve, once: bool) -> Result<(ServeWorker, ServeView), String> {
    let name = format!("ring.serve {}", serve.name);
    let key = serve.key_file.as_deref().map(read_key).transpose().map_err(|what| format!("{name}: {what}"))?;
    let (state, state_reader) = counters();
    let (machine, machine_reader) = counters();
    let sessions = Arc::new(Mutex::new(Vec::with_capacity(SESSIONS_SHOWN)));
    let address = Arc::new(OnceLock::new());
    let view = ServeView {
        name: serve.name.clone(),
        ring: serve.ring.display().to_string(),
        core: serve.core.clone(),
        address: address.clone(),
        state: state_reader,
        machine: machine_reader,
        sessions: sessions.clone(),
    };
    let worker = ServeWorker::new(ServeParts {
        settings: serve_settings(serve, key),
        name,
        ring: serve.ring.clone(),
        bind: serve.bind,
        interface: serve.interface,
        futex: serve.futex,
        dead_after: serve.dead_after.0,
        once,
        seed: seed()?,
        books: ServeBooks { state, machine, sessions },
        address,
    });
    Ok((worker, view))
}

pub(super) fn mirror_worker(mirror: &config::Mirror, once: bool) -> Result<(MirrorWorker, MirrorView), String> {
    let name = format!("ring.mirror {}", mirror.name);
    let key = mirror.key_file.as_deref().map(read_key).transpose().map_err(|what| format!("{name}: {what}"))?;
    let (state, state_reader) = counters();
    let (machine, machine_reader) = counters();
    let end = Arc::new(OnceLock::new());
    let view = MirrorView {
        name: mirror.name.clone(),
        source: mirror.source.clone(),
        ring: mirror.ring.display().to_string(),
        core: mirror.core.clone(),
        end: end.clone(),
        state: state_reader,
        machine: machine_reader,
    };
    let host = Host {
        path: mirror.ring.clone(),
        settings: RawSettings {
            keep: true,
            huge_pages: mirror.huge_pages,
            numa_node: mirror.numa_node,
            heartbeat: true,
            ..RawSettings::default()
        },
        failure: None,
    };
    let parts = MirrorParts {
        settings: mirror_settings(mirror, key),
        source: mirror.source.clone(),
        interface: mirror.interface,
        reconnect: mirror.reconnect.0,
        reconnect_max: mirror.reconnect_max.0,
        receive_buffer: mirror.receive_buffer.0 as usize,
        once,
        seed: seed()?,
        resolver: Resolver::new(&mirror.source)?,
        books: MirrorBooks { state, machine },
        end,
        name,
    };
    Ok((MirrorWorker::new(parts, host), view))
}

fn seed() -> Result<[u8; 32], String> {
    random::bytes().map_err(|error| format!("getrandom: {error}"))
}

fn serve_settings(serve: &config::Serve, key: Option<PresharedKey>) -> ServeSettings {
    ServeSettings {
        multicast: serve.multicast.map(|group| MulticastSettings { group, ttl: serve.ttl }),
        unicast_port: serve.udp,
        datagram_bytes: serve.mtu as usize,
        copies: serve.dup,
        batch_records: serve.batch.min(u32::from(u16::MAX)) as u16,
        linger: match serve.linger {
            config::Linger::Auto => Linger::Auto,
            config::Linger::Fixed(time) => Linger::Fixed(u32::try_from(time.as_micros()).unwrap_or(u32::MAX)),
        },
        key,
        connections_max: serve.connections_max as usize,
        connections_per_address_max: serve.connections_per_address_max as usize,
        handshake_ns_max: serve.hello_timeout.nanos(),
        nak_bytes_per_second: serve.repair_rate.0,
        nak_bytes_per_second_all: serve.repair_rate.0.saturating_mul(REPAIR_SESSIONS),
        punches_per_second: serve.punch_rate,
        ..ServeSettings::default()
    }
}

fn mirror_settings(mirror: &config::Mirror, key: Option<PresharedKey>) -> MirrorSettings {
    MirrorSettings {
        start: match mirror.from {
            MirrorStart::Latest => Start::Latest,
            MirrorStart::Oldest => Start::Oldest,
            MirrorStart::Resume => Start::Resume,
            MirrorStart::Sequence(sequence) => Start::Sequence(sequence),
        },
        prefer_unicast: mirror.unicast,
        key,
        ring_bytes_max: mirror.geometry_max.0,
        held_bytes_max: mirror.hold_back.0 as usize,
        datagrams_from: mirror.datagrams_from.clone(),
        silent_datagrams_ns: mirror.silence.nanos(),
        silent_stream_ns: mirror.silence_stream.nanos(),
        ..MirrorSettings::default()
    }
}

/// Reads a pre-shared key's file.
///
/// # Errors
/// It cannot be read, is longer than 1,024 bytes, or holds fewer than 16.
pub fn read_key(path: &Path) -> Result<PresharedKey, String> {
    let told = |what: String| format!("key_file \"{}\": {what}", path.display());
    let file = std::fs::File::open(path).map_err(|error| told(format!("{error}; {}", unread(&error))))?;
    let mut bytes = Vec::new();
    file.take(KEY_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| told(error.to_string()))?;
    if bytes.len() as u64 > KEY_FILE_BYTES_MAX {
        return Err(told(format!("is longer than {KEY_FILE_BYTES_MAX} bytes, which is no key")));
    }
    PresharedKey::new(&bytes).map_err(|error| told(error.to_string()))
}

/// What of the ring job's files `run` would refuse: each key file that cannot be a key, and what stands in a ring's place and is
/// none.
pub fn check_files(config: &Config) -> Vec<Finding> {
    let serves = config.ring.serves.iter().map(|serve| ("serve", &serve.name, &serve.key_file));
    let mirrors = config.ring.mirrors.iter().map(|mirror| ("mirror", &mirror.name, &mirror.key_file));
    serves
        .chain(mirrors)
        .filter_map(|(kind, name, path)| {
            let what = read_key(path.as_deref()?).err()?;
            let what = what.strip_prefix("key_file ").map_or(what.clone(), String::from);
            Some(Finding { key: format!("ring.{kind} \"{name}\": key_file"), what })
        })
        .chain(
            ring_files(config)
                .filter(|(_, path)| RingFile::is_refused(path, MAGIC))
                .map(|(key, path)| Finding { key, what: ShmError::NoRing(path.into()).to_string() }),
        )
        .collect()
}

/// The files that become rings, with the keys that name them.
fn ring_files(config: &Config) -> impl Iterator<Item = (String, &Path)> {
    let feeds = config
        .feeds
        .iter()
        .filter_map(|feed| Some((format!("feed \"{}\": publish", feed.name), feed.publish.as_deref()?)));
    let copies = config
        .ring
        .mirrors
        .iter()
        .map(|mirror| (format!("ring.mirror \"{}\": ring", mirror.name), mirror.ring.as_path()));
    feeds.chain(copies)
}

/// What of the ring job's files `run` lives with: keys that every user of the host may read.
pub fn warn_files(config: &Config) -> Vec<Finding> {
    let serves = config.ring.serves.iter().map(|serve| ("serve", &serve.name, &serve.key_file));
    let mirrors = config.ring.mirrors.iter().map(|mirror| ("mirror", &mirror.name, &mirror.key_file));
    let open = serves.chain(mirrors).filter_map(|(kind, name, path)| {
        let path = path.as_deref()?;
        let (mode, path) = (open_to_all(path)?, path.display());
        let key = format!("ring.{kind} \"{name}\": key_file");
        Some(Finding {
            key,
            what: format!("\"{path}\": has mode {mode:03o}: every user of this host may use it; chmod 600 \"{path}\""),
        })
    });
    open.collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_that_is_no_ring_is_told_of_before_it_would_be_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("capture.pcap");
        std::fs::write(&path, "a capture").expect("writes");
        let mut config = Config::default();
        config.ring.mirrors.push(config::Mirror::new("m", "c", "127.0.0.1:1", path));
        let told = check_files(&config);
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].key, "ring.mirror \"m\": ring");
        assert!(told[0].what.contains("is no ring"), "{told:?}");
    }

    #[test]
    fn keys_are_read_and_others_are_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let mut config = Config::default();
        config.ring.serves.push(config::Serve {
            key_file: Some(path.clone()),
            ..config::Serve::new("s", "c", "/x".into(), std::net::SocketAddr::from(([0, 0, 0, 0], 1)))
        });
        for (bytes, part) in [(None, "No such file"), (Some(8), "needs 16"), (Some(2_000), "longer than 1024")] {
            if let Some(bytes) = bytes {
                std::fs::write(&path, vec![b'k'; bytes]).expect("writes");
            }
            let told = check_files(&config);
            assert!(told.len() == 1 && told[0].to_string().contains(part), "{part}: {told:?}");
            assert_eq!(told[0].key, "ring.serve \"s\": key_file");
        }
        std::fs::write(&path, "0123456789abcdef\n").expect("writes");
        assert_eq!(check_files(&config), []);
        assert!(plan(&config).is_ok());
        for (mode, told) in [(0o600, 0), (0o644, 1)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("sets");
            assert_eq!(warn_files(&config).len(), told, "{mode:o}");
        }
    }
}
