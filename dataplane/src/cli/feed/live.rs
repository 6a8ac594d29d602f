//! A live look at one interface for the commands that also read files: no configuration, no pinned core, one thread.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::ops::ControlFlow;
use std::time::Duration;

use serde::Serialize;

use crate::cli::{Exit, Failure};
use crate::config::Span;
use crate::sys::bpf::{BpfError, Destination, Reason, XdpMode, XdpProgram, XdpSettings};
use crate::sys::clock;
use crate::sys::nic::{Interface, choose_frames};
use crate::sys::signal::{Asked, Signals};
use crate::sys::socket::{Admit, Memberships, ReceiveFilter};
use crate::sys::xsk::{XskQueue, XskSettings};
use crate::units::{AreaId, NANOS_PER_MILLI, NANOS_PER_SECOND};
use crate::wire::packet::LinkType;

/// Frames taken from each queue per round: what AF_XDP's own examples use.
const BATCH_FRAMES: usize = 64;
/// Time between two looks at signals, the end and TAI − UTC while frames flow.
const LOOK_NS: i64 = 50 * NANOS_PER_MILLI;
/// Sleep when no queue holds a frame. A receive ring of 8,192 lasts for 13 ms at the 600,000 packets a second that this
/// path was measured to take.
const IDLE: Duration = Duration::from_millis(1);
/// Rounds without a frame after which what the detached program had redirected counts as taken.
const DRAINED_ROUNDS: u32 = 3;

/// Where a live look takes its frames from.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum LiveSourceKind {
    /// AF_XDP: takes the groups' frames away from the kernel; losses are told exactly.
    #[value(name = "af_xdp")]
    AfXdp,
    /// libpcap: copies, and disturbs nothing; needs a build with the feature `libpcap`.
    Libpcap,
}

/// Arguments of a live look.
#[derive(clap::Args, Debug)]
pub struct LiveArgs {
    /// Look at this interface (name or altname) in place of a file, until --for is over or Ctrl-C.
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,
    /// How frames are taken from the interface.
    #[arg(long, value_enum, default_value = "af_xdp", requires = "interface")]
    pub source: LiveSourceKind,
    /// Destination group (or address) and port; joined while looking. At least one for af_xdp; for libpcap all frames
    /// are looked at without it.
    #[arg(long = "group", value_name = "ADDRESS:PORT", value_delimiter = ',', requires = "interface")]
    pub groups: Vec<SocketAddrV4>,
    /// End after this long ("10s").
    #[arg(long = "for", value_name = "DURATION", requires = "interface")]
    pub bound: Option<Span>,
    /// Let the NIC take frames of any hardware address.
    #[arg(long, requires = "interface")]
    pub promiscuous: bool,
    /// Take the place of a foreign XDP program.
    #[arg(long, requires = "interface")]
    pub replace: bool,
    /// Look also at the interface that carries the default route.
    #[arg(long, requires = "interface")]
    pub force: bool,
}

/// What a look hands out.
pub enum Seen<'a> {
    /// A frame.
    Frame {
        /// Its bytes.
        data: &'a [u8],
        /// Its link type.
        link: LinkType,
        /// When it was captured, UTC ns.
        capture_ns: i64,
    },
    /// Nothing waits at the moment: a good time to show what there is.
    Quiet,
}

/// What became of the frames before this program could look at them. Part of the JSON reports as `live`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct LiveReport {
    /// The interface.
    pub interface: String,
    /// `af_xdp` or `libpcap`.
    pub source: &'static str,
    /// Frames taken.
    pub received: u64,
    /// Frames lost on the way here, by counter.
    pub lost: BTreeMap<&'static str, u64>,
    /// Frames that the XDP program saw, by what it did with them (af_xdp).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub xdp: BTreeMap<&'static str, u64>,
}

impl LiveReport {
    /// Says losses on standard error; the exit code that they lead to: a gap may then be this program's own.
    pub fn print_lost(&self) -> Exit {
        let lost = self.lost.iter().filter(|(_, count)| **count > 0);
        let lost: Vec<String> = lost.map(|(counter, count)| format!("{counter} {count}")).collect();
        if lost.is_empty() {
            return Exit::Done;
        }
        eprintln!("sluice: {}: frames lost before they could be looked at: {}", self.interface, lost.join(", "));
        Exit::Damage
    }
}

