//! Executing one client's input, command by command.

use sinew_store::cache::Cache;

use super::base64::KEY_LEN_MAX;
use super::commands::BAD_FORMAT;
use super::numbers::push_number;
use super::service::{Service, Work};
use super::tokens::{rest_of_said, said, words};

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
    swallow: usize,
    /// The input is the rest of this list of keys.
    list: Option<List>,
    /// The list of keys goes on after the current piece: its line is too long to be kept whole.
    open: Option<Keys>,
    /// The rest of the current line is dropped.
    skips_line: bool,
    /// Bytes of input needed before there is anything to do.
    need: usize,
    /// Bytes of the input already searched for a line feed.
    searched: usize,
    /// The client has sent its first byte, which determines the protocol.
    begun: bool,
    /// The input is a request handed over by another thread, not by a client.
    is_handed_over: bool,
}

/// A list of keys in progress. Its length is kept, so that the line's end is not searched for again and again.
#[derive(Clone, Copy, Debug)]
struct List {
    keys: Keys,
    /// Bytes of keys left.
    len: usize,
    /// Bytes of the line left, including its end.
    line_len: usize,
    /// The list ends with the line; otherwise it is one piece of the line.
    is_last: bool,
}

impl List {
    /// The list without its first `gone` bytes.
    fn after(self, gone: usize) -> Self {
        Self { len: self.len - gone, line_len: self.line_len - gone, ..self }
    }
}

/// What a command wants of each key of a list.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// The command also wants versions.
    pub versions: bool,
    /// New expiry of the items, as the client gave it.
    pub touch: Option<i32>,
}

/// Result of running a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Bytes of the input that were consumed; the rest must be at the front of the next input.
    pub consumed: usize,
    /// The next step for the caller.
    pub then: Then,
    /// For a [`Then::HandOver`]: length of the request, which is the last part of the consumed input. 0 if the request
    /// is in [`Service::request`].
    pub request_len: usize,
}

impl Ran {
    fn new(consumed: usize, then: Then) -> Self {
        Self { consumed, then, request_len: 0 }
    }
}

/// The next step that a session needs from its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Provide more input: at least this many bytes in all.
    Input(usize),
    /// Send the output: there is too much of it to go on, or others should have their turn.
    Output,
    /// Grant room for an answer of this many bytes: see [`Limits::answer_len_max`](super::Limits::answer_len_max).
    Room(usize),
    /// Have the request ([`Ran::request_len`]) answered elsewhere, and append the answer to the output so far.
    HandOver(HandOver),
    /// Close the connection once the output is sent.
    Close,
}

/// The threads that are to execute a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOver {
    /// The owner of this partition.
    To(usize),
    /// The owner of this partition, for one key of a list: the answer should have no `END`.
    KeyTo(usize),
    /// All other threads as well; the answer is in the output already, and theirs are dropped.
    ToOthers,
}

/// Result of executing a line.
pub(super) enum Step {
    /// The command is done, and used this many bytes of data.
    Done(usize),
    /// The command failed, and this many bytes of data must be dropped.
    Swallow(usize),
    /// The command needs this many bytes of data.
    Data(usize),
    /// From this offset on, the line is a list of keys.
    Keys(usize, Keys),
    /// The command is handed over, with this many bytes of data.
    HandOver(HandOver, usize),
    /// Another request is handed over in its place, and this many bytes of data must be dropped.
    Instead(HandOver, usize),
    /// Nothing was done: the answer needs room for this many bytes.
    Room(usize),
    Close,
}

