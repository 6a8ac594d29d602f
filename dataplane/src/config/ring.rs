//! The sections of the ring job.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::quantity::{Bytes, Span};

/// `[[ring.serve]]` and `[[ring.mirror]]`.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Ring {
    /// Rings that are served to mirrors.
    #[serde(rename = "serve", default, skip_serializing_if = "Vec::is_empty")]
    pub serves: Vec<Serve>,
    /// Copies of rings of other hosts.
    #[serde(rename = "mirror", default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<Mirror>,
}

impl Ring {
    /// Whether there is neither.
    pub fn is_empty(&self) -> bool {
        self.serves.is_empty() && self.mirrors.is_empty()
    }
}

/// How long a frame that is not full waits for more records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linger {
    /// Not at all while the previous send is done; what piled up meanwhile leaves together.
    Auto,
    /// So long, or until it is full.
    Fixed(Duration),
}

impl fmt::Display for Linger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Linger::Auto => f.write_str("auto"),
            Linger::Fixed(time) => Span(*time).fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for Linger {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Linger, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "auto" => Ok(Linger::Auto),
            text => Span::from_str(text).map(|span| Linger::Fixed(span.0)).map_err(|_| {
                D::Error::custom(format!("\"{text}\" is no linger; write \"auto\", or a duration as \"50us\""))
            }),
        }
    }
}

impl Serialize for Linger {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// `[[ring.serve]]`: a ring of this host, sent to mirrors. One worker; it maps the ring read-only.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Serve {
    /// Its name in metrics and reports.
    pub name: String,
    /// The worker's core.
    pub core: String,
    /// The ring's file; it may come later, and be replaced.
    pub ring: PathBuf,
    /// Where mirrors connect (TCP).
    pub bind: SocketAddr,
    /// Send live records to this group and port, once for all mirrors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<SocketAddrV4>,
    /// Address of the interface through which multicast leaves; 0.0.0.0: as the route to the group says.
    #[serde(default = "any_interface")]
    pub interface: Ipv4Addr,
    /// Routers that multicast passes.
    #[serde(default = "Serve::ttl_default")]
    pub ttl: u8,
    /// Send live records by UDP from this port to each mirror that asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<u16>,
    /// Payload bytes of a datagram.
    #[serde(default = "Serve::mtu_default")]
    pub mtu: u32,
    /// How often each datagram is sent.
    #[serde(default = "Serve::dup_default")]
    pub dup: u8,
    /// How long a frame that is not full waits for more records.
    #[serde(default = "Serve::linger_default")]
    pub linger: Linger,
    /// Most records of a frame.
    #[serde(default = "Serve::batch_default")]
    pub batch: u32,
    /// While the core sleeps, be woken by the producer (futex); makes the ring's header page writable for this process.
    /// Otherwise the ring is looked at every millisecond.
    #[serde(default = "Serve::futex_default")]
    pub futex: bool,
    /// A file with the pre-shared key: mirrors must have the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Most connections at a time.
    #[serde(default = "Serve::connections_max_default")]
    pub connections_max: u32,
    /// Most of them from one address.
    #[serde(default = "Serve::connections_per_address_max_default")]
    pub connections_per_address_max: u32,
    /// A connection that has not said HELLO (and proved its key) by then is closed.
    #[serde(default = "Serve::hello_timeout_default")]
    pub hello_timeout: Span,
    /// A connection without an answer for so long is dead.
    #[serde(default = "Serve::dead_after_default")]
    pub dead_after: Span,
    /// Most bytes of repair a second and mirror.
    #[serde(default = "Serve::repair_rate_default")]
    pub repair_rate: Bytes,
    /// Most datagrams a second taken from outside (PUNCH).
    #[serde(default = "Serve::punch_rate_default")]
    pub punch_rate: u32,
}

fn any_interface() -> Ipv4Addr {
    Ipv4Addr::UNSPECIFIED
}

