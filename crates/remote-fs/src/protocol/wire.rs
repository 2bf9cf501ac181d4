//! Encoding of messages and replies.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sinew_rpc::RequestType;

use super::answer::Reply;
use super::limits::{
    ANSWER_LEN_MAX, EXTENTS_MAX, GROUPS_MAX, LINK_LEN_MAX, LOCKS_MAX, NAME_LEN_MAX, OPENS_MAX, PAGE, REQUEST_LEN_MAX,
    RESERVE_PAGES_MAX, SEGMENTS_MAX, XATTR_VALUE_MAX,
};
use super::page::{Extent, Pages, Run, Sums};
use super::request::{Message, Request};

/// Type of a file system's requests.
pub const FILES: RequestType = RequestType::new(56);

/// Version of the protocol. It changes with the encoding or the meaning of any message or reply. Programs of version 1
/// did not say it.
pub const VERSION: u8 = 3;

/// Error for bytes that are not a valid message or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are not a valid message")]
pub struct Malformed;

fn write(value: &impl Serialize) -> Vec<u8> {
    // Writing to memory fails only for values that we do not use, such as sequences of unknown length.
    postcard::to_allocvec(value).unwrap_or_default()
}

fn read<T: DeserializeOwned>(bytes: &[u8], len_max: usize) -> Result<T, Malformed> {
    if bytes.len() > len_max {
        return Err(Malformed);
    }
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(Malformed),
    }
}

fn check(makes_sense: bool) -> Result<(), Malformed> {
    if makes_sense { Ok(()) } else { Err(Malformed) }
}

impl Message {
    /// The message as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        write(self)
    }

    /// Reads a message from untrusted bytes.
    ///
    /// # Errors
    ///
    /// [`Malformed`], also if a part of it is too long.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let message: Self = read(bytes, REQUEST_LEN_MAX)?;
        match &message {
            Self::Greet(_) | Self::Prove(_) => {}
            Self::Join(join) => check(join.opens.len() <= OPENS_MAX && join.locks.len() <= LOCKS_MAX)?,
            Self::Request(envelope) => {
                check(envelope.caller.groups.len() <= GROUPS_MAX)?;
                check(envelope.request.changes() == (envelope.sequence != 0))?;
                check_request(&envelope.request)?;
            }
        }
        Ok(message)
    }
}

/// Names that are too long are read up to a point, so that they can be refused with the proper error.
fn check_request(request: &Request) -> Result<(), Malformed> {
    let name_len_max = NAME_LEN_MAX * 16;
    match request {
        Request::Lookup { name, .. }
        | Request::Create { name, .. }
        | Request::MakeDirectory { name, .. }
        | Request::MakeNode { name, .. }
        | Request::Link { name, .. }
        | Request::Unlink { name, .. }
        | Request::RemoveDirectory { name, .. }
        | Request::GetXattr { name, .. }
        | Request::RemoveXattr { name, .. } => check(name.len() <= name_len_max),
        Request::MakeSymlink { name, target, .. } => {
            check(name.len() <= name_len_max && target.len() <= LINK_LEN_MAX + 1)
        }
        Request::Rename { name, new_name, .. } => check(name.len().max(new_name.len()) <= name_len_max),
        Request::SetXattr { name, value, .. } => check(name.len() <= name_len_max && value.len() <= XATTR_VALUE_MAX),
        Request::Placements { segments } => check(segments.len() <= SEGMENTS_MAX),
        Request::GiveBack { pages } => {
            check(pages.len() <= EXTENTS_MAX)?;
            pages.iter().try_for_each(check_pages)
        }
        Request::Commit { extents, holes, .. } => {
            check(extents.len() <= EXTENTS_MAX && holes.len() <= EXTENTS_MAX)?;
            extents.iter().try_for_each(check_extent)?;
            let pages: u64 = extents.iter().map(|extent| u64::from(extent.pages.count)).sum();
            check(pages <= RESERVE_PAGES_MAX.into())?;
            check(extents.is_sorted_by(|one, next| one.at + u64::from(one.pages.count) <= next.at))?;
            holes.iter().try_for_each(|(at, count)| check(*count > 0 && at.checked_add(*count).is_some()))?;
            check(holes.is_sorted_by(|(at, count), (next, _)| at + count <= *next))
        }
        Request::Allocate { at, count, hole, .. } => {
            let end = at.checked_add(*count).filter(|end| at < end).ok_or(Malformed)?;
            let is_inside =
                |(first, count): (u64, u64)| first >= *at && first.checked_add(count).is_some_and(|last| last <= end);
            check(hole.is_none_or(is_inside))
        }
        Request::ReserveOverwrite { at, count, .. } => {
            check(*count > 0 && *count <= RESERVE_PAGES_MAX && at.checked_add((*count).into()).is_some())
        }
        _ => Ok(()),
    }
}

fn check_pages(pages: &Pages) -> Result<(), Malformed> {
    check(pages.count > 0 && pages.first.checked_add(pages.count).is_some())
}

fn check_extent(extent: &Extent) -> Result<(), Malformed> {
    let Extent { at, pages, sums, replaces, .. } = extent;
    let count = pages.count as usize;
    check_pages(pages)?;
    check(at.checked_add(pages.count.into()).is_some())?;
    check(sums.0.len() == count && !sums.0.contains(&0))?;
    check(replaces.as_ref().is_none_or(|Sums(old)| old.len() == count))
}

fn check_run(run: &Run) -> Result<(), Malformed> {
    let Run { at, pages, last_len, sums } = run;
    check_pages(pages)?;
    check(at.checked_add(pages.count.into()).is_some())?;
    check(sums.0.len() == pages.count as usize && (1..=PAGE).contains(&usize::from(*last_len)))
}

impl Reply {
    /// The reply as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        write(self)
    }

    /// Reads a reply from untrusted bytes.
    ///
    /// # Errors
    ///
    /// [`Malformed`], also if a run of a layout has a different number of checksums than pages, or runs are out of
    /// order or lie beyond the layout's end.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let reply: Self = read(bytes, ANSWER_LEN_MAX)?;
        if let Self::Answer(super::answer::Answer::Layout(layout)) = &reply {
            layout.runs.iter().try_for_each(check_run)?;
            let end = |run: &Run| run.at + u64::from(run.pages.count);
            check(layout.runs.is_sorted_by(|one, next| end(one) <= next.at))?;
            check(layout.runs.last().is_none_or(|run| end(run) <= layout.until))?;
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests;
