//! From the configuration to the ledger job's workers: the source or the relay, its encoders, the fan-out.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::archive::{Archive, ArchiveSettings, Began, Opened, Reader};
use super::assemble::Limits;
use super::bearer;
use super::chunker::{Cut, Layout};
use super::client_tls::ClientTls;
use super::codec::Policy;
use super::encode_worker::{EncodeParts, EncodeWorker};
use super::event::Item;
use super::fanout_worker::{AudienceSettings, FanoutParts, FanoutSettings, FanoutWorker, GateLimits, TokenCheck};
use super::keeper::{KeeperSettings, SyncPolicy};
use super::load::Load;
use super::message::Encoded;
use super::pool::Pool;
use super::relay_worker::{RelayParts, RelayWorker};
use super::reload::Reload;
use super::retention::Bounds;
use super::session::TimeLimits;
use super::source::captive::{self, CaptiveSettings};
use super::source::file::{self, FileSettings};
use super::source::held::Held;
use super::source::pipe::{self, PipeSettings};
use super::source::synthetic::{self as generator, SyntheticSettings};
use super::source::{Source, network_of};
use super::source_worker::{ENCODER_QUEUE, Emitting, EncoderEnd, SourceParts, SourceWorker, order_items};
use super::stats::{FanoutCounter, FanoutView, LedgerStatus, fanout_books};
use super::synthetic::Shape;
use super::url::Url;
use crate::config::{Compress, Config, LedgerServe, LedgerSource, LedgerSpin, LedgerSync, Listen};
use crate::runtime::link::{Doorbell, LinkReceiver, LinkSender, link};
use crate::runtime::worker::Worker;
use crate::sync::counters::counters;
use crate::sys::clock;
use crate::sys::resolve::Resolver;
use crate::wire::ledger::SEQUENCE_MAX;

/// Bytes of chunk buffers that a server keeps to use again: two of the largest usual ledgers and what waits for the disk meanwhile.
pub const POOL_BYTES: usize = 256 << 20;
/// Bytes of them that are made before the first ledger: an emission of 14.5 MiB, raw and packed.
pub const POOL_READY_BYTES: usize = 32 << 20;
/// Longest time to a connection with an upstream server, as a client's by default.
const DIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a failed disk is left alone.
const RETRY_NS: i64 = 200_000_000;

/// Shortest silence of a source that is one.
const SILENT_NS_MIN: i64 = 60_000_000_000;

/// What the workers may take to stop beside `drain`: a source's process is given 5 s, the last ledgers their write.
pub const STOP_EXTRA: Duration = Duration::from_secs(10);

/// The ledger job, planned.
pub struct LedgerPlan {
    /// (core name, worker) in polling order: what is read goes out in the same round.
    pub workers: Vec<(String, Box<dyn Worker>)>,
    /// What the control thread shows.
    pub status: Arc<LedgerStatus>,
    /// What is read again on SIGHUP.
    pub reload: Reload,
}

/// The links of one server.
struct Ways {
    order: LinkSender<Item>,
    order_end: LinkReceiver<Item>,
    packed: Vec<LinkSender<Encoded>>,
    packed_ends: Vec<LinkReceiver<Encoded>>,
}

/// Opens the retention directory and builds the workers of `[ledger.serve]`; `None` without that section. The source begins when
/// its worker is started.
///
/// # Errors
/// One line for the user: a source that cannot begin, a directory that cannot be gone on with, a certificate that is none.
pub fn plan(config: &Config, doorbells: &BTreeMap<String, Arc<Doorbell>>) -> Result<Option<LedgerPlan>, String> {
    let Some(serve) = &config.ledger.serve else { return Ok(None) };
    serve_plan(serve, doorbells).map(Some).map_err(|what| format!("ledger.serve: {what}"))
}

/// After how long without a new ledger the source counts as silent: twelve ledgers of a network that closes one every 5 s,
/// or ten of a slower cadence that was asked for.
fn silent_ns(serve: &LedgerServe) -> i64 {
    let cadence = match serve.source {
        LedgerSource::Synthetic => serve.synthetic_interval.nanos(),
        LedgerSource::File => serve.cadence.nanos(),
        _ => 0,
    };
    SILENT_NS_MIN.max(cadence.saturating_mul(10))
}

