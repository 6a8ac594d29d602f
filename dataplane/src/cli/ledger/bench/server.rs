//! The server of a loopback run: in this process, or behind a link in a process of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::clock as offset;
use super::link::Link;
use super::settings::Settings;
use crate::cli::ledger::server::Running;
use crate::cli::{Exit, Failure, Outcome};
use crate::config;
use crate::ledger::source::Source;
use crate::ledger::source::captive::{self, CaptiveSettings};
use crate::ledger::source::pipe::{self, PipeSettings};
use crate::ledger::stats::FanoutCounter;
use crate::sys::netns::Namespace;
use crate::sys::signal::{Asked, Signals};
use crate::sys::{clock, random};

/// How long a server may take to listen, and to end.
const PATIENCE_NS: i64 = 30_000_000_000;
/// How often it is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A directory of this run's own, or one that was named; the run's own is removed when dropped.
pub struct Folder {
    path: PathBuf,
    ours: bool,
}

impl Folder {
    /// `named`, else a new one among the temporary files.
    ///
    /// # Errors
    /// As the making of a directory.
    pub fn new(named: Option<&Path>) -> Result<Folder, Failure> {
        if let Some(path) = named {
            return Ok(Folder { path: path.into(), ours: false });
        }
        let random =
            u64::from_le_bytes(random::bytes().map_err(|error| Failure::host(format!("random bytes: {error}")))?);
        let path = std::env::temp_dir().join(format!("sluice-bench-{random:016x}"));
        std::fs::create_dir(&path).map_err(|error| Failure::host(format!("{}: {error}", path.display())))?;
        Ok(Folder { path, ours: true })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.ours
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            tracing::warn!("{}: {error}: remove it by hand", self.path.display());
        }
    }
}

/// Reads the server's CPU time.
#[derive(Clone, Copy, Default)]
pub struct Meter {
    process: Option<u32>,
}

impl Meter {
    /// CPU time of a server that is a process of its own, ns.
    pub fn server_ns(&self) -> Option<i64> {
        self.process.and_then(clock::process_cpu_of)
    }
}

/// A running server.
pub enum Server {
    /// On cores of this process.
    Inside(Box<Inside>),
    /// On a host of its own.
    Linked(Linked),
}

impl Server {
    /// Starts what the flags ask for.
    ///
    /// # Errors
    /// What the server, or the link, is refused for.
    pub fn start(settings: &Settings) -> Result<Server, Failure> {
        match &settings.args.link {
            Some(rate) => Linked::start(rate).map(Server::Linked),
            None => {
                let inside = Inside::start(settings, ([127, 0, 0, 1], 0).into())?;
                Ok(Server::Inside(Box::new(inside)))
            }
        }
    }

    /// Where it is.
    pub fn url(&self) -> String {
        let address = match self {
            Server::Inside(inside) => inside.running.address(),
            Server::Linked(linked) => linked.link.address(),
        };
        format!("ws://{address}")
    }

    /// What reads its CPU time.
    pub fn meter(&self) -> Meter {
        match self {
            Server::Inside(_) => Meter::default(),
            Server::Linked(linked) => Meter { process: Some(linked.child.id()) },
        }
    }

    /// The host that the clients are on, where it is another than this one.
    pub fn client_host(&self) -> Option<Arc<Namespace>> {
        match self {
            Server::Inside(_) => None,
            Server::Linked(linked) => Some(linked.link.client()),
        }
    }

    /// Whether this many ledgers are kept, and on the disk as far as can be told.
    fn is_filled(&self, count: u32) -> bool {
        let count = u64::from(count);
        match self {
            Server::Inside(inside) => {
                inside.get(FanoutCounter::Latest) >= count && inside.get(FanoutCounter::MemoryBytes) == 0
            }
            Server::Linked(linked) => {
                let url = self.url();
                let health = linked.link.client().run(|| offset::health(&url)).ok().flatten();
                health.is_some_and(|health| health["latest"].as_u64() >= Some(count))
            }
        }
    }

    /// Waits until `count` ledgers are kept and nothing of them waits for the disk; whether it was interrupted.
    ///
    /// # Errors
    /// The server's.
    pub fn await_filled(&self, count: u32, signals: &Signals) -> Result<bool, Failure> {
        loop {
            if let Some(what) = self.fault() {
                return Err(Failure::host(what));
            }
            if self.is_filled(count) {
                return Ok(false);
            }
            match signals.wait(LOOK_EVERY) {
                Ok(Some(Asked::Stop)) => return Ok(true),
                Ok(_) => {}
                Err(error) => return Err(Failure::host(format!("waiting for signals: {error}"))),
            }
        }
    }

    /// What keeps it from going on.
    pub fn fault(&self) -> Option<String> {
        match self {
            Server::Inside(inside) => inside.fault(),
            Server::Linked(linked) => linked.fault(),
        }
    }

    /// Ends it, and removes what it kept; the chunks that it sent raw because encoding was behind.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn stop(self) -> Result<u64, Failure> {
        match self {
            Server::Inside(inside) => inside.stop(),
            Server::Linked(linked) => linked.stop(),
        }
    }
}

/// A server's process on the other end of a link.
pub struct Linked {
    child: Child,
    /// The process ends when this does, however we end.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    link: Link,
}

