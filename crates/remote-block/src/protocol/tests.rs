//! Tests of the protocol: both sides of every limit, and arbitrary input.

use proptest::collection::vec;
use proptest::prelude::*;

use super::constants::*;
use super::*;

fn export() -> Export {
    Export { name: "disk".to_owned(), description: "a test".to_owned(), len: 1 << 20 }
}

fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u32).to_be_bytes();
    [&IHAVEOPT.to_be_bytes()[..], &kind.to_be_bytes(), &len, data].concat()
}

fn info(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.bytes());
    data.extend((infos.len() as u16).to_be_bytes());
    infos.iter().for_each(|info| data.extend(info.to_be_bytes()));
    data
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(query.bytes());
    }
    data
}

/// Passes input to a handshake in parts that end at `cuts`. Returns its output, its last step, and the bytes consumed.
fn shake(input: &[u8], cuts: &[usize]) -> (Vec<u8>, NextStep, usize) {
    let mut out = Vec::new();
    let mut handshake = Handshake::begin(&mut out);
    let mut consumed = 0;
    let ends = cuts.iter().map(|cut| (*cut).min(input.len())).chain([input.len()]);
    let mut last = NextStep::Input(1);
    for end in ends {
        loop {
            let ran = handshake.run(&export(), false, &input[consumed..end.max(consumed)], &mut out);
            consumed += ran.consumed;
            last = ran.next;
            match last {
                NextStep::Output => {}
                NextStep::Input(wants) => {
                    assert!(wants > end.saturating_sub(consumed), "it wants input that it has");
                    break;
                }
                _ => return (out, last, consumed),
            }
        }
    }
    (out, last, consumed)
}

/// Options, kinds and data of the replies to options.
fn replies(output: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut reader = super::bytes::Reader(&output[18..]);
    let mut replies = Vec::new();
    while let Some(magic) = reader.u64() {
        assert_eq!(magic, OPTION_REPLY_MAGIC);
        let (option, kind) = (reader.u32().unwrap(), reader.u32().unwrap());
        replies.push((option, kind, reader.string().unwrap().to_vec()));
    }
    replies
}

fn after(options: &[Vec<u8>]) -> (Vec<(u32, u32)>, NextStep) {
    let input = [3u32.to_be_bytes().to_vec(), options.concat()].concat();
    let (output, next, _) = shake(&input, &[]);
    (replies(&output).into_iter().map(|(option, kind, _)| (option, kind)).collect(), next)
}

#[test]
fn a_client_without_options_has_its_export() {
    for (flags, zeroes) in [(1u32, 124), (3, 0)] {
        for (name, good) in [("", true), ("disk", true), ("disc", false)] {
            let input = [flags.to_be_bytes().to_vec(), option(OPT_EXPORT_NAME, name.as_bytes())].concat();
            let (output, next, consumed) = shake(&input, &[]);
            if !good {
                assert_eq!(next, NextStep::Close(HandshakeError::UnknownExport));
                continue;
            }
            assert_eq!((next, consumed), (NextStep::Serve(Session::default()), input.len()));
            assert_eq!(output.len(), 18 + 10 + zeroes);
            assert_eq!(output[18..26], (1u64 << 20).to_be_bytes());
        }
    }
}

#[test]
fn a_client_is_told_what_it_asks_for() {
    let input = [
        3u32.to_be_bytes().to_vec(),
        option(OPT_STRUCTURED_REPLY, &[]),
        option(OPT_LIST, &[]),
        option(OPT_SET_META_CONTEXT, &contexts("disk", &["x:y", "base:allocation"])),
        option(OPT_GO, &info("", &[INFO_NAME, INFO_DESCRIPTION, 77])),
    ]
    .concat();
    let (output, next, _) = shake(&input, &[]);
    assert_eq!(next, NextStep::Serve(Session { is_structured: true, has_status: true }));
    let replies = replies(&output);
    let kinds: Vec<_> = replies.iter().map(|(option, kind, _)| (*option, *kind)).collect();
    let (list, go) = (OPT_LIST, OPT_GO);
    let infos = [(go, REP_INFO); 4];
    assert_eq!(kinds[..3], [(OPT_STRUCTURED_REPLY, REP_ACK), (list, REP_SERVER), (list, REP_ACK)]);
    assert_eq!(kinds[3..5], [(OPT_SET_META_CONTEXT, REP_META_CONTEXT), (OPT_SET_META_CONTEXT, REP_ACK)]);
    assert_eq!((&kinds[5..9], kinds[9]), (&infos[..], (go, REP_ACK)));
    let flags = u16::from_be_bytes([replies[5].2[10], replies[5].2[11]]);
    assert_eq!(flags & (FLAG_SEND_DF | FLAG_CAN_MULTI_CONN), FLAG_SEND_DF | FLAG_CAN_MULTI_CONN);
    assert_eq!(replies[6].2, [&[0, 3][..], &[0, 0, 0, 1], &[0, 0, 16, 0], &[2, 0, 0, 0]].concat());
    assert_eq!(replies[7].2[2..], *b"disk");
}

