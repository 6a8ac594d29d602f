//! The rules of the ledger job's section.

use std::path::Path;
use std::time::Duration;

use super::check::{Finding, Findings};
use super::check_ring::range;
use super::check_shared::lexical;
use super::ledger::{Compress, LedgerServe, LedgerSource, LedgerSync};
use super::load::Config;
use super::{Bytes, Span};

/// Chunks and ledgers as the protocol bounds them (`wire::ledger`, held equal by a test of the ledger job).
pub(super) const CHUNK_MIN: Bytes = Bytes(4 << 10);
pub(super) const CHUNK_MAX: Bytes = Bytes(8 << 20);
pub(super) const LEDGER_MAX: Bytes = Bytes(256 << 20);
/// The last sequence that can be streamed: the protocol does not wrap.
pub(super) const SEQUENCE_MAX: u32 = u32::MAX - 1;
/// A page; and a pipe as long as four of the longest ledgers, which fits the kernel's int.
pub(super) const PIPE_MIN: Bytes = Bytes(4 << 10);
pub(super) const PIPE_MAX: Bytes = Bytes(1 << 30);
/// A segment that holds a few chunks, and one that no file system in use refuses.
pub(super) const SEGMENT_MIN: Bytes = Bytes(1 << 20);
pub(super) const SEGMENT_MAX: Bytes = Bytes(1 << 40);
/// The backlog is memory.
pub(super) const BACKLOG_MIN: Bytes = Bytes(1 << 20);
pub(super) const BACKLOG_MAX: Bytes = Bytes(1 << 40);
/// zstd's own levels reach further both ways, where nothing is gained: below −7 it hardly compresses, above 19 a level takes
/// hundreds of MiB.
pub(super) const LEVEL_MIN: i32 = -7;
pub(super) const LEVEL_MAX: i32 = 19;
/// As the peer's.
pub(super) const WORKERS_MAX: usize = 64;
/// As a server shares out and as a client puts together (`ledger::share`, `ledger::merge`, held equal by a test of the ledger
/// job).
pub(super) const FLOWS_MAX: u32 = 64;
pub(super) const UPSTREAM_FLOWS_MAX: u32 = 16;
/// Each subscriber has a descriptor, and the kernel gives a process about a million at most.
pub(super) const SUBSCRIBERS_MAX: u32 = 1_000_000;
/// Longest pace: a ledger a day is none.
pub(super) const PACE_MAX: Span = Span(Duration::from_secs(86_400));
/// TCP keepalive is set in seconds; longer than an hour no router remembers a connection.
pub(super) const DEAD_MIN: Span = Span(Duration::from_secs(1));
pub(super) const DEAD_MAX: Span = Span(Duration::from_secs(3_600));

pub(super) fn check_ledger(config: &Config, findings: &mut Findings) {
    let Some(serve) = &config.ledger.serve else { return };
    check_cores(config, serve, findings);
    check_access(serve, findings);
    check_retention(serve, findings);
    check_sizes(serve, findings);
    check_limits(serve, findings);
    check_pace(serve, findings);
    check_sequences(serve, findings);
    match serve.source {
        LedgerSource::Synthetic => {
            range(findings, key("synthetic_size"), serve.synthetic_size, Bytes(1), LEDGER_MAX);
        }
        LedgerSource::Captive => check_captive(serve, findings),
        LedgerSource::File => check_file(serve, findings),
        LedgerSource::Pipe => check_pipe(serve, findings),
        LedgerSource::Follow => check_follow(serve, findings),
    }
    if serve.network_passphrase.as_deref().is_some_and(|passphrase| passphrase.trim().is_empty()) {
        findings.add(key("network_passphrase"), "is empty: write the network's passphrase, or leave the key out");
    }
}

fn key(field: &str) -> String {
    format!("ledger.serve: {field}")
}

