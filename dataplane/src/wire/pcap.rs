//! Capture files at the level of their records: pcap (tcpdump.org/manpages/pcap-savefile.5.html) and pcapng
//! (draft-ietf-opsawg-pcapng). Decoders over bytes, and writers with nanosecond stamps; the reader of whole files is
//! `capture::source::file`.

use std::io::{self, Write};

use super::packet::LinkType;
use crate::units::NANOS_PER_SECOND;

/// Bytes of a pcap file header.
pub const PCAP_HEADER_BYTES: usize = 24;
/// Bytes of a pcap record header.
pub const PCAP_RECORD_BYTES: usize = 16;
/// The largest captured length of one packet: libpcap's MAXIMUM_SNAPLEN. A record that states more is damage.
pub const PACKET_BYTES_MAX: u32 = 262_144;
/// The largest pcapng block: libpcap's INITIAL_MAX_BLOCKSIZE for big links (16 MiB). A block that states more is
/// damage; it bounds the reader's memory.
pub const BLOCK_BYTES_MAX: u32 = 16 * 1024 * 1024;
/// The smallest pcapng block: type, length, length again.
pub const BLOCK_BYTES_MIN: u32 = 12;

/// Section header block: a palindrome, so that it reads the same in either byte order.
pub const BLOCK_SECTION: u32 = 0x0a0d_0d0a;
/// Interface description block.
pub const BLOCK_INTERFACE: u32 = 1;
/// Packet block (obsolete).
pub const BLOCK_PACKET: u32 = 2;
/// Simple packet block.
pub const BLOCK_SIMPLE_PACKET: u32 = 3;
/// Enhanced packet block.
pub const BLOCK_ENHANCED_PACKET: u32 = 6;
/// The byte-order magic of a section header.
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

const OPTION_END: u16 = 0;
const OPTION_IF_NAME: u16 = 2;
const OPTION_IF_TSRESOL: u16 = 9;
const OPTION_IF_TSOFFSET: u16 = 14;

/// The order in which a file (or a section of it) writes its integers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl ByteOrder {
    /// Two bytes at `at`; `None` beyond the end.
    pub fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let value = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            ByteOrder::Little => u16::from_le_bytes(value),
            ByteOrder::Big => u16::from_be_bytes(value),
        })
    }

    /// Four bytes at `at`; `None` beyond the end.
    #[inline]
    pub fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let value = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            ByteOrder::Little => u32::from_le_bytes(value),
            ByteOrder::Big => u32::from_be_bytes(value),
        })
    }

    fn i64(self, bytes: &[u8]) -> Option<i64> {
        let value = *bytes.first_chunk()?;
        Some(match self {
            ByteOrder::Little => i64::from_le_bytes(value),
            ByteOrder::Big => i64::from_be_bytes(value),
        })
    }
}

/// What the first four bytes of a (decompressed) file say that it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// pcap, with its byte order and whether stamps are nanoseconds (else microseconds).
    Pcap {
        /// Byte order of the whole file.
        order: ByteOrder,
        /// Nanosecond stamps.
        nanoseconds: bool,
    },
    /// pcapng.
    Pcapng,
    /// A private variant of pcap with other record headers; the name says whose.
    Variant(&'static str),
    /// None of these.
    Unknown,
}

/// The file's kind by its first four bytes.
pub fn file_kind(magic: [u8; 4]) -> FileKind {
    let known = |value: u32, order: ByteOrder| match value {
        0xa1b2_c3d4 => Some(FileKind::Pcap { order, nanoseconds: false }),
        0xa1b2_3c4d => Some(FileKind::Pcap { order, nanoseconds: true }),
        BLOCK_SECTION => Some(FileKind::Pcapng),
        0xa1b2_cd34 => Some(FileKind::Variant("Kuznetzov's modified pcap")),
        0xa1b2_34cd => Some(FileKind::Variant("Mesquita's modified pcap")),
        0xa12b_3c4d => Some(FileKind::Variant("Navtel's modified pcap")),
        0x1c00_01ac => Some(FileKind::Variant("Ixia's hardware lcap")),
        0x1c00_01ab => Some(FileKind::Variant("Ixia's software lcap")),
        _ => None,
    };
    known(u32::from_le_bytes(magic), ByteOrder::Little)
        .or_else(|| known(u32::from_be_bytes(magic), ByteOrder::Big))
        .unwrap_or(FileKind::Unknown)
}

