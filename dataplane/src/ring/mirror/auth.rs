//! Authentication with a pre-shared key: mutual proof on the TCP handshake, a MAC on every datagram.
//!
//! Source and mirror each prove the key by an HMAC over the whole greeting and both nonces; HKDF makes the session's keys
//! from the key and both nonces. The group's key is one per attached ring and comes masked inside the session: whoever
//! holds it can forge datagrams for the group. TCP after the handshake carries no MAC: someone who can rewrite the
//! connection can change records on it, someone who only knows addresses cannot.

use core::fmt;

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::wire::mirror::{HEADER_BYTES, TRAILER_BYTES};

/// Fewest bytes of a pre-shared key: 128 bits.
pub const KEY_BYTES_MIN: usize = 16;
/// Datagrams that may arrive late and are still taken: the bits of a word.
pub const REPLAY_WINDOW: u64 = 64;

/// A pre-shared key; never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct PresharedKey(Vec<u8>);

/// Why bytes are no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// Fewer than [`KEY_BYTES_MIN`] bytes.
    #[error(
        "a pre-shared key has {bytes} bytes, but needs {KEY_BYTES_MIN}: write one with \"head -c 32 /dev/urandom\""
    )]
    TooShort {
        /// Its length.
        bytes: usize,
    },
}

impl PresharedKey {
    /// The key that a key file's bytes are; white space at both ends (the newline that an editor adds) is no part of it.
    ///
    /// # Errors
    /// Too short.
    pub fn new(bytes: &[u8]) -> Result<PresharedKey, KeyError> {
        let bytes = bytes.trim_ascii();
        match bytes.len() {
            short if short < KEY_BYTES_MIN => Err(KeyError::TooShort { bytes: short }),
            _ => Ok(PresharedKey(bytes.to_vec())),
        }
    }

    fn mac(&self, label: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(label);
        // Parts are told apart by their length, so that no two lists give the same bytes.
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PresharedKey({} bytes)", self.0.len())
    }
}

const MIRROR_LABEL: &[u8] = b"sluice mirror proof 1";
const SOURCE_LABEL: &[u8] = b"sluice source proof 1";
const KEYS_LABEL: &[u8] = b"sluice mirror session keys 1";

/// What both sides saw before the proofs: HELLO, GEOMETRY, MULTICAST and EXT as they went over the wire.
#[derive(Clone, Debug, Default)]
pub struct Transcript(Vec<u8>);

impl Transcript {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a frame.
    pub fn add(&mut self, frame: &[u8]) {
        self.0.extend_from_slice(frame);
    }
}

/// The mirror's proof.
pub fn mirror_proof(key: &PresharedKey, transcript: &Transcript, nonce: &[u8; 16]) -> [u8; 32] {
    key.mac(MIRROR_LABEL, &[&transcript.0, nonce]).finalize().into_bytes().into()
}

/// Whether it is one; takes the same time whatever is wrong.
pub fn mirror_proof_holds(key: &PresharedKey, transcript: &Transcript, nonce: &[u8; 16], proof: &[u8; 32]) -> bool {
    key.mac(MIRROR_LABEL, &[&transcript.0, nonce]).verify_slice(proof).is_ok()
}

/// The source's proof, which also covers the sealed group key.
pub fn source_proof(key: &PresharedKey, transcript: &Transcript, nonce: &[u8; 16], sealed: &[u8; 32]) -> [u8; 32] {
    key.mac(SOURCE_LABEL, &[&transcript.0, nonce, sealed]).finalize().into_bytes().into()
}

/// Whether it is one; takes the same time whatever is wrong.
pub fn source_proof_holds(
    key: &PresharedKey,
    transcript: &Transcript,
    nonce: &[u8; 16],
    sealed: &[u8; 32],
    proof: &[u8; 32],
) -> bool {
    key.mac(SOURCE_LABEL, &[&transcript.0, nonce, sealed]).verify_slice(proof).is_ok()
}

/// The keys of one session.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKeys {
    /// Datagrams to the mirror.
    pub to_mirror: [u8; 32],
    /// Datagrams to the source (PUNCH).
    pub to_source: [u8; 32],
    mask: [u8; 32],
}

impl SessionKeys {
    /// The keys that both sides make from the key and both nonces.
    pub fn derive(key: &PresharedKey, source_nonce: &[u8; 16], mirror_nonce: &[u8; 16]) -> SessionKeys {
        let mut salt = [0; 32];
        salt[..16].copy_from_slice(source_nonce);
        salt[16..].copy_from_slice(mirror_nonce);
        let mut out = [0; 96];
        Hkdf::<Sha256>::new(Some(&salt), &key.0)
            .expand(KEYS_LABEL, &mut out)
            .expect("96 bytes are within HKDF's limit");
        let part = |at: usize| -> [u8; 32] { out[at..at + 32].try_into().expect("32 bytes") };
        SessionKeys { to_mirror: part(0), to_source: part(32), mask: part(64) }
    }

