//! One thread of a running process stops, and the process ends itself with the reason.
// A stop of one thread alone is ptrace's: SIGSTOP stops them all.
#![allow(unsafe_code)]

use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::appliance::{Config, Publisher, Run, detached, emitted, output, stored, until, workspace};
use crate::common::netns::{self, Raw, Veth};

/// A thread that is held still by the thread of the test. Dropped, it is let go.
pub struct Held(Pid);

impl Held {
    pub fn new(process: u32, name: &str) -> Held {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
        let of = |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let found = tasks.flatten().find(|task| of(task).trim() == name);
        let id = found.unwrap_or_else(|| panic!("no thread {name}")).file_name();
        let thread = Pid::from_raw(id.to_str().and_then(|id| id.parse().ok()).expect("a number"));
        let held = Held(thread);
        held.ask(libc::PTRACE_SEIZE).expect("root may");
        held.ask(libc::PTRACE_INTERRUPT).expect("it is ours");
        let stopped = waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it is ours");
        assert!(matches!(stopped, WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(..)), "{stopped:?}");
        held
    }

    fn ask(&self, request: libc::c_uint) -> nix::Result<()> {
        // SAFETY: these requests take no address: they neither read nor write memory, of this process or of the other.
        let result = unsafe { libc::ptrace(request, self.0.as_raw(), 0_usize, 0_usize) };
        nix::errno::Errno::result(result).map(drop)
    }

    /// Takes note of its death. Its process is not gone before that.
    fn bury(&self) {
        let _ = waitpid(self.0, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.ask(libc::PTRACE_DETACH).is_err() {
            self.bury();
        }
    }
}

#[test]
fn a_core_that_makes_no_round_ends_the_process_with_its_name() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let veth = Veth::new("v", 1, 1500);
        let config = Config {
            sides: vec![&veth.inside],
            store: "segment = \"512KiB\"\nblock = \"128KiB\"\nflush = \"50ms\"",
            control: "stall = \"1s\"\ndrain = \"1s\"",
            ..Config::default()
        };
        let mut run = Run::start(directory, &config);
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(7, 60));
        (0..10).for_each(|_| sender.send(&publisher.frame(1)));
        run.until("stored", |status| emitted(status) == 10 && status["stores"][0]["stored"] == 10);
        let held = Held::new(run.id(), "sluice-rx");
        let code = until("it ends", || {
            held.bury();
            run.ended()
        });
        assert_eq!(code, 4, "{}", run.log());
        let log = run.log();
        let last = log.lines().last().unwrap_or_default();
        assert!(last.starts_with("sluice: ") && last.contains("core \"rx\" made no round for 1s"), "{log}");
        // Nothing stays on the interface, and what was stored before is there.
        detached(&veth.inside);
        let verified = output(directory, &["store", "verify", "store"]);
        assert!(matches!(verified.status.code(), Some(0 | 3)), "{}", String::from_utf8_lossy(&verified.stderr));
        assert_eq!(stored(directory, "store").values().next().map(|bodies| bodies.len()), Some(10));
    });
}
