//! One row per message, for people and tools: the columns of `sluice feed decode`.

use std::collections::HashMap;

use super::messages::{Message, MessageError, Symbol, Value, known_protocol};
use crate::wire::packet::{self, LinkType, PacketReason};
use crate::wire::segment::{Protocol, Segment, SegmentError, SegmentKind, SessionKey};
use crate::wire::{iextp, moldudp64};

/// Sessions whose runs are told apart; hostile input can name any number. A day of one exchange has a handful.
pub const SESSIONS_MAX: usize = 65_536;

/// How rows are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowFormat {
    /// Comma-separated, with a header line.
    Csv,
    /// One JSON object a line, keys as the CSV's columns, `null` where the CSV is empty.
    Jsonl,
}

/// The columns, in order. `flags` is the byte after the type as a number; `price`, `size` and `trade_id` are raw
/// integers; `aux` holds a type's other fields as `name=value;…`, text without padding.
pub const COLUMNS: [&str; 12] = [
    "packet",
    "session_id",
    "run",
    "sequence",
    "type",
    "timestamp_ns",
    "symbol",
    "flags",
    "price",
    "size",
    "trade_id",
    "aux",
];

/// Writes one row a message.
#[derive(Debug)]
pub struct RowWriter {
    format: RowFormat,
    /// The columns up to `run`, the same for all rows of a segment.
    prefix: Vec<u8>,
    text: Vec<u8>,
}

impl RowWriter {
    /// A writer of rows in `format`.
    pub fn new(format: RowFormat) -> RowWriter {
        RowWriter { format, prefix: Vec::new(), text: Vec::new() }
    }

    /// Appends the header line, where the format has one.
    pub fn header(&self, out: &mut Vec<u8>) {
        if self.format == RowFormat::Csv {
            out.extend_from_slice(COLUMNS.join(",").as_bytes());
            out.push(b'\n');
        }
    }

    /// Begins a segment: the packet's number in its file, the session's id as text, the run's number.
    pub fn segment(&mut self, packet: u64, session_id: &str, run: u32) {
        self.prefix.clear();
        match self.format {
            RowFormat::Csv => {
                push_unsigned(&mut self.prefix, packet);
                self.prefix.push(b',');
                push_csv(&mut self.prefix, session_id.as_bytes());
                self.prefix.push(b',');
            }
            RowFormat::Jsonl => {
                self.prefix.extend_from_slice(b"{\"packet\":");
                push_unsigned(&mut self.prefix, packet);
                self.prefix.extend_from_slice(b",\"session_id\":");
                push_json(&mut self.prefix, session_id.as_bytes());
                self.prefix.extend_from_slice(b",\"run\":");
            }
        }
        push_unsigned(&mut self.prefix, u64::from(run));
    }

    /// Appends one message's row.
    pub fn row(&mut self, sequence: u64, message: &Message<'_>, out: &mut Vec<u8>) {
        let (mut price, mut size, mut trade_id) = (None, None, None);
        self.text.clear();
        let aux = &mut self.text;
        message.fields(|name, value| match name {
            "price" => price = Some(value),
            "size" => size = Some(value),
            "trade_id" => trade_id = Some(value),
            _ => {
                if !aux.is_empty() {
                    aux.push(b';');
                }
                aux.extend_from_slice(name.as_bytes());
                aux.push(b'=');
                push_value(aux, value);
            }
        });
        let symbol = message.symbol();
        let symbol = symbol.as_ref().map(Symbol::as_bytes);
        let text = if self.text.is_empty() { None } else { Some(&self.text[..]) };
        out.extend_from_slice(&self.prefix);
        let mut columns = Columns { format: self.format, out, next: 3 };
        columns.number(sequence);
        columns.text(Some(&[message.kind()]));
        columns.optional(Some(Value::Signed(message.timestamp_ns())));
        columns.text(symbol);
        columns.number(u64::from(message.flags()));
        for column in [price, size, trade_id] {
            columns.optional(column);
        }
        columns.printable(text);
        columns.end();
    }

    /// Appends a row for a body of another protocol: its first byte as the type, the whole body in `aux` as hexadecimal.
    pub fn foreign(&mut self, sequence: u64, body: &[u8], out: &mut Vec<u8>) {
        self.text.clear();
        self.text.extend_from_slice(b"body=");
        for byte in body {
            self.text.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
        out.extend_from_slice(&self.prefix);
        let mut columns = Columns { format: self.format, out, next: 3 };
        columns.number(sequence);
        columns.text(body.get(..1));
        for _ in 0..6 {
            columns.optional(None);
        }
        columns.printable(Some(&self.text));
        columns.end();
    }
}

/// Writes a row's columns one after the other.
struct Columns<'a> {
    format: RowFormat,
    out: &'a mut Vec<u8>,
    next: usize,
}

