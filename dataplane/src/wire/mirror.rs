//! The replication protocol, version 1 of what the crate ringfire (0.5) speaks, and our extension of it (kinds from 0x40).
//!
//! Little-endian. A frame is a 16-byte header (kind u8, flags u8, count u16, payload bytes u32, sequence u64) and its
//! payload, the same on TCP and in datagrams. Only a mirror whose HELLO says so ([`hello_flag::EXTENDED`]) is sent frames
//! of the extension.

use core::net::Ipv4Addr;

use super::ring::{ARENA_HEADER_BYTES, DESCRIPTOR_BYTES, Geometry, HEADER_BYTES as RING_HEADER_BYTES};
use super::ring::{REGISTRY_ENTRY_BYTES, SEQUENCE_BYTES};

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 16;
/// First payload bytes of HELLO, as a little-endian number.
pub const HELLO_MAGIC: u64 = 0x5249_4E47_4D49_5252;
/// The only version that is spoken.
pub const VERSION: u32 = 1;
/// HELLO's sequence: only what comes after it.
pub const WANT_NEW: u64 = 0;
/// HELLO's sequence: all that is retained.
pub const WANT_OLDEST: u64 = u64::MAX;
/// Payload bytes of HELLO.
pub const HELLO_BYTES: usize = 16;
/// Payload bytes of GEOMETRY.
pub const GEOMETRY_BYTES: usize = 48;
/// Payload bytes of MULTICAST.
pub const ANNOUNCE_BYTES: usize = 16;
/// Payload bytes of NAK.
pub const NAK_BYTES: usize = 8;
/// Payload bytes of GAP to a mirror of ours that gets datagrams; the peer's has none.
pub const GAP_BYTES: usize = 8;
/// Payload bytes of EXT.
pub const EXT_BYTES: usize = 44;
/// Payload bytes of PROOF.
pub const PROOF_BYTES: usize = 48;
/// Payload bytes of ACCEPT.
pub const ACCEPT_BYTES: usize = 64;
/// Bytes after the frame in a datagram of an extended session: counter u64, then tag u64 (see `docs/formats/mirror.md`).
pub const TRAILER_BYTES: usize = 16;
/// Most bytes of a DATA frame on TCP, header included, unless a single record is longer (the peer's cap).
pub const STREAM_FRAME_BYTES: usize = 1 << 20;
/// Most records that one NAK asks for (the peer's number: a u16's worth).
pub const NAK_RECORDS_MAX: u64 = 65_535;
/// Longest payload of a UDP datagram over IPv4: 65,535 less both headers.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Shortest datagram budget: a header and one 8-byte record (the peer's clamp).
pub const DATAGRAM_BYTES_MIN: usize = 24;
/// Sequences lie below this: half of the number space, so that no sum of a sequence and a count or capacity wraps, and
/// far from the marker 2^64−1. At 10^9 records a second it lasts 292 years.
pub const SEQUENCE_END: u64 = 1 << 63;

/// What a frame is.
pub mod kind {
    /// Mirror → source, first on TCP: which sequence is wanted.
    pub const HELLO: u8 = 1;
    /// Source → mirror, the answer: the ring's layout and the first sequence that will come.
    pub const GEOMETRY: u8 = 2;
    /// Source → mirror: consecutive records.
    pub const DATA: u8 = 3;
    /// Source → mirror, TCP: the next sequence that will come; what lies between is gone.
    pub const GAP: u8 = 4;
    /// Source → mirror: the last published (TCP) or sent (UDP) sequence.
    pub const HEARTBEAT: u8 = 5;
    /// Mirror → source, TCP: records first..=last are missing.
    pub const NAK: u8 = 6;
    /// Source → mirror, TCP, after GEOMETRY: where datagrams will come from.
    pub const MULTICAST: u8 = 7;
    /// Mirror → source, UDP: send my datagrams to where this came from.
    pub const PUNCH: u8 = 8;
    /// Ours, source → mirror, last of its greeting: incarnation, 64-bit session and token.
    pub const EXT: u8 = 0x40;
    /// Ours, mirror → source, after EXT when a key is set: nonce and proof.
    pub const PROOF: u8 = 0x41;
    /// Ours, source → mirror, the answer: proof, and the sealed group key.
    pub const ACCEPT: u8 = 0x42;
    /// Ours, source → mirror: the session ends; `count` says why (see [`super::EndReason`]).
    pub const END: u8 = 0x43;
}

