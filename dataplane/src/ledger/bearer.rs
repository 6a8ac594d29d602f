//! A client's token: read from a file, sent as `Authorization: Bearer …`.

use std::io::Read;
use std::path::{Path, PathBuf};

/// Longest token file that is read: a token is a line, and a signed one has a few KiB.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Why a token file is refused.
#[derive(Debug, thiserror::Error)]
pub enum BearerError {
    /// It cannot be read.
    #[error("token file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It holds no token.
    #[error("token file {}: {what}: its first line that is not blank and no # comment is the token", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// Reads the token in a file; the value of the request's `Authorization` field.
///
/// # Errors
/// See [`BearerError`]. No message holds any of the token.
pub fn read(path: &Path) -> Result<String, BearerError> {
    let failed = |source| BearerError::Read { path: path.into(), source };
    let wrong = |what| BearerError::Content { path: path.into(), what };
    let mut text = String::new();
    let mut file = std::fs::File::open(path).map_err(failed)?.take(FILE_BYTES_MAX + 1);
    file.read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(wrong("it is longer than 64 KiB"));
    }
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let token = lines.next().ok_or_else(|| wrong("it is empty"))?;
    match token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(format!("Bearer {token}")),
        false => Err(wrong("its token holds a blank, a control character or one beyond ASCII")),
    }
}

/// Whether a text can be the value of a header's field.
pub fn is_field_value(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ' || byte == b'\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_says_something_is_the_token() {
        let folder = tempfile::tempdir().expect("room");
        let path = folder.path().join("token");
        for (text, expected) in [
            ("secret", Some("Bearer secret")),
            ("# ours\n\n  a.b-c~1+/=  \nother\n", Some("Bearer a.b-c~1+/=")),
            ("", None),
            ("# only\n", None),
            ("two words", None),
            ("t\u{e9}", None),
            ("a\u{1}b", None),
        ] {
            std::fs::write(&path, text).expect("written");
            assert_eq!(read(&path).ok().as_deref(), expected, "{text:?}");
        }
        std::fs::write(&path, vec![b'x'; 65 << 10]).expect("written");
        let error = read(&path).expect_err("too long").to_string();
        assert!(error.contains("longer than 64 KiB") && !error.contains("xx"), "{error}");
        assert!(read(&folder.path().join("none")).is_err());
        assert!(is_field_value("Bearer x") && !is_field_value("Bearer x\r\nHost: y"));
    }
}