fn check_cores(config: &Config, serve: &LedgerServe, findings: &mut Findings) {
    if serve.core.is_empty() {
        findings.add(key("core"), "is missing: name the core of the fan-out, which holds the subscribers' connections");
    } else {
        findings.core(config, key("core"), &serve.core);
    }
    if let Some(core) = &serve.source_core {
        findings.core(config, key("source_core"), core);
    }
    for core in &serve.encoder_cores {
        findings.core(config, key("encoder_cores"), core);
    }
    if serve.encoder_cores.len() > WORKERS_MAX {
        findings.add(
            key("encoder_cores"),
            format!("names {}, but there are at most {WORKERS_MAX} encoders", serve.encoder_cores.len()),
        );
    }
}

/// Who may connect, and to what.
fn check_access(serve: &LedgerServe, findings: &mut Findings) {
    match (&serve.cert, &serve.key) {
        (Some(_), None) => {
            findings.add(key("key"), "is missing, but cert is given: name the file with the certificate's key");
        }
        (None, Some(_)) => {
            findings.add(key("cert"), "is missing, but key is given: name the file with the certificate chain");
        }
        _ => {}
    }
    let missing = missing_for_the_public(serve);
    if !missing.is_empty() && !serve.insecure {
        findings.add(
            key("listen"),
            format!(
                "is \"{}\", which other hosts reach, without {}: give them, listen on \"127.0.0.1:{}\" only, or set insecure = true",
                serve.listen,
                missing.join(" and "),
                serve.listen.port()
            ),
        );
    }
}

/// What a server that other hosts reach lacks; empty for one that they do not.
fn missing_for_the_public(serve: &LedgerServe) -> Vec<&'static str> {
    if serve.listen.is_loopback() {
        return Vec::new();
    }
    let tls = serve.cert.is_none() && serve.key.is_none();
    [tls.then_some("TLS (cert and key)"), serve.tokens.is_none().then_some("tokens")].into_iter().flatten().collect()
}

fn check_retention(serve: &LedgerServe, findings: &mut Findings) {
    if serve.retention == 0 {
        findings.add(key("retention"), "is 0, but a subscriber that falls behind needs kept ledgers: at least 1");
    }
    range(findings, key("segment_bytes"), serve.segment_bytes, SEGMENT_MIN, SEGMENT_MAX);
    if serve.retention_bytes.0 != 0 && serve.retention_bytes.0 < serve.segment_bytes.0.saturating_mul(2) {
        findings.add(
            key("retention_bytes"),
            format!(
                "is {}, but must be 0B (no bound) or hold two segments ({}): raise it, or lower segment_bytes",
                serve.retention_bytes,
                Bytes(serve.segment_bytes.0.saturating_mul(2))
            ),
        );
    }
    range(findings, key("backlog_bytes"), serve.backlog_bytes, BACKLOG_MIN, BACKLOG_MAX);
    if let LedgerSync::Interval(interval) = serve.sync {
        if interval.0.is_zero() {
            findings.add(key("sync"), "is 0s: write \"every-ledger\" to make each ledger durable when it is written");
        } else if interval > DEAD_MAX {
            findings.add(
                key("sync"),
                format!("is {interval}, but at most {DEAD_MAX}; \"seal\" is only with a segment's end"),
            );
        }
    }
    if serve.data_dir.as_os_str().is_empty() {
        findings.add(key("data_dir"), "is empty: name the directory that keeps the ledgers");
    }
}

fn check_sizes(serve: &LedgerServe, findings: &mut Findings) {
    range(findings, key("chunk_size"), serve.chunk_size, CHUNK_MIN, CHUNK_MAX);
    // The default goes with every size of a chunk.
    let given = serve.tail_size != LedgerServe::TAIL_SIZE;
    if serve.tail_size < CHUNK_MIN || (given && serve.tail_size > serve.chunk_size) {
        findings.add(
            key("tail_size"),
            format!("is {}, but must be from {CHUNK_MIN} to chunk_size ({})", serve.tail_size, serve.chunk_size),
        );
    }
    range(findings, key("compress_level"), serve.compress_level, LEVEL_MIN, LEVEL_MAX);
    if serve.compress_level == 0 {
        findings
            .add(key("compress_level"), "is 0, which is no level (zstd takes it for 3): write the one that is meant");
    }
    if serve.compress_workers as usize > WORKERS_MAX {
        findings.add(
            key("compress_workers"),
            format!(
                "is {}, but must be from 1 to {WORKERS_MAX}, or 0 for one on each core of encoder_cores",
                serve.compress_workers
            ),
        );
    }
    range(findings, key("pipe_size"), serve.pipe_size, PIPE_MIN, PIPE_MAX);
}

