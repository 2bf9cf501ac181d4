//! A donor as a state machine.

use std::collections::BTreeMap;
use std::ops::Range;

use super::clients::Clients;
use super::protocol::{Answer, Call, LentSlab, Refusal, Stored, VolumeSummary};
use super::slabs::{ALIGN, NoSlab, Slabs};

/// Lanes that one client can have at once.
pub const LANES_MAX: u8 = 16;

/// Volumes that one [`Answer::Volumes`] lists, at most.
pub const VOLUMES_PER_ANSWER: usize = 256;
/// Longest record of a volume that was [removed](crate::volume::Removal), in bytes: it lists ten voters, and no copies.
const EMPTY_RECORD_LEN_MAX: usize = 256;

/// Limits on what callers can make a donor keep.
#[derive(Clone, Copy, Debug)]
pub struct DonorLimits {
    /// Volumes known at once that have slabs, clients, or a record longer than that of a removed volume.
    pub volumes_max: usize,
    /// Volumes known at once besides those, such as removed ones. They are kept until the donor ends: if it forgot
    /// them, an old record of another voter could bring a removed volume back.
    pub empty_volumes_max: usize,
    /// Longest record, in bytes.
    pub record_len_max: usize,
    /// Lanes admitted at once, over the clients of all volumes; and ranges of numbers of expelled clients that are kept
    /// for each volume.
    pub clients_max: usize,
}

impl Default for DonorLimits {
    fn default() -> Self {
        Self { volumes_max: 4096, empty_volumes_max: 65_536, record_len_max: 256 << 10, clients_max: 4096 }
    }
}

const TOO_MANY_VOLUMES: &str = "the donor has as many volumes as it can take";

#[derive(Default)]
struct VolumeState {
    /// Highest epoch that got this donor's vote.
    promised: u32,
    /// Epoch that has access.
    fence: u32,
    /// Session of the last fence: those of earlier fences give no access any more.
    session: u64,
    /// Heartbeats of the writer that has access; 0 once it has left.
    beats: u64,
    stored: Option<Stored>,
    clients: Clients,
    /// Bytes of its slabs.
    bytes: u64,
    /// Whether it is one of those that [`DonorLimits::volumes_max`] limits.
    is_counted: bool,
}

impl VolumeState {
    fn summary(&self, volume: u64) -> VolumeSummary {
        let Self { fence, bytes, beats, .. } = *self;
        VolumeSummary { volume, fence, bytes, beats, has_record: self.stored.is_some() }
    }

    fn is_empty(&self) -> bool {
        let record_len = self.stored.as_ref().map_or(0, |stored| stored.record.len());
        self.bytes == 0 && self.clients.is_empty() && record_len <= EMPTY_RECORD_LEN_MAX
    }
}

/// A donor's state: which slabs belong to which volume, who may use them, and the votes.
pub struct Donor {
    incarnation: u64,
    slabs: Slabs,
    volumes: BTreeMap<u64, VolumeState>,
    /// Volumes that are counted.
    counted: usize,
    sessions: u64,
    /// Lanes of clients admitted now, over all volumes.
    admitted: usize,
    is_withdrawing: bool,
    limits: DonorLimits,
}

impl std::fmt::Debug for Donor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Donor").field("volumes", &self.volumes.len()).finish_non_exhaustive()
    }
}

impl Donor {
    /// Makes a donor of `len` bytes. `incarnation` is drawn at random, so that this run of the donor is not taken for
    /// an earlier one.
    pub fn new(incarnation: u64, len: u64, limits: DonorLimits) -> Self {
        Self {
            incarnation,
            slabs: Slabs::new(len),
            volumes: BTreeMap::new(),
            counted: 0,
            sessions: 0,
            admitted: 0,
            is_withdrawing: false,
            limits,
        }
    }

    /// Number of this run.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Asks for the memory back: from now on the donor lends no more, and tells the volumes that hold some of it.
    pub fn begin_withdrawal(&mut self) {
        self.is_withdrawing = true;
    }

    /// Bytes lent to volumes.
    pub fn lent_bytes(&self) -> u64 {
        self.slabs.lent_bytes()
    }

    /// Slabs that overlap these bytes, each with its volume, or `None` where it is [set aside](Self::relocate).
    pub fn slabs_overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (Option<u64>, LentSlab)> {
        self.slabs.overlapping(range)
    }

    /// Slabs of a volume.
    pub fn slabs_of(&self, volume: u64) -> impl Iterator<Item = LentSlab> {
        self.slabs.slabs_of(volume)
    }

