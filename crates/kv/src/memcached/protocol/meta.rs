//! The meta commands: two letters, a key, and flags of one letter each.

use arrayvec::ArrayVec;
use sinew_store::cache::{Item, Put, When};

use super::base64::{self, KEY_LEN_MAX};
use super::commands::{ArithmeticResult, BAD_DATA, BAD_FORMAT, NO_MEMORY, NOT_NUMERIC, TOO_LARGE};
use super::numbers::{parse_i32, parse_u32, parse_u64, push_number};
use super::service::{Stored, Work, mark, set_fetched};
use super::session::{CommandStep, HandOverTarget};
use super::tokens::Words;

/// Most words of a meta command.
const WORDS_MAX: usize = 19;
/// Longest opaque token with its letter, in bytes.
const OPAQUE_LEN_MAX: usize = 32;

const LONG_OPAQUE: &str = "CLIENT_ERROR opaque token too long";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const BAD_FLAG: &str = "CLIENT_ERROR invalid or duplicate flag";

const DONE: CommandStep = CommandStep::Done(0);

/// The flags of a command, decoded.
#[derive(Default)]
struct Flags {
    in_base64: bool,
    vivify_exptime: Option<i32>,
    exptime: Option<i32>,
    recache_exptime: Option<i32>,
    value: bool,
    no_update: bool,
    quiet: bool,
    stale: bool,
    version: Option<u64>,
    client_flags: u32,
    mode: u8,
    initial: u64,
    delta: u64,
}

impl Flags {
    /// Decodes the flags, and the key in `word`.
    fn read(word: &[u8], flags: &[&[u8]]) -> Result<(Self, KeyBytes), &'static str> {
        let mut read = Self { delta: 1, ..Self::default() };
        let mut key: KeyBytes = word.iter().copied().collect();
        // Of several errors, the last one is reported.
        let mut error = BAD_FORMAT;
        let mut failed = false;
        let mut seen = [false; 127];
        for flag in flags {
            let (letter, argument) = (flag[0], &flag[1..]);
            match seen.get_mut(usize::from(letter)) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err("CLIENT_ERROR duplicate flag"),
            }
            let mut wrong = |why| {
                error = why;
                failed = true;
            };
            match letter {
                b'b' => {
                    read.in_base64 = true;
                    match base64::decode(&key) {
                        Some(decoded) => key = decoded.into_iter().collect(),
                        None => wrong("CLIENT_ERROR error decoding key"),
                    }
                }
                b'N' | b'T' | b'R' => match (parse_i32(argument), letter) {
                    (None, _) => wrong(BAD_TOKEN),
                    (exptime, b'N') => read.vivify_exptime = exptime,
                    (exptime, b'T') => read.exptime = exptime,
                    (exptime, _) => read.recache_exptime = exptime,
                },
                b'l' | b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'h' => {}
                b'v' => read.value = true,
                b'u' => read.no_update = true,
                b'q' => read.quiet = true,
                b'I' => read.stale = true,
                b'F' => match parse_u32(argument) {
                    Some(client_flags) => read.client_flags = client_flags,
                    None => failed = true,
                },
                b'C' => match parse_u64(argument) {
                    Some(version) => read.version = Some(version),
                    None => wrong(BAD_TOKEN),
                },
                b'M' => match argument {
                    [mode] => read.mode = *mode,
                    _ => wrong("CLIENT_ERROR incorrect length for M token"),
                },
                b'J' => match parse_u64(argument) {
                    Some(initial) => read.initial = initial,
                    None => wrong("CLIENT_ERROR invalid numeric initial value"),
                },
                b'D' => match parse_u64(argument) {
                    Some(delta) => read.delta = delta,
                    None => wrong("CLIENT_ERROR invalid numeric delta value"),
                },
                _ => return Err("CLIENT_ERROR invalid flag"),
            }
        }
        if failed { Err(error) } else { Ok((read, key)) }
    }
}

/// A key as it is stored, after decoding.
type KeyBytes = ArrayVec<u8, KEY_LEN_MAX>;

fn has_long_opaque(flags: &[&[u8]]) -> bool {
    flags.iter().any(|flag| flag[0] == b'O' && flag.len() > OPAQUE_LEN_MAX)
}

