//! The data-quality report per feed and day: what came, what was lost on which side, how the clock was.
//!
//! Counters only grow while a process runs; a day's share is the difference between two looks at them, [`Books`]. A day may see
//! several processes: each has its [`Part`], and the day's total is their sum. Books, bytes of earlier parts and the time go in,
//! a report comes out: nothing here reads a clock or a file.

use serde::{Deserialize, Serialize};

use super::plan::{FeedView, SideView};
use super::stats::{ArbiterCounter, SideCounter};
use super::status::StoreBook;
use crate::feed::arbiter::ArbiterReport;
use crate::units::{NANOS_PER_SECOND, Side};

mod text;
mod time;

pub use time::{Day, instant, parse_instant};

/// The report's version: fields are added, none changes its meaning.
pub const VERSION: u32 = 1;

/// Numbers that are taken from and added to each other field by field.
macro_rules! terms {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: i64,)*
        }

        impl $name {
            fn minus(&self, other: &$name) -> $name {
                $name { $($field: self.$field - other.$field,)* }
            }

            fn add(&mut self, other: &$name) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

terms! {
    /// A feed's numbers. What is lost can become less: a late copy may come on another day than its gap.
    FeedTerms {
        /// Messages of all sides.
        offered,
        /// Messages emitted in order, each once.
        messages,
        /// Messages of which another copy had come.
        duplicates,
        /// Messages that came after their gap was declared.
        late_fills,
        /// Other messages below the next one.
        late,
        /// Messages of suspects that nobody confirmed.
        rejected_wild,
        /// Messages with numbers that cannot be.
        rejected_overflow,
        /// Messages beyond streams_max or runs_max.
        rejected_limit,
        /// Ranges lost on every side.
        gaps,
        /// Messages in them.
        gap_messages,
        /// Sessions that began.
        sessions,
        /// Runs that began, the sessions' first ones included.
        runs,
        /// Messages in completed writes of the store.
        stored,
        /// Messages that the store could not write.
        store_lost,
        /// Messages that could not be handed to the store.
        not_handed,
        /// Messages published in the feed's ring.
        published,
        /// Messages that the ring could not take.
        publish_refused,
    }
}

terms! {
    /// A side's numbers.
    SideTerms {
        /// Messages that its segments carried.
        messages,
        /// Messages that it never delivered.
        lost,
        /// Of those, supplied by another side.
        recovered,
        /// Messages of which its copy was first.
        first,
        /// Segments that came after a later one of the side.
        reordered,
        /// Messages that this host dropped between queue and arbiter.
        dropped_here,
    }
}

terms! {
    /// The clock's numbers.
    ClockTerms {
        /// Times that the wall clock was set.
        steps,
        /// How far in all, whichever way, ns.
        stepped_ns,
        /// Looks at the clock, about one a second.
        looks,
        /// Looks that found it kept by a daemon.
        synchronized_looks,
        /// Looks that found TAI − UTC known.
        tai_known_looks,
        /// Packets that came without a stamp and were stamped when they were read.
        unstamped_frames,
    }
}

/// One side's books.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SideBooks {
    /// Its letter.
    pub side: String,
    /// Its name.
    pub name: String,
    /// The numbers.
    #[serde(flatten)]
    pub terms: SideTerms,
}

/// One feed's books.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FeedBooks {
    /// Its name.
    pub feed: String,
    /// The numbers.
    pub terms: FeedTerms,
    /// Its sides.
    pub sides: Vec<SideBooks>,
    /// Capture stamps of its first and its last message, UTC ns; 0: none came.
    pub stamps_ns: (i64, i64),
    /// The list of its gaps has lost its oldest ranges: `gaps` is then too small, `gap_messages` is not.
    pub gaps_truncated: bool,
    /// Messages of its streams that are neither emitted nor given up, and those on their way to the disk: states, not sums.
    pub held: i64,
    /// See `held`.
    pub in_flight: i64,
}

/// The cumulative books of a process at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Books {
    /// Every feed, in the configuration's order.
    pub feeds: Vec<FeedBooks>,
    /// The clock.
    pub clock: ClockTerms,
    /// TAI − UTC, s; `None`: nobody has set it.
    pub tai_offset_s: Option<i32>,
}

