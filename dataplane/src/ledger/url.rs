//! The address of a ledger stream, as a user writes it.

use std::fmt;

use super::query::{Range, decode};

/// The port of a server that was told none (the peer's default).
pub const PORT_DEFAULT: u16 = 8462;

/// Where a stream is, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Url {
    /// `wss` or `https`.
    pub tls: bool,
    /// Host name or address, without brackets.
    pub host: String,
    /// The port; the scheme's own where none was given.
    pub port: u16,
    path: String,
    /// The parameters that are not ours, as they were given.
    query: String,
}

/// Why an address is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("stream URL {url:?}: {what}: write ws://host:port or wss://host:port")]
pub struct UrlError {
    /// The address.
    pub url: String,
    /// What is wrong with it.
    pub what: &'static str,
}

impl Url {
    /// Takes an address apart. `ws`, `wss`, `http` and `https` are known; a bare origin means `/stream`; `start` and `end` (and
    /// `flow` and `flows`) are left out, because each connection sets its own; other parameters stay.
    ///
    /// # Errors
    /// See [`UrlError`].
    pub fn parse(url: &str) -> Result<Url, UrlError> {
        let wrong = |what| UrlError { url: url.into(), what };
        if url.chars().any(|c| c.is_whitespace() || c.is_control() || !c.is_ascii()) {
            return Err(wrong("it holds a blank, a control character or one beyond ASCII"));
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "ws" | "http" => false,
            "wss" | "https" => true,
            _ => return Err(wrong("its scheme is none of ws, wss, http, https")),
        };
        let rest = rest.split('#').next().unwrap_or("");
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        if authority.contains('@') {
            return Err(wrong("it holds a user, and none is ever sent"));
        }
        let (host, port) = split_authority(authority).ok_or_else(|| wrong("its host or port cannot be read"))?;
        let port = match port {
            Some(port) => port.parse().ok().filter(|&port| port != 0).ok_or_else(|| wrong("its port is no port"))?,
            None if tls => 443,
            None => 80,
        };
        let path = if matches!(path, "" | "/") { "/stream" } else { path };
        let ours = |pair: &&str| matches!(name(pair).as_deref(), Some("start" | "end" | "flow" | "flows"));
        let kept: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty() && !ours(pair)).collect();
        Ok(Url { tls, host, port, path: path.into(), query: kept.join("&") })
    }

    /// Whether the address has a parameter of its own with this name.
    pub fn has_parameter(&self, parameter: &str) -> bool {
        self.query.split('&').any(|pair| name(pair).as_deref() == Some(parameter))
    }

    /// The value of the `Host` field.
    pub fn authority(&self) -> String {
        let port = if self.port == if self.tls { 443 } else { 80 } { String::new() } else { format!(":{}", self.port) };
        if self.host.contains(':') { format!("[{}]{port}", self.host) } else { format!("{}{port}", self.host) }
    }

    /// Host and port, as a resolver takes them; the port is there even where it is the scheme's own.
    pub fn host_and_port(&self) -> String {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        format!("{open}{}{close}:{}", self.host, self.port)
    }

    /// The request's target for a range: path, other parameters, then `start` (always) and `end`.
    pub fn target(&self, range: &Range) -> String {
        let mut target = format!("{}?", self.path);
        if !self.query.is_empty() {
            target.push_str(&self.query);
            target.push('&');
        }
        target.push_str(&format!("start={}", range.start()));
        if let Some(end) = range.end() {
            target.push_str(&format!("&end={end}"));
        }
        target
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.tls { "wss" } else { "ws" }, self.authority(), self.path)
    }
}

/// A parameter's name as a server reads it, so that an escaped one does not slip through.
fn name(pair: &str) -> Option<String> {
    pair.split('=').next().and_then(decode)
}

/// Host and port of an authority; an IPv6 address stands in brackets.
fn split_authority(authority: &str) -> Option<(String, Option<&str>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            host.parse::<core::net::Ipv6Addr>().ok()?;
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let legal =
        !host.is_empty() && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()));
    legal.then(|| (host.to_string(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let range = Range::new(7, Some(9)).expect("a range");
        for (text, authority, target) in [
            ("ws://a:8462", "a:8462", "/stream?start=7&end=9"),
            ("ws://a:8462/", "a:8462", "/stream?start=7&end=9"),
            ("HTTP://a", "a", "/stream?start=7&end=9"),
            ("wss://a", "a", "/stream?start=7&end=9"),
            ("https://a:8443/x/y", "a:8443", "/x/y?start=7&end=9"),
            ("ws://a:80/stream?start=1&token=t%26&end=2#frag", "a", "/stream?token=t%26&start=7&end=9"),
            ("ws://a:80?st%61rt=3&e%6Ed=4&x=%zz", "a", "/stream?x=%zz&start=7&end=9"),
            ("ws://a:80?flows=3&id=x&flow=1", "a", "/stream?id=x&start=7&end=9"),
            ("ws://[::1]:8462?a=1&&b", "[::1]:8462", "/stream?a=1&b&start=7&end=9"),
        ] {
            let url = Url::parse(text).expect(text);
            assert_eq!((url.authority().as_str(), url.target(&range).as_str()), (authority, target), "{text}");
        }
        let url = Url::parse("wss://h").expect("a URL");
        assert_eq!((url.tls, url.port, url.to_string().as_str()), (true, 443, "wss://h/stream"));
        assert_eq!(url.host_and_port(), "h:443");
        assert_eq!(Url::parse("ws://[::1]").expect("a URL").host_and_port(), "[::1]:80");
        assert_eq!(url.target(&Range::TIP), "/stream?start=0", "the tip is asked for by its number, and has no end");
    }

    #[test]
    fn what_is_no_stream_address_is_refused() {
        for text in [
            "",
            "a:8462",
            "tcp://a",
            "ws://",
            "ws://:8462",
            "ws://a:",
            "ws://a:0",
            "ws://a:65536",
            "ws://a:8x",
            "ws://[::1",
            "ws://[::1]8462",
            "ws://[zz]:1",
            "ws://u@a",
            "ws://a b",
            "ws://a/\r\nX: y",
        ] {
            assert!(Url::parse(text).is_err(), "{text:?}");
        }
    }
}
