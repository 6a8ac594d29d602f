//! CSV: one row a record, the body in hexadecimal.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::Rows;
use crate::store::StoreError;
use crate::store::query::Found;
use crate::wire::block::NO_TIME;

/// The columns. `flags` is decimal; `send_ns` is empty where the protocol has none.
pub const COLUMNS: [&str; 10] =
    ["arrival", "stream", "kind", "side", "flags", "sequence", "capture_ns", "send_ns", "bytes", "body"];

pub(super) struct CsvRows<W: Write> {
    writer: W,
    path: PathBuf,
    line: Vec<u8>,
}

impl<W: Write> CsvRows<W> {
    pub(super) fn new(mut writer: W, path: &Path) -> Result<CsvRows<W>, StoreError> {
        let head = format!("{}\n", COLUMNS.join(","));
        writer.write_all(head.as_bytes()).map_err(|source| StoreError::io("write", path, source))?;
        Ok(CsvRows { writer, path: path.into(), line: Vec::new() })
    }
}

/// One record as a CSV line with its newline.
pub fn line(out: &mut Vec<u8>, key: &str, found: &Found<'_>) {
    let header = &found.header;
    // Keys hold no control characters, but may hold a comma or a quote (a session id in ASCII).
    let quoted;
    let key = if key.contains([',', '"', '\n', '\r']) {
        quoted = format!("\"{}\"", key.replace('"', "\"\""));
        &quoted
    } else {
        key
    };
    let _ = write!(
        out,
        "{},{key},{},{},{},{},{},",
        found.arrival,
        header.kind.name(),
        header.side,
        header.flags,
        header.sequence,
        header.capture_ns
    );
    if header.send_ns != NO_TIME {
        let _ = write!(out, "{}", header.send_ns);
    }
    let _ = write!(out, ",{},", found.body.len());
    hex(out, found.body);
    out.push(b'\n');
}

/// Appends bytes in lower-case hexadecimal.
pub fn hex(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

impl<W: Write> Rows for CsvRows<W> {
    fn put(&mut self, key: &str, found: &Found<'_>) -> Result<bool, StoreError> {
        self.line.clear();
        line(&mut self.line, key, found);
        self.writer.write_all(&self.line).map_err(|source| StoreError::io("write", &self.path, source))?;
        Ok(true)
    }

    fn finish(mut self: Box<Self>) -> Result<(), StoreError> {
        self.writer.flush().map_err(|source| StoreError::io("write", &self.path, source))
    }
}

/// Reads a CSV export back: every row must have all columns and as many body bytes as it says.
pub(super) fn count(path: &Path) -> Result<u64, StoreError> {
    use std::io::BufRead;
    let io = |source| StoreError::io("read back", path, source);
    let file = File::open(path).map_err(io)?;
    let mut rows = 0;
    for line in std::io::BufReader::with_capacity(1 << 20, file).lines().skip(1) {
        let line = line.map_err(io)?;
        let mut from_end = line.rsplitn(3, ',');
        let (body, bytes) = (from_end.next(), from_end.next());
        let whole = match (body, bytes.and_then(|bytes| bytes.parse::<usize>().ok())) {
            (Some(body), Some(bytes)) => body.len() == 2 * bytes,
            _ => false,
        };
        rows += u64::from(whole);
    }
    Ok(rows)
}
