//! Clocks: what is read, who keeps it, and whether a NIC's clock counts nanoseconds.

use super::{Captured, Report, Rule, advice};

const SOURCE: Rule = Rule {
    id: "clock.source",
    why: "every stamp and every batch reads the clock: the TSC takes some 20 ns, a HPET or ACPI timer a system call and \
          over 1 µs",
};
const DISCIPLINE: Rule = Rule {
    id: "clock.discipline",
    why: "stamps are as good as the wall clock; one that nobody keeps drifts by seconds a day, and two keepers pull it to \
          and fro",
};
const TAI: Rule = Rule {
    id: "clock.tai_offset",
    why: "stamps are TAI, stored times are UTC: with an offset that nobody has set a change of it later is a step of 37 s",
};
const LEAP: Rule =
    Rule { id: "clock.leap", why: "at a leap second the wall clock steps; blocks then begin a new clock epoch" };
const NIC_TICK: Rule = Rule {
    id: "clock.nic_tick",
    why: "some drivers show the NIC's raw counter as nanoseconds: with ticks of 12.8 ns a second shows as 78 ms",
};
const NIC_OFFSET: Rule = Rule {
    id: "clock.nic_offset",
    why: "a NIC's clock that nobody sets, or that runs on TAI, is seconds to minutes away from the host's: never take its \
          stamps unseen",
};

pub(super) const RULES: &[&Rule] = &[&SOURCE, &DISCIPLINE, &TAI, &LEAP, &NIC_TICK, &NIC_OFFSET];

/// By NTP on a good LAN tens of µs are usual; beyond a millisecond something is wrong.
const OFFSET_NS_MAX: i64 = 1_000_000;
/// No oscillator is off by more than some 100 ppm; a servo may add as much.
const RATE_PPM_MAX: i64 = 1_000;
/// An hour: what is further away counts from somewhere else.
const ELSEWHERE_NS: i64 = 3_600_000_000_000;
const NANOS: i64 = 1_000_000_000;

pub(super) fn judge(report: &mut Report<'_>) {
    source(report);
    discipline(report);
    tai(report);
    for interface in report.interfaces.clone() {
        nic_clock(report, &interface);
    }
}

fn source(report: &mut Report<'_>) {
    let host = report.host;
    let Some(source) = report.known(&SOURCE, "", "the clock source", &host.clock.source) else { return };
    match source.as_str() {
        "tsc" | "arch_sys_counter" => report.ok(&SOURCE, "", source.as_str()),
        // Read without a system call, but through a page that the hypervisor keeps.
        "kvm-clock" | "hyperv_clocksource_tsc_page" => {
            report.ok(&SOURCE, "", format!("{source}: this is a virtual machine"))
        }
        other => {
            let sources = host.clock.sources.as_deref().unwrap_or("");
            let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
            let command = match sources.split_whitespace().any(|source| source == "tsc") {
                true => format!("echo tsc > {file}"),
                false => {
                    "dmesg | grep -i tsc   # why the kernel gave it up; tsc=reliable is for those who know their board"
                        .into()
                }
            };
            report.fail(&SOURCE, "", format!("{other} of {sources}"), command);
        }
    }
}

fn discipline(report: &mut Report<'_>) {
    let host = report.host;
    let Some(wall) = report.known(&DISCIPLINE, "", "adjtimex", &host.clock.wall).copied() else { return };
    let keepers = ["chronyd", "ntpd", "systemd-timesyncd", "phc2sys"].into_iter().filter(|keeper| report.runs(keeper));
    let keepers: Vec<&str> = keepers.collect();
    let kept =
        format!("kept by {}", if keepers.is_empty() { "nobody seen here".into() } else { keepers.join(" and ") });
    if !wall.synchronised {
        let command = match keepers.first() {
            Some(&"chronyd") => "chronyc tracking; chronyc sources",
            Some(&"phc2sys") => "journalctl -u phc2sys -u ptp4l -n 20",
            Some(_) => "timedatectl timesync-status",
            None => "apt install chrony",
        };
        report.warn(&DISCIPLINE, "", format!("not synchronised, {kept}"), command);
    } else if keepers.len() > 1 {
        let last = keepers.last().unwrap_or(&"");
        report.warn(&DISCIPLINE, "", kept, format!("systemctl disable --now {last}   # one keeper only"));
    } else if wall.offset_ns.abs() > OFFSET_NS_MAX {
        let seen = format!("{} ns away, {kept}", wall.offset_ns);
        report.warn(&DISCIPLINE, "", seen, "chronyc tracking   # wait until it has caught up, before the session");
    } else {
        report.ok(
            &DISCIPLINE,
            "",
            format!("synchronised to {} ns, error at most {} µs, {kept}", wall.offset_ns, wall.error_us_max),
        );
    }
}

