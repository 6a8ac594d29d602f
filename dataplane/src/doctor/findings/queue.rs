//! Receive queues: how many, which feeds reach them, and whether each has a socket.

use super::{Captured, Report, Rule, bytes};
use crate::doctor::drivers;
use crate::sys::ethtool::FlowRule;

const COUNT: Rule = Rule {
    id: "queue.count",
    why: "each receive queue needs a socket: frames of a queue without one pass by; one group is one flow is one queue, \
          so queues beyond the number of groups only hold memory",
};
const ROOM: Rule = Rule {
    id: "queue.room",
    why: "some drivers need a second set of queues for XDP and refuse the program when there is no room for it",
};
const SPREAD: Rule = Rule {
    id: "queue.rss",
    why: "the NIC chooses a frame's queue from this table; an entry beyond the queues in use loses frames, and queues \
          that no entry names see no feed",
};
const RULES_OF_FLOWS: Rule = Rule {
    id: "queue.flow_rules",
    why: "a steering rule comes before the table: one that drops a group, or steers it to a queue that is not there, \
          loses the feed with every counter at rest",
};

pub(super) const RULES: &[&Rule] = &[&COUNT, &ROOM, &SPREAD, &RULES_OF_FLOWS];

pub(super) fn judge(report: &mut Report<'_>) {
    for interface in report.interfaces.clone() {
        count(report, &interface);
        room(report, &interface);
        spread(report, &interface);
        flow_rules(report, &interface);
    }
}

fn count(report: &mut Report<'_>, interface: &Captured<'_>) {
    let (name, has, asked) = (interface.name(), interface.nic.link.rx_queues, interface.section.queues);
    let flows = report.groups(interface).len() as u32;
    let (cores, memory) = (interface.section.cores.len() as u32, bytes(interface.umem_bytes()));
    if asked != 0 && asked != has {
        let seen = format!("it has {has} receive queues, and queues = {asked}: run refuses it");
        report.fail(&COUNT, name, seen, format!("ethtool -L {name} {} {asked}", channel_word(interface)));
    } else if report.config.is_none() {
        report.ok(&COUNT, name, format!("{has} receive queues"));
    } else if flows > 0 && has > flows {
        let seen = format!("{has} receive queues for {flows} groups: some see no feed; all of them lock {memory}");
        report.warn(&COUNT, name, seen, format!("ethtool -L {name} {} {flows}", channel_word(interface)));
    } else if cores > 0 && has > cores {
        let seen = format!("{has} receive queues on {cores} cores: several are polled in turn by one core");
        report.warn(&COUNT, name, seen, format!("ethtool -L {name} {} {cores}", channel_word(interface)));
    } else {
        report.ok(&COUNT, name, format!("{has} receive queues on {cores} cores, {flows} groups, {memory} locked"));
    }
}

/// What `ethtool -L` calls this driver's receive queues.
fn channel_word(interface: &Captured<'_>) -> &'static str {
    match &interface.nic.told.channels {
        Ok(channels) if channels.combined_max == 0 && channels.rx_max > 0 => "rx",
        _ => "combined",
    }
}

fn room(report: &mut Report<'_>, interface: &Captured<'_>) {
    let (name, driver) = (interface.name(), interface.driver());
    let absent = "the driver's number of queues is fixed";
    let channels = &interface.nic.told.channels;
    let Some(channels) = report.known_or(&ROOM, name, "its channels", channels, absent) else { return };
    let (now, max) = (channels.combined.max(channels.rx), channels.combined_max.max(channels.rx_max));
    let halved = drivers::note_of(driver).is_some_and(|note| note.half_of_queues);
    if halved && now > max / 2 {
        let seen = format!("{now} of {max} queues in use: {driver} refuses XDP above {}", max / 2);
        report.fail(&ROOM, name, seen, format!("ethtool -L {name} {} {}", channel_word(interface), (max / 2).max(1)));
    } else {
        report.ok(&ROOM, name, format!("{now} of {max} queues in use"));
    }
}

fn spread(report: &mut Report<'_>, interface: &Captured<'_>) {
    let (name, has) = (interface.name(), interface.nic.link.rx_queues);
    let absent = if has == 1 { "one queue: nothing to spread" } else { "the driver shows no table" };
    let table = &interface.nic.told.indirection;
    let Some(table) = report.known_or(&SPREAD, name, "its RSS table", table, absent) else { return };
    if table.is_empty() {
        report.ok(&SPREAD, name, absent);
        return;
    }
    let named = (0..has).filter(|queue| table.contains(queue)).count();
    let beyond = table.iter().copied().filter(|queue| *queue >= has).max();
    if let Some(beyond) = beyond {
        let seen = format!("its table names queue {beyond}, but it has {has}");
        report.fail(&SPREAD, name, seen, format!("ethtool -X {name} equal {has}"));
    } else if (named as u32) < has && interface.nic.told.flow_rules.as_ref().is_ok_and(Vec::is_empty) {
        let seen = format!("its table names {named} of {has} queues, and no rule steers to the others");
        report.warn(&SPREAD, name, seen, format!("ethtool -X {name} equal {has}"));
    } else {
        report.ok(&SPREAD, name, format!("{} entries over {named} of {has} queues", table.len()));
    }
}

fn flow_rules(report: &mut Report<'_>, interface: &Captured<'_>) {
    let (name, has) = (interface.name(), interface.nic.link.rx_queues);
    let absent = "the driver has no steering rules";
    let rules = &interface.nic.told.flow_rules;
    let Some(rules) = report.known_or(&RULES_OF_FLOWS, name, "its rules", rules, absent) else { return };
    let groups = report.groups(interface);
    let mut bad = 0;
    for rule in rules {
        let group = groups.iter().find(|group| takes(rule, group));
        let seen = match (rule.queue, group) {
            (None, Some(group)) => format!("rule {} drops {group}", rule.location),
            (Some(queue), _) if queue >= has => {
                format!("rule {} steers to queue {queue}, but it has {has}", rule.location)
            }
            _ => continue,
        };
        bad += 1;
        report.fail(&RULES_OF_FLOWS, name, seen, format!("ethtool -N {name} delete {}", rule.location));
    }
    if bad == 0 {
        let steered = groups.iter().filter(|group| rules.iter().any(|rule| takes(rule, group))).count();
        report.ok(
            &RULES_OF_FLOWS,
            name,
            format!("{} rules; {steered} of {} groups by rule", rules.len(), groups.len()),
        );
    }
}

/// Whether a rule takes a group's frames.
fn takes(rule: &FlowRule, group: &core::net::SocketAddrV4) -> bool {
    let names = rule.address.is_some() || rule.port.is_some();
    names
        && rule.address.is_none_or(|address| address == *group.ip())
        && rule.port.is_none_or(|port| rule.udp && port == group.port())
}