fn check_limits(serve: &LedgerServe, findings: &mut Findings) {
    range(findings, key("flows_max"), serve.flows_max, 1, FLOWS_MAX);
    range(findings, key("upstream_flows"), serve.upstream_flows, 1, UPSTREAM_FLOWS_MAX);
    range(findings, key("subscribers_max"), serve.subscribers_max, 1, SUBSCRIBERS_MAX);
    range(findings, key("subscribers_per_address_max"), serve.subscribers_per_address_max, 1, SUBSCRIBERS_MAX);
    range(findings, key("dead_after"), serve.dead_after, DEAD_MIN, DEAD_MAX);
    if serve.drain > DEAD_MAX {
        findings.add(key("drain"), format!("is {}, but at most {DEAD_MAX}: what stops must end", serve.drain));
    }
}

fn check_pace(serve: &LedgerServe, findings: &mut Findings) {
    let paced = match serve.source {
        LedgerSource::File => Some(("cadence", serve.cadence)),
        LedgerSource::Synthetic => Some(("synthetic_interval", serve.synthetic_interval)),
        _ => None,
    };
    for (name, span) in [
        ("emit_window", serve.emit_window),
        ("cadence", serve.cadence),
        ("synthetic_interval", serve.synthetic_interval),
    ] {
        if span > PACE_MAX {
            findings.add(key(name), format!("is {span}, but at most {PACE_MAX}"));
        }
    }
    if let Some((name, every)) = paced
        && serve.emit_window > every
    {
        findings.add(
            key("emit_window"),
            format!(
                "is {}, but {name} is {every}: a ledger must be out before the next one begins; lower it, or raise {name}",
                serve.emit_window
            ),
        );
    }
}

/// No range may reach the sequence behind the last.
fn check_sequences(serve: &LedgerServe, findings: &mut Findings) {
    if serve.start_ledger > SEQUENCE_MAX {
        findings.add(
            key("start_ledger"),
            format!("is {}, but the last ledger that can be streamed is {SEQUENCE_MAX}", serve.start_ledger),
        );
        return;
    }
    let (name, count) = match serve.source {
        LedgerSource::File if serve.renumber() => ("file_count", serve.file_count),
        LedgerSource::Synthetic => ("synthetic_count", serve.synthetic_count),
        _ => return,
    };
    let start = serve.start_ledger.max(1);
    let last = u64::from(start) + u64::from(count).saturating_sub(1);
    if last > u64::from(SEQUENCE_MAX) {
        findings.add(
            key(name),
            format!(
                "is {count}, which from start_ledger {start} reaches ledger {last}, but the last that can be streamed is {SEQUENCE_MAX}: lower one of the two"
            ),
        );
    }
}

fn check_captive(serve: &LedgerServe, findings: &mut Findings) {
    if serve.start_ledger == 0 {
        findings.add(
            key("start_ledger"),
            "is 0, but source = \"captive\" needs the first ledger: give one that the history archives have",
        );
    }
    if is_blank(serve.core_config.as_deref()) {
        findings.add(
            key("core_config"),
            "is missing, but source = \"captive\" needs it: name stellar-core's configuration file",
        );
    }
    if serve.history_archive_urls.is_empty() {
        findings.add(
            key("history_archive_urls"),
            "is missing, but source = \"captive\" needs at least one: for example [\"https://history.stellar.org/prd/core-live/core_live_001\"]",
        );
    }
    for url in &serve.history_archive_urls {
        let rest = url.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme));
        // Core splits its command at spaces, and may hand it to a shell.
        let plain = url.chars().all(|c| c.is_ascii_alphanumeric() || "-._~:/@%+=,".contains(c));
        if rest.is_none_or(|(_, rest)| rest.is_empty()) || !plain {
            findings.add(
                key("history_archive_urls"),
                format!("\"{url}\" is no URL of an archive: write https://HOST/PATH"),
            );
        }
    }
}

