//! gRPC calls over one HTTP/2 connection (RFC 9113), as far as a client of one known server needs them: the answers'
//! headers are not decoded, since a call with a message has succeeded.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

/// Longest silence of a server.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Bytes read at once.
const READ_LEN: usize = 16 << 10;

/// Bytes before a frame's payload: its length in 3, type, flags, and stream in 4.
const FRAME_HEADER: usize = 9;
/// Longest payload of a frame, unless one side permits more.
const FRAME_MAX: usize = 16_384;
/// Bytes before a message: whether it is compressed, and its length in 4.
const MESSAGE_HEADER: usize = 5;
/// Bytes that one side may send on a connection, or on a stream, before the other permits more.
const WINDOW: usize = 65_535;
/// Bytes that this side permits on a connection at first, beside [`WINDOW`], and again whenever as many have come.
const MORE: u32 = 1 << 20;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

const SETTING_HEADER_TABLE_SIZE: u16 = 1;
const SETTING_INITIAL_WINDOW_SIZE: u16 = 4;
/// Bytes of the table of headers, unless the server has less.
const HEADER_TABLE_SIZE: u32 = 4096;

/// Headers by their numbers in the static table of HPACK (RFC 7541, appendix A).
const METHOD_POST: u8 = 3;
const SCHEME_HTTP: u8 = 6;
const AUTHORITY: u8 = 1;
const PATH: u8 = 4;
const CONTENT_TYPE: u8 = 31;
const STATIC_LEN: usize = 61;

/// The calls' headers. Each is spelt out once, and from then on is named by its number in the table of both sides.
#[derive(Debug, Default)]
struct Headers {
    /// Names in the static table, or 0 for `te`, and values; the last one added has the lowest number.
    table: Vec<(u8, String)>,
}

impl Headers {
    /// Appends the headers of a call.
    fn encode(&mut self, authority: &str, path: &str, block: &mut Vec<u8>) {
        // Those whose names begin with a colon come first.
        block.extend([0x80 | METHOD_POST, 0x80 | SCHEME_HTTP]);
        for (name, value) in [(AUTHORITY, authority), (PATH, path), (CONTENT_TYPE, "application/grpc"), (0, "trailers")]
        {
            let known = self.table.iter().position(|(other, known)| (*other, known.as_str()) == (name, value));
            if let Some(at) = known {
                block.push(0x80 | (STATIC_LEN + self.table.len() - at) as u8);
                continue;
            }
            block.push(0x40 | name);
            for text in ["te", value].into_iter().skip(usize::from(name != 0)) {
                block.push(text.len() as u8);
                block.extend_from_slice(text.as_bytes());
            }
            self.table.push((name, value.to_owned()));
        }
    }
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    socket: TcpStream,
    authority: String,
    headers: Headers,
    /// What has been read and not yet taken.
    input: Vec<u8>,
    /// What has to be written.
    output: Vec<u8>,
    next_stream: u32,
    /// Bytes that the server takes on the connection, and on each new stream.
    room: usize,
    stream_room: usize,
    /// Bytes that have come since the server was last permitted more.
    come: u32,
    /// Answers that have come in part, by stream.
    parts: BTreeMap<u32, Vec<u8>>,
    /// Answers, each with the stream of its call.
    answers: VecDeque<(u32, Vec<u8>)>,
}

