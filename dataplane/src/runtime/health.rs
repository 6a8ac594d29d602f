//! Health over time: signs become reasons when they last, and reasons end when their signs stay away.
//!
//! Nothing flaps: a sign must last for its reason's own time, a reason stays for a calm time after its last sign, and each
//! is told with how long it has been so.

use std::fmt::Write;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use super::launch::Pulse;
use crate::sync::health::{HealthReason, Level, Shape, Sign};
use crate::sync::metrics::{Metric, Sample, Source, Sources};
use crate::sys::clock;

/// How often the signs are looked at.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);

const SECOND: i64 = 1_000_000_000;
/// Most time that passes between two looks: four times what is between them. The rest was a stop of the whole process
/// (SIGSTOP, a suspended machine), for which nobody's silence is to be blamed.
const AWAKE_NS_MAX: i64 = SECOND;
const REASONS: Metric = Metric::gauge(
    "sluice_health_reasons",
    &["reason"],
    "Reasons there are now, by kind: see the table in docs/operating/monitor.md",
);
const HEALTHY: Metric = Metric::gauge("sluice_health_healthy", &[], "Whether /healthz answers 200");
const READY: Metric = Metric::gauge("sluice_health_ready", &[], "Whether /readyz answers 200");

/// The metrics of this board.
pub fn metrics() -> Vec<Metric> {
    vec![HEALTHY, READY, REASONS]
}

/// How long a state must be away before its reason ends: longer than the pause of a mirror's reconnections.
const CALM_NS: i64 = 5 * SECOND;
/// How long a count must stand still before its reason ends: four scrapes of 15 s see it.
const CALM_COUNT_NS: i64 = 60 * SECOND;

/// Where the process stands in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Everything is being prepared; the gate is closed.
    Starting,
    /// The gate is open.
    Running,
    /// The stop has begun.
    Draining,
}

impl Stage {
    fn label(self) -> &'static str {
        match self {
            Stage::Starting => "starting",
            Stage::Running => "running",
            Stage::Draining => "draining",
        }
    }
}

/// A reason as it is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reason {
    /// Which one.
    pub reason: HealthReason,
    /// What it is about.
    pub subject: String,
    /// One line.
    pub what: String,
    /// By how much a count has grown since it began.
    pub count: Option<u64>,
    /// How long it has been so, ns.
    pub for_ns: i64,
}

impl Reason {
    /// `store_full: store "main": the file system is full, for 12 s`.
    pub fn line(&self) -> String {
        let mut line = format!("{}: {}", self.reason.label(), self.what);
        if let Some(count) = self.count {
            let _ = write!(line, " ({count} since it began)");
        }
        let _ = write!(line, ", for {} s", self.for_ns / SECOND);
        line
    }

    fn json(&self) -> Value {
        json!({
            "reason": self.reason.label(), "level": self.reason.level().label(), "subject": self.subject,
            "what": self.what, "count": self.count, "for_seconds": (self.for_ns as f64 / 1e8).round() / 10.0,
        })
    }
}

/// A sign that is being watched.
struct Watched {
    sign: Sign,
    /// The number that a `Still` must keep, or that a `Grows` was last seen at.
    mark: u64,
    /// Since when the sign has been there without a break.
    since_ns: i64,
    /// It was there at the last look.
    there: bool,
    told: Option<Told>,
}

/// What makes it a reason.
struct Told {
    since_ns: i64,
    last_ns: i64,
    grown: u64,
}

impl Watched {
    fn new(sign: Sign, now: i64) -> Watched {
        let mark = if let Shape::Still(number) = sign.shape { number } else { 0 };
        Watched { sign, mark, since_ns: now, there: false, told: None }
    }

    /// The sign is there at `now`.
    fn see(&mut self, sign: Sign, now: i64) {
        let grown = match sign.shape {
            Shape::Grows(count) => count.saturating_sub(std::mem::replace(&mut self.mark, count)),
            Shape::Still(number) => {
                if !self.there || std::mem::replace(&mut self.mark, number) != number {
                    (self.since_ns, self.mark) = (now, number);
                }
                0
            }
            Shape::Holds => {
                if !self.there {
                    self.since_ns = now;
                }
                0
            }
        };
        let lasts = now - self.since_ns >= sign.after_ns;
        let so = if matches!(sign.shape, Shape::Grows(_)) { grown > 0 } else { lasts };
        if so {
            let since_ns = if grown > 0 { now } else { self.since_ns };
            let told = self.told.get_or_insert(Told { since_ns, last_ns: now, grown: 0 });
            told.last_ns = now;
            told.grown += grown;
        }
        (self.sign, self.there) = (sign, true);
    }