#[test]
fn an_option_that_is_not_in_order_is_refused_and_the_next_one_heard() {
    let cut = info("disk", &[1])[..9].to_vec();
    for (kind, data, expected) in [
        (5, vec![], REP_ERR_UNSUP),
        (77, vec![1; 100], REP_ERR_UNSUP),
        (OPT_LIST, vec![0], REP_ERR_INVALID),
        (OPT_STRUCTURED_REPLY, vec![0], REP_ERR_INVALID),
        (OPT_INFO, cut, REP_ERR_INVALID),
        (OPT_GO, vec![], REP_ERR_INVALID),
        (OPT_GO, vec![0xff; 8], REP_ERR_INVALID),
        (OPT_GO, info("nobody", &[]), REP_ERR_UNKNOWN),
        (OPT_SET_META_CONTEXT, contexts("", &["base:allocation"]), REP_ERR_INVALID),
        (77, vec![0; OPTION_LEN_MAX], REP_ERR_UNSUP),
        (77, vec![0; OPTION_LEN_MAX + 1], REP_ERR_TOO_BIG),
        (OPT_GO, info(&"n".repeat(NAME_LEN_MAX), &[]), REP_ERR_UNKNOWN),
        (OPT_GO, info(&"n".repeat(NAME_LEN_MAX + 1), &[]), REP_ERR_INVALID),
    ] {
        let (kinds, then) = after(&[option(kind, &data), option(OPT_ABORT, &[])]);
        assert_eq!(kinds, [(kind, expected), (OPT_ABORT, REP_ACK)], "{kind}, {} bytes", data.len());
        assert_eq!(then, NextStep::Leave);
    }
    let structured = option(OPT_STRUCTURED_REPLY, &[]);
    for (data, expected) in [
        (contexts("disc", &[]), REP_ERR_UNKNOWN),
        (contexts("disk", &["base:allocation"])[..20].to_vec(), REP_ERR_INVALID),
        ([contexts("disk", &[]), vec![0]].concat(), REP_ERR_INVALID),
        ([contexts("disk", &[])[..8].to_vec(), vec![0xff; 4]].concat(), REP_ERR_INVALID),
    ] {
        let (kinds, _) = after(&[structured.clone(), option(OPT_SET_META_CONTEXT, &data)]);
        assert_eq!(kinds[1].1, expected, "{data:?}");
    }
    let (kinds, _) = after(&[structured, option(OPT_LIST_META_CONTEXT, &contexts("", &[]))]);
    assert_eq!(kinds[1..].iter().map(|kind| kind.1).collect::<Vec<_>>(), [REP_META_CONTEXT, REP_ACK]);
}

#[test]
fn a_client_that_takes_no_end_or_speaks_something_else_is_sent_away() {
    let closed = |input: &[u8]| match shake(input, &[]).1 {
        NextStep::Close(why) => Some(why),
        _ => None,
    };
    assert_eq!(closed(&4u32.to_be_bytes()), Some(HandshakeError::UnknownFlags));
    let greeted = |more: &[u8]| closed(&[&3u32.to_be_bytes()[..], more].concat());
    assert_eq!(greeted(b"GET / HTTP/1.1\r\n\r\n"), Some(HandshakeError::NoNbd));
    let header = |kind: u32, len: u32| [&IHAVEOPT.to_be_bytes()[..], &kind.to_be_bytes(), &len.to_be_bytes()].concat();
    assert_eq!(greeted(&header(77, 1 << 20)), None);
    assert_eq!(greeted(&header(77, (1 << 20) + 1)), Some(HandshakeError::OptionTooLong));
    assert_eq!(greeted(&header(OPT_EXPORT_NAME, NAME_LEN_MAX as u32)), None);
    assert_eq!(greeted(&header(OPT_EXPORT_NAME, NAME_LEN_MAX as u32 + 1)), Some(HandshakeError::OptionTooLong));
    let many = |count: u32| greeted(&option(OPT_LIST, &[]).repeat(count as usize));
    assert_eq!((many(OPTIONS_MAX), many(OPTIONS_MAX + 1)), (None, Some(HandshakeError::TooManyOptions)));
}

