//! One slot of the ring: a sequence word, then the payload as words, written by one and read by many at the same time.
//!
//! The writer marks the slot busy, then writes the payload, then stores the sequence; the reader looks at the sequence,
//! copies, and looks again. Payload words are relaxed atomics and are copied into uninitialised memory that becomes a
//! value only after the second look, so a torn copy is never a value of any type.
//!
//! Pairs of atomics:
//! - the `Release` store of the sequence in [`write()`] is read by the `Acquire` load in [`read_with`]: who sees sequence n
//!   sees all of record n;
//! - the `Release` fence after the busy mark pairs with the `Acquire` fence before the second look: who copied a word of a
//!   later record sees, at the second look, the busy mark or something newer, and rejects the copy.
//!
//! `model` explores the pair under `--cfg loom`.

use std::mem::MaybeUninit;

use zerocopy::FromBytes;

use super::word::{Load, Ordering, Word, fence};

/// A slot that is being written.
pub const BUSY: u64 = u64::MAX;
/// Bytes of the sequence word that begins a slot.
pub const SEQUENCE_WORD_BYTES: usize = WORD_BYTES;
/// Bytes of a word.
const WORD_BYTES: usize = 8;

/// What a reader found in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotRead<R> {
    /// The wanted record, whole.
    Record(R),
    /// An older lap's record, or none yet.
    Older,
    /// It is being written: the wanted record, or one that overwrites it.
    Busy,
    /// A later lap's record took its place.
    Newer(u64),
}

/// Writes record `sequence` into its slot: `payload` into the words after the sequence word, a last part of a word filled up
/// with zeros. One thread at a time.
#[inline(always)]
pub fn write<W: Word>(slot: &[W], sequence: u64, payload: &[u8]) {
    write_with(slot, sequence, |words| copy_in(words, payload));
}

/// [`write()`] with the payload written by `fill`, which gets the words after the sequence word.
#[inline(always)]
pub fn write_with<W: Word>(slot: &[W], sequence: u64, fill: impl FnOnce(&[W])) {
    let Some((head, words)) = slot.split_first() else { return };
    head.store(BUSY, Ordering::Relaxed);
    // Pairs with the fence in `read_with`.
    fence(Ordering::Release);
    fill(words);
    // Pairs with the first load in `read_with`.
    head.store(sequence, Ordering::Release);
}

/// Reads record `want` from its slot: `copy` gets the words after the sequence word, and what it made of them is a
/// [`SlotRead::Record`] only if nobody wrote meanwhile. `want` is a sequence: neither 0 nor [`BUSY`].
#[inline(always)]
pub fn read_with<W: Load, R>(slot: &[W], want: u64, copy: impl FnOnce(&[W]) -> R) -> SlotRead<R> {
    let Some((head, words)) = slot.split_first() else { return SlotRead::Older };
    // Pairs with the last store in `write_with`.
    let seen = head.load(Ordering::Acquire);
    if seen != want {
        return judge(seen, want);
    }
    let copied = copy(words);
    // Pairs with the fence in `write_with`.
    fence(Ordering::Acquire);
    let seen = head.load(Ordering::Relaxed);
    if seen == want { SlotRead::Record(copied) } else { judge(seen, want) }
}

/// What a slot means whose sequence word is not the wanted one.
#[inline(always)]
fn judge<R>(seen: u64, want: u64) -> SlotRead<R> {
    match seen {
        BUSY => SlotRead::Busy,
        _ if seen < want => SlotRead::Older,
        _ => SlotRead::Newer(seen),
    }
}

/// Reads record `want` as a `T`, the first `size_of::<T>()` bytes of the payload.
#[inline(always)]
pub fn read<W: Load, T: FromBytes>(slot: &[W], want: u64) -> SlotRead<T> {
    match read_with(slot, want, copy_out::<W, T>) {
        SlotRead::Record(copied) => SlotRead::Record(copied.whole()),
        SlotRead::Older => SlotRead::Older,
        SlotRead::Busy => SlotRead::Busy,
        SlotRead::Newer(seen) => SlotRead::Newer(seen),
    }
}

/// A copy of a `T` that may be torn: its bytes are there, but it is no `T` until the sequence was checked again.
#[derive(Debug)]
pub struct Copied<T>(MaybeUninit<T>);

impl<T: FromBytes> Copied<T> {
    /// The value, once the copy is known to be whole (from bytes of several records it would be a `T`, but none that was
    /// written).
    #[inline(always)]
    pub fn whole(self) -> T {
        // SAFETY: `copy_out`, the only maker, initialised every byte, and any bytes are a `FromBytes`.
        unsafe { self.0.assume_init() }
    }
}

