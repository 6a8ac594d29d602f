//! The layout of a Galexie data lake (SEP-54): keys, the manifest, batches of ledgers as objects. No object is read or written here.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::header::{self, Header};
use super::rpc::MetaError;
use crate::wire::ledger::{LEDGER_BYTES_MAX, SEQUENCE_MAX};

/// The manifest's key.
pub const MANIFEST: &str = ".config.json";
/// What an object's key ends with, and what older writers ended it with.
const SUFFIXES: [&str; 2] = [".xdr.zst", ".xdr.zstd"];
/// The first ledger of a network that has a meta (SEP-54): the first batch begins with it.
pub const FIRST: u32 = 2;
/// Most ledgers of a batch that are taken: Galexie writes 1, and was at times run with 64.
pub const LEDGERS_PER_FILE_MAX: u32 = 1 << 16;
/// Most batches of a partition: what keeps a partition's range inside of the sequences, with the above.
pub const FILES_PER_PARTITION_MAX: u32 = 1 << 16;
/// Most bytes of a batch when unpacked: a few of the largest ledgers. What claims more is refused before it is unpacked.
pub const BATCH_BYTES_MAX: u64 = 4 * LEDGER_BYTES_MAX;
/// The compression level of objects: zstd's own default, as Galexie's.
const LEVEL: i32 = 3;

/// How ledgers are spread over objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Ledgers of an object.
    pub ledgers_per_file: u32,
    /// Objects of a partition; 1: there are no partitions.
    pub files_per_partition: u32,
}

impl Default for Layout {
    /// What the public data lakes have.
    fn default() -> Layout {
        Layout { ledgers_per_file: 1, files_per_partition: 64_000 }
    }
}

/// Ledgers of an object: its first and its last one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Batch {
    /// The first one by its key.
    pub first: u32,
    /// The last one.
    pub last: u32,
}

impl Batch {
    /// The first ledger that is really in it.
    pub fn begins(&self) -> u32 {
        // A batch of several that would begin before the first ledger begins with it.
        if self.first < FIRST && self.last > self.first { FIRST } else { self.first }
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The newest come first in a listing.
        write!(f, "{:08X}--{}", u32::MAX - self.first, self.first)?;
        if self.last == self.first { Ok(()) } else { write!(f, "-{}", self.last) }
    }
}

/// Why a layout cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// Ledgers of an object.
    #[error("{0} ledgers per file: 1 to {LEDGERS_PER_FILE_MAX}")]
    Ledgers(u32),
    /// Objects of a partition.
    #[error("{0} files per partition: 1 to {FILES_PER_PARTITION_MAX}")]
    Files(u32),
    /// A partition that is longer than what there is.
    #[error("partitions of {0} ledgers: a partition has fewer than 2^31")]
    Partition(u64),
}

impl Layout {
    /// Judges a layout.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub fn check(&self) -> Result<(), LayoutError> {
        if !(1..=LEDGERS_PER_FILE_MAX).contains(&self.ledgers_per_file) {
            return Err(LayoutError::Ledgers(self.ledgers_per_file));
        }
        if !(1..=FILES_PER_PARTITION_MAX).contains(&self.files_per_partition) {
            return Err(LayoutError::Files(self.files_per_partition));
        }
        let partition = u64::from(self.ledgers_per_file) * u64::from(self.files_per_partition);
        if partition >= 1 << 31 { Err(LayoutError::Partition(partition)) } else { Ok(()) }
    }

    /// The batch that a ledger belongs to. Asserts a layout that was judged.
    pub fn batch(&self, sequence: u32) -> Batch {
        Layout::range(sequence, self.ledgers_per_file)
    }

    /// The key of a batch, under the path of the ledgers.
    pub fn key(&self, batch: Batch) -> String {
        let object = format!("{batch}{}", SUFFIXES[0]);
        if self.files_per_partition <= 1 {
            return object;
        }
        // Less than 2^31 by `check`.
        let partition = Layout::range(batch.first, self.ledgers_per_file * self.files_per_partition);
        format!("{partition}/{object}")
    }

    fn range(sequence: u32, length: u32) -> Batch {
        let first = sequence / length * length;
        Batch { first, last: first.saturating_add(length - 1) }
    }
}

