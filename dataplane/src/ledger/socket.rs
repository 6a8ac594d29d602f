//! One connection of the blocking front: a non-blocking socket, plain or under TLS, between the kernel and a [`Line`].

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::client_tls::{ClientTls, TlsError, TlsSession};
use super::line::Line;
use super::url::Url;
use crate::sys::poll::{self, Interest};
use crate::sys::{clock, tcp};

/// A connection whose other side answers nothing for this long, not even probes, is dead. A server that has nothing to send
/// is silent for as long as its source is, so silence alone is no sign.
const DEAD_AFTER: Duration = Duration::from_secs(30);
/// Bytes of one read under TLS; a plain one goes where the line keeps it.
const CIPHER_BYTES: usize = 256 << 10;
/// What a client says is a few hundred bytes; a connection that does not take them in this time takes nothing.
const WRITE_TIME_MAX: Duration = Duration::from_secs(10);

/// Why a connection did not come to be, or is at its end.
#[derive(Debug)]
pub(super) enum SocketError {
    Io(io::Error),
    Tls(TlsError),
}

impl From<io::Error> for SocketError {
    fn from(error: io::Error) -> SocketError {
        SocketError::Io(error)
    }
}

impl From<TlsError> for SocketError {
    fn from(error: TlsError) -> SocketError {
        SocketError::Tls(error)
    }
}

/// What a read came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Got {
    Bytes,
    Nothing,
    End,
}

/// A connection.
pub(super) struct Socket {
    stream: TcpStream,
    tls: Option<TlsSession>,
    /// What came or goes under TLS; the room is kept.
    cipher: Vec<u8>,
    /// Fewest bytes that wake a wait.
    low_water: usize,
    /// When it was begun.
    pub(super) since_ns: i64,
}

impl Socket {
    /// Tries each address of the host until one answers.
    pub(super) fn dial(url: &Url, tls: Option<&ClientTls>, deadline_ns: i64) -> Result<Socket, SocketError> {
        let tls = tls.map(|tls| tls.session(&url.host)).transpose()?;
        let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
        let addresses: Vec<_> = (url.host.as_str(), url.port).to_socket_addrs()?.collect();
        for (at, address) in addresses.iter().enumerate() {
            // One that does not answer at all leaves the others their share.
            let share = time_left(deadline_ns)? / (addresses.len() - at) as u32;
            match TcpStream::connect_timeout(address, share.max(Duration::from_millis(1))) {
                Ok(stream) => {
                    tcp::tune(stream.as_fd(), DEAD_AFTER)?;
                    stream.set_nonblocking(true)?;
                    let since_ns = clock::monotonic_ns();
                    return Ok(Socket { stream, tls, cipher: Vec::new(), low_water: 1, since_ns });
                }
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }

    /// A second handle of the socket, to end it from another thread.
    pub(super) fn handle(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Moves what has come to `line`; never waits.
    pub(super) fn read(&mut self, line: &mut Line) -> Result<Got, SocketError> {
        let Some(tls) = &mut self.tls else {
            let got = judge(self.stream.read(line.space()))?;
            if let Taken::Bytes(bytes) = got {
                line.filled(bytes);
            }
            return Ok(got.into());
        };
        self.cipher.resize(CIPHER_BYTES, 0);
        let got = judge(self.stream.read(&mut self.cipher))?;
        if let Taken::Bytes(bytes) = got {
            tls.on_cipher(&self.cipher[..bytes], |plain| line.feed(plain))?;
        }
        Ok(got.into())
    }

    /// Sends what `line` has to say, and what TLS has; waits where the socket takes nothing, within a bound.
    pub(super) fn flush(&mut self, line: &mut Line) -> Result<(), SocketError> {
        let Some(tls) = &mut self.tls else {
            if line.output().is_empty() {
                return Ok(());
            }
            let written = write_all(&mut self.stream, line.output());
            line.sent(line.output().len());
            return Ok(written?);
        };
        let said = line.output().len();
        tls.write_plain(line.output())?;
        line.sent(said);
        self.cipher.clear();
        tls.take_cipher(&mut self.cipher);
        Ok(write_all(&mut self.stream, &self.cipher)?)
    }

    /// From now on a wait needs so many bytes; under TLS any, because what they say is not known before they are read.
    pub(super) fn wake_from(&mut self, bytes: usize) -> io::Result<()> {
        let bytes = if self.tls.is_some() { 1 } else { bytes.max(1) };
        if bytes != self.low_water {
            poll::readable_from(self.stream.as_fd(), bytes)?;
            self.low_water = bytes;
        }
        Ok(())
    }

    /// Says goodbye and gives the server until then to say it too; nothing is lost where that fails.
    pub(super) fn leave(mut self, line: &mut Line, deadline_ns: i64) {
        if let Some(tls) = &mut self.tls {
            tls.close();
        }
        let _ = self.flush(line);
        let _ = self.stream.shutdown(Shutdown::Write);
        let _ = self.wake_from(1);
        let mut rest = [0; 4096];
        loop {
            match judge(self.stream.read(&mut rest)) {
                Ok(Taken::Bytes(_)) => {}
                Ok(Taken::Nothing) => {
                    let Ok(left) = time_left(deadline_ns) else { return };
                    if poll::wait([(self.stream.as_fd(), Interest::Readable)], Some(left)).is_err() {
                        return;
                    }
                }
                Ok(Taken::End) | Err(_) => return,
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Taken {
    Bytes(usize),
    Nothing,
    End,
}

impl From<Taken> for Got {
    fn from(read: Taken) -> Got {
        match read {
            Taken::Bytes(_) => Got::Bytes,
            Taken::Nothing => Got::Nothing,
            Taken::End => Got::End,
        }
    }
}

fn judge(read: io::Result<usize>) -> io::Result<Taken> {
    match read {
        Ok(0) => Ok(Taken::End),
        Ok(bytes) => Ok(Taken::Bytes(bytes)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(Taken::Nothing),
        Err(error) => Err(error),
    }
}

fn write_all(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    let deadline_ns = clock::monotonic_ns().saturating_add(nanos(WRITE_TIME_MAX));
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll::wait([(stream.as_fd(), Interest::Writable)], Some(time_left(deadline_ns)?))?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What is left until a deadline, never zero.
pub(super) fn time_left(deadline_ns: i64) -> io::Result<Duration> {
    match u64::try_from(deadline_ns - clock::monotonic_ns()) {
        Ok(left) if left > 0 => Ok(Duration::from_nanos(left)),
        _ => Err(ErrorKind::TimedOut.into()),
    }
}

pub(super) fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX / 2)
}
