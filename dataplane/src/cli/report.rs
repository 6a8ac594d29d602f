//! `sluice report`: the data-quality report of the day that is not over, from a running appliance, or of a past day, from its
//! file.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::{Exit, Failure, Outcome, quality, stat};
use crate::capture::quality::{Day, DayReport};
use crate::config;
use crate::runtime::control::NO_REPORT;

/// Arguments of `sluice report`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The configuration of the appliance (for `control.listen` and `report.dir`).
    pub config: Option<PathBuf>,
    /// The control server's address, in place of the configuration's.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "day")]
    pub control: Option<SocketAddr>,
    /// A day that was written to `report.dir`, as 2026-11-30; left out, the day that is not over is asked for.
    #[arg(long, value_name = "DAY")]
    pub day: Option<Day>,
    /// The directory of the reports, in place of the configuration's.
    #[arg(long, value_name = "DIR", requires = "day")]
    pub dir: Option<PathBuf>,
    /// The whole report as one JSON object, its parts by process included.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let config = args.config.as_deref().map(config::load).transpose();
    let config = config.map_err(|error| Failure::usage(error.to_string()))?;
    let (text, from) = match args.day {
        Some(day) => of_file(day, directory(&args, config.as_ref())?)?,
        None => {
            let listen = config.as_ref().map_or(config::Control::default().listen, |config| config.control.listen);
            of_appliance(args.control.unwrap_or(listen))?
        }
    };
    let report: DayReport =
        serde_json::from_str(&text).map_err(|error| Failure::usage(format!("{from}: not a report: {error}")))?;
    print!("{}", if args.json { report.json() } else { report.text() });
    Ok(Exit::Done)
}

fn directory<'a>(args: &'a Args, config: Option<&'a config::Config>) -> Result<&'a Path, Failure> {
    let configured = config.and_then(|config| config.report.dir.as_deref());
    args.dir.as_deref().or(configured).ok_or_else(|| {
        Failure::usage(match config {
            Some(_) => "config report: dir is not set, so that no day was written: set it, or give --dir",
            None => "--day needs the directory of the reports: give the configuration, or --dir",
        })
    })
}

fn of_file(day: Day, directory: &Path) -> Result<(String, String), Failure> {
    let path = quality::file_of(directory, day, "json");
    let text = std::fs::read_to_string(&path).map_err(|error| {
        let days = quality::days(directory).unwrap_or_default();
        let known = match (days.first(), days.last()) {
            (Some(first), Some(last)) => format!("there are {} days from {first} to {last}", days.len()),
            _ => "there is none of any day".to_string(),
        };
        Failure::usage(format!("{}: {error}; {known}", path.display()))
    })?;
    Ok((text, path.display().to_string()))
}

fn of_appliance(address: SocketAddr) -> Result<(String, String), Failure> {
    let text = stat::get(address, "/report").map_err(|error| match error.kind() {
        ErrorKind::NotFound if error.to_string() == NO_REPORT => {
            Failure::usage(format!("the appliance at {address} has no feed to report on: it needs a [[feed]]"))
        }
        _ => Failure::host(format!(
            "no appliance answers at {address}: {error}; is it running, and is this its control.listen? A past day is --day"
        )),
    })?;
    Ok((text, address.to_string()))
}
