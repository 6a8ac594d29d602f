//! The contenders behind one seam. Each has room for 4,096 records, and its sender waits for a reader that is behind.

use std::path::PathBuf;

use serde_json::Value;

use crate::measure::{Pair, ReceiveAll, SendAll};

/// Word 0: when it was sent; words 1 to 7: its number.
pub type Record = [u64; 8];

/// Records that a ring has room for.
const CAPACITY: usize = 4_096;

/// The end that sends.
pub trait Sender {
    /// Hands one record over; waits while there is no room.
    fn send(&mut self, record: &Record);

    /// Waits for the other end, where the contender must.
    fn connect(&mut self) {}
}

/// The end that receives.
pub trait Receiver {
    /// A record, if one is there.
    fn receive(&mut self) -> Option<Record>;
}

/// Who takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tool {
    Sluice,
    Ringfire,
    Iceoryx2,
    Rtrb,
    #[cfg(feature = "aeron")]
    Aeron,
}

impl Tool {
    pub fn all() -> Vec<Tool> {
        vec![
            Tool::Sluice,
            Tool::Ringfire,
            Tool::Iceoryx2,
            Tool::Rtrb,
            #[cfg(feature = "aeron")]
            Tool::Aeron,
        ]
    }

    pub fn name(self) -> &'static str {
        match self {
            Tool::Sluice => "sluice",
            Tool::Ringfire => "ringfire",
            Tool::Iceoryx2 => "iceoryx2",
            Tool::Rtrb => "rtrb",
            #[cfg(feature = "aeron")]
            Tool::Aeron => "aeron",
        }
    }

    pub fn named(name: &str) -> Option<Tool> {
        Tool::all().into_iter().find(|tool| tool.name() == name)
    }

    /// The names that it takes part under, between processes or threads: ours as two tools, and only where it can.
    pub fn shown(self, processes: bool) -> Vec<&'static str> {
        match (self, processes) {
            (Tool::Sluice, _) => vec!["sluice", "sluice again"],
            (Tool::Ringfire, _) => vec!["ringfire"],
            // Lives in one process's memory.
            (Tool::Rtrb, true) => vec![],
            (Tool::Rtrb, false) => vec!["rtrb"],
            // Made for processes.
            (_, true) => vec![self.name()],
            (_, false) => vec![],
        }
    }
}

/// Makes the sending end and runs `work` on it.
pub fn sender(tool: Tool, name: &str, work: SendAll<'_>) {
    match tool {
        Tool::Sluice => work.on(&mut sluice_sender(name)),
        Tool::Ringfire => work.on(&mut ringfire_sender(name)),
        Tool::Iceoryx2 => work.on(&mut iceoryx::sender(name)),
        Tool::Rtrb => unreachable!("it has no second process"),
        #[cfg(feature = "aeron")]
        Tool::Aeron => work.on(&mut aeron::sender(name)),
    }
}

/// Opens the receiving end and runs `work` on it.
pub fn receiver(tool: Tool, name: &str, work: ReceiveAll<'_>) -> Value {
    match tool {
        Tool::Sluice => work.on(&mut sluice_receiver(name)),
        Tool::Ringfire => work.on(&mut ringfire_receiver(name)),
        Tool::Iceoryx2 => work.on(&mut iceoryx::receiver(name)),
        Tool::Rtrb => unreachable!("it has no second process"),
        #[cfg(feature = "aeron")]
        Tool::Aeron => work.on(&mut aeron::receiver(name)),
    }
}

/// Runs `work` on both ends in this process.
pub fn threads(tool: Tool, name: &str, work: Pair) -> Result<Value, String> {
    match tool {
        Tool::Sluice => {
            let sender = sluice_sender(name);
            Ok(work.on(sender, sluice_receiver(name)))
        }
        Tool::Ringfire => {
            let sender = ringfire_sender(name);
            Ok(work.on(sender, ringfire_receiver(name)))
        }
        Tool::Rtrb => {
            let (sender, receiver) = rtrb::RingBuffer::new(CAPACITY);
            Ok(work.on(sender, receiver))
        }
        other => Err(format!("{} is measured between processes only", other.name())),
    }
}

fn path(name: &str) -> PathBuf {
    PathBuf::from("/dev/shm").join(name)
}

/// A ring and its file, which goes with it.
struct InFile<R> {
    ring: R,
    path: PathBuf,
}

impl<R> Drop for InFile<R> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn sluice_sender(name: &str) -> InFile<sluice::ring::RingProducer<Record>> {
    let settings = sluice::ring::RingSettings {
        capacity: CAPACITY as u64,
        lossless: true,
        ..sluice::ring::RingSettings::default()
    };
    let ring = sluice::ring::RingProducer::create(&path(name), &settings).expect("a ring");
    InFile { ring, path: path(name) }
}

