//! The arbiter under seeded stalls, skew, dead sides, restarts, replays, wild numbers and tiny windows, held against
//! an oracle that only knows what was published and what each side delivered.
//!
//! `SLUICE_SEEDS` sets how many seeds run (2,000); `SLUICE_SEED` replays one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use sluice::feed::arbiter::{Arbiter, ArbiterSettings, Fault};
use sluice::units::{NANOS_PER_SECOND, Side};
use sluice::wire::segment::SessionKey;

use crate::common::feed::{EPOCH_NS, Merged, Packet, Publisher, Recorder};

const MS: i64 = 1_000_000;
const SEEDS: u64 = 2000;
/// Packets at the head of a run in which no side stalls or loses much: a restart is seen by its going back, so a leading
/// side must not begin a run beyond where a lagging one still is in the run before.
const VISIBLE_PACKETS: usize = 60;

/// One delivery: when, by whom, and which packet (`None`: a wild one, in `wild`).
struct Delivery {
    at_ns: i64,
    side: Side,
    packet: Packet,
    wild: bool,
}

/// What one seed does.
struct World {
    settings: ArbiterSettings,
    published: Vec<Packet>,
    deliveries: Vec<Delivery>,
    /// No forced advance and no step back inside a side can happen.
    gentle: bool,
    /// The times at which sides end, if before the rest.
    ends: Vec<(i64, Side)>,
}

#[test]
fn the_arbiter_keeps_its_invariants() {
    if let Ok(seed) = std::env::var("SLUICE_SEED") {
        let seed = seed.parse().expect("SLUICE_SEED is a number");
        let tally = simulate(seed, Fault::None).unwrap_or_else(|what| panic!("SLUICE_SEED={seed}: {what}"));
        eprintln!("seed {seed}: {tally:?}");
        return;
    }
    let seeds = std::env::var("SLUICE_SEEDS").map_or(SEEDS, |n| n.parse().expect("SLUICE_SEEDS is a number"));
    let mut total = Tally::default();
    for seed in 0..seeds {
        let run = catch_unwind(AssertUnwindSafe(|| simulate(seed, Fault::None)));
        match run {
            Ok(Ok(tally)) => total.add(&tally),
            Ok(Err(what)) => panic!("SLUICE_SEED={seed}: {what}"),
            Err(_) => panic!("SLUICE_SEED={seed}: the arbiter panicked"),
        }
    }
    eprintln!("{seeds} seeds: {total:?}");
    if seeds >= 200 {
        let rare = [total.late_fill, total.late, total.gap, total.wild, total.duplicate, total.restarts, total.forced];
        assert!(rare.iter().all(|&n| n > 0), "the simulator does not reach everything: {total:?}");
        assert!(total.exact * 4 > seeds, "too few seeds are judged exactly: {total:?}");
    }
}

#[test]
fn planted_bugs_are_caught() {
    let faults = [
        Fault::HighestFrontier,
        Fault::LateFillKeepsGap,
        Fault::HeldDuplicateUncounted,
        Fault::SlotsLeak,
        Fault::CloseSkipsGap,
        Fault::WrongSlot,
    ];
    for fault in faults {
        let caught = (0..400).find(|&seed| {
            let run = catch_unwind(AssertUnwindSafe(|| simulate(seed, fault)));
            !matches!(run, Ok(Ok(_)))
        });
        eprintln!("{fault:?}: caught by seed {caught:?}");
        assert!(caught.is_some(), "{fault:?} is not caught by 400 seeds");
    }
}

/// What was reached, summed over seeds.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    unique: u64,
    duplicate: u64,
    late_fill: u64,
    late: u64,
    gap: u64,
    wild: u64,
    restarts: u64,
    forced: u64,
    exact: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.unique += other.unique;
        self.duplicate += other.duplicate;
        self.late_fill += other.late_fill;
        self.late += other.late;
        self.gap += other.gap;
        self.wild += other.wild;
        self.restarts += other.restarts;
        self.forced += other.forced;
        self.exact += other.exact;
    }
}

