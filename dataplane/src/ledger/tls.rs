//! TLS of the server: sessions over bytes that somebody else receives and sends.
//!
//! A session takes what was received and gives what is to be sent; it owns no socket and waits for nothing. rustls is used
//! through its unbuffered interface, so that a chunk is encrypted straight into the buffer that is sent. Time is bounded by
//! whoever owns the connection, the bytes of a handshake here.
//!
//! The kernel's TLS is not used: encrypting in user space costs 1.4 ms for a ledger of 14.5 MiB (AES-GCM at 10 GiB/s), and a
//! kernel's session would have to hand every key update and alert back.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring as provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{ServerConfig, version};

use crate::sync::latest::Latest;
use crate::sys::file::{SmallFileError, read_small};

/// Largest file of certificates or of a key. A chain of ten with keys of 4,096 bits is below 32 KiB.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of a client's handshake: its first message has a few hundred, below 2 KiB with a post-quantum key share, and
/// there is no client certificate. Past it nobody is answered any more.
pub const HANDSHAKE_BYTES_MAX: usize = 32 << 10;
/// Most bytes that wait for the rest of their record: one record of 2^14 + 2,048 bytes and its header (RFC 5246, 6.2.3), or a
/// handshake.
const INBOX_BYTES_MAX: usize = HANDSHAKE_BYTES_MAX;
/// What a session without anything under way may keep of each of its buffers.
const KEPT_BYTES_MAX: usize = 4 << 10;
/// Payload of a record at most (RFC 8446, 5.1).
const RECORD_PAYLOAD: usize = 1 << 14;
/// What a record has beside its payload at most: header 5, nonce 8 (TLS 1.2), content type 1 (TLS 1.3), tag 16.
const RECORD_OVERHEAD: usize = 5 + 8 + 1 + 16;
/// The first byte of a handshake record (RFC 8446, 5.1): with another one it is not TLS that the client speaks.
const HANDSHAKE: u8 = 22;
/// Records that rustls may still have for a client after an error: a flight of the handshake, and the alert.
const LAST_WORDS_MAX: usize = 16;
/// Turns of the machine for one call. Each takes a record in or gives one out; there are at most as many in an inbox as it has
/// room for headers.
const TURNS_MAX: usize = INBOX_BYTES_MAX / 5 + 64;

/// Why a certificate with its key cannot be used. Never says what stands in the key.
#[derive(Debug, thiserror::Error)]
pub enum TlsLoadError {
    /// One of the files.
    #[error("{what} \"{path}\": {error}")]
    Read {
        /// `cert` or `key`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        error: SmallFileError,
    },
    /// No certificate, or a broken one.
    #[error("cert \"{path}\": {what}: it must be the server's certificate in PEM, then those that vouch for it")]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// No key.
    #[error("key \"{path}\": holds no private key in PEM (PKCS #8, PKCS #1 or SEC 1, not encrypted)")]
    Key {
        /// The file.
        path: PathBuf,
    },
    /// The two do not belong together, or are of a kind that is not known.
    #[error(
        "cert \"{cert}\" with key \"{key}\": {error}: both must be of one pair, RSA, ECDSA (P-256, P-384) or Ed25519"
    )]
    Pair {
        /// The certificates' file.
        cert: PathBuf,
        /// The key's.
        key: PathBuf,
        /// Why.
        error: rustls::Error,
    },
    /// No random numbers.
    #[error("keys for session tickets: {0}")]
    Tickets(rustls::Error),
}

/// Why a session is over.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The client does not speak TLS.
    #[error("the client does not speak TLS (its first byte is {0:#04x}): it must connect to wss://")]
    NotTls(u8),
    /// A handshake without end.
    #[error("a handshake of more than {HANDSHAKE_BYTES_MAX} bytes")]
    HandshakeTooLong,
    /// A record or message that is not complete within the bound.
    #[error("a message of more than {INBOX_BYTES_MAX} bytes")]
    MessageTooLong,
    /// Nothing can be sent yet.
    #[error("nothing can be sent before the handshake is done")]
    Handshaking,
    /// It ended before: with an error, or closed by us.
    #[error("the session is over")]
    Over,
    /// As rustls says.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// A certificate with its key, which can be read again. A clone is a handle on the same pair: what one reads again, the next
/// session of each has.
#[derive(Clone)]
pub struct TlsServer {
    cert: PathBuf,
    key: PathBuf,
    latest: Latest<ServerConfig>,
}

