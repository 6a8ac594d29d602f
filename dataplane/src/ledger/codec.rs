//! Whether a chunk is packed, and how hard: by what was asked for, by what the encoders still have to do, and by what the
//! subscribers' links can take.
//!
//! The numbers are weighed in docs/design/0032-ledger-sources-and-levels.md.

/// What was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// Packed, unless encoding is behind or the links have slack.
    #[default]
    Auto,
    /// Every chunk goes to an encoder, at a faster level while encoding is behind; raw only where whoever emits would be held up.
    Always,
    /// Every chunk goes as it is.
    Never,
}

/// What one chunk is judged by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Situation {
    /// Bytes that the least loaded encoder has still to pack.
    pub waiting_bytes: u64,
    /// Bytes of those that it was given before this turn of the source: what it did not get to.
    pub carried_bytes: u64,
    /// Bytes that the source had ready at once, in this turn or the one before. A core that keeps up finds less than a chunk.
    pub ready_bytes: u64,
    /// Bytes of a full chunk.
    pub chunk_bytes: u64,
    /// Bytes of the ledger that come after this chunk, where that is known.
    pub left_bytes: Option<u64>,
    /// The source is full, and whoever emits into it is held up until it is read.
    pub holds_up: bool,
    /// The links take this ledger as it is while it is being emitted ([`has_slack`]).
    pub slack: bool,
}

/// What becomes of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// As it is.
    Raw,
    /// As it is, because there is no time to pack it.
    Fallback,
    /// Packed at this zstd level.
    Level(i32),
}

/// Levels that take the place of the configured one as work piles up, each from so many halves of a chunk on that are behind. At
/// 256 KiB a core of a slow machine packs 1.9 GiB/s at level 1, 2.4 at −1, 2.8 at −3 and 3.3 at −7 (real metas).
const FASTER: [(u64, i32); 3] = [(1, -1), (2, -3), (3, -7)];
/// Full chunks that an encoder did not get to, from which on a chunk goes raw: at −7 they are 0.3 ms of work.
const RAW_CHUNKS: u64 = 4;
/// Full chunks at a ledger's end of which none goes raw. On a link of 5 Gbit/s a raw chunk takes 0.44 ms, and what it holds up
/// is made good at 0.07 ms a packed chunk: here it would be paid for after the last byte.
const TAIL_CHUNKS: u64 = 16;

/// Of [`FASTER`] the steps that what is behind asks for.
fn steps_behind(situation: &Situation) -> usize {
    let Situation { waiting_bytes, ready_bytes, chunk_bytes, .. } = *situation;
    // Half a chunk is what comes while one is packed on the same core.
    let behind_bytes = waiting_bytes.saturating_add(ready_bytes.saturating_sub(chunk_bytes / 2));
    let halves = behind_bytes.saturating_mul(2) / chunk_bytes.max(1);
    FASTER.iter().take_while(|(from, _)| halves >= *from).count()
}

/// What becomes of a chunk, at this level or a faster one.
pub fn choose(policy: Policy, level: i32, situation: &Situation) -> Choice {
    let Situation { carried_bytes, chunk_bytes, left_bytes, holds_up, slack, .. } = *situation;
    match policy {
        Policy::Never => return Choice::Raw,
        Policy::Auto if slack => return Choice::Raw,
        Policy::Always | Policy::Auto if holds_up => return Choice::Fallback,
        Policy::Always | Policy::Auto => {}
    }
    let tail = left_bytes.is_some_and(|left| left < TAIL_CHUNKS * chunk_bytes);
    // What the source has ready is not a reason: a raw chunk takes a link of 5 Gbit/s as long as seven packed ones.
    if policy == Policy::Auto && carried_bytes >= RAW_CHUNKS * chunk_bytes && !tail {
        return Choice::Raw;
    }
    let faster = steps_behind(situation).checked_sub(1).map_or(level, |step| FASTER[step].1);
    Choice::Level(level.min(faster))
}

/// Of a ledger's chunks the share, one in so many, above which the next ledger begins a step faster: the level asked for does not keep
/// up with this source on this machine. A hiccup of the host of 1 ms is behind 8 of 58 chunks, and no reason.
const HASTENED_ONE_IN: u32 = 4;
/// Ledgers in which that did not happen, before a slower level is tried again: 20 s of the network's, so that a level too slow is tried in 3 % of ledgers.
const CALM_LEDGERS: u32 = 32;

/// The level that keeps up with the source, found in the ledgers before: one that begins too slow is behind before it notices.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    policy: Policy,
    level: i32,
    /// Steps of [`FASTER`] that ledgers begin with.
    steps: usize,
    chunks: u32,
    /// Chunks that asked for more steps than these.
    faster: u32,
    /// Chunks that asked for at least as many.
    pressed: u32,
    calm: u32,
}

