//! From files and calls to the state of a host; the same for this host and for one that was captured.

use std::collections::BTreeMap;

use super::calls::{Asked, Calls, InterfaceCalls};
use super::host::{
    Clock, Fact, HostState, IdleState, Interrupt, Kernel, Limit, Memory, Network, Nic, Node, Process, Processor,
    Processors, Unread, unread,
};
use super::lists;
use super::tree::Tree;

/// Bounds on what is looked at, one by one: a tree may have been written by anybody.
const CPUS_MAX: usize = 1_024;
const NODES_MAX: usize = 256;
const IDLE_STATES_MAX: usize = 16;
const INTERRUPTS_MAX: usize = 4_096;
/// Huge pages of the size that pools use.
const HUGE_PAGES: &str = "sys/kernel/mm/hugepages/hugepages-2048kB";
const CPUS: &str = "sys/devices/system/cpu";
const NODES: &str = "sys/devices/system/node";

/// Puts the state together.
pub fn read(tree: &Tree, calls: &Calls, asked: &Asked) -> HostState {
    let status = tree.text("proc/self/status");
    HostState {
        kernel: kernel(tree),
        process: process(tree, &status),
        processors: processors(tree, asked),
        memory: memory(tree),
        clock: Clock {
            source: tree.text("sys/devices/system/clocksource/clocksource0/current_clocksource"),
            sources: tree.text("sys/devices/system/clocksource/clocksource0/available_clocksource"),
            wall: calls.wall,
        },
        network: network(tree),
        interfaces: interfaces(tree, calls, asked),
        directories: calls.directories.clone(),
        programs: calls.programs.clone(),
        irqbalance_banned: calls.irqbalance_banned.clone(),
    }
}

fn kernel(tree: &Tree) -> Kernel {
    let protocols = tree.text("proc/net/protocols");
    Kernel {
        release: tree.text("proc/sys/kernel/osrelease"),
        command_line: tree.text("proc/cmdline"),
        io_uring_disabled: tree.number("proc/sys/kernel/io_uring_disabled"),
        io_uring_group: tree.number("proc/sys/kernel/io_uring_group"),
        unprivileged_bpf_disabled: tree.number("proc/sys/kernel/unprivileged_bpf_disabled"),
        af_xdp: protocols.map(|text| text.lines().any(|line| line.starts_with("XDP "))),
        pipe_bytes_max: tree.number("proc/sys/fs/pipe-max-size"),
        files_max: tree.number("proc/sys/fs/file-max"),
        numa_balancing: tree.number("proc/sys/kernel/numa_balancing"),
    }
}

fn process(tree: &Tree, status: &Fact<String>) -> Process {
    let field = |name: &str| -> Fact<String> {
        let text = status.as_ref().map_err(|unread| *unread)?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.trim().to_owned()).ok_or(Unread::Absent)
    };
    let limits = tree.text("proc/self/limits");
    let limit = |name: &str| limits.as_ref().map_err(|unread| *unread).and_then(|text| limit_of(text, name));
    Process {
        // Real, effective, saved, file system.
        user: field("Uid").and_then(|ids| number_at(&ids, 1)),
        groups: field("Groups").map(|ids| ids.split_whitespace().filter_map(|id| id.parse().ok()).collect()),
        capabilities: field("CapEff").and_then(|bits| u64::from_str_radix(&bits, 16).map_err(|_| Unread::Garbled)),
        cpus_allowed: field("Cpus_allowed_list").and_then(|list| lists::parse(&list).ok_or(Unread::Garbled)),
        files: limit("Max open files"),
        locked_bytes: limit("Max locked memory"),
    }
}

fn number_at<T: std::str::FromStr>(text: &str, at: usize) -> Fact<T> {
    text.split_whitespace().nth(at).ok_or(Unread::Garbled)?.parse().map_err(|_| Unread::Garbled)
}

/// `Max locked memory         8388608              8388608              bytes`.
fn limit_of(limits: &str, name: &str) -> Fact<Limit> {
    let values = limits.lines().find_map(|line| line.strip_prefix(name)).ok_or(Unread::Absent)?;
    let value = |at: usize| match values.split_whitespace().nth(at) {
        Some("unlimited") => Ok(u64::MAX),
        _ => number_at(values, at),
    };
    Ok(Limit { soft: value(0)?, hard: value(1)? })
}

