//! `sluice top` in a terminal (tmux), with a server of tmux of this test's own.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::appliance::Appliance;
use crate::common::mirrors::until;
use crate::common::skip;

/// A tmux server with one window of 80 x 24; dropped, it ends.
struct Terminal {
    socket: String,
}

/// A name of its own for each server.
fn socket() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("sluice-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

impl Terminal {
    fn start() -> Option<Terminal> {
        if !Command::new("tmux").arg("-V").stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
            skip("no tmux: run \"cargo xtask setup\"", true);
            return None;
        }
        let terminal = Terminal { socket: socket() };
        // A plain shell with a prompt that nothing else prints.
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "env PS1='ready> ' sh"]);
        terminal.until("the shell", |text| text.contains("ready>"));
        Some(terminal)
    }

    fn tmux(&self, args: &[&str]) -> String {
        let output = Command::new("tmux").arg("-L").arg(&self.socket).args(args).output().expect("tmux runs");
        assert!(output.status.success(), "tmux {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What is on the screen.
    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// The same with colours and attributes.
    fn colours(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-e"])
    }

    /// Waits until the screen is as `look` wants it; the screen.
    #[track_caller]
    fn until(&self, what: &str, look: impl Fn(&str) -> bool) -> String {
        let end = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            let screen = self.screen();
            if look(&screen) {
                return screen;
            }
            assert!(std::time::Instant::now() < end, "{what}:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn type_line(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.keys(&["Enter"]);
    }

    fn flag(&self, flag: &str) -> String {
        self.tmux(&["display-message", "-p", &format!("#{{{flag}}}")]).trim().to_string()
    }

    /// The terminal is as it was before: no alternate screen, a cursor, wrapping lines, the same settings.
    fn sane(&self, folder: &std::path::Path) {
        self.type_line("stty -g > after; echo checked $?");
        self.until("the shell answers", |text| text.contains("checked 0"));
        let read = |name| std::fs::read_to_string(folder.join(name)).expect("stty wrote it");
        assert_eq!(read("before"), read("after"), "the terminal's settings");
        assert_eq!([self.flag("alternate_on"), self.flag("cursor_flag"), self.flag("wrap_flag")], ["0", "1", "1"]);
        self.type_line("clear");
        self.until("a clear screen", |text| !text.contains("checked"));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").arg("-L").arg(&self.socket).arg("kill-server").output();
    }
}

fn grouped(value: u64) -> String {
    sluice::cli::top_view::grouped(value)
}

#[test]
fn top_shows_the_status_and_leaves_the_terminal_as_it_was() {
    let Some(terminal) = Terminal::start() else { return };
    let appliance = Appliance::start();
    let folder = appliance.folder.path();
    let top = format!("{} top --control {}", env!("CARGO_BIN_EXE_sluice"), appliance.control);
    terminal.type_line(&format!("cd {}; stty -g > before; clear", folder.display()));
    until("stty", || folder.join("before").exists().then_some(()));

    // It starts, its foot is on the last line, and its numbers are the status's.
    terminal.type_line(&top);
    let screen = terminal.until("top", |text| text.starts_with("sluice ") && text.contains("FLOW"));
    assert!(screen.lines().last().is_some_and(|line| line.starts_with("q quit  p pause")), "{screen}");
    let status = appliance.status().expect("it answers");
    let received = status["capture"]["queues"][0]["received"].as_u64().expect("a count");
    let stored = status["stores"][0]["stored"].as_u64().expect("a count");
    assert!(received > 1_000 && stored > 10_000);
    for part in [
        "healthy".to_string(),
        format!("{} packets", grouped(received)),
        format!("{} records", grouped(stored)),
        format!("process {}", appliance.sluice.pid()),
    ] {
        terminal.until(&part, |text| text.contains(&part));
    }
    terminal.until("a rate of ledgers", |text| {
        text.lines().any(|line| line.starts_with("source synthetic") && line.contains("KiB/s"))
    });
    assert!(terminal.colours().contains("38;5;2m"), "green");

    // It scrolls to its end, pauses, and takes a new size.
    terminal.keys(&["End"]);
    terminal.until("its last line", |text| text.contains("one (cpu ") || text.contains("arbiter"));
    terminal.until("its clock", |text| text.contains("PROCESS AND CLOCK") && text.contains("TAI - UTC"));
    terminal.keys(&["Home", "PageDown", "PageUp", "p"]);
    terminal.until("a pause", |text| text.contains("PAUSED: p goes on") && text.contains("lines 1 to"));
    terminal.keys(&["p"]);
    terminal.tmux(&["resize-window", "-x", "132", "-y", "50"]);
    terminal.until("the new size", |text| {
        text.lines().count() == 50
            && text.lines().last().is_some_and(|line| line.starts_with("q quit"))
            && text.lines().any(|line| line.starts_with("source synthetic") && line.trim_end().chars().count() > 120)
    });
    terminal.tmux(&["resize-window", "-x", "60", "-y", "10"]);
    terminal.until("a small size", |text| text.lines().count() == 10 && text.contains("q quit"));
    terminal.tmux(&["resize-window", "-x", "80", "-y", "24"]);

    // It quits by key and by signal, and the terminal is as it was.
    terminal.keys(&["q"]);
    terminal.until("the shell", |text| text.contains("ready>"));
    terminal.sane(folder);
    for signal in ["TERM", "INT", "HUP"] {
        terminal.type_line(&format!("sh -c 'echo $$ > pid; exec {top}'; echo ended $?"));
        terminal.until("top", |text| text.starts_with("sluice ") && text.contains("FLOW"));
        let process = std::fs::read_to_string(folder.join("pid")).expect("its number");
        let ended = Command::new("kill").arg(format!("-{signal}")).arg(process.trim()).status().expect("kill runs");
        assert!(ended.success());
        terminal.until("its end", |text| text.contains("ended 0"));
        terminal.sane(folder);
    }

    // Without colour.
    terminal.type_line(&format!("NO_COLOR=1 {top}"));
    terminal.until("top", |text| text.starts_with("sluice ") && text.contains("FLOW"));
    let plain = terminal.colours();
    assert!(!plain.contains("38;5;") && plain.contains("\u{1b}[1m"), "bold, and no colour:\n{plain}");

    // The appliance goes away.
    let address = appliance.control;
    let Appliance { sluice, .. } = appliance;
    sluice.kill();
    terminal.until("that it is gone", |text| text.contains(&format!("NO ANSWER from {address}")));
    terminal.keys(&["q"]);
    terminal.until("the shell", |text| text.contains("ready>"));
}

/// Whether a process is there and has not ended (one that nobody waits for stays as a zombie).
fn lives(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    status.is_ok_and(|status| !status.lines().any(|line| line.starts_with("State:") && line.contains('Z')))
}

#[test]
fn top_ends_with_its_terminal() {
    let Some(terminal) = Terminal::start() else { return };
    let folder = tempfile::tempdir().expect("a directory");
    let pid = folder.path().join("pid");
    let top = format!("{} top --control 127.0.0.1:1", env!("CARGO_BIN_EXE_sluice"));
    terminal.type_line(&format!("sh -c 'echo $$ > {}; exec {top}'", pid.display()));
    terminal.until("top", |text| text.contains("NO ANSWER from 127.0.0.1:1"));
    let process = std::fs::read_to_string(&pid).expect("its number").trim().to_string();
    assert!(lives(&process));
    // The window closes: the terminal is gone under the program.
    drop(terminal);
    until("its end", || (!lives(&process)).then_some(()));
}

#[test]
fn top_without_a_terminal_names_stat() {
    let output = Command::new(env!("CARGO_BIN_EXE_sluice")).arg("top").output().expect("our own program");
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("standard output is not a terminal") && told.contains("sluice stat"), "{told}");
}
