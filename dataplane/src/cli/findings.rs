//! What `check` tells and `run` refuses: one list, so that the two cannot differ.

use crate::config::{self, Config, Finding};
use crate::sys::{cpu, privilege};
use crate::{capture, ledger, ring, store};

/// What was found in a configuration and in the files that it names.
pub struct Checked {
    /// What `run` refuses.
    pub findings: Vec<Finding>,
    /// What it lives with.
    pub warnings: Vec<Finding>,
}

/// A user that this host has not: the file may be for another one.
fn user(config: &Config) -> Option<Finding> {
    let process = &config.process;
    let error = privilege::identity(process.user.as_deref()?, process.group.as_deref()).err()?;
    let what = format!("{error}; on this host run would end there");
    Some(Finding { key: "process: user".into(), what })
}

/// Looks at everything that needs no privilege, and changes nothing.
pub fn look(config: &Config) -> Checked {
    let mut findings = config::check(config);
    findings.extend(capture::plan::check_files(config));
    findings.extend(store::plan::check_files(config));
    findings.extend(ring::plan::check_files(config));
    findings.extend(ledger::files::check_files(config));
    let cpus = cpu::allowed();
    let mut warnings = config::warn(config, cpus.len());
    warnings.extend(config::warn_whole(config, &cpus));
    warnings.extend(user(config));
    warnings.extend(ring::plan::warn_files(config));
    warnings.extend(ledger::files::warn_files(config));
    Checked { findings, warnings }
}