impl<'i> Work<'_, 'i> {
    pub(super) fn meta(&mut self, which: u8, words: &Words<'i>, data: &'i [u8]) -> CommandStep {
        let flags_from = if which == b's' { 3 } else { 2 };
        match which {
            b'n' => self.push_line("MN"),
            b'e' => return self.meta_debug(words),
            b'g' | b's' | b'd' | b'a' if words.len() < 2 => self.push_line("ERROR"),
            b'g' | b's' | b'd' | b'a' if words[1].len() > KEY_LEN_MAX => self.push_line(BAD_FORMAT),
            b's' if words.len() == 2 => self.push_line(BAD_FORMAT),
            b'g' if words.len() > WORDS_MAX => self.push_line("CLIENT_ERROR options flags are too long"),
            b's' | b'd' | b'a' if words.len() > WORDS_MAX => self.push_line("CLIENT_ERROR options flags too long"),
            b's' => return self.meta_set(words[1], words[2], &words[flags_from..], data),
            b'g' | b'd' | b'a' => {
                let flags = &words[flags_from..];
                return match Flags::read(words[1], flags) {
                    Ok((read, key)) => match self.remote_owner(&key) {
                        Some(owner) => CommandStep::HandOver(HandOverTarget::Owner(owner), 0),
                        None => self.meta_on_key(which, words[1], &key, flags, &read),
                    },
                    Err(error) => {
                        self.push_line(if which == b'g' { error } else { BAD_FLAG });
                        DONE
                    }
                };
            }
            _ => self.push_line("ERROR"),
        }
        DONE
    }

    fn meta_on_key(&mut self, which: u8, word: &'i [u8], key: &[u8], flags: &[&[u8]], read: &Flags) -> CommandStep {
        match which {
            b'g' => return self.meta_get(word, key, flags, read),
            b'd' => self.meta_delete(key, flags, read),
            _ => self.meta_arithmetic(key, flags, read),
        }
        DONE
    }

    fn meta_debug(&mut self, words: &Words<'i>) -> CommandStep {
        let Some(word) = words.get(1).filter(|word| word.len() <= KEY_LEN_MAX) else {
            self.push_line(BAD_FORMAT);
            return DONE;
        };
        let mut key = KeyBytes::new();
        if words.get(2).is_some_and(|word| *word == b"b") {
            match base64::decode(word) {
                Some(decoded) => key.extend(decoded),
                None => {
                    self.push_line(BAD_FORMAT);
                    return DONE;
                }
            }
        } else {
            key.extend(word.iter().copied());
        }
        if let Some(owner) = self.remote_owner(&key) {
            return CommandStep::HandOver(HandOverTarget::Owner(owner), 0);
        }
        self.service.count().cmd_meta.add(1);
        let cached = self.cache.hasher().key(&key);
        match self.cache.peek(&cached, self.now_s) {
            Some(item) => {
                self.out.extend_from_slice(b"ME ");
                push_key(self.out, &key, item.marks() & mark::KEY_IN_BASE64 != 0);
                let ends = if item.expires_s() == 0 { -1 } else { i64::from(item.expires_s()) - i64::from(self.now_s) };
                // The time of last use is not known, there are no classes, and no header is counted in the size.
                let fetched = if item.marks() & mark::FETCHED == 0 { "no" } else { "yes" };
                let (version, len) = (item.version(), key.len() + item.value_len());
                self.push_line(&format!(" exp={ends} la=0 cas={version} fetch={fetched} cls=1 size={len}"));
            }
            None => self.push_line("EN"),
        }
        DONE
    }

    fn meta_get(&mut self, word: &'i [u8], key: &[u8], flags: &[&[u8]], read: &Flags) -> CommandStep {
        if has_long_opaque(flags) {
            self.push_line(LONG_OPAQUE);
            return DONE;
        }
        let cached = if read.in_base64 { self.cache.hasher().key(key) } else { self.lookahead.key(self.cache, word) };
        let mut created = false;
        let mut item = self.cache.get(&cached, self.now_s);
        let room = item.map_or(0, |item| if read.value { item.value_len() } else { 0 });
        if room > self.limits().answer_len_max {
            return CommandStep::Room(room);
        }
        if item.is_none() {
            self.count_miss_reason(&cached);
            item = None;
        }
        let count = self.service.count();
        if item.is_none()
            && let Some(exptime) = read.vivify_exptime
        {
            let expires_s = self.service.expires_s(exptime, self.now_s);
            created = self.cache.put(&cached, b"", &Put { expires_s, ..Put::default() }, self.now_s).is_ok();
            // Even if it expires at once.
            item = if created { self.cache.peek(&cached, 0) } else { None };
        }
        let touches = read.exptime.is_some();
        if touches { &count.cmd_touch } else { &count.cmd_get }.add(1);
        let Some(item) = item else {
            if touches { &count.touch_misses } else { &count.get_misses }.add(1);
            if !read.quiet {
                self.out.extend_from_slice(b"EN");
                self.push_opaque_and_key(flags, key, read.in_base64);
                self.out.extend_from_slice(b"\r\n");
            }
            return DONE;
        };
        if touches { &count.touch_hits } else { &count.get_hits }.add(1);
        let marks = item.marks();
        // A new item gets its expiry only when the loop reaches the flag that sets it.
        let mut expires_s = if created { 0 } else { item.expires_s() };
        let mut won = created;
        let out = &mut *self.out;
        if read.value {
            out.extend_from_slice(b"VA ");
            push_number(out, item.value_len());
        } else {
            out.extend_from_slice(b"HD");
        }
        for flag in flags {
            match flag[0] {
                b'T' => expires_s = self.service.expires_s(read.exptime.unwrap_or(0), self.now_s),
                b'N' if created => expires_s = item.expires_s(),
                b'R' => {
                    let recache_s = self.service.expires_s(read.recache_exptime.unwrap_or(0), self.now_s);
                    won |= marks & mark::TOKEN_SENT == 0 && !created && expires_s != 0 && expires_s < recache_s;
                }
                b's' => push_flag(out, b's', item.value_len()),
                b't' => push_time_to_live(out, expires_s, self.now_s),
                b'c' => push_flag(out, b'c', item.version()),
                b'f' => push_flag(out, b'f', item.flags()),
                // The time of last use is not known.
                b'l' => push_flag(out, b'l', 0u8),
                b'h' => push_flag(out, b'h', marks & mark::FETCHED),
                b'O' => push_word(out, flag),
                b'k' => push_key_flag(out, key, marks & mark::KEY_IN_BASE64 != 0),
                _ => {}
            }
        }
        if marks & mark::TOKEN_SENT != 0 {
            out.extend_from_slice(b" Z");
        }
        if marks & mark::STALE != 0 {
            out.extend_from_slice(b" X");
            won |= marks & mark::TOKEN_SENT == 0;
        }
        if won {
            out.extend_from_slice(b" W");
            item.mark(marks | mark::TOKEN_SENT);
        }
        out.extend_from_slice(b"\r\n");
        if read.value {
            item.append_to(out);
            out.extend_from_slice(b"\r\n");
        }
        if !read.no_update {
            set_fetched_too(&item, won);
        }
        if expires_s != item.expires_s() {
            // The item exists; if the table has no memory to touch it, the touch is skipped.
            let _ = self.cache.touch(&cached, None, Some(expires_s), self.now_s);
        }
        DONE
    }

    fn meta_set(&mut self, word: &'i [u8], len: &[u8], flags: &[&[u8]], data: &'i [u8]) -> CommandStep {
        let Some(len @ 0..=META_LEN_MAX) = parse_i32(len) else {
            self.push_line(BAD_FORMAT);
            return DONE;
        };
        let (len, whole) = (len as usize, len as usize + 2);
        let (read, key) = match Flags::read(word, flags) {
            Ok(both) => both,
            Err(error) => {
                self.push_line(error);
                return CommandStep::Swallow(whole);
            }
        };
        if !matches!(read.mode, 0 | b'E' | b'A' | b'P' | b'R' | b'S') {
            self.push_line("CLIENT_ERROR invalid mode for ms M token");
            return CommandStep::Swallow(whole);
        }
        if has_long_opaque(flags) {
            self.push_line(LONG_OPAQUE);
            return CommandStep::Swallow(whole);
        }
        if self.is_too_large(key.len(), len, read.client_flags) {
            self.service.count().store_too_large.add(1);
            self.push_line(TOO_LARGE);
            return self.delete_stale(&key, whole);
        }
        if data.len() < whole {
            return CommandStep::Data(whole);
        }
        if let Some(owner) = self.remote_owner(&key) {
            return CommandStep::HandOver(HandOverTarget::Owner(owner), whole);
        }
        if &data[len..whole] != b"\r\n" {
            self.push_line(BAD_DATA);
            return CommandStep::Done(whole);
        }
        let (stored, marks) = self.meta_store(&key, &data[..len], &read);
        let version = match stored {
            Stored::Yes(version) => version,
            Stored::NoMemory => {
                let cached = self.cache.hasher().key(&key);
                self.cache.delete(&cached, self.now_s);
                self.push_line(NO_MEMORY);
                return CommandStep::Done(whole);
            }
            _ => 0,
        };
        if read.quiet && matches!(stored, Stored::Yes(_)) {
            return CommandStep::Done(whole);
        }
        let status: &[u8] = match stored {
            Stored::Yes(_) | Stored::NoMemory => b"HD",
            Stored::Exists => b"EX",
            Stored::NotFound => b"NF",
            Stored::Unmet => b"NS",
        };
        self.out.extend_from_slice(status);
        for flag in flags {
            match flag[0] {
                b'O' => push_word(self.out, flag),
                b'k' => push_key_flag(self.out, &key, marks & mark::KEY_IN_BASE64 != 0),
                b'c' => push_flag(self.out, b'c', version),
                _ => {}
            }
        }
        self.out.extend_from_slice(b"\r\n");
        CommandStep::Done(whole)
    }

    /// Stores the value of an `ms`; also returns the marks that the key's encoding gives.
    fn meta_store(&mut self, key: &[u8], value: &[u8], read: &Flags) -> (Stored, u8) {
        let cached = self.cache.hasher().key(key);
        let key_marks = if read.in_base64 { mark::KEY_IN_BASE64 } else { 0 };
        let when = match read.mode {
            b'E' => When::Absent,
            b'A' | b'P' => {
                let version = read.version.filter(|version| *version != 0);
                return (self.extend(&cached, value, read.mode == b'A', version), key_marks);
            }
            b'R' if read.version.is_none() => When::Present,
            _ => read.version.map_or(When::Always, When::Version),
        };
        let mut put = Put {
            when,
            flags: read.client_flags,
            expires_s: read.exptime.map_or(0, |exptime| self.service.expires_s(exptime, self.now_s)),
        };
        let mut marks = key_marks;
        if let (When::Version(version @ 1..), true) = (when, read.stale)
            && let Some(item) = self.cache.peek(&cached, self.now_s)
            && version < item.version()
        {
            // Older than the stored value, but better than nothing until a client has recreated it.
            put = Put { when: When::Version(item.version()), expires_s: item.expires_s(), ..put };
            marks |= mark::STALE | item.marks() & mark::TOKEN_SENT;
        }
        let stored = self.put(&cached, value, &put);
        if marks != 0 && matches!(stored, Stored::Yes(_)) {
            self.mark(&cached, marks);
        }
        (stored, key_marks)
    }

    fn meta_delete(&mut self, key: &[u8], flags: &[&[u8]], read: &Flags) {
        if has_long_opaque(flags) {
            return self.push_line(LONG_OPAQUE);
        }
        let cached = self.cache.hasher().key(key);
        let count = self.service.count();
        let status: &[u8] = match self.cache.peek(&cached, self.now_s) {
            None => {
                count.delete_misses.add(1);
                b"NF"
            }
            Some(item) if read.version.is_some_and(|version| version != item.version()) => {
                count.delete_misses.add(1);
                b"EX"
            }
            Some(item) if read.stale => {
                item.mark(item.marks() & !mark::TOKEN_SENT | mark::STALE);
                // The version must change, so that no client that knows the current one can store by it.
                let _ = self.cache.modify(&cached, self.now_s, |_| Ok::<(), std::convert::Infallible>(()));
                if let Some(exptime) = read.exptime {
                    let expires_s = self.service.expires_s(exptime, self.now_s);
                    let _ = self.cache.touch(&cached, None, Some(expires_s), self.now_s);
                }
                b"HD"
            }
            Some(_) => {
                count.delete_hits.add(1);
                self.cache.delete(&cached, self.now_s);
                b"HD"
            }
        };
        if read.quiet && status == b"HD" {
            return;
        }
        self.out.extend_from_slice(status);
        self.push_opaque_and_key(flags, key, read.in_base64);
        self.out.extend_from_slice(b"\r\n");
    }

    fn meta_arithmetic(&mut self, key: &[u8], flags: &[&[u8]], read: &Flags) {
        let up = match read.mode {
            0 | b'I' | b'+' => true,
            b'D' | b'-' => false,
            _ => return self.push_line("CLIENT_ERROR invalid mode for ma M token"),
        };
        let mut counted = self.add(key, read.delta, up, read.version.filter(|version| *version != 0));
        let mut created = false;
        if let (ArithmeticResult::Absent, Some(exptime)) = (&counted, read.vivify_exptime) {
            let cached = self.cache.hasher().key(key);
            let expires_s = self.service.expires_s(exptime, self.now_s);
            let mut digits = itoa::Buffer::new();
            let value = digits.format(read.initial).as_bytes();
            counted = match self.cache.put(&cached, value, &Put { expires_s, ..Put::default() }, self.now_s) {
                Ok(version) => ArithmeticResult::Value(read.initial, version),
                Err(_) => return self.push_line("SERVER_ERROR Out of memory allocating new item"),
            };
            created = true;
        }
        let (number, version) = match counted {
            ArithmeticResult::Value(number, version) => (number, version),
            ArithmeticResult::NotNumeric => return self.push_line(NOT_NUMERIC),
            ArithmeticResult::NoMemory => return self.push_line("SERVER_ERROR out of memory"),
            ArithmeticResult::Absent | ArithmeticResult::VersionMismatch => {
                if has_long_opaque(flags) {
                    return self.push_line(LONG_OPAQUE);
                }
                self.out.extend_from_slice(if matches!(counted, ArithmeticResult::Absent) { b"NF" } else { b"EX" });
                self.push_opaque_and_key(flags, key, read.in_base64);
                return self.out.extend_from_slice(b"\r\n");
            }
        };
        let cached = self.cache.hasher().key(key);
        let before_s = self.cache.peek(&cached, 0).map_or(0, |item| item.expires_s());
        let mut expires_s = if created { 0 } else { before_s };
        let start = self.out.len();
        let out = &mut *self.out;
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(number).as_bytes();
        if read.value {
            out.extend_from_slice(b"VA ");
            push_number(out, digits.len());
        } else {
            out.extend_from_slice(b"HD");
        }
        for flag in flags {
            match flag[0] {
                b'c' => push_flag(out, b'c', version),
                b't' => push_time_to_live(out, expires_s, self.now_s),
                b'T' => expires_s = self.service.expires_s(read.exptime.unwrap_or(0), self.now_s),
                b'N' if created => expires_s = before_s,
                b'O' => push_word(out, flag),
                b'k' => push_key_flag(out, key, read.in_base64),
                _ => {}
            }
        }
        out.extend_from_slice(b"\r\n");
        if read.value {
            out.extend_from_slice(digits);
            out.extend_from_slice(b"\r\n");
        }
        if read.quiet && !created {
            out.truncate(start);
        }
        if has_long_opaque(flags) {
            self.out.truncate(start);
            return self.push_line(LONG_OPAQUE);
        }
        if expires_s != before_s {
            let _ = self.cache.touch(&cached, None, Some(expires_s), self.now_s);
        }
    }

    fn push_opaque_and_key(&mut self, flags: &[&[u8]], key: &[u8], in_base64: bool) {
        for flag in flags {
            match flag[0] {
                b'O' => push_word(self.out, flag),
                b'k' => push_key_flag(self.out, key, in_base64),
                _ => {}
            }
        }
    }
}

