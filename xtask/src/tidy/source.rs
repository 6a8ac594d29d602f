//! Rust source as tokens: enough of the language to see which paths a file names, without comments, strings and tests.

/// One token and its line (from 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Identifier, `::`, a single punctuation character, or `""` for any literal.
    pub text: String,
    /// Line, from 1.
    pub line: usize,
}

/// A path as written (`use` groups taken apart) and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Its segments; `*` can be the last.
    pub segments: Vec<String>,
    /// Line, from 1.
    pub line: usize,
}

/// The tokens of `source`. Comments vanish, literals become `""`.
pub fn tokens(source: &str) -> Vec<Token> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let start = at;
        let text = match bytes[at] {
            b' ' | b'\t' | b'\r' | b'\n' => {
                at += 1;
                None
            }
            b'/' if bytes[at..].starts_with(b"//") => {
                at = bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |length| at + length);
                None
            }
            b'/' if bytes[at..].starts_with(b"/*") => {
                at = block_comment_end(bytes, at);
                None
            }
            b'"' => {
                at = string_end(bytes, at + 1);
                Some("\"\"")
            }
            b'\'' => char_or_lifetime(source, &mut at),
            byte if byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80 => word(source, &mut at),
            byte if byte.is_ascii_digit() => {
                while at < bytes.len() && (bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_') {
                    at += 1;
                }
                Some("\"\"")
            }
            b':' if bytes[at..].starts_with(b"::") => {
                at += 2;
                Some("::")
            }
            _ => {
                at += 1;
                Some(&source[start..at])
            }
        };
        if let Some(text) = text {
            tokens.push(Token { text: text.to_string(), line });
        }
        line += bytes[start..at].iter().filter(|byte| **byte == b'\n').count();
    }
    tokens
}

fn block_comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// The index after the closing quote of a string with escapes, whose text begins at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// A character literal, or a lifetime (which is no token here).
fn char_or_lifetime<'a>(source: &'a str, at: &mut usize) -> Option<&'a str> {
    let rest = &source[*at + 1..];
    let mut chars = rest.char_indices();
    let (_, first) = chars.next()?;
    if first == '\\' {
        let bytes = source.as_bytes();
        *at += 3;
        while *at < bytes.len() && bytes[*at] != b'\'' {
            *at += 1;
        }
        *at += 1;
        return Some("\"\"");
    }
    match chars.next() {
        Some((length, '\'')) => {
            *at += 1 + length + 1;
            Some("\"\"")
        }
        _ => {
            *at += 1;
            let bytes = source.as_bytes();
            while *at < bytes.len() && (bytes[*at].is_ascii_alphanumeric() || bytes[*at] == b'_') {
                *at += 1;
            }
            None
        }
    }
}

/// An identifier, a raw identifier, or a string with a prefix.
fn word<'a>(source: &'a str, at: &mut usize) -> Option<&'a str> {
    let bytes = source.as_bytes();
    let start = *at;
    while *at < bytes.len() && (bytes[*at].is_ascii_alphanumeric() || bytes[*at] == b'_' || bytes[*at] >= 0x80) {
        *at += 1;
    }
    let prefix = &source[start..*at];
    let next = bytes.get(*at).copied();
    match (prefix, next) {
        ("b" | "c", Some(b'"')) => {
            *at = string_end(bytes, *at + 1);
            Some("\"\"")
        }
        ("b", Some(b'\'')) => char_or_lifetime(source, at),
        ("r" | "br" | "cr", Some(b'"' | b'#')) => {
            let hashes = bytes[*at..].iter().take_while(|byte| **byte == b'#').count();
            if bytes.get(*at + hashes) != Some(&b'"') {
                // A raw identifier: r#type.
                *at += hashes;
                return word(source, at);
            }
            let close = format!("\"{}", "#".repeat(hashes));
            let body = *at + hashes + 1;
            *at = source[body..].find(&close).map_or(bytes.len(), |length| body + length + close.len());
            Some("\"\"")
        }
        _ => Some(prefix),
    }
}

/// `tokens` without the items that only a test build has.
pub fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match test_attribute_end(tokens, at) {
            Some(end) => at = item_end(tokens, end),
            None => {
                kept.push(tokens[at].clone());
                at += 1;
            }
        }
    }
    kept
}

fn text(tokens: &[Token], at: usize) -> &str {
    tokens.get(at).map_or("", |token| token.text.as_str())
}

