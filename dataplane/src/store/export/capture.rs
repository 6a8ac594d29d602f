//! pcapng and pcap: raw records as the frames that they are; a merged message as a frame of its own, with the feed's
//! header around that one message, so that foreign tools read it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use super::{Rows, is_packet, session_of};
use crate::store::StoreError;
use crate::store::query::Found;
use crate::units::{SIDES_MAX, Side};
use crate::wire::block::{NO_TIME, RecordKind};
use crate::wire::packet::{LinkType, UdpHeader, VLAN_NONE};
use crate::wire::pcap::{InterfaceName, PcapWriter, PcapngWriter};
use crate::wire::segment::{Protocol, SessionId, SessionKey};
use crate::wire::{iextp, moldudp64};

/// UDP port of the made frames: none is assigned to it, and both of our decoders take any.
const PORT: u16 = 10_378;

/// Bytes that a message which is not there counts for in the made stream offsets: as long as IEX's common ones, and between the least
/// and the most that a reader believes of a hole. So the bytes that a gap report finds lost in an export are a guess.
const MISSING_BYTES: u64 = 34;

enum Format<W: Write> {
    /// The writer, and how many sides have an interface: a side's interface has the side's number.
    Pcapng(PcapngWriter<W>, u8),
    Pcap(PcapWriter<W>),
}

pub(super) struct CaptureRows<W: Write> {
    format: Format<W>,
    path: PathBuf,
    payload: Vec<u8>,
    frame: Vec<u8>,
    /// By stream.
    reached: HashMap<String, Reached>,
}

/// How far a stream's made offsets are. The store keeps none of single messages; a reader takes a segment behind a hole only for true
/// if the next one begins at the offset where it ends.
#[derive(Clone, Copy)]
struct Reached {
    /// The sequence that comes next.
    sequence: u64,
    /// Its offset.
    offset: u64,
}

impl Reached {
    /// The offset of a message whose block is so many bytes long.
    fn offset(&mut self, sequence: u64, bytes: u64) -> u64 {
        let missing = |messages: u64| messages.saturating_mul(MISSING_BYTES);
        let Some(messages) = sequence.checked_sub(self.sequence) else {
            // One that was late: behind what it fills.
            return self.offset.saturating_sub(missing(self.sequence - sequence));
        };
        let offset = self.offset.saturating_add(missing(messages));
        *self = Reached { sequence: sequence.saturating_add(1), offset: offset.saturating_add(bytes) };
        offset
    }
}

impl<W: Write> CaptureRows<W> {
    pub(super) fn pcapng(writer: W, path: &Path) -> Result<CaptureRows<W>, StoreError> {
        let writer = PcapngWriter::new(writer, &[]).map_err(|source| StoreError::io("write", path, source))?;
        Ok(CaptureRows::new(Format::Pcapng(writer, 0), path))
    }

    pub(super) fn pcap(writer: W, path: &Path) -> Result<CaptureRows<W>, StoreError> {
        let writer =
            PcapWriter::new(writer, LinkType::Ethernet).map_err(|source| StoreError::io("write", path, source))?;
        Ok(CaptureRows::new(Format::Pcap(writer), path))
    }

    fn new(format: Format<W>, path: &Path) -> CaptureRows<W> {
        CaptureRows { format, path: path.into(), payload: Vec::new(), frame: Vec::new(), reached: HashMap::new() }
    }

    /// The stream offset of a message: see [`Reached`].
    fn offset(&mut self, key: &str, found: &Found<'_>) -> u64 {
        let (sequence, bytes) = (found.header.sequence, 2 + found.body.len() as u64);
        if let Some(reached) = self.reached.get_mut(key) {
            return reached.offset(sequence, bytes);
        }
        let mut reached = Reached { sequence: 1, offset: 0 };
        let offset = reached.offset(sequence, bytes);
        self.reached.insert(key.into(), reached);
        offset
    }
}

impl<W: Write> Rows for CaptureRows<W> {
    fn put(&mut self, key: &str, found: &Found<'_>) -> Result<bool, StoreError> {
        let (header, mut frame) = (&found.header, found.body);
        if !is_packet(header.kind) {
            return Ok(false);
        }
        if header.kind == RecordKind::Message {
            let offset = self.offset(key, found);
            if !message_payload(&mut self.payload, key, found, offset) {
                return Ok(false);
            }
            self.frame.clear();
            frame_of(header.side).write_frame(&self.payload, &mut self.frame);
            frame = &self.frame;
        }
        let bytes = frame.len() as u32;
        let written = match &mut self.format {
            Format::Pcapng(writer, sides) => add_sides(writer, sides, header.side)
                .and_then(|()| writer.packet(header.side.0.into(), header.capture_ns, bytes, frame)),
            Format::Pcap(writer) => writer.packet(header.capture_ns, bytes, frame),
        };
        written.map_err(|source| StoreError::io("write", &self.path, source))?;
        Ok(true)
    }

