//! Packing a chunk: one independent zstd frame, or the bytes as they are.

use zstd::bulk::Compressor;

use super::message::{Encoded, HEADROOM, RawChunk};
use super::pool::Buffer;
use crate::wire::ledger::{ChunkHeader, Codec};

/// The level unless told otherwise: 3.8 GB/s a core on synthetic ledgers, 2 GB/s on such as are shaped like XDR.
pub const LEVEL_DEFAULT: i32 = 1;

/// Packs chunks, one at a time; one for each thread.
pub struct Packer {
    compressor: Compressor<'static>,
}

impl Packer {
    /// A packer of a zstd level (negative ones are faster).
    ///
    /// # Errors
    /// As zstd: no memory, or a level that it does not have.
    pub fn new(level: i32) -> std::io::Result<Packer> {
        Ok(Packer { compressor: Compressor::new(level)? })
    }

    /// Another level for the chunks to come.
    ///
    /// # Errors
    /// As zstd: a level that it does not have.
    pub fn set_level(&mut self, level: i32) -> std::io::Result<()> {
        self.compressor.set_compression_level(level)
    }

    /// The message of a chunk: packed into `spare` where that makes it smaller, else as it is. Asserts that `spare` is at least as
    /// long as a message of the chunk as it is.
    pub fn pack(&mut self, chunk: RawChunk, mut spare: Buffer) -> Encoded {
        let raw_bytes = chunk.payload().len();
        assert!(spare.len() >= HEADROOM + raw_bytes, "a spare buffer is as long as the chunk's");
        // Room for one byte less than the chunk has: what does not fit is not smaller, and zstd gives up.
        let room = raw_bytes.saturating_sub(1);
        let packed = self.compressor.compress_to_buffer(chunk.payload(), &mut spare[HEADROOM..HEADROOM + room]);
        match packed {
            Ok(bytes) if raw_bytes > 0 => {
                let header = ChunkHeader { sequence: chunk.sequence, index: chunk.index, codec: Codec::Zstd };
                Encoded::in_place(spare, header, bytes, raw_bytes)
            }
            _ => chunk.into_message(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::synthetic::{self, Shape};
    use crate::ledger::unpack::{UnpackError, Unpacker};
    use crate::wire::ledger::{Message, decode};

    fn chunk(payload: &[u8]) -> RawChunk {
        let buffer = [&[0; HEADROOM][..], payload].concat();
        RawChunk::new(buffer, payload.len(), 3, 1)
    }

    fn packed(packer: &mut Packer, payload: &[u8]) -> (Codec, Vec<u8>) {
        let message = packer.pack(chunk(payload), vec![0; HEADROOM + payload.len()].into());
        assert_eq!(message.raw_bytes(), payload.len());
        let Ok(Message::Chunk(header, packed)) = decode(message.message()) else { panic!("a chunk") };
        assert_eq!((header.sequence, header.index), (3, 1));
        (header.codec, packed.to_vec())
    }

    #[test]
    fn what_shrinks_is_packed_and_all_else_goes_as_it_is() {
        let mut packer = Packer::new(LEVEL_DEFAULT).expect("zstd");
        let mut unpacker = Unpacker::new().expect("zstd");
        for power in 12..=20 {
            let mut bytes = vec![0; 1 << power];
            synthetic::write(1, Shape::Compressible, &mut bytes);
            let (codec, payload) = packed(&mut packer, &bytes);
            assert_eq!(codec, Codec::Zstd);
            let ratio = bytes.len() as f64 / payload.len() as f64;
            assert!((4.0..=12.0).contains(&ratio), "{ratio} at {} bytes", bytes.len());
            let mut out = vec![0; bytes.len()];
            assert_eq!(unpacker.unpack(&payload, &mut out), Ok(bytes.len()));
            assert_eq!(out, bytes);

            synthetic::write(1, Shape::Noise, &mut bytes);
            let (codec, payload) = packed(&mut packer, &bytes);
            assert_eq!((codec, payload), (Codec::Raw, bytes));
        }
        for small in [&b""[..], b"a", b"aa"] {
            assert_eq!(packed(&mut packer, small), (Codec::Raw, small.to_vec()));
        }
    }

    #[test]
    fn only_one_whole_frame_within_the_limit_is_unpacked() {
        let mut packer = Packer::new(LEVEL_DEFAULT).expect("zstd");
        let mut unpacker = Unpacker::new().expect("zstd");
        let (_, frame) = packed(&mut packer, &[7; 10_000]);
        let mut out = vec![0; 10_000];
        assert_eq!(unpacker.unpack(&frame, &mut out), Ok(10_000), "exactly at the limit");
        assert_eq!(unpacker.unpack(&frame, &mut out[..9_999]), Err(UnpackError::Frame { limit: 9_999 }));
        assert_eq!(unpacker.unpack(&frame[..frame.len() - 1], &mut out), Err(UnpackError::NotOneFrame));
        assert_eq!(unpacker.unpack(&[&frame[..], &frame].concat(), &mut out), Err(UnpackError::NotOneFrame));
        assert_eq!(unpacker.unpack(&[&frame[..], &[0]].concat(), &mut out), Err(UnpackError::NotOneFrame));
        assert_eq!(unpacker.unpack(b"", &mut out), Err(UnpackError::NotOneFrame));
        let skippable = [&0x184D_2A50_u32.to_le_bytes()[..], &4_u32.to_le_bytes(), b"skip"].concat();
        assert_eq!(unpacker.unpack(&skippable, &mut out), Err(UnpackError::NotOneFrame));
        let mut bad = frame.clone();
        let middle = bad.len() / 2;
        bad[middle] ^= 0xff;
        // Damage that still decodes is the checksum's to find.
        if let Ok(bytes) = unpacker.unpack(&bad, &mut out) {
            assert!(bytes <= out.len());
        }
    }
}
