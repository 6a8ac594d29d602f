//! A small HTTP/1.1 server: one thread, a bounded number of clients, none of which can hold up another.
//!
//! Every answer is whole in memory and ends its connection. A client that sends slowly or takes slowly keeps only its own
//! place; when all places are taken the oldest client leaves for the newest.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use crate::sys::clock;
use crate::sys::poll::{self, Interest, POLLED_MAX};

/// Longest request head: a browser's is about 1 KiB, a scraper's less.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Most header fields: a browser sends about 20.
const FIELDS_MAX: usize = 64;
/// Clients at a time: one wait takes so many descriptors beside the listener.
const CLIENTS_MAX: usize = POLLED_MAX - 1;
/// How long a request may take to come, and how long a client may take nothing of its answer.
const CLIENT_NS_MAX: i64 = 2_000_000_000;
/// How long what a client still sends is read after its answer: a close with unread bytes would reset the connection, and
/// the answer could be lost on its way.
const LINGER_NS_MAX: i64 = 500_000_000;
/// Most reads of one client in one turn.
const READS_MAX: usize = 16;
/// A listener that cannot accept (no descriptors) is left alone for so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// What a client is answered.
pub struct Answer {
    /// `200 OK`, ….
    pub status: &'static str,
    /// The content type.
    pub kind: &'static str,
    /// Further header lines, each with its CRLF.
    pub fields: &'static str,
    /// The body; not sent for HEAD, but counted.
    pub body: Arc<[u8]>,
}

/// A request's line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// `GET`, ….
    pub method: &'a str,
    /// The path without its query.
    pub path: &'a str,
    /// The host that it says it asks, with its port; `None` where it does not say (HTTP/1.0).
    pub host: Option<&'a str>,
}

/// What is sent for a head that is none, or too long.
fn bad_request() -> Answer {
    let body: Arc<[u8]> = Arc::from(&b"bad request\n"[..]);
    Answer { status: "400 Bad Request", kind: "text/plain; charset=utf-8", fields: "", body }
}

/// The field `Host`. Two of them, or one that is no text, are no request (RFC 9112, 3.2).
fn host<'a>(fields: &[httparse::Header<'a>]) -> Result<Option<&'a str>, Answer> {
    let mut hosts = fields.iter().filter(|field| field.name.eq_ignore_ascii_case("host"));
    match (hosts.next(), hosts.next()) {
        (None, _) => Ok(None),
        (Some(host), None) => std::str::from_utf8(host.value).map(Some).map_err(|_| bad_request()),
        (Some(_), Some(_)) => Err(bad_request()),
    }
}

enum Part {
    Head(Vec<u8>),
    Answer { head: Vec<u8>, body: Arc<[u8]>, sent: usize },
    Linger,
    Done,
}

struct Client {
    stream: TcpStream,
    part: Part,
    end_ns: i64,
}

/// The listener and its clients.
pub struct HttpServer {
    listener: TcpListener,
    clients: Vec<Client>,
}

