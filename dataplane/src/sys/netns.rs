//! Network namespaces without a name: a host of its own inside this one, gone when whoever holds it is gone.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use nix::sched::{CloneFlags, setns, unshare};

/// A command to start, and where its child goes.
type Spawn = (Command, Sender<io::Result<Child>>);

/// A namespace. A thread of its own holds it: the kernel removes it, with its interfaces and their shaping, when that thread, the
/// file and every process in it are gone, so a killed program leaves nothing behind.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    thread: i32,
    spawns: Option<Sender<Spawn>>,
    holder: Option<JoinHandle<()>>,
}

impl Namespace {
    /// A new one, with every interface down.
    ///
    /// # Errors
    /// As `unshare(2)`: it takes CAP_SYS_ADMIN.
    pub fn new() -> io::Result<Namespace> {
        let (spawns, asked) = channel();
        let (tell, told) = channel();
        let holder = std::thread::Builder::new().name("namespace".into()).spawn(move || hold(&tell, &asked))?;
        let (file, thread) = told.recv().map_err(|_| io::Error::other("the namespace's thread ended"))??;
        Ok(Namespace { file, thread, spawns: Some(spawns), holder: Some(holder) })
    }

    /// The number of the thread that holds it: what `ip link … netns` takes.
    pub fn thread(&self) -> i32 {
        self.thread
    }

    /// Moves the calling thread into it for the rest of the thread's life.
    ///
    /// # Errors
    /// As `setns(2)`.
    pub fn enter(&self) -> io::Result<()> {
        Ok(setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET)?)
    }

    /// Runs `body` on a thread inside it, and waits.
    ///
    /// # Errors
    /// As [`Namespace::enter`].
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| self.enter().map(|()| body()));
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts a process inside it.
    ///
    /// # Errors
    /// As the start of a process.
    pub fn spawn(&self, command: Command) -> io::Result<Child> {
        let (answer, child) = channel();
        let gone = || io::Error::other("the namespace's thread ended");
        self.spawns.as_ref().ok_or_else(gone)?.send((command, answer)).map_err(|_| gone())?;
        child.recv().map_err(|_| gone())?
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.spawns.take());
        if let Some(holder) = self.holder.take() {
            let _ = holder.join();
        }
    }
}

/// The life of the thread that holds a namespace.
fn hold(tell: &Sender<io::Result<(File, i32)>>, asked: &Receiver<Spawn>) {
    let made = unshare(CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
    let opened = made.and_then(|()| File::open("/proc/thread-self/ns/net"));
    let failed = opened.is_err();
    if tell.send(opened.map(|file| (file, nix::unistd::gettid().as_raw()))).is_err() || failed {
        return;
    }
    while let Ok((mut command, answer)) = asked.recv() {
        let _ = answer.send(command.spawn());
    }
}