impl TlsServer {
    /// Reads the certificate chain and its key, both PEM.
    ///
    /// # Errors
    /// See [`TlsLoadError`].
    pub fn load(cert: &Path, key: &Path) -> Result<TlsServer, TlsLoadError> {
        let latest = Latest::new(server_config(cert, key)?);
        Ok(TlsServer { cert: cert.to_path_buf(), key: key.to_path_buf(), latest })
    }

    /// Reads both again: new sessions have the new pair, old ones go on.
    ///
    /// # Errors
    /// See [`TlsLoadError`]; the pair so far stays.
    pub fn reload(&self) -> Result<(), TlsLoadError> {
        self.latest.set(server_config(&self.cert, &self.key)?);
        Ok(())
    }

    /// The certificates' file.
    pub fn cert(&self) -> &Path {
        &self.cert
    }

    /// The key's file.
    pub fn key(&self) -> &Path {
        &self.key
    }

    /// A session for a connection just accepted.
    ///
    /// # Errors
    /// As rustls; none is known that is not a bug of ours.
    pub fn session(&mut self) -> Result<TlsSession, TlsError> {
        let connection = UnbufferedServerConnection::new(Arc::clone(self.latest.look()))?;
        Ok(TlsSession {
            connection,
            inbox: Vec::new(),
            plain: Vec::new(),
            cipher: Vec::new(),
            handshake_bytes: 0,
            ready: false,
            peer_closed: false,
            over: false,
        })
    }
}

fn server_config(cert: &Path, key: &Path) -> Result<ServerConfig, TlsLoadError> {
    let read = |what, path: &Path| {
        read_small(path, FILE_BYTES_MAX).map_err(|error| TlsLoadError::Read { what, path: path.to_path_buf(), error })
    };
    let wrong = |what: String| TlsLoadError::Certificate { path: cert.to_path_buf(), what };
    let chain = CertificateDer::pem_slice_iter(&read("cert", cert)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| wrong(error.to_string()))?;
    if chain.is_empty() {
        return Err(wrong("holds no certificate".into()));
    }
    // Its errors quote the file's lines.
    let pair_key =
        PrivateKeyDer::from_pem_slice(&read("key", key)?).map_err(|_| TlsLoadError::Key { path: key.to_path_buf() })?;
    let pair = |error| TlsLoadError::Pair { cert: cert.to_path_buf(), key: key.to_path_buf(), error };
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider::default_provider()))
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .map_err(pair)?
        .with_no_client_auth()
        .with_single_cert(chain, pair_key)
        .map_err(pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // What a client needs to come back fast is in its ticket: nothing is kept for it here.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = provider::Ticketer::new().map_err(TlsLoadError::Tickets)?;
    Ok(config)
}

/// What is to be said once it can be.
#[derive(Clone, Copy)]
enum Say<'a> {
    Nothing,
    Data(&'a [u8]),
    Close,
}

/// What a turn of the machine came to.
enum Turn {
    /// Another one can follow.
    More,
    /// All was said, and more bytes are needed.
    Said,
    /// Nothing can be said before more bytes have come.
    Waits,
}

/// One connection's session.
pub struct TlsSession {
    connection: UnbufferedServerConnection,
    /// Received, and not yet a whole record.
    inbox: Vec<u8>,
    /// Decrypted, and not yet taken.
    plain: Vec<u8>,
    /// To be sent: handshake, tickets, alerts.
    cipher: Vec<u8>,
    handshake_bytes: usize,
    /// Data can be sent.
    ready: bool,
    peer_closed: bool,
    over: bool,
}

impl TlsSession {
    /// Takes received bytes. Afterwards look at [`TlsSession::read_plain`] and [`TlsSession::take_cipher`], also after an error:
    /// the client is told of it.
    ///
    /// # Errors
    /// See [`TlsError`]: the session is over, what [`TlsSession::take_cipher`] gives is its last word.
    pub fn on_bytes(&mut self, mut bytes: &[u8]) -> Result<(), TlsError> {
        if self.over {
            return Err(TlsError::Over);
        }
        if let (0, Some(&first)) = (self.handshake_bytes, bytes.first())
            && first != HANDSHAKE
        {
            self.end();
            return Err(TlsError::NotTls(first));
        }
        while !bytes.is_empty() && !self.peer_closed {
            let count = bytes.len().min(INBOX_BYTES_MAX - self.inbox.len());
            let (now, later) = bytes.split_at(count);
            self.inbox.extend_from_slice(now);
            bytes = later;
            if let Err(error) = self.take_in(count) {
                self.last_word();
                self.end();
                return Err(error);
            }
        }
        shrink(&mut self.inbox);
        Ok(())
    }

