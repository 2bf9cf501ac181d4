//! Committing written data: first it goes to reserved pages of all copies, and then the service is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use sinew_fabric::verbs::Slice;
use sinew_mem::Frozen;
use sinew_remote_memory::engine::Op;
use sinew_remote_memory::pool::AccessMethod;
use sinew_rpc::Endpoint;

use super::dirty::{CHUNK_PAGES, Dirty, Flushing};
use super::error::ClientError;
use super::file::File;
use super::lane::Lane;
use super::reach::CopyTransfer;
use super::repeats::Subject;
use super::reserve::Counts;
use super::shared::Identity;
use crate::protocol::{
    Answer, Attr, EXTENTS_MAX, Error, Extent, PAGE, Pages, Placement, Request, SegmentCopy, Sums, Time,
};
use crate::space::Purpose;

/// Chunks in one commit, at most.
const CHUNKS_MAX: usize = 64;
/// Attempts, each after another client was faster or the service restarted.
const ATTEMPTS: u32 = 64;

/// Pause before another attempt to write to the last copy of a segment, in ns.
const PAUSE_NS: u64 = 200_000_000;

/// Bytes of one chunk that go to consecutive pages.
struct Job {
    buffer: Frozen,
    start: usize,
    pages: Pages,
}

/// The contents of one commit.
#[derive(Default)]
struct Batch {
    /// The client as it was when the pages were reserved.
    of: Identity,
    jobs: Vec<Job>,
    extents: Vec<Extent>,
    /// What the pages of each extent were reserved for.
    purposes: Vec<Purpose>,
}

/// For each segment, the copies that have the whole batch.
type Written = BTreeMap<u32, Vec<SegmentCopy>>;

impl Batch {
    fn add(&mut self, chunk: &Flushing, index: u64, pages: Pages, replaces: Option<Vec<u64>>) {
        let purpose = chunk.purpose(index);
        let start = index as usize * PAGE;
        self.jobs.push(Job { buffer: chunk.buffer.clone(), start, pages });
        let at = chunk.at + index;
        let sums = chunk.sums(index, pages.count);
        if let Some(last) = self.extents.last_mut() {
            let follows = last.at + u64::from(last.pages.count) == at
                && last.pages.segment == pages.segment
                && last.pages.first + last.pages.count == pages.first;
            let is_alike = self.purposes.last() == Some(&purpose) && last.replaces.is_some() == replaces.is_some();
            if follows && is_alike {
                last.pages.count += pages.count;
                last.sums.0.extend(sums);
                if let (Some(Sums(last)), Some(more)) = (&mut last.replaces, replaces) {
                    last.extend(more);
                }
                return;
            }
        }
        let (sums, replaces) = (Sums(sums), replaces.map(Sums));
        self.extents.push(Extent { at, pages, generation: 0, sums, replaces });
        self.purposes.push(purpose);
    }

    fn segments(&self) -> BTreeSet<u32> {
        self.extents.iter().map(|extent| extent.pages.segment).collect()
    }

    fn pages(&self) -> impl Iterator<Item = (Pages, Purpose)> {
        self.extents.iter().map(|extent| extent.pages).zip(self.purposes.iter().copied())
    }
}

/// Consecutive written pages of a chunk, all of which are alike.
struct DirtyRun {
    /// Index of the first.
    first: u64,
    count: u64,
    /// Whether they were written only in part.
    is_partial: bool,
    /// What they have room for.
    purpose: Purpose,
}

fn dirty_runs(chunk: &Flushing) -> Vec<DirtyRun> {
    let mut runs: Vec<DirtyRun> = Vec::new();
    for index in (0..CHUNK_PAGES).filter(|index| chunk.mask & (1 << index) != 0) {
        let (is_partial, purpose) = (chunk.partial.contains_key(&index), chunk.purpose(index));
        let follows = |run: &&mut DirtyRun| {
            run.first + run.count == index && (run.is_partial, run.purpose) == (is_partial, purpose)
        };
        match runs.last_mut().filter(follows) {
            Some(run) => run.count += 1,
            None => runs.push(DirtyRun { first: index, count: 1, is_partial, purpose }),
        }
    }
    runs
}

