//! What a panic does: the process says where and ends with code 5, whichever thread it was. A dataplane that goes on without one
//! of its threads would lose messages unseen; systemd starts a whole one again. A line that nobody takes is told apart: it is no bug.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write;
use std::panic::PanicHookInfo;

use super::{Exit, Outcome, log, output};
use crate::sys::signal;

/// From now on a panic ends the process.
pub fn install() {
    std::panic::set_hook(Box::new(|info| {
        // Lines that were logged before come first.
        log::flush();
        let exit = match output::unprinted(info.payload_as_str().unwrap_or_default()) {
            Some(outcome) => no_output(outcome),
            None => bug(info),
        };
        signal::exit_now(exit as i32);
    }));
}

/// A line that could not be printed is no bug: a closed pipe ends the process quietly, as it does where rows are written.
fn no_output(outcome: Outcome) -> Exit {
    outcome.unwrap_or_else(|failure| {
        say(&format!("sluice: {}", failure.message));
        failure.exit
    })
}

fn bug(info: &PanicHookInfo<'_>) -> Exit {
    say(&told(info));
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => say(&backtrace.to_string()),
        _ => say("sluice: RUST_BACKTRACE=1 in the environment shows how it came there"),
    }
    Exit::Internal
}

/// Where standard error takes nothing either, a second panic in here would hide the exit code.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn told(info: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let place = info.location().map_or_else(String::new, |place| format!(" at {place}"));
    let what = info.payload_as_str().unwrap_or("no message");
    format!(
        "sluice: internal error in thread \"{}\"{place}: {what}; the process ends, nothing half-alive stays; please report this",
        thread.name().unwrap_or("?")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only for the test below, which runs it in a process of its own.
    #[test]
    #[ignore = "it ends the process that runs it"]
    fn panics_in_a_thread() {
        install();
        let thread = std::thread::Builder::new().name("sluice-rx".into());
        let thread = thread.spawn(|| panic!("frame {} came back twice", 7)).expect("a thread");
        let _ = thread.join();
        std::thread::sleep(std::time::Duration::from_secs(60));
    }

    #[test]
    fn a_panic_in_any_thread_ends_the_process_with_its_reason() {
        let name = "cli::panics::tests::panics_in_a_thread";
        let own = std::env::current_exe().expect("this test's program");
        let arguments = ["--ignored", "--exact", name, "--nocapture"];
        let done = std::process::Command::new(own).args(arguments).output().expect("starts");
        let told = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(Exit::Internal as i32), "{told}");
        assert!(
            told.contains("internal error in thread \"sluice-rx\" at ") && told.contains("frame 7 came back twice"),
            "{told}"
        );
    }
}
