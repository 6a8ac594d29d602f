//! The CPUs of the configuration: there, allowed, fast, and left alone by everybody else.

use super::{Report, Rule, advice};
use crate::config::Idle;
use crate::doctor::lists;

const THERE: Rule = Rule {
    id: "cpu.allowed",
    why: "a core is pinned to its CPU; one that is offline or outside of the process's cpuset cannot be had, and run refuses",
};
const LEFT: Rule = Rule {
    id: "cpu.left_over",
    why: "the control thread, the kernel's io workers and interrupts need a CPU that no core has: a spinning core gives \
          nothing away",
};
const GOVERNOR: Rule = Rule {
    id: "cpu.governor",
    why: "a clock that goes up only after load has come costs the first milliseconds of each burst: random loss every few \
          minutes, cured by the performance governor",
};
const IDLE_STATES: Rule = Rule {
    id: "cpu.idle_states",
    why: "to leave a deep idle state takes up to 200 µs, in which the NIC's ring fills",
};
const ISOLATION: Rule = Rule {
    id: "cpu.isolation",
    why: "another process on a core's CPU is loss that no counter of the NIC shows: the core is away for a scheduler slice \
          of some ms",
};
const TICK: Rule = Rule {
    id: "cpu.nohz_full",
    why: "the scheduler's tick interrupts a spinning core 100 to 1,000 times a second, for some µs each",
};
const SIBLINGS: Rule = Rule {
    id: "cpu.siblings",
    why: "two threads of one physical core share its execution units: two spinning workers run at about half the speed",
};

pub(super) const RULES: &[&Rule] = &[&THERE, &LEFT, &GOVERNOR, &IDLE_STATES, &ISOLATION, &TICK, &SIBLINGS];

/// Idle states that take longer to leave are deep: above C1 (1 to 2 µs) and C1E (some 10 µs), as sluice-tune has it.
const EXIT_US_MAX: u32 = 10;
/// With fewer CPUs nobody isolates any: there would be none left for the system.
const CPUS_TO_ISOLATE_MIN: usize = 4;

pub(super) fn judge(report: &mut Report<'_>) {
    allowed(report);
    left_over(report);
    governor(report);
    idle_states(report);
    isolation(report);
    siblings(report);
}

/// Names of the configuration's cores on some CPUs.
fn cores_on(report: &Report<'_>, cpus: &[usize]) -> String {
    let cores = report.config.iter().flat_map(|config| &config.cores);
    let names =
        cores.filter(|core| cpus.contains(&core.cpu)).map(|core| format!("\"{}\" (cpu {})", core.name, core.cpu));
    names.collect::<Vec<_>>().join(", ")
}

fn allowed(report: &mut Report<'_>) {
    let host = report.host;
    let Some(online) = report.known(&THERE, "", "the CPUs that are online", &host.processors.online) else { return };
    let Some(allowed) = report.known(&THERE, "", "the process's cpuset", &host.process.cpus_allowed) else { return };
    let wanted = report.configured_cpus();
    let missing: Vec<usize> = wanted.iter().copied().filter(|cpu| !online.contains(cpu)).collect();
    let outside: Vec<usize> =
        wanted.iter().copied().filter(|cpu| online.contains(cpu) && !allowed.contains(cpu)).collect();
    if !missing.is_empty() {
        let seen = format!("core {}: not online; {} are", cores_on(report, &missing), lists::format(online));
        let remedy = report.set(format_args!("set cpu to one of them in [[core]] {}", cores_on(report, &missing)));
        report.fail(&THERE, "", seen, remedy);
    } else if !outside.is_empty() {
        let cores = cores_on(report, &outside);
        let seen = format!("core {cores}: outside of this process's cpuset {}", lists::format(allowed));
        let all = lists::format(&wanted);
        report.fail(
            &THERE,
            "",
            seen,
            format!("systemctl set-property sluice.service AllowedCPUs={all}   # with the CPUs of control"),
        );
    } else {
        report.ok(&THERE, "", format!("online {}, allowed {}", lists::format(online), lists::format(allowed)));
    }
}

fn left_over(report: &mut Report<'_>) {
    let (host, taken) = (report.host, report.configured_cpus());
    let (Ok(online), Some(config)) = (&host.processors.online, report.config) else { return };
    let left: Vec<usize> = online.iter().copied().filter(|cpu| !taken.contains(cpu)).collect();
    let spins = config.cores.iter().any(|core| core.idle == Idle::Spin);
    let seen = format!("{} of {} CPUs have a core", taken.len(), online.len());
    let command = report.set("put workers together on fewer [[core]]s, or set idle = \"park\"");
    match (left.is_empty(), spins) {
        (true, true) => report.fail(&LEFT, "", format!("{seen}, and some of them spin"), command),
        (true, false) if online.len() > 2 => report.warn(&LEFT, "", seen, command),
        (true, false) => report.ok(&LEFT, "", format!("{seen}; all of them park")),
        (false, _) => report.ok(&LEFT, "", format!("{seen}; {} are left to the system", lists::format(&left))),
    }
}

