//! The handshake: what client and server agree on before the first request.

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

/// Longest data of an option that is read, in bytes. Longer data is skipped, and the option refused.
pub const OPTION_LEN_MAX: usize = 16 << 10;
/// Longest data of an option that is skipped, in bytes. A client that announces more is turned away.
const OPTION_SKIP_LEN_MAX: u32 = 1 << 20;
/// Options that a client may send before it chooses an export.
pub const OPTIONS_MAX: u32 = 256;
/// Bytes of an option before its data.
const OPTION_HEADER_LEN: usize = 16;
/// The metadata context that we offer: it tells which blocks are holes.
const ALLOCATION: &str = "base:allocation";
/// Id of that context in replies.
pub(super) const ALLOCATION_ID: u32 = 1;

/// The export that clients are offered. A client that names no export gets it, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Name of the export, at most [`NAME_LEN_MAX`] bytes long.
    pub name: String,
    /// Description of the export, shown to people.
    pub description: String,
    /// Bytes of the export.
    pub len: u64,
}

impl Export {
    fn has_name(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }
}

/// Result of the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Whether replies to reads, and errors, are structured.
    pub is_structured: bool,
    /// Whether the client may ask for the status of blocks.
    pub has_status: bool,
}

impl Session {
    fn flags(self) -> u16 {
        let df = if self.is_structured { FLAG_SEND_DF } else { 0 };
        let writes = FLAG_SEND_FLUSH | FLAG_SEND_FUA | FLAG_SEND_TRIM | FLAG_SEND_WRITE_ZEROES | FLAG_SEND_FAST_ZERO;
        // There is one store, whose flush covers the writes of all connections.
        FLAG_HAS_FLAGS | writes | FLAG_CAN_MULTI_CONN | FLAG_SEND_CACHE | df
    }
}

/// Reason why a client is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandshakeError {
    /// It speaks another protocol.
    NoNbd,
    /// It sets flags that were not offered.
    UnknownFlags,
    /// It announces an option with more data than is skipped.
    OptionTooLong,
    /// It sends more options than allowed.
    TooManyOptions,
    /// It wants an unknown export, with an option that allows no error reply.
    UnknownExport,
}

/// Next step of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Wait until there are this many bytes of input.
    Input(usize),
    /// Send the output before more input is handled.
    Output,
    /// Serve requests.
    Serve(Session),
    /// The client disconnects: send the output, and end.
    Leave,
    /// Close the connection.
    Close(HandshakeError),
}

/// Progress of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of input that were handled.
    pub consumed: usize,
    /// The next step.
    pub next: NextStep,
}

#[derive(Clone, Copy, Debug)]
enum HandshakeState {
    Flags,
    Option,
    /// An option is refused, and this many bytes of its data are still to be skipped.
    Skip(u32, usize),
}

/// The server's side of a handshake.
#[derive(Clone, Debug)]
pub struct Handshake {
    state: HandshakeState,
    session: Session,
    has_no_zeroes: bool,
    options: u32,
}

