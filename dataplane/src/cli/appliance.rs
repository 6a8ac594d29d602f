//! The appliance put together: host look-ups, plans, launch, attach, the control thread's loop, drain, report.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};

use super::quality::Reporter;
use super::reload::Reloader;
use super::topology::Topology;
use super::{Failure, log, privileges};
use crate::capture::links::Links;
use crate::capture::plan::{CapturePlan, PlannedQueue, QueueCounts, plan};
use crate::capture::queue_worker::FrameQueue;
use crate::capture::source::af_xdp::{AfXdpQueue, QueueFacts};
use crate::capture::status::{CaptureStatus, InterfaceMode, XdpQueue, XdpReader};
use crate::config::{self, AttachMode, Config, Promiscuous, SourceKind, Through};
use crate::ledger::reload::Reload;
use crate::ledger::stats::LedgerStatus;
use crate::ring::publish::publisher;
use crate::ring::stats::RingStatus;
use crate::runtime::control::ControlServer;
use crate::runtime::health::HealthBoard;
use crate::runtime::launch::{CorePlan, Launched, Pulse, launch};
use crate::runtime::link::Doorbell;
use crate::runtime::vitals::{LogReader, Vitals};
use crate::runtime::worker::Worker;
use crate::store::StampSource;
use crate::store::plan::{StoreParts, StoreView, store_books, store_worker};
use crate::sync::metrics::{Source, Sources};
use crate::sys::bpf::{Destination, Reason, XdpMode, XdpProgram, XdpSettings};
use crate::sys::nic::{FrameChoice, Interface, choose_frames};
use crate::sys::signal::{Asked, Signals};
use crate::sys::socket::{Admit, LinkEvent, LinkWatcher, Memberships, ReceiveFilter};
use crate::sys::xsk::{XskSettings, ZeroCopy};
use crate::sys::{clock, cpu};
use crate::{ledger, ring};

/// How often the control loop looks at faults, links and the clock.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How often it asks the NICs whether they are as they were.
const NICS_EVERY_NS: i64 = 1_000_000_000;

/// One captured interface, looked up.
struct HostInterface {
    config: config::Interface,
    interface: Interface,
    frames: FrameChoice,
    queues: u32,
    /// None through libpcap.
    program: Option<Arc<Mutex<XdpProgram>>>,
    /// The kernel's id of the attached program.
    program_id: OnceLock<u32>,
    facts: Vec<Arc<OnceLock<QueueFacts>>>,
}

impl HostInterface {
    /// What is not as it was when the program was attached, and takes frames away from its sockets without a trace here: they would be
    /// bound anew only with privilege, which is gone. The process ends, and its next start takes the NIC as it is.
    fn changed(&self) -> Option<String> {
        self.program.as_ref()?;
        let name = &self.config.name;
        let Ok(now) = self.interface.refresh() else { return Some(format!("interface \"{name}\" is gone")) };
        let queues = now.rx_queues().unwrap_or(self.queues);
        if queues != self.queues {
            return Some(format!(
                "interface \"{name}\" has {queues} receive queues now, but had {} when it was opened (ethtool -L, a reset of the driver): frames of the others are not captured; start again",
                self.queues
            ));
        }
        let own = self.program_id.get().copied();
        (now.xdp.map(|(_, id)| id) != own).then(|| {
            format!("interface \"{name}\": the XDP program {own:?} is not attached any more (now: {:?}): frames pass it by; start again", now.xdp)
        })
    }
}

/// What holds the NIC's filters open while the appliance runs.
struct Held {
    _memberships: Memberships,
    _filters: Vec<ReceiveFilter>,
}

/// A running appliance.
pub struct Appliance {
    launched: Launched,
    interfaces: Vec<HostInterface>,
    capture: Arc<CaptureStatus>,
    stores: Vec<Arc<StoreView>>,
    ledger: Option<Arc<LedgerStatus>>,
    reload: Option<Reload>,
    /// There is nothing beside the server of ledgers.
    only_ledgers: bool,
    sources: Sources,
    control: ControlServer,
    board: Arc<HealthBoard>,
    held: Held,
    vitals: Arc<Vitals>,
    links: Arc<Links>,
    reporter: Option<Reporter>,
    drain: Duration,
    stall: Duration,
}

