//! Locating, reading and checking pages of files at the donors.

use std::sync::Arc;

use sinew_mem::MessageBuffer;
use sinew_remote_memory::engine::Op;
use sinew_remote_memory::pool::AccessMethod;
use sinew_remote_memory::volume::checksum;
use sinew_rpc::Endpoint;

use super::error::ClientError;
use super::file::File;
use super::lane::Lane;
use super::layout::{Piece, Stored};
use super::reach::CopyTransfer;
use super::repeats::Subject;
use crate::protocol::{Answer, Error, Ino, LAYOUT_PAGES_MAX, PAGE, Request, SegmentCopy};

/// Layout requests start at multiples of this many pages.
const LAYOUT_STEP: u64 = LAYOUT_PAGES_MAX / 4;
/// Consecutive pages read from one copy before reads move to the next.
const SPREAD_PAGES: u32 = 256;
/// Attempts to read pages of which no copy is correct.
const ATTEMPTS: u32 = 4;
/// Pause before the second retry. It doubles with each further retry.
const PAUSE_NS: u64 = 100_000_000;

/// A copy that could not be used.
pub(super) struct BadCopy {
    copy: SegmentCopy,
    /// Whether it was readable, but had wrong bytes.
    has_wrong_bytes: bool,
    /// Whether its donor refuses this client's number.
    is_expelled: bool,
    why: String,
}

impl<E: Endpoint, A: AccessMethod> Lane<E, A> {
    /// Asks the service for the places of the pages around `page`.
    pub(super) fn learn_layout(&mut self, file: &File, page: u64) -> Result<(), ClientError> {
        let at = page - page % LAYOUT_STEP;
        let handle = file.lock().handle(false).ok_or(ClientError::NotOpen)?;
        let layout = match self.ask_as_root(Request::Layout { handle, at, count: LAYOUT_PAGES_MAX }) {
            Ok(Answer::Layout(layout)) => layout,
            Ok(_) => return Err(ClientError::UnexpectedAnswer),
            // Another lane has closed the handle meanwhile. The caller looks for the page again, by another open
            // handle.
            Err(ClientError::Refused(Error::BadHandle)) if file.lock().has_other(handle, false) => return Ok(()),
            Err(error) => return Err(error),
        };
        if layout.until <= page {
            return Err(ClientError::UnexpectedAnswer);
        }
        self.client.learn_placements(&layout.places);
        let mut state = file.lock();
        if state.is_outdated(layout.version) {
            // The caller still does not find the page, and asks again.
            return Ok(());
        }
        if state.layout.pages() > self.client.config.layout_pages_max {
            state.layout.clear();
        }
        state.apply_layout(&layout);
        state.layout.learn(at, &layout);
        Ok(())
    }

    /// Reads pages, wherever they lie now, and checks them. `stored` is the layout's entry for exactly these pages.
    /// `None`: they have become a hole, or were replaced.
    pub(super) fn fetch(
        &mut self,
        file: &Arc<File>,
        at: u64,
        stored: &Stored,
    ) -> Result<Option<MessageBuffer>, ClientError> {
        let mut joined = self.client.identity().joined;
        let mut bad = match self.fetch_once(stored)? {
            Ok(buffer) => return Ok(Some(buffer)),
            Err(bad) => bad,
        };
        let mut pause = PAUSE_NS;
        for attempt in 1..ATTEMPTS {
            // The cached layout may be out of date: pages that were replaced may belong to other files by now.
            file.lock().layout.clear();
            self.learn_layout(file, at)?;
            let piece = file.lock().layout.piece(at, stored.sums.len() as u64);
            if piece != Piece::Stored(stored.clone()) {
                return Ok(None);
            }
            if attempt > 1 {
                self.pause(pause);
                pause *= 2;
            }
            self.learn_places(&[stored.pages.segment])?;
            let segment = stored.pages.segment;
            let expelled: Vec<_> = bad.iter().filter(|bad| bad.is_expelled).map(|bad| (segment, bad.copy)).collect();
            self.join_anew_if_expelled(joined, &expelled)?;
            joined = self.client.identity().joined;
            bad = match self.fetch_once(stored)? {
                Ok(buffer) => return Ok(Some(buffer)),
                Err(bad) => bad,
            };
        }
        self.log_loss(file.ino, at, stored, &bad);
        Err(ClientError::Unreadable)
    }