    fn take_in(&mut self, count: usize) -> Result<(), TlsError> {
        if self.is_handshaking() {
            self.handshake_bytes = self.handshake_bytes.saturating_add(count);
        }
        self.advance()?;
        if self.is_handshaking() && self.handshake_bytes > HANDSHAKE_BYTES_MAX {
            return Err(TlsError::HandshakeTooLong);
        }
        if self.inbox.len() >= INBOX_BYTES_MAX {
            return Err(if self.is_handshaking() { TlsError::HandshakeTooLong } else { TlsError::MessageTooLong });
        }
        Ok(())
    }

    /// Works through the inbox until more bytes are needed.
    fn advance(&mut self) -> Result<(), TlsError> {
        let mut cipher = std::mem::take(&mut self.cipher);
        let turned = self.turn_while_more(Say::Nothing, &mut cipher);
        self.cipher = cipher;
        turned.map(drop)
    }

    /// Turns until it waits for something; what is to be sent goes to the end of `out`, `say` after everything else. Returns
    /// whether that could be said.
    fn turn_while_more(&mut self, say: Say<'_>, out: &mut Vec<u8>) -> Result<bool, TlsError> {
        let mut used = 0;
        let mut turned = Ok(Turn::More);
        for _ in 0..TURNS_MAX {
            turned = self.turn(&mut used, say, out);
            if !matches!(turned, Ok(Turn::More)) {
                break;
            }
        }
        // Once, and not for each record: there may be a thousand small ones.
        self.inbox.drain(..used);
        turned.map(|turn| matches!(turn, Turn::Said))
    }

    fn turn(&mut self, used: &mut usize, say: Say<'_>, out: &mut Vec<u8>) -> Result<Turn, TlsError> {
        let left = self.inbox.len() - *used;
        let UnbufferedStatus { mut discard, state } = self.connection.process_tls_records(&mut self.inbox[*used..]);
        let state = match state {
            Ok(state) => state,
            Err(error) => {
                *used += discard.min(left);
                return Err(error.into());
            }
        };
        let turn = match state {
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    discard += record.discard;
                    self.plain.extend_from_slice(record.payload);
                }
                Turn::More
            }
            ConnectionState::EncodeTlsData(mut data) => {
                encode(out, |room| data.encode(room))?;
                Turn::More
            }
            ConnectionState::TransmitTlsData(data) => {
                data.done();
                Turn::More
            }
            ConnectionState::WriteTraffic(mut traffic) => {
                self.ready = true;
                match say {
                    Say::Nothing => {}
                    Say::Data(plain) => append(out, cipher_bytes(plain.len()), |room| traffic.encrypt(plain, room))?,
                    Say::Close => append(out, cipher_bytes(2), |room| traffic.queue_close_notify(room))?,
                }
                Turn::Said
            }
            // Comes once; what is to be said can be said in the next turn.
            ConnectionState::PeerClosed => {
                self.peer_closed = true;
                Turn::More
            }
            // Early data is off; a state that rustls may add later waits for more bytes.
            _ => Turn::Waits,
        };
        *used += discard.min(left);
        Ok(turn)
    }

    /// After an error: the alert that rustls has for the client. It must not see received bytes again, and is asked only while
    /// it has something: else it would judge the same error twice, which it forbids by an assertion.
    fn last_word(&mut self) {
        for _ in 0..LAST_WORDS_MAX {
            if !self.connection.wants_write() {
                return;
            }
            let UnbufferedStatus { state, .. } = self.connection.process_tls_records(&mut []);
            match state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    if encode(&mut self.cipher, |room| data.encode(room)).is_err() {
                        return;
                    }
                }
                // What came before the error is whole.
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(Ok(record)) = traffic.next_record() {
                        self.plain.extend_from_slice(record.payload);
                    }
                }
                _ => return,
            }
        }
    }

    fn end(&mut self) {
        self.over = true;
        self.inbox = Vec::new();
    }

    /// Moves what was decrypted to the end of `out`; returns how much that was. Since the last call it is at most what was
    /// received in between and [`HANDSHAKE_BYTES_MAX`].
    pub fn read_plain(&mut self, out: &mut Vec<u8>) -> usize {
        let count = self.plain.len();
        out.append(&mut self.plain);
        shrink(&mut self.plain);
        count
    }

    /// Encrypts `plain` behind everything that is to be sent already, at the end of `out`: what [`TlsSession::take_cipher`]
    /// would have given comes first.
    ///
    /// # Errors
    /// [`TlsError::Handshaking`], [`TlsError::Over`], or as rustls: then the session is over.
    pub fn encrypt(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), TlsError> {
        if self.over {
            return Err(TlsError::Over);
        }
        if !self.ready {
            return Err(TlsError::Handshaking);
        }
        self.take_cipher(out);
        if plain.is_empty() {
            return Ok(());
        }
        match self.turn_while_more(Say::Data(plain), out) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.end();
                Err(TlsError::Over)
            }
            Err(error) => {
                self.end();
                Err(error)
            }
        }
    }

    /// As [`TlsSession::encrypt`], into what [`TlsSession::take_cipher`] gives.
    ///
    /// # Errors
    /// As [`TlsSession::encrypt`].
    pub fn write_plain(&mut self, plain: &[u8]) -> Result<(), TlsError> {
        let mut cipher = std::mem::take(&mut self.cipher);
        let encrypted = self.encrypt(plain, &mut cipher);
        cipher.append(&mut self.cipher);
        self.cipher = cipher;
        encrypted
    }

    /// Moves what is to be sent to the end of `out`; returns how much that was.
    pub fn take_cipher(&mut self, out: &mut Vec<u8>) -> usize {
        let count = self.cipher.len();
        out.append(&mut self.cipher);
        shrink(&mut self.cipher);
        count
    }

    /// Whether [`TlsSession::take_cipher`] has something.
    pub fn wants_write(&self) -> bool {
        !self.cipher.is_empty()
    }

    /// Whether nothing can be sent or received yet.
    pub fn is_handshaking(&self) -> bool {
        !self.ready
    }

    /// Whether the client has said that nothing more comes from it.
    pub fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Says that nothing more comes from us (close_notify), for [`TlsSession::take_cipher`]. Nothing can be sent or received
    /// afterwards.
    pub fn close(&mut self) {
        if self.over {
            return;
        }
        if self.ready {
            let mut cipher = std::mem::take(&mut self.cipher);
            let _ = self.turn_while_more(Say::Close, &mut cipher);
            self.cipher = cipher;
        }
        self.end();
    }

    /// Bytes that its buffers take, beside what rustls keeps (about 2 KiB, and nothing that grows).
    pub fn buffered_bytes(&self) -> usize {
        self.inbox.capacity() + self.plain.capacity() + self.cipher.capacity()
    }
}