/// Why the control loop ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// SIGTERM or SIGINT.
    Signal,
    /// The time asked for is over.
    Time,
    /// Every file source has come to its end.
    EndOfInput,
    /// A worker cannot go on, or stalls.
    Fault(String),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ending::Signal => "a signal asked for it",
            Ending::Time => "the time of --for is over",
            Ending::EndOfInput => "the input has ended",
            Ending::Fault(reason) => reason,
        })
    }
}

/// The three jobs' workers, each with its core's name, and what is told of them.
struct Jobs {
    workers: Vec<(String, Box<dyn Worker>)>,
    capture: CapturePlan,
    stores: Vec<Arc<StoreView>>,
    rings: RingStatus,
    ledger: Option<(Arc<LedgerStatus>, Reload)>,
}

impl Jobs {
    fn plan(
        config: &Config,
        counts: &QueueCounts,
        doorbells: &BTreeMap<String, Arc<Doorbell>>,
        interfaces: &[HostInterface],
    ) -> Result<Jobs, Failure> {
        let mut capture = plan(config, counts, doorbells, |queue| open_queue(interfaces, queue), publisher)
            .map_err(Failure::usage)?;
        let mut workers = std::mem::take(&mut capture.workers);
        let stores = plan_stores(config, doorbells, &mut capture, &mut workers)?;
        let rings = ring::plan::plan(config).map_err(Failure::usage)?;
        workers.extend(rings.workers);
        let ledger = ledger::plan::plan(config, doorbells).map_err(Failure::host)?;
        let ledger = ledger.map(|planned| {
            workers.extend(planned.workers);
            (planned.status, planned.reload)
        });
        Ok(Jobs { workers, capture, stores, rings: rings.status, ledger })
    }
}

impl Appliance {
    /// Prepares everything, starts the cores, attaches the programs and opens the gate.
    ///
    /// # Errors
    /// The first refusal of the host, named; everything made before it is undone.
    pub fn start(config: &Config) -> Result<Appliance, Failure> {
        privileges::prepare(config)?;
        // Every thread started from here on inherits this; a core's own thread then pins itself. With no CPU left
        // over (two cores on two CPUs) the scheduler decides.
        let cpus = control_cpus(config);
        if !cpus.is_empty() {
            cpu::allow(&cpus).map_err(|error| Failure::host(format!("control CPUs {cpus:?}: {error}")))?;
        }
        // It answers "starting" from here on; should the start fail, it ends with this function.
        let board = Arc::new(HealthBoard::default());
        let control =
            ControlServer::start(config.control.listen, &config.control.hosts, board.clone()).map_err(Failure::host)?;
        let doorbells = doorbells(config)?;
        let interfaces = look_up(config)?;
        let counts: QueueCounts = interfaces.iter().map(|i| (i.config.name.clone(), i.queues)).collect();
        let Jobs { workers, capture, stores, rings, ledger } = Jobs::plan(config, &counts, &doorbells, &interfaces)?;
        let held = hold(config, &interfaces)?;
        let names: Vec<(&str, &str)> = workers.iter().map(|(core, worker)| (core.as_str(), worker.name())).collect();
        let topology = Topology::new(config, &counts, &names);
        let launched = launch(cores(config, &doorbells, workers)).map_err(|error| Failure::host(error.to_string()))?;
        let attached = attach(&interfaces).and_then(|modes| {
            privileges::give_up(config)?;
            let (capture, mut sources) = status(capture, &interfaces, modes, &stores, rings);
            let seen = watch(config, launched.pulses(), &interfaces, &capture, &mut sources)?;
            Ok((capture, sources, seen))
        });
        let (capture, mut sources, seen) = match attached {
            Ok(attached) => attached,
            Err(failure) => {
                detach(&interfaces);
                launched.cancel();
                return Err(failure);
            }
        };
        let (ledger, reload) = ledger.unzip();
        if let Some(ledger) = &ledger {
            sources.add(ledger.clone());
        }
        sources.add(Arc::new(topology.watching(launched.pulses(), config.control.stall.0)));
        sources.add(board.clone());
        control.show(sources.clone());
        launched.go();
        board.run(&sources);
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        Ok(Appliance {
            launched,
            interfaces,
            capture,
            stores,
            ledger,
            reload,
            only_ledgers: config.feeds.is_empty() && config.ring.is_empty(),
            sources,
            control,
            board,
            held,
            vitals: seen.vitals,
            links: seen.links,
            reporter: seen.reporter,
            drain: drain(config),
            stall: config.control.stall.0,
        })
    }

