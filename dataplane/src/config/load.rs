//! Reading the TOML.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::capture::{Control, Core, Feed, Interface, Store};
use super::check::Finding;
use super::ledger::Ledger;
use super::mistakes::mistakes;
use super::process::Process;
use super::report::Report;
use super::ring::Ring;

/// The whole configuration.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Pinned threads.
    #[serde(rename = "core", default)]
    pub cores: Vec<Core>,
    /// Captured NICs.
    #[serde(rename = "interface", default)]
    pub interfaces: Vec<Interface>,
    /// Feeds.
    #[serde(rename = "feed", default)]
    pub feeds: Vec<Feed>,
    /// Stores.
    #[serde(rename = "store", default)]
    pub stores: Vec<Store>,
    /// Rings that are served, and copies of rings.
    #[serde(default, skip_serializing_if = "Ring::is_empty")]
    pub ring: Ring,
    /// The server of ledgers.
    #[serde(default, skip_serializing_if = "Ledger::is_empty")]
    pub ledger: Ledger,
    /// The control thread.
    #[serde(default)]
    pub control: Control,
    /// The process.
    #[serde(default)]
    pub process: Process,
    /// The daily report.
    #[serde(default)]
    pub report: Report,
}

/// Why a configuration could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file.
    #[error("{path}: {error}{}", unread(error))]
    Read {
        /// The file's path.
        path: PathBuf,
        /// The system's word.
        error: std::io::Error,
    },
    /// The text.
    #[error("{}", listed(path, mistakes))]
    Parse {
        /// The file's path.
        path: PathBuf,
        /// All that is wrong with it, each with its line.
        mistakes: Vec<Finding>,
    },
}

/// What to do about a file that cannot be read.
fn unread(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => "; name the configuration file",
        std::io::ErrorKind::InvalidData => "; name the configuration, which is a text in TOML",
        std::io::ErrorKind::IsADirectory => "; name the configuration in it, a file in TOML",
        std::io::ErrorKind::PermissionDenied => "; its owner and mode decide who may read it",
        _ => "",
    }
}

/// One line each.
fn listed(path: &Path, mistakes: &[Finding]) -> String {
    let lines: Vec<String> = mistakes.iter().map(|mistake| format!("{}: {mistake}", path.display())).collect();
    lines.join("\n")
}

/// Reads and parses a file; the rules across sections are [`super::check`]'s.
///
/// # Errors
/// With the file's path, and every error of syntax, or every key and type that is wrong, with its line.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Read { path: path.to_path_buf(), error })?;
    parse(&text).map_err(|error| {
        let mut mistakes = mistakes(&text);
        if mistakes.is_empty() {
            mistakes.push(Finding { key: path.display().to_string(), what: error.to_string() });
        }
        ConfigError::Parse { path: path.to_path_buf(), mistakes }
    })
}

/// Parses TOML text.
///
/// # Errors
/// As the parser says, unknown keys included.
pub fn parse(text: &str) -> Result<Config, toml::de::Error> {
    toml::from_str(text)
}