/// Bits of HELLO's flags (in its payload).
pub mod hello_flag {
    /// Can receive unicast datagrams.
    pub const UNICAST: u8 = 0x01;
    /// Prefers them to multicast.
    pub const PREFER_UNICAST: u8 = 0x02;
    /// Ours: speaks the extension.
    pub const EXTENDED: u8 = 0x80;
}

/// Bits of GEOMETRY's flags (in its header).
pub mod geometry_flag {
    /// The wanted sequence was ahead of the source: its numbering began again.
    pub const AHEAD: u8 = 0x01;
    /// A MULTICAST frame follows: records come in datagrams.
    pub const DATAGRAMS: u8 = 0x02;
    /// Ours, only to an extended mirror: an EXT frame ends the greeting.
    pub const EXTENDED: u8 = 0x80;
}

/// Bits of HEARTBEAT's flags on TCP.
pub mod heartbeat_flag {
    /// Ours, only to an extended mirror: the source answers, but its ring's producer is dead or stalls.
    pub const NO_PRODUCER: u8 = 0x80;
}

/// Bits of EXT's features.
pub mod feature {
    /// The source has a key: a PROOF must follow.
    pub const KEYED: u32 = 0x1;
    /// Datagrams end in a trailer.
    pub const TRAILER: u32 = 0x2;
}

/// Why bytes are no frame. Each is a counter, never a panic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes than the frame needs.
    #[error("{bytes} bytes are no whole frame")]
    Short {
        /// How many there are.
        bytes: usize,
    },
    /// Another kind than may come here.
    #[error("frame kind {kind} may not come here")]
    Kind {
        /// The kind.
        kind: u8,
    },
    /// The payload's length is not that of the kind.
    #[error("frame kind {kind} has {bytes} payload bytes")]
    Length {
        /// The kind.
        kind: u8,
        /// What its header says.
        bytes: u32,
    },
    /// HELLO without its magic.
    #[error("HELLO does not begin with its magic")]
    Magic,
    /// Another protocol version.
    #[error("protocol version {version}; only 1 is spoken")]
    Version {
        /// What HELLO says.
        version: u32,
    },
    /// MULTICAST names an address that is neither a group nor 0.0.0.0.
    #[error("MULTICAST names {group}, which is no group")]
    Group {
        /// What it names.
        group: Ipv4Addr,
    },
    /// GEOMETRY describes no ring.
    #[error("GEOMETRY: {0}")]
    Geometry(#[from] GeometryError),
    /// DATA whose records do not fill it exactly.
    #[error("DATA of {count} records does not fit its {bytes} bytes")]
    Records {
        /// Records it announces.
        count: u16,
        /// Bytes it has.
        bytes: usize,
    },
    /// A sequence at or beyond [`SEQUENCE_END`], or 0 where there is none.
    #[error("sequence {sequence} is impossible")]
    Sequence {
        /// The sequence.
        sequence: u64,
    },
}

/// Why a layout is no ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GeometryError {
    /// Not a power of two.
    #[error("capacity {0} is not a power of two")]
    Capacity(u64),
    /// Below 8 or not a multiple of it.
    #[error("element size {0} is not a multiple of 8")]
    ElementSize(u32),
    /// Inside header or registry, or not a multiple of 64.
    #[error("slots cannot begin at {0}")]
    SlotsOffset(u32),
    /// Inside the slots, not a multiple of 64, or absent although the arena has a size.
    #[error("the arena cannot begin at {0}")]
    ArenaOffset(u64),
    /// Not a power of two of at least 64.
    #[error("the arena cannot have {0} bytes")]
    ArenaSize(u64),
    /// A blob ring's slot without room for a descriptor.
    #[error("slots of {0} bytes hold no blob descriptor")]
    Descriptor(u32),
    /// More bytes than 64 bits count.
    #[error("the ring is larger than a file can be")]
    TooLarge,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The 16 bytes that begin every frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// See [`kind`].
    pub kind: u8,
    /// By kind; in datagrams the source's session byte.
    pub flags: u8,
    /// Records of DATA; the reason of END.
    pub count: u16,
    /// Payload bytes.
    pub bytes: u32,
    /// By kind.
    pub sequence: u64,
}

