//! The interfaces themselves: are they there, once, up, addressed, and not the way by which the host is reached.

use super::{Captured, Report, Rule};
use crate::config::Promiscuous;
use crate::doctor::host::Unread;

const PRESENT: Rule = Rule {
    id: "nic.present",
    why: "an interface that is not there cannot be captured; two names of one interface would bind its queues twice",
};
const LINK: Rule = Rule { id: "nic.link", why: "without a link nothing arrives" };
const DEFAULT_ROUTE: Rule = Rule {
    id: "nic.default_route",
    why: "a capture takes frames away from the kernel: on the interface by which the host is reached it can cut it off",
};
const ADDRESS: Rule = Rule {
    id: "nic.address",
    why: "the kernel answers the router's IGMP queries only on an interface with an IPv4 address; without answers the \
          stream stops some minutes after the join",
};
const PROMISCUOUS: Rule = Rule {
    id: "nic.promiscuous",
    why: "the NIC drops what is neither its own address nor a joined group: such a feed is seen only while somebody else \
          (tcpdump) has it in promiscuous mode",
};

pub(super) const RULES: &[&Rule] = &[&PRESENT, &LINK, &DEFAULT_ROUTE, &ADDRESS, &PROMISCUOUS];

pub(super) fn judge(report: &mut Report<'_>) {
    let host = report.host;
    for (name, nic) in &host.interfaces {
        match nic {
            Ok(_) => {}
            Err(Unread::Absent) => {
                report.fail(&PRESENT, name, "no such interface in this network namespace", "ip -br link");
            }
            Err(unread) => report.unknown(&PRESENT, name, "the interface", *unread),
        }
    }
    for interface in report.interfaces.clone() {
        present(report, &interface);
    }
    // One interface under two names is judged once.
    let mut seen = std::collections::BTreeSet::new();
    report.interfaces.retain(|interface| seen.insert(interface.nic.link.index));
    for interface in report.interfaces.clone() {
        link(report, &interface);
        default_route(report, &interface);
        if report.config.is_some() {
            address(report, &interface);
            promiscuous(report, &interface);
        }
    }
}

fn present(report: &mut Report<'_>, interface: &Captured<'_>) {
    let (name, asked) = (interface.name(), interface.section.name.as_str());
    let mut twins = report.interfaces.iter().filter(|other| other.nic.link.index == interface.nic.link.index);
    let twin = twins.find(|other| other.section.name != asked).map(|other| other.section.name.clone());
    if let Some(twin) = twin {
        let seen = format!("[[interface]] \"{asked}\" and \"{twin}\" are the same interface, {name}");
        report.fail(&PRESENT, asked, seen, format!("ip link show dev {name}   # and take one of the two sections out"));
        return;
    }
    let driver = match &interface.nic.told.driver {
        Ok(driver) if driver.firmware.is_empty() => format!("{} {}", driver.name, driver.version),
        Ok(driver) => format!("{} {}, firmware {}", driver.name, driver.version, driver.firmware),
        Err(_) => "unknown driver".into(),
    };
    let kernel_name = if name == asked { String::new() } else { format!("the kernel's name is {name}; ") };
    report.ok(&PRESENT, asked, format!("{kernel_name}{driver}"));
}

fn link(report: &mut Report<'_>, interface: &Captured<'_>) {
    let (name, link) = (interface.name(), &interface.nic.link);
    match (link.up, link.carrier) {
        (false, _) => report.fail(&LINK, name, "it is down", format!("ip link set dev {name} up")),
        (true, false) => {
            report.warn(&LINK, name, "up, without carrier", format!("ethtool {name}   # cable, optics, switch port"));
        }
        (true, true) => report.ok(&LINK, name, "up, with carrier"),
    }
}

fn default_route(report: &mut Report<'_>, interface: &Captured<'_>) {
    let (name, host) = (interface.name(), report.host);
    let Some(routes) = report.known(&DEFAULT_ROUTE, name, "the routes", &host.network.default_routes) else { return };
    let carries = routes.iter().any(|route| route == name);
    match (carries, report.config.is_some(), interface.section.force) {
        (false, ..) => report.ok(&DEFAULT_ROUTE, name, "no default route leaves through it"),
        (true, false, _) => report.ok(&DEFAULT_ROUTE, name, "a default route leaves through it: none to capture on"),
        (true, true, false) => {
            let seen = "a default route leaves through it, and run refuses it";
            let remedy = report.set("capture on another interface, or set force = true in its section");
            report.fail(&DEFAULT_ROUTE, name, seen, remedy);
        }
        (true, true, true) => {
            let seen = "a default route leaves through it (force = true)";
            report.warn(&DEFAULT_ROUTE, name, seen, "ip route show default   # keep a second way to reach the host");
        }
    }
}

fn address(report: &mut Report<'_>, interface: &Captured<'_>) {
    let groups = report.groups(interface);
    let joined = groups.iter().filter(|group| group.ip().is_multicast()).count();
    let (name, addresses) = (interface.name(), &interface.nic.link.addresses);
    if joined == 0 {
        report.ok(&ADDRESS, name, "no group is joined on it");
    } else if addresses.is_empty() {
        let seen = format!("{joined} groups are joined on it, and it has no IPv4 address");
        report.warn(
            &ADDRESS,
            name,
            seen,
            format!("ip address add ADDRESS/LENGTH dev {name}   # one of the feed's subnet"),
        );
    } else {
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        report.ok(&ADDRESS, name, format!("{joined} groups, address {}", addresses.join(", ")));
    }
}

fn promiscuous(report: &mut Report<'_>, interface: &Captured<'_>) {
    let (name, link) = (interface.name(), &interface.nic.link);
    let foreign: Vec<String> = report
        .groups(interface)
        .iter()
        .filter(|group| !group.ip().is_multicast() && !link.addresses.contains(group.ip()))
        .map(|group| group.ip().to_string())
        .collect();
    if foreign.is_empty() || interface.section.promiscuous == Promiscuous::On {
        report.ok(&PROMISCUOUS, name, "what the feeds need comes through the NIC's filter");
        return;
    }
    let seen = format!("unicast destinations that are not its own: {}; promiscuous is not on", foreign.join(", "));
    let remedy = report.set(format_args!("set promiscuous = \"on\" in [[interface]] \"{}\"", interface.section.name));
    report.warn(&PROMISCUOUS, name, seen, remedy);
}