/// Room for `plain` bytes in records.
fn cipher_bytes(plain: usize) -> usize {
    plain + plain.div_ceil(RECORD_PAYLOAD) * RECORD_OVERHEAD
}

/// Gives `write` room at the end of `out`, and more if it asks for that.
fn encode(out: &mut Vec<u8>, mut write: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>) -> Result<(), TlsError> {
    let before = out.len();
    // The longest flight, with the certificates, says how much it needs.
    let mut room = 512;
    for _ in 0..2 {
        out.resize(before + room, 0);
        match write(&mut out[before..]) {
            Ok(count) => {
                out.truncate(before + count);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(needs)) => room = needs.required_size,
            Err(EncodeError::AlreadyEncoded) => break,
        }
    }
    out.truncate(before);
    Err(TlsError::Over)
}

/// Gives `write` `room` bytes at the end of `out`, and more if it asks for that.
fn append(
    out: &mut Vec<u8>,
    mut room: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, EncryptError>,
) -> Result<(), TlsError> {
    let before = out.len();
    for _ in 0..2 {
        out.resize(before + room, 0);
        match write(&mut out[before..]) {
            Ok(count) => {
                out.truncate(before + count);
                return Ok(());
            }
            // It puts the answer to a key update before the data.
            Err(EncryptError::InsufficientSize(needs)) => room = needs.required_size,
            // All was sent that these keys may encrypt.
            Err(EncryptError::EncryptExhausted) => break,
        }
    }
    out.truncate(before);
    Err(TlsError::Over)
}

