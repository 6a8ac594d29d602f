//! The section of the ledger job.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::quantity::{Bytes, Span};

/// `[ledger.serve]`.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    /// The server of ledgers; a process has at most one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serve: Option<LedgerServe>,
}

impl Ledger {
    /// Whether nothing is served.
    pub fn is_empty(&self) -> bool {
        self.serve.is_none()
    }
}

/// Where a server listens: an address and a port, or a port on every address (`":8462"`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listen {
    /// This port, on every address of the host.
    Port(u16),
    /// This address and port.
    Address(SocketAddr),
}

impl Listen {
    /// What to bind: the first that the host lets us. A port alone is both families on one socket where there is IPv6.
    pub fn candidates(self) -> Vec<SocketAddr> {
        match self {
            Listen::Port(port) => {
                vec![SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))]
            }
            Listen::Address(address) => vec![address],
        }
    }

    /// Whether only this host reaches it.
    pub fn is_loopback(self) -> bool {
        match self {
            Listen::Port(_) => false,
            Listen::Address(address) => address.ip().to_canonical().is_loopback(),
        }
    }

    /// The port; 0 is one that the kernel chooses.
    pub fn port(self) -> u16 {
        match self {
            Listen::Port(port) => port,
            Listen::Address(address) => address.port(),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Port(port) => write!(f, ":{port}"),
            Listen::Address(address) => address.fmt(f),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        let wrong = || {
            format!(
                "\"{text}\" is no address and port: write for example \"127.0.0.1:8462\", \"[::1]:8462\", or \":8462\" for every address"
            )
        };
        if let Ok(address) = text.parse() {
            return Ok(Listen::Address(address));
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        match host {
            "" => Ok(Listen::Port(port)),
            // The one name that needs no look-up.
            "localhost" => Ok(Listen::Address(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))),
            _ => Err(wrong()),
        }
    }
}

/// Where the ledgers come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LedgerSource {
    /// A generator.
    Synthetic,
    /// stellar-core, started and supervised.
    Captive,
    /// A directory of ledgers, or a framed file.
    File,
    /// A command with its meta stream on descriptor 3.
    Pipe,
    /// Another server: a relay.
    Follow,
}

impl fmt::Display for LedgerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LedgerSource::Synthetic => "synthetic",
            LedgerSource::Captive => "captive",
            LedgerSource::File => "file",
            LedgerSource::Pipe => "pipe",
            LedgerSource::Follow => "follow",
        })
    }
}

impl FromStr for LedgerSource {
    type Err = String;

    fn from_str(text: &str) -> Result<LedgerSource, String> {
        Ok(match text {
            "synthetic" => LedgerSource::Synthetic,
            "captive" => LedgerSource::Captive,
            "file" => LedgerSource::File,
            "pipe" => LedgerSource::Pipe,
            "follow" => LedgerSource::Follow,
            _ => return Err(format!("\"{text}\" is no source: write captive, file, follow, pipe or synthetic")),
        })
    }
}

/// When retained ledgers are made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LedgerSync {
    /// Only when a segment is sealed.
    Seal,
    /// After every ledger.
    EveryLedger,
    /// At most this long after a write.
    Interval(Span),
}

impl fmt::Display for LedgerSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LedgerSync::Seal => f.write_str("seal"),
            LedgerSync::EveryLedger => f.write_str("every-ledger"),
            LedgerSync::Interval(span) => span.fmt(f),
        }
    }
}

impl FromStr for LedgerSync {
    type Err = String;

    fn from_str(text: &str) -> Result<LedgerSync, String> {
        match text {
            "seal" => Ok(LedgerSync::Seal),
            "every-ledger" => Ok(LedgerSync::EveryLedger),
            span => span.parse().map(LedgerSync::Interval).map_err(|_| {
                format!("\"{text}\" is no sync: write \"seal\", \"every-ledger\", or a duration as \"1s\"")
            }),
        }
    }
}

/// When chunks are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Compress {
    /// Unless encoding is behind, or the link has slack.
    Auto,
    /// Unless encoding is behind.
    Always,
    /// Not at all.
    Never,
}

impl fmt::Display for Compress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compress::Auto => "auto",
            Compress::Always => "always",
            Compress::Never => "never",
        })
    }
}

/// When a core that parks looks on without sleeping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LedgerSpin {
    /// While a ledger is open.
    Open,
    /// Never.
    Never,
}

