//! What a store's files already name: so that a process which goes on with a store gives no run and no raw frame a
//! number that an earlier one has given.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use crate::store::retention::{SegmentFile, list};
use crate::store::scan::{Depth, read_footer, read_info, scan};
use crate::store::{RAW_PREFIX, StoreError, session_key};
use crate::wire::block::{RangeClass, SegmentIndex};
use crate::wire::segment::SessionKey;

/// The numbers that are in use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KnownRuns {
    /// By session (a stream's key without its run): one past the highest run.
    pub runs: BTreeMap<String, u32>,
    /// By key of a side's raw frames: one past the highest sequence.
    pub raw: BTreeMap<String, u64>,
    /// One past the highest arrival index.
    pub arrival_next: u64,
}

impl KnownRuns {
    /// The first run of a session that the store does not hold; 0 for a new session. Runs that retention has deleted
    /// altogether are not known any more.
    pub fn next_run(&self, session: &SessionKey) -> u32 {
        self.runs.get(&session_key(session)).copied().unwrap_or(0)
    }

    /// The first sequence of a side's raw frames that the store does not hold; 1 for a new key.
    pub fn next_raw(&self, key: &str) -> u64 {
        self.raw.get(key).copied().unwrap_or(1)
    }

    fn add(&mut self, index: &SegmentIndex) {
        for key in &index.streams {
            if key.starts_with(RAW_PREFIX) {
                continue;
            }
            let Some((session, run)) = key.rsplit_once("/r") else { continue };
            let Ok(run) = run.parse::<u32>() else { continue };
            let next = self.runs.entry(session.to_string()).or_default();
            *next = (*next).max(run.saturating_add(1));
        }
        for range in index.ranges.iter().filter(|range| range.class == RangeClass::Data) {
            let Some(key) = index.streams.get(range.stream as usize) else { continue };
            if key.starts_with(RAW_PREFIX) {
                let next = self.raw.entry(key.clone()).or_insert(1);
                *next = (*next).max(range.max.saturating_add(1));
            }
        }
        let arrivals = index.blocks.iter().map(|block| block.arrival_last.saturating_add(1));
        self.arrival_next = self.arrival_next.max(arrivals.max().unwrap_or(0));
    }
}

/// What the segments of a directory name: of sealed ones the footer is read, of others the blocks' indexes. A file that
/// cannot be read names nothing. While another process writes there, the answer is soon old: a writer asks
/// [`crate::store::files::Files::known_runs`], which was formed under the directory's lock.
///
/// # Errors
/// When the directory cannot be listed.
pub fn known_runs(directory: &Path) -> Result<KnownRuns, StoreError> {
    Ok(of_files(&list(directory)?))
}

pub(super) fn of_files(files: &[SegmentFile]) -> KnownRuns {
    let mut known = KnownRuns::default();
    for segment in files {
        let Ok(file) = File::open(&segment.path) else { continue };
        let Ok(info) = read_info(&file, &segment.path) else { continue };
        match read_footer(&file, &segment.path, &info) {
            Ok(Some(index)) => known.add(&index),
            _ => {
                if let Ok(scan) = scan(&file, &segment.path, Depth::Index, false) {
                    known.add(&scan.index);
                }
            }
        }
    }
    known
}
