//! What is told of a running appliance beside its metrics: the form of its log, and the daily report.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::check::Findings;
use super::load::Config;

/// Days that can be kept: thirty years.
pub(super) const KEEP_MAX: u32 = 11_000;

/// The form of a log line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum LogFormat {
    /// Text on a terminal; JSON elsewhere, to the journal with the level before it (`<4>`).
    Auto,
    /// Text with time and level.
    Text,
    /// One JSON object a line.
    Json,
    /// Text behind the level as the journal reads it (`<4>`), without the time, which the journal adds.
    Journald,
}

/// A time of day in UTC, written `"00:00"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct TimeOfDay {
    /// Seconds after midnight.
    pub seconds: u32,
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.seconds / 3_600, self.seconds / 60 % 60)
    }
}

impl FromStr for TimeOfDay {
    type Err = String;

    fn from_str(text: &str) -> Result<TimeOfDay, String> {
        let digits = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        let two = |part: &str| digits(part).then(|| part.parse::<u32>().ok()).flatten();
        let parts = text.split_once(':').and_then(|(hours, minutes)| Some((two(hours)?, two(minutes)?)));
        match parts {
            Some((hours @ 0..24, minutes @ 0..60)) => Ok(TimeOfDay { seconds: hours * 3_600 + minutes * 60 }),
            _ => Err(format!("\"{text}\" is no time of day: write it as \"06:30\", from \"00:00\" to \"23:59\"")),
        }
    }
}

impl<'de> Deserialize<'de> for TimeOfDay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TimeOfDay, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for TimeOfDay {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// `[report]`: the data-quality report per feed and day.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Report {
    /// The directory that each day's report is written to; none: the day that is not over is told on demand, and no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// When a day begins, UTC.
    pub day_begins: TimeOfDay,
    /// Days that are kept.
    pub keep: u32,
}

impl Default for Report {
    fn default() -> Self {
        Report { dir: None, day_begins: TimeOfDay::default(), keep: 400 }
    }
}

/// The rules of `[report]` and of the log.
pub(super) fn check_report(config: &Config, findings: &mut Findings) {
    if !(1..=KEEP_MAX).contains(&config.report.keep) {
        findings.add("report: keep", format!("is {}, but must be from 1 to {KEEP_MAX} days", config.report.keep));
    }
    if let Some(wrong) = config.control.log.split(',').find(|part| !is_directive(part.trim())) {
        findings.add(
            "control: log",
            format!("\"{wrong}\" is neither a level nor MODULE=LEVEL: give off, error, warn, info, debug or trace, and modules behind a comma (\"info,sluice::ring=debug\")"),
        );
    }
}

/// A level, or a module's.
fn is_directive(text: &str) -> bool {
    let level = |text: &str| matches!(text, "off" | "error" | "warn" | "info" | "debug" | "trace");
    level(text) || text.split_once('=').is_some_and(|(module, of)| is_module(module) && level(of))
}

/// A path of modules: what is none names no line of the log.
fn is_module(text: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    let rest = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    text.split("::").all(|name| name.starts_with(first) && name.chars().all(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day_read_and_print() {
        for (text, seconds) in [("00:00", 0), ("06:30", 23_400), ("23:59", 86_340)] {
            let time: TimeOfDay = text.parse().expect("a time");
            assert_eq!((time.seconds, time.to_string().as_str()), (seconds, text));
        }
        for wrong in ["", "24:00", "12:60", "7:00", "07:00:00", "-1:00", "+1:00", "noon"] {
            assert!(wrong.parse::<TimeOfDay>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn rules_of_report_and_log_name_their_keys() {
        let keys = |text: &str| {
            let config: Config = toml::from_str(text).expect("parses");
            let mut findings = Findings::default();
            check_report(&config, &mut findings);
            findings.0.into_iter().map(|finding| finding.key).collect::<Vec<_>>()
        };
        assert_eq!(keys("[report]\nkeep = 1\n[control]\nlog = \"warn,sluice::ring=debug\""), Vec::<String>::new());
        assert_eq!(keys("[report]\nkeep = 0\n[control]\nlog = \"loud\""), ["report: keep", "control: log"]);
        for wrong in
            ["info,=debug", ":=debug", "::=debug", "sluice::=debug", "sluice:ring=debug", "-=debug", "0a=debug"]
        {
            assert_eq!(keys(&format!("[control]\nlog = \"{wrong}\"")), ["control: log"], "{wrong}");
        }
        assert!(toml::from_str::<Config>("[report]\nday_begins = \"25:00\"").is_err());
        assert!(toml::from_str::<Config>("[control]\nlog_format = \"xml\"").is_err());
    }
}