    /// Where the control server listens.
    pub fn control_address(&self) -> std::net::SocketAddr {
        self.control.address()
    }

    /// Waits for a reason to end.
    pub fn run(&self, signals: &Signals, reloader: &mut Reloader, bound: Option<Duration>) -> Ending {
        let end = bound.map(|bound| clock::monotonic_ns() + bound.as_nanos() as i64);
        let mut watchdog = Watchdog::new(self.stall, clock::monotonic_ns());
        let mut links = LinkWatcher::open().ok();
        self.refresh_links();
        let mut sides: Vec<bool> = Vec::new();
        let mut nics_at = 0;
        loop {
            self.capture.collect_losses();
            self.side_changes(&mut sides);
            match signals.wait(LOOK_EVERY) {
                Ok(Some(Asked::Stop)) => return Ending::Signal,
                Ok(Some(Asked::Reload)) => reloader.reload(&self.stores, self.reload.as_ref()),
                Ok(None) => {}
                Err(error) => return Ending::Fault(format!("waiting for signals: {error}")),
            }
            if let Some(fault) = self.launched.fault() {
                return Ending::Fault(fault);
            }
            let pulses = self.launched.pulses();
            if let Some(core) = watchdog.stalled(pulses.iter().map(Pulse::rounds), clock::monotonic_ns()) {
                let core = &pulses[core].name;
                return Ending::Fault(format!("core \"{core}\" made no round for {:?}", self.stall));
            }
            self.vitals.look(watchdog.ages(), clock::monotonic_ns());
            if end.is_some_and(|end| clock::monotonic_ns() >= end) {
                return Ending::Time;
            }
            if let Some(ended) = self.ended() {
                return ended;
            }
            if clock::monotonic_ns() >= nics_at {
                nics_at = clock::monotonic_ns() + NICS_EVERY_NS;
                if let Some(changed) = self.interfaces.iter().find_map(HostInterface::changed) {
                    return Ending::Fault(changed);
                }
            }
            if let Some(removed) = links.as_mut().and_then(|links| self.link_events(links)) {
                return Ending::Fault(removed);
            }
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
        }
    }

    /// Whether every file source has come to its end, or the ledgers' source has failed, or has ended where there is nothing else.
    fn ended(&self) -> Option<Ending> {
        let ledger = self.ledger.as_ref().map(|ledger| ledger.fanout.end.get().cloned());
        match ledger {
            Some(Some(Err(reason))) => Some(Ending::Fault(format!("ledger.serve: the source failed: {reason}"))),
            // An ended source is no reason to stop anything else.
            Some(Some(Ok(()))) if self.only_ledgers || self.capture.ended() => Some(Ending::EndOfInput),
            Some(_) => None,
            None => self.capture.ended().then_some(Ending::EndOfInput),
        }
    }

    /// Logs each side that fell silent or came back.
    fn side_changes(&self, known: &mut Vec<bool>) {
        let now = self.capture.sides_live();
        known.resize(now.len(), false);
        for ((feed, side, live), known) in now.into_iter().zip(known) {
            if live != *known {
                *known = live;
                match live {
                    true => tracing::info!(feed, side, "side is live"),
                    false => tracing::warn!(feed, side, "side is silent: it holds nothing back any more"),
                }
            }
        }
    }

