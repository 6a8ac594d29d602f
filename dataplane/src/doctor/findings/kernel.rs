//! The kernel: new enough, and with what is needed switched on.

use super::{Report, Rule, advice};
use crate::doctor::drivers;

const VERSION: Rule = Rule {
    id: "kernel.version",
    why: "6.1 is the oldest kernel that sluice is made for; frames of several buffers need 6.6",
};
const AF_XDP: Rule = Rule { id: "kernel.af_xdp", why: "without AF_XDP sockets nothing can be captured" };
const IO_URING: Rule = Rule {
    id: "kernel.io_uring",
    why: "every core sleeps, writes and listens through an io_uring; some distributions ship it switched off",
};
const BPF: Rule = Rule {
    id: "kernel.unprivileged_bpf",
    why: "sluice loads its program with CAP_BPF; that everybody else may load some is a risk, and no use to it",
};
const CAPABILITIES: Rule =
    Rule { id: "kernel.capabilities", why: "run needs these rights for its start, and drops them afterwards" };

pub(super) const RULES: &[&Rule] = &[&VERSION, &AF_XDP, &IO_URING, &BPF, &CAPABILITIES];

/// The capabilities that capturing needs, by number (linux/capability.h).
const NEEDED: [(u32, &str); 4] = [(12, "NET_ADMIN"), (13, "NET_RAW"), (38, "PERFMON"), (39, "BPF")];

pub(super) fn judge(report: &mut Report<'_>) {
    version(report);
    af_xdp(report);
    io_uring(report);
    unprivileged_bpf(report);
    capabilities(report);
}

fn version(report: &mut Report<'_>) {
    let host = report.host;
    let Some(text) = report.known(&VERSION, "", "the kernel's release", &host.kernel.release) else { return };
    match drivers::release_of(text) {
        None => report.unknown(&VERSION, "", "the kernel's release", crate::doctor::host::Unread::Garbled),
        Some(release) if release < (6, 1) => {
            report.fail(&VERSION, "", text.as_str(), "apt install linux-image-amd64   # a kernel from 6.1 on");
        }
        Some(release) if release < (6, 6) => {
            report.ok(&VERSION, "", format!("{text}; without sockets for frames of several buffers (6.6)"));
        }
        Some(_) => report.ok(&VERSION, "", text.as_str()),
    }
}

fn af_xdp(report: &mut Report<'_>) {
    let host = report.host;
    let captures = report.config.is_none_or(|config| !config.interfaces.is_empty());
    match report.known(&AF_XDP, "", "/proc/net/protocols", &host.kernel.af_xdp) {
        Some(true) => report.ok(&AF_XDP, "", "there are AF_XDP sockets"),
        Some(false) if captures => {
            let remedy = advice("install a kernel with CONFIG_XDP_SOCKETS=y: Debian's has it");
            report.fail(&AF_XDP, "", "there are no AF_XDP sockets", remedy);
        }
        Some(false) => report.ok(&AF_XDP, "", "there are no AF_XDP sockets, and nothing is captured"),
        None => {}
    }
}

fn io_uring(report: &mut Report<'_>) {
    let host = report.host;
    let absent = "always allowed: this kernel has no switch for it (6.6 has)";
    let fact = &host.kernel.io_uring_disabled;
    let Some(disabled) = report.known_or(&IO_URING, "", "kernel.io_uring_disabled", fact, absent) else { return };
    let group = host.kernel.io_uring_group.unwrap_or(-1);
    match disabled {
        0 => report.ok(&IO_URING, "", "allowed"),
        1 if host.process.user == Ok(0) => {
            let seen = format!("allowed to root and group {group}: the service's user must be in it");
            report.warn(
                &IO_URING,
                "",
                seen,
                "sysctl -w kernel.io_uring_group=$(id -g sluice)   # and into /etc/sysctl.d",
            );
        }
        1 => {
            let mine = host.process.groups.iter().flatten().any(|own| i64::from(*own) == group);
            if mine {
                report.ok(&IO_URING, "", format!("allowed to group {group}, which this process is in"));
            } else {
                let command = "sysctl -w kernel.io_uring_group=$(id -g sluice)   # and into /etc/sysctl.d";
                report.fail(&IO_URING, "", format!("allowed to group {group} only"), command);
            }
        }
        _ => report.fail(
            &IO_URING,
            "",
            "switched off",
            "sysctl -w kernel.io_uring_disabled=0   # and into /etc/sysctl.d",
        ),
    }
}

fn unprivileged_bpf(report: &mut Report<'_>) {
    let host = report.host;
    let fact = &host.kernel.unprivileged_bpf_disabled;
    let absent = "this kernel has no switch for it";
    match report.known_or(&BPF, "", "kernel.unprivileged_bpf_disabled", fact, absent) {
        Some(0) => {
            report.warn(
                &BPF,
                "",
                "everybody may load programs",
                "sysctl -w kernel.unprivileged_bpf_disabled=2   # and into /etc/sysctl.d",
            );
        }
        Some(value) => report.ok(&BPF, "", format!("only with CAP_BPF ({value})")),
        None => {}
    }
}

fn capabilities(report: &mut Report<'_>) {
    let host = report.host;
    let captures = report.config.is_some_and(|config| !config.interfaces.is_empty());
    if !captures {
        return report.ok(&CAPABILITIES, "", "nothing is captured: none are needed");
    }
    let Some(bits) = report.known(&CAPABILITIES, "", "its capabilities", &host.process.capabilities).copied() else {
        return;
    };
    let missing: Vec<&str> = NEEDED.iter().filter(|(bit, _)| bits >> bit & 1 == 0).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        report.ok(&CAPABILITIES, "", "this process has those that run needs");
    } else {
        let seen = format!("this process lacks {}: run needs them, the doctor does not", missing.join(", "));
        report.ok(&CAPABILITIES, "", seen);
    }
}
