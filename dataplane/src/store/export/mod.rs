//! Exports: what a query selects, as pcapng, pcap, CSV or Parquet; each file is read back and its records counted.
//!
//! May use: `store`, `wire`. Never does: leave a file in place that does not hold what was written.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::store::query::{Found, Select, Step};
use crate::store::reader::Reader;
use crate::store::scan::Damage;
use crate::store::{StoreError, parse_key};
use crate::units::SIDES_MAX;
use crate::wire::block::RecordKind;

pub mod capture;
mod csv_rows;
/// The CSV line of a record, for those who print one.
pub mod csv {
    pub use super::csv_rows::{COLUMNS, hex, line};
}
#[cfg(feature = "parquet")]
mod parquet_rows;

/// The formats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// pcapng, ns, one interface per side.
    Pcapng,
    /// pcap, ns; all sides in one.
    Pcap,
    /// CSV, one row a record.
    Csv,
    /// Parquet, one row a record.
    Parquet,
}

/// What an export wrote, and what was found when it was read back.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Exported {
    /// Records written: messages and raw frames for captures, all records for tables.
    pub records: u64,
    /// Of them per side, in order of the sides.
    pub sides: Vec<u64>,
    /// Records that the format has no place for (gaps, begins, ends in a capture).
    pub skipped: u64,
    /// Records found when the file was read back.
    pub read_back: u64,
    /// Parts of the store that could not be read.
    pub damage: Vec<Damage>,
}

/// A file format's writer.
trait Rows {
    /// Writes one record; false when the format has no place for it.
    fn put(&mut self, key: &str, found: &Found<'_>) -> Result<bool, StoreError>;
    /// Writes what comes last.
    fn finish(self: Box<Self>) -> Result<(), StoreError>;
}

/// Writes what `select` yields to `out`, which must not exist; reads it back; fails when the counts differ.
/// `progress` is told records done.
pub fn export(
    reader: &mut Reader,
    select: Select,
    format: Format,
    out: &Path,
    mut progress: impl FnMut(u64),
) -> Result<Exported, StoreError> {
    if out.exists() {
        return Err(StoreError::Exists(out.into()));
    }
    let partial = partial(out);
    let file = File::create(&partial).map_err(|source| StoreError::io("create", &partial, source))?;
    let result = fill(reader, select, format, file, &partial, &mut progress);
    let mut exported = match result {
        Ok(exported) => exported,
        Err(error) => {
            let _ = fs::remove_file(&partial);
            return Err(error);
        }
    };
    let (read_back, sides) = read_back(format, &partial)?;
    exported.read_back = read_back;
    let sides_differ = format == Format::Pcapng && sides != exported.sides;
    if read_back != exported.records || sides_differ {
        return Err(StoreError::Export { path: partial, written: exported.records, found: read_back });
    }
    fs::rename(&partial, out).map_err(|source| StoreError::io("rename", &partial, source))?;
    Ok(exported)
}

fn partial(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_os_string();
    name.push(".partial");
    name.into()
}

fn fill(
    reader: &mut Reader,
    select: Select,
    format: Format,
    file: File,
    path: &Path,
    progress: &mut impl FnMut(u64),
) -> Result<Exported, StoreError> {
    let mut exported = Exported { sides: vec![0; SIDES_MAX], damage: reader.damage().to_vec(), ..Exported::default() };
    let sync = file.try_clone().map_err(|source| StoreError::io("open", path, source))?;
    let writer: Box<dyn Write + Send> = Box::new(BufWriter::with_capacity(1 << 20, file));
    let mut rows = rows(format, writer, path)?;
    let keys: Vec<String> = reader.streams().iter().map(|stream| stream.key.clone()).collect();
    let mut query = reader.query(select);
    while let Some(step) = query.step()? {
        match step {
            Step::Record(found) => {
                if rows.put(&keys[found.stream], &found)? {
                    exported.records += 1;
                    exported.sides[found.header.side.index()] += 1;
                    if exported.records.is_multiple_of(4096) {
                        progress(exported.records);
                    }
                } else {
                    exported.skipped += 1;
                }
            }
            Step::Damage(damage) => exported.damage.push(*damage),
        }
    }
    rows.finish()?;
    sync.sync_data().map_err(|source| StoreError::io("sync", path, source))?;
    Ok(exported)
}

fn rows(format: Format, writer: Box<dyn Write + Send>, path: &Path) -> Result<Box<dyn Rows>, StoreError> {
    Ok(match format {
        Format::Pcapng => Box::new(capture::CaptureRows::pcapng(writer, path)?),
        Format::Pcap => Box::new(capture::CaptureRows::pcap(writer, path)?),
        Format::Csv => Box::new(csv_rows::CsvRows::new(writer, path)?),
        #[cfg(feature = "parquet")]
        Format::Parquet => Box::new(parquet_rows::ParquetRows::new(writer, path)?),
        #[cfg(not(feature = "parquet"))]
        Format::Parquet => {
            drop(writer);
            return Err(StoreError::Unsupported(format!(
                "{}: this build has no Parquet: build with --features parquet, or export CSV",
                path.display()
            )));
        }
    })
}

fn read_back(format: Format, path: &Path) -> Result<(u64, Vec<u64>), StoreError> {
    match format {
        Format::Pcapng => capture::count_pcapng(path),
        Format::Pcap => capture::count_pcap(path).map(|count| (count, Vec::new())),
        Format::Csv => csv_rows::count(path).map(|count| (count, Vec::new())),
        #[cfg(feature = "parquet")]
        Format::Parquet => parquet_rows::count(path).map(|count| (count, Vec::new())),
        #[cfg(not(feature = "parquet"))]
        Format::Parquet => Ok((0, Vec::new())),
    }
}

/// Whether a record is a packet of a capture.
fn is_packet(kind: RecordKind) -> bool {
    kind.is_data()
}

/// The session behind a stream key, if the key is a session's.
fn session_of(key: &str) -> Option<crate::wire::segment::SessionKey> {
    parse_key(key).map(|(session, _)| session)
}