    /// Logs what happens to the captured links; a removed interface is a fault.
    fn link_events(&self, links: &mut LinkWatcher) -> Option<String> {
        while let Ok(Some(event)) = links.change() {
            let gone = match event {
                LinkEvent::State { interface, up, carrier } => {
                    if let Some(host) = self.interfaces.iter().find(|host| host.interface.index == interface) {
                        self.link(host, up, carrier);
                    }
                    None
                }
                LinkEvent::Removed { interface } => {
                    self.interfaces.iter().find(|host| host.interface.index == interface)
                }
                // Changes were lost: every link is read again.
                LinkEvent::Overrun => self.refresh_links(),
            };
            if let Some(host) = gone {
                return Some(format!("interface \"{}\" is gone", host.config.name));
            }
        }
        None
    }

    /// Notes a link's state; each change is a line.
    fn link(&self, host: &HostInterface, up: bool, carrier: bool) {
        if self.links.set(&host.config.name, up && carrier) {
            match up && carrier {
                true => tracing::info!(interface = host.config.name, "link is up"),
                false => tracing::warn!(interface = host.config.name, up, carrier, "link is down: nothing is captured"),
            }
        }
    }

    /// Reads every link again; the first interface that is gone.
    fn refresh_links(&self) -> Option<&HostInterface> {
        self.interfaces.iter().find(|host| match host.interface.refresh() {
            Ok(now) => {
                self.link(host, now.up, now.carrier);
                false
            }
            Err(_) => true,
        })
    }

    /// Detaches, drains stage by stage, and returns the last status.
    pub fn stop(self) -> (Value, Result<(), Vec<String>>) {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        self.board.drain();
        // Detach first: what is in the receive rings is drained, nothing new comes, no socket closes under the program.
        detach(&self.interfaces);
        let drained = self.launched.stop(self.drain);
        let status = Value::Object(self.sources.status());
        if let Some(reporter) = self.reporter {
            reporter.finish();
        }
        drop(self.held);
        drop(self.control);
        drop(self.stores);
        (status, drained)
    }
}

/// How long a stage's workers may take to stop: a server of ledgers lets its subscribers have the ledger in flight.
fn drain(config: &Config) -> Duration {
    let ledger = config.ledger.serve.as_ref().map_or(Duration::ZERO, |serve| serve.drain.0 + ledger::plan::STOP_EXTRA);
    config.control.drain.0.max(ledger)
}

/// Finds cores that make no round. Its time is the control thread's own waking time: while the process is stopped as a
/// whole (SIGSTOP, a suspended machine) nothing of it passes, so that the cores are not blamed when they go on.
struct Watchdog {
    stall_ns: i64,
    looked_ns: i64,
    awake_ns: i64,
    seen: Vec<(u64, i64)>,
}

/// Most waking time between two looks: twice what the control loop waits. The rest was a stop.
const AWAKE_NS_MAX: i64 = 2 * LOOK_EVERY.as_nanos() as i64;

impl Watchdog {
    fn new(stall: Duration, now_ns: i64) -> Watchdog {
        Watchdog { stall_ns: stall.as_nanos() as i64, looked_ns: now_ns, awake_ns: 0, seen: Vec::new() }
    }

    /// Each core's rounds, and for how long it has made none, ns.
    fn ages(&self) -> impl Iterator<Item = (u64, i64)> {
        self.seen.iter().map(|(rounds, since_ns)| (*rounds, self.awake_ns - since_ns))
    }

    /// The first core that has made no round for the bound.
    fn stalled(&mut self, rounds: impl ExactSizeIterator<Item = u64>, now_ns: i64) -> Option<usize> {
        self.awake_ns += (now_ns - self.looked_ns).min(AWAKE_NS_MAX);
        self.looked_ns = now_ns;
        self.seen.resize(rounds.len(), (u64::MAX, self.awake_ns));
        for (core, (rounds, seen)) in rounds.zip(&mut self.seen).enumerate() {
            if rounds != seen.0 {
                *seen = (rounds, self.awake_ns);
            } else if self.awake_ns - seen.1 > self.stall_ns {
                return Some(core);
            }
        }
        None
    }
}

