//! Interrupts: who moves them, and whether they fall on a core that spins.

use super::{Captured, Report, Rule};
use crate::config::Idle;
use crate::doctor::lists;

const BALANCE: Rule = Rule {
    id: "irq.irqbalance",
    why: "irqbalance moves interrupts onto pinned cores; what is already being received stays on the old one until it ends",
};
const MAP: Rule = Rule {
    id: "irq.map",
    why: "driver and program run where the queue's interrupt is delivered: on a worker's own core they take turns, on \
          another NUMA node each frame crosses between the nodes",
};
const THREADED: Rule = Rule {
    id: "irq.threaded_napi",
    why: "with threaded NAPI the driver runs in kernel threads, which the scheduler moves unless they are pinned",
};

pub(super) const RULES: &[&Rule] = &[&BALANCE, &MAP, &THREADED];

pub(super) fn judge(report: &mut Report<'_>) {
    balance(report);
    for interface in report.interfaces.clone() {
        map(report, &interface);
        threaded(report, &interface);
    }
}

fn balance(report: &mut Report<'_>) {
    let host = report.host;
    if !report.runs("irqbalance") {
        return report.ok(&BALANCE, "", "irqbalance does not run");
    }
    let cpus = report.configured_cpus();
    let Some(banned) = report.known_or(
        &BALANCE,
        "",
        "irqbalance runs; which CPUs it keeps off",
        &host.irqbalance_banned,
        "irqbalance runs, and the capture has not what it was told",
    ) else {
        return;
    };
    let open: Vec<usize> = cpus.iter().copied().filter(|cpu| !banned.contains(cpu)).collect();
    let list = lists::format(&cpus);
    if cpus.is_empty() {
        let seen = "irqbalance runs; without a configuration nothing says which CPUs it should keep off";
        report.warn(&BALANCE, "", seen, "systemctl disable --now irqbalance");
    } else if open.is_empty() {
        report.ok(&BALANCE, "", format!("irqbalance runs and keeps off CPUs {}", lists::format(banned)));
    } else {
        let seen = format!("irqbalance runs, and may move interrupts to CPUs {}", lists::format(&open));
        report.warn(&BALANCE, "", seen, format!("sluice-tune apply --cores {list}"));
    }
}

fn map(report: &mut Report<'_>, interface: &Captured<'_>) {
    let name = interface.name();
    let absent = "it has no interrupts of its own";
    let interrupts = &interface.nic.interrupts;
    let Some(interrupts) = report.known_or(&MAP, name, "its interrupts", interrupts, absent) else { return };
    let mut cpus: Vec<usize> = interrupts.iter().flat_map(|irq| irq.cpus.iter().flatten()).copied().collect();
    cpus.sort_unstable();
    cpus.dedup();
    if cpus.is_empty() {
        return report.unknown(&MAP, name, "where its interrupts go", crate::doctor::host::Unread::Garbled);
    }
    let all = format!("{} interrupts on CPUs {}", interrupts.len(), lists::format(&cpus));
    let spinning = spinning_cpus(report);
    let workers = report.configured_cpus();
    let on = |cpus: &[usize]| {
        let hit = interrupts.iter().find(|irq| irq.cpus.iter().flatten().any(|cpu| cpus.contains(cpu)));
        hit.map(|irq| (irq.number, irq.name.clone(), lists::format(irq.cpus.as_deref().unwrap_or_default())))
    };
    let tune = match left_over(report).is_empty() {
        true => report.set("leave a CPU without a core first (cpu.left_over)"),
        false => format!("sluice-tune apply --interface {name} --cores {}", lists::format(&workers)).into(),
    };
    if let Some((number, title, at)) = on(&spinning) {
        let seen = format!("{all}; {number} ({title}) on CPU {at}, which a spinning core has");
        report.warn(&MAP, name, seen, tune);
    } else if let Some((number, title, at)) = on(&workers) {
        let seen = format!("{all}; {number} ({title}) on CPU {at}, which a worker has");
        report.warn(&MAP, name, seen, tune);
    } else if let Some(far) = far_cpus(interface, &cpus) {
        let seen = format!("{all}; {} are not next to its slot", lists::format(&far));
        report.warn(&MAP, name, seen, tune);
    } else {
        report.ok(&MAP, name, all);
    }
}

/// CPUs that no core has.
fn left_over(report: &Report<'_>) -> Vec<usize> {
    let taken = report.configured_cpus();
    let online = report.host.processors.online.iter().flatten();
    online.copied().filter(|cpu| !taken.contains(cpu)).collect()
}

fn spinning_cpus(report: &Report<'_>) -> Vec<usize> {
    let cores = report.config.iter().flat_map(|config| &config.cores);
    cores.filter(|core| core.idle == Idle::Spin).map(|core| core.cpu).collect()
}

/// Those of the CPUs that are on another node than the NIC, where that is known.
fn far_cpus(interface: &Captured<'_>, cpus: &[usize]) -> Option<Vec<usize>> {
    let near = interface.nic.local_cpus.as_ref().ok().filter(|_| interface.nic.node.is_ok_and(|node| node >= 0))?;
    let far: Vec<usize> = cpus.iter().copied().filter(|cpu| !near.contains(cpu)).collect();
    (!far.is_empty()).then_some(far)
}

fn threaded(report: &mut Report<'_>, interface: &Captured<'_>) {
    let name = interface.name();
    let absent = "sysfs shows no such setting here";
    match report.known_or(&THREADED, name, "its mode of receiving", &interface.nic.threaded, absent) {
        Some(false) => report.ok(&THREADED, name, "off"),
        Some(true) => {
            let cpus = lists::format(&left_over(report));
            let command = format!("for thread in $(pgrep 'napi/{name}-'); do taskset -cp {cpus} \"$thread\"; done");
            report.warn(&THREADED, name, "on", command);
        }
        None => {}
    }
}
