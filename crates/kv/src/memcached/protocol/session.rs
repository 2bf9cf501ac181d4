//! Executing one client's input, command by command.

use sinew_store::cache::Cache;

use super::base64::KEY_LEN_MAX;
use super::commands::BAD_FORMAT;
use super::numbers::push_number;
use super::service::{Service, Work};
use super::tokens::{line_text, rest_text, words};

/// Length above which a line without a line feed can only be a list of keys.
const COMMAND_LEN_MAX: usize = 2048;
/// Bytes of an overlong line that are sure to hold a whole key, or else a key that is too long.
const PIECE_LEN_MIN: usize = 4096;
/// First byte of memcached's binary protocol, with which no text command begins.
const BINARY: u8 = 0x80;

/// State of a client's conversation. The caller keeps the input in a buffer and appends to it.
#[derive(Debug, Default)]
pub struct Session {
    /// Bytes of coming input to drop: the data of a command that failed.
    skip_len: usize,
    /// The input is the rest of this list of keys.
    list: Option<KeyList>,
    /// The list of keys goes on after the current piece: its line is too long to be kept whole.
    open_list: Option<RetrievalOptions>,
    /// The rest of the current line is dropped.
    skips_line: bool,
    /// Bytes of input needed before there is anything to do.
    needed_len: usize,
    /// Bytes of the input already searched for a line feed.
    searched: usize,
    /// The client has sent its first byte, which determines the protocol.
    has_begun: bool,
    /// The input is a request handed over by another thread, not by a client.
    is_handed_over: bool,
}

/// A list of keys in progress. Its length is kept, so that the line's end is not searched for again and again.
#[derive(Clone, Copy, Debug)]
struct KeyList {
    keys: RetrievalOptions,
    /// Bytes of keys left.
    len: usize,
    /// Bytes of the line left, including its end.
    line_len: usize,
    /// The list ends with the line; otherwise it is one piece of the line.
    is_last: bool,
}

impl KeyList {
    /// The list without its first `consumed` bytes.
    fn after(self, consumed: usize) -> Self {
        Self { len: self.len - consumed, line_len: self.line_len - consumed, ..self }
    }
}

/// Data that a command wants for each key of a list.
#[derive(Clone, Copy, Debug)]
pub struct RetrievalOptions {
    /// The command also wants versions.
    pub versions: bool,
    /// New expiry of the items, as the client gave it.
    pub touch: Option<i32>,
}

/// Result of running a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the input that were consumed; the rest must be at the front of the next input.
    pub consumed: usize,
    /// The next step for the caller.
    pub next_step: NextStep,
    /// For a [`NextStep::HandOver`]: length of the request, which is the last part of the consumed input. 0 if the
    /// request is in [`Service::request`].
    pub request_len: usize,
}

impl Progress {
    fn new(consumed: usize, next_step: NextStep) -> Self {
        Self { consumed, next_step, request_len: 0 }
    }
}

/// The next step that a session needs from its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Provide more input: at least this many bytes in all.
    Input(usize),
    /// Send the output: there is too much of it to go on, or others should have their turn.
    Output,
    /// Grant room for an answer of this many bytes: see [`Limits::answer_len_max`](super::Limits::answer_len_max).
    Room(usize),
    /// Have the request ([`Progress::request_len`]) answered elsewhere, and append the answer to the output so far.
    HandOver(HandOverTarget),
    /// Close the connection once the output is sent.
    Close,
}

/// The threads that are to execute a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOverTarget {
    /// The owner of this partition.
    Owner(usize),
    /// The owner of this partition, for one key of a list: the answer should have no `END`.
    KeyOwner(usize),
    /// All other threads as well; the answer is in the output already, and theirs are dropped.
    AllOthers,
}

/// Result of executing a line.
pub(super) enum CommandStep {
    /// The command is done, and used this many bytes of data.
    Done(usize),
    /// The command failed, and this many bytes of data must be dropped.
    Swallow(usize),
    /// The command needs this many bytes of data.
    Data(usize),
    /// From this offset on, the line is a list of keys.
    Keys(usize, RetrievalOptions),
    /// The command is handed over, with this many bytes of data.
    HandOver(HandOverTarget, usize),
    /// Another request is handed over in its place, and this many bytes of data must be dropped.
    HandOverReplacement(HandOverTarget, usize),
    /// Nothing was done: the answer needs room for this many bytes.
    Room(usize),
    Close,
}

