//! Retained ledgers out to files: one each, or in the layout of a Galexie data lake.

use super::archive::{ReadError, Reader};
use super::dump;
use super::galexie::{self, LayoutError, MANIFEST, Manifest};
use super::header;
use super::place::{Place, PlaceError};
use super::source::network_of;

/// What an export writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Form {
    /// `ledger-<sequence>.xdr` for each ledger.
    Plain,
    /// Batches and a manifest (SEP-54). Only whole batches are written.
    Galexie(Manifest),
}

/// Which ledgers: both inclusive; without them, all that are kept.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Selection {
    /// The first one.
    pub start: Option<u32>,
    /// The last one.
    pub end: Option<u32>,
}

/// What was written.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Exported {
    /// The first ledger; 0 where none was.
    pub first: u32,
    /// The last one.
    pub last: u32,
    /// How many.
    pub ledgers: u64,
    /// Objects.
    pub objects: u64,
    /// Bytes of the ledgers.
    pub bytes: u64,
    /// Ledgers at either end that fill no batch.
    pub left_out: u64,
}

/// Why an export ended early. What was written before is whole.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A ledger that cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The place.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A layout that cannot be.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Nothing to export.
    #[error("{0}")]
    Nothing(String),
    /// A manifest that is there already and says otherwise.
    #[error("{name}: there is another manifest ({what}): export with its layout and network, or to another place")]
    Manifest {
        /// The manifest's name.
        name: String,
        /// What differs.
        what: String,
    },
    /// The directory's ledgers are of another network.
    #[error(
        "the ledgers are of network {found}, the passphrase \"{passphrase}\" is that of {asked}: give the right one"
    )]
    Network {
        /// Of the ledgers, in hexadecimal.
        found: String,
        /// The passphrase.
        passphrase: String,
        /// Of the passphrase.
        asked: String,
    },
    /// Bytes that are no LedgerCloseMeta, which the layout is for.
    #[error("ledger {sequence} cannot be put into a batch: {what}; plain files hold anything")]
    NoMeta {
        /// The ledger.
        sequence: u32,
        /// Why not.
        what: String,
    },
    /// No memory for zstd.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Writes ledgers to a place. `told` gets each one's sequence and how many there are in all.
///
/// # Errors
/// See [`ExportError`].
pub fn export(
    reader: &mut Reader,
    place: &Place,
    selection: Selection,
    form: &Form,
    mut told: impl FnMut(u32, u64),
) -> Result<Exported, ExportError> {
    let (first, last) = chosen(reader, selection)?;
    match form {
        Form::Plain => plain(reader, place, first, last, &mut told),
        Form::Galexie(manifest) => batches(reader, place, first, last, manifest, &mut told),
    }
}

/// The first and last ledger to be written.
fn chosen(reader: &Reader, selection: Selection) -> Result<(u32, u32), ExportError> {
    let (oldest, latest) = reader.bounds();
    if latest == 0 {
        return Err(ExportError::Nothing("no ledgers are kept there".into()));
    }
    let (first, last) = (selection.start.unwrap_or(oldest), selection.end.unwrap_or(latest));
    if first > last {
        return Err(ExportError::Nothing(format!("ledgers {first} to {last}: the end is before the start")));
    }
    for sequence in [first, last] {
        if reader.record(sequence).is_none() {
            return Err(ReadError::NotKept { sequence, oldest, latest }.into());
        }
    }
    Ok((first, last))
}

fn plain(
    reader: &mut Reader,
    place: &Place,
    first: u32,
    last: u32,
    told: &mut impl FnMut(u32, u64),
) -> Result<Exported, ExportError> {
    let all = u64::from(last - first) + 1;
    let mut exported = Exported { first, ..Exported::default() };
    for sequence in first..=last {
        let bytes = reader.read(sequence)?.bytes.to_vec();
        exported.bytes += bytes.len() as u64;
        place.put(&dump::file_name(sequence), bytes)?;
        (exported.last, exported.ledgers, exported.objects) = (sequence, exported.ledgers + 1, exported.objects + 1);
        told(sequence, all);
    }
    place.sync()?;
    Ok(exported)
}