impl<E: Endpoint, A: AccessMethod> Lane<E, A> {
    /// Commits files written long ago, or all files if there is much uncommitted data.
    pub(super) fn flush_old(&mut self) {
        let config = &self.client.config;
        let is_much = self.client.dirty_bytes() > config.dirty_bytes_max / 4;
        let old_ns = self.now_ns().saturating_sub(config.dirty_age_ns);
        for file in self.client.dirty_files() {
            if !is_much && file.lock().dirty_since_ns > old_ns {
                continue;
            }
            // Another lane may be committing it.
            if let Ok(_one) = file.flushing.try_lock() {
                // The program is told at its next sync.
                let _ = self.write_out_locked(&file);
            }
        }
    }

    /// Commits everything written to a file so far.
    ///
    /// # Errors
    ///
    /// The reason why some data could not be committed. Except for a lack of memory, such data is lost, and each handle
    /// is [told](super::file::FileState::take_loss) at its next sync.
    pub(super) fn write_out(&mut self, file: &Arc<File>) -> Result<(), ClientError> {
        if file.lock().dirty.is_empty() {
            return Ok(());
        }
        let _one = file.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        self.write_out_locked(file)
    }

    /// As [`Self::write_out`]; the caller holds `flushing`.
    fn write_out_locked(&mut self, file: &Arc<File>) -> Result<(), ClientError> {
        let result = self.commit_all(file);
        if let Err(error) = &result {
            file.lock().record_loss(error.clone());
        }
        result
    }

    fn commit_all(&mut self, file: &Arc<File>) -> Result<(), ClientError> {
        let mut attempts = 0;
        let mut outcome = Ok(());
        if file.lock().dirty.has_flushing() {
            // The last attempt could not thaw it for lack of memory.
            self.unfreeze(file)?;
        }
        loop {
            let (chunks, handle, len, modified) = {
                let mut state = file.lock();
                if !state.dirty.has_fresh() {
                    return outcome;
                }
                let Some(handle) = state.handle(true) else {
                    drop(state);
                    return Err(self.discard_failed(file, ClientError::NotOpen, Dirty::discard));
                };
                let chunks = state.dirty.freeze(CHUNKS_MAX);
                // Data written from now on is younger.
                state.dirty_since_ns = self.now_ns();
                (chunks, handle, state.dirty_len, state.modified)
            };
            let (error, taken) = match self.store(file, handle, &chunks, (len, modified)) {
                Ok((attr, extents)) => {
                    self.note_committed(file, &attr, &extents);
                    attempts = 0;
                    continue;
                }
                Err(failed) => failed,
            };
            self.client.reserve().promise_unreserved(taken);
            drop(chunks);
            self.unfreeze(file)?;
            attempts += 1;
            let may_try_again = attempts < ATTEMPTS;
            match &error {
                ClientError::Refused(Error::PagesChanged) if may_try_again => self.rebase(file)?,
                ClientError::Refused(Error::NotReserved | Error::Rejoin) | ClientError::OutcomeUnknown
                    if may_try_again => {}
                ClientError::Refused(Error::BadHandle) if may_try_again && file.lock().has_other(handle, true) => {}
                // Pages of the file that were to be replaced are gone, and so they need new room.
                ClientError::Refused(Error::NothingReplaced) if may_try_again => {
                    self.change_purposes(file, Purpose::Overwrite)?;
                }
                ClientError::Refused(Error::NoSpace) if may_try_again => {
                    let is_changed =
                        self.change_purposes(file, Purpose::Overwrite)? || self.change_purposes(file, Purpose::Any)?;
                    if !is_changed {
                        outcome = Err(self.discard_failed(file, error, Dirty::discard_roomless));
                    }
                }
                _ => return Err(self.discard_failed(file, error, Dirty::discard)),
            }
        }
    }

    fn note_committed(&self, file: &File, attr: &Attr, extents: &[Extent]) {
        let mut state = file.lock();
        let before = state.dirty.bytes();
        if state.apply_own_change(attr) {
            extents.iter().for_each(|extent| state.layout.commit(extent));
        }
        state.dirty.committed();
        if state.dirty.is_empty() {
            (state.dirty_len, state.modified) = (0, None);
        }
        self.client.count_dirty(before, state.dirty.bytes());
    }

    /// Looks at the written pages that have room for this purpose, and changes the purpose of those that need the
    /// other: pages that the file has, or was promised, are overwritten, and others are new. Returns whether there were
    /// some.
    fn change_purposes(&mut self, file: &File, from: Purpose) -> Result<bool, ClientError> {
        let to = match from {
            Purpose::Any => Purpose::Overwrite,
            Purpose::Overwrite => Purpose::Any,
        };
        let mut is_changed = false;
        let mut ranges = file.lock().dirty.runs_for(from);
        while let Some((at, count)) = ranges.pop() {
            let replaces = self.replaces(file, at, count)?;
            if !replaces && count > 1 {
                let half = count / 2;
                ranges.extend([(at, half), (at + half, count - half)]);
            } else if replaces == (to == Purpose::Overwrite) {
                let changed = file.lock().dirty.set_purpose(at, count, to);
                let (mut before, mut now) = (Counts::default(), Counts::default());
                before.add(from, changed);
                now.add(to, changed);
                let mut reserve = self.client.reserve();
                reserve.withdraw(before);
                reserve.promise_unreserved(now);
                is_changed |= changed > 0;
            }
        }
        Ok(is_changed)
    }

