//! Who may subscribe: bearer tokens from a file.
//!
//! The file has one token a line; blank lines and lines that begin with `#` are passed over. What is compared is the SHA-256 of
//! a token, with all of them and in a time that does not depend on where they differ, so that neither a token nor its length
//! can be found out by the clock.

use std::hint::black_box;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::sync::latest::Latest;
use crate::sys::file::{SmallFileError, read_small};

/// Largest file of tokens: room for over a thousand, and read in one go.
pub const FILE_BYTES_MAX: u64 = 64 << 10;
/// Shortest token: 16 characters of Base64 are 96 bits, which nobody tries out over a network.
pub const TOKEN_BYTES_MIN: usize = 16;
/// Longest one: a request's head, 16 KiB at most, must hold it beside everything else.
pub const TOKEN_BYTES_MAX: usize = 1_024;

/// Why a file is none of tokens. Never says what stands in it.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// It cannot be read, is no file, or longer than [`FILE_BYTES_MAX`].
    #[error("tokens \"{path}\": {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: SmallFileError,
    },
    /// No token in it.
    #[error(
        "tokens \"{path}\": holds no token: write one a line (\"openssl rand -hex 32\" makes one), or leave out the key"
    )]
    None {
        /// The file.
        path: PathBuf,
    },
    /// A token that is too short or too long.
    #[error(
        "tokens \"{path}\" line {line}: {bytes} characters, but a token has from {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX}: \
         \"openssl rand -hex 32\" makes one"
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The length.
        bytes: usize,
    },
    /// Something that no HTTP header could carry.
    #[error(
        "tokens \"{path}\" line {line}: a token has visible ASCII characters only, and no space: \"openssl rand -hex 32\" makes one"
    )]
    Character {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

/// The SHA-256 of a token.
type Hash = [u8; 32];

/// The tokens that are good. A clone is a handle on the same ones: what one reads again holds for all.
#[derive(Clone)]
pub struct Tokens {
    path: PathBuf,
    latest: Latest<Vec<Hash>>,
}

impl Tokens {
    /// Reads a file of tokens.
    ///
    /// # Errors
    /// See [`TokensError`].
    pub fn load(path: &Path) -> Result<Tokens, TokensError> {
        Ok(Tokens { path: path.to_path_buf(), latest: Latest::new(read(path)?) })
    }

    /// Reads the file again; says how many tokens are good now.
    ///
    /// # Errors
    /// See [`TokensError`]; the tokens so far stay good.
    pub fn reload(&self) -> Result<usize, TokensError> {
        let hashes = read(&self.path)?;
        let count = hashes.len();
        self.latest.set(hashes);
        Ok(count)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a request may subscribe: by the value of its `Authorization` (`Bearer` and a token), or by that of the
    /// `token` of its query, with escapes resolved.
    pub fn authorized(&mut self, authorization: Option<&str>, query_token: Option<&str>) -> bool {
        let hashes = self.latest.look();
        let header = authorization.and_then(bearer).is_some_and(|token| holds(hashes, token));
        let query = query_token.is_some_and(|token| holds(hashes, token));
        header | query
    }
}

/// The token of an `Authorization`; `None` where it is of another scheme.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Looks at every hash to its end.
fn holds(hashes: &[Hash], token: &str) -> bool {
    let offered: Hash = Sha256::digest(token.as_bytes()).into();
    let mut found = 0_u8;
    for hash in hashes {
        let difference = hash.iter().zip(&offered).fold(0_u8, |sum, (a, b)| black_box(sum | (a ^ b)));
        // 1 for a difference of 0, else 0, without a branch.
        found |= black_box(((u16::from(difference).wrapping_sub(1)) >> 15) as u8);
    }
    black_box(found) == 1
}

fn read(path: &Path) -> Result<Vec<Hash>, TokensError> {
    let bytes =
        read_small(path, FILE_BYTES_MAX).map_err(|error| TokensError::Read { path: path.to_path_buf(), error })?;
    let mut hashes = Vec::new();
    for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let token = line.trim_ascii();
        if token.is_empty() || token.starts_with(b"#") {
            continue;
        }
        let (path, line) = (path.to_path_buf(), index + 1);
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err(TokensError::Character { path, line });
        }
        if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) {
            return Err(TokensError::Length { path, line, bytes: token.len() });
        }
        hashes.push(Sha256::digest(token).into());
    }
    if hashes.is_empty() { Err(TokensError::None { path: path.into() }) } else { Ok(hashes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "0123456789abcdef";
    const OTHER: &str = "correct-horse-battery-staple";

    fn file(text: impl AsRef<[u8]>) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        std::fs::write(&path, text).expect("writes");
        (folder, path)
    }

    fn refusal(text: impl AsRef<[u8]>) -> String {
        let (_folder, path) = file(text);
        let error = Tokens::load(&path).err().expect("refused").to_string();
        error.replace(&path.display().to_string(), "FILE")
    }

    #[test]
    fn a_token_is_known_in_a_header_and_in_a_query() {
        let (_folder, path) = file(format!("# ours\n\n  {ONE}\r\n{OTHER}"));
        let mut tokens = Tokens::load(&path).expect("loads");
        for (authorization, query, right) in [
            (Some(format!("Bearer {ONE}")), None, true),
            (Some(format!("bearer   {OTHER} ")), None, true),
            (Some(format!("Basic {ONE}")), None, false),
            (Some(ONE.to_string()), None, false),
            (Some("Bearer".into()), None, false),
            (Some("Bearer ".into()), None, false),
            (Some(format!("Bearer {}", &ONE[..15])), None, false),
            (Some(format!("Bearer {ONE}0")), None, false),
            (Some("Bearer # ours".into()), None, false),
            (None, Some(OTHER), true),
            (Some("Bearer wrong".into()), Some(ONE), true),
            (None, Some(""), false),
            (None, None, false),
        ] {
            assert_eq!(tokens.authorized(authorization.as_deref(), query), right, "{authorization:?} {query:?}");
        }
    }

    #[test]
    fn what_differs_in_any_byte_is_another_token() {
        let hashes: Vec<Hash> = vec![Sha256::digest(ONE).into()];
        assert!(holds(&hashes, ONE) && !holds(&[], ONE));
        for at in 0..ONE.len() {
            let mut other = ONE.as_bytes().to_vec();
            other[at] ^= 1;
            assert!(!holds(&hashes, &String::from_utf8(other).expect("text")), "{at}");
        }
        // Each byte of a hash counts by itself.
        for at in 0..32 {
            let mut near = hashes.clone();
            near[0][at] ^= 0x80;
            assert!(!holds(&near, ONE), "{at}");
        }
    }

    #[test]
    fn a_file_that_is_none_of_tokens_is_refused_without_telling_what_stands_in_it() {
        let makes = "\"openssl rand -hex 32\" makes one";
        assert_eq!(
            refusal("# none yet\n\n"),
            format!("tokens \"FILE\": holds no token: write one a line ({makes}), or leave out the key")
        );
        assert_eq!(
            refusal(format!("{ONE}\nshort\n")),
            format!("tokens \"FILE\" line 2: 5 characters, but a token has from 16 to 1024: {makes}")
        );
        assert_eq!(
            refusal(format!("{ONE} {OTHER}")),
            format!("tokens \"FILE\" line 1: a token has visible ASCII characters only, and no space: {makes}")
        );
        assert!(refusal([0xff; 20]).contains("visible ASCII"));
        assert!(refusal("a".repeat(1_025)).contains("1025 characters"));
        assert!(refusal(format!("{ONE}\n").repeat(4_000)).ends_with("is longer than 65536 bytes"));
        let folder = tempfile::tempdir().expect("a folder");
        let error = Tokens::load(folder.path()).err().expect("refused").to_string();
        assert!(error.ends_with("is no regular file"), "{error}");
        let error = Tokens::load(&folder.path().join("no")).err().expect("refused").to_string();
        assert!(
            error.contains("No such file") && error.ends_with("make it, or name the file that is meant"),
            "{error}"
        );
    }

    #[test]
    fn a_file_is_read_again_for_every_handle_or_not_at_all() {
        let (_folder, path) = file(ONE);
        let tokens = Tokens::load(&path).expect("loads");
        let mut fan_out = tokens.clone();
        assert!(fan_out.authorized(None, Some(ONE)));
        std::fs::write(&path, "short").expect("writes");
        assert!(tokens.reload().is_err());
        assert!(fan_out.authorized(None, Some(ONE)), "the old ones stay");
        std::fs::write(&path, format!("{OTHER}\n{OTHER}x")).expect("writes");
        assert_eq!(tokens.reload().expect("reads"), 2);
        assert!(!fan_out.authorized(None, Some(ONE)) && fan_out.authorized(None, Some(OTHER)));
    }
}