impl Header {
    /// A frame without payload.
    pub fn bare(kind: u8, flags: u8, sequence: u64) -> Header {
        Header { kind, flags, count: 0, bytes: 0, sequence }
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0] = self.kind;
        out[1] = self.flags;
        out[2..4].copy_from_slice(&self.count.to_le_bytes());
        out[4..8].copy_from_slice(&self.bytes.to_le_bytes());
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out
    }

    /// The header at the front of `bytes`.
    ///
    /// # Errors
    /// Fewer than 16 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Header, FrameError> {
        let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(FrameError::Short { bytes: bytes.len() });
        };
        Ok(Header {
            kind: head[0],
            flags: head[1],
            count: u16_at(head, 2),
            bytes: u32_at(head, 4),
            sequence: u64_at(head, 8),
        })
    }

    /// Bytes of the whole frame.
    pub fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.bytes as usize
    }

    /// Holds the payload length against that of the kind.
    fn of(&self, kind: u8, payload: &[u8], bytes: usize) -> Result<(), FrameError> {
        match () {
            () if self.kind != kind => Err(FrameError::Kind { kind: self.kind }),
            () if self.bytes as usize != bytes => Err(FrameError::Length { kind, bytes: self.bytes }),
            () if payload.len() < bytes => Err(FrameError::Short { bytes: HEADER_BYTES + payload.len() }),
            () => Ok(()),
        }
    }
}

/// HELLO: what a mirror wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// [`WANT_NEW`], [`WANT_OLDEST`] or a sequence.
    pub wanted: u64,
    /// See [`hello_flag`].
    pub flags: u8,
}

impl Hello {
    /// The frame.
    pub fn encode(&self) -> [u8; HEADER_BYTES + HELLO_BYTES] {
        let mut out = [0; HEADER_BYTES + HELLO_BYTES];
        let header = Header { kind: kind::HELLO, flags: 0, count: 0, bytes: HELLO_BYTES as u32, sequence: self.wanted };
        out[..16].copy_from_slice(&header.encode());
        out[16..24].copy_from_slice(&HELLO_MAGIC.to_le_bytes());
        out[24..28].copy_from_slice(&VERSION.to_le_bytes());
        out[28] = self.flags;
        out
    }

    /// Reads the payload after `header`.
    ///
    /// # Errors
    /// It is no HELLO of this protocol and version.
    pub fn decode(header: &Header, payload: &[u8]) -> Result<Hello, FrameError> {
        header.of(kind::HELLO, payload, HELLO_BYTES)?;
        match (u64_at(payload, 0), u32_at(payload, 8)) {
            (HELLO_MAGIC, VERSION) => Ok(Hello { wanted: header.sequence, flags: payload[12] }),
            (HELLO_MAGIC, version) => Err(FrameError::Version { version }),
            _ => Err(FrameError::Magic),
        }
    }
}

/// GEOMETRY: what a source answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// The ring's layout.
    pub geometry: Geometry,
    /// See [`geometry_flag`].
    pub flags: u8,
    /// The first sequence that will come.
    pub first: u64,
}

impl Greeting {
    /// The frame.
    pub fn encode(&self) -> [u8; HEADER_BYTES + GEOMETRY_BYTES] {
        let mut out = [0; HEADER_BYTES + GEOMETRY_BYTES];
        let header = Header {
            kind: kind::GEOMETRY,
            flags: self.flags,
            count: 0,
            bytes: GEOMETRY_BYTES as u32,
            sequence: self.first,
        };
        out[..16].copy_from_slice(&header.encode());
        let geometry = &self.geometry;
        out[16..24].copy_from_slice(&geometry.capacity.to_le_bytes());
        out[24..28].copy_from_slice(&geometry.element_size.to_le_bytes());
        out[28..32].copy_from_slice(&geometry.flags.to_le_bytes());
        out[32..40].copy_from_slice(&geometry.schema_sig.to_le_bytes());
        out[40..44].copy_from_slice(&geometry.registry_count.to_le_bytes());
        out[44..48].copy_from_slice(&geometry.slots_offset.to_le_bytes());
        out[48..56].copy_from_slice(&geometry.arena_offset.to_le_bytes());
        out[56..64].copy_from_slice(&geometry.arena_size.to_le_bytes());
        out
    }