/// A key as an older writer ended it.
pub fn older_key(key: &str) -> String {
    key.replace(SUFFIXES[0], SUFFIXES[1])
}

/// The batch that a key names, whatever the partition; `None` for every other key.
pub fn parse_key(key: &str) -> Option<Batch> {
    let name = key.rsplit('/').next()?;
    let stem = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix))?;
    let (_, range) = stem.split_once("--")?;
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let batch = Batch { first: first.parse().ok()?, last: last.parse().ok()? };
    // Written otherwise, it would be there twice.
    (batch.first <= batch.last && batch.last <= SEQUENCE_MAX && batch.to_string() == stem).then_some(batch)
}

/// The manifest, as Galexie writes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The network's passphrase.
    pub network_passphrase: String,
    /// The layout's version; Galexie writes "1.0", SEP-54 does not know it.
    #[serde(default)]
    pub version: String,
    /// "zstd".
    #[serde(default)]
    pub compression: String,
    /// Ledgers of an object; older writers called it otherwise.
    #[serde(alias = "ledgersPerFile")]
    pub ledgers_per_batch: u32,
    /// Objects of a partition.
    #[serde(alias = "filesPerPartition")]
    pub batches_per_partition: u32,
    /// Where the ledgers lie, as SEP-54 0.2 has it; absent: beside the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledgers_path: Option<String>,
}

impl Manifest {
    /// The manifest of a layout.
    pub fn new(layout: Layout, network_passphrase: &str) -> Manifest {
        Manifest {
            network_passphrase: network_passphrase.into(),
            version: "1.0".into(),
            compression: "zstd".into(),
            ledgers_per_batch: layout.ledgers_per_file,
            batches_per_partition: layout.files_per_partition,
            ledgers_path: None,
        }
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// Text for the user: no manifest, another compression, a layout that cannot be.
    pub fn parse(bytes: &[u8]) -> Result<Manifest, String> {
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if !matches!(manifest.compression.as_str(), "zstd" | "") {
            return Err(format!("compression \"{}\": only zstd is read", manifest.compression));
        }
        manifest.layout().check().map_err(|error| error.to_string())?;
        Ok(manifest)
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("text and numbers")
    }

    /// Its layout.
    pub fn layout(&self) -> Layout {
        Layout { ledgers_per_file: self.ledgers_per_batch, files_per_partition: self.batches_per_partition }
    }
}

/// Why an object is no batch that can be taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BatchError {
    /// It cannot be unpacked.
    #[error("not zstd, damaged, or of more than {BATCH_BYTES_MAX} bytes when unpacked: {0}")]
    Zstd(String),
    /// It ends inside its own header.
    #[error("{0} bytes: a LedgerCloseMetaBatch has at least 12 and a ledger")]
    Short(usize),
    /// Its range and its count differ.
    #[error("it states ledgers {first} to {last} and holds {count}")]
    Range {
        /// The stated first one.
        first: u32,
        /// The stated last one.
        last: u32,
        /// How many follow.
        count: u32,
    },
    /// A ledger that is none.
    #[error("ledger {sequence} at byte {at}: {error}")]
    Meta {
        /// Which one should be there.
        sequence: u32,
        /// Where.
        at: usize,
        /// What is wrong.
        error: MetaError,
    },
    /// The bytes end inside a ledger's header.
    #[error("ledger {sequence} at byte {at}: the bytes end inside its header")]
    Truncated {
        /// Which one.
        sequence: u32,
        /// Where.
        at: usize,
    },
    /// Another ledger than the next one.
    #[error("ledger {found} at byte {at}, where {sequence} should be")]
    Sequence {
        /// Which one should be there.
        sequence: u32,
        /// Which one is.
        found: u32,
        /// Where.
        at: usize,
    },
    /// A header that is damaged.
    #[error("ledger {sequence} at byte {at}: its header does not have the hash that it states")]
    Hash {
        /// Which one.
        sequence: u32,
        /// Where.
        at: usize,
    },
    /// Where the next ledger begins cannot be found.
    #[error(
        "ledger {sequence} does not follow from the one before it: nothing behind byte {at} is its header and names the hash of \
         ledger {before}"
    )]
    Border {
        /// The ledger that is looked for.
        sequence: u32,
        /// The one before it.
        before: u32,
        /// Where that one begins.
        at: usize,
    },
}

