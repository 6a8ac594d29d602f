//! What stands between a client and a server in tests: it passes bytes on, counts connections, cuts them, or speaks TLS to the client.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use sluice::ledger::tls::{TlsServer, TlsSession};
use sluice::sys::clock;

/// Bytes towards the client after which the connection with this number (from 0) is cut; `None`: it is not.
pub type Cut = Box<dyn Fn(usize) -> Option<usize> + Send>;

/// A proxy on a thread of its own; it ends when dropped.
pub struct Between {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Between {
    pub fn start(to: SocketAddr, cut: Cut, tls: Option<TlsServer>) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("non-blocking");
        let address = listener.local_addr().expect("bound");
        let (connections, stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let thread = std::thread::spawn({
            let (connections, stop) = (connections.clone(), stop.clone());
            move || serve(&listener, to, &cut, tls, &connections, &stop)
        });
        Between { address, connections, stop, thread: Some(thread) }
    }

    /// Connections so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Passed {
    near: TcpStream,
    far: TcpStream,
    tls: Option<TlsSession>,
    /// Bytes that the other side has not taken.
    to_near: Vec<u8>,
    to_far: Vec<u8>,
    left: Option<usize>,
    far_ended: bool,
}

fn serve(
    listener: &TcpListener,
    to: SocketAddr,
    cut: &Cut,
    mut tls: Option<TlsServer>,
    connections: &AtomicUsize,
    stop: &AtomicBool,
) {
    let mut passed: Vec<Passed> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let mut moved = false;
        if let Ok((near, _)) = listener.accept()
            && let Ok(far) = TcpStream::connect(to)
        {
            near.set_nonblocking(true).expect("non-blocking");
            far.set_nonblocking(true).expect("non-blocking");
            let number = connections.fetch_add(1, Ordering::Relaxed);
            let tls = tls.as_mut().map(|tls| tls.session().expect("a session"));
            let (to_near, to_far) = (Vec::new(), Vec::new());
            passed.push(Passed { near, far, tls, to_near, to_far, left: cut(number), far_ended: false });
            moved = true;
        }
        passed.retain_mut(|one| one.turn(&mut moved));
        if !moved {
            clock::sleep(Duration::from_millis(1));
        }
    }
}

impl Passed {
    /// Moves what can be moved; whether the connection stands.
    fn turn(&mut self, moved: &mut bool) -> bool {
        let mut bytes = [0; 16 << 10];
        match self.near.read(&mut bytes) {
            Ok(0) => return false,
            Ok(read) => {
                *moved = true;
                match &mut self.tls {
                    None => self.to_far.extend_from_slice(&bytes[..read]),
                    Some(tls) => {
                        if tls.on_bytes(&bytes[..read]).is_err() {
                            return false;
                        }
                        tls.read_plain(&mut self.to_far);
                        tls.take_cipher(&mut self.to_near);
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        let ready = self.tls.as_ref().is_none_or(|tls| !tls.is_handshaking());
        if self.to_near.is_empty() && ready && !self.far_ended {
            match self.far.read(&mut bytes) {
                Ok(0) => self.far_ended = true,
                Ok(read) => {
                    *moved = true;
                    match &mut self.tls {
                        None => self.to_near.extend_from_slice(&bytes[..read]),
                        Some(tls) => tls.encrypt(&bytes[..read], &mut self.to_near).expect("encrypts"),
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.far_ended = true,
            }
        }
        *moved |= pass(&mut self.far, &mut self.to_far);
        let most = self.left.unwrap_or(usize::MAX).min(self.to_near.len());
        let mut part: Vec<u8> = self.to_near.drain(..most).collect();
        *moved |= pass(&mut self.near, &mut part);
        let sent = most - part.len();
        self.to_near.splice(..0, part);
        if let Some(left) = &mut self.left {
            *left -= sent;
        }
        self.left != Some(0) && !(self.far_ended && self.to_near.is_empty())
    }
}

fn pass(to: &mut TcpStream, bytes: &mut Vec<u8>) -> bool {
    match to.write(bytes) {
        Ok(written) if written > 0 => {
            bytes.drain(..written);
            true
        }
        _ => false,
    }
}
