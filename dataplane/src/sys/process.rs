//! A command in a process group of its own that writes into a pipe: started, watched, ended, and never left behind.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The descriptor on which the command finds the pipe's writing end.
pub const PIPE_FD: RawFd = 3;

/// What the guard runs: it reads the group's number, then waits for the end of its input, which comes when this process is gone,
/// however it died. (`PR_SET_PDEATHSIG` reaches the command's first process, and none of those that it has started.)
const GUARD: &str = r#"read -r group || exit 0; read -r _ && exit 0; kill -s KILL -- "-$group""#;

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "ended with exit code {code}"),
            Exit::Signal(signal) => write!(f, "was ended by signal {signal}"),
        }
    }
}

/// What to start.
#[derive(Clone, Debug)]
pub struct PipedCommand {
    /// The program; looked up on the PATH when it has no slash.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Where it runs; `None`: where this process does.
    pub directory: Option<PathBuf>,
    /// The CPUs that it may run on (a pinned core that starts it would pass its own on); empty: as the starting thread.
    pub cpus: Vec<usize>,
    /// Bytes that the pipe should hold; the kernel may refuse.
    pub pipe_bytes: usize,
}

/// A started command. Dropping it kills the whole group.
#[derive(Debug)]
pub struct Group {
    leader: Child,
    exit: Option<Exit>,
    /// Nobody of the group is left; its number may be another's.
    empty: bool,
    watch: Option<OwnedFd>,
    guard: Option<Child>,
}

/// The reading end of a command's pipe, never waiting.
#[derive(Debug)]
pub struct PipeReader {
    fd: OwnedFd,
    /// Bytes that it holds.
    pub bytes: usize,
    /// Why it does not hold as many as were asked for.
    pub refused: Option<io::Error>,
}

/// Starts a command whose descriptor [`PIPE_FD`] is the writing end of a pipe. Its standard output and errors are ours. It is killed
/// when the starting thread ends, and with it all of its group when this process does.
///
/// # Errors
/// As `pipe`, `fork` and `exec`.
pub fn start(command: &PipedCommand) -> io::Result<(Group, PipeReader)> {
    let (reader, writer) = pipe(libc::O_CLOEXEC)?;
    set_nonblocking(reader.as_fd())?;
    let refused = set_pipe_bytes(reader.as_fd(), command.pipe_bytes).err();
    let bytes = pipe_bytes(reader.as_fd())?;
    let mut guard = start_guard()?;
    let leader = match start_leader(command, writer.as_raw_fd()) {
        Ok(leader) => leader,
        Err(error) => {
            end(&mut guard);
            return Err(error);
        }
    };
    drop(writer);
    let mut group = Group { watch: watch(leader.id()).ok(), leader, exit: None, empty: false, guard: Some(guard) };
    group.tell_guard()?;
    Ok((group, PipeReader { fd: reader, bytes, refused }))
}

fn start_guard() -> io::Result<Child> {
    let mut guard = Command::new("/bin/sh");
    guard.arg("-c").arg(GUARD).process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    guard.spawn()
}

fn start_leader(command: &PipedCommand, writer: RawFd) -> io::Result<Child> {
    let mut leader = Command::new(&command.program);
    leader.args(&command.arguments).stdin(Stdio::null()).process_group(0);
    if let Some(directory) = &command.directory {
        leader.current_dir(directory);
    }
    let cpus = cpu_set(&command.cpus);
    let parent = std::process::id() as libc::pid_t;
    let prepare = move || prepare(writer, parent, cpus.as_ref());
    // SAFETY: `prepare` makes system calls only: it allocates nothing, takes no lock, and runs no destructor.
    unsafe { leader.pre_exec(prepare) };
    leader.spawn()
}

/// Runs in the child between `fork` and `exec`.
fn prepare(writer: RawFd, parent: libc::pid_t, cpus: Option<&libc::cpu_set_t>) -> io::Result<()> {
    let failed = |result: libc::c_int| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: plain system calls on our own descriptors; `cpus` and `none` are valid for their calls.
    unsafe {
        failed(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        // Too late for a parent that is gone already.
        if libc::getppid() != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        // The signals that our threads leave to one of them are the command's own again.
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        failed(libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()))?;
        if let Some(cpus) = cpus {
            // CPUs that are gone since are no reason not to start.
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), cpus);
        }
        if writer == PIPE_FD {
            // dup2 onto itself would leave the descriptor to be closed by exec.
            failed(libc::fcntl(writer, libc::F_SETFD, 0))
        } else {
            failed(libc::dup2(writer, PIPE_FD))
        }
    }
}