fn world(seed: u64, fault: Fault) -> World {
    let mut g = Pcg64Mcg::seed_from_u64(seed);
    let gentle = g.random_bool(0.4);
    let sides = [2, 2, 2, 2, 1, 3, 4][g.random_range(0..7usize)];
    let published = publish(&mut g);
    let mut settings = ArbiterSettings {
        window_messages: 4096,
        streams_max: 12,
        gaps_max: 4096,
        start_session: g.random_bool(0.1),
        fault,
        ..ArbiterSettings::files(sides)
    };
    if !gentle {
        settings.window_messages = [1, 4, 64, 1024, 4096][g.random_range(0..5usize)];
        settings.gaps_max = [1, 4, 4096, 4096][g.random_range(0..4usize)];
        settings.slots = [0, 0, 0, 8, 200][g.random_range(0..5usize)];
        settings.hold_ns = g.random_bool(0.6).then(|| g.random_range(0..30) * MS);
        settings.side_timeout_ns = g.random_bool(0.6).then(|| g.random_range(20..500) * MS);
    }
    let mut deliveries = Vec::new();
    let mut ends = Vec::new();
    for side in 0..sides {
        let side = Side(side as u8);
        deliver_side(&mut g, side, gentle, &published, &mut deliveries);
        if side != Side::A && !gentle && g.random_bool(0.1) {
            ends.push((published[g.random_range(0..published.len())].send(), side));
        }
    }
    deliveries.retain(|d| ends.iter().all(|&(at, side)| d.side != side || d.at_ns < at));
    if g.random_bool(0.5) {
        add_wild(&mut g, sides, &published, &mut deliveries);
    }
    deliveries.sort_by_key(|delivery| (delivery.at_ns, delivery.side));
    World { settings, published, deliveries, gentle, ends }
}

fn publish(g: &mut Pcg64Mcg) -> Vec<Packet> {
    let mut published = Vec::new();
    for session in 0..g.random_range(1..=2) {
        let mut publisher = Publisher::new(session);
        if g.random_bool(0.3) {
            publisher.skip(g.random_range(1..100_000));
        }
        for run in 0..g.random_range(1..=3) {
            if run > 0 {
                publisher.restart(g.random_range(0..3) * 400 * MS);
            }
            for at in 0..g.random_range(100..200) {
                publisher.now_ns += g.random_range(0..4) * MS;
                if g.random_bool(0.005) {
                    publisher.now_ns += g.random_range(0..1500) * MS;
                }
                if at > 90 && g.random_bool(0.002) {
                    publisher.skip([1, 3, 500, 2_000_000][g.random_range(0..4usize)]);
                }
                let count = if g.random_bool(0.15) { 0 } else { g.random_range(1..8) };
                published.push(publisher.packet(count));
            }
        }
    }
    published.sort_by_key(Packet::send);
    published
}

fn deliver_side(g: &mut Pcg64Mcg, side: Side, gentle: bool, published: &[Packet], out: &mut Vec<Delivery>) {
    let loss: f64 = if side == Side::A { [0.0, 0.02, 0.15] } else { [0.0, 0.05, 0.5] }[g.random_range(0..3usize)];
    if side != Side::A && g.random_bool(0.05) {
        return; // dead from the start
    }
    let lag = [0, 0, 1, 30, 300][g.random_range(0..5usize)] * MS;
    let jitter = [1, MS, 5 * MS][g.random_range(0..3usize)];
    let reorders = !gentle && g.random_bool(0.3);
    let mut stalled_until = 0;
    let mut last_ns = 0;
    let mut run_began: HashMap<(SessionKey, u32), usize> = HashMap::new();
    for (at, packet) in published.iter().enumerate() {
        let in_run = run_began.entry((packet.key, packet.run)).or_default();
        *in_run += 1;
        let protected = *in_run < VISIBLE_PACKETS;
        if !protected && g.random_bool(0.004) {
            stalled_until = packet.send() + g.random_range(0..1000) * MS;
        }
        if (packet.send() < stalled_until && !protected) || g.random_bool(if protected { loss.min(0.15) } else { loss })
        {
            continue;
        }
        let mut at_ns = packet.send() + lag + g.random_range(0..jitter);
        if !reorders {
            at_ns = at_ns.max(last_ns);
        }
        last_ns = last_ns.max(at_ns);
        out.push(Delivery { at_ns, side, packet: packet.clone(), wild: false });
        if g.random_bool(0.02) {
            out.push(Delivery { at_ns: last_ns, side, packet: packet.clone(), wild: false });
        }
        if !gentle && g.random_bool(0.002) {
            for old in &published[at.saturating_sub(80)..at] {
                out.push(Delivery { at_ns: last_ns, side, packet: old.clone(), wild: false });
            }
        }
    }
}