/// What watches the process itself.
struct Seen {
    vitals: Arc<Vitals>,
    links: Arc<Links>,
    reporter: Option<Reporter>,
}

/// The sources of every process: its vitals, the captured links, and the report where there are feeds.
fn watch(
    config: &Config,
    pulses: &[Pulse],
    interfaces: &[HostInterface],
    capture: &Arc<CaptureStatus>,
    sources: &mut Sources,
) -> Result<Seen, Failure> {
    let cores = pulses.iter().map(|pulse| pulse.name.clone());
    let lines: LogReader = || {
        let counts = log::counts();
        [counts.written, counts.dropped, counts.limited]
    };
    let vitals = Arc::new(Vitals::new(cores, !interfaces.is_empty(), lines));
    sources.add(vitals.clone());
    let link = |host: &HostInterface| (host.config.name.clone(), host.interface.up && host.interface.carrier);
    let links = Arc::new(Links::new(interfaces.iter().map(link)));
    if !interfaces.is_empty() {
        sources.add(links.clone());
    }
    let reporter = (!config.feeds.is_empty()).then(|| Reporter::start(config, capture.clone(), vitals.clone()));
    let reporter = reporter.transpose()?;
    if let Some(reporter) = &reporter {
        sources.add(reporter.source());
    }
    Ok(Seen { vitals, links, reporter })
}

/// The CPUs of no core: where the control threads, the files' threads and the kernel's io workers run.
fn control_cpus(config: &Config) -> Vec<usize> {
    let mut cpus = cpu::allowed();
    cpus.retain(|cpu| config.cores.iter().all(|core| core.cpu != *cpu));
    cpus
}

fn doorbells(config: &Config) -> Result<BTreeMap<String, Arc<Doorbell>>, Failure> {
    let bell = |core: &config::Core| {
        let bell = Doorbell::new().map_err(|error| Failure::host(format!("eventfd: {error}")))?;
        Ok((core.name.clone(), bell))
    };
    config.cores.iter().map(bell).collect()
}

fn look_up(config: &Config) -> Result<Vec<HostInterface>, Failure> {
    config.interfaces.iter().map(|interface| look_up_one(config, interface)).collect()
}

fn look_up_one(config: &Config, settings: &config::Interface) -> Result<HostInterface, Failure> {
    let host = |error: &dyn std::fmt::Display| Failure::host(error.to_string());
    let interface = Interface::find(&settings.name).map_err(|error| host(&error))?;
    interface.check_not_default_route(settings.force).map_err(|error| host(&error))?;
    let frames = choose_frames(&interface, None, None).map_err(|error| host(&error))?;
    if settings.through == Through::Libpcap {
        if !cfg!(feature = "libpcap") {
            return Err(Failure::usage(format!(
                "interface \"{}\": through = \"libpcap\", but this build has no libpcap: build with --features libpcap",
                settings.name
            )));
        }
        let (config, facts) = (settings.clone(), Vec::new());
        return Ok(HostInterface {
            config,
            interface,
            frames,
            queues: 1,
            program: None,
            program_id: OnceLock::new(),
            facts,
        });
    }
    let queues = interface.rx_queues().map_err(|error| host(&error))?;
    let program =
        XdpProgram::load(&interface, &xdp_settings(config, settings, frames)).map_err(|error| host(&error))?;
    let facts = (0..queues).map(|_| Arc::default()).collect();
    let program = Some(Arc::new(Mutex::new(program)));
    Ok(HostInterface {
        config: settings.clone(),
        interface,
        frames,
        queues,
        program,
        program_id: OnceLock::new(),
        facts,
    })
}

fn xdp_settings(config: &Config, settings: &config::Interface, frames: FrameChoice) -> XdpSettings {
    XdpSettings {
        destinations: destinations(config, &settings.name),
        mode: match settings.mode {
            AttachMode::Native => XdpMode::Native,
            AttachMode::Auto => XdpMode::NativeThenGeneric,
            AttachMode::Generic => XdpMode::Generic,
        },
        multi_buffer: frames.multi_buffer,
        stamp: true,
        replace: settings.replace,
        uncovered_queues: false,
    }
}

