//! pcapng and pcap: raw records as the frames that they are; a merged message as a frame of its own, with the feed's
//! header around that one message, so that foreign tools read it.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use super::{Rows, is_packet, session_of};
use crate::store::StoreError;
use crate::store::query::Found;
use crate::units::SIDES_MAX;
use crate::wire::block::{NO_TIME, RecordKind};
use crate::wire::segment::{Protocol, SessionId, SessionKey};

/// Bytes before the feed's header: Ethernet, IPv4 without options, UDP.
const FRAME_HEAD_BYTES: usize = 14 + 20 + 8;
/// IEX-TP's header.
const IEXTP_HEADER_BYTES: usize = 40;
/// MoldUDP64's header.
const MOLD_HEADER_BYTES: usize = 20;
/// UDP port of the made frames: none is assigned to it, and both of our decoders take any.
const PORT: u16 = 10_378;
const LINK_ETHERNET: u32 = 1;
const SNAP_BYTES: u32 = 262_144;

pub(super) struct CaptureRows<W: Write> {
    writer: W,
    path: PathBuf,
    pcapng: bool,
    /// Interfaces described so far; a side's interface has the side's number.
    interfaces: u8,
    frame: Vec<u8>,
    block: Vec<u8>,
}

impl<W: Write> CaptureRows<W> {
    pub(super) fn pcapng(writer: W, path: &Path) -> Result<CaptureRows<W>, StoreError> {
        let mut block = Vec::new();
        pcapng_head(&mut block);
        CaptureRows { writer, path: path.into(), pcapng: true, interfaces: 0, frame: Vec::new(), block }.begin()
    }

    pub(super) fn pcap(writer: W, path: &Path) -> Result<CaptureRows<W>, StoreError> {
        let mut block = Vec::new();
        for word in [0xa1b2_3c4d_u32, 2 | 4 << 16, 0, 0, SNAP_BYTES, LINK_ETHERNET] {
            block.extend_from_slice(&word.to_le_bytes());
        }
        CaptureRows { writer, path: path.into(), pcapng: false, interfaces: 0, frame: Vec::new(), block }.begin()
    }

    fn begin(mut self) -> Result<CaptureRows<W>, StoreError> {
        self.write()?;
        Ok(self)
    }

    fn write(&mut self) -> Result<(), StoreError> {
        self.writer.write_all(&self.block).map_err(|source| StoreError::io("write", &self.path, source))
    }
}

impl<W: Write> Rows for CaptureRows<W> {
    fn put(&mut self, key: &str, found: &Found<'_>) -> Result<bool, StoreError> {
        let header = &found.header;
        if !is_packet(header.kind) {
            return Ok(false);
        }
        self.block.clear();
        let frame = if header.kind == RecordKind::Raw {
            found.body
        } else {
            self.frame.clear();
            message_frame(&mut self.frame, key, found);
            &self.frame
        };
        if self.pcapng {
            while self.interfaces <= header.side.0 {
                interface(&mut self.block, self.interfaces);
                self.interfaces += 1;
            }
            packet_block(&mut self.block, u32::from(header.side.0), header.capture_ns, frame);
        } else {
            packet_record(&mut self.block, header.capture_ns, frame);
        }
        self.write()?;
        Ok(true)
    }

    fn finish(mut self: Box<Self>) -> Result<(), StoreError> {
        self.writer.flush().map_err(|source| StoreError::io("write", &self.path, source))
    }
}

/// The section header.
fn pcapng_head(out: &mut Vec<u8>) {
    let mut section = Vec::new();
    section.extend_from_slice(&0x1a2b_3c4d_u32.to_le_bytes());
    section.extend_from_slice(&[1, 0, 0, 0]);
    section.extend_from_slice(&u64::MAX.to_le_bytes());
    option(&mut section, 4, concat!("sluice ", env!("CARGO_PKG_VERSION")).as_bytes());
    option(&mut section, 0, &[]);
    block(out, 0x0a0d_0d0a, &section);
}

