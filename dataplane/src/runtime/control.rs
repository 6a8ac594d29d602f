//! The control server: `/healthz`, `/metrics` (Prometheus), `/status` and `/report` (JSON), on a thread that is not pinned.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::sync::metrics::{Kind, Sample, Sources};
use crate::sys::{clock, privilege};

/// Longest request head: a scraper's is under 1 KiB.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// A client whose request takes longer than this, or that takes nothing of the answer for as long, is let go: clients
/// are served one at a time.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the accept loop looks whether it should end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// A running control server; it ends when dropped.
pub struct ControlServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
}

impl ControlServer {
    /// Binds `listen` and serves `sources` until dropped.
    ///
    /// # Errors
    /// Names the address when it cannot be bound.
    pub fn start(listen: SocketAddr, sources: Sources) -> Result<ControlServer, String> {
        let listener = TcpListener::bind(listen).map_err(|error| {
            format!("control.listen = \"{listen}\": {error}; set another address, or stop what listens there (port 0 takes any free one)")
        })?;
        listener.set_nonblocking(true).map_err(|error| format!("control.listen = \"{listen}\": {error}"))?;
        let address = listener.local_addr().map_err(|error| format!("control.listen = \"{listen}\": {error}"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new()
            .name("sluice-control".into())
            .spawn({
                let stop = stop.clone();
                move || {
                    // Whoever asks over the network is answered without any right.
                    if privilege::renounce().is_ok() {
                        accept_loop(&listener, &sources, &stop);
                    }
                }
            })
            .map_err(|error| format!("control thread: {error}"))?;
        Ok(ControlServer { stop, thread: Some(thread), address })
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

fn accept_loop(listener: &TcpListener, sources: &Sources, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                // A client's failure is the client's business.
                let _ = serve(stream, sources);
            }
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
    }
}

fn serve(mut stream: TcpStream, sources: &Sources) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let end = clock::monotonic_ns() + CLIENT_TIMEOUT.as_nanos() as i64;
    let mut head = [0_u8; REQUEST_BYTES_MAX];
    let mut filled = 0;
    let (status, kind, body) = loop {
        let read = stream.read(&mut head[filled..])?;
        filled += read;
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head[..filled]) {
            Ok(httparse::Status::Complete(_)) => {
                break answer(request.method.unwrap_or(""), request.path.unwrap_or(""), sources);
            }
            Ok(httparse::Status::Partial) if read > 0 && filled < head.len() && clock::monotonic_ns() < end => {}
            Ok(httparse::Status::Partial) | Err(_) => break ("400 Bad Request", TEXT, "bad request\n".into()),
        }
    };
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(response.as_bytes())?;
    stream.write_all(body.as_bytes())
}

const TEXT: &str = "text/plain; charset=utf-8";

fn answer(method: &str, path: &str, sources: &Sources) -> (&'static str, &'static str, String) {
    if method != "GET" {
        return ("405 Method Not Allowed", TEXT, "only GET\n".into());
    }
    match path {
        "/healthz" => ("200 OK", TEXT, "ok\n".into()),
        "/metrics" => match render(sources.samples()) {
            Ok(text) => ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text),
            Err(_) => ("500 Internal Server Error", TEXT, "the metrics could not be written\n".into()),
        },
        "/status" => {
            let mut body = serde_json::Value::Object(sources.status()).to_string();
            body.push('\n');
            ("200 OK", "application/json", body)
        }
        "/report" => match sources.report() {
            Some(report) => ("200 OK", "application/json", format!("{report}\n")),
            None => ("404 Not Found", TEXT, "there is no feed to report on\n".into()),
        },
        _ => ("404 Not Found", TEXT, "there are /healthz, /metrics, /status and /report\n".into()),
    }
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
fn render(samples: Vec<Sample>) -> Result<String, std::fmt::Error> {
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register_collector(Box::new(Samples(samples)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::metrics::Source;

    struct Fixed;
    impl Source for Fixed {
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
    }

    fn get(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("connects");
        stream.write_all(request.as_bytes()).expect("writes");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("reads");
        answer
    }

    #[test]
    fn it_answers_and_survives_bad_requests() {
        let mut sources = Sources::default();
        sources.add(Arc::new(Fixed));
        let server = ControlServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), sources).expect("starts");
        let address = server.address();
        assert!(get(address, "GET /healthz HTTP/1.1\r\n\r\n").ends_with("ok\n"));
        let metrics = get(address, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(metrics.contains("sluice_capture_frames_total{queue=\"1\"} 7"), "{metrics}");
        assert!(metrics.trim_end().ends_with("# EOF"), "{metrics}");
        assert!(get(address, "GET /status HTTP/1.1\r\n\r\n").contains("{\"capture\":{\"frames\":7}}"));
        assert!(get(address, "POST /status HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(get(address, "\0\0\r\n\r\n").starts_with("HTTP/1.1 400"));
        let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(9_000));
        drop(TcpStream::connect(address).map(|mut s| s.write_all(long.as_bytes())));
        assert!(get(address, "GET /healthz HTTP/1.1\r\n\r\n").ends_with("ok\n"));
    }
}