    fn calm_ns(&self) -> i64 {
        match (self.sign.shape, self.sign.reason.level()) {
            (Shape::Grows(_), _) => CALM_COUNT_NS,
            // What has begun has begun: nothing of a start comes and goes.
            (_, Level::NotReady) => 0,
            _ => CALM_NS,
        }
    }
}

/// Turns signs into reasons. Pure: time is an argument.
#[derive(Default)]
pub struct Keeper {
    /// Own time: it does not pass while the process is stopped.
    awake_ns: i64,
    looked_ns: Option<i64>,
    watched: Vec<Watched>,
}

/// What a look changed.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Changes {
    /// Reasons that began.
    pub began: Vec<Reason>,
    /// Reasons that ended.
    pub ended: Vec<Reason>,
}

impl Keeper {
    /// Takes the signs of one look.
    pub fn look(&mut self, signs: Vec<Sign>, now_ns: i64) -> Changes {
        self.awake_ns += (now_ns - self.looked_ns.unwrap_or(now_ns)).clamp(0, AWAKE_NS_MAX);
        self.looked_ns = Some(now_ns);
        let now = self.awake_ns;
        let mut changes = Changes::default();
        let mut seen = vec![false; self.watched.len()];
        for sign in signs {
            let place = |watched: &Watched| watched.sign.reason == sign.reason && watched.sign.subject == sign.subject;
            let at = self.watched.iter().position(place).unwrap_or_else(|| {
                self.watched.push(Watched::new(sign.clone(), now));
                seen.push(false);
                seen.len() - 1
            });
            seen[at] = true;
            let watched = &mut self.watched[at];
            let before = watched.told.is_some();
            watched.see(sign, now);
            if !before && watched.told.is_some() {
                changes.began.extend(reason_of(watched, now));
            }
        }
        for (watched, seen) in self.watched.iter_mut().zip(&seen) {
            watched.there = *seen;
            let calm = |told: &Told| told.last_ns < now && now - told.last_ns >= watched.calm_ns();
            if watched.told.as_ref().is_some_and(calm) {
                changes.ended.extend(reason_of(watched, now));
                watched.told = None;
            }
        }
        // A count is remembered for ever: what it was at is what it grows from.
        self.watched
            .retain(|watched| watched.there || watched.told.is_some() || matches!(watched.sign.shape, Shape::Grows(_)));
        changes
    }

    /// The reasons of now, the worst first, then the oldest.
    pub fn reasons(&self) -> Vec<Reason> {
        let mut reasons: Vec<Reason> =
            self.watched.iter().filter_map(|watched| reason_of(watched, self.awake_ns)).collect();
        reasons.sort_by_key(|reason| (reason.reason.level() as u8, -reason.for_ns));
        reasons
    }
}

fn reason_of(watched: &Watched, now: i64) -> Option<Reason> {
    let told = watched.told.as_ref()?;
    Some(Reason {
        reason: watched.sign.reason,
        subject: watched.sign.subject.clone(),
        what: watched.sign.what.clone(),
        count: matches!(watched.sign.shape, Shape::Grows(_)).then_some(told.grown),
        for_ns: now - told.since_ns,
    })
}

/// One line of the log for each reason that began or ended.
fn tell(changes: &Changes) {
    for reason in &changes.began {
        match reason.reason.level() {
            Level::Unhealthy => tracing::error!(reason = reason.reason.label(), "unhealthy: {}", reason.what),
            _ => tracing::info!(reason = reason.reason.label(), "{}", reason.what),
        }
    }
    for reason in &changes.ended {
        let seconds = reason.for_ns / SECOND;
        tracing::info!(reason = reason.reason.label(), seconds, count = reason.count, "over: {}", reason.what);
    }
}

/// What is answered at one instant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Where the process stands.
    pub stage: Stage,
    /// Every reason, the worst first.
    pub reasons: Vec<Reason>,
}

impl Verdict {
    /// The reasons for which `/healthz` answers 503.
    pub fn unhealthy(&self) -> impl Iterator<Item = &Reason> {
        self.of(Level::Unhealthy)
    }

    /// The reasons for which `/readyz` answers 503.
    pub fn not_ready(&self) -> impl Iterator<Item = &Reason> {
        self.of(Level::NotReady)
    }

    fn of(&self, level: Level) -> impl Iterator<Item = &Reason> {
        self.reasons.iter().filter(move |reason| reason.reason.level() == level)
    }
}

struct Held {
    stage: Stage,
    stage_since_ns: i64,
    keeper: Keeper,
}

