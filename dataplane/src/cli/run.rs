//! `sluice run CONFIG`: starts the appliance, runs until a signal, drains, reports.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::appliance::{Appliance, Ending};
use super::reload::Reloader;
use super::{Exit, Failure, Outcome, explain, findings, log, output, tables};
use crate::config::{self, Span};
use crate::sys::signal::Signals;

/// Arguments of `sluice run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The configuration file.
    pub config: PathBuf,
    /// Print cores with their workers, links, memory, threads, descriptors and what listens; start nothing.
    #[arg(long)]
    pub explain: bool,
    /// End by itself after this long ("10s").
    #[arg(long, value_name = "DURATION")]
    pub r#for: Option<Span>,
    /// Write the last status as JSON to this file when it ends.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Print the last status as JSON in place of the tables.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let config = config::load(&args.config).map_err(|error| Failure::usage(error.to_string()))?;
    let checked = findings::look(&config);
    if args.explain {
        // Drawn whatever is wrong with it: what is missing here may be somewhere else.
        print!("{}", explain::explain(&config));
        return checked.wrong_file().map_or(Ok(Exit::Done), Err);
    }
    if let Some(refusal) = checked.refusal() {
        return Err(refusal);
    }
    log::configure(&config.control).map_err(Failure::usage)?;
    for warning in checked.warnings {
        tracing::warn!("{warning}");
    }
    // Before any thread starts: the signals are taken out of every thread's delivery.
    let signals = Signals::take().map_err(|error| Failure::host(format!("signalfd: {error}")))?;
    let mut report = args.report.as_deref().map(Report::open).transpose()?;
    let appliance = Appliance::start(&config)?;
    tracing::info!(control = %appliance.control_address(), "running; stop with SIGINT or SIGTERM");
    let mut reloader = Reloader::new(&args.config, config);
    let ending = appliance.run(&signals, &mut reloader, args.r#for.map(|span| span.0));
    tracing::info!(%ending, "draining");
    let (status, drained) = appliance.stop();
    if let Some(report) = &mut report {
        report.write(&status)?;
    }
    // Looked at only after the endings that say more, none of which is lost because nobody reads the books.
    let printed = output::print(&if args.json { format!("{status}\n") } else { tables::status(&status) });
    let late = drained.err().unwrap_or_default();
    let damage = status["capture"]["damage"].as_array().is_some_and(|damage| !damage.is_empty());
    let residue = status["capture"]["residue"].as_u64().unwrap_or(0);
    match ending {
        Ending::Fault(reason) => Err(Failure::host([vec![reason], late].concat().join("; "))),
        _ if !late.is_empty() => Err(Failure::host(format!(
            "the drain was not complete: {}; what was in flight is lost (see in_flight in the status)",
            late.join("; ")
        ))),
        _ if residue != 0 => Err(Failure {
            message: format!(
                "the conservation table's residue is {residue}, but must be 0 when drained: something was lost uncounted; please report this with the status"
            ),
            exit: Exit::Internal,
        }),
        _ => printed.map(|()| if damage { Exit::Damage } else { Exit::Done }),
    }
}

/// The file of `--report`: opened with the rights of the start, written at the end. A process that is killed leaves what was in it.
struct Report {
    file: File,
    path: PathBuf,
}

impl Report {
    fn open(path: &Path) -> Result<Report, Failure> {
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| failed(path, &error))?;
        Ok(Report { file, path: path.to_path_buf() })
    }

    fn write(&mut self, status: &Value) -> Result<(), Failure> {
        let written = self.file.set_len(0).and_then(|()| writeln!(self.file, "{status}"));
        written.map_err(|error| failed(&self.path, &error))
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::host(format!("--report {}: {error}", path.display()))
}
