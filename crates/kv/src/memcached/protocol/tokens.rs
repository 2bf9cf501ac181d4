//! Splitting commands into words, and prefetching the keys of those to come.

use arrayvec::ArrayVec;
use sinew_store::cache::{Cache, Key};

use super::base64::KEY_LEN_MAX;
use super::numbers::parse_i32;

/// Most words of a command that are looked at; only lists of keys are longer.
const WORDS_MAX: usize = 23;

/// The words of a command.
pub type Words<'i> = ArrayVec<&'i [u8], WORDS_MAX>;

/// Splits a line at spaces.
#[inline(always)]
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

/// Returns the first [`WORDS_MAX`] words of `line`.
pub fn first_words(line: &[u8]) -> Words<'_> {
    words(line).take(WORDS_MAX).collect()
}

/// Returns the text of a line; `raw` is everything before the line feed. Strips the carriage return, and stops at a
/// zero byte, where C ends strings.
#[inline(always)]
pub fn line_text(raw: &[u8]) -> &[u8] {
    // A lone carriage return is part of the text.
    if raw.len() > 1 { rest_text(raw) } else { raw }
}

/// As [`line_text`], for a part of a line that is not at its beginning.
#[inline(always)]
pub fn rest_text(raw: &[u8]) -> &[u8] {
    let line = raw.strip_suffix(b"\r").unwrap_or(raw);
    memchr::memchr(0, line).map_or(line, |end| &line[..end])
}

/// Commands whose cache misses can overlap.
const AHEAD: usize = 32;
/// Length of a list that surely holds [`AHEAD`] whole keys, in bytes.
const LIST_LEN: usize = AHEAD * (KEY_LEN_MAX + 1);

/// Hashed keys of the commands to come, whose memory has been prefetched. They are a hint that nothing depends on.
#[derive(Default)]
pub struct Lookahead<'i> {
    keys: ArrayVec<Key<'i>, AHEAD>,
    next: usize,
}

impl<'i> Lookahead<'i> {
    /// Returns the key `bytes`, which must be a part of the input.
    #[inline(always)]
    pub fn key(&mut self, cache: &Cache, bytes: &'i [u8]) -> Key<'i> {
        self.skip_to(bytes);
        match self.keys.get(self.next) {
            Some(key) if std::ptr::eq(key.bytes(), bytes) => {
                self.next += 1;
                *key
            }
            _ => cache.hasher().key(bytes),
        }
    }

    /// Drops the keys before `rest`.
    #[inline(always)]
    fn skip_to(&mut self, rest: &'i [u8]) {
        while self.keys.get(self.next).is_some_and(|key| key.bytes().as_ptr() < rest.as_ptr()) {
            self.next += 1;
        }
    }

    /// Prefetches for `rest`, which begins with further keys of a command, or with commands, unless it has already been
    /// done.
    #[inline(always)]
    pub fn prefetch(&mut self, cache: &Cache, rest: &'i [u8], are_keys: bool) {
        self.skip_to(rest);
        if self.next == self.keys.len() {
            self.prefetch_keys(cache, rest, are_keys);
        }
    }

    fn prefetch_keys(&mut self, cache: &Cache, mut rest: &'i [u8], mut are_keys: bool) {
        self.keys.clear();
        self.next = 0;
        loop {
            // A list is processed in pieces, since it can be long.
            let piece = if are_keys { &rest[..rest.len().min(LIST_LEN)] } else { rest };
            let end = match memchr::memchr(b'\n', piece) {
                None if !are_keys => break,
                end => end.unwrap_or(piece.len()),
            };
            let mut words = words(rest_text(&rest[..end]));
            let mut skip = end + 1;
            let command = if are_keys { &b"get"[..] } else { words.next().unwrap_or_default() };
            are_keys = false;
            match command {
                b"get" | b"gets" => self.add_all(cache, words),
                b"mg" | b"md" | b"ma" | b"incr" | b"decr" | b"delete" | b"touch" => {
                    self.add_all(cache, words.take(1));
                }
                b"ms" | b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => {
                    self.add_all(cache, words.by_ref().take(1));
                    let len = if command == b"ms" { words.next() } else { words.nth(2) };
                    let Some(len) = len.and_then(parse_i32).and_then(|len| usize::try_from(len).ok()) else { break };
                    skip += len + 2;
                }
                _ => break,
            }
            if self.keys.is_full() || skip >= rest.len() {
                break;
            }
            rest = &rest[skip..];
        }
        // A single key is needed at once, so prefetching gains nothing.
        if self.keys.len() > 1 {
            self.keys.iter().for_each(|key| cache.prefetch_bucket(key));
            self.keys.iter_mut().for_each(|key| cache.prefetch_item(key));
        }
    }

    /// Adds as many keys as there is room for; the others are prefetched later.
    #[inline(always)]
    fn add_all(&mut self, cache: &Cache, keys: impl Iterator<Item = &'i [u8]>) {
        for key in keys.filter(|key| key.len() <= KEY_LEN_MAX) {
            if self.keys.try_push(cache.hasher().key(key)).is_err() {
                return;
            }
        }
    }
}