impl Session {
    /// Executes the commands in `input`, and appends the answers to `out`.
    ///
    /// Commands for keys of other partitions than `service`'s are not executed: see [`NextStep::HandOver`].
    pub fn run(
        &mut self,
        service: &mut Service,
        cache: &mut Cache,
        now_s: u32,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Progress {
        let mut work = Work::new(service, cache, now_s, out);
        work.is_handed_over = self.is_handed_over;
        if !self.has_begun && input.first() == Some(&BINARY) {
            return Progress::new(0, NextStep::Close);
        }
        self.has_begun |= !input.is_empty();
        let mut offset = 0;
        loop {
            let rest = &input[offset..];
            if self.skip_len > 0 {
                let skipped = self.skip_len.min(rest.len());
                self.skip_len -= skipped;
                offset += skipped;
                if self.skip_len > 0 {
                    return Progress::new(offset, NextStep::Input(1));
                }
                continue;
            }
            if work.is_output_full() {
                return Progress::new(offset, NextStep::Output);
            }
            if let Some(list) = self.list.take() {
                let (consumed, then) = self.continue_list(&mut work, list, rest);
                offset += consumed;
                match then {
                    Some(then) => return Progress::new(offset, then),
                    None => continue,
                }
            }
            if self.skips_line {
                let end = memchr::memchr(b'\n', rest);
                self.skips_line = end.is_none();
                offset += end.map_or(rest.len(), |end| end + 1);
                if self.skips_line {
                    return Progress::new(offset, NextStep::Input(1));
                }
                continue;
            }
            if let Some(keys) = self.open_list {
                match self.read_list_piece(&mut work, keys, rest) {
                    Ok(consumed) => offset += consumed,
                    Err(wants) => return Progress::new(offset, NextStep::Input(wants)),
                }
                continue;
            }
            if rest.len() < self.needed_len.max(1) {
                return Progress::new(offset, NextStep::Input(self.needed_len.max(1)));
            }
            if self.searched == 0 {
                work.lookahead.prefetch(work.cache, rest, false);
                let (consumed, room) = work.answer_lone_gets(rest);
                offset += consumed;
                if let Some(len) = room {
                    return Progress::new(offset, NextStep::Room(len));
                }
                if consumed > 0 {
                    continue;
                }
            }
            let Some(end) = memchr::memchr(b'\n', &rest[self.searched..]).map(|end| end + self.searched) else {
                self.searched = rest.len();
                if rest.len() <= COMMAND_LEN_MAX {
                    return Progress::new(offset, NextStep::Input(rest.len() + 1));
                }
                let Some((from, keys)) = list_without_end(rest) else {
                    return Progress::new(offset, NextStep::Close);
                };
                if rest.len() <= work.limits().line_len_max {
                    return Progress::new(offset, NextStep::Input(rest.len() + 1));
                }
                offset += from;
                self.open_list = Some(keys);
                self.searched = 0;
                continue;
            };
            if self.searched > 0 {
                work.lookahead.prefetch(work.cache, rest, false);
            }
            let line = line_text(&rest[..end]);
            let (line_len, data) = (end + 1, &rest[end + 1..]);
            self.needed_len = 0;
            self.searched = 0;
            match work.line(line, data) {
                CommandStep::Done(data_len) => offset += line_len + data_len,
                CommandStep::Swallow(len) => {
                    offset += line_len;
                    self.skip_len = len;
                }
                CommandStep::Data(len) => self.needed_len = line_len + len,
                CommandStep::Keys(from, keys) => {
                    offset += from;
                    self.list =
                        Some(KeyList { keys, len: line.len() - from, line_len: line_len - from, is_last: true });
                }
                CommandStep::HandOver(target, data_len) => {
                    let request_len = line_len + data_len;
                    return Progress { request_len, ..Progress::new(offset + request_len, NextStep::HandOver(target)) };
                }
                CommandStep::HandOverReplacement(target, len) => {
                    self.skip_len = len;
                    return Progress::new(offset + line_len, NextStep::HandOver(target));
                }
                CommandStep::Room(len) => return Progress::new(offset, NextStep::Room(len)),
                CommandStep::Close => return Progress::new(offset + line_len, NextStep::Close),
            }
        }
    }

    /// Length that the input will have once the data of its first command is complete; 0 if it awaits no data.
    pub fn awaited_len(&self) -> usize {
        self.needed_len
    }

    /// Takes the next keys of an overlong line. Returns the bytes consumed, or else the bytes of input that are needed.
    fn read_list_piece(
        &mut self,
        work: &mut Work<'_, '_>,
        keys: RetrievalOptions,
        rest: &[u8],
    ) -> Result<usize, usize> {
        let end = memchr::memchr(b'\n', &rest[self.searched..]).map(|end| end + self.searched);
        let line_len = match end {
            Some(end) => end + 1,
            None if rest.len() < PIECE_LEN_MIN => {
                self.searched = rest.len();
                // The line may end before that.
                return Err(rest.len() + 1);
            }
            // Up to the last whole key.
            None => memchr::memrchr(b' ', rest).map_or(0, |space| space + 1),
        };
        self.searched = 0;
        let keys_text = rest_text(&rest[..end.unwrap_or(line_len)]);
        // A zero byte ends the list, as the end of the line does.
        let is_last = end.is_some() || keys_text.len() < line_len && rest[keys_text.len()] == 0;
        self.open_list = (!is_last).then_some(keys);
        self.skips_line = is_last && end.is_none();
        if line_len == 0 || !are_keys(keys_text) {
            work.push_line(BAD_FORMAT);
            self.open_list = None;
            self.skips_line = end.is_none();
            return Ok(line_len);
        }
        self.list = Some(KeyList { keys, len: keys_text.len(), line_len, is_last });
        Ok(0)
    }

    /// Continues a list of keys. Returns the bytes consumed, and what is needed from the caller, if anything.
    fn continue_list<'i>(
        &mut self,
        work: &mut Work<'_, 'i>,
        list: KeyList,
        rest: &'i [u8],
    ) -> (usize, Option<NextStep>) {
        for key in words(&rest[..list.len]) {
            let at = key.as_ptr() as usize - rest.as_ptr() as usize;
            if work.is_output_full() {
                self.list = Some(list.after(at));
                return (at, Some(NextStep::Output));
            }
            if let Some(owner) = work.remote_owner(key) {
                let end = at + key.len();
                self.list = Some(list.after(end));
                write_key_request(&mut work.service.request, list.keys, key);
                return (end, Some(NextStep::HandOver(HandOverTarget::KeyOwner(owner))));
            }
            work.lookahead.prefetch(work.cache, &rest[at..], true);
            if let Err(len) = work.get(key, list.keys) {
                self.list = Some(list.after(at));
                return (at, Some(NextStep::Room(len)));
            }
        }
        if list.is_last {
            work.out.extend_from_slice(b"END\r\n");
        }
        (list.line_len, None)
    }

