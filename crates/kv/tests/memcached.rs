//! The door's protocol compared with memcached: both get the same bytes, and must give the same answers.

#[path = "memcached/ours.rs"]
mod ours;
#[path = "memcached/theirs.rs"]
mod theirs;

use std::fmt::Write as _;

use ours::{Ours, Table};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sinew_conformance::skipped;
use sinew_store::cache::{Cache, CacheConfig, WhenFull};
use theirs::Memcached;

/// Both sides, which have received the same input from the beginning.
struct Both {
    theirs: Memcached,
    ours: Table,
}

impl Both {
    fn start(name: &str) -> Option<Self> {
        match Memcached::start(name) {
            Ok(theirs) => Some(Self { theirs, ours: Table::new() }),
            Err(reason) => {
                skipped(&reason);
                None
            }
        }
    }

    fn answers(&mut self, pieces: &[&[u8]]) -> [Vec<u8>; 2] {
        let theirs = self.theirs.answer(pieces);
        let mut client = Ours::default();
        let ours: Vec<u8> = pieces.iter().flat_map(|piece| client.hear(&mut self.ours, piece)).collect();
        [timeless(&theirs), timeless(&ours)]
    }

    #[track_caller]
    fn agree(&mut self, script: &[u8]) {
        let [theirs, ours] = self.answers(&[script]);
        assert!(theirs == ours, "to {}\nmemcached: {}\nours:      {}", show(script), show(&theirs), show(&ours));
    }
}

fn show(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes.iter().take(2000) {
        let _ = write!(text, "{}", byte.escape_ascii());
    }
    text
}

/// Removes everything that differs from one second to the next: lifetimes and ages.
fn timeless(answer: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = answer;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        out.push(*byte);
        for letter in [&b" t"[..], b" l", b" exp=", b" la=", b" cls=", b" size="] {
            if out.ends_with(letter) {
                let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                if digits > 0 {
                    out.push(b'#');
                    rest = &rest[digits..];
                }
            }
        }
    }
    out
}

/// Splits answers into lines, without the spaces behind numbers that have become shorter, and without other signs that
/// these are items of their own. Whether they are depends on whether memcached had sent all pending output by then (see
/// [`SEND`]), and thus on how the stream is cut, and on the machine.
fn unpadded(answer: &[u8]) -> Vec<Vec<u8>> {
    let lines = answer.split(|byte| *byte == b'\n').map(|line| {
        let mut words: Vec<&[u8]> = line.trim_ascii().split(|byte| *byte == b' ').collect();
        let is_meta = matches!(words[0], b"VA" | b"HD");
        if let [b"VALUE", _, _, len, ..] | [b"VA", len, ..] = &mut words[..] {
            *len = b"#";
        }
        // A new item has not been fetched, which a flag would show.
        let is_told =
            |word: &&[u8]| is_meta && matches!(word.split_first(), Some((b's' | b'h', number)) if is_number(number));
        words.retain(|word| !is_told(word));
        words.join(&b' ')
    });
    lines.collect()
}

fn is_number(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit)
}

/// Each line is the input of one client.
const SCRIPTS: &str = include_str!("memcached/scripts.txt");

#[test]
fn every_command_is_answered_as_memcached_answers_it() {
    let Some(mut both) = Both::start("commands") else { return };
    for line in SCRIPTS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        both.agree(&unescaped(line));
    }
}

/// Decodes `\r`, `\n`, `\t`, `\\`, `\xHH`, and `\*N,C` for N times the byte C.
fn unescaped(line: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = line.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let (&escape, after) = rest.split_first().unwrap();
        rest = after;
        match escape {
            b'r' => bytes.push(b'\r'),
            b'n' => bytes.push(b'\n'),
            b't' => bytes.push(b'\t'),
            b'\\' => bytes.push(b'\\'),
            b'x' => {
                bytes.push(u8::from_str_radix(std::str::from_utf8(&rest[..2]).unwrap(), 16).unwrap());
                rest = &rest[2..];
            }
            b'*' => {
                let comma = rest.iter().position(|byte| *byte == b',').unwrap();
                let times: usize = std::str::from_utf8(&rest[..comma]).unwrap().parse().unwrap();
                bytes.extend(std::iter::repeat_n(rest[comma + 1], times));
                rest = &rest[comma + 2..];
            }
            other => panic!("no such escape: {}", other as char),
        }
    }
    bytes
}