    /// Reads the payload after `header`; the layout is checked (see [`file_bytes`]).
    ///
    /// # Errors
    /// It is no GEOMETRY, describes no ring, or begins at an impossible sequence.
    pub fn decode(header: &Header, payload: &[u8]) -> Result<Greeting, FrameError> {
        header.of(kind::GEOMETRY, payload, GEOMETRY_BYTES)?;
        let geometry = Geometry {
            capacity: u64_at(payload, 0),
            element_size: u32_at(payload, 8),
            flags: u32_at(payload, 12),
            schema_sig: u64_at(payload, 16),
            registry_count: u32_at(payload, 24),
            slots_offset: u32_at(payload, 28),
            arena_offset: u64_at(payload, 32),
            arena_size: u64_at(payload, 40),
        };
        file_bytes(&geometry)?;
        check_sequence(header.sequence)?;
        Ok(Greeting { geometry, flags: header.flags, first: header.sequence })
    }
}

/// Bytes of the file that a layout needs.
///
/// # Errors
/// It describes no ring.
pub fn file_bytes(geometry: &Geometry) -> Result<u64, GeometryError> {
    let Geometry { capacity, element_size, slots_offset, arena_offset, arena_size, .. } = *geometry;
    if !capacity.is_power_of_two() {
        return Err(GeometryError::Capacity(capacity));
    }
    if element_size < SEQUENCE_BYTES as u32 || !element_size.is_multiple_of(8) {
        return Err(GeometryError::ElementSize(element_size));
    }
    let registry_end = RING_HEADER_BYTES as u64 + u64::from(geometry.registry_count) * REGISTRY_ENTRY_BYTES as u64;
    if u64::from(slots_offset) < registry_end || !slots_offset.is_multiple_of(64) {
        return Err(GeometryError::SlotsOffset(slots_offset));
    }
    let slots = capacity.checked_mul(u64::from(element_size)).ok_or(GeometryError::TooLarge)?;
    let slots_end = slots.checked_add(u64::from(slots_offset)).ok_or(GeometryError::TooLarge)?;
    // A sequence and a capacity are added here and there; both are below half of the number space.
    if capacity >= SEQUENCE_END {
        return Err(GeometryError::TooLarge);
    }
    if arena_offset == 0 {
        return if arena_size == 0 { Ok(slots_end) } else { Err(GeometryError::ArenaOffset(0)) };
    }
    if arena_offset < slots_end || !arena_offset.is_multiple_of(64) {
        return Err(GeometryError::ArenaOffset(arena_offset));
    }
    if !arena_size.is_power_of_two() || arena_size < 64 {
        return Err(GeometryError::ArenaSize(arena_size));
    }
    if (element_size as usize) < SEQUENCE_BYTES + DESCRIPTOR_BYTES {
        return Err(GeometryError::Descriptor(element_size));
    }
    let arena = arena_size.checked_add(ARENA_HEADER_BYTES).ok_or(GeometryError::TooLarge)?;
    arena_offset.checked_add(arena).ok_or(GeometryError::TooLarge)
}

/// Whether a ring of one layout holds what a ring of the other does (flags may differ: a mirror's are its own).
pub fn same_layout(one: &Geometry, other: &Geometry) -> bool {
    Geometry { flags: 0, ..*one } == Geometry { flags: 0, ..*other }
}

fn check_sequence(sequence: u64) -> Result<(), FrameError> {
    match sequence {
        1..SEQUENCE_END => Ok(()),
        sequence => Err(FrameError::Sequence { sequence }),
    }
}

/// MULTICAST: where datagrams come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announce {
    /// The group; 0.0.0.0 is unicast.
    pub group: Ipv4Addr,
    /// The group's port, or the source's that PUNCH goes to.
    pub port: u16,
    /// Bytes of a datagram, as far as 16 bits tell.
    pub datagram_bytes: u16,
    /// Time to live.
    pub ttl: u8,
    /// Stands in the flags of each datagram.
    pub session: u8,
    /// What PUNCH carries (extended mirrors use EXT's).
    pub token: u32,
}

impl Announce {
    /// The frame.
    pub fn encode(&self) -> [u8; HEADER_BYTES + ANNOUNCE_BYTES] {
        let mut out = [0; HEADER_BYTES + ANNOUNCE_BYTES];
        let header = Header { kind: kind::MULTICAST, bytes: ANNOUNCE_BYTES as u32, ..Header::default() };
        out[..16].copy_from_slice(&header.encode());
        out[16..20].copy_from_slice(&self.group.octets());
        out[20..22].copy_from_slice(&self.port.to_le_bytes());
        out[22..24].copy_from_slice(&self.datagram_bytes.to_le_bytes());
        out[24] = self.ttl;
        out[25] = self.session;
        out[26..30].copy_from_slice(&self.token.to_le_bytes());
        out
    }

