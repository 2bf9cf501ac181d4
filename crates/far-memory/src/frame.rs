//! A local frame, which holds one page.

use sinew_mem::{Arena, Frozen, MessageBuffer};

use crate::options::PAGE;

/// Page number of a frame without a page.
pub const NO_PAGE: u64 = u64::MAX;

/// Location of a frame's bytes.
#[derive(Debug)]
pub enum Buffer {
    /// With the store, which reads into them, or with a guard for writing.
    LentOut,
    /// Here, and not shared.
    Unshared(MessageBuffer),
    /// Here, and shared with guards for reading or with the store, which writes them.
    Shared(Frozen),
}

impl Buffer {
    /// Allocates the buffer of a frame.
    pub fn alloc(arena: &Arena) -> Result<MessageBuffer, sinew_mem::AllocError> {
        arena.alloc(PAGE, PAGE)
    }

    /// The bytes, unless they are away.
    #[inline]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Unshared(buffer) => Some(buffer),
            Self::Shared(share) => Some(share),
            Self::LentOut => None,
        }
    }

    /// A share of the bytes, unless they are away.
    pub fn share(&mut self) -> Option<Frozen> {
        let share = match std::mem::replace(self, Self::LentOut) {
            Self::Unshared(buffer) => buffer.freeze(),
            Self::Shared(share) => share,
            Self::LentOut => return None,
        };
        *self = Self::Shared(share.clone());
        Some(share)
    }

    /// Makes the bytes unshared again. False while another share exists, or if the bytes are away.
    pub fn unshare(&mut self) -> bool {
        let share = match std::mem::replace(self, Self::LentOut) {
            Self::Shared(share) => share,
            other => {
                *self = other;
                return matches!(self, Self::Unshared(_));
            }
        };
        match share.thaw() {
            Ok(buffer) => *self = Self::Unshared(buffer),
            Err(share) => *self = Self::Shared(share),
        }
        matches!(self, Self::Unshared(_))
    }

    /// Takes the buffer, if it is here and not shared.
    pub fn take_unshared(&mut self) -> Option<MessageBuffer> {
        match std::mem::replace(self, Self::LentOut) {
            Self::Unshared(buffer) => Some(buffer),
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
    /// The page in the frame, or [`NO_PAGE`].
    pub page: u64,
    /// Its bytes.
    pub buffer: Buffer,
    /// Pins on it: one for each guard that holds it.
    pub pins: u32,
    /// Stream to continue when this page is used, plus 1; 0: none.
    pub mark: u8,
    /// The page is being fetched.
    pub is_reading: bool,
    /// The page is being written back; it may have been changed since that began.
    pub is_writing: bool,
    /// The page was changed since its last write-back began.
    pub is_dirty: bool,
    /// The page was changed since the background writer last passed it.
    pub is_hot: bool,
    /// The last write-back of the page failed.
    pub has_failed: bool,
    /// The page was fetched and not yet used.
    pub is_fresh: bool,
    /// The page was fetched ahead and not yet used.
    pub is_ahead: bool,
}

impl Frame {
    /// A frame without a page.
    pub fn new(buffer: MessageBuffer) -> Self {
        Self {
            page: NO_PAGE,
            buffer: Buffer::Unshared(buffer),
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

    /// Whether the page can be evicted without loss.
    #[inline]
    pub fn is_evictable(&self) -> bool {
        self.pins == 0 && !self.is_reading && !self.is_writing && !self.is_dirty
    }

    /// Whether a write-back of the page can begin.
    pub fn can_be_written(&self) -> bool {
        self.is_dirty && !self.is_writing && !matches!(self.buffer, Buffer::LentOut)
    }
}
