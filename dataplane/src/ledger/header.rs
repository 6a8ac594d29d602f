//! The header inside a LedgerCloseMeta: its hash, the previous ledger's, and where a ledger of a batch ends.
//!
//! A batch holds metas one behind the other, without lengths. Where one ends need not be found by walking through all of its
//! transactions: the next one begins with a header that names the hash of the one before it. See docs/design/0031.

use sha2::{Digest, Sha256};

use super::rpc::{MetaError, Walk, walk};

/// Bytes of a hash.
pub const HASH_BYTES: usize = 32;
/// LedgerHeader behind `ledgerSeq`: totalCoins, feePool, inflationSeq, idPool, baseFee, baseReserve, maxTxSetSize, skipList[4].
const TAIL_BYTES: usize = 8 + 8 + 4 + 8 + 4 + 4 + 4 + 4 * HASH_BYTES;

/// What the beginning of a LedgerCloseMeta says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The ledger's sequence.
    pub sequence: u32,
    /// Its hash, as it is stated.
    pub hash: [u8; HASH_BYTES],
    /// The hash of the ledger before it.
    pub previous: [u8; HASH_BYTES],
    /// Whether the stated hash is that of the header.
    pub holds: bool,
}

/// Reads the header of a meta; `None` where the bytes end inside it.
///
/// # Errors
/// Bytes that are no LedgerCloseMeta of version 0, 1 or 2.
pub fn read(meta: &[u8]) -> Result<Option<Header>, MetaError> {
    Ok(find(meta).transpose()?.map(|(header, _)| header))
}

/// The header, and where its entry's extension begins, behind which stands the set of transactions.
fn find(meta: &[u8]) -> Option<Result<(Header, usize), MetaError>> {
    let mut at = Walk(meta);
    let sequence = match walk(&mut at)? {
        Ok(sequence) => sequence,
        Err(error) => return Some(Err(error)),
    };
    at.skip(TAIL_BYTES)?;
    // LedgerHeader.ext: nothing, or LedgerHeaderExtensionV1 (flags, and an extension point of its own).
    match at.word()? {
        0 => {}
        1 => {
            at.skip(4)?;
            match at.word()? {
                0 => {}
                arm => return Some(Err(MetaError::Arm { union: "LedgerHeaderExtensionV1", arm })),
            }
        }
        arm => return Some(Err(MetaError::Arm { union: "LedgerHeader.ext", arm })),
    }
    let end = meta.len() - at.0.len();
    let hash_at = hash_at(meta)?;
    let header_at = hash_at + HASH_BYTES;
    let take = |from: usize| meta.get(from..from + HASH_BYTES)?.first_chunk().copied();
    let (hash, previous) = (take(hash_at)?, take(header_at + 4)?);
    let holds = Sha256::digest(&meta[header_at..end]).as_slice() == hash;
    Some(Ok((Header { sequence, hash, previous, holds }, end)))
}

/// Whether the bytes are a meta whose set of transactions stands where its version has it, made for the same previous ledger. A
/// version 0 that is read into a later one's extension (a zero word before the hash) has another word there.
fn has_body(meta: &[u8], header: &Header, end: usize) -> bool {
    // LedgerHeaderHistoryEntry.ext; then TransactionSet (its first field is the hash), or GeneralizedTransactionSet (version 1 first).
    let hash_at = match meta.first_chunk() {
        Some([0, 0, 0, 0]) => end + 4,
        _ if meta.get(end + 4..end + 8) == Some(&[0, 0, 0, 1]) => end + 8,
        _ => return false,
    };
    meta.get(hash_at..hash_at + HASH_BYTES) == Some(&header.previous)
}

/// Where the header's hash stands: behind the version and the extension, whose forms [`walk`] knows.
fn hash_at(meta: &[u8]) -> Option<usize> {
    let mut at = Walk(meta);
    Some(match (at.word()?, at.word()?) {
        (0, _) => 4,
        (_, 0) => 8,
        _ => 8 + 4 + 8,
    })
}

/// From a meta's first byte to its header's field of the previous hash: version, extension, hash, protocol.
const PREVIOUS_AT: [usize; 3] = [4 + HASH_BYTES + 4, 8 + HASH_BYTES + 4, 20 + HASH_BYTES + 4];

