//! SIGHUP: the configuration file is read again, what can change in a running appliance changes, and what cannot is named.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{findings, log, places};
use crate::config::{self, Change, Config};
use crate::ledger::reload::Reload;
use crate::store::plan::StoreView;
use crate::{ledger, store};

/// The configuration that runs, and where it came from.
pub struct Reloader {
    path: PathBuf,
    running: Config,
}

/// What a change needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Needs {
    /// Nothing: a store's bounds.
    StoreRetention,
    /// Nothing: the bounds of kept ledgers.
    LedgerRetention,
    /// Nothing: what is logged, and how.
    Log,
    /// A restart.
    Restart,
}

fn needs(change: &Change) -> Needs {
    match (change.section.as_str(), change.key.as_str()) {
        (section, "retain" | "retain_age" | "free_min") if section.starts_with("store ") => Needs::StoreRetention,
        ("ledger.serve", "retention" | "retention_bytes" | "retention_age") => Needs::LedgerRetention,
        ("control", "log" | "log_format") => Needs::Log,
        _ => Needs::Restart,
    }
}

impl Reloader {
    /// For the configuration that was read from `path`.
    pub fn new(path: &Path, running: Config) -> Reloader {
        Reloader { path: path.to_path_buf(), running }
    }

    /// Reads the file, changes what can be changed, and logs each change with what became of it. A file that would be refused changes
    /// nothing. Certificates and tokens are read again in any case.
    pub fn reload(&mut self, stores: &[Arc<StoreView>], ledger: Option<&Reload>) {
        match self.read() {
            Ok(config) => self.take(&config, stores, ledger),
            Err(refusals) => {
                for refusal in refusals {
                    tracing::error!("SIGHUP: {refusal}; the configuration so far stays");
                }
            }
        }
        if let Some(ledger) = ledger {
            ledger.reload();
        }
    }

    fn read(&self) -> Result<Config, Vec<String>> {
        let lines = |error: config::ConfigError| error.to_string().lines().map(String::from).collect::<Vec<_>>();
        let config = config::load(&self.path).map_err(lines)?;
        let mut wrong: Vec<String> = findings::look(&config).wrong().map(ToString::to_string).collect();
        // It is for this host, which runs it. A bound that holds for nothing would end what the one before deletes for.
        wrong.extend(places::look(&config, None).too_small.iter().map(ToString::to_string));
        if wrong.is_empty() { Ok(config) } else { Err(wrong) }
    }

    fn take(&mut self, config: &Config, stores: &[Arc<StoreView>], ledger: Option<&Reload>) {
        let changes = config::changes(&self.running, config);
        if changes.is_empty() {
            tracing::info!(config = %self.path.display(), "SIGHUP: the configuration is the one that runs");
        }
        for change in &changes {
            match needs(change) {
                Needs::Log if change.key == "log" && log::is_overruled() => {
                    tracing::warn!("SIGHUP: {change}: SLUICE_LOG is set and stays above it");
                }
                Needs::Restart => tracing::warn!("SIGHUP: {change}: needs a restart; until then it stays as it was"),
                Needs::StoreRetention | Needs::LedgerRetention | Needs::Log => {
                    tracing::info!("SIGHUP: {change}: holds from now on")
                }
            }
        }
        if changes.iter().any(|change| needs(change) == Needs::StoreRetention) {
            self.take_stores(config, stores);
        }
        if changes.iter().any(|change| needs(change) == Needs::LedgerRetention) {
            self.take_ledger(config, ledger);
        }
        if changes.iter().any(|change| needs(change) == Needs::Log) {
            self.take_log(config);
        }
    }

    fn take_log(&mut self, config: &Config) {
        match log::configure(&config.control) {
            Ok(()) => {
                self.running.control.log.clone_from(&config.control.log);
                self.running.control.log_format = config.control.log_format;
            }
            Err(error) => tracing::error!("SIGHUP: {error}; the log stays as it was"),
        }
    }

    fn take_stores(&mut self, config: &Config, stores: &[Arc<StoreView>]) {
        for running in &mut self.running.stores {
            let Some(now) = config.stores.iter().find(|store| store.name == running.name) else { continue };
            (running.retain, running.retain_age, running.free_min) = (now.retain, now.retain_age, now.free_min);
            if let Some(view) = stores.iter().find(|view| view.name() == running.name) {
                view.set_retention(store::plan::retention(running));
            }
        }
    }

    fn take_ledger(&mut self, config: &Config, ledger: Option<&Reload>) {
        let (Some(running), Some(now)) = (&mut self.running.ledger.serve, &config.ledger.serve) else { return };
        running.retention = now.retention;
        running.retention_bytes = now.retention_bytes;
        running.retention_age = now.retention_age;
        if let Some(ledger) = ledger {
            ledger.set_bounds(ledger::plan::bounds(running));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_a_place_to_change_is_taken_without_a_restart() {
        let change = |section: &str, key: &str| {
            needs(&Change { section: section.into(), key: key.into(), from: "1".into(), to: "2".into() })
        };
        assert_eq!(change("store \"main\"", "retain"), Needs::StoreRetention);
        assert_eq!(change("store \"main\"", "path"), Needs::Restart);
        assert_eq!(change("store \"main\"", ""), Needs::Restart);
        assert_eq!(change("ledger.serve", "retention_age"), Needs::LedgerRetention);
        assert_eq!(change("feed \"deep\"", "retain"), Needs::Restart);
        assert_eq!(change("control", "log"), Needs::Log);
        assert_eq!(change("control", "stall"), Needs::Restart);
        assert_eq!(change("core", "order"), Needs::Restart);
    }
}