fn check_file(serve: &LedgerServe, findings: &mut Findings) {
    if is_blank(serve.file_dir.as_deref()) {
        findings.add(
            key("file_dir"),
            "is missing, but source = \"file\" needs it: name a directory of ledger-<sequence>.xdr, or a framed file",
        );
        return;
    }
    let Some(file_dir) = &serve.file_dir else { return };
    if lexical(file_dir) == lexical(&serve.segments_dir()) {
        findings.add(key("file_dir"), is_retention(file_dir));
    }
}

/// What is wrong with a source that is the directory that is written.
pub fn is_retention(file_dir: &Path) -> String {
    format!(
        "is \"{}\", where this server keeps its own ledgers: copy them elsewhere, or give it another data_dir",
        file_dir.display()
    )
}

fn check_pipe(serve: &LedgerServe, findings: &mut Findings) {
    if serve.pipe_cmd.as_deref().is_none_or(|command| command.trim().is_empty()) {
        findings.add(
            key("pipe_cmd"),
            "is missing, but source = \"pipe\" needs it: write the command whose descriptor 3 carries the ledgers",
        );
    }
}

fn check_follow(serve: &LedgerServe, findings: &mut Findings) {
    match serve.upstream.as_deref() {
        None | Some("") => findings.add(
            key("upstream"),
            "is missing, but source = \"follow\" needs it: write the server's URL, for example \"wss://core.example.net:8462\"",
        ),
        Some(url) => {
            let scheme = url.split_once("://").filter(|(_, rest)| !rest.is_empty()).map(|(scheme, _)| scheme);
            if !scheme.is_some_and(|scheme| ["ws", "wss", "http", "https"].contains(&scheme)) {
                findings.add(key("upstream"), format!("\"{url}\" is no URL of a server: write ws://HOST:PORT or wss://HOST:PORT"));
            }
        }
    }
    if serve.renumber == Some(true) {
        findings.add(key("renumber"), "is true, but a relay passes ledgers on as they are: leave it out");
    }
}

fn is_blank(path: Option<&Path>) -> bool {
    path.is_none_or(|path| path.as_os_str().is_empty())
}

/// What `run` lives with in the ledger job's section. `cpus` is what this process may run on.
pub(super) fn warn_ledger(config: &Config, cpus: usize) -> Vec<Finding> {
    let mut warnings = Findings::default();
    let Some(serve) = &config.ledger.serve else { return warnings.0 };
    warn_unused(serve, &mut warnings);
    let missing = missing_for_the_public(serve);
    if serve.insecure && missing.is_empty() {
        warnings.add(
            key("insecure"),
            format!(
                "is true, but \"{}\" needs no exception: remove it, so that a later change is refused",
                serve.listen
            ),
        );
    }
    if serve.tokens.is_some() && serve.cert.is_none() && !serve.listen.is_loopback() {
        warnings.add(key("tokens"), "travel in the clear without TLS: whoever sees one may use it; give cert and key");
    }
    if cpus > 1 && serve.source_core() == serve.core {
        warnings.add(
            key("source_core"),
            format!(
                "is the fan-out's core \"{}\", so that sending to subscribers takes turns with reading ledgers; of {cpus} CPUs give the source one of its own",
                serve.core
            ),
        );
    }
    let encoders = serve.encoder_cores();
    if let Some(core) = encoders.iter().enumerate().find_map(|(i, core)| encoders[..i].contains(core).then_some(core)) {
        warnings.add(
            key("compress_workers"),
            format!(
                "has more than one encoder on core \"{core}\", which do no more than one there: name more encoder_cores"
            ),
        );
    }
    warnings.0
}

