//! Guarantees that hold whatever a client sends. Property tests and a fuzz target share them.

#[path = "../memcached/ours.rs"]
mod ours;

use ours::{Ours, Table};

/// An item of another client.
const BYSTANDER: &[u8] = b"bystander";
/// Lines up to this length get the same answers however they are cut.
const LINE_LEN: usize = 2000;

/// Sends `bytes` as a client; the first three say where to cut the rest.
pub fn memcached(bytes: &[u8]) {
    let (cuts, bytes) = bytes.split_at(bytes.len().min(3));
    let [mut whole, mut cut] = [Table::new(), Table::new()].map(|mut table| {
        let stored = Ours::default().hear(&mut table, b"set bystander 7 0 5\r\nvalue\r\n");
        assert_eq!(stored, b"STORED\r\n");
        table
    });
    let said_at_once = Ours::default().hear(&mut whole, bytes);
    let mut client = Ours::default();
    let mut said_to_pieces = Vec::new();
    let mut at = 0;
    for number in 0.. {
        if at == bytes.len() || client.closed {
            break;
        }
        let len = 1 + usize::from(cuts.get(number % 3).copied().unwrap_or(0));
        let end = bytes.len().min(at + len);
        said_to_pieces.extend(client.hear(&mut cut, &bytes[at..end]));
        at = end;
    }
    if bytes.split(|byte| *byte == b'\n').all(|line| line.len() < LINE_LEN) {
        assert_eq!(said_to_pieces, said_at_once);
    }
    let names = |what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
    // A key in base64 has many spellings.
    let may_change = names(BYSTANDER) || names(b"flush_all") || names(b" b");
    for table in [&mut whole, &mut cut] {
        let answer = Ours::default().hear(table, b"get bystander\r\n");
        assert!(may_change || answer == b"VALUE bystander 7 5\r\nvalue\r\nEND\r\n");
    }
}