fn cpu_set(cpus: &[usize]) -> Option<libc::cpu_set_t> {
    if cpus.is_empty() {
        return None;
    }
    // SAFETY: an all-zero set is a valid, empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|cpu| **cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the number is below the set's size.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    Some(set)
}

/// A descriptor that is readable once the process has ended.
fn watch(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes no pointer; the process is our child and not reaped, so the number is its own.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Kills and reaps a child of ours that is not reaped yet.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

impl Group {
    fn tell_guard(&mut self) -> io::Result<()> {
        use std::io::Write;
        let number = format!("{}\n", self.leader.id());
        let guard = self.guard.as_mut().and_then(|guard| guard.stdin.as_mut());
        guard.expect("started with its input as a pipe").write_all(number.as_bytes())
    }

    /// The first process's number, which is the group's.
    pub fn id(&self) -> u32 {
        self.leader.id()
    }

    /// Readable once the first process has ended, where the kernel has such descriptors.
    pub fn watch_fd(&self) -> Option<RawFd> {
        self.watch.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// How the first process ended; `None` while it runs. The first answer reaps it.
    pub fn exit(&mut self) -> Option<Exit> {
        if self.exit.is_none()
            && let Ok(Some(status)) = self.leader.try_wait()
        {
            let exit = status.code().map(Exit::Code).or(status.signal().map(Exit::Signal));
            self.exit = Some(exit.unwrap_or(Exit::Code(-1)));
            // While somebody of the group lives, its number is nobody else's. Looked at at once, before it can be.
            self.is_alive();
        }
        self.exit
    }

    /// Whether somebody of the group lives (or waits to be reaped).
    pub fn is_alive(&mut self) -> bool {
        self.signal(0);
        !self.empty
    }

    /// Asks the group to end (SIGTERM).
    pub fn terminate(&mut self) {
        self.signal(libc::SIGTERM);
    }

    /// Kills the group (SIGKILL).
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
    }

    fn signal(&mut self, signal: libc::c_int) {
        if self.empty {
            return;
        }
        // SAFETY: kill() takes no pointer.
        let result = unsafe { libc::kill(-(self.leader.id() as libc::pid_t), signal) };
        self.empty = result != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    }

    /// Lets the guard go: whoever is left of the group is left alone from here on.
    pub fn dismiss_guard(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            end(&mut guard);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        if self.exit.is_none() {
            // Killed above, so this does not wait for long.
            let _ = self.leader.wait();
        }
        self.dismiss_guard();
    }
}

impl PipeReader {
    /// Reads what is there; `None`: nothing is, now. 0 is the end: nobody has the writing end any more.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn read(&self, room: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            // SAFETY: `room` is writable for its length.
            let read = unsafe { libc::read(self.fd.as_raw_fd(), room.as_mut_ptr().cast(), room.len()) };
            if read >= 0 {
                return Ok(Some(read as usize));
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => return Ok(None),
                _ => return Err(error),
            }
        }
    }

    /// Whether a read would find something, or the end. Unlike a read that finds nothing this takes no lock in the kernel that
    /// the writer wants.
    pub fn is_readable(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd; a timeout of 0 does not wait.
        unsafe { libc::poll(&mut poll, 1, 0) > 0 }
    }
}

