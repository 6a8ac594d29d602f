//! Rings and their mirrors on one host: files that clean up after themselves, processes that end with the test, producers
//! whose records tell their own sequence, and readers that check them.

use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sluice::ring::{ConsumerSettings, RingConsumer, RingProducer, RingSettings, StartAt};
use sluice::sys::clock::monotonic_ns;

/// The longest that anything here may take: what is expected are milliseconds.
pub const BOUND: Duration = Duration::from_secs(20);

/// A record of 56 bytes: its slot is one cache line.
pub type Tick = [u64; 7];

/// Record `sequence` of history `history`.
pub fn tick(history: u64, sequence: u64) -> Tick {
    let mut tick = [0; 7];
    for (at, word) in tick.iter_mut().enumerate() {
        *word = history.rotate_left(17) ^ sequence.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(at as u32 * 9);
    }
    tick[0] = sequence;
    tick[1] = history;
    tick
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A path in /dev/shm that is no file's yet, removed with all that is there at the end.
pub struct Shm(pub PathBuf);

impl Shm {
    pub fn new(name: &str) -> Shm {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Shm(PathBuf::from(format!("/dev/shm/sluice-test-{}-{number}-{name}", std::process::id())))
    }

    pub fn text(&self) -> &str {
        self.0.to_str().expect("ASCII")
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl std::ops::Deref for Shm {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A loopback address with a TCP port that is free now.
pub fn tcp_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback");
    listener.local_addr().expect("bound").to_string()
}

/// A UDP port that is free now.
pub fn udp_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").expect("the loopback").local_addr().expect("bound").port()
}

/// A multicast group and port of this test's own.
pub fn group() -> String {
    let pid = std::process::id();
    format!("239.255.{}.{}:{}", pid >> 8 & 0xFF, NUMBER.fetch_add(1, Ordering::Relaxed) & 0xFF, udp_port())
}

/// Waits until `look` gives something, at most [`BOUND`].
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = monotonic_ns() + BOUND.as_nanos() as i64;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(monotonic_ns() < end, "{what}: not within {BOUND:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A `sluice` process, killed at the end; its log is in a file, shown when the test fails.
pub struct Sluice {
    child: Child,
    what: String,
    log: Shm,
}

impl Sluice {
    pub fn start(args: &[&str]) -> Sluice {
        let log = Shm::new("log");
        let file = std::fs::File::create(&*log).expect("a log");
        let child = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(args)
            .env("SLUICE_LOG", "debug")
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second handle"))
            .stderr(file)
            .spawn()
            .expect("starts");
        Sluice { child, what: args.join(" "), log }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid() as i32), signal).expect("our own process");
    }

    /// Kills it as the kernel does.
    pub fn kill(mut self) {
        self.child.kill().expect("our own process");
        self.child.wait().expect("ends");
    }

    /// Asks it to end; its exit code.
    pub fn terminate(mut self) -> Option<i32> {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        self.wait().code()
    }

    /// Asks one that was started with `--json` to end; what it told last.
    pub fn terminate_json(mut self) -> serde_json::Value {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        assert_eq!(self.wait().code(), Some(0));
        let log = self.log();
        // Lines of the log are JSON as well.
        let told = log.lines().filter_map(|line| serde_json::from_str(line).ok());
        told.into_iter().find(|told: &serde_json::Value| told["fields"].is_null()).expect("the status")
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        let what = format!("the end of {}", self.what);
        until(&what, || self.child.try_wait().expect("our own process"))
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&*self.log).unwrap_or_default()
    }
}

impl Drop for Sluice {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- sluice {}\n{}", self.what, self.log());
        }
    }
}

/// A source ring and its history.
pub struct Source {
    pub ring: RingProducer<Tick>,
    history: u64,
}

impl Source {
    /// A ring that goes with its producer.
    pub fn create(path: &Path, capacity: u64, history: u64) -> Source {
        Source::create_kept(path, capacity, history, false)
    }

    /// With `keep` the file stays when the producer ends, unlocked: as after `kill -9`.
    pub fn create_kept(path: &Path, capacity: u64, history: u64, keep: bool) -> Source {
        let settings = RingSettings { capacity, keep, ..RingSettings::default() };
        Source { ring: RingProducer::create(path, &settings).expect("makes the ring"), history }
    }