    /// Moves a slab to another place in the memory. Returns the old place and the new one; the caller copies the bytes
    /// from the first to the second. The old place is set aside, under a number of its own, until it is
    /// [released](Self::release).
    ///
    /// # Errors
    ///
    /// [`Refusal::WriterStopped`] if there is no room, or if the volume has clients, which know the old place.
    pub fn relocate(&mut self, volume: u64, slab: u64) -> Result<(LentSlab, LentSlab), Refusal> {
        let has_clients = self.volumes.get(&volume).is_some_and(|held| held.clients.admitted_lanes() > 0);
        let moved = if has_clients { None } else { self.slabs.relocate(volume, slab) };
        moved.ok_or(Refusal::WriterStopped)
    }

    /// Frees the place that was set aside under this number, once nobody can write to it any more.
    pub fn release(&mut self, slab: u64) {
        self.slabs.release(slab);
    }

    /// Bytes that can be lent: in no slab, lent or set aside, and all zero.
    pub fn free_bytes(&self) -> u64 {
        self.slabs.free_bytes()
    }

    /// Bytes that were given back and are not zeroed yet.
    pub fn zeroing_bytes(&self) -> u64 {
        self.slabs.zeroing_bytes()
    }

    /// Next bytes that were given back and are to be zeroed, at most `len_max`, rounded to pages. The caller must fill
    /// them with zeros before it handles another call: they can be lent again.
    pub fn next_to_zero(&mut self, len_max: u64) -> Option<Range<u64>> {
        self.slabs.next_to_zero(len_max)
    }

    /// Whether this session gives access to the volume's slabs: that of the last [fence](Answer::Fenced), or of a
    /// client that is still [admitted](Answer::Admitted).
    pub fn allows(&self, volume: u64, session: u64) -> bool {
        let held = self.volumes.get(&volume).filter(|_| session > 0);
        held.is_some_and(|held| held.session == session || held.clients.has_session(session))
    }

    /// Epoch that has access to a volume; 0 if none has had it yet.
    pub fn fence_of(&self, volume: u64) -> u32 {
        self.volumes.get(&volume).map_or(0, |held| held.fence)
    }

    /// Whether the client is admitted to the volume.
    pub fn is_admitted(&self, volume: u64, client: u64) -> bool {
        self.volumes.get(&volume).is_some_and(|held| held.clients.is_admitted(client))
    }

    /// Whether the bytes lie in a single slab of the volume.
    pub fn is_in_slab(&self, volume: u64, range: Range<u64>) -> bool {
        self.slabs.has(volume, &range)
    }

