//! A relay for tests: the product's worker on a thread of its own, its items given to a [`LedgerServer`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use sluice::ledger::assemble::Limits;
use sluice::ledger::client_tls::ClientTls;
use sluice::ledger::event::Item;
use sluice::ledger::pool::Pool;
use sluice::ledger::relay_worker::{RelayParts, RelayWorker};
use sluice::ledger::stats::RelayCounter;
use sluice::ledger::url::Url;
use sluice::runtime::link::{Doorbell, LinkReceiver, link};
use sluice::runtime::worker::{TAG_BITS, Turn, Worker};
use sluice::sync::counters::{CounterReader, counters};
use sluice::sys::clock;
use sluice::sys::resolve::Resolver;
use sluice::sys::uring::CoreRing;

use super::ledger_server::LedgerServer;

/// What a relay in a test is told.
#[derive(Clone, Default)]
pub struct Told {
    pub start: u32,
    pub latest: Option<u32>,
    pub flows: usize,
    pub authorization: Option<String>,
    pub tls: Option<ClientTls>,
}

/// A relay with its server; both end when dropped.
pub struct Relay {
    pub server: LedgerServer,
    pub counters: CounterReader<RelayCounter>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// A relay of `upstream`; `None` where the kernel forbids io_uring.
    pub fn start(upstream: &str, told: &Told) -> Option<Relay> {
        let ring = match CoreRing::new(64) {
            Ok(ring) => ring,
            Err(error) => {
                super::skip(&format!("io_uring: {error}"), false);
                return None;
            }
        };
        let server = LedgerServer::start();
        let url = Url::parse(upstream).expect("a URL");
        // So few that the link is full now and then.
        let (order, items) = link(8, &Doorbell::new().expect("an eventfd"));
        let (writer, reader) = counters();
        let parts = RelayParts {
            name: "relay".into(),
            resolver: Resolver::new(&format!("{}:{}", url.host, url.port)).expect("a resolver"),
            url,
            tls: told.tls.clone(),
            authorization: told.authorization.clone(),
            limits: Limits::default(),
            flows: told.flows.max(1),
            start: told.start,
            latest: told.latest,
            run: server.publisher().run.clone(),
            dial_timeout: Duration::from_secs(10),
            dead_after: Duration::from_secs(30),
            spin: false,
            order,
            pool: Pool::new(16 << 10, 64),
            counters: writer,
        };
        let worker = RelayWorker::new(parts).expect("a relay");
        let stop = Arc::new(AtomicBool::new(false));
        let publisher = server.shared();
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || drive(worker, ring, items, &stop, |item| publisher.lock().expect("well").item(item))
        });
        Some(Relay { server, counters: reader, stop, thread: Some(thread) })
    }

    /// Waits until the relay has said `what`, or panics after a bound.
    pub fn wait_for(&self, what: &str) {
        wait(&format!("the relay says {what:?}"), || {
            self.server.publisher().said.iter().any(|said| said.contains(what))
        });
    }
}

/// Waits until `done` says so, or panics after a bound.
pub fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let until = clock::monotonic_ns() + 30_000_000_000;
    while !done() {
        assert!(clock::monotonic_ns() < until, "{what}: not within 30 s");
        clock::sleep(Duration::from_millis(2));
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "the relay's thread ends");
        }
    }
}

/// Drives a worker as a core does.
fn drive(
    mut worker: RelayWorker,
    mut ring: CoreRing,
    mut items: LinkReceiver<Item>,
    stop: &AtomicBool,
    mut give: impl FnMut(Item),
) {
    ring.enable(&[], 0).expect("enables");
    let (mut fault, mut stopped) = (None, false);
    worker.start(&mut Turn::new(clock::monotonic_ns(), &mut ring, 0, &mut fault)).expect("starts");
    while !(stopped && worker.drained()) {
        let now = clock::monotonic_ns();
        let mut work = worker.turn(&mut Turn::new(now, &mut ring, 0, &mut fault));
        if !stopped && stop.load(Ordering::Relaxed) {
            stopped = true;
            worker.stop(&mut Turn::new(now, &mut ring, 0, &mut fault));
        }
        ring.submit().expect("submits");
        while let Some(completion) = ring.next_completion() {
            let tag = completion.user_data & ((1 << TAG_BITS) - 1);
            worker.complete(&mut Turn::new(now, &mut ring, 0, &mut fault), tag, completion.result);
            work += 1;
        }
        while let Some(item) = items.pop() {
            give(item);
            work += 1;
        }
        assert_eq!(fault, None);
        if work == 0 {
            ring.submit_and_wait(Some(Duration::from_millis(1))).expect("waits");
        }
    }
    worker.finish();
}
