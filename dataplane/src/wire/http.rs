//! HTTP/1.1 heads and the WebSocket upgrade (RFC 6455, 4) over bytes: httparse reads, this judges and writes.

use sha1::{Digest, Sha1};

/// Longest head of a request or an answer. A browser's is a few KiB; the stream's own under one.
pub const HEAD_BYTES_MAX: usize = 16 << 10;
/// Most header fields of a head.
pub const HEADERS_MAX: usize = 64;

/// What RFC 6455 appends to a key before it is hashed.
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Why bytes are no HTTP head.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeadError {
    /// Not HTTP.
    #[error("not an HTTP head: {0}")]
    Syntax(httparse::Error),
    /// A head over the limit.
    #[error("an HTTP head of more than {HEAD_BYTES_MAX} bytes")]
    TooLong,
}

/// A head's fields, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fields<'a>(Vec<(&'a str, &'a [u8])>);

impl<'a> Fields<'a> {
    fn new(headers: &[httparse::Header<'a>]) -> Fields<'a> {
        Fields(headers.iter().map(|header| (header.name, header.value)).collect())
    }

    /// Every value of a field; those that are no UTF-8 are passed over.
    pub fn all<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a str> + use<'_, 'a, 'n> {
        let named = self.0.iter().filter(move |(field, _)| field.eq_ignore_ascii_case(name));
        named.filter_map(|(_, value)| std::str::from_utf8(value).ok().map(str::trim))
    }

    /// The first value of a field.
    pub fn first(&self, name: &str) -> Option<&'a str> {
        self.all(name).next()
    }

    /// Whether a comma-separated field holds a token, whatever its case.
    pub fn has_token(&self, name: &str, token: &str) -> bool {
        self.all(name).flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(token))
    }
}

/// A request's head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// The method.
    pub method: &'a str,
    /// Path and query as they were sent.
    pub target: &'a str,
    /// The fields.
    pub fields: Fields<'a>,
    /// Bytes of the head; what follows belongs to the next protocol.
    pub bytes: usize,
    minor_version: u8,
}

impl<'a> Request<'a> {
    /// The path, and the query without its `?`.
    pub fn path_and_query(&self) -> (&'a str, &'a str) {
        self.target.split_once('?').unwrap_or((self.target, ""))
    }
}

/// An answer's head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response<'a> {
    /// The status.
    pub status: u16,
    /// The fields.
    pub fields: Fields<'a>,
    /// Bytes of the head.
    pub bytes: usize,
}

/// Reads a request's head; `None` while it is not whole.
///
/// # Errors
/// Not HTTP, too many fields, or a head over [`HEAD_BYTES_MAX`].
pub fn parse_request(bytes: &[u8]) -> Result<Option<Request<'_>>, HeadError> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let Some(head_bytes) = whole(request.parse(bytes), bytes)? else { return Ok(None) };
    Ok(Some(Request {
        method: request.method.unwrap_or(""),
        target: request.path.unwrap_or(""),
        minor_version: request.version.unwrap_or(0),
        fields: Fields::new(request.headers),
        bytes: head_bytes,
    }))
}

/// Reads an answer's head; `None` while it is not whole.
///
/// # Errors
/// As [`parse_request`].
pub fn parse_response(bytes: &[u8]) -> Result<Option<Response<'_>>, HeadError> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let Some(head_bytes) = whole(response.parse(bytes), bytes)? else { return Ok(None) };
    let (status, fields) = (response.code.unwrap_or(0), Fields::new(response.headers));
    Ok(Some(Response { status, fields, bytes: head_bytes }))
}

fn whole(parsed: Result<httparse::Status<usize>, httparse::Error>, bytes: &[u8]) -> Result<Option<usize>, HeadError> {
    match parsed.map_err(HeadError::Syntax)? {
        httparse::Status::Complete(head) if head <= HEAD_BYTES_MAX => Ok(Some(head)),
        httparse::Status::Partial if bytes.len() < HEAD_BYTES_MAX => Ok(None),
        _ => Err(HeadError::TooLong),
    }
}

/// A request that is not upgraded: the status and the text of the answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The status, such as 426.
    pub status: u16,
    /// One line for the client.
    pub text: String,
}

impl Refusal {
    /// A refusal with its text.
    pub fn new(status: u16, text: impl Into<String>) -> Refusal {
        Refusal { status, text: text.into() }
    }
}

