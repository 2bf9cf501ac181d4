//! A volume's record, which its voters keep; it tells a new writer which donors to ask.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

use super::slot::Shape;

/// Donors of one volume, at most.
pub const DONORS_MAX: usize = 64;
/// Longest record, in bytes: far longer than any that a donor keeps by default.
const LEN_MAX: usize = 4 << 20;
/// Slots of a segment, at most; its slabs are a little longer than 1 TiB then.
const SLOTS_MAX: u32 = 1 << 28;
/// Slots of a volume, at most.
const ALL_SLOTS_MAX: u64 = 1 << 32;

const MAGIC: u64 = u64::from_le_bytes(*b"SinewVol");
const FORMAT: u64 = 2;
const SECRETS: RapidSecrets = RapidSecrets::seed_cpp(MAGIC);

/// Number of the volume with this name.
pub fn id_of(name: &str) -> u64 {
    const SECRETS: RapidSecrets = RapidSecrets::seed_cpp(u64::from_le_bytes(*b"SinewVNm"));
    rapidhash_v3_inline::<true, false, false>(name.as_bytes(), &SECRETS)
}

/// Id of a donor, the same in each of its runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DonorId(pub u64);

/// A donor in one of its runs. A donor that has restarted has forgotten its votes, so it is no voter any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Voter {
    /// The donor.
    pub donor: DonorId,
    /// Its run.
    pub incarnation: u64,
}

/// A copy of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The donor that has it.
    pub donor: DonorId,
    /// The donor's run.
    pub incarnation: u64,
    /// Number of the slab.
    pub slab: u64,
}

/// The composition of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the volume, derived from its name.
    pub volume: u64,
    /// Drawn at random when the volume was made, so that another volume of the same name is not taken for it.
    pub number: u64,
    /// Epoch of the writer.
    pub epoch: u32,
    /// Grows with each record of a writer.
    pub generation: u64,
    /// Logical pages.
    pub pages: u64,
    /// Slots of each segment.
    pub slots: u32,
    /// Copies that each segment should have.
    pub copies: u32,
    /// The voters.
    pub voters: Vec<Voter>,
    /// For each segment, the copies that hold every acknowledged write.
    pub segments: Vec<Vec<Member>>,
}

/// Error for bytes that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the volume's record is damaged, or of another version of this program")]
pub struct BadRecord;