    /// Handles a call. After [`Answer::Fenced`], [`Answer::Admitted`] and [`Answer::Expelled`], the caller must cut off
    /// everyone who [is no longer allowed](Self::allows) before it sends the answer; before [`Call::Discard`], it must
    /// cut off everyone.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; nothing has changed then.
    pub fn handle(&mut self, call: &Call) -> Result<Answer, Refusal> {
        let incarnation = self.incarnation;
        match call {
            Call::Inspect { volume } => {
                let held = self.volumes.get(volume);
                Ok(Answer::Inspected {
                    incarnation,
                    promised: held.map_or(0, |held| held.promised.max(held.fence)),
                    stored: held.and_then(|held| held.stored.clone()),
                    beats: held.map_or(0, |held| held.beats),
                })
            }
            Call::Claim { volume, epoch } => {
                let held = self.volume_state(*volume)?;
                if *epoch <= held.promised {
                    return Err(Refusal::OlderEpoch { held: held.promised });
                }
                held.promised = *epoch;
                Ok(Answer::Inspected { incarnation, promised: *epoch, stored: held.stored.clone(), beats: held.beats })
            }
            Call::Record { volume, epoch, generation, record } => {
                if record.len() > self.limits.record_len_max {
                    return Err(Refusal::Invalid("the record is longer than this donor keeps"));
                }
                let held = self.volume_state(*volume)?;
                if *epoch < held.promised {
                    return Err(Refusal::OlderEpoch { held: held.promised });
                }
                if let Some(stored) = &held.stored
                    && stored.epoch == *epoch
                    && stored.generation > *generation
                {
                    return Err(Refusal::OlderRecord { held: stored.generation });
                }
                let is_small = record.len() <= EMPTY_RECORD_LEN_MAX;
                self.check_count(*volume, is_small)?;
                let held = self.volume_state(*volume)?;
                held.promised = *epoch;
                held.stored = Some(Stored { epoch: *epoch, generation: *generation, record: record.clone() });
                self.count(*volume);
                Ok(Answer::Recorded { incarnation })
            }
            Call::Fence { volume, epoch } => {
                let session = self.sessions + 1;
                let held = self.volume_state(*volume)?;
                if *epoch < held.fence {
                    return Err(Refusal::OlderEpoch { held: held.fence });
                }
                let removed = if *epoch > held.fence { std::mem::take(&mut held.clients).admitted_lanes() } else { 0 };
                (held.fence, held.session, held.beats) = (*epoch, session, held.beats + 1);
                self.sessions = session;
                self.admitted -= removed;
                self.count(*volume);
                Ok(Answer::Fenced { incarnation, session, slabs: self.slabs.slabs_of(*volume).collect() })
            }
            Call::Admit { volume, epoch, client, lane } => {
                self.check(*volume, *epoch)?;
                if *lane >= LANES_MAX {
                    return Err(Refusal::Invalid("the lane's number is too high"));
                }
                let session = self.sessions + 1;
                let clients = &mut self.volume_state(*volume)?.clients;
                clients.check(*client)?;
                let is_new = !clients.has_lane(*client, *lane);
                if is_new && self.admitted >= self.limits.clients_max {
                    return Err(Refusal::Invalid("the donor has as many clients as it can take"));
                }
                self.check_count(*volume, false)?;
                self.volume_state(*volume)?.clients.admit(*client, *lane, session);
                self.sessions = session;
                self.admitted += usize::from(is_new);
                self.count(*volume);
                Ok(Answer::Admitted { incarnation, session })
            }
            Call::Expel { volume, epoch, client } => {
                self.check(*volume, *epoch)?;
                self.check_count(*volume, false)?;
                let ranges_max = self.limits.clients_max;
                self.admitted -= self.volume_state(*volume)?.clients.expel(*client, ranges_max);
                self.count(*volume);
                Ok(Answer::Expelled { incarnation })
            }
            Call::Heartbeat { volume, epoch } => {
                // A donor that has restarted does not know the volume; its answer shows the new incarnation.
                if let Some(held) = self.volumes.get_mut(volume) {
                    // A writer relies on its heartbeats, so that none is answered once a later writer has the vote.
                    let latest = held.fence.max(held.promised);
                    if latest > *epoch {
                        return Err(Refusal::OlderEpoch { held: latest });
                    }
                    held.beats += u64::from(held.fence == *epoch);
                }
                Ok(self.stat())
            }
            Call::Leave { volume, epoch } => {
                self.check(*volume, *epoch)?;
                self.volume_state(*volume)?.beats = 0;
                Ok(Answer::Left)
            }
            Call::Take { volume, epoch, len } => {
                self.check(*volume, *epoch)?;
                if *len == 0 || !len.is_multiple_of(ALIGN) {
                    return Err(Refusal::Invalid("a slab has whole pages of 4 KB, and at least one"));
                }
                let (asked, free) = (*len, self.free_to_lend());
                if self.is_withdrawing {
                    return Err(Refusal::Full { asked, free });
                }
                self.check_count(*volume, false)?;
                let zeroing = self.slabs.zeroing_bytes();
                let lent = self.slabs.take(*volume, *len).map_err(|why| match why {
                    NoSlab::Full => Refusal::Full { asked, free },
                    NoSlab::Zeroing => Refusal::Zeroing { asked, zeroing },
                })?;
                self.count(*volume);
                Ok(Answer::Taken { incarnation, lent })
            }
            Call::Free { volume, epoch, slab } => {
                self.check(*volume, *epoch)?;
                let was_removed = self.slabs.give_back(*volume, *slab);
                self.count(*volume);
                if was_removed { Ok(Answer::Freed) } else { Err(Refusal::NoSlab { slab: *slab }) }
            }
            Call::Volumes { from } => {
                let listed = self.volumes.range(*from..).take(VOLUMES_PER_ANSWER);
                Ok(Answer::Volumes(listed.map(|(volume, held)| held.summary(*volume)).collect()))
            }
            Call::Discard { volume, epoch, session } => {
                self.check_discard(*volume, *epoch, *session)?;
                let held = self.volume_state(*volume)?;
                let removed = std::mem::take(&mut held.clients).admitted_lanes();
                // Nobody has access any more.
                (held.session, held.beats) = (0, 0);
                self.admitted -= removed;
                self.slabs.give_all_back(*volume);
                self.count(*volume);
                Ok(Answer::Freed)
            }
            Call::Stat => Ok(self.stat()),
        }
    }

    fn stat(&self) -> Answer {
        Answer::Stat {
            incarnation: self.incarnation,
            free: self.free_to_lend(),
            zeroing: if self.is_withdrawing { 0 } else { self.slabs.zeroing_bytes() },
            len: self.slabs.len(),
            is_withdrawing: self.is_withdrawing,
        }
    }

    fn free_to_lend(&self) -> u64 {
        if self.is_withdrawing { 0 } else { self.slabs.free_bytes() }
    }

