//! The meta stream of a ledger node: RFC 5531 record marks, and the way through a LedgerCloseMeta to its sequence.
//!
//! A record is one ledger's meta in one fragment: four bytes big-endian whose top bit is set and whose low 31 bits are the
//! length, then the meta. Only what stands before `LedgerHeader.ledgerSeq` is looked at; the rest is opaque.

use crate::wire::ledger::LEDGER_BYTES_MAX;

/// Bytes of a mark.
pub const MARK_BYTES: usize = 4;
/// The mark's top bit: the fragment is the record's last, and so the whole of it.
const LAST_FRAGMENT: u32 = 1 << 31;

/// Bytes of a meta that are looked through for the sequence. What stands before it has at most 1,172: version and extension
/// 20, three hashes 96, protocol 4, close time 8, six upgrades of 128 with their counts 796, signature with what it may stand
/// for 180, hashes 64; a margin for what later protocols add.
pub const PREFIX_BYTES: usize = 4096;

/// Most bytes of a record in one fragment (RFC 5531, 11).
pub const RECORD_BYTES_MAX: usize = (1 << 31) - 1;

/// The mark of a record. Asserts a length below 2³¹.
pub fn mark(bytes: usize) -> [u8; MARK_BYTES] {
    let length = u32::try_from(bytes).ok().filter(|length| length & LAST_FRAGMENT == 0);
    (length.expect("a record has fewer than 2^31 bytes") | LAST_FRAGMENT).to_be_bytes()
}

/// Why bytes are no LedgerCloseMeta.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MetaError {
    /// A version of the meta that is not known.
    #[error("LedgerCloseMeta version {0} is unknown: versions 0, 1 and 2 are")]
    Version(u32),
    /// An arm of a union that is not known.
    #[error("{union}: arm {arm} is unknown")]
    Arm {
        /// The union's name.
        union: &'static str,
        /// The arm.
        arm: u32,
    },
    /// A length over the type's limit.
    #[error("{field}: {found}, at most {limit}")]
    Limit {
        /// The field's name.
        field: &'static str,
        /// What it has.
        found: u32,
        /// What it may have.
        limit: u32,
    },
}

/// A walk over XDR: `None` where the bytes end.
pub(super) struct Walk<'a>(pub(super) &'a [u8]);

impl Walk<'_> {
    pub(super) fn word(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*word))
    }

    pub(super) fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }
}

const HASH_BYTES: usize = 32;
/// `UpgradeType upgrades<6>`.
const UPGRADES_MAX: u32 = 6;
/// `typedef opaque UpgradeType<128>`.
const UPGRADE_BYTES_MAX: u32 = 128;
/// `typedef opaque Signature<64>`.
const SIGNATURE_BYTES_MAX: u32 = 64;

/// The sequence in the first bytes of a LedgerCloseMeta; `None` where they end before it.
///
/// # Errors
/// Bytes that are no LedgerCloseMeta of version 0, 1 or 2.
pub fn ledger_sequence(meta: &[u8]) -> Result<Option<u32>, MetaError> {
    // The error inside is the walk's verdict; the option outside is the end of the bytes.
    walk(&mut Walk(meta)).transpose()
}

pub(super) fn walk(at: &mut Walk<'_>) -> Option<Result<u32, MetaError>> {
    let arm = |union, arm| Some(Err(MetaError::Arm { union, arm }));
    match at.word()? {
        0 => {}
        // LedgerCloseMetaExt: nothing, or an extension point and a fee.
        1 | 2 => match at.word()? {
            0 => {}
            1 => match at.word()? {
                0 => at.skip(8)?,
                other => return arm("ExtensionPoint", other),
            },
            other => return arm("LedgerCloseMetaExt", other),
        },
        other => return Some(Err(MetaError::Version(other))),
    }
    // LedgerHeaderHistoryEntry: its hash; LedgerHeader: protocol, previous hash; StellarValue: hash, close time.
    at.skip(HASH_BYTES + 4 + HASH_BYTES + HASH_BYTES + 8)?;
    let upgrades = at.word()?;
    if upgrades > UPGRADES_MAX {
        return Some(Err(MetaError::Limit { field: "StellarValue.upgrades", found: upgrades, limit: UPGRADES_MAX }));
    }
    for _ in 0..upgrades {
        let bytes = at.word()?;
        if bytes > UPGRADE_BYTES_MAX {
            return Some(Err(MetaError::Limit { field: "UpgradeType", found: bytes, limit: UPGRADE_BYTES_MAX }));
        }
        at.skip(bytes.next_multiple_of(4) as usize)?;
    }
    match at.word()? {
        0 => {}
        // Signed: a node's key and its signature. From protocol 28 on, a value that stands for one whose transactions could
        // not be had: before the signature its hash, the previous ledger's hash, and that ledger's protocol.
        kind @ (1 | 2) => {
            if kind == 2 {
                at.skip(HASH_BYTES + HASH_BYTES + 4)?;
            }
            match at.word()? {
                0 => at.skip(32)?,
                other => return arm("PublicKey", other),
            }
            let bytes = at.word()?;
            if bytes > SIGNATURE_BYTES_MAX {
                return Some(Err(MetaError::Limit { field: "Signature", found: bytes, limit: SIGNATURE_BYTES_MAX }));
            }
            at.skip(bytes.next_multiple_of(4) as usize)?;
        }
        other => return arm("StellarValue.ext", other),
    }
    // The hashes of the results and of the buckets.
    at.skip(2 * HASH_BYTES)?;
    at.word().map(Ok)
}