/// Every (address, port) that a feed takes from an interface.
fn destinations(config: &Config, interface: &str) -> Vec<Destination> {
    let sides = config.feeds.iter().flat_map(|feed| &feed.sides);
    let groups = sides.filter(|side| side.interface.as_deref() == Some(interface)).flat_map(|side| &side.groups);
    groups
        .filter_map(|group| group.parse::<std::net::SocketAddrV4>().ok())
        .map(|to| Destination { address: *to.ip(), port: to.port() })
        .collect()
}

fn open_queue(interfaces: &[HostInterface], queue: &PlannedQueue) -> Result<Box<dyn FrameQueue>, String> {
    let host = interfaces
        .iter()
        .find(|host| host.config.name == queue.interface.name)
        .ok_or_else(|| format!("interface \"{}\" was not looked up", queue.interface.name))?;
    if host.config.through == Through::Libpcap {
        return open_libpcap(host, queue);
    }
    let settings = XskSettings {
        frame_count: queue.interface.frames,
        fill_ring: queue.interface.ring,
        receive_ring: queue.interface.ring,
        huge_pages: queue.interface.huge_pages,
        zero_copy: match queue.interface.zero_copy {
            config::ZeroCopy::Require => ZeroCopy::Require,
            config::ZeroCopy::Prefer => ZeroCopy::Prefer,
            config::ZeroCopy::Off => ZeroCopy::Off,
        },
        ..XskSettings::new(queue.queue, queue.area, host.frames)
    };
    let facts = host.facts[queue.queue as usize].clone();
    Ok(Box::new(AfXdpQueue::new(host.interface.clone(), settings, facts)))
}

#[cfg(feature = "libpcap")]
fn open_libpcap(host: &HostInterface, queue: &PlannedQueue) -> Result<Box<dyn FrameQueue>, String> {
    use crate::capture::source::libpcap_queue::LibpcapQueue;
    let promiscuous = queue.interface.promiscuous != Promiscuous::Off;
    let (name, frames, bytes) = (&host.interface.name, queue.interface.frames, host.frames.packet_bytes_max);
    Ok(Box::new(LibpcapQueue::new(name, queue.area, frames, bytes, promiscuous, "udp".into())))
}

#[cfg(not(feature = "libpcap"))]
fn open_libpcap(host: &HostInterface, _: &PlannedQueue) -> Result<Box<dyn FrameQueue>, String> {
    Err(format!("interface \"{}\": this build has no libpcap", host.config.name))
}

fn plan_stores(
    config: &Config,
    doorbells: &BTreeMap<String, Arc<Doorbell>>,
    planned: &mut CapturePlan,
    workers: &mut Vec<(String, Box<dyn Worker>)>,
) -> Result<Vec<Arc<StoreView>>, Failure> {
    let mut views = Vec::new();
    for end in planned.stores.drain(..) {
        let settings = config
            .stores
            .iter()
            .find(|store| store.name == end.name)
            .ok_or_else(|| Failure::usage(format!("no [[store]] is named \"{}\"", end.name)))?;
        let streams_max = config.feeds.iter().map(|feed| feed.streams_max).max().unwrap_or(1);
        let writes = |feed: &&config::Feed| feed.store.as_deref() == Some(end.name.as_str());
        let files = config.feeds.iter().filter(writes).flat_map(|f| &f.sides).any(|s| s.source == SourceKind::File);
        let parts = StoreParts {
            settings: settings.clone(),
            stamp_source: if files { StampSource::File } else { StampSource::Software },
            inputs: end.inputs,
            feeds: end.feeds,
            streams_max,
            returns: end.returns,
            areas: planned.areas.clone(),
            doorbell: doorbells[&settings.core].clone(),
        };
        let (worker, view) = store_worker(parts).map_err(|error| Failure::host(error.to_string()))?;
        workers.push((settings.core.clone(), worker));
        views.push(view);
    }
    Ok(views)
}