/// Looks at `args.interface` until the time is over, a signal comes, or `take` breaks off.
///
/// # Errors
/// As the arguments and the host refuse.
pub fn look(args: &LiveArgs, take: &mut dyn FnMut(Seen<'_>) -> ControlFlow<()>) -> Result<LiveReport, Failure> {
    let name = args.interface.as_deref().expect("the caller looks at it");
    let signals = Signals::take().map_err(|error| Failure::host(format!("signalfd: {error}")))?;
    let watch = Watch { signals, end_ns: args.bound.map(|bound| clock::monotonic_ns().saturating_add(bound.nanos())) };
    let interface = Interface::find(name).map_err(|error| Failure::host(error.to_string()))?;
    let mut memberships = Memberships::new();
    for group in args.groups.iter().filter(|group| group.ip().is_multicast()) {
        memberships
            .join(*group.ip(), interface.index, None)
            .map_err(|error| Failure::host(format!("interface {name:?}: {error}")))?;
    }
    match args.source {
        LiveSourceKind::AfXdp => look_af_xdp(args, &interface, &watch, take),
        LiveSourceKind::Libpcap => look_libpcap(args, name, &watch, take),
    }
}

/// What ends a look.
struct Watch {
    signals: Signals,
    end_ns: Option<i64>,
}

impl Watch {
    /// Waits at most `bound`; whether the look is over.
    fn over(&self, bound: Duration) -> bool {
        let asked = matches!(self.signals.wait(bound), Ok(Some(Asked::Stop)) | Err(_));
        asked || self.end_ns.is_some_and(|end_ns| clock::monotonic_ns() >= end_ns)
    }
}

fn look_af_xdp(
    args: &LiveArgs,
    interface: &Interface,
    watch: &Watch,
    take: &mut dyn FnMut(Seen<'_>) -> ControlFlow<()>,
) -> Result<LiveReport, Failure> {
    if args.groups.is_empty() {
        return Err(Failure::usage(format!(
            "--interface {}: --source af_xdp needs at least one --group ADDRESS:PORT: only what is named is taken from the \
             kernel",
            interface.name
        )));
    }
    if !args.force && interface.carries_default_route() {
        return Err(Failure::usage(format!(
            "interface {:?} carries the default route: capturing on it can cut this host off: use another interface, or say \
             --force",
            interface.name
        )));
    }
    let mut rig = Rig::open(args, interface)?;
    rig.program.attach().map_err(|error| match error {
        BpfError::Foreign { .. } => Failure::host(format!("{error} (here: --replace)")),
        _ => Failure::host(error.to_string()),
    })?;
    let mut look_at_ns = 0;
    loop {
        let now_ns = clock::monotonic_ns();
        if now_ns >= look_at_ns {
            look_at_ns = now_ns + LOOK_NS;
            rig.read_tai_offset();
            if watch.over(Duration::ZERO) {
                break;
            }
        }
        match rig.round(take) {
            ControlFlow::Break(()) => break,
            ControlFlow::Continue(0) if take(Seen::Quiet).is_break() || watch.over(IDLE) => break,
            ControlFlow::Continue(_) => {}
        }
    }
    // Detach first: what was redirected until then is taken, nothing new comes.
    rig.program.detach();
    let mut quiet = 0;
    while quiet < DRAINED_ROUNDS {
        match rig.round(take) {
            ControlFlow::Break(()) => break,
            ControlFlow::Continue(0) => quiet += 1,
            ControlFlow::Continue(_) => quiet = 0,
        }
    }
    rig.report()
}

/// The program and every queue of the interface, on this thread.
struct Rig {
    program: XdpProgram,
    queues: Vec<XskQueue>,
    tai_offset_ns: i64,
    received: u64,
    _filter: Option<ReceiveFilter>,
}

impl Rig {
    /// Opens every queue and puts its socket into the program's map; attaches nothing.
    fn open(args: &LiveArgs, interface: &Interface) -> Result<Rig, Failure> {
        let host = |error: &dyn std::fmt::Display| Failure::host(error.to_string());
        let frames = choose_frames(interface, None, None).map_err(|error| host(&error))?;
        let settings = XdpSettings {
            destinations: args.groups.iter().map(|to| Destination { address: *to.ip(), port: to.port() }).collect(),
            mode: XdpMode::NativeThenGeneric,
            multi_buffer: frames.multi_buffer,
            stamp: true,
            replace: args.replace,
            uncovered_queues: false,
        };
        let mut program = XdpProgram::load(interface, &settings).map_err(|error| host(&error))?;
        let mut queues = Vec::new();
        for queue in 0..interface.rx_queues().map_err(|error| host(&error))? {
            let settings = XskSettings::new(queue, AreaId(queue as u16), frames);
            let opened = XskQueue::open(interface, &settings).map_err(|error| host(&error))?;
            program.insert_socket(queue, opened.fd()).map_err(|error| host(&error))?;
            queues.push(opened);
        }
        let filter = args.promiscuous.then(|| ReceiveFilter::set(interface.index, Admit::Promiscuous));
        let filter = filter.transpose().map_err(|error| host(&error))?;
        Ok(Rig { program, queues, tai_offset_ns: 0, received: 0, _filter: filter })
    }

    fn read_tai_offset(&mut self) {
        self.tai_offset_ns = i64::from(clock::tai_offset_seconds()) * NANOS_PER_SECOND;
    }

    /// One batch of every queue, in the order of the stamps; how many frames it was.
    fn round(&mut self, take: &mut dyn FnMut(Seen<'_>) -> ControlFlow<()>) -> ControlFlow<(), usize> {
        let mut tokens = Vec::with_capacity(BATCH_FRAMES * self.queues.len());
        for queue in &mut self.queues {
            queue.receive(BATCH_FRAMES, self.tai_offset_ns, |token| tokens.push(token));
        }
        tokens.sort_by_key(|token| token.capture_ns);
        let count = tokens.len();
        self.received += count as u64;
        let mut flow = ControlFlow::Continue(count);
        for token in tokens {
            let queue = &mut self.queues[usize::from(token.area.0)];
            if flow.is_continue() {
                let area = queue.area();
                let seen =
                    Seen::Frame { data: area.packet(&token), link: LinkType::Ethernet, capture_ns: token.capture_ns };
                if take(seen).is_break() {
                    flow = ControlFlow::Break(());
                }
            }
            queue.recycle(token);
        }
        self.queues.iter_mut().for_each(|queue| {
            queue.refill();
        });
        flow
    }

    fn report(&self) -> Result<LiveReport, Failure> {
        let mut report = LiveReport {
            interface: self.program.interface().name.clone(),
            source: "af_xdp",
            received: self.received,
            ..LiveReport::default()
        };
        for queue in &self.queues {
            let kernel = queue.statistics().map_err(|error| Failure::host(error.to_string()))?;
            *report.lost.entry("rx_dropped").or_default() += kernel.rx_dropped + queue.counters().oversize;
            *report.lost.entry("rx_ring_full").or_default() += kernel.rx_ring_full;
        }
        for queue in self.program.counters().map_err(|error| Failure::host(error.to_string()))? {
            for reason in Reason::ALL {
                *report.xdp.entry(reason.label()).or_default() += queue.get(reason);
            }
        }
        Ok(report)
    }
}

#[cfg(feature = "libpcap")]
fn look_libpcap(
    args: &LiveArgs,
    name: &str,
    watch: &Watch,
    take: &mut dyn FnMut(Seen<'_>) -> ControlFlow<()>,
) -> Result<LiveReport, Failure> {
    use crate::capture::source::live::{LiveSettings, LiveSource};

    let settings =
        LiveSettings { promiscuous: args.promiscuous, filter: filter(&args.groups), ..LiveSettings::default() };
    let mut source = LiveSource::open(name, &settings)?;
    let mut report = LiveReport { interface: name.into(), source: "libpcap", ..LiveReport::default() };
    let mut look_at_ns = 0;
    loop {
        let now_ns = clock::monotonic_ns();
        if now_ns >= look_at_ns {
            look_at_ns = now_ns + LOOK_NS;
            if watch.over(Duration::ZERO) {
                break;
            }
        }
        let seen = match source.next()? {
            None => Seen::Quiet,
            Some(packet) => {
                report.received += 1;
                Seen::Frame { data: packet.data, link: packet.link, capture_ns: packet.capture_ns }
            }
        };
        if take(seen).is_break() {
            break;
        }
    }
    let counts = source.counts()?;
    report.lost.insert("dropped", counts.dropped.into());
    report.lost.insert("interface_dropped", counts.interface_dropped.into());
    Ok(report)
}

/// The groups in tcpdump's words, with and without a VLAN tag; empty (everything) for none.
#[cfg(feature = "libpcap")]
fn filter(groups: &[SocketAddrV4]) -> String {
    if groups.is_empty() {
        return String::new();
    }
    let group = |to: &SocketAddrV4| format!("(dst host {} and udp dst port {})", to.ip(), to.port());
    let any = groups.iter().map(group).collect::<Vec<_>>().join(" or ");
    // Each "vlan" moves the offsets of what follows, so the tagged cases come last.
    format!("({any}) or (vlan and (({any}) or (vlan and ({any}))))")
}

#[cfg(not(feature = "libpcap"))]
fn look_libpcap(
    _: &LiveArgs,
    name: &str,
    _: &Watch,
    _: &mut dyn FnMut(Seen<'_>) -> ControlFlow<()>,
) -> Result<LiveReport, Failure> {
    Err(Failure::usage(format!(
        "--interface {name}: --source libpcap: this build has no libpcap: build it with --features libpcap, or use --source \
         af_xdp"
    )))
}

#[cfg(all(test, feature = "libpcap"))]
mod tests {
    use super::*;

    #[test]
    fn the_filter_finds_groups_with_and_without_tags() {
        assert_eq!(filter(&[]), "");
        let groups = ["239.1.2.3:5".parse().unwrap(), "239.1.2.4:6".parse().unwrap()];
        let any = "(dst host 239.1.2.3 and udp dst port 5) or (dst host 239.1.2.4 and udp dst port 6)";
        assert_eq!(filter(&groups), format!("({any}) or (vlan and (({any}) or (vlan and ({any}))))"));
    }
}
