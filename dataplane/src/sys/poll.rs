//! Waiting for several sockets at once (`poll(2)`), for fronts that have no core and no io_uring of their own.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use super::tcp::set_option;

/// Most descriptors of one wait.
pub const POLLED_MAX: usize = 16;

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    /// Bytes to read, or its end.
    Readable,
    /// Room to write, or its end.
    Writable,
    /// Only that it is broken.
    Broken,
}

/// Waits until one of the descriptors has what is waited for, a signal comes, or the time is over (`None`: without end). Bit *i*
/// of the answer is set where descriptor *i* is to be looked at. Asserts at most [`POLLED_MAX`] of them.
///
/// # Errors
/// As `poll(2)`.
pub fn wait<'a>(
    descriptors: impl IntoIterator<Item = (BorrowedFd<'a>, Interest)>,
    timeout: Option<Duration>,
) -> io::Result<u32> {
    let mut polled = [libc::pollfd { fd: -1, events: 0, revents: 0 }; POLLED_MAX];
    let mut count = 0;
    for (descriptor, interest) in descriptors {
        assert!(count < POLLED_MAX, "at most {POLLED_MAX} descriptors are waited for");
        polled[count].fd = descriptor.as_raw_fd();
        polled[count].events = match interest {
            Interest::Readable => libc::POLLIN,
            Interest::Writable => libc::POLLOUT,
            Interest::Broken => 0,
        };
        count += 1;
    }
    // Rounded up, so that a wait of less than a millisecond is none of none.
    let milliseconds =
        timeout.map_or(-1, |time| i32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
    // SAFETY: `polled` is writable for as many entries as are told.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), count as libc::nfds_t, milliseconds) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) };
    }
    let set = polled[..count].iter().enumerate().filter(|(_, entry)| entry.revents != 0);
    Ok(set.fold(0, |bits, (index, _)| bits | 1 << index))
}

/// A socket counts as readable when it has so many bytes (or has ended): whoever needs a whole message is not woken for its parts. The
/// kernel bounds it by what the socket can hold.
///
/// # Errors
/// As `setsockopt(2)`.
pub fn readable_from(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes.max(1)).unwrap_or(libc::c_int::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn a_wait_ends_with_enough_bytes_an_end_or_time() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        let (mut far, _) = listener.accept().expect("connects");
        let short = Some(Duration::from_millis(30));
        let long = Some(Duration::from_secs(20));
        readable_from(near.as_fd(), 1_000).expect("sets");
        far.write_all(&[1; 999]).expect("writes");
        let readable = |near: &TcpStream, time| wait([(near.as_fd(), Interest::Readable)], time).expect("polls");
        assert_eq!(readable(&near, short), 0, "one byte is missing");
        far.write_all(&[1]).expect("writes");
        assert_eq!(readable(&near, long), 1);
        near.read_exact(&mut [0; 1_000]).expect("reads");
        let pair = [(far.as_fd(), Interest::Broken), (far.as_fd(), Interest::Writable)];
        assert_eq!(wait(pair, long).expect("polls"), 2);
        far.shutdown(Shutdown::Write).expect("ends");
        assert_eq!(readable(&near, long), 1, "an end needs no bytes");
    }
}
