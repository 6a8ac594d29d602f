//! What `ring serve` and `ring mirror` share: one worker on one core, until a signal, a fault or its own end.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::cli::{Exit, Failure, Outcome, output};
use crate::config::{self, Config, Control, Core, Idle};
use crate::ring::plan;
use crate::runtime::launch::{CorePlan, launch};
use crate::runtime::link::Doorbell;
use crate::runtime::worker::Worker;
use crate::sys::cpu;
use crate::sys::signal::{Asked, Signals};

/// The name of the one core.
pub(super) const CORE: &str = "ring";
/// How often the control thread looks for an end.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long the worker may take to pass on what it has.
const DRAIN: Duration = Duration::from_secs(5);

/// Flags that both commands have.
#[derive(clap::Args, Debug)]
pub struct CoreArgs {
    /// Poll for ever in place of sleeping when idle: lowest latency, a whole CPU.
    #[arg(long)]
    pub spin: bool,
    /// Pin the worker to this CPU.
    #[arg(long, value_name = "CPU")]
    pub core: Option<usize>,
    /// A file with the pre-shared key that both ends must have, 16 to 1024 bytes.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<std::path::PathBuf>,
    /// Print the last counters as one JSON object when it ends.
    #[arg(long)]
    pub json: bool,
}

/// The configuration that the flags amount to, checked as a file's would be; warnings go to the log.
pub(super) fn check(core: &CoreArgs, ring: config::Ring) -> Result<Config, Failure> {
    let idle = if core.spin { Idle::Spin } else { Idle::Park };
    let cores = vec![Core { name: CORE.into(), cpu: core.core.unwrap_or(0), idle }];
    let config = Config { cores, ring, control: Control::none(), ..Config::default() };
    let mut findings = config::check(&config);
    findings.extend(plan::check_files(&config));
    if !findings.is_empty() {
        let lines: Vec<String> =
            findings.iter().map(|finding| format!("{}: {}", flag(&finding.key), finding.what)).collect();
        return Err(Failure::usage(lines.join("\nsluice: ")));
    }
    for warning in config::warn(&config, cpu::allowed().len()) {
        tracing::warn!("{}: {}", flag(&warning.key), warning.what);
    }
    Ok(config)
}

/// The flag of a finding's key.
fn flag(key: &str) -> String {
    match key.rsplit(": ").next().unwrap_or(key) {
        "interface" => "--iface".into(),
        "linger" => "--linger-us".into(),
        "reconnect" | "reconnect_max" => "--reconnect-ms".into(),
        "core" | "idle" => "--spin".into(),
        "ring" => "the ring".into(),
        "source" => "the source".into(),
        name => match key.contains(": ") {
            true => format!("--{}", name.replace('_', "-")),
            false => "--key-file".into(),
        },
    }
}

/// Runs `worker` until SIGINT or SIGTERM, a fault, or until `ended` says so. `status` is asked for at the end.
pub(super) fn run(
    core: &CoreArgs,
    worker: Box<dyn Worker>,
    ended: impl Fn() -> bool,
    status: impl Fn() -> Value,
) -> Outcome {
    let signals = Signals::take().map_err(|error| Failure::host(format!("signalfd: {error}")))?;
    let doorbell = Doorbell::new().map_err(|error| Failure::host(format!("eventfd: {error}")))?;
    let plan = CorePlan {
        name: CORE.into(),
        cpu: core.core,
        idle: if core.spin { Idle::Spin } else { Idle::Park },
        io_cpus: Vec::new(),
        doorbell: Arc::clone(&doorbell),
        workers: vec![worker],
    };
    let launched = launch(vec![plan]).map_err(|error| Failure::host(error.to_string()))?;
    launched.go();
    let fault = loop {
        match signals.wait(LOOK_EVERY) {
            Ok(Some(Asked::Stop)) => break None,
            Ok(_) => {}
            Err(error) => break Some(format!("waiting for signals: {error}")),
        }
        if let Some(fault) = launched.fault() {
            break Some(fault);
        }
        if ended() {
            break None;
        }
    };
    let drained = launched.stop(DRAIN);
    let printed = if core.json { output::print(&format!("{}\n", status())) } else { Ok(()) };
    let late = drained.err().unwrap_or_default();
    match fault {
        Some(fault) => Err(Failure::host([vec![fault], late].concat().join("; "))),
        None if !late.is_empty() => Err(Failure::host(late.join("; "))),
        None => printed.map(|()| Exit::Done),
    }
}