/// Gives back what an empty buffer keeps beyond what is worth keeping.
fn shrink(buffer: &mut Vec<u8>) {
    if buffer.is_empty() && buffer.capacity() > KEPT_BYTES_MAX {
        *buffer = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, HandshakeKind, ProtocolVersion, RootCertStore};

    use super::*;

    const NAME: &str = "ledger.example";
    const VERSIONS: [&rustls::SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];

    /// A pair of files, and who trusts it.
    struct Pair {
        folder: tempfile::TempDir,
        root: CertificateDer<'static>,
    }

    impl Pair {
        fn new() -> Pair {
            let folder = tempfile::tempdir().expect("a folder");
            let root = write_pair(folder.path());
            Pair { folder, root }
        }

        fn paths(&self) -> (PathBuf, PathBuf) {
            (self.folder.path().join("cert"), self.folder.path().join("key"))
        }

        fn server(&self) -> TlsServer {
            let (cert, key) = self.paths();
            TlsServer::load(&cert, &key).expect("loads")
        }
    }

    fn write_pair(folder: &Path) -> CertificateDer<'static> {
        let made = rcgen::generate_simple_self_signed(vec![NAME.to_string()]).expect("a certificate");
        std::fs::write(folder.join("cert"), made.cert.pem()).expect("writes");
        std::fs::write(folder.join("key"), made.signing_key.serialize_pem()).expect("writes");
        made.cert.der().clone()
    }

    fn client_config(
        root: &CertificateDer<'static>,
        version: &'static rustls::SupportedProtocolVersion,
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(root.clone()).expect("a root");
        ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
            .with_protocol_versions(&[version])
            .expect("a version")
            .with_root_certificates(roots)
            .with_no_client_auth()
    }

    fn client(config: &Arc<ClientConfig>, name: &'static str) -> ClientConnection {
        ClientConnection::new(Arc::clone(config), ServerName::try_from(name).expect("a name")).expect("a client")
    }

    fn client_of(pair: &Pair, version: &'static rustls::SupportedProtocolVersion) -> ClientConnection {
        client(&Arc::new(client_config(&pair.root, version)), NAME)
    }

    /// What the client has to say now.
    fn says(client: &mut ClientConnection) -> Vec<u8> {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).expect("a vector takes everything");
        }
        bytes
    }

    /// The client takes everything that the server has to say; what it reads of data comes back.
    fn hears(client: &mut ClientConnection, mut bytes: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        let mut plain = Vec::new();
        while !bytes.is_empty() {
            client.read_tls(&mut bytes).expect("a slice gives everything");
            client.process_new_packets()?;
            let mut part = [0; 4096];
            while let Ok(count @ 1..) = client.reader().read(&mut part) {
                plain.extend_from_slice(&part[..count]);
            }
        }
        Ok(plain)
    }

    /// Passes bytes both ways, `step` at a time towards the server, until neither has more.
    fn shake(session: &mut TlsSession, client: &mut ClientConnection, step: usize) -> Result<(), TlsError> {
        for _ in 0..20 {
            let to_server = says(client);
            for part in to_server.chunks(step) {
                session.on_bytes(part)?;
            }
            let mut to_client = Vec::new();
            session.take_cipher(&mut to_client);
            if to_server.is_empty() && to_client.is_empty() {
                return Ok(());
            }
            hears(client, &to_client)?;
        }
        panic!("a handshake without end");
    }

    fn noise(count: usize, mut seed: u64) -> Vec<u8> {
        let next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u8
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    #[test]
    fn both_versions_carry_data_both_ways() {
        let pair = Pair::new();
        for version in VERSIONS {
            for alpn in [vec![], vec![b"http/1.1".to_vec()], vec![b"h2".to_vec(), b"http/1.1".to_vec()]] {
                let mut config = client_config(&pair.root, version);
                config.alpn_protocols = alpn.clone();
                let (mut session, mut client) =
                    (pair.server().session().expect("a session"), client(&Arc::new(config), NAME));
                assert!(matches!(session.encrypt(b"early", &mut Vec::new()), Err(TlsError::Handshaking)));
                shake(&mut session, &mut client, usize::MAX).expect("shakes hands");
                assert!(!session.is_handshaking() && !client.is_handshaking());
                assert_eq!(client.alpn_protocol(), alpn.last().map(Vec::as_slice));

                client.writer().write_all(b"GET /stream").expect("writes");
                session.on_bytes(&says(&mut client)).expect("data");
                let mut plain = b"before ".to_vec();
                assert_eq!(session.read_plain(&mut plain), 11);
                assert_eq!(plain, b"before GET /stream");

                let data = noise(1 << 20, 3);
                let mut cipher = Vec::new();
                session.write_plain(&data[..1_000]).expect("encrypts");
                assert!(session.wants_write());
                session.encrypt(&data[1_000..], &mut cipher).expect("encrypts");
                assert!(!session.wants_write() && cipher.len() <= cipher_bytes(1_000) + cipher_bytes(data.len()));
                assert_eq!(hears(&mut client, &cipher).expect("hears"), data);
            }
        }
    }

    #[test]
    fn a_client_of_another_protocol_is_told() {
        let pair = Pair::new();
        let mut config = client_config(&pair.root, &version::TLS13);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let (mut session, mut client) = (pair.server().session().expect("a session"), client(&Arc::new(config), NAME));
        session.on_bytes(&says(&mut client)).expect_err("no protocol in common");
        let mut alert = Vec::new();
        session.take_cipher(&mut alert);
        let error = hears(&mut client, &alert).expect_err("an alert");
        assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");
    }

    #[test]
    fn bytes_may_come_one_by_one_and_be_cut_anywhere() {
        let pair = Pair::new();
        let server = pair.server();
        for version in VERSIONS {
            for step in 1..=40 {
                let (mut session, mut client) =
                    (server.clone().session().expect("a session"), client_of(&pair, version));
                shake(&mut session, &mut client, step).expect("shakes hands");
                client.writer().write_all(&noise(40_000, 5)).expect("writes");
                let mut plain = Vec::new();
                for part in says(&mut client).chunks(step) {
                    session.on_bytes(part).expect("data");
                    session.read_plain(&mut plain);
                }
                assert!(plain == noise(40_000, 5), "step {step}");
            }
            let hello = says(&mut client_of(&pair, version));
            for at in 1..hello.len() {
                let (mut session, mut client) =
                    (server.clone().session().expect("a session"), client_of(&pair, version));
                let hello = says(&mut client);
                session.on_bytes(&hello[..at]).expect("a part");
                assert!(!session.wants_write(), "{at}");
                session.on_bytes(&hello[at..]).expect("the rest");
                shake(&mut session, &mut client, usize::MAX).expect("shakes hands");
                assert!(!client.is_handshaking(), "{at}");
            }
        }
    }

    #[test]
    fn what_is_not_tls_is_told_apart_at_once() {
        let pair = Pair::new();
        let mut session = pair.server().session().expect("a session");
        let error = session.on_bytes(b"GET / HTTP/1.1\r\n\r\n").expect_err("plain");
        assert_eq!(
            error.to_string(),
            "the client does not speak TLS (its first byte is 0x47): it must connect to wss://"
        );
        assert!(matches!(session.on_bytes(b"more"), Err(TlsError::Over)));
        assert!(matches!(session.encrypt(b"x", &mut Vec::new()), Err(TlsError::Over)));
    }

    #[test]
    fn hostile_bytes_end_a_session_within_its_bounds() {
        let pair = Pair::new();
        let server = pair.server();
        // Noise behind the first byte of a handshake.
        for seed in 0..2_000 {
            let mut bytes = noise(600, seed);
            bytes[0] = HANDSHAKE;
            // Half of them as records of TLS, whose lengths reach every size.
            if seed % 2 == 0 {
                bytes[1..3].copy_from_slice(&[3, 3]);
            }
            let mut session = server.clone().session().expect("a session");
            let mut ended = false;
            for _ in 0..200 {
                ended |= session.on_bytes(&bytes).is_err();
                assert!(session.buffered_bytes() <= 4 * INBOX_BYTES_MAX, "seed {seed}");
                assert!(session.is_handshaking(), "seed {seed}");
            }
            assert!(ended, "seed {seed}: 120,000 bytes of noise went on");
        }
        // A true handshake and data with one byte changed.
        for version in VERSIONS {
            let whole = recorded(&pair, version).concat().len();
            for at in 0..whole {
                let (mut session, mut client) =
                    (server.clone().session().expect("a session"), client_of(&pair, version));
                client.writer().write_all(b"GET /stream").expect("writes");
                let mut sent = 0;
                for _ in 0..20 {
                    let mut bytes = says(&mut client);
                    if (sent..sent + bytes.len()).contains(&at) {
                        bytes[at - sent] ^= 1 << (at % 8);
                    }
                    sent += bytes.len();
                    let _ = session.on_bytes(&bytes);
                    let mut back = Vec::new();
                    if session.take_cipher(&mut back) == 0 && bytes.is_empty() {
                        break;
                    }
                    if hears(&mut client, &back).is_err() {
                        break;
                    }
                }
            }
        }
    }

    /// What a client sends from its hello to its first data.
    fn recorded(pair: &Pair, version: &'static rustls::SupportedProtocolVersion) -> Vec<Vec<u8>> {
        let (mut session, mut client) = (pair.server().session().expect("a session"), client_of(pair, version));
        client.writer().write_all(b"GET /stream").expect("writes");
        let mut flights = Vec::new();
        loop {
            let flight = says(&mut client);
            if flight.is_empty() {
                return flights;
            }
            session.on_bytes(&flight).expect("taken");
            flights.push(flight);
            let mut back = Vec::new();
            session.take_cipher(&mut back);
            hears(&mut client, &back).expect("hears");
        }
    }

    #[test]
    fn a_handshake_is_bounded_in_bytes() {
        let pair = Pair::new();
        let mut session = pair.server().session().expect("a session");
        // A client hello that claims 60,000 bytes, in records of 1,000.
        let body = [&[1, 0, 0xea, 0x60][..], &[0; 60_000]].concat();
        let mut sent = 0;
        let error = body
            .chunks(1_000)
            .find_map(|part| {
                sent += part.len() + 5;
                let record = [&[HANDSHAKE, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
                session.on_bytes(&record).err()
            })
            .expect("an end");
        assert!(sent <= HANDSHAKE_BYTES_MAX + 2_000, "{error} after {sent}");
    }

    #[test]
    fn a_client_that_trusts_another_name_ends_the_session() {
        let pair = Pair::new();
        for version in VERSIONS {
            let mut session = pair.server().session().expect("a session");
            let mut client = client(&Arc::new(client_config(&pair.root, version)), "other.example");
            session.on_bytes(&says(&mut client)).expect("a hello");
            let mut back = Vec::new();
            session.take_cipher(&mut back);
            let error = hears(&mut client, &back).expect_err("another name");
            assert!(error.to_string().contains("ledger.example"), "{error}");
            let error = session.on_bytes(&says(&mut client)).expect_err("an alert");
            assert!(error.to_string().contains("alert"), "{error}");
            assert!(session.is_handshaking());
        }
    }

    #[test]
    fn a_new_pair_holds_for_new_sessions_only() {
        let pair = Pair::new();
        let (cert, key) = pair.paths();
        let server = pair.server();
        let mut fan_out = server.clone();
        let config = Arc::new(client_config(&pair.root, &version::TLS13));
        let (mut session, mut old) = (fan_out.session().expect("a session"), client(&config, NAME));
        shake(&mut session, &mut old, usize::MAX).expect("shakes hands");
        // Its ticket makes the next one short.
        let (mut again, mut resumed) = (fan_out.session().expect("a session"), client(&config, NAME));
        shake(&mut again, &mut resumed, usize::MAX).expect("shakes hands");
        assert_eq!(resumed.handshake_kind(), Some(HandshakeKind::Resumed));

        std::fs::write(&cert, "not a certificate").expect("writes");
        let error = server.reload().expect_err("refused").to_string();
        assert!(error.contains("holds no certificate"), "{error}");
        let (mut still, mut trusting) = (fan_out.session().expect("a session"), client_of(&pair, &version::TLS13));
        shake(&mut still, &mut trusting, usize::MAX).expect("the pair so far stays");

        let root = write_pair(pair.folder.path());
        let _ = key;
        server.reload().expect("reads");
        let (mut newer, mut trusting) = (fan_out.session().expect("a session"), client_of(&pair, &version::TLS13));
        assert!(shake(&mut newer, &mut trusting, usize::MAX).is_err(), "it is another certificate");
        // An old ticket is not taken for the new pair.
        let (mut newer, mut ticket) = (fan_out.session().expect("a session"), client(&config, NAME));
        assert!(shake(&mut newer, &mut ticket, usize::MAX).is_err(), "it would have to see the new certificate");
        let config = Arc::new(client_config(&root, &version::TLS13));
        let (mut newer, mut trusting) = (fan_out.session().expect("a session"), client(&config, NAME));
        shake(&mut newer, &mut trusting, usize::MAX).expect("shakes hands");

        let mut cipher = Vec::new();
        session.encrypt(b"goes on", &mut cipher).expect("encrypts");
        assert_eq!(hears(&mut old, &cipher).expect("hears"), b"goes on");
    }

    #[test]
    fn keys_change_under_way_when_the_client_asks_for_it() {
        let pair = Pair::new();
        let (mut session, mut client) =
            (pair.server().session().expect("a session"), client_of(&pair, &version::TLS13));
        shake(&mut session, &mut client, usize::MAX).expect("shakes hands");
        assert_eq!(client.protocol_version(), Some(ProtocolVersion::TLSv1_3));
        for round in 0..10_u8 {
            client.refresh_traffic_keys().expect("asks");
            client.writer().write_all(&[round; 100]).expect("writes");
            session.on_bytes(&says(&mut client)).expect("data");
            let mut plain = Vec::new();
            session.read_plain(&mut plain);
            assert_eq!(plain, [round; 100]);
            let mut cipher = Vec::new();
            session.encrypt(&[round; 200], &mut cipher).expect("encrypts");
            assert_eq!(hears(&mut client, &cipher).expect("hears"), [round; 200]);
        }
    }

    #[test]
    fn each_side_may_close() {
        let pair = Pair::new();
        for version in VERSIONS {
            let (mut session, mut client) = (pair.server().session().expect("a session"), client_of(&pair, version));
            shake(&mut session, &mut client, usize::MAX).expect("shakes hands");
            session.write_plain(b"last").expect("encrypts");
            session.close();
            let mut cipher = Vec::new();
            session.take_cipher(&mut cipher);
            assert_eq!(hears(&mut client, &cipher).expect("hears"), b"last");
            assert!(matches!(client.reader().read(&mut [0; 8]), Ok(0)), "a clean end");
            assert!(matches!(session.on_bytes(b"x"), Err(TlsError::Over)));

            let (mut session, mut client) = (pair.server().session().expect("a session"), client_of(&pair, version));
            shake(&mut session, &mut client, usize::MAX).expect("shakes hands");
            client.writer().write_all(b"bye").expect("writes");
            client.send_close_notify();
            let said = says(&mut client);
            session.on_bytes(&[&said[..], b"and junk that nobody looks at"].concat()).expect("an end");
            let mut plain = Vec::new();
            session.read_plain(&mut plain);
            assert!(session.peer_closed() && plain == b"bye");
            session.on_bytes(b"more junk").expect("passed over");
            // What was under way still reaches a client that listens on.
            let mut cipher = Vec::new();
            session.encrypt(b"answer", &mut cipher).expect("encrypts");
            assert_eq!(hears(&mut client, &cipher).expect("hears"), b"answer");
        }
    }

    #[test]
    fn an_idle_session_keeps_little() {
        let pair = Pair::new();
        let (mut session, mut client) =
            (pair.server().session().expect("a session"), client_of(&pair, &version::TLS13));
        shake(&mut session, &mut client, usize::MAX).expect("shakes hands");
        client.writer().write_all(&noise(60_000, 1)).expect("writes");
        session.on_bytes(&says(&mut client)).expect("data");
        session.read_plain(&mut Vec::new());
        session.write_plain(&noise(300_000, 2)).expect("encrypts");
        session.take_cipher(&mut Vec::new());
        assert!(session.buffered_bytes() <= 3 * KEPT_BYTES_MAX, "{}", session.buffered_bytes());
        assert!(size_of::<TlsSession>() <= 8 << 10, "{}", size_of::<TlsSession>());
    }

    #[test]
    fn files_that_are_no_pair_are_refused_by_name() {
        let (pair, other) = (Pair::new(), Pair::new());
        let (cert, key) = pair.paths();
        let refusal = |cert: &Path, key: &Path| {
            let error = TlsServer::load(cert, key).err().expect("refused").to_string();
            error.replace(&pair.folder.path().display().to_string(), "DIR")
        };
        let (_, other_key) = other.paths();
        let error = refusal(&cert, &other_key);
        assert!(error.starts_with("cert \"DIR/cert\" with key ") && error.contains("must be of one pair"), "{error}");
        assert_eq!(
            refusal(&key, &key),
            "cert \"DIR/key\": holds no certificate: it must be the server's certificate in PEM, then those that vouch for it"
        );
        assert_eq!(
            refusal(&cert, &cert),
            "key \"DIR/cert\": holds no private key in PEM (PKCS #8, PKCS #1 or SEC 1, not encrypted)"
        );
        let none = pair.folder.path().join("none");
        assert!(refusal(&none, &key).starts_with("cert \"DIR/none\": No such file"));
        assert!(refusal(&cert, &none).starts_with("key \"DIR/none\": No such file"));
        let broken = std::fs::read_to_string(&key).expect("reads").replace("-----END", "--END");
        std::fs::write(&none, broken).expect("writes");
        assert!(refusal(&cert, &none).contains("holds no private key"));
        std::fs::write(&none, vec![b'a'; FILE_BYTES_MAX as usize + 1]).expect("writes");
        assert!(refusal(&none, &key).ends_with("is longer than 1048576 bytes"));
    }
}
