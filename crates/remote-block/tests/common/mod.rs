//! A server on a thread, and a client that can send anything.
#![allow(dead_code)] // Each test program uses some of it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sinew_fabric::{Clock, Waker};
use sinew_remote_block::protocol::Request;
use sinew_remote_block::{Config, Counters, Listener, Server};
use sinew_remote_memory::{RamStore, Store};

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const ZEROES: u16 = 6;
pub const STATUS: u16 = 7;
pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;

pub struct Time(pub Instant);

impl Clock for Time {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

pub struct RunningServer {
    pub path: PathBuf,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<Counters>>,
}

/// Serves a store of `len` bytes.
pub fn serve(len: usize, config: Config) -> RunningServer {
    serve_store(RamStore::new(len, config.arena_bytes()).unwrap(), config)
}

pub fn serve_store<S: Store + Send + 'static>(store: S, config: Config) -> RunningServer {
    serve_by(Time(Instant::now()), store, config)
}

/// Serves a store, with a clock of the test's own.
pub fn serve_by<S: Store + Send + 'static>(
    clock: impl Clock + Send + 'static,
    store: S,
    config: Config,
) -> RunningServer {
    serve_with_callback(clock, store, config, |_| {})
}

/// As [`serve_by`], and passes the store to `callback`.
pub fn serve_with_callback<S: Store + Send + 'static>(
    clock: impl Clock + Send + 'static,
    store: S,
    config: Config,
    callback: impl FnMut(&mut S) + Send + 'static,
) -> RunningServer {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("sinew-block-{}-{number}", std::process::id()));
    let (send, receive) = std::sync::mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, at) = (Arc::clone(&stop), format!("unix:{}", path.display()));
    let thread = std::thread::spawn(move || {
        let mut server = Server::open(Listener::bind(&at).unwrap(), store, config).unwrap();
        send.send(server.waker()).unwrap();
        server.run_with_callback(&clock, || stopped.load(Ordering::Acquire), callback).unwrap();
        assert_eq!((server.memory_used(), server.connections()), (0, 0), "all memory came back");
        server.counters().clone()
    });
    RunningServer { path, stop, waker: receive.recv().unwrap(), thread: Some(thread) }
}

impl RunningServer {
    /// Asks the server to end.
    pub fn request_stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub fn end(mut self) -> Counters {
        self.request_stop();
        self.thread.take().unwrap().join().unwrap()
    }

    pub fn socket(&self) -> UnixStream {
        let socket = UnixStream::connect(&self.path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket
    }

    /// A client that has done its handshake.
    pub fn client(&self, structured: bool) -> Client {
        let mut socket = self.socket();
        read_array::<18>(&mut socket);
        socket.write_all(&3u32.to_be_bytes()).unwrap();
        if structured {
            option(&mut socket, 8, &[]);
            assert_eq!(answer(&mut socket), (8, 1, vec![]));
            option(&mut socket, 10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation");
            assert_eq!(answer(&mut socket).1, 4);
            assert_eq!(answer(&mut socket).1, 1);
        }
        option(&mut socket, 1, &[]);
        read_array::<10>(&mut socket);
        Client { socket, structured }
    }
}

pub fn read_array<const N: usize>(socket: &mut UnixStream) -> [u8; N] {
    let mut bytes = [0; N];
    socket.read_exact(&mut bytes).unwrap();
    bytes
}

pub fn option(socket: &mut UnixStream, kind: u32, data: &[u8]) {
    let len = (data.len() as u32).to_be_bytes();
    socket.write_all(&[b"IHAVEOPT", &kind.to_be_bytes()[..], &len, data].concat()).unwrap();
}

pub fn answer(socket: &mut UnixStream) -> (u32, u32, Vec<u8>) {
    let header = read_array::<20>(socket);
    let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
    let mut data = vec![0; word(16) as usize];
    socket.read_exact(&mut data).unwrap();
    (word(8), word(12), data)
}

/// Result of a request: an error code, or data and their place.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Done,
    Error(u32),
    Data(u64, Vec<u8>),
    Hole(u64, u32),
    Status(Vec<(u32, u32)>),
}

pub struct Client {
    pub socket: UnixStream,
    pub structured: bool,
}

impl Client {
    pub fn ask(&mut self, kind: u16, flags: u16, cookie: u64, at: u64, len: u32) {
        self.socket.write_all(&Request { flags, kind, cookie, at, len }.to_bytes()).unwrap();
    }