    fn finish(self: Box<Self>) -> Result<(), StoreError> {
        let finished = match self.format {
            Format::Pcapng(writer, _) => writer.finish().map(drop),
            Format::Pcap(writer) => writer.finish().map(drop),
        };
        finished.map_err(|source| StoreError::io("write", &self.path, source))
    }
}

/// An interface for each side up to this one: it stands before the side's first packet.
fn add_sides<W: Write>(writer: &mut PcapngWriter<W>, sides: &mut u8, side: Side) -> io::Result<()> {
    while *sides <= side.0 {
        writer.interface(InterfaceName { name: &format!("side {}", Side(*sides)), link: LinkType::Ethernet })?;
        *sides += 1;
    }
    Ok(())
}

/// Locally administered addresses and a group of the organisation-local scope (RFC 2365); the last byte is the side.
fn frame_of(side: Side) -> UdpHeader {
    let last = 1 + side.0;
    UdpHeader {
        src_mac: [0x02, 0, 0, 0, 0, last],
        vlan: VLAN_NONE,
        src: Ipv4Addr::new(10, 0, 0, last),
        dst: Ipv4Addr::new(239, 192, 0, last),
        src_port: PORT,
        dst_port: PORT,
        identification: 0,
    }
}

/// The feed's header with count 1, and the message; false where no datagram can hold it.
fn message_payload(out: &mut Vec<u8>, key: &str, found: &Found<'_>, offset: u64) -> bool {
    let unknown = SessionId([b' '; 10]);
    let unknown = SessionKey { protocol: Protocol::MoldUdp64, protocol_id: 0, channel: 0, session: unknown };
    let session = session_of(key).unwrap_or(unknown);
    if found.body.len() > UdpHeader::PAYLOAD_BYTES_MAX - iextp::HEADER_BYTES - 2 {
        return false;
    }
    out.clear();
    match session.protocol {
        Protocol::IexTp => {
            let header = iextp::Header {
                version: iextp::VERSION,
                reserved: 0,
                protocol_id: session.protocol_id,
                channel: session.channel,
                session: session.session.as_u32(),
                payload_length: (2 + found.body.len()) as u16,
                count: 1,
                offset,
                first: found.header.sequence,
                send_ns: if found.header.send_ns == NO_TIME { 0 } else { found.header.send_ns },
            };
            out.extend_from_slice(&header.encode());
            iextp::write_message(found.body, out);
        }
        Protocol::MoldUdp64 => {
            let header = moldudp64::Header { session: session.session.0, sequence: found.header.sequence, count: 1 };
            out.extend_from_slice(&header.encode());
            moldudp64::write_message(found.body, out);
        }
    }
    true
}

/// Reads a pcapng export back: packets in all and per interface. Stops with an error at anything that is not whole.
pub fn count_pcapng(path: &Path) -> Result<(u64, Vec<u64>), StoreError> {
    let (mut reader, io) = open(path)?;
    let (mut count, mut sides, mut body) = (0, vec![0; SIDES_MAX], Vec::new());
    let mut head = [0; 8];
    while fill(&mut reader, &mut head).map_err(io)? {
        let [kind, total] = [0, 4].map(|at| word(&head, at));
        if total < 12 || total % 4 != 0 {
            return Err(io(io::Error::new(io::ErrorKind::InvalidData, "a block with a wrong length")));
        }
        body.resize(total as usize - 8, 0);
        reader.read_exact(&mut body).map_err(io)?;
        if word(&body, body.len() - 4) != total {
            return Err(io(io::Error::new(io::ErrorKind::InvalidData, "a block whose lengths differ")));
        }
        if kind == 6 {
            count += 1;
            let side = word(&body, 0) as usize;
            *sides.get_mut(side).ok_or_else(|| io(io::ErrorKind::InvalidData.into()))? += 1;
        }
    }
    Ok((count, sides))
}

/// Reads a pcap export back.
pub fn count_pcap(path: &Path) -> Result<u64, StoreError> {
    let (mut reader, io) = open(path)?;
    let (mut head, mut body, mut count) = ([0; 24], Vec::new(), 0);
    reader.read_exact(&mut head).map_err(io)?;
    let mut record = [0; 16];
    while fill(&mut reader, &mut record).map_err(io)? {
        body.resize(word(&record, 8) as usize, 0);
        reader.read_exact(&mut body).map_err(io)?;
        count += 1;
    }
    Ok(count)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[allow(clippy::type_complexity)]
fn open(path: &Path) -> Result<(BufReader<File>, impl Fn(io::Error) -> StoreError + Copy), StoreError> {
    let io = move |source| StoreError::io("read back", path, source);
    let file = File::open(path).map_err(io)?;
    Ok((BufReader::with_capacity(1 << 20, file), io))
}

/// Fills `bytes`; false at the clean end of the file.
fn fill(reader: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    let mut done = 0;
    while done < bytes.len() {
        match reader.read(&mut bytes[done..])? {
            0 if done == 0 => return Ok(false),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => done += count,
        }
    }
    Ok(true)
}
