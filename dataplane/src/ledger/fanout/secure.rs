//! TLS between a connection's socket and its machine. Plain connections pay nothing for it, and a build without it has none.

#[cfg(feature = "ledger-tls")]
pub use super::super::tls::{TlsServer, TlsSession};

/// Stands for a server's certificate in a build without TLS: there is none.
#[cfg(not(feature = "ledger-tls"))]
#[derive(Clone, Debug)]
pub enum TlsServer {}

#[cfg(not(feature = "ledger-tls"))]
pub(super) use without::TlsSession;

#[cfg(not(feature = "ledger-tls"))]
mod without {
    use std::convert::Infallible;

    use super::TlsServer;

    /// A session that cannot be.
    pub enum TlsSession {}

    impl TlsServer {
        pub fn session(&mut self) -> Result<TlsSession, Infallible> {
            match *self {}
        }
    }

    impl TlsSession {
        pub fn on_bytes(&mut self, _bytes: &[u8]) -> Result<(), Infallible> {
            match *self {}
        }

        pub fn read_plain(&mut self, _out: &mut Vec<u8>) -> usize {
            match *self {}
        }

        pub fn encrypt(&mut self, _plain: &[u8], _out: &mut Vec<u8>) -> Result<(), Infallible> {
            match *self {}
        }

        pub fn take_cipher(&mut self, _out: &mut Vec<u8>) -> usize {
            match *self {}
        }

        pub fn is_handshaking(&self) -> bool {
            match *self {}
        }

        pub fn peer_closed(&self) -> bool {
            match *self {}
        }

        pub fn close(&mut self) {
            match *self {}
        }
    }
}
