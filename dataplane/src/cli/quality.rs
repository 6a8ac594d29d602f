//! The data-quality report of a running appliance: a thread that looks each second, writes the day's files each minute, rolls the
//! day, and answers `/report`.
//!
//! It is a thread of its own and not the control loop, because a disk may take its time over an fsync, and the control loop is
//! what tells systemd that the process lives.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use serde_json::{Value, json};

use super::Failure;
use crate::capture::quality::{Books, ClockTerms, Day, DayReport, PartEnd, Recorder, RecorderSettings};
use crate::capture::status::CaptureStatus;
use crate::config::Config;
use crate::runtime::vitals::Vitals;
use crate::sync::metrics::{Metric, Sample, Source};
use crate::sys::{clock, file};

/// How often the day, and each feed's first message, is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the day's files are written: what a power cut costs at most.
const WRITE_EVERY_NS: i64 = 60_000_000_000;
/// How the files' names begin.
const PREFIX: &str = "quality-";

const WRITTEN: Metric = Metric::counter("sluice_report_writes", &[], "Times that the day's report was written");
const FAILED: Metric = Metric::counter("sluice_report_failed_writes", &[], "Times that it could not be written");
const AGE: Metric =
    Metric::gauge("sluice_report_age_seconds", &[], "Since the day's report was last written; it is each minute");

/// Every metric of the report.
pub fn metrics() -> Vec<Metric> {
    vec![WRITTEN, FAILED, AGE]
}

/// Where the files are.
struct Shelf {
    directory: PathBuf,
    keep: usize,
    /// Two appliances must not write the same files.
    _lock: file::Lock,
}

/// What the thread, the scrapes and the end share.
struct Shared {
    capture: Arc<CaptureStatus>,
    vitals: Arc<Vitals>,
    recorder: Mutex<Recorder>,
    shelf: Option<Shelf>,
    writes: AtomicU64,
    failures: AtomicU64,
    /// When it was last written, monotonic ns, and whether the last try failed.
    written_ns: Mutex<(i64, bool)>,
}

/// The reporter; it is to be told when the end comes.
pub struct Reporter {
    shared: Arc<Shared>,
    stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

/// What answers `/report`.
pub struct ReportSource(Arc<Shared>);

impl Reporter {
    /// Takes up what the directory holds of the day, and starts the thread.
    ///
    /// # Errors
    /// The directory cannot be made, written or locked.
    pub fn start(config: &Config, capture: Arc<CaptureStatus>, vitals: Arc<Vitals>) -> Result<Reporter, Failure> {
        let stamps =
            |feed: &crate::config::Feed| (feed.name.clone(), if feed.is_files() { "file" } else { "software" });
        let settings = RecorderSettings {
            day_begins_s: config.report.day_begins.seconds,
            stamps: config.feeds.iter().map(stamps).collect(),
            pid: std::process::id(),
            started_ns: vitals.started_utc_ns(),
        };
        let shelf =
            config.report.dir.as_deref().map(|directory| Shelf::open(directory, config.report.keep)).transpose()?;
        Reporter::spawn(settings, shelf, capture, vitals)
    }

    fn spawn(
        settings: RecorderSettings,
        shelf: Option<Shelf>,
        capture: Arc<CaptureStatus>,
        vitals: Arc<Vitals>,
    ) -> Result<Reporter, Failure> {
        let shared = Arc::new(Shared {
            capture,
            vitals,
            recorder: Mutex::new(Recorder::new(settings)),
            shelf,
            writes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            written_ns: Mutex::new((clock::monotonic_ns(), false)),
        });
        shared.take_up(&mut shared.recorder.lock().expect("nobody panics with it held"));
        let (stop, stopped) = bounded(0);
        let run = {
            let shared = Arc::clone(&shared);
            move || shared.run(&stopped)
        };
        let thread = std::thread::Builder::new()
            .name("sluice-report".into())
            .spawn(run)
            .map_err(|error| Failure::host(format!("report thread: {error}")))?;
        Ok(Reporter { shared, stop, thread: Some(thread) })
    }

