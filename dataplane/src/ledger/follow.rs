//! A blocking front of the client: one thread, verified ledgers one after the other, over one connection or, where the server
//! offers them, several that share each ledger's chunks.

use std::io::{self, ErrorKind};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::assemble::{Ledger, Limits};
use super::bearer;
use super::client::{Advanced, Backoff, Client, ClientError};
use super::client_tls::{ClientTls, TlsError};
use super::query::Range;
use super::socket::{Got, Socket, SocketError, nanos, time_left};
use super::url::{Url, UrlError};
use crate::sys::poll::{self, Interest};
use crate::sys::{clock, random};

/// Longest time without a byte in which a spinning reader goes on looking inside a ledger: emission takes 5 to 15 ms, its chunks
/// come at intervals under one. One that stands still for longer has a server that does.
const SPIN_NS_MAX: i64 = 20_000_000;
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
    /// The connections that may be waited on.
    streams: Mutex<Vec<TcpStream>>,
}

impl Cancel {
    /// The follower's [`Follower::next`] ends with [`FollowError::Cancelled`]: at once where it waits for bytes, soon where it waits
    /// between two connections, and within the dial timeout where it dials.
    pub fn cancel(&self) {
        // Read by `is_asked` after the connection was stored under the lock, so that either side sees the other.
        self.0.asked.store(true, Ordering::Release);
        for stream in &*self.0.streams.lock().unwrap_or_else(PoisonError::into_inner) {
            // One that is gone already cannot be ended, which is as well.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn is_asked(&self) -> bool {
        // Pairs with the store in `cancel`.
        self.0.asked.load(Ordering::Acquire)
    }

    fn watch(&self, stream: TcpStream) {
        self.0.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }

    fn forget(&self) {
        self.0.streams.lock().unwrap_or_else(PoisonError::into_inner).clear();
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
    /// Value of the requests' `Authorization` field, such as `Bearer …`.
    pub authorization: Option<String>,
    /// A PEM file of authorities that are trusted beside the system's, where the address asks for TLS.
    pub authorities: Option<PathBuf>,
    /// Most connections to share each ledger's chunks out to, where the server offers it (1 to 16). Worth it where the network caps
    /// one.
    pub flows: usize,
    /// Whether the thread goes on looking for bytes while a ledger is open, in place of sleeping: it takes a CPU for as long, and
    /// saves the 40 to 60 µs that waking up takes.
    pub spin: bool,
}

impl Default for FollowSettings {
    fn default() -> FollowSettings {
        FollowSettings {
            limits: Limits::default(),
            // The peer's.
            dial_timeout: Duration::from_secs(30),
            retry_for: None,
            authorization: None,
            authorities: None,
            flows: 1,
            spin: false,
        }
    }
}

/// Why a stream is not followed further.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The address.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// TLS cannot be spoken, or the server is not whom it should be.
    #[error("{url}: {source}")]
    Tls {
        /// The address.
        url: String,
        /// Why.
        source: TlsError,
    },
    /// What cannot stand in a header's field.
    #[error("the Authorization value holds a line break, or another character that no field may hold")]
    Authorization,
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
    tls: Option<ClientTls>,
    client: Client,
    sockets: Vec<Socket>,
    /// When bytes came last.
    heard_ns: i64,
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
        if settings.authorization.as_deref().is_some_and(|value| !bearer::is_field_value(value)) {
            return Err(FollowError::Authorization);
        }
        let authorities = settings.authorities.as_deref();
        let tls = url.tls.then(|| ClientTls::new(authorities)).transpose();
        let tls = tls.map_err(|source| FollowError::Tls { url: url.to_string(), source })?;
        let client = Client::with_flows(range, settings.limits, settings.flows)?;
        Ok(Follower {
            url,
            settings,
            tls,
            client,
            sockets: Vec::new(),
            heard_ns: 0,
            backoff: Backoff::default(),
            down_since_ns: None,
            notice,
            cancel: Cancel(Arc::default()),
            done: false,
        })
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

    /// Gives the buffer away whose first bytes are the ledger that [`Follower::next`] gave last, and receives into `other` from now on:
    /// for whoever keeps ledgers without copying them.
    pub fn exchange(&mut self, other: Vec<u8>) -> Vec<u8> {
        self.client.exchange(other)
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
        if self.client.is_complete() && self.sockets.is_empty() {
            return Ok(Advanced::Done);
        }
        if self.cancel.is_asked() {
            return Err(FollowError::Cancelled);
        }
        if self.sockets.is_empty() {
            return self.connect();
        }
        let advanced = self.client.advance();
        let flushed = self.flush();
        let advanced = advanced.map_err(|source| FollowError::Stream { url: self.url.to_string(), source })?;
        if advanced != Advanced::Wait {
            return Ok(advanced);
        }
        flushed?;
        if self.sockets.len() < self.client.lines() {
            return self.connect_flow();
        }
        self.receive()
    }

    /// Dials, asks, and waits for the answer.
    fn connect(&mut self) -> Result<Advanced, FollowError> {
        self.dial()?;
        self.client.connect(&self.url, self.settings.authorization.as_deref(), random::bytes()?);
        while !self.client.is_streaming() {
            if self.receive()? == Advanced::Done {
                return Ok(Advanced::Done);
            }
            let answered = self.client.answered();
            answered.map_err(|source| FollowError::Stream { url: self.url.to_string(), source })?;
        }
        (self.notice)(Notice::Connected { run: self.client.run() });
        Ok(Advanced::Wait)
    }

    /// As [`Follower::connect`] for a further flow, whose answer is read along with the others.
    fn connect_flow(&mut self) -> Result<Advanced, FollowError> {
        self.dial()?;
        let flow = self.sockets.len() - 1;
        self.client.connect_flow(flow, &self.url, self.settings.authorization.as_deref(), random::bytes()?);
        Ok(Advanced::Wait)
    }

    fn dial(&mut self) -> Result<(), FollowError> {
        let deadline_ns = clock::monotonic_ns().saturating_add(nanos(self.settings.dial_timeout));
        let socket = Socket::dial(&self.url, self.tls.as_ref(), deadline_ns).map_err(|error| self.broken(error))?;
        self.cancel.watch(socket.handle()?);
        self.sockets.push(socket);
        if self.cancel.is_asked() { Err(FollowError::Cancelled) } else { Ok(()) }
    }

    /// Reads what has come on the connections whose bytes are needed; waits where there is nothing.
    fn receive(&mut self) -> Result<Advanced, FollowError> {
        self.flush()?;
        if let Some(advanced) = self.read()? {
            return Ok(advanced);
        }
        while self.settings.spin
            && self.client.open().is_some()
            && clock::monotonic_ns() - self.heard_ns < SPIN_NS_MAX
            && !self.cancel.is_asked()
        {
            std::hint::spin_loop();
            if let Some(advanced) = self.read()? {
                return Ok(advanced);
            }
        }
        self.sleep()
    }

    /// Reads without waiting; `None`: nothing came.
    fn read(&mut self) -> Result<Option<Advanced>, FollowError> {
        let mut came = None;
        let due = self.client.due();
        for flow in 0..self.sockets.len() {
            let line = self.client.line(flow);
            if flow != due && line.is_streaming() {
                continue;
            }
            match self.sockets[flow].read(line) {
                Ok(Got::Nothing) => {}
                Ok(Got::Bytes) => came = Some(Advanced::Wait),
                Ok(Got::End) => return self.ended(flow).map(Some),
                Err(error) => return Err(self.broken(error)),
            }
        }
        if came.is_some() {
            self.heard_ns = clock::monotonic_ns();
        }
        Ok(came)
    }

    /// Sleeps until something comes, or an answer is too late.
    fn sleep(&mut self) -> Result<Advanced, FollowError> {
        let due = self.client.due();
        let (mut deadline_ns, mut wanted) = (None, 0_u32);
        for (flow, socket) in self.sockets.iter_mut().enumerate() {
            let line = self.client.line(flow);
            if !line.is_streaming() {
                let late = socket.since_ns.saturating_add(nanos(self.settings.dial_timeout));
                deadline_ns = Some(deadline_ns.map_or(late, |before: i64| before.min(late)));
            } else if flow != due {
                continue;
            }
            wanted |= 1 << flow;
            // A chunk is of no use before it is whole: its parts wake nobody.
            socket.wake_from(line.missing())?;
        }
        let left = deadline_ns.map(time_left).transpose().map_err(|late| self.broken(late.into()))?;
        let sockets = self.sockets.iter().enumerate();
        let ready = poll::wait(
            sockets.map(|(flow, socket)| {
                let interest = if wanted & (1 << flow) != 0 { Interest::Readable } else { Interest::Broken };
                (socket.descriptor(), interest)
            }),
            left,
        )?;
        match ready & !wanted {
            0 => Ok(Advanced::Wait),
            broken => self.ended(broken.trailing_zeros() as usize),
        }
    }

    /// A connection is at its end.
    fn ended(&mut self, flow: usize) -> Result<Advanced, FollowError> {
        match self.client.flow_disconnected(flow) {
            Ok(()) => Ok(Advanced::Done),
            Err(source) => Err(FollowError::Stream { url: self.url.to_string(), source }),
        }
    }

    /// Sends what the client has to send.
    fn flush(&mut self) -> Result<(), FollowError> {
        for flow in 0..self.sockets.len() {
            self.sockets[flow].flush(self.client.line(flow)).map_err(|error| self.broken(error))?;
        }
        Ok(())
    }

    fn broken(&self, error: SocketError) -> FollowError {
        let url = self.url.to_string();
        match error {
            SocketError::Io(source) => FollowError::Connect { url, source },
            // A session that broke after it stood may stand again; one that did not come to be will not.
            SocketError::Tls(error) if self.client.is_streaming() => {
                FollowError::Connect { url, source: io::Error::new(ErrorKind::InvalidData, error) }
            }
            SocketError::Tls(source) => FollowError::Tls { url, source },
        }
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

    /// The connections are over; what the client still says (a close, where one is due) is sent.
    fn hang_up(&mut self) {
        self.cancel.forget();
        for (flow, mut socket) in std::mem::take(&mut self.sockets).into_iter().enumerate() {
            let _ = socket.flush(self.client.line(flow));
        }
    }

    /// Says goodbye and gives the server a moment to say it too.
    fn end(&mut self) {
        self.done = true;
        self.cancel.forget();
        let deadline_ns = clock::monotonic_ns().saturating_add(nanos(GOODBYE));
        for (flow, socket) in std::mem::take(&mut self.sockets).into_iter().enumerate() {
            socket.leave(self.client.line(flow), deadline_ns);
        }
    }
}

impl<F: FnMut(Notice<'_>)> Drop for Follower<F> {
    fn drop(&mut self) {
        // A canceller that outlives it holds no connection open.
        self.cancel.forget();
    }
}