/// A pcap file header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PcapHeader {
    /// Byte order of the whole file.
    pub order: ByteOrder,
    /// Nanosecond stamps, else microseconds.
    pub nanoseconds: bool,
    /// Format version, major and minor; 2.4 is what everybody writes.
    pub version: (u16, u16),
    /// The largest captured length that the writer promised; not relied on.
    pub snap_bytes: u32,
    /// The link layer of every frame.
    pub link: LinkType,
}

impl PcapHeader {
    /// Reads a header. `None` where the magic is not pcap's.
    pub fn read(bytes: &[u8; PCAP_HEADER_BYTES]) -> Option<PcapHeader> {
        let FileKind::Pcap { order, nanoseconds } = file_kind(*bytes.first_chunk()?) else { return None };
        Some(PcapHeader {
            order,
            nanoseconds,
            version: (order.u16(bytes, 4)?, order.u16(bytes, 6)?),
            snap_bytes: order.u32(bytes, 16)?,
            // The upper half holds the length of the frame check sequence, which nobody here needs.
            link: LinkType::from_value(order.u32(bytes, 20)? as u16),
        })
    }

    /// Reads one record header.
    pub fn record(&self, bytes: &[u8; PCAP_RECORD_BYTES]) -> PcapRecord {
        let field = |at| self.order.u32(bytes, at).unwrap_or(0);
        let fraction = i64::from(field(4)) * if self.nanoseconds { 1 } else { 1_000 };
        let fraction_ok = fraction < NANOS_PER_SECOND;
        let fraction = if fraction_ok { fraction } else { 0 };
        let (mut captured_bytes, mut original_bytes) = (field(8), field(12));
        // Before 2.3 the two lengths stood the other way round; 2.3 was written both ways.
        let swapped = self.version.1 < 3 || self.version.1 == 3 && captured_bytes > original_bytes;
        if swapped {
            std::mem::swap(&mut captured_bytes, &mut original_bytes);
        }
        let capture_ns = i64::from(field(0)) * NANOS_PER_SECOND + fraction;
        PcapRecord { capture_ns, fraction_ok, captured_bytes, original_bytes }
    }
}

/// A pcap record header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PcapRecord {
    /// Capture time, ns since the Unix epoch; the whole second where the fraction is none.
    pub capture_ns: i64,
    /// Whether the fraction is below a second.
    pub fraction_ok: bool,
    /// Bytes that follow.
    pub captured_bytes: u32,
    /// Bytes that the frame had.
    pub original_bytes: u32,
}

/// The byte order of a pcapng section, from the first 12 bytes of its header block.
pub fn section_order(bytes: &[u8]) -> Option<ByteOrder> {
    [ByteOrder::Little, ByteOrder::Big].into_iter().find(|order| order.u32(bytes, 8) == Some(BYTE_ORDER_MAGIC))
}

/// The unit and zero of an interface's stamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeUnit {
    /// if_tsresol as written: bit 7 set, 2 to the power of the other bits in a second; clear, 10 to their power.
    pub resolution: u8,
    /// if_tsoffset, seconds.
    pub offset_seconds: i64,
}

impl TimeUnit {
    /// What holds where the options are absent: microseconds since the epoch.
    pub const DEFAULT: TimeUnit = TimeUnit { resolution: 6, offset_seconds: 0 };

