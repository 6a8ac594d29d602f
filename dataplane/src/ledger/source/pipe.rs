//! A command's meta stream as a source: framed LedgerCloseMetas on the command's descriptor 3, passed on while they are written.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;

use super::{Poll, Source, SourceError, described, network_of};
use crate::ledger::rpc::{MARK_BYTES, PREFIX_BYTES, Part, RecordReader};
use crate::sys::cpu;
use crate::sys::process::{self, Exit, Group, PipeReader, PipedCommand};
use crate::units::NANOS_PER_MILLI;

/// How long a command may go on after the end of its stream until that is an error. Core closes its stream last.
const EXIT_NS_MAX: i64 = 10_000 * NANOS_PER_MILLI;
/// As [`EXIT_NS_MAX`], where the stream ended inside a ledger: only for a better word on why.
const EXIT_NS_MAX_TORN: i64 = 1_000 * NANOS_PER_MILLI;
/// How long a command that was asked to end may take before it is killed; the peer's number.
const TERM_NS_MAX: i64 = 5_000 * NANOS_PER_MILLI;
/// How long after that a process may take to be gone. One that the kernel holds (a dead disk) is left to it.
const KILL_NS_MAX: i64 = 5_000 * NANOS_PER_MILLI;
/// How often a command that is about to end is looked at.
const LOOK_NS: i64 = 10 * NANOS_PER_MILLI;
/// What is read between two ledgers: a mark, and the beginning of a meta with its sequence.
const HEAD_BYTES: usize = MARK_BYTES + PREFIX_BYTES;
/// Reads of ledgers that nobody wants, in one look.
const SKIPS_MAX: usize = 64;

/// A command and its stream.
#[derive(Clone, Debug)]
pub struct PipeSettings {
    /// What is run, by `sh -c`.
    pub command: String,
    /// Bytes asked for the pipe.
    pub pipe_bytes: usize,
    /// The network's passphrase, where it is known.
    pub passphrase: Option<String>,
    /// The CPUs on which the command may run; empty: those of the thread that opens the source (not of the pinned core that starts it).
    pub cpus: Vec<usize>,
}

/// The CPUs for a command.
pub(super) fn cpus(asked: &[usize]) -> Vec<usize> {
    if asked.is_empty() { cpu::allowed() } else { asked.to_vec() }
}

/// A source that runs a command. It is started by [`Source::start`], on the core's own thread: it is killed when that ends.
pub fn open(settings: &PipeSettings) -> Box<dyn Source> {
    let (program, arguments) = process::shell(&settings.command);
    let command = Command {
        kind: "pipe",
        name: settings.command.clone(),
        program,
        arguments,
        directory: None,
        pipe_bytes: settings.pipe_bytes,
        cpus: cpus(&settings.cpus),
        passphrase: settings.passphrase.clone(),
        first: None,
    };
    Box::new(Piped::new(command))
}

/// What it calls itself.
pub fn description(command: &str) -> String {
    described("pipe", command)
}

/// What is started, and how it is spoken of.
pub(super) struct Command {
    /// `pipe` or `captive`.
    pub(super) kind: &'static str,
    /// What it is in messages and in the run's identity.
    pub(super) name: String,
    pub(super) program: OsString,
    pub(super) arguments: Vec<OsString>,
    pub(super) directory: Option<PathBuf>,
    pub(super) pipe_bytes: usize,
    pub(super) cpus: Vec<usize>,
    pub(super) passphrase: Option<String>,
    /// Ledgers before this one are passed over, and it must be the first after them.
    pub(super) first: Option<u32>,
}

/// Longest command in a message.
const NAME_CHARACTERS: usize = 120;

impl Command {
    fn error(&self, what: impl std::fmt::Display) -> SourceError {
        let mut name: String = self.name.chars().take(NAME_CHARACTERS).collect();
        if name.len() < self.name.len() {
            name.push('…');
        }
        SourceError(format!("{} source: \"{name}\" {what}", self.kind))
    }
}

