//! `sluice check CONFIG`: everything that `run` would refuse in the file itself; touches nothing, needs no root.

use std::path::PathBuf;

use serde_json::json;

use super::{Exit, Failure, Outcome};
use crate::config::{self, Config, Finding};
use crate::sys::cpu;

/// Arguments of `sluice check`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The configuration file.
    pub config: PathBuf,
    /// One JSON object instead of lines.
    #[arg(long)]
    pub json: bool,
}

/// Everything that `run` would refuse in a configuration, and in the files that it names.
pub fn findings(config: &Config) -> Vec<Finding> {
    let mut findings = config::check(config);
    findings.extend(crate::ring::plan::check_files(config));
    findings.extend(crate::ledger::files::check_files(config));
    findings
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let config = config::load(&args.config).map_err(|error| Failure::usage(error.to_string()))?;
    let findings = findings(&config);
    let warnings = config::warn(&config, cpu::allowed().len());
    let frames: Vec<(String, u64, u32)> = config
        .interfaces
        .iter()
        .map(|interface| (interface.name.clone(), config::frames_needed(&config, interface), interface.frames))
        .collect();
    if args.json {
        let lines = |of: &[Finding]| of.iter().map(|f| json!({"key": f.key, "what": f.what})).collect::<Vec<_>>();
        let frames: Vec<_> = frames
            .iter()
            .map(|(name, needed, has)| json!({"interface": name, "needed": needed, "frames": has}))
            .collect();
        println!("{}", json!({"findings": lines(&findings), "warnings": lines(&warnings), "frames": frames}));
    } else {
        for finding in &findings {
            eprintln!("{finding}");
        }
        for warning in &warnings {
            eprintln!("warning: {warning}");
        }
        for (name, needed, has) in &frames {
            println!("interface \"{name}\": frames = {has}; fill ring + receive ring + links can hold {needed}");
        }
        if findings.is_empty() {
            println!("{}: nothing that run would refuse", args.config.display());
        }
    }
    Ok(if findings.is_empty() { Exit::Done } else { Exit::Usage })
}
