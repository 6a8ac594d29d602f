//! A unit's command, started as systemd would start it: folders, user, limits, capabilities, notification socket.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::root::Root;
use super::unit::{CommandLine, Unit};
use crate::shell;

/// How long a word or the end is waited for: the unit's TimeoutStopSec is 90 s, and all of it takes about one second.
const WAIT_MAX: Duration = Duration::from_secs(90);
/// How often a silent socket lets the child be looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A notification is a few words (sd_notify(3)).
const DATAGRAM_BYTES_MAX: usize = 4_096;
/// The socket, in the root.
const SOCKET: &str = "/run/notify";

/// Numbers of the capabilities that our units name (linux/capability.h).
const CAPABILITIES: [(&str, u32); 5] =
    [("net_bind_service", 10), ("net_admin", 12), ("net_raw", 13), ("perfmon", 38), ("bpf", 39)];

/// The limits that our units set, and their lines in /proc/PID/limits.
const LIMITS: [(&str, &str); 3] =
    [("memlock", "Max locked memory"), ("nofile", "Max open files"), ("core", "Max core file size")];
/// CAP_SYS_RESOURCE, with which a hard limit may be raised.
const SYS_RESOURCE: u32 = 24;

/// Limits by their names, as prlimit takes them.
pub type Limits = Vec<(String, String)>;

/// A started service. Dropped, it is killed.
pub struct Service {
    child: Child,
    socket: UnixDatagram,
    log: PathBuf,
    /// Words that have come and were not waited for.
    words: Vec<String>,
}

/// Makes StateDirectory= and RuntimeDirectory=.
pub fn folders(root: &Root, unit: &Unit) -> Result<(), String> {
    let (user, group) = (unit.need("User")?, unit.need("Group")?);
    for (key, parent) in [("StateDirectory", "/var/lib"), ("RuntimeDirectory", "/run")] {
        let (name, mode) = (unit.need(key)?, unit.need(&format!("{key}Mode"))?);
        root.shell(&format!("install -d -o {user} -g {group} -m {mode} {parent}/{name}"))?;
    }
    Ok(())
}

/// Runs a command of the unit to its end.
pub fn once(root: &Root, unit: &Unit, limits: &Limits, line: &CommandLine) -> Result<(), String> {
    let output = command(root, unit, limits, line)?.output().map_err(|error| format!("chroot: {error}"))?;
    match output.status.success() || line.may_fail && output.status.code().is_some() {
        true => Ok(()),
        false => Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

/// The command with everything that the unit gives it, in the order in which each needs the privilege of the one before.
fn command(root: &Root, unit: &Unit, limits: &Limits, line: &CommandLine) -> Result<Command, String> {
    let (user, group) = (unit.need("User")?, unit.need("Group")?);
    let shell = format!("umask {}; cd {}; exec \"$@\"", unit.need("UMask")?, unit.need("WorkingDirectory")?);
    let ambient = unit.capabilities("AmbientCapabilities");
    let drop = [
        format!("--reuid={user}"),
        format!("--regid={group}"),
        "--init-groups".into(),
        format!("--bounding-set={}", unit.capabilities("CapabilityBoundingSet")),
        format!("--inh-caps={ambient}"),
        format!("--ambient-caps={ambient}"),
        "--no-new-privs".into(),
        // The end of this test is the end of the service, whatever becomes of the test.
        "--pdeathsig=KILL".into(),
        "--".into(),
    ];
    let mut words = vec!["/bin/sh", "-euc", &shell, "sh", "/usr/bin/prlimit"];
    let limits: Vec<String> = limits.iter().map(|(name, value)| format!("--{name}={value}")).collect();
    words.extend(limits.iter().map(String::as_str));
    words.push("/usr/bin/setpriv");
    words.extend(drop.iter().map(String::as_str));
    words.extend(line.words.iter().map(String::as_str));
    let mut environment = unit.values("Environment");
    environment.push(format!("NOTIFY_SOCKET={SOCKET}"));
    let mut command = root.command(&environment, &words);
    command.stdin(Stdio::null());
    Ok(command)
}

impl Service {
    /// Binds the socket and starts the command.
    pub fn start(root: &Root, unit: &Unit, limits: &Limits, line: &CommandLine) -> Result<Service, String> {
        let path = root.path(SOCKET);
        let told = |error: std::io::Error| format!("{}: {error}", path.display());
        let socket = UnixDatagram::bind(&path).map_err(told)?;
        socket.set_read_timeout(Some(LOOK_EVERY)).map_err(told)?;
        // systemd's is open to all too; who sent is told by the kernel.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).map_err(told)?;
        let log = shell::root().join("target/dist/service.log");
        let file = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let both = file.try_clone().map_err(|error| error.to_string())?;
        let mut command = command(root, unit, limits, line)?;
        let child = command.stdout(file).stderr(both).spawn().map_err(|error| format!("chroot: {error}"))?;
        Ok(Service { child, socket, log, words: Vec::new() })
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits for a notification.
    pub fn await_word(&mut self, word: &str) -> Result<(), String> {
        let end = Instant::now() + WAIT_MAX;
        let mut datagram = [0; DATAGRAM_BYTES_MAX];
        while Instant::now() < end {
            if let Some(at) = self.words.iter().position(|known| known == word) {
                self.words.drain(..=at);
                return Ok(());
            }
            match self.socket.recv(&mut datagram) {
                Ok(bytes) => {
                    let text = String::from_utf8_lossy(&datagram[..bytes]).into_owned();
                    self.words.extend(text.lines().map(str::to_string));
                }
                // Silent: it may have ended. Its last words have been read before.
                Err(_) => {
                    if let Ok(Some(status)) = self.child.try_wait() {
                        return Err(format!("it ended ({status}) without it:\n{}", self.log()));
                    }
                }
            }
        }
        Err(format!("not in {WAIT_MAX:?}; its log:\n{}", self.log()))
    }

    /// What the kernel says of the running process.
    pub fn status(&self, unit: &Unit, limits: &Limits) -> Result<(), String> {
        let read = |name: &str| {
            let path = format!("/proc/{}/{name}", self.child.id());
            std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))
        };
        let (status, shown, command) = (read("status")?, read("limits")?, read("comm")?);
        let bounds = mask(&unit.capabilities("CapabilityBoundingSet"))?;
        let status: Vec<Vec<&str>> = status.lines().map(|line| line.split_whitespace().collect()).collect();
        let has = |words: &[&str]| status.iter().any(|line| line.starts_with(words));
        for (what, holds) in [
            ("it is sluice itself, and not a program around it", command.trim() == "sluice"),
            ("no user is root", !status.iter().any(|line| line[0] == "Uid:" && line.contains(&"0"))),
            ("no new privileges", has(&["NoNewPrivs:", "1"])),
            ("the unit's bounding set", has(&["CapBnd:", &format!("{bounds:016x}")])),
        ] {
            if !holds {
                return Err(format!("{what}: does not hold:\n{status:?}"));
            }
        }
        without_capabilities(self.child.id())?;
        match limits.iter().find(|(name, value)| hard(&shown, name).as_ref() != Some(value)) {
            Some((name, value)) => Err(format!("limit {name} is not {value}:\n{shown}")),
            None => Ok(()),
        }
    }

    /// SIGTERM, then its last words and its exit code.
    pub fn stop(&mut self) -> Result<(), String> {
        shell::run(shell::command("kill").args(["-TERM", &self.child.id().to_string()]))?;
        self.await_word("STOPPING=1")?;
        let end = Instant::now() + WAIT_MAX;
        while Instant::now() < end {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("it ended with {status}:\n{}", self.log())),
                _ => std::thread::sleep(LOOK_EVERY),
            }
        }
        Err(format!("it did not end in {WAIT_MAX:?}:\n{}", self.log()))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Once it is ready no thread may hold a capability, or get one back.
fn without_capabilities(pid: u32) -> Result<(), String> {
    let tasks = format!("/proc/{pid}/task");
    for task in std::fs::read_dir(&tasks).map_err(|error| format!("{tasks}: {error}"))?.flatten() {
        // A helper thread may have ended meanwhile.
        let Ok(status) = std::fs::read_to_string(task.path().join("status")) else { continue };
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            let held = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':')).unwrap_or("no line");
            if !held.trim().bytes().all(|digit| digit == b'0') {
                return Err(format!("{}: {set} is {}, but must be 0", task.path().display(), held.trim()));
            }
        }
    }
    Ok(())
}