fn tai(report: &mut Report<'_>) {
    let host = report.host;
    let Some(wall) = report.known(&TAI, "", "adjtimex", &host.clock.wall).copied() else {
        report.known(&LEAP, "", "adjtimex", &host.clock.wall);
        return;
    };
    match wall.tai_offset_s {
        0 => {
            let command = "add \"leapsectz right/UTC\" to chrony.conf and restart chrony; with PTP: phc2sys does it";
            report.warn(&TAI, "", "TAI - UTC is 0: nobody has set it", advice(command));
        }
        offset => report.ok(&TAI, "", format!("TAI - UTC is {offset} s")),
    }
    if wall.leap {
        report.warn(
            &LEAP,
            "",
            "a leap second is announced for the end of the day",
            "chronyc tracking   # \"Leap status\"",
        );
    } else {
        report.ok(&LEAP, "", "none is announced");
    }
}

fn nic_clock(report: &mut Report<'_>, interface: &Captured<'_>) {
    let name = interface.name();
    let Ok(index) = interface.nic.told.clock_index else {
        return report.ok(&NIC_TICK, name, "it has no clock of its own");
    };
    let device = format!("/dev/ptp{index}");
    let absent = format!("{device} is not there");
    let Some(clock) = report.known_or(&NIC_TICK, name, &device, &interface.nic.told.clock, &absent).copied() else {
        return;
    };
    if clock.rate_ppm.saturating_abs() > RATE_PPM_MAX {
        let seen = format!("{device} runs {} ppm off CLOCK_MONOTONIC: it does not count nanoseconds", clock.rate_ppm);
        let remedy = report.set("keep stamp = \"software\"; and use the kernel's own driver");
        report.fail(&NIC_TICK, name, seen, remedy);
    } else {
        report.ok(&NIC_TICK, name, format!("{device} runs {} ppm off CLOCK_MONOTONIC", clock.rate_ppm));
    }
    offset(report, name, &device, clock.minus_utc_ns);
}

fn offset(report: &mut Report<'_>, name: &str, device: &str, minus_utc_ns: i64) {
    let wall = report.host.clock.wall.map_or(0, |wall| i64::from(wall.tai_offset_s));
    let near = |seconds: i64| minus_utc_ns.saturating_sub(seconds * NANOS).saturating_abs() < NANOS;
    let set = format!("phc2sys -s CLOCK_REALTIME -c {name} -O {wall} -m   # or ptp4l, where there is a grandmaster");
    if near(0) {
        report.ok(&NIC_OFFSET, name, format!("{device} is {minus_utc_ns} ns from UTC"));
    } else if near(37) || near(wall) {
        report.ok(&NIC_OFFSET, name, format!("{device} runs on TAI: {} s ahead of UTC", minus_utc_ns / NANOS));
    } else if minus_utc_ns.saturating_abs() > ELSEWHERE_NS {
        report.warn(
            &NIC_OFFSET,
            name,
            format!("{device} has never been set: it is {} s from UTC", minus_utc_ns / NANOS),
            set,
        );
    } else {
        report.warn(&NIC_OFFSET, name, format!("{device} is {} s from UTC and from TAI", minus_utc_ns / NANOS), set);
    }
}
