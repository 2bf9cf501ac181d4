//! The classic commands, which are words.

use sinew_mem::atomic::Ordering;
use sinew_store::cache::{ModifyError, Put, When};

use super::base64::KEY_LEN_MAX;
use super::detail::Usage;
use super::numbers::{parse_i32, parse_u32, parse_u64, push_number};
use super::service::{Stored, Work, set_fetched};
use super::session::{CommandStep, HandOverTarget, RetrievalOptions, are_keys};
use super::tokens::{Words, first_words};

/// Version reported to clients: the protocol is that of this memcached.
pub const VERSION: &str = "1.6.18";

pub(super) const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
pub(super) const BAD_DATA: &str = "CLIENT_ERROR bad data chunk";
pub(super) const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
pub(super) const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object";
pub(super) const NOT_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
const ERROR: &str = "ERROR";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";

const DONE: CommandStep = CommandStep::Done(0);

/// Commands that store the data that follows them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreMode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
}

/// Result of an increment or decrement.
pub(super) enum ArithmeticResult {
    /// The new number, and the item's version.
    Value(u64, u64),
    VersionMismatch,
    Absent,
    NotNumeric,
    NoMemory,
}

impl<'i> Work<'_, 'i> {
    /// Executes a line, which is followed by `data`.
    pub fn line(&mut self, line: &'i [u8], data: &'i [u8]) -> CommandStep {
        if line.starts_with(b"get ") {
            return self.begin_list(line, 4, RetrievalOptions { versions: false, touch: None });
        }
        let words = first_words(line);
        let Some(&command) = words.first().filter(|command| command.len() > 1) else { return self.error() };
        match (command, words.len()) {
            ([b'm', which], _) => self.meta(*which, &words, data),
            (b"get" | b"bget", 2..) => self.begin_list_from_word(line, &words, 1, false, None),
            (b"gets", 2..) => self.begin_list_from_word(line, &words, 1, true, None),
            (b"gat" | b"gats", 2..) => match parse_i32(words[1]) {
                Some(exptime) => self.begin_list_from_word(line, &words, 2, command == b"gats", Some(exptime)),
                None => self.answer(BAD_EXPTIME),
            },
            (b"set", 5 | 6) => self.store(StoreMode::Set, &words, data),
            (b"add", 5 | 6) => self.store(StoreMode::Add, &words, data),
            (b"replace", 5 | 6) => self.store(StoreMode::Replace, &words, data),
            (b"append", 5 | 6) => self.store(StoreMode::Append, &words, data),
            (b"prepend", 5 | 6) => self.store(StoreMode::Prepend, &words, data),
            (b"cas", 6 | 7) => self.store(StoreMode::Cas, &words, data),
            (b"incr", 3 | 4) => self.count_up_or_down(&words, true),
            (b"decr", 3 | 4) => self.count_up_or_down(&words, false),
            (b"delete", 2..=4) => self.delete(&words),
            (b"touch", 3 | 4) => self.touch(&words),
            (b"flush_all", 1..=3) => self.flush_all(&words),
            (b"stats", _) => self.stats(&words),
            (b"version", _) => self.answer(&format!("VERSION {VERSION}")),
            (b"cache_memlimit", 2 | 3) => self.limit_memory(&words),
            (b"verbosity", 2 | 3) => match parse_u32(words[1]) {
                Some(level) => {
                    self.service.shared.verbosity.store(level, Ordering::Relaxed);
                    self.reply(&words, "OK")
                }
                None => self.reply(&words, BAD_FORMAT),
            },
            (b"quit", _) => CommandStep::Close,
            (b"shutdown", _) => self.answer("ERROR: shutdown not enabled"),
            // A web browser, or someone who makes one talk to us.
            _ if words.last().is_some_and(|word| word.starts_with(b"HTTP/")) && is_unknown(command) => {
                CommandStep::Close
            }
            _ => self.error(),
        }
    }

    fn error(&mut self) -> CommandStep {
        self.answer(ERROR)
    }

    fn answer(&mut self, text: &str) -> CommandStep {
        self.push_line(text);
        DONE
    }

    /// Answers `text`, unless the client wants no reply.
    fn reply(&mut self, words: &Words<'_>, text: &str) -> CommandStep {
        if !no_reply(words) {
            self.push_line(text);
        }
        DONE
    }

    /// A list of keys, from offset `from` of the line.
    fn begin_list(&mut self, line: &'i [u8], from: usize, keys: RetrievalOptions) -> CommandStep {
        let list = &line[from..];
        if !are_keys(list) {
            return self.answer(BAD_FORMAT);
        }
        if keys.touch.is_none() && list.iter().all(|byte| *byte == b' ') {
            return self.error();
        }
        CommandStep::Keys(from, keys)
    }

    /// A list of keys, from the word with index `first`.
    fn begin_list_from_word(
        &mut self,
        line: &'i [u8],
        words: &Words<'i>,
        first: usize,
        versions: bool,
        touch: Option<i32>,
    ) -> CommandStep {
        let from = words.get(first).map_or(line.len(), |word| word.as_ptr() as usize - line.as_ptr() as usize);
        self.begin_list(line, from, RetrievalOptions { versions, touch })
    }

    fn store(&mut self, mode: StoreMode, words: &Words<'i>, data: &'i [u8]) -> CommandStep {
        let key = words[1];
        if key.len() > KEY_LEN_MAX {
            return self.reply(words, BAD_FORMAT);
        }
        let version = if mode == StoreMode::Cas { parse_u64(words[5]) } else { Some(0) };
        let numbers = (parse_u32(words[2]), parse_i32(words[3]), parse_i32(words[4]), version);
        let (Some(flags), Some(exptime), Some(len @ 0..=LEN_MAX), Some(version)) = numbers else {
            return self.reply(words, BAD_FORMAT);
        };
        let (len, len_with_end) = (len as usize, len as usize + 2);
        if self.is_too_large(key.len(), len, flags) {
            self.service.count().store_too_large.add(1);
            self.reply(words, TOO_LARGE);
            // The old value is stale, and must not pass for the one that the client wanted to store.
            return if mode == StoreMode::Set {
                self.delete_stale(key, len_with_end)
            } else {
                CommandStep::Swallow(len_with_end)
            };
        }
        if data.len() < len_with_end {
            return CommandStep::Data(len_with_end);
        }
        if let Some(owner) = self.remote_owner(key) {
            return CommandStep::HandOver(HandOverTarget::Owner(owner), len_with_end);
        }
        self.count_use(key, Usage::Set);
        if &data[len..len_with_end] != b"\r\n" {
            self.reply(words, BAD_DATA);
            return CommandStep::Done(len_with_end);
        }
        let key = self.lookahead.key(self.cache, key);
        let value = &data[..len];
        let expires_s = self.service.expires_s(exptime, self.now_s);
        let put = |when| Put { when, flags, expires_s };
        let stored = match mode {
            StoreMode::Set => self.put(&key, value, &put(When::Always)),
            StoreMode::Add => self.put(&key, value, &put(When::Absent)),
            StoreMode::Replace => self.put(&key, value, &put(When::Present)),
            StoreMode::Cas => self.put(&key, value, &put(When::Version(version))),
            StoreMode::Append => self.extend(&key, value, true, None),
            StoreMode::Prepend => self.extend(&key, value, false, None),
        };
        if mode == StoreMode::Set && stored == Stored::NoMemory {
            // As for a value that is too large.
            self.cache.delete(&key, self.now_s);
        }
        self.reply(
            words,
            match stored {
                Stored::Yes(_) => "STORED",
                Stored::Exists => "EXISTS",
                Stored::NotFound => "NOT_FOUND",
                Stored::Unmet => "NOT_STORED",
                Stored::NoMemory => NO_MEMORY,
            },
        );
        CommandStep::Done(len_with_end)
    }

    /// Deletes the item whose new value was refused, and drops that value.
    pub fn delete_stale(&mut self, key: &[u8], data_len: usize) -> CommandStep {
        if let Some(owner) = self.remote_owner(key) {
            let request = &mut self.service.request;
            request.clear();
            request.extend_from_slice(b"delete ");
            request.extend_from_slice(key);
            request.extend_from_slice(b" noreply\r\n");
            return CommandStep::HandOverReplacement(HandOverTarget::Owner(owner), data_len);
        }
        let key = self.cache.hasher().key(key);
        self.cache.delete(&key, self.now_s);
        CommandStep::Swallow(data_len)
    }

    fn count_up_or_down(&mut self, words: &Words<'i>, up: bool) -> CommandStep {
        let key = words[1];
        if key.len() > KEY_LEN_MAX {
            return self.reply(words, BAD_FORMAT);
        }
        let Some(delta) = parse_u64(words[2]) else {
            return self.reply(words, "CLIENT_ERROR invalid numeric delta argument");
        };
        if let Some(owner) = self.remote_owner(key) {
            return CommandStep::HandOver(HandOverTarget::Owner(owner), 0);
        }
        match self.add(key, delta, up, None) {
            ArithmeticResult::Value(number, _) => {
                if !no_reply(words) {
                    push_number(self.out, number);
                    self.out.extend_from_slice(b"\r\n");
                }
                DONE
            }
            ArithmeticResult::Absent | ArithmeticResult::VersionMismatch => self.reply(words, "NOT_FOUND"),
            ArithmeticResult::NotNumeric => self.reply(words, NOT_NUMERIC),
            ArithmeticResult::NoMemory => self.reply(words, "SERVER_ERROR out of memory"),
        }
    }

    /// Adds to the number that a value holds, or subtracts from it.
    pub fn add(&mut self, key: &[u8], delta: u64, up: bool, version: Option<u64>) -> ArithmeticResult {
        let key = self.cache.hasher().key(key);
        let count = self.service.count();
        let (hits, misses) =
            if up { (&count.incr_hits, &count.incr_misses) } else { (&count.decr_hits, &count.decr_misses) };
        let Some(item) = self.cache.peek(&key, self.now_s) else {
            misses.add(1);
            return ArithmeticResult::Absent;
        };
        hits.add(1);
        let value = &mut self.service.scratch;
        value.clear();
        item.append_to(value);
        if value.is_empty() {
            return ArithmeticResult::NotNumeric;
        }
        if version.is_some_and(|version| version != item.version()) {
            return ArithmeticResult::VersionMismatch;
        }
        let Some(number) = parse_u64(value) else { return ArithmeticResult::NotNumeric };
        let number = if up { number.wrapping_add(delta) } else { number.saturating_sub(delta) };
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(number).as_bytes();
        // A shorter number is padded, and leaves the value as long as it was.
        let in_place = digits.len() <= value.len();
        let changed = self.cache.modify(&key, self.now_s, |value| {
            value.fill(b' ');
            value.resize(value.len().max(digits.len()), b' ');
            value[..digits.len()].copy_from_slice(digits);
            Ok::<(), std::convert::Infallible>(())
        });
        match changed {
            Ok(version) => {
                if !in_place {
                    self.mark(&key, 0);
                }
                ArithmeticResult::Value(number, version)
            }
            Err(ModifyError::Put(_)) => ArithmeticResult::NoMemory,
            Err(ModifyError::Refused(never)) => match never {},
        }
    }

    fn delete(&mut self, words: &Words<'i>) -> CommandStep {
        if words.len() > 2 {
            let valid =
                words[2] == b"0" && (words.len() == 3 || no_reply(words)) || words.len() == 3 && no_reply(words);
            if !valid {
                return self.reply(words, "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]");
            }
        }
        let key = words[1];
        if key.len() > KEY_LEN_MAX {
            return self.reply(words, BAD_FORMAT);
        }
        if let Some(owner) = self.remote_owner(key) {
            return CommandStep::HandOver(HandOverTarget::Owner(owner), 0);
        }
        self.count_use(key, Usage::Delete);
        let key = self.lookahead.key(self.cache, key);
        let existed = self.cache.delete(&key, self.now_s);
        let count = self.service.count();
        if existed { &count.delete_hits } else { &count.delete_misses }.add(1);
        self.reply(words, if existed { "DELETED" } else { "NOT_FOUND" })
    }

    fn touch(&mut self, words: &Words<'i>) -> CommandStep {
        let key = words[1];
        if key.len() > KEY_LEN_MAX {
            return self.reply(words, BAD_FORMAT);
        }
        let Some(exptime) = parse_i32(words[2]) else { return self.reply(words, BAD_EXPTIME) };
        if let Some(owner) = self.remote_owner(key) {
            return CommandStep::HandOver(HandOverTarget::Owner(owner), 0);
        }
        let key = self.lookahead.key(self.cache, key);
        let expires_s = self.service.expires_s(exptime, self.now_s);
        if let Some(item) = self.cache.peek(&key, self.now_s) {
            set_fetched(&item);
        }
        let touched = self.cache.touch(&key, None, Some(expires_s), self.now_s).is_ok();
        let count = self.service.count();
        count.cmd_touch.add(1);
        if touched { &count.touch_hits } else { &count.touch_misses }.add(1);
        self.reply(words, if touched { "TOUCHED" } else { "NOT_FOUND" })
    }

    fn flush_all(&mut self, words: &Words<'i>) -> CommandStep {
        self.service.count().cmd_flush.add(u64::from(!self.is_handed_over));
        let mut exptime = 0;
        if words.len() != 1 + usize::from(no_reply(words)) {
            match parse_i32(words[1]) {
                Some(given) => exptime = given,
                None => return self.reply(words, BAD_EXPTIME),
            }
        }
        // A delay of one second ends with the current second.
        let at_s = if exptime > 0 { self.service.expires_s(exptime, self.now_s) - 1 } else { self.now_s };
        self.service.flush(self.cache, at_s, self.now_s);
        self.reply(words, "OK");
        if self.service.partitions.count() > 1 { CommandStep::HandOver(HandOverTarget::AllOthers, 0) } else { DONE }
    }
}