impl Linked {
    fn start(rate: &str) -> Result<Linked, Failure> {
        let link = Link::new(rate)?;
        let mut command = Command::new("/proc/self/exe");
        command.args(std::env::args_os().skip(1)).arg("--as-server").arg(link.address().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            link.spawn(command).map_err(|error| Failure::host(format!("--link: the server's process: {error}")))?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut linked = Linked { child, stdin, stdout, link };
        // The line comes when it listens; without it, the process has said why on standard error.
        if linked.line().is_some() {
            return Ok(linked);
        }
        let status = linked.end()?;
        Err(Failure::host(format!("--link: the server's process ended: {status}")))
    }

    /// What it says next; `None` when it says no more.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).ok().filter(|&bytes| bytes > 0).map(|_| line)
    }

    fn fault(&self) -> Option<String> {
        // A process that has ended stays there until it is waited for, without its threads.
        let state = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let state = state.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
        (!matches!(state, Some('R' | 'S' | 'D' | 'T' | 't'))).then(|| "the server's process has ended".into())
    }

    fn stop(mut self) -> Result<u64, Failure> {
        let status = self.end()?;
        // What it said last is in the pipe.
        let raw_fallbacks = self.line().and_then(|line| line.trim().parse().ok());
        match (status.success(), raw_fallbacks) {
            (true, Some(raw_fallbacks)) => Ok(raw_fallbacks),
            _ => Err(Failure::host(format!("the server's process: {status}"))),
        }
    }

    fn end(&mut self) -> Result<std::process::ExitStatus, Failure> {
        drop(self.stdin.take());
        let end = clock::monotonic_ns() + PATIENCE_NS;
        let failed = |error| Failure::host(format!("waiting for the server's process: {error}"));
        while clock::monotonic_ns() < end {
            if let Some(status) = self.child.try_wait().map_err(failed)? {
                return Ok(status);
            }
            clock::sleep(LOOK_EVERY);
        }
        self.child.kill().map_err(failed)?;
        self.child.wait().map_err(failed)
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        // Where it was ended already, these find nothing to do.
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            drop(self.stdin.take());
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A server on cores of this process.
pub struct Inside {
    running: Running,
    /// What it keeps; removed after the cores have ended.
    folder: Folder,
}

impl Inside {
    fn start(settings: &Settings, listen: SocketAddr) -> Result<Inside, Failure> {
        let folder = Folder::new(None)?;
        let config = settings.config(listen, folder.path().into());
        let findings: Vec<String> =
            config::check(&config).iter().map(|finding| format!("{}: {}", finding.key, finding.what)).collect();
        if !findings.is_empty() {
            return Err(Failure::usage(findings.join("; ")));
        }
        Ok(Inside { running: Running::start(&config, true)?, folder })
    }

    fn get(&self, counter: FanoutCounter) -> u64 {
        self.running.status().fanout.get(counter)
    }

    fn fault(&self) -> Option<String> {
        let failed = || self.running.ended()?.err().map(|why| format!("the source failed: {why}"));
        self.running.fault().or_else(failed)
    }

    /// Ends it; the chunks that it sent raw because encoding was behind.
    fn stop(self) -> Result<u64, Failure> {
        let Inside { running, folder } = self;
        let status = running.status().clone();
        running.stop()?;
        drop(folder);
        Ok(status.fanout.get(FanoutCounter::RawFallbacks))
    }
}

/// The life of a server's process: until standard input ends. It says where it listens, and at the end what it counted.
pub fn child(settings: &Settings, address: SocketAddr) -> Outcome {
    // The terminal's interrupt is its parent's to handle.
    let _signals = Signals::take().map_err(|error| Failure::host(format!("signalfd: {error}")))?;
    let server = Inside::start(settings, address)?;
    let mut output = std::io::stdout();
    // Where nobody reads it, standard input has ended too.
    let _ = writeln!(output, "{}", server.running.address());
    let mut nothing = [0; 64];
    while std::io::stdin().read(&mut nothing).is_ok_and(|bytes| bytes > 0) {}
    let fault = server.fault();
    let raw_fallbacks = server.stop()?;
    let _ = writeln!(output, "{raw_fallbacks}");
    fault.map_or(Ok(Exit::Done), |what| Err(Failure::host(what)))
}

/// The source of a local run. `storage` is where stellar-core keeps its own files.
///
/// # Errors
/// What stellar-core would be refused for.
pub fn source(settings: &Settings, storage: &Path) -> Result<Box<dyn Source>, Failure> {
    let args = &settings.args;
    let (pipe_bytes, cpus) = (args.pipe_size.0 as usize, Vec::new());
    let passphrase = args.network_passphrase.clone();
    if let Some(command) = args.pipe_cmd.clone() {
        return Ok(pipe::open(&PipeSettings { command, pipe_bytes, passphrase, cpus }));
    }
    let core = CaptiveSettings {
        binary: args.core_binary.clone(),
        config: args.core_config.clone(),
        archives: args.history_archive_urls.clone(),
        storage: storage.into(),
        start: args.start,
        passphrase,
        pipe_bytes,
        cpus,
    };
    captive::open(&core).map_err(|error| Failure::usage(error.to_string()))
}
