//! What client and server agree on before the first request.

use super::bytes::Reader;
use super::constants::{
    FLAG_CAN_MULTI_CONN, FLAG_FIXED_NEWSTYLE, FLAG_HAS_FLAGS, FLAG_NO_ZEROES, FLAG_SEND_CACHE, FLAG_SEND_DF,
    FLAG_SEND_FAST_ZERO, FLAG_SEND_FLUSH, FLAG_SEND_FUA, FLAG_SEND_TRIM, FLAG_SEND_WRITE_ZEROES, IHAVEOPT,
    INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_EXPORT, INFO_NAME, NBDMAGIC, OPT_ABORT, OPT_EXPORT_NAME, OPT_GO, OPT_INFO,
    OPT_LIST, OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT, OPT_STRUCTURED_REPLY, OPTION_REPLY_MAGIC, REP_ACK,
    REP_ERR_INVALID, REP_ERR_SHUTDOWN, REP_ERR_TOO_BIG, REP_ERR_UNKNOWN, REP_ERR_UNSUP, REP_INFO, REP_META_CONTEXT,
    REP_SERVER,
};
use super::{BLOCK_MAX, BLOCK_MIN, BLOCK_PREFERRED, NAME_LEN_MAX};

/// Bytes of an option's data that are read. Longer ones are read off, and refused.
pub const OPTION_LEN_MAX: usize = 16 << 10;
/// Bytes of an option's data that are read off. A client that announces more is sent away.
const OPTION_LEN_ENDURED: u32 = 1 << 20;
/// Options that a client may say before it comes to the point.
pub const OPTIONS_MAX: u32 = 256;
/// Bytes of an option before its data.
const OPTION_HEADER_LEN: usize = 16;
/// What we know of blocks: whether they are holes.
const ALLOCATION: &str = "base:allocation";
/// The number that replies have for it.
pub(super) const ALLOCATION_ID: u32 = 1;

/// What clients are offered. It has a name, and is also what they get who say none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name, of up to [`NAME_LEN_MAX`] bytes.
    pub name: String,
    /// What it is, for people.
    pub description: String,
    /// Bytes of it.
    pub len: u64,
}

impl Export {
    fn is(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }
}

/// What was agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Replies to reads, and errors, are structured.
    pub is_structured: bool,
    /// The client may ask for the status of blocks.
    pub has_status: bool,
}

impl Session {
    fn flags(self) -> u16 {
        let df = if self.is_structured { FLAG_SEND_DF } else { 0 };
        let writes = FLAG_SEND_FLUSH | FLAG_SEND_FUA | FLAG_SEND_TRIM | FLAG_SEND_WRITE_ZEROES | FLAG_SEND_FAST_ZERO;
        // There is one store, whose flush covers what came over any connection.
        FLAG_HAS_FLAGS | writes | FLAG_CAN_MULTI_CONN | FLAG_SEND_CACHE | df
    }
}

/// Why a client is sent away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unwelcome {
    /// It speaks something else.
    NoNbd,
    /// It sets flags that nobody offered.
    UnknownFlags,
    /// It announces an option of so much data that it is not read off.
    OptionTooLong,
    /// It goes on saying options.
    TooManyOptions,
    /// It wants an export that there is not, and cannot be told otherwise.
    UnknownExport,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing, until there are so many bytes of input.
    Input(usize),
    /// What was said is to be sent before more is read.
    Output,
    /// Requests.
    Serve(Session),
    /// The client has said that it goes: what was said is sent, and that was all.
    Leave,
    /// The connection is to be closed.
    Close(Unwelcome),
}

/// How far a handshake came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Bytes of input that are done with.
    pub consumed: usize,
    /// What comes next.
    pub then: Then,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Flags,
    Option,
    /// So many bytes of an option that is refused are to come.
    Skip(u32, usize),
}

/// The server's side of a handshake.
#[derive(Clone, Debug)]
pub struct Handshake {
    state: State,
    session: Session,
    has_no_zeroes: bool,
    options: u32,
}

