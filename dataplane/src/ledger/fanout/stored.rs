//! Which of a stored ledger's frames one connection is sent.

use std::ops::Range;
use std::sync::Arc;

use super::super::share::Share;
use super::peer::Part;
use crate::sys::uring::Frozen;

/// A piece of bytes that several connections share.
struct Piece<T> {
    of: Arc<T>,
    range: Range<usize>,
}

impl<T: Frozen> Frozen for Piece<T> {
    fn bytes(&self) -> &[u8] {
        &self.of.bytes()[self.range.clone()]
    }
}

/// Appends what of these frames goes to a connection with this share. `first` is the place of the first one in its ledger, which has
/// `all` frames.
pub(super) fn parts<T: Frozen>(frames: Arc<T>, first: u32, all: u32, share: Share, out: &mut Vec<Part>) {
    if share == Share::WHOLE {
        out.push(frames);
        return;
    }
    let end = Some(all as usize - 1);
    let (mut at, mut index) = (0, first as usize);
    while let Some(bytes) = frame_bytes(&frames.bytes()[at..]) {
        if share.takes(index, end) {
            out.push(Arc::new(Piece { of: frames.clone(), range: at..at + bytes }));
        }
        (at, index) = (at + bytes, index + 1);
    }
}

/// Bytes of the frame that begins here, as a server writes it: unmasked, its length in one byte, two or eight (RFC 6455, 5.2). `None`
/// at the end. Asserts that it is whole: what is stored was written here and is checked when it is read.
fn frame_bytes(bytes: &[u8]) -> Option<usize> {
    let length = *bytes.get(1)?;
    let (header, payload) = match length {
        126 => (4, bytes[2..4].iter().fold(0_usize, |sum, &byte| sum << 8 | usize::from(byte))),
        127 => (10, bytes[2..10].iter().fold(0_usize, |sum, &byte| sum << 8 | usize::from(byte))),
        short => (2, usize::from(short)),
    };
    assert!(bytes.len() - header >= payload, "a stored frame is whole");
    Some(header + payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::websocket;

    #[test]
    fn frames_are_shared_out_by_their_place() {
        let sizes = [14, 125, 126, 65_535, 65_536, 3, 34];
        let mut bytes = Vec::new();
        let frames: Vec<Vec<u8>> = sizes
            .iter()
            .map(|&size| {
                let mut frame = Vec::new();
                websocket::write_binary(&vec![7; size], None, &mut frame);
                bytes.extend_from_slice(&frame);
                frame
            })
            .collect();
        let of = |from: usize, share| {
            let skipped: usize = frames[..from].iter().map(Vec::len).sum();
            let mut out = Vec::new();
            parts(Arc::new(bytes[skipped..].to_vec()), from as u32, frames.len() as u32, share, &mut out);
            out.iter().map(|part| part.bytes().len()).collect::<Vec<_>>()
        };
        let lens = |picked: &[usize]| picked.iter().map(|&index| frames[index].len()).collect::<Vec<_>>();
        assert_eq!(of(0, Share::WHOLE), [bytes.len()]);
        assert_eq!(of(0, Share::new(0, 2)), lens(&[0, 1, 3, 5, 6]));
        assert_eq!(of(0, Share::new(1, 2)), lens(&[0, 2, 4, 6]));
        assert_eq!(of(3, Share::new(2, 3)), lens(&[3, 6]));
        assert_eq!(of(5, Share::new(3, 4)), lens(&[6]), "where nothing but the end is its own");
    }
}
