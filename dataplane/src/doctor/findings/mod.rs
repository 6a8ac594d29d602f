//! Findings: pure functions from the state of a host (and a configuration) to what is right, doubtful or wrong with it.
//!
//! May use: `config` and `sys`'s pure parts. One file per topic, one function per rule, or two that share what they look at.
//! Never does: look at the host, read a clock, or call "ok" what it was not told: that is said to be not known.

use serde::Serialize;

use super::host::{Fact, HostState, Nic, Unread};
use crate::config::{self, Config};

mod clock;
mod cpu;
mod disk;
mod frame;
mod irq;
mod kernel;
mod limits;
mod memory;
mod network;
mod nic;
mod numa;
mod queue;
mod xdp;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// It will not work, or will lose data.
    Fail,
    /// It may lose data, or could not be looked at.
    Warn,
    /// As it should be.
    Ok,
}

/// Where the package has the documents, in the repository's layout.
pub const DOCUMENTS: &str = "/usr/share/doc/sluice";

/// One rule: what stays the same in all its findings.
#[derive(Debug)]
pub struct Rule {
    /// `queue.count`; the part before the point is its topic.
    pub id: &'static str,
    /// Why it matters.
    pub why: &'static str,
}

impl Rule {
    /// Its topic.
    pub fn topic(&self) -> &'static str {
        self.id.split_once('.').map_or(self.id, |(topic, _)| topic)
    }

    /// Where it is described: a path of the repository, and of the folder where the package has the documents ([`DOCUMENTS`]).
    pub fn docs(&self) -> String {
        format!("docs/operating/doctor.md#{}", self.id.replace('.', ""))
    }
}

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// The rule's name.
    pub id: &'static str,
    /// How bad.
    pub level: Level,
    /// What it is about: an interface, a core, a directory; empty for the host.
    pub subject: String,
    /// What was seen.
    pub seen: String,
    /// Why it matters.
    pub why: &'static str,
    /// The command that mends it, or that shows more of it, as a shell takes it; empty where there is none.
    pub command: String,
    /// What to do where no one command does it; empty where there is one, or when all is well.
    pub advice: String,
    /// Where it is described.
    pub docs: String,
    /// It takes a privilege to see it.
    pub needs_root: bool,
}

/// What to do about a finding.
enum Remedy {
    /// For a shell.
    Command(String),
    /// For a person.
    Advice(String),
}

impl From<&str> for Remedy {
    fn from(command: &str) -> Remedy {
        Remedy::Command(command.to_owned())
    }
}

impl From<String> for Remedy {
    fn from(command: String) -> Remedy {
        Remedy::Command(command)
    }
}

/// What only a person can do.
fn advice(text: impl Into<String>) -> Remedy {
    Remedy::Advice(text.into())
}

/// Every rule, in the order of the report.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    let topics: [&[&Rule]; 13] = [
        nic::RULES,
        queue::RULES,
        xdp::RULES,
        frame::RULES,
        irq::RULES,
        cpu::RULES,
        numa::RULES,
        memory::RULES,
        network::RULES,
        kernel::RULES,
        clock::RULES,
        disk::RULES,
        limits::RULES,
    ];
    topics.into_iter().flatten().copied()
}

/// All findings, in the order of the rules.
pub fn judge(host: &HostState, config: Option<&Config>) -> Vec<Finding> {
    judge_of(host, config, "CONFIG")
}

/// The same for a configuration that is named `path` in what is to be done.
pub fn judge_of(host: &HostState, config: Option<&Config>, path: &str) -> Vec<Finding> {
    let mut report = Report { host, config, path, interfaces: interfaces(host, config), findings: Vec::new() };
    nic::judge(&mut report);
    queue::judge(&mut report);
    xdp::judge(&mut report);
    frame::judge(&mut report);
    irq::judge(&mut report);
    cpu::judge(&mut report);
    numa::judge(&mut report);
    memory::judge(&mut report);
    network::judge(&mut report);
    kernel::judge(&mut report);
    clock::judge(&mut report);
    disk::judge(&mut report);
    limits::judge(&mut report);
    report.findings
}

/// An interface with its section.
#[derive(Clone)]
struct Captured<'a> {
    section: config::Interface,
    nic: &'a Nic,
}

/// The interfaces that are there, each with its section; without a configuration with the defaults.
fn interfaces<'a>(host: &'a HostState, config: Option<&Config>) -> Vec<Captured<'a>> {
    let found = host.interfaces.iter().filter_map(|(name, nic)| {
        let nic = nic.as_ref().ok()?;
        let section = match config {
            Some(config) => config.interfaces.iter().find(|section| section.name == *name)?.clone(),
            None => config::Interface::new(name.clone()),
        };
        Some(Captured { section, nic })
    });
    found.collect()
}

impl Captured<'_> {
    /// The kernel's name: what commands take.
    fn name(&self) -> &str {
        &self.nic.link.name
    }

    fn driver(&self) -> &str {
        self.nic.told.driver.as_ref().map_or("unknown", |driver| driver.name.as_str())
    }

    fn feature(&self, name: &str) -> Fact<crate::sys::ethtool::Feature> {
        self.nic.told.features.as_ref().map_err(|unread| *unread)?.get(name).copied().ok_or(Unread::Absent)
    }

    /// Bytes of a chunk of its UMEM, as its MTU decides.
    fn chunk_bytes(&self) -> u64 {
        if self.nic.link.mtu + crate::sys::nic::FRAME_OVERHEAD_BYTES + crate::sys::nic::CHUNK_HEADROOM_BYTES <= 2_048 {
            2_048
        } else {
            4_096
        }
    }

    /// Bytes of all its UMEMs.
    fn umem_bytes(&self) -> u64 {
        u64::from(self.nic.link.rx_queues) * u64::from(self.section.frames) * self.chunk_bytes()
    }
}