impl Handshake {
    /// Begins a handshake. The server's greeting is appended to `out`.
    pub fn begin(out: &mut Vec<u8>) -> Self {
        out.extend(NBDMAGIC.to_be_bytes());
        out.extend(IHAVEOPT.to_be_bytes());
        out.extend((FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        Self { state: HandshakeState::Flags, session: Session::default(), has_no_zeroes: false, options: 0 }
    }

    /// Handles input, and appends replies to `out`. Input that was not consumed must be passed again, with more after
    /// it. While `is_ending`, the server accepts no new clients.
    pub fn run(&mut self, export: &Export, is_ending: bool, input: &[u8], out: &mut Vec<u8>) -> Progress {
        let mut consumed = 0;
        loop {
            let rest = &input[consumed..];
            match self.step(export, is_ending, rest, out) {
                (len, None) => consumed += len,
                (len, Some(next)) => return Progress { consumed: consumed + len, next },
            }
        }
    }

    fn step(&mut self, export: &Export, is_ending: bool, input: &[u8], out: &mut Vec<u8>) -> (usize, Option<NextStep>) {
        let mut reader = Reader(input);
        match self.state {
            HandshakeState::Flags => {
                let Some(flags) = reader.u32() else { return (0, Some(NextStep::Input(4))) };
                if flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
                    return (4, Some(NextStep::Close(HandshakeError::UnknownFlags)));
                }
                self.has_no_zeroes = flags & u32::from(FLAG_NO_ZEROES) != 0;
                self.state = HandshakeState::Option;
                (4, None)
            }
            HandshakeState::Skip(option, left) => {
                let len = left.min(input.len());
                if len < left {
                    self.state = HandshakeState::Skip(option, left - len);
                    return (len, Some(NextStep::Input(1)));
                }
                self.state = HandshakeState::Option;
                append_error(out, option, REP_ERR_TOO_BIG, "the option is too long");
                (len, Some(NextStep::Output))
            }
            HandshakeState::Option => {
                let header = (reader.u64(), reader.u32(), reader.u32());
                if header.0.is_some_and(|magic| magic != IHAVEOPT) {
                    return (0, Some(NextStep::Close(HandshakeError::NoNbd)));
                }
                let (_, Some(option), Some(len)) = header else { return (0, Some(NextStep::Input(OPTION_HEADER_LEN))) };
                if len > OPTION_SKIP_LEN_MAX || option == OPT_EXPORT_NAME && len as usize > NAME_LEN_MAX {
                    return (0, Some(NextStep::Close(HandshakeError::OptionTooLong)));
                }
                if self.options >= OPTIONS_MAX {
                    return (0, Some(NextStep::Close(HandshakeError::TooManyOptions)));
                }
                let len = len as usize;
                if len > OPTION_LEN_MAX {
                    self.options += 1;
                    self.state = HandshakeState::Skip(option, len);
                    return (OPTION_HEADER_LEN, None);
                }
                let Some(data) = reader.bytes(len) else { return (0, Some(NextStep::Input(OPTION_HEADER_LEN + len))) };
                self.options += 1;
                (OPTION_HEADER_LEN + len, Some(self.answer(export, is_ending, option, data, out)))
            }
        }
    }

    fn answer(&mut self, export: &Export, is_ending: bool, option: u32, data: &[u8], out: &mut Vec<u8>) -> NextStep {
        match option {
            OPT_EXPORT_NAME if is_ending || !export.has_name(data) => {
                return NextStep::Close(HandshakeError::UnknownExport);
            }
            OPT_EXPORT_NAME => {
                out.extend(export.len.to_be_bytes());
                out.extend(self.session.flags().to_be_bytes());
                if !self.has_no_zeroes {
                    out.extend([0; 124]);
                }
                return NextStep::Serve(self.session);
            }
            OPT_ABORT => {
                append_reply(out, option, REP_ACK, &[]);
                return NextStep::Leave;
            }
            _ if is_ending => append_error(out, option, REP_ERR_SHUTDOWN, "the server is about to end"),
            OPT_LIST if data.is_empty() => {
                append_reply(
                    out,
                    option,
                    REP_SERVER,
                    &[&(export.name.len() as u32).to_be_bytes(), export.name.as_bytes()],
                );
                append_reply(out, option, REP_ACK, &[]);
            }
            OPT_STRUCTURED_REPLY if data.is_empty() => {
                self.session.is_structured = true;
                append_reply(out, option, REP_ACK, &[]);
            }
            OPT_LIST | OPT_STRUCTURED_REPLY => append_error(out, option, REP_ERR_INVALID, "the option has no data"),
            OPT_INFO | OPT_GO => {
                if self.answer_export(export, option, data, out) && option == OPT_GO {
                    return NextStep::Serve(self.session);
                }
            }
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => self.answer_contexts(export, option, data, out),
            _ => append_error(out, option, REP_ERR_UNSUP, "unknown option"),
        }
        NextStep::Output
    }

    /// Describes the export to the client. Returns whether there is such an export.
    fn answer_export(&self, export: &Export, option: u32, data: &[u8], out: &mut Vec<u8>) -> bool {
        let mut reader = Reader(data);
        let parts = (reader.string(), reader.u16());
        let (Some(name), Some(count)) = parts else {
            append_error(out, option, REP_ERR_INVALID, "the option's data are incomplete");
            return false;
        };
        if reader.0.len() != 2 * usize::from(count) || name.len() > NAME_LEN_MAX {
            append_error(out, option, REP_ERR_INVALID, "the option's lengths do not fit");
            return false;
        }
        if !export.has_name(name) {
            append_error(out, option, REP_ERR_UNKNOWN, "there is no such export");
            return false;
        }
        let (mut wants_name, mut wants_description) = (false, false);
        while let Some(info) = reader.u16() {
            wants_name |= info == INFO_NAME;
            wants_description |= info == INFO_DESCRIPTION;
        }
        let mut append_info = |info: u16, parts: [&[u8]; 3]| {
            append_reply(out, option, REP_INFO, &[&info.to_be_bytes(), parts[0], parts[1], parts[2]]);
        };
        append_info(INFO_EXPORT, [&export.len.to_be_bytes(), &self.session.flags().to_be_bytes(), &[]]);
        let sizes = [BLOCK_MIN, BLOCK_PREFERRED, BLOCK_MAX].map(u32::to_be_bytes);
        append_info(INFO_BLOCK_SIZE, [&sizes[0], &sizes[1], &sizes[2]]);
        if wants_name {
            append_info(INFO_NAME, [export.name.as_bytes(), &[], &[]]);
        }
        if wants_description && !export.description.is_empty() {
            append_info(INFO_DESCRIPTION, [export.description.as_bytes(), &[], &[]]);
        }
        append_reply(out, option, REP_ACK, &[]);
        true
    }

    fn answer_contexts(&mut self, export: &Export, option: u32, data: &[u8], out: &mut Vec<u8>) {
        let sets = option == OPT_SET_META_CONTEXT;
        if sets {
            // Whatever comes of it, the earlier setting is gone.
            self.session.has_status = false;
        }
        if !self.session.is_structured {
            return append_error(out, option, REP_ERR_INVALID, "structured replies must be negotiated first");
        }
        let found = match contexts(data, sets) {
            Some((name, _)) if !export.has_name(name) => {
                return append_error(out, option, REP_ERR_UNKNOWN, "there is no such export");
            }
            Some((_, found)) => found,
            None => return append_error(out, option, REP_ERR_INVALID, "the option's lengths do not fit"),
        };
        if found {
            self.session.has_status |= sets;
            let id = if sets { ALLOCATION_ID } else { 0 };
            append_reply(out, option, REP_META_CONTEXT, &[&id.to_be_bytes(), ALLOCATION.as_bytes()]);
        }
        append_reply(out, option, REP_ACK, &[]);
    }
}

/// Parses the queries for contexts. Returns the export's name, and whether one of the queries matches the context that
/// we offer.
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

fn append_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let len: usize = data.iter().map(|part| part.len()).sum();
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((len as u32).to_be_bytes());
    data.iter().for_each(|part| out.extend_from_slice(part));
}

fn append_error(out: &mut Vec<u8>, option: u32, kind: u32, text: &str) {
    append_reply(out, option, kind, &[text.as_bytes()]);
}