/// The interface of a side: Ethernet, ns stamps. It stands before the side's first packet.
fn interface(out: &mut Vec<u8>, side: u8) {
    let mut interface = Vec::new();
    interface.extend_from_slice(&(LINK_ETHERNET as u16).to_le_bytes());
    interface.extend_from_slice(&[0, 0]);
    interface.extend_from_slice(&SNAP_BYTES.to_le_bytes());
    option(&mut interface, 2, format!("side {}", crate::units::Side(side)).as_bytes());
    option(&mut interface, 9, &[9]);
    option(&mut interface, 0, &[]);
    block(out, 1, &interface);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn block(out: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let total = (12 + body.len().next_multiple_of(4)) as u32;
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&total.to_le_bytes());
    out.extend_from_slice(body);
    out.resize(out.len() + body.len().next_multiple_of(4) - body.len(), 0);
    out.extend_from_slice(&total.to_le_bytes());
}

fn packet_block(out: &mut Vec<u8>, interface: u32, capture_ns: i64, frame: &[u8]) {
    let mut body = Vec::with_capacity(20 + frame.len());
    let stamp = capture_ns as u64;
    for word in [interface, (stamp >> 32) as u32, stamp as u32, frame.len() as u32, frame.len() as u32] {
        body.extend_from_slice(&word.to_le_bytes());
    }
    body.extend_from_slice(frame);
    block(out, 6, &body);
}

fn packet_record(out: &mut Vec<u8>, capture_ns: i64, frame: &[u8]) {
    let seconds = capture_ns.div_euclid(1_000_000_000) as u32;
    let nanos = capture_ns.rem_euclid(1_000_000_000) as u32;
    for word in [seconds, nanos, frame.len() as u32, frame.len() as u32] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(frame);
}

/// A frame around one message: Ethernet, IPv4, UDP, the feed's header with count 1, the message.
fn message_frame(out: &mut Vec<u8>, key: &str, found: &Found<'_>) {
    let session = session_of(key).unwrap_or(SessionKey {
        protocol: Protocol::MoldUdp64,
        protocol_id: 0,
        channel: 0,
        session: SessionId([b' '; 10]),
    });
    let header_bytes = match session.protocol {
        Protocol::IexTp => IEXTP_HEADER_BYTES,
        Protocol::MoldUdp64 => MOLD_HEADER_BYTES,
    };
    let payload = header_bytes + 2 + found.body.len();
    frame_head(out, found.header.side.0, payload);
    let length = found.body.len() as u16;
    match session.protocol {
        Protocol::IexTp => {
            iextp_header(out, &session, found);
            out.extend_from_slice(&length.to_le_bytes());
        }
        Protocol::MoldUdp64 => {
            out.extend_from_slice(&session.session.0);
            out.extend_from_slice(&found.header.sequence.to_be_bytes());
            out.extend_from_slice(&1u16.to_be_bytes());
            out.extend_from_slice(&length.to_be_bytes());
        }
    }
    out.extend_from_slice(found.body);
}

/// The 40 bytes of `spec/iex-tp.md`. The stream offset of a single message is not kept in the store: 0.
fn iextp_header(out: &mut Vec<u8>, session: &SessionKey, found: &Found<'_>) {
    let send_ns = if found.header.send_ns == NO_TIME { 0 } else { found.header.send_ns };
    out.extend_from_slice(&[1, 0]);
    out.extend_from_slice(&session.protocol_id.to_le_bytes());
    out.extend_from_slice(&session.channel.to_le_bytes());
    out.extend_from_slice(&session.session.as_u32().to_le_bytes());
    out.extend_from_slice(&((2 + found.body.len()) as u16).to_le_bytes());
    out.extend_from_slice(&1u16.to_le_bytes());
    out.extend_from_slice(&0u64.to_le_bytes());
    out.extend_from_slice(&found.header.sequence.to_le_bytes());
    out.extend_from_slice(&send_ns.to_le_bytes());
}

/// Locally administered addresses and a group of the organisation-local scope (RFC 2365); the last byte is the side.
fn frame_head(out: &mut Vec<u8>, side: u8, payload: usize) {
    out.extend_from_slice(&[0x01, 0x00, 0x5e, 0x40, 0x00, 1 + side, 0x02, 0, 0, 0, 0, 1 + side, 0x08, 0x00]);
    let total = (20 + 8 + payload).min(usize::from(u16::MAX)) as u16;
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 1, 17, 0, 0, 10, 0, 0, 1 + side, 239, 192, 0, 1 + side];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    out.extend_from_slice(&ip);
    for word in [PORT, PORT, total - 20, 0] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    debug_assert!(out.len() == FRAME_HEAD_BYTES);
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
