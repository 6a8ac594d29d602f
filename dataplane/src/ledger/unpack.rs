//! Unpacking a chunk: exactly one independent zstd frame, bounded before it is unpacked.

use zstd::bulk::Decompressor;
use zstd::zstd_safe;

/// Why a packed chunk is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnpackError {
    /// Not exactly one zstd frame.
    #[error("not exactly one zstd frame")]
    NotOneFrame,
    /// A frame that is damaged, or larger than allowed when unpacked.
    #[error("a zstd frame that is damaged, or of more than {limit} bytes when unpacked")]
    Frame {
        /// Most bytes that it may have.
        limit: usize,
    },
}

/// Unpacks chunks.
pub struct Unpacker {
    decompressor: Decompressor<'static>,
}

/// Skippable frames have magic numbers 0x184D2A50 to 0x184D2A5F (RFC 8878, 3.1.2); they hold no data.
const SKIPPABLE_MAGIC: u32 = 0x184D_2A50;

impl Unpacker {
    /// An unpacker.
    ///
    /// # Errors
    /// As zstd: no memory.
    pub fn new() -> std::io::Result<Unpacker> {
        Ok(Unpacker { decompressor: Decompressor::new()? })
    }

    /// Unpacks `payload` to the start of `out`, which bounds it; the bytes written.
    ///
    /// # Errors
    /// See [`UnpackError`].
    pub fn unpack(&mut self, payload: &[u8], out: &mut [u8]) -> Result<usize, UnpackError> {
        let magic = payload.first_chunk().map(|magic| u32::from_le_bytes(*magic));
        let one = zstd_safe::find_frame_compressed_size(payload) == Ok(payload.len())
            && magic.is_some_and(|magic| magic & !0xf != SKIPPABLE_MAGIC);
        if !one {
            return Err(UnpackError::NotOneFrame);
        }
        let limit = out.len();
        self.decompressor.decompress_to_buffer(payload, out).map_err(|_| UnpackError::Frame { limit })
    }
}