/// Where the meta of the ledger after `header` begins in `bytes`, which begin with the meta of `header`: at the first header that
/// has the next sequence, names `header`'s hash, and has itself the hash that it states.
///
/// No bytes inside of a ledger can look like that: they would have to contain the hash of the very ledger they are part of.
pub fn next(bytes: &[u8], header: &Header) -> Option<usize> {
    let first = header.hash.first_chunk::<4>().expect("a hash is longer");
    let wanted = header.sequence.checked_add(1)?;
    // XDR is in words of four bytes; the first meta's own header is passed over.
    (4..bytes.len().saturating_sub(HASH_BYTES)).step_by(4).find_map(|at| {
        if bytes[at..at + 4] != *first || bytes[at..at + HASH_BYTES] != header.hash {
            return None;
        }
        PREVIOUS_AT.iter().find_map(|&before| {
            let begins = at.checked_sub(before).filter(|&begins| begins > 0)?;
            let (found, end) = find(&bytes[begins..])?.ok()?;
            let follows = found.sequence == wanted && found.previous == header.hash;
            let fits = follows && found.holds && has_body(&bytes[begins..], &found, end);
            fits.then_some(begins)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A meta of `version`, with or without extensions, and a body that holds the previous hash as well.
    fn meta(version: u32, extended: bool, sequence: u32, previous: [u8; 32], body: &[u8]) -> Vec<u8> {
        let mut header = Vec::new();
        let word = |value: u32, out: &mut Vec<u8>| out.extend(value.to_be_bytes());
        word(23, &mut header);
        header.extend(previous);
        header.extend([7; 32 + 8]);
        word(0, &mut header);
        word(0, &mut header);
        header.extend([6; 64]);
        word(sequence, &mut header);
        header.extend([5; TAIL_BYTES]);
        match extended {
            true => [1_u32, 4, 0].iter().for_each(|&value| word(value, &mut header)),
            false => word(0, &mut header),
        }
        let mut bytes = Vec::new();
        word(version, &mut bytes);
        if version > 0 {
            word(u32::from(extended), &mut bytes);
            if extended {
                [0, 9, 9].iter().for_each(|&value| word(value, &mut bytes));
            }
        }
        bytes.extend_from_slice(&Sha256::digest(&header));
        bytes.extend(header);
        word(0, &mut bytes);
        if version > 0 {
            word(1, &mut bytes);
        }
        bytes.extend(previous);
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn a_header_is_read_and_judged_wherever_it_is_cut() {
        for (version, extended) in [(0, false), (1, false), (1, true), (2, true)] {
            let bytes = meta(version, extended, 77, [3; 32], &[0; 40]);
            let found = read(&bytes).expect("a meta").expect("whole");
            assert_eq!((found.sequence, found.previous, found.holds), (77, [3; 32], true));
            let end = bytes.len() - 40 - 32 - 4 - if version > 0 { 4 } else { 0 };
            assert!((0..end).all(|cut| read(&bytes[..cut]) == Ok(None)));
            assert!(read(&bytes[..end]).expect("a meta").is_some());
            let mut bad = bytes.clone();
            bad[end - 20] ^= 1;
            assert!(!read(&bad).expect("a meta").expect("whole").holds);
        }
    }

    #[test]
    fn metas_are_told_apart_by_their_chain_and_by_nothing_else() {
        let first = meta(1, true, 9, [3; 32], &[0; 400]);
        let one = read(&first).expect("a meta").expect("whole");
        // What a ledger can hold: a header with the next sequence and a hash that is right, but another past.
        let decoy = meta(1, false, 10, [9; 32], b"");
        let mut long = [&first[..], &decoy].concat();
        assert_eq!(next(&long, &one), None);
        // A word of 1 or 2 before a version 0, and a word of 0 behind a later version, look like the other one.
        long.extend_from_slice(&[0, 0, 0, 2]);
        let border = long.len();
        for (version, extended) in [(0, false), (1, false), (2, false), (1, true), (2, true)] {
            let second = meta(version, extended, 10, one.hash, &[1; 80]);
            let twice = [&long[..], &second, &second].concat();
            assert_eq!(next(&twice, &one), Some(border), "{version} {extended}");
        }
        let second = meta(2, false, 10, one.hash, &[1; 80]);
        // The hash alone, and a header whose own hash is not right.
        let mut bad = second.clone();
        bad[100] ^= 1;
        let bytes = [&first[..], &one.hash, &bad, &second].concat();
        assert_eq!(next(&bytes, &one), Some(first.len() + 32 + bad.len()));
    }
}
