//! TLS as a client, over bytes: what comes from the socket goes in, what the stream says comes out, and the other way round.
//!
//! Servers are judged by the system's roots, and by an extra file of authorities where one is given. Without the feature `ledger-tls`
//! nothing here can be made, and the error names the feature.

use std::path::{Path, PathBuf};

/// Why TLS cannot be spoken, or not any further.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A program that was built without it.
    #[error("this program speaks no TLS: build it with the feature \"ledger-tls\", or use ws:// to a local TLS proxy")]
    Missing,
    /// An authority file.
    #[error("{}: {what}: a PEM file with one or more certificates is needed", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Nobody to trust.
    #[error("the system has no certificate authorities ({what}): install ca-certificates, or name a file (--ca)")]
    NoRoots {
        /// What was found in their place.
        what: String,
    },
    /// A host that no certificate can name.
    #[error("{host:?} is no name that a certificate could have")]
    Host {
        /// The host.
        host: String,
    },
    /// The session: a certificate that is not trusted, a broken record, no common version.
    #[error("TLS: {0}")]
    Session(String),
}

#[cfg(feature = "ledger-tls")]
pub use with::{ClientTls, TlsSession};
#[cfg(not(feature = "ledger-tls"))]
pub use without::{ClientTls, TlsSession};

#[cfg(feature = "ledger-tls")]
mod with {
    use std::io::{BufRead, Write};
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::{Path, TlsError};

    /// Whom to trust; its clones are the same.
    #[derive(Clone, Debug)]
    pub struct ClientTls(Arc<ClientConfig>);

    impl ClientTls {
        /// Trusts the system's roots and the authorities in the PEM file `authorities`.
        ///
        /// # Errors
        /// The file; or there is nobody to trust.
        pub fn new(authorities: Option<&Path>) -> Result<ClientTls, TlsError> {
            let mut roots = RootCertStore::empty();
            let native = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(native.certs);
            if let Some(path) = authorities {
                add_authorities(&mut roots, path)?;
            }
            if roots.is_empty() {
                let what = native.errors.first().map_or("none was found".into(), ToString::to_string);
                return Err(TlsError::NoRoots { what });
            }
            // Another provider may be linked into the same program: this one is named, never the process's default.
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|error| TlsError::Session(error.to_string()))?
                .with_root_certificates(roots)
                .with_no_client_auth();
            Ok(ClientTls(Arc::new(config)))
        }

        /// A session with the server at `host`.
        ///
        /// # Errors
        /// A host that is neither a name nor an address.
        pub fn session(&self, host: &str) -> Result<TlsSession, TlsError> {
            let name = ServerName::try_from(host.to_string()).map_err(|_| TlsError::Host { host: host.into() })?;
            let connection = ClientConnection::new(self.0.clone(), name);
            connection.map(|connection| TlsSession(Box::new(connection))).map_err(broken)
        }
    }

    fn add_authorities(roots: &mut RootCertStore, path: &Path) -> Result<(), TlsError> {
        let wrong = |what: String| TlsError::Authority { path: path.into(), what };
        let before = roots.len();
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))? {
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
        }
        if roots.len() == before { Err(wrong("it holds no certificate".into())) } else { Ok(()) }
    }

    fn broken(error: rustls::Error) -> TlsError {
        TlsError::Session(error.to_string())
    }

    /// One connection's session.
    #[derive(Debug)]
    pub struct TlsSession(Box<ClientConnection>);

    impl TlsSession {
        /// Takes what came from the socket; `plain` gets what it says, in parts.
        ///
        /// # Errors
        /// The session is at its end; [`TlsSession::take_cipher`] may still hold an alert for the other side.
        pub fn on_cipher(&mut self, mut bytes: &[u8], mut plain: impl FnMut(&[u8])) -> Result<(), TlsError> {
            while !bytes.is_empty() {
                let io = |error: std::io::Error| TlsError::Session(error.to_string());
                let taken = self.0.read_tls(&mut bytes).map_err(io)?;
                self.0.process_new_packets().map_err(broken)?;
                let mut reader = self.0.reader();
                while let Ok(part) = reader.fill_buf()
                    && !part.is_empty()
                {
                    plain(part);
                    let taken = part.len();
                    reader.consume(taken);
                }
                if taken == 0 {
                    break;
                }
            }
            Ok(())
        }

        /// Says `bytes`, once the handshake is done.
        ///
        /// # Errors
        /// More is unsent than the session keeps.
        pub fn write_plain(&mut self, bytes: &[u8]) -> Result<(), TlsError> {
            self.0.writer().write_all(bytes).map_err(|error| TlsError::Session(error.to_string()))
        }

        /// Appends what is to be sent to the socket.
        pub fn take_cipher(&mut self, out: &mut Vec<u8>) {
            while self.0.wants_write() {
                // Writing to memory does not fail.
                if !matches!(self.0.write_tls(out), Ok(1..)) {
                    return;
                }
            }
        }

        /// Says that nothing more will be said.
        pub fn close(&mut self) {
            self.0.send_close_notify();
        }
    }
}

#[cfg(not(feature = "ledger-tls"))]
mod without {
    use std::convert::Infallible;

    use super::{Path, TlsError};

    /// Whom to trust: cannot be made.
    #[derive(Clone, Debug)]
    pub struct ClientTls(Infallible);

    impl ClientTls {
        /// Is refused.
        ///
        /// # Errors
        /// Always.
        pub fn new(_authorities: Option<&Path>) -> Result<ClientTls, TlsError> {
            Err(TlsError::Missing)
        }

        /// Does not come to be.
        ///
        /// # Errors
        /// Never.
        pub fn session(&self, _host: &str) -> Result<TlsSession, TlsError> {
            match self.0 {}
        }
    }

    /// A session: cannot be made.
    #[derive(Debug)]
    pub struct TlsSession(Infallible);

    impl TlsSession {
        /// Does not come to be.
        ///
        /// # Errors
        /// Never.
        pub fn on_cipher(&mut self, _bytes: &[u8], _plain: impl FnMut(&[u8])) -> Result<(), TlsError> {
            match self.0 {}
        }

        /// Does not come to be.
        ///
        /// # Errors
        /// Never.
        pub fn write_plain(&mut self, _bytes: &[u8]) -> Result<(), TlsError> {
            match self.0 {}
        }

        /// Does not come to be.
        pub fn take_cipher(&mut self, _out: &mut Vec<u8>) {
            match self.0 {}
        }

        /// Does not come to be.
        pub fn close(&mut self) {
            match self.0 {}
        }
    }
}