impl Columns<'_> {
    fn begin(&mut self) {
        self.out.push(b',');
        if self.format == RowFormat::Jsonl {
            self.out.push(b'"');
            self.out.extend_from_slice(COLUMNS[self.next].as_bytes());
            self.out.extend_from_slice(b"\":");
        }
        self.next += 1;
    }

    fn number(&mut self, number: u64) {
        self.begin();
        push_unsigned(self.out, number);
    }

    fn optional(&mut self, value: Option<Value<'_>>) {
        self.begin();
        match value {
            Some(value) => push_value(self.out, value),
            None if self.format == RowFormat::Jsonl => self.out.extend_from_slice(b"null"),
            None => {}
        }
    }

    fn text(&mut self, text: Option<&[u8]>) {
        match text {
            Some(text) if !text.iter().all(|byte| is_plain(*byte)) => {
                let mut printable = Vec::new();
                push_printable(&mut printable, text);
                self.printable(Some(&printable));
            }
            plain => self.printable(plain),
        }
    }

    /// Text that holds printable ASCII only.
    fn printable(&mut self, text: Option<&[u8]>) {
        self.begin();
        match (self.format, text) {
            (RowFormat::Csv, Some(text)) => push_csv(self.out, text),
            (RowFormat::Csv, None) => {}
            (RowFormat::Jsonl, Some(text)) => push_json(self.out, text),
            (RowFormat::Jsonl, None) => self.out.extend_from_slice(b"null"),
        }
    }

    fn end(self) {
        if self.format == RowFormat::Jsonl {
            self.out.push(b'}');
        }
        self.out.push(b'\n');
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

fn push_value(out: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::Unsigned(number) => push_unsigned(out, u64::from(number)),
        Value::Signed(number) => {
            if number < 0 {
                out.push(b'-');
            }
            push_unsigned(out, number.unsigned_abs());
        }
        Value::Text(text) => push_printable(out, text.trim_ascii()),
    }
}

/// The two digits of each number below 100.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

/// Decimal digits, two at a time and without the formatting machinery: a row holds up to fifteen numbers.
fn push_unsigned(out: &mut Vec<u8>, mut number: u64) {
    // 2⁶⁴ has 20 digits.
    let mut digits = [0; 20];
    let mut at = digits.len();
    while number >= 10 {
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[(number % 100) as usize]);
        number /= 100;
    }
    // What is left is one digit, or zero where the last pair was the number's first: then only a lone zero counts.
    if number > 0 || at == digits.len() {
        at -= 1;
        digits[at] = b'0' + number as u8;
    }
    out.extend_from_slice(&digits[at..]);
}

/// Printable ASCII, and not what escapes begin with.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'\\'
}