fn add_wild(g: &mut Pcg64Mcg, sides: usize, published: &[Packet], out: &mut Vec<Delivery>) {
    // A session's first segment is never doubted: a wild one can come only after it.
    let mut began: HashMap<SessionKey, i64> = HashMap::new();
    for delivery in out.iter() {
        let at_ns = began.entry(delivery.packet.key).or_insert(delivery.at_ns);
        *at_ns = delivery.at_ns.min(*at_ns);
    }
    for _ in 0..g.random_range(1..30) {
        let at = g.random_range(0..out.len());
        let (at_ns, side) = (out[at].at_ns, Side(g.random_range(0..sides) as u8));
        let mut packet = published[g.random_range(0..published.len())].clone();
        // Far up by an amount of its own, so that no two wild ones agree by accident.
        let up = 3_100_000 + g.random_range(0..1 << 40);
        match g.random_range(0..5) {
            0 => packet.first = g.random_range(3_100_000..u64::MAX),
            1 => packet.first = u64::MAX - g.random_range(0..9),
            // An offset alone is tested only where the sequence lies above the end: elsewhere a smaller one is believed.
            2 => packet.offset = Some(g.random_range(1 << 63..=u64::MAX)),
            3 => {
                packet.first += up;
                packet.send_ns = Some(at_ns + g.random_range(61..1000) * NANOS_PER_SECOND);
            }
            _ => {
                packet.first += up;
                packet.send_ns = Some(g.random_range(0..EPOCH_NS));
            }
        }
        if began.get(&packet.key).is_some_and(|&began| began < at_ns) {
            out.push(Delivery { at_ns, side, packet, wild: true });
        }
    }
}

/// Runs one seed. `Err` says which invariant broke.
fn simulate(seed: u64, fault: Fault) -> Result<Tally, String> {
    let world = world(seed, fault);
    let mut arbiter = Arbiter::new(world.settings);
    let mut out = Recorder::default();
    let mut ends = world.ends.clone();
    let mut now = 0;
    for (step, delivery) in world.deliveries.iter().enumerate() {
        while let Some(deadline) = arbiter.deadline().filter(|&deadline| deadline < delivery.at_ns) {
            // Half the seeds leave the clock to the segments, as files do.
            if seed.is_multiple_of(2) {
                break;
            }
            now = deadline.max(now);
            arbiter.on_tick(now, &mut out);
            ensure(arbiter.deadline().is_none_or(|next| next > now), || "a deadline in the past".into())?;
        }
        now = delivery.at_ns.max(now);
        if let Some(place) = ends.iter().position(|&(at, _)| at <= now) {
            let (_, side) = ends.remove(place);
            arbiter.end_side(side, now, &mut out);
        }
        out.give(&mut arbiter, delivery.side, &delivery.packet, now);
        if step % 16 == 0 {
            balanced(&arbiter)?;
        }
    }
    balanced(&arbiter)?;
    arbiter.finish(now, &mut out);
    balanced(&arbiter)?;
    if std::env::var("SLUICE_SEED").is_ok() {
        tell(&world, &arbiter);
    }
    judge(&world, &arbiter, &out)
}

