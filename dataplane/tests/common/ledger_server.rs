//! A small ledger server for tests: the product's machines behind plain non-blocking sockets, on one thread.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use sluice::ledger::chunker::{Chunker, Cut};
use sluice::ledger::compress::Packer;
use sluice::ledger::event::Item;
use sluice::ledger::hub::{Hub, Outcome};
use sluice::ledger::session::{Connection, Server, Step};
use sluice::sys::clock;
use sluice::wire::ledger::Begin;

/// What is served, and what cuts and packs it.
pub struct Publisher {
    pub hub: Hub,
    chunker: Chunker,
    packer: Packer,
    /// Bytes after which every connection is cut, once each; `None`: none is.
    pub cut_after: Option<usize>,
    pub run: String,
    /// What the source's side said, where it spoke by items: each that is no message.
    pub said: Vec<String>,
    /// Counts the times that every connection is cut.
    pub cuts: u64,
}

impl Publisher {
    /// Publishes a whole ledger, with stamps of now.
    pub fn ledger(&mut self, sequence: u32, ledger: &[u8]) {
        self.chunker.begin(sequence, Some(ledger.len() as u64)).expect("begins");
        self.hub.begin(&Begin { sequence, emit_start_ns: clock::utc_ns() });
        let mut input = ledger;
        while !input.is_empty() {
            if let Some(chunk) = self.chunker.push(&mut input).expect("fits") {
                self.hub.chunk(self.packer.pack(chunk, self.chunker.spare()));
            }
        }
        let (last, end) = self.chunker.finish(clock::utc_ns()).expect("whole");
        if let Some(chunk) = last {
            self.hub.chunk(self.packer.pack(chunk, self.chunker.spare()));
        }
        self.hub.end(&end);
    }

    /// Publishes the beginning of a ledger: all chunks that are full, and no end.
    pub fn open(&mut self, sequence: u32, ledger: &[u8]) {
        self.chunker.begin(sequence, None).expect("begins");
        self.hub.begin(&Begin { sequence, emit_start_ns: clock::utc_ns() });
        let mut input = ledger;
        while !input.is_empty() {
            if let Some(chunk) = self.chunker.push(&mut input).expect("fits") {
                self.hub.chunk(chunk.into_message());
            }
        }
    }

    /// Publishes the rest of a ledger that was opened.
    pub fn close(&mut self) {
        let (last, end) = self.chunker.finish(clock::utc_ns()).expect("whole");
        if let Some(chunk) = last {
            self.hub.chunk(self.packer.pack(chunk, self.chunker.spare()));
        }
        self.hub.end(&end);
    }

    /// Takes what a source's side says, as the fan-out does.
    pub fn item(&mut self, item: Item) {
        match item {
            Item::Begin(begin) if self.hub.open_sequence() == Some(begin.sequence) => {
                self.said.push(format!("again {}", begin.sequence));
                self.hub.begin_again(&begin);
            }
            Item::Begin(begin) => _ = self.hub.begin(&begin),
            Item::Message(message) | Item::Fallback(message) => self.hub.chunk(message),
            Item::Packed(encoder) => panic!("there is no encoder {encoder}"),
            Item::End(end) => _ = self.hub.end(&end),
            Item::Run(run) => {
                self.said.push(format!("run {run}"));
                // Whoever was told the run before is let go, also where nothing is kept.
                self.hub.reset();
                self.run = run;
            }
            Item::Finished(outcome, reason) => {
                self.said.push(format!("{outcome:?} {}", reason.unwrap_or_default()));
                self.hub.finish(outcome);
            }
        }
    }

    /// The source has no more.
    pub fn finish(&mut self) {
        self.hub.finish(Outcome::Ended);
    }
}

struct Served {
    stream: TcpStream,
    connection: Connection,
    out: Vec<u8>,
    sent: usize,
    ending: bool,
    cuts: u64,
}

/// A running server; it ends when dropped.
pub struct LedgerServer {
    pub address: SocketAddr,
    publisher: Arc<Mutex<Publisher>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LedgerServer {
    pub fn start() -> LedgerServer {
        LedgerServer::start_at("127.0.0.1:0".parse().expect("an address"))
    }

    /// As [`LedgerServer::start`], at an address of before.
    pub fn start_at(address: SocketAddr) -> LedgerServer {
        let listener = TcpListener::bind(address).expect("a port");
        listener.set_nonblocking(true).expect("non-blocking");
        let address = listener.local_addr().expect("bound");
        let publisher = Arc::new(Mutex::new(Publisher {
            hub: Hub::default(),
            chunker: Chunker::new(Cut::new(16 << 10, Some(4096)).expect("a cut")),
            packer: Packer::new(1).expect("zstd"),
            cut_after: None,
            run: "00112233-4455-6677-8899-aabbccddeeff".into(),
            said: Vec::new(),
            cuts: 0,
        }));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (publisher, stop) = (publisher.clone(), stop.clone());
            move || serve(&listener, &publisher, &stop)
        });
        LedgerServer { address, publisher, stop, thread: Some(thread) }
    }

    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    pub fn shared(&self) -> Arc<Mutex<Publisher>> {
        self.publisher.clone()
    }

    pub fn publisher(&self) -> MutexGuard<'_, Publisher> {
        self.publisher.lock().expect("the server's thread is well")
    }
}

impl Drop for LedgerServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, publisher: &Mutex<Publisher>, stop: &AtomicBool) {
    let mut served: Vec<Served> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).expect("non-blocking");
            let connection = Connection::new(clock::monotonic_ns());
            let cuts = publisher.lock().expect("the test is well").cuts;
            served.push(Served { stream, connection, out: Vec::new(), sent: 0, ending: false, cuts });
        }
        let mut moved = false;
        {
            let mut publisher = publisher.lock().expect("the test is well");
            served.retain_mut(|one| one.turn(&mut publisher, &mut moved));
        }
        if !moved {
            clock::sleep(Duration::from_millis(1));
        }
    }
}

impl Served {
    /// One look at a connection; whether it stands.
    fn turn(&mut self, publisher: &mut Publisher, moved: &mut bool) -> bool {
        let now = clock::monotonic_ns();
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.connection.on_closed(),
            Ok(read) => {
                let server = Server { run: &publisher.run, subscribers: 1 };
                self.connection.on_bytes(&bytes[..read], &publisher.hub, server, now);
                *moved = true;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.connection.on_closed(),
        }
        self.connection.on_time(now);
        if self.out.is_empty() && !self.ending {
            match self.connection.poll(&mut publisher.hub, now) {
                Step::Wait => {}
                Step::End => self.ending = true,
                Step::Bytes(bytes) => self.out = bytes,
                Step::Message(message) => self.out = message.frame().to_vec(),
                Step::Stored(..) => unreachable!("this server keeps all in memory"),
            }
        }
        if self.ending || self.cuts != publisher.cuts {
            return false;
        }
        if self.out.is_empty() {
            return true;
        }
        let most = publisher.cut_after.map_or(self.out.len(), |cut| cut.saturating_sub(self.sent).min(self.out.len()));
        if most == 0 {
            return false;
        }
        match self.stream.write(&self.out[..most]) {
            Ok(written) => {
                self.out.drain(..written);
                self.sent += written;
                self.connection.progress(self.out.is_empty(), now);
                *moved = true;
                true
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }
}