impl fmt::Display for LedgerSpin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LedgerSpin::Open => "open",
            LedgerSpin::Never => "never",
        })
    }
}

impl FromStr for LedgerSpin {
    type Err = String;

    fn from_str(text: &str) -> Result<LedgerSpin, String> {
        match text {
            "open" => Ok(LedgerSpin::Open),
            "never" => Ok(LedgerSpin::Never),
            _ => Err(format!("\"{text}\" is not when to spin: write open or never")),
        }
    }
}

/// A type that the TOML holds as text.
macro_rules! as_text {
    ($type:ty) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

as_text!(Listen);
as_text!(LedgerSync);

/// `[ledger.serve]`: raw ledgers from one source, streamed to any number of subscribers while they are emitted, and kept.
///
/// Its workers: the source (or the relay), one for each encoder, the fan-out.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct LedgerServe {
    /// The fan-out's core.
    pub core: String,
    /// The source's core; none: [`LedgerServe::core`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_core: Option<String>,
    /// The encoders' cores, in turn; empty: the source's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub encoder_cores: Vec<String>,
    /// Where subscribers connect.
    pub listen: Listen,
    /// Where the ledgers come from.
    pub source: LedgerSource,

    /// Ledgers kept.
    pub retention: u32,
    /// Bytes kept, as they lie in segments; 0: no bound.
    pub retention_bytes: Bytes,
    /// How long a ledger is kept; 0: no bound.
    pub retention_age: Span,
    /// Bytes of a segment.
    pub segment_bytes: Bytes,
    /// When retained ledgers are made durable.
    pub sync: LedgerSync,
    /// Most bytes of completed ledgers that wait in memory for their write.
    pub backlog_bytes: Bytes,
    /// The segments lie in `ledgers` of it.
    pub data_dir: PathBuf,
    /// Begin anew in a directory of another source or network, whose ledgers go.
    pub reset: bool,

    /// The source's first ledger; 0: 1, or where `file`'s names, `pipe` and `follow` begin.
    pub start_ledger: u32,
    /// Bytes asked of the kernel for the pipe from a command.
    pub pipe_size: Bytes,
    /// `file` and `synthetic`: a ledger's bytes come over this long.
    pub emit_window: Span,
    /// `file`: from one ledger's begin to the next one's.
    pub cadence: Span,
    /// `captive`: the binary; none: `stellar-core` from PATH.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_binary: Option<PathBuf>,
    /// `captive`: its configuration file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_config: Option<PathBuf>,
    /// `captive`: where history archives are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history_archive_urls: Vec<String>,
    /// `captive`: the node's own directory; none: `captive-core` of the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_dir: Option<PathBuf>,
    /// The network; `captive`: none: as its configuration file says, which must agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_passphrase: Option<String>,
    /// `file`: a directory of ledgers, or a framed file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_dir: Option<PathBuf>,
    /// `file`: how many ledgers in all; 0: its ledgers again and again.
    pub file_count: u32,
    /// Number ledgers from [`LedgerServe::start_ledger`] on, whatever they say; none: `file` does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renumber: Option<bool>,
    /// `pipe`: the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipe_cmd: Option<String>,
    /// `synthetic`: bytes of a ledger.
    pub synthetic_size: Bytes,
    /// `synthetic`: ledgers that compress about as real ones do.
    pub synthetic_compressible: bool,
    /// `synthetic`: from one ledger's begin to the next one's.
    pub synthetic_interval: Span,
    /// `synthetic`: how many; 0: without end.
    pub synthetic_count: u32,
    /// `follow`: the server's URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// `follow`: a file with the bearer token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_token_file: Option<PathBuf>,
    /// `follow`: certificates (PEM) that the server's is checked against; none: the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_ca: Option<PathBuf>,
    /// `follow`: connections over which the chunks are spread, where the server offers that.
    pub upstream_flows: u32,

    /// Bytes of a chunk.
    pub chunk_size: Bytes,
    /// Bytes of the last chunks of a ledger whose length is known; where it is left out never more than `chunk_size`.
    pub tail_size: Bytes,
    /// When chunks are compressed.
    pub compress: Compress,
    /// The zstd level; a smaller one is taken under load.
    pub compress_level: i32,
    /// Encoders; 0: one for each of their cores.
    pub compress_workers: u32,
    /// When a core looks on without sleeping.
    pub spin: LedgerSpin,

    /// Most connections over which one subscriber may spread its chunks.
    pub flows_max: u32,
    /// Most subscribers.
    pub subscribers_max: u32,
    /// Most of them from one address.
    pub subscribers_per_address_max: u32,
    /// After how long without a sign of life of its host a connection is dead.
    pub dead_after: Span,
    /// How long the stop waits for subscribers to get the ledger in flight.
    pub drain: Span,
    /// TLS: the certificate chain (PEM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// TLS: its key (PEM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// A file of bearer tokens; none: everybody may subscribe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<PathBuf>,
    /// Listen beyond this host without TLS or tokens.
    pub insecure: bool,

    /// What only a measurement asks for; no key of the TOML.
    #[serde(skip)]
    pub trial: LedgerTrial,
}