    /// Tries the known copies one after the other.
    pub(super) fn fetch_once(&mut self, stored: &Stored) -> Result<Result<MessageBuffer, Vec<BadCopy>>, ClientError> {
        let mut bad: Vec<BadCopy> = Vec::new();
        let Some(place) = self.client.place(stored.pages.segment) else { return Ok(Err(bad)) };
        let whole: Vec<SegmentCopy> = place.copies.iter().filter(|copy| copy.is_whole).copied().collect();
        let first = stored.pages.first / SPREAD_PAGES;
        for turn in 0..whole.len() {
            let copy = whole[(turn + first as usize) % whole.len()];
            // Unreachable copies come last. Only then are their donors asked to admit this client.
            let needs_admission = |lane: &Self| !lane.is_connected(&copy);
            if turn == 0 && needs_admission(self) && whole.iter().any(|other| self.is_connected(other)) {
                let mut connected = whole.clone();
                connected.retain(|other| self.is_connected(other));
                for copy in connected {
                    match self.fetch_from(&copy, stored)? {
                        Ok(buffer) => return Ok(self.report_bad_copies(buffer, stored, &bad)),
                        Err(why) => bad.push(why),
                    }
                }
            }
            if bad.iter().any(|bad| bad.copy == copy) {
                continue;
            }
            match self.fetch_from(&copy, stored)? {
                Ok(buffer) => return Ok(self.report_bad_copies(buffer, stored, &bad)),
                Err(why) => bad.push(why),
            }
        }
        Ok(Err(bad))
    }

    fn fetch_from(
        &mut self,
        copy: &SegmentCopy,
        stored: &Stored,
    ) -> Result<Result<MessageBuffer, BadCopy>, ClientError> {
        let len = stored.sums.len() * PAGE;
        let target = self.client.arena.alloc(len, len).map_err(|_| ClientError::NoMemory)?;
        let at = copy.base + u64::from(stored.pages.first) * PAGE as u64;
        let mut transfers = [CopyTransfer::new(*copy, Op::Read { at, target })];
        self.transfer(&mut transfers, None);
        let [CopyTransfer { target, error, is_expelled, .. }] = transfers;
        let bad = |has_wrong_bytes, why| BadCopy { copy: *copy, has_wrong_bytes, is_expelled, why };
        let Some(buffer) = target.filter(|_| error.is_none()) else {
            return Ok(Err(bad(false, error.unwrap_or_default())));
        };
        let wrong = buffer.chunks_exact(PAGE).zip(&stored.sums).position(|(page, sum)| checksum(page) != *sum);
        Ok(match wrong {
            None => Ok(buffer),
            Some(index) => {
                let page = stored.pages.first + index as u32;
                Err(bad(true, format!("page {page} of segment {} has other bytes", stored.pages.segment)))
            }
        })
    }

    /// Reports the copies with wrong bytes to the service, now that another is known to be correct: they no longer
    /// count as copies.
    fn report_bad_copies(
        &mut self,
        buffer: MessageBuffer,
        stored: &Stored,
        bad: &[BadCopy],
    ) -> Result<MessageBuffer, Vec<BadCopy>> {
        for BadCopy { copy, why, .. } in bad.iter().filter(|bad| bad.has_wrong_bytes) {
            let text = format!("the donor {} is wrong, and another copy is right: {why}", self.name(copy));
            let subject = Subject::WrongBytes { segment: stored.pages.segment, donor: copy.donor.0 };
            self.client.log_rarely(subject, self.now_ns(), &text);
            let (donor, incarnation) = (copy.donor, copy.incarnation);
            let failed = Request::ReportFailed { segment: stored.pages.segment, donor, incarnation };
            if let Ok(Answer::Placements(places)) = self.ask_as_root(failed) {
                self.client.learn_placements(&places);
            }
        }
        Ok(buffer)
    }

    pub(super) fn learn_places(&mut self, segments: &[u32]) -> Result<(), ClientError> {
        match self.ask_as_root(Request::Placements { segments: segments.to_vec() })? {
            Answer::Placements(places) => {
                self.client.learn_placements(&places);
                // Donors may have been added meanwhile.
                let donors = self.client.donors();
                let is_known = |copy: &SegmentCopy| donors.iter().any(|donor| donor.donor == copy.donor);
                if !places.iter().flat_map(|place| &place.copies).all(is_known)
                    && let Answer::Donors(donors) = self.ask_as_root(Request::Donors)?
                {
                    self.client.set_donors(donors);
                }
                Ok(())
            }
            _ => Err(ClientError::UnexpectedAnswer),
        }
    }

    fn log_loss(&self, ino: Ino, at: u64, stored: &Stored, bad: &[BadCopy]) {
        let donors: Vec<String> = bad.iter().map(|bad| format!("{}: {}", self.name(&bad.copy), bad.why)).collect();
        let donors = if donors.is_empty() { "there is none".to_owned() } else { donors.join("; ") };
        let last = at + stored.sums.len() as u64 - 1;
        let why = format!("file {} pages {at} to {last} cannot be read: no copy is right ({donors})", ino.0);
        self.client.log_rarely(Subject::Reads { segment: stored.pages.segment }, self.now_ns(), &why);
    }

    pub(super) fn name(&self, copy: &SegmentCopy) -> String {
        let donors = self.client.donors();
        let known = donors.iter().find(|known| known.donor == copy.donor);
        known.map_or_else(|| format!("{:x}", copy.donor.0), |known| known.address.clone())
    }
}