    /// The next reply, or chunk of one: its cookie, whether it is the last, and its contents. `len` is the length of
    /// the data in a simple reply.
    pub fn reply(&mut self, len: u32) -> (u64, bool, Reply) {
        self.reply_to(|_| len)
    }

    /// As [`Self::reply`], with a data length that depends on the cookie.
    pub fn reply_to(&mut self, len_of: impl Fn(u64) -> u32) -> (u64, bool, Reply) {
        let head = read_array::<16>(&mut self.socket);
        let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        if word(&head[..4]) == 0x6744_6698 {
            let error = word(&head[4..8]);
            if error != 0 {
                return (cookie, true, Reply::Error(error));
            }
            // In a structured session, a simple reply has no data.
            let len = if self.structured { 0 } else { len_of(cookie) };
            let mut data = vec![0; len as usize];
            self.socket.read_exact(&mut data).unwrap();
            return (cookie, true, if len == 0 { Reply::Done } else { Reply::Data(0, data) });
        }
        assert_eq!(word(&head[..4]), 0x668e_33ef);
        let mut body = vec![0; word(&read_array::<4>(&mut self.socket)) as usize];
        self.socket.read_exact(&mut body).unwrap();
        let reply = match u16::from_be_bytes([head[6], head[7]]) {
            1 => Reply::Data(u64::from_be_bytes(body[..8].try_into().unwrap()), body[8..].to_vec()),
            2 => Reply::Hole(u64::from_be_bytes(body[..8].try_into().unwrap()), word(&body[8..])),
            5 => Reply::Status(body[4..].chunks(8).map(|one| (word(&one[..4]), word(&one[4..]))).collect()),
            0x8001 => Reply::Error(word(&body[..4])),
            kind => panic!("a chunk of kind {kind}"),
        };
        (cookie, head[5] & 1 == 1, reply)
    }

    pub fn write(&mut self, flags: u16, at: u64, bytes: &[u8]) -> Reply {
        self.ask(WRITE, flags, 1, at, bytes.len() as u32);
        self.socket.write_all(bytes).unwrap();
        self.reply(0).2
    }

    /// Reads, and joins the chunks of the reply.
    pub fn read(&mut self, flags: u16, at: u64, len: u32) -> Result<Vec<u8>, u32> {
        self.ask(READ, flags, 2, at, len);
        let mut bytes = vec![0xee; len as usize];
        loop {
            let (cookie, is_last, reply) = self.reply(len);
            assert_eq!(cookie, 2);
            match reply {
                Reply::Data(_, data) if !self.structured => return Ok(data),
                Reply::Data(from, data) => {
                    let from = (from - at) as usize;
                    bytes[from..from + data.len()].copy_from_slice(&data);
                }
                Reply::Hole(from, len) => bytes[(from - at) as usize..][..len as usize].fill(0),
                Reply::Error(error) => return Err(error),
                other => panic!("{other:?}"),
            }
            if is_last {
                return Ok(bytes);
            }
        }
    }

    pub fn request_done(&mut self, kind: u16, flags: u16, at: u64, len: u32) -> Reply {
        self.ask(kind, flags, 3, at, len);
        let (cookie, is_last, reply) = self.reply(0);
        assert_eq!((cookie, is_last), (3, true));
        reply
    }

    pub fn is_closed(&mut self) -> bool {
        match self.socket.read(&mut [0; 64]) {
            Ok(len) => len == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}
