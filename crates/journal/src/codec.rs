//! Snapshots and records as bytes.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

/// Length of a record's header, and of a snapshot's, in bytes.
pub(super) const HEADER: usize = 40;

const SNAPSHOT: u32 = u32::from_le_bytes(*b"SnFs");
const RECORD: u32 = u32::from_le_bytes(*b"SnFr");
/// Format of the snapshot and its log.
pub(super) const FORMAT: u32 = 1;
/// Offset of the checksum in either header.
const CHECKSUM_OFFSET: usize = 32;
/// Bytes read, at most, to find valid records after a wrong one, as a multiple of the bytes from the wrong one on.
const CHECKED_TIMES: usize = 64;

/// Key of the checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(pub u64);

impl Key {
    fn checksum(self, header: &[u8], body: &[u8]) -> u64 {
        let secrets = RapidSecrets::seed(self.0);
        let head = rapidhash_v3_inline::<true, false, false>(header, &secrets);
        let body = rapidhash_v3_inline::<true, false, false>(body, &secrets);
        rapidhash_v3_inline::<true, false, false>(&[head.to_le_bytes(), body.to_le_bytes()].concat(), &secrets)
    }
}

pub(super) struct Snapshot {
    pub key: Key,
    pub sequence: u64,
    pub sum: u64,
    pub payload: Vec<u8>,
}

pub(super) struct SnapshotHeader {
    pub bytes: [u8; HEADER],
    pub sum: u64,
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

pub(super) fn snapshot_header(key: Key, sequence: u64, payload: &[u8]) -> SnapshotHeader {
    let mut bytes = [0; HEADER];
    bytes[0..4].copy_from_slice(&SNAPSHOT.to_le_bytes());
    bytes[4..8].copy_from_slice(&FORMAT.to_le_bytes());
    bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
    bytes[16..24].copy_from_slice(&key.0.to_le_bytes());
    bytes[24..32].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    let sum = key.checksum(&bytes[..CHECKSUM_OFFSET], payload);
    bytes[CHECKSUM_OFFSET..].copy_from_slice(&sum.to_le_bytes());
    SnapshotHeader { bytes, sum }
}

/// Reads a snapshot; returns none if the bytes are no snapshot or are damaged.
pub(super) fn read_snapshot(bytes: &[u8]) -> Option<Snapshot> {
    let (header, payload) = bytes.split_at_checked(HEADER)?;
    let (sequence, key, sum) = (read_u64(header, 8)?, Key(read_u64(header, 16)?), read_u64(header, CHECKSUM_OFFSET)?);
    let is_one = read_u32(header, 0)? == SNAPSHOT
        && read_u32(header, 4)? == FORMAT
        && read_u64(header, 24)? == payload.len() as u64
        && sum == key.checksum(&header[..CHECKSUM_OFFSET], payload);
    is_one.then(|| Snapshot { key, sequence, sum, payload: payload.to_vec() })
}

/// The format of a snapshot that another release wrote; none if the bytes are no snapshot, or if they are a valid
/// snapshot once the format is set to ours: then this release wrote it, and only the format field is damaged.
pub(super) fn other_format(bytes: &[u8]) -> Option<u32> {
    let format = read_u32(bytes, 4).filter(|format| read_u32(bytes, 0) == Some(SNAPSHOT) && *format != FORMAT)?;
    let mut ours = bytes.to_vec();
    ours[4..8].copy_from_slice(&FORMAT.to_le_bytes());
    read_snapshot(&ours).is_none().then_some(format)
}

/// Appends a record with number `sequence`, written when the record with number `synced` was known to be durable.
/// Returns its checksum.
///
/// # Panics
///
/// If the record has 4 GiB or more.
pub(super) fn write_record(
    bytes: &mut Vec<u8>,
    key: Key,
    (sequence, synced): (u64, u64),
    before: u64,
    record: &[u8],
) -> u64 {
    let start = bytes.len();
    bytes.extend(RECORD.to_le_bytes());
    let len = u32::try_from(record.len()).expect("a record is shorter than 4 GiB");
    bytes.extend(len.to_le_bytes());
    bytes.extend(sequence.to_le_bytes());
    bytes.extend(synced.to_le_bytes());
    bytes.extend(before.to_le_bytes());
    let sum = key.checksum(&bytes[start..], record);
    bytes.extend(sum.to_le_bytes());
    bytes.extend(record);
    sum
}

struct Record<'a> {
    sequence: u64,
    before: u64,
    sum: u64,
    payload: &'a [u8],
}

fn read_record(bytes: &[u8], key: Key) -> Option<Record<'_>> {
    if read_u32(bytes, 0)? != RECORD {
        return None;
    }
    let header = bytes.get(..HEADER)?;
    let payload = bytes[HEADER..].get(..read_u32(header, 4)? as usize)?;
    let sum = read_u64(header, CHECKSUM_OFFSET)?;
    let record = Record { sequence: read_u64(header, 8)?, before: read_u64(header, 24)?, sum, payload };
    (sum == key.checksum(&header[..CHECKSUM_OFFSET], payload)).then_some(record)
}

/// Records of a log, up to its end or to the first record that is not right.
pub(super) struct Scan {
    pub records: Vec<Vec<u8>>,
    /// Number of the last record, or that of the snapshot if there is none.
    pub sequence: u64,
    pub last_sum: u64,
    /// Length of the log up to the end of the last record, in bytes.
    pub len: u64,
}

/// Reads the records of a log that follows a snapshot with this number and checksum. The error is the offset of a
/// record that is wrong although a later one shows that it was made durable.
pub(super) fn scan(bytes: &[u8], key: Key, sequence: u64, sum: u64) -> Result<Scan, u64> {
    let mut scan = Scan { records: Vec::new(), sequence, last_sum: sum, len: 0 };
    let mut rest = bytes;
    while let Some(record) = read_record(rest, key) {
        if record.sequence != scan.sequence + 1 || record.before != scan.last_sum {
            break;
        }
        scan.records.push(record.payload.to_vec());
        (scan.sequence, scan.last_sum) = (record.sequence, record.sum);
        rest = &rest[HEADER + record.payload.len()..];
    }
    scan.len = (bytes.len() - rest.len()) as u64;
    let lost = scan.sequence + 1;
    // A record may hold any number of bytes that look like records. So only candidates whose numbers may be later ones
    // are checked, the last ones first, and no more than `CHECKED_TIMES` times the remaining bytes.
    let mut left = rest.len().saturating_mul(CHECKED_TIMES);
    let last = lost + (rest.len() / HEADER) as u64;
    let is_later = |bytes: &[u8]| {
        let (sequence, synced) = (read_u64(bytes, 8), read_u64(bytes, 16));
        sequence
            .is_some_and(|sequence| sequence <= last && synced.is_some_and(|synced| (lost..sequence).contains(&synced)))
    };
    let mut has_time_for = |bytes: &[u8]| {
        let len = read_u32(bytes, 4).map_or(0, |len| len as usize).min(bytes.len());
        left = left.saturating_sub(HEADER + len);
        left > 0
    };
    let was_kept = memchr::memmem::rfind_iter(rest, &RECORD.to_le_bytes())
        .map(|at| &rest[at..])
        .filter(|bytes| is_later(bytes))
        .take_while(|bytes| has_time_for(bytes))
        .any(|bytes| read_record(bytes, key).is_some());
    if was_kept { Err(scan.len) } else { Ok(scan) }
}