/// Why a meta stream cannot be read on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    /// A record in several fragments, or no record at all.
    #[error("record mark 0x{0:08x} lacks its top bit: a meta is one fragment; is this a meta stream?")]
    NotLast(u32),
    /// A ledger over the protocol's limit.
    #[error("a record of {bytes} bytes: a ledger has at most {LEDGER_BYTES_MAX}")]
    TooLong {
        /// Its length.
        bytes: u32,
    },
    /// A record that is no meta.
    #[error("record {index} is no ledger: {error}")]
    Meta {
        /// Records before it.
        index: u64,
        /// What is wrong.
        error: MetaError,
    },
    /// A record whose sequence does not come.
    #[error("record {index} of {bytes} bytes has no ledger sequence in its first {PREFIX_BYTES}")]
    NoSequence {
        /// Records before it.
        index: u64,
        /// Its length.
        bytes: u32,
    },
    /// The stream ends inside a record or its mark.
    #[error("the stream ends inside record {index}: {missing} bytes are missing")]
    Truncated {
        /// Records before it.
        index: u64,
        /// Bytes that should have followed.
        missing: u32,
    },
}

/// A part of a meta stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part<'a> {
    /// A ledger begins.
    Begin {
        /// Its sequence.
        sequence: u32,
        /// Its length.
        bytes: u32,
    },
    /// Bytes of it, from its first on.
    Body(&'a [u8]),
    /// It is complete.
    End,
    /// The input is used up.
    More,
}

/// Reads a meta stream. The beginning of each ledger is held back until its sequence is known; all else passes through.
#[derive(Default)]
pub struct RecordReader {
    mark: [u8; MARK_BYTES],
    mark_filled: usize,
    state: State,
    bytes: u32,
    /// Bytes of the record not taken from the input yet.
    left: u32,
    prefix: Vec<u8>,
    index: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Mark,
    /// Looking for the sequence.
    Prefix,
    /// The sequence was told; the prefix comes next.
    Held,
    Body,
}