/// Text with what is not printable ASCII (and the escape itself) as `\xNN`.
fn push_printable(out: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        if is_plain(byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(b"\\x");
            out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

/// A CSV field (RFC 4180): quoted where it holds a comma or a quote.
fn push_csv(out: &mut Vec<u8>, text: &[u8]) {
    if !text.iter().any(|byte| matches!(byte, b',' | b'"')) {
        out.extend_from_slice(text);
        return;
    }
    out.push(b'"');
    for byte in text {
        if *byte == b'"' {
            out.push(b'"');
        }
        out.push(*byte);
    }
    out.push(b'"');
}

/// A JSON string of printable ASCII.
fn push_json(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out.push(b'"');
}

/// Numbers the runs of each session by the plain rule: a segment with first sequence 1 and stream offset 0 after higher
/// ones begins the next run. (`feed::runs` holds the rule that survives losses; rows are told in file order.)
#[derive(Debug, Default)]
pub struct RunCounter {
    /// Run and highest end so far.
    sessions: HashMap<SessionKey, (u32, u64)>,
}

impl RunCounter {
    /// The run of `segment`, from 0. Sessions beyond [`SESSIONS_MAX`] stay in run 0.
    pub fn run(&mut self, segment: &Segment<'_>) -> u32 {
        if self.sessions.len() >= SESSIONS_MAX && !self.sessions.contains_key(&segment.session) {
            return 0;
        }
        let (run, highest) = self.sessions.entry(segment.session).or_default();
        if segment.first == 1 && segment.offset == Some(0) && *highest > 1 {
            *run += 1;
            *highest = 0;
        }
        *highest = (*highest).max(segment.first.saturating_add(u64::from(segment.count)));
        *run
    }
}

/// What a decoder has met.
#[derive(Clone, Debug)]
pub struct DecodeCounts {
    /// Frames seen.
    pub frames: u64,
    /// Frames without a UDP payload, by [`PacketReason`].
    pub skipped: [u64; PacketReason::ALL.len()],
    /// UDP payloads that are no segment, by [`SegmentError`].
    pub not_segment: [u64; SegmentError::ALL.len()],
    /// Segments with messages.
    pub segments: u64,
    /// Segments without.
    pub heartbeats: u64,
    /// Rows written.
    pub messages: u64,
    /// Messages of a type, or of a message protocol, that is not known.
    pub unknown: u64,
    /// Messages shorter than their type's fields.
    pub short: u64,
}

/// Frames in, rows out.
#[derive(Debug)]
pub struct Decoder {
    protocol: Protocol,
    rows: RowWriter,
    runs: RunCounter,
    counts: DecodeCounts,
    /// The last segment's session and its text: nearly always the next one's too.
    session: Option<(SessionKey, String)>,
}

impl Decoder {
    /// A decoder of the segments of one transport protocol. MoldUDP64 carries any exchange's messages: their rows hold
    /// the body as it is.
    pub fn new(protocol: Protocol, format: RowFormat) -> Decoder {
        let counts = DecodeCounts {
            frames: 0,
            skipped: Default::default(),
            not_segment: Default::default(),
            segments: 0,
            heartbeats: 0,
            messages: 0,
            unknown: 0,
            short: 0,
        };
        Decoder { protocol, rows: RowWriter::new(format), runs: RunCounter::default(), counts, session: None }
    }

    /// Appends the header line, where the format has one.
    pub fn header(&self, out: &mut Vec<u8>) {
        self.rows.header(out);
    }

    /// What was met so far.
    pub fn counts(&self) -> &DecodeCounts {
        &self.counts
    }

    /// Appends the rows of one frame; `index` is its number in its file.
    pub fn frame(&mut self, index: u64, frame: &[u8], link: LinkType, out: &mut Vec<u8>) {
        self.counts.frames += 1;
        let view = match packet::udp(frame, link) {
            Ok(view) => view,
            Err(reason) => {
                self.counts.skipped[reason as usize] += 1;
                return;
            }
        };
        let segment = match self.protocol {
            Protocol::IexTp => iextp::parse(view.payload),
            Protocol::MoldUdp64 => moldudp64::parse(view.payload),
        };
        match segment {
            Ok(segment) => self.segment(index, &segment, out),
            Err(error) => self.counts.not_segment[error as usize] += 1,
        }
    }

    fn segment(&mut self, index: u64, segment: &Segment<'_>, out: &mut Vec<u8>) {
        let run = self.runs.run(segment);
        if segment.kind != SegmentKind::Data {
            self.counts.heartbeats += 1;
            return;
        }
        self.counts.segments += 1;
        let session = match self.session.take() {
            Some(session) if session.0 == segment.session => session,
            _ => (segment.session, segment.session.session_text()),
        };
        self.rows.segment(index, &session.1, run);
        self.session = Some(session);
        let mut sequence = segment.first;
        for body in segment.messages() {
            match (segment.session.protocol, Message::decode(body)) {
                (Protocol::MoldUdp64, _) => {
                    self.rows.foreign(sequence, body, out);
                    self.counts.messages += 1;
                }
                (Protocol::IexTp, _) if !known_protocol(&segment.session) => self.counts.unknown += 1,
                (Protocol::IexTp, Ok(message)) => {
                    self.rows.row(sequence, &message, out);
                    self.counts.messages += 1;
                }
                (Protocol::IexTp, Err(MessageError::Unknown { .. })) => self.counts.unknown += 1,
                (Protocol::IexTp, Err(MessageError::Short { .. } | MessageError::Empty)) => self.counts.short += 1,
            }
            sequence = sequence.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_digits() {
        let mut number = 1u64;
        let mut cases = vec![0, u64::MAX, u64::from(u32::MAX)];
        while let Some(next) = number.checked_mul(10) {
            cases.extend([number - 1, number, number + 1, number * 3, next - 1]);
            number = next;
        }
        for case in cases {
            let mut out = Vec::new();
            push_unsigned(&mut out, case);
            assert_eq!(String::from_utf8(out), Ok(case.to_string()));
        }
    }
}
