//! A root booted by its own systemd, PID 1 of a process namespace: what no stand-in shows is the unit's sandbox.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::root::Root;
use crate::shell;

/// How long systemd may take to start a minimal system: about two seconds here.
const BOOT_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What becomes PID 1: the root made a mount of its own (a chroot cannot hold the sandbox's mounts), the control group's
/// file system, and systemd, which is told by `container` that hardware is not its business.
const BOOT: &str = r#"
mount --rbind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount -t cgroup2 cgroup2 sys/fs/cgroup
pivot_root . mnt
umount -l /mnt
exec env -i container=install PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=console --show-status=no
"#;

/// A running system. Dropped, all of it is killed.
pub struct Booted {
    child: Child,
    group: PathBuf,
    log: PathBuf,
}

/// Why this machine boots none, if it does not.
pub fn refusal() -> Option<String> {
    groups().err()
}

/// This process's own control group, of version 2.
fn groups() -> Result<PathBuf, String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let of_kind = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.get(2) == Some(&"cgroup2")).then(|| words[1].to_string())
    };
    let mount = mounts.lines().find_map(of_kind).ok_or("no cgroup2 is mounted")?;
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).ok_or("this process is in no cgroup2")?;
    Ok(Path::new(&mount).join(own))
}

impl Booted {
    /// Boots the root and waits until systemd says that it has started.
    pub fn start(root: &mut Root) -> Result<Booted, String> {
        let group = groups()?.join(format!("sluice-install-{}", std::process::id()));
        std::fs::create_dir(&group).map_err(|error| format!("{}: {error}", group.display()))?;
        let log = shell::root().join("target/dist/systemd.log");
        let file = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let both = file.try_clone().map_err(|error| error.to_string())?;
        let mut unshare = shell::command("sh");
        unshare.args(["-euc", "echo $$ >\"$1/cgroup.procs\"; shift; exec \"$@\"", "sh"]).arg(&group);
        unshare.args(["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount", "--uts", "--ipc", "--cgroup"]);
        unshare.args(["sh", "-euc", BOOT, "sh"]).arg(root.path(""));
        let child = unshare.stdin(Stdio::null()).stdout(file).stderr(both).spawn();
        let child = child.map_err(|error| format!("unshare: {error}"))?;
        let mut booted = Booted { child, group, log };
        booted.await_start(root)?;
        Ok(booted)
    }

    fn await_start(&mut self, root: &mut Root) -> Result<(), String> {
        let end = Instant::now() + BOOT_MAX;
        while Instant::now() < end {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("systemd ended ({status}):\n{}", self.log()));
            }
            if let Some(pid) = self.init() {
                root.enter(pid);
                // "degraded": a unit of the minimal system that has no business here, as the console's, may have failed.
                if root.shell("case $(systemctl is-system-running) in running | degraded) ;; *) exit 1 ;; esac").is_ok()
                {
                    return Ok(());
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Err(format!("systemd did not start in {BOOT_MAX:?}:\n{}", self.log()))
    }

    /// systemd's number out here: the only child of unshare.
    fn init(&self) -> Option<u32> {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
        let pid = children.split_whitespace().next()?.parse().ok()?;
        // Until then it is the shell that prepares it.
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        (comm.trim() == "systemd").then_some(pid)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The kernel empties the groups a moment after the processes are gone.
        for _ in 0..50 {
            remove_groups(&self.group);
            if !self.group.exists() {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        eprintln!("install: {} is left: remove it with rmdir", self.group.display());
    }
}

/// Removes a group and those below it: folders only, their files are the kernel's.
fn remove_groups(group: &Path) {
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_groups(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(group);
}
