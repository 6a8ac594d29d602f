//! What this host lacks of what a configuration names: CPUs, the user, NUMA nodes, interfaces. The file may be meant for another
//! host, so that `check` only tells it, while `run` ends before it touches anything. Only asks, and needs no privilege.

use super::{Exit, sums};
use crate::config::{self, Config, Finding, Through, UMEM_BYTES_MAX};
use crate::sys::nic::{
    CHUNK_HEADROOM_BYTES, FRAME_OVERHEAD_BYTES, FrameChoice, Interface, NicError, SINGLE_BUFFER_MTU_MAX, choose_frames,
};
use crate::sys::{host, privilege};

/// The least kernel for frames of several buffers.
const MULTI_BUFFER_KERNEL: (u32, u32) = (6, 6);
/// Largest MTU whose frames are as large as the sums reckon.
const SUMMED_MTU_MAX: u32 = sums::CHUNK_BYTES as u32 - CHUNK_HEADROOM_BYTES - FRAME_OVERHEAD_BYTES;

/// What was seen of this host.
#[derive(Default)]
pub struct Seen {
    /// What would stop run here, and how it would end.
    pub stops: Vec<(Finding, Exit)>,
    /// What it lives with.
    pub warnings: Vec<Finding>,
}

impl Seen {
    fn stop(&mut self, key: impl Into<String>, what: impl Into<String>, exit: Exit) {
        self.stops.push((Finding { key: key.into(), what: what.into() }, exit));
    }
}

/// Looks at this host, of whose CPUs this process may run on `cpus`.
pub fn look(config: &Config, cpus: &[usize]) -> Seen {
    let mut seen = Seen::default();
    cores(config, cpus, &mut seen);
    user(config, &mut seen);
    nodes(config, &mut seen);
    for interface in &config.interfaces {
        if let Err(error) = look_at(interface, &mut seen) {
            refused(interface, &error, &mut seen);
        }
    }
    seen
}

/// All missing CPUs in one line: a file for a larger host has many.
fn cores(config: &Config, cpus: &[usize], seen: &mut Seen) {
    let missing = |core: &&config::Core| !cpus.contains(&core.cpu) && config::has_work(config, &core.name);
    let missing: Vec<&config::Core> = config.cores.iter().filter(missing).collect();
    if missing.is_empty() {
        return;
    }
    let names: Vec<String> = missing.iter().map(|core| format!("\"{}\"", core.name)).collect();
    let numbers: Vec<usize> = missing.iter().map(|core| core.cpu).collect();
    let verb = if missing.len() == 1 { "is" } else { "are" };
    seen.stop(
        format!("core {}: cpu", names.join(", ")),
        format!(
            "{verb} {}, but this process may run on {}: take other CPUs, or a wider cpuset",
            ranges(&numbers),
            ranges(cpus)
        ),
        Exit::Usage,
    );
}

/// Numbers as people write them: 0-3, 7.
fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let text = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    parts.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn user(config: &Config, seen: &mut Seen) {
    let Some(user) = config.process.user.as_deref() else { return };
    if let Err(error) = privilege::identity(user, config.process.group.as_deref()) {
        let key = if error.is_group() { "process: group" } else { "process: user" };
        seen.stop(key, error.to_string(), Exit::Usage);
    }
}

fn nodes(config: &Config, seen: &mut Seen) {
    let feeds = config
        .feeds
        .iter()
        .filter(|feed| feed.publish.is_some())
        .filter_map(|feed| Some((format!("feed \"{}\": publish_numa_node", feed.name), feed.publish_numa_node?)));
    let mirrors = config
        .ring
        .mirrors
        .iter()
        .filter_map(|mirror| Some((format!("ring.mirror \"{}\": numa_node", mirror.name), mirror.numa_node?)));
    for (key, node) in feeds.chain(mirrors).filter(|(_, node)| !host::has_numa_node(*node)) {
        seen.stop(
            key,
            format!("is {node}, but this host has no such NUMA node: see \"numactl --hardware\", or leave it out"),
            Exit::Usage,
        );
    }
}

fn refused(interface: &config::Interface, error: &NicError, seen: &mut Seen) {
    let told = error.to_string();
    // It begins with the interface, which is the key here.
    let what = told.strip_prefix(&format!("interface {:?}", interface.name)).unwrap_or(&told);
    seen.stop(format!("interface \"{}\"", interface.name), what.trim_start_matches([':', ' ']), Exit::Host);
}