/// The limits that the unit sets, as prlimit takes them. Where this process may not raise its own it does what systemd
/// does: as near as it may.
pub fn limits(unit: &Unit) -> Result<Limits, String> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let (own, status) = (read("limits"), read("status"));
    let held = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    let may_raise = held.is_some_and(|held| held >> SYS_RESOURCE & 1 == 1);
    let mut limits = Vec::new();
    for (name, wanted) in unit.limits()? {
        let own = hard(&own, &name).ok_or_else(|| format!("limit \"{name}\" is not in this test's table"))?;
        let value = closest(wanted, own.parse().ok(), may_raise);
        if value != wanted {
            println!("SKIPPED install limits: {name} stays at {own}: this root lacks CAP_SYS_RESOURCE");
        }
        limits.push((name, value.map_or("unlimited".into(), |value| value.to_string())));
    }
    Ok(limits)
}

/// The nearest allowed value; none is infinity.
fn closest(wanted: Option<u64>, hard: Option<u64>, may_raise: bool) -> Option<u64> {
    match (wanted, hard) {
        (wanted, Some(hard)) if !may_raise => Some(wanted.map_or(hard, |wanted| wanted.min(hard))),
        _ => wanted,
    }
}

/// The hard limit of this name in the text of /proc/PID/limits: a number, or "unlimited".
fn hard(text: &str, name: &str) -> Option<String> {
    let (_, begin) = LIMITS.iter().find(|(known, _)| *known == name)?;
    let line = text.lines().find_map(|line| line.strip_prefix(begin))?;
    line.split_whitespace().nth(1).map(str::to_string)
}

/// A set as setpriv takes it, as the mask that the kernel shows.
fn mask(set: &str) -> Result<u64, String> {
    let names = set.split(',').filter_map(|name| name.strip_prefix('+'));
    let bit = |name: &str| {
        let known = CAPABILITIES.iter().find(|(known, _)| *known == name);
        known.map(|(_, number)| 1 << number).ok_or_else(|| format!("capability \"{name}\" is not in this test's table"))
    };
    names.map(bit).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_go_as_far_as_they_may() {
        assert_eq!(closest(None, Some(8), true), None);
        assert_eq!(closest(None, Some(8), false), Some(8));
        assert_eq!(closest(Some(9), Some(8), false), Some(8));
        assert_eq!(closest(Some(7), Some(8), false), Some(7));
        assert_eq!(closest(Some(7), None, false), Some(7));
        let text = "Limit  Soft Limit  Hard Limit  Units\nMax locked memory  8388608  unlimited  bytes\n";
        assert_eq!(hard(text, "memlock").as_deref(), Some("unlimited"));
        assert_eq!(hard(text, "nofile"), None);
    }

    #[test]
    fn masks_are_the_kernels() {
        assert_eq!(mask("-all"), Ok(0));
        assert_eq!(mask("-all,+net_raw,+bpf"), Ok(1 << 13 | 1 << 39));
        assert!(mask("-all,+sys_admin").is_err());
    }
}
