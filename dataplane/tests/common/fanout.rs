//! A fan-out worker on a core of its own, fed by a test by hand, and raw subscribers.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sluice::config::Idle;
use sluice::ledger::archive::{Archive, ArchiveSettings};
use sluice::ledger::chunker::{Chunker, Cut};
use sluice::ledger::event::Item;
use sluice::ledger::fanout_worker::{
    AudienceSettings, FanoutParts, FanoutSettings, FanoutWorker, GateLimits, TokenCheck,
};
use sluice::ledger::hub::{Outcome, Stored};
use sluice::ledger::keeper::KeeperSettings;
use sluice::ledger::load::Load;
use sluice::ledger::message::Encoded;
use sluice::ledger::retention::Bounds;
use sluice::ledger::session::TimeLimits;
use sluice::ledger::stats::{FanoutCounter, FanoutView, fanout_books};
use sluice::ledger::synthetic::{self, Shape};
use sluice::runtime::launch::{CorePlan, Launched, launch};
use sluice::runtime::link::{Doorbell, LinkSender, link};
use sluice::sys::clock;
use sluice::wire::http;
use sluice::wire::ledger::{Begin, Message, decode};
use sluice::wire::websocket::{Event, FrameReader, Sender};

pub const RUN: &str = "00112233-4455-6677-8899-aabbccddeeff";

/// Settings as a server has them by default.
pub fn settings() -> FanoutSettings {
    FanoutSettings {
        audience: AudienceSettings {
            gate: GateLimits { subscribers_max: 10_000, per_address_max: 10_000, flows_max: 8 },
            time: TimeLimits::default(),
            dead_after: Duration::from_secs(30),
        },
        backlog_bytes: 1 << 30,
        drain_ns: 10_000_000_000,
        spin: true,
    }
}

/// What not every server has.
#[derive(Default)]
pub struct Extra {
    pub archive: Option<(Archive, Vec<Stored>)>,
    pub tokens: Option<TokenCheck>,
    pub awaits_run: bool,
    #[cfg(feature = "ledger-tls")]
    pub tls: Option<sluice::ledger::tls::TlsServer>,
}

/// A running fan-out. It ends when dropped.
pub struct Fanout {
    pub address: SocketAddr,
    pub view: FanoutView,
    pub load: Arc<Load>,
    order: LinkSender<Item>,
    encoders: Vec<LinkSender<Encoded>>,
    chunker: Chunker,
    pub chunk_bytes: usize,
    launched: Option<Launched>,
}

impl Fanout {
    pub fn start(settings: FanoutSettings) -> Option<Fanout> {
        Fanout::start_with(settings, Extra::default())
    }

    /// With a retention directory: `bounds` ledgers are kept.
    pub fn start_keeping(settings: FanoutSettings, directory: &Path, ledgers_max: u32) -> Option<Fanout> {
        let keeper = KeeperSettings {
            bounds: Bounds { ledgers_max, bytes_max: None, age_ns_max: None },
            segment_bytes: 8 << 20,
            ..KeeperSettings::default()
        };
        let archive = ArchiveSettings {
            directory: directory.into(),
            keeper,
            source: "test".into(),
            network: [7; 8],
            start: 0,
            reset: false,
        };
        let (archive, opened) = Archive::open(&archive, clock::utc_ns()).expect("a directory");
        Fanout::start_with(settings, Extra { archive: Some((archive, opened.stored)), ..Extra::default() })
    }