/// What `run` looks up of an interface.
fn look_at(settings: &config::Interface, seen: &mut Seen) -> Result<(), NicError> {
    let interface = Interface::find(&settings.name)?;
    interface.check_not_default_route(settings.force)?;
    let frames = choose_frames(&interface, None, None)?;
    if settings.through == Through::Libpcap {
        return Ok(());
    }
    let has = interface.rx_queues()?;
    if settings.queues != 0 && settings.queues != has {
        seen.stop(
            format!("interface \"{}\"", settings.name),
            format!(
                "queues = {0}, but it has {has}: frames of a queue without a socket would be lost; set queues = {has}, or run \"ethtool -L {1} combined {0}\"",
                settings.queues, settings.name
            ),
            Exit::Usage,
        );
    }
    chunks(settings, &interface, frames, seen);
    Ok(())
}

/// What follows from the MTU: larger frames, several buffers, a UMEM twice as large.
fn chunks(settings: &config::Interface, interface: &Interface, frames: FrameChoice, seen: &mut Seen) {
    let (name, mtu) = (&settings.name, interface.mtu);
    if frames.multi_buffer
        && let Some(kernel) = host::kernel().filter(|kernel| *kernel < MULTI_BUFFER_KERNEL)
    {
        let (needs, has) = (MULTI_BUFFER_KERNEL, kernel);
        seen.stop(
            format!("interface \"{name}\""),
            format!(
                "MTU {mtu} takes frames of several buffers, which need kernel {}.{}, and this is {}.{}: lower the MTU to {SINGLE_BUFFER_MTU_MAX}, or take a newer kernel",
                needs.0, needs.1, has.0, has.1
            ),
            Exit::Host,
        );
    }
    if u64::from(frames.frame_bytes) <= sums::CHUNK_BYTES {
        return;
    }
    let bytes = u64::from(settings.frames) * u64::from(frames.frame_bytes);
    if bytes > UMEM_BYTES_MAX {
        let most = UMEM_BYTES_MAX / u64::from(frames.frame_bytes);
        seen.stop(
            format!("interface \"{name}\": frames"),
            format!(
                "is {}, but with MTU {mtu} a frame takes {} bytes, and a UMEM has at most 4GiB: lower it to {most}, or lower the MTU to {SUMMED_MTU_MAX}",
                settings.frames, frames.frame_bytes
            ),
            Exit::Host,
        );
    } else {
        let several = if frames.multi_buffer { ", larger packets several of them" } else { "" };
        let what = format!(
            "MTU {mtu} takes frames of {} bytes{several}: each queue's UMEM has {}, twice what is summed; up to MTU {SUMMED_MTU_MAX} it would be as summed",
            frames.frame_bytes,
            sums::shown(bytes)
        );
        seen.warnings.push(Finding { key: format!("interface \"{name}\""), what });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_cpus_and_nodes_are_told_each_in_one_line() {
        let config = config::parse(include_str!("../../../config/capture-100g.toml")).expect("parses");
        let mut seen = Seen::default();
        cores(&config, &[0], &mut seen);
        assert_eq!(seen.stops.len(), 1, "{:?}", seen.stops);
        let told = seen.stops[0].0.to_string();
        let working = config.cores.iter().filter(|core| core.cpu != 0 && config::has_work(&config, &core.name));
        assert!(working.clone().count() > 10);
        working.for_each(|core| assert!(told.contains(&format!("\"{}\"", core.name)), "{told}"));
        let text =
            "[[ring.mirror]]\nname = \"m\"\ncore = \"c\"\nsource = \"h:1\"\nring = \"/dev/shm/m\"\nnuma_node = 700\n";
        let mut seen = Seen::default();
        nodes(&config::parse(text).expect("parses"), &mut seen);
        assert!(seen.stops[0].0.to_string().contains("numa_node: is 700"), "{:?}", seen.stops);
    }

    #[test]
    fn numbers_are_written_as_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn what_an_mtu_takes_is_told() {
        let config = config::parse(include_str!("../../../config/default.toml")).expect("parses");
        let mut settings = config.interfaces[0].clone();
        // A host that runs tests has a loopback, whose MTU is above that of a single buffer.
        settings.name = "lo".into();
        let interface = Interface::find("lo").expect("there");
        let with = |mtu: u32, frames: u32| {
            let interface = Interface { mtu, ..interface.clone() };
            let (mut settings, mut seen) = (settings.clone(), Seen::default());
            settings.frames = frames;
            chunks(&settings, &interface, choose_frames(&interface, None, None).expect("fits"), &mut seen);
            (seen.stops.len(), seen.warnings.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(with(1500, 16_384), (0, vec![]));
        let (_, told) = with(3000, 16_384);
        assert!(told[0].contains("MTU 3000 takes frames of 4096 bytes: each queue's UMEM has 64 MiB"), "{told:?}");
        assert_eq!(with(3000, 2_000_000).0, 1);
    }
}