fn processors(tree: &Tree, asked: &Asked) -> Processors {
    let online = tree.cpus(&format!("{CPUS}/online"));
    let all = online.clone().unwrap_or_default();
    let wanted = if asked.cpus.is_empty() { &all } else { &asked.cpus };
    Processors {
        isolated: tree.cpus(&format!("{CPUS}/isolated")),
        // "(null)" where the kernel can and was not told to.
        nohz_full: match tree.text(&format!("{CPUS}/nohz_full")) {
            Ok(text) if text == "(null)" => Ok(Vec::new()),
            Ok(text) => lists::parse(&text).ok_or(Unread::Garbled),
            Err(unread) => Err(unread),
        },
        each: wanted.iter().take(CPUS_MAX).map(|cpu| (*cpu, processor(tree, *cpu))).collect(),
        online,
    }
}

fn processor(tree: &Tree, cpu: usize) -> Processor {
    let base = format!("{CPUS}/cpu{cpu}");
    let states = tree.list(&format!("{base}/cpuidle"));
    let state = |name: &String| -> Fact<IdleState> {
        let at = format!("{base}/cpuidle/{name}");
        let (exit_us, disabled) =
            (tree.number(&format!("{at}/latency"))?, tree.number::<u32>(&format!("{at}/disable"))?);
        Ok(IdleState { name: tree.text(&format!("{at}/name"))?, exit_us, disabled: disabled != 0 })
    };
    Processor {
        governor: tree.text(&format!("{base}/cpufreq/scaling_governor")),
        idle_states: states.and_then(|names| {
            names.iter().filter(|name| name.starts_with("state")).take(IDLE_STATES_MAX).map(state).collect()
        }),
        siblings: tree.cpus(&format!("{base}/topology/thread_siblings_list")),
    }
}

fn memory(tree: &Tree) -> Memory {
    let nodes = tree.list(NODES).unwrap_or_default();
    let numbers = nodes.iter().filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok());
    let node = |number: u32| {
        let base = format!("{NODES}/node{number}");
        let distances = tree.text(&format!("{base}/distance"));
        let distances = distances.map(|text| text.split_whitespace().filter_map(|word| word.parse().ok()).collect());
        (number, Node { cpus: tree.cpus(&format!("{base}/cpulist")), distances })
    };
    let swaps = tree.text("proc/swaps");
    let area = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    let transparent = tree.text("sys/kernel/mm/transparent_hugepage/enabled");
    Memory {
        nodes: numbers.take(NODES_MAX).map(node).collect(),
        available_bytes: available(tree),
        huge_pages_free: tree.number(&format!("{HUGE_PAGES}/free_hugepages")),
        huge_pages: tree.number(&format!("{HUGE_PAGES}/nr_hugepages")),
        // "always [madvise] never".
        transparent: transparent.and_then(|text| {
            let chosen = text.split_once('[').and_then(|(_, rest)| Some(rest.split_once(']')?.0.to_owned()));
            chosen.ok_or(Unread::Garbled)
        }),
        swaps: swaps.map(|text| text.lines().skip(1).map(area).collect()),
    }
}

fn available(tree: &Tree) -> Fact<u64> {
    let text = tree.text("proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).ok_or(Unread::Absent)?;
    Ok(number_at::<u64>(line, 0)?.saturating_mul(1_024))
}

fn network(tree: &Tree) -> Network {
    Network {
        memberships_max: tree.number("proc/sys/net/ipv4/igmp_max_memberships"),
        receive_bytes_max: tree.number("proc/sys/net/core/rmem_max"),
        send_bytes_max: tree.number("proc/sys/net/core/wmem_max"),
        rp_filter_all: tree.number("proc/sys/net/ipv4/conf/all/rp_filter"),
        default_routes: default_routes(tree),
    }
}

/// Interface names in the routes whose destination and mask are 0 (`/proc/net/route`), and in those to `::/0`.
fn default_routes(tree: &Tree) -> Fact<Vec<String>> {
    let v4 = tree.text("proc/net/route")?;
    let v6 = tree.text("proc/net/ipv6_route").unwrap_or_default();
    let v4 = v4.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (*fields.get(1)? == "00000000" && *fields.get(7)? == "00000000").then(|| fields[0].to_owned())
    });
    let v6 = v6.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let name = *fields.get(9)?;
        let zero = fields[0].bytes().all(|digit| digit == b'0') && fields[1] == "00";
        // ::/0 on lo is the entry for "unreachable".
        (zero && name != "lo").then(|| name.to_owned())
    });
    let mut names: Vec<String> = v4.chain(v6).collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

