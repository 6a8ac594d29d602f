//! `sluice doctor [CONFIG]`: is this host, or a captured one, fit for the configuration? Changes nothing.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::fields::counted;
use super::{Exit, Failure, Outcome, output};
use crate::config::{self, Config};
use crate::doctor::text::{Summary, text};
use crate::doctor::{Asked, Calls, Finding, HostState, Level, Tree, judge_of, read};

/// The configuration's name in a capture.
const CAPTURED_CONFIG: &str = "sluice.toml";

/// Arguments of `sluice doctor`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The configuration that the host is judged for; without one, what holds for any.
    pub config: Option<PathBuf>,
    /// Judge a captured host: a folder that --capture wrote. Its own configuration holds unless CONFIG is given.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["capture", "trial_bind"])]
    pub from: Option<PathBuf>,
    /// Write what was looked at into a new folder, for a bug report; look through it before you send it.
    #[arg(long, value_name = "DIR")]
    pub capture: Option<PathBuf>,
    /// Bind an AF_XDP socket in zero-copy mode to queue 0 of each interface, and close it. Some drivers reset the queue for it:
    /// not while something is captured. Interfaces with the default route or a program are left alone.
    #[arg(long)]
    pub trial_bind: bool,
    /// One JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let path = args.config.clone().or_else(|| captured_config(args.from.as_deref()?));
    let config = path.as_deref().map(load).transpose()?;
    let host = match &args.from {
        Some(from) => captured(from, config.as_ref())?,
        None => live(&args, path.as_deref(), config.as_ref())?,
    };
    // A captured host's configuration is that host's file, not the copy that lies in the folder here.
    let shown = args.config.as_deref().unwrap_or(Path::new(CAPTURED_CONFIG)).display().to_string();
    let findings = judge_of(&host, config.as_ref(), &shown);
    output::print(&if args.json { format!("{}\n", as_json(&findings)) } else { text(&findings) })?;
    let fails = findings.iter().any(|finding| finding.level == Level::Fail);
    Ok(if fails { Exit::Difference } else { Exit::Done })
}

fn load(path: &Path) -> Result<Config, Failure> {
    let config = config::load(path).map_err(|error| Failure::usage(error.to_string()))?;
    let findings = config::check(&config).len() as u64;
    if findings > 0 {
        let path = path.display();
        eprintln!(
            "{path}: run would refuse it ({}): see \"sluice check {path}\"; judged all the same",
            counted(findings, "finding")
        );
    }
    Ok(config)
}

fn captured_config(from: &Path) -> Option<PathBuf> {
    let path = from.join(CAPTURED_CONFIG);
    path.is_file().then_some(path)
}

fn captured(from: &Path, config: Option<&Config>) -> Result<HostState, Failure> {
    let calls = Calls::load(from).map_err(Failure::usage)?;
    let tree = Tree::captured(from, calls.denied.iter().cloned());
    Ok(read(&tree, &calls, &Asked::of(config)))
}

fn live(args: &Args, path: Option<&Path>, config: Option<&Config>) -> Result<HostState, Failure> {
    let asked = Asked::of(config);
    let Some(to) = &args.capture else {
        return Ok(read(&Tree::live(), &Calls::live(&asked, args.trial_bind), &asked));
    };
    let failed = |error: std::io::Error| Failure::host(format!("--capture {}: {error}", to.display()));
    if std::fs::read_dir(to).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Failure::usage(format!(
            "--capture {}: it holds something already: give a new folder",
            to.display()
        )));
    }
    std::fs::create_dir_all(to).map_err(failed)?;
    let mut calls = Calls::live(&asked, args.trial_bind);
    let tree = Tree::capturing(to);
    let host = read(&tree, &calls, &asked);
    calls.denied = tree.finish().map_err(Failure::host)?;
    calls.save(to).map_err(Failure::host)?;
    if let Some(path) = path {
        std::fs::copy(path, to.join(CAPTURED_CONFIG)).map_err(failed)?;
    }
    eprintln!("captured in {}: judge it with \"sluice doctor --from {}\"", to.display(), to.display());
    Ok(host)
}

fn as_json(findings: &[Finding]) -> serde_json::Value {
    let Summary { fail, warn, ok, needs_root } = Summary::of(findings);
    let summary = json!({"fail": fail, "warn": warn, "ok": ok, "needs_root": needs_root});
    json!({"summary": summary, "findings": findings})
}
