//! Connections that try to keep others out.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Beginning of a frame whose end never comes.
const HEADER: &[u8] = b"SNWR\x01\0\0\0\xE8\x03\0\0";
const BETWEEN_BYTES: Duration = Duration::from_millis(100);

/// Connections that stay silent, or send a byte of a frame now and then, for as long as this lives.
pub struct Crowd {
    stop: mpsc::Sender<()>,
    thread: Option<JoinHandle<Vec<TcpStream>>>,
}

impl Crowd {
    /// Opens this many connections to `address`, every other of which sends a byte now and then.
    pub fn at(address: &str, count: usize) -> Self {
        let mut crowd: Vec<_> = (0..count).map(|_| TcpStream::connect(address).unwrap()).collect();
        let (stop, stopped) = mpsc::channel();
        let frame = [HEADER, &[b' '; 1000]].concat();
        let thread = std::thread::spawn(move || {
            let mut sent = 0;
            while stopped.recv_timeout(BETWEEN_BYTES) == Err(mpsc::RecvTimeoutError::Timeout) {
                for slow in crowd.iter_mut().step_by(2) {
                    // The server has closed some of them.
                    let _ = slow.write_all(&frame[sent..=sent]);
                }
                sent = (sent + 1).min(frame.len() - 1);
            }
            crowd
        });
        Self { stop, thread: Some(thread) }
    }

    /// Stops sending. Returns whether the server closes all connections, each within `patience`.
    pub fn wait_until_shown_out(mut self, patience: Duration) -> bool {
        let _ = self.stop.send(());
        let crowd = self.thread.take().unwrap().join().unwrap();
        crowd.iter().all(|mut visitor| {
            visitor.set_read_timeout(Some(patience)).unwrap();
            match visitor.read_to_end(&mut Vec::new()) {
                Ok(_) => true,
                // The server closed the connection before it had read everything.
                Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        })
    }
}
