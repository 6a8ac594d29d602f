//! `sluice top`: a running appliance in a terminal: rates, books, sides, stores, rings, ledger, health.

use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    Clear, ClearType, DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode,
};
use crossterm::{cursor, queue};
use serde_json::Value;

use super::rates::Rates;
use super::top_view::{self, Line, Tone, clean};
use super::{Exit, Failure, Outcome, stat};
use crate::config::Span;
use crate::sys::clock;
use crate::sys::poll::{self, Interest};
use crate::sys::signal::Signals;

/// How long the keyboard is waited for before an answer or a signal is looked for.
const KEY_WAIT: Duration = Duration::from_millis(50);
/// Shortest and longest `--interval`: a status costs each arbiter a report.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_secs(3_600);
/// It is drawn at least so often: the age of the last answer goes on.
const DRAW_NS: i64 = 1_000_000_000;
/// The least that is drawn to: smaller terminals see the corner of it.
const COLUMNS_MIN: usize = 40;

/// Arguments of `sluice top`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The configuration of the running appliance (for `control.listen`).
    pub config: Option<PathBuf>,
    /// The control server's address, in place of the configuration's.
    #[arg(long, value_name = "ADDRESS")]
    pub control: Option<SocketAddr>,
    /// How often the status is asked for, from 100ms to 1h.
    #[arg(long, value_name = "T", default_value = "1s")]
    pub interval: Span,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    if !(INTERVAL_MIN..=INTERVAL_MAX).contains(&args.interval.0) {
        return Err(Failure::usage(format!("--interval {}: must be from 100ms to 1h", args.interval)));
    }
    for (name, terminal) in [("output", std::io::stdout().is_terminal()), ("input", std::io::stdin().is_terminal())] {
        if !terminal {
            return Err(Failure::usage(format!(
                "standard {name} is not a terminal: \"sluice stat\" prints the same once, \"sluice stat --json\" for programs"
            )));
        }
    }
    let address = stat::address(args.control, args.config.as_deref())?;
    // Before the asking thread starts: a signal only ends this loop, which then leaves the terminal as it was.
    let signals = Signals::take().map_err(|error| Failure::host(format!("signalfd: {error}")))?;
    let asker = Asker::start(address, args.interval.0).map_err(|error| Failure::host(format!("thread: {error}")))?;
    let mut top = Top::new(address);
    let screen = Screen::enter().map_err(|error| Failure::host(format!("this terminal: {error}")))?;
    let result = top.run(&signals, &asker.answers);
    drop(screen);
    result.map(|()| Exit::Done).map_err(|error| Failure::host(format!("this terminal: {error}")))
}

/// What the asking thread brings: a status, or why there is none.
type Answer = Result<Value, String>;

/// Asks for the status on a thread of its own: an appliance that does not answer must not hold up the keys.
struct Asker {
    answers: Receiver<Answer>,
    stop: Arc<AtomicBool>,
}

impl Asker {
    fn start(address: SocketAddr, interval: Duration) -> std::io::Result<Asker> {
        // One answer waits at most: whoever does not look gets the newest soon enough.
        let (sender, answers) = bounded(1);
        let stop = Arc::new(AtomicBool::new(false));
        std::thread::Builder::new().name("sluice-top".into()).spawn({
            let stop = stop.clone();
            move || ask_loop(address, interval, &sender, &stop)
        })?;
        Ok(Asker { answers, stop })
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn ask_loop(address: SocketAddr, interval: Duration, answers: &Sender<Answer>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let answer = stat::get(address, "/status")
            .map_err(|error| error.to_string())
            .and_then(|body| serde_json::from_str(&body).map_err(|error| format!("its answer is no status: {error}")));
        if answers.send(answer).is_err() {
            return;
        }
        clock::sleep(interval);
    }
}

/// The terminal while it is ours; dropped, it is as it was before.
struct Screen;

impl Screen {
    fn enter() -> std::io::Result<Screen> {
        let before = std::panic::take_hook();
        // A panic ends the process without running destructors: the terminal is given back first, the message after.
        std::panic::set_hook(Box::new(move |panic| {
            Screen::leave();
            before(panic);
        }));
        enable_raw_mode()?;
        let screen = Screen;
        let mut out = std::io::stdout();
        queue!(out, EnterAlternateScreen, DisableLineWrap, cursor::Hide)?;
        out.flush()?;
        Ok(screen)
    }