impl AsRawFd for PipeReader {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

fn pipe(flags: libc::c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` is writable for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both were just opened and nobody else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

fn control(fd: BorrowedFd<'_>, command: libc::c_int, value: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: the commands used here take an integer or nothing.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, value) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = control(fd, libc::F_GETFL, 0)?;
    control(fd, libc::F_SETFL, flags | libc::O_NONBLOCK).map(drop)
}

/// Asks for a pipe that holds so many bytes.
///
/// # Errors
/// The kernel refuses: more than `fs.pipe-max-size`, or the user's pipes hold too much together.
pub fn set_pipe_bytes(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    control(fd, libc::F_SETPIPE_SZ, bytes).map(drop)
}

fn pipe_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    control(fd, libc::F_GETPIPE_SZ, 0).map(|bytes| bytes as usize)
}

/// A shell that runs `command`, as [`PipedCommand::program`] and its arguments.
pub fn shell(command: impl AsRef<OsStr>) -> (OsString, Vec<OsString>) {
    ("/bin/sh".into(), vec!["-c".into(), command.as_ref().to_os_string()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock;
    use std::time::Duration;

    /// Far more than anything here takes.
    const PATIENCE_NS: i64 = 20_000_000_000;

    fn command(text: &str) -> PipedCommand {
        let (program, arguments) = shell(text);
        PipedCommand { program, arguments, directory: None, cpus: Vec::new(), pipe_bytes: 1 << 20 }
    }

    fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let end = clock::monotonic_ns() + PATIENCE_NS;
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(clock::monotonic_ns() < end, "{what} did not come");
            clock::sleep(Duration::from_millis(5));
        }
    }

    /// What comes, to the end.
    fn read_all(pipe: &PipeReader) -> Vec<u8> {
        let mut all = Vec::new();
        let mut room = [0; 4096];
        wait_for("the end", || {
            while let Some(bytes) = pipe.read(&mut room).expect("reads") {
                all.extend_from_slice(&room[..bytes]);
                if bytes == 0 {
                    return Some(());
                }
            }
            None
        });
        all
    }

    fn is_running(pid: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X']) && !rest.is_empty())
    }

    #[test]
    fn a_command_writes_into_the_pipe_and_its_exit_is_known() {
        for (text, bytes, exit) in [
            ("printf abc >&3", &b"abc"[..], Exit::Code(0)),
            ("printf x >&3; exit 7", b"x", Exit::Code(7)),
            ("kill -s TERM $$", b"", Exit::Signal(15)),
        ] {
            let (mut group, pipe) = start(&command(text)).expect("starts");
            assert_eq!(read_all(&pipe), bytes, "{text}");
            assert!(group.watch_fd().is_some());
            assert_eq!(wait_for("its exit", || group.exit()), exit, "{text}");
            assert!(!group.is_alive());
            assert!(pipe.is_readable(), "the end is something to read");
        }
        let error = start(&PipedCommand { program: "/no/such/program".into(), ..command("") }).expect_err("missing");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_pipe_is_as_large_as_asked_for_or_says_why_not() {
        let (_group, pipe) = start(&command("sleep 100")).expect("starts");
        assert!(pipe.bytes >= 256 << 10 || pipe.refused.is_some(), "{} bytes", pipe.bytes);
        assert!(!pipe.is_readable());
        assert_eq!(pipe.read(&mut [0; 10]).expect("reads"), None);
        let (_group, pipe) = start(&PipedCommand { pipe_bytes: 1 << 31, ..command("sleep 100") }).expect("starts");
        assert!(pipe.refused.is_some() && pipe.bytes >= 4096, "a refusal is no failure");
    }

    #[test]
    fn the_whole_group_is_ended_and_reaped() {
        let (mut group, pipe) = start(&command("sleep 100 & echo $! >&3; wait")).expect("starts");
        let line = wait_for("the number", || {
            let mut room = [0; 64];
            let bytes = pipe.read(&mut room).expect("reads")?;
            Some(String::from_utf8(room[..bytes].to_vec()).expect("text"))
        });
        let inner: u32 = line.trim().parse().expect("a number");
        assert!(is_running(inner) && group.exit().is_none() && group.is_alive());
        group.terminate();
        assert_eq!(wait_for("its exit", || group.exit()), Exit::Signal(15));
        wait_for("the group's end", || (!group.is_alive()).then_some(()));
        assert!(!is_running(inner));

        let (group, pipe) = start(&command("trap '' TERM; sleep 100 & echo $! >&3; wait")).expect("starts");
        let inner: u32 = wait_for("the number", || {
            let mut room = [0; 64];
            let bytes = pipe.read(&mut room).expect("reads")?;
            String::from_utf8_lossy(&room[..bytes]).trim().parse().ok()
        });
        drop(group);
        wait_for("the end of who ignored the signal", || (!is_running(inner)).then_some(()));
    }

    #[test]
    fn the_guard_kills_the_group_when_its_owner_is_gone() {
        let (mut group, _pipe) = start(&command("trap '' TERM; sleep 100 & wait")).expect("starts");
        // What the kernel does to our descriptors when we die.
        drop(group.guard.as_mut().expect("there").stdin.take());
        assert_eq!(wait_for("its end", || group.exit()), Exit::Signal(9));
        wait_for("the group's end", || (!group.is_alive()).then_some(()));
    }

    #[test]
    fn a_command_has_its_signals_and_its_cpus() {
        let cpus = crate::sys::cpu::allowed();
        let text = "grep -E '^(SigBlk|Cpus_allowed_list)' /proc/self/status >&3";
        let started = crate::sys::signal::shielded(|| start(&PipedCommand { cpus: vec![cpus[0]], ..command(text) }));
        let (_group, pipe) = started.expect("starts");
        let status = String::from_utf8(read_all(&pipe)).expect("text");
        assert!(status.contains("SigBlk:\t0000000000000000"), "{status}");
        assert!(status.contains(&format!("Cpus_allowed_list:\t{}\n", cpus[0])), "{status}");
    }
}
