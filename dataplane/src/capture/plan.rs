//! From the configuration to workers and links: who runs where, who sends to whom, what returns how.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::arbiter_worker::{ArbiterParts, ArbiterWorker, Loss, ReportDesk, TimeSource};
use super::file_worker::{FileSide, FileWorker};
use super::items::RxItem;
use super::queue_worker::{Destination, FeedPort, FrameQueue, QueueWorker};
use super::source::file::FileSource;
use super::stats::{ArbiterCounter, QueueCounter, SideCounter};
use crate::config::{Config, Feed, FeedProtocol, Finding, Interface, Record, SourceKind, Span, StartAt};
use crate::feed::arbiter::{Arbiter, ArbiterSettings};
use crate::feed::handoff::Handoff;
use crate::feed::publish::Publisher;
use crate::runtime::link::{Doorbell, LinkReceiver, LinkSender, link};
use crate::runtime::worker::Worker;
use crate::sync::counters::{CounterReader, counters};
use crate::sys::frames::{Areas, FrameToken};
use crate::units::{AreaId, Side};

/// Loss ranges on their way to the control thread, which looks when somebody asks. A range is merged before it is sent,
/// but two causes that alternate make one for each change: 640 KiB of them.
const LOSSES_CAPACITY: usize = 16_384;

/// What the plan needs to know of the host: how many receive queues an interface has.
pub type QueueCounts = BTreeMap<String, u32>;

/// A store's end of the plan: what its worker is built from, by whoever builds it.
pub struct StoreEnd {
    /// The store's name.
    pub name: String,
    /// One link per feed that writes to it.
    pub inputs: Vec<LinkReceiver<Handoff<FrameToken>>>,
    /// The feeds' names, in the order of `inputs`.
    pub feeds: Vec<String>,
    /// The way home of each area's frames.
    pub returns: Vec<Option<LinkSender<FrameToken>>>,
}

/// A planned queue: which socket the opener must make.
pub struct PlannedQueue {
    /// The interface's configuration.
    pub interface: Interface,
    /// The receive queue.
    pub queue: u32,
    /// The area that its frames are known by.
    pub area: AreaId,
}

/// What is known of a running queue.
pub struct QueueView {
    /// Interface or file feed.
    pub source: String,
    /// The receive queue (0 for files).
    pub queue: u32,
    /// Its core.
    pub core: String,
    /// Frames of its area.
    pub frames: u32,
    /// Its counters.
    pub counters: CounterReader<QueueCounter>,
}

/// What is known of one (queue, side).
pub struct SideView {
    /// The feed.
    pub feed: String,
    /// The side.
    pub side: Side,
    /// Index into the queues.
    pub queue: usize,
    /// Its counters.
    pub counters: CounterReader<SideCounter>,
}

/// What is known of a running feed.
pub struct FeedView {
    /// Its name.
    pub name: String,
    /// Its sides' names.
    pub sides: Vec<String>,
    /// Its arbiter's core.
    pub core: String,
    /// Its store.
    pub store: Option<String>,
    /// The ring that it is published in.
    pub publish: Option<PathBuf>,
    /// It comes from files: their end is no silence.
    pub from_files: bool,
    /// The arbiter's counters.
    pub counters: CounterReader<ArbiterCounter>,
    /// Where its report is asked for.
    pub desk: Arc<ReportDesk>,
    /// Exact ranges of what could not be handed to the store.
    pub losses: Mutex<LinkReceiver<Loss>>,
    /// Frames of its copy pool.
    pub copy_frames: u32,
}

/// The capture job, planned: workers by core, and what others need.
pub struct CapturePlan {
    /// (core name, worker) in polling order.
    pub workers: Vec<(String, Box<dyn Worker>)>,
    /// Stores' ends, by name.
    pub stores: Vec<StoreEnd>,
    /// Frame areas.
    pub areas: Areas,
    /// Every queue and file source.
    pub queues: Vec<QueueView>,
    /// Every (queue, side).
    pub sides: Vec<SideView>,
    /// Every feed.
    pub feeds: Vec<FeedView>,
    /// Damage found in files.
    pub damage: Arc<Mutex<Vec<String>>>,
}