/// Judges a request to upgrade; the value of the answer's `Sec-WebSocket-Accept`.
///
/// # Errors
/// 426 where no upgrade is asked for, 405 for another method than GET, 400 for another version or a bad key, 403 where an
/// `Origin` is not the `Host` (what a page of another site would send from a browser).
pub fn judge_upgrade(request: &Request<'_>) -> Result<String, Refusal> {
    let fields = &request.fields;
    if request.minor_version < 1 {
        return Err(Refusal::new(426, "a WebSocket upgrade needs HTTP/1.1"));
    }
    if !fields.has_token("connection", "upgrade") || !fields.has_token("upgrade", "websocket") {
        return Err(Refusal::new(426, "this is a WebSocket: send Connection: Upgrade and Upgrade: websocket"));
    }
    if request.method != "GET" {
        return Err(Refusal::new(405, "a WebSocket upgrade is a GET"));
    }
    if fields.first("sec-websocket-version") != Some("13") {
        return Err(Refusal::new(400, "only Sec-WebSocket-Version 13 is spoken"));
    }
    let mut keys = fields.all("sec-websocket-key");
    let key = match (keys.next(), keys.next()) {
        (Some(key), None) if is_key(key) => key,
        _ => return Err(Refusal::new(400, "one Sec-WebSocket-Key of 16 bytes in base64 is needed")),
    };
    if let Some(origin) = fields.first("origin") {
        let host = fields.first("host").unwrap_or("");
        let origin_host = origin.split_once("://").map_or(origin, |(_, rest)| rest);
        if !origin_host.split('/').next().unwrap_or("").eq_ignore_ascii_case(host) {
            return Err(Refusal::new(403, "the Origin is not this host"));
        }
    }
    Ok(accept_of(key))
}

/// 16 bytes in base64: 22 characters and two of padding.
fn is_key(key: &str) -> bool {
    let alphabet = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    key.len() == 24 && key.ends_with("==") && key.bytes().take(22).all(alphabet)
}

/// The proof that a server has read the key (RFC 6455, 4.2.2).
pub fn accept_of(key: &str) -> String {
    let mut hash = Sha1::new();
    hash.update(key.as_bytes());
    hash.update(KEY_SUFFIX);
    base64(&hash.finalize())
}

/// Base64 with padding (RFC 4648, 4).
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0_u32, |word, &byte| (word << 8) | u32::from(byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            let digit = (word >> (18 - 6 * at)) & 63;
            text.push(if at <= three.len() { ALPHABET[digit as usize] as char } else { '=' });
        }
    }
    text
}

/// The answer that upgrades. `extra` are further fields; asserts that none holds a line break.
pub fn upgrade_response(accept: &str, extra: &[(&str, &str)]) -> Vec<u8> {
    let mut head = String::from("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n");
    push_field(&mut head, "Sec-WebSocket-Accept", accept);
    extra.iter().for_each(|(name, value)| push_field(&mut head, name, value));
    head.push_str("\r\n");
    head.into_bytes()
}

/// An answer with a body, after which the connection ends.
pub fn response(status: u16, content_type: &str, body: &str, extra: &[(&str, &str)]) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status} {}\r\n", reason(status));
    push_field(&mut head, "Content-Type", content_type);
    push_field(&mut head, "Content-Length", &body.len().to_string());
    extra.iter().for_each(|(name, value)| push_field(&mut head, name, value));
    head.push_str("Connection: close\r\n\r\n");
    head.push_str(body);
    head.into_bytes()
}

/// Seconds after which a client that a limit refused may ask again: connections come and go within seconds.
const RETRY_AFTER: &str = "1";

/// The answer to a refused request: one line of text. 426 names the protocol to upgrade to, 401 how to identify oneself, 429 and 503
/// when to ask again.
pub fn refusal_response(refusal: &Refusal) -> Vec<u8> {
    let extra: &[(&str, &str)] = match refusal.status {
        401 => &[("WWW-Authenticate", "Bearer")],
        426 => &[("Upgrade", "websocket")],
        429 | 503 => &[("Retry-After", RETRY_AFTER)],
        _ => &[],
    };
    response(refusal.status, "text/plain; charset=utf-8", &format!("{}\n", refusal.text), extra)
}

/// A client's request to upgrade: `key` are 16 random bytes. Asserts that no part holds a line break.
pub fn upgrade_request(host: &str, target: &str, key: [u8; 16], extra: &[(&str, &str)]) -> Vec<u8> {
    assert!(!target.contains(char::is_whitespace), "a request's target has no blank");
    let mut head = format!("GET {target} HTTP/1.1\r\n");
    push_field(&mut head, "Host", host);
    head.push_str("Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n");
    push_field(&mut head, "Sec-WebSocket-Key", &base64(&key));
    extra.iter().for_each(|(name, value)| push_field(&mut head, name, value));
    head.push_str("\r\n");
    head.into_bytes()
}

fn push_field(head: &mut String, name: &str, value: &str) {
    assert!(!value.contains(['\r', '\n']), "a field's value is one line: {name}");
    for part in [name, ": ", value, "\r\n"] {
        head.push_str(part);
    }
}

/// Why an answer with status 101 is no upgrade to what was asked for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UpgradeError {
    /// Not to WebSocket.
    #[error("the answer does not upgrade to a WebSocket")]
    NotWebSocket,
    /// The proof is missing or wrong.
    #[error("the answer's Sec-WebSocket-Accept is not of this request")]
    Accept,
    /// Something that was not asked for.
    #[error("the answer chooses {name}: {value}, which was not offered")]
    Unasked {
        /// The field.
        name: &'static str,
        /// Its value.
        value: String,
    },
}

