//! NUMA: what is near to what.

use super::{Captured, Report, Rule};
use crate::config::Config;
use crate::doctor::lists;

const NIC: Rule = Rule {
    id: "numa.nic",
    why: "a UMEM lies on the node of the core that serves its queue; from another node than the NIC's each frame crosses \
          between the sockets, twice",
};
const MEMORY: Rule = Rule {
    id: "numa.memory",
    why: "a ring on another node than its writer's core costs a remote access for every record",
};
const BALANCING: Rule = Rule {
    id: "numa.balancing",
    why: "the kernel unmaps pages now and then to see who touches them: a page fault on a core that must not wait",
};

pub(super) const RULES: &[&Rule] = &[&NIC, &MEMORY, &BALANCING];

pub(super) fn judge(report: &mut Report<'_>) {
    for interface in report.interfaces.clone() {
        nic(report, &interface);
    }
    memory(report);
    balancing(report);
}

/// The node of a CPU.
fn node_of(report: &Report<'_>, cpu: usize) -> Option<u32> {
    let nodes = &report.host.memory.nodes;
    nodes.iter().find(|(_, node)| node.cpus.as_ref().is_ok_and(|cpus| cpus.contains(&cpu))).map(|(number, _)| *number)
}

/// The distance between two nodes, as the firmware tells it.
fn distance(report: &Report<'_>, from: u32, to: u32) -> Option<u32> {
    let at = report.host.memory.nodes.keys().position(|number| *number == to)?;
    report.host.memory.nodes.get(&from)?.distances.as_ref().ok()?.get(at).copied()
}

fn nic(report: &mut Report<'_>, interface: &Captured<'_>) {
    let (name, nodes) = (interface.name(), report.host.memory.nodes.len());
    if nodes <= 1 {
        return report.ok(&NIC, name, "the host has one node");
    }
    let absent = "it has no slot";
    let Some(node) = report.known_or(&NIC, name, "its node", &interface.nic.node, absent) else { return };
    let Ok(node) = u32::try_from(*node) else {
        let bus = interface.nic.told.driver.as_ref().map_or("", |driver| driver.bus.as_str());
        let seen = format!("{nodes} nodes, and the firmware does not say on which its slot is (-1)");
        let command =
            format!("lspci -vv -s {bus} | grep -i numa   # else the board's manual; then take cores of that node");
        return report.warn(&NIC, name, seen, command);
    };
    let cpus = report.queue_cpus(interface);
    let far = cpus.iter().copied().find(|cpu| node_of(report, *cpu).is_some_and(|other| other != node));
    let Some(far) = far else {
        let seen = if cpus.is_empty() {
            format!("its slot is on node {node}")
        } else {
            format!("it and its cores are on node {node}")
        };
        return report.ok(&NIC, name, seen);
    };
    let other = node_of(report, far).unwrap_or_default();
    let apart =
        distance(report, node, other).map_or_else(String::new, |apart| format!(", {apart} apart (10 is next to)"));
    let seen = format!("its slot is on node {node}, CPU {far} of its queues on node {other}{apart}");
    let near = report.host.memory.nodes.get(&node).and_then(|node| node.cpus.as_ref().ok());
    let near = near.map_or_else(|| "that node".into(), |cpus| lists::format(cpus));
    let remedy = report.set(format_args!("set cpu of its [[core]]s to some of {near}"));
    report.warn(&NIC, name, seen, remedy);
}

/// (what, its node, the core that writes it).
fn placed(config: &Config) -> Vec<(String, u32, &str)> {
    let feeds = config.feeds.iter().filter_map(|feed| {
        Some((format!("feed \"{}\": publish_numa_node", feed.name), feed.publish_numa_node?, feed.core.as_str()))
    });
    let mirrors = config.ring.mirrors.iter().filter_map(|mirror| {
        Some((format!("ring.mirror \"{}\": numa_node", mirror.name), mirror.numa_node?, mirror.core.as_str()))
    });
    feeds.chain(mirrors).collect()
}

fn memory(report: &mut Report<'_>) {
    let Some(config) = report.config else { return };
    let mut fine = true;
    for (what, node, core) in placed(config) {
        let cpu = config.cores.iter().find(|known| known.name == core).map(|core| core.cpu);
        let core_node = cpu.and_then(|cpu| node_of(report, cpu));
        if !report.host.memory.nodes.contains_key(&node) {
            fine = false;
            let nodes: Vec<usize> = report.host.memory.nodes.keys().map(|number| *number as usize).collect();
            let command = report.set(format_args!("set it to one of {}, or leave it out", lists::format(&nodes)));
            report.fail(&MEMORY, "", format!("{what} = {node}, and the host has no such node"), command);
        } else if let Some(core_node) = core_node.filter(|core_node| *core_node != node) {
            fine = false;
            let seen = format!("{what} = {node}, but its writer's core \"{core}\" is on node {core_node}");
            let remedy = report.set(format_args!("set it to {core_node}, or leave it out"));
            report.warn(&MEMORY, "", seen, remedy);
        }
    }
    if fine {
        report.ok(&MEMORY, "", "pools lie where their core first touches them");
    }
}

fn balancing(report: &mut Report<'_>) {
    let host = report.host;
    let absent = "this kernel has none";
    match report.known_or(&BALANCING, "", "kernel.numa_balancing", &host.kernel.numa_balancing, absent) {
        Some(0) => report.ok(&BALANCING, "", "off"),
        Some(_) if host.memory.nodes.len() <= 1 => report.ok(&BALANCING, "", "on, and the host has one node"),
        Some(_) => report.warn(&BALANCING, "", "on", "sysctl -w kernel.numa_balancing=0   # and into /etc/sysctl.d"),
        None => {}
    }
}