    /// Gives it back; whatever fails, the rest is tried as well.
    fn leave() {
        let mut out = std::io::stdout();
        let _ =
            queue!(out, ResetColor, SetAttribute(Attribute::Reset), EnableLineWrap, cursor::Show, LeaveAlternateScreen);
        let _ = out.flush();
        let _ = disable_raw_mode();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        Screen::leave();
    }
}

/// What a key asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Quit,
    Pause,
    /// So many lines down; up when negative.
    Scroll(isize),
    /// So many pages.
    Page(isize),
    Top,
    Bottom,
}

/// The keys as a terminal sends them.
struct Keyboard {
    terminal: File,
    /// The beginning of a sequence whose end has not come yet.
    rest: Vec<u8>,
}

impl Keyboard {
    fn open() -> std::io::Result<Keyboard> {
        let terminal = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        Ok(Keyboard { terminal, rest: Vec::new() })
    }

    /// Waits at most [`KEY_WAIT`] for keys. A terminal that is gone asks to quit.
    fn wishes(&mut self) -> std::io::Result<Vec<Wish>> {
        if poll::wait([(self.terminal.as_fd(), Interest::Readable)], Some(KEY_WAIT))? == 0 {
            return Ok(Vec::new());
        }
        let mut bytes = [0; 256];
        match self.terminal.read(&mut bytes) {
            Ok(0) => Ok(vec![Wish::Quit]),
            Ok(count) => {
                self.rest.extend_from_slice(&bytes[..count]);
                Ok(wishes(&mut self.rest))
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(Vec::new()),
            // A terminal that was taken away under us.
            Err(_) => Ok(vec![Wish::Quit]),
        }
    }
}

/// Takes the whole keys off `bytes`; what is only the beginning of one stays.
fn wishes(bytes: &mut Vec<u8>) -> Vec<Wish> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(&byte) = bytes.get(at) {
        let (taken, wish) = match byte {
            0x1b => match sequence(&bytes[at..]) {
                Some(key) => key,
                None => break,
            },
            // Ctrl-C: a raw terminal makes no signal of it.
            b'q' | 0x03 => (1, Some(Wish::Quit)),
            b'p' => (1, Some(Wish::Pause)),
            b'k' => (1, Some(Wish::Scroll(-1))),
            b'j' => (1, Some(Wish::Scroll(1))),
            b' ' => (1, Some(Wish::Page(1))),
            _ => (1, None),
        };
        at += taken;
        found.extend(wish);
    }
    bytes.drain(..at);
    found
}

/// A sequence at the begin of `bytes` (ECMA-48: ESC, "[" or "O", parameters, a final byte): its length and what it asks for.
/// `None` when its end is missing.
fn sequence(bytes: &[u8]) -> Option<(usize, Option<Wish>)> {
    if !matches!(bytes.get(1)?, b'[' | b'O') {
        return Some((1, None));
    }
    let length = bytes[2..].iter().position(|byte| matches!(byte, 0x40..=0x7e))? + 3;
    let number = bytes[2..length - 1].split(|byte| *byte == b';').next().unwrap_or(&[]);
    let wish = match (bytes[length - 1], number) {
        (b'A', _) => Some(Wish::Scroll(-1)),
        (b'B', _) => Some(Wish::Scroll(1)),
        (b'H', _) | (b'~', b"1" | b"7") => Some(Wish::Top),
        (b'F', _) | (b'~', b"4" | b"8") => Some(Wish::Bottom),
        (b'~', b"5") => Some(Wish::Page(-1)),
        (b'~', b"6") => Some(Wish::Page(1)),
        _ => None,
    };
    Some((length, wish))
}