impl Pace {
    /// Begins at the level that was asked for.
    pub fn new(policy: Policy, level: i32) -> Pace {
        Pace { policy, level, steps: 0, chunks: 0, faster: 0, pressed: 0, calm: 0 }
    }

    /// The level that a ledger begins with.
    pub fn level(&self) -> i32 {
        self.steps.checked_sub(1).map_or(self.level, |step| self.level.min(FASTER[step].1))
    }

    /// What becomes of a chunk.
    pub fn choose(&mut self, situation: &Situation) -> Choice {
        // What goes raw because the links are wide tells nothing of encoding.
        if self.policy != Policy::Auto || !situation.slack {
            self.chunks += 1;
            let steps = steps_behind(situation);
            self.faster += u32::from(steps > self.steps);
            self.pressed += u32::from(steps >= self.steps);
        }
        choose(self.policy, self.level(), situation)
    }

    /// A ledger is over: whether its level kept up decides about the next one's.
    pub fn ledger(&mut self) {
        if self.chunks == 0 {
            return;
        }
        let many = self.chunks / HASTENED_ONE_IN;
        if self.faster > many {
            (self.steps, self.calm) = (self.steps + 1, 0);
        } else if self.pressed <= many {
            self.calm += 1;
        }
        if self.calm >= CALM_LEDGERS {
            (self.steps, self.calm) = (self.steps.saturating_sub(1), 0);
        }
        (self.chunks, self.faster, self.pressed) = (0, 0, 0);
    }
}

/// How much faster than the source the slowest live subscriber must be before chunks go to it as they are: the margin is for
/// the rest of the link's traffic and for the error of both rates.
const SLACK_TIMES: (u64, u64) = (3, 2);

/// Whether the links can take ledgers as they are: somebody follows live, and the slowest of those is known to take bytes more
/// than 1.5 times as fast as the source gives them. Rates in bytes/s; the source's is 0 before its first ledger.
pub fn has_slack(live_subscribers: u32, slowest_rate: Option<u64>, source_rate: u64) -> bool {
    let (times, of) = SLACK_TIMES;
    let wide = |slowest: u64| slowest / times > source_rate / of;
    live_subscribers > 0 && source_rate > 0 && slowest_rate.is_some_and(wide)
}

/// Ledgers whose rates are remembered.
const LEDGERS_REMEMBERED: usize = 8;

/// How fast the source gave its last ledgers.
#[derive(Clone, Copy, Debug, Default)]
pub struct SourceRate {
    rates: [u64; LEDGERS_REMEMBERED],
    next: usize,
}

impl SourceRate {
    /// A ledger of `bytes` was emitted in `ns`.
    pub fn ledger(&mut self, bytes: u64, ns: i64) {
        let ns = u128::try_from(ns).unwrap_or(0).max(1);
        let rate = u128::from(bytes) * 1_000_000_000 / ns;
        self.rates[self.next] = u64::try_from(rate).unwrap_or(u64::MAX);
        self.next = (self.next + 1) % LEDGERS_REMEMBERED;
    }