/// How the command stands.
enum State {
    Running,
    /// Its stream has ended; it has not, until then.
    StreamEnded(i64),
    Finished,
    /// It was asked to end, and is killed then.
    Terminated(i64),
    /// It was killed, and is given up then.
    Killed(i64),
}

/// What the stream brought.
enum Read {
    Poll(Poll),
    /// Nothing is there.
    Dry,
    /// The stream is over.
    End,
}

/// A command's stream.
pub(super) struct Piped {
    command: Command,
    group: Option<Group>,
    pipe: Option<PipeReader>,
    reader: RecordReader,
    /// Read between two ledgers.
    head: Box<[u8; HEAD_BYTES]>,
    head_at: usize,
    head_end: usize,
    /// The beginning of the open ledger, which was looked through for its sequence.
    held: Vec<u8>,
    held_at: usize,
    /// The open ledger is one that nobody wants.
    skipping: bool,
    /// A ledger was passed on.
    begun: bool,
    /// The last look found nothing.
    dry: bool,
    exit: Option<Exit>,
    state: State,
    look_at: i64,
    deadline: Option<i64>,
}

impl Piped {
    pub(super) fn new(command: Command) -> Piped {
        Piped {
            command,
            group: None,
            pipe: None,
            reader: RecordReader::default(),
            head: Box::new([0; HEAD_BYTES]),
            head_at: 0,
            head_end: 0,
            held: Vec::with_capacity(PREFIX_BYTES),
            held_at: 0,
            skipping: false,
            begun: false,
            dry: false,
            exit: None,
            state: State::Running,
            look_at: 0,
            deadline: None,
        }
    }

    /// What the stream brings next. Of ledgers that nobody wants only so much in one call.
    fn read(&mut self, room: &mut [u8]) -> Result<Read, SourceError> {
        for _ in 0..SKIPS_MAX {
            let read = self.read_once(room)?;
            let Read::Poll(poll) = read else { return Ok(read) };
            match poll {
                Poll::Begin { sequence, .. } => self.skipping = self.judge(sequence)?,
                Poll::End if self.skipping => {
                    self.skipping = false;
                    continue;
                }
                _ => {}
            }
            if !self.skipping {
                return Ok(Read::Poll(poll));
            }
        }
        // There is more, so the core must not go to sleep.
        self.deadline = Some(i64::MIN);
        Ok(Read::Poll(Poll::Wait))
    }

    /// Whether the ledger that begins is one before those that are wanted.
    fn judge(&mut self, sequence: u32) -> Result<bool, SourceError> {
        let Some(first) = self.command.first.filter(|_| !self.begun) else { return Ok(false) };
        if sequence > first {
            let what = format!("began with ledger {sequence}: start_ledger = {first} is past, choose a later one");
            return Err(self.command.error(what));
        }
        self.begun = sequence == first;
        Ok(!self.begun)
    }

    fn read_once(&mut self, room: &mut [u8]) -> Result<Read, SourceError> {
        loop {
            if self.held_at < self.held.len() {
                let bytes = room.len().min(self.held.len() - self.held_at);
                room[..bytes].copy_from_slice(&self.held[self.held_at..self.held_at + bytes]);
                self.held_at += bytes;
                return Ok(Read::Poll(Poll::Bytes(bytes)));
            }
            let has_head = self.head_at < self.head_end;
            if has_head || !self.reader.wants_input() {
                if let Some(poll) = self.parse(room)? {
                    return Ok(Read::Poll(poll));
                }
                continue;
            }
            let passing_by = (self.reader.passing_by() as usize).min(room.len());
            let into = if passing_by > 0 { &mut room[..passing_by] } else { &mut self.head[..] };
            match self.pipe.as_ref().expect("started").read(into) {
                Ok(None) => return Ok(Read::Dry),
                Ok(Some(0)) => return Ok(Read::End),
                Ok(Some(bytes)) if passing_by > 0 => {
                    self.reader.passed_by(bytes as u32);
                    return Ok(Read::Poll(Poll::Bytes(bytes)));
                }
                Ok(Some(bytes)) => (self.head_at, self.head_end) = (0, bytes),
                Err(error) => return Err(self.command.error(format!("cannot be read: {error}"))),
            }
        }
    }