fn governor(report: &mut Report<'_>) {
    let host = report.host;
    let mut slow: Vec<(usize, &str)> = Vec::new();
    let mut named = 0;
    for (cpu, processor) in &host.processors.each {
        match &processor.governor {
            Ok(governor) if governor == "performance" => named += 1,
            Ok(governor) => slow.push((*cpu, governor)),
            Err(crate::doctor::host::Unread::Absent) => {}
            Err(unread) => return report.unknown(&GOVERNOR, "", "the governor", *unread),
        }
    }
    let list = lists::format(&slow.iter().map(|(cpu, _)| *cpu).collect::<Vec<_>>());
    match slow.first() {
        Some((_, governor)) => {
            let cores = lists::format(&host.processors.each.keys().copied().collect::<Vec<_>>());
            let seen = format!("\"{governor}\" on CPUs {list}");
            report.warn(&GOVERNOR, "", seen, format!("sluice-tune apply --cores {cores}"));
        }
        None if named == 0 => {
            report.ok(&GOVERNOR, "", "no governor here: the firmware, or the host of this virtual machine, decides");
        }
        None => report.ok(&GOVERNOR, "", "\"performance\""),
    }
}

fn idle_states(report: &mut Report<'_>) {
    let host = report.host;
    let mut deep: Vec<usize> = Vec::new();
    let mut worst = ("", 0);
    for (cpu, processor) in &host.processors.each {
        let states = match &processor.idle_states {
            Ok(states) => states,
            Err(crate::doctor::host::Unread::Absent) => continue,
            Err(unread) => return report.unknown(&IDLE_STATES, "", "the idle states", *unread),
        };
        for state in states.iter().filter(|state| !state.disabled && state.exit_us > EXIT_US_MAX) {
            if deep.last() != Some(cpu) {
                deep.push(*cpu);
            }
            if state.exit_us > worst.1 {
                worst = (&state.name, state.exit_us);
            }
        }
    }
    if deep.is_empty() {
        return report.ok(&IDLE_STATES, "", format!("none that takes longer than {EXIT_US_MAX} µs to leave"));
    }
    let list = lists::format(&deep);
    let seen = format!("CPUs {list} may fall into {} ({} µs to leave)", worst.0, worst.1);
    report.warn(&IDLE_STATES, "", seen, format!("sluice-tune apply --cores {list}"));
}

fn isolation(report: &mut Report<'_>) {
    let host = report.host;
    let Some(config) = report.config else { return };
    let spinning: Vec<usize> =
        config.cores.iter().filter(|core| core.idle == Idle::Spin).map(|core| core.cpu).collect();
    let online = host.processors.online.as_ref().map_or(0, Vec::len);
    let list = {
        let mut sorted = spinning.clone();
        sorted.sort_unstable();
        lists::format(&sorted)
    };
    for (rule, word, fact) in
        [(&ISOLATION, "isolcpus", &host.processors.isolated), (&TICK, "nohz_full", &host.processors.nohz_full)]
    {
        if spinning.is_empty() || online < CPUS_TO_ISOLATE_MIN {
            report.ok(rule, "", format!("{} spinning cores on {online} CPUs: nothing to isolate", spinning.len()));
            continue;
        }
        let none = Vec::new();
        let named = match fact {
            Ok(named) => named,
            // A kernel without the ability shows no file.
            Err(crate::doctor::host::Unread::Absent) => &none,
            Err(unread) => {
                report.unknown(rule, "", word, *unread);
                continue;
            }
        };
        if spinning.iter().all(|cpu| named.contains(cpu)) {
            report.ok(rule, "", format!("{word} has {}", lists::format(named)));
        } else {
            let has = if named.is_empty() { "nothing".into() } else { lists::format(named) };
            let seen = format!("spinning cores on CPUs {list}, {word} has {has}");
            report.warn(
                rule,
                "",
                seen,
                advice(format!(
                    "add {word}={list} to the kernel's command line (GRUB_CMDLINE_LINUX in /etc/default/grub), update-grub, reboot"
                )),
            );
        }
    }
}

fn siblings(report: &mut Report<'_>) {
    let (host, taken) = (report.host, report.configured_cpus());
    let shares = |cpu: &usize| {
        let siblings = host.processors.each.get(cpu)?.siblings.as_ref().ok()?;
        siblings.iter().copied().find(|other| other > cpu && taken.contains(other)).map(|other| (*cpu, other))
    };
    match taken.iter().find_map(shares) {
        Some((cpu, other)) => {
            let seen = format!("CPUs {cpu} and {other} are threads of one physical core, and both have a core");
            let command = format!(
                "cat /sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list   # and take another CPU for one"
            );
            report.warn(&SIBLINGS, "", seen, command);
        }
        None => report.ok(&SIBLINGS, "", "no two cores share a physical core"),
    }
}
