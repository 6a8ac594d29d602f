//! The control server: the status page at `/`, `/healthz`, `/readyz`, `/metrics` (Prometheus), `/status` and `/report` (JSON), on a
//! thread that is not pinned. It answers from the start of the process on, so that what is not ready says so.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::health::{self, HealthBoard, Reason, Stage};
use super::http::{Answer, HttpServer, Request};
use crate::sync::metrics::{Kind, Sample, Sources};
use crate::sys::{clock, host, privilege, tcp};

/// How long the thread waits for clients before it looks whether it should end.
const TURN_WAIT: Duration = Duration::from_millis(50);
/// A status or a set of metrics is given to whoever asks within this time: a hundred clients cost the arbiters no more
/// than one that asks ten times a second.
const FRESH_NS: i64 = 100_000_000;

/// What a request is told that names another host.
const MISDIRECTED: &str = "this server answers only to an address, to localhost, to its host's own name and to those of \
                           control.hosts: a web page may not read it by a name of its own; ask by the address of control.listen\n";

const TEXT: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The page loads its own style, script and icon, asks its own `/status`, and nothing else.
const PAGE_POLICY: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
                           img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                           frame-ancestors 'none'\r\nReferrer-Policy: no-referrer\r\n";

/// What is said where a report is asked for, and there is nothing to report on.
pub const NO_REPORT: &str = "there is no feed to report on";

/// The status page's files: (path, content type, content).
const PAGE: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page/page.js")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// A running control server; it ends when dropped.
pub struct ControlServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
    sources: Arc<Mutex<Sources>>,
}

impl ControlServer {
    /// Binds `listen` and answers until dropped: at first from `board` alone, then from what [`ControlServer::show`] is
    /// given. A few times a second it looks at the sources' health. Beside addresses and the host's own name, requests may name
    /// one of `hosts`.
    ///
    /// # Errors
    /// Names the address when it cannot be bound.
    pub fn start(listen: SocketAddr, hosts: &[String], board: Arc<HealthBoard>) -> Result<ControlServer, String> {
        let failed = |error: std::io::Error| {
            format!("control.listen = \"{listen}\": {error}; {} (port 0 takes any free one)", tcp::unbound(&error))
        };
        let server = HttpServer::bind(listen).map_err(failed)?;
        let address = server.address().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut first = Sources::default();
        first.add(board.clone());
        let sources = Arc::new(Mutex::new(first));
        let desk = Desk {
            sources: sources.clone(),
            board,
            status: Fresh::default(),
            metrics: Fresh::default(),
            own_names: std::iter::once(host::name()).chain(hosts.iter().cloned()).collect(),
        };
        let (began, begun) = crossbeam_channel::bounded(1);
        let thread = std::thread::Builder::new()
            .name("sluice-control".into())
            .spawn({
                let stop = stop.clone();
                move || {
                    // Whoever asks over the network is answered without any right; the rest of the start still has its own.
                    let renounced = privilege::renounce();
                    let goes_on = renounced.is_ok();
                    let _ = began.send(renounced);
                    if goes_on {
                        control_loop(server, desk, &stop);
                    }
                }
            })
            .map_err(|error| format!("control thread: {error}"))?;
        let renounced = begun.recv().map_err(|error| format!("control thread: {error}"))?;
        renounced.map_err(|error| format!("control thread: giving up capabilities: {error}"))?;
        Ok(ControlServer { stop, thread: Some(thread), address, sources })
    }

    /// From now on it answers from `sources` (the board is one of them).
    pub fn show(&self, sources: Sources) {
        *self.sources.lock().expect("nobody panics with it held") = sources;
    }