/// What one replayed seed was about.
fn tell(world: &World, arbiter: &Arbiter) {
    eprintln!("{:?} gentle: {}", world.settings, world.gentle);
    let mut runs: BTreeMap<(String, u32), (u64, u64, i64, i64)> = BTreeMap::new();
    for p in &world.published {
        let run = runs.entry((p.key.to_string(), p.run)).or_insert((p.first, 0, p.send(), 0));
        (run.1, run.3) = (p.end(), p.send());
    }
    for ((key, run), (first, end, from, to)) in runs {
        eprintln!("published {key} run {run}: {first}..{end}, sent {}..{} ms", from / MS, to / MS);
    }
    for d in world.deliveries.iter().filter(|d| d.wild) {
        let p = &d.packet;
        let (at, send) = (d.at_ns / MS, p.send() / MS);
        eprintln!("wild at {at} ms {:?} {}: {}+{} at {:?}, sent {send} ms", d.side, p.key, p.first, p.count, p.offset);
    }
    for stream in arbiter.streams() {
        eprintln!("stream {:?} {}/r{}: {:?}", stream.id(), stream.key(), stream.run_id(), stream.counts());
    }
}

fn ensure(condition: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(what()) }
}

fn balanced(arbiter: &Arbiter) -> Result<(), String> {
    let residues = arbiter.check_conservation();
    ensure(residues.is_empty(), || format!("{residues:?}"))
}

/// What the oracle knows of one (session, run).
#[derive(Default)]
struct Truth {
    bodies: BTreeMap<u64, Vec<u8>>,
    delivered: BTreeSet<u64>,
    by_side: [BTreeSet<u64>; 4],
}

fn truths(world: &World) -> HashMap<(SessionKey, u32), Truth> {
    let mut truths: HashMap<(SessionKey, u32), Truth> = HashMap::new();
    for packet in &world.published {
        let truth = truths.entry((packet.key, packet.run)).or_default();
        truth.bodies.extend((packet.first..).zip(packet.segment().messages().map(<[u8]>::to_vec)));
    }
    for delivery in world.deliveries.iter().filter(|delivery| !delivery.wild) {
        let packet = &delivery.packet;
        let truth = truths.get_mut(&(packet.key, packet.run)).expect("published");
        truth.delivered.extend(packet.first..packet.end());
        truth.by_side[delivery.side.index()].extend(packet.first..packet.end());
    }
    truths
}

fn judge(world: &World, arbiter: &Arbiter, out: &Recorder) -> Result<Tally, String> {
    let truths = truths(world);
    let merged = out.merged()?;
    let (free, slots) = arbiter.slots();
    ensure(free == slots, || format!("{free} of {slots} slots came home"))?;
    let given: u64 = world.deliveries.iter().map(|d| u64::from(d.packet.count)).sum();
    let offered: u64 = arbiter.streams().iter().map(|s| s.counts().offered).sum();
    let offered = offered + arbiter.unattributed().offered;
    ensure(given == offered, || format!("{given} messages given, {offered} booked"))?;
    let wild: u64 = world.deliveries.iter().filter(|d| d.wild).map(|d| u64::from(d.packet.count)).sum();
    let rejected = rejected(arbiter);
    let mut tally = Tally { wild: rejected.min(wild), ..Tally::default() };
    for stream in arbiter.streams() {
        let counts = stream.counts();
        let id = stream.id().0;
        let left = (counts.held, counts.pending, stream.missing());
        ensure(left == (0, 0, 0), || format!("stream {id}: left at the end: {left:?}"))?;
        let merged = merged.get(&id).ok_or_else(|| format!("stream {id} never began"))?;
        ensure(merged.ended, || format!("stream {id} never ended"))?;
        let sums = (merged.emitted, merged.late_filled, merged.base, merged.next);
        let told = (counts.unique, counts.late_fill, counts.base, counts.frontier);
        ensure(sums == told, || format!("stream {id}: events give {sums:?}, counters {told:?}"))?;
        let truth = truth_of(stream.key(), merged, &truths).map_err(|what| format!("stream {id}: {what}"))?;
        if let Some(truth) = truth {
            let excess = rejected.saturating_sub(wild);
            losses(world, arbiter, id, merged, truth, excess).map_err(|what| format!("stream {id}: {what}"))?;
        }
        tally.unique += counts.unique;
        tally.duplicate += counts.duplicate;
        tally.late_fill += counts.late_fill;
        tally.late += counts.late;
        tally.gap += counts.gap;
        tally.forced += counts.forced_window + counts.forced_slots + counts.forced_hold;
    }
    tally.restarts = arbiter.streams().len() as u64 - 1;
    tally.exact = u64::from(rejected == wild && world.gentle);
    Ok(tally)
}