/// Copies the words' first bytes over a `T`.
///
/// # Panics
/// If the words are fewer than a `T`.
#[inline(always)]
pub fn copy_out<W: Load, T>(words: &[W]) -> Copied<T> {
    let mut out = MaybeUninit::<T>::uninit();
    assert!(words.len() >= size_of::<T>().div_ceil(WORD_BYTES), "the slot is shorter than its record");
    // Of constant length from here on: the copy is straight code, and its parts stay in registers.
    let words = &words[..size_of::<T>().div_ceil(WORD_BYTES)];
    // SAFETY: the bytes of `out`, as what may be uninitialised; nothing else refers to them.
    let to: &mut [MaybeUninit<u8>] = unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast(), size_of::<T>()) };
    let (pairs, rest) = to.as_chunks_mut::<{ 2 * WORD_BYTES }>();
    let left = &words[2 * pairs.len()..];
    for (to, pair) in pairs.iter_mut().zip(words.as_chunks::<2>().0) {
        W::copy_pair(pair, to);
    }
    let (whole, rest) = rest.as_chunks_mut::<WORD_BYTES>();
    for (to, word) in whole.iter_mut().zip(left) {
        *to = word.load(Ordering::Relaxed).to_ne_bytes().map(MaybeUninit::new);
    }
    if let Some(last) = left.get(whole.len()) {
        let bytes = last.load(Ordering::Relaxed).to_ne_bytes();
        rest.iter_mut().zip(bytes).for_each(|(to, byte)| *to = MaybeUninit::new(byte));
    }
    Copied(out)
}

/// Writes `bytes` over the first words, a last part of a word filled up with zeros.
///
/// # Panics
/// If the words are fewer than the bytes.
#[inline(always)]
pub fn copy_in<W: Word>(words: &[W], bytes: &[u8]) {
    // One look at the length; of a record's constant size the compiler then unrolls the rest.
    let words = &words[..bytes.len().div_ceil(WORD_BYTES)];
    let (pairs, rest) = bytes.as_chunks::<{ 2 * WORD_BYTES }>();
    for (pair, bytes) in words.as_chunks::<2>().0.iter().zip(pairs) {
        W::store_pair(pair, bytes);
    }
    let left = &words[2 * pairs.len()..];
    let (whole, rest) = rest.as_chunks::<WORD_BYTES>();
    for (word, bytes) in left.iter().zip(whole) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    if let Some(word) = left.get(whole.len()) {
        let mut last = [0; WORD_BYTES];
        last[..rest.len()].copy_from_slice(rest);
        word.store(u64::from_ne_bytes(last), Ordering::Relaxed);
    }
}

