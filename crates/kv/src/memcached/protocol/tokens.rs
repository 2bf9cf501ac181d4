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

/// A key of a command to come.
struct Ahead<'i> {
    key: Key<'i>,
    /// Length of its command, if that is a [lone `get`](lone_get), else 0.
    get_len: usize,
}

/// Hashed keys of the commands to come, whose memory has been prefetched. They are a hint that nothing depends on,
/// except that lone `get`s are not read again.
#[derive(Default)]
pub struct Lookahead<'i> {
    keys: ArrayVec<Ahead<'i>, AHEAD>,
    next: usize,
}

/// Start of a `get`.
const GET: &[u8; 4] = b"get ";

/// Returns the key of the command at the beginning of `rest`, and the command's length, if it is `get`, a space, one
/// key and the line's end, and nothing else: by far the most common command, which is read in one pass, eight bytes at
/// a time.
#[inline(always)]
fn lone_get(rest: &[u8]) -> Option<(&[u8], usize)> {
    let text = rest.strip_prefix(GET)?;
    let len = printable_len(text);
    if len == 0 || len > KEY_LEN_MAX || !text[len..].starts_with(b"\r\n") {
        return None;
    }
    Some((&text[..len], GET.len() + len + 2))
}

/// Number of bytes before the first space or control character, or, near its end, the length of `text`.
#[inline(always)]
fn printable_len(text: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xFF;
    let (words, last) = text.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // The lowest byte below `!` sets its highest bit; borrows can only set bits above that.
        let below = word.wrapping_sub(ONES * u64::from(b'!')) & !word & ONES << 7;
        if below != 0 {
            return at * 8 + below.trailing_zeros() as usize / 8;
        }
    }
    let found = last.iter().position(|byte| *byte < b'!');
    words.len() * 8 + found.unwrap_or(last.len())
}

impl<'i> Lookahead<'i> {
    /// Returns the key `bytes`, which must be a part of the input.
    #[inline(always)]
    pub fn key(&mut self, cache: &Cache, bytes: &'i [u8]) -> Key<'i> {
        self.skip_to(bytes);
        match self.keys.get(self.next) {
            Some(ahead) if std::ptr::eq(ahead.key.bytes(), bytes) => {
                self.next += 1;
                ahead.key
            }
            _ => cache.hasher().key(bytes),
        }
    }

    /// Takes the key of the command at the beginning of `rest`, and the command's length, if it is a lone `get` that
    /// was [read ahead](Self::prefetch).
    #[inline(always)]
    pub fn take_get(&mut self, rest: &'i [u8]) -> Option<(Key<'i>, usize)> {
        let ahead = self.keys.get(self.next)?;
        let is_next = ahead.key.bytes().as_ptr() == rest.as_ptr().wrapping_add(GET.len());
        if !is_next || ahead.get_len == 0 {
            return None;
        }
        self.next += 1;
        Some((ahead.key, ahead.get_len))
    }

    /// Drops the keys before `rest`.
    #[inline(always)]
    fn skip_to(&mut self, rest: &'i [u8]) {
        while self.keys.get(self.next).is_some_and(|ahead| ahead.key.bytes().as_ptr() < rest.as_ptr()) {
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
            if !are_keys && let Some((key, get_len)) = lone_get(rest) {
                self.keys.push(Ahead { key: cache.hasher().key(key), get_len });
                rest = &rest[get_len..];
                if self.keys.is_full() || rest.is_empty() {
                    break;
                }
                continue;
            }
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
            self.keys.iter().for_each(|ahead| cache.prefetch_bucket(&ahead.key));
            self.keys.iter_mut().for_each(|ahead| cache.prefetch_item(&mut ahead.key));
        }
    }

    /// Adds as many keys as there is room for; the others are prefetched later.
    #[inline(always)]
    fn add_all(&mut self, cache: &Cache, keys: impl Iterator<Item = &'i [u8]>) {
        for key in keys.filter(|key| key.len() <= KEY_LEN_MAX) {
            if self.keys.try_push(Ahead { key: cache.hasher().key(key), get_len: 0 }).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_get_is_one_key_between_a_space_and_the_end_of_the_line() {
        let long = [b'k'; KEY_LEN_MAX];
        for key in [&b"k"[..], b"a-key!~", b"a-key-of-16-byte", "kl\u{fc}ssel".as_bytes(), &long] {
            let command = [b"get ", key, b"\r\n"].concat();
            for more in [&b""[..], b"g", b"get another\r\n"] {
                assert_eq!(lone_get(&[&command[..], more].concat()), Some((key, command.len())));
            }
            (0..command.len()).for_each(|len| assert_eq!(lone_get(&command[..len]), None));
        }
        let too_long = [&b"get "[..], &long, b"k\r\n"].concat();
        for other in [
            &b"get  k\r\n"[..],
            b" get k\r\n",
            b"get k \r\n",
            b"get k\n",
            b"get k\r\r\n",
            b"get k\0\r\n",
            b"get k\ty\r\n",
            b"get k l\r\n",
            b"get \r\n",
            b"gets k\r\n",
            b"GET k\r\n",
            &too_long,
        ] {
            assert_eq!(lone_get(other), None, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn the_first_space_or_control_character_is_found_wherever_it_is() {
        for (len, end) in (0..40).flat_map(|len| (0..=b' ').map(move |end| (len, end))) {
            let mut text = vec![0x21; len];
            text.extend([0xFF, 0x80, 0x7F, end, 0, b' ', end]);
            assert_eq!(printable_len(&text), len + 3);
            assert_eq!(printable_len(&text[..len]), len);
        }
    }
}
