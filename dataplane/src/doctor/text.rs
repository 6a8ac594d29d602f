//! Findings for people: by topic, the worst first.

use std::fmt::Write;

use super::findings::{DOCUMENTS, Finding, Level, rules};

/// How many of each level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Will not work, or loses data.
    pub fail: usize,
    /// Doubtful.
    pub warn: usize,
    /// As it should be.
    pub ok: usize,
    /// Of the doubtful: not readable without root.
    pub needs_root: usize,
}

impl Summary {
    /// Counts.
    pub fn of(findings: &[Finding]) -> Summary {
        let count = |level: Level| findings.iter().filter(|finding| finding.level == level).count();
        Summary {
            fail: count(Level::Fail),
            warn: count(Level::Warn),
            ok: count(Level::Ok),
            needs_root: findings.iter().filter(|finding| finding.needs_root).count(),
        }
    }
}

/// The report.
pub fn text(findings: &[Finding]) -> String {
    let mut topics: Vec<&str> = rules().map(super::findings::Rule::topic).collect();
    topics.dedup();
    let of = |topic: &str| {
        let mut own: Vec<&Finding> =
            findings.iter().filter(|finding| finding.id.split('.').next() == Some(topic)).collect();
        own.sort_by_key(|finding| finding.level);
        own
    };
    let mut groups: Vec<(&str, Vec<&Finding>)> = topics.into_iter().map(|topic| (topic, of(topic))).collect();
    groups.retain(|(_, own)| !own.is_empty());
    groups.sort_by_key(|(_, own)| own[0].level);
    let mut text = String::new();
    for (topic, own) in groups {
        let _ = writeln!(text, "{topic}");
        own.into_iter().for_each(|finding| one(finding, &mut text));
    }
    let Summary { fail, warn, ok, needs_root } = Summary::of(findings);
    let _ = write!(text, "{fail} fail, {warn} warn, {ok} ok");
    if needs_root > 0 {
        let _ = write!(text, "; {needs_root} not readable without root");
    }
    text.push('\n');
    if fail + warn > 0 {
        let _ = writeln!(text, "docs/ is in the sources, and below {DOCUMENTS} where the package is installed");
    }
    text
}

fn one(finding: &Finding, text: &mut String) {
    let word = match finding.level {
        Level::Fail => "FAIL",
        Level::Warn => "warn",
        Level::Ok => "ok  ",
    };
    let subject = if finding.subject.is_empty() { String::new() } else { format!(" {}", finding.subject) };
    let _ = writeln!(text, "  {word}  {}{subject}: {}", finding.id, finding.seen);
    if finding.level == Level::Ok {
        return;
    }
    let _ = writeln!(text, "        why  {}", finding.why);
    if !finding.command.is_empty() {
        let _ = writeln!(text, "        do   {}", finding.command);
    }
    if !finding.advice.is_empty() {
        let _ = writeln!(text, "        do   {}", finding.advice);
    }
    let _ = writeln!(text, "        see  {}", finding.docs);
}