    pub fn start_with(settings: FanoutSettings, extra: Extra) -> Option<Fanout> {
        let doorbell = Doorbell::new().expect("an eventfd");
        let (order, order_end) = link(1_024, &doorbell);
        let (encoder, encoder_end) = link(16, &doorbell);
        let (books, view) = fanout_books("test".into(), "test".into());
        let load = Arc::new(Load::default());
        let worker = FanoutWorker::new(FanoutParts {
            name: "fanout".into(),
            listen: "127.0.0.1:0".parse().expect("an address"),
            order: order_end,
            encoders: vec![encoder_end],
            settings,
            run: RUN.into(),
            awaits_run: extra.awaits_run,
            archive: extra.archive,
            tokens: extra.tokens,
            #[cfg(feature = "ledger-tls")]
            tls: extra.tls,
            load: load.clone(),
            books,
        });
        let plan = CorePlan {
            name: "test".into(),
            cpu: None,
            idle: Idle::Park,
            io_cpus: Vec::new(),
            doorbell,
            workers: vec![Box::new(worker)],
        };
        let launched = match launch(vec![plan]) {
            Ok(launched) => launched,
            Err(error) if error.to_string().contains("io_uring") => {
                eprintln!("SKIPPED: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        launched.go();
        Some(Fanout {
            address: *view.address.get().expect("bound"),
            view,
            load,
            order,
            encoders: vec![encoder],
            chunker: Chunker::new(Cut::new(16 << 10, None).expect("a cut")),
            chunk_bytes: 16 << 10,
            launched: Some(launched),
        })
    }

    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Gives the worker an item; waits while the link is full.
    pub fn push(&mut self, mut item: Item) {
        within("room in the link", || match self.order.push(std::mem::replace(&mut item, Item::Packed(usize::MAX))) {
            Ok(()) => Some(()),
            Err(full) => {
                item = full;
                None
            }
        });
        self.order.flush();
    }

    /// Gives the worker a message by its encoder's link.
    pub fn push_packed(&mut self, message: Encoded) {
        self.encoders[0].push(message).expect("room");
        self.encoders[0].flush();
    }

    pub fn begin(&mut self, sequence: u32) {
        self.chunker = Chunker::new(Cut::new(self.chunk_bytes, None).expect("a cut"));
        self.chunker.begin(sequence, None).expect("begins");
        self.push(Item::Begin(Begin { sequence, emit_start_ns: clock::utc_ns() }));
    }

    /// Publishes all chunks of `bytes` that are full.
    pub fn chunks(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if let Some(chunk) = self.chunker.push(&mut bytes).expect("fits") {
                self.push(Item::Message(chunk.into_message()));
            }
        }
    }

    pub fn end(&mut self) {
        let (last, end) = self.chunker.finish(clock::utc_ns()).expect("whole");
        if let Some(chunk) = last {
            self.push(Item::Message(chunk.into_message()));
        }
        self.push(Item::End(end));
    }

    pub fn ledger(&mut self, sequence: u32, bytes: &[u8]) {
        self.begin(sequence);
        self.chunks(bytes);
        self.end();
    }

    pub fn finish(&mut self, outcome: Outcome) {
        self.push(Item::Finished(outcome, None));
    }

    /// Waits until a counter has come to a value.
    pub fn until(&self, counter: FanoutCounter, least: u64) {
        within(&format!("{counter:?} {least}"), || (self.view.get(counter) >= least).then_some(()));
    }

    /// Waits until a gauge has exactly this value.
    pub fn until_is(&self, counter: FanoutCounter, value: u64) {
        within(&format!("{counter:?} = {value}"), || (self.view.get(counter) == value).then_some(()));
    }

    /// Stops the worker as a process does that was asked to end.
    pub fn stop(&mut self, bound: Duration) -> Result<(), Vec<String>> {
        self.launched.take().expect("running").stop(bound)
    }

    /// The same without waiting for it here.
    pub fn stop_beside(&mut self, bound: Duration) -> std::thread::JoinHandle<Result<(), Vec<String>>> {
        let launched = self.launched.take().expect("running");
        std::thread::spawn(move || launched.stop(bound))
    }
}

impl Drop for Fanout {
    fn drop(&mut self) {
        if let Some(launched) = self.launched.take() {
            let _ = launched.stop(Duration::from_millis(10));
        }
    }
}

/// Bytes of a made-up ledger.
pub fn ledger_bytes(sequence: u32, bytes: usize) -> Vec<u8> {
    let mut ledger = vec![0; bytes];
    synthetic::write(sequence, Shape::Noise, &mut ledger);
    ledger
}

/// Asks again and again until there is an answer; fails after a time that is far beyond what it takes.
pub fn within<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = clock::monotonic_ns() + 30_000_000_000;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(clock::monotonic_ns() < end, "waited for {what} for 30 s");
        clock::sleep(Duration::from_millis(1));
    }
}

/// What a raw subscriber was sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Got {
    Begin(u32, bool),
    Chunk(u32, u32),
    End(u32, bool),
    Close(Option<u16>, String),
    /// The connection ended without a close, or after it.
    Eof,
}

/// A subscriber that sees every message.
pub struct Raw {
    pub stream: TcpStream,
    reader: FrameReader,
    /// The answer's head.
    pub head: String,
    /// The payload of the chunks.
    pub payload: Vec<u8>,
}

pub fn request(target: &str) -> Vec<u8> {
    http::upgrade_request("h", target, [7; 16], &[])
}

impl Raw {
    /// Connects and sends a request; the answer is not read.
    pub fn ask(address: SocketAddr, request: &[u8]) -> Raw {
        let mut stream = TcpStream::connect(address).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time-out");
        // A server that refuses may be faster.
        let _ = stream.write_all(request);
        let reader = FrameReader::new(Sender::Server, 16 << 20);
        Raw { stream, reader, head: String::new(), payload: Vec::new() }
    }

    /// Subscribes; fails where that is refused.
    pub fn subscribe(address: SocketAddr, query: &str) -> Raw {
        let mut raw = Raw::ask(address, &request(&format!("/stream?{query}")));
        raw.read_head();
        assert!(raw.head.starts_with("HTTP/1.1 101 "), "{}", raw.head);
        raw
    }

    /// Reads the answer's head, byte by byte, so that what follows is left.
    pub fn read_head(&mut self) {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            match self.stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => break,
            }
        }
        self.head = String::from_utf8_lossy(&head).into_owned();
    }

    /// All that is still to come, as text.
    pub fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        let _ = self.stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub fn next(&mut self) -> Got {
        loop {
            match self.reader.next().expect("frames") {
                Some(Event::Binary(bytes)) => match decode(bytes).expect("a message") {
                    Message::Begin(begin) => return Got::Begin(begin.sequence, begin.emit_start_ns != 0),
                    Message::Chunk(header, payload) => {
                        self.payload.extend_from_slice(payload);
                        return Got::Chunk(header.sequence, header.index);
                    }
                    Message::End(end) => return Got::End(end.sequence, end.emit_end_ns != 0),
                },
                Some(Event::Close { code, reason }) => return Got::Close(code, reason.into()),
                Some(_) => continue,
                None => {}
            }
            let space = self.reader.space();
            match self.stream.read(space) {
                Ok(0) => return Got::Eof,
                Ok(read) => self.reader.filled(read),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    panic!("nothing came for 30 s")
                }
                Err(_) => return Got::Eof,
            }
        }
    }

    /// Everything up to and with what `last` says yes to.
    pub fn until(&mut self, last: impl Fn(&Got) -> bool) -> Vec<Got> {
        let mut got = Vec::new();
        loop {
            let next = self.next();
            let ends = last(&next) || next == Got::Eof;
            got.push(next);
            if ends {
                return got;
            }
        }
    }
}
