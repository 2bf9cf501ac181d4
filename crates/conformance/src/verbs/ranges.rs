//! Owned ranges: parts of one memory, each with its own request.

use sinew_fabric::verbs::{
    Completion, Exposed, Operation, PostError, ProtectionDomain, QpState, QueuePair, Registered, Request, Status, Verb,
    VerbsError,
};
use sinew_mem::OwnedRange;

use super::ends::*;
use super::*;

type OfDomain<D> = <Domain<D> as ProtectionDomain>::Registration;

fn registered<D: Device>(end: &End<D>, memory: OwnedRange) -> Registered<OfDomain<D>, OwnedRange> {
    Registered::new(&end.domain, memory).expect("memory to register")
}

fn joined_ranges(mut parts: Vec<OwnedRange>) -> OwnedRange {
    parts.sort_by_key(|part| part.as_ptr().addr());
    let mut parts = parts.into_iter();
    let mut whole = parts.next().expect("there is a part");
    parts.for_each(|part| whole.join(part).expect("they are neighbours"));
    whole
}

/// Posts each part as a READ of what lies at its place in the peer's memory, in another order than they lie there, and
/// returns them in the order of their completions.
fn read_in_parts<F: Fixture>(pair: &mut Pair<'_, F>, memory: &Memory<F::Device>, range: OwnedRange) -> Vec<OwnedRange> {
    let part_len = range.len() / DEPTH;
    let parts: Vec<_> = range.split(part_len).enumerate().collect();
    let count = parts.len();
    assert_eq!(count, DEPTH);
    for (at, target) in parts.into_iter().rev() {
        let remote = memory.remote().at((at * part_len) as u64).expect("it is there");
        pair.near.push(Request::new(at as u64, Operation::ReadRange { target, remote }));
    }
    pair.near.qp.doorbell();
    let ids = (0..count as u64).rev();
    ids.map(|id| {
        let Completion { len, buffers, range, .. } = pair.expect_success(id);
        assert!(len == part_len && buffers.is_empty());
        range.expect("the part comes back")
    })
    .collect()
}

/// Parts of a message buffer, and of a vector that was registered, are filled by a READ each, all in flight at once.
pub fn reads_fill_parts_of_one_memory<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    for part_len in [1, 24, 4096, 100_000] {
        let len = part_len * DEPTH;
        let mut pair = Pair::large(fixture, transport);
        let (memory, bytes) = (pair.far.expose(len), pattern(part_len, len));
        memory.write(0, &bytes).expect("our own memory");
        let range = OwnedRange::from(pair.near.buffer(len));
        let parts = read_in_parts(&mut pair, &memory, range);
        assert!(*joined_ranges(parts).into_buffer().expect("it is whole") == *bytes, "{part_len} bytes each");
        let mut vector = registered(&pair.near, OwnedRange::from(vec![FILL; len]));
        let range = vector.take().expect("it is there");
        let parts = read_in_parts(&mut pair, &memory, range);
        vector.put_back(joined_ranges(parts)).expect("it is whole");
        let vector = vector.end().expect("it is back").into_vec();
        assert!(vector.expect("nobody else has it") == bytes, "{part_len} bytes each");
    }
}

/// A part is written from where it lies, whatever its neighbours hold, and comes back with the completion.
pub fn a_part_is_written_and_comes_back<F: Fixture>(fixture: &F) {
    for transport in connected(fixture) {
        for len in [0, 1, 100, 5000] {
            let mut pair = Pair::large(fixture, transport);
            let memory = pair.far.expose(len + 2);
            let bytes = pattern(len, len + 2);
            let mut vector = registered(&pair.near, OwnedRange::from(bytes.clone()));
            let mut first = vector.take().expect("it is there");
            let mut source = first.split_off(1);
            let last = source.split_off(len);
            memory.write(0, &vec![FILL; len + 2]).expect("our own memory");
            let remote = memory.remote().at(1).expect("it is there");
            pair.near.post(Request::new(1, Operation::WriteRange { source, remote }));
            let completion = pair.expect_success(1);
            assert_eq!((completion.len, completion.buffers.len()), (len, 0));
            let source = completion.range.expect("the part comes back");
            if !pair.is_lossy() {
                let expected = [&[FILL], &bytes[1..=len], &[FILL]].concat();
                pair.eventually("the bytes are there", |_| (read(&memory, 0, len + 2) == expected).then_some(()));
            }
            vector.put_back(joined_ranges(vec![first, source, last])).expect("it is whole");
            assert_eq!(vector.end().expect("it is back").into_vec().expect("nobody else has it"), bytes);
        }
    }
}