/// A feed's books from what its workers show.
pub fn feed_books(
    feed: &FeedView,
    sides: &[SideView],
    report: Option<&ArbiterReport>,
    store: Option<&StoreBook>,
) -> FeedBooks {
    let get = |counter| feed.counters.get(counter) as i64;
    let mut books = FeedBooks {
        feed: feed.name.clone(),
        sides: feed.sides.iter().enumerate().map(|(at, name)| side_books(&feed.name, at, name, sides)).collect(),
        stamps_ns: (get(ArbiterCounter::FirstStamp), get(ArbiterCounter::LastStamp)),
        ..FeedBooks::default()
    };
    let terms = &mut books.terms;
    terms.not_handed = get(ArbiterCounter::LostLinkFull) + get(ArbiterCounter::LostCopyPool);
    terms.published = get(ArbiterCounter::Published);
    terms.publish_refused = get(ArbiterCounter::PublishRefused);
    if let Some(store) = store {
        (terms.stored, terms.store_lost) = (store.stored as i64, store.lost as i64);
        books.in_flight = store.in_flight as i64;
    }
    if let Some(report) = report {
        add_report(&mut books, report);
    }
    books
}

fn side_books(feed: &str, at: usize, name: &str, sides: &[SideView]) -> SideBooks {
    let own = sides.iter().filter(|side| side.feed == feed && side.side.index() == at);
    let dropped_here = own.map(|side| side.counters.get(SideCounter::LinkFullMessages) as i64).sum();
    let terms = SideTerms { dropped_here, ..SideTerms::default() };
    SideBooks { side: Side(at as u8).letter().to_string(), name: name.to_string(), terms }
}

fn add_report(books: &mut FeedBooks, report: &ArbiterReport) {
    let terms = &mut books.terms;
    terms.offered += report.unattributed.offered as i64;
    terms.rejected_overflow += report.unattributed.rejected_overflow as i64;
    terms.rejected_limit += report.unattributed.rejected_limit as i64;
    for stream in &report.streams {
        let counts = &stream.counts;
        terms.add(&FeedTerms {
            offered: counts.offered as i64,
            messages: counts.unique as i64,
            duplicates: counts.duplicate as i64,
            late_fills: counts.late_fill as i64,
            late: counts.late as i64,
            rejected_wild: counts.rejected_wild as i64,
            rejected_overflow: counts.rejected_overflow as i64,
            rejected_limit: counts.rejected_limit as i64,
            gaps: stream.gaps.len() as i64,
            gap_messages: counts.gap as i64,
            sessions: i64::from(stream.run == 0),
            runs: 1,
            ..FeedTerms::default()
        });
        books.gaps_truncated |= stream.truncated;
        books.held += (counts.held + counts.pending + stream.missing) as i64;
        for (books, side) in books.sides.iter_mut().zip(&stream.sides) {
            books.terms.add(&SideTerms {
                messages: side.counts.messages as i64,
                lost: side.lost as i64,
                recovered: side.recovered as i64,
                first: side.wins as i64,
                reordered: side.counts.reordered as i64,
                dropped_here: 0,
            });
        }
    }
}

/// A feed on a day, or in a part of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FeedDay {
    /// Its name.
    pub feed: String,
    /// Where its stamps come from: `software` or `file`.
    pub stamps: String,
    /// Capture stamp of the first message; to about a second where the process ran before the day began.
    pub first: Option<String>,
    /// That of the last one.
    pub last: Option<String>,
    /// The numbers.
    #[serde(flatten)]
    pub terms: FeedTerms,
    /// See [`FeedBooks`].
    pub gaps_truncated: bool,
    /// Messages neither emitted nor given up at the end.
    pub held: i64,
    /// Messages on their way to the disk at the end.
    pub in_flight: i64,
    /// Its sides.
    pub sides: Vec<SideBooks>,
}

/// The clock on a day, or in a part of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClockDay {
    /// TAI − UTC at the end, s; `None`: nobody has set it.
    pub tai_offset_seconds: Option<i32>,
    /// The numbers.
    #[serde(flatten)]
    pub terms: ClockTerms,
}