    /// Masks the group's key, or takes the mask off. The mask is used for this alone, once in a session.
    pub fn mask(&self, group_key: &[u8; 32]) -> [u8; 32] {
        core::array::from_fn(|at| group_key[at] ^ self.mask[at])
    }
}

impl fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKeys")
    }
}

/// How the trailer of a session's datagrams is made and judged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TagKey {
    /// Without a pre-shared key: the tag is the session's number, which only those know who saw its EXT.
    Number(u64),
    /// With one: the tag is the first 8 bytes of the keyed BLAKE3 over frame and counter.
    Keyed([u8; 32]),
}

impl TagKey {
    fn tag(&self, covered: &[u8]) -> u64 {
        match self {
            TagKey::Number(number) => *number,
            TagKey::Keyed(key) => {
                let hash = blake3::keyed_hash(key, covered);
                u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("eight bytes"))
            }
        }
    }
}

impl fmt::Debug for TagKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, TagKey::Keyed(_)) { "Keyed" } else { "Number" })
    }
}

/// Puts trailers on datagrams.
#[derive(Clone, Debug)]
pub struct Sealer {
    key: TagKey,
    counter: u64,
}

impl Sealer {
    /// Counters begin at 1.
    pub fn new(key: TagKey) -> Sealer {
        Sealer { key, counter: 0 }
    }

    /// Appends the trailer of the frame that lies in `out` from `start` on.
    #[inline]
    pub fn seal(&mut self, out: &mut Vec<u8>, start: usize) {
        self.counter += 1;
        out.extend_from_slice(&self.counter.to_le_bytes());
        let tag = self.key.tag(&out[start..]);
        out.extend_from_slice(&tag.to_le_bytes());
    }
}

/// Why a datagram's trailer is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TrailerError {
    /// Too short for one.
    #[error("no trailer")]
    Missing,
    /// The tag is not what the key gives.
    #[error("wrong tag")]
    Forged,
    /// The counter came before, or is [`REPLAY_WINDOW`] or more behind the highest.
    #[error("repeated counter")]
    Replayed,
}

/// Judges trailers.
#[derive(Clone, Debug)]
pub struct Opener {
    key: TagKey,
    window: ReplayWindow,
}

impl Opener {
    /// Nothing was seen yet.
    pub fn new(key: TagKey) -> Opener {
        Opener { key, window: ReplayWindow::default() }
    }

    /// The frame without its trailer.
    ///
    /// # Errors
    /// The datagram is to be dropped.
    #[inline]
    pub fn open<'a>(&mut self, datagram: &'a [u8]) -> Result<&'a [u8], TrailerError> {
        if datagram.len() < HEADER_BYTES + TRAILER_BYTES {
            return Err(TrailerError::Missing);
        }
        let (covered, tag) = datagram.split_at(datagram.len() - 8);
        // One difference over all bits: the time tells nothing about where a guess went wrong.
        let tag = u64::from_le_bytes(tag.try_into().expect("eight bytes"));
        if self.key.tag(covered) ^ tag != 0 {
            return Err(TrailerError::Forged);
        }
        let (frame, counter) = covered.split_at(covered.len() - 8);
        // A tag that does not cover the counter proves nothing about it; sequences alone then tell what came before.
        if let TagKey::Keyed(_) = self.key
            && !self.window.take(u64::from_le_bytes(counter.try_into().expect("eight bytes")))
        {
            return Err(TrailerError::Replayed);
        }
        Ok(frame)
    }
}

/// Which of the last [`REPLAY_WINDOW`] counters were seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplayWindow {
    highest: u64,
    /// Bit n: highest − n was seen.
    seen: u64,
}

impl ReplayWindow {
    /// Whether `counter` is new; it is then marked. 0 never is.
    #[inline]
    pub fn take(&mut self, counter: u64) -> bool {
        if counter > self.highest {
            let shift = counter - self.highest;
            self.seen = if shift < REPLAY_WINDOW { self.seen << shift } else { 0 };
            self.seen |= 1;
            self.highest = counter;
            return true;
        }
        let behind = self.highest - counter;
        if counter == 0 || behind >= REPLAY_WINDOW || self.seen & (1 << behind) != 0 {
            return false;
        }
        self.seen |= 1 << behind;
        true
    }
}