impl RecordReader {
    /// Takes from `input` up to the next part.
    ///
    /// # Errors
    /// See [`RecordError`]; the stream cannot be read on.
    #[allow(clippy::should_implement_trait)] // What it gives borrows from it and from the input.
    pub fn next<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Result<Part<'s>, RecordError> {
        if self.state == State::Mark && !self.take_mark(input)? {
            return Ok(Part::More);
        }
        match self.state {
            State::Mark => unreachable!("a whole mark begins a record"),
            State::Prefix => self.take_prefix(input),
            State::Held => {
                self.state = State::Body;
                Ok(Part::Body(&self.prefix))
            }
            State::Body if self.left == 0 => {
                self.state = State::Mark;
                self.index += 1;
                Ok(Part::End)
            }
            State::Body if input.is_empty() => Ok(Part::More),
            State::Body => Ok(Part::Body(take(input, self.left as usize, &mut self.left))),
        }
    }

    /// Whether [`RecordReader::next`] has nothing to say without more input.
    pub fn wants_input(&self) -> bool {
        match self.state {
            State::Mark | State::Prefix => true,
            State::Held => false,
            State::Body => self.left > 0,
        }
    }

    /// Bytes of the open record that can be read past this reader, straight to where they go; 0 while its beginning is looked at.
    pub fn passing_by(&self) -> u32 {
        if self.state == State::Body { self.left } else { 0 }
    }

    /// So many of [`RecordReader::passing_by`] were read. Asserts that there were that many.
    pub fn passed_by(&mut self, bytes: u32) {
        assert!(bytes <= self.passing_by(), "more of a record was read than it has");
        self.left -= bytes;
    }

    /// The stream ended.
    ///
    /// # Errors
    /// [`RecordError::Truncated`] unless it ended between two records.
    pub fn finish(&self) -> Result<(), RecordError> {
        let missing = match self.state {
            State::Mark if self.mark_filled == 0 => return Ok(()),
            State::Mark => (MARK_BYTES - self.mark_filled) as u32,
            _ => self.left,
        };
        if missing == 0 { Ok(()) } else { Err(RecordError::Truncated { index: self.index, missing }) }
    }

    /// Completes the mark; whether it is whole and began a record.
    fn take_mark(&mut self, input: &mut &[u8]) -> Result<bool, RecordError> {
        let wanted = (MARK_BYTES - self.mark_filled).min(input.len());
        self.mark[self.mark_filled..self.mark_filled + wanted].copy_from_slice(&input[..wanted]);
        *input = &input[wanted..];
        self.mark_filled += wanted;
        if self.mark_filled < MARK_BYTES {
            return Ok(false);
        }
        let mark = u32::from_be_bytes(self.mark);
        let bytes = mark & !LAST_FRAGMENT;
        if mark & LAST_FRAGMENT == 0 {
            return Err(RecordError::NotLast(mark));
        }
        if u64::from(bytes) > LEDGER_BYTES_MAX {
            return Err(RecordError::TooLong { bytes });
        }
        (self.mark_filled, self.state, self.bytes, self.left) = (0, State::Prefix, bytes, bytes);
        self.prefix.clear();
        Ok(true)
    }

    fn take_prefix(&mut self, input: &mut &[u8]) -> Result<Part<'_>, RecordError> {
        let room = PREFIX_BYTES - self.prefix.len();
        let taken = take(input, room.min(self.left as usize), &mut self.left);
        self.prefix.extend_from_slice(taken);
        let (index, bytes) = (self.index, self.bytes);
        match ledger_sequence(&self.prefix).map_err(|error| RecordError::Meta { index, error })? {
            Some(sequence) => {
                self.state = State::Held;
                Ok(Part::Begin { sequence, bytes })
            }
            None if self.left == 0 || self.prefix.len() == PREFIX_BYTES => {
                Err(RecordError::NoSequence { index, bytes })
            }
            None => Ok(Part::More),
        }
    }
}

