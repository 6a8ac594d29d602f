//! What the capture job says of its own trouble.

use super::plan::{FeedView, QueueView};
use super::stats::{ArbiterCounter, QueueCounter};
use crate::sync::health::{HealthReason, Shape, Sign};

/// How often the residue is computed: it asks each arbiter for a report, and only when no message came meanwhile.
const REST_LOOK_NS: i64 = 5_000_000_000;

/// Frames that a queue lost on this host.
pub(super) fn frames_lost(queue: &QueueView) -> Sign {
    let get = |counter| queue.counters.get(counter);
    let lost = get(QueueCounter::RxDropped)
        + get(QueueCounter::RxRingFull)
        + get(QueueCounter::LinkFull)
        + get(QueueCounter::RawLinkFull);
    let of = format!("{} queue {}", queue.source, queue.queue);
    let what = format!("{of}: frames were lost on this host (rx_dropped, rx_ring_full, link_full)");
    Sign::new(HealthReason::FramesLost, Shape::Grows(lost), of, what)
}

/// Silent sides, and messages that were lost behind the arbiter.
pub(super) fn feed(feed: &FeedView, out: &mut Vec<Sign>) {
    let get = |counter| feed.counters.get(counter);
    let lost = get(ArbiterCounter::LostLinkFull)
        + get(ArbiterCounter::LostCopyPool)
        + get(ArbiterCounter::LostRaw)
        + get(ArbiterCounter::PublishRefused);
    let what = format!("feed \"{}\": messages could not be handed to its store or ring", feed.name);
    out.push(Sign::new(HealthReason::MessagesLost, Shape::Grows(lost), feed.name.clone(), what));
    if !feed.from_files {
        let heard = get(ArbiterCounter::Segments) > 0;
        sides(&feed.name, &feed.sides, get(ArbiterCounter::SidesLive), heard, out);
    }
}

/// The silent sides of a feed of which the sides with a bit in `live` are live.
fn sides(feed: &str, names: &[String], live: u64, heard: bool, out: &mut Vec<Sign>) {
    if live == 0 {
        let what = match heard {
            true => format!("feed \"{feed}\": no side is live"),
            false => format!("feed \"{feed}\": no side is live; nothing has come since the start"),
        };
        out.push(Sign::new(HealthReason::SidesSilent, Shape::Holds, feed, what));
        return;
    }
    for (at, side) in names.iter().enumerate().filter(|(at, _)| live >> at & 1 == 0) {
        let what = format!("feed \"{feed}\" side \"{side}\": it is silent; another side is live");
        out.push(Sign::new(HealthReason::SideSilent, Shape::Holds, format!("{feed} {at}"), what));
    }
}

/// The residue while nothing moves. Under load it is what is in flight, and says nothing.
#[derive(Default)]
pub(super) struct Rest {
    messages: u64,
    looked_ns: Option<i64>,
    residue: u64,
}

impl Rest {
    /// The sign of now. `messages`: taken by all arbiters; `residue` is only computed when they stand still.
    pub(super) fn sign(&mut self, messages: u64, now: i64, residue: impl FnOnce() -> u64) -> Option<Sign> {
        if self.looked_ns.is_none_or(|looked| now - looked >= REST_LOOK_NS) {
            let rests = self.looked_ns.is_some() && self.messages == messages;
            self.residue = if rests { residue() } else { 0 };
            (self.messages, self.looked_ns) = (messages, Some(now));
        }
        let what = "the conservation table does not balance at rest: please report it with the status";
        (self.residue != 0).then(|| Sign::new(HealthReason::Residue, Shape::Holds, "capture", what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(live: u64, heard: bool) -> Vec<(HealthReason, String)> {
        let mut out = Vec::new();
        sides("deep", &["A".into(), "B".into()], live, heard, &mut out);
        out.into_iter().map(|sign| (sign.reason, sign.what)).collect()
    }

    #[test]
    fn a_silent_feed_is_another_thing_than_a_silent_side() {
        assert_eq!(of(0b11, true), []);
        let side = (HealthReason::SideSilent, "feed \"deep\" side \"B\": it is silent; another side is live".into());
        assert_eq!(of(0b01, true), [side]);
        assert_eq!(of(0, true), [(HealthReason::SidesSilent, "feed \"deep\": no side is live".into())]);
        assert!(of(0, false)[0].1.ends_with("nothing has come since the start"));
    }

    #[test]
    fn a_residue_counts_only_while_no_message_comes() {
        let mut rest = Rest::default();
        let second = 1_000_000_000;
        let mut at = |messages, seconds: i64, residue: Option<u64>| {
            let compute = || residue.expect("it is not computed while messages come, nor more often than every 5 s");
            rest.sign(messages, seconds * second, compute).map(|sign| sign.reason)
        };
        assert_eq!(at(0, 0, None), None, "what came before the first look is not known");
        assert_eq!(at(10, 5, None), None);
        assert_eq!(at(10, 9, None), None, "not yet again");
        assert_eq!(at(10, 10, Some(3)), Some(HealthReason::Residue));
        assert_eq!(at(10, 12, None), Some(HealthReason::Residue));
        assert_eq!(at(10, 15, Some(0)), None);
        assert_eq!(at(11, 20, None), None);
    }
}
