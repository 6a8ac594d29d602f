//! The report for people.

use std::fmt::Write;

use super::{ClockDay, DayReport, FeedDay, PartEnd};

/// Renders a day.
pub fn render(report: &DayReport) -> String {
    let mut text = format!("data quality of {}, from {} UTC on\n", report.day, report.day_begins);
    for part in &report.parts {
        let end = match part.end {
            PartEnd::Running => "still running",
            PartEnd::DayOver => "to the end of the day",
            PartEnd::Stopped => "stopped",
            PartEnd::BrokenOff => "BROKEN OFF: what came after is not counted",
        };
        let _ = writeln!(text, "  {} to {}  process {}, {end}", part.from, part.to, part.pid);
    }
    for feed in &report.feeds {
        self::feed(feed, &mut text);
    }
    clock(&report.clock, &mut text);
    text
}

fn feed(feed: &FeedDay, text: &mut String) {
    let terms = &feed.terms;
    let _ = writeln!(text, "\nfeed {} (stamps: {})", feed.feed, feed.stamps);
    let nothing = "nothing came".to_string();
    let (first, last) = (feed.first.as_ref().unwrap_or(&nothing), feed.last.as_ref().unwrap_or(&nothing));
    let _ = writeln!(text, "  first message    {first}\n  last message     {last}");
    let truncated = if feed.gaps_truncated { ", at least: the list of ranges is full" } else { "" };
    for (name, value, what) in [
        ("sessions", terms.sessions, format!("{} runs", terms.runs)),
        ("offered", terms.offered, "messages of all sides".into()),
        ("messages", terms.messages, "in order, each once".into()),
        ("duplicates", terms.duplicates, "messages of which another copy had come".into()),
        ("gaps", terms.gaps, format!("of {} messages, lost on every side{truncated}", terms.gap_messages)),
        ("filled late", terms.late_fills, "messages that came after their gap was declared".into()),
        ("late", terms.late, "messages too late for any use".into()),
        (
            "rejected",
            terms.rejected_wild + terms.rejected_overflow + terms.rejected_limit,
            format!(
                "wild {}, overflow {}, limit {}",
                terms.rejected_wild, terms.rejected_overflow, terms.rejected_limit
            ),
        ),
        (
            "stored",
            terms.stored,
            format!("lost by the store {}, not handed to it {}", terms.store_lost, terms.not_handed),
        ),
        ("published", terms.published, format!("refused by the ring {}", terms.publish_refused)),
        ("open", feed.held, format!("held or missing at the end; {} on their way to the disk", feed.in_flight)),
    ] {
        let _ = writeln!(text, "  {name:<12} {value:>15}  {what}");
    }
    let _ = writeln!(
        text,
        "  {:<12} {:>15} {:>12} {:>12} {:>15} {:>10} {:>12}",
        "side", "messages", "lost", "recovered", "first copies", "reordered", "dropped here"
    );
    for side in &feed.sides {
        let terms = &side.terms;
        let _ = writeln!(
            text,
            "  {:<12} {:>15} {:>12} {:>12} {:>15} {:>10} {:>12}",
            format!("{} ({})", side.side, side.name),
            terms.messages,
            terms.lost,
            terms.recovered,
            terms.first,
            terms.reordered,
            terms.dropped_here
        );
    }
}

fn clock(clock: &ClockDay, text: &mut String) {
    let terms = &clock.terms;
    let offset = match clock.tai_offset_seconds {
        Some(offset) => format!("TAI - UTC {offset} s"),
        None => "TAI - UTC NOT SET".into(),
    };
    let share = |looks: i64| match (looks, terms.looks) {
        (_, 0) => "not looked at".into(),
        (looks, all) if looks == all => "all the time".to_string(),
        (looks, all) => format!("in {looks} of {all} looks"),
    };
    let _ = writeln!(
        text,
        "\nclock: {offset}, known {}; kept by a daemon {}; {} steps of {} s in all; {} packets without a stamp",
        share(terms.tai_known_looks),
        share(terms.synchronized_looks),
        terms.steps,
        terms.stepped_ns as f64 / 1e9,
        terms.unstamped_frames
    );
}
