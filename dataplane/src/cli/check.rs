//! `sluice check CONFIG`: everything that `run` would refuse in the file and in what it names; changes nothing, needs no root.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::findings::{self, Checked};
use super::sums::{self, Kind};
use super::{Exit, Failure, Outcome};
use crate::config::{self, Config, Finding};

/// Arguments of `sluice check`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The configuration file.
    #[arg(required_unless_present = "schema")]
    pub config: Option<PathBuf>,
    /// One JSON object instead of lines.
    #[arg(long)]
    pub json: bool,
    /// Print the JSON Schema of the configuration, for editors, and check nothing.
    #[arg(long, conflicts_with_all = ["config", "json"])]
    pub schema: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    if args.schema {
        println!("{}", schema_text());
        return Ok(Exit::Done);
    }
    let path = args.config.unwrap_or_default();
    let config = match config::load(&path) {
        Ok(config) => config,
        Err(error) if args.json => {
            let finding = Finding { key: path.display().to_string(), what: error.to_string() };
            println!("{}", json!({"findings": rows(&[finding]), "warnings": [], "frames": []}));
            return Ok(Exit::Usage);
        }
        Err(error) => return Err(Failure::usage(error.to_string())),
    };
    let checked = findings::look(&config);
    match args.json {
        true => println!("{}", as_json(&config, &checked)),
        false => print(&path, &config, &checked),
    }
    Ok(if checked.findings.is_empty() { Exit::Done } else { Exit::Usage })
}

/// The schema as it is printed and committed.
pub fn schema_text() -> String {
    serde_json::to_string_pretty(&config::schema::schema()).expect("a schema is JSON")
}

fn rows(of: &[Finding]) -> Vec<Value> {
    of.iter().map(|finding| json!({"key": finding.key, "what": finding.what})).collect()
}

fn as_json(config: &Config, checked: &Checked) -> Value {
    let frames: Vec<Value> = config
        .interfaces
        .iter()
        .map(|interface| {
            let needed = config::frames_needed(config, interface);
            json!({"interface": interface.name, "needed": needed, "frames": interface.frames})
        })
        .collect();
    let mut value = sums::json(config);
    value["findings"] = rows(&checked.findings).into();
    value["warnings"] = rows(&checked.warnings).into();
    value["frames"] = frames.into();
    value
}

fn print(path: &Path, config: &Config, checked: &Checked) {
    for finding in &checked.findings {
        eprintln!("{finding}");
    }
    for warning in &checked.warnings {
        eprintln!("warning: {warning}");
    }
    for interface in &config.interfaces {
        let (name, needed, has) = (&interface.name, config::frames_needed(config, interface), interface.frames);
        println!("interface \"{name}\": frames = {has}; fill ring + receive ring + links can hold {needed}");
    }
    let memory = sums::memory(config);
    let sum = |kinds: fn(Kind) -> bool| sums::shown(sums::total(&memory, kinds));
    println!(
        "memory: {} before the first packet, {} of it locked, {} in /dev/shm; {} at most",
        sum(Kind::is_at_start),
        sums::shown(sums::locked(config, &memory)),
        sum(|kind| kind == Kind::Shared),
        sum(|_| true)
    );
    let descriptors: u64 = sums::descriptors(config).iter().map(|(_, count)| count).sum();
    println!("descriptors: at most {descriptors}; threads: {}", sums::threads(config).len());
    match checked.findings.len() {
        0 => println!("{}: nothing that run would refuse", path.display()),
        count => eprintln!("{}: {count} findings", path.display()),
    }
}