impl Work<'_, '_> {
    /// Limits the memory of all threads' tables together, in megabytes.
    fn limit_memory(&mut self, words: &Words<'_>) -> CommandStep {
        let Some(megabytes) = parse_u32(words[1]) else { return self.error() };
        if megabytes < MEMORY_MB_MIN {
            return self.reply(words, "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m");
        }
        let threads = self.service.partitions.count();
        let bytes = (megabytes as usize) << 20;
        if self.cache.limit_memory(bytes / threads, self.now_s).is_err() {
            return self.reply(words, "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust");
        }
        self.reply(words, "OK");
        if threads > 1 { CommandStep::HandOver(HandOverTarget::AllOthers, 0) } else { DONE }
    }
}

/// Lowest limit for the tables' memory, in megabytes.
const MEMORY_MB_MIN: u32 = 8;

/// Longest data that a command may announce, in bytes.
const LEN_MAX: i32 = i32::MAX - 2;

fn no_reply(words: &Words<'_>) -> bool {
    words.last().is_some_and(|word| *word == b"noreply")
}

/// Whether no command begins like this, whatever follows it.
fn is_unknown(command: &[u8]) -> bool {
    !matches!(command.first(), Some(b'g' | b's' | b'a' | b'c' | b'i' | b'd' | b't'))
        && ![&b"replace"[..], b"prepend", b"bget", b"flush_all", b"verbosity"].contains(&command)
}