/// The findings so far, and what they are made from.
struct Report<'a> {
    host: &'a HostState,
    config: Option<&'a Config>,
    /// The configuration's file, as commands name it.
    path: &'a str,
    interfaces: Vec<Captured<'a>>,
    findings: Vec<Finding>,
}

impl Report<'_> {
    fn ok(&mut self, rule: &'static Rule, subject: &str, seen: impl Into<String>) {
        self.add(rule, Level::Ok, subject, seen, "");
    }

    fn warn(&mut self, rule: &'static Rule, subject: &str, seen: impl Into<String>, remedy: impl Into<Remedy>) {
        self.add(rule, Level::Warn, subject, seen, remedy);
    }

    fn fail(&mut self, rule: &'static Rule, subject: &str, seen: impl Into<String>, remedy: impl Into<Remedy>) {
        self.add(rule, Level::Fail, subject, seen, remedy);
    }

    /// Advice to change the configuration.
    fn set(&self, what: impl std::fmt::Display) -> Remedy {
        advice(format!("in {}: {what}", self.path))
    }

    /// `sluice doctor` for the same configuration, with privilege.
    fn doctor_command(&self, more: &str) -> String {
        let path = if self.config.is_some() { format!(" {}", self.path) } else { String::new() };
        format!("sudo sluice doctor{path}{more}")
    }

    fn add(
        &mut self,
        rule: &'static Rule,
        level: Level,
        subject: &str,
        seen: impl Into<String>,
        remedy: impl Into<Remedy>,
    ) {
        let (command, advice) = match remedy.into() {
            Remedy::Command(command) => (command, String::new()),
            Remedy::Advice(advice) => (String::new(), advice),
        };
        self.findings.push(Finding {
            id: rule.id,
            level,
            subject: subject.to_owned(),
            seen: seen.into(),
            why: rule.why,
            command,
            advice,
            docs: rule.docs(),
            needs_root: false,
        });
    }

    /// A fact's value; when it is not known, that is the finding.
    fn known<'f, T>(&mut self, rule: &'static Rule, subject: &str, what: &str, fact: &'f Fact<T>) -> Option<&'f T> {
        match fact {
            Ok(value) => return Some(value),
            Err(unread) => self.unknown(rule, subject, what, *unread),
        }
        None
    }

    /// As [`Report::known`], where a host that has no such thing is as it should be, for the reason given.
    fn known_or<'f, T>(
        &mut self,
        rule: &'static Rule,
        subject: &str,
        what: &str,
        fact: &'f Fact<T>,
        absent: &str,
    ) -> Option<&'f T> {
        if let Err(Unread::Absent) = fact {
            self.ok(rule, subject, absent);
            return None;
        }
        self.known(rule, subject, what, fact)
    }

    fn unknown(&mut self, rule: &'static Rule, subject: &str, what: &str, unread: Unread) {
        match unread {
            Unread::Absent => {
                let remedy = advice(format!("look by other means: {} says what it should be", rule.docs()));
                self.warn(rule, subject, format!("{what}: this host does not tell"), remedy);
            }
            Unread::Garbled => {
                let command = format!("{}   # for a bug report", self.doctor_command(" --capture DIR"));
                self.warn(rule, subject, format!("{what}: could not be understood"), command);
            }
            Unread::Denied => {
                let command = self.doctor_command("");
                self.warn(rule, subject, format!("{what}: not readable without root"), command);
                self.findings.last_mut().expect("just added").needs_root = true;
            }
        }
    }

    /// CPUs of the configuration.
    fn configured_cpus(&self) -> Vec<usize> {
        let mut cpus: Vec<usize> = self.config.iter().flat_map(|config| &config.cores).map(|core| core.cpu).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }

    /// CPUs that serve an interface's queues.
    fn queue_cpus(&self, interface: &Captured<'_>) -> Vec<usize> {
        let Some(config) = self.config else { return Vec::new() };
        let named = config.cores.iter().filter(|core| interface.section.cores.contains(&core.name));
        named.map(|core| core.cpu).collect()
    }

    /// Destinations of the feeds that come in on an interface, as (address, port).
    fn groups(&self, interface: &Captured<'_>) -> Vec<core::net::SocketAddrV4> {
        let sides = self.config.iter().flat_map(|config| &config.feeds).flat_map(|feed| &feed.sides);
        let ours = sides.filter(|side| side.interface.as_deref() == Some(interface.section.name.as_str()));
        let mut groups: Vec<core::net::SocketAddrV4> =
            ours.flat_map(|side| &side.groups).filter_map(|group| group.parse().ok()).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// A program of interest runs.
    fn runs(&self, program: &str) -> bool {
        self.host.programs.get(program) == Some(&true)
    }
}

/// Bytes in the unit that reads best.
fn bytes(count: u64) -> String {
    match count {
        0..1_024 => format!("{count} B"),
        1_024..1_048_576 => format!("{} KiB", count >> 10),
        1_048_576..10_737_418_240 => format!("{} MiB", count >> 20),
        _ => format!("{} GiB", count >> 30),
    }
}