/// How a part ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartEnd {
    /// It has not.
    Running,
    /// With the day; the process went on.
    DayOver,
    /// The process drained and ended.
    Stopped,
    /// Nobody knows: the process was killed, or the power went. What came after `to` is in no report.
    BrokenOff,
}

/// What one process saw of a day.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// When the process started.
    pub process_started: String,
    /// Its number.
    pub pid: u32,
    /// When the part began, and how far it goes.
    pub from: String,
    /// See `from`.
    pub to: String,
    /// How it ended.
    pub end: PartEnd,
    /// Every feed.
    pub feeds: Vec<FeedDay>,
    /// The clock.
    pub clock: ClockDay,
}

/// A day: its parts, and their sum.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DayReport {
    /// [`VERSION`].
    pub version: u32,
    /// The day, `2026-11-30`.
    pub day: String,
    /// When it began, UTC, `00:00`.
    pub day_begins: String,
    /// Every feed, summed over the parts.
    pub feeds: Vec<FeedDay>,
    /// The clock, summed over the parts.
    pub clock: ClockDay,
    /// The parts, oldest first.
    pub parts: Vec<Part>,
}

impl DayReport {
    fn of(day: Day, begins: &str, parts: Vec<Part>) -> DayReport {
        let mut report = DayReport {
            version: VERSION,
            day: day.to_string(),
            day_begins: begins.to_string(),
            feeds: Vec::new(),
            clock: ClockDay::default(),
            parts,
        };
        for part in &report.parts {
            part.feeds.iter().for_each(|feed| add_feed(&mut report.feeds, feed));
            report.clock.terms.add(&part.clock.terms);
            report.clock.tai_offset_seconds = part.clock.tai_offset_seconds;
        }
        report
    }

    /// As JSON, one object.
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("plain numbers and text");
        text.push('\n');
        text
    }

    /// For people.
    pub fn text(&self) -> String {
        text::render(self)
    }
}

fn add_feed(feeds: &mut Vec<FeedDay>, part: &FeedDay) {
    let Some(feed) = feeds.iter_mut().find(|feed| feed.feed == part.feed) else {
        return feeds.push(part.clone());
    };
    feed.terms.add(&part.terms);
    // Texts of one length that end in Z sort as the times do.
    feed.first = [&feed.first, &part.first].into_iter().flatten().min().cloned();
    feed.last = [&feed.last, &part.last].into_iter().flatten().max().cloned();
    feed.gaps_truncated |= part.gaps_truncated;
    (feed.held, feed.in_flight) = (part.held, part.in_flight);
    feed.stamps.clone_from(&part.stamps);
    for side in &part.sides {
        match feed.sides.iter_mut().find(|known| known.side == side.side && known.name == side.name) {
            Some(known) => known.terms.add(&side.terms),
            None => feed.sides.push(side.clone()),
        }
    }
}

/// What a recorder needs to know of its process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecorderSettings {
    /// When a day begins, seconds after midnight UTC.
    pub day_begins_s: u32,
    /// Where each feed's stamps come from: (feed, `software` or `file`).
    pub stamps: Vec<(String, &'static str)>,
    /// The process's number.
    pub pid: u32,
    /// When it started, UTC ns.
    pub started_ns: i64,
}

/// Keeps the day's books of one process.
#[derive(Clone, Debug)]
pub struct Recorder {
    settings: RecorderSettings,
    day: Day,
    /// What earlier processes saw of the day, and this one, should the day have come back (a clock that was set).
    earlier: Vec<Part>,
    /// The books when the day began here; nothing before the process's own beginning.
    base: Books,
    from_ns: i64,
    /// First stamp of the day, of each feed.
    firsts_ns: Vec<Option<i64>>,
}

impl Recorder {
    /// A recorder of a process that starts now: its books are empty.
    pub fn new(settings: RecorderSettings) -> Recorder {
        let day = Day::at(settings.started_ns, settings.day_begins_s);
        let from_ns = settings.started_ns;
        Recorder { settings, day, earlier: Vec::new(), base: Books::default(), from_ns, firsts_ns: Vec::new() }
    }

    /// The day that is kept.
    pub fn day(&self) -> Day {
        self.day
    }