    /// Reads the payload after `header`.
    ///
    /// # Errors
    /// It is no MULTICAST, or names no group.
    pub fn decode(header: &Header, payload: &[u8]) -> Result<Announce, FrameError> {
        header.of(kind::MULTICAST, payload, ANNOUNCE_BYTES)?;
        let group = Ipv4Addr::new(payload[0], payload[1], payload[2], payload[3]);
        if !group.is_multicast() && !group.is_unspecified() {
            return Err(FrameError::Group { group });
        }
        Ok(Announce {
            group,
            port: u16_at(payload, 4),
            datagram_bytes: u16_at(payload, 6),
            ttl: payload[8],
            session: payload[9],
            token: u32_at(payload, 10),
        })
    }
}

/// NAK: records first..=last are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nak {
    /// The first.
    pub first: u64,
    /// The last, inclusive.
    pub last: u64,
}

impl Nak {
    /// The frame.
    pub fn encode(&self) -> [u8; HEADER_BYTES + NAK_BYTES] {
        let mut out = [0; HEADER_BYTES + NAK_BYTES];
        let header = Header { kind: kind::NAK, bytes: NAK_BYTES as u32, sequence: self.first, ..Header::default() };
        out[..16].copy_from_slice(&header.encode());
        out[16..24].copy_from_slice(&self.last.to_le_bytes());
        out
    }

    /// Reads the payload after `header`. Any range decodes: what of it is served is the source's business.
    ///
    /// # Errors
    /// It is no NAK.
    pub fn decode(header: &Header, payload: &[u8]) -> Result<Nak, FrameError> {
        header.of(kind::NAK, payload, NAK_BYTES)?;
        Ok(Nak { first: header.sequence, last: u64_at(payload, 0) })
    }
}

/// GAP: records that will not come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The first of them; `None`: all below `to` (the only thing that the peer's frame can say).
    pub from: Option<u64>,
    /// The next sequence that will come.
    pub to: u64,
}

impl Gap {
    /// Appends the frame.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let bytes = if self.from.is_some() { GAP_BYTES as u32 } else { 0 };
        let header = Header { kind: kind::GAP, bytes, sequence: self.to, ..Header::default() };
        out.extend_from_slice(&header.encode());
        if let Some(from) = self.from {
            out.extend_from_slice(&from.to_le_bytes());
        }
    }

    /// Reads the payload after `header`.
    ///
    /// # Errors
    /// It is no GAP, or leads to an impossible sequence.
    pub fn decode(header: &Header, payload: &[u8]) -> Result<Gap, FrameError> {
        let from = match header.bytes {
            0 => None,
            _ => {
                header.of(kind::GAP, payload, GAP_BYTES)?;
                Some(u64_at(payload, 0))
            }
        };
        check_sequence(header.sequence)?;
        Ok(Gap { from, to: header.sequence })
    }
}

/// EXT: what only our own mirrors are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ext {
    /// The ring's incarnation; 0 is none.
    pub incarnation: u64,
    /// The session; without a key it is the tag of each unicast datagram.
    pub session: u64,
    /// What PUNCH carries.
    pub token: u64,
    /// The source's part of the session keys.
    pub nonce: [u8; 16],
    /// See [`feature`].
    pub features: u32,
}

impl Ext {
    /// The frame.
    pub fn encode(&self) -> [u8; HEADER_BYTES + EXT_BYTES] {
        let mut out = [0; HEADER_BYTES + EXT_BYTES];
        let header = Header { kind: kind::EXT, bytes: EXT_BYTES as u32, ..Header::default() };
        out[..16].copy_from_slice(&header.encode());
        out[16..24].copy_from_slice(&self.incarnation.to_le_bytes());
        out[24..32].copy_from_slice(&self.session.to_le_bytes());
        out[32..40].copy_from_slice(&self.token.to_le_bytes());
        out[40..56].copy_from_slice(&self.nonce);
        out[56..60].copy_from_slice(&self.features.to_le_bytes());
        out
    }