fn serve_plan(serve: &LedgerServe, doorbells: &BTreeMap<String, Arc<Doorbell>>) -> Result<LedgerPlan, String> {
    let serve = &going_on(serve);
    let mut reload =
        Reload::load(serve).map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    let bell = |core: &str| doorbells.get(core).cloned().ok_or_else(|| format!("there is no core \"{core}\""));
    let cut = Cut::new(serve.chunk_size.0 as usize, Some(serve.tail_size().0 as usize)).map_err(|e| e.to_string())?;
    let pool = Pool::new(cut.buffer_bytes(), (POOL_BYTES / cut.buffer_bytes()).max(1));
    let ways = ways(serve, &bell(&serve.core)?, order_capacity(serve));
    let source = match serve.source {
        LedgerSource::Follow => None,
        _ => Some(source(serve, Layout { cut, pool: pool.clone() })?),
    };
    let description = source.as_ref().map_or_else(|| followed(serve), |source| source.description());
    let network = source.as_ref().map_or_else(|| network_of(None), |s| s.network());
    let (archive, opened) = archive(serve, description.clone(), network)?;
    reload.bounds = Some(archive.bounds());
    let run = archive.run().to_string();
    let latest = opened.stored.last().map(|stored| stored.sequence);
    let (books, view) = fanout_books(serve.core.clone(), description);
    let load = Arc::new(Load::default());
    let bounds = reload.bounds.clone();
    let mut status = LedgerStatus {
        fanout: view,
        source: None,
        relay: None,
        encoders: Vec::new(),
        bounds,
        silent_ns: silent_ns(serve),
    };
    let mut workers: Vec<(String, Box<dyn Worker>)> = Vec::new();
    let core = serve.source_core().to_string();
    match source {
        Some(source) => {
            let emitting = Emitting::default();
            let (ends, encoders) = encoders(serve, &bell, &pool, ways.packed, &emitting, &mut status)?;
            let source = held(source, serve, &status.fanout);
            let worker =
                source_worker(serve, source, cut, &pool, ways.order, ends, load.clone(), emitting, &mut status);
            workers.push((core, Box::new(worker)));
            workers.extend(encoders);
        }
        None => {
            let worker = relay(serve, run.clone(), latest, pool, ways.order, &mut status)?;
            workers.push((core, Box::new(worker)));
        }
    }
    let fanout = FanoutWorker::new(FanoutParts {
        name: "ledger.serve".into(),
        listen: listen(serve.listen),
        order: ways.order_end,
        encoders: ways.packed_ends,
        settings: fanout_settings(serve),
        run,
        awaits_run: serve.source == LedgerSource::Follow && latest.is_none(),
        archive: Some((archive, opened.stored)),
        tokens: tokens(&reload),
        #[cfg(feature = "ledger-tls")]
        tls: reload.tls.clone(),
        load,
        books,
    });
    let fanout = if serve.trial.stamp_drained { fanout.stamping_drained() } else { fanout };
    workers.push((serve.core.clone(), Box::new(fanout)));
    Ok(LedgerPlan { workers, status: Arc::new(status), reload })
}

/// A captive core is asked for what follows the ledgers that are kept, so that a restart goes on. Where they are another source's,
/// opening the archive says so.
fn going_on(serve: &LedgerServe) -> LedgerServe {
    let mut serve = serve.clone();
    if serve.source != LedgerSource::Captive || serve.reset {
        return serve;
    }
    let latest = Reader::open(&serve.segments_dir()).map_or(0, |reader| reader.bounds().1);
    if latest >= serve.start_ledger && latest < SEQUENCE_MAX {
        tracing::info!(start_ledger = serve.start_ledger, latest, "the node goes on after what is kept");
        serve.start_ledger = latest + 1;
    }
    serve
}

/// Items of the link on which a ledger's chunks go to the fan-out.
pub fn order_capacity(serve: &LedgerServe) -> usize {
    order_items(serve.chunk_size.0.max(1) as usize, serve.tail_size().0.max(1) as usize)
}

fn ways(serve: &LedgerServe, fanout: &Arc<Doorbell>, items: usize) -> Ways {
    let (order, order_end) = link(items, fanout);
    let (packed, packed_ends) = serve.encoder_cores().iter().map(|_| link(items, fanout)).unzip();
    Ways { order, order_end, packed, packed_ends }
}