/// What of the capture files that feeds read `run` would refuse. Changes nothing.
pub fn check_files(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    for feed in &config.feeds {
        for side in feed.sides.iter().filter(|side| side.source == SourceKind::File) {
            // Missing, or standard input: the file's own matter.
            let Some(path) = side.file.as_deref().filter(|path| *path != Path::new("-")) else { continue };
            let regular = std::fs::metadata(path).map(|metadata| metadata.is_file());
            let what = match regular {
                Err(error) => format!("is \"{}\": {error}; name a capture file", path.display()),
                // Opening it could wait for its other end.
                Ok(false) => format!("is \"{}\", which is no regular file: name a capture file", path.display()),
                Ok(true) => match FileSource::open(&path.to_string_lossy()) {
                    Ok(_) => continue,
                    Err(error) => error.to_string(),
                },
            };
            findings.push(Finding { key: format!("feed \"{}\" side \"{}\": file", feed.name, side.name), what });
        }
    }
    findings
}

/// A source of frames in the plan.
enum SourceSpec {
    Queue(PlannedQueue),
    Files(usize),
}

/// Builds the capture job. `open` makes the (not yet opened) socket of a planned queue, `publisher` what publishes a feed
/// that asks for it.
///
/// # Errors
/// One line for the user.
pub fn plan(
    config: &Config,
    queue_counts: &QueueCounts,
    doorbells: &BTreeMap<String, Arc<Doorbell>>,
    mut open: impl FnMut(&PlannedQueue) -> Result<Box<dyn FrameQueue>, String>,
    mut publisher: impl FnMut(&Feed) -> Option<Box<dyn Publisher>>,
) -> Result<CapturePlan, String> {
    let sources = sources(config, queue_counts)?;
    let areas = Areas::new(sources.len() + config.feeds.len());
    let mut builder = Builder::new(config, doorbells, areas.clone(), sources.len());
    for (index, source) in sources.iter().enumerate() {
        match source {
            SourceSpec::Queue(planned) => builder.queue(index, planned, open(planned)?)?,
            SourceSpec::Files(feed) => builder.files(index, *feed)?,
        }
    }
    for feed in 0..config.feeds.len() {
        builder.arbiter(feed, publisher(&config.feeds[feed]))?;
    }
    Ok(builder.finish())
}

fn sources(config: &Config, queue_counts: &QueueCounts) -> Result<Vec<SourceSpec>, String> {
    let mut sources = Vec::new();
    for interface in &config.interfaces {
        let has = *queue_counts
            .get(&interface.name)
            .ok_or_else(|| format!("interface \"{}\" was not looked up", interface.name))?;
        let asked = if interface.queues == 0 { has } else { interface.queues };
        if asked != has {
            return Err(format!(
                "interface \"{0}\": queues = {asked}, but it has {has}: frames of a queue without a socket would be lost; set queues = {has}, or run \"ethtool -L {0} combined {asked}\"",
                interface.name
            ));
        }
        for queue in 0..has {
            let area = AreaId(sources.len() as u16);
            sources.push(SourceSpec::Queue(PlannedQueue { interface: interface.clone(), queue, area }));
        }
    }
    for (index, feed) in config.feeds.iter().enumerate() {
        if feed.sides.iter().any(|side| side.source == SourceKind::File) {
            sources.push(SourceSpec::Files(index));
        }
    }
    Ok(sources)
}

/// The links of one feed, gathered while the sources are built.
#[derive(Default)]
struct FeedLinks {
    inputs: Vec<LinkReceiver<RxItem>>,
    returns: Vec<(AreaId, LinkSender<FrameToken>)>,
}

struct Builder<'a> {
    config: &'a Config,
    doorbells: &'a BTreeMap<String, Arc<Doorbell>>,
    areas: Areas,
    sources: usize,
    links: Vec<FeedLinks>,
    store_ends: BTreeMap<String, StoreEnd>,
    workers: Vec<(String, Box<dyn Worker>)>,
    queues: Vec<QueueView>,
    sides: Vec<SideView>,
    feeds: Vec<FeedView>,
    damage: Arc<Mutex<Vec<String>>>,
}

impl<'a> Builder<'a> {
    fn new(config: &'a Config, doorbells: &'a BTreeMap<String, Arc<Doorbell>>, areas: Areas, sources: usize) -> Self {
        let ends = config.stores.iter().map(|store| {
            let returns = (0..areas.count()).map(|_| None).collect();
            (store.name.clone(), StoreEnd { name: store.name.clone(), inputs: Vec::new(), feeds: Vec::new(), returns })
        });
        Builder {
            config,
            doorbells,
            store_ends: ends.collect(),
            areas,
            sources,
            links: config.feeds.iter().map(|_| FeedLinks::default()).collect(),
            workers: Vec::new(),
            queues: Vec::new(),
            sides: Vec::new(),
            feeds: Vec::new(),
            damage: Arc::default(),
        }
    }