impl Session {
    /// Executes the commands in `input`, and appends the answers to `out`.
    ///
    /// Commands for keys of other partitions than `service`'s are not executed: see [`Then::HandOver`].
    pub fn run(
        &mut self,
        service: &mut Service,
        cache: &mut Cache,
        now_s: u32,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Ran {
        let mut work = Work::new(service, cache, now_s, out);
        work.is_handed_over = self.is_handed_over;
        if !self.begun && input.first() == Some(&BINARY) {
            return Ran::new(0, Then::Close);
        }
        self.begun |= !input.is_empty();
        let mut at = 0;
        loop {
            let rest = &input[at..];
            if self.swallow > 0 {
                let gone = self.swallow.min(rest.len());
                self.swallow -= gone;
                at += gone;
                if self.swallow > 0 {
                    return Ran::new(at, Then::Input(1));
                }
                continue;
            }
            if work.is_full() {
                return Ran::new(at, Then::Output);
            }
            if let Some(list) = self.list.take() {
                let (consumed, then) = self.go_on(&mut work, list, rest);
                at += consumed;
                match then {
                    Some(then) => return Ran::new(at, then),
                    None => continue,
                }
            }
            if self.skips_line {
                let end = memchr::memchr(b'\n', rest);
                self.skips_line = end.is_none();
                at += end.map_or(rest.len(), |end| end + 1);
                if self.skips_line {
                    return Ran::new(at, Then::Input(1));
                }
                continue;
            }
            if let Some(keys) = self.open {
                match self.piece(&mut work, keys, rest) {
                    Ok(consumed) => at += consumed,
                    Err(wants) => return Ran::new(at, Then::Input(wants)),
                }
                continue;
            }
            if rest.len() < self.need.max(1) {
                return Ran::new(at, Then::Input(self.need.max(1)));
            }
            let Some(end) = memchr::memchr(b'\n', &rest[self.searched..]).map(|end| end + self.searched) else {
                self.searched = rest.len();
                if rest.len() <= COMMAND_LEN_MAX {
                    return Ran::new(at, Then::Input(rest.len() + 1));
                }
                let Some((from, keys)) = list_without_end(rest) else {
                    return Ran::new(at, Then::Close);
                };
                if rest.len() <= work.limits().line_len_max {
                    return Ran::new(at, Then::Input(rest.len() + 1));
                }
                at += from;
                self.open = Some(keys);
                self.searched = 0;
                continue;
            };
            work.ahead.look(work.cache, rest, false);
            let line = said(&rest[..end]);
            let (line_len, data) = (end + 1, &rest[end + 1..]);
            self.need = 0;
            self.searched = 0;
            match work.line(line, data) {
                Step::Done(data_len) => at += line_len + data_len,
                Step::Swallow(len) => {
                    at += line_len;
                    self.swallow = len;
                }
                Step::Data(len) => self.need = line_len + len,
                Step::Keys(from, keys) => {
                    at += from;
                    self.list = Some(List { keys, len: line.len() - from, line_len: line_len - from, is_last: true });
                }
                Step::HandOver(whom, data_len) => {
                    let request_len = line_len + data_len;
                    return Ran { request_len, ..Ran::new(at + request_len, Then::HandOver(whom)) };
                }
                Step::Instead(whom, len) => {
                    self.swallow = len;
                    return Ran::new(at + line_len, Then::HandOver(whom));
                }
                Step::Room(len) => return Ran::new(at, Then::Room(len)),
                Step::Close => return Ran::new(at + line_len, Then::Close),
            }
        }
    }

    /// Length that the input will have once the data of its first command is complete; 0 if it awaits no data.
    pub fn awaited_len(&self) -> usize {
        self.need
    }

    /// Takes the next keys of an overlong line. Returns the bytes consumed, or else the bytes of input that are needed.
    fn piece(&mut self, work: &mut Work<'_, '_>, keys: Keys, rest: &[u8]) -> Result<usize, usize> {
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
        let said = rest_of_said(&rest[..end.unwrap_or(line_len)]);
        // A zero byte ends the list, as the end of the line does.
        let is_last = end.is_some() || said.len() < line_len && rest[said.len()] == 0;
        self.open = (!is_last).then_some(keys);
        self.skips_line = is_last && end.is_none();
        if line_len == 0 || !are_keys(said) {
            work.say(BAD_FORMAT);
            self.open = None;
            self.skips_line = end.is_none();
            return Ok(line_len);
        }
        self.list = Some(List { keys, len: said.len(), line_len, is_last });
        Ok(0)
    }

    /// Continues a list of keys. Returns the bytes consumed, and what is needed from the caller, if anything.
    fn go_on<'i>(&mut self, work: &mut Work<'_, 'i>, list: List, rest: &'i [u8]) -> (usize, Option<Then>) {
        for key in words(&rest[..list.len]) {
            let at = key.as_ptr() as usize - rest.as_ptr() as usize;
            if work.is_full() {
                self.list = Some(list.after(at));
                return (at, Some(Then::Output));
            }
            if let Some(owner) = work.elsewhere(key) {
                let end = at + key.len();
                self.list = Some(list.after(end));
                request_one(&mut work.service.request, list.keys, key);
                return (end, Some(Then::HandOver(HandOver::KeyTo(owner))));
            }
            work.ahead.look(work.cache, &rest[at..], true);
            if let Err(len) = work.get(key, list.keys) {
                self.list = Some(list.after(at));
                return (at, Some(Then::Room(len)));
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
        let ran = Self { is_handed_over: true, ..Self::default() }.run(service, cache, now_s, request, out);
        if let Then::Room(len) = ran.then {
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
fn list_without_end(rest: &[u8]) -> Option<(usize, Keys)> {
    let spaces = rest.iter().take_while(|byte| **byte == b' ').count();
    let versions = match &rest[spaces..] {
        [b'g', b'e', b't', b' ', ..] => false,
        [b'g', b'e', b't', b's', b' ', ..] => true,
        _ => return None,
    };
    (spaces <= 100).then_some((spaces + 4 + usize::from(versions), Keys { versions, touch: None }))
}

/// Whether all keys of a list are short enough.
pub(super) fn are_keys(list: &[u8]) -> bool {
    // In a list no longer than the longest key, every key is short enough.
    list.len() <= KEY_LEN_MAX || words(list).all(|key| key.len() <= KEY_LEN_MAX)
}

/// Writes a request for one key of a list.
fn request_one(request: &mut Vec<u8>, keys: Keys, key: &[u8]) {
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