impl Handshake {
    /// Begins one: `out` gets what the server says first.
    pub fn begin(out: &mut Vec<u8>) -> Self {
        out.extend(NBDMAGIC.to_be_bytes());
        out.extend(IHAVEOPT.to_be_bytes());
        out.extend((FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        Self { state: State::Flags, session: Session::default(), has_no_zeroes: false, options: 0 }
    }

    /// Takes what came, and adds to `out` what is to be said. What is not consumed is to be given again, with more behind it. `is_ending`: the server is
    /// about to end, and takes no new clients.
    pub fn run(&mut self, export: &Export, is_ending: bool, input: &[u8], out: &mut Vec<u8>) -> Ran {
        let mut consumed = 0;
        loop {
            let rest = &input[consumed..];
            match self.step(export, is_ending, rest, out) {
                (len, None) => consumed += len,
                (len, Some(then)) => return Ran { consumed: consumed + len, then },
            }
        }
    }

    fn step(&mut self, export: &Export, is_ending: bool, input: &[u8], out: &mut Vec<u8>) -> (usize, Option<Then>) {
        let mut reader = Reader(input);
        match self.state {
            State::Flags => {
                let Some(flags) = reader.u32() else { return (0, Some(Then::Input(4))) };
                if flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
                    return (4, Some(Then::Close(Unwelcome::UnknownFlags)));
                }
                self.has_no_zeroes = flags & u32::from(FLAG_NO_ZEROES) != 0;
                self.state = State::Option;
                (4, None)
            }
            State::Skip(option, left) => {
                let len = left.min(input.len());
                if len < left {
                    self.state = State::Skip(option, left - len);
                    return (len, Some(Then::Input(1)));
                }
                self.state = State::Option;
                say_error(out, option, REP_ERR_TOO_BIG, "the option is too long");
                (len, Some(Then::Output))
            }
            State::Option => {
                let header = (reader.u64(), reader.u32(), reader.u32());
                if header.0.is_some_and(|magic| magic != IHAVEOPT) {
                    return (0, Some(Then::Close(Unwelcome::NoNbd)));
                }
                let (_, Some(option), Some(len)) = header else { return (0, Some(Then::Input(OPTION_HEADER_LEN))) };
                if len > OPTION_LEN_ENDURED || option == OPT_EXPORT_NAME && len as usize > NAME_LEN_MAX {
                    return (0, Some(Then::Close(Unwelcome::OptionTooLong)));
                }
                if self.options >= OPTIONS_MAX {
                    return (0, Some(Then::Close(Unwelcome::TooManyOptions)));
                }
                let len = len as usize;
                if len > OPTION_LEN_MAX {
                    self.options += 1;
                    self.state = State::Skip(option, len);
                    return (OPTION_HEADER_LEN, None);
                }
                let Some(data) = reader.bytes(len) else { return (0, Some(Then::Input(OPTION_HEADER_LEN + len))) };
                self.options += 1;
                (OPTION_HEADER_LEN + len, Some(self.answer(export, is_ending, option, data, out)))
            }
        }
    }

    fn answer(&mut self, export: &Export, is_ending: bool, option: u32, data: &[u8], out: &mut Vec<u8>) -> Then {
        match option {
            OPT_EXPORT_NAME if is_ending || !export.is(data) => return Then::Close(Unwelcome::UnknownExport),
            OPT_EXPORT_NAME => {
                out.extend(export.len.to_be_bytes());
                out.extend(self.session.flags().to_be_bytes());
                if !self.has_no_zeroes {
                    out.extend([0; 124]);
                }
                return Then::Serve(self.session);
            }
            OPT_ABORT => {
                say(out, option, REP_ACK, &[]);
                return Then::Leave;
            }
            _ if is_ending => say_error(out, option, REP_ERR_SHUTDOWN, "the server is about to end"),
            OPT_LIST if data.is_empty() => {
                say(out, option, REP_SERVER, &[&(export.name.len() as u32).to_be_bytes(), export.name.as_bytes()]);
                say(out, option, REP_ACK, &[]);
            }
            OPT_STRUCTURED_REPLY if data.is_empty() => {
                self.session.is_structured = true;
                say(out, option, REP_ACK, &[]);
            }
            OPT_LIST | OPT_STRUCTURED_REPLY => say_error(out, option, REP_ERR_INVALID, "the option has no data"),
            OPT_INFO | OPT_GO => {
                if self.tell_export(export, option, data, out) && option == OPT_GO {
                    return Then::Serve(self.session);
                }
            }
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => self.tell_contexts(export, option, data, out),
            _ => say_error(out, option, REP_ERR_UNSUP, "unknown option"),
        }
        Then::Output
    }

    /// Returns whether there is such an export.
    fn tell_export(&self, export: &Export, option: u32, data: &[u8], out: &mut Vec<u8>) -> bool {
        let mut reader = Reader(data);
        let parts = (reader.string(), reader.u16());
        let (Some(name), Some(count)) = parts else {
            say_error(out, option, REP_ERR_INVALID, "the option's data are cut");
            return false;
        };
        if reader.0.len() != 2 * usize::from(count) || name.len() > NAME_LEN_MAX {
            say_error(out, option, REP_ERR_INVALID, "the option's lengths do not fit");
            return false;
        }
        if !export.is(name) {
            say_error(out, option, REP_ERR_UNKNOWN, "there is no such export");
            return false;
        }
        let (mut wants_name, mut wants_description) = (false, false);
        while let Some(info) = reader.u16() {
            wants_name |= info == INFO_NAME;
            wants_description |= info == INFO_DESCRIPTION;
        }
        let mut tell = |info: u16, parts: [&[u8]; 3]| {
            say(out, option, REP_INFO, &[&info.to_be_bytes(), parts[0], parts[1], parts[2]]);
        };
        tell(INFO_EXPORT, [&export.len.to_be_bytes(), &self.session.flags().to_be_bytes(), &[]]);
        let sizes = [BLOCK_MIN, BLOCK_PREFERRED, BLOCK_MAX].map(u32::to_be_bytes);
        tell(INFO_BLOCK_SIZE, [&sizes[0], &sizes[1], &sizes[2]]);
        if wants_name {
            tell(INFO_NAME, [export.name.as_bytes(), &[], &[]]);
        }
        if wants_description && !export.description.is_empty() {
            tell(INFO_DESCRIPTION, [export.description.as_bytes(), &[], &[]]);
        }
        say(out, option, REP_ACK, &[]);
        true
    }

    fn tell_contexts(&mut self, export: &Export, option: u32, data: &[u8], out: &mut Vec<u8>) {
        let sets = option == OPT_SET_META_CONTEXT;
        if sets {
            // Whatever comes of it, what was set before is no more.
            self.session.has_status = false;
        }
        if !self.session.is_structured {
            return say_error(out, option, REP_ERR_INVALID, "structured replies have to be asked for first");
        }
        let found = match contexts(data, sets) {
            Some((name, _)) if !export.is(name) => {
                return say_error(out, option, REP_ERR_UNKNOWN, "there is no such export");
            }
            Some((_, found)) => found,
            None => return say_error(out, option, REP_ERR_INVALID, "the option's lengths do not fit"),
        };
        if found {
            self.session.has_status |= sets;
            let id = if sets { ALLOCATION_ID } else { 0 };
            say(out, option, REP_META_CONTEXT, &[&id.to_be_bytes(), ALLOCATION.as_bytes()]);
        }
        say(out, option, REP_ACK, &[]);
    }
}

/// The export's name, and whether one of the queries is for what we know of blocks.
fn contexts(data: &[u8], sets: bool) -> Option<(&[u8], bool)> {
    let mut reader = Reader(data);
    let name = reader.string().filter(|name| name.len() <= NAME_LEN_MAX)?;
    let count = reader.u32()?;
    let mut found = count == 0 && !sets;
    for _ in 0..count {
        let query = reader.string().filter(|query| query.len() <= NAME_LEN_MAX)?;
        found |= query == ALLOCATION.as_bytes() || !sets && query == b"base:";
    }
    reader.is_empty().then_some((name, found))
}

fn say(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let len: usize = data.iter().map(|part| part.len()).sum();
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((len as u32).to_be_bytes());
    data.iter().for_each(|part| out.extend_from_slice(part));
}

fn say_error(out: &mut Vec<u8>, option: u32, kind: u32, text: &str) {
    say(out, option, kind, &[text.as_bytes()]);
}