impl Serve {
    /// A serve with every default.
    pub fn new(name: impl Into<String>, core: impl Into<String>, ring: PathBuf, bind: SocketAddr) -> Serve {
        Serve {
            name: name.into(),
            core: core.into(),
            ring,
            bind,
            multicast: None,
            interface: any_interface(),
            ttl: Serve::ttl_default(),
            udp: None,
            mtu: Serve::mtu_default(),
            dup: Serve::dup_default(),
            linger: Serve::linger_default(),
            batch: Serve::batch_default(),
            futex: Serve::futex_default(),
            key_file: None,
            connections_max: Serve::connections_max_default(),
            connections_per_address_max: Serve::connections_per_address_max_default(),
            hello_timeout: Serve::hello_timeout_default(),
            dead_after: Serve::dead_after_default(),
            repair_rate: Serve::repair_rate_default(),
            punch_rate: Serve::punch_rate_default(),
        }
    }

    fn ttl_default() -> u8 {
        1
    }
    fn mtu_default() -> u32 {
        1_472
    }
    fn dup_default() -> u8 {
        1
    }
    fn linger_default() -> Linger {
        Linger::Auto
    }
    fn batch_default() -> u32 {
        256
    }
    fn futex_default() -> bool {
        true
    }
    fn connections_max_default() -> u32 {
        1_024
    }
    fn connections_per_address_max_default() -> u32 {
        256
    }
    fn hello_timeout_default() -> Span {
        Span(Duration::from_secs(5))
    }
    fn dead_after_default() -> Span {
        Span(Duration::from_secs(10))
    }
    fn repair_rate_default() -> Bytes {
        Bytes(128 << 20)
    }
    fn punch_rate_default() -> u32 {
        10_000
    }
}

/// Where a mirror begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MirrorStart {
    /// At what is published next.
    Latest,
    /// At the oldest record that the source still holds.
    Oldest,
    /// Behind the last record of the local ring, if it is of this source; else at the oldest.
    Resume,
    /// At this sequence, or the oldest after it.
    Sequence(u64),
}

impl fmt::Display for MirrorStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MirrorStart::Latest => f.write_str("latest"),
            MirrorStart::Oldest => f.write_str("oldest"),
            MirrorStart::Resume => f.write_str("resume"),
            MirrorStart::Sequence(sequence) => sequence.fmt(f),
        }
    }
}

impl FromStr for MirrorStart {
    type Err = String;

    fn from_str(text: &str) -> Result<MirrorStart, String> {
        match text {
            "latest" => Ok(MirrorStart::Latest),
            "oldest" => Ok(MirrorStart::Oldest),
            "resume" => Ok(MirrorStart::Resume),
            // 0 and 2^64 − 1 are no sequences.
            number => match number.parse() {
                Ok(sequence) if sequence > 0 && sequence < u64::MAX => Ok(MirrorStart::Sequence(sequence)),
                _ => Err(format!("\"{text}\" is no start: write latest, oldest, resume or a sequence from 1")),
            },
        }
    }
}

impl<'de> Deserialize<'de> for MirrorStart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MirrorStart, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u64),
            Text(String),
        }
        let text = match Either::deserialize(deserializer)? {
            Either::Number(number) => number.to_string(),
            Either::Text(text) => text,
        };
        text.parse().map_err(D::Error::custom)
    }
}

impl Serialize for MirrorStart {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// `[[ring.mirror]]`: a copy of another host's ring.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Mirror {
    /// Its name in metrics and reports.
    pub name: String,
    /// The worker's core.
    pub core: String,
    /// The source's address and port, or name and port.
    pub source: String,
    /// The local ring's file.
    pub ring: PathBuf,
    /// Where it begins; after the first connection it always resumes.
    #[serde(default = "Mirror::from_default")]
    pub from: MirrorStart,
    /// Ask for UDP unicast even if the source offers multicast.
    #[serde(default)]
    pub unicast: bool,
    /// Address of the interface on which the group is joined; 0.0.0.0: as the route to it says.
    #[serde(default = "any_interface")]
    pub interface: Ipv4Addr,
    /// A file with the pre-shared key: the source must have the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Largest ring that a source may announce: it is made in memory at once.
    #[serde(default = "Mirror::geometry_max_default")]
    pub geometry_max: Bytes,
    /// Most bytes of datagrams held back behind a hole.
    #[serde(default = "Mirror::hold_back_default")]
    pub hold_back: Bytes,
    /// Pause before the first reconnection; it doubles up to `reconnect_max`.
    #[serde(default = "Mirror::reconnect_default")]
    pub reconnect: Span,
    /// Longest pause before a reconnection.
    #[serde(default = "Mirror::reconnect_max_default")]
    pub reconnect_max: Span,
    /// A source whose datagrams, not even heartbeats, have not come for so long is silent: the local ring's heartbeat stops.
    #[serde(default = "Mirror::silence_default")]
    pub silence: Span,
    /// The same where a TCP stream delivers (heartbeats come each 200 ms).
    #[serde(default = "Mirror::silence_stream_default")]
    pub silence_stream: Span,
    /// Datagrams are taken from these addresses too, beside the one that was connected to: a source that sends its
    /// multicast through another interface.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datagrams_from: Vec<IpAddr>,
    /// Receive buffer asked of the kernel for datagrams.
    #[serde(default = "Mirror::receive_buffer_default")]
    pub receive_buffer: Bytes,
    /// Ask for huge pages for the local ring.
    #[serde(default)]
    pub huge_pages: bool,
    /// The NUMA node of the local ring's memory; leave it out for the kernel's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
}