/// Memory is not given back while a part of it is out, nor registered in parts.
pub fn memory_is_not_given_back_while_a_part_is_out<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    let memory = pair.far.expose(64);
    let mut vector = registered(&pair.near, OwnedRange::from(vec![FILL; 64]));
    let mut kept = vector.take().expect("it is there");
    let target = kept.split_off(24);
    let remote = memory.remote().at(24).expect("it is there");
    pair.near.push(Request::new(1, Operation::ReadRange { target, remote }));
    let part = vector.put_back(kept).expect_err("a part is missing");
    let vector = vector.end().expect_err("it is pushed").registered;
    let mut part = part.into_vec().expect_err("the other part is pushed");
    pair.near.qp.doorbell();
    let read = pair.expect_success(1).range.expect("the part comes back");
    part.join(read).expect("they are neighbours");
    let whole = part.into_vec().expect_err("it is registered");
    let mut vector = vector;
    vector.put_back(whole).expect("it is whole");
    let split = vector.memory().expect("it is there").split_off(60);
    let mut vector = vector.end().expect_err("a part was split off").registered;
    vector.memory().expect("it is there").join(split).expect("they are neighbours");
    let mut kept = vector.end().expect("it is back");
    assert_eq!(*kept, [[FILL; 24].as_slice(), &[0; 40]].concat());
    let part = kept.split_off(32);
    let refused = Registered::new(&pair.near.domain, part).expect_err("it is a part");
    assert!(matches!(refused.error, VerbsError::Part) && refused.memory.len() == 32, "{refused}");
    kept.join(refused.memory).expect("they are neighbours");
    kept.into_vec().expect("nobody else has it");
}

/// A vector is foreign before its registration and after it, and a refusal gives the range back.
pub fn a_foreign_range_is_refused_and_given_back<F: Fixture>(fixture: &F) {
    for transport in connected(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let remote = pair.far.expose(64).remote();
        let refused = |pair: &mut Pair<'_, F>, range: OwnedRange, verb, error| {
            let operation = match verb {
                Verb::Read => Operation::ReadRange { target: range, remote },
                _ => Operation::WriteRange { source: range, remote },
            };
            let refused = pair.near.qp.push(Request::new(1, operation)).expect_err("it cannot be posted");
            assert_eq!((refused.error, refused.buffers.len()), (error, 0));
            refused.range.expect("the range comes back")
        };
        let mut range = OwnedRange::from(vec![FILL; 64]);
        for verb in [Verb::Read, Verb::Write] {
            let error = match transport.allows(verb) {
                true => PostError::ForeignBuffer,
                false => PostError::NotOnTransport(verb, transport),
            };
            range = refused(&mut pair, range, verb, error);
            range = registered(&pair.near, range).end().expect("it is there");
            range = refused(&mut pair, range, verb, error);
        }
        assert_eq!(range.into_vec().expect("nobody else has it"), [FILL; 64]);
        pair.assert_works(2);
    }
}

/// Ranges come back with completions whether their requests succeed, fail or are flushed, and though they are
/// unsignaled.
pub fn ranges_come_back_with_every_completion<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    let memory = pair.far.expose(64);
    memory.write(0, &pattern(5, 64)).expect("our own memory");
    let remote = memory.remote();
    let mut parts = OwnedRange::from(pair.near.buffer(64 * 4)).split(64);
    let mut next = || parts.next().expect("there are four");
    pair.near.push(Request::new(1, Operation::ReadRange { target: next(), remote }).unsignaled());
    pair.near.push(Request::new(2, Operation::WriteRange { source: next(), remote }).unsignaled());
    // The key is right, and the place is not.
    let outside = sinew_fabric::verbs::RemoteMemory { address: remote.address.wrapping_add(1 << 40), ..remote };
    pair.near.push(Request::new(3, Operation::ReadRange { target: next(), remote: outside }));
    pair.near.push(Request::new(4, Operation::WriteRange { source: next(), remote }));
    pair.near.qp.doorbell();
    let mut back = Vec::new();
    for id in 1..=4 {
        let Completion { id: was, status, range, .. } = pair.next_sent("a request is over");
        let is_as_expected = match id {
            1 | 2 => status == Status::Success,
            3 => !status.is_success(),
            _ => status == Status::Flushed,
        };
        assert!(was == id && is_as_expected, "{was}: {status}");
        back.push(range.expect("the range comes back"));
    }
    assert_eq!(pair.near.qp.state(), QpState::Error);
    assert_eq!((back[0].to_vec(), read(&memory, 0, 64)), (pattern(5, 64), vec![FILL; 64]));
    joined_ranges(back).into_buffer().expect("all of it is here");
}
