//! A blocking front of the client: one thread, one connection at a time, verified ledgers one after the other.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::assemble::{Ledger, Limits};
use super::client::{Advanced, Backoff, Client, ClientError};
use super::query::Range;
use super::url::{Url, UrlError};
use crate::sys::{clock, random, tcp};

/// A connection whose other side answers nothing for this long, not even probes, is dead. A server that has nothing to send
/// is silent for as long as its source is, so silence alone is no sign.
const DEAD_AFTER: Duration = Duration::from_secs(30);
/// Longest time to wait for the server's half of a close that we began; nothing is lost when it does not come.
const GOODBYE: Duration = Duration::from_secs(1);

/// Longest time that a wait between two connections goes on after a cancel.
const CANCEL_LOOK: Duration = Duration::from_millis(20);

/// Ends a follower from another thread.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<CancelState>);

#[derive(Default, Debug)]
struct CancelState {
    asked: AtomicBool,
    /// The connection that may be waited on.
    stream: Mutex<Option<TcpStream>>,
}

impl Cancel {
    /// The follower's [`Follower::next`] ends with [`FollowError::Cancelled`]: at once where it waits for bytes, soon where it waits
    /// between two connections, and within the dial timeout where it dials.
    pub fn cancel(&self) {
        // Read by `is_asked` after the connection was stored under the lock, so that either side sees the other.
        self.0.asked.store(true, Ordering::Release);
        if let Some(stream) = &*self.0.stream.lock().unwrap_or_else(PoisonError::into_inner) {
            // One that is gone already cannot be ended, which is as well.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn is_asked(&self) -> bool {
        // Pairs with the store in `cancel`.
        self.0.asked.load(Ordering::Acquire)
    }

    fn watch(&self, stream: Option<TcpStream>) {
        *self.0.stream.lock().unwrap_or_else(PoisonError::into_inner) = stream;
    }
}

/// How a stream is followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FollowSettings {
    /// What is taken at most.
    pub limits: Limits,
    /// Longest time to a connection, its upgrade included.
    pub dial_timeout: Duration,
    /// Longest time without a connection after which the last error is final; `None`: connections are tried for ever; zero: no
    /// connection is tried a second time.
    pub retry_for: Option<Duration>,
    /// Value of the request's `Authorization` field.
    pub authorization: Option<String>,
}

impl Default for FollowSettings {
    fn default() -> FollowSettings {
        FollowSettings {
            limits: Limits::default(),
            // The peer's.
            dial_timeout: Duration::from_secs(30),
            retry_for: None,
            authorization: None,
        }
    }
}

/// Why a stream is not followed further.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The address.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// An address that asks for TLS.
    #[error("{0}: this client speaks no TLS: use ws:// to a local TLS proxy")]
    Tls(String),
    /// No connection.
    #[error("{url}: {source}")]
    Connect {
        /// The address.
        url: String,
        /// The last attempt's error.
        source: io::Error,
    },
    /// The stream.
    #[error("{url}: {source}")]
    Stream {
        /// The address.
        url: String,
        /// What ended it.
        source: ClientError,
    },
    /// [`Cancel::cancel`] was called.
    #[error("cancelled")]
    Cancelled,
    /// The host: no memory, no random bytes.
    #[error(transparent)]
    Host(#[from] io::Error),
}

/// What happens between two ledgers, for a log.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// A connection stands.
    Connected {
        /// What the server says of its run.
        run: Option<&'a str>,
    },
    /// A connection ended, or did not come; another is tried after the wait.
    Retrying {
        /// Why.
        error: &'a FollowError,
        /// How long it waits, ns.
        wait_ns: i64,
    },
}

/// A verified ledger, and when it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received<'a> {
    /// The ledger; its bytes are lent until the next call.
    pub ledger: Ledger<'a>,
    /// This host's clock when it was verified, ns since the Unix epoch.
    pub received_ns: i64,
}

/// Follows a stream. Nothing is connected before the first call of [`Follower::next`].
pub struct Follower<F: FnMut(Notice<'_>) = fn(Notice<'_>)> {
    url: Url,
    settings: FollowSettings,
    client: Client,
    stream: Option<TcpStream>,
    backoff: Backoff,
    /// When there was no connection for the first time since the last ledger.
    down_since_ns: Option<i64>,
    notice: F,
    cancel: Cancel,
    done: bool,
}