impl Mirror {
    /// A mirror with every default.
    pub fn new(name: impl Into<String>, core: impl Into<String>, source: impl Into<String>, ring: PathBuf) -> Mirror {
        Mirror {
            name: name.into(),
            core: core.into(),
            source: source.into(),
            ring,
            from: Mirror::from_default(),
            unicast: false,
            interface: any_interface(),
            key_file: None,
            geometry_max: Mirror::geometry_max_default(),
            hold_back: Mirror::hold_back_default(),
            reconnect: Mirror::reconnect_default(),
            reconnect_max: Mirror::reconnect_max_default(),
            silence: Mirror::silence_default(),
            silence_stream: Mirror::silence_stream_default(),
            datagrams_from: Vec::new(),
            receive_buffer: Mirror::receive_buffer_default(),
            huge_pages: false,
            numa_node: None,
        }
    }

    fn from_default() -> MirrorStart {
        MirrorStart::Latest
    }
    fn geometry_max_default() -> Bytes {
        Bytes(4 << 30)
    }
    fn hold_back_default() -> Bytes {
        Bytes(64 << 20)
    }
    fn reconnect_default() -> Span {
        Span(Duration::from_millis(500))
    }
    fn reconnect_max_default() -> Span {
        Span(Duration::from_secs(2))
    }
    fn silence_default() -> Span {
        Span(Duration::from_millis(250))
    }
    fn silence_stream_default() -> Span {
        Span(Duration::from_secs(1))
    }
    fn receive_buffer_default() -> Bytes {
        Bytes(8 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_was_read() {
        for text in ["auto", "50us", "0s"] {
            let linger: Linger = serde_json::from_value(text.into()).expect("reads");
            assert_eq!(linger.to_string(), text);
        }
        assert!(serde_json::from_value::<Linger>("soon".into()).is_err());
        for text in ["latest", "oldest", "resume", "1", "77"] {
            assert_eq!(text.parse::<MirrorStart>().expect("reads").to_string(), text);
        }
        assert_eq!(
            serde_json::from_value::<MirrorStart>(serde_json::json!(9)).expect("reads"),
            MirrorStart::Sequence(9)
        );
        for text in ["0", "newest", "-1", "18446744073709551615", ""] {
            assert!(text.parse::<MirrorStart>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_section_without_options_has_the_defaults() {
        let text = "[[ring.serve]]\nname=\"s\"\ncore=\"c\"\nring=\"/dev/shm/a\"\nbind=\"0.0.0.0:7400\"\n\
                    [[ring.mirror]]\nname=\"m\"\ncore=\"c\"\nsource=\"h:7400\"\nring=\"/dev/shm/b\"";
        let config = crate::config::parse(text).expect("parses");
        let bind = "0.0.0.0:7400".parse().expect("an address");
        assert_eq!(config.ring.serves, [Serve::new("s", "c", "/dev/shm/a".into(), bind)]);
        assert_eq!(config.ring.mirrors, [Mirror::new("m", "c", "h:7400", "/dev/shm/b".into())]);
    }
}
