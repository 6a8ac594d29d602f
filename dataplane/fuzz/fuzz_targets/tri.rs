//! `.tri` segments: blocks of any bytes under right checksums (a fuzzer finds no 128-bit hash), read by the scan, by
//! recovery's rules, as a footer, as a trailer, as records.
#![no_main]

use std::fs::{self, File};

use libfuzzer_sys::fuzz_target;
use sluice::store::scan::{Depth, check_records, read_footer, scan};
use sluice::wire::block::{
    BlockHeader, BlockIndex, CHUNK_ENTRY_BYTES, HEADER_BYTES, MAGIC, Records, SECTOR_BYTES, SegmentIndex, SegmentInfo,
    StampSource, Trailer, VERSION, chunk_checksum, pad,
};

const INFO: SegmentInfo =
    SegmentInfo { uuid: [7; 16], number: 1, created_ns: 0, block_bytes: 8192, stamp_source: StampSource::File };

/// The bytes as a block of the segment: magic, version and UUID are put in, and checksums over what is there.
fn forge(input: &[u8]) -> Vec<u8> {
    let mut block = input.to_vec();
    block.resize(pad(block.len().max(HEADER_BYTES)), 0);
    block[..8].copy_from_slice(&MAGIC);
    block[24..26].copy_from_slice(&VERSION.to_le_bytes());
    block[48..64].copy_from_slice(&INFO.uuid);
    let Ok(header) = BlockHeader::parse(&block) else { return block };
    if header.block_bytes() > block.len() {
        return block;
    }
    let index_at = HEADER_BYTES + header.records_bytes as usize;
    if let Ok(index) = BlockIndex::parse(&header, &block[index_at..header.block_bytes()]) {
        for (number, chunk) in index.chunks.iter().enumerate() {
            let span = index.chunk_span(&header, number);
            let Some(records) = block[HEADER_BYTES..index_at].get(span) else { continue };
            let mut chunk = *chunk;
            chunk.checksum = chunk_checksum(records);
            chunk.encode(&mut block[index_at + number * CHUNK_ENTRY_BYTES..]);
        }
    }
    header.seal(&mut block[..header.block_bytes()]);
    block
}

fuzz_target!(|input: &[u8]| {
    let _ = SegmentInfo::parse(input);
    let _ = Trailer::parse(input);
    assert!(Records::new(input).count() <= input.len() / 32 + 1);
    let block = forge(input);
    let _ = SegmentIndex::parse_footer(&block);
    if let Ok(header) = BlockHeader::parse(&block)
        && header.block_bytes() <= block.len()
    {
        let (records, index) = block[HEADER_BYTES..header.block_bytes()].split_at(header.records_bytes as usize);
        if let Ok(index) = BlockIndex::parse(&header, index) {
            let _ = check_records(&header, &index, records);
        }
    }
    let mut segment = INFO.encode().to_vec();
    segment.extend_from_slice(&block);
    segment.extend_from_slice(&vec![0; SECTOR_BYTES]);
    segment.extend_from_slice(&block);
    let path = std::env::temp_dir().join(format!("sluice-fuzz-{}.tri", std::process::id()));
    fs::write(&path, &segment).expect("space for a small file");
    let file = File::open(&path).expect("just written");
    for depth in [Depth::Index, Depth::Full] {
        let scanned = scan(&file, &path, depth, false).expect("its header is whole");
        assert!(scanned.end <= segment.len() as u64 && scanned.index.blocks.len() <= 2);
    }
    let _ = read_footer(&file, &path, &INFO);
});