    /// What answers `/report`.
    pub fn source(&self) -> Arc<ReportSource> {
        Arc::new(ReportSource(Arc::clone(&self.shared)))
    }

    /// The process has drained: the day's last word.
    pub fn finish(mut self) {
        self.end();
        self.shared.write(PartEnd::Stopped);
    }

    fn end(&mut self) {
        let (stop, _) = bounded(0);
        drop(std::mem::replace(&mut self.stop, stop));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// Looks, rolls and writes until the other end is dropped.
    fn run(&self, stopped: &Receiver<()>) {
        // The first time at once: of a process that is killed early, the report then says that it was there.
        let mut write_at = clock::monotonic_ns();
        while stopped.recv_timeout(LOOK_EVERY) == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
            let over = {
                let mut recorder = self.recorder.lock().expect("nobody panics with it held");
                recorder.look(self.capture.stamps_ns().into_iter());
                recorder.day_at(clock::utc_ns()) != recorder.day()
            };
            let now = clock::monotonic_ns();
            if over {
                self.roll();
            } else if now >= write_at {
                self.write(PartEnd::Running);
            } else {
                continue;
            }
            write_at = now + WRITE_EVERY_NS;
        }
    }

    fn books(&self) -> Books {
        let (feeds, unstamped) = self.capture.quality();
        let view = self.vitals.clock();
        let clock = ClockTerms {
            steps: view.steps as i64,
            stepped_ns: view.stepped_ns as i64,
            looks: view.looks as i64,
            synchronized_looks: view.synchronized_looks as i64,
            tai_known_looks: view.tai_known_looks as i64,
            unstamped_frames: unstamped as i64,
        };
        Books { feeds, clock, tai_offset_s: (view.tai_offset_s != 0).then_some(view.tai_offset_s) }
    }

    fn report(&self, end: PartEnd) -> DayReport {
        // With it held: books from before a roll would be short of what the next day began with.
        let mut recorder = self.recorder.lock().expect("nobody panics with it held");
        recorder.report(&self.books(), clock::utc_ns(), end)
    }

    /// The day is over: its last report, and the next one begins with the same books.
    fn roll(&self) {
        let mut recorder = self.recorder.lock().expect("nobody panics with it held");
        let books = self.books();
        let (now, old) = (clock::utc_ns(), recorder.day());
        let report = recorder.report(&books, now, PartEnd::DayOver);
        recorder.begin(books, now);
        self.take_up(&mut recorder);
        tracing::info!(day = %old, next = %recorder.day(), "the day is over: its data-quality report is whole");
        drop(recorder);
        self.put(&report);
    }

    /// Takes up what earlier processes wrote of the day. What cannot be read is kept under another name.
    fn take_up(&self, recorder: &mut Recorder) {
        let Some(shelf) = &self.shelf else { return };
        let path = file_of(&shelf.directory, recorder.day(), "json");
        let Ok(bytes) = std::fs::read(&path) else { return };
        if let Err(error) = recorder.take_up(&bytes) {
            let aside = path.with_extension("json.bad");
            let kept = std::fs::rename(&path, &aside);
            let kept = kept.map_or_else(|error| format!("not kept: {error}"), |()| "kept".into());
            let (path, aside) = (path.display(), aside.display());
            tracing::warn!(%path, %aside, kept, error, "a report that cannot be read: the day's begins anew");
        }
    }

    fn write(&self, end: PartEnd) {
        if self.shelf.is_some() {
            self.put(&self.report(end));
        }
    }

    /// Writes a day's files; the log hears of the first failure of a row, and of its end.
    fn put(&self, report: &DayReport) {
        let Some(shelf) = &self.shelf else { return };
        let result = shelf.put(report);
        let mut written = self.written_ns.lock().expect("nobody panics with it held");
        let failed_before = std::mem::replace(&mut written.1, result.is_err());
        let directory = shelf.directory.display();
        match result {
            Ok(()) => {
                written.0 = clock::monotonic_ns();
                self.writes.fetch_add(1, Ordering::Relaxed);
                if failed_before {
                    tracing::info!(%directory, "the data-quality report can be written again");
                }
            }
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                if !failed_before {
                    tracing::error!(%directory, error, "the data-quality report cannot be written; it is tried each minute");
                }
            }
        }
    }
}