    /// Reads the payload after `header`.
    ///
    /// # Errors
    /// It is no EXT.
    pub fn decode(header: &Header, payload: &[u8]) -> Result<Ext, FrameError> {
        header.of(kind::EXT, payload, EXT_BYTES)?;
        Ok(Ext {
            incarnation: u64_at(payload, 0),
            session: u64_at(payload, 8),
            token: u64_at(payload, 16),
            nonce: payload[24..40].try_into().expect("16 bytes"),
            features: u32_at(payload, 40),
        })
    }
}

/// PROOF: the mirror knows the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proof {
    /// The mirror's part of the session keys.
    pub nonce: [u8; 16],
    /// HMAC-SHA256 over the greeting and the nonce.
    pub mac: [u8; 32],
}

impl Proof {
    /// The frame.
    pub fn encode(&self) -> [u8; HEADER_BYTES + PROOF_BYTES] {
        let mut out = [0; HEADER_BYTES + PROOF_BYTES];
        let header = Header { kind: kind::PROOF, bytes: PROOF_BYTES as u32, ..Header::default() };
        out[..16].copy_from_slice(&header.encode());
        out[16..32].copy_from_slice(&self.nonce);
        out[32..64].copy_from_slice(&self.mac);
        out
    }

    /// Reads the payload after `header`.
    ///
    /// # Errors
    /// It is no PROOF.
    pub fn decode(header: &Header, payload: &[u8]) -> Result<Proof, FrameError> {
        header.of(kind::PROOF, payload, PROOF_BYTES)?;
        Ok(Proof {
            nonce: payload[..16].try_into().expect("16 bytes"),
            mac: payload[16..48].try_into().expect("32 bytes"),
        })
    }
}

/// ACCEPT: the source knows the key too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accept {
    /// HMAC-SHA256 over greeting, nonce and sealed group key.
    pub mac: [u8; 32],
    /// The group's key, masked under the session's.
    pub sealed_group_key: [u8; 32],
}

impl Accept {
    /// The frame.
    pub fn encode(&self) -> [u8; HEADER_BYTES + ACCEPT_BYTES] {
        let mut out = [0; HEADER_BYTES + ACCEPT_BYTES];
        let header = Header { kind: kind::ACCEPT, bytes: ACCEPT_BYTES as u32, ..Header::default() };
        out[..16].copy_from_slice(&header.encode());
        out[16..48].copy_from_slice(&self.mac);
        out[48..80].copy_from_slice(&self.sealed_group_key);
        out
    }

    /// Reads the payload after `header`.
    ///
    /// # Errors
    /// It is no ACCEPT.
    pub fn decode(header: &Header, payload: &[u8]) -> Result<Accept, FrameError> {
        header.of(kind::ACCEPT, payload, ACCEPT_BYTES)?;
        Ok(Accept {
            mac: payload[..32].try_into().expect("32 bytes"),
            sealed_group_key: payload[32..64].try_into().expect("32 bytes"),
        })
    }
}

/// Why END comes: its `count`. Unknown numbers are read as [`EndReason::Other`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndReason {
    /// No reason that is known here.
    Other = 0,
    /// The ring was replaced: connect again.
    SourceReplaced = 1,
    /// No proof of the source's key.
    KeyRequired = 2,
}

impl EndReason {
    /// The frame.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        Header { kind: kind::END, count: self as u16, ..Header::default() }.encode()
    }

    /// What a header's `count` says.
    pub fn decode(header: &Header) -> EndReason {
        match header.count {
            1 => EndReason::SourceReplaced,
            2 => EndReason::KeyRequired,
            _ => EndReason::Other,
        }
    }
}

/// The records of a DATA frame: a cursor over (slot payload, blob). The blob is empty for a ring without an arena.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    payload_bytes: usize,
    has_arena: bool,
    count: u16,
}

