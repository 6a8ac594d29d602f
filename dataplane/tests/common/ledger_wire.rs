//! A subscriber's connection by hand: bytes as they are on the wire, read without the product's own reader.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// The key of RFC 6455's example (1.3), and the proof that answers it.
pub const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
pub const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
/// Far more than any of these exchanges takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The request for a target, with that key.
pub fn request(target: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: {KEY}\r\n\r\n"
    )
}

/// One frame of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Its first byte: FIN, reserved bits, opcode.
    pub first: u8,
    pub payload: Vec<u8>,
}

/// A connection.
pub struct Wire {
    pub stream: TcpStream,
    unread: Vec<u8>,
}

impl Wire {
    pub fn over(stream: TcpStream) -> Wire {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
        Wire { stream, unread: Vec::new() }
    }

    /// Connects, sends the bytes as they are.
    pub fn send(address: SocketAddr, bytes: &[u8]) -> Wire {
        let mut stream = TcpStream::connect(address).expect("somebody listens");
        stream.write_all(bytes).expect("sent");
        Wire::over(stream)
    }

    /// A connection that asks for a target, and the answer's head.
    pub fn ask(address: SocketAddr, target: &str) -> (Wire, String) {
        let mut wire = Wire::send(address, request(target).as_bytes());
        let head = wire.head();
        (wire, head)
    }

    /// Accepts a connection, reads its request and answers as a server of the peer's does; the request.
    pub fn accept(listener: &TcpListener) -> (Wire, String) {
        let mut wire = Wire::over(listener.accept().expect("a client").0);
        let request = wire.head();
        let key = request.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).expect("a key");
        let accept = sluice::wire::http::accept_of(key);
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        wire.stream.write_all(answer.as_bytes()).expect("sent");
        (wire, request)
    }

    fn more(&mut self) -> bool {
        let mut bytes = [0; 64 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(read) => {
                self.unread.extend_from_slice(&bytes[..read]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("nothing came: {error}"),
        }
    }

    /// An HTTP head, up to its blank line.
    pub fn head(&mut self) -> String {
        loop {
            if let Some(end) = self.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                return String::from_utf8(self.unread.drain(..end + 4).collect()).expect("text");
            }
            assert!(self.more(), "the connection ended inside a head: {:?}", String::from_utf8_lossy(&self.unread));
        }
    }

    /// Everything up to the connection's end.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.more() {}
        std::mem::take(&mut self.unread)
    }

    /// So many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        while self.unread.len() < count {
            assert!(self.more(), "the connection ended after {} bytes of {count}", self.unread.len());
        }
        self.unread.drain(..count).collect()
    }

    /// The next frame; `None` at the connection's end.
    pub fn frame(&mut self) -> Option<Frame> {
        if self.unread.is_empty() && !self.more() {
            return None;
        }
        let head = self.bytes(2);
        assert_eq!(head[1] & 0x80, 0, "a server masks nothing");
        let length = match head[1] {
            126 => u64::from(u16::from_be_bytes(self.bytes(2).try_into().expect("two"))),
            127 => u64::from_be_bytes(self.bytes(8).try_into().expect("eight")),
            short => u64::from(short),
        };
        Some(Frame { first: head[0], payload: self.bytes(length as usize) })
    }

    /// All frames, and the close's code and reason: `None` where the connection ended without a close.
    pub fn frames(&mut self) -> (Vec<Frame>, Option<(u16, String)>) {
        let mut frames = Vec::new();
        while let Some(frame) = self.frame() {
            if frame.first == 0x88 {
                let code = frame.payload.first_chunk().map_or(0, |code| u16::from_be_bytes(*code));
                let reason = String::from_utf8(frame.payload[2..].to_vec()).expect("text");
                return (frames, Some((code, reason)));
            }
            frames.push(frame);
        }
        (frames, None)
    }

    /// A client's frame, masked.
    pub fn say(&mut self, first: u8, payload: &[u8]) {
        let mask = [1, 2, 3, 4];
        let mut frame = vec![first];
        match payload.len() {
            short @ 0..=125 => frame.push(0x80 | short as u8),
            middle => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&(middle as u16).to_be_bytes());
            }
        }
        frame.extend_from_slice(&mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.stream.write_all(&frame).expect("sent");
    }

    /// A client's frame, as a server reads it.
    pub fn heard(&mut self) -> Option<Frame> {
        if self.unread.is_empty() && !self.more() {
            return None;
        }
        let head = self.bytes(2);
        assert!(head[1] & 0x80 != 0 && head[1] & 0x7f < 126, "a client masks what it says, and says little");
        let mask = self.bytes(4);
        let payload = self.bytes(usize::from(head[1] & 0x7f));
        let payload = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        Some(Frame { first: head[0], payload })
    }
}