/// The path of a day's file.
pub fn file_of(directory: &Path, day: Day, extension: &str) -> PathBuf {
    directory.join(format!("{PREFIX}{day}.{extension}"))
}

/// The days of which a directory holds a report, oldest first.
pub fn days(directory: &Path) -> std::io::Result<Vec<Day>> {
    let mut days = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        let day: Option<Day> =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(".json")?.parse().ok());
        days.extend(day);
    }
    days.sort_unstable();
    Ok(days)
}

impl Shelf {
    fn open(directory: &Path, keep: u32) -> Result<Shelf, Failure> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            let shown = directory.display();
            Failure::host(format!(
                "report.dir = \"{shown}\": {what}: {error}; give a directory that sluice may write, or leave it out"
            ))
        };
        std::fs::create_dir_all(directory).map_err(|error| failed("it cannot be made", &error))?;
        let lock = file::lock_exclusive(directory).map_err(|error| failed("it cannot be locked", &error))?;
        let lock = lock.ok_or_else(|| failed("it is in use", &"another appliance writes its reports there"))?;
        let shelf = Shelf { directory: directory.to_path_buf(), keep: keep as usize, _lock: lock };
        // What cannot be written is found now, not at midnight.
        let probe = directory.join(".probe");
        replace(&probe, b"").map_err(|error| failed("it cannot be written", &error))?;
        let _ = std::fs::remove_file(&probe);
        Ok(shelf)
    }

    /// Both files of a day, each whole or as it was; then the oldest days go.
    fn put(&self, report: &DayReport) -> Result<(), String> {
        let day: Day = report.day.parse()?;
        for (extension, text) in [("json", report.json()), ("txt", report.text())] {
            let path = file_of(&self.directory, day, extension);
            replace(&path, text.as_bytes()).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let days = days(&self.directory).map_err(|error| error.to_string())?;
        for day in days.iter().take(days.len().saturating_sub(self.keep)) {
            for extension in ["json", "txt"] {
                let _ = std::fs::remove_file(file_of(&self.directory, *day, extension));
            }
        }
        Ok(())
    }
}

/// Puts `bytes` in the place of a file: after a power cut it is the old one or the new one.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    let new = directory.join(name);
    let mut file = std::fs::File::create(&new)?;
    std::io::Write::write_all(&mut file, bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    file::sync_directory(directory)
}

impl Source for ReportSource {
    fn samples(&self, out: &mut Vec<Sample>) {
        if self.0.shelf.is_none() {
            return;
        }
        let written_ns = self.0.written_ns.lock().expect("nobody panics with it held").0;
        out.push(WRITTEN.sample(&[], self.0.writes.load(Ordering::Relaxed) as f64));
        out.push(FAILED.sample(&[], self.0.failures.load(Ordering::Relaxed) as f64));
        out.push(AGE.sample(&[], (clock::monotonic_ns() - written_ns).max(0) as f64 / 1e9));
    }

    fn status(&self) -> (&'static str, Value) {
        let day = self.0.recorder.lock().expect("nobody panics with it held").day();
        let status = json!({
            "dir": self.0.shelf.as_ref().map(|shelf| &shelf.directory), "day": day.to_string(),
            "writes": self.0.writes.load(Ordering::Relaxed), "failed_writes": self.0.failures.load(Ordering::Relaxed),
        });
        ("report", status)
    }

