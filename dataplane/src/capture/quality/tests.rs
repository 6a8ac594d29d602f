use super::*;

const HOUR: i64 = 3_600 * NANOS_PER_SECOND;

fn at(text: &str) -> i64 {
    parse_instant(&format!("{text}.000000000Z")).expect("a moment")
}

fn settings(started: &str, pid: u32) -> RecorderSettings {
    RecorderSettings { day_begins_s: 0, stamps: vec![("deep".into(), "software")], pid, started_ns: at(started) }
}

/// Books after so many messages, of which side A lost every tenth and both lost every hundredth.
fn books(messages: i64, stamps_ns: (i64, i64)) -> Books {
    let side = |side: &str, lost: i64, recovered: i64| SideBooks {
        side: side.into(),
        name: side.into(),
        terms: SideTerms { messages: messages - lost, lost, recovered, ..SideTerms::default() },
    };
    let terms = FeedTerms {
        offered: 2 * messages - messages / 10 - messages / 100,
        messages: messages - messages / 100,
        gaps: messages / 100,
        gap_messages: messages / 100,
        sessions: 1,
        runs: 1,
        stored: messages - messages / 100,
        ..FeedTerms::default()
    };
    let (a, b) = (side("A", messages / 10, messages / 10 - messages / 100), side("B", messages / 100, 0));
    let feed = FeedBooks { feed: "deep".into(), terms, sides: vec![a, b], stamps_ns, ..FeedBooks::default() };
    let clock = ClockTerms { looks: messages / 10, tai_known_looks: messages / 10, ..ClockTerms::default() };
    Books { feeds: vec![feed], clock, tai_offset_s: Some(37) }
}

#[test]
fn a_day_is_what_was_counted_in_it() {
    let mut recorder = Recorder::new(settings("2026-11-29T22:00:00", 7));
    let (first, evening) = (at("2026-11-29T22:00:05"), at("2026-11-29T23:59:58"));
    recorder.look([(first, first + HOUR)].into_iter());
    // The roll: the last look at the old day is the new day's first.
    let midnight = at("2026-11-30T00:00:00");
    assert_ne!(recorder.day_at(midnight), recorder.day());
    assert_eq!(recorder.day_at(midnight - 1), recorder.day());
    let roll = books(1_000, (first, evening));
    let old = recorder.report(&roll, midnight, PartEnd::DayOver);
    recorder.begin(roll, midnight);
    assert_eq!((old.day.as_str(), old.feeds[0].terms.messages, old.feeds[0].terms.gaps), ("2026-11-29", 990, 10));
    assert_eq!(old.feeds[0].first, Some(instant(first)));
    assert_eq!(old.feeds[0].last, Some(instant(evening)));
    // A day of which nothing came yet.
    let quiet = recorder.report(&books(1_000, (first, evening)), midnight + HOUR, PartEnd::Running);
    assert_eq!((quiet.feeds[0].terms, quiet.feeds[0].first.clone()), (FeedTerms::default(), None));
    // Then its own share, and its own first message: as it was seen first.
    let morning = at("2026-11-30T08:00:00");
    recorder.look([(first, morning)].into_iter());
    recorder.look([(first, morning + 7)].into_iter());
    let new = recorder.report(&books(1_500, (first, morning + HOUR)), morning + HOUR, PartEnd::Running);
    let feed = &new.feeds[0];
    assert_eq!((feed.terms.messages, feed.terms.gap_messages, feed.terms.sessions), (495, 5, 0));
    assert_eq!((feed.sides[0].terms.lost, feed.sides[0].terms.recovered, feed.sides[1].terms.lost), (50, 45, 5));
    assert_eq!((&feed.first, &feed.last), (&Some(instant(morning)), &Some(instant(morning + HOUR))));
    assert_eq!((new.clock.terms.looks, new.clock.terms.tai_known_looks), (50, 50));
    assert_eq!(old.feeds[0].terms.messages + feed.terms.messages, 1_485, "nothing is in both or in none");
}