/// Up to `most` bytes off the input, counted off `left`.
fn take<'a>(input: &mut &'a [u8], most: usize, left: &mut u32) -> &'a [u8] {
    let (taken, rest) = input.split_at(most.min(input.len()));
    *input = rest;
    *left -= taken.len() as u32;
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A meta's beginning: version, whether the extension is there, lengths of the upgrades, a signature's length (over 1,000:
    /// of the kind that stands for another value).
    fn meta(version: u32, extended: bool, upgrades: &[u32], signature: Option<u32>, sequence: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut word = |value: u32| bytes.extend(value.to_be_bytes());
        word(version);
        if version > 0 {
            word(u32::from(extended));
            if extended {
                [0, 9, 9].into_iter().for_each(&mut word);
            }
        }
        (0..8 + 1 + 8 + 8 + 2).for_each(|_| word(0xdddd_dddd));
        word(upgrades.len() as u32);
        for &length in upgrades {
            word(length);
            (0..length.div_ceil(4)).for_each(|_| word(0xeeee_eeee));
        }
        word(signature.map_or(0, |length| 1 + length / 1000));
        if let Some(length) = signature {
            (0..length / 1000 * 17).for_each(|_| word(0x9999_9999));
            let length = length % 1000;
            word(0);
            (0..8).for_each(|_| word(0xaaaa_aaaa));
            word(length);
            (0..length.div_ceil(4)).for_each(|_| word(0xbbbb_bbbb));
        }
        (0..16).for_each(|_| word(0xcccc_cccc));
        word(sequence);
        bytes.extend([0; 100]);
        bytes
    }

    #[test]
    fn every_shape_of_a_header_is_walked_within_the_prefix() {
        let largest = meta(2, true, &[128; 6], Some(1064), 77);
        assert!(largest.len() - 104 <= PREFIX_BYTES, "{}", largest.len());
        for bytes in [
            meta(0, false, &[], None, 77),
            meta(1, false, &[], None, 77),
            meta(1, true, &[8], None, 77),
            meta(2, false, &[1, 2, 3], Some(64), 77),
            meta(2, false, &[], Some(1064), 77),
            largest,
        ] {
            assert_eq!(ledger_sequence(&bytes), Ok(Some(77)));
            for cut in 0..bytes.len() - 100 {
                assert_eq!(ledger_sequence(&bytes[..cut]), Ok(None), "{cut}");
            }
        }
    }

    #[test]
    fn what_is_no_meta_is_refused() {
        assert_eq!(ledger_sequence(&meta(3, false, &[], None, 1)), Err(MetaError::Version(3)));
        let limit = |field, found, limit| Err(MetaError::Limit { field, found, limit });
        assert_eq!(ledger_sequence(&meta(0, false, &[1; 7], None, 1)), limit("StellarValue.upgrades", 7, 6));
        assert_eq!(ledger_sequence(&meta(0, false, &[129], None, 1)), limit("UpgradeType", 129, 128));
        assert_eq!(ledger_sequence(&meta(0, false, &[], Some(65), 1)), limit("Signature", 65, 64));
        let mut arm = meta(1, false, &[], None, 1);
        arm[7] = 2;
        assert_eq!(ledger_sequence(&arm), Err(MetaError::Arm { union: "LedgerCloseMetaExt", arm: 2 }));
    }

    /// (sequence, body) of each record of a stream that is fed in pieces of `piece` bytes.
    fn read(stream: &[u8], piece: usize) -> Result<Vec<(u32, Vec<u8>)>, RecordError> {
        let mut reader = RecordReader::default();
        let mut ledgers: Vec<(u32, Vec<u8>)> = Vec::new();
        for mut input in stream.chunks(piece) {
            loop {
                match reader.next(&mut input)? {
                    Part::Begin { sequence, .. } => ledgers.push((sequence, Vec::new())),
                    Part::Body(bytes) => ledgers.last_mut().expect("begun").1.extend_from_slice(bytes),
                    Part::End => {}
                    Part::More => break,
                }
            }
        }
        reader.finish()?;
        Ok(ledgers)
    }

    fn stream(metas: &[Vec<u8>]) -> Vec<u8> {
        metas.iter().flat_map(|meta| [&mark(meta.len())[..], meta].concat()).collect()
    }

    #[test]
    fn records_come_out_however_they_are_cut() {
        let mut metas = vec![meta(0, false, &[], None, 5), meta(2, true, &[128; 6], Some(64), 6)];
        metas.push([meta(1, false, &[], None, 7), vec![9; 10_000]].concat());
        let stream = stream(&metas);
        let expected: Vec<(u32, Vec<u8>)> = (5..).zip(metas).collect();
        for piece in [1, 3, 5, 4096, stream.len()] {
            assert_eq!(read(&stream, piece), Ok(expected.clone()), "{piece}");
        }
    }

    #[test]
    fn bodies_can_be_read_past_the_reader() {
        let metas = [[meta(1, false, &[], None, 7), vec![9; 10_000]].concat(), meta(0, false, &[], None, 8)];
        let stream = stream(&metas);
        let (mut reader, mut rest, mut read) = (RecordReader::default(), &stream[..], Vec::new());
        loop {
            let piece = if reader.wants_input() { rest.len().min(100) } else { 0 };
            if reader.passing_by() > 0 {
                let bytes = rest.len().min(reader.passing_by() as usize).min(3_000);
                reader.passed_by(bytes as u32);
                read.extend_from_slice(&rest[..bytes]);
                rest = &rest[bytes..];
                continue;
            }
            let mut input = &rest[..piece];
            let part = reader.next(&mut input).expect("a stream");
            let done = matches!(part, Part::More) && piece == 0;
            if let Part::Body(bytes) = part {
                read.extend_from_slice(bytes);
            }
            let left = input.len();
            rest = &rest[piece - left..];
            if done {
                break;
            }
        }
        assert_eq!(reader.finish(), Ok(()));
        assert!(read == metas.concat());
    }

    #[test]
    fn a_stream_that_ends_or_lies_is_told() {
        let whole = stream(&[meta(0, false, &[], None, 5), meta(0, false, &[], None, 6)]);
        let second = whole.len() / 2;
        assert_eq!(read(&whole[..second], 7).map(|ledgers| ledgers.len()), Ok(1), "on a border");
        for cut in [1, 3, second - 1, second + 1, second + 4, whole.len() - 1] {
            let error = read(&whole[..cut], 7).expect_err("cut");
            assert!(matches!(error, RecordError::Truncated { index, .. } if index == (cut / second) as u64), "{cut}");
        }
        assert_eq!(read(&[0, 0, 0, 4, 0, 0, 0, 0], 1), Err(RecordError::NotLast(4)));
        let long = (LAST_FRAGMENT | (LEDGER_BYTES_MAX as u32 + 1)).to_be_bytes();
        assert_eq!(read(&long, 1), Err(RecordError::TooLong { bytes: LEDGER_BYTES_MAX as u32 + 1 }));
        assert_eq!(read(&mark(0), 4), Err(RecordError::NoSequence { index: 0, bytes: 0 }));
        assert!(matches!(read(&stream(&[vec![0; 40]]), 4), Err(RecordError::NoSequence { bytes: 40, .. })));
    }
}