    /// The address it listens on (the port, when 0 was asked for).
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn control_loop(mut server: HttpServer, mut desk: Desk, stop: &AtomicBool) {
    let mut look_ns = 0;
    while !stop.load(Ordering::Relaxed) {
        server.turn(TURN_WAIT, &mut |request| desk.answer(request));
        let now = clock::monotonic_ns();
        if now >= look_ns {
            look_ns = now + health::LOOK_EVERY.as_nanos() as i64;
            let sources = desk.sources();
            desk.board.look(&sources, now);
        }
    }
}

/// A body and when it was made.
#[derive(Default)]
struct Fresh(Option<(i64, Arc<[u8]>)>);

impl Fresh {
    /// The body, made anew by `make` unless it is fresh.
    fn get(&mut self, make: impl FnOnce() -> String) -> Arc<[u8]> {
        let now = clock::monotonic_ns();
        if let Some((_, body)) = self.0.as_ref().filter(|(made, _)| now - made < FRESH_NS) {
            return Arc::clone(body);
        }
        let body: Arc<[u8]> = make().into_bytes().into();
        // Fresh counts from when it is done: making it can take longer than it stays fresh.
        self.0 = Some((clock::monotonic_ns(), Arc::clone(&body)));
        body
    }
}

/// What answers are made from.
struct Desk {
    sources: Arc<Mutex<Sources>>,
    board: Arc<HealthBoard>,
    status: Fresh,
    metrics: Fresh,
    /// This host's name, and those that its owner gave it.
    own_names: Vec<String>,
}

impl Desk {
    fn sources(&self) -> Sources {
        self.sources.lock().expect("nobody panics with it held").clone()
    }

    fn answer(&mut self, request: Request<'_>) -> Answer {
        if !matches!(request.method, "GET" | "HEAD") {
            let body = Arc::from(&b"only GET and HEAD\n"[..]);
            return Answer { status: "405 Method Not Allowed", kind: TEXT, fields: "Allow: GET, HEAD\r\n", body };
        }
        if !request.host.is_none_or(|host| is_own(host, &self.own_names)) {
            return refusal("421 Misdirected Request", MISDIRECTED);
        }
        let whole = |kind, body| Answer { status: "200 OK", kind, fields: "", body };
        match request.path {
            "/healthz" => probe(self.board.verdict().unhealthy()),
            "/readyz" => probe(self.board.verdict().not_ready()),
            "/metrics" => {
                let sources = self.sources();
                whole(OPEN_METRICS, self.metrics.get(|| render(sources.samples())))
            }
            "/status" => {
                let sources = self.sources();
                let make = || format!("{}\n", serde_json::Value::Object(sources.status()));
                whole("application/json", self.status.get(make))
            }
            "/report" => match self.sources().report() {
                Some(report) => whole("application/json", format!("{report}\n").into_bytes().into()),
                None if self.board.verdict().stage == Stage::Starting => {
                    refusal("503 Service Unavailable", "it is being started\n")
                }
                None => refusal("404 Not Found", &format!("{NO_REPORT}\n")),
            },
            path => match PAGE.iter().find(|(name, ..)| *name == path) {
                Some((_, kind, content)) => {
                    Answer { fields: PAGE_POLICY, ..whole(kind, Arc::from(content.as_bytes())) }
                }
                None => refusal("404 Not Found", "there are /, /healthz, /readyz, /metrics, /status and /report\n"),
            },
        }
    }
}

fn refusal(status: &'static str, text: &str) -> Answer {
    Answer { status, kind: TEXT, fields: "", body: Arc::from(text.as_bytes()) }
}

/// Whether a request may have been meant for this server: its host is an address, `localhost` or one of this host's own names. Any other
/// name may be one of somebody's who made it lead here, so that his web page, in the browser of who can reach this server, may
/// read what it answers (DNS rebinding).
fn is_own(host: &str, own_names: &[String]) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !host.ends_with(']') => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).map_or_else(
        || name.parse::<Ipv4Addr>().is_ok(),
        // A zone (fe80::1%eth0) is of the client's host.
        |inner| inner.split('%').next().is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok()),
    );
    // A name may end with the root's point.
    let name = name.strip_suffix('.').unwrap_or(name);
    let own = |own: &String| !own.is_empty() && name.eq_ignore_ascii_case(own.strip_suffix('.').unwrap_or(own));
    address || own_names.iter().any(own) || name.eq_ignore_ascii_case("localhost")
}

/// `ok`, or 503 and a line for each reason.
fn probe<'a>(reasons: impl Iterator<Item = &'a Reason>) -> Answer {
    let lines: String = reasons.map(|reason| reason.line() + "\n").collect();
    let (status, text) = match lines.is_empty() {
        true => ("200 OK", "ok\n".to_string()),
        false => ("503 Service Unavailable", lines),
    };
    Answer { status, kind: TEXT, fields: "", body: text.into_bytes().into() }
}

