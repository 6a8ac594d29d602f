//! Capture files as a source of frames: pcap and pcapng, plain, gzip or zstd, from a path or standard input.
//!
//! What a file is, its first bytes say, never its name. Damage is reported with its offset in the unpacked stream;
//! every whole packet before it is delivered, and in pcapng, whose blocks can be found again, every one after it.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::packet::LinkType;
use crate::wire::pcap::{
    self, BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, BLOCK_ENHANCED_PACKET, BLOCK_INTERFACE, BLOCK_PACKET, BLOCK_SECTION,
    BLOCK_SIMPLE_PACKET, ByteOrder, FileKind, Interface, PACKET_BYTES_MAX, PCAP_HEADER_BYTES, PCAP_RECORD_BYTES,
    PcapHeader,
};

/// First size of the read buffer: large enough that a read call's price vanishes among some thousand packets.
const BUFFER_BYTES: usize = 1 << 20;
/// Places of damage that are listed; a file of nothing but damage must not cost memory. The count goes on.
pub const DAMAGE_MAX: usize = 1_000;
/// Interfaces of one section; a file can state 2³². 65,536 is what an obsolete packet block can name.
const INTERFACES_MAX: usize = 65_536;

/// Why a source gives nothing (more).
#[derive(thiserror::Error, Debug)]
pub enum SourceError {
    /// The file cannot be opened.
    #[error("{name}: cannot open: {source}")]
    Open {
        /// The path, or `standard input`.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// A read failed in the system (not: the data is damaged).
    #[error("{name}: read failed at byte {offset} of the unpacked stream: {source}")]
    Read {
        /// The path, or `standard input`.
        name: String,
        /// Where, in the unpacked stream.
        offset: u64,
        /// What the system says.
        source: io::Error,
    },
    /// Not a capture file, or one of a variant that is not read.
    #[error("{name}: {what}")]
    Format {
        /// The path, or `standard input`.
        name: String,
        /// What it is instead, and what to do.
        what: String,
    },
    /// A live source failed.
    #[error("interface {interface}: {what}")]
    Live {
        /// The interface.
        interface: String,
        /// What failed, and what to do.
        what: String,
    },
}

/// One place where a file is not what its format demands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// Offset in the unpacked stream, bytes.
    pub offset: u64,
    /// What is wrong there, and what of it was left out.
    pub what: String,
}

/// One captured frame, borrowed from the source until the next call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilePacket<'a> {
    /// The captured bytes.
    pub data: &'a [u8],
    /// Bytes that the frame had on the wire.
    pub original_bytes: u32,
    /// Capture time, UTC ns; 0 where `stamped` is false.
    pub capture_ns: i64,
    /// Whether the file states a capture time (a pcapng simple packet does not).
    pub stamped: bool,
    /// The section's number for the interface; 0 in pcap.
    pub interface: u32,
    /// Number of the pcapng section, from 0.
    pub section: u32,
    /// The frame's link layer.
    pub link: LinkType,
    /// Number of the packet in the file, from 0.
    pub index: u64,
}

/// A capture file being read.
pub struct FileSource {
    input: Input,
    format: Format,
    damage: Vec<Damage>,
    damage_count: u64,
    packets: u64,
    ended: bool,
}

enum Format {
    Pcap(PcapHeader),
    Pcapng(Section),
}

/// The state of the pcapng section being read.
struct Section {
    order: ByteOrder,
    /// Sections begun so far, this one included.
    begun: u32,
    /// `None`: declared, but damaged; the number is taken so that later interfaces keep theirs.
    interfaces: Vec<Option<Interface>>,
    /// Blocks were skipped in this section without knowing what they were.
    skipped: bool,
    /// An interface was declared after such a skip: no number can be trusted until the next section.
    doubtful: bool,
}

/// What was found where the next block should begin.
enum Found {
    /// A whole block of this kind and length lies in the buffer.
    Block { kind: u32, bytes: usize },
    /// The end of the stream, at a block's edge.
    End,
    /// No whole block begins here.
    Broken { what: String },
}