    fn report(&self) -> Option<Value> {
        serde_json::to_value(self.0.report(PartEnd::Running)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(day: &str) -> DayReport {
        let started = format!("{day}T12:00:00.000000000Z");
        let started_ns = crate::capture::quality::parse_instant(&started).expect("a moment");
        let settings = RecorderSettings { day_begins_s: 0, stamps: Vec::new(), pid: 1, started_ns };
        Recorder::new(settings).report(&Books::default(), started_ns + 5, PartEnd::Running)
    }

    #[test]
    fn the_oldest_days_go_and_a_directory_has_one_writer() {
        let directory = tempfile::tempdir().expect("a directory");
        let shelf = Shelf::open(directory.path(), 2).expect("free");
        let second = Shelf::open(directory.path(), 2).err().expect("locked");
        assert!(second.message.contains("another appliance"), "{}", second.message);
        for day in ["2026-11-28", "2026-11-29", "2026-11-30", "2026-11-30"] {
            shelf.put(&report(day)).expect("writes");
        }
        let kept: Vec<String> = days(directory.path()).expect("reads").iter().map(Day::to_string).collect();
        assert_eq!(kept, ["2026-11-29", "2026-11-30"]);
        let mut names: Vec<String> = std::fs::read_dir(directory.path())
            .expect("reads")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        assert_eq!(
            names,
            ["quality-2026-11-29.json", "quality-2026-11-29.txt", "quality-2026-11-30.json", "quality-2026-11-30.txt"]
        );
    }

    /// A capture without feeds.
    fn nothing() -> Arc<CaptureStatus> {
        let (queues, sides, feeds, damage) = Default::default();
        let (programs, books) = (Box::new(Vec::new), Box::new(Vec::new));
        Arc::new(CaptureStatus::new(queues, sides, feeds, damage, programs, Vec::new(), books))
    }

    #[test]
    fn a_day_that_is_over_is_written_and_the_next_begins() {
        let directory = tempfile::tempdir().expect("a directory");
        let vitals = Arc::new(Vitals::new([], false, || [0; 3]));
        // It started yesterday, as this clock sees it.
        let started_ns = vitals.started_utc_ns() - 86_400_000_000_000;
        let settings = RecorderSettings { day_begins_s: 0, stamps: Vec::new(), pid: 7, started_ns };
        let (yesterday, today) = (Day::at(started_ns, 0), Day::at(vitals.started_utc_ns(), 0));
        // What an earlier process wrote of today is taken up at the roll, and what it wrote of yesterday at once.
        let shelf = Shelf::open(directory.path(), 9).expect("free");
        for day in [yesterday, today] {
            shelf.put(&report(&day.to_string())).expect("writes");
        }
        let reporter = Reporter::spawn(settings, Some(shelf), nothing(), vitals).expect("a thread");
        let read = |day: Day| -> DayReport {
            let text = std::fs::read_to_string(file_of(directory.path(), day, "json")).expect("reads");
            serde_json::from_str(&text).expect("a report")
        };
        let end = clock::monotonic_ns() + 40_000_000_000;
        while read(yesterday).parts.len() < 2 {
            assert!(clock::monotonic_ns() < end, "the day does not roll");
            clock::sleep(Duration::from_millis(20));
        }
        reporter.finish();
        let ends = |day: Day| read(day).parts.iter().map(|part| part.end).collect::<Vec<_>>();
        assert_eq!(ends(yesterday), [PartEnd::BrokenOff, PartEnd::DayOver]);
        // (Should midnight have passed since, today's is whole as well.)
        assert_eq!(ends(today)[0], PartEnd::BrokenOff);
        assert!(matches!(ends(today)[1], PartEnd::Stopped | PartEnd::DayOver), "{:?}", ends(today));
    }

    #[test]
    fn a_file_is_the_old_one_until_it_is_the_new_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.json");
        replace(&path, b"old").expect("writes");
        // What a power cut leaves of a write that had begun is no part of the file.
        std::fs::write(directory.path().join(".a.json.new"), b"ne").expect("writes");
        assert_eq!(std::fs::read(&path).expect("reads"), b"old");
        replace(&path, b"new").expect("writes");
        assert_eq!(std::fs::read(&path).expect("reads"), b"new");
        assert!(days(directory.path()).expect("reads").is_empty());
    }
}
