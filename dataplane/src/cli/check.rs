//! `sluice check CONFIG`: everything that `run` would refuse in the file and in what it names; changes nothing, needs no root.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::fields::counted;
use super::findings::{self, Checked};
use super::sums::{self, Kind};
use super::{Exit, Failure, Outcome, explain, output};
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
    /// This is the host that the file is for: what would stop run here is refused too (exit code 2).
    #[arg(long)]
    pub here: bool,
    /// Draw it first, as run --explain does: cores with their workers, links, memory, threads, descriptors and what listens.
    #[arg(long, conflicts_with_all = ["json", "schema"])]
    pub explain: bool,
    /// Print the JSON Schema of the configuration, for editors, and check nothing.
    #[arg(long, conflicts_with_all = ["config", "json", "here"])]
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
        Err(config::ConfigError::Parse { mistakes, .. }) => return mistaken(&path, &mistakes, args.json),
        Err(error) if args.json => {
            let unread = [Finding { key: path.display().to_string(), what: error.to_string() }];
            return mistaken(&path, &unread, true);
        }
        Err(error) => return Err(Failure::usage(error.to_string())),
    };
    let checked = findings::look(&config);
    let explained = if args.explain { explain::explain(&config) } else { String::new() };
    let told = match args.json {
        true => format!("{}\n", as_json(&config, &checked)),
        false => told(&path, &config, &checked),
    };
    output::print(&(explained + &told))?;
    let refused = checked.wrong().next().is_some() || (args.here && !checked.here.is_empty());
    Ok(if refused { Exit::Usage } else { Exit::Done })
}

/// Tells of a text that is no configuration.
fn mistaken(path: &Path, mistakes: &[Finding], json: bool) -> Outcome {
    let told = match json {
        true => json!({"findings": rows(mistakes), "here": [], "warnings": [], "frames": []}).to_string(),
        false => lines("", mistakes) + &format!("{}: {}", path.display(), counted(mistakes.len() as u64, "finding")),
    };
    output::print(&(told + "\n"))?;
    Ok(Exit::Usage)
}

fn lines<'a>(before: &str, findings: impl IntoIterator<Item = &'a Finding>) -> String {
    findings.into_iter().map(|finding| format!("{before}{finding}\n")).collect()
}

/// The schema as it is printed and committed.
pub fn schema_text() -> String {
    serde_json::to_string_pretty(&config::schema::schema()).expect("a schema is JSON")
}

fn rows<'a>(of: impl IntoIterator<Item = &'a Finding>) -> Vec<Value> {
    of.into_iter().map(|finding| json!({"key": finding.key, "what": finding.what})).collect()
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
    value["findings"] = rows(checked.wrong()).into();
    value["here"] = rows(checked.here.iter().map(|(finding, _)| finding)).into();
    value["warnings"] = rows(&checked.warnings).into();
    value["frames"] = frames.into();
    value
}

/// All in one stream, in which a pipe keeps the order.
fn told(path: &Path, config: &Config, checked: &Checked) -> String {
    let verdict = verdict(checked.wrong().count() as u64, checked.here.len() as u64);
    [
        lines("", checked.wrong()),
        lines("here: ", checked.here.iter().map(|(finding, _)| finding)),
        lines("warning: ", &checked.warnings),
        summed(config),
        format!("{}: {verdict}\n", path.display()),
    ]
    .concat()
}

fn summed(config: &Config) -> String {
    let frames = config.interfaces.iter().map(|interface| {
        let (name, needed, has) = (&interface.name, config::frames_needed(config, interface), interface.frames);
        format!("interface \"{name}\": frames = {has}; fill ring + receive ring + links can hold {needed}\n")
    });
    let memory = sums::memory(config);
    let sum = |kinds: fn(Kind) -> bool| sums::shown(sums::total(&memory, kinds));
    let descriptors: u64 = sums::descriptors(config).iter().map(|(_, count)| count).sum();
    frames.collect::<String>()
        + &format!(
            "memory: {} before the first packet, {} of it locked, {} in /dev/shm; {} at most\n",
            sum(Kind::is_at_start),
            sums::shown(sums::locked(config, &memory)),
            sum(|kind| kind == Kind::Shared),
            sum(|_| true)
        )
        + &format!("descriptors: at most {descriptors}; threads: {}\n", sums::threads(config).len())
}

/// The last line: what run would do with the file, and what here.
fn verdict(wrong: u64, here: u64) -> String {
    let of_host = format!("{} of this host would stop run (above, \"here\")", counted(here, "thing"));
    match (wrong, here) {
        (0, 0) => "nothing that run would refuse".into(),
        (0, _) => format!("the file is right; {of_host}"),
        (_, 0) => counted(wrong, "finding"),
        _ => format!("{}; and {of_host}", counted(wrong, "finding")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_true() {
        assert_eq!(verdict(0, 0), "nothing that run would refuse");
        assert_eq!(verdict(0, 1), "the file is right; 1 thing of this host would stop run (above, \"here\")");
        assert_eq!(verdict(1, 0), "1 finding");
        assert_eq!(verdict(2, 3), "2 findings; and 3 things of this host would stop run (above, \"here\")");
    }
}
