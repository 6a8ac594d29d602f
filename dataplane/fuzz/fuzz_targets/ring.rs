//! Ring files of any bytes: what the header's check lets through is mapped and read by every kind of reader.
#![no_main]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use sluice::ring::raw::{RawReader, RawWriter};
use sluice::ring::{BlobConsumer, ConsumerSettings, RingConsumer, StartAt, Wait};
use sluice::wire::ring::{HEADER_BYTES, Header, MAGIC, VERSION};

/// Records asked of each reader.
const READS: u64 = 64;
/// How long each reader may wait then: a wait that does not end is a hang.
const WAIT: Duration = Duration::from_micros(100);

/// A path in shared memory where there is some: no disk is worn.
fn path() -> PathBuf {
    let folder = Path::new("/dev/shm");
    let folder = if folder.is_dir() { folder.into() } else { std::env::temp_dir() };
    folder.join(format!("sluice-fuzz-{}.ring", std::process::id()))
}

fuzz_target!(|input: &[u8]| {
    let mut bytes = input.to_vec();
    if let Some(head) = bytes.first_chunk_mut::<HEADER_BYTES>() {
        head[..8].copy_from_slice(&MAGIC.to_le_bytes());
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    }
    let Ok(header) = Header::parse(&bytes, bytes.len() as u64) else { return };
    let geometry = header.geometry;
    assert!(geometry.file_bytes().is_some_and(|needed| needed <= bytes.len() as u64));
    assert_eq!(geometry.mirrored().check(), Ok(()));
    let path = path();
    fs::write(&path, &bytes).expect("space for a small file");
    let _ = sluice::ring::inspect::inspect(&path);
    if let Ok(reader) = RawReader::open(&path, true) {
        let mut out = Vec::new();
        for sequence in reader.oldest()..reader.oldest().saturating_add(READS) {
            let _ = reader.read(sequence, &mut out);
        }
        let _ = reader.announce(reader.head() + 1).map(|_| reader.withdraw());
    }
    let settings = ConsumerSettings::default();
    if let Ok(mut reader) = RingConsumer::<[u64; 2]>::open(&path, StartAt::Oldest, &settings) {
        let _ = (0..READS).filter_map(|_| reader.try_recv()).count();
        let _ = reader.recv(Wait::Backoff, WAIT);
    }
    if let Ok(mut reader) = BlobConsumer::<[u8; 12]>::open(&path, StartAt::Oldest, &settings) {
        let mut out = Vec::new();
        let _ = (0..READS).filter_map(|_| reader.try_recv(&mut out)).count();
        let _ = reader.recv(Wait::Backoff, WAIT, &mut out);
    }
    let _ = RawWriter::resume_point(&path);
});