/// Copies the words' first bytes into `out`, as many as both have.
#[inline(always)]
pub fn copy_bytes<W: Load>(words: &[W], out: &mut [u8]) {
    let (whole, rest) = out.as_chunks_mut::<WORD_BYTES>();
    let count = whole.len();
    for (bytes, word) in whole.iter_mut().zip(words) {
        *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    if !rest.is_empty()
        && let Some(word) = words.get(count)
    {
        let last = word.load(Ordering::Relaxed).to_ne_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// The first look of a reader that copies nothing: the slot's sequence word.
#[inline(always)]
pub fn sequence<W: Load>(slot: &[W]) -> u64 {
    slot.first().map_or(0, |head| head.load(Ordering::Acquire))
}

/// Gives out `reserved` bytes of an arena, before the first byte of the new blob is written.
#[inline(always)]
pub fn reserve<W: Word>(reserved: &W, bytes: u64) {
    reserved.store(bytes, Ordering::Relaxed);
    // Pairs with the fence in `reserved_after`: who copied a byte of the new blob sees the new count.
    fence(Ordering::Release);
}

/// The bytes that an arena has given out, after a blob was copied.
#[inline(always)]
pub fn reserved_after<W: Load>(reserved: &W) -> u64 {
    // Pairs with the fence in `reserve`.
    fence(Ordering::Acquire);
    reserved.load(Ordering::Relaxed)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    fn slot<const N: usize>() -> [AtomicU64; N] {
        std::array::from_fn(|_| AtomicU64::new(0))
    }

    #[test]
    fn what_is_written_is_read() {
        let slot = slot::<3>();
        assert_eq!(read::<_, u64>(&slot, 1), SlotRead::Older);
        write(&slot, 1, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(read::<_, [u8; 10]>(&slot, 1), SlotRead::Record([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]));
        assert_eq!(read::<_, [u8; 11]>(&slot, 1), SlotRead::Record([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0]));
        assert_eq!(read::<_, u64>(&slot, 2), SlotRead::Older);
        let mut bytes = [0xaa; 13];
        copy_bytes(&slot[1..], &mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0, 0]);
        slot[0].store(BUSY, Ordering::Relaxed);
        assert_eq!(read::<_, u64>(&slot, 2), SlotRead::Busy);
        write(&slot, 5, &[9]);
        assert_eq!(read::<_, u64>(&slot, 2), SlotRead::Newer(5));
        assert_eq!(read::<_, [u8; 0]>(&slot, 5), SlotRead::Record([]));
    }

    /// One writer laps two slots without pause; every word of a record is its sequence.
    #[test]
    fn no_copy_is_torn() {
        // Records while the other reads, and whole copies that it must have got by then.
        let (records, wanted) = if cfg!(miri) { (200, 1) } else { (100_000, 1_000) };
        let slots = Arc::new([slot::<8>(), slot::<8>()]);
        let (done, whole) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let reader = std::thread::spawn({
            let (slots, done, whole) = (slots.clone(), done.clone(), whole.clone());
            move || {
                while !done.load(Ordering::Acquire) {
                    let want = sequence(&slots[0]);
                    let wanted = want != 0 && want != BUSY;
                    if wanted && let SlotRead::Record(words) = read::<_, [u64; 7]>(&slots[0], want) {
                        assert_eq!(words, [want; 7]);
                        whole.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        // On one busy processor the reader runs only now and then.
        let most = records * 10_000;
        let mut sequence = 0;
        while sequence < records || whole.load(Ordering::Relaxed) < wanted && !reader.is_finished() {
            sequence += 1;
            assert!(sequence < most, "{} whole copies beside {sequence} records", whole.load(Ordering::Relaxed));
            write(&slots[sequence as usize % 2], sequence, zerocopy::IntoBytes::as_bytes(&[sequence; 7]));
        }
        done.store(true, Ordering::Release);
        reader.join().expect("no torn copy");
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    fn slot() -> Arc<[AtomicU64; 3]> {
        Arc::new(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    fn copy(words: &[AtomicU64]) -> [u64; 2] {
        [words[0].load(Ordering::Relaxed), words[1].load(Ordering::Relaxed)]
    }

    fn fill(words: &[AtomicU64], sequence: u64) {
        words[0].store(sequence, Ordering::Relaxed);
        words[1].store(sequence, Ordering::Relaxed);
    }

    /// Two laps are written while a reader takes the first: a record that it accepts is whole and the wanted one.
    fn two_laps(write_slot: fn(&[AtomicU64], u64), read_slot: fn(&[AtomicU64], u64) -> SlotRead<[u64; 2]>) {
        loom::model(move || {
            let slot = slot();
            let writer = loom::thread::spawn({
                let slot = slot.clone();
                move || {
                    write_slot(&*slot, 1);
                    write_slot(&*slot, 2);
                }
            });
            for want in [1, 2] {
                if let SlotRead::Record(words) = read_slot(&*slot, want) {
                    assert_eq!(words, [want; 2], "a torn copy was accepted");
                }
            }
            writer.join().expect("the writer ends");
        });
    }

    fn ours_write(slot: &[AtomicU64], sequence: u64) {
        write_with(slot, sequence, |words| fill(words, sequence));
    }

    fn ours_read(slot: &[AtomicU64], want: u64) -> SlotRead<[u64; 2]> {
        read_with(slot, want, copy)
    }

    #[test]
    fn an_accepted_record_is_whole() {
        two_laps(ours_write, ours_read);
    }

    /// The model can fail: without the writer's fence.
    #[test]
    #[should_panic(expected = "a torn copy was accepted")]
    fn without_the_writer_s_fence_a_torn_copy_is_accepted() {
        two_laps(
            |slot, sequence| {
                slot[0].store(BUSY, Ordering::Relaxed);
                fill(&slot[1..], sequence);
                slot[0].store(sequence, Ordering::Release);
            },
            ours_read,
        );
    }

    /// The model can fail: without the second look.
    #[test]
    #[should_panic(expected = "a torn copy was accepted")]
    fn without_the_second_look_a_torn_copy_is_accepted() {
        two_laps(ours_write, |slot, want| match slot[0].load(Ordering::Acquire) == want {
            true => SlotRead::Record(copy(&slot[1..])),
            false => SlotRead::Older,
        });
    }

    /// A blob is overwritten while a reader copies it: the count of given-out bytes tells.
    #[test]
    fn an_overwritten_blob_is_noticed() {
        loom::model(|| {
            let words = Arc::new([AtomicU64::new(0), AtomicU64::new(7)]);
            let writer = loom::thread::spawn({
                let words = words.clone();
                move || {
                    reserve(&words[0], 64);
                    words[1].store(8, Ordering::Relaxed);
                }
            });
            let copied = words[1].load(Ordering::Relaxed);
            let reserved = reserved_after(&words[0]);
            assert!(copied == 7 || reserved == 64, "an overwritten blob looks whole");
            writer.join().expect("the writer ends");
        });
    }
}