    /// Pushes `count` records, a pause after each `burst`.
    pub fn push(&mut self, count: u64, burst: u64) {
        for at in 0..count {
            let sequence = self.ring.sequence() + 1;
            assert_eq!(self.ring.push(&tick(self.history, sequence)), sequence);
            if burst > 0 && at % burst == burst - 1 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    /// The last sequence.
    pub fn head(&self) -> u64 {
        self.ring.sequence()
    }
}

/// A reader that checks what it reads.
pub struct Checker {
    pub ring: RingConsumer<Tick>,
    history: u64,
    /// The first sequence it got.
    pub first: Option<u64>,
    /// The last one.
    pub last: u64,
    /// Jumps over sequences.
    pub holes: Vec<(u64, u64)>,
    /// What the ring counted as lapped before the first record: what lies before a mirror's first is history, not loss.
    before: u64,
}

impl Checker {
    /// Attaches as soon as there is a ring with a record, at its oldest.
    pub fn attach(path: &Path, history: u64) -> Checker {
        let open = || RingConsumer::open(path, StartAt::Oldest, &ConsumerSettings::default()).ok();
        let ring = until(&format!("a ring at {}", path.display()), open);
        Checker { ring, history, first: None, last: 0, holes: Vec::new(), before: 0 }
    }

    /// As [`Checker::attach`], as soon as the ring's oldest record is of that history.
    pub fn attach_new(path: &Path, history: u64) -> Checker {
        until("a ring of the new history", || {
            let mut ring = RingConsumer::<Tick>::open(path, StartAt::Oldest, &ConsumerSettings::default()).ok()?;
            (ring.try_recv()?[1] == history).then_some(())
        });
        Checker::attach(path, history)
    }

    /// Takes what is there; how many.
    pub fn take(&mut self) -> u64 {
        let mut count = 0;
        while let Some(record) = self.ring.try_recv() {
            let sequence = self.ring.cursor() - 1;
            assert_eq!(record, tick(self.history, sequence), "record {sequence} is its own");
            assert!(sequence > self.last, "{sequence} after {}", self.last);
            if self.first.is_none() {
                self.first = Some(sequence);
                self.before = self.ring.lapped();
            } else if sequence != self.last + 1 {
                self.holes.push((self.last + 1, sequence - 1));
            }
            self.last = sequence;
            count += 1;
        }
        count
    }

    /// Records that it did not get since its first.
    pub fn lapped(&self) -> u64 {
        self.ring.lapped() - self.before
    }

    /// Reads until record `last`.
    pub fn until(&mut self, last: u64) {
        let what = format!("record {last}");
        until(&what, || {
            self.take();
            (self.last >= last).then_some(())
        });
    }

    /// Reads until record `last`, and asserts that nothing was missing since the first.
    pub fn whole_until(&mut self, last: u64) {
        self.until(last);
        assert_eq!(self.holes, [], "from {:?} to {last}", self.first);
        assert_eq!(self.lapped(), 0);
    }
}

/// A transport, as serve and mirror are told it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Tcp,
    Unicast,
    Multicast,
}

impl Way {
    pub const ALL: [Way; 3] = [Way::Tcp, Way::Unicast, Way::Multicast];

    /// That a mirror got so many records in this way, not as repair: the connection beside datagrams would bring them all.
    pub fn assert_delivered(self, told: &serde_json::Value, records: u64) {
        let get = |key: &str| told[key].as_u64().unwrap_or_else(|| panic!("{key} in {told}"));
        assert_eq!(get("datagrams") > 0, self != Way::Tcp, "{self:?}: {told}");
        assert!(get("records") - get("repaired_records") >= records, "{self:?}: {told}");
    }

    /// What the log of a mirror says of it.
    pub fn told(self) -> &'static str {
        match self {
            Way::Tcp => "\"transport\":\"tcp\"",
            Way::Unicast => "\"transport\":\"udp ",
            Way::Multicast => "\"transport\":\"multicast ",
        }
    }

    /// More arguments for serve.
    pub fn serve(self) -> Vec<String> {
        match self {
            Way::Tcp => Vec::new(),
            Way::Unicast => vec!["--udp".into(), udp_port().to_string()],
            Way::Multicast => vec!["--multicast".into(), group(), "--iface".into(), "127.0.0.1".into()],
        }
    }

    /// More arguments for mirror.
    pub fn mirror(self) -> &'static [&'static str] {
        match self {
            Way::Tcp => &[],
            Way::Unicast => &["--unicast"],
            Way::Multicast => &["--iface", "127.0.0.1"],
        }
    }
}

/// Starts `sluice ring serve`.
pub fn serve(ring: &Path, bind: &str, more: &[String]) -> Sluice {
    let ring = ring.to_str().expect("ASCII");
    let mut args = vec!["ring", "serve", ring, "--bind", bind];
    args.extend(more.iter().map(String::as_str));
    Sluice::start(&args)
}

/// Starts `sluice ring mirror`, with reconnections every 10 ms.
pub fn mirror(source: &str, ring: &Path, from: &str, more: &[&str]) -> Sluice {
    let ring = ring.to_str().expect("ASCII");
    let mut args = vec!["ring", "mirror", source, ring, "--from", from, "--reconnect-ms", "10"];
    args.extend(more);
    Sluice::start(&args)
}