/// The source as configured; a relay has none.
fn source(serve: &LedgerServe, layout: Layout) -> Result<Box<dyn Source>, String> {
    let start = serve.start_ledger.max(1);
    let passphrase = serve.network_passphrase.clone();
    let (pipe_bytes, cpus) = (serve.pipe_size.0 as usize, Vec::new());
    let source = match serve.source {
        LedgerSource::Synthetic => {
            let settings = SyntheticSettings {
                start,
                count: serve.synthetic_count,
                bytes: serve.synthetic_size.0,
                shape: shape(serve),
                window_ns: serve.emit_window.nanos(),
                interval_ns: serve.synthetic_interval.nanos(),
            };
            generator::open(&settings, layout)
        }
        LedgerSource::File => {
            let settings = FileSettings {
                path: serve.file_dir.clone().unwrap_or_default(),
                kept: Some(serve.segments_dir()),
                first: (!serve.renumber() && serve.start_ledger > 0).then_some(serve.start_ledger),
                count: serve.file_count,
                cycle: serve.renumber(),
                window_ns: serve.emit_window.nanos(),
                interval_ns: serve.cadence.nanos(),
                passphrase,
            };
            file::open(&settings, layout)
        }
        LedgerSource::Pipe => {
            let command = serve.pipe_cmd.clone().unwrap_or_default();
            Ok(pipe::open(&PipeSettings { command, pipe_bytes, passphrase, cpus }))
        }
        LedgerSource::Captive => captive::open(&CaptiveSettings::of(serve)),
        LedgerSource::Follow => unreachable!("a relay has no source of its own"),
    };
    source.map_err(|error| error.to_string())
}

/// A source that waits for its audience, or does not tell of its end, where a measurement asks for it.
fn held(source: Box<dyn Source>, serve: &LedgerServe, view: &FanoutView) -> Box<dyn Source> {
    let trial = serve.trial;
    if trial.hold_for == 0 && !trial.stay {
        return source;
    }
    let (subscribers, wanted) = (view.counters(), u64::from(trial.hold_for));
    let ready = move || subscribers.get(FanoutCounter::Subscribers) >= wanted;
    Box::new(Held::new(source, ready, trial.stay))
}

#[allow(clippy::too_many_arguments)] // The parts of one worker, each made elsewhere.
fn source_worker(
    serve: &LedgerServe,
    source: Box<dyn Source>,
    cut: Cut,
    pool: &Pool,
    order: LinkSender<Item>,
    encoders: Vec<EncoderEnd>,
    load: Arc<Load>,
    emitting: Emitting,
    status: &mut LedgerStatus,
) -> SourceWorker {
    let (writer, reader) = counters();
    status.source = Some(reader);
    let worker = SourceWorker::new(SourceParts {
        name: "ledger.serve source".into(),
        source,
        cut,
        pool: pool.clone(),
        buffers_ready: (POOL_READY_BYTES / cut.buffer_bytes()).max(2),
        order,
        encoders,
        policy: match serve.compress {
            Compress::Auto => Policy::Auto,
            Compress::Always => Policy::Always,
            Compress::Never => Policy::Never,
        },
        level: serve.compress_level,
        load,
        renumber: serve.renumber().then_some(serve.start_ledger.max(1)),
        spin_while_open: serve.spin == LedgerSpin::Open,
        drain_ns: serve.drain.nanos(),
        emitting,
        counters: writer,
    });
    if serve.trial.whole { worker.giving_whole() } else { worker }
}

type Encoders = (Vec<EncoderEnd>, Vec<(String, Box<dyn Worker>)>);

fn encoders(
    serve: &LedgerServe,
    bell: &impl Fn(&str) -> Result<Arc<Doorbell>, String>,
    pool: &Pool,
    packed: Vec<LinkSender<Encoded>>,
    emitting: &Emitting,
    status: &mut LedgerStatus,
) -> Result<Encoders, String> {
    let (mut ends, mut workers): Encoders = (Vec::new(), Vec::new());
    for ((index, core), out) in serve.encoder_cores().into_iter().enumerate().zip(packed) {
        let (jobs, jobs_end) = link(ENCODER_QUEUE, &bell(core)?);
        let (writer, reader) = counters();
        status.encoders.push(reader.clone());
        ends.push(EncoderEnd { jobs, done: reader });
        let worker = EncodeWorker::new(EncodeParts {
            name: format!("ledger.serve encoder {index}"),
            jobs: jobs_end,
            out,
            pool: pool.clone(),
            level: serve.compress_level,
            spin_while_open: serve.spin == LedgerSpin::Open,
            emitting: emitting.clone(),
            counters: writer,
        });
        workers.push((core.to_string(), Box::new(worker)));
    }
    Ok((ends, workers))
}

