//! What a mirror does about loss: datagrams that came early are held back, holes are asked for.
//!
//! Holes are what lies between the next sequence, the datagrams that are held, and what a heartbeat announced. Several are
//! asked for at once; a range is asked for again only when nothing of any answer came for a while. What TCP brings is the
//! truth: it replaces what datagrams brought.

use std::collections::BTreeMap;

use crate::wire::mirror::NAK_RECORDS_MAX;

/// Most NAKs without an answer at one time: at 1 % loss, 50,000 datagrams/s and a round trip of 100 ms 50 holes are open;
/// more wait their turn.
pub const NAKS_MAX: usize = 64;
/// Most records asked for without an answer, unless one hole is all that is asked for: two full NAKs, so that the next
/// range is under way while one is answered.
pub const NAK_RECORDS_OUTSTANDING_MAX: u64 = 2 * NAK_RECORDS_MAX;
/// Repeats double the wait up to 2⁵ times (640 ms of the default 20): a hole that the source cannot fill costs nothing.
pub const BACKOFF_DOUBLINGS_MAX: u32 = 5;
/// Most ranges that are known to be gone before the records below them came; beyond, they are asked for again.
const GONE_MAX: usize = NAKS_MAX;
/// Buffers kept for held datagrams; more are given back to the allocator.
const POOL_MAX: usize = 256;

/// Bounds of a [`Loss`].
#[derive(Clone, Copy, Debug)]
pub struct LossSettings {
    /// Most datagrams held.
    pub datagrams_max: usize,
    /// Most bytes held.
    pub bytes_max: usize,
    /// Time after which a range is asked for again.
    pub repeat_ns: i64,
    /// Datagrams have a trailer: what is held needs no doubt.
    pub trusted: bool,
}

/// What became of a datagram that came early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    /// It waits.
    Held,
    /// The same is held already.
    Duplicate,
    /// Another one is held for the same records: neither is believed, both are dropped.
    Conflict,
    /// There is no room that something farther ahead could give up.
    NoRoom,
}

/// Records that were held and can be written now.
#[derive(Debug)]
pub struct Ready {
    /// The first; may lie below the next sequence.
    pub first: u64,
    /// How many.
    pub count: u16,
    /// Their DATA payload; give it back with [`Loss::recycle`].
    pub bytes: Vec<u8>,
    /// They came over TCP.
    pub authoritative: bool,
}

#[derive(Debug)]
struct Held {
    count: u16,
    authoritative: bool,
    since_ns: i64,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    first: u64,
    last: u64,
    sent_ns: i64,
    due_ns: i64,
    repeats: u32,
}

/// What is held and what was asked for.
#[derive(Debug)]
pub struct Loss {
    settings: LossSettings,
    held: BTreeMap<u64, Held>,
    held_bytes: usize,
    held_authoritative: usize,
    /// One past the highest sequence held since nothing was.
    frontier: u64,
    /// The highest sequence that the last heartbeat announced.
    announced: u64,
    outstanding: Vec<Outstanding>,
    /// Ranges first..end that will not come.
    gone: Vec<(u64, u64)>,
    /// The holes must be looked at again.
    dirty: bool,
    /// How long answers take, smoothed; 0 until the first.
    answer_ns: i64,
    pool: Vec<Vec<u8>>,
    /// Held datagrams that were given up: doubted, or for one that is nearer.
    dropped: u64,
}

/// A NAK to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// First missing.
    pub first: u64,
    /// Last missing, inclusive.
    pub last: u64,
    /// It was asked for before.
    pub repeat: bool,
}

impl Loss {
    /// Nothing is held or missing.
    pub fn new(settings: LossSettings) -> Loss {
        Loss {
            settings,
            held: BTreeMap::new(),
            held_bytes: 0,
            held_authoritative: 0,
            frontier: 0,
            announced: 0,
            outstanding: Vec::with_capacity(NAKS_MAX),
            gone: Vec::with_capacity(GONE_MAX),
            dirty: false,
            answer_ns: 0,
            pool: Vec::new(),
            dropped: 0,
        }
    }

    /// A new session: nothing of the last one counts.
    pub fn reset(&mut self, trusted: bool) {
        while let Some((_, held)) = self.held.pop_first() {
            self.recycle(held.bytes);
        }
        (self.held_bytes, self.held_authoritative, self.frontier, self.announced) = (0, 0, 0, 0);
        self.outstanding.clear();
        self.gone.clear();
        self.dirty = false;
        self.settings.trusted = trusted;
    }