impl Record {
    /// The record as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut words = vec![
            MAGIC,
            FORMAT,
            self.volume,
            self.number,
            u64::from(self.epoch),
            self.generation,
            self.pages,
            u64::from(self.slots),
            u64::from(self.copies),
            self.voters.len() as u64,
        ];
        words.extend(self.voters.iter().flat_map(|voter| [voter.donor.0, voter.incarnation]));
        words.push(self.segments.len() as u64);
        for members in &self.segments {
            words.push(members.len() as u64);
            words.extend(members.iter().flat_map(|member| [member.donor.0, member.incarnation, member.slab]));
        }
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let sum = rapidhash_v3_inline::<true, false, false>(&bytes, &SECRETS);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    /// Parses a record.
    ///
    /// # Errors
    ///
    /// [`BadRecord`] if the bytes are no record of this format.
    pub fn read(bytes: &[u8]) -> Result<Self, BadRecord> {
        let (words, rest) = bytes.as_chunks::<8>();
        let (sum, words) = words.split_last().ok_or(BadRecord)?;
        let body = &bytes[..words.len() * 8];
        if !rest.is_empty() || rapidhash_v3_inline::<true, false, false>(body, &SECRETS) != u64::from_le_bytes(*sum) {
            return Err(BadRecord);
        }
        if bytes.len() > LEN_MAX {
            return Err(BadRecord);
        }
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let mut next = || words.next().ok_or(BadRecord);
        let half = |word: u64| u32::try_from(word).map_err(|_| BadRecord);
        if next()? != MAGIC || next()? != FORMAT {
            return Err(BadRecord);
        }
        let (volume, number) = (next()?, next()?);
        let (epoch, generation, pages) = (half(next()?)?, next()?, next()?);
        let (slots, copies, voters) = (half(next()?)?, half(next()?)?, next()?);
        let voters = (0..voters)
            .map(|_| Ok(Voter { donor: DonorId(next()?), incarnation: next()? }))
            .collect::<Result<Vec<_>, BadRecord>>()?;
        let segments = (0..next()?)
            .map(|_| {
                (0..next()?)
                    .map(|_| Ok(Member { donor: DonorId(next()?), incarnation: next()?, slab: next()? }))
                    .collect()
            })
            .collect::<Result<Vec<Vec<_>>, BadRecord>>()?;
        if words.next().is_some() {
            return Err(BadRecord);
        }
        let record = Self { volume, number, epoch, generation, pages, slots, copies, voters, segments };
        if record.is_sound() { Ok(record) } else { Err(BadRecord) }
    }

    /// Whether there can be such a volume. A donor may have made the record up, and whoever opens the volume makes room
    /// for as many slots and pages as it says.
    pub(super) fn is_sound(&self) -> bool {
        let segments = self.segments.len() as u64;
        let are_distinct = |donors: &[DonorId]| {
            let is_new = |(index, donor): (usize, &DonorId)| !donors[..index].contains(donor);
            donors.len() <= DONORS_MAX && donors.iter().enumerate().all(is_new)
        };
        let voters: Vec<DonorId> = self.voters.iter().map(|voter| voter.donor).take(DONORS_MAX + 1).collect();
        let have_distinct = |members: &Vec<Member>| {
            are_distinct(&members.iter().map(|member| member.donor).take(DONORS_MAX + 1).collect::<Vec<_>>())
        };
        self.slots <= SLOTS_MAX
            && segments * u64::from(self.slots) <= ALL_SLOTS_MAX
            // A volume may have lost its segments.
            && (segments == 0 || self.pages <= segments * u64::from(Shape { slots: self.slots }.pages()))
            && are_distinct(&voters)
            && self.segments.iter().all(have_distinct)
    }

    /// Whether it is the record of a removed volume, which keeps earlier records from counting.
    pub fn is_removed(&self) -> bool {
        self.pages == 0 && self.segments.is_empty()
    }

    /// Makes it the record of a removed volume.
    pub fn remove(&mut self) {
        self.pages = 0;
        self.segments.clear();
    }

    /// Key that orders records: the later one is greater.
    pub fn order(&self) -> (u32, u64) {
        (self.epoch, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_a_removed_volume_says_so_and_is_as_short_as_donors_expect() {
        let voters = (0..10).map(|donor| Voter { donor: DonorId(donor), incarnation: 5 }).collect();
        let segments = vec![vec![Member { donor: DonorId(9), incarnation: 5, slab: 1 }]; 20];
        let mut record =
            Record { volume: 1, number: 2, epoch: 3, generation: 4, pages: 5, slots: 6, copies: 1, voters, segments };
        assert!(!record.is_removed());
        record.remove();
        assert!(record.is_removed() && Record::read(&record.to_bytes()).is_ok_and(|read| read.is_removed()));
        assert!(record.to_bytes().len() <= 256);
    }

    #[test]
    fn a_record_comes_back_as_it_was_and_nothing_else_does() {
        let member = |donor, slab| Member { donor: DonorId(donor), incarnation: 5, slab };
        let record = Record {
            volume: 1,
            number: u64::MAX,
            epoch: 2,
            generation: 3,
            pages: 4,
            slots: 5,
            copies: 2,
            voters: vec![Voter { donor: DonorId(9), incarnation: 5 }],
            segments: vec![vec![member(9, 1), member(8, 2)], vec![]],
        };
        let bytes = record.to_bytes();
        assert_eq!(Record::read(&bytes), Ok(record));
        for len in 0..bytes.len() {
            assert_eq!(Record::read(&bytes[..len]), Err(BadRecord), "{len}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            assert_eq!(Record::read(&changed), Err(BadRecord), "{at}");
        }
    }

    #[test]
    fn a_record_of_a_volume_that_nobody_can_have_made_is_refused_although_its_checksum_is_right() {
        let member = |donor: u64| Member { donor: DonorId(donor), incarnation: 2, slab: 3 };
        let voter = |donor: u64| Voter { donor: DonorId(donor), incarnation: 2 };
        let record = |pages, slots, voters: usize, segments, members: usize| Record {
            volume: 1,
            number: 2,
            epoch: u32::MAX,
            generation: u64::MAX,
            pages,
            slots,
            copies: u32::MAX,
            voters: (0..voters as u64).map(voter).collect(),
            segments: vec![(0..members as u64).map(member).collect(); segments],
        };
        let is_good = |record: Record| Record::read(&record.to_bytes()).is_ok();
        let pages = u64::from(Shape { slots: 1000 }.pages());
        assert!(is_good(record(2 * pages, 1000, DONORS_MAX, 2, DONORS_MAX)));
        assert!(!is_good(record(2 * pages + 1, 1000, 1, 2, 1)), "more pages than its segments have");
        assert!(!is_good(record(u64::MAX, 1000, 1, 2, 1)));
        assert!(!is_good(record(2 * pages, 1000, DONORS_MAX + 1, 2, 1)), "more voters than a volume has donors");
        assert!(!is_good(record(2 * pages, 1000, 1, 2, DONORS_MAX + 1)), "more copies than a volume has donors");
        assert!(is_good(record(pages, SLOTS_MAX, 1, 1, 1)) && !is_good(record(pages, SLOTS_MAX + 1, 1, 1, 1)));
        assert!(is_good(record(1, SLOTS_MAX, 1, 16, 1)) && !is_good(record(1, SLOTS_MAX, 1, 17, 1)));
        assert!(is_good(record(1, 2, 1, 10_000, 1)) && !is_good(record(1, 2, 1, LEN_MAX / 8, 1)));
        assert!(is_good(record(pages, 1000, 1, 0, 0)), "a volume whose segments are gone");
        assert!((0..3).all(|slots| !is_good(record(u64::MAX, slots, 1, 1, 1))));
        let two_votes = Record { voters: vec![voter(1); 2], ..record(1, 1000, 1, 1, 1) };
        let two_copies = Record { segments: vec![vec![member(1); 2]], ..record(1, 1000, 1, 1, 1) };
        assert!(!is_good(two_votes) && !is_good(two_copies), "of one donor");
    }
}
