//! Waiting for any of several descriptors, on a thread that may.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Waits at most `bound` for one of `fds` to be readable or at its end; whether one is. No descriptors: it only waits.
///
/// # Errors
/// As `poll(2)`; an interruption is no error, and nothing is readable.
pub fn readable(fds: &[RawFd], bound: Duration) -> io::Result<bool> {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let milliseconds = bound.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
    // SAFETY: `polled` is writable for its length, which is given. A descriptor that is closed only makes it readable.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, milliseconds) };
    match ready {
        0.. => Ok(ready > 0),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_is_readable_is_found_and_what_is_not_is_waited_for() {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        assert!(!readable(&[reader.as_raw_fd()], Duration::from_millis(1)).expect("polls"));
        assert!(!readable(&[], Duration::from_millis(1)).expect("polls"));
        writer.write_all(b"x").expect("written");
        assert!(readable(&[reader.as_raw_fd()], Duration::from_secs(60)).expect("polls"));
    }
}
