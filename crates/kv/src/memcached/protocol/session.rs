//! What one client has said, carried out command by command.

use sinew_store::cache::Cache;

use super::base64::KEY_LEN_MAX;
use super::commands::BAD_FORMAT;
use super::numbers::push_number;
use super::service::{Service, Work};
use super::tokens::{rest_of_said, said, words};

/// From this length on, what goes on without a line feed can only be a list of keys.
const COMMAND_LEN_MAX: usize = 2048;
/// Bytes of a line that is too long to be kept in which there is a whole key, or else a key that is too long.
const PIECE_LEN_MIN: usize = 4096;
/// What memcached's binary protocol begins with, and no command does.
const BINARY: u8 = 0x80;

/// Where a client's conversation stands. Its input is a buffer that the caller keeps and appends to.
#[derive(Debug, Default)]
pub struct Session {
    /// Bytes to come that nobody wants: the data of a command that failed.
    swallow: usize,
    /// The input is the rest of a list of keys.
    list: Option<List>,
    /// The list of keys goes on behind that: its line is too long to be kept until it ends.
    open: Option<Keys>,
    /// The rest of a line is to come that nobody wants.
    skips_line: bool,
    /// Bytes that the input must have before there is anything to do.
    need: usize,
    /// Bytes of the input in which there is no line feed.
    searched: usize,
    /// The client has said something, and thereby which protocol it speaks.
    begun: bool,
    /// It is no client, but another thread that hands a request over.
    is_handed_over: bool,
}

/// A list of keys that is being gone through. Its line is not searched for its end again and again.
#[derive(Clone, Copy, Debug)]
struct List {
    keys: Keys,
    /// Bytes of keys to come.
    len: usize,
    /// Bytes of the line, with its end.
    line_len: usize,
    /// It is the end of the line.
    is_last: bool,
}

impl List {
    /// What is left after so many bytes.
    fn after(self, gone: usize) -> Self {
        Self { len: self.len - gone, line_len: self.line_len - gone, ..self }
    }
}

/// What is wanted of each key of a list.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// Versions, too.
    pub versions: bool,
    /// When the items are to end, as the client gave it.
    pub touch: Option<i32>,
}

/// How far a session came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Bytes of the input that are done with: what follows them must stand in the next input again.
    pub consumed: usize,
    /// What to do next.
    pub then: Then,
    /// Of a [`Then::HandOver`]: bytes of the input, the last ones of those that are done with, that are the request. 0 where
    /// [`Service::request`] is.
    pub request_len: usize,
}

impl Ran {
    fn new(consumed: usize, then: Then) -> Self {
        Self { consumed, then, request_len: 0 }
    }
}

/// What a session needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// More input: at least so many bytes in all.
    Input(usize),
    /// That its output is sent: there is too much of it to go on, or others are to have their turn.
    Output,
    /// Room for an answer of so many bytes more: see [`Limits::answer_len_max`](super::Limits::answer_len_max).
    Room(usize),
    /// That a request ([`Ran::request_len`]) is answered elsewhere, and the answer put behind the output so far.
    HandOver(HandOver),
    /// That the connection is closed, once the output is sent.
    Close,
}

/// Who is to answer a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOver {
    /// The owner of this partition.
    To(usize),
    /// The owner of this partition, for a key of a list: the answer is to have no `END`.
    KeyTo(usize),
    /// Everybody else as well; the answer itself is in the output already, and theirs are for nobody.
    ToOthers,
}

/// What came of a line.
pub(super) enum Step {
    /// It is done, with so many bytes of data behind it.
    Done(usize),
    /// It failed, and so many bytes of data behind it are to be dropped.
    Swallow(usize),
    /// It needs so many bytes of data behind it.
    Data(usize),
    /// From here on it is a list of keys.
    Keys(usize, Keys),
    /// It goes elsewhere, with so many bytes of data.
    HandOver(HandOver, usize),
    /// Another request goes elsewhere in its place, and so many bytes of data are to be dropped.
    Instead(HandOver, usize),
    /// Nothing is done until there is room for an answer of so many bytes.
    Room(usize),
    Close,
}

impl Session {
    /// Carries out what `input` holds, and appends the answers to `out`.
    ///
    /// Commands for keys of other partitions than `service`'s are not carried out: [`Then::HandOver`].
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

    /// Bytes that the input will have once the data of the command that it begins with is there: 0 while there is none.
    pub fn awaited_len(&self) -> usize {
        self.need
    }

    /// Takes the next keys of a line that is too long to be kept. Returns how much of the input is done with, or else how much of it is
    /// needed.
    fn piece(&mut self, work: &mut Work<'_, '_>, keys: Keys, rest: &[u8]) -> Result<usize, usize> {
        let end = memchr::memchr(b'\n', &rest[self.searched..]).map(|end| end + self.searched);
        let line_len = match end {
            Some(end) => end + 1,
            None if rest.len() < PIECE_LEN_MIN => {
                self.searched = rest.len();
                // Its end may come before there is so much.
                return Err(rest.len() + 1);
            }
            // Up to the last key that is whole.
            None => memchr::memrchr(b' ', rest).map_or(0, |space| space + 1),
        };
        self.searched = 0;
        let said = rest_of_said(&rest[..end.unwrap_or(line_len)]);
        // As a zero byte does.
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

    /// Goes through a list of keys. Returns how much of it is done with, and what is needed, if anything.
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

    /// Answers one request that another thread was asked and that is this one's to answer.
    ///
    /// # Errors
    ///
    /// The room that the answer needs, when that is more than [`Limits::answer_len_max`](super::Limits::answer_len_max). Nothing was
    /// done then.
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

/// Where the keys begin of a line that has not ended and is longer than any command, and what is wanted of them; none when it is no
/// list of keys.
fn list_without_end(rest: &[u8]) -> Option<(usize, Keys)> {
    let spaces = rest.iter().take_while(|byte| **byte == b' ').count();
    let versions = match &rest[spaces..] {
        [b'g', b'e', b't', b' ', ..] => false,
        [b'g', b'e', b't', b's', b' ', ..] => true,
        _ => return None,
    };
    (spaces <= 100).then_some((spaces + 4 + usize::from(versions), Keys { versions, touch: None }))
}

/// Whether all of a list of keys are short enough.
pub(super) fn are_keys(list: &[u8]) -> bool {
    // Of a list that is no longer than a key may be, no key is.
    list.len() <= KEY_LEN_MAX || words(list).all(|key| key.len() <= KEY_LEN_MAX)
}

/// What asks for one key of a list.
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