#[test]
fn a_server_that_ends_takes_no_new_client() {
    for (kind, data) in [(OPT_GO, info("", &[])), (OPT_EXPORT_NAME, vec![])] {
        let mut out = Vec::new();
        let mut handshake = Handshake::begin(&mut out);
        let input = [3u32.to_be_bytes().to_vec(), option(kind, &data)].concat();
        let then = handshake.run(&export(), true, &input, &mut out).next;
        match kind {
            OPT_GO => assert_eq!((then, replies(&out)[0].1), (NextStep::Output, REP_ERR_SHUTDOWN)),
            _ => assert_eq!(then, NextStep::Close(HandshakeError::UnknownExport)),
        }
    }
}

#[test]
fn requests_are_held_against_both_sides_of_every_limit() {
    let all = Session { is_structured: true, has_status: true };
    let simple = Session::default();
    let (len, max) = (1u64 << 30, BLOCK_MAX);
    use ErrorCode::*;
    for (session, kind, flags, at, bytes, error) in [
        (all, CMD_READ, 0, len - 1, 1, None),
        (all, CMD_READ, 0, len, 1, Some(Invalid)),
        (all, CMD_READ, 0, u64::MAX, u32::MAX, Some(Invalid)),
        (all, CMD_READ, 0, 0, 0, Some(Invalid)),
        (all, CMD_READ, 0, 1, max, None),
        (all, CMD_READ, 0, 0, max + 1, Some(Invalid)),
        (all, CMD_READ, CMD_FLAG_DF, 0, max, None),
        (all, CMD_READ, CMD_FLAG_DF, 0, max + 1, Some(TooLong)),
        (simple, CMD_READ, CMD_FLAG_DF, 0, 1, Some(Invalid)),
        (simple, CMD_READ, CMD_FLAG_FUA, 0, 1, None),
        (all, CMD_WRITE, CMD_FLAG_FUA, len - 1, 1, None),
        (all, CMD_WRITE, 0, len - 1, 2, Some(NoSpace)),
        (all, CMD_WRITE, 0, 0, max + 1, Some(Invalid)),
        (all, CMD_WRITE, CMD_FLAG_DF, 0, 1, Some(Invalid)),
        (all, CMD_FLUSH, 0, 0, 0, None),
        (all, CMD_FLUSH, 0, 1, 0, Some(Invalid)),
        (all, CMD_FLUSH, 0, 0, 1, Some(Invalid)),
        (all, CMD_TRIM, 0, 0, len as u32, None),
        (all, CMD_TRIM, 0, 1, len as u32, Some(Invalid)),
        (all, CMD_TRIM, CMD_FLAG_NO_HOLE, 0, 1, Some(Invalid)),
        (all, CMD_WRITE_ZEROES, CMD_FLAG_NO_HOLE, 0, len as u32, None),
        (all, CMD_WRITE_ZEROES, CMD_FLAG_FAST_ZERO, 0, 1, None),
        (all, CMD_WRITE_ZEROES, CMD_FLAG_FAST_ZERO | CMD_FLAG_NO_HOLE, 0, 1, Some(Unsupported)),
        (all, CMD_WRITE_ZEROES, 0, 1, len as u32, Some(NoSpace)),
        (all, CMD_CACHE, 0, 0, 1, None),
        (all, CMD_BLOCK_STATUS, CMD_FLAG_REQ_ONE, 0, 1, None),
        (simple, CMD_BLOCK_STATUS, 0, 0, 1, Some(Invalid)),
        (all, 8, 0, 0, 1, Some(Invalid)),
        (all, CMD_READ, 1 << 7, 0, 1, Some(Invalid)),
        (all, CMD_DISC, 0xffff, 1, 1, None),
    ] {
        let request = Request { flags, kind, cookie: 9, at, len: bytes };
        let found = Request::read(&request.to_bytes()).unwrap();
        assert_eq!((found, found.command(session, len).err()), (request, error), "{request:?}");
    }
    let mut bytes = Request { flags: 0, kind: 0, cookie: 0, at: 0, len: 0 }.to_bytes();
    bytes[3] ^= 1;
    assert_eq!(Request::read(&bytes), None);
}