    /// `ticks` as ns since the Unix epoch, rounded down; `None` where that is no i64.
    pub fn nanoseconds(self, ticks: u64) -> Option<i64> {
        let power = u32::from(self.resolution & 0x7f);
        let nanos = if self.resolution & 0x80 != 0 {
            // ticks × 10⁹ is below 2⁹⁴, so that no power up to 127 can overflow the shift.
            (u128::from(ticks) * NANOS_PER_SECOND as u128) >> power
        } else if power <= 9 {
            u128::from(ticks) * 10u128.pow(9 - power)
        } else {
            // Beyond 10³⁸ there is no u128; such a tick is far below a nanosecond.
            10u128.checked_pow(power - 9).map_or(0, |divisor| u128::from(ticks) / divisor)
        };
        let offset = i128::from(self.offset_seconds) * i128::from(NANOS_PER_SECOND);
        i64::try_from(i128::try_from(nanos).ok()? + offset).ok()
    }
}

/// An interface description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// The link layer of its frames.
    pub link: LinkType,
    /// Its snap length, 0 for none; a simple packet block's captured length depends on it.
    pub snap_bytes: u32,
    /// The unit of its stamps.
    pub unit: TimeUnit,
    /// if_name, where it is given.
    pub name: Option<String>,
}

impl Interface {
    /// Reads an interface description block's body (without type and lengths).
    ///
    /// Errors: a text that says what of the block is wrong. The interface still counts: later blocks name it by number.
    pub fn read(order: ByteOrder, body: &[u8]) -> Result<Interface, String> {
        let (Some(link), Some(snap_bytes)) = (order.u16(body, 0), order.u32(body, 4)) else {
            return Err(format!("an interface description of {} bytes, below 8", body.len()));
        };
        let mut interface =
            Interface { link: LinkType::from_value(link), snap_bytes, unit: TimeUnit::DEFAULT, name: None };
        for option in options(order, &body[8..]) {
            let (code, value) = option?;
            match code {
                OPTION_IF_NAME => interface.name = Some(String::from_utf8_lossy(value).into_owned()),
                OPTION_IF_TSRESOL => {
                    interface.unit.resolution =
                        *value.first().ok_or_else(|| "an if_tsresol option without a value".to_string())?;
                }
                OPTION_IF_TSOFFSET => {
                    interface.unit.offset_seconds = order
                        .i64(value)
                        .ok_or_else(|| format!("an if_tsoffset option of {} bytes, not 8", value.len()))?;
                }
                _ => {}
            }
        }
        Ok(interface)
    }
}

/// Walks a block's options: code and value, padding removed. Ends after an error or at the end-of-options code.
pub fn options(order: ByteOrder, mut bytes: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8]), String>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let (Some(code), Some(length)) = (order.u16(bytes, 0), order.u16(bytes, 2)) else {
            bytes = &[];
            return Some(Err("an option cut at its header".to_string()));
        };
        if code == OPTION_END {
            bytes = &[];
            return None;
        }
        let Some(value) = bytes.get(4..4 + usize::from(length)) else {
            let left = bytes.len() - 4;
            bytes = &[];
            return Some(Err(format!("option {code} of {length} bytes where {left} are left")));
        };
        // The last option's padding may be missing: its value is whole.
        bytes = bytes.get(4 + usize::from(length).next_multiple_of(4)..).unwrap_or(&[]);
        Some(Ok((code, value)))
    })
}

/// A pcapng packet of any kind, borrowed from its block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NgPacket<'a> {
    /// The section's number for the interface; 0 for a simple packet.
    pub interface: u32,
    /// The stamp in the interface's unit; a simple packet has none.
    pub ticks: Option<u64>,
    /// Bytes that the frame had.
    pub original_bytes: u32,
    /// The captured bytes.
    pub data: &'a [u8],
}