/// Where the process's health is kept: written by the control thread, read by whoever answers.
pub struct HealthBoard(Mutex<Held>);

impl Default for HealthBoard {
    fn default() -> Self {
        let held = Held { stage: Stage::Starting, stage_since_ns: clock::monotonic_ns(), keeper: Keeper::default() };
        HealthBoard(Mutex::new(held))
    }
}

impl HealthBoard {
    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.0.lock().expect("nobody panics with it held")
    }

    /// The gate is open. What `sources` say is looked at before anybody is answered "ready".
    pub fn run(&self, sources: &Sources) {
        let now = clock::monotonic_ns();
        let signs = sources.health(now);
        let changes = {
            let mut held = self.held();
            (held.stage, held.stage_since_ns) = (Stage::Running, now);
            held.keeper.look(signs, now)
        };
        tell(&changes);
    }

    /// The stop has begun.
    pub fn drain(&self) {
        let mut held = self.held();
        (held.stage, held.stage_since_ns) = (Stage::Draining, clock::monotonic_ns());
    }

    /// Looks at every source's signs, and logs what began and what ended. Only while running: what is silent during the
    /// start or the drain is so because we made it so.
    pub fn look(&self, sources: &Sources, now: i64) {
        if self.held().stage != Stage::Running {
            return;
        }
        let signs = sources.health(now);
        let changes = self.held().keeper.look(signs, now);
        tell(&changes);
    }

    /// What to answer now.
    pub fn verdict(&self) -> Verdict {
        let held = self.held();
        let mut reasons = held.keeper.reasons();
        let stage = match held.stage {
            Stage::Running => None,
            Stage::Starting => Some((HealthReason::Starting, "the cores, stores and programs are being prepared")),
            Stage::Draining => Some((HealthReason::Draining, "the stop has begun: nothing new is taken")),
        };
        let for_ns = clock::monotonic_ns() - held.stage_since_ns;
        reasons.extend(stage.map(|(reason, what)| Reason {
            reason,
            subject: "process".into(),
            what: what.into(),
            count: None,
            for_ns,
        }));
        Verdict { stage: held.stage, reasons }
    }
}

impl Source for HealthBoard {
    fn samples(&self, out: &mut Vec<Sample>) {
        let verdict = self.verdict();
        for reason in HealthReason::ALL {
            let count = verdict.reasons.iter().filter(|held| held.reason == *reason).count();
            out.push(REASONS.sample(&[reason.label()], count as f64));
        }
        let states = [(HEALTHY, verdict.unhealthy().next().is_none()), (READY, verdict.not_ready().next().is_none())];
        for (metric, value) in states {
            out.push(metric.sample(&[], f64::from(u8::from(value))));
        }
    }

    fn status(&self) -> (&'static str, Value) {
        let verdict = self.verdict();
        let value = json!({
            "stage": verdict.stage.label(),
            "healthy": verdict.unhealthy().next().is_none(),
            "ready": verdict.not_ready().next().is_none(),
            "reasons": verdict.reasons.iter().map(Reason::json).collect::<Vec<_>>(),
        });
        ("health", value)
    }
}