impl FileSource {
    /// Opens a file, or standard input for `-`.
    ///
    /// Errors: [`SourceError::Open`]; [`SourceError::Format`] where it is not a capture file.
    pub fn open(path: &str) -> Result<FileSource, SourceError> {
        if path == "-" {
            return FileSource::from_reader("standard input", Box::new(io::stdin()), None);
        }
        let open = |source| SourceError::Open { name: path.to_string(), source };
        let file = File::open(path).map_err(open)?;
        let metadata = file.metadata().map_err(open)?;
        if metadata.is_dir() {
            return Err(open(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        FileSource::from_reader(path, Box::new(file), metadata.is_file().then_some(metadata.len()))
    }

    /// Reads from any stream; `name` is for messages, `total_bytes` the packed length where it is known.
    ///
    /// Errors: those of [`FileSource::open`].
    pub fn from_reader(
        name: &str,
        reader: Box<dyn Read + Send>,
        total_bytes: Option<u64>,
    ) -> Result<FileSource, SourceError> {
        let mut input = Input::new(name, reader, total_bytes)?;
        let format = open_format(&mut input)?;
        Ok(FileSource { input, format, damage: Vec::new(), damage_count: 0, packets: 0, ended: false })
    }

    /// The next packet, `None` at the end.
    ///
    /// Errors: [`SourceError::Read`]. Damage is no error: see [`FileSource::damage`].
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<FilePacket<'_>>, SourceError> {
        if self.ended {
            return Ok(None);
        }
        let packet = match &self.format {
            Format::Pcap(_) => self.next_pcap()?,
            Format::Pcapng(_) => self.next_pcapng()?,
        };
        let Some(packet) = packet else {
            self.ended = true;
            if let Some(what) = self.input.broken.take() {
                let offset = self.input.end_offset();
                self.report(offset, what);
            }
            return Ok(None);
        };
        let index = self.packets;
        self.packets += 1;
        Ok(Some(FilePacket {
            data: self.input.bytes(packet.at, packet.bytes),
            original_bytes: packet.original_bytes,
            capture_ns: packet.capture_ns.unwrap_or(0),
            stamped: packet.capture_ns.is_some(),
            interface: packet.interface,
            section: packet.section,
            link: packet.link,
            index,
        }))
    }

    /// The damage found so far, at most [`DAMAGE_MAX`] places.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// All places of damage, also those beyond [`DAMAGE_MAX`].
    pub fn damage_count(&self) -> u64 {
        self.damage_count
    }

    /// Packets delivered so far.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// The path, or `standard input`.
    pub fn name(&self) -> &str {
        &self.input.name
    }

    /// Packed bytes read so far, and the total where it is known: for a progress bar.
    pub fn progress(&self) -> (u64, Option<u64>) {
        (self.input.packed.load(Ordering::Relaxed), self.input.total_bytes)
    }

    /// The name of an interface of the current section, where the file gives one.
    pub fn interface_name(&self, interface: u32) -> Option<&str> {
        match &self.format {
            Format::Pcap(_) => None,
            Format::Pcapng(section) => section.interfaces.get(interface as usize)?.as_ref()?.name.as_deref(),
        }
    }

    fn report(&mut self, offset: u64, what: String) {
        self.damage_count += 1;
        if self.damage.len() < DAMAGE_MAX {
            self.damage.push(Damage { offset, what });
        }
    }

    fn next_pcap(&mut self) -> Result<Option<Located>, SourceError> {
        let Format::Pcap(header) = self.format else { unreachable!("the caller has matched") };
        let offset = self.input.offset();
        let have = self.input.fill(PCAP_RECORD_BYTES)?;
        if have == 0 {
            return Ok(None);
        }
        let Some(bytes) = self.input.rest().first_chunk::<PCAP_RECORD_BYTES>() else {
            self.report(offset, format!("the file ends inside a record header ({have} of {PCAP_RECORD_BYTES} bytes)"));
            return Ok(None);
        };
        let record = header.record(bytes);
        if record.captured_bytes > PACKET_BYTES_MAX {
            self.report(
                offset,
                format!(
                    "a record of {} bytes, above the limit of {PACKET_BYTES_MAX}; pcap has no mark to find the next one by",
                    record.captured_bytes
                ),
            );
            return Ok(None);
        }
        let bytes = record.captured_bytes as usize;
        let have = self.input.fill(PCAP_RECORD_BYTES + bytes)?;
        if have < PCAP_RECORD_BYTES + bytes {
            let have = have - PCAP_RECORD_BYTES;
            self.report(offset, format!("the file ends inside a record ({have} of {bytes} bytes)"));
            return Ok(None);
        }
        if !record.fraction_ok {
            self.report(offset, "a stamp whose fraction exceeds a second: the whole second is taken".to_string());
        }
        let at = self.input.consume(PCAP_RECORD_BYTES + bytes) + PCAP_RECORD_BYTES;
        Ok(Some(Located {
            at,
            bytes,
            original_bytes: record.original_bytes,
            capture_ns: Some(record.capture_ns),
            interface: 0,
            section: 0,
            link: header.link,
        }))
    }

    fn next_pcapng(&mut self) -> Result<Option<Located>, SourceError> {
        loop {
            let Format::Pcapng(section) = &mut self.format else { unreachable!("the caller has matched") };
            let offset = self.input.offset();
            match find_block(&mut self.input, section.order)? {
                Found::End => return Ok(None),
                Found::Broken { what } => {
                    self.report(offset, what);
                    if !self.resynchronise(offset)? {
                        return Ok(None);
                    }
                }
                Found::Block { kind, bytes } => {
                    let at = self.input.consume(bytes);
                    match section.block(kind, self.input.bytes(at, bytes)) {
                        Ok(None) => {}
                        Ok(Some(located)) => return Ok(Some(Located { at: at + located.at, ..located })),
                        Err(what) => self.report(offset, what),
                    }
                }
            }
        }
    }

    /// Looks for the next place, a multiple of four bytes behind `broken_at`, where a block of a known kind begins, ends
    /// as it began and is followed by another one or the end. `false`: there is none.
    fn resynchronise(&mut self, broken_at: u64) -> Result<bool, SourceError> {
        let Format::Pcapng(section) = &mut self.format else { unreachable!("only pcapng has marks") };
        loop {
            if self.input.fill(4)? < 4 {
                return Ok(false);
            }
            self.input.consume(4);
            if plausible(&mut self.input, section.order)? {
                break;
            }
        }
        section.skipped = true;
        let resumed = self.input.offset();
        if let Some(last) = self.damage.last_mut().filter(|last| last.offset == broken_at) {
            last.what.push_str(&format!("; reading goes on at offset {resumed}"));
        }
        Ok(true)
    }
}

/// A packet's place in the buffer and what is known of it.
struct Located {
    at: usize,
    bytes: usize,
    original_bytes: u32,
    capture_ns: Option<i64>,
    interface: u32,
    section: u32,
    link: LinkType,
}

impl Section {
    fn new(order: ByteOrder, begun: u32) -> Section {
        Section { order, begun, interfaces: Vec::new(), skipped: false, doubtful: false }
    }

    /// Takes one whole block. A packet's `at` is counted from the block's first byte.
    fn block(&mut self, kind: u32, block: &[u8]) -> Result<Option<Located>, String> {
        let body = &block[8..block.len() - 4];
        match kind {
            BLOCK_SECTION => self.begin(block),
            BLOCK_INTERFACE => self.declare(body),
            BLOCK_PACKET | BLOCK_SIMPLE_PACKET | BLOCK_ENHANCED_PACKET => self.packet(kind, body).map(Some),
            _ => Ok(None),
        }
    }

    fn begin(&mut self, block: &[u8]) -> Result<Option<Located>, String> {
        let order = pcap::section_order(block).unwrap_or(self.order);
        let body = &block[8..block.len() - 4];
        *self = Section::new(order, self.begun + 1);
        let Some(major) = order.u16(body, 4) else { return Err("a section header cut short".to_string()) };
        if major != 1 {
            self.doubtful = true;
            return Err(format!("a section of pcapng version {major}, only 1 is known: the section is left out"));
        }
        match pcap::options(order, body.get(16..).unwrap_or(&[])).find_map(Result::err) {
            Some(what) => Err(format!("{what}, in a section header (nothing is left out)")),
            None => Ok(None),
        }
    }

    fn declare(&mut self, body: &[u8]) -> Result<Option<Located>, String> {
        if self.interfaces.len() == INTERFACES_MAX {
            self.doubtful = true;
            return Err(format!("more than {INTERFACES_MAX} interfaces in a section: its packets are left out"));
        }
        let number = self.interfaces.len();
        if self.skipped && !self.doubtful {
            self.doubtful = true;
            return Err(
                "an interface declared after damage: its number is in doubt, the section's further packets are left out"
                    .to_string(),
            );
        }
        let interface = Interface::read(self.order, body);
        let what = interface.as_ref().err().map(|what| format!("{what}: packets of interface {number} are left out"));
        self.interfaces.push(interface.ok());
        what.map_or(Ok(None), Err)
    }

    fn packet(&mut self, kind: u32, body: &[u8]) -> Result<Located, String> {
        if self.doubtful {
            return Err("a packet whose interface is in doubt: left out".to_string());
        }
        let snap_bytes = self.interfaces.first().and_then(Option::as_ref).map_or(0, |interface| interface.snap_bytes);
        let packet = pcap::ng_packet(self.order, kind, body, snap_bytes)?;
        let number = packet.interface;
        let interface = match self.interfaces.get(number as usize) {
            Some(Some(interface)) => interface,
            Some(None) => return Err(format!("a packet of interface {number}, whose description is damaged")),
            None => {
                let count = self.interfaces.len();
                return Err(format!("a packet of interface {number}, but the section declares {count}"));
            }
        };
        let capture_ns = packet.ticks.map(|ticks| {
            interface.unit.nanoseconds(ticks).ok_or_else(|| format!("a stamp of {ticks} ticks beyond the year 2262"))
        });
        Ok(Located {
            at: 8 + (packet.data.as_ptr() as usize - body.as_ptr() as usize),
            bytes: packet.data.len(),
            original_bytes: packet.original_bytes,
            capture_ns: capture_ns.transpose()?,
            interface: number,
            section: self.begun.saturating_sub(1),
            link: interface.link,
        })
    }
}

fn open_format(input: &mut Input) -> Result<Format, SourceError> {
    let have = input.fill(PCAP_HEADER_BYTES)?;
    let format = |input: &Input, what: String| SourceError::Format { name: input.name.clone(), what };
    let Some(magic) = input.rest().first_chunk::<4>().copied() else {
        let what = match input.broken.take() {
            Some(what) => what,
            None if have == 0 => "the file is empty".to_string(),
            None => format!("not a capture file: only {have} bytes"),
        };
        return Err(format(input, what));
    };
    match pcap::file_kind(magic) {
        FileKind::Pcap { .. } => {
            let Some(header) = input.rest().first_chunk().and_then(PcapHeader::read) else {
                let what = format!("the file ends inside the pcap header ({have} of {PCAP_HEADER_BYTES} bytes)");
                return Err(format(input, what));
            };
            if header.version.0 != 2 {
                let (major, minor) = header.version;
                let what = format!("pcap version {major}.{minor}: only 2.x is read");
                return Err(format(input, what));
            }
            input.consume(PCAP_HEADER_BYTES);
            Ok(Format::Pcap(header))
        }
        FileKind::Pcapng => match pcap::section_order(input.rest()) {
            // The section header itself is read as the first block.
            Some(order) => Ok(Format::Pcapng(Section::new(order, 0))),
            None => Err(format(input, "a pcapng section header without a byte-order magic".to_string())),
        },
        FileKind::Variant(whose) => {
            let what = format!("{whose} is not read: convert it with \"editcap -F pcapng IN OUT\"");
            Err(format(input, what))
        }
        FileKind::Unknown => {
            let [a, b, c, d] = magic;
            let what = format!("not a pcap or pcapng file: it begins with {a:02x} {b:02x} {c:02x} {d:02x}");
            Err(format(input, what))
        }
    }
}

/// Looks at the block that begins at the input's position.
fn find_block(input: &mut Input, order: ByteOrder) -> Result<Found, SourceError> {
    let have = input.fill(BLOCK_BYTES_MIN as usize)?;
    if have == 0 {
        return Ok(Found::End);
    }
    let broken = |what: String| Ok(Found::Broken { what });
    let rest = input.rest();
    let (Some(mut kind), Some(mut length)) = (order.u32(rest, 0), order.u32(rest, 4)) else {
        return broken(format!("the file ends inside a block header ({have} of 8 bytes)"));
    };
    let mut order = order;
    if kind == BLOCK_SECTION {
        let Some(section_order) = pcap::section_order(rest) else {
            return broken("a section header without a byte-order magic".to_string());
        };
        order = section_order;
        kind = BLOCK_SECTION;
        length = order.u32(rest, 4).unwrap_or(length);
    }
    if !block_length_ok(length) {
        return broken(format!(
            "a block of type 0x{kind:08x} that states {length} bytes: a multiple of 4 from {BLOCK_BYTES_MIN} to {BLOCK_BYTES_MAX} is allowed"
        ));
    }
    let bytes = length as usize;
    let have = input.fill(bytes)?;
    if have < bytes {
        return broken(format!("the file ends inside a block of type 0x{kind:08x} ({have} of {bytes} bytes)"));
    }
    match order.u32(input.rest(), bytes - 4) {
        Some(trailer) if trailer == length => Ok(Found::Block { kind, bytes }),
        trailer => broken(format!(
            "a block of type 0x{kind:08x} that states {length} bytes before and {} behind its body",
            trailer.unwrap_or(0)
        )),
    }
}

fn block_length_ok(length: u32) -> bool {
    (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&length) && length.is_multiple_of(4)
}

/// Whether a block of a kind that captures hold begins at the input's position, whole, with another one or the end of
/// the stream behind it: three lengths that agree, so that packet bytes are hardly ever taken for a block.
fn plausible(input: &mut Input, order: ByteOrder) -> Result<bool, SourceError> {
    input.fill(BLOCK_BYTES_MIN as usize)?;
    // Interface, packets, names (4), statistics (5), secrets (10), custom (0x0bad).
    let kind = order.u32(input.rest(), 0);
    if !matches!(kind, Some(1..=6 | 10 | 0x0bad | 0x4000_0bad | BLOCK_SECTION)) {
        return Ok(false);
    }
    let Found::Block { bytes, .. } = find_block(input, order)? else { return Ok(false) };
    let have = input.fill(bytes + 8)?;
    if have == bytes {
        return Ok(true);
    }
    // A section of the other byte order may follow.
    let next = &input.rest()[bytes..];
    let lengths = [ByteOrder::Little, ByteOrder::Big].map(|order| order.u32(next, 4));
    Ok(lengths.into_iter().flatten().any(block_length_ok))
}

/// First bytes of a gzip member (RFC 1952 §2.3.1).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// First bytes of a zstd frame (RFC 8878 §3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes asked of an unpacker at once: what it had unpacked in the call that finds damage is lost, so it is kept small.
const UNPACK_BYTES: usize = 16 * 1024;
/// Packed bytes read at once.
const PACKED_BYTES: usize = 256 * 1024;

/// The unpacked stream with a window that can be looked into.
struct Input {
    name: String,
    reader: Box<dyn Read + Send>,
    packed: Arc<AtomicU64>,
    total_bytes: Option<u64>,
    /// Most bytes asked of `reader` in one call.
    read_bytes_max: usize,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Offset in the unpacked stream of `buffer[0]`.
    base: u64,
    ended: bool,
    /// Why the stream ended, where it was not its end.
    broken: Option<String>,
}

impl Input {
    fn new(name: &str, reader: Box<dyn Read + Send>, total_bytes: Option<u64>) -> Result<Input, SourceError> {
        let read = |source| SourceError::Read { name: name.to_string(), offset: 0, source };
        let packed = Arc::new(AtomicU64::new(0));
        let mut raw = Counted { reader, bytes: Arc::clone(&packed) };
        let mut magic = Vec::with_capacity(4);
        (&mut raw).take(4).read_to_end(&mut magic).map_err(read)?;
        let zstd = magic == ZSTD_MAGIC || matches!(magic[..], [0x50..=0x5f, 0x2a, 0x4d, 0x18]);
        let gzip = magic.starts_with(&GZIP_MAGIC);
        let whole = io::Cursor::new(magic).chain(raw);
        let buffered = |whole| BufReader::with_capacity(PACKED_BYTES, whole);
        let (reader, read_bytes_max): (Box<dyn Read + Send>, usize) = if gzip {
            (Box::new(flate2::bufread::MultiGzDecoder::new(buffered(whole))), UNPACK_BYTES)
        } else if zstd {
            (Box::new(zstd::stream::read::Decoder::with_buffer(buffered(whole)).map_err(read)?), UNPACK_BYTES)
        } else {
            (Box::new(whole), usize::MAX)
        };
        Ok(Input {
            name: name.to_string(),
            reader,
            packed,
            total_bytes,
            read_bytes_max,
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            base: 0,
            ended: false,
            broken: None,
        })
    }

    /// Offset of the next byte in the unpacked stream.
    fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Offset behind the last byte that was read.
    fn end_offset(&self) -> u64 {
        self.base + self.end as u64
    }

    /// The bytes that are in the buffer and not consumed.
    #[inline]
    fn rest(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn bytes(&self, at: usize, bytes: usize) -> &[u8] {
        &self.buffer[at..at + bytes]
    }

    /// Steps over bytes that lie in the buffer; says where in it they begin (valid until the next `fill`).
    #[inline]
    fn consume(&mut self, bytes: usize) -> usize {
        let at = self.start;
        self.start += bytes;
        assert!(self.start <= self.end, "consumed beyond the buffer");
        at
    }

    /// Reads on until `bytes` are there or the stream ends; returns how many are there.
    #[inline]
    fn fill(&mut self, bytes: usize) -> Result<usize, SourceError> {
        if self.end - self.start < bytes {
            self.read_more(bytes)?;
        }
        Ok(self.end - self.start)
    }

    #[cold]
    fn read_more(&mut self, bytes: usize) -> Result<(), SourceError> {
        if self.start + bytes > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.base += self.start as u64;
            (self.start, self.end) = (0, self.end - self.start);
            // Twice what is wanted: a search that steps by four bytes must not move the whole window each time.
            if bytes * 2 > self.buffer.len() {
                self.buffer.resize(bytes * 2, 0);
            }
        }
        while self.end - self.start < bytes && !self.ended {
            let room = (self.buffer.len() - self.end).min(self.read_bytes_max);
            match self.reader.read(&mut self.buffer[self.end..self.end + room]) {
                Ok(0) => self.ended = true,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error().is_some() => {
                    let offset = self.end_offset();
                    return Err(SourceError::Read { name: self.name.clone(), offset, source: error });
                }
                Err(error) => {
                    self.ended = true;
                    self.broken = Some(format!("the packed stream is damaged or cut: {error}"));
                }
            }
        }
        Ok(())
    }
}

/// Counts what was read, for progress.
struct Counted {
    reader: Box<dyn Read + Send>,
    bytes: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        // A statistic: nothing is ordered by it.
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