/// Longest data that `ms` may announce, in bytes.
const META_LEN_MAX: i32 = i32::MAX - 2;

fn set_fetched_too(item: &Item<'_>, won: bool) {
    if won {
        // The item's marks have changed since they were read.
        item.mark(item.marks() | mark::TOKEN_SENT | mark::FETCHED);
    } else {
        set_fetched(item);
    }
}

fn push_word(out: &mut Vec<u8>, word: &[u8]) {
    out.push(b' ');
    out.extend_from_slice(word);
}

fn push_flag(out: &mut Vec<u8>, letter: u8, number: impl itoa::Integer) {
    out.extend_from_slice(&[b' ', letter]);
    push_number(out, number);
}

fn push_time_to_live(out: &mut Vec<u8>, expires_s: u32, now_s: u32) {
    if expires_s == 0 {
        out.extend_from_slice(b" t-1");
    } else {
        push_flag(out, b't', expires_s.wrapping_sub(now_s));
    }
}

fn push_key(out: &mut Vec<u8>, key: &[u8], in_base64: bool) {
    if in_base64 { base64::push_encoded(out, key) } else { out.extend_from_slice(key) }
}

fn push_key_flag(out: &mut Vec<u8>, key: &[u8], in_base64: bool) {
    out.extend_from_slice(b" k");
    push_key(out, key, in_base64);
    if in_base64 {
        out.extend_from_slice(b" b");
    }
}
