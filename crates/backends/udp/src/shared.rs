//! State that the two halves of a port share.

use sinew_mem::atomic::plain::{AtomicU32, Ordering};

use crate::sys::Socket;

// Notes of the two halves to each other: bits of one word.
const NOTE_ERROR: u32 = 1;
const NOTE_NARROW_PATH: u32 = 2;

/// The socket, and notes of the halves to each other.
pub(crate) struct Shared {
    pub socket: Socket,
    /// Only one thread at a time uses a port; the word is atomic so that the halves need no cell. It needs no ordering.
    notes: AtomicU32,
}

impl Shared {
    pub fn new(socket: Socket) -> Self {
        Self { socket, notes: AtomicU32::new(0) }
    }

    /// Notes that the kernel holds news of an earlier packet.
    pub fn note_error(&self) {
        self.notes.fetch_or(NOTE_ERROR, Ordering::Relaxed);
    }

    /// Notes that some path carries less than before.
    pub fn note_narrow_path(&self) {
        self.notes.fetch_or(NOTE_NARROW_PATH, Ordering::Relaxed);
    }

    #[inline]
    fn take(&self, note: u32) -> bool {
        self.notes.load(Ordering::Relaxed) & note != 0 && self.notes.fetch_and(!note, Ordering::Relaxed) & note != 0
    }

    pub fn has_error_note(&self) -> bool {
        self.notes.load(Ordering::Relaxed) & NOTE_ERROR != 0
    }

    #[inline]
    pub fn take_error_note(&self) -> bool {
        self.take(NOTE_ERROR)
    }

    #[inline]
    pub fn take_narrow_path_note(&self) -> bool {
        self.take(NOTE_NARROW_PATH)
    }
}