/// The signs of cores that make no round: one for each core, from half of the bound at which the process ends.
pub fn core_signs(pulses: &[Pulse], stall: Duration, out: &mut Vec<Sign>) {
    for pulse in pulses {
        let what = format!("core \"{}\": it makes no round; at {stall:?} the process ends", pulse.name);
        let sign = Sign::new(HealthReason::CoreSlow, Shape::Still(pulse.rounds()), pulse.name.clone(), what);
        out.push(sign.after(stall.as_nanos() as i64 / 2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: i64 = SECOND / 4;

    fn sign(shape: Shape) -> Sign {
        let reason = match shape {
            Shape::Holds => HealthReason::SidesSilent,
            Shape::Still(_) => HealthReason::CoreSlow,
            Shape::Grows(_) => HealthReason::FramesLost,
        };
        Sign::new(reason, shape, "x", "x is wrong")
    }

    /// Looks every 250 ms for `seconds`, with the shape that `shape(s)` gives at each; when reasons began and ended, in
    /// quarters of a second.
    fn changes(seconds: i64, shape: impl Fn(i64) -> Option<Shape>) -> Vec<(i64, &'static str)> {
        let mut keeper = Keeper::default();
        let mut told = Vec::new();
        for tick in 0..seconds * 4 {
            let changes = keeper.look(shape(tick).map(sign).into_iter().collect(), 7 * SECOND + tick * TICK);
            told.extend(changes.began.iter().map(|_| (tick, "began")));
            told.extend(changes.ended.iter().map(|_| (tick, "ended")));
        }
        told
    }

    #[test]
    fn a_state_becomes_a_reason_when_it_lasts_and_ends_after_a_calm_time() {
        let holds = |from, to| move |tick: i64| (from..to).contains(&tick).then_some(Shape::Holds);
        assert_eq!(changes(20, holds(8, 11)), [], "0.5 s are too short");
        assert_eq!(changes(20, holds(8, 20)), [(12, "began"), (39, "ended")], "1 s; then 5 s after the last sign");
        // A flapping state is one reason, not many.
        let flaps = |tick: i64| (tick < 60 && tick % 12 < 8).then_some(Shape::Holds);
        assert_eq!(changes(40, flaps), [(4, "began"), (75, "ended")]);
    }

    #[test]
    fn what_is_not_ready_is_ready_with_the_next_look() {
        let mut keeper = Keeper::default();
        let not_begun = Sign::new(HealthReason::LedgerNotBegun, Shape::Holds, "ledger", "nothing yet");
        assert_eq!(keeper.look(vec![not_begun.clone()], 0).began.len(), 1);
        assert_eq!(keeper.look(vec![not_begun], TICK), Changes::default());
        assert_eq!(keeper.look(Vec::new(), 2 * TICK).ended.len(), 1);
        assert!(keeper.reasons().is_empty());
    }

    #[test]
    fn a_number_that_moves_is_no_reason() {
        assert_eq!(changes(30, |tick| Some(Shape::Still(tick as u64))), []);
        let stands = |tick: i64| Some(Shape::Still(if (10..50).contains(&tick) { 10 } else { tick as u64 }));
        assert_eq!(changes(30, stands), [(30, "began"), (69, "ended")], "5 s after it stood, 5 s after it moved");
    }

    #[test]
    fn a_count_is_a_reason_from_its_first_growth_to_a_minute_after_the_last() {
        assert_eq!(changes(100, |_| Some(Shape::Grows(0))), []);
        let grows = |tick: i64| Some(Shape::Grows(tick.clamp(20, 40) as u64));
        assert_eq!(changes(100, grows), [(0, "began"), (280, "ended")], "what was lost before the first look counts");
        let mut keeper = Keeper::default();
        for (at, count) in [(1, 0), (2, 5), (3, 5), (4, 12)] {
            keeper.look(vec![sign(Shape::Grows(count))], at * SECOND);
        }
        let reasons = keeper.reasons();
        assert_eq!((reasons[0].count, reasons[0].for_ns), (Some(12), 2 * SECOND));
        assert_eq!(reasons[0].line(), "frames_lost: x is wrong (12 since it began), for 2 s");
    }

    #[test]
    fn a_stop_of_the_whole_process_is_nobodys_silence() {
        let mut keeper = Keeper::default();
        keeper.look(vec![sign(Shape::Still(3))], 0);
        assert_eq!(keeper.look(vec![sign(Shape::Still(3))], 3_600 * SECOND), Changes::default());
        for tick in 1..16 {
            assert_eq!(keeper.look(vec![sign(Shape::Still(3))], 3_600 * SECOND + tick * TICK), Changes::default());
        }
        assert_eq!(keeper.look(vec![sign(Shape::Still(3))], 3_604 * SECOND).began.len(), 1);
    }

    #[test]
    fn signs_of_one_reason_are_told_apart_and_the_worst_come_first() {
        let mut keeper = Keeper::default();
        let of = |reason, subject: &str| Sign::new(reason, Shape::Holds, subject, subject);
        for second in 0..4 {
            let shown = of(HealthReason::SideSilent, "deep A");
            let signs = vec![shown, of(HealthReason::StoreFull, "one"), of(HealthReason::StoreFull, "two")];
            keeper.look(signs, second * SECOND);
        }
        let subjects: Vec<String> = keeper.reasons().into_iter().map(|reason| reason.subject).collect();
        assert_eq!(subjects, ["one", "two", "deep A"]);
    }

    #[test]
    fn the_stage_decides_readiness_alone() {
        let board = HealthBoard::default();
        assert!(board.verdict().unhealthy().next().is_none());
        assert_eq!(board.verdict().not_ready().next().map(|reason| reason.reason), Some(HealthReason::Starting));
        board.run(&Sources::default());
        assert!(board.verdict().reasons.is_empty());
        board.drain();
        let verdict = board.verdict();
        assert!(verdict.not_ready().all(|reason| reason.line().starts_with("draining: the stop has begun")));
        assert_eq!(board.status().1["ready"], false);
    }
}