/// The index after an attribute at `at` that is `#[test]`, `#[cfg(test)]` or `#[cfg(all(test, …))]`.
fn test_attribute_end(tokens: &[Token], at: usize) -> Option<usize> {
    if text(tokens, at) != "#" || text(tokens, at + 1) != "[" {
        return None;
    }
    let words: Vec<&str> = (at + 2..at + 7).map(|at| text(tokens, at)).collect();
    let test = words[..2] == ["test", "]"]
        || words[..4] == ["cfg", "(", "test", ")"]
        || words == ["cfg", "(", "all", "(", "test"];
    test.then(|| closing(tokens, at + 1))
}

/// The index after the bracket that closes the one at `open`.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for at in open..tokens.len() {
        match text(tokens, at) {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// The index after the item that begins at `at` (further attributes included).
fn item_end(tokens: &[Token], mut at: usize) -> usize {
    while at < tokens.len() {
        match text(tokens, at) {
            ";" => return at + 1,
            "{" => return closing(tokens, at),
            "(" | "[" => at = closing(tokens, at),
            _ => at += 1,
        }
    }
    at
}

/// Every path of two or more segments, `use` groups taken apart.
pub fn paths(tokens: &[Token]) -> Vec<Path> {
    let mut paths = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let begins = is_word(text(tokens, at)) && !continues(tokens, at) && text(tokens, at + 1) == "::";
        match begins {
            true => at = path(tokens, at, Vec::new(), &mut paths),
            false => at += 1,
        }
    }
    paths
}

fn is_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Whether the word at `at` is a later segment of a path. (A leading `::` begins one.)
fn continues(tokens: &[Token], at: usize) -> bool {
    at >= 2 && text(tokens, at - 1) == "::" && (is_word(text(tokens, at - 2)) || text(tokens, at - 2) == ">")
}

/// Reads the path at `at` after `prefix`; returns the index after it.
fn path(tokens: &[Token], mut at: usize, mut prefix: Vec<String>, out: &mut Vec<Path>) -> usize {
    let line = tokens[at].line;
    loop {
        match text(tokens, at) {
            "{" => return group(tokens, at, &prefix, out),
            "*" => prefix.push("*".into()),
            word if is_word(word) => prefix.push(word.into()),
            _ => break,
        }
        at += 1;
        if text(tokens, at) != "::" {
            break;
        }
        at += 1;
    }
    out.push(Path { segments: prefix, line });
    at
}

/// Reads `{a, b::c}` after `prefix`; returns the index after it.
fn group(tokens: &[Token], open: usize, prefix: &[String], out: &mut Vec<Path>) -> usize {
    let end = closing(tokens, open);
    let mut at = open + 1;
    while at + 1 < end {
        let next = path(tokens, at, prefix.to_vec(), out);
        // "as name", the comma, or anything unknown.
        at = next.max(at + 1);
        while at + 1 < end && text(tokens, at) != "," {
            at += 1;
        }
        at += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: &str) -> Vec<String> {
        paths(&without_tests(&tokens(source))).iter().map(|path| path.segments.join("::")).collect()
    }

    #[test]
    fn groups_are_taken_apart() {
        let source = "use crate::{sys::{clock, frames as f}, units::*};\nfn f() { crate::wire::packet::fast(x); }";
        assert_eq!(
            read(source),
            ["crate::sys::clock", "crate::sys::frames", "crate::units::*", "crate::wire::packet::fast"]
        );
    }

    #[test]
    fn comments_strings_and_characters_are_no_code() {
        let source = r##"
            // use crate::sys;
            /* crate::sys::a /* nested */ crate::sys::b */
            /// crate::sys::c
            fn f<'a>(x: &'a str) { let _ = ("crate::sys::d", r#"crate::"sys"::e"#, b"crate::sys", '"', '\'', b'"'); g::h() }
        "##;
        assert_eq!(read(source), ["g::h"]);
    }

    #[test]
    fn tests_are_left_out() {
        let source = "#[cfg(test)]\n#[allow(x)]\nmod tests { use std::fs; }\n#[cfg(all(test, y))] use std::net;\n\
                      #[test] fn t() -> [u8; 2] { std::fs::read() }\nfn f() { std::time::now() }";
        assert_eq!(read(source), ["std::time::now"]);
        assert_eq!(read("#[cfg(not(test))] use std::fs;"), ["std::fs"]);
    }

    #[test]
    fn lines_are_counted() {
        let tokens = tokens("a\n/* b\n */ c\n\"d\n\" e");
        let lines: Vec<(&str, usize)> = tokens.iter().map(|token| (token.text.as_str(), token.line)).collect();
        assert_eq!(lines, [("a", 1), ("c", 3), ("\"\"", 4), ("e", 5)]);
    }

    #[test]
    fn a_leading_colon_pair_begins_a_path() {
        assert_eq!(read("fn f() { let x = ::std::fs::read(a)?; <T as A>::b::c(); }"), ["std::fs::read"]);
    }
}