/// IGMP memberships and NIC filters, for the lifetime.
fn hold(config: &Config, interfaces: &[HostInterface]) -> Result<Held, Failure> {
    let mut memberships = Memberships::new();
    let mut filters = Vec::new();
    for host in interfaces {
        for destination in destinations(config, &host.config.name) {
            if destination.address.is_multicast() {
                memberships
                    .join(destination.address, host.interface.index, None)
                    .map_err(|error| Failure::host(format!("interface \"{}\": {error}", host.config.name)))?;
            }
        }
        let admit = match host.config.promiscuous {
            Promiscuous::Off => continue,
            Promiscuous::AllMulticast => Admit::AllMulticast,
            Promiscuous::On => Admit::Promiscuous,
        };
        let filter = ReceiveFilter::set(host.interface.index, admit)
            .map_err(|error| Failure::host(format!("interface \"{}\": {error}", host.config.name)))?;
        filters.push(filter);
    }
    Ok(Held { _memberships: memberships, _filters: filters })
}

fn cores(
    config: &Config,
    doorbells: &BTreeMap<String, Arc<Doorbell>>,
    workers: Vec<(String, Box<dyn Worker>)>,
) -> Vec<CorePlan> {
    let control_cpus = control_cpus(config);
    let mut plans: Vec<CorePlan> = config
        .cores
        .iter()
        .map(|core| CorePlan {
            name: core.name.clone(),
            cpu: Some(core.cpu),
            idle: core.idle,
            io_cpus: control_cpus.clone(),
            doorbell: doorbells[&core.name].clone(),
            workers: Vec::new(),
        })
        .collect();
    for (core, worker) in workers {
        let plan = plans.iter_mut().find(|plan| plan.name == core).expect("check has seen every core's name");
        plan.workers.push(worker);
    }
    plans.retain(|plan| !plan.workers.is_empty());
    plans
}

/// Sockets into the map, then the program onto the interface.
fn attach(interfaces: &[HostInterface]) -> Result<Vec<InterfaceMode>, Failure> {
    let mut modes = Vec::new();
    for host in interfaces {
        let Some(program) = &host.program else {
            modes.push(InterfaceMode {
                interface: host.config.name.clone(),
                xdp: "none (libpcap)".into(),
                ..InterfaceMode::default()
            });
            continue;
        };
        let mut program = program.lock().expect("nobody panics with it held");
        let mut zero_copy = true;
        for facts in &host.facts {
            let facts = facts.get().expect("every queue was opened by its worker's start");
            zero_copy &= facts.zero_copy;
            if let Err(error) = program.insert_socket(facts.queue, facts.socket) {
                drop(program);
                detach(interfaces);
                return Err(Failure::host(error.to_string()));
            }
        }
        let attached = match program.attach() {
            Ok(attached) => attached,
            Err(error) => {
                drop(program);
                detach(interfaces);
                return Err(Failure::host(error.to_string()));
            }
        };
        if let Some((_, id)) = program.interface().xdp {
            let _ = host.program_id.set(id);
        }
        tracing::info!(
            interface = host.config.name,
            queues = host.queues,
            xdp = attached.label(),
            zero_copy,
            chunk_bytes = host.frames.frame_bytes,
            multi_buffer = host.frames.multi_buffer,
            "capturing"
        );
        modes.push(InterfaceMode {
            interface: host.config.name.clone(),
            xdp: attached.label().to_string(),
            zero_copy,
            chunk_bytes: host.frames.frame_bytes,
            multi_buffer: host.frames.multi_buffer,
        });
    }
    Ok(modes)
}

fn detach(interfaces: &[HostInterface]) {
    for program in interfaces.iter().filter_map(|host| host.program.as_ref()) {
        program.lock().expect("nobody panics with it held").detach();
    }
}