    /// The fastest of the last ledgers, bytes/s; 0 before the first.
    pub fn bytes_per_second(&self) -> u64 {
        self.rates.into_iter().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 262_144;
    const EASY: Situation = Situation {
        waiting_bytes: 0,
        carried_bytes: 0,
        ready_bytes: 0,
        chunk_bytes: CHUNK,
        left_bytes: None,
        holds_up: false,
        slack: false,
    };

    fn auto(waiting_halves: u64, left_chunks: Option<u64>) -> Choice {
        let left_bytes = left_chunks.map(|chunks| chunks * CHUNK);
        let waiting_bytes = waiting_halves * CHUNK / 2;
        choose(Policy::Auto, 1, &Situation { waiting_bytes, carried_bytes: waiting_bytes, left_bytes, ..EASY })
    }

    #[test]
    fn the_level_follows_the_load() {
        use Choice::{Level, Raw};
        for (halves, early, late) in [
            (0, Level(1), Level(1)),
            (1, Level(-1), Level(-1)),
            (2, Level(-3), Level(-3)),
            (3, Level(-7), Level(-7)),
            (7, Level(-7), Level(-7)),
            (8, Raw, Level(-7)),
            (32, Raw, Level(-7)),
        ] {
            assert_eq!((auto(halves, Some(40)), auto(halves, Some(15))), (early, late), "{halves} halves");
            assert_eq!(auto(halves, None), early, "a length that is not known has no end in sight");
        }
        let tail = Situation { waiting_bytes: 40_000, left_bytes: Some(0), ..EASY };
        assert_eq!(
            choose(Policy::Auto, 3, &tail),
            Level(3),
            "what waits is counted in bytes: pieces of a tail are little"
        );
    }

    #[test]
    fn a_configured_level_is_only_made_faster() {
        let situation = |waiting_bytes| Situation { waiting_bytes, ..EASY };
        assert_eq!(choose(Policy::Auto, -4, &situation(0)), Choice::Level(-4));
        assert_eq!(choose(Policy::Auto, -4, &situation(CHUNK)), Choice::Level(-4), "-3 would be slower");
        assert_eq!(choose(Policy::Auto, -4, &situation(CHUNK * 3 / 2)), Choice::Level(-7));
        assert_eq!(choose(Policy::Auto, 9, &situation(CHUNK / 2)), Choice::Level(-1));
    }

    #[test]
    fn what_was_asked_for_comes_first() {
        let busy = Situation { waiting_bytes: u64::MAX, slack: true, ..EASY };
        assert_eq!(choose(Policy::Always, 2, &busy), Choice::Level(-7), "packed, as fast as can be");
        assert_eq!(choose(Policy::Always, 2, &Situation { waiting_bytes: 0, ..busy }), Choice::Level(2));
        assert_eq!(choose(Policy::Never, 2, &Situation { waiting_bytes: 0, slack: false, ..busy }), Choice::Raw);
        assert_eq!(choose(Policy::Auto, 2, &Situation { waiting_bytes: 0, ..busy }), Choice::Raw, "slack");
    }

    #[test]
    fn slack_is_a_known_link_half_as_fast_again_as_the_source() {
        for (live, slowest, source, slack) in [
            (1, Some(3_100), 2_000, true),
            (1, Some(2_990), 2_000, false),
            (0, Some(u64::MAX), 1, false),
            (5, None, 2_000, false),
            (5, Some(u64::MAX), 0, false),
            (1, Some(u64::MAX), u64::MAX, false),
        ] {
            assert_eq!(has_slack(live, slowest, source), slack, "{live} at {slowest:?} of {source}");
        }
    }

    #[test]
    fn the_sources_rate_is_that_of_its_fastest_ledger_of_late() {
        let mut rate = SourceRate::default();
        assert_eq!(rate.bytes_per_second(), 0);
        rate.ledger(1_000, 1_000_000_000);
        rate.ledger(1_000, 500_000_000);
        rate.ledger(1_000, 2_000_000_000);
        assert_eq!(rate.bytes_per_second(), 2_000);
        for _ in 0..LEDGERS_REMEMBERED {
            rate.ledger(10, 1_000_000_000);
        }
        assert_eq!(rate.bytes_per_second(), 10, "what is long past is forgotten");
        rate.ledger(u64::MAX, 0);
        rate.ledger(5, -1);
        assert_eq!(rate.bytes_per_second(), u64::MAX, "an emission without a length is as fast as can be");
    }

    #[test]
    fn what_the_source_has_ready_at_once_counts_as_much_as_what_waits() {
        let ready = |ready_bytes| {
            let situation = Situation { ready_bytes, ..EASY };
            choose(Policy::Auto, 1, &situation)
        };
        assert_eq!([ready(0), ready(CHUNK - 1)], [Choice::Level(1); 2], "less than a chunk is as it should be");
        assert_eq!(ready(CHUNK), Choice::Level(-1));
        assert_eq!(ready(CHUNK * 3 / 2), Choice::Level(-3));
        assert_eq!(ready(9 * CHUNK), Choice::Level(-7), "but no reason to go raw");
    }

    #[test]
    fn whoever_emits_is_never_held_up_by_packing() {
        let full = Situation { ready_bytes: 4 * CHUNK, left_bytes: Some(0), holds_up: true, ..EASY };
        for (policy, choice) in
            [(Policy::Auto, Choice::Fallback), (Policy::Always, Choice::Fallback), (Policy::Never, Choice::Raw)]
        {
            assert_eq!(choose(policy, 1, &full), choice);
        }
    }

    #[test]
    fn a_level_that_does_not_keep_up_is_not_begun_with_again() {
        let situation = |ready_bytes, slack| Situation { ready_bytes, slack, ..EASY };
        let (easy, hard) = (situation(0, false), situation(9 * CHUNK, false));
        let mut pace = Pace::new(Policy::Auto, 1);
        let mut ledger = |late: usize, slack| {
            for chunk in 0..40 {
                let ready = if chunk < late { hard } else { easy };
                pace.choose(&Situation { slack, ..ready });
            }
            pace.ledger();
            pace.level()
        };
        assert_eq!(ledger(10, false), 1, "a quarter is not too much");
        assert_eq!([ledger(11, false), ledger(40, false), ledger(40, false), ledger(40, false)], [-1, -3, -7, -7]);
        assert_eq!(ledger(40, true), -7, "what goes raw because the links are wide tells nothing");
        assert!((1..CALM_LEDGERS).all(|_| ledger(0, false) == -7));
        assert_eq!([ledger(0, false), ledger(0, false)], [-3, -3], "a slower one is tried now and then");
        let mut fast = Pace::new(Policy::Always, -5);
        (0..40).for_each(|_| assert!(matches!(fast.choose(&hard), Choice::Level(-7))));
        fast.ledger();
        assert_eq!(fast.level(), -5, "never slower than asked for");
    }

    /// Ledgers through one encoder: chunks come evenly over the window; the source takes all that is due, then the encoder packs
    /// what waits, then what is packed is sent. Returns how long after the last byte the last chunk is on its way, µs, and how
    /// many chunks went raw, in the last of some ledgers. `costs` are µs a chunk at levels 1, −1, −3 and −7.
    fn tail_us(costs: [u64; 4], own_core: bool) -> (u64, usize) {
        const LEDGERS: usize = 8;
        let mut pace = Pace::new(Policy::Auto, 1);
        let mut last = (0, 0);
        for _ in 0..LEDGERS {
            last = ledger_us(&mut pace, costs, own_core);
            pace.ledger();
        }
        last
    }

    fn ledger_us(pace: &mut Pace, costs: [u64; 4], own_core: bool) -> (u64, usize) {
        const WINDOW: u64 = 7_500;
        const LEDGER: u64 = 15_196_160;
        /// Reading with hashing, and sending a packed chunk, on the source's core.
        const READ: u64 = 35;
        const SEND: u64 = 15;
        let mut sizes = vec![CHUNK; (LEDGER / CHUNK) as usize];
        let rest = LEDGER % CHUNK;
        sizes.extend(std::iter::repeat_n(32_768, (rest / 32_768) as usize));
        sizes.push(LEDGER - sizes.iter().sum::<u64>());
        let (mut now, mut encoder_free, mut raw, mut came) = (0, 0, 0, 0);
        let mut queue = std::collections::VecDeque::new();
        let (mut next, mut under_way, mut ready_before) = (0, 0, 0);
        while next < sizes.len() || !queue.is_empty() {
            let (before, turn) = (now, now);
            let (mut ready, mut given) = (0, 0);
            while next < sizes.len() && WINDOW * (came + sizes[next]) / LEDGER <= turn {
                came += sizes[next];
                ready += sizes[next];
                now += READ * sizes[next] / CHUNK;
                let at_work = if encoder_free > now { under_way } else { 0 };
                let waiting_bytes = at_work + queue.iter().map(|(bytes, _)| bytes).sum::<u64>();
                let ready_bytes = ready.max(ready_before);
                let left_bytes = Some(LEDGER - came);
                let carried_bytes = waiting_bytes - given;
                let situation = Situation { waiting_bytes, carried_bytes, ready_bytes, left_bytes, ..EASY };
                match pace.choose(&situation) {
                    Choice::Raw | Choice::Fallback => raw += 1,
                    Choice::Level(level) => {
                        given += sizes[next];
                        queue.push_back((sizes[next], level));
                    }
                }
                next += 1;
            }
            ready_before = ready;
            let mut packed = 0;
            while packed < 4 * CHUNK
                && let Some(&(bytes, level)) = queue.front()
                && (!own_core || encoder_free <= now)
            {
                queue.pop_front();
                packed += bytes;
                let cost =
                    costs[[1, -1, -3, -7].iter().position(|known| *known == level).expect("known")] * bytes / CHUNK;
                if own_core {
                    (encoder_free, under_way) = (now + cost, bytes);
                } else {
                    now += cost;
                }
                now += SEND * bytes / CHUNK;
            }
            now += u64::from(now == before);
        }
        (now.max(encoder_free).saturating_sub(WINDOW), raw)
    }

    #[test]
    fn the_tail_stays_short_where_level_1_takes_longer_than_the_window() {
        // A slow machine: level 1 takes 8 ms for the 58 chunks of real metas, and 7.5 ms for made-up ones.
        let real = [138, 109, 95, 80];
        let shown = |costs, own_core| {
            let (tail, raw) = tail_us(costs, own_core);
            println!("{costs:?}, own core {own_core}: {tail} µs, {raw} raw");
            (tail, raw)
        };
        let (tail, raw) = shown(real, false);
        assert!(tail <= 200 && raw == 0, "one core: {tail} µs, {raw} raw");
        let (tail, raw) = shown(real, true);
        assert!(tail <= 120 && raw == 0, "a core of its own: {tail} µs, {raw} raw");
        let (tail, raw) = shown([129, 111, 72, 66], false);
        assert!(tail <= 130 && raw == 0, "synthetic: {tail} µs, {raw} raw");
        let (tail, raw) = shown([66, 54, 38, 35], false);
        assert!(tail <= 80 && raw == 0, "synthetic, a fast machine: {tail} µs, {raw} raw");
    }
}