/// The program's state.
struct Top {
    address: SocketAddr,
    status: Option<Value>,
    rates: Rates,
    answered_ns: i64,
    failure: Option<String>,
    paused: bool,
    first: usize,
    colour: bool,
}

impl Top {
    fn new(address: SocketAddr) -> Top {
        // https://no-color.org: set and not empty, whatever its value.
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let answered_ns = clock::monotonic_ns();
        let rates = Rates::default();
        Top { address, status: None, rates, answered_ns, failure: None, paused: false, first: 0, colour }
    }

    fn run(&mut self, signals: &Signals, answers: &Receiver<Answer>) -> std::io::Result<()> {
        let mut keyboard = Keyboard::open()?;
        let (mut drawn_ns, mut drawn_size) = (0, (0, 0));
        loop {
            // A new size needs no signal: it is looked for as often as the keys are.
            let size = crossterm::terminal::size()?;
            let mut changed = size != drawn_size || clock::monotonic_ns() - drawn_ns >= DRAW_NS;
            if let Ok(answer) = answers.try_recv() {
                changed |= self.take(answer);
            }
            if changed {
                self.draw(size)?;
                (drawn_ns, drawn_size) = (clock::monotonic_ns(), size);
            }
            if signals.wait(Duration::ZERO)?.is_some() {
                return Ok(());
            }
            for wish in keyboard.wishes()? {
                if wish == Wish::Quit {
                    return Ok(());
                }
                self.obey(wish);
                drawn_ns = 0;
            }
        }
    }

    /// Takes an answer; while paused the numbers stay as they are.
    fn take(&mut self, answer: Answer) -> bool {
        if self.paused {
            return false;
        }
        match answer {
            Ok(status) => {
                self.answered_ns = clock::monotonic_ns();
                self.rates.push(self.answered_ns, &status);
                (self.status, self.failure) = (Some(status), None);
            }
            Err(why) => self.failure = Some(why),
        }
        true
    }

    fn obey(&mut self, wish: Wish) {
        let page = page_lines();
        match wish {
            Wish::Quit => {}
            Wish::Pause => self.paused = !self.paused,
            Wish::Scroll(lines) => self.first = self.first.saturating_add_signed(lines),
            Wish::Page(pages) => self.first = self.first.saturating_add_signed(pages * page as isize),
            Wish::Top => self.first = 0,
            Wish::Bottom => self.first = usize::MAX,
        }
    }

    /// What stays above the scrolled part.
    fn heads(&self) -> Vec<Line> {
        let seconds = (clock::monotonic_ns() - self.answered_ns) / 1_000_000_000;
        let mut heads = vec![match &self.status {
            Some(status) => top_view::head(status),
            None => vec![("sluice top".into(), Tone::Head)],
        }];
        if let Some(why) = &self.failure {
            let old = match self.status {
                Some(_) => format!("the numbers are {seconds} s old"),
                None => "is it running, and is this its control.listen?".into(),
            };
            let text = format!("NO ANSWER from {}: {}; {old}", self.address, clean(why));
            heads.push(vec![(text, Tone::Bad)]);
        } else if self.status.is_none() {
            heads.push(vec![(format!("asking {} …", self.address), Tone::Dim)]);
        }
        heads
    }

    fn draw(&mut self, (columns, rows): (u16, u16)) -> std::io::Result<()> {
        let (columns, rows) = (usize::from(columns), usize::from(rows));
        let mut shown = self.heads();
        let lines = match &self.status {
            Some(status) => top_view::lines(status, &self.rates, columns.max(COLUMNS_MIN)),
            None => Vec::new(),
        };
        let room = rows.saturating_sub(shown.len() + 1);
        self.first = self.first.min(lines.len().saturating_sub(room));
        let last = (self.first + room).min(lines.len());
        shown.extend(lines[self.first..last].iter().cloned());
        shown.resize(rows.saturating_sub(1), Vec::new());
        let place = format!("lines {} to {last} of {}", self.first.min(last) + usize::from(last > 0), lines.len());
        let keys = if self.paused { "PAUSED: p goes on   " } else { "q quit  p pause  arrows and pages scroll   " };
        shown.push(vec![(keys.into(), Tone::Head), (place, Tone::Dim)]);
        self.write(&shown[..rows.min(shown.len())], columns)
    }