/// The upstream without its query, which may hold a token: this is written down and shown.
fn followed(serve: &LedgerServe) -> String {
    format!("follow {}", upstream_shown(serve))
}

/// What the source would call itself, and its network, without opening it; `None` for one that could not be opened.
pub fn source_of(serve: &LedgerServe) -> Option<(String, [u8; 8])> {
    let network = network_of(serve.network_passphrase.as_deref());
    Some(match serve.source {
        LedgerSource::Synthetic => (generator::description(shape(serve), serve.synthetic_size.0), network_of(None)),
        LedgerSource::File => (file::description(serve.file_dir.as_deref()?), network),
        LedgerSource::Pipe => (pipe::description(serve.pipe_cmd.as_deref()?), network),
        LedgerSource::Captive => {
            let (name, passphrase) = captive::description(&CaptiveSettings::of(serve))?;
            (name, network_of(Some(&passphrase)))
        }
        LedgerSource::Follow => (followed(serve), network_of(None)),
    })
}

fn shape(serve: &LedgerServe) -> Shape {
    if serve.synthetic_compressible { Shape::Compressible } else { Shape::Noise }
}

fn upstream_shown(serve: &LedgerServe) -> String {
    Url::parse(upstream_name(serve)).map_or_else(|_| "an upstream".into(), |url| url.to_string())
}

fn upstream_name(serve: &LedgerServe) -> &str {
    serve.upstream.as_deref().unwrap_or_default()
}

fn relay(
    serve: &LedgerServe,
    run: String,
    latest: Option<u32>,
    pool: Pool,
    order: LinkSender<Item>,
    status: &mut LedgerStatus,
) -> Result<RelayWorker, String> {
    let url = Url::parse(upstream_name(serve)).map_err(|error| format!("upstream: {error}"))?;
    let tls = url.tls.then(|| ClientTls::new(serve.upstream_ca.as_deref())).transpose();
    let token = serve.upstream_token_file.as_deref().map(bearer::read).transpose();
    let (writer, reader) = counters();
    status.relay = Some(reader);
    RelayWorker::new(RelayParts {
        name: "ledger.serve relay".into(),
        tls: tls.map_err(|error| format!("upstream: {error}"))?,
        authorization: token.map_err(|error| format!("upstream_token_file: {error}"))?,
        limits: Limits::default(),
        flows: serve.upstream_flows.max(1) as usize,
        start: serve.start_ledger,
        latest,
        run,
        dial_timeout: DIAL_TIMEOUT,
        dead_after: serve.dead_after.0,
        spin: serve.spin == LedgerSpin::Open,
        resolver: Resolver::new(&url.host_and_port())?,
        url,
        order,
        pool,
        counters: writer,
    })
}

/// Opens the retention directory, and says what it found.
fn archive(serve: &LedgerServe, source: String, network: [u8; 8]) -> Result<(Archive, Opened), String> {
    let settings = ArchiveSettings {
        directory: serve.segments_dir(),
        keeper: KeeperSettings {
            bounds: bounds(serve),
            segment_bytes: serve.segment_bytes.0,
            sync: match serve.sync {
                LedgerSync::Seal => SyncPolicy::Seal,
                LedgerSync::EveryLedger => SyncPolicy::EveryLedger,
                LedgerSync::Interval(interval) => SyncPolicy::Interval(interval.nanos()),
            },
            retry_ns: RETRY_NS,
        },
        source,
        network,
        start: first_ledger(serve),
        reset: serve.reset,
    };
    let (archive, opened) = Archive::open(&settings, clock::utc_ns()).map_err(|error| format!("data_dir: {error}"))?;
    tell(&settings.directory, &opened, archive.run());
    Ok((archive, opened))
}

/// How much is kept.
pub fn bounds(serve: &LedgerServe) -> Bounds {
    let age_ns = serve.retention_age.nanos();
    Bounds {
        ledgers_max: serve.retention,
        bytes_max: Some(serve.retention_bytes.0).filter(|&bytes| bytes > 0),
        age_ns_max: (age_ns > 0).then_some(age_ns),
    }
}