    /// Answers one request that another thread has handed over.
    ///
    /// # Errors
    ///
    /// The room that the answer needs, when that is more than
    /// [`Limits::answer_len_max`](super::Limits::answer_len_max); then nothing was done.
    pub fn answer(
        service: &mut Service,
        cache: &mut Cache,
        now_s: u32,
        request: &[u8],
        without_end: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), usize> {
        let progress = Self { is_handed_over: true, ..Self::default() }.run(service, cache, now_s, request, out);
        if let NextStep::Room(len) = progress.next_step {
            return Err(len);
        }
        if without_end && out.ends_with(b"END\r\n") {
            out.truncate(out.len() - b"END\r\n".len());
        }
        Ok(())
    }
}

/// Finds the keys of an unfinished line that is longer than any command: their offset, and what is wanted of them.
/// `None` if the line is not a list of keys.
fn list_without_end(rest: &[u8]) -> Option<(usize, RetrievalOptions)> {
    let spaces = rest.iter().take_while(|byte| **byte == b' ').count();
    let versions = match &rest[spaces..] {
        [b'g', b'e', b't', b' ', ..] => false,
        [b'g', b'e', b't', b's', b' ', ..] => true,
        _ => return None,
    };
    (spaces <= 100).then_some((spaces + 4 + usize::from(versions), RetrievalOptions { versions, touch: None }))
}

/// Whether all keys of a list are short enough.
pub(super) fn are_keys(list: &[u8]) -> bool {
    // In a list no longer than the longest key, every key is short enough.
    list.len() <= KEY_LEN_MAX || words(list).all(|key| key.len() <= KEY_LEN_MAX)
}

/// Writes a request for one key of a list.
fn write_key_request(request: &mut Vec<u8>, keys: RetrievalOptions, key: &[u8]) {
    request.clear();
    request.extend_from_slice(if keys.touch.is_some() { b"gat" } else { b"get" });
    if keys.versions {
        request.push(b's');
    }
    request.push(b' ');
    if let Some(exptime) = keys.touch {
        push_number(request, exptime);
        request.push(b' ');
    }
    request.extend_from_slice(key);
    request.extend_from_slice(b"\r\n");
}
