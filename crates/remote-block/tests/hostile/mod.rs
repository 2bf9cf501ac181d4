//! Properties that a server must keep whatever a client sends. Shared by a fuzz target and property tests.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::{Mutex, OnceLock, PoisonError};

use sinew_remote_block::Config;
use sinew_remote_block::protocol::{Command, Export, Handshake, NextStep, Request, Session};

use super::common::{Client, Reply, RunningServer, serve};

/// Bytes of the device.
const LEN: usize = 64 << 10;
/// Requests of a history, few enough that all their replies fit into a socket's buffers.
const REQUESTS_MAX: usize = 40;

/// A device that lasts as long as this process, and its expected contents.
struct Device {
    running: RunningServer,
    contents: Vec<u8>,
}

fn device() -> &'static Mutex<Device> {
    static DEVICE: OnceLock<Mutex<Device>> = OnceLock::new();
    DEVICE.get_or_init(|| Mutex::new(Device { running: serve(LEN, Config::default()), contents: vec![0; LEN] }))
}

/// Sends a server `bytes`, either as they are or as requests after a valid handshake, whose replies are compared with a
/// plain array. Then another client must be served.
pub fn client(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    handshake(rest);
    let mut device = device().lock().unwrap_or_else(PoisonError::into_inner);
    let Device { running, contents } = &mut *device;
    match first % 4 {
        0 => send_bytes(running, rest),
        // After valid flags.
        1 => send_bytes(running, &[&[0, 0, 0, 3], rest].concat()),
        kind => send_requests(running.client(kind == 3), contents, rest),
    }
    let read = running.client(first % 8 < 4).read(0, 0, LEN as u32).unwrap();
    if first % 4 < 2 {
        *contents = read;
    } else {
        assert!(read == *contents, "the device holds other bytes");
    }
}

/// Sends everything, and reads until the server closes.
fn send_bytes(running: &RunningServer, bytes: &[u8]) {
    let mut socket = running.socket();
    // A server that has received enough closes at once, so this may fail.
    let _ = socket.write_all(bytes).and_then(|()| socket.shutdown(Shutdown::Write));
    let mut output = Vec::new();
    if let Err(error) = socket.read_to_end(&mut output) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
}

/// Asserts that a handshake of these bytes is the same however they are cut.
fn handshake(bytes: &[u8]) {
    let export = Export { name: "memory".to_owned(), description: "a test".to_owned(), len: LEN as u64 };
    let shake = |step: usize| {
        let mut out = Vec::new();
        let mut handshake = Handshake::begin(&mut out);
        let (mut consumed, mut end) = (0, 0);
        loop {
            let ran = handshake.run(&export, false, &bytes[consumed..end], &mut out);
            consumed += ran.consumed;
            match ran.next {
                NextStep::Output => {}
                NextStep::Input(wants) => {
                    assert!(wants > end - consumed, "it wants input that it has");
                    if end == bytes.len() {
                        return (out, None, consumed);
                    }
                    end = bytes.len().min(end + step);
                }
                other => return (out, Some(other), consumed),
            }
        }
    };
    assert_eq!(shake(1), shake(bytes.len().max(1)));
}

/// Expected reply.
enum Expected {
    Done,
    Error(u32),
    Data(u64, Vec<u8>),
    Status,
}

fn send_requests(mut client: Client, holds: &mut [u8], bytes: &[u8]) {
    let session = Session { is_structured: client.structured, has_status: client.structured };
    let mut steps = Steps(bytes);
    let mut expected = HashMap::new();
    while let Some(kind) = steps.byte()
        && expected.len() < REQUESTS_MAX
    {
        let (flags, at, len) = (u16::from(steps.small() % 40), steps.at(), steps.len());
        let kind = u16::from(kind % 10);
        let request = Request { flags, kind, cookie: 1000 + expected.len() as u64, at, len };
        let Ok(command) = request.command(session, LEN as u64) else {
            if request.payload_len() > 1000 {
                continue;
            }
            let error = request.command(session, LEN as u64).unwrap_err() as u32;
            client.socket.write_all(&request.to_bytes()).unwrap();
            client.socket.write_all(&vec![1; request.payload_len() as usize]).unwrap();
            expected.insert(request.cookie, Expected::Error(error));
            continue;
        };
        let range = at.min(LEN as u64) as usize..at.saturating_add(len.into()).min(LEN as u64) as usize;
        let mut payload = Vec::new();
        let reply = match command {
            Command::Disconnect => break,
            Command::Write { .. } if len > 1000 => continue,
            Command::Write { .. } => {
                payload = (0..len).map(|index| (index as u8).wrapping_mul(kind as u8 + 3) ^ flags as u8).collect();
                holds[range].copy_from_slice(&payload);
                Expected::Done
            }
            Command::Discard { .. } | Command::Zeros { .. } => {
                holds[range].fill(0);
                Expected::Done
            }
            Command::Read { .. } => Expected::Data(at, holds[range].to_vec()),
            Command::Status { .. } => Expected::Status,
            Command::Flush | Command::Cache => Expected::Done,
        };
        client.socket.write_all(&request.to_bytes()).unwrap();
        client.socket.write_all(&payload).unwrap();
        expected.insert(request.cookie, reply);
    }
    check_replies(&mut client, expected);
}

/// Checks the replies, which come in any order: each request has exactly one.
fn check_replies(client: &mut Client, mut expected: HashMap<u64, Expected>) {
    while !expected.is_empty() {
        let (cookie, is_last, reply) = client.reply_to(|cookie| match expected.get(&cookie) {
            Some(Expected::Data(_, data)) => data.len() as u32,
            _ => 0,
        });
        let known = expected.get_mut(&cookie).expect("a reply to what was asked");
        match (known, reply) {
            (Expected::Done, Reply::Done) => {}
            (Expected::Error(wanted), Reply::Error(error)) => assert_eq!(error, *wanted),
            (Expected::Data(_, data), Reply::Data(_, read)) if !client.structured => assert!(read == *data),
            (Expected::Data(at, data), Reply::Data(from, read)) => {
                let from = (from - *at) as usize;
                assert!(data[from..from + read.len()] == read[..]);
            }
            (Expected::Data(at, data), Reply::Hole(from, len)) => {
                let from = (from - *at) as usize;
                assert!(data[from..from + len as usize].iter().all(|byte| *byte == 0));
            }
            (Expected::Status, Reply::Status(extents)) => assert!(!extents.is_empty()),
            (_, other) => panic!("request {cookie} is answered with {other:?}"),
        }
        if is_last {
            expected.remove(&cookie);
        }
    }
}

/// The rest of a history's bytes.
struct Steps<'a>(&'a [u8]);

impl Steps<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn small(&mut self) -> u8 {
        self.byte().unwrap_or(0)
    }

    /// Offset of a request: mostly within the device, or near an end.
    fn at(&mut self) -> u64 {
        let (form, byte) = (self.small(), u64::from(self.small()));
        match form {
            0..=199 => byte * u64::from(form % 200),
            200..=229 => (LEN as u64 + 64).wrapping_sub(byte),
            230..=249 => byte << 56 | byte,
            _ => u64::MAX - byte,
        }
    }

    fn len(&mut self) -> u32 {
        let (form, byte) = (self.small(), u32::from(self.small()));
        match form {
            0..=149 => byte,
            150..=199 => byte * 64,
            200..=229 => LEN as u32 + 16 - byte,
            230..=249 => (32 << 20) + 128 - byte,
            _ => u32::MAX - byte,
        }
    }
}
