//! An NBD client that reads at random places, with a given number of requests in flight, and does as little else as it
//! can.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

const READ: u16 = 0;
const WRITE: u16 = 1;
/// Bytes of a simple reply before its data.
const REPLY_LEN: usize = 16;
const REPLY_MAGIC: u32 = 0x6744_6698;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const BLOCK: u64 = 4096;
/// Bytes written at once when a device is filled.
const FILL_LEN: usize = 1 << 20;

/// Load on the server.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of a read.
    pub len: u32,
    /// Reads in flight.
    pub depth: usize,
}

/// Reads per second, and median time of a read (0 unless one at a time).
pub struct Measured {
    pub rate: f64,
    pub p50_ns: f64,
}

fn request(kind: u16, cookie: u64, at: u64, len: u32) -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&at.to_be_bytes());
    bytes[24..].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// Negotiates fixed newstyle without zeroes, the default export and simple replies.
fn shake_hands(socket: &mut UnixStream) -> anyhow::Result<()> {
    socket.read_exact(&mut [0; 18]).context("greeting")?;
    socket.write_all(&[&3u32.to_be_bytes()[..], b"IHAVEOPT\0\0\0\x01\0\0\0\0"].concat())?;
    socket.read_exact(&mut [0; 10]).context("handshake")
}

/// Writes its number into each block.
fn fill(socket: &mut UnixStream, device: u64) -> anyhow::Result<()> {
    let mut bytes = vec![0x5a; FILL_LEN];
    for at in (0..device).step_by(FILL_LEN) {
        for (index, block) in bytes.chunks_mut(BLOCK as usize).enumerate() {
            block[..8].copy_from_slice(&(at / BLOCK + index as u64).to_be_bytes());
        }
        socket.write_all(&request(WRITE, 0, at, FILL_LEN as u32))?;
        socket.write_all(&bytes)?;
        let mut reply = [0; REPLY_LEN];
        socket.read_exact(&mut reply)?;
        ensure!(reply[4..8] == [0; 4], "a write failed");
    }
    Ok(())
}

/// Reads for the duration `seconds`. `is_stored` says that the device keeps what is written: it is filled first, and
/// reads are checked.
pub fn run(
    mut socket: UnixStream,
    load: Load,
    device: u64,
    seconds: Duration,
    is_stored: bool,
) -> anyhow::Result<Measured> {
    shake_hands(&mut socket)?;
    if is_stored {
        fill(&mut socket, device)?;
    }
    let places = device / u64::from(load.len);
    let mut random = 88_172_645_463_325_252u64;
    let mut place = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % places * u64::from(load.len)
    };
    // Offset at which each request in flight reads.
    let mut asked: Vec<u64> = (0..load.depth).map(|_| place()).collect();
    let mut out: Vec<u8> = Vec::new();
    for (cookie, at) in asked.iter().enumerate() {
        out.extend(request(READ, cookie as u64, *at, load.len));
    }
    let frame = REPLY_LEN + load.len as usize;
    let mut input = vec![0; 2 * frame.max(256 << 10)];
    let mut filled = 0;
    let (mut done, mut times) = (0u64, Vec::with_capacity(1 << 20));
    let began = Instant::now();
    loop {
        let sent = Instant::now();
        socket.write_all(&out)?;
        out.clear();
        while filled < frame {
            let len = socket.read(&mut input[filled..])?;
            ensure!(len > 0, "the server is gone");
            filled += len;
        }
        if load.depth == 1 && times.len() < times.capacity() {
            times.push(sent.elapsed().as_nanos() as u32);
        }
        let mut start = 0;
        while filled - start >= frame {
            let reply = &input[start..start + frame];
            let cookie = usize::try_from(u64::from_be_bytes(reply[8..16].try_into()?))?;
            ensure!(reply[..4] == REPLY_MAGIC.to_be_bytes() && reply[4..8] == [0; 4], "a read failed");
            let at = *asked.get(cookie).context("a reply to no request")?;
            ensure!(!is_stored || reply[REPLY_LEN..][..8] == (at / BLOCK).to_be_bytes(), "a read returned wrong bytes");
            asked[cookie] = place();
            out.extend(request(READ, cookie as u64, asked[cookie], load.len));
            done += 1;
            start += frame;
        }
        input.copy_within(start..filled, 0);
        filled -= start;
        if began.elapsed() >= seconds {
            break;
        }
    }
    let rate = done as f64 / began.elapsed().as_secs_f64();
    times.sort_unstable();
    Ok(Measured { rate, p50_ns: times.get(times.len() / 2).map_or(0.0, |time| f64::from(*time)) })
}