/// Keys of other sources than the one that is taken.
fn warn_unused(serve: &LedgerServe, warnings: &mut Findings) {
    use LedgerSource::{Captive, File, Follow, Pipe};
    let keys: [(&str, bool, &[LedgerSource]); 10] = [
        ("core_binary", serve.core_binary.is_some(), &[Captive]),
        ("core_config", serve.core_config.is_some(), &[Captive]),
        ("history_archive_urls", !serve.history_archive_urls.is_empty(), &[Captive]),
        ("storage_dir", serve.storage_dir.is_some(), &[Captive]),
        ("file_dir", serve.file_dir.is_some(), &[File]),
        ("pipe_cmd", serve.pipe_cmd.is_some(), &[Pipe]),
        ("upstream", serve.upstream.is_some(), &[Follow]),
        ("upstream_token_file", serve.upstream_token_file.is_some(), &[Follow]),
        ("upstream_ca", serve.upstream_ca.is_some(), &[Follow]),
        ("network_passphrase", serve.network_passphrase.is_some(), &[Captive, File, Pipe]),
    ];
    for (name, _, of) in keys.iter().filter(|(_, given, of)| *given && !of.contains(&serve.source)) {
        let of: Vec<String> = of.iter().map(|source| format!("\"{source}\"")).collect();
        warnings.add(
            key(name),
            format!(
                "is given, but belongs to source = {}, and source is \"{}\": it is not looked at",
                of.join(" or "),
                serve.source
            ),
        );
    }
    if !serve.encoder_cores.is_empty() && serve.encoder_cores().is_empty() {
        let why = match serve.compress {
            Compress::Never => "compress is \"never\"",
            _ => "a relay passes chunks on as they are encoded",
        };
        warnings.add(key("encoder_cores"), format!("is given, but {why}: there are no encoders"));
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, check, parse, warn};

    /// A configuration with these lines in its section.
    fn with(lines: &str) -> Config {
        let cores = "[[core]]\nname = \"fan\"\ncpu = 0\n[[core]]\nname = \"source\"\ncpu = 1\n";
        // Keys before tables: lines may end with a table of another section.
        let core = if lines.contains("core = ") && lines.starts_with("core") { "" } else { "core = \"fan\"\n" };
        parse(&format!("{cores}[ledger.serve]\n{core}source_core = \"source\"\n{lines}")).expect(lines)
    }

    fn findings(lines: &str) -> Vec<String> {
        check(&with(lines)).iter().map(ToString::to_string).collect()
    }

    fn warnings(lines: &str) -> Vec<String> {
        warn(&with(lines), 2).iter().map(ToString::to_string).collect()
    }

    const CAPTIVE: &str =
        "source = \"captive\"\nstart_ledger = 5\ncore_config = \"c\"\nhistory_archive_urls = [\"https://a/b\"]";

    #[test]
    fn what_is_right_has_neither_finding_nor_warning() {
        for lines in [
            "",
            "listen = \":8462\"\ncert = \"c\"\nkey = \"k\"\ntokens = \"t\"",
            "listen = \"10.0.0.1:8462\"\ninsecure = true",
            "chunk_size = \"4KiB\"",
            "chunk_size = \"4KiB\"\ntail_size = \"4KiB\"",
            "chunk_size = \"8MiB\"\ntail_size = \"8MiB\"",
            "synthetic_size = \"256MiB\"",
            "emit_window = \"1s\"",
            "emit_window = \"0s\"\nsynthetic_interval = \"0s\"",
            "start_ledger = 4294967294",
            "start_ledger = 4294967294\nsynthetic_count = 1",
            "synthetic_count = 4294967294",
            // The window of a source without a pace is not compared with one.
            "source = \"pipe\"\npipe_cmd = \"x\"\nemit_window = \"10s\"",
            "source = \"file\"\nfile_dir = \"d\"\ncadence = \"15ms\"",
            // Without new numbers nothing is known of its sequences here.
            "source = \"file\"\nfile_dir = \"d\"\nrenumber = false\nstart_ledger = 4294967294\nfile_count = 9",
            CAPTIVE,
            "source = \"follow\"\nupstream = \"wss://core.example.net:8462\"\nupstream_flows = 4",
            "retention_bytes = \"2GiB\"\nsync = \"seal\"",
        ] {
            assert_eq!((findings(lines), warnings(lines)), (vec![], vec![]), "{lines}");
        }
    }

    /// Every refusal, in its own words.
    #[test]
    fn each_refusal_says_what_is_wrong_and_what_to_do() {
        let table = [
            ("core = \"\"", "core: is missing: name the core of the fan-out, which holds the subscribers' connections"),
            ("core = \"no\"", "core: no [[core]] is named \"no\"; there are [\"fan\", \"source\"]"),
            ("encoder_cores = [\"no\"]", "encoder_cores: no [[core]] is named \"no\"; there are [\"fan\", \"source\"]"),
            ("cert = \"c\"", "key: is missing, but cert is given: name the file with the certificate's key"),
            ("key = \"k\"", "cert: is missing, but key is given: name the file with the certificate chain"),
            (
                "listen = \":8462\"",
                "listen: is \":8462\", which other hosts reach, without TLS (cert and key) and tokens: give them, listen on \"127.0.0.1:8462\" only, or set insecure = true",
            ),
            (
                "listen = \"0.0.0.0:8000\"\ntokens = \"t\"",
                "listen: is \"0.0.0.0:8000\", which other hosts reach, without TLS (cert and key): give them, listen on \"127.0.0.1:8000\" only, or set insecure = true",
            ),
            (
                "listen = \"10.0.0.1:8462\"\ncert = \"c\"\nkey = \"k\"",
                "listen: is \"10.0.0.1:8462\", which other hosts reach, without tokens: give them, listen on \"127.0.0.1:8462\" only, or set insecure = true",
            ),
            (
                "listen = \"127.0.0.1:9480\"",
                "listen: is \"127.0.0.1:9480\", but [control] listens on 127.0.0.1:9480 already: take another port",
            ),
            (
                "[[ring.serve]]\nname = \"r\"\ncore = \"fan\"\nring = \"/x\"\nbind = \"0.0.0.0:8462\"",
                "listen: is \"127.0.0.1:8462\", but ring.serve \"r\" listens on 0.0.0.0:8462 already: take another port",
            ),
            ("retention = 0", "retention: is 0, but a subscriber that falls behind needs kept ledgers: at least 1"),
            ("segment_bytes = \"1023KiB\"", "segment_bytes: is 1023KiB, but must be from 1MiB to 1TiB"),
            (
                "retention_bytes = \"1GiB\"",
                "retention_bytes: is 1GiB, but must be 0B (no bound) or hold two segments (2GiB): raise it, or lower segment_bytes",
            ),
            ("backlog_bytes = \"1B\"", "backlog_bytes: is 1B, but must be from 1MiB to 1TiB"),
            ("sync = \"0s\"", "sync: is 0s: write \"every-ledger\" to make each ledger durable when it is written"),
            ("sync = \"2h\"", "sync: is 2h, but at most 1h; \"seal\" is only with a segment's end"),
            ("data_dir = \"\"", "data_dir: is empty: name the directory that keeps the ledgers"),
            (
                "[[store]]\nname = \"s\"\npath = \"./sluice-data//ledgers\"\ncore = \"fan\"",
                "data_dir: leads to \"sluice-data/ledgers\", which is store \"s\"'s already: one directory each",
            ),
            ("chunk_size = 4095", "chunk_size: is 4095B, but must be from 4KiB to 8MiB"),
            ("chunk_size = 0", "chunk_size: is 0B, but must be from 4KiB to 8MiB"),
            ("chunk_size = 8388609", "chunk_size: is 8388609B, but must be from 4KiB to 8MiB"),
            ("tail_size = 4095", "tail_size: is 4095B, but must be from 4KiB to chunk_size (256KiB)"),
            ("tail_size = \"512KiB\"", "tail_size: is 512KiB, but must be from 4KiB to chunk_size (256KiB)"),
            ("compress_level = 20", "compress_level: is 20, but must be from -7 to 19"),
            ("compress_level = -8", "compress_level: is -8, but must be from -7 to 19"),
            (
                "compress_level = 0",
                "compress_level: is 0, which is no level (zstd takes it for 3): write the one that is meant",
            ),
            (
                "compress_workers = 65",
                "compress_workers: is 65, but must be from 1 to 64, or 0 for one on each core of encoder_cores",
            ),
            ("pipe_size = 4095", "pipe_size: is 4095B, but must be from 4KiB to 1GiB"),
            ("pipe_size = \"2GiB\"", "pipe_size: is 2GiB, but must be from 4KiB to 1GiB"),
            ("flows_max = 0", "flows_max: is 0, but must be from 1 to 64"),
            ("subscribers_max = 0", "subscribers_max: is 0, but must be from 1 to 1000000"),
            ("subscribers_per_address_max = 0", "subscribers_per_address_max: is 0, but must be from 1 to 1000000"),
            ("dead_after = \"999ms\"", "dead_after: is 999ms, but must be from 1s to 1h"),
            ("drain = \"2h\"", "drain: is 2h, but at most 1h: what stops must end"),
            (
                "emit_window = \"1001ms\"",
                "emit_window: is 1s1ms, but synthetic_interval is 1s: a ledger must be out before the next one begins; lower it, or raise synthetic_interval",
            ),
            (
                "source = \"file\"\nfile_dir = \"d\"\nemit_window = \"601ms\"",
                "emit_window: is 601ms, but cadence is 600ms: a ledger must be out before the next one begins; lower it, or raise cadence",
            ),
            ("cadence = \"2days\"", "cadence: is 2days, but at most 1day"),
            (
                "start_ledger = 4294967295",
                "start_ledger: is 4294967295, but the last ledger that can be streamed is 4294967294",
            ),
            (
                "synthetic_count = 4294967295",
                "synthetic_count: is 4294967295, which from start_ledger 1 reaches ledger 4294967295, but the last that can be streamed is 4294967294: lower one of the two",
            ),
            (
                "source = \"file\"\nfile_dir = \"d\"\nstart_ledger = 4294967290\nfile_count = 6",
                "file_count: is 6, which from start_ledger 4294967290 reaches ledger 4294967295, but the last that can be streamed is 4294967294: lower one of the two",
            ),
            ("synthetic_size = 0", "synthetic_size: is 0B, but must be from 1B to 256MiB"),
            ("synthetic_size = 268435457", "synthetic_size: is 268435457B, but must be from 1B to 256MiB"),
            (
                "network_passphrase = \" \"",
                "network_passphrase: is empty: write the network's passphrase, or leave the key out",
            ),
            (
                "source = \"file\"",
                "file_dir: is missing, but source = \"file\" needs it: name a directory of ledger-<sequence>.xdr, or a framed file",
            ),
            (
                "source = \"file\"\ndata_dir = \"/d\"\nfile_dir = \"/d/x/..//./ledgers/\"",
                "file_dir: is \"/d/x/..//./ledgers/\", where this server keeps its own ledgers: copy them elsewhere, or give it another data_dir",
            ),
            (
                "source = \"pipe\"\npipe_cmd = \" \"",
                "pipe_cmd: is missing, but source = \"pipe\" needs it: write the command whose descriptor 3 carries the ledgers",
            ),
            (
                "source = \"follow\"",
                "upstream: is missing, but source = \"follow\" needs it: write the server's URL, for example \"wss://core.example.net:8462\"",
            ),
            (
                "source = \"follow\"\nupstream = \"core:8462\"",
                "upstream: \"core:8462\" is no URL of a server: write ws://HOST:PORT or wss://HOST:PORT",
            ),
            (
                "source = \"follow\"\nupstream = \"ws://a\"\nrenumber = true",
                "renumber: is true, but a relay passes ledgers on as they are: leave it out",
            ),
            (
                "source = \"follow\"\nupstream = \"ws://a\"\nupstream_flows = 17",
                "upstream_flows: is 17, but must be from 1 to 16",
            ),
        ];
        for (lines, finding) in table {
            assert_eq!(findings(lines), [format!("config ledger.serve: {finding}")], "{lines}");
        }
    }

    #[test]
    fn captive_needs_what_it_needs_and_all_is_told_at_once() {
        assert_eq!(
            findings("source = \"captive\""),
            [
                "config ledger.serve: start_ledger: is 0, but source = \"captive\" needs the first ledger: give one that the history archives have",
                "config ledger.serve: core_config: is missing, but source = \"captive\" needs it: name stellar-core's configuration file",
                "config ledger.serve: history_archive_urls: is missing, but source = \"captive\" needs at least one: for example [\"https://history.stellar.org/prd/core-live/core_live_001\"]",
            ]
        );
        for (from, to, finding) in [
            ("https://a/b", "a/b", "history_archive_urls: \"a/b\" is no URL of an archive: write https://HOST/PATH"),
            ("https://a/b", "", "history_archive_urls: \"\" is no URL of an archive: write https://HOST/PATH"),
            (
                "https://a/b",
                "https://a/b;c",
                "history_archive_urls: \"https://a/b;c\" is no URL of an archive: write https://HOST/PATH",
            ),
            (
                "source",
                "storage_dir = \"sluice-data/ledgers\"\nsource",
                "storage_dir: leads to \"sluice-data/ledgers\", which is where ledgers are kept already: one directory each",
            ),
        ] {
            assert_eq!(findings(&CAPTIVE.replace(from, to)), [format!("config ledger.serve: {finding}")], "{to}");
        }
    }

    #[test]
    fn what_changes_nothing_or_too_much_is_told() {
        let table = [
            (
                "insecure = true",
                "insecure: is true, but \"127.0.0.1:8462\" needs no exception: remove it, so that a later change is refused",
            ),
            (
                "listen = \":8462\"\ninsecure = true\ntokens = \"t\"",
                "tokens: travel in the clear without TLS: whoever sees one may use it; give cert and key",
            ),
            (
                "compress_workers = 2",
                "compress_workers: has more than one encoder on core \"source\", which do no more than one there: name more encoder_cores",
            ),
            (
                "pipe_cmd = \"x\"",
                "pipe_cmd: is given, but belongs to source = \"pipe\", and source is \"synthetic\": it is not looked at",
            ),
            (
                "network_passphrase = \"x\"",
                "network_passphrase: is given, but belongs to source = \"captive\" or \"file\" or \"pipe\", and source is \"synthetic\": it is not looked at",
            ),
            (
                "compress = \"never\"\nencoder_cores = [\"fan\"]",
                "encoder_cores: is given, but compress is \"never\": there are no encoders",
            ),
            (
                "source = \"follow\"\nupstream = \"ws://a\"\nencoder_cores = [\"fan\"]",
                "encoder_cores: is given, but a relay passes chunks on as they are encoded: there are no encoders",
            ),
        ];
        for (lines, warning) in table {
            assert_eq!(findings(lines), Vec::<String>::new(), "{lines}");
            assert_eq!(warnings(lines), [format!("config ledger.serve: {warning}")], "{lines}");
        }
        let alone = parse("[[core]]\nname = \"fan\"\ncpu = 0\n[ledger.serve]\ncore = \"fan\"").expect("parses");
        assert_eq!(check(&alone), []);
        assert_eq!(warn(&alone, 1), []);
        assert_eq!(
            warn(&alone, 2)[0].to_string(),
            "config ledger.serve: source_core: is the fan-out's core \"fan\", so that sending to subscribers takes turns with reading ledgers; of 2 CPUs give the source one of its own"
        );
    }

    #[test]
    fn every_key_is_in_the_annotated_file() {
        let serve = crate::config::LedgerServe {
            source_core: Some("c".into()),
            encoder_cores: vec!["c".into()],
            core_binary: Some("p".into()),
            core_config: Some("p".into()),
            history_archive_urls: vec!["u".into()],
            storage_dir: Some("p".into()),
            network_passphrase: Some("n".into()),
            file_dir: Some("p".into()),
            renumber: Some(true),
            pipe_cmd: Some("c".into()),
            upstream: Some("u".into()),
            upstream_token_file: Some("p".into()),
            upstream_ca: Some("p".into()),
            cert: Some("p".into()),
            key: Some("p".into()),
            tokens: Some("p".into()),
            ..crate::config::LedgerServe::new("c")
        };
        let file = include_str!("../../../config/default.toml");
        let section = file.split_once("[ledger.serve]").expect("the section").1;
        let section = section.split_once("\n[control]").expect("the next section").0;
        for line in toml::to_string(&serve).expect("prints").lines() {
            let key = line.split_once(" = ").expect("a key").0;
            let stands = |line: &str| line.trim_start_matches("# ").starts_with(&format!("{key} = "));
            assert!(section.lines().any(stands), "{key} is not in the annotated file");
        }
    }
}
