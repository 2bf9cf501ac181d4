//! Tests of the journal: crashes at every write, damage, missing files and full disks.

use proptest::prelude::*;
use sinew_fabric::{Generator, SeededGenerator};

use super::log::RESERVE_LEN_MIN;
use super::*;
use crate::disk::{Fault, HostDisk, SimDisk};

/// All that has happened according to a journal, record by record. A snapshot is a list of records.
fn history<D>(opened: &Opened<D>) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> =
        opened.snapshot.as_ref().map_or(Vec::new(), |bytes| postcard::from_bytes(bytes).unwrap());
    all.extend(opened.records.iter().cloned());
    all
}

fn snapshot(history: &[Vec<u8>]) -> Vec<u8> {
    postcard::to_allocvec(history).unwrap()
}

/// Acts as an owner that appends, syncs and snapshots for twelve steps or until it crashes. Returns whether it crashed,
/// and updates `happened`, which is all that has happened, and `kept`, which is how much of it was made durable.
fn live(disk: &SimDisk, seed: u64, happened: &mut Vec<Vec<u8>>, kept: &mut usize) -> bool {
    let mut random = SeededGenerator::new(seed);
    let mut go_on = || -> Result<(), JournalError> {
        let opened = Journal::open(disk.clone(), seed)?;
        let found = history(&opened);
        assert!(found.len() >= *kept, "only {} of {kept} records that were made to last are there", found.len());
        assert!(happened.starts_with(&found), "a record is there that never happened");
        happened.truncate(found.len());
        // The owner acts on what it finds, so none of that may be gone later.
        *kept = found.len();
        let mut journal = opened.journal;
        if opened.snapshot.is_none() {
            journal.replace(&snapshot(&[]))?;
        }
        // A snapshot that is being written, and how much of what has happened it and its log have.
        let mut writing: Option<(Vec<u8>, usize)> = None;
        for _ in 0..12 {
            match random.next_u64() % 12 {
                0 => {
                    journal.replace(&snapshot(happened))?;
                    (*kept, writing) = (happened.len(), None);
                }
                1 => {
                    let bytes = snapshot(happened);
                    journal.begin_replacement(&bytes)?;
                    (*kept, writing) = (happened.len(), Some((bytes, happened.len())));
                }
                2..5 => {
                    let Some((bytes, repeated)) = &mut writing else { continue };
                    if !journal.continue_replacement(bytes, 1 + random.next_u64() as usize % 2000)? {
                        continue;
                    }
                    let some = (*repeated + random.next_u64() as usize % 4).min(happened.len());
                    journal.repeat_records(&happened[*repeated..some])?;
                    *repeated = some;
                    if some == happened.len() {
                        journal.end_replacement()?;
                        assert!(!journal.is_replacing());
                        (*kept, writing) = (happened.len(), None);
                    }
                }
                5..8 => {
                    journal.sync()?;
                    *kept = happened.len();
                }
                _ => {
                    let record = vec![happened.len() as u8; (random.next_u64() % 1500) as usize];
                    journal.reserve(1, record.len())?;
                    journal.append(&record);
                    happened.push(record);
                }
            }
        }
        Ok(())
    };
    match go_on() {
        Ok(()) => false,
        Err(JournalError::Disk(DiskError::Failed(_))) if disk.has_crashed() => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_crash_at_any_write_loses_nothing_that_was_made_to_last() {
    let mut crashes = 0;
    for seed in 0..40 {
        let lives = |at: u64| {
            let (disk, mut happened, mut kept) = (SimDisk::new(), Vec::new(), 0);
            assert!(!live(&disk, seed, &mut happened, &mut kept), "nothing fails yet");
            disk.fail_at(at, Fault::Crash);
            let crashed = live(&disk, seed + 1000, &mut happened, &mut kept);
            // A second crash, in the recovery from the first.
            disk.crash(seed * 1000 + at);
            disk.fail_at(1 + at % 5, Fault::Crash);
            live(&disk, seed + 2000, &mut happened, &mut kept);
            disk.crash(seed * 1001 + at);
            live(&disk, seed + 3000, &mut happened, &mut kept);
            crashed
        };
        crashes += (1..).take_while(|at| lives(*at)).count();
    }
    assert!(crashes > 400, "{crashes} crashes");
}

fn filled(count: u8) -> SimDisk {
    let disk = SimDisk::new();
    let mut journal = Journal::open(disk.clone(), 5).unwrap().journal;
    journal.replace(&snapshot(&[])).unwrap();
    for record in 0..count {
        journal.append(&[record; 100]);
        journal.sync().unwrap();
    }
    disk
}

const RECORD_LEN: usize = codec::HEADER + 100;

proptest! {
    #[test]
    fn a_log_that_is_damaged_in_its_middle_is_not_used(at in 0..9 * RECORD_LEN) {
        let disk = filled(10);
        disk.corrupt(&log_name(1), at);
        let expected = JournalError::Corrupt { file: log_name(1), at: (at / RECORD_LEN * RECORD_LEN) as u64 };
        prop_assert_eq!(Journal::open(disk.clone(), 6).unwrap_err(), expected);
        disk.corrupt(&log_name(1), at);
        prop_assert_eq!(Journal::open(disk, 6).unwrap().records.len(), 10, "the log was left as it was");
    }

    #[test]
    fn a_snapshot_that_is_damaged_is_not_used(at in 0..codec::HEADER) {
        let disk = filled(1);
        disk.corrupt(&snapshot_name(1), at);
        prop_assert_eq!(Journal::open(disk, 6).unwrap_err(), JournalError::BadSnapshot { file: snapshot_name(1) });
    }

    #[test]
    fn a_snapshot_of_another_format_is_left_alone_and_not_called_damaged(
        found in 2_u32..,
        rest in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut disk = filled(1);
        disk.create(&snapshot_name(1)).unwrap();
        disk.append(&snapshot_name(1), &[b"SnFs", &found.to_le_bytes()[..], &rest].concat()).unwrap();
        let expected = JournalError::OtherFormat { file: snapshot_name(1), found };
        prop_assert_eq!(Journal::open(disk, 6).unwrap_err(), expected);
    }

    #[test]
    fn a_log_may_be_cut_off_anywhere(len in 0..10 * RECORD_LEN) {
        let mut disk = filled(10);
        disk.truncate(&log_name(1), len as u64).unwrap();
        let opened = Journal::open(disk.clone(), 6).unwrap();
        prop_assert_eq!((opened.records.len(), opened.truncated_len), (len / RECORD_LEN, (len % RECORD_LEN) as u64));
        let mut journal = opened.journal;
        journal.append(b"more");
        journal.sync().unwrap();
        let records = Journal::open(disk, 7).unwrap().records;
        prop_assert_eq!(records.len(), len / RECORD_LEN + 1);
    }
}

#[test]
fn what_looks_like_a_record_inside_a_record_is_none() {
    let disk = filled(2);
    let mut journal = Journal::open(disk.clone(), 6).unwrap().journal;
    // Somebody who does not know the key has a record stored that contains a forged one, which claims that all before
    // it were durable.
    let mut lure = vec![0; 600];
    codec::write_record(&mut lure, codec::Key(6), (4, 3), 0, b"lure");
    lure.extend([0; 600]);
    journal.append(&lure);
    journal.sync().unwrap();
    // The outer record is damaged, as if it had been written in part.
    disk.corrupt(&log_name(1), 2 * RECORD_LEN + codec::HEADER);
    let opened = Journal::open(disk, 7).unwrap();
    assert_eq!((opened.records.len(), opened.truncated_len), (2, (codec::HEADER + lure.len()) as u64));
}

/// Each of these would have half of the record checked, which takes hours.
#[test]
fn a_torn_record_full_of_what_looks_like_long_records_is_cut_off_soon() {
    for (numbers, len) in [((1 << 40, 99), 16 << 20), ((4, 3), 4 << 20)] {
        let disk = filled(2);
        let mut journal = Journal::open(disk.clone(), 6).unwrap().journal;
        let mut lure = Vec::new();
        while lure.len() < len {
            let begin = lure.len();
            codec::write_record(&mut lure, codec::Key(6), numbers, 0, b"");
            lure[begin + 4..begin + 8].copy_from_slice(&(len as u32 / 2).to_le_bytes());
        }
        journal.append(&lure);
        journal.sync().unwrap();
        disk.corrupt(&log_name(1), 2 * RECORD_LEN + codec::HEADER);
        let opened = Journal::open(disk.clone(), 7).unwrap();
        assert_eq!((opened.records.len(), opened.truncated_len), (2, (codec::HEADER + lure.len()) as u64));
        // A record behind it that is right shows that it was made durable.
        let mut journal = Journal::open(disk.clone(), 7).unwrap().journal;
        journal.append(&lure);
        journal.sync().unwrap();
        journal.append(b"later");
        journal.sync().unwrap();
        disk.corrupt(&log_name(1), 2 * RECORD_LEN + codec::HEADER);
        assert!(matches!(Journal::open(disk, 7), Err(JournalError::Corrupt { .. })));
    }
}

#[test]
fn files_that_are_missing_are_named() {
    let mut disk = filled(1);
    disk.remove(&log_name(1)).unwrap();
    let expected = JournalError::Missing { missing: log_name(1), found: snapshot_name(1) };
    assert_eq!(Journal::open(disk, 6).unwrap_err(), expected);
    let mut disk = filled(1);
    disk.remove(&snapshot_name(1)).unwrap();
    let expected = JournalError::Missing { missing: snapshot_name(1), found: log_name(1) };
    assert_eq!(Journal::open(disk, 6).unwrap_err(), expected);
}

#[test]
fn on_a_full_disk_what_was_reserved_is_kept_and_nothing_more_is_taken() {
    let disk = filled(1);
    let mut journal = Journal::open(disk.clone(), 6).unwrap().journal;
    journal.reserve(2, 2000).unwrap();
    disk.fail_at(1, Fault::Full);
    journal.append(&[1; 1000]);
    journal.append(&[2; 1000]);
    journal.sync().unwrap();
    // Room is reserved in large pieces, and most of this one is left.
    assert_eq!(journal.reserve(1, RESERVE_LEN_MIN as usize), Err(DiskError::Full));
    assert_eq!(journal.replace(&[0; 10]), Err(DiskError::Full));
    assert_eq!(journal.error(), None, "the old snapshot and its log are as they were");
    disk.heal();
    journal.reserve(1, RESERVE_LEN_MIN as usize).unwrap();
    journal.replace(&snapshot(&[b"all".to_vec()])).unwrap();
    assert_eq!(history(&Journal::open(disk, 7).unwrap()), [b"all"]);
}

#[test]
fn a_snapshot_for_which_the_disk_has_no_room_is_given_up_at_any_step() {
    for at in 1..12 {
        let disk = filled(2);
        let mut journal = Journal::open(disk.clone(), 6).unwrap().journal;
        journal.reserve(1, 1000).unwrap();
        disk.fail_at(at, Fault::Full);
        let new = snapshot(&[b"all".to_vec()]);
        let replaced = (|| {
            journal.begin_replacement(&new)?;
            journal.append(&[3; 1000]);
            while !journal.continue_replacement(&new, 2)? {}
            journal.repeat_records([[3; 1000]])?;
            journal.end_replacement()
        })();
        assert!(journal.error().is_none() && !journal.is_replacing(), "write {at}");
        if replaced == Err(DiskError::Full) {
            journal.sync().unwrap();
            drop(journal);
            let kept = history(&Journal::open(disk, 7).unwrap());
            let is_old = kept.starts_with(&[vec![0; 100], vec![1; 100]]);
            assert!(is_old && kept.get(2).is_none_or(|record| *record == [3; 1000]), "write {at}");
        } else {
            replaced.unwrap();
            drop(journal);
            assert_eq!(history(&Journal::open(disk, 7).unwrap()), [b"all".to_vec(), vec![3; 1000]], "write {at}");
        }
    }
}

#[test]
fn room_for_a_snapshot_can_be_asked_for_and_is_not_kept() {
    let disk = filled(2);
    let mut journal = Journal::open(disk.clone(), 6).unwrap().journal;
    let names = disk.clone().names().unwrap();
    journal.check_room(1 << 20).unwrap();
    disk.fail_at(1, Fault::Full);
    assert_eq!(journal.check_room(1), Err(DiskError::Full));
    assert_eq!((journal.error(), disk.clone().names().unwrap()), (None, names));
    disk.heal();
    // A snapshot that is being written stays.
    let new = snapshot(&[b"all".to_vec()]);
    journal.begin_replacement(&new).unwrap();
    journal.check_room(1).unwrap();
    assert!(journal.continue_replacement(&new, new.len()).unwrap());
    journal.end_replacement().unwrap();
    drop(journal);
    assert_eq!(history(&Journal::open(disk, 7).unwrap()), [b"all"]);
}

#[test]
fn after_a_failure_nothing_is_taken() {
    let disk = filled(1);
    let mut journal = Journal::open(disk.clone(), 6).unwrap().journal;
    disk.fail_at(1, Fault::Crash);
    journal.append(b"lost");
    assert!(journal.sync().is_err());
    disk.crash(1);
    assert!(journal.error().is_some() && journal.sync().is_err() && journal.reserve(1, 1).is_err());
    assert!(journal.replace(b"").is_err());
}

#[test]
fn a_directory_keeps_what_happened() {
    let directory = tempfile::tempdir().unwrap();
    for life in 0..5_u8 {
        let opened = Journal::open(HostDisk::open(directory.path()).unwrap(), 5).unwrap();
        let found = history(&opened);
        assert_eq!(found, (0..life).map(|life| vec![life; 10]).collect::<Vec<_>>());
        let mut journal = opened.journal;
        if life % 2 == 0 {
            journal.replace(&snapshot(&found)).unwrap();
        }
        journal.reserve(1, 10).unwrap();
        journal.append(&[life; 10]);
        journal.sync().unwrap();
    }
}
