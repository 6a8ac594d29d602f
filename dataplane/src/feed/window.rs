//! The reorder window's memory: fixed slots for message bodies, and an index by sequence.
//!
//! One pool of slots serves every stream of an arbiter; each stream has an index of its own. Everything is reserved
//! at start. What is held here is a copy, so a full window never keeps a receive frame from its fill ring.

use crate::units::Side;

/// Bytes of body in one slot. The longest IEX message is 80 bytes; a longer body takes several slots, chained.
pub const SLOT_BYTES: usize = 128;

/// Longest body or block that the pool stores: what a u16 length or a UDP datagram can carry.
pub const BODY_BYTES_MAX: usize = 65_535;

const NONE: u32 = u32::MAX;

#[derive(Clone)]
struct Slot {
    capture_ns: i64,
    send_ns: i64,
    body_bytes: u32,
    /// The next slot of the same body, or of the free list.
    next: u32,
    side: Side,
    body: [u8; SLOT_BYTES],
}

/// A stored body and what is known of its arrival.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// The side that delivered it.
    pub side: Side,
    /// Its capture time.
    pub capture_ns: i64,
    /// Its send time, `i64::MIN` where the protocol has none.
    pub send_ns: i64,
    /// The bytes.
    pub body: &'a [u8],
}

/// A pool of [`SLOT_BYTES`]-byte slots.
pub struct SlotPool {
    slots: Vec<Slot>,
    free_head: u32,
    free_count: u32,
    /// Where a chained body is made contiguous.
    scratch: Vec<u8>,
}

impl SlotPool {
    /// A pool of `slots` slots (at least 1), written once here so that its pages are present.
    pub fn new(slots: u32) -> SlotPool {
        let slots = slots.clamp(1, NONE - 1);
        let empty = Slot { capture_ns: 0, send_ns: 0, body_bytes: 0, next: NONE, side: Side::A, body: [0; SLOT_BYTES] };
        let mut pool = SlotPool {
            slots: vec![empty; slots as usize],
            free_head: 0,
            free_count: slots,
            scratch: vec![0; BODY_BYTES_MAX],
        };
        for (place, slot) in pool.slots.iter_mut().enumerate() {
            slot.next = if place + 1 == slots as usize { NONE } else { place as u32 + 1 };
        }
        pool
    }

    /// Slots that a body of `bytes` takes.
    pub fn slots_for(bytes: usize) -> u32 {
        bytes.div_ceil(SLOT_BYTES).max(1) as u32
    }

    /// Slots in no use.
    pub fn free(&self) -> u32 {
        self.free_count
    }

    /// Slots in all.
    pub fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Copies a body in. `None` when too few slots are free, or the body is longer than [`BODY_BYTES_MAX`].
    pub fn store(&mut self, stored: Stored<'_>) -> Option<u32> {
        let needed = SlotPool::slots_for(stored.body.len());
        if needed > self.free_count || stored.body.len() > BODY_BYTES_MAX {
            return None;
        }
        let head = self.free_head;
        let mut place = head;
        let mut rest = stored.body;
        for left in (0..needed).rev() {
            let slot = &mut self.slots[place as usize];
            let (part, after) = rest.split_at(rest.len().min(SLOT_BYTES));
            slot.body[..part.len()].copy_from_slice(part);
            rest = after;
            if left == 0 {
                self.free_head = std::mem::replace(&mut slot.next, NONE);
            } else {
                place = slot.next;
            }
        }
        self.free_count -= needed;
        let slot = &mut self.slots[head as usize];
        slot.capture_ns = stored.capture_ns;
        slot.send_ns = stored.send_ns;
        slot.side = stored.side;
        slot.body_bytes = stored.body.len() as u32;
        Some(head)
    }

    /// The body whose first slot is `head`, made contiguous.
    pub fn view(&mut self, head: u32) -> Stored<'_> {
        let slot = &self.slots[head as usize];
        let bytes = slot.body_bytes as usize;
        let body = if bytes <= SLOT_BYTES {
            &slot.body[..bytes]
        } else {
            let mut place = head;
            for part in self.scratch[..bytes].chunks_mut(SLOT_BYTES) {
                let slot = &self.slots[place as usize];
                part.copy_from_slice(&slot.body[..part.len()]);
                place = slot.next;
            }
            &self.scratch[..bytes]
        };
        Stored { side: slot.side, capture_ns: slot.capture_ns, send_ns: slot.send_ns, body }
    }

    /// Copies the body whose first slot is `head` to `out` and gives its slots back. Returns its length in bytes.
    pub fn take(&mut self, head: u32, out: &mut [u8]) -> usize {
        let body = self.view(head).body;
        let bytes = body.len();
        out[..bytes].copy_from_slice(body);
        self.release(head);
        bytes
    }

    /// Gives the slots of the body whose first slot is `head` back.
    pub fn release(&mut self, head: u32) {
        let slots = SlotPool::slots_for(self.slots[head as usize].body_bytes as usize);
        let mut last = head;
        for _ in 1..slots {
            last = self.slots[last as usize].next;
        }
        self.slots[last as usize].next = self.free_head;
        self.free_head = head;
        self.free_count += slots;
    }
}

/// Which sequences of `[next, next + window)` are held, and in which slots. A ring by sequence with a two-level bitmap,
/// so that finding the first held message after a hole costs a few words, not the hole.
#[derive(Debug)]
pub struct Index {
    slots: Vec<u32>,
    bits: Vec<u64>,
    summary: Vec<u64>,
    mask: u64,
    held: u64,
}

