//! Tests of the cache protocol: fixed layouts, refusals and round trips.
use proptest::prelude::*;
use sinew_store::cache::When;

use super::*;

fn written(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = vec![0xEE; request.len()];
    request.write(&mut bytes);
    bytes
}

fn answered(response: &Response<'_>) -> Vec<u8> {
    let mut bytes = vec![0xEE; response.len()];
    response.write(&mut bytes);
    bytes
}

#[test]
fn the_layout_of_requests_is_fixed() {
    let options = PutOptions { when: When::Version(0x1234), flags: 7, lives_s: 0x0102 };
    let put = |options| Request::Put(Put { key: b"ab", value: b"xyz", options });
    for (request, bytes) in [
        (Request::Get { key: b"ab" }, &b"\x01ab"[..]),
        (Request::Inspect { key: b"" }, b"\x02"),
        (put(PutOptions::default()), b"\x03\x00\x02\x00abxyz"),
        (put(PutOptions { when: When::Absent, ..PutOptions::default() }), b"\x03\x01\x02\x00abxyz"),
        (put(PutOptions { when: When::Present, lives_s: 1, flags: 0 }), b"\x03\x06\x02\x00\0\0\0\0\x01\0\0\0abxyz"),
        (put(options), b"\x03\x07\x02\x00\x07\0\0\0\x02\x01\0\0\x34\x12\0\0\0\0\0\0abxyz"),
        (Request::Delete { key: b"ab" }, b"\x04ab"),
        (Request::Info, b"\x06"),
        (Request::Stats, b"\x07"),
        (Request::Touch { key: b"ab", lives_s: 0x0102 }, b"\x08\x02\x01\0\0ab"),
        (Request::Add { key: b"ab", delta: 0x0102 }, b"\x09\x02\x01\0\0\0\0\0\0ab"),
        (Request::Add { key: b"", delta: -2 }, b"\x09\xFE\xFF\xFF\xFF\xFF\xFF\xFF\xFF"),
        (Request::Flush, b"\x0A"),
    ] {
        assert_eq!(written(&request), bytes, "{request:?}");
        assert_eq!(Request::read(bytes), Ok(request));
    }
    let keys = [&b"ab"[..], b"", b"c"];
    let mut bytes = vec![0; Keys::request_len(keys.into_iter())];
    Keys::write_request(keys.into_iter(), &mut bytes);
    assert_eq!(bytes, b"\x05\x03\x02\x00ab\x00\x00\x01\x00c");
    let Ok(Request::GetMany(read)) = Request::read(&bytes) else { panic!("{bytes:?}") };
    assert_eq!((read.count(), read.iter().collect::<Vec<_>>()), (3, keys.to_vec()));
    assert_eq!(written(&Request::GetMany(read)), bytes);
}

#[test]
fn the_layout_of_responses_is_fixed() {
    let stats = Stats { hits: 1, misses: 2, refused: 9, spared: 10, ..Stats::default() };
    let stats_bytes = [&[7, 10][..], &[1u64, 2, 0, 0, 0, 0, 0, 0, 9, 10].map(u64::to_le_bytes).concat()].concat();
    let info = Info { partition: 1, partitions: 2, value_len_max: 3, response_len_max: 4 };
    for (response, bytes) in [
        (Response::Miss, &b"\x00"[..]),
        (Response::Value(b"xyz"), b"\x01xyz"),
        (
            Response::Item(Item { flags: 1, lives_s: 2, version: 3, value: b"z" }),
            b"\x02\x01\0\0\0\x02\0\0\0\x03\0\0\0\0\0\0\0z",
        ),
        (Response::Stored { version: 5 }, b"\x03\x05\0\0\0\0\0\0\0"),
        (Response::Deleted, b"\x04"),
        (Response::Info(info), b"\x06\x01\x01\0\x02\0\x03\0\0\0\x04\0\0\0"),
        (Response::Stats(stats), &stats_bytes),
        (Response::Touched, b"\x08"),
        (Response::Number(0x0102), b"\x09\x02\x01\0\0\0\0\0\0"),
        (Response::Flushed, b"\x0A"),
    ] {
        assert_eq!(answered(&response), bytes, "{response:?}");
        assert_eq!(Response::read(bytes), Ok(response));
    }
    let mut bytes = vec![0; VALUES_AT + 4 * 3 + 2];
    let rest = Values::write_count(3, &mut bytes);
    let (value, rest) = Values::write_next(Slot::Hit(2), rest);
    value.copy_from_slice(b"ok");
    let (_, rest) = Values::write_next(Slot::Miss, rest);
    let (_, rest) = Values::write_next(Slot::Omitted, rest);
    assert!(rest.is_empty());
    assert_eq!(bytes, b"\x05\x03\x02\0\0\0ok\xFF\xFF\xFF\xFF\xFE\xFF\xFF\xFF");
    let Ok(Response::Values(values)) = Response::read(&bytes) else { panic!("{bytes:?}") };
    assert_eq!(values.iter().collect::<Vec<_>>(), [Lookup::Hit(b"ok"), Lookup::Miss, Lookup::Omitted]);
    assert_eq!(answered(&Response::Values(values)), bytes);
}