    /// Takes from what was read between two ledgers.
    fn parse(&mut self, room: &mut [u8]) -> Result<Option<Poll>, SourceError> {
        // No more of a body than there is room for.
        let end = self.head_end.min(self.head_at + room.len());
        let mut input = &self.head[self.head_at..end];
        let holding = !self.reader.wants_input();
        let part = self.reader.next(&mut input);
        self.head_at = end - input.len();
        match part {
            Ok(Part::Begin { sequence, bytes }) => Ok(Some(Poll::Begin { sequence, bytes: Some(u64::from(bytes)) })),
            Ok(Part::Body(body)) if holding => {
                self.held.clear();
                self.held.extend_from_slice(body);
                self.held_at = 0;
                Ok(None)
            }
            Ok(Part::Body(body)) => {
                room[..body.len()].copy_from_slice(body);
                Ok(Some(Poll::Bytes(body.len())))
            }
            Ok(Part::End) => Ok(Some(Poll::End)),
            Ok(Part::More) => Ok(None),
            Err(error) => Err(self.command.error(format!("writes no meta stream: {error}"))),
        }
    }

    /// Nothing is there to be read: has the command ended although somebody holds its pipe open?
    fn dry(&mut self, now: i64) -> Result<Poll, SourceError> {
        if !self.dry {
            (self.dry, self.look_at) = (true, now + LOOK_NS);
        } else if now >= self.look_at {
            self.look_at = now + LOOK_NS;
            let group = self.group.as_mut().expect("started");
            let before = self.exit;
            self.exit = group.exit();
            match self.exit {
                // What was written before the exit is read first, and only then is it over.
                Some(_) if before.is_none() => self.dry = false,
                // Processes that it left in its group may go on writing. Who left the group is not waited for.
                Some(Exit::Code(0)) if group.is_alive() => {}
                Some(_) => return self.stream_ended(now),
                None => {}
            }
        }
        // A core that looks all the time looks again anyway; one that sleeps is woken by the descriptors, and by this once there is
        // an exit to be dealt with.
        self.deadline = (self.exit.is_some() || !self.dry).then_some(self.look_at);
        Ok(Poll::Wait)
    }

    fn stream_ended(&mut self, now: i64) -> Result<Poll, SourceError> {
        let patience = if self.reader.finish().is_ok() { EXIT_NS_MAX } else { EXIT_NS_MAX_TORN };
        self.state = State::StreamEnded(now.saturating_add(patience));
        self.await_exit(now)
    }

    /// The stream is over: what that means is the exit's to say.
    fn await_exit(&mut self, now: i64) -> Result<Poll, SourceError> {
        let State::StreamEnded(until) = self.state else { unreachable!("only after the stream's end") };
        let torn = self.reader.finish().err();
        let exit = self.group.as_mut().expect("started").exit();
        match (exit, torn) {
            (Some(Exit::Code(0)), None) => {
                self.end_group();
                self.state = State::Finished;
                Ok(Poll::Finished)
            }
            (Some(Exit::Code(0)), Some(torn)) => Err(self.command.error(format!("unexpected EOF: {torn}"))),
            (Some(exit), None) => Err(self.command.error(exit)),
            (Some(exit), Some(torn)) => Err(self.command.error(format!("{exit}; unexpected EOF: {torn}"))),
            (None, torn) if now >= until => Err(self.command.error(match torn {
                Some(torn) => format!("closed its stream and goes on: unexpected EOF: {torn}"),
                None => format!("closed its stream {} s ago, and has not ended", EXIT_NS_MAX / 1_000_000_000),
            })),
            (None, _) => {
                self.deadline = Some(now + LOOK_NS);
                Ok(Poll::Wait)
            }
        }
    }

