//! What NIC and driver do to frames before anybody sees them: tags, merging, rings, interrupt moderation.

use super::{Captured, Level, Report, Rule, advice};

const VLAN_STRIP: Rule = Rule {
    id: "frame.vlan_strip",
    why: "the NIC takes the VLAN tag off and puts it where an XDP program cannot see it: one group on two VLANs becomes one",
};
const VLAN_FILTER: Rule = Rule {
    id: "frame.vlan_filter",
    why: "the NIC drops frames of VLANs that nobody configured; with stripping off this filter may still be on",
};
const LRO: Rule = Rule {
    id: "frame.lro",
    why: "a merged frame is longer than a chunk, and no frame that was on the wire; most drivers refuse XDP with it",
};
const GRO: Rule = Rule {
    id: "frame.gro",
    why: "in the generic path frames are merged before the program runs; in the driver's it only costs what passes by",
};
const RING: Rule = Rule {
    id: "frame.nic_ring",
    why: "the ring covers the time until the driver looks: 512 descriptors are 34 µs of smallest frames at 10 Gbit/s; it \
          cures bursts, not a core that is too slow. To change it resets the queue, and crashed the kernel on one driver: \
          it is never done for you",
};
const COALESCING: Rule = Rule {
    id: "frame.coalescing",
    why: "adaptive moderation delays the first frames after a pause, as the driver sees fit; a long delay fills the ring \
          and comes on top of every latency",
};

pub(super) const RULES: &[&Rule] = &[&VLAN_STRIP, &VLAN_FILTER, &LRO, &GRO, &RING, &COALESCING];

/// Receive descriptors that are enough: at 600,000 packets/s 4,096 cover 6.8 ms.
const RING_WANTED: u32 = 4_096;
/// At 100 µs a ring of 4,096 is a third full with smallest frames at 10 Gbit/s.
const DELAY_US_MAX: u32 = 100;

pub(super) fn judge(report: &mut Report<'_>) {
    for interface in report.interfaces.clone() {
        let generic = interface.section.mode == crate::config::AttachMode::Generic;
        switch(report, &interface, &VLAN_STRIP, ["rx-vlan-hw-parse", "rxvlan"], Level::Warn);
        switch(report, &interface, &VLAN_FILTER, ["rx-vlan-filter", "rx-vlan-filter"], Level::Warn);
        switch(report, &interface, &LRO, ["rx-lro", "lro"], Level::Fail);
        match interface.feature("rx-gro") {
            Ok(gro) if gro.on && !generic => {
                report.ok(
                    &GRO,
                    interface.name(),
                    "on: it comes after the program, frames of the capture never meet it",
                );
            }
            _ => switch(report, &interface, &GRO, ["rx-gro", "gro"], Level::Warn),
        }
        ring(report, &interface);
        coalescing(report, &interface);
    }
}

/// A feature that should be off, by the kernel's name and by the one that `ethtool -K` takes.
fn switch(report: &mut Report<'_>, interface: &Captured<'_>, rule: &'static Rule, names: [&str; 2], level: Level) {
    let name = interface.name();
    let [kernel_name, command_name] = names;
    let feature = interface.feature(kernel_name);
    let Some(feature) = report.known_or(rule, name, kernel_name, &feature, "the driver has none") else { return };
    match (feature.on, feature.fixed) {
        (false, _) => report.ok(rule, name, "off"),
        (true, false) => report.add(rule, level, name, "on", format!("ethtool -K {name} {command_name} off")),
        (true, true) => {
            let command = match command_name {
                "rx-vlan-filter" => report.set(format_args!(
                    "set promiscuous = \"on\"; or for each VLAN: ip link add link {name} name {name}.ID type vlan id ID"
                )),
                _ => advice("the driver has no other state: use an interface of another driver if it matters"),
            };
            report.add(rule, level, name, "on, and fixed", command);
        }
    }
}

fn ring(report: &mut Report<'_>, interface: &Captured<'_>) {
    let name = interface.name();
    let rings = &interface.nic.told.rings;
    let absent = "the driver has no ring to set";
    let Some(rings) = report.known_or(&RING, name, "its rings", rings, absent) else { return };
    let wanted = rings.rx_max.min(RING_WANTED);
    if rings.rx < wanted {
        let seen = format!("{} receive descriptors of {} possible", rings.rx, rings.rx_max);
        report.warn(
            &RING,
            name,
            seen,
            format!("ethtool -G {name} rx {wanted}   # out of session: it resets the queues"),
        );
    } else {
        report.ok(&RING, name, format!("{} receive descriptors", rings.rx));
    }
}

fn coalescing(report: &mut Report<'_>, interface: &Captured<'_>) {
    let name = interface.name();
    let told = &interface.nic.told.coalescing;
    let absent = "the driver moderates nothing";
    let Some(told) = report.known_or(&COALESCING, name, "its moderation", told, absent) else { return };
    let usecs = told.rx_usecs;
    if told.adaptive_rx {
        let seen = format!("adaptive, now {usecs} µs");
        report.warn(&COALESCING, name, seen, format!("ethtool -C {name} adaptive-rx off rx-usecs 20"));
    } else if usecs > DELAY_US_MAX {
        report.warn(&COALESCING, name, format!("{usecs} µs"), format!("ethtool -C {name} rx-usecs 20"));
    } else {
        report.ok(&COALESCING, name, format!("at most {usecs} µs, {} frames", told.rx_frames));
    }
}