#[test]
fn replies_lie_as_the_protocol_has_it() {
    let mut out = Vec::new();
    put_done(&mut out, 7);
    assert_eq!(out, b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x07");
    out.clear();
    put_error(&mut out, false, 7, ErrorCode::Io);
    assert_eq!(out, b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x07");
    out.clear();
    put_error(&mut out, true, 7, ErrorCode::NoSpace);
    assert_eq!(out, b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x07\0\0\0\x0d\0\0\0\x1c\0\x07no room");
    out.clear();
    put_hole(&mut out, 7, 4096, 512);
    assert_eq!(out, b"\x66\x8e\x33\xef\0\x01\0\x02\0\0\0\0\0\0\0\x07\0\0\0\x0c\0\0\0\0\0\0\x10\0\0\0\x02\0");
    out.clear();
    put_status(&mut out, 7, &[StatusExtent { len: 512, is_hole: true }]);
    assert_eq!(out, b"\x66\x8e\x33\xef\0\x01\0\x05\0\0\0\0\0\0\0\x07\0\0\0\x0c\0\0\0\x01\0\0\x02\0\0\0\0\x03");
    let mut front = [0xaa; 32];
    assert_eq!(data_front(&mut front, true, 7, (4096, 512), false), 28);
    assert_eq!(front[4..], *b"\x66\x8e\x33\xef\0\0\0\x01\0\0\0\0\0\0\0\x07\0\0\x02\x08\0\0\0\0\0\0\x10\0");
    assert_eq!(data_front(&mut front, false, 7, (4096, 512), true), 16);
    assert_eq!(front[16..], *b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x07");
}

fn some_option() -> impl Strategy<Value = Vec<u8>> {
    let data = prop_oneof![
        vec(any::<u8>(), 0..64),
        Just(info("disk", &[1, 2, 3])),
        Just(contexts("disk", &["base:", "base:allocation"])),
        Just(Vec::new()),
        Just(vec![0; OPTION_LEN_MAX + 5]),
    ];
    (0..12u32, data).prop_map(|(kind, data)| option(kind, &data))
}

proptest! {
    /// Cutting the input at other places does not change the output.
    #[test]
    fn a_handshake_is_the_same_however_it_is_cut(
        flags in 0..4u32,
        options in vec(some_option(), 0..6),
        spoilt in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
        mut cuts in vec(0..600usize, 0..8),
    ) {
        let mut input = [flags.to_be_bytes().to_vec(), options.concat()].concat();
        if let Some((at, value)) = spoilt {
            let at = at.index(input.len());
            input[at] = value;
        }
        cuts.sort_unstable();
        let whole = shake(&input, &[]);
        let cut = shake(&input, &cuts);
        prop_assert_eq!(&cut.0, &whole.0);
        prop_assert_eq!(cut.2, whole.2);
        if !matches!(whole.1, NextStep::Input(_)) {
            prop_assert_eq!(cut.1, whole.1);
        }
    }

    #[test]
    fn whatever_comes_is_answered_or_ends(input in vec(any::<u8>(), 0..300)) {
        let (said, _, consumed) = shake(&input, &[]);
        prop_assert!(consumed <= input.len() && said.len() >= 18);
        if let Some(request) = input.first_chunk().and_then(Request::read) {
            let _ = request.command(Session::default(), 1 << 20);
        }
    }

    /// A valid request lies within the export, and is no longer than allowed.
    #[test]
    fn a_request_that_passes_is_in_order(kind in 0..10u16, flags in 0..40u16, at in any::<u64>(), len in any::<u32>(), size in any::<u64>()) {
        let session = Session { is_structured: true, has_status: true };
        for (at, len) in [(at, len), (at % 4096, len % (64 << 20))] {
            let request = Request { flags, kind, cookie: 0, at, len };
            match request.command(session, size) {
                Ok(Command::Read { at, len, .. } | Command::Write { at, len, .. }) => {
                    prop_assert!((1..=BLOCK_MAX).contains(&len) && at + u64::from(len) <= size);
                }
                Ok(Command::Discard { at, len, .. } | Command::Zeros { at, len, .. } | Command::Status { at, len, .. }) => {
                    prop_assert!(len > 0 && at + u64::from(len) <= size);
                }
                _ => {}
            }
        }
    }
}