#[test]
fn items_are_as_long_as_memcacheds() {
    let Some(mut both) = Both::start("lengths") else { return };
    let most = (1 << 20) - 60;
    for (flags, len) in [(0, most), (0, most + 1), (1, most - 4), (1, most - 3), (0, 1 << 20), (0, (1 << 20) + 10_000)]
    {
        let value = vec![b'v'; len];
        for command in [format!("set k {flags} 0 {len}\r\n"), format!("ms k {len} F{flags}\r\n")] {
            let script = [b"set k 0 0 1\r\nx\r\n", command.as_bytes(), &value, b"\r\nmg k s\r\n"].concat();
            both.agree(&script);
        }
    }
    for (len, more) in [(700_000, 400_000), (1 << 19, (1 << 19) - 60), (1 << 19, (1 << 19) - 59)] {
        let (value, more) = (vec![b'v'; len], vec![b'w'; more]);
        for command in ["append", "prepend"] {
            let first = format!("set k 0 0 {len}\r\n");
            let second = format!("\r\n{command} k 0 0 {}\r\n", more.len());
            let script = [first.as_bytes(), &value, second.as_bytes(), &more, b"\r\nmg k s\r\n"];
            both.agree(&script.concat());
        }
    }
}

#[test]
fn a_value_for_which_there_is_no_memory_leaves_no_old_one_behind() {
    let mut table = Table::new();
    let config = CacheConfig { items: 100, memory_bytes: 4096, when_full: WhenFull::Refuse, ..CacheConfig::default() };
    table.cache = Cache::new(&config).unwrap();
    let value = "v".repeat(10_000);
    for command in ["set k 0 0 10000", "ms k 10000"] {
        let script = format!("set k 0 0 3\r\nold\r\n{command}\r\n{value}\r\nget k\r\n");
        let answer = Ours::default().hear(&mut table, script.as_bytes());
        assert_eq!(show(&answer), show(b"STORED\r\nSERVER_ERROR out of memory storing object\r\nEND\r\n"), "{command}");
    }
}

#[test]
fn long_lists_of_keys_are_answered_whole() {
    let Some(mut both) = Both::start("lists") else { return };
    let mut script = Vec::new();
    for key in 0..500 {
        script.extend(format!("set key-{key} {key} 0 4\r\n{key:04}\r\n").bytes());
    }
    both.agree(&script);
    for (command, keys) in
        [("get", 2000), ("gets", 2000), ("gat 0", 1000), ("gats 1000", 1000), ("get", 23), ("get", 24)]
    {
        let mut script = command.to_owned().into_bytes();
        for key in 0..keys {
            script.extend(format!("{}key-{}", " ".repeat(1 + key % 3), key * 7 % 700).bytes());
        }
        script.extend_from_slice(b"  \r\nget key-1\r\n");
        both.agree(&script);
    }
}

/// Makes memcached send its pending output. While an item is still to be sent, a number that becomes shorter makes
/// another item, without the trailing spaces. It is sent twice, since an earlier command that asks for too much data
/// swallows a byte or two.
const SEND: &str = "mn\r\nmn\r\n";