fn rejected(arbiter: &Arbiter) -> u64 {
    let streams = arbiter.streams().iter().map(|s| s.counts());
    let of_streams: u64 = streams.map(|c| c.rejected_wild + c.rejected_overflow + c.rejected_limit).sum();
    of_streams + arbiter.unattributed().rejected_limit + arbiter.unattributed().rejected_overflow
}

/// The one published run whose bytes a stream gave out; every message must be its own. `None`: it gave out nothing.
fn truth_of<'a>(
    key: &SessionKey,
    merged: &Merged,
    truths: &'a HashMap<(SessionKey, u32), Truth>,
) -> Result<Option<&'a Truth>, String> {
    let Some(body) = merged.bodies.values().next() else { return Ok(None) };
    let run = u32::from_le_bytes(body[10..14].try_into().expect("four bytes"));
    let truth = truths.get(&(*key, run)).ok_or("bytes that nobody published")?;
    for (sequence, body) in &merged.bodies {
        if truth.bodies.get(sequence) != Some(body) {
            return Err(format!("message {sequence} has not the bytes that run {run} published"));
        }
    }
    Ok(Some(truth))
}

fn losses(
    world: &World,
    arbiter: &Arbiter,
    id: u32,
    merged: &Merged,
    truth: &Truth,
    rejected_true: u64,
) -> Result<(), String> {
    let stream = &arbiter.streams()[id as usize];
    let counts = stream.counts();
    let huge = counts.gap != merged.lost.len() as u64;
    ensure(!huge || counts.gap > 1_000_000, || format!("{} lost, {} counted", merged.lost.len(), counts.gap))?;
    let wrongly = merged.lost.iter().filter(|&sequence| truth.delivered.contains(sequence)).count() as u64;
    ensure(wrongly <= counts.late + rejected_true, || {
        format!("{wrongly} lost messages were delivered, but only {} were late", counts.late)
    })?;
    let window = u64::from(world.settings.window_messages);
    // A session that is accounted from 1 and begins later opens with a hole; with one side still silent, what comes
    // behind the hole fills the window and forces it though the hole alone would fit (seed 72365: 3,972 + 433 > 4,096).
    let late_opening = world.settings.start_session && counts.frontier - counts.base > window;
    let beyond_window = counts.gap > window || late_opening;
    if !world.gentle || beyond_window || rejected_true > 0 {
        return Ok(());
    }
    ensure(counts.late_fill == 0, || format!("{} late fills without any reason", counts.late_fill))?;
    ensure(counts.forced_window + counts.forced_slots == 0, || format!("forced in a large window: {counts:?}"))?;
    let report = arbiter.report();
    let name = format!("{}/r{}", stream.key(), stream.run_id());
    let report = report.streams.iter().find(|report| report.stream == name).expect("every stream is reported");
    let residual: Vec<u64> = report.gaps.iter().flat_map(|gap| gap.first..=gap.last).collect();
    ensure(residual.iter().eq(merged.lost.iter()), || "the report's gaps are not those that were given out".into())?;
    if counts.late > 0 {
        return Ok(());
    }
    for side in &report.sides {
        let delivered = &truth.by_side[(side.side as u8 - b'A') as usize];
        let lost: Vec<u64> = (counts.base..counts.frontier).filter(|sequence| !delivered.contains(sequence)).collect();
        let told: Vec<u64> = side.gaps.iter().flat_map(|gap| gap.first..=gap.last).collect();
        ensure(lost == told, || format!("side {}: lost {} messages, told {}", side.side, lost.len(), told.len()))?;
        let recovered = lost.iter().filter(|&sequence| truth.delivered.contains(sequence)).count() as u64;
        ensure((lost.len() as u64, recovered) == (side.lost, side.recovered), || {
            format!("side {}: recovered {recovered}, told {}", side.side, side.recovered)
        })?;
    }
    let wins: u64 = report.sides.iter().map(|side| side.wins).sum();
    ensure(wins == counts.unique + counts.late_fill, || format!("{wins} wins of {} messages", counts.unique))
}
