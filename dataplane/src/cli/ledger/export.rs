//! `sluice ledger export`: Write retained ledgers to plain files or into a data lake.

use std::path::PathBuf;

use serde_json::json;

use super::progress_bar;
use crate::cli::{Exit, Failure, Outcome};
use crate::ledger::archive::{ReadError, Reader, directory_of};
use crate::ledger::export::{ExportError, Form, Selection, export};
use crate::ledger::galexie::{Layout, Manifest};
use crate::ledger::place::Place;

/// Arguments of `sluice ledger export`.
///
/// The directory is only read; a server may be writing it. Each ledger is verified on its way.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The data directory of a server or an import.
    pub directory: PathBuf,
    /// Where to: a directory, or s3://, gs://, az:// (credentials from the environment, as the store's own tools have them).
    #[arg(long, value_name = "PLACE")]
    pub out: String,
    /// The first ledger; without it, the oldest that is kept.
    #[arg(long, value_name = "N")]
    pub start: Option<u32>,
    /// The last ledger; without it, the latest.
    #[arg(long, value_name = "M")]
    pub end: Option<u32>,
    /// Write the layout of a Galexie data lake (SEP-54) in place of ledger-<sequence>.xdr files. Only whole batches are written.
    #[arg(long, requires = "network_passphrase")]
    pub galexie: bool,
    /// The network's passphrase, for the data lake's manifest.
    #[arg(long, value_name = "TEXT")]
    pub network_passphrase: Option<String>,
    /// Ledgers of an object.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "galexie")]
    pub ledgers_per_file: u32,
    /// Objects of a partition; 1: no partitions.
    #[arg(long, value_name = "N", default_value_t = 64_000, requires = "galexie")]
    pub files_per_partition: u32,
    /// One JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let place = Place::parse(&args.out).map_err(|error| Failure::usage(error.to_string()))?;
    let form = form(&args)?;
    let directory = directory_of(&args.directory);
    let mut reader = Reader::open(&directory).map_err(|error| Failure::host(error.to_string()))?;
    for bad in reader.unreadable() {
        tracing::warn!("{}: {}", bad.path.display(), bad.what);
    }
    let bar = progress_bar(1);
    let selection = Selection { start: args.start, end: args.end };
    let exported = export(&mut reader, &place, selection, &form, |_, all| {
        bar.set_length(all);
        bar.inc(1);
    });
    bar.finish_and_clear();
    let exported = exported.map_err(failure)?;
    if args.json {
        println!(
            "{}",
            json!({
                "out": args.out, "first": exported.first, "last": exported.last, "ledgers": exported.ledgers,
                "objects": exported.objects, "bytes": exported.bytes, "left_out": exported.left_out,
            })
        );
        return Ok(Exit::Done);
    }
    println!(
        "{}: ledgers {} to {} written: {} objects, {} bytes of ledgers",
        args.out, exported.first, exported.last, exported.objects, exported.bytes
    );
    if exported.left_out > 0 {
        println!("  {} ledgers at the ends fill no batch and are left out", exported.left_out);
    }
    Ok(Exit::Done)
}

fn form(args: &Args) -> Result<Form, Failure> {
    let Some(passphrase) = args.network_passphrase.as_deref().filter(|_| args.galexie) else { return Ok(Form::Plain) };
    let layout = Layout { ledgers_per_file: args.ledgers_per_file, files_per_partition: args.files_per_partition };
    layout.check().map_err(|error| Failure::usage(error.to_string()))?;
    Ok(Form::Galexie(Manifest::new(layout, passphrase)))
}

fn failure(error: ExportError) -> Failure {
    let exit = match &error {
        ExportError::Read(ReadError::NotKept { .. }) => Exit::Usage,
        ExportError::Read(_) => Exit::Damage,
        ExportError::Place(_) | ExportError::Io(_) => Exit::Host,
        ExportError::NoMeta { .. } => Exit::Difference,
        _ => Exit::Usage,
    };
    Failure { message: error.to_string(), exit }
}
