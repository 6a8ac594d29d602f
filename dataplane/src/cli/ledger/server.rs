//! A running server of ledgers: its cores, until a signal, a fault or its source's end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::cli::Failure;
use crate::config::Config;
use crate::ledger::plan::{self, LedgerPlan};
use crate::ledger::reload::Reload;
use crate::ledger::stats::LedgerStatus;
use crate::runtime::launch::{CorePlan, Launched, launch};
use crate::runtime::link::Doorbell;
use crate::sys::cpu;

/// A server on cores of this process.
pub struct Running {
    launched: Launched,
    status: Arc<LedgerStatus>,
    reload: Reload,
    drain: Duration,
}

impl Running {
    /// Plans and starts it; the cores are pinned to their CPUs where `pinned`.
    ///
    /// # Errors
    /// What the host, the directory or the source refuses.
    pub fn start(config: &Config, pinned: bool) -> Result<Running, Failure> {
        let mut doorbells = BTreeMap::new();
        for core in &config.cores {
            let bell = Doorbell::new().map_err(|error| Failure::host(format!("eventfd: {error}")))?;
            doorbells.insert(core.name.clone(), bell);
        }
        let planned = plan::plan(config, &doorbells).map_err(Failure::host)?;
        let LedgerPlan { workers, status, reload } =
            planned.ok_or_else(|| Failure::usage("there is no [ledger.serve]"))?;
        // The kernel's workers copy whole ledgers: not on a core that is pinned for what is live, where there are others.
        let mut io_cpus = cpu::allowed();
        io_cpus.retain(|cpu| pinned && config.cores.iter().all(|core| core.cpu != *cpu));
        let mut cores: Vec<CorePlan> = config
            .cores
            .iter()
            .map(|core| CorePlan {
                name: core.name.clone(),
                cpu: pinned.then_some(core.cpu),
                idle: core.idle,
                io_cpus: io_cpus.clone(),
                doorbell: doorbells[&core.name].clone(),
                workers: Vec::new(),
            })
            .collect();
        for (name, worker) in workers {
            let core = cores.iter_mut().find(|core| core.name == name).expect("the plan has looked each core up");
            core.workers.push(worker);
        }
        cores.retain(|core| !core.workers.is_empty());
        let launched = launch(cores).map_err(|error| Failure::host(error.to_string()))?;
        launched.go();
        reload.warn();
        let drain = config.ledger.serve.as_ref().map_or(Duration::ZERO, |serve| serve.drain.0);
        Ok(Running { launched, status, reload, drain })
    }

    /// Where it listens.
    ///
    /// # Panics
    /// Never: a started fan-out has bound its address.
    pub fn address(&self) -> SocketAddr {
        *self.status.fanout.address.get().expect("a started fan-out has bound its address")
    }

    /// What it counts.
    pub fn status(&self) -> &Arc<LedgerStatus> {
        &self.status
    }

    /// What is read again on SIGHUP.
    pub fn reload(&self) -> &Reload {
        &self.reload
    }

    /// Why it cannot go on, if so.
    pub fn fault(&self) -> Option<String> {
        self.launched.fault()
    }

    /// How the source ended, once it has and everybody was let go.
    pub fn ended(&self) -> Option<Result<(), String>> {
        self.status.fanout.end.get().cloned()
    }

    /// Lets subscribers go, writes what is kept, and ends the cores.
    ///
    /// # Errors
    /// What did not end in time.
    pub fn stop(self) -> Result<(), Failure> {
        self.launched.stop(self.drain + plan::STOP_EXTRA).map_err(|late| Failure::host(late.join("; ")))
    }
}