fn sluice_receiver(name: &str) -> sluice::ring::RingConsumer<Record> {
    let settings = sluice::ring::ConsumerSettings::default();
    sluice::ring::RingConsumer::open(&path(name), sluice::ring::StartAt::Head, &settings).expect("a reader")
}

impl Sender for InFile<sluice::ring::RingProducer<Record>> {
    #[inline(always)]
    fn send(&mut self, record: &Record) {
        self.ring.push(record);
    }
}

impl Receiver for sluice::ring::RingConsumer<Record> {
    #[inline(always)]
    fn receive(&mut self) -> Option<Record> {
        self.try_recv()
    }
}

fn ringfire_sender(name: &str) -> InFile<ringfire::RingProducer<Record>> {
    let builder = ringfire::RingProducerBuilder::new(CAPACITY as u64);
    let builder = builder.flow_control(ringfire::FlowControl::LosslessBackpressure);
    InFile { ring: builder.build(path(name)).expect("a ring of ringfire"), path: path(name) }
}

fn ringfire_receiver(name: &str) -> ringfire::RingConsumer<Record> {
    ringfire::RingConsumer::attach(path(name)).expect("a reader of ringfire")
}

impl Sender for InFile<ringfire::RingProducer<Record>> {
    #[inline(always)]
    fn send(&mut self, record: &Record) {
        self.ring.push(record);
    }
}

impl Receiver for ringfire::RingConsumer<Record> {
    #[inline(always)]
    fn receive(&mut self) -> Option<Record> {
        self.try_recv()
    }
}

impl Sender for rtrb::Producer<Record> {
    #[inline(always)]
    fn send(&mut self, record: &Record) {
        while self.push(*record).is_err() {
            std::hint::spin_loop();
        }
    }
}

impl Receiver for rtrb::Consumer<Record> {
    #[inline(always)]
    fn receive(&mut self) -> Option<Record> {
        self.pop().ok()
    }
}

/// iceoryx2: publish and subscribe, each record loaned and sent, a full buffer waited for.
mod iceoryx {
    use iceoryx2::port::publisher::Publisher;
    use iceoryx2::port::subscriber::Subscriber;
    use iceoryx2::prelude::*;

    use super::{CAPACITY, Record};

    /// An end, and the node that it belongs to.
    pub struct End<P> {
        port: P,
        _node: Node<ipc::Service>,
    }

    type Service = iceoryx2::service::port_factory::publish_subscribe::PortFactory<ipc::Service, Record, ()>;

    fn service(name: &str) -> (Node<ipc::Service>, Service) {
        set_log_level(LogLevel::Error);
        let node = NodeBuilder::new().create::<ipc::Service>().expect("a node of iceoryx2");
        let service = node
            .service_builder(&name.try_into().expect("a name"))
            .publish_subscribe::<Record>()
            .subscriber_max_buffer_size(CAPACITY)
            .enable_safe_overflow(false)
            .history_size(0)
            .max_publishers(1)
            .max_subscribers(1)
            .open_or_create()
            .expect("a service of iceoryx2");
        (node, service)
    }

    pub fn sender(name: &str) -> End<Publisher<ipc::Service, Record, ()>> {
        let (node, service) = service(name);
        let builder = service.publisher_builder().backpressure_strategy(BackpressureStrategy::RetryUntilDelivered);
        End { port: builder.create().expect("a publisher of iceoryx2"), _node: node }
    }

    pub fn receiver(name: &str) -> End<Subscriber<ipc::Service, Record, ()>> {
        let (node, service) = service(name);
        End { port: service.subscriber_builder().create().expect("a subscriber of iceoryx2"), _node: node }
    }

    impl super::Sender for End<Publisher<ipc::Service, Record, ()>> {
        #[inline(always)]
        fn send(&mut self, record: &Record) {
            let sample = self.port.loan_uninit().expect("a loan of iceoryx2");
            sample.write_payload(*record).send().expect("iceoryx2 sends");
        }
    }

    impl super::Receiver for End<Subscriber<ipc::Service, Record, ()>> {
        #[inline(always)]
        fn receive(&mut self) -> Option<Record> {
            self.port.receive().expect("iceoryx2 receives").map(|sample| *sample.payload())
        }
    }
}

/// Aeron over shared memory: an exclusive publication, claimed until there is room; polled until it has something.
#[cfg(feature = "aeron")]
mod aeron {
    use std::collections::VecDeque;
    use std::ffi::CStr;
    use std::time::{Duration, Instant};