#[test]
fn refusals_say_why() {
    for refusal in [
        Refusal::Malformed,
        Refusal::Present,
        Refusal::Absent,
        Refusal::Changed { version: 7 },
        Refusal::KeyTooLong { len: 70_000 },
        Refusal::ValueTooLong { len: 2, max: 1 },
        Refusal::Full { used_bytes: 1, capacity_bytes: 2 },
        Refusal::WrongPartition { partition: 3 },
        Refusal::NoPartition,
        Refusal::NotANumber,
    ] {
        let response = Response::Refused(refusal);
        assert_eq!(Response::read(&answered(&response)), Ok(response));
    }
}

#[test]
fn what_is_no_request_is_refused() {
    let long_key = [&[1u8][..], &vec![b'k'; KEY_LEN_MAX + 1]].concat();
    assert!(Request::read(&long_key[..=KEY_LEN_MAX]).is_ok());
    let [long_touch, long_add] =
        [(8, 4), (9, 8)].map(|(kind, head)| [vec![kind; 1 + head], vec![b'k'; KEY_LEN_MAX + 1]].concat());
    assert!(
        Request::read(&long_touch[..5 + KEY_LEN_MAX]).is_ok() && Request::read(&long_add[..9 + KEY_LEN_MAX]).is_ok()
    );
    let many = |count: u8| [vec![5, count], [0, 0].repeat(count.into())].concat();
    assert!(Request::read(&many(64)).is_ok());
    for bytes in [
        &b""[..],
        b"\x00",
        b"\x08",
        b"\x08\0\0\0",
        b"\x09\0\0\0\0\0\0\0",
        b"\x0A\0",
        b"\x0B",
        &long_key,
        &long_touch,
        &long_add,
        b"\x03\x00\x03\x00ab",
        b"\x03\x00\x03",
        b"\x03\x08\x00\x00",
        b"\x03\x04\x00\x00\0\0\0\0\0\0\0",
        b"\x03\x03\x00\x00\0\0\0\0\0\0\0",
        &many(0),
        &many(65),
        b"\x05\x01\x02\x00a",
        b"\x05\x01\x01\x00ab",
        b"\x06\x00",
        b"\x07\x00",
    ] {
        assert!(Request::read(bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn what_is_no_response_is_refused() {
    for bytes in [
        &b""[..],
        b"\x00\x00",
        b"\x02\x00",
        b"\x03\x00",
        b"\x04\x00",
        b"\x05",
        b"\x05\x01\x02\0\0\0a",
        b"\x05\x01\x00\0\0\0a",
        b"\x06\x02\x01\0\x02\0\x03\0\0\0\x04\0\0\0",
        b"\x06\x01\x01\0\x02\0\x03\0\0\0\x04\0\0\0\0",
        b"\x07\x08",
        b"\x09\0\0\0\0\0\0\0",
        b"\x09\0\0\0\0\0\0\0\0\0",
        b"\x0A\0",
        b"\x0B",
        b"\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        b"\x80",
    ] {
        assert!(Response::read(bytes).is_err(), "{bytes:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic_and_what_is_read_is_written_as_it_was(
        kind in prop_oneof![0u8..12, 126u8..140, any::<u8>()],
        mut bytes in prop::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..120),
    ) {
        bytes.insert(0, kind);
        if let Ok(request) = Request::read(&bytes) {
            let again = written(&request);
            prop_assert_eq!(Request::read(&again), Ok(request));
            // A put can be encoded in more bytes than it needs.
            prop_assert!(again == bytes || matches!(request, Request::Put(_)));
        }
        if let Ok(response) = Response::read(&bytes)
            && !matches!(response, Response::Stats(_) | Response::Refused(_))
        {
            prop_assert_eq!(answered(&response), &bytes[..]);
        }
    }
}

#[test]
fn servers_may_send_fewer_counters_or_more() {
    let sent = |count: u8| {
        let counters: Vec<u8> = (1..=u64::from(count)).flat_map(u64::to_le_bytes).collect();
        [&[7, count][..], &counters].concat()
    };
    let read = |count| match Response::read(&sent(count)) {
        Ok(Response::Stats(stats)) => Some((stats.hits, stats.refused, stats.spared)),
        _ => None,
    };
    assert_eq!(
        (8..=12).map(read).collect::<Vec<_>>(),
        [None, Some((1, 9, 0)), Some((1, 9, 10)), Some((1, 9, 10)), Some((1, 9, 10))]
    );
}
