//! Settings of the network stack that joins, mirrors and servers depend on.

use super::{Report, Rule, bytes};

const RP_FILTER: Rule = Rule {
    id: "net.rp_filter",
    why: "the strict check drops what comes from a source to which the host would answer by another interface: the \
          router's IGMP queries among it, and the stream stops",
};
const MEMBERSHIPS: Rule = Rule {
    id: "net.igmp_memberships",
    why: "the kernel bounds the groups of one socket; sluice spreads its joins over several, so that only 0 is in its way",
};
const RECEIVE: Rule = Rule {
    id: "net.rmem_max",
    why: "a mirror asks for a receive buffer that bounds how long its core may be away; a smaller one turns bursts into \
          repairs",
};
const SEND: Rule =
    Rule { id: "net.wmem_max", why: "trains of datagrams wait in the send buffer; what does not fit is lost" };

pub(super) const RULES: &[&Rule] = &[&RP_FILTER, &MEMBERSHIPS, &RECEIVE, &SEND];

/// What `[[ring.serve]]` asks for.
const SEND_BYTES: u64 = 1 << 20;

pub(super) fn judge(report: &mut Report<'_>) {
    rp_filter(report);
    memberships(report);
    buffers(report);
}

fn rp_filter(report: &mut Report<'_>) {
    let host = report.host;
    for interface in report.interfaces.clone() {
        let name = interface.name();
        let joined = report.groups(&interface).iter().any(|group| group.ip().is_multicast());
        if report.config.is_some() && !joined {
            report.ok(&RP_FILTER, name, "no group is joined on it");
            continue;
        }
        let all = report.known(&RP_FILTER, name, "net.ipv4.conf.all.rp_filter", &host.network.rp_filter_all).copied();
        let Some(all) = all else { continue };
        let own = &interface.nic.rp_filter;
        let Some(own) = report.known(&RP_FILTER, name, "its rp_filter", own).copied() else { continue };
        // The kernel takes the larger of the two; 2 is the loose check.
        match all.max(own) {
            1 if joined => {
                let seen = format!("strict (all {all}, own {own})");
                report.warn(
                    &RP_FILTER,
                    name,
                    seen,
                    format!("sysctl -w net.ipv4.conf.{name}.rp_filter=2   # and into /etc/sysctl.d"),
                );
            }
            _ => report.ok(&RP_FILTER, name, format!("all {all}, own {own}")),
        }
    }
}

fn memberships(report: &mut Report<'_>) {
    let host = report.host;
    let most = report
        .interfaces
        .iter()
        .map(|interface| report.groups(interface).iter().filter(|group| group.ip().is_multicast()).count() as u32);
    let most = most.sum::<u32>();
    let max = &host.network.memberships_max;
    let Some(max) = report.known(&MEMBERSHIPS, "", "net.ipv4.igmp_max_memberships", max).copied() else { return };
    if max == 0 && most > 0 {
        report.fail(
            &MEMBERSHIPS,
            "",
            format!("{most} groups, 0 allowed"),
            "sysctl -w net.ipv4.igmp_max_memberships=20",
        );
    } else {
        let sockets = most.div_ceil(max.max(1));
        report.ok(&MEMBERSHIPS, "", format!("{most} groups, {max} a socket: {sockets} sockets"));
    }
}

fn buffers(report: &mut Report<'_>) {
    let host = report.host;
    let Some(config) = report.config else { return };
    let wanted = config.ring.mirrors.iter().map(|mirror| mirror.receive_buffer.0).max();
    let served = (!config.ring.serves.is_empty()).then_some(SEND_BYTES);
    for (rule, key, wanted, fact) in [
        (&RECEIVE, "net.core.rmem_max", wanted, &host.network.receive_bytes_max),
        (&SEND, "net.core.wmem_max", served, &host.network.send_bytes_max),
    ] {
        let Some(wanted) = wanted else {
            report.ok(rule, "", "nothing here asks for it");
            continue;
        };
        // Network namespaces other than the first do not show it; the first one's value holds.
        let absent = "not shown in this network namespace";
        let Some(max) = report.known_or(rule, "", key, fact, absent).copied() else { continue };
        let seen = format!("{} asked for, {} allowed", bytes(wanted), bytes(max));
        if max < wanted {
            report.warn(rule, "", seen, format!("sysctl -w {key}={wanted}   # and into /etc/sysctl.d"));
        } else {
            report.ok(rule, "", seen);
        }
    }
}