    /// Whether a file has all pages of a range, or was promised those that it lacks.
    pub(super) fn replaces(&mut self, file: &File, at: u64, count: u64) -> Result<bool, ClientError> {
        match self.reserve_overwrite(file, (at, count), 0, false) {
            Ok(()) | Err(ClientError::Refused(Error::TooMany)) => Ok(true),
            Err(ClientError::Refused(Error::NoSpace)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn unfreeze(&mut self, file: &File) -> Result<(), ClientError> {
        let mut state = file.lock();
        let before = state.dirty.bytes();
        let mut spare = Counts::default();
        let thawed = state.dirty.unfreeze(&self.client.arena, &mut spare).map_err(|_| ClientError::NoMemory);
        self.client.reserve().withdraw(spare);
        self.client.count_dirty(before, state.dirty.bytes());
        thawed
    }

    /// Discards data that cannot be committed, as `discard` chooses it. The next sync reports it.
    fn discard_failed(&self, file: &File, error: ClientError, discard: fn(&mut Dirty) -> Counts) -> ClientError {
        let mut state = file.lock();
        let before = state.dirty.bytes();
        let pages = discard(&mut state.dirty);
        self.client.reserve().withdraw(pages);
        self.client.count_dirty(before, state.dirty.bytes());
        if state.dirty.is_empty() {
            (state.dirty_len, state.modified) = (0, None);
        }
        let ino = file.ino.0;
        let (pages, s) = (pages.total(), if pages.total() == 1 { "" } else { "s" });
        self.client.log(&format!("what was written to {pages} page{s} of file {ino} is lost: {error}"));
        error
    }

    /// Discards written data, since the file is now empty. The caller holds `flushing`.
    pub(super) fn discard(&self, file: &File) {
        let mut state = file.lock();
        let before = state.dirty.bytes();
        let pages = state.dirty.discard();
        self.client.reserve().withdraw(pages);
        self.client.count_dirty(before, state.dirty.bytes());
        (state.dirty_len, state.modified) = (0, None);
    }

    /// Merges partial writes into pages that another client has changed meanwhile.
    fn rebase(&mut self, file: &Arc<File>) -> Result<(), ClientError> {
        file.lock().layout.clear();
        let partials = file.lock().dirty.partials();
        for (page, replaced) in partials {
            let (base, contents) = self.committed_page(file, page)?;
            if contents != replaced {
                file.lock().dirty.rebase(page, &base, contents);
            }
        }
        Ok(())
    }

    /// Writes chunks to the donors and commits them. Returns the file's new attributes, and the places of the pages.
    ///
    /// # Errors
    ///
    /// The reason, and the number of pages whose promise was used up.
    fn store(
        &mut self,
        file: &File,
        handle: u64,
        chunks: &[Flushing],
        (len, modified): (u64, Option<Time>),
    ) -> Result<(Attr, Vec<Extent>), (ClientError, Counts)> {
        let of = self.client.identity();
        let mut batch = Batch { of, ..Batch::default() };
        let result =
            self.assign(file, chunks, &mut batch).and_then(|()| self.put_and_commit(handle, &mut batch, len, modified));
        if let Err(error) = &result
            && self.client.identity().joined == of.joined
        {
            match error {
                // The service does not know the reservation.
                ClientError::Refused(Error::NotReserved | Error::Rejoin) | ClientError::OutcomeUnknown => {}
                // The file may have the pages by now, or may still get them: the commit is in flight.
                ClientError::Unreachable { .. }
                | ClientError::UnexpectedAnswer
                | ClientError::Refused(Error::AlreadyAnswered) => {
                    self.client.doubtful().push((of, batch.pages().map(|(pages, _)| pages).collect()));
                }
                _ => {
                    let mut reserve = self.client.reserve();
                    for (pages, purpose) in batch.pages() {
                        reserve.of(purpose).add(of.joined, [pages]);
                    }
                }
            }
        }
        match result {
            Ok(attr) => Ok((attr, batch.extents)),
            Err(error) => {
                let mut taken = Counts::default();
                batch.pages().for_each(|(pages, purpose)| taken.add(purpose, pages.count.into()));
                Err((error, taken))
            }
        }
    }

    /// Returns the pages of abandoned commits to the service, unless the commits were performed. By this time the
    /// service knows that we no longer wait for them, so it will not perform them any more.
    pub(super) fn return_doubtful(&mut self) {
        loop {
            let Some((of, mut pages)) = self.client.doubtful().pop() else { return };
            if self.client.identity().joined != of.joined {
                continue;
            }
            let rest = pages.split_off(pages.len().min(EXTENTS_MAX));
            match self.ask_about_pages(&of, Request::GiveBack { pages: pages.clone() }) {
                Ok(_) if !rest.is_empty() => self.client.doubtful().push((of, rest)),
                // The pages belong to the file.
                Ok(_) | Err(ClientError::Refused(_)) => {}
                Err(_) => {
                    pages.extend(rest);
                    self.client.doubtful().push((of, pages));
                    return;
                }
            }
        }
    }

    /// Assigns a reserved page to each written page.
    fn assign(&mut self, file: &File, chunks: &[Flushing], batch: &mut Batch) -> Result<(), ClientError> {
        // Programs were told that this data is written, so it is given up late.
        let until_room = self.now_ns() + self.client.config.service_timeout_ns;
        for chunk in chunks {
            for DirtyRun { first, count, is_partial, purpose } in dirty_runs(chunk) {
                let mut at = first;
                while at < first + count {
                    let left = (first + count - at) as u32;
                    let taken = {
                        let mut reserve = self.client.reserve();
                        let reserve = reserve.of(purpose);
                        if reserve.is_of(batch.of.joined) { Ok(reserve.take(left)) } else { Err(Error::Rejoin) }
                    };
                    if taken.is_err() {
                        // Another lane is joining, or has joined.
                        let until = self.now_ns() + self.client.config.service_timeout_ns;
                        self.join(batch.of.joined, until)?;
                    }
                    let Some(pages) = taken? else {
                        match purpose {
                            Purpose::Overwrite if self.now_ns() > until_room => return Err(Error::NoSpace.into()),
                            Purpose::Any => self.reserve(left.into())?,
                            Purpose::Overwrite => {
                                let range = (chunk.at + at, left.into());
                                self.reserve_overwrite(file, range, left.into(), true)?;
                            }
                        }
                        continue;
                    };
                    let behind = at + u64::from(pages.count);
                    let old = |index| chunk.partial.get(&index).map_or(0, |partial| partial.replaces);
                    let replaces = is_partial.then(|| (at..behind).map(old).collect());
                    batch.add(chunk, at, pages, replaces);
                    at = behind;
                }
            }
        }
        Ok(())
    }

    fn put_and_commit(
        &mut self,
        handle: u64,
        batch: &mut Batch,
        len: u64,
        modified: Option<Time>,
    ) -> Result<Attr, ClientError> {
        let mut written = Written::new();
        let mut from = 0;
        let mut last = None;
        while from < batch.extents.len() {
            self.put(batch, &mut written)?;
            for extent in &mut batch.extents {
                extent.generation = self.place(extent.pages.segment)?.generation;
            }
            let extents = &batch.extents[from..(from + EXTENTS_MAX).min(batch.extents.len())];
            let end = extents.last().map_or(0, |extent| extent.at + u64::from(extent.pages.count)) * PAGE as u64;
            let (extents, behind) = (extents.to_vec(), from + extents.len());
            let request =
                Request::Commit { handle, size_min: len.min(end), mtime: modified, holes: Vec::new(), extents };
            match self.ask_about_pages(&batch.of, request) {
                Ok(Answer::Attr(attr)) => (last, from) = (Some(attr), behind),
                Ok(_) => return Err(ClientError::UnexpectedAnswer),
                Err(ClientError::Refused(Error::CopiesChanged)) => {
                    let segments: Vec<u32> = batch.segments().into_iter().collect();
                    self.learn_places(&segments)?;
                }
                Err(error) => return Err(error),
            }
        }
        last.ok_or(ClientError::UnexpectedAnswer)
    }

    /// The place of a segment. When another lane joins a service that has restarted, all places are forgotten.
    fn place(&mut self, segment: u32) -> Result<Arc<Placement>, ClientError> {
        if let Some(place) = self.client.place(segment) {
            return Ok(place);
        }
        self.learn_places(&[segment])?;
        // The service may have given the segment up. Then its pages are not reserved any more.
        self.client.place(segment).ok_or(Error::NotReserved.into())
    }

    /// Writes a batch to all copies that do not have it.
    fn put(&mut self, batch: &Batch, written: &mut Written) -> Result<(), ClientError> {
        let until = self.now_ns() + self.client.config.service_timeout_ns;
        let mut failing = BTreeSet::new();
        loop {
            let mut transfers = Vec::new();
            let mut segments = Vec::new();
            for job in &batch.jobs {
                let place = self.place(job.pages.segment)?;
                for copy in &place.copies {
                    let is_written = |have: &SegmentCopy| {
                        (have.donor, have.incarnation, have.base) == (copy.donor, copy.incarnation, copy.base)
                    };
                    if written.get(&job.pages.segment).is_some_and(|have| have.iter().any(is_written)) {
                        continue;
                    }
                    let at = copy.base + u64::from(job.pages.first) * PAGE as u64;
                    let len = job.pages.count as usize * PAGE;
                    let source = Slice { buffer: job.buffer.clone(), start: job.start, len };
                    transfers.push(CopyTransfer::new(*copy, Op::Write { at, source }));
                    segments.push(job.pages.segment);
                }
            }
            if transfers.is_empty() {
                return Ok(());
            }
            self.transfer(&mut transfers, Some((batch.of.client, batch.of.epoch)));
            let mut failed: BTreeMap<(u32, u64), (SegmentCopy, String, bool)> = BTreeMap::new();
            let mut expelled: BTreeMap<(u32, u64), SegmentCopy> = BTreeMap::new();
            for (transfer, segment) in transfers.iter().zip(&segments) {
                if let Some(why) = &transfer.error {
                    let (is_late, copy) = (transfer.is_late, transfer.copy);
                    failed.insert((*segment, copy.donor.0), (copy, why.clone(), is_late));
                    if transfer.is_expelled {
                        expelled.insert((*segment, copy.donor.0), copy);
                    }
                }
            }
            for (transfer, segment) in transfers.iter().zip(&segments) {
                let have = written.entry(*segment).or_default();
                if !failed.contains_key(&(*segment, transfer.copy.donor.0)) && !have.contains(&transfer.copy) {
                    have.push(transfer.copy);
                }
            }
            if failed.is_empty() {
                continue;
            }
            // Perhaps it is this client that was cut off; the service's answer shows that.
            self.ask_as_root(Request::Heartbeat)?;
            if self.client.identity().joined != batch.of.joined {
                return Err(Error::Rejoin.into());
            }
            if !expelled.is_empty() {
                // That is no fault of the copies.
                failed.retain(|of, _| !expelled.contains_key(of));
                let expelled: Vec<_> = expelled.iter().map(|((segment, _), copy)| (*segment, *copy)).collect();
                let segments: BTreeSet<u32> = expelled.iter().map(|(segment, _)| *segment).collect();
                self.learn_places(&segments.into_iter().collect::<Vec<_>>())?;
                self.join_anew_if_expelled(batch.of.joined, &expelled)?;
                if self.client.identity().joined != batch.of.joined {
                    return Err(Error::Rejoin.into());
                }
            }
            for ((segment, donor), (copy, why, is_late)) in failed {
                // The donor cuts a process off that has been stopped for a while. Its copy counts as lost only when a
                // new path to it fails as well.
                if failing.insert((segment, donor, copy.incarnation)) && !is_late {
                    continue;
                }
                match self.report_failed_copy(segment, &copy, &why) {
                    // It is the segment's last copy, and its donor may come back.
                    Err(ClientError::Refused(Error::Lost)) if self.now_ns() < until => self.pause(PAUSE_NS),
                    result => result?,
                }
            }
        }
    }

    /// Reports to the service that a copy cannot be written.
    fn report_failed_copy(&mut self, segment: u32, copy: &SegmentCopy, why: &str) -> Result<(), ClientError> {
        let text = format!("the donor {} is given up for segment {segment}: {why}", self.name(copy));
        let subject = Subject::Writes { segment, donor: copy.donor.0 };
        self.client.log_rarely(subject, self.now_ns(), &text);
        let request = Request::ReportFailed { segment, donor: copy.donor, incarnation: copy.incarnation };
        match self.ask_as_root(request)? {
            Answer::Placements(places) => {
                self.client.learn_placements(&places);
                Ok(())
            }
            _ => Err(ClientError::UnexpectedAnswer),
        }
    }
}