    fn doorbell(&self, core: &str) -> Result<&'a Arc<Doorbell>, String> {
        self.doorbells.get(core).ok_or_else(|| format!("no [[core]] is named \"{core}\""))
    }

    /// The return links into area `id` (of `frames` frames, read by `core`): one from each feed's arbiter, one from
    /// each store behind them.
    fn return_links(
        &mut self,
        id: AreaId,
        frames: usize,
        core: &str,
        feeds: &[usize],
    ) -> Result<Vec<LinkReceiver<FrameToken>>, String> {
        let doorbell = self.doorbell(core)?;
        let mut receivers = Vec::new();
        for &feed in feeds {
            let (sender, receiver) = link(frames, doorbell);
            self.links[feed].returns.push((id, sender));
            receivers.push(receiver);
            let Some(store) = &self.config.feeds[feed].store else { continue };
            let end = self.store_ends.get_mut(store).ok_or_else(|| format!("no [[store]] is named \"{store}\""))?;
            if end.returns[usize::from(id.0)].is_none() {
                let (sender, receiver) = link(frames, doorbell);
                end.returns[usize::from(id.0)] = Some(sender);
                receivers.push(receiver);
            }
        }
        Ok(receivers)
    }

    fn feed_port(&mut self, feed: usize) -> Result<FeedPort, String> {
        let config = &self.config.feeds[feed];
        let (sender, receiver) = link(config.link as usize, self.doorbell(&config.core)?);
        self.links[feed].inputs.push(receiver);
        Ok(FeedPort {
            protocol: config.protocol,
            raw: config.store.is_some() && config.record != Record::Merged,
            link: sender,
        })
    }

    fn queue(&mut self, index: usize, planned: &PlannedQueue, queue: Box<dyn FrameQueue>) -> Result<(), String> {
        let interface = &planned.interface;
        let core = &interface.cores[planned.queue as usize % interface.cores.len()];
        let id = AreaId(index as u16);
        let served: Vec<usize> = (0..self.config.feeds.len())
            .filter(|&feed| {
                self.config.feeds[feed].sides.iter().any(|side| side.interface.as_deref() == Some(&interface.name))
            })
            .collect();
        let mut destinations = Vec::new();
        for (port, &feed) in served.iter().enumerate() {
            destinations.extend(self.destinations(port, &self.config.feeds[feed], interface)?);
        }
        let tokens_max = queue.tokens_max();
        let returns = self.return_links(id, tokens_max as usize, core, &served)?;
        let ports = served.iter().map(|&feed| self.feed_port(feed)).collect::<Result<_, _>>()?;
        let (writer, reader) = counters();
        self.queues.push(QueueView {
            source: interface.name.clone(),
            queue: planned.queue,
            core: core.clone(),
            frames: tokens_max,
            counters: reader,
        });
        let name = format!("rx {} queue {}", interface.name, planned.queue);
        let worker = QueueWorker::new(name, id, queue, self.areas.clone(), destinations, ports, returns, writer);
        self.workers.push((core.clone(), Box::new(worker)));
        Ok(())
    }

    fn destinations(&mut self, port: usize, feed: &Feed, interface: &Interface) -> Result<Vec<Destination>, String> {
        let mut destinations = Vec::new();
        for (index, side) in feed.sides.iter().enumerate() {
            if side.interface.as_deref() != Some(&interface.name) {
                continue;
            }
            for group in &side.groups {
                let to: SocketAddrV4 = group.parse().map_err(|_| format!("\"{group}\" is not an address and port"))?;
                let (writer, reader) = counters();
                let side = Side(index as u8);
                self.sides.push(SideView { feed: feed.name.clone(), side, queue: self.queues.len(), counters: reader });
                destinations.push(Destination { to, feed: port, side, counters: writer });
            }
        }
        Ok(destinations)
    }

    fn files(&mut self, index: usize, feed: usize) -> Result<(), String> {
        let config = &self.config.feeds[feed];
        let id = AreaId(index as u16);
        let core = config.sides[0].core.clone().unwrap_or_else(|| config.core.clone());
        let mut sides = Vec::new();
        for (index, side) in config.sides.iter().enumerate() {
            let (writer, reader) = counters();
            let path = side
                .file
                .clone()
                .ok_or_else(|| format!("feed \"{}\" side \"{}\": file is missing", config.name, side.name))?;
            let groups = side.groups.iter().filter_map(|group| group.parse().ok()).collect();
            self.sides.push(SideView {
                feed: config.name.clone(),
                side: Side(index as u8),
                queue: self.queues.len(),
                counters: reader,
            });
            sides.push(FileSide { side: Side(index as u8), path, counters: writer, groups });
        }
        let returns = self.return_links(id, FileWorker::FRAMES, &core, &[feed])?;
        let port = self.feed_port(feed)?;
        let (writer, reader) = counters();
        self.queues.push(QueueView {
            source: format!("files of {}", config.name),
            queue: 0,
            core: core.clone(),
            frames: FileWorker::FRAMES as u32,
            counters: reader,
        });
        let worker = FileWorker::new(
            format!("files {}", config.name),
            id,
            port.protocol,
            port.raw,
            self.areas.clone(),
            sides,
            port.link,
            returns,
            writer,
            self.damage.clone(),
        );
        self.workers.push((core, Box::new(worker)));
        Ok(())
    }

    fn arbiter(&mut self, feed: usize, publisher: Option<Box<dyn Publisher>>) -> Result<(), String> {
        let config = &self.config.feeds[feed];
        let links = std::mem::take(&mut self.links[feed]);
        let copy_area = AreaId((self.sources + feed) as u16);
        let mut returns: Vec<Option<LinkSender<FrameToken>>> = (0..self.areas.count()).map(|_| None).collect();
        for (id, sender) in links.returns {
            returns[usize::from(id.0)] = Some(sender);
        }
        let (copy_sender, copy_returns) = link(config.copy_frames as usize, self.doorbell(&config.core)?);
        let store = match &config.store {
            None => None,
            Some(name) => {
                let store = self.config.stores.iter().find(|store| &store.name == name);
                let doorbell = self.doorbell(store.map_or("", |store| store.core.as_str()))?;
                let (sender, receiver) = link(config.link as usize, doorbell);
                let end = self.store_ends.get_mut(name).ok_or_else(|| format!("no [[store]] is named \"{name}\""))?;
                end.inputs.push(receiver);
                end.feeds.push(config.name.clone());
                end.returns[usize::from(copy_area.0)] = Some(copy_sender);
                Some(sender)
            }
        };
        let files = config.sides.iter().any(|side| side.source == SourceKind::File);
        let (writer, reader) = counters();
        // The control thread reads at its own pace: no core sleeps on this link, so its doorbell is nobody's.
        let nobody = Doorbell::new().map_err(|error| format!("eventfd: {error}"))?;
        let (loss_sender, losses) = link(LOSSES_CAPACITY, &nobody);
        let desk = Arc::new(ReportDesk::default());
        self.feeds.push(FeedView {
            name: config.name.clone(),
            sides: config.sides.iter().map(|side| side.name.clone()).collect(),
            core: config.core.clone(),
            store: config.store.clone(),
            publish: config.publish.clone(),
            from_files: files,
            counters: reader,
            desk: desk.clone(),
            losses: Mutex::new(losses),
            copy_frames: config.copy_frames,
        });
        let worker = ArbiterWorker::new(ArbiterParts {
            name: format!("arbiter {}", config.name),
            protocol: config.protocol,
            arbiter: Arbiter::new(arbiter_settings(config)),
            time: if files { TimeSource::Packets } else { TimeSource::Live },
            merged: config.record != Record::Raw,
            raw: config.store.is_some() && config.record != Record::Merged,
            inputs: links.inputs,
            store,
            returns,
            areas: self.areas.clone(),
            copy_area,
            copy_frames: config.copy_frames,
            copy_returns,
            counters: writer,
            desk,
            losses: loss_sender,
            publisher,
        });
        self.workers.push((config.core.clone(), Box::new(worker)));
        Ok(())
    }

    fn finish(self) -> CapturePlan {
        CapturePlan {
            workers: self.workers,
            stores: self.store_ends.into_values().collect(),
            areas: self.areas,
            queues: self.queues,
            sides: self.sides,
            feeds: self.feeds,
            damage: self.damage,
        }
    }
}

/// The machine's settings. Files are judged by frontier, window and end of input alone unless hold and side timeout are
/// given, so that a truth file can be met exactly.
fn arbiter_settings(feed: &Feed) -> ArbiterSettings {
    ArbiterSettings {
        window_messages: feed.window,
        hold_ns: feed.hold().map(Span::nanos),
        side_timeout_ns: feed.side_timeout().map(Span::nanos),
        jump_max: feed.jump_max,
        send_skew_max_ns: (feed.protocol == FeedProtocol::IexTp).then(|| feed.send_skew_max.nanos()),
        start_session: feed.start == StartAt::Session,
        runs_max: feed.runs_max as usize,
        streams_max: feed.streams_max as usize,
        ..ArbiterSettings::files(feed.sides.len())
    }
}