    fn volume_state(&mut self, volume: u64) -> Result<&mut VolumeState, Refusal> {
        let volumes_max = self.limits.volumes_max.saturating_add(self.limits.empty_volumes_max);
        if !self.volumes.contains_key(&volume) && self.volumes.len() >= volumes_max {
            return Err(Refusal::Invalid(TOO_MANY_VOLUMES));
        }
        Ok(self.volumes.entry(volume).or_default())
    }

    /// Checks that the volume may have more than a removed one, unless it `stays_empty`.
    fn check_count(&self, volume: u64, stays_empty: bool) -> Result<(), Refusal> {
        let is_counted = self.volumes.get(&volume).is_some_and(|held| held.is_counted);
        let has_room = stays_empty || is_counted || self.counted < self.limits.volumes_max;
        if has_room { Ok(()) } else { Err(Refusal::Invalid(TOO_MANY_VOLUMES)) }
    }

    /// Counts a volume that has changed.
    fn count(&mut self, volume: u64) {
        let bytes = self.slabs.bytes_of(volume);
        let Some(held) = self.volumes.get_mut(&volume) else { return };
        held.bytes = bytes;
        let is_counted = !held.is_empty();
        let before = std::mem::replace(&mut held.is_counted, is_counted);
        self.counted = self.counted - usize::from(before) + usize::from(is_counted);
    }

    /// Checks that a [`Call::Discard`] may be done.
    ///
    /// # Errors
    ///
    /// As of [`Self::handle`].
    pub fn check_discard(&self, volume: u64, epoch: u32, session: u64) -> Result<(), Refusal> {
        self.check(volume, epoch)?;
        // Without a session nobody has access, and there is nobody to cut off.
        if self.volumes.get(&volume).is_some_and(|held| held.session != 0 && held.session != session) {
            return Err(Refusal::NotFenced { epoch });
        }
        if self.volumes.get(&volume).is_some_and(|held| held.stored.is_some()) {
            return Err(Refusal::Invalid("the donor has a record of this volume, which must be emptied first"));
        }
        Ok(())
    }