/// A command, assembled at random.
fn command() -> impl Strategy<Value = Vec<u8>> {
    // No number that would be negative if it were signed: memcached then looks for a minus sign beyond the end of the
    // item.
    let key = prop::sample::select(vec!["a", "b", "c", "long-key-of-some-length", "YWJj", "a\x01"]);
    let number = prop::sample::select(vec![
        "0",
        "1",
        "-1",
        "5",
        "99",
        "100000",
        "4294967295",
        "4294967296",
        "9000000000",
        "x",
        "",
        "1x",
        "+3",
    ]);
    let exptime = prop::sample::select(vec!["0", "0", "0", "-1", "1000", "2592001", "x"]);
    let value = prop::sample::select(vec!["", "1", "12", "99", "hello", "4000000000000000000", " 7", "a\r\nb", "-3"]);
    let end = prop::sample::select(vec!["\r\n", "\r\n", "\r\n", "\r\n", "\n", " \r\n", " noreply\r\n"]);
    let store = prop::sample::select(vec!["set", "add", "replace", "append", "prepend", "cas"]);
    let off = prop::sample::select(vec![0, 0, 0, 0, 0, 0, 0, 0, 1, -1]);
    let flags = prop::collection::vec(
        prop::sample::select(vec![
            "b", "c", "f", "h", "k", "l", "q", "s", "t", "u", "v", "I", "N0", "N500", "R30", "R5000", "T0", "T500",
            "T-1", "Oabc", "C1", "C5", "C10", "C", "F7", "Fx", "MA", "MP", "MR", "ME", "MS", "MI", "MD", "M+", "D3",
            "D0", "J10", "Jx", "z",
        ]),
        0..5,
    );
    let common = (key, number, exptime, value, end);
    (common, store, off, flags, 0..14u8, any::<bool>()).prop_map(
        |((key, number, exptime, value, end), store, off, flags, which, versions)| {
            let len = value.len() as i64 + off;
            let flags = flags.iter().map(|flag| format!(" {flag}")).collect::<String>();
            match which {
                0..=2 => {
                    let version = if store == "cas" { format!(" {number}") } else { String::new() };
                    format!("{store} {key} {number} {exptime} {len}{version}{end}{value}\r\n")
                }
                3 => format!("get{} {key} a b{end}", if versions { "s" } else { "" }),
                4 => format!("gat{} {exptime} {key} c{end}", if versions { "s" } else { "" }),
                5 => format!("{SEND}{} {key} {number}{end}", if versions { "incr" } else { "decr" }),
                6 => format!("delete {key}{}{end}", if versions { "" } else { " 0" }),
                7 => format!("touch {key} {exptime}{end}"),
                8 | 9 => format!("ms {key} {len}{flags}\r\n{value}\r\n"),
                10 | 11 => format!("mg {key}{flags}\r\n"),
                12 => format!("md {key}{flags}\r\n"),
                // memcached forgets the expiry if the number has become longer.
                _ => format!("{SEND}ma {key}{}\r\n", flags.replace(" T", " N")),
            }
            .into_bytes()
        },
    )
}

/// Commands, and the places at which the bytes are cut.
fn stream() -> impl Strategy<Value = (Vec<Vec<u8>>, Vec<prop::sample::Index>)> {
    (prop::collection::vec(command(), 1..40), prop::collection::vec(any::<prop::sample::Index>(), 0..4))
}

/// Resets both sides before each stream.
const FORGET: &[u8] =
    b"md a q\r\nmd b q\r\nmd c q\r\nmd long-key-of-some-length q\r\nmd YWJj q\r\nmd YWJj b q\r\nmd a\x01 q\r\n";

#[test]
fn random_streams_cut_anywhere_are_answered_as_memcached_answers_them() {
    let Some(both) = Both::start("streams") else { return };
    let both = std::cell::RefCell::new(both);
    let mut runner = TestRunner::new(Config { failure_persistence: None, max_shrink_iters: 300, ..Config::default() });
    let result = runner.run(&stream(), |(commands, cuts)| {
        let mut both = both.borrow_mut();
        both.answers(&[FORGET]);
        let mut bytes = commands.concat();
        // A command that waits for data keeps memcached from sending earlier answers.
        bytes.extend_from_slice(&b"\r\n".repeat(20));
        // Versions must be counted alike, too.
        bytes.extend_from_slice(b"set d 0 0 0\r\n\r\ngets d\r\n");
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> =
            cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).filter(|piece| !piece.is_empty()).collect();
        let [theirs, ours] = both.answers(&pieces);
        if theirs != ours {
            // The two sides may differ for ever from here on.
            *both = Both::start("streams").expect("there is a memcached");
        }
        prop_assert!(
            theirs == ours || unpadded(&theirs) == unpadded(&ours),
            "to {}\nmemcached: {}\nours:      {}",
            show(&bytes),
            show(&theirs),
            show(&ours)
        );
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}
