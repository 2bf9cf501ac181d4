//! A server that answers every read with the same bytes: it looks nothing up, copies nothing and checks nothing.
//! Whatever other servers take beyond it is their own cost.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::JoinHandle;

use anyhow::Context;

const REQUEST_LEN: usize = 28;
const REPLY_LEN: usize = 16;
/// Replies sent in one system call.
const REPLIES: usize = 32;

/// The server, on a thread that ends with its client.
pub struct Constant(Option<JoinHandle<()>>);

impl Constant {
    /// Serves one client at `path`.
    pub fn start(path: &Path, len: usize, core: usize) -> anyhow::Result<Self> {
        let listener = UnixListener::bind(path).context("listening")?;
        let serve = move || {
            let _ = crate::peers::pin(core);
            // If this fails, the client is gone.
            let _ = listener.accept().and_then(|(socket, _)| serve(socket, len));
        };
        Ok(Self(Some(std::thread::spawn(serve))))
    }
}

impl Drop for Constant {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}

fn serve(mut socket: UnixStream, len: usize) -> std::io::Result<()> {
    socket.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
    socket.read_exact(&mut [0; 20])?;
    socket.write_all(&[&(1u64 << 40).to_be_bytes()[..], &1u16.to_be_bytes()].concat())?;
    socket.set_nonblocking(true)?;
    let data = vec![0x5a; len];
    let mut input = [0; 1024 * REQUEST_LEN];
    let mut filled = 0;
    loop {
        match socket.read(&mut input[filled..]) {
            Ok(0) => return Ok(()),
            Ok(len) => filled += len,
            // Spins, as a busy server would.
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        let whole = filled / REQUEST_LEN;
        for requests in input[..whole * REQUEST_LEN].chunks(REPLIES * REQUEST_LEN) {
            let fronts: Vec<[u8; REPLY_LEN]> = requests.chunks(REQUEST_LEN).map(front).collect();
            let mut pieces: Vec<IoSlice<'_>> =
                fronts.iter().flat_map(|front| [IoSlice::new(front), IoSlice::new(&data)]).collect();
            let mut left = &mut pieces[..];
            while !left.is_empty() {
                match socket.write_vectored(left) {
                    Ok(len) => IoSlice::advance_slices(&mut left, len),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
        }
        input.copy_within(whole * REQUEST_LEN..filled, 0);
        filled -= whole * REQUEST_LEN;
    }
}

fn front(request: &[u8]) -> [u8; REPLY_LEN] {
    let mut front = [0; REPLY_LEN];
    front[..4].copy_from_slice(&0x6744_6698u32.to_be_bytes());
    front[8..].copy_from_slice(&request[8..16]);
    front
}
