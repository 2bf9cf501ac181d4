//! Stores that are busy, that fail, or that know their holes.

mod common;

use std::io;

use common::*;
use sinew_fabric::{Armed, Descriptor, Readiness};
use sinew_mem::Arena;
use sinew_remote_block::{Config, protocol};
use sinew_remote_memory::{Extent, Finished, Job, RamStore, Refused, Request, Status, Store, StoreError};

const LEN: u64 = 4 << 20;
/// From here on, everything is lost.
const LOST: u64 = 3 << 20;
/// From here up to `LOST`, nothing can be written for lack of room.
const FULL: u64 = 2 << 20;
/// Everything before this is a hole.
const HOLE: u64 = 8192;
/// Longest extent that the store reports at a time, in bytes.
const PIECE: u64 = 1000;

/// A store with a bad end and a hole at its beginning, which accepts few requests at a time.
struct FaultyStore {
    inner: RamStore,
    under_way: usize,
}

impl Readiness for FaultyStore {
    fn descriptor(&self) -> Option<Descriptor> {
        self.inner.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        self.inner.arm(now_ns)
    }

    fn disarm(&mut self) -> bool {
        self.inner.disarm()
    }
}

impl Store for FaultyStore {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn arena(&self) -> &Arena {
        self.inner.arena()
    }

    fn submit(&mut self, request: Request) -> Result<(), Refused> {
        let error = match &request.job {
            Job::Read { at, target } if *at + target.len() as u64 > LOST => {
                Some(StoreError::Lost { at: *at, why: "a test".to_owned() })
            }
            Job::Write { at, source } if *at + source.len as u64 > FULL => {
                Some(StoreError::Full { at: *at, why: "a test".to_owned() })
            }
            Job::Flush if self.under_way > 1 => Some(StoreError::Unavailable("a test".to_owned())),
            _ => None,
        };
        if let Some(error) = error {
            return Err(Refused::Never { error, request });
        }
        if self.under_way >= 2 {
            return Err(Refused::Busy(request));
        }
        self.inner.submit(request)?;
        self.under_way += 1;
        Ok(())
    }

    fn turn(&mut self) -> bool {
        self.inner.turn()
    }

    fn poll(&mut self, finished: &mut Vec<Finished>, max: usize) -> usize {
        let count = self.inner.poll(finished, max);
        self.under_way -= count;
        count
    }

    fn extent(&self, at: u64, len: u64) -> Extent {
        let is_hole = at < HOLE;
        let len = if is_hole { len.min(HOLE - at) } else { len };
        Extent { len: len.min(PIECE), is_hole }
    }

    fn status(&self) -> Status {
        self.inner.status()
    }
}

fn serve_faulty() -> RunningServer {
    let config = Config::default();
    serve_store(FaultyStore { inner: RamStore::new(LEN as usize, config.arena_bytes()).unwrap(), under_way: 0 }, config)
}

#[test]
fn what_a_store_cannot_do_is_the_protocols_error_and_the_next_request_is_served() {
    let server = serve_faulty();
    for structured in [false, true] {
        let mut client = server.client(structured);
        assert!(client.read(0, LOST, 1) == Err(5));
        // Some of the pieces can be read, and some cannot.
        assert!(client.read(0, LOST - (600 << 10), 700 << 10) == Err(5));
        assert!(client.read(if structured { DF } else { 0 }, LOST - (600 << 10), 700 << 10) == Err(5));
        assert_eq!(client.write(0, FULL, b"x"), Reply::Error(28));
        assert_eq!(client.write(FUA, FULL - (600 << 10), &[1; 900 << 10]), Reply::Error(28));
        assert_eq!(client.request_done(ZEROES, NO_HOLE, FULL - (300 << 10), 300 << 10), Reply::Done);
        assert_eq!(client.request_done(ZEROES, NO_HOLE, FULL - (300 << 10), (300 << 10) + 1), Reply::Error(28));
        assert_eq!(client.read(0, 1 << 20, 4).unwrap(), [0; 4]);
    }
    assert!(server.end().io_errors >= 6);
}

#[test]
fn a_busy_store_is_asked_again_and_order_stays() {
    let server = serve_faulty();
    let mut client = server.client(true);
    for round in 0..50u8 {
        let at = 1 << 20;
        use std::io::Write;
        for byte in [round, round + 1] {
            client.ask(WRITE, 0, u64::from(byte), at, 4096);
            client.socket.write_all(&[byte; 4096]).unwrap();
        }
        (0..10).for_each(|cookie| client.ask(READ, 0, 100 + cookie, at, 4096));
        for _ in 0..12 {
            match client.reply(4096) {
                (cookie, true, Reply::Done) => assert!(cookie < 100),
                (_, true, Reply::Data(_, data)) => assert_eq!((data[0], data.len()), (round + 1, 4096)),
                other => panic!("{other:?}"),
            }
        }
    }
    server.end();
}

/// The store is asked 16 times for a request, and 64 times for all that came at once, but for each of them once.
#[test]
fn many_statuses_at_once_do_not_hold_up_others() {
    let server = serve_faulty();
    let mut client = server.client(true);
    let status = |cookie| protocol::Request { flags: 0, kind: STATUS, cookie, at: HOLE, len: 1 << 20 }.to_bytes();
    let all: Vec<u8> = (0..100).flat_map(status).collect();
    std::io::Write::write_all(&mut client.socket, &all).unwrap();
    for cookie in 0..100 {
        let asked = if cookie < 4 { 16 } else { 1 };
        assert_eq!(client.reply(0), (cookie, true, Reply::Status(vec![(asked * PIECE as u32, 0)])));
    }
    assert_eq!(server.end().statuses, 100);
}

#[test]
fn holes_are_told_and_not_sent() {
    let server = serve_faulty();
    let mut client = server.client(true);
    client.ask(READ, 0, 1, 100, 1000);
    assert_eq!(client.reply(0), (1, true, Reply::Hole(100, 1000)));
    assert_eq!(client.read(DF, 0, HOLE as u32 + 1).unwrap(), vec![0; HOLE as usize + 1]);
    assert_eq!(client.request_done(STATUS, 0, 4096, 8192), Reply::Status(vec![(4096, 3), (4096, 0)]));
    assert_eq!(client.request_done(STATUS, REQ_ONE, 4096, 8192), Reply::Status(vec![(4096, 3)]));
    // A reply takes the store no long time: it ends early.
    assert_eq!(client.request_done(STATUS, REQ_ONE, 8192, 1 << 20), Reply::Status(vec![(16 * PIECE as u32, 0)]));
    assert_eq!(client.request_done(STATUS, 0, LEN - 1, 2), Reply::Error(22));
    assert_eq!(server.client(false).read(0, 0, 4).unwrap(), [0; 4]);
    assert_eq!(server.end().statuses, 3);
}
