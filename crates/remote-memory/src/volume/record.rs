//! A volume's record: what its voters keep of it, and whom a new writer has to ask.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

const MAGIC: u64 = u64::from_le_bytes(*b"SinewVol");
const FORMAT: u64 = 2;
const SECRETS: RapidSecrets = RapidSecrets::seed_cpp(MAGIC);

/// The number of the volume with this name, as people call it.
pub fn id_of(name: &str) -> u64 {
    const SECRETS: RapidSecrets = RapidSecrets::seed_cpp(u64::from_le_bytes(*b"SinewVNm"));
    rapidhash_v3_inline::<true, false, false>(name.as_bytes(), &SECRETS)
}

/// A donor's name, which it has in each of its runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DonorId(pub u64);

/// A donor in one of its runs. One that has started again has forgotten its votes, and is no voter any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Voter {
    /// Who.
    pub donor: DonorId,
    /// In which run.
    pub incarnation: u64,
}

/// A copy of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Who has it.
    pub donor: DonorId,
    /// In which run.
    pub incarnation: u64,
    /// The slab.
    pub slab: u64,
}

/// What a volume is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its name.
    pub volume: u64,
    /// Drawn by lot when it was made, so that nobody takes another volume of its name for it.
    pub number: u64,
    /// The writer's.
    pub epoch: u32,
    /// Grows with each record of a writer.
    pub generation: u64,
    /// Logical pages.
    pub pages: u64,
    /// Slots of each segment.
    pub slots: u32,
    /// Copies that each segment should have.
    pub copies: u32,
    /// Who votes.
    pub voters: Vec<Voter>,
    /// Of each segment, the copies that hold all that was acknowledged.
    pub segments: Vec<Vec<Member>>,
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the volume's record is damaged, or of another version of this program")]
pub struct BadRecord;

impl Record {
    /// As bytes.
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

    /// From bytes.
    ///
    /// # Errors
    ///
    /// [`BadRecord`].
    pub fn read(bytes: &[u8]) -> Result<Self, BadRecord> {
        let (words, rest) = bytes.as_chunks::<8>();
        let (sum, words) = words.split_last().ok_or(BadRecord)?;
        let body = &bytes[..words.len() * 8];
        if !rest.is_empty() || rapidhash_v3_inline::<true, false, false>(body, &SECRETS) != u64::from_le_bytes(*sum) {
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
        Ok(Self { volume, number, epoch, generation, pages, slots, copies, voters, segments })
    }

    /// Which of two is later.
    pub fn order(&self) -> (u32, u64) {
        (self.epoch, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