    /// Nothing of the group is left behind, and nobody guards it.
    fn end_group(&mut self) {
        if let Some(group) = &mut self.group {
            group.kill();
            group.dismiss_guard();
        }
    }

    /// Throws away what the command still writes, so that it is not held up in ending; only so much at once.
    fn discard(&mut self) {
        if let Some(pipe) = &self.pipe {
            for _ in 0..SKIPS_MAX {
                if !matches!(pipe.read(&mut self.head[..]), Ok(Some(1..))) {
                    break;
                }
            }
        }
    }
}

impl Source for Piped {
    fn description(&self) -> String {
        described(self.command.kind, &self.command.name)
    }

    fn network(&self) -> [u8; 8] {
        network_of(self.command.passphrase.as_deref())
    }

    fn start(&mut self, _now: i64) -> Result<Vec<RawFd>, SourceError> {
        let command = PipedCommand {
            program: self.command.program.clone(),
            arguments: self.command.arguments.clone(),
            directory: self.command.directory.clone(),
            cpus: self.command.cpus.clone(),
            pipe_bytes: self.command.pipe_bytes,
        };
        let started = process::start(&command);
        let (group, pipe) = started.map_err(|error| self.command.error(format!("cannot be started: {error}")))?;
        tracing::info!(
            kind = self.command.kind,
            pid = group.id(),
            pipe_bytes = pipe.bytes,
            "the source's command runs"
        );
        if let Some(error) = &pipe.refused {
            let (asked, bytes) = (self.command.pipe_bytes, pipe.bytes);
            tracing::warn!(asked, bytes, %error, "the pipe stays small: raise fs.pipe-max-size (sysctl)");
        }
        let fds = [Some(pipe.as_raw_fd()), group.watch_fd()].into_iter().flatten().collect();
        (self.group, self.pipe) = (Some(group), Some(pipe));
        Ok(fds)
    }

    fn capacity(&self) -> Option<usize> {
        self.pipe.as_ref().map(|pipe| pipe.bytes)
    }

    fn poll(&mut self, room: &mut [u8], now: i64) -> Result<Poll, SourceError> {
        self.deadline = None;
        match self.state {
            State::Running => {}
            State::StreamEnded(_) => return self.await_exit(now),
            _ => return Ok(Poll::Finished),
        }
        // A read of an empty pipe takes the lock that the writer wants; whoever looks all the time does not do that to it.
        if self.dry && !self.pipe.as_ref().expect("started").is_readable() {
            return self.dry(now);
        }
        match self.read(room)? {
            Read::Poll(poll) => {
                self.dry = false;
                Ok(poll)
            }
            Read::Dry => self.dry(now),
            Read::End => self.stream_ended(now),
        }
    }

    fn deadline(&self) -> Option<i64> {
        self.deadline
    }

    fn stop(&mut self, now: i64) -> bool {
        self.discard();
        let Some(group) = &mut self.group else { return true };
        let ended = group.exit().is_some() && !group.is_alive();
        match self.state {
            _ if ended => {}
            State::Terminated(until) if now < until => return false,
            State::Terminated(_) => {
                tracing::warn!(pid = group.id(), "the source's command did not end on SIGTERM: it is killed");
                group.kill();
                self.state = State::Killed(now.saturating_add(KILL_NS_MAX));
                return false;
            }
            State::Killed(until) if now < until => return false,
            State::Killed(_) => tracing::error!(pid = group.id(), "the source's command cannot be killed"),
            _ => {
                group.terminate();
                self.state = State::Terminated(now.saturating_add(TERM_NS_MAX));
                return false;
            }
        }
        self.state = State::Finished;
        self.end_group();
        true
    }
}
