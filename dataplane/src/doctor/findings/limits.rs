//! Limits of descriptors and pipes.

use super::{Report, Rule, bytes};
use crate::config::{Config, LedgerSource};

const FILES: Rule = Rule {
    id: "limits.nofile",
    why: "each subscriber and each mirror is a descriptor; at the limit new ones are refused, and segments cannot be opened",
};
const SYSTEM_FILES: Rule = Rule { id: "limits.file_max", why: "all processes together share this bound" };
const PIPE: Rule = Rule {
    id: "limits.pipe_max_size",
    why: "a ledger that comes through a pipe arrives in pieces of its size: a small one makes its writer wait for us",
};

pub(super) const RULES: &[&Rule] = &[&FILES, &SYSTEM_FILES, &PIPE];

/// Descriptors beside connections: sockets, segments, rings, logs.
const OTHERS: u64 = 1_000;
/// The kernel keeps some for root; a host runs more than this process.
const HOST_FILES: u64 = 65_536;

pub(super) fn judge(report: &mut Report<'_>) {
    let Some(config) = report.config else { return };
    files(report, config);
    pipe(report, config);
}

fn files(report: &mut Report<'_>, config: &Config) {
    let host = report.host;
    let subscribers: u64 = config.ledger.serve.iter().map(|serve| u64::from(serve.subscribers_max)).sum();
    let mirrors: u64 = config.ring.serves.iter().map(|serve| u64::from(serve.connections_max)).sum();
    let needed = subscribers + mirrors + OTHERS;
    if let Some(limit) = report.known(&FILES, "", "the limit of open files", &host.process.files) {
        // The process raises its own soft limit up to the hard one.
        let seen =
            format!("{needed} at most ({subscribers} subscribers, {mirrors} mirrors), {} allowed here", limit.hard);
        if limit.hard < needed {
            report.warn(
                &FILES,
                "",
                seen,
                format!("systemctl edit sluice.service   # [Service] LimitNOFILE={}", needed.next_power_of_two()),
            );
        } else {
            report.ok(&FILES, "", seen);
        }
    }
    let Some(max) = report.known(&SYSTEM_FILES, "", "fs.file-max", &host.kernel.files_max).copied() else { return };
    if max < needed.saturating_add(HOST_FILES) {
        let wanted = needed + HOST_FILES;
        report.warn(
            &SYSTEM_FILES,
            "",
            format!("{max}"),
            format!("sysctl -w fs.file-max={wanted}   # and into /etc/sysctl.d"),
        );
    } else {
        report.ok(&SYSTEM_FILES, "", format!("{max}"));
    }
}

fn pipe(report: &mut Report<'_>, config: &Config) {
    let host = report.host;
    let piped =
        config.ledger.serve.as_ref().filter(|serve| matches!(serve.source, LedgerSource::Pipe | LedgerSource::Captive));
    let Some(serve) = piped else { return report.ok(&PIPE, "", "no ledgers come through a pipe") };
    let Some(max) = report.known(&PIPE, "", "fs.pipe-max-size", &host.kernel.pipe_bytes_max).copied() else { return };
    let seen = format!("{} asked for, {} allowed", bytes(serve.pipe_size.0), bytes(max));
    if max < serve.pipe_size.0 {
        report.warn(
            &PIPE,
            "",
            seen,
            format!("sysctl -w fs.pipe-max-size={}   # and into /etc/sysctl.d", serve.pipe_size.0),
        );
    } else {
        report.ok(&PIPE, "", seen);
    }
}