/// The first ledger that the source will give, as far as it is known before it comes; 0: not.
fn first_ledger(serve: &LedgerServe) -> u32 {
    match serve.source {
        LedgerSource::Synthetic => serve.start_ledger.max(1),
        LedgerSource::Captive => serve.start_ledger,
        LedgerSource::File | LedgerSource::Pipe if serve.renumber() => serve.start_ledger.max(1),
        LedgerSource::File => serve.start_ledger,
        LedgerSource::Pipe | LedgerSource::Follow => 0,
    }
}

fn tell(directory: &Path, opened: &Opened, run: &super::retention::Run) {
    let directory = directory.display();
    for torn in &opened.torn {
        let file = torn.path.display();
        tracing::warn!(%directory, %file, bytes = torn.bytes, at = torn.at, why = %torn.what, "a segment's torn end was cut");
    }
    for unreadable in &opened.unreadable {
        let file = unreadable.path.display();
        tracing::warn!(%directory, %file, why = %unreadable.what, "a file is no segment, and is left alone");
    }
    match &opened.began {
        Began::New => tracing::info!(%directory, %run, "retention begins"),
        Began::GoesOn => {
            let bounds = (opened.stored.first(), opened.stored.last());
            let (oldest, latest) = (bounds.0.map_or(0, |s| s.sequence), bounds.1.map_or(0, |s| s.sequence));
            tracing::info!(%directory, %run, oldest, latest, "retention goes on");
        }
        Began::Reset { found, latest } => {
            tracing::warn!(
                %directory, %run, before = %found, latest,
                "retention reset: the source does not go on where it ended, so what was kept goes"
            );
        }
    }
    if opened.left_out > 0 {
        tracing::warn!(%directory, ledgers = opened.left_out, "ledgers that do not join the latest ones are not served");
    }
}

fn fanout_settings(serve: &LedgerServe) -> FanoutSettings {
    FanoutSettings {
        audience: AudienceSettings {
            gate: GateLimits {
                subscribers_max: serve.subscribers_max as usize,
                per_address_max: serve.subscribers_per_address_max as usize,
                flows_max: serve.flows_max,
            },
            time: TimeLimits::default(),
            dead_after: serve.dead_after.0,
        },
        backlog_bytes: serve.backlog_bytes.0,
        drain_ns: serve.drain.nanos(),
        spin: serve.spin == LedgerSpin::Open,
    }
}

fn tokens(reload: &Reload) -> Option<TokenCheck> {
    let mut tokens = reload.tokens.clone()?;
    Some(Box::new(move |authorization, token| tokens.authorized(authorization, token)))
}

/// The address to bind. A port alone is every address of both families, where the host has both.
fn listen(listen: Listen) -> SocketAddr {
    let candidates = listen.candidates();
    let ipv6 = Path::new("/proc/net/if_inet6").exists();
    let usable = candidates.iter().find(|address| address.is_ipv4() || ipv6);
    *usable.unwrap_or(&candidates[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::archive::{IMPORTED, Recorder};

    #[test]
    fn a_node_goes_on_after_what_is_kept() {
        let home = tempfile::tempdir().expect("a directory");
        let asked = |start_ledger, reset| LedgerServe {
            source: LedgerSource::Captive,
            start_ledger,
            reset,
            data_dir: home.path().into(),
            ..LedgerServe::default()
        };
        let starts = |serve: LedgerServe| going_on(&serve).start_ledger;
        assert_eq!(starts(asked(5, false)), 5, "nothing is kept");
        let settings = ArchiveSettings {
            directory: asked(5, false).segments_dir(),
            keeper: KeeperSettings::default(),
            source: IMPORTED.into(),
            network: [7; 8],
            start: 5,
            reset: false,
        };
        let (mut recorder, _) = Recorder::open(&settings).expect("opens");
        (5..=9).for_each(|sequence| recorder.put(sequence, b"ledger").expect("put"));
        recorder.finish().expect("finished");
        assert_eq!([starts(asked(5, false)), starts(asked(9, false))], [10, 10]);
        assert_eq!(starts(asked(5, true)), 5, "what is kept is to go");
        assert_eq!([starts(asked(10, false)), starts(asked(12, false))], [10, 12], "later than what is kept");
        assert_eq!(starts(LedgerServe { source: LedgerSource::Synthetic, ..asked(5, false) }), 5, "no node");
    }
}
