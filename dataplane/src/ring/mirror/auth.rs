//! Authentication with a pre-shared key: mutual proof on the TCP handshake, a MAC on every datagram.

use core::fmt;

/// Fewest bytes of a pre-shared key: 128 bits.
pub const KEY_BYTES_MIN: usize = 16;

/// A pre-shared key; never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct PresharedKey(Vec<u8>);

/// Why bytes are no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// Fewer than [`KEY_BYTES_MIN`] bytes.
    #[error(
        "a pre-shared key has {bytes} bytes, but needs {KEY_BYTES_MIN}: write one with \"head -c 32 /dev/urandom\""
    )]
    TooShort {
        /// Its length.
        bytes: usize,
    },
}

impl PresharedKey {
    /// The key that a key file's bytes are; white space at both ends is not part of it.
    ///
    /// # Errors
    /// Too short.
    pub fn new(bytes: &[u8]) -> Result<PresharedKey, KeyError> {
        let bytes = bytes.trim_ascii();
        match bytes.len() {
            short if short < KEY_BYTES_MIN => Err(KeyError::TooShort { bytes: short }),
            _ => Ok(PresharedKey(bytes.to_vec())),
        }
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PresharedKey({} bytes)", self.0.len())
    }
}