    /// The day that it is now: another than [`Recorder::day`] means that it is over, and the next is to be begun.
    pub fn day_at(&self, utc_ns: i64) -> Day {
        Day::at(utc_ns, self.settings.day_begins_s)
    }

    /// Takes up what a file holds of the day from earlier processes.
    ///
    /// # Errors
    /// What is wrong with it; the recorder is as before.
    pub fn take_up(&mut self, file: &[u8]) -> Result<(), String> {
        let report: DayReport = serde_json::from_slice(file).map_err(|error| error.to_string())?;
        if report.version != VERSION || report.day != self.day.to_string() {
            return Err(format!("it is version {} of {}, not {VERSION} of {}", report.version, report.day, self.day));
        }
        let ended = |mut part: Part| {
            // Whoever wrote that it runs does not run any more: the directory is locked by this process.
            if part.end == PartEnd::Running {
                part.end = PartEnd::BrokenOff;
            }
            part
        };
        self.earlier = report.parts.into_iter().map(ended).collect();
        Ok(())
    }

    /// Looks at the stamps of the feeds, each second: the first one after the beginning is the day's first.
    pub fn look(&mut self, stamps_ns: impl Iterator<Item = (i64, i64)>) {
        for (at, (first, last)) in stamps_ns.enumerate() {
            if self.firsts_ns.len() <= at {
                self.firsts_ns.push(None);
            }
            let before = self.base.feeds.get(at).map_or(0, |feed| feed.stamps_ns.1);
            if last != before && self.firsts_ns[at].is_none() {
                self.firsts_ns[at] = Some(if before == 0 { first } else { last });
            }
        }
    }

    /// The day's report as of now.
    pub fn report(&mut self, books: &Books, utc_ns: i64, end: PartEnd) -> DayReport {
        self.look(books.feeds.iter().map(|feed| feed.stamps_ns));
        let part = self.part(books, utc_ns, end);
        let parts = self.earlier.iter().cloned().chain([part]).collect();
        let begins = self.settings.day_begins_s;
        DayReport::of(self.day, &format!("{:02}:{:02}", begins / 3_600, begins / 60 % 60), parts)
    }

    /// Begins the day that it is at `utc_ns`; what a file holds of it is to be taken up then.
    pub fn begin(&mut self, books: Books, utc_ns: i64) {
        self.day = self.day_at(utc_ns);
        self.earlier.clear();
        self.firsts_ns = vec![None; books.feeds.len()];
        (self.base, self.from_ns) = (books, utc_ns);
    }

    fn part(&self, books: &Books, utc_ns: i64, end: PartEnd) -> Part {
        Part {
            process_started: instant(self.settings.started_ns),
            pid: self.settings.pid,
            from: instant(self.from_ns),
            to: instant(utc_ns),
            end,
            feeds: books.feeds.iter().enumerate().map(|(at, feed)| self.feed(at, feed)).collect(),
            clock: ClockDay { tai_offset_seconds: books.tai_offset_s, terms: books.clock.minus(&self.base.clock) },
        }
    }

    fn feed(&self, at: usize, now: &FeedBooks) -> FeedDay {
        let nothing = FeedBooks::default();
        let base = self.base.feeds.iter().find(|feed| feed.feed == now.feed).unwrap_or(&nothing);
        let side = |(at, side): (usize, &SideBooks)| {
            let terms = base.sides.get(at).map_or(side.terms, |base| side.terms.minus(&base.terms));
            SideBooks { terms, ..side.clone() }
        };
        let stamps = self.settings.stamps.iter().find(|(feed, _)| *feed == now.feed);
        let came = now.stamps_ns.1 != base.stamps_ns.1;
        FeedDay {
            feed: now.feed.clone(),
            stamps: stamps.map_or("software", |(_, stamps)| stamps).to_string(),
            first: self.firsts_ns.get(at).copied().flatten().map(instant),
            last: came.then(|| instant(now.stamps_ns.1)),
            terms: now.terms.minus(&base.terms),
            gaps_truncated: now.gaps_truncated,
            held: now.held,
            in_flight: now.in_flight,
            sides: now.sides.iter().enumerate().map(side).collect(),
        }
    }
}

/// Nanoseconds of a day.
const DAY_NS: i64 = 86_400 * NANOS_PER_SECOND;

#[cfg(test)]
mod tests;