/// Unguessable numbers from a seed that the caller took from the kernel.
pub struct Random(blake3::OutputReader);

impl Random {
    /// The numbers of `seed`.
    pub fn new(seed: &[u8; 32]) -> Random {
        Random(blake3::Hasher::new_keyed(seed).update(b"sluice mirror random 1").finalize_xof())
    }

    /// The next bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        self.0.fill(&mut out);
        out
    }

    /// A number that is not 0.
    pub fn number(&mut self) -> u64 {
        loop {
            let number = u64::from_le_bytes(self.bytes());
            if number != 0 {
                return number;
            }
        }
    }
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Random")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> PresharedKey {
        PresharedKey::new(&[byte; 32]).unwrap()
    }

    #[test]
    fn short_keys_are_refused_and_no_key_is_shown() {
        assert_eq!(PresharedKey::new(b"too short"), Err(KeyError::TooShort { bytes: 9 }));
        assert_eq!(format!("{:?}", key(0x41)), "PresharedKey(32 bytes)");
    }

    #[test]
    fn proofs_hold_for_their_key_side_greeting_and_nonce_only() {
        let mut transcript = Transcript::default();
        transcript.add(b"greeting");
        let nonce = [1; 16];
        let proof = mirror_proof(&key(1), &transcript, &nonce);
        assert!(mirror_proof_holds(&key(1), &transcript, &nonce, &proof));
        assert!(!mirror_proof_holds(&key(2), &transcript, &nonce, &proof));
        assert!(!mirror_proof_holds(&key(1), &transcript, &[2; 16], &proof));
        assert!(!mirror_proof_holds(&key(1), &Transcript::default(), &nonce, &proof));
        // A source that sends a mirror's proof back proves nothing.
        assert!(!source_proof_holds(&key(1), &transcript, &nonce, &[0; 32], &proof));
        let proof = source_proof(&key(1), &transcript, &nonce, &[7; 32]);
        assert!(source_proof_holds(&key(1), &transcript, &nonce, &[7; 32], &proof));
        assert!(!source_proof_holds(&key(1), &transcript, &nonce, &[8; 32], &proof));
    }

    #[test]
    fn both_sides_derive_the_same_keys_and_the_mask_comes_off() {
        let (one, two) =
            (SessionKeys::derive(&key(1), &[1; 16], &[2; 16]), SessionKeys::derive(&key(1), &[1; 16], &[2; 16]));
        assert!(one == two);
        assert!(one != SessionKeys::derive(&key(1), &[2; 16], &[1; 16]));
        assert!(one.to_mirror != one.to_source);
        assert_eq!(two.mask(&one.mask(&[9; 32])), [9; 32]);
    }

    #[test]
    fn one_changed_bit_anywhere_is_a_forgery_and_a_copy_is_a_replay() {
        let mut datagram = vec![3; 40];
        let mut sealer = Sealer::new(TagKey::Keyed([5; 32]));
        sealer.seal(&mut datagram, 0);
        for bit in 0..datagram.len() * 8 {
            let mut forged = datagram.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            let result = Opener::new(TagKey::Keyed([5; 32])).open(&forged).map(<[u8]>::len);
            assert_eq!(result, Err(TrailerError::Forged), "bit {bit}");
        }
        let mut opener = Opener::new(TagKey::Keyed([5; 32]));
        assert_eq!(opener.open(&datagram), Ok(&[3; 40][..]));
        assert_eq!(opener.open(&datagram), Err(TrailerError::Replayed));
        assert_eq!(opener.open(&datagram[..31]), Err(TrailerError::Missing));
    }

    #[test]
    fn without_a_key_the_tag_is_the_session() {
        let mut datagram = vec![3; 40];
        Sealer::new(TagKey::Number(77)).seal(&mut datagram, 0);
        assert_eq!(Opener::new(TagKey::Number(77)).open(&datagram), Ok(&[3; 40][..]));
        assert_eq!(Opener::new(TagKey::Number(78)).open(&datagram), Err(TrailerError::Forged));
    }

    #[test]
    fn the_replay_window_takes_each_counter_once() {
        let mut window = ReplayWindow::default();
        assert!(!window.take(0));
        for (counter, new) in
            [(1, true), (1, false), (3, true), (2, true), (2, false), (66, true), (3, false), (4, true), (2, false)]
        {
            assert_eq!(window.take(counter), new, "{counter}");
        }
        assert!(window.take(u64::MAX));
        assert!(!window.take(u64::MAX) && !window.take(66) && window.take(u64::MAX - 63));
    }
}