#[test]
fn parts_of_several_processes_are_summed() {
    let (one, two) = (at("2026-11-30T08:00:00"), at("2026-11-30T09:00:00"));
    let mut first = Recorder::new(settings("2026-11-30T07:00:00", 7));
    let killed = first.report(&books(1_000, (one, one + HOUR)), two, PartEnd::Running).json();
    // It was killed; the next one takes its part up from the file.
    let mut second = Recorder::new(settings("2026-11-30T09:30:00", 8));
    second.take_up(killed.as_bytes()).expect("whole");
    let stopped = second.report(&books(500, (two + HOUR, two + 2 * HOUR)), two + 3 * HOUR, PartEnd::Stopped);
    assert_eq!(stopped.parts.iter().map(|part| part.end).collect::<Vec<_>>(), [PartEnd::BrokenOff, PartEnd::Stopped]);
    let feed = &stopped.feeds[0];
    assert_eq!((feed.terms.messages, feed.terms.sessions, feed.sides[0].terms.lost), (1_485, 2, 150));
    assert_eq!((&feed.first, &feed.last), (&Some(instant(one)), &Some(instant(two + 2 * HOUR))));
    // And a third, whose file is torn, begins anew and says so.
    let torn = &stopped.json().into_bytes()[..200];
    let mut third = Recorder::new(settings("2026-11-30T15:00:00", 9));
    assert!(third.take_up(torn).is_err());
    assert!(third.take_up(stopped.json().replace("2026-11-30\"", "2026-11-29\"").as_bytes()).is_err(), "another day's");
    assert_eq!(third.report(&books(0, (0, 0)), at("2026-11-30T15:01:00"), PartEnd::Running).parts.len(), 1);
}

#[test]
fn a_clock_that_is_set_back_over_midnight_leads_back_to_the_day_before() {
    let mut recorder = Recorder::new(settings("2026-11-29T23:00:00", 7));
    let midnight = at("2026-11-30T00:00:00");
    let old = recorder.report(&books(100, (1, 2)), midnight, PartEnd::DayOver).json();
    recorder.begin(books(100, (1, 2)), midnight);
    let today = recorder.report(&books(300, (1, 3)), midnight + 5, PartEnd::DayOver);
    // Back: what was counted meanwhile belongs to the day that was begun, and the old day goes on with a second part.
    recorder.begin(books(300, (1, 3)), midnight - HOUR);
    recorder.take_up(old.as_bytes()).expect("the same day");
    let again = recorder.report(&books(700, (1, 4)), midnight - 1, PartEnd::DayOver);
    assert_eq!((today.day.as_str(), again.day.as_str()), ("2026-11-30", "2026-11-29"));
    assert_eq!((today.feeds[0].terms.messages, again.feeds[0].terms.messages), (198, 99 + 396));
    assert_eq!(again.parts.len(), 2);
}

#[test]
fn late_copies_take_from_the_gaps_of_another_day() {
    let mut recorder = Recorder::new(settings("2026-11-29T22:00:00", 7));
    let gone = books(1_000, (1, 2));
    recorder.begin(gone.clone(), at("2026-11-30T00:00:00"));
    let mut filled = gone;
    filled.feeds[0].terms.gap_messages -= 4;
    filled.feeds[0].terms.late_fills += 4;
    let report = recorder.report(&filled, at("2026-11-30T01:00:00"), PartEnd::Running);
    assert_eq!((report.feeds[0].terms.gap_messages, report.feeds[0].terms.late_fills), (-4, 4));
}

#[test]
fn the_text_names_what_an_operator_asks_for() {
    let mut recorder = Recorder::new(settings("2026-11-30T07:00:00", 7));
    let mut now = books(1_000, (at("2026-11-30T08:00:00"), at("2026-11-30T09:00:00")));
    (now.clock.steps, now.clock.stepped_ns, now.clock.tai_known_looks) = (2, 1_500_000_000, 60);
    let text = recorder.report(&now, at("2026-11-30T10:00:00"), PartEnd::Running).text();
    for part in [
        "data quality of 2026-11-30, from 00:00 UTC on\n",
        "process 7, still running\n",
        "feed deep (stamps: software)\n",
        "  first message    2026-11-30T08:00:00.000000000Z\n",
        "  gaps                      10  of 10 messages, lost on every side\n",
        "  A (A)                    900          100           90",
        "known in 60 of 100 looks; kept by a daemon in 0 of 100 looks; 2 steps of 1.5 s in all",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}