#[derive(Debug)]
struct Samples(Vec<Sample>);

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut rest = self.0.as_slice();
        while let Some(first) = rest.first() {
            let count = rest.iter().take_while(|sample| sample.name == first.name).count();
            let (family, after) = rest.split_at(count);
            rest = after;
            let kind = match first.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut metric = encoder.encode_descriptor(first.name, first.help, None, kind)?;
            for sample in family {
                let labels: Vec<(&str, &str)> =
                    sample.labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
                let encoder = metric.encode_family(&labels)?;
                match sample.kind {
                    Kind::Counter => ConstCounter::new(sample.value).encode(encoder)?,
                    Kind::Gauge => ConstGauge::new(sample.value).encode(encoder)?,
                }
            }
        }
        Ok(())
    }
}

/// The samples as OpenMetrics text.
fn render(samples: Vec<Sample>) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register_collector(Box::new(Samples(samples)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("a string takes whatever is written");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::health::{HealthReason, Shape, Sign};
    use crate::sync::metrics::Source;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::AtomicU64;

    /// A job of two queues that loses what `lost` says.
    struct Job {
        lost: AtomicU64,
    }

    impl Source for Job {
        fn samples(&self, out: &mut Vec<Sample>) {
            for queue in 0..2 {
                out.push(Sample {
                    name: "sluice_capture_frames",
                    help: "Frames",
                    kind: Kind::Counter,
                    labels: vec![("queue", queue.to_string())],
                    value: 7.0,
                });
            }
        }
        fn status(&self) -> (&'static str, serde_json::Value) {
            ("capture", serde_json::json!({"frames": 7}))
        }
        fn health(&self, _now: i64, out: &mut Vec<Sign>) {
            let shape = Shape::Grows(self.lost.load(Ordering::Relaxed));
            out.push(Sign::new(HealthReason::StoreLosing, shape, "main", "store \"main\": it loses"));
        }
    }

    fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("connects");
        write!(stream, "GET {path} HTTP/1.1\r\n\r\n").expect("writes");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("reads");
        answer
    }

    struct Running {
        server: ControlServer,
        board: Arc<HealthBoard>,
        job: Arc<Job>,
    }

    fn running() -> Running {
        let board = Arc::new(HealthBoard::default());
        let server =
            ControlServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), &["dns.example".into()], board.clone())
                .expect("starts");
        let job = Arc::new(Job { lost: AtomicU64::new(0) });
        let mut sources = Sources::default();
        sources.add(job.clone());
        sources.add(board.clone());
        server.show(sources.clone());
        board.run(&sources);
        Running { server, board, job }
    }

    #[test]
    fn it_answers_every_path() {
        let Running { server, .. } = running();
        let address = server.address();
        let metrics = get(address, "/metrics");
        assert!(metrics.contains("sluice_capture_frames_total{queue=\"1\"} 7"), "{metrics}");
        assert!(metrics.contains("sluice_health_ready 1"), "{metrics}");
        assert!(metrics.trim_end().ends_with("# EOF"), "{metrics}");
        let status = get(address, "/status");
        assert!(status.contains("\"capture\":{\"frames\":7}") && status.contains("\"stage\":\"running\""), "{status}");
        for (path, kind, content) in PAGE {
            let answer = get(address, path);
            assert!(
                answer.contains(kind) && answer.contains("default-src 'none'") && answer.ends_with(content),
                "{path}"
            );
        }
        assert!(get(address, "/nothing").starts_with("HTTP/1.1 404"));
        let report = get(address, "/report");
        assert!(report.starts_with("HTTP/1.1 404") && report.ends_with(&format!("\r\n\r\n{NO_REPORT}\n")), "{report}");
        let mut stream = TcpStream::connect(address).expect("connects");
        stream.write_all(b"POST /status HTTP/1.1\r\n\r\n").expect("writes");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("reads");
        assert!(answer.starts_with("HTTP/1.1 405") && answer.contains("Allow: GET, HEAD"), "{answer}");
    }

    #[test]
    fn the_probes_say_their_reasons() {
        let board = Arc::new(HealthBoard::default());
        let server = ControlServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), &["dns.example".into()], board)
            .expect("starts");
        let starting = get(server.address(), "/readyz");
        assert!(starting.starts_with("HTTP/1.1 503") && starting.contains("starting: the cores"), "{starting}");
        assert!(get(server.address(), "/healthz").ends_with("\r\n\r\nok\n"));
        assert!(get(server.address(), "/status").contains("\"stage\":\"starting\""));
        assert!(get(server.address(), "/report").starts_with("HTTP/1.1 503"), "its feeds are not known yet");
        drop(server);

        let Running { server, board, job } = running();
        let address = server.address();
        assert!(get(address, "/readyz").ends_with("\r\n\r\nok\n") && get(address, "/healthz").ends_with("ok\n"));
        job.lost.store(12, Ordering::Relaxed);
        let end = clock::monotonic_ns() + 20_000_000_000;
        let answer = loop {
            let answer = get(address, "/healthz");
            if answer.starts_with("HTTP/1.1 503") || clock::monotonic_ns() > end {
                break answer;
            }
            clock::sleep(Duration::from_millis(10));
        };
        assert!(
            answer.contains("\r\n\r\nstore_losing: store \"main\": it loses (12 since it began), for 0 s\n"),
            "{answer}"
        );
        assert!(get(address, "/readyz").ends_with("ok\n"), "unhealthy is not \"not ready\"");
        board.drain();
        assert!(get(address, "/readyz").contains("draining: the stop has begun"));
    }

    #[test]
    fn a_name_that_may_be_anybodys_is_refused() {
        let Running { server, .. } = running();
        let address = server.address();
        let asked = |field: &str| {
            let mut stream = TcpStream::connect(address).expect("connects");
            write!(stream, "GET /status HTTP/1.1\r\n{field}\r\n").expect("writes");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("reads");
            answer
        };
        for host in [
            "",
            "Host: localhost\r\n",
            &format!("Host: {address}\r\n"),
            "host: [::1]:9480\r\n",
            "Host: dns.example\r\n",
        ] {
            assert!(asked(host).starts_with("HTTP/1.1 200"), "{host:?}");
        }
        let refused = asked("Host: rebound.example:9480\r\n");
        assert!(refused.starts_with("HTTP/1.1 421 Misdirected Request"), "{refused}");
        assert!(refused.contains("ask by the address of control.listen") && !refused.contains("capture"), "{refused}");
        let two = asked("Host: localhost\r\nHost: rebound.example\r\n");
        assert!(two.starts_with("HTTP/1.1 400"), "{two}");
    }

    #[test]
    fn only_addresses_and_names_of_this_host_are_its_own() {
        let names = ["box7".to_string(), "box7.desk.".into()];
        for host in [
            "127.0.0.1",
            "127.0.0.1:9480",
            "10.1.2.3:1",
            "[::1]",
            "[::1]:9480",
            "[fe80::1%eth0]:9480",
            "LocalHost:80",
            "box7",
            "BOX7.:9480",
            "box7.desk:9480",
        ] {
            assert!(is_own(host, &names), "{host}");
        }
        for host in [
            "",
            ":9480",
            "localhost.example",
            "box7.example",
            "example:9480",
            "127.0.0.1.example",
            "127.1",
            "2130706433",
            "::1",
            "[127.0.0.1]",
            "[]",
            "[",
            "localhost:80:80",
            "localhost:x",
            "a@localhost",
            "localhost ",
            "127.0.0.1/x",
        ] {
            assert!(!is_own(host, &names), "{host:?}");
        }
        let nameless = [String::new()];
        assert!(!is_own("", &nameless) && !is_own(".", &nameless), "a host without a name owns none");
    }

    #[test]
    fn a_taken_address_is_named() {
        let Running { server, .. } = running();
        let told = ControlServer::start(server.address(), &[], Arc::default()).err().expect("it is taken");
        assert!(
            told.contains(&format!("control.listen = \"{}\"", server.address())) && told.contains("port 0"),
            "{told}"
        );
    }
}