/// Reads the body of a packet block of `kind` ([`BLOCK_ENHANCED_PACKET`], [`BLOCK_PACKET`], [`BLOCK_SIMPLE_PACKET`]).
/// `snap_bytes` is that of interface 0, which a simple packet refers to.
///
/// Errors: a text that says what of the block is wrong.
pub fn ng_packet(order: ByteOrder, kind: u32, body: &[u8], snap_bytes: u32) -> Result<NgPacket<'_>, String> {
    let short = || format!("a packet block of {} bytes, shorter than its header", body.len());
    let field = |at| order.u32(body, at).ok_or_else(short);
    if kind == BLOCK_SIMPLE_PACKET {
        let original_bytes = field(0)?;
        let limit = if snap_bytes == 0 { u32::MAX } else { snap_bytes };
        let captured = original_bytes.min(limit);
        let data = captured_bytes(&body[4..], captured)?;
        return Ok(NgPacket { interface: 0, ticks: None, original_bytes, data });
    }
    let interface = if kind == BLOCK_PACKET { u32::from(order.u16(body, 0).ok_or_else(short)?) } else { field(0)? };
    let ticks = u64::from(field(4)?) << 32 | u64::from(field(8)?);
    let (captured, original_bytes) = (field(12)?, field(16)?);
    let data = captured_bytes(&body[20..], captured)?;
    Ok(NgPacket { interface, ticks: Some(ticks), original_bytes, data })
}

fn captured_bytes(rest: &[u8], captured: u32) -> Result<&[u8], String> {
    if captured > PACKET_BYTES_MAX {
        return Err(format!("a packet of {captured} bytes, above the limit of {PACKET_BYTES_MAX}"));
    }
    rest.get(..captured as usize).ok_or_else(|| format!("a packet of {captured} bytes in a block with {}", rest.len()))
}

/// What a writer needs to know of an interface: a name for people, and the link layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InterfaceName<'a> {
    /// if_name; sluice names one interface per side.
    pub name: &'a str,
    /// The link layer of its frames.
    pub link: LinkType,
}

/// Writes pcapng: one section, little-endian, nanosecond stamps.
#[derive(Debug)]
pub struct PcapngWriter<W: Write> {
    out: W,
    interfaces: u32,
    block: Vec<u8>,
}

