//! A place in local memory for one page.

use sinew_mem::{Arena, Frozen, MessageBuffer};

use crate::options::PAGE;

/// A frame without a page has this one.
pub const NO_PAGE: u64 = u64::MAX;

/// Where the bytes of a frame are.
#[derive(Debug)]
pub enum Buffer {
    /// With the store, which reads into them, or with a guard for writing.
    Away,
    /// Here alone.
    Own(MessageBuffer),
    /// Here, and with guards for reading or with the store, which writes them.
    Shared(Frozen),
}

impl Buffer {
    /// Fresh bytes.
    pub fn alloc(arena: &Arena) -> Result<MessageBuffer, sinew_mem::AllocError> {
        arena.alloc(PAGE, PAGE)
    }

    /// The bytes, if they are here.
    #[inline]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Own(buffer) => Some(buffer),
            Self::Shared(share) => Some(share),
            Self::Away => None,
        }
    }

    /// A share of the bytes, if they are here.
    pub fn share(&mut self) -> Option<Frozen> {
        let share = match std::mem::replace(self, Self::Away) {
            Self::Own(buffer) => buffer.freeze(),
            Self::Shared(share) => share,
            Self::Away => return None,
        };
        *self = Self::Shared(share.clone());
        Some(share)
    }

    /// Takes the bytes back from those who shared them. False when somebody still does.
    pub fn own(&mut self) -> bool {
        let share = match std::mem::replace(self, Self::Away) {
            Self::Shared(share) => share,
            other => {
                *self = other;
                return matches!(self, Self::Own(_));
            }
        };
        match share.thaw() {
            Ok(buffer) => *self = Self::Own(buffer),
            Err(share) => *self = Self::Shared(share),
        }
        matches!(self, Self::Own(_))
    }

    /// The bytes themselves, if they are here alone.
    pub fn take(&mut self) -> Option<MessageBuffer> {
        match std::mem::replace(self, Self::Away) {
            Self::Own(buffer) => Some(buffer),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// A place in local memory for one page.
#[derive(Debug)]
pub struct Frame {
    /// The page that it has.
    pub page: u64,
    /// Its bytes.
    pub buffer: Buffer,
    /// Guards that hold it.
    pub pins: u32,
    /// The stream whose next pages are fetched when this page is used, plus 1.
    pub mark: u8,
    /// Its bytes are on their way here.
    pub is_reading: bool,
    /// The page is being written back; it may have been changed since.
    pub is_writing: bool,
    /// It was changed since it was written back last, or began to be.
    pub is_dirty: bool,
    /// It was changed since the background writer looked at it last.
    pub is_hot: bool,
    /// The last try to write it failed.
    pub has_failed: bool,
    /// It was fetched and not used yet.
    pub is_fresh: bool,
    /// It was fetched ahead.
    pub is_ahead: bool,
}

impl Frame {
    /// A frame without a page.
    pub fn new(buffer: MessageBuffer) -> Self {
        Self {
            page: NO_PAGE,
            buffer: Buffer::Own(buffer),
            pins: 0,
            mark: 0,
            is_reading: false,
            is_writing: false,
            is_dirty: false,
            is_hot: false,
            has_failed: false,
            is_fresh: false,
            is_ahead: false,
        }
    }

    /// Whether the page can give its place to another without loss.
    #[inline]
    pub fn can_go(&self) -> bool {
        self.pins == 0 && !self.is_reading && !self.is_writing && !self.is_dirty
    }

    /// Whether a write of the page can begin.
    pub fn can_be_written(&self) -> bool {
        self.is_dirty && !self.is_writing && !matches!(self.buffer, Buffer::Away)
    }
}