impl<'a> Records<'a> {
    /// The records of a frame with this header and payload, checked in full: they fill the payload exactly, and none has a
    /// sequence that cannot be.
    ///
    /// # Errors
    /// They do not.
    pub fn new(geometry: &Geometry, header: &Header, payload: &'a [u8]) -> Result<Records<'a>, FrameError> {
        let count = header.count;
        let wrong = FrameError::Records { count, bytes: payload.len() };
        check_sequence(header.sequence)?;
        if header.sequence + u64::from(count) > SEQUENCE_END {
            return Err(FrameError::Sequence { sequence: header.sequence });
        }
        let payload_bytes = geometry.payload_bytes();
        let records = Records { rest: payload, payload_bytes, has_arena: geometry.has_arena(), count };
        let slots = usize::from(count).checked_mul(payload_bytes).ok_or(wrong)?;
        if count == 0 || slots > payload.len() || (!records.has_arena && slots != payload.len()) {
            return Err(wrong);
        }
        if records.has_arena {
            let mut at = 0usize;
            for _ in 0..count {
                at = at.checked_add(payload_bytes).filter(|&end| end <= payload.len()).ok_or(wrong)?;
                at = at.checked_add(blob_bytes(&payload[..at])).filter(|&end| end <= payload.len()).ok_or(wrong)?;
            }
            if at != payload.len() {
                return Err(wrong);
            }
        }
        Ok(records)
    }
}

/// The length that the descriptor at the end of a slot payload names.
fn blob_bytes(slot: &[u8]) -> usize {
    u32_at(slot, slot.len() - DESCRIPTOR_BYTES + 8) as usize
}

impl<'a> Iterator for Records<'a> {
    type Item = (&'a [u8], &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        if self.count == 0 {
            return None;
        }
        self.count -= 1;
        let (slot, rest) = self.rest.split_at(self.payload_bytes);
        let (blob, rest) = if self.has_arena { rest.split_at(blob_bytes(slot)) } else { rest.split_at(0) };
        self.rest = rest;
        Some((slot, blob))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.count), Some(usize::from(self.count)))
    }
}