    use rusteron_client::*;
    use rusteron_media_driver::testing::EmbeddedDriver;

    use super::Record;

    const PATIENCE: Duration = Duration::from_secs(5);
    const CHANNEL: &CStr = c"aeron:ipc?term-length=1m";
    /// Fragments taken in one poll.
    const FRAGMENTS: usize = 32;
    const BYTES: usize = size_of::<Record>();
    /// Where the driver and its clients meet; the ends are told by this variable.
    const FOLDER: &str = "AERON_DIR";

    /// The media driver: it only sets publications up; over shared memory no record passes through it.
    pub struct Driver {
        driver: EmbeddedDriver,
    }

    impl Driver {
        pub fn start() -> Driver {
            let launched = EmbeddedDriver::launch_with(|context| {
                context.set_term_buffer_sparse_file(false)?;
                Ok(())
            });
            Driver { driver: launched.expect("Aeron's media driver") }
        }

        /// What an end needs to find it.
        pub fn variable(&self) -> (String, String) {
            (FOLDER.into(), self.driver.dir().into())
        }
    }

    fn client() -> Aeron {
        let folder = std::env::var(FOLDER).expect("the driver's folder");
        let context = AeronContext::new().expect("a context of Aeron");
        context.set_dir(&cformat!("{folder}")).expect("a folder");
        context.set_pre_touch_mapped_memory(true).expect("a context of Aeron");
        let aeron = Aeron::new(&context).expect("a client of Aeron");
        aeron.start().expect("a client of Aeron");
        aeron
    }

    /// A stream of its own for each measurement.
    fn stream(name: &str) -> i32 {
        name.rsplit('-').next().and_then(|number| number.parse::<i32>().ok()).expect("a number at the name's end")
            + 1_000
    }

    pub struct Offering {
        publication: AeronExclusivePublication,
        _client: Aeron,
    }

    pub fn sender(name: &str) -> Offering {
        let client = client();
        let asked = client.async_add_exclusive_publication(CHANNEL, stream(name)).expect("a publication of Aeron");
        Offering { publication: asked.poll_blocking(PATIENCE).expect("a publication of Aeron"), _client: client }
    }

    impl super::Sender for Offering {
        #[inline(always)]
        fn send(&mut self, record: &Record) {
            loop {
                match self.publication.try_claim_owned(BYTES) {
                    Ok(mut claim) => {
                        for (bytes, word) in claim.data().chunks_exact_mut(8).zip(record) {
                            bytes.copy_from_slice(&word.to_le_bytes());
                        }
                        claim.commit().expect("Aeron takes it");
                        return;
                    }
                    Err(error) if error.is_retryable() => std::hint::spin_loop(),
                    Err(error) => panic!("Aeron: {error:?}"),
                }
            }
        }

        fn connect(&mut self) {
            let began = Instant::now();
            while !self.publication.is_connected() {
                assert!(began.elapsed() < PATIENCE, "Aeron does not connect");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    pub struct Polling {
        subscription: AeronSubscription,
        taken: VecDeque<Record>,
        _client: Aeron,
    }

    pub fn receiver(name: &str) -> Polling {
        let client = client();
        let asked = client
            .async_add_subscription(CHANNEL, stream(name), Handlers::NONE, Handlers::NONE)
            .expect("a subscription of Aeron");
        let subscription = asked.poll_blocking(PATIENCE).expect("a subscription of Aeron");
        Polling { subscription, taken: VecDeque::with_capacity(FRAGMENTS), _client: client }
    }

    impl super::Receiver for Polling {
        #[inline(always)]
        fn receive(&mut self) -> Option<Record> {
            if self.taken.is_empty() {
                let taken = &mut self.taken;
                let each = |buffer: &[u8], _header: AeronHeader| {
                    let mut record = Record::default();
                    for (word, bytes) in record.iter_mut().zip(buffer.chunks_exact(8)) {
                        *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
                    }
                    taken.push_back(record);
                };
                self.subscription.poll_fn(each, FRAGMENTS).expect("Aeron polls");
            }
            self.taken.pop_front()
        }
    }
}

/// What a contender needs beside the two ends: Aeron's media driver, in this process, on no CPU in particular.
pub struct Driver {
    #[cfg(feature = "aeron")]
    driver: aeron::Driver,
}

impl Driver {
    pub fn start() -> Driver {
        Driver {
            #[cfg(feature = "aeron")]
            driver: aeron::Driver::start(),
        }
    }

    /// Variables of the environment that the ends are given.
    pub fn variables(&self) -> Vec<(String, String)> {
        vec![
            #[cfg(feature = "aeron")]
            self.driver.variable(),
        ]
    }
}