/// A batch as an object's bytes: zstd with a checksum, of a LedgerCloseMetaBatch of these ledgers. Asserts that they are some.
///
/// # Errors
/// As zstd: no memory.
pub fn encode(first: u32, metas: &[Vec<u8>]) -> std::io::Result<Vec<u8>> {
    assert!(!metas.is_empty(), "a batch has ledgers");
    let count = metas.len() as u32;
    let mut bytes = Vec::with_capacity(12 + metas.iter().map(Vec::len).sum::<usize>());
    for word in [first, first + (count - 1), count] {
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    metas.iter().for_each(|meta| bytes.extend_from_slice(meta));
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    compressor.include_checksum(true)?;
    compressor.compress(&bytes)
}

/// Unpacks an object, bounded.
///
/// # Errors
/// [`BatchError::Zstd`].
pub fn unpack(object: &[u8]) -> Result<Vec<u8>, BatchError> {
    let failed = |error: std::io::Error| BatchError::Zstd(error.to_string());
    let decoder = zstd::stream::read::Decoder::with_buffer(object).map_err(failed)?;
    let mut bytes = Vec::new();
    let mut bounded = std::io::Read::take(decoder, BATCH_BYTES_MAX + 1);
    std::io::Read::read_to_end(&mut bounded, &mut bytes).map_err(failed)?;
    if bytes.len() as u64 > BATCH_BYTES_MAX {
        return Err(BatchError::Zstd("too long".into()));
    }
    Ok(bytes)
}

/// The ledgers of an unpacked batch with their sequences, in order.
///
/// # Errors
/// See [`BatchError`].
pub fn split(bytes: &[u8]) -> Result<Vec<(u32, &[u8])>, BatchError> {
    let short = BatchError::Short(bytes.len());
    let word = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    let (Some(first), Some(last), Some(count)) = (word(0), word(4), word(8)) else { return Err(short) };
    if last.checked_sub(first).and_then(|more| more.checked_add(1)) != Some(count) || count > LEDGERS_PER_FILE_MAX {
        return Err(BatchError::Range { first, last, count });
    }
    let mut ledgers = Vec::new();
    let mut begins = 12;
    let mut header = judge(bytes, begins, first)?;
    for sequence in first..last {
        let ends = header::next(&bytes[begins..], &header).map(|length| begins + length);
        let ends = ends.ok_or(BatchError::Border { sequence: sequence + 1, before: sequence, at: begins })?;
        ledgers.push((sequence, &bytes[begins..ends]));
        begins = ends;
        header = judge(bytes, begins, sequence + 1)?;
    }
    ledgers.push((last, &bytes[begins..]));
    Ok(ledgers)
}

/// The header of the meta at `at`, which has to be of `sequence`, and whole.
fn judge(bytes: &[u8], at: usize, sequence: u32) -> Result<Header, BatchError> {
    let header = header::read(&bytes[at..]).map_err(|error| BatchError::Meta { sequence, at, error })?;
    let header = header.ok_or(BatchError::Truncated { sequence, at })?;
    if header.sequence != sequence {
        return Err(BatchError::Sequence { sequence, found: header.sequence, at });
    }
    if !header.holds { Err(BatchError::Hash { sequence, at }) } else { Ok(header) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn layout(ledgers_per_file: u32, files_per_partition: u32) -> Layout {
        Layout { ledgers_per_file, files_per_partition }
    }

    fn key(layout: Layout, sequence: u32) -> String {
        layout.key(layout.batch(sequence))
    }

    #[test]
    fn keys_are_those_of_the_specification() {
        // The example of SEP-54: two ledgers an object, eight objects a partition.
        let example = layout(2, 8);
        for (sequence, expected) in [
            (18, "FFFFFFEF--16-31/FFFFFFED--18-19.xdr.zst"),
            (17, "FFFFFFEF--16-31/FFFFFFEF--16-17.xdr.zst"),
            (15, "FFFFFFFF--0-15/FFFFFFF1--14-15.xdr.zst"),
            (2, "FFFFFFFF--0-15/FFFFFFFD--2-3.xdr.zst"),
        ] {
            assert_eq!(key(example, sequence), expected);
        }
        assert_eq!(key(layout(1, 1), 2), "FFFFFFFD--2.xdr.zst");
        assert_eq!(key(layout(1, 64_000), 999), "FFFFFFFF--0-63999/FFFFFC18--999.xdr.zst");
        assert_eq!(key(layout(64, 10), 700), "FFFFFD7F--640-1279/FFFFFD7F--640-703.xdr.zst");
        assert_eq!(layout(64, 10).batch(5), Batch { first: 0, last: 63 });
        assert_eq!(layout(64, 10).batch(5).begins(), 2);
        assert_eq!(layout(1, 10).batch(1).begins(), 1);
        let last = key(layout(3, 7), SEQUENCE_MAX);
        assert!(last.starts_with("0000000"), "{last}");
    }

    #[test]
    fn a_key_is_read_back_and_no_other_name_is_one() {
        for sequence in [2, 63, 64, 65, 70_000, SEQUENCE_MAX - 70_000] {
            for layout in [layout(1, 1), layout(1, 64_000), layout(64, 1), layout(64, 1000)] {
                let batch = layout.batch(sequence);
                assert_eq!(parse_key(&layout.key(batch)), Some(batch));
                assert_eq!(parse_key(&older_key(&layout.key(batch))), Some(batch));
            }
        }
        for name in [
            ".config.json",
            "FFFFFFFD--2.xdr",
            "FFFFFFFD--3.xdr.zst",
            "FFFFFFFD--2-1.xdr.zst",
            "FFFFFFFD--02.xdr.zst",
            "fffffffd--2.xdr.zst",
            "FFFFFFFD--2.xdr.zst.tmp",
            "00000000--4294967295.xdr.zst",
        ] {
            assert_eq!(parse_key(name), None, "{name}");
        }
    }

    #[test]
    fn a_manifest_goes_there_and_back() {
        let public = br#"{"networkPassphrase":"Public Global Stellar Network ; September 2015","version":"1.0","compression":"zstd","ledgersPerBatch":1,"batchesPerPartition":64000}"#;
        let manifest = Manifest::parse(public).expect("a manifest");
        assert_eq!(manifest.layout(), Layout::default());
        assert_eq!(manifest.encode(), public, "as it is written by others");
        assert_eq!(manifest, Manifest::new(Layout::default(), "Public Global Stellar Network ; September 2015"));
        let older = Manifest::parse(br#"{"networkPassphrase":"x","ledgersPerFile":64,"batchesPerPartition":10}"#);
        assert_eq!(older.expect("a manifest").layout(), layout(64, 10));
        for bad in [
            &br#"{"networkPassphrase":"x","ledgersPerBatch":0,"batchesPerPartition":10}"#[..],
            br#"{"networkPassphrase":"x","ledgersPerBatch":1,"batchesPerPartition":4000000000}"#,
            br#"{"networkPassphrase":"x","compression":"gzip","ledgersPerBatch":1,"batchesPerPartition":1}"#,
            b"{}",
            b"",
        ] {
            assert!(Manifest::parse(bad).is_err());
        }
    }

    #[test]
    fn what_is_no_batch_is_refused() {
        assert_eq!(split(&[0; 11]), Err(BatchError::Short(11)));
        let words = |words: [u32; 3]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
        for [first, last, count] in [[5, 4, 1], [5, 5, 2], [5, 6, 1], [0, u32::MAX, 0], [1, 1 << 20, 1 << 20]] {
            assert_eq!(split(&words([first, last, count])), Err(BatchError::Range { first, last, count }));
        }
        assert_eq!(split(&words([5, 5, 1])), Err(BatchError::Truncated { sequence: 5, at: 12 }));
        assert!(matches!(unpack(b"not zstd"), Err(BatchError::Zstd(_))));
        // A frame that claims to be enormous.
        let mut bomb = zstd::stream::write::Encoder::new(Vec::new(), 1).expect("zstd");
        let zeros = vec![0; 1 << 20];
        for _ in 0..(BATCH_BYTES_MAX >> 20) + 1 {
            std::io::Write::write_all(&mut bomb, &zeros).expect("packed");
        }
        let bomb = bomb.finish().expect("packed");
        assert_eq!(unpack(&bomb), Err(BatchError::Zstd("too long".into())));
    }
}
