//! Parquet: one row a record, without arrow.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::Rows;
use crate::store::StoreError;
use crate::store::query::Found;
use crate::wire::block::NO_TIME;

/// Rows of a row group: about 16 MiB of feed messages, small enough to hold in memory.
const GROUP_ROWS: usize = 256 * 1024;
/// Body bytes after which a row group is written although it has fewer rows (raw frames are large).
const GROUP_BODY_BYTES: usize = 64 * 1024 * 1024;

const SCHEMA: &str = "message store {
    REQUIRED INT64 arrival;
    REQUIRED BYTE_ARRAY stream (UTF8);
    REQUIRED BYTE_ARRAY kind (UTF8);
    REQUIRED BYTE_ARRAY side (UTF8);
    REQUIRED INT32 flags;
    REQUIRED INT64 sequence;
    REQUIRED INT64 capture_ns (TIMESTAMP(NANOS,true));
    OPTIONAL INT64 send_ns (TIMESTAMP(NANOS,true));
    REQUIRED BYTE_ARRAY body;
}";

pub(super) struct ParquetRows<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    path: PathBuf,
    arrival: Vec<i64>,
    stream: Vec<ByteArray>,
    kind: Vec<ByteArray>,
    side: Vec<ByteArray>,
    flags: Vec<i32>,
    sequence: Vec<i64>,
    capture: Vec<i64>,
    send: Vec<i64>,
    send_there: Vec<i16>,
    body: Vec<ByteArray>,
    body_bytes: usize,
}

impl<W: Write + Send> ParquetRows<W> {
    pub(super) fn new(writer: W, path: &Path) -> Result<ParquetRows<W>, StoreError> {
        let schema = Arc::new(parse_message_type(SCHEMA).expect("the schema is ours"));
        let level = ZstdLevel::try_new(3).expect("3 is a zstd level");
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(level)).build();
        let writer = SerializedFileWriter::new(writer, schema, Arc::new(properties));
        Ok(ParquetRows {
            writer: writer.map_err(|error| failed("write", path, error))?,
            path: path.into(),
            arrival: Vec::new(),
            stream: Vec::new(),
            kind: Vec::new(),
            side: Vec::new(),
            flags: Vec::new(),
            sequence: Vec::new(),
            capture: Vec::new(),
            send: Vec::new(),
            send_there: Vec::new(),
            body: Vec::new(),
            body_bytes: 0,
        })
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        if self.arrival.is_empty() {
            return Ok(());
        }
        let mut group = self.writer.next_row_group()?;
        macro_rules! column {
            ($kind:ty, $values:expr, $there:expr) => {{
                let mut column = group.next_column()?.expect("the schema has this column");
                column.typed::<$kind>().write_batch(&$values, $there, None)?;
                column.close()?;
                $values.clear();
            }};
        }
        column!(Int64Type, self.arrival, None);
        column!(ByteArrayType, self.stream, None);
        column!(ByteArrayType, self.kind, None);
        column!(ByteArrayType, self.side, None);
        column!(Int32Type, self.flags, None);
        column!(Int64Type, self.sequence, None);
        column!(Int64Type, self.capture, None);
        column!(Int64Type, self.send, Some(&self.send_there[..]));
        column!(ByteArrayType, self.body, None);
        group.close()?;
        self.send_there.clear();
        self.body_bytes = 0;
        Ok(())
    }
}

impl<W: Write + Send> Rows for ParquetRows<W> {
    fn put(&mut self, key: &str, found: &Found<'_>) -> Result<bool, StoreError> {
        let header = &found.header;
        self.arrival.push(found.arrival as i64);
        self.stream.push(key.into());
        self.kind.push(header.kind.name().into());
        self.side.push(header.side.to_string().as_str().into());
        self.flags.push(header.flags.into());
        self.sequence.push(header.sequence as i64);
        self.capture.push(header.capture_ns);
        if header.send_ns != NO_TIME {
            self.send.push(header.send_ns);
        }
        self.send_there.push((header.send_ns != NO_TIME).into());
        self.body.push(found.body.to_vec().into());
        self.body_bytes += found.body.len();
        if self.arrival.len() >= GROUP_ROWS || self.body_bytes >= GROUP_BODY_BYTES {
            let path = self.path.clone();
            self.write_group().map_err(|error| failed("write", &path, error))?;
        }
        Ok(true)
    }

    fn finish(mut self: Box<Self>) -> Result<(), StoreError> {
        let path = self.path.clone();
        let failed = |error| failed("write", &path, error);
        self.write_group().map_err(failed)?;
        let mut inner = self.writer.into_inner().map_err(failed)?;
        inner.flush().map_err(|source| StoreError::io("write", &path, source))
    }
}

/// Reads a Parquet export back, every column of every row.
pub(super) fn count(path: &Path) -> Result<u64, StoreError> {
    let file = File::open(path).map_err(|source| StoreError::io("read back", path, source))?;
    let reader = SerializedFileReader::new(file).map_err(|error| failed("read back", path, error))?;
    let mut rows = 0;
    for row in reader.get_row_iter(None).map_err(|error| failed("read back", path, error))? {
        row.map_err(|error| failed("read back", path, error))?;
        rows += 1;
    }
    Ok(rows)
}

fn failed(what: &'static str, path: &Path, error: ParquetError) -> StoreError {
    StoreError::io(what, path, std::io::Error::other(error))
}