    /// Nothing is held, announced beyond `next` or asked for.
    #[inline]
    pub fn is_quiet(&self, next: u64) -> bool {
        self.held.is_empty() && self.outstanding.is_empty() && self.announced < next && self.gone.is_empty()
    }

    /// Datagrams held, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        (self.held.len(), self.held_bytes)
    }

    /// Held datagrams given up so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The first sequence that is held.
    pub fn first_held(&self) -> Option<u64> {
        self.held.first_key_value().map(|(&first, _)| first)
    }

    /// Holds the payload of a DATA frame that begins beyond the next sequence. `authoritative`: it came over TCP.
    pub fn hold(&mut self, first: u64, count: u16, payload: &[u8], authoritative: bool, now: i64) -> Hold {
        let end = first + u64::from(count);
        if authoritative {
            self.remove_overlapping(first, end);
        } else if self.held_authoritative > 0 && self.overlaps_authoritative(first, end) {
            return Hold::Duplicate;
        } else if let Some(held) = self.held.get(&first) {
            if held.count == count && held.bytes == payload {
                return Hold::Duplicate;
            }
            self.remove(first);
            self.dirty = true;
            return Hold::Conflict;
        }
        if !self.make_room(first, payload.len()) {
            return Hold::NoRoom;
        }
        let mut bytes = self.pool.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(payload);
        self.held_bytes += bytes.len();
        self.held_authoritative += usize::from(authoritative);
        // Contiguous with what is held: no new hole, so a burst behind one hole is looked at once.
        self.dirty |= first != self.frontier;
        self.frontier = self.frontier.max(end);
        self.held.insert(first, Held { count, authoritative, since_ns: now, bytes });
        Hold::Held
    }

    /// What can be written at `next`: what is held for it or begins below it. `live`: `next` was reached by a datagram
    /// rather than by an answer; then what waited longer than an answer takes is not believed, because a datagram that was
    /// sent before those that now come in order would have been overtaken by its repair.
    pub fn take(&mut self, next: u64, live: bool, now: i64) -> Option<Ready> {
        loop {
            let (&first, held) = self.held.first_key_value()?;
            if first > next {
                return None;
            }
            let doubted = live
                && !self.settings.trusted
                && !held.authoritative
                && now - held.since_ns > self.settings.repeat_ns.max(2 * self.answer_ns);
            let held = self.remove(first);
            if first + u64::from(held.count) <= next || doubted {
                self.dropped += u64::from(doubted);
                self.dirty |= doubted;
                self.recycle(held.bytes);
                continue;
            }
            return Some(Ready { first, count: held.count, bytes: held.bytes, authoritative: held.authoritative });
        }
    }

    /// Records first..end will not come, but some below them may: they are passed over when the ring gets there.
    pub fn gone(&mut self, first: u64, end: u64) {
        if self.gone.len() < GONE_MAX {
            self.gone.push((first, end));
            self.outstanding.retain(|asked| asked.first < first || asked.last >= end);
            self.dirty = true;
        }
    }

    /// Where the ring goes on, if what it would take next is gone.
    pub fn take_gone(&mut self, next: u64) -> Option<u64> {
        if self.gone.is_empty() {
            return None;
        }
        let to = self.gone.iter().filter(|&&(first, _)| first <= next).map(|&(_, end)| end).max();
        self.gone.retain(|&(first, _)| first > next);
        to.filter(|&to| to > next)
    }

    /// Takes a buffer back.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        if self.pool.len() < POOL_MAX {
            self.pool.push(bytes);
        }
    }

    /// A heartbeat datagram said that `last` is the last sequence sent. What is held beyond it was never sent.
    pub fn announced(&mut self, last: u64) {
        self.dirty |= last > self.announced;
        self.announced = last;
        if self.settings.trusted {
            return;
        }
        while let Some((&first, held)) = self.held.last_key_value() {
            if first <= last || held.authoritative {
                break;
            }
            let held = self.remove(first);
            self.dropped += 1;
            self.frontier = self.frontier.min(first);
            self.recycle(held.bytes);
        }
        self.forget_asked_beyond();
    }

    /// What was asked for because of an announcement that was taken back is not asked for again.
    fn forget_asked_beyond(&mut self) {
        let held_last = self.held.last_key_value().map_or(0, |(&first, _)| first);
        let horizon = self.announced.max(held_last);
        self.outstanding.retain_mut(|asked| {
            asked.last = asked.last.min(horizon);
            asked.first <= horizon
        });
    }

    /// The stream said that `last` was sent some time ago; unlike [`Loss::announced`] it may be old news.
    pub fn announced_at_least(&mut self, last: u64) {
        self.dirty |= last > self.announced;
        self.announced = self.announced.max(last);
    }

    /// Records first..end came over TCP: answers are under way, no range is repeated before they pause.
    pub fn answered(&mut self, first: u64, end: u64, now: i64) {
        let wait_ns = self.wait_ns();
        let mut sample_ns = None;
        for asked in &mut self.outstanding {
            if asked.repeats == 0 && first <= asked.last && asked.first < end && asked.sent_ns < asked.due_ns {
                sample_ns.get_or_insert(now - asked.sent_ns);
            }
            asked.due_ns = asked.due_ns.max(now + wait_ns);
        }
        if let Some(sample_ns) = sample_ns {
            self.answer_ns = if self.answer_ns == 0 { sample_ns } else { (7 * self.answer_ns + sample_ns) / 8 };
        }
    }

    /// The next NAK that is due; call it until `None`, after each change and at each deadline.
    pub fn next_ask(&mut self, next: u64, now: i64) -> Option<Ask> {
        if self.is_quiet(next) {
            return None;
        }
        let before = self.outstanding.len();
        self.outstanding.retain(|asked| asked.last >= next);
        self.dirty |= self.outstanding.len() < before;
        if let Some(ask) = self.next_repeat(next, now) {
            return Some(ask);
        }
        if !self.dirty {
            return None;
        }
        let ask = self.next_new(next, now);
        self.dirty = ask.is_some();
        ask
    }

    /// When a range is to be asked for again.
    pub fn deadline(&self) -> Option<i64> {
        self.outstanding.iter().map(|asked| asked.due_ns).min()
    }

    fn wait_ns(&self) -> i64 {
        // Twice the usual time of an answer: over a long path 20 ms would repeat everything five times.
        self.settings.repeat_ns.max(2 * self.answer_ns)
    }

    fn next_repeat(&mut self, next: u64, now: i64) -> Option<Ask> {
        while let Some(at) = self.outstanding.iter().position(|asked| asked.due_ns <= now) {
            let asked = self.outstanding[at];
            let Some((first, last)) = self.missing_within(next, asked.first, asked.last) else {
                self.outstanding.swap_remove(at);
                self.dirty = true;
                continue;
            };
            let repeats = asked.repeats + 1;
            let due_ns = now + (self.wait_ns() << repeats.min(BACKOFF_DOUBLINGS_MAX));
            self.outstanding[at] = Outstanding { first, last, sent_ns: now, due_ns, repeats };
            return Some(Ask { first, last, repeat: true });
        }
        None
    }

    /// The first hole that no outstanding NAK covers.
    fn next_new(&mut self, next: u64, now: i64) -> Option<Ask> {
        let records: u64 = self.outstanding.iter().map(|asked| asked.last - asked.first + 1).sum();
        if self.outstanding.len() >= NAKS_MAX || records >= NAK_RECORDS_OUTSTANDING_MAX {
            return None;
        }
        let mut at = next;
        let mut held = self.held.iter().peekable();
        loop {
            // `at` is the first sequence not yet accounted for: pass what is held there.
            while let Some((first, entry)) = held.next_if(|(first, _)| **first <= at) {
                at = at.max(first + u64::from(entry.count));
            }
            let hole_last = match held.peek() {
                Some((first, _)) => **first - 1,
                None if at <= self.announced => self.announced,
                None => return None,
            };
            // Within the hole, pass what was asked for and what is gone.
            let asked = self.outstanding.iter().map(|asked| (asked.first, asked.last));
            let passed = asked.chain(self.gone.iter().map(|&(first, end)| (first, end - 1)));
            if let Some((_, last)) = passed.clone().find(|&(first, last)| first <= at && at <= last) {
                at = last + 1;
                continue;
            }
            let passed_next = passed.map(|(first, _)| first).filter(|&first| first > at).min();
            let last = hole_last.min(passed_next.map_or(u64::MAX, |first| first - 1)).min(at + NAK_RECORDS_MAX - 1);
            let due_ns = now + self.wait_ns();
            self.outstanding.push(Outstanding { first: at, last, sent_ns: now, due_ns, repeats: 0 });
            return Some(Ask { first: at, last, repeat: false });
        }
    }

    /// The first and last sequence in first..=last that are neither written nor held.
    fn missing_within(&self, next: u64, first: u64, last: u64) -> Option<(u64, u64)> {
        let mut low = first.max(next);
        for (&from, entry) in self.held.range(low.saturating_sub(u64::from(u16::MAX))..) {
            if from > low {
                break;
            }
            low = low.max(from + u64::from(entry.count));
        }
        let gone = self.gone.iter().filter(|&&(from, end)| from <= low && low < end).map(|&(_, end)| end);
        low = gone.max().unwrap_or(low);
        if low > last {
            return None;
        }
        let high = match self.held.range(..=last).next_back() {
            Some((&from, entry)) if from + u64::from(entry.count) > last && from > low => from - 1,
            _ => last,
        };
        Some((low, high))
    }

    fn remove(&mut self, first: u64) -> Held {
        let held = self.held.remove(&first).expect("the caller saw it there");
        self.held_bytes -= held.bytes.len();
        self.held_authoritative -= usize::from(held.authoritative);
        if self.held.is_empty() {
            self.frontier = 0;
        }
        held
    }

    fn remove_overlapping(&mut self, first: u64, end: u64) {
        let from = first.saturating_sub(u64::from(u16::MAX));
        while let Some(key) =
            self.held.range(from..end).find(|(key, held)| **key + u64::from(held.count) > first).map(|(&key, _)| key)
        {
            let held = self.remove(key);
            self.dirty = true;
            self.recycle(held.bytes);
        }
    }

    fn overlaps_authoritative(&self, first: u64, end: u64) -> bool {
        let from = first.saturating_sub(u64::from(u16::MAX));
        self.held.range(from..end).any(|(key, held)| held.authoritative && key + u64::from(held.count) > first)
    }

    /// Gives up what lies farther ahead than `first` until `bytes` more fit.
    fn make_room(&mut self, first: u64, bytes: usize) -> bool {
        while self.held.len() >= self.settings.datagrams_max || self.held_bytes + bytes > self.settings.bytes_max {
            match self.held.last_key_value() {
                Some((&last, _)) if last > first => {
                    let held = self.remove(last);
                    self.dropped += 1;
                    self.dirty = true;
                    self.frontier = self.frontier.min(last);
                    self.recycle(held.bytes);
                }
                _ => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn loss(trusted: bool) -> Loss {
        Loss::new(LossSettings { datagrams_max: 4, bytes_max: 64, repeat_ns: 20 * MS, trusted })
    }

    fn asks(loss: &mut Loss, next: u64, now: i64) -> Vec<(u64, u64)> {
        core::iter::from_fn(|| loss.next_ask(next, now)).map(|ask| (ask.first, ask.last)).collect()
    }

    #[test]
    fn every_hole_is_asked_for_once_and_again_only_when_nothing_comes() {
        let mut loss = loss(true);
        assert_eq!(loss.hold(5, 2, b"ab", false, 0), Hold::Held);
        assert_eq!(asks(&mut loss, 1, 0), [(1, 4)]);
        assert_eq!(loss.hold(7, 1, b"c", false, 0), Hold::Held);
        assert_eq!(loss.hold(10, 1, b"d", false, 0), Hold::Held);
        assert_eq!(asks(&mut loss, 1, 0), [(8, 9)]);
        loss.announced(12);
        assert_eq!(asks(&mut loss, 1, 0), [(11, 12)]);
        assert_eq!(asks(&mut loss, 1, 19 * MS), []);
        assert_eq!(loss.deadline(), Some(20 * MS));
        assert_eq!(asks(&mut loss, 1, 20 * MS), [(1, 4), (8, 9), (11, 12)]);
        // Back-off: the next repeat waits twice as long.
        assert_eq!(loss.deadline(), Some(60 * MS));
        // An answer for the first hole puts the rest off.
        loss.answered(1, 5, 59 * MS);
        assert_eq!(asks(&mut loss, 5, 60 * MS), []);
    }

    #[test]
    fn a_large_hole_is_asked_for_in_parts() {
        let mut loss = loss(true);
        loss.announced(200_000);
        assert_eq!(asks(&mut loss, 1, 0), [(1, 65_535), (65_536, 131_070)]);
        assert_eq!(asks(&mut loss, 60_000, 0), []);
        assert_eq!(asks(&mut loss, 65_536, 0), [(131_071, 196_605)]);
    }

    #[test]
    fn what_is_held_comes_out_in_order_and_once() {
        let mut loss = loss(true);
        loss.hold(5, 2, b"ab", false, 0);
        loss.hold(4, 2, b"xa", false, 0);
        assert_eq!(loss.hold(5, 2, b"ab", false, 0), Hold::Duplicate);
        assert!(loss.take(3, true, 0).is_none());
        let ready = loss.take(4, true, 0).unwrap();
        assert_eq!((ready.first, &ready.bytes[..]), (4, &b"xa"[..]));
        let ready = loss.take(6, true, 0).unwrap();
        assert_eq!((ready.first, ready.count), (5, 2));
        assert!(loss.take(7, true, 0).is_none());
        assert!(loss.is_quiet(7));
        assert_eq!(loss.held(), (0, 0));
    }

    #[test]
    fn full_it_keeps_what_is_nearest() {
        let mut loss = loss(true);
        for first in [10, 20, 30, 40] {
            assert_eq!(loss.hold(first, 1, b"0123456789", false, 0), Hold::Held);
        }
        assert_eq!(loss.hold(50, 1, b"x", false, 0), Hold::NoRoom);
        assert_eq!(loss.hold(15, 1, b"x", false, 0), Hold::Held);
        assert_eq!(loss.hold(5, 1, &[0; 60], false, 0), Hold::Held);
        assert_eq!(loss.held(), (1, 60));
        assert_eq!(loss.hold(4, 1, &[0; 65], false, 0), Hold::NoRoom);
    }

    #[test]
    fn a_repair_replaces_what_datagrams_brought() {
        let mut loss = loss(false);
        loss.hold(5, 2, b"!!", false, 0);
        loss.hold(8, 1, b"!", false, 0);
        assert_eq!(loss.hold(4, 3, b"abc", true, 0), Hold::Held);
        assert_eq!(loss.hold(6, 2, b"!!", false, 0), Hold::Duplicate);
        assert_eq!(loss.take(4, false, 0).unwrap().bytes, b"abc");
        assert_eq!(loss.first_held(), Some(8));
    }

    #[test]
    fn what_is_gone_is_not_asked_for_and_waits_for_what_lies_below() {
        let mut loss = loss(true);
        loss.hold(20, 1, b"t", false, 0);
        loss.gone(5, 9);
        assert_eq!(asks(&mut loss, 3, 0), [(3, 4), (9, 19)]);
        assert_eq!(loss.take_gone(3), None);
        assert_eq!(loss.take_gone(5), Some(9));
        assert_eq!(loss.take_gone(9), None);
        loss.take(20, false, 0);
        assert!(asks(&mut loss, 21, 0).is_empty() && loss.is_quiet(21));
    }

    #[test]
    fn two_that_contradict_are_both_dropped_and_asked_for() {
        let mut loss = loss(false);
        loss.hold(5, 1, b"a", false, 0);
        assert_eq!(asks(&mut loss, 1, 0), [(1, 4)]);
        assert_eq!(loss.hold(5, 1, b"b", false, 0), Hold::Conflict);
        loss.hold(6, 1, b"c", false, 0);
        assert_eq!(asks(&mut loss, 1, 0), [(5, 5)]);
    }

    #[test]
    fn what_was_never_sent_is_dropped_when_a_heartbeat_says_so() {
        let mut loss = loss(false);
        loss.hold(100, 1, b"!", false, 0);
        loss.hold(3, 1, b"c", false, 0);
        loss.announced(60);
        assert_eq!(loss.held(), (1, 1));
        assert_eq!(loss.dropped(), 1);
    }

    #[test]
    fn what_live_records_reach_only_later_is_not_believed_without_a_mac() {
        for trusted in [false, true] {
            let mut loss = loss(trusted);
            loss.hold(5, 1, b"!", false, 0);
            assert_eq!(loss.take(5, true, 21 * MS).is_some(), trusted);
            let mut loss = self::loss(trusted);
            loss.hold(5, 1, b"e", false, 0);
            assert!(loss.take(5, false, 21 * MS).is_some(), "after a repair it is what the datagram was held for");
        }
    }
}