impl Index {
    /// An index for a window of `messages` messages.
    pub fn new(messages: u32) -> Index {
        let capacity = (messages.max(1) as usize).next_power_of_two().max(64);
        Index {
            slots: vec![0; capacity],
            bits: vec![0; capacity / 64],
            summary: vec![0; (capacity / 64).div_ceil(64)],
            mask: capacity as u64 - 1,
            held: 0,
        }
    }

    /// Messages held.
    #[inline]
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Whether `sequence` is held.
    #[inline]
    pub fn contains(&self, sequence: u64) -> bool {
        let place = sequence & self.mask;
        self.held > 0 && self.bits[(place / 64) as usize] >> (place % 64) & 1 == 1
    }

    /// Puts `sequence`, which is not held, at `slot`.
    pub fn insert(&mut self, sequence: u64, slot: u32) {
        let place = (sequence & self.mask) as usize;
        assert!(self.bits[place / 64] >> (place % 64) & 1 == 0, "window place of {sequence} is taken");
        self.slots[place] = slot;
        self.bits[place / 64] |= 1 << (place % 64);
        self.summary[place / 4096] |= 1 << (place / 64 % 64);
        self.held += 1;
    }

    /// Takes `sequence` out, if it is held.
    #[inline]
    pub fn take(&mut self, sequence: u64) -> Option<u32> {
        if !self.contains(sequence) {
            return None;
        }
        let place = (sequence & self.mask) as usize;
        self.bits[place / 64] &= !(1 << (place % 64));
        if self.bits[place / 64] == 0 {
            self.summary[place / 4096] &= !(1 << (place / 64 % 64));
        }
        self.held -= 1;
        Some(self.slots[place])
    }

    /// The lowest held sequence at or above `from`, which is at most the lowest held one.
    pub fn first_held(&self, from: u64) -> Option<u64> {
        if self.held == 0 {
            return None;
        }
        let start = from & self.mask;
        let place = self.next_bit(start as usize).or_else(|| self.next_bit(0))? as u64;
        Some(from + (place.wrapping_sub(start) & self.mask))
    }

    /// Counts the held sequences bit by bit, apart from the running count: for reports and tests.
    pub fn recount(&self) -> u64 {
        self.bits.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The first set bit at or after `place`.
    fn next_bit(&self, place: usize) -> Option<usize> {
        let word = place / 64;
        let here = self.bits[word] & (u64::MAX << (place % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let after = word + 1;
        let mut group = after / 64;
        let mut mask = u64::MAX << (after % 64);
        while group < self.summary.len() {
            let found = self.summary[group] & mask;
            if found != 0 {
                let word = group * 64 + found.trailing_zeros() as usize;
                return Some(word * 64 + self.bits[word].trailing_zeros() as usize);
            }
            (group, mask) = (group + 1, u64::MAX);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn bodies_of_every_length_come_back_and_their_slots_too() {
        let mut pool = SlotPool::new(700);
        let body: Vec<u8> = (0..BODY_BYTES_MAX).map(|i| (i * 7 % 251) as u8).collect();
        for bytes in [0, 1, 127, 128, 129, 256, 257, 5000, 65_535] {
            let stored = Stored { side: Side::B, capture_ns: 5, send_ns: 6, body: &body[..bytes] };
            let small = pool.store(Stored { body: b"x", ..stored }).unwrap();
            let head = pool.store(stored).unwrap();
            pool.release(small);
            let view = pool.view(head);
            assert_eq!((view.body, view.side, view.capture_ns, view.send_ns), (&body[..bytes], Side::B, 5, 6));
            pool.release(head);
            assert_eq!(pool.free(), 700);
        }
    }

    #[test]
    fn a_full_pool_refuses_and_changes_nothing() {
        let mut pool = SlotPool::new(2);
        let stored = Stored { side: Side::A, capture_ns: 0, send_ns: 0, body: &[1; 129] };
        let head = pool.store(stored).unwrap();
        assert!(pool.store(Stored { body: &[], ..stored }).is_none());
        pool.release(head);
        assert!(pool.store(Stored { body: &[0; 300], ..stored }).is_none());
        assert_eq!(pool.free(), 2);
    }

    #[test]
    fn the_index_agrees_with_a_map() {
        use rand::{RngExt, SeedableRng};
        let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(3);
        for window in [1, 64, 100, 4096, 10_000] {
            let mut index = Index::new(window);
            let mut map = BTreeMap::new();
            let mut next = random.random_range(0..1u64 << 40);
            for step in 0..2000u32 {
                let sequence = next + random.random_range(0..u64::from(window));
                if map.insert(sequence, step).is_none() {
                    index.insert(sequence, step);
                } else {
                    map.insert(sequence, index.take(sequence).unwrap());
                    index.insert(sequence, map[&sequence]);
                }
                assert_eq!(index.first_held(next), map.keys().next().copied());
                if random.random_bool(0.5) {
                    let (first, slot) = map.pop_first().unwrap();
                    assert_eq!(index.take(first), Some(slot));
                    assert!(!index.contains(first));
                    next = first + 1;
                }
                assert_eq!((index.held(), index.recount()), (map.len() as u64, map.len() as u64));
            }
        }
    }
}
