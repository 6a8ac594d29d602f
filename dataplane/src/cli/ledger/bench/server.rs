//! The server of a loopback run: in this process, or behind a link in a process of its own.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::clock as offset;
use super::link::Link;
use super::settings::Settings;
use crate::cli::{Exit, Failure, Outcome};
use crate::ledger::source::Source;
use crate::ledger::source::captive::{self, CaptiveSettings};
use crate::ledger::source::pipe::{self, PipeSettings};
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
    Inside(Inside),
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
            None => Inside::start(settings, ([127, 0, 0, 1], 0).into()).map(Server::Inside),
        }
    }

    /// Where it is.
    pub fn url(&self) -> String {
        let address = match self {
            Server::Inside(inside) => inside.address,
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

    /// Chunks that it sent raw because encoding was behind.
    pub fn raw_fallbacks(&self) -> Option<u64> {
        self.health()?["raw_fallbacks"].as_u64()
    }

    fn health(&self) -> Option<serde_json::Value> {
        let url = self.url();
        match self {
            Server::Inside(_) => offset::health(&url),
            Server::Linked(linked) => linked.link.client().run(|| offset::health(&url)).ok().flatten(),
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
            if self.health().is_some_and(|health| health["latest"].as_u64() >= Some(u64::from(count))) {
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

    /// Ends it, and removes what it kept.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn stop(self) -> Result<(), Failure> {
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
        let stdout = child.stdout.take();
        let linked = Linked { child, stdin, link };
        // The line comes when it listens; without it, the process has said why on standard error.
        let mut line = String::new();
        let said = stdout.map_or(Ok(0), |stdout| BufReader::new(stdout).read_line(&mut line));
        match said {
            Ok(1..) => Ok(linked),
            _ => {
                let status = linked.end()?;
                Err(Failure::host(format!("--link: the server's process ended: {status}")))
            }
        }
    }

    fn fault(&self) -> Option<String> {
        // A process that has ended stays there until it is waited for, without its threads.
        let state = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let state = state.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
        (!matches!(state, Some('R' | 'S' | 'D' | 'T' | 't'))).then(|| "the server's process has ended".into())
    }

    fn stop(self) -> Result<(), Failure> {
        let status = self.end()?;
        match status.success() {
            true => Ok(()),
            false => Err(Failure::host(format!("the server's process: {status}"))),
        }
    }

    fn end(mut self) -> Result<std::process::ExitStatus, Failure> {
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
    address: SocketAddr,
    _folder: Folder,
}

impl Inside {
    fn start(settings: &Settings, listen: SocketAddr) -> Result<Inside, Failure> {
        let folder = Folder::new(None)?;
        let config = settings.config(listen, folder.path().into());
        Err(Failure::host(format!("no server for {} cores", config.cores.len())))
    }

    fn fault(&self) -> Option<String> {
        None
    }

    fn stop(self) -> Result<(), Failure> {
        Ok(())
    }
}

/// The life of a server's process: until standard input ends.
pub fn child(settings: &Settings, address: SocketAddr) -> Outcome {
    let _signals = Signals::take().map_err(|error| Failure::host(format!("signalfd: {error}")))?;
    let server = Inside::start(settings, address)?;
    println!("{address}");
    let mut nothing = [0; 64];
    while std::io::stdin().read(&mut nothing).is_ok_and(|bytes| bytes > 0) {}
    server.stop().map(|()| Exit::Done)
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