impl Connection {
    /// Connects to the server at HOST:PORT.
    pub fn open(address: &str) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(SILENCE_MAX))?;
        let mut connection = Self {
            socket,
            authority: address.to_owned(),
            headers: Headers::default(),
            input: Vec::new(),
            output: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            next_stream: 1,
            room: WINDOW,
            stream_room: WINDOW,
            come: 0,
            parts: BTreeMap::new(),
            answers: VecDeque::new(),
        };
        connection.put_frame(SETTINGS, 0, 0, &[]);
        connection.put_frame(WINDOW_UPDATE, 0, 0, &MORE.to_be_bytes());
        Ok(connection)
    }

    fn put_frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.output.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        self.output.extend_from_slice(&[kind, flags]);
        self.output.extend_from_slice(&stream.to_be_bytes());
        self.output.extend_from_slice(payload);
    }

    /// Begins a call of the method at `path`, and returns its stream. It is sent with the next [`Self::answer`].
    pub fn call(&mut self, path: &str, message: &[u8]) -> anyhow::Result<u32> {
        let len = MESSAGE_HEADER + message.len();
        ensure!(len <= FRAME_MAX.min(self.stream_room), "a message of {len} bytes is too long");
        while self.room < len {
            self.step()?;
        }
        self.room -= len;
        let stream = self.next_stream;
        self.next_stream += 2;
        let mut block = Vec::new();
        self.headers.encode(&self.authority, path, &mut block);
        self.put_frame(HEADERS, END_HEADERS, stream, &block);
        let mut data = vec![0];
        data.extend_from_slice(&(message.len() as u32).to_be_bytes());
        data.extend_from_slice(message);
        self.put_frame(DATA, END_STREAM, stream, &data);
        Ok(stream)
    }

    /// Sends what has begun, and waits for an answer. Returns its call's stream, and its message.
    pub fn answer(&mut self) -> anyhow::Result<(u32, Vec<u8>)> {
        loop {
            if let Some(answer) = self.answers.pop_front() {
                return Ok(answer);
            }
            self.step()?;
        }
    }

    /// Returns an answer that has been read already, if there is one.
    pub fn answer_that_is_here(&mut self) -> anyhow::Result<Option<(u32, Vec<u8>)>> {
        while self.answers.is_empty() {
            let Some(frame) = self.take_frame()? else { break };
            self.handle(&frame)?;
        }
        Ok(self.answers.pop_front())
    }

    /// Takes one frame, and waits for it if need be.
    fn step(&mut self) -> anyhow::Result<()> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return self.handle(&frame);
            }
            if !self.output.is_empty() {
                self.socket.write_all(&self.output).context("sending to the server")?;
                self.output.clear();
            }
            let filled = self.input.len();
            self.input.resize(filled + READ_LEN, 0);
            let read = self.socket.read(&mut self.input[filled..]);
            self.input.truncate(filled + read.as_ref().map_or(0, |len| *len));
            ensure!(read.context("the server does not answer")? > 0, "the server closed the connection");
        }
    }

    /// Takes the next frame, if all of it has been read.
    fn take_frame(&mut self) -> anyhow::Result<Option<Frame>> {
        let Some((header, rest)) = self.input.split_first_chunk::<FRAME_HEADER>() else { return Ok(None) };
        let [len @ .., kind, flags, s0, s1, s2, s3] = *header;
        let len = len.iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
        ensure!(len <= FRAME_MAX, "a frame of {len} bytes: the server does not speak HTTP/2");
        let Some(payload) = rest.get(..len).map(<[u8]>::to_vec) else { return Ok(None) };
        self.input.drain(..FRAME_HEADER + len);
        Ok(Some(Frame { kind, flags, stream: u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]), payload }))
    }

    fn handle(&mut self, frame: &Frame) -> anyhow::Result<()> {
        let Frame { kind, flags, stream, ref payload } = *frame;
        match kind {
            DATA => {
                ensure!(flags & PADDED == 0, "a padded frame");
                self.parts.entry(stream).or_default().extend_from_slice(payload);
                self.come += payload.len() as u32;
                if self.come >= MORE {
                    let come = std::mem::take(&mut self.come);
                    self.put_frame(WINDOW_UPDATE, 0, 0, &come.to_be_bytes());
                }
            }
            HEADERS => {}
            RST_STREAM => bail!("the server reset a call"),
            GOAWAY => bail!("the server ends the connection: {}", payload[payload.len().min(8)..].escape_ascii()),
            SETTINGS if flags & ACK == 0 => {
                for setting in payload.as_chunks::<6>().0 {
                    let [i0, i1, v0, v1, v2, v3] = *setting;
                    let value = u32::from_be_bytes([v0, v1, v2, v3]);
                    match u16::from_be_bytes([i0, i1]) {
                        SETTING_INITIAL_WINDOW_SIZE => self.stream_room = value as usize,
                        SETTING_HEADER_TABLE_SIZE => {
                            ensure!(value >= HEADER_TABLE_SIZE, "a table of headers of {value} bytes");
                        }
                        _ => {}
                    }
                }
                self.put_frame(SETTINGS, ACK, 0, &[]);
            }
            PING if flags & ACK == 0 => self.put_frame(PING, ACK, 0, payload),
            WINDOW_UPDATE if stream == 0 => {
                let more = payload.first_chunk().context("a short frame")?;
                self.room = self.room.saturating_add(u32::from_be_bytes(*more) as usize);
            }
            _ => {}
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            let mut message = self.parts.remove(&stream).context("the server refused a call")?;
            let header = message.first_chunk::<MESSAGE_HEADER>().copied().context("a short answer")?;
            message.drain(..MESSAGE_HEADER);
            let [is_compressed, len @ ..] = header;
            let is_whole = is_compressed == 0 && u32::from_be_bytes(len) as usize == message.len();
            ensure!(is_whole, "an answer that is not one whole message");
            self.answers.push_back((stream, message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn headers_are_spelt_out_once() {
        let mut headers = Headers::default();
        let mut encode = |path| {
            let mut block = Vec::new();
            headers.encode("h:1", path, &mut block);
            block
        };
        let first = encode("/a");
        assert_eq!(first[..11], *b"\x83\x86\x41\x03h:1\x44\x02/a");
        assert_eq!(first[11..13], [0x40 | 31, 16]);
        assert_eq!(first[29..], *b"\x40\x02te\x08trailers");
        assert_eq!(encode("/a"), [0x83, 0x86, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62]);
        assert_eq!(encode("/b"), *b"\x83\x86\xc1\x44\x02/b\xc0\xbf");
        assert_eq!(encode("/a"), [0x83, 0x86, 0x80 | 66, 0x80 | 65, 0x80 | 64, 0x80 | 63]);
    }

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream], payload].concat()
    }

    /// What a client makes of these bytes as the answer to its first call, and what it has sent by the end.
    fn answered(bytes: &[u8]) -> (anyhow::Result<(u32, Vec<u8>)>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut connection = Connection::open(&listener.local_addr().unwrap().to_string()).unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        socket.write_all(bytes).unwrap();
        let reader = thread::spawn(move || {
            let mut sent = Vec::new();
            socket.shutdown(std::net::Shutdown::Write).unwrap();
            socket.read_to_end(&mut sent).unwrap();
            sent
        });
        connection.call("/a", b"ask").unwrap();
        let answer = connection.answer();
        // What it still owes goes out with the next step, which finds the connection closed.
        assert!(connection.step().is_err());
        drop(connection);
        (answer, reader.join().unwrap())
    }

    #[test]
    fn a_call_is_answered_when_its_message_is_whole_and_pings_and_settings_are_acknowledged() {
        let bytes = [
            frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]),
            frame(PING, 0, 0, b"12345678"),
            frame(HEADERS, END_HEADERS, 1, b"x"),
            frame(DATA, 0, 1, b"\0\0\0\0\x05he"),
            frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 9]),
            frame(DATA, 0, 1, b"llo"),
            frame(HEADERS, END_HEADERS | END_STREAM, 1, b"y"),
        ];
        let (answer, sent) = answered(&bytes.concat());
        assert_eq!(answer.unwrap(), (1, b"hello".to_vec()));
        let sent_all = |part: &[u8]| sent.windows(part.len()).any(|window| window == part);
        assert!(sent.starts_with(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04"));
        assert!(sent_all(&frame(DATA, END_STREAM, 1, b"\0\0\0\0\x03ask")));
        assert!(sent_all(&frame(SETTINGS, ACK, 0, &[])) && sent_all(&frame(PING, ACK, 0, b"12345678")));
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        let whole = frame(DATA, END_STREAM, 1, b"\0\0\0\0\x01h");
        assert!(answered(&whole).0.is_ok());
        for (bytes, why) in [
            (whole[..whole.len() - 1].to_vec(), "closed the connection"),
            (frame(HEADERS, END_HEADERS | END_STREAM, 1, b"x"), "refused a call"),
            (frame(DATA, END_STREAM, 1, b"\0\0\0\0\x02h"), "not one whole message"),
            (frame(DATA, END_STREAM, 1, b"\x01\0\0\0\x01h"), "not one whole message"),
            (frame(DATA, END_STREAM, 1, b"\0\0"), "a short answer"),
            (frame(DATA, PADDED, 1, b"\0"), "padded"),
            (frame(RST_STREAM, 0, 1, &[0; 4]), "reset"),
            (frame(GOAWAY, 0, 0, b"12345678bye"), "bye"),
            (frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]), "a table of headers"),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "does not speak HTTP/2"),
        ] {
            let error = answered(&bytes).0.unwrap_err();
            assert!(format!("{error:#}").contains(why), "{error:#}, not {why}");
        }
    }
}
