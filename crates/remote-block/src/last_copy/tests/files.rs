//! Tests of which files become a last copy.

use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use sinew_fabric::ManualClock;

use super::model::*;
use crate::last_copy::trailer::{TRAILER, Trailer};
use crate::{LastCopyError, LastCopyFile, VolumeIdentity};

#[test]
fn a_file_of_another_volume_is_refused_however_often_and_stays_byte_for_byte() {
    let place = TempPath::new("another");
    let mut store = place.copy();
    write(&mut store, 0, b"precious").unwrap();
    run_until_idle(&mut store);
    drop(store);
    let before = std::fs::read(place.path()).unwrap();
    let newer = VolumeIdentity { number: VOLUME.number + 1, ..VOLUME };
    let other = VolumeIdentity { id: VOLUME.id + 1, ..VOLUME };
    for _ in 0..2 {
        // A volume of the same name and size, made since.
        let error = LastCopyFile::open(place.path(), newer, LEN as u64).unwrap_err();
        assert!(matches!(error, LastCopyError::OlderVolume { is_complete: true, .. }), "{error}");
        assert!(
            error.to_string().contains("move the file away") && error.to_string().contains("1048576 bytes"),
            "{error}"
        );
        let error = LastCopyFile::open(place.path(), other, LEN as u64).unwrap_err();
        assert!(matches!(error, LastCopyError::OtherVolume { .. }), "{error}");
        let error = LastCopyFile::open(place.path(), VOLUME, LEN as u64 + 4096).unwrap_err();
        assert!(matches!(error, LastCopyError::OlderVolume { .. }), "{error}");
        assert_eq!(std::fs::read(place.path()).unwrap(), before);
    }
    assert!(place.open().is_ok());
}

#[test]
fn a_file_with_other_contents_is_refused_and_stays_byte_for_byte() {
    let place = TempPath::new("contents");
    let trailer = |len| Trailer { volume: VOLUME, len, is_complete: true }.to_bytes();
    let with = |len: usize, trailer: [u8; TRAILER]| [vec![2; len], trailer.to_vec()].concat();
    let mut damaged = trailer(LEN as u64);
    damaged[40] ^= 1;
    let all = [
        vec![1; 100],
        vec![0; TRAILER],
        vec![2; LEN + TRAILER],
        with(LEN, damaged),
        // Lengths that do not match the file's.
        with(LEN, trailer(LEN as u64 + 1)),
        with(LEN, trailer(u64::MAX)),
        with(100, trailer(LEN as u64)),
        with(LEN + 1, trailer(LEN as u64)),
        with(LEN, trailer(LEN as u64))[1..].to_vec(),
    ];
    for (number, contents) in all.into_iter().enumerate() {
        std::fs::write(place.path(), &contents).unwrap();
        for _ in 0..2 {
            assert!(matches!(place.open(), Err(LastCopyError::UnknownContents { .. })), "{number}");
            assert_eq!(std::fs::read(place.path()).unwrap(), contents);
        }
    }
    std::fs::write(place.path(), with(LEN, trailer(LEN as u64))).unwrap();
    assert!(place.open().is_ok());
}

#[test]
fn what_is_no_regular_file_is_refused_at_once_with_what_to_do() {
    let (place, link) = (TempPath::new("kinds"), TempPath::new("kinds-link"));
    let refused = |path: &Path, what: &str| {
        let error = LastCopyFile::open(path, VOLUME, LEN as u64).unwrap_err();
        assert!(matches!(error, LastCopyError::NotAFile { .. }), "{what}: {error}");
        let text = error.to_string();
        assert!(text.contains(what) && text.contains("a last copy must be a regular file: name one"), "{text}");
    };
    let refused_by_link = |what| {
        refused(place.path(), what);
        symlink(place.path(), link.path()).unwrap();
        refused(link.path(), what);
        std::fs::remove_file(link.path()).unwrap();
    };
    // Nothing has the other end open, so opening it for only reading or only writing would block.
    rustix::fs::mknodat(rustix::fs::CWD, place.path(), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    refused_by_link("a FIFO");
    std::fs::remove_file(place.path()).unwrap();
    let listener = UnixListener::bind(place.path()).unwrap();
    refused_by_link("a socket");
    drop(listener);
    std::fs::remove_file(place.path()).unwrap();
    std::fs::create_dir(place.path()).unwrap();
    refused_by_link("a directory");
    std::fs::remove_dir(place.path()).unwrap();
    refused(Path::new("/dev/null"), "a character device");
    // A link to a file is as good as the file.
    symlink(place.path(), link.path()).unwrap();
    drop(LastCopyFile::open(link.path(), VOLUME, LEN as u64).unwrap());
    assert!(place.open().is_ok());
}

#[test]
fn a_file_is_the_last_copy_of_one_server_at_a_time() {
    let place = TempPath::new("in-use");
    let store = place.copy();
    assert!(matches!(place.open(), Err(LastCopyError::InUse { .. })));
    drop(store);
    assert!(place.open().is_ok());
}

#[test]
fn a_file_that_is_opened_says_that_it_is_not_complete_until_all_is_copied() {
    let place = TempPath::new("opened");
    let mut store = place.copy();
    assert_eq!(says_complete(&std::fs::read(place.path()).unwrap()), Some(false));
    run_until_idle(&mut store);
    assert!(store.is_complete());
    drop(store);
    assert_eq!(says_complete(&std::fs::read(place.path()).unwrap()), Some(true));
    let file = place.open().unwrap();
    assert_eq!(says_complete(&std::fs::read(place.path()).unwrap()), Some(false));
    let store = wrap(Remote::new(), file, &ManualClock::new());
    assert!(!store.is_complete());
}

#[test]
fn a_file_that_is_cut_short_is_given_up_and_is_no_whole_copy_any_more() {
    let place = TempPath::new("fails");
    let mut store = place.copy();
    run_until_idle(&mut store);
    assert!(store.is_complete());
    std::fs::File::options().write(true).open(place.path()).unwrap().set_len(0).unwrap();
    store.inner_mut().donors = DonorState::Gone;
    assert!(read(&mut store, 0, 5).is_err());
    assert!(store.given_up().is_some() && !store.is_complete());
    assert_eq!(says_complete(&std::fs::read(place.path()).unwrap()), Some(false));
}

#[test]
fn the_file_is_the_devices_bytes() {
    let place = TempPath::new("bytes");
    let mut store = place.copy();
    write(&mut store, 300_000, b"written").unwrap();
    run_until_idle(&mut store);
    let (_, synced) = store.into_inner();
    synced.unwrap();
    let file = std::fs::File::open(place.path()).unwrap();
    let mut bytes = [0; 9];
    file.read_exact_at(&mut bytes, 299_999).unwrap();
    assert_eq!(&bytes, b"\0written\0");
    assert_eq!(file.metadata().unwrap().len(), (LEN + TRAILER) as u64);
}