fn interfaces(tree: &Tree, calls: &Calls, asked: &Asked) -> BTreeMap<String, Fact<Nic>> {
    let names: Vec<&String> =
        if asked.interfaces.is_empty() { calls.interfaces.keys().collect() } else { asked.interfaces.iter().collect() };
    let interrupts = tree.text("proc/interrupts");
    let nic = |name: &&String| -> Fact<Nic> {
        let answers = calls_of(calls, name)?;
        Ok(nic(tree, answers, &interrupts))
    };
    names.iter().map(|name| ((*name).clone(), nic(name))).collect()
}

/// An interface's answers, by the name it was asked for by, the kernel's or an alternative one.
fn calls_of<'a>(calls: &'a Calls, name: &str) -> Fact<&'a InterfaceCalls> {
    if let Some(answers) = calls.interfaces.get(name) {
        return answers.as_ref().map_err(|unread| *unread);
    }
    let names =
        |link: &super::host::Link| link.name == name || link.alternative_names.iter().any(|other| other == name);
    calls.interfaces.values().flatten().find(|answers| names(&answers.link)).ok_or(Unread::Absent)
}

fn nic(tree: &Tree, answers: &InterfaceCalls, interrupts: &Fact<String>) -> Nic {
    let InterfaceCalls { link, told } = answers;
    // A link without a device has no bus address, and "none" is none.
    let bus = told.driver.as_ref().map_or("none", |driver| driver.bus.as_str());
    let bus = if bus.is_empty() { "none" } else { bus };
    let device = format!("sys/bus/pci/devices/{bus}");
    let driver = told.driver.as_ref().map_or("", |driver| driver.name.as_str());
    Nic {
        link: link.clone(),
        told: told.clone(),
        node: tree.number(&format!("{device}/numa_node")),
        local_cpus: tree.cpus(&format!("{device}/local_cpulist")),
        interrupts: interrupts_of(tree, &device, &link.name, interrupts),
        threaded: tree.number::<u32>(&format!("sys/class/net/{}/threaded", link.name)).map(|value| value != 0),
        rp_filter: tree.number(&format!("proc/sys/net/ipv4/conf/{}/rp_filter", link.name)),
        // "O" in a module's taint: built outside of the kernel's tree.
        out_of_tree: match driver.is_empty() {
            true => unread(),
            false => tree.text(&format!("sys/module/{driver}/taint")).map(|taint| taint.contains('O')),
        },
    }
}

/// By the device's list; by name where there is no such device.
fn interrupts_of(tree: &Tree, device: &str, name: &str, all: &Fact<String>) -> Fact<Vec<Interrupt>> {
    let all = all.as_ref().map_err(|unread| *unread)?;
    let listed = tree.list(&format!("{device}/msi_irqs"));
    let ours = |number: u32, title: &str| match &listed {
        Ok(numbers) => numbers.iter().any(|listed| listed.parse::<u32>() == Ok(number)),
        Err(_) => title == name || title.strip_prefix(name).is_some_and(|rest| rest.starts_with(['-', '@', '.'])),
    };
    let found = all.lines().filter_map(|line| {
        let (number, rest) = line.trim_start().split_once(':')?;
        let (number, title) = (number.parse::<u32>().ok()?, rest.split_whitespace().last()?);
        ours(number, title).then(|| (number, title.to_owned()))
    });
    let interrupt = |(number, name): (u32, String)| {
        let base = format!("proc/irq/{number}");
        let effective = tree.cpus(&format!("{base}/effective_affinity_list"));
        // Empty until the interrupt is started.
        let cpus = effective.ok().filter(|cpus| !cpus.is_empty());
        Interrupt { number, name, cpus: cpus.map_or_else(|| tree.cpus(&format!("{base}/smp_affinity_list")), Ok) }
    };
    let interrupts: Vec<Interrupt> = found.take(INTERRUPTS_MAX).map(interrupt).collect();
    if interrupts.is_empty() { unread() } else { Ok(interrupts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_with_and_without_bound() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max open files            1024                 524288               files     \n\
                    Max locked memory         unlimited            unlimited            bytes     ";
        assert_eq!(limit_of(text, "Max open files"), Ok(Limit { soft: 1_024, hard: 524_288 }));
        assert_eq!(limit_of(text, "Max locked memory"), Ok(Limit { soft: u64::MAX, hard: u64::MAX }));
        assert_eq!(limit_of(text, "Max nothing"), Err(Unread::Absent));
        assert_eq!(limit_of("Max open files x y", "Max open files"), Err(Unread::Garbled));
    }
}