impl Follower {
    /// A follower that says nothing.
    ///
    /// # Errors
    /// The address; no memory.
    pub fn new(url: &str, range: Range, settings: FollowSettings) -> Result<Follower, FollowError> {
        Follower::with_notice(url, range, settings, |_| ())
    }
}

impl<F: FnMut(Notice<'_>)> Follower<F> {
    /// A follower that tells `notice` what happens.
    ///
    /// # Errors
    /// The address; no memory.
    pub fn with_notice(
        url: &str,
        range: Range,
        settings: FollowSettings,
        notice: F,
    ) -> Result<Follower<F>, FollowError> {
        let url = Url::parse(url)?;
        if url.tls {
            return Err(FollowError::Tls(url.to_string()));
        }
        let client = Client::new(range, settings.limits)?;
        let (backoff, down_since_ns) = (Backoff::default(), None);
        let cancel = Cancel(Arc::default());
        Ok(Follower { url, settings, client, stream: None, backoff, down_since_ns, notice, cancel, done: false })
    }

    /// The next ledger; `None` at the end of the range, and when an unbounded stream's source ended.
    ///
    /// # Errors
    /// What no other connection can mend, and what the settings do not let it try to; `None` from then on.
    #[allow(clippy::should_implement_trait)] // What it gives borrows from it.
    pub fn next(&mut self) -> Result<Option<Received<'_>>, FollowError> {
        if self.done {
            return Ok(None);
        }
        loop {
            let error = match self.step() {
                Ok(Advanced::Ledger) => break,
                Ok(Advanced::Message | Advanced::Wait) => continue,
                Ok(Advanced::Done) => {
                    self.end();
                    return Ok(None);
                }
                Err(error) => error,
            };
            self.hang_up();
            if self.cancel.is_asked() {
                self.done = true;
                return Err(FollowError::Cancelled);
            }
            self.retry(error)?;
        }
        self.backoff.reset();
        self.down_since_ns = None;
        let received_ns = clock::utc_ns();
        Ok(self.client.ledger().map(|ledger| Received { ledger, received_ns }))
    }

    /// What ends this follower from another thread.
    pub fn canceller(&self) -> Cancel {
        self.cancel.clone()
    }

    /// The last ledger that was verified.
    pub fn last(&self) -> Option<u32> {
        self.client.last()
    }

    /// What the server says of its run.
    pub fn run(&self) -> Option<&str> {
        self.client.run()
    }

    /// Ends the stream; nothing more comes.
    pub fn stop(&mut self) {
        self.client.stop();
        self.end();
    }

    /// Connects where there is no connection, then takes what was read, else reads more.
    fn step(&mut self) -> Result<Advanced, FollowError> {
        if self.client.is_complete() && self.stream.is_none() {
            return Ok(Advanced::Done);
        }
        if self.cancel.is_asked() {
            return Err(FollowError::Cancelled);
        }
        let Some(stream) = &mut self.stream else { return self.connect() };
        let advanced = self.client.advance();
        let flushed = flush(stream, &mut self.client);
        let url = || self.url.to_string();
        let advanced = advanced.map_err(|source| FollowError::Stream { url: url(), source })?;
        if let (Err(source), Advanced::Wait) = (flushed, advanced) {
            return Err(FollowError::Connect { url: url(), source });
        }
        if advanced != Advanced::Wait {
            return Ok(advanced);
        }
        match stream.read(self.client.space()) {
            Ok(0) => match self.client.disconnected() {
                Ok(()) => Ok(Advanced::Done),
                Err(source) => Err(FollowError::Stream { url: url(), source }),
            },
            Ok(bytes) => {
                self.client.filled(bytes);
                Ok(Advanced::Wait)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Advanced::Wait),
            Err(source) => Err(FollowError::Connect { url: url(), source }),
        }
    }

    /// Dials, asks, and waits for the answer.
    fn connect(&mut self) -> Result<Advanced, FollowError> {
        let deadline_ns = clock::monotonic_ns().saturating_add(nanos(self.settings.dial_timeout));
        let failed = |url: &Url, source| FollowError::Connect { url: url.to_string(), source };
        let mut stream = dial(&self.url, deadline_ns).map_err(|source| failed(&self.url, source))?;
        self.cancel.watch(Some(stream.try_clone()?));
        if self.cancel.is_asked() {
            return Err(FollowError::Cancelled);
        }
        self.client.connect(&self.url, self.settings.authorization.as_deref(), random::bytes()?);
        while !self.client.is_streaming() {
            flush(&mut stream, &mut self.client).map_err(|source| failed(&self.url, source))?;
            let read = time_left(deadline_ns)
                .and_then(|left| stream.set_read_timeout(Some(left)))
                .and_then(|()| stream.read(self.client.space()));
            let ended = match read {
                Ok(0) => self.client.disconnected().map(|()| Advanced::Done),
                Ok(bytes) => {
                    self.client.filled(bytes);
                    self.client.answered()
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Err(failed(&self.url, ErrorKind::TimedOut.into()));
                }
                Err(source) => return Err(failed(&self.url, source)),
            };
            ended.map_err(|source| FollowError::Stream { url: self.url.to_string(), source })?;
        }
        stream.set_read_timeout(None).map_err(|source| failed(&self.url, source))?;
        self.stream = Some(stream);
        (self.notice)(Notice::Connected { run: self.client.run() });
        Ok(Advanced::Wait)
    }

    /// Waits before the next connection, or gives the error back where there is none.
    fn retry(&mut self, error: FollowError) -> Result<(), FollowError> {
        let final_error = match &error {
            FollowError::Stream { source, .. } => !source.is_retryable(),
            FollowError::Connect { .. } => false,
            _ => true,
        };
        let now = clock::monotonic_ns();
        let since = *self.down_since_ns.get_or_insert(now);
        let too_long = self.settings.retry_for.is_some_and(|most| now - since >= nanos(most));
        if final_error || too_long {
            self.done = true;
            return Err(error);
        }
        let wait_ns = self.backoff.next_ns(u64::from_le_bytes(random::bytes()?));
        (self.notice)(Notice::Retrying { error: &error, wait_ns });
        let until = now.saturating_add(wait_ns);
        while !self.cancel.is_asked()
            && let Ok(left) = time_left(until)
        {
            clock::sleep(left.min(CANCEL_LOOK));
        }
        Ok(())
    }

    /// The connection is over; what the client still says (a close, where one is due) is sent.
    fn hang_up(&mut self) {
        self.cancel.watch(None);
        if let Some(mut stream) = self.stream.take() {
            let _ = flush(&mut stream, &mut self.client);
        }
    }

    /// Says goodbye and gives the server a moment to say it too.
    fn end(&mut self) {
        self.done = true;
        self.cancel.watch(None);
        let Some(mut stream) = self.stream.take() else { return };
        let deadline_ns = clock::monotonic_ns().saturating_add(nanos(GOODBYE));
        // Whatever goes wrong now, nothing is missing.
        let _ = flush(&mut stream, &mut self.client);
        let _ = stream.shutdown(Shutdown::Write);
        let mut rest = [0; 4096];
        while let Ok(left) = time_left(deadline_ns)
            && stream.set_read_timeout(Some(left)).is_ok()
            && stream.read(&mut rest).is_ok_and(|bytes| bytes > 0)
        {}
    }
}

impl<F: FnMut(Notice<'_>)> Drop for Follower<F> {
    fn drop(&mut self) {
        // A canceller that outlives it holds no connection open.
        self.cancel.watch(None);
    }
}

/// Sends what the client has to send.
fn flush(stream: &mut TcpStream, client: &mut Client) -> io::Result<()> {
    let bytes = client.output().len();
    if bytes > 0 {
        stream.write_all(client.output())?;
        client.sent(bytes);
    }
    Ok(())
}

/// Tries each address of the host until one answers.
fn dial(url: &Url, deadline_ns: i64) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for address in (url.host.as_str(), url.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, time_left(deadline_ns)?) {
            Ok(stream) => {
                tcp::tune(stream.as_fd(), DEAD_AFTER)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// What is left until a deadline, never zero.
fn time_left(deadline_ns: i64) -> io::Result<Duration> {
    match u64::try_from(deadline_ns - clock::monotonic_ns()) {
        Ok(left) if left > 0 => Ok(Duration::from_nanos(left)),
        _ => Err(ErrorKind::TimedOut.into()),
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX / 2)
}