fn xdp_reader(interfaces: &[HostInterface]) -> XdpReader {
    let program = |host: &HostInterface| Some((host.config.name.clone(), host.queues, host.program.clone()?));
    let programs: Vec<(String, u32, Arc<Mutex<XdpProgram>>)> = interfaces.iter().filter_map(program).collect();
    Box::new(move || {
        let mut queues = Vec::new();
        for (interface, count, program) in &programs {
            let program = program.lock().expect("nobody panics with it held");
            for queue in 0..*count {
                let Ok(counters) = program.queue_counters(queue) else { continue };
                let counts = Reason::ALL.iter().map(|&reason| (reason.label(), counters.get(reason))).collect();
                queues.push(XdpQueue { interface: interface.clone(), queue, counts });
            }
        }
        queues
    })
}

fn status(
    planned: CapturePlan,
    interfaces: &[HostInterface],
    modes: Vec<InterfaceMode>,
    stores: &[Arc<StoreView>],
    rings: RingStatus,
) -> (Arc<CaptureStatus>, Sources) {
    let views = stores.to_vec();
    let capture = Arc::new(CaptureStatus::new(
        planned.queues,
        planned.sides,
        planned.feeds,
        planned.damage,
        xdp_reader(interfaces),
        modes,
        Box::new(move || {
            store_books(&views)
                .into_iter()
                .map(|book| crate::capture::status::StoreBook {
                    feed: book.feed,
                    taken: book.taken,
                    stored: book.stored,
                    lost: book.lost,
                    in_flight: book.in_flight,
                })
                .collect()
        }),
    ));
    let mut sources = Sources::default();
    sources.add(capture.clone());
    sources.add(Arc::new(Stores(stores.to_vec())));
    if !rings.is_empty() {
        sources.add(Arc::new(rings));
    }
    (capture, sources)
}

/// Every store's status under one key.
struct Stores(Vec<Arc<StoreView>>);

impl Source for Stores {
    fn samples(&self, out: &mut Vec<crate::sync::metrics::Sample>) {
        for store in &self.0 {
            store.samples(out);
        }
    }

    fn status(&self) -> (&'static str, Value) {
        ("stores", json!(self.0.iter().map(|store| store.status()).collect::<Vec<_>>()))
    }

    fn health(&self, _now: i64, out: &mut Vec<crate::sync::health::Sign>) {
        for store in &self.0 {
            store.health(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    /// Looks every 100 ms at a core whose rounds are `rounds(now)`; when it is reported, s.
    fn reported(looks: impl Iterator<Item = i64>, rounds: impl Fn(i64) -> u64) -> Option<i64> {
        let mut watchdog = Watchdog::new(Duration::from_secs(10), 0);
        looks
            .into_iter()
            .find(|&now| watchdog.stalled([rounds(now)].into_iter(), now).is_some())
            .map(|now| now / SECOND)
    }

    #[test]
    fn an_ending_is_told_in_plain_words() {
        let fault = Ending::Fault("interface \"x\" is gone".into());
        assert_eq!(fault.to_string(), "interface \"x\" is gone");
        assert_eq!(Ending::Time.to_string(), "the time of --for is over");
    }

    #[test]
    fn a_stalled_core_is_reported_and_a_stop_of_the_whole_process_is_not() {
        let every = |from: i64, to: i64| (from * 10..to * 10).map(|tenth| tenth * SECOND / 10);
        assert_eq!(reported(every(0, 60), |now| now as u64), None, "it goes on");
        assert_eq!(reported(every(0, 60), |now| now.min(5 * SECOND) as u64), Some(15), "it stalls at 5 s");
        // Stopped from 5 s to 5 s + n: no look, and no round until 0.2 s after that.
        for stopped in [1, 9, 10, 11, 15, 19, 20, 21, 3600] {
            let back = (5 + stopped) * SECOND;
            let rounds = |now: i64| if now < back + SECOND / 5 { now.min(5 * SECOND) } else { now };
            let looks = every(0, 5).chain(every(5 + stopped, 65 + stopped));
            assert_eq!(reported(looks, |now| rounds(now) as u64), None, "stopped for {stopped} s");
        }
        // And a core that does not come back after a stop is still found.
        let looks = every(0, 5).chain(every(35, 95));
        assert_eq!(reported(looks, |now| now.min(5 * SECOND) as u64), Some(45), "stalled since the stop");
    }
}