/// What `sluice ledger bench` asks of a server, and nothing else does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LedgerTrial {
    /// The source is not asked before so many subscribers are there.
    pub hold_for: u32,
    /// A ledger is sent only when its last byte has come: store and forward, the comparison row.
    pub whole: bool,
    /// END is stamped when the encoders are done with the ledger, as the peer does, and not with the source's last byte.
    pub stamp_drained: bool,
    /// A source that has no more is not told of: subscribers stay, and what is kept stays readable.
    pub stay: bool,
}

impl Default for LedgerServe {
    fn default() -> LedgerServe {
        LedgerServe {
            core: String::new(),
            source_core: None,
            encoder_cores: Vec::new(),
            listen: Listen::Address(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), LedgerServe::PORT)),
            source: LedgerSource::Synthetic,
            retention: 10_000,
            retention_bytes: Bytes(0),
            retention_age: Span(Duration::ZERO),
            segment_bytes: Bytes(1 << 30),
            sync: LedgerSync::Interval(Span(Duration::from_secs(1))),
            backlog_bytes: Bytes(1 << 30),
            data_dir: "sluice-data".into(),
            reset: false,
            start_ledger: 0,
            pipe_size: Bytes(1 << 20),
            emit_window: Span(Duration::from_millis(15)),
            cadence: Span(Duration::from_millis(600)),
            core_binary: None,
            core_config: None,
            history_archive_urls: Vec::new(),
            storage_dir: None,
            network_passphrase: None,
            file_dir: None,
            file_count: 0,
            renumber: None,
            pipe_cmd: None,
            synthetic_size: Bytes(204_800),
            synthetic_compressible: false,
            synthetic_interval: Span(Duration::from_secs(1)),
            synthetic_count: 0,
            upstream: None,
            upstream_token_file: None,
            upstream_ca: None,
            upstream_flows: 1,
            chunk_size: Bytes(256 << 10),
            tail_size: LedgerServe::TAIL_SIZE,
            compress: Compress::Auto,
            compress_level: 1,
            compress_workers: 0,
            spin: LedgerSpin::Open,
            flows_max: 8,
            subscribers_max: 10_000,
            subscribers_per_address_max: 1_000,
            dead_after: Span(Duration::from_secs(30)),
            drain: Span(Duration::from_secs(10)),
            cert: None,
            key: None,
            tokens: None,
            insecure: false,
            trial: LedgerTrial::default(),
        }
    }
}

impl LedgerServe {
    /// The port of the protocol by custom.
    pub const PORT: u16 = 8_462;
    /// An eighth of a chunk: what comes last is encoded, sent and decoded in an eighth of the time.
    pub const TAIL_SIZE: Bytes = Bytes(32 << 10);

    /// A server with every default.
    pub fn new(core: impl Into<String>) -> LedgerServe {
        LedgerServe { core: core.into(), ..LedgerServe::default() }
    }

    /// The core of the source's worker.
    pub fn source_core(&self) -> &str {
        self.source_core.as_deref().unwrap_or(&self.core)
    }

    /// The core of each encoder; empty where nothing is compressed. Relayed ledgers are passed on as they come.
    pub fn encoder_cores(&self) -> Vec<&str> {
        if self.compress == Compress::Never || self.source == LedgerSource::Follow {
            return Vec::new();
        }
        let cores: Vec<&str> = match self.encoder_cores.as_slice() {
            [] => vec![self.source_core()],
            cores => cores.iter().map(String::as_str).collect(),
        };
        let workers = match self.compress_workers {
            0 => cores.len(),
            workers => workers as usize,
        };
        cores.iter().copied().cycle().take(workers).collect()
    }