impl HttpServer {
    /// Binds `listen`.
    ///
    /// # Errors
    /// As `bind(2)`.
    pub fn bind(listen: SocketAddr) -> io::Result<HttpServer> {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        Ok(HttpServer { listener, clients: Vec::with_capacity(CLIENTS_MAX) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits at most `wait` for something to do, and does it.
    pub fn turn(&mut self, wait: Duration, answer: &mut dyn FnMut(Request<'_>) -> Answer) {
        let clients = self.clients.iter().map(|client| (client.stream.as_fd(), client.interest()));
        let all = std::iter::once((self.listener.as_fd(), Interest::Readable)).chain(clients);
        // A wait that fails (no memory) is tried again after a pause, as an accept that fails is.
        let ready = poll::wait(all, Some(wait)).unwrap_or_else(|_| {
            clock::sleep(ACCEPT_PAUSE);
            0
        });
        for (index, client) in self.clients.iter_mut().enumerate() {
            if ready >> (index + 1) & 1 == 1 {
                client.step(answer);
            }
        }
        let now = clock::monotonic_ns();
        self.clients.retain(|client| !matches!(client.part, Part::Done) && now < client.end_ns);
        if ready & 1 == 1 {
            self.accept(answer);
        }
    }

    fn accept(&mut self, answer: &mut dyn FnMut(Request<'_>) -> Answer) {
        for _ in 0..CLIENTS_MAX {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return clock::sleep(ACCEPT_PAUSE),
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.clients.len() == CLIENTS_MAX {
                self.clients.remove(0);
            }
            let end_ns = clock::monotonic_ns() + CLIENT_NS_MAX;
            let mut client = Client { stream, part: Part::Head(Vec::new()), end_ns };
            client.step(answer);
            self.clients.push(client);
        }
    }
}

impl Client {
    fn interest(&self) -> Interest {
        if matches!(self.part, Part::Answer { .. }) { Interest::Writable } else { Interest::Readable }
    }

    /// Goes on as far as the socket lets it; a client's failure is the client's business.
    fn step(&mut self, answer: &mut dyn FnMut(Request<'_>) -> Answer) {
        let result = match self.part {
            Part::Head(_) => self.read_head(answer),
            Part::Answer { .. } => self.write_answer(),
            Part::Linger => self.linger(),
            Part::Done => Ok(()),
        };
        match result {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.part = Part::Done,
            Ok(()) => {}
        }
    }

    fn read_head(&mut self, answer: &mut dyn FnMut(Request<'_>) -> Answer) -> io::Result<()> {
        let Part::Head(head) = &mut self.part else { return Ok(()) };
        let mut bytes = [0; 2_048];
        loop {
            let room = bytes.len().min(REQUEST_BYTES_MAX - head.len());
            let read = self.stream.read(&mut bytes[..room])?;
            head.extend_from_slice(&bytes[..read]);
            let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
            let mut request = httparse::Request::new(&mut fields);
            let (head_only, answer) = match request.parse(head) {
                Ok(httparse::Status::Partial) if read > 0 && head.len() < REQUEST_BYTES_MAX => continue,
                Ok(httparse::Status::Complete(_)) => match host(request.headers) {
                    Ok(host) => {
                        let (method, path) = (request.method.unwrap_or(""), request.path.unwrap_or(""));
                        let path = path.split('?').next().unwrap_or(path);
                        (method == "HEAD", answer(Request { method, path, host }))
                    }
                    Err(bad) => (false, bad),
                },
                // A connection that ends before it has said anything (a probe of the port) needs no answer.
                Ok(_) if head.is_empty() => {
                    self.part = Part::Done;
                    return Ok(());
                }
                Ok(_) | Err(_) => (false, bad_request()),
            };
            self.begin(&answer, head_only);
            return self.write_answer();
        }
    }

    fn begin(&mut self, answer: &Answer, head_only: bool) {
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\n{}Connection: close\r\n\r\n",
            answer.status,
            answer.kind,
            answer.body.len(),
            answer.fields
        );
        let body = if head_only { Arc::from(&[][..]) } else { Arc::clone(&answer.body) };
        self.part = Part::Answer { head: head.into_bytes(), body, sent: 0 };
        self.end_ns = clock::monotonic_ns() + CLIENT_NS_MAX;
    }

    fn write_answer(&mut self) -> io::Result<()> {
        let Part::Answer { head, body, sent } = &mut self.part else { return Ok(()) };
        while *sent < head.len() + body.len() {
            let left = if *sent < head.len() { &head[*sent..] } else { &body[*sent - head.len()..] };
            let wrote = self.stream.write(left)?;
            if wrote == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            *sent += wrote;
            self.end_ns = clock::monotonic_ns() + CLIENT_NS_MAX;
        }
        self.stream.shutdown(Shutdown::Write)?;
        (self.part, self.end_ns) = (Part::Linger, clock::monotonic_ns() + LINGER_NS_MAX);
        self.linger()
    }

    fn linger(&mut self) -> io::Result<()> {
        let mut bytes = [0; 2_048];
        for _ in 0..READS_MAX {
            if self.stream.read(&mut bytes)? == 0 {
                self.part = Part::Done;
                return Ok(());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    const BODY_BYTES: usize = 4 << 20;
    /// Far above what anything here takes, and far below what 15 slow clients in turn would.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// Runs `test` against a server that answers "/big" with 4 MiB, all else with its method and path.
    fn served(test: impl FnOnce(SocketAddr)) {
        let mut server = HttpServer::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("binds");
        let address = server.address().expect("bound");
        let stop = AtomicBool::new(false);
        let big: Arc<[u8]> = vec![b'x'; BODY_BYTES].into();
        let mut answer = |request: Request<'_>| {
            let body = match request.path {
                "/big" => Arc::clone(&big),
                _ => format!("{} {}", request.method, request.path).into_bytes().into(),
            };
            Answer { status: "200 OK", kind: "text/plain", fields: "X-Here: 1\r\n", body }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    server.turn(Duration::from_millis(10), &mut answer);
                }
            });
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(address)));
            stop.store(true, Ordering::Relaxed);
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("sets");
        stream.write_all(request.as_bytes()).expect("writes");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("reads");
        answer
    }

    #[test]
    fn requests_are_answered_whatever_they_are() {
        served(|address| {
            let answer = ask(address, "GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n");
            assert!(
                answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n"),
                "{answer}"
            );
            assert!(answer.ends_with("X-Here: 1\r\nConnection: close\r\n\r\nGET /a"), "{answer}");
            let head = ask(address, "HEAD /big HTTP/1.1\r\n\r\n");
            assert!(
                head.contains(&format!("Content-Length: {BODY_BYTES}\r\n")) && head.ends_with("\r\n\r\n"),
                "{head}"
            );
            assert!(ask(address, "GET /big HTTP/1.1\r\n\r\n").len() > BODY_BYTES);
            for bad in ["\0\0\r\n\r\n", "GET\r\n\r\n", &format!("GET /{} HTTP/1.1\r\n", "x".repeat(9_000))] {
                assert!(ask(address, bad).starts_with("HTTP/1.1 400"), "{}", &bad[..bad.len().min(20)]);
            }
            let fields = "a: b\r\n".repeat(FIELDS_MAX + 1);
            assert!(ask(address, &format!("GET / HTTP/1.1\r\n{fields}\r\n")).starts_with("HTTP/1.1 400"));
        });
    }

    #[test]
    fn slow_clients_hold_up_nobody() {
        served(|address| {
            let begin = |request: &[u8]| {
                let mut stream = TcpStream::connect(address).expect("connects");
                stream.write_all(request).expect("writes");
                stream
            };
            // Three times as many as there are places: some say half a request, some take nothing of a large answer.
            let slow: Vec<TcpStream> = (0..3 * CLIENTS_MAX)
                .map(|index| begin(if index % 2 == 0 { b"GET /" } else { b"GET /big HTTP/1.1\r\n\r\n" }))
                .collect();
            let started = clock::monotonic_ns();
            for _ in 0..20 {
                assert!(ask(address, "GET /now HTTP/1.1\r\n\r\n").ends_with("GET /now"));
            }
            let took = clock::monotonic_ns() - started;
            assert!(took < CLIENT_NS_MAX, "20 answers took {took} ns beside {} slow clients", slow.len());
        });
    }
}