/// Judges an answer with status 101 to a request with this key.
///
/// # Errors
/// See [`UpgradeError`].
pub fn judge_upgraded(response: &Response<'_>, key: [u8; 16]) -> Result<(), UpgradeError> {
    let fields = &response.fields;
    if !fields.has_token("connection", "upgrade") || !fields.has_token("upgrade", "websocket") {
        return Err(UpgradeError::NotWebSocket);
    }
    if fields.first("sec-websocket-accept") != Some(&accept_of(&base64(&key))) {
        return Err(UpgradeError::Accept);
    }
    for name in ["sec-websocket-protocol", "sec-websocket-extensions"] {
        if let Some(value) = fields.first(name) {
            return Err(UpgradeError::Unasked { name, value: value.into() });
        }
    }
    Ok(())
}

/// The phrase of a status (RFC 9110, 15).
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "GET /stream?start=7 HTTP/1.1\r\nHost: a:8462\r\nConnection: keep-alive, Upgrade\r\n\
                        Upgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

    #[test]
    fn the_rfcs_own_example_is_met() {
        assert_eq!(accept_of("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let cases = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn a_request_is_read_when_it_is_whole() {
        for cut in 0..HEAD.len() {
            assert_eq!(parse_request(&HEAD.as_bytes()[..cut]), Ok(None), "{cut}");
        }
        let with_more = format!("{HEAD}more");
        let request = parse_request(with_more.as_bytes()).expect("HTTP").expect("whole");
        assert_eq!(request.bytes, HEAD.len());
        assert_eq!(request.path_and_query(), ("/stream", "start=7"));
        assert_eq!(judge_upgrade(&request).as_deref(), Ok("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    }

    #[test]
    fn each_lack_of_an_upgrade_has_its_status() {
        let cases = [
            ("Connection: keep-alive, Upgrade\r\n", "", 426),
            ("Upgrade: WebSocket\r\n", "", 426),
            ("GET ", "POST ", 405),
            ("HTTP/1.1", "HTTP/1.0", 426),
            ("Version: 13", "Version: 12", 400),
            ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "", 400),
            ("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZQ==", 400),
            ("Host: a:8462", "Host: a:8462\r\nOrigin: http://b:8462", 403),
            ("Host: a:8462", "Host: a:8462\r\nOrigin: null", 403),
        ];
        for (from, to, status) in cases {
            let head = HEAD.replace(from, to);
            let request = parse_request(head.as_bytes()).expect("HTTP").expect("whole");
            assert_eq!(judge_upgrade(&request).map_err(|refusal| refusal.status), Err(status), "{head}");
        }
        let head = HEAD.replace("Host: a:8462", "Host: a:8462\r\nOrigin: http://A:8462");
        let request = parse_request(head.as_bytes()).expect("HTTP").expect("whole");
        assert!(judge_upgrade(&request).is_ok(), "an origin that is the host");
    }

    #[test]
    fn an_upgrade_goes_there_and_back() {
        let key = [7; 16];
        let asked = upgrade_request("h", "/stream?start=0", key, &[("Authorization", "Bearer x")]);
        let request = parse_request(&asked).expect("HTTP").expect("whole");
        assert_eq!(request.fields.first("authorization"), Some("Bearer x"));
        let accept = judge_upgrade(&request).expect("upgrades");
        let answer = upgrade_response(&accept, &[("Sluice-Run", "x")]);
        let response = parse_response(&answer).expect("HTTP").expect("whole");
        assert_eq!((response.status, response.bytes), (101, answer.len()));
        assert_eq!(judge_upgraded(&response, key), Ok(()));
        assert_eq!(judge_upgraded(&response, [8; 16]), Err(UpgradeError::Accept));
        let extended = upgrade_response(&accept, &[("Sec-WebSocket-Extensions", "permessage-deflate")]);
        let response = parse_response(&extended).expect("HTTP").expect("whole");
        assert!(matches!(judge_upgraded(&response, key), Err(UpgradeError::Unasked { .. })));
    }

    #[test]
    fn endless_heads_are_refused() {
        let long = format!("GET / HTTP/1.1\r\nA: {}", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(parse_request(long.as_bytes()), Err(HeadError::TooLong));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX + 1));
        assert_eq!(parse_request(many.as_bytes()), Err(HeadError::Syntax(httparse::Error::TooManyHeaders)));
        assert!(matches!(parse_request(b"\x16\x03\x01"), Err(HeadError::Syntax(_))), "TLS to a plain port");
    }

    #[test]
    fn a_refusal_is_one_line_of_text() {
        let answer = refusal_response(&Refusal::new(426, "no"));
        let response = parse_response(&answer).expect("HTTP").expect("whole");
        assert_eq!((response.status, response.fields.first("upgrade")), (426, Some("websocket")));
        assert_eq!(&answer[response.bytes..], b"no\n");
    }
}
