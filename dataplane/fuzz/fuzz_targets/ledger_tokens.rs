//! A file of tokens of any bytes: it is read without a panic, and only a token that stands in it is good.
#![no_main]

use std::fs;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use sluice::ledger::tokens::{TOKEN_BYTES_MIN, Tokens};

/// A path in shared memory where there is some: no disk is worn.
fn path() -> PathBuf {
    let folder = Path::new("/dev/shm");
    let folder = if folder.is_dir() { folder.into() } else { std::env::temp_dir() };
    folder.join(format!("sluice-fuzz-{}.tokens", std::process::id()))
}

fuzz_target!(|bytes: &[u8]| {
    let path = path();
    fs::write(&path, bytes).expect("space for a small file");
    let loaded = Tokens::load(&path);
    let _ = fs::remove_file(&path);
    let Ok(mut tokens) = loaded else { return };
    // Comments may hold anything.
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.split('\n').map(str::trim_ascii).collect();
    let token = lines.iter().find(|line| line.len() >= TOKEN_BYTES_MIN && !line.starts_with('#')).expect("it holds one");
    assert!(tokens.authorized(Some(&format!("Bearer {token}")), None), "{token}");
    assert!(tokens.authorized(None, Some(token)), "{token}");
    let other = format!("{token}x");
    if !lines.contains(&other.as_str()) {
        assert!(!tokens.authorized(None, Some(&other)));
    }
    assert!(!tokens.authorized(None, None) && !tokens.authorized(Some(""), Some("")));
});