fn batches(
    reader: &mut Reader,
    place: &Place,
    first: u32,
    last: u32,
    manifest: &Manifest,
    told: &mut impl FnMut(u32, u64),
) -> Result<Exported, ExportError> {
    let layout = manifest.layout();
    layout.check()?;
    check_network(reader, &manifest.network_passphrase)?;
    let wanted = u64::from(last - first) + 1;
    let mut exported = Exported::default();
    let mut next = first;
    while next <= last {
        let batch = layout.batch(next);
        if batch.begins() < next || batch.last > last {
            // The rest of a batch that began before, or the beginning of one that is not complete.
            let skipped = u64::from(batch.last.min(last) - next) + 1;
            exported.left_out += skipped;
        } else {
            // Of a batch with the ledgers before the first one, those are left out.
            exported.left_out += u64::from(batch.begins() - next);
            if exported.objects == 0 {
                put_manifest(place, manifest)?;
                exported.first = batch.begins();
            }
            let metas = metas(reader, batch.begins(), batch.last, told, wanted)?;
            exported.bytes += metas.iter().map(|meta| meta.len() as u64).sum::<u64>();
            exported.ledgers += metas.len() as u64;
            place.put(&layout.key(batch), galexie::encode(batch.begins(), &metas)?)?;
            (exported.objects, exported.last) = (exported.objects + 1, batch.last);
        }
        match batch.last.checked_add(1) {
            Some(after) => next = after,
            None => break,
        }
    }
    if exported.objects == 0 {
        let length = layout.ledgers_per_file;
        let text = format!("ledgers {first} to {last} fill no batch of {length}: export more, or with fewer a file");
        return Err(ExportError::Nothing(text));
    }
    place.sync()?;
    Ok(exported)
}

fn metas(
    reader: &mut Reader,
    first: u32,
    last: u32,
    told: &mut impl FnMut(u32, u64),
    all: u64,
) -> Result<Vec<Vec<u8>>, ExportError> {
    let mut metas = Vec::new();
    for sequence in first..=last {
        let bytes = reader.read(sequence)?.bytes;
        let fits = match header::read(bytes) {
            Err(error) => Err(error.to_string()),
            Ok(None) => Err("it ends inside its header".into()),
            Ok(Some(header)) if header.sequence != sequence => Err(format!("it is ledger {}", header.sequence)),
            Ok(Some(_)) if bytes.len() % 4 != 0 => Err("its length is no multiple of four".into()),
            Ok(Some(_)) => Ok(()),
        };
        fits.map_err(|what| ExportError::NoMeta { sequence, what })?;
        metas.push(bytes.to_vec());
        told(sequence, all);
    }
    Ok(metas)
}

fn check_network(reader: &Reader, passphrase: &str) -> Result<(), ExportError> {
    let hex = |network: [u8; 8]| network.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let found = reader.run().map_or([0; 8], |run| run.network);
    let asked = network_of(Some(passphrase));
    if found == [0; 8] || found == asked {
        return Ok(());
    }
    Err(ExportError::Network { found: hex(found), passphrase: passphrase.into(), asked: hex(asked) })
}

/// Writes the manifest, unless the place has one; another one is refused.
fn put_manifest(place: &Place, manifest: &Manifest) -> Result<(), ExportError> {
    let Some(there) = place.get(MANIFEST)? else {
        return Ok(place.put(MANIFEST, manifest.encode())?);
    };
    let same = match Manifest::parse(&there) {
        Ok(there) if there.network_passphrase != manifest.network_passphrase => {
            Err(format!("of network \"{}\"", there.network_passphrase))
        }
        Ok(there) if there.layout() != manifest.layout() => {
            let galexie::Layout { ledgers_per_file, files_per_partition } = there.layout();
            Err(format!("of {ledgers_per_file} ledgers a file, {files_per_partition} files a partition"))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    same.map_err(|what| ExportError::Manifest { name: place.name(MANIFEST), what })
}