impl<W: Write> PcapngWriter<W> {
    /// Writes the section header and one interface description for each of `interfaces` (numbered in this order).
    pub fn new(out: W, interfaces: &[InterfaceName<'_>]) -> io::Result<PcapngWriter<W>> {
        let mut writer = PcapngWriter { out, interfaces: 0, block: Vec::new() };
        writer.begin(BLOCK_SECTION);
        writer.block.extend_from_slice(&BYTE_ORDER_MAGIC.to_le_bytes());
        writer.block.extend_from_slice(&1u16.to_le_bytes());
        writer.block.extend_from_slice(&0u16.to_le_bytes());
        // The section's length is not known in advance (−1).
        writer.block.extend_from_slice(&u64::MAX.to_le_bytes());
        writer.option(4, b"sluice"); // shb_userappl
        writer.end_options();
        writer.end()?;
        for interface in interfaces {
            writer.interface(*interface)?;
        }
        Ok(writer)
    }

    /// Adds an interface and returns its number.
    pub fn interface(&mut self, interface: InterfaceName<'_>) -> io::Result<u32> {
        self.begin(BLOCK_INTERFACE);
        self.block.extend_from_slice(&interface.link.value().to_le_bytes());
        self.block.extend_from_slice(&0u16.to_le_bytes());
        self.block.extend_from_slice(&PACKET_BYTES_MAX.to_le_bytes());
        self.option(OPTION_IF_NAME, interface.name.as_bytes());
        self.option(OPTION_IF_TSRESOL, &[9]);
        self.end_options();
        self.end()?;
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    /// Writes one packet. Asserts that `interface` was declared.
    ///
    /// Errors: those of the output; `InvalidInput` for a stamp before 1970 (pcapng stamps are unsigned) and for a
    /// packet beyond [`PACKET_BYTES_MAX`].
    pub fn packet(&mut self, interface: u32, capture_ns: i64, original_bytes: u32, data: &[u8]) -> io::Result<()> {
        assert!(interface < self.interfaces, "interface {interface} of {}", self.interfaces);
        let ticks = u64::try_from(capture_ns).map_err(|_| before_epoch(capture_ns))?;
        let captured = packet_bytes(data)?;
        self.begin(BLOCK_ENHANCED_PACKET);
        for field in [interface, (ticks >> 32) as u32, ticks as u32, captured, original_bytes] {
            self.block.extend_from_slice(&field.to_le_bytes());
        }
        self.block.extend_from_slice(data);
        self.pad();
        self.end()
    }

    /// Flushes and gives the output back.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn begin(&mut self, kind: u32) {
        self.block.clear();
        self.block.extend_from_slice(&kind.to_le_bytes());
        self.block.extend_from_slice(&[0; 4]);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        let length = u16::try_from(value.len()).expect("our own options are short");
        self.block.extend_from_slice(&code.to_le_bytes());
        self.block.extend_from_slice(&length.to_le_bytes());
        self.block.extend_from_slice(value);
        self.pad();
    }

    fn end_options(&mut self) {
        self.block.extend_from_slice(&[0; 4]);
    }

    fn pad(&mut self) {
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn end(&mut self) -> io::Result<()> {
        let length = self.block.len() as u32 + 4;
        self.block[4..8].copy_from_slice(&length.to_le_bytes());
        self.block.extend_from_slice(&length.to_le_bytes());
        self.out.write_all(&self.block)
    }
}

/// Writes pcap: little-endian, nanosecond stamps, one link type.
#[derive(Debug)]
pub struct PcapWriter<W: Write> {
    out: W,
}

impl<W: Write> PcapWriter<W> {
    /// Writes the file header.
    pub fn new(mut out: W, link: LinkType) -> io::Result<PcapWriter<W>> {
        let mut header = Vec::with_capacity(PCAP_HEADER_BYTES);
        header.extend_from_slice(&0xa1b2_3c4d_u32.to_le_bytes());
        header.extend_from_slice(&2u16.to_le_bytes());
        header.extend_from_slice(&4u16.to_le_bytes());
        header.extend_from_slice(&[0; 8]);
        header.extend_from_slice(&PACKET_BYTES_MAX.to_le_bytes());
        header.extend_from_slice(&u32::from(link.value()).to_le_bytes());
        out.write_all(&header)?;
        Ok(PcapWriter { out })
    }

    /// Writes one packet.
    ///
    /// Errors: those of the output; `InvalidInput` for a stamp outside 1970 to 2106 (seconds are a u32) and for a packet
    /// beyond [`PACKET_BYTES_MAX`].
    pub fn packet(&mut self, capture_ns: i64, original_bytes: u32, data: &[u8]) -> io::Result<()> {
        let seconds = u32::try_from(capture_ns.div_euclid(NANOS_PER_SECOND)).map_err(|_| before_epoch(capture_ns))?;
        let nanos = capture_ns.rem_euclid(NANOS_PER_SECOND) as u32;
        let captured = packet_bytes(data)?;
        let mut header = [0; PCAP_RECORD_BYTES];
        for (bytes, field) in header.chunks_exact_mut(4).zip([seconds, nanos, captured, original_bytes]) {
            bytes.copy_from_slice(&field.to_le_bytes());
        }
        self.out.write_all(&header)?;
        self.out.write_all(data)
    }

    /// Flushes and gives the output back.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

fn before_epoch(capture_ns: i64) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("capture time {capture_ns} ns does not fit the capture format: it must lie between 1970 and 2106"),
    )
}

fn packet_bytes(data: &[u8]) -> io::Result<u32> {
    u32::try_from(data.len()).ok().filter(|bytes| *bytes <= PACKET_BYTES_MAX).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a packet of {} bytes, above the capture format's limit of {PACKET_BYTES_MAX}", data.len()),
        )
    })
}