    fn write(&self, lines: &[Line], columns: usize) -> std::io::Result<()> {
        let mut out = Vec::with_capacity(16 << 10);
        for (row, line) in lines.iter().enumerate() {
            queue!(out, cursor::MoveTo(0, row as u16))?;
            let mut left = columns;
            for (text, tone) in line {
                let text: String = text.chars().take(left).collect();
                left -= text.chars().count();
                self.tone(*tone, &mut out)?;
                queue!(out, Print(text), SetAttribute(Attribute::Reset))?;
            }
            // On a line that is full the cursor stands on its last character, which would be cleared.
            if left > 0 {
                queue!(out, Clear(ClearType::UntilNewLine))?;
            }
        }
        let mut terminal = std::io::stdout().lock();
        terminal.write_all(&out)?;
        terminal.flush()
    }

    fn tone(&self, tone: Tone, out: &mut Vec<u8>) -> std::io::Result<()> {
        let (colour, attribute) = match tone {
            Tone::Plain => return Ok(()),
            Tone::Head => (None, Attribute::Bold),
            Tone::Dim => (None, Attribute::Dim),
            Tone::Good => (Some(Color::DarkGreen), Attribute::NormalIntensity),
            Tone::Warn => (Some(Color::DarkYellow), Attribute::Bold),
            Tone::Bad => (Some(Color::DarkRed), Attribute::Bold),
        };
        queue!(out, SetAttribute(attribute))?;
        match colour.filter(|_| self.colour) {
            Some(colour) => queue!(out, SetForegroundColor(colour)),
            None => Ok(()),
        }
    }
}

/// Lines of a page: the terminal's less head and foot.
fn page_lines() -> usize {
    crossterm::terminal::size().map_or(1, |(_, rows)| usize::from(rows).saturating_sub(3).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_mean_what_the_foot_says() {
        let read = |bytes: &[u8]| {
            let mut rest = bytes.to_vec();
            (wishes(&mut rest), rest)
        };
        let page = |pages| Wish::Page(pages);
        assert_eq!(read(b"xqp").0, [Wish::Quit, Wish::Pause]);
        assert_eq!(read(b"\x03").0, [Wish::Quit]);
        assert_eq!(
            read(b"\x1b[A\x1bOB\x1b[5~\x1b[6;2~ ").0,
            [Wish::Scroll(-1), Wish::Scroll(1), page(-1), page(1), page(1)]
        );
        assert_eq!(read(b"\x1b[H\x1b[4~").0, [Wish::Top, Wish::Bottom]);
        assert_eq!(read(b"\x1bq").0, [Wish::Quit], "an escape alone is nothing");
        assert_eq!(read(b"j\x1b[5"), (vec![Wish::Scroll(1)], b"\x1b[5".to_vec()), "its end comes with the next bytes");
        assert_eq!(read(b"\x1b[12;34Rj").0, [Wish::Scroll(1)], "an answer of the terminal is no key");
    }

    #[test]
    fn a_paused_view_keeps_its_numbers() {
        let mut top = Top::new(SocketAddr::from(([127, 0, 0, 1], 1)));
        assert!(top.take(Ok(serde_json::json!({"appliance": {"pid": 1}}))));
        top.obey(Wish::Pause);
        assert!(!top.take(Err("gone".into())) && top.failure.is_none());
        top.obey(Wish::Pause);
        assert!(top.take(Err("gone".into())));
        let told: String = top.heads()[1].iter().map(|(text, _)| text.as_str()).collect();
        assert!(told.starts_with("NO ANSWER from 127.0.0.1:1: gone; the numbers are 0 s old"), "{told}");
    }
}