    /// Checks that the epoch is the one that fenced the volume last: only that writer admits clients and takes or frees
    /// slabs.
    fn check(&self, volume: u64, epoch: u32) -> Result<(), Refusal> {
        let held = self.fence_of(volume);
        if held == epoch && held > 0 {
            return Ok(());
        }
        Err(if held > epoch { Refusal::OlderEpoch { held } } else { Refusal::NotFenced { epoch } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: u64 = 7;

    fn donor() -> Donor {
        Donor::new(
            3,
            1 << 20,
            DonorLimits { volumes_max: 2, empty_volumes_max: 1, record_len_max: 300, clients_max: 3 },
        )
    }

    fn ask(donor: &mut Donor, call: Call) -> Result<Answer, Refusal> {
        donor.handle(&call)
    }

    #[test]
    fn a_vote_is_given_once_an_epoch_and_never_back() {
        let mut donor = donor();
        let claim = |donor: &mut Donor, epoch| ask(donor, Call::Claim { volume: VOLUME, epoch }).is_ok();
        assert!(claim(&mut donor, 5) && !claim(&mut donor, 5) && !claim(&mut donor, 4) && claim(&mut donor, 6));
        let record = |epoch, generation| Call::Record { volume: VOLUME, epoch, generation, record: vec![1].into() };
        assert_eq!(ask(&mut donor, record(5, 9)), Err(Refusal::OlderEpoch { held: 6 }));
        assert_eq!(ask(&mut donor, record(6, 2)), Ok(Answer::Recorded { incarnation: 3 }));
        assert_eq!(
            ask(&mut donor, record(6, 2)),
            Ok(Answer::Recorded { incarnation: 3 }),
            "a call that comes twice does no harm"
        );
        assert_eq!(ask(&mut donor, record(6, 1)), Err(Refusal::OlderRecord { held: 2 }));
        let Ok(Answer::Inspected { promised: 7, stored: Some(stored), .. }) =
            ask(&mut donor, Call::Claim { volume: VOLUME, epoch: 7 })
        else {
            panic!("it votes")
        };
        assert_eq!((stored.epoch, stored.generation), (6, 2));
    }

    #[test]
    fn only_who_fenced_last_has_slabs() {
        let mut donor = donor();
        let take = |epoch| Call::Take { volume: VOLUME, epoch, len: 4096 };
        assert_eq!(ask(&mut donor, take(1)), Err(Refusal::NotFenced { epoch: 1 }));
        assert!(ask(&mut donor, Call::Fence { volume: VOLUME, epoch: 1 }).is_ok());
        assert_eq!(ask(&mut donor, take(2)), Err(Refusal::NotFenced { epoch: 2 }));
        let Ok(Answer::Taken { lent, .. }) = ask(&mut donor, take(1)) else { panic!("it has room") };
        assert!(donor.allows(VOLUME, 1) && !donor.allows(VOLUME, 0));
        let Ok(Answer::Fenced { session: 2, slabs, .. }) = ask(&mut donor, Call::Fence { volume: VOLUME, epoch: 2 })
        else {
            panic!("it is later")
        };
        assert_eq!(slabs, [lent]);
        assert!(!donor.allows(VOLUME, 1) && donor.allows(VOLUME, 2));
        assert_eq!(ask(&mut donor, take(1)), Err(Refusal::OlderEpoch { held: 2 }));
        assert!(ask(&mut donor, Call::Fence { volume: VOLUME, epoch: 1 }).is_err());
        let free = |epoch| Call::Free { volume: VOLUME, epoch, slab: lent.slab };
        assert!(
            ask(&mut donor, free(1)).is_err() && ask(&mut donor, free(2)).is_ok() && ask(&mut donor, free(2)).is_err()
        );
    }

    #[test]
    fn a_writer_that_lives_is_seen_to_and_one_that_left_is_not_waited_for() {
        let mut donor = donor();
        let beats = |donor: &mut Donor| match ask(donor, Call::Inspect { volume: VOLUME }) {
            Ok(Answer::Inspected { beats, .. }) => beats,
            other => panic!("{other:?}"),
        };
        let beat = |epoch| Call::Heartbeat { volume: VOLUME, epoch };
        assert!(ask(&mut donor, beat(1)).is_ok() && beats(&mut donor) == 0, "nobody has fenced it");
        ask(&mut donor, Call::Fence { volume: VOLUME, epoch: 2 }).unwrap();
        let first = beats(&mut donor);
        assert!(first > 0 && ask(&mut donor, beat(1)) == Err(Refusal::OlderEpoch { held: 2 }));
        assert!(ask(&mut donor, beat(3)).is_ok() && beats(&mut donor) == first, "it has no access yet");
        assert!(matches!(ask(&mut donor, beat(2)), Ok(Answer::Stat { incarnation: 3, .. })));
        assert!(beats(&mut donor) > first);
        let leave = |epoch| Call::Leave { volume: VOLUME, epoch };
        assert!(ask(&mut donor, leave(1)).is_err() && beats(&mut donor) > 0);
        assert_eq!((ask(&mut donor, leave(2)), beats(&mut donor)), (Ok(Answer::Left), 0));
        ask(&mut donor, Call::Fence { volume: VOLUME, epoch: 3 }).unwrap();
        assert!(beats(&mut donor) > 0);
    }

    fn admit(donor: &mut Donor, volume: u64, epoch: u32, client: u64) -> Result<u64, Refusal> {
        match ask(donor, Call::Admit { volume, epoch, client, lane: 0 })? {
            Answer::Admitted { session, .. } => Ok(session),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn clients_come_beside_the_writer_until_they_are_expelled_or_a_later_one_fences() {
        let mut donor = donor();
        assert!(admit(&mut donor, VOLUME, 1, 1).is_err(), "nobody has fenced it");
        ask(&mut donor, Call::Fence { volume: VOLUME, epoch: 4 }).unwrap();
        let (first, second) = (admit(&mut donor, VOLUME, 4, 1).unwrap(), admit(&mut donor, VOLUME, 4, 2).unwrap());
        assert!(admit(&mut donor, VOLUME, 3, 3).is_err() && admit(&mut donor, VOLUME, 5, 3).is_err());
        assert!(donor.allows(VOLUME, 1) && donor.allows(VOLUME, first) && donor.allows(VOLUME, second));
        let again = admit(&mut donor, VOLUME, 4, 1).unwrap();
        assert!(!donor.allows(VOLUME, first) && donor.allows(VOLUME, again), "the old path is lost");
        let expel = |epoch, client| Call::Expel { volume: VOLUME, epoch, client };
        assert!(ask(&mut donor, expel(3, 2)).is_err() && donor.allows(VOLUME, second));
        for _ in 0..2 {
            assert_eq!(ask(&mut donor, expel(4, 2)), Ok(Answer::Expelled { incarnation: 3 }));
        }
        assert!(!donor.allows(VOLUME, second));
        assert_eq!(admit(&mut donor, VOLUME, 4, 2), Err(Refusal::Expelled { client: 2 }));
        ask(&mut donor, expel(4, 9)).unwrap();
        assert_eq!(admit(&mut donor, VOLUME, 4, 9), Err(Refusal::Expelled { client: 9 }), "it had not come yet");
        // A writer that fences again has lost its access to the memory, but keeps its clients.
        ask(&mut donor, Call::Fence { volume: VOLUME, epoch: 4 }).unwrap();
        assert!(donor.allows(VOLUME, again) && donor.is_admitted(VOLUME, 1));
        assert!(admit(&mut donor, VOLUME, 4, 2).is_err());
        ask(&mut donor, Call::Fence { volume: VOLUME, epoch: 5 }).unwrap();
        assert!(!donor.allows(VOLUME, again) && !donor.is_admitted(VOLUME, 1));
        assert!(admit(&mut donor, VOLUME, 4, 1).is_err() && admit(&mut donor, VOLUME, 5, 2).is_ok());
    }

    #[test]
    fn a_client_has_a_way_for_each_of_its_lanes_and_loses_all_at_once() {
        let mut donor = donor();
        ask(&mut donor, Call::Fence { volume: VOLUME, epoch: 1 }).unwrap();
        let lane = |donor: &mut Donor, lane| match ask(donor, Call::Admit { volume: VOLUME, epoch: 1, client: 1, lane })
        {
            Ok(Answer::Admitted { session, .. }) => Ok(session),
            other => Err(other),
        };
        let (first, second) = (lane(&mut donor, 0).unwrap(), lane(&mut donor, LANES_MAX - 1).unwrap());
        assert!(donor.allows(VOLUME, first) && donor.allows(VOLUME, second) && lane(&mut donor, LANES_MAX).is_err());
        let again = lane(&mut donor, 0).unwrap();
        assert!(!donor.allows(VOLUME, first) && donor.allows(VOLUME, second) && donor.allows(VOLUME, again));
        assert!(lane(&mut donor, 1).is_ok() && lane(&mut donor, 2).is_err(), "ways are counted");
        ask(&mut donor, Call::Expel { volume: VOLUME, epoch: 1, client: 1 }).unwrap();
        assert!(!donor.allows(VOLUME, second) && !donor.allows(VOLUME, again) && lane(&mut donor, 0).is_err());
        assert_eq!(donor.admitted, 0);
    }

    #[test]
    fn all_volumes_together_have_as_many_clients_as_the_limit_and_those_that_go_make_room() {
        let mut donor = donor();
        for volume in [1, 2] {
            ask(&mut donor, Call::Fence { volume, epoch: 1 }).unwrap();
        }
        for (volume, client) in [(1, 1), (1, 2), (2, 1)] {
            admit(&mut donor, volume, 1, client).unwrap();
        }
        assert!(matches!(admit(&mut donor, 2, 1, 2), Err(Refusal::Invalid(_))));
        assert!(admit(&mut donor, 2, 1, 1).is_ok(), "who is there may come again");
        ask(&mut donor, Call::Expel { volume: 1, epoch: 1, client: 1 }).unwrap();
        assert!(admit(&mut donor, 2, 1, 2).is_ok() && admit(&mut donor, 2, 1, 3).is_err());
        ask(&mut donor, Call::Fence { volume: 2, epoch: 2 }).unwrap();
        assert!((3..5).all(|client| admit(&mut donor, 2, 2, client).is_ok()));
        assert!(admit(&mut donor, 2, 2, 5).is_err());
    }

    #[test]
    fn a_client_that_comes_late_is_admitted_however_many_others_have_left() {
        let mut donor = donor();
        ask(&mut donor, Call::Fence { volume: VOLUME, epoch: 1 }).unwrap();
        for client in 2..5_000 {
            ask(&mut donor, Call::Expel { volume: VOLUME, epoch: 1, client }).unwrap();
        }
        assert!(admit(&mut donor, VOLUME, 1, 1).is_ok() && admit(&mut donor, VOLUME, 1, 5_000).is_ok());
        assert_eq!(admit(&mut donor, VOLUME, 1, 2), Err(Refusal::Expelled { client: 2 }));
        assert_eq!(admit(&mut donor, VOLUME, 1, 4_999), Err(Refusal::Expelled { client: 4_999 }));
    }

    #[test]
    fn memory_is_lent_again_once_it_is_zeroed_and_fresh_memory_at_once() {
        let mut donor = donor();
        let len = 1 << 19;
        let take = |donor: &mut Donor, volume, len| ask(donor, Call::Take { volume, epoch: 1, len });
        for volume in [1, 2] {
            ask(&mut donor, Call::Fence { volume, epoch: 1 }).unwrap();
        }
        let Ok(Answer::Taken { lent, .. }) = take(&mut donor, 1, len) else { panic!("it has room") };
        assert_eq!(donor.next_to_zero(u64::MAX), None);
        ask(&mut donor, Call::Free { volume: 1, epoch: 1, slab: lent.slab }).unwrap();
        let stat = |free, zeroing| Answer::Stat { incarnation: 3, free, zeroing, len: 1 << 20, is_withdrawing: false };
        assert_eq!(ask(&mut donor, Call::Stat), Ok(stat(len, len)));
        assert!(take(&mut donor, 2, len).is_ok(), "half of the memory is fresh");
        assert_eq!(take(&mut donor, 2, len), Err(Refusal::Zeroing { asked: len, zeroing: len }));
        assert_eq!(take(&mut donor, 2, len + ALIGN), Err(Refusal::Full { asked: len + ALIGN, free: 0 }));
        assert_eq!((donor.next_to_zero(4096), donor.zeroing_bytes()), (Some(0..4096), len - 4096));
        assert!(take(&mut donor, 2, len).is_err() && donor.next_to_zero(u64::MAX) == Some(4096..len));
        assert_eq!(ask(&mut donor, Call::Stat), Ok(stat(len, 0)));
        assert!(take(&mut donor, 2, len).is_ok() && donor.next_to_zero(u64::MAX).is_none());
    }

    #[test]
    fn a_donor_that_wants_its_memory_back_says_so_and_lends_no_more() {
        let mut donor = donor();
        ask(&mut donor, Call::Fence { volume: 1, epoch: 1 }).unwrap();
        let take = Call::Take { volume: 1, epoch: 1, len: 4096 };
        let Ok(Answer::Taken { lent, .. }) = ask(&mut donor, take.clone()) else { panic!("it has room") };
        donor.begin_withdrawal();
        assert_eq!(ask(&mut donor, take), Err(Refusal::Full { asked: 4096, free: 0 }));
        let stat = Answer::Stat { incarnation: 3, free: 0, zeroing: 0, len: 1 << 20, is_withdrawing: true };
        assert_eq!((ask(&mut donor, Call::Stat), donor.lent_bytes()), (Ok(stat), 4096));
        ask(&mut donor, Call::Free { volume: 1, epoch: 1, slab: lent.slab }).unwrap();
        assert_eq!(donor.lent_bytes(), 0);
    }

    #[test]
    fn callers_cannot_have_a_donor_keep_more_than_its_limits() {
        let mut donor = donor();
        let record = |volume, len| Call::Record { volume, epoch: 1, generation: 1, record: vec![0; len].into() };
        assert!(ask(&mut donor, record(1, 301)).is_err() && ask(&mut donor, record(1, 300)).is_ok());
        let claim = |volume| Call::Claim { volume, epoch: 2 };
        assert!((1..4).all(|volume| ask(&mut donor, claim(volume)).is_ok()));
        assert!(matches!(ask(&mut donor, claim(4)), Err(Refusal::Invalid(_))));
        assert!(ask(&mut donor, Call::Inspect { volume: 4 }).is_ok());
        let take = |len| Call::Take { volume: 2, epoch: 1, len };
        ask(&mut donor, Call::Fence { volume: 2, epoch: 1 }).unwrap();
        assert!([0, 1, ALIGN + 1, u64::MAX].iter().all(|len| ask(&mut donor, take(*len)).is_err()));
        assert!(ask(&mut donor, take((1 << 20) + ALIGN)).is_err() && ask(&mut donor, take(1 << 20)).is_ok());
    }

    #[test]
    fn volumes_that_have_nothing_are_counted_apart_from_those_that_have_something() {
        let mut donor = donor();
        let record = |volume, epoch, len| Call::Record { volume, epoch, generation: 1, record: vec![0; len].into() };
        for volume in 1..4 {
            assert!(ask(&mut donor, Call::Fence { volume, epoch: 1 }).is_ok());
        }
        let take = |volume| Call::Take { volume, epoch: 1, len: 4096 };
        let Ok(Answer::Taken { lent, .. }) = ask(&mut donor, take(1)) else { panic!("it has room") };
        assert!(ask(&mut donor, record(2, 1, 300)).is_ok());
        let refused = Err(Refusal::Invalid(TOO_MANY_VOLUMES));
        assert_eq!([take(3), record(3, 1, 300)].map(|call| ask(&mut donor, call)), [refused.clone(), refused.clone()]);
        assert!(admit(&mut donor, 3, 1, 1).is_err() && ask(&mut donor, record(3, 1, 200)).is_ok());
        // The volume is removed: what is left of it is its short record.
        assert!(ask(&mut donor, record(2, 2, 200)).is_ok() && ask(&mut donor, take(3)).is_ok());
        assert_eq!(ask(&mut donor, record(2, 2, 300)), refused);
        ask(&mut donor, Call::Free { volume: 1, epoch: 1, slab: lent.slab }).unwrap();
        assert!(ask(&mut donor, record(2, 2, 300)).is_ok());
        assert_eq!(ask(&mut donor, Call::Fence { volume: 4, epoch: 1 }), refused);
    }

    #[test]
    fn all_volumes_are_listed_a_part_at_a_time() {
        let mut donor = Donor::new(3, 1 << 20, DonorLimits::default());
        let all = 2 * VOLUMES_PER_ANSWER as u64 + 1;
        (0..all).for_each(|volume| _ = ask(&mut donor, Call::Fence { volume: volume * 3, epoch: 5 }).unwrap());
        ask(&mut donor, Call::Take { volume: 0, epoch: 5, len: 4096 }).unwrap();
        ask(&mut donor, Call::Record { volume: 3, epoch: 5, generation: 1, record: vec![1].into() }).unwrap();
        ask(&mut donor, Call::Leave { volume: 6, epoch: 5 }).unwrap();
        let (mut listed, mut from) = (Vec::new(), 0);
        loop {
            let Ok(Answer::Volumes(part)) = ask(&mut donor, Call::Volumes { from }) else { panic!("it lists them") };
            from = part.last().map_or(u64::MAX, |last| last.volume + 1);
            let is_last = part.len() < VOLUMES_PER_ANSWER;
            listed.extend(part);
            if is_last {
                break;
            }
        }
        assert!(listed.iter().map(|summary| summary.volume).eq((0..all).map(|volume| volume * 3)));
        let summary = |volume, bytes, beats, has_record| VolumeSummary { volume, fence: 5, bytes, beats, has_record };
        let expected = [summary(0, 4096, 1, false), summary(3, 0, 1, true), summary(6, 0, 0, false)];
        assert_eq!(listed[..3], expected);
    }

    #[test]
    fn what_has_no_record_is_discarded_by_who_fenced_it_last_and_what_has_one_is_not() {
        let mut donor = donor();
        let fence = |epoch| Call::Fence { volume: VOLUME, epoch };
        let fenced = |donor: &mut Donor| match ask(donor, fence(4)) {
            Ok(Answer::Fenced { session, .. }) => session,
            other => panic!("{other:?}"),
        };
        let earlier = fenced(&mut donor);
        let writers = fenced(&mut donor);
        ask(&mut donor, Call::Take { volume: VOLUME, epoch: 4, len: 4096 }).unwrap();
        let session = admit(&mut donor, VOLUME, 4, 1).unwrap();
        let discard = |epoch| Call::Discard { volume: VOLUME, epoch, session: writers };
        let of_earlier = Call::Discard { volume: VOLUME, epoch: 4, session: earlier };
        assert_eq!(ask(&mut donor, of_earlier), Err(Refusal::NotFenced { epoch: 4 }));
        assert_eq!(ask(&mut donor, discard(3)), Err(Refusal::OlderEpoch { held: 4 }));
        assert_eq!(ask(&mut donor, discard(5)), Err(Refusal::NotFenced { epoch: 5 }));
        assert!(donor.allows(VOLUME, session) && donor.lent_bytes() == 4096);
        assert_eq!(ask(&mut donor, discard(4)), Ok(Answer::Freed));
        assert_eq!((donor.lent_bytes(), donor.zeroing_bytes(), donor.admitted), (0, 4096, 0));
        assert!((1..=session).all(|session| !donor.allows(VOLUME, session)));
        assert_eq!(ask(&mut donor, discard(4)), Ok(Answer::Freed), "a call that comes twice does no harm");
        assert!(ask(&mut donor, fence(3)).is_err(), "an earlier writer does not come back");
        let record = Call::Record { volume: VOLUME, epoch: 4, generation: 1, record: vec![1].into() };
        ask(&mut donor, record).unwrap();
        ask(&mut donor, Call::Take { volume: VOLUME, epoch: 4, len: 4096 }).unwrap();
        assert!(matches!(ask(&mut donor, discard(4)), Err(Refusal::Invalid(_))));
        assert_eq!(donor.lent_bytes(), 4096);
    }

    #[test]
    fn a_new_writer_learns_of_the_epoch_that_fenced_a_donor_without_a_vote() {
        let mut donor = donor();
        ask(&mut donor, Call::Fence { volume: VOLUME, epoch: 6 }).unwrap();
        let inspected = ask(&mut donor, Call::Inspect { volume: VOLUME });
        assert!(matches!(inspected, Ok(Answer::Inspected { promised: 6, .. })), "{inspected:?}");
        assert!(ask(&mut donor, Call::Claim { volume: VOLUME, epoch: 6 }).is_ok(), "no vote was given");
    }
}