    /// Bytes of the last chunks: never more than those of all others.
    pub fn tail_size(&self) -> Bytes {
        self.tail_size.min(self.chunk_size)
    }

    /// Where the segments are.
    pub fn segments_dir(&self) -> PathBuf {
        self.data_dir.join("ledgers")
    }

    /// The ledger node's own directory.
    pub fn storage_dir(&self) -> PathBuf {
        self.storage_dir.clone().unwrap_or_else(|| self.data_dir.join("captive-core"))
    }

    /// Whether ledgers are numbered anew.
    pub fn renumber(&self) -> bool {
        self.renumber.unwrap_or(self.source == LedgerSource::File)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn parsed(lines: &str) -> Result<LedgerServe, String> {
        let text = format!("[ledger.serve]\ncore = \"c\"\n{lines}");
        let config = config::parse(&text).map_err(|error| error.to_string())?;
        Ok(config.ledger.serve.expect("the section"))
    }

    #[test]
    fn a_section_without_options_has_the_defaults() {
        assert_eq!(parsed(""), Ok(LedgerServe::new("c")));
        assert!(config::parse("").expect("parses").ledger.is_empty());
    }

    #[test]
    fn what_is_written_is_what_was_read() {
        let lines = "listen = \":8462\"\nsource = \"captive\"\nsync = \"every-ledger\"\ncompress = \"never\"\n\
                     spin = \"never\"\nhistory_archive_urls = [\"https://a\"]\nrenumber = false\ncert = \"/c\"";
        let read = parsed(lines).expect("parses");
        assert_eq!(read.listen, Listen::Port(8462));
        assert_eq!(read.sync, LedgerSync::EveryLedger);
        let config = config::Config { ledger: Ledger { serve: Some(read) }, ..config::Config::default() };
        assert_eq!(config::parse(&toml::to_string(&config).expect("prints")).expect("parses"), config);
    }

    #[test]
    fn other_words_are_refused_with_those_that_are_right() {
        for (line, part) in [
            ("listen = \"here\"", "\":8462\" for every address"),
            ("listen = \"example.net:8462\"", "no address and port"),
            ("listen = \"127.0.0.1:99999\"", "no address and port"),
            ("source = \"tape\"", "synthetic"),
            ("sync = \"soon\"", "every-ledger"),
            ("compress = \"true\"", "always"),
            ("spin = \"on\"", "open"),
            ("emit_window = \"-5ms\"", "not a duration"),
            ("chunk_size = \"big\"", "not a size"),
            ("retention = -1", "u32"),
            ("colour = 3", "colour"),
        ] {
            let error = parsed(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn an_address_says_who_reaches_it() {
        for (text, loopback, candidates) in [
            ("127.0.0.1:8462", true, "127.0.0.1:8462"),
            ("localhost:8462", true, "127.0.0.1:8462"),
            ("[::1]:8462", true, "[::1]:8462"),
            ("[::ffff:127.0.0.1]:1", true, "[::ffff:127.0.0.1]:1"),
            (":8462", false, "[::]:8462 0.0.0.0:8462"),
            ("0.0.0.0:8462", false, "0.0.0.0:8462"),
            ("10.0.0.1:8462", false, "10.0.0.1:8462"),
        ] {
            let listen: Listen = text.parse().expect(text);
            assert_eq!(listen.is_loopback(), loopback, "{text}");
            let all: Vec<String> = listen.candidates().iter().map(ToString::to_string).collect();
            assert_eq!(all.join(" "), candidates, "{text}");
        }
    }

    #[test]
    fn encoders_go_round_their_cores() {
        let mut serve = LedgerServe::new("c");
        assert_eq!(serve.encoder_cores(), ["c"]);
        serve.source_core = Some("s".into());
        assert_eq!(serve.encoder_cores(), ["s"]);
        serve.encoder_cores = vec!["a".into(), "b".into()];
        assert_eq!(serve.encoder_cores(), ["a", "b"]);
        serve.compress_workers = 3;
        assert_eq!(serve.encoder_cores(), ["a", "b", "a"]);
        serve.compress = Compress::Never;
        assert!(serve.encoder_cores().is_empty());
    }
}
