//! What `check` tells and `run` refuses: one list, so that the two cannot differ.

use super::{Exit, Failure, here, places};
use crate::config::{self, Config, Finding};
use crate::sys::{cpu, privilege};
use crate::{capture, ledger, ring};

/// What was found in a configuration and in the files that it names.
#[derive(Default)]
pub struct Checked {
    /// What `run` refuses: the file is wrong.
    pub findings: Vec<Finding>,
    /// What `run` refuses, because the user that the file names may not.
    pub denied: Vec<Finding>,
    /// What would stop `run` on this host, and how it would end; the file may be meant for another one.
    pub here: Vec<(Finding, Exit)>,
    /// What it lives with.
    pub warnings: Vec<Finding>,
}

impl Checked {
    /// What is wrong wherever the file is meant for.
    pub fn wrong(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().chain(&self.denied)
    }

    /// What ends `run` before anything is touched.
    pub fn refusal(&self) -> Option<Failure> {
        let usage = self.findings.iter().map(|finding| (finding, Exit::Usage));
        let denied = self.denied.iter().map(|finding| (finding, Exit::Host));
        refused(usage.chain(denied).chain(self.here.iter().map(|(finding, exit)| (finding, *exit))).collect())
    }

    /// What is wrong wherever the file is meant for, as a refusal.
    pub fn wrong_file(&self) -> Option<Failure> {
        refused(self.wrong().map(|finding| (finding, Exit::Usage)).collect())
    }
}

/// All of it, a line each; a mistake in the file before what the host denies.
fn refused(all: Vec<(&Finding, Exit)>) -> Option<Failure> {
    let exit = all.iter().map(|(_, exit)| *exit).min_by_key(|exit| *exit as u8)?;
    let lines: Vec<String> = all.iter().map(|(finding, _)| finding.to_string()).collect();
    Some(Failure { message: lines.join("\nsluice: "), exit })
}

/// Looks at everything that needs no privilege, and changes nothing.
pub fn look(config: &Config) -> Checked {
    let mut checked = Checked { findings: config::check(config), ..Checked::default() };
    checked.findings.extend(capture::plan::check_files(config));
    checked.findings.extend(ring::plan::check_files(config));
    checked.findings.extend(ledger::files::check_files(config));
    look_at_places(config, &mut checked);
    let cpus = cpu::allowed();
    checked.warnings.extend(config::warn(config, cpus.len()));
    checked.warnings.extend(config::warn_whole(config, &cpus));
    checked.warnings.extend(ring::plan::warn_files(config));
    checked.warnings.extend(ledger::files::warn_files(config));
    let seen = here::look(config, &cpus);
    checked.here.extend(seen.stops);
    checked.warnings.extend(seen.warnings);
    checked
}

fn look_at_places(config: &Config, checked: &mut Checked) {
    let process = &config.process;
    // One that is not there is told with this host.
    let user = process.user.as_deref().and_then(|user| privilege::identity(user, process.group.as_deref()).ok());
    let places::Refused { impossible, denied, too_small } = places::look(config, user.as_ref());
    checked.here.extend(too_small.into_iter().map(|finding| (finding, Exit::Usage)));
    for finding in impossible {
        if checked.findings.iter().all(|told| told.key != finding.key) {
            checked.findings.push(finding);
        }
    }
    match (user, &process.user) {
        (Some(_), _) => checked.denied.extend(denied),
        // Without a user in the file it may be for another than who looks; with one that is not there nothing is known.
        (None, None) => checked.here.extend(denied.into_iter().map(|finding| (finding, Exit::Host))),
        (None, Some(_)) => {}
    }
    checked.findings.extend(ledger::files::check_kept(config));
}
