//! Malicious clients, and disks with arbitrary contents.

mod hostile;

use proptest::prelude::*;
use sinew_remote_fs::protocol::{Access, Ino, Lock, LockKind, LockOwner, Mode, Request, SetAttr};

/// Bytes that begin with valid requests.
fn nearly_requests() -> impl Strategy<Value = Vec<u8>> {
    let ino = || (0..6u64).prop_map(Ino);
    let name = || prop::sample::select(vec![&b"a"[..], b"b", b"c", b"..", b"", b"d/e"]).prop_map(<[u8]>::to_vec);
    let mode: Mode = 0o755;
    let access = Access { read: true, write: true, execute: false };
    let request = prop_oneof![
        (ino(), name()).prop_map(move |(parent, name)| Request::MakeDirectory { parent, name, mode }),
        (ino(), name(), 0..4u64).prop_map(move |(parent, name, handle)| Request::Create {
            parent,
            name,
            mode,
            handle,
            access
        }),
        (ino(), name(), ino(), name(), 0..4u32).prop_map(|(parent, name, new_parent, new_name, flags)| {
            Request::Rename { parent, name, new_parent, new_name, flags }
        }),
        (ino(), name()).prop_map(|(parent, name)| Request::Unlink { parent, name }),
        (ino(), name()).prop_map(|(parent, name)| Request::RemoveDirectory { parent, name }),
        (ino(), ino(), name()).prop_map(|(ino, parent, name)| Request::Link { ino, parent, name }),
        (ino(), prop_oneof![0..100_000u64, Just(u64::MAX)]).prop_map(|(ino, size)| {
            Request::SetAttr { ino, set: SetAttr { size: Some(size), ..SetAttr::default() }, handle: None }
        }),
        (0..100u32).prop_map(|pages| Request::Reserve { pages }),
        (0..4u64, any::<u64>(), prop::collection::vec((0..200u64, 0..200u64), 0..3)).prop_map(
            |(handle, size, holes)| Request::Commit {
                handle,
                size_min: size >> 20,
                mtime: None,
                holes,
                extents: Vec::new()
            }
        ),
        (0..4u64).prop_map(|handle| Request::Close { handle }),
        (ino(), 0..3u64, 0..4u64, any::<bool>()).prop_map(|(ino, owner, first, waits)| {
            let (owner, kind) = (LockOwner::Posix(owner), LockKind::Write);
            Request::Lock { lock: Lock { ino, owner, pid: 1, first, last: first + 1, kind }, waits }
        }),
    ];
    let step = (any::<u8>(), request, prop::collection::vec(any::<u8>(), 0..12)).prop_map(|(step, request, more)| {
        let extent_bytes = if matches!(request, Request::Commit { .. }) { more } else { Vec::new() };
        [&[step | 1], &postcard::to_allocvec(&request).unwrap()[..], &extent_bytes].concat()
    });
    prop::collection::vec(step, 0..30).prop_map(|steps| steps.concat())
}

proptest! {
    #[test]
    fn whatever_a_client_says_the_tree_stays_in_order(bytes in nearly_requests()) {
        hostile::service(&bytes);
    }

    #[test]
    fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0..4u8], 0..200)) {
        hostile::messages(&bytes);
        hostile::records(&bytes);
    }

    #[test]
    fn a_disk_that_holds_anything_is_refused_or_gone_on_with(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0..4u8], 0..300),
    ) {
        hostile::kept(&bytes);
    }

    #[test]
    fn a_damaged_journal_has_what_lasts_or_says_so(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        hostile::journal(&bytes);
    }
}