impl ExactSizeIterator for Records<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed() -> Geometry {
        Geometry { capacity: 1024, element_size: 72, flags: 0x11, slots_offset: 128, ..Geometry::default() }
    }

    fn blob_ring() -> Geometry {
        Geometry {
            capacity: 16,
            element_size: 40,
            slots_offset: 128,
            arena_offset: 768,
            arena_size: 1024,
            ..Geometry::default()
        }
    }

    #[test]
    fn frames_have_the_bytes_that_the_specification_gives() {
        let hello = Hello { wanted: 7, flags: hello_flag::UNICAST }.encode();
        let mut want = vec![1, 0, 0, 0, 16, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        want.extend_from_slice(b"RRIMGNIR");
        want.extend_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(hello[..], want[..]);
        let announce = Announce {
            group: Ipv4Addr::new(239, 255, 0, 1),
            port: 7401,
            datagram_bytes: 1472,
            ttl: 1,
            session: 9,
            token: 0x0102_0304,
        };
        let want = [239, 255, 0, 1, 0xE9, 0x1C, 0xC0, 5, 1, 9, 4, 3, 2, 1, 0, 0];
        assert_eq!(announce.encode()[16..], want);
        assert_eq!(announce.encode()[..8], [7, 0, 0, 0, 16, 0, 0, 0]);
        let nak = Nak { first: 5, last: 9 }.encode();
        assert_eq!(nak[..], [6, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        let mut gap = Vec::new();
        Gap { from: None, to: 258 }.encode_into(&mut gap);
        assert_eq!(gap, [4, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        let greeting = Greeting { geometry: blob_ring(), flags: geometry_flag::DATAGRAMS, first: 3 }.encode();
        assert_eq!(greeting[..16], [2, 2, 0, 0, 48, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(greeting[16..28], [16, 0, 0, 0, 0, 0, 0, 0, 40, 0, 0, 0]);
        assert_eq!(greeting[44..], [128, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn frames_come_back() {
        let frame = Hello { wanted: WANT_OLDEST, flags: 0x83 }.encode();
        let header = Header::decode(&frame).unwrap();
        assert_eq!(Hello::decode(&header, &frame[16..]), Ok(Hello { wanted: WANT_OLDEST, flags: 0x83 }));
        let greeting = Greeting { geometry: blob_ring(), flags: 0x83, first: 12 };
        let frame = greeting.encode();
        assert_eq!(Greeting::decode(&Header::decode(&frame).unwrap(), &frame[16..]), Ok(greeting));
        for gap in [Gap { from: None, to: 9 }, Gap { from: Some(3), to: 9 }] {
            let mut frame = Vec::new();
            gap.encode_into(&mut frame);
            assert_eq!(Gap::decode(&Header::decode(&frame).unwrap(), &frame[16..]), Ok(gap));
        }
        let ext = Ext { incarnation: 1, session: 2, token: 3, nonce: [4; 16], features: feature::KEYED };
        let frame = ext.encode();
        assert_eq!(Ext::decode(&Header::decode(&frame).unwrap(), &frame[16..]), Ok(ext));
        let proof = Proof { nonce: [1; 16], mac: [2; 32] };
        let frame = proof.encode();
        assert_eq!(Proof::decode(&Header::decode(&frame).unwrap(), &frame[16..]), Ok(proof));
        let accept = Accept { mac: [1; 32], sealed_group_key: [2; 32] };
        let frame = accept.encode();
        assert_eq!(Accept::decode(&Header::decode(&frame).unwrap(), &frame[16..]), Ok(accept));
        let end = Header::decode(&EndReason::KeyRequired.encode()).unwrap();
        assert_eq!((end.kind, EndReason::decode(&end)), (kind::END, EndReason::KeyRequired));
    }

    #[test]
    fn impossible_layouts_are_refused() {
        assert_eq!(file_bytes(&fixed()), Ok(128 + 1024 * 72));
        assert_eq!(file_bytes(&blob_ring()), Ok(768 + 64 + 1024));
        type Change = fn(&mut Geometry);
        let changes: [(Change, GeometryError); 10] = [
            (|g| g.capacity = 0, GeometryError::Capacity(0)),
            (|g| g.capacity = 1 << 63, GeometryError::TooLarge),
            (|g| g.element_size = 12, GeometryError::ElementSize(12)),
            (|g| g.registry_count = u32::MAX, GeometryError::SlotsOffset(128)),
            (|g| g.slots_offset = 64, GeometryError::SlotsOffset(64)),
            (|g| g.arena_offset = 704, GeometryError::ArenaOffset(704)),
            (|g| g.arena_size = 32, GeometryError::ArenaSize(32)),
            (|g| g.arena_size = 1 << 63, GeometryError::TooLarge),
            (|g| g.element_size = 16, GeometryError::Descriptor(16)),
            (|g| g.arena_offset = 0, GeometryError::ArenaOffset(0)),
        ];
        for (change, error) in changes {
            let mut geometry = blob_ring();
            change(&mut geometry);
            // A large arena needs a place that is a multiple of 64 below the end of numbers.
            if geometry.arena_size == 1 << 63 {
                geometry.arena_offset = (1 << 63) + 64;
            }
            assert_eq!(file_bytes(&geometry), Err(error));
        }
    }

    #[test]
    fn data_is_walked_record_by_record_and_refused_when_it_does_not_fit() {
        let geometry = blob_ring();
        let mut payload = Vec::new();
        for blob in [&b"abc"[..], b"", b"defgh"] {
            payload.extend_from_slice(&[7; 16]);
            payload.extend_from_slice(&99u64.to_le_bytes());
            payload.extend_from_slice(&(blob.len() as u32).to_le_bytes());
            payload.extend_from_slice(&5u32.to_le_bytes());
            payload.extend_from_slice(blob);
        }
        let header = Header { kind: kind::DATA, flags: 0, count: 3, bytes: payload.len() as u32, sequence: 10 };
        let records = Records::new(&geometry, &header, &payload).unwrap();
        assert_eq!(records.map(|(_, blob)| blob).collect::<Vec<_>>(), [&b"abc"[..], b"", b"defgh"]);
        for wrong in [&payload[..payload.len() - 1], &payload[..payload.len() - 8], &payload[..3], &[]] {
            assert!(Records::new(&geometry, &header, wrong).is_err());
        }
        for count in [0, 2, 4, u16::MAX] {
            assert!(Records::new(&geometry, &Header { count, ..header }, &payload).is_err());
        }
        for sequence in [0, SEQUENCE_END - 2, SEQUENCE_END, u64::MAX] {
            let header = Header { sequence, ..header };
            assert_eq!(Records::new(&geometry, &header, &payload).unwrap_err(), FrameError::Sequence { sequence });
        }
        let fixed = fixed();
        let header = Header { count: 2, bytes: 128, ..header };
        assert_eq!(Records::new(&fixed, &header, &[3; 128]).unwrap().count(), 2);
        assert!(Records::new(&fixed, &header, &[3; 129]).is_err());
    }
}
