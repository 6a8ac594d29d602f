//! Standard output, where somebody may have stopped reading (`| head`), or nothing more fits (a full disk).

use std::io::{self, ErrorKind, Write};

use super::{Exit, Failure, Outcome};

/// What the standard library says before it panics because a line could not be printed.
const NOT_PRINTED: &str = "failed printing to ";

/// Prints where the exit code counts even if nobody reads: a closed pipe is none of the command's business.
///
/// # Errors
/// What the system says of the write, and the host's exit code.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush())).map(drop)
}

/// Whether somebody still reads what was written to standard output.
///
/// # Errors
/// Everything but a closed pipe.
pub fn written(result: io::Result<()>) -> Result<bool, Failure> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::host(format!("stdout: {error}"))),
    }
}

/// How the process ends after a panic that says `what`, where only a line could not be printed: `println!` has no other way to say so.
pub fn unprinted(what: &str) -> Option<Outcome> {
    let (stream, why) = what.strip_prefix(NOT_PRINTED)?.split_once(": ")?;
    // The number, and not the words, which are the system's own.
    let number = why.rsplit_once("(os error ")?.1.strip_suffix(')')?.parse().ok()?;
    let error = io::Error::from_raw_os_error(number);
    Some(match error.kind() {
        ErrorKind::BrokenPipe => Ok(Exit::Done),
        _ => Err(Failure::host(format!("{stream}: {error}"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_could_not_be_printed_is_no_bug() {
        let pipe = unprinted("failed printing to stdout: Broken pipe (os error 32)");
        assert_eq!(pipe.expect("a print").expect("quiet"), Exit::Done);
        let full = unprinted("failed printing to stdout: No space left on device (os error 28)");
        let full = full.expect("a print").expect_err("a failure");
        assert_eq!((full.exit, full.message.as_str()), (Exit::Host, "stdout: No space left on device (os error 28)"));
        for bug in ["frame 7 came back twice", "failed printing to stdout: what", "Broken pipe (os error 32)"] {
            assert!(unprinted(bug).is_none(), "{bug}");
        }
    }
}
