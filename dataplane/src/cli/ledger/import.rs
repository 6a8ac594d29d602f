//! `sluice ledger import`: Read plain files, a data lake or a meta stream into a retention directory.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::progress_bar;
use crate::cli::{Exit, Failure, Outcome};
use crate::ledger::archive::{ArchiveError, ArchiveSettings, IMPORTED, Opened, RecordError, Recorder, directory_of};
use crate::ledger::import::{self, ImportError, ImportSettings, Imported};
use crate::ledger::keeper::KeeperSettings;
use crate::ledger::place::Place;
use crate::ledger::retention::Bounds;
use crate::ledger::source::network_of;

/// Arguments of `sluice ledger import`.
///
/// Ledgers are taken in order, each one judged: a LedgerCloseMeta of its sequence, with the hash that it states, that follows the
/// one before it. An import that is run again goes on where it ended. A server whose source names the same network and begins with
/// the ledger after the last one goes on with the directory; a node (captive) finds that ledger by itself.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where from: a directory of ledger-<sequence>.xdr files; the ledgers of a Galexie data lake, as a directory or s3://, gs://,
    /// az:// (credentials from the environment); a file with a meta stream, possibly packed with zstd; - for standard input.
    pub source: String,
    /// The data directory to keep them in.
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// The network's passphrase.
    #[arg(long, value_name = "TEXT")]
    pub network_passphrase: String,
    /// The first ledger, where none is kept yet; without it, the first that is there.
    #[arg(long, value_name = "N")]
    pub start: Option<u32>,
    /// The last ledger; without it, the last that is there.
    #[arg(long, value_name = "M")]
    pub end: Option<u32>,
    /// Keep at most so many ledgers, the latest ones; without it, all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub retention: Option<u32>,
    /// Take the ledgers as they are, without judging what is in them: for made-up ones.
    #[arg(long)]
    pub opaque: bool,
    /// One JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let place = Place::parse(&args.source).map_err(|error| Failure::usage(error.to_string()))?;
    let streamed = place.directory().filter(|path| path.as_os_str() == "-" || path.is_file()).map(Path::to_path_buf);
    let manifest = match streamed {
        Some(_) => None,
        None => import::manifest(&place).map_err(|error| failure(&error))?,
    };
    if let Some(manifest) = &manifest
        && manifest.network_passphrase != args.network_passphrase
    {
        return Err(Failure::usage(format!(
            "{}: it is of network \"{}\", and \"{}\" was asked for",
            args.source, manifest.network_passphrase, args.network_passphrase
        )));
    }
    let (mut recorder, opened) = open(&args)?;
    let settings = ImportSettings { start: args.start, end: args.end, opaque: args.opaque };
    let bar = progress_bar(0);
    let told = |_, bytes: u64| {
        bar.inc(1);
        bar.set_message(indicatif::HumanBytes(bytes).to_string());
    };
    let (imported, result) = match &streamed {
        Some(path) => import::stream(&mut recorder, path, settings, told),
        None => import::place(&mut recorder, &place, settings, manifest.as_ref(), told),
    };
    bar.finish_and_clear();
    let bounds = recorder.bounds();
    // What was whole is kept, also where the rest is not.
    let written = recorder.finish();
    print(&args, &opened, &imported, bounds);
    result.map_err(|error| failure(&error))?;
    written.map_err(|error| failure(&error.into()))?;
    Ok(Exit::Done)
}

fn open(args: &Args) -> Result<(Recorder, Opened), Failure> {
    let ledgers_max = args.retention.unwrap_or(u32::MAX);
    let bounds = Bounds { ledgers_max, bytes_max: None, age_ns_max: None };
    let settings = ArchiveSettings {
        directory: directory_of(&args.data_dir),
        keeper: KeeperSettings { bounds, ..KeeperSettings::default() },
        source: IMPORTED.into(),
        network: network_of(Some(&args.network_passphrase)),
        start: 0,
        reset: false,
    };
    Recorder::open(&settings).map_err(|error| failure(&error.into()))
}

fn print(args: &Args, opened: &Opened, imported: &Imported, (oldest, latest): (u32, u32)) {
    for torn in &opened.torn {
        tracing::warn!("{}: {} torn bytes at {} were cut: {}", torn.path.display(), torn.bytes, torn.at, torn.what);
    }
    for bad in &opened.unreadable {
        tracing::warn!("{}: {}", bad.path.display(), bad.what);
    }
    if args.json {
        println!(
            "{}",
            json!({
                "source": args.source, "first": imported.first, "last": imported.last, "ledgers": imported.ledgers,
                "bytes": imported.bytes, "present": imported.present, "oldest": oldest, "latest": latest,
            })
        );
        return;
    }
    match imported.ledgers {
        0 => println!("{}: nothing new", args.source),
        ledgers => println!(
            "{}: ledgers {} to {} imported: {ledgers}, {} bytes",
            args.source, imported.first, imported.last, imported.bytes
        ),
    }
    println!("  {}: {oldest} to {latest} are kept", args.data_dir.display());
}

fn failure(error: &ImportError) -> Failure {
    let exit = match error {
        ImportError::Object { .. } => Exit::Damage,
        ImportError::Gap { .. } => Exit::Difference,
        ImportError::Nothing(_) => Exit::Usage,
        ImportError::Record(RecordError::Archive(ArchiveError::Another { .. })) => Exit::Usage,
        ImportError::Record(RecordError::Order(_) | RecordError::Chunker(_)) => Exit::Difference,
        ImportError::Place(_) | ImportError::Io { .. } | ImportError::Record(_) => Exit::Host,
    };
    Failure { message: error.to_string(), exit }
}
