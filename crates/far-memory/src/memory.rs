//! Far memory: one store, shared by vectors that own ranges of its pages.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;

use sinew_fabric::Clock;
use sinew_mem::{Frozen, MessageBuffer};
use sinew_remote_memory::{Status, Store};

use crate::error::FarError;
use crate::extents::Extents;
use crate::options::{Options, Stats};
use crate::pager::Pager;

/// Memory whose pages lie in a [`Store`], with a bounded number of them local. Vectors ([`FarVec`](crate::FarVec)) lie
/// in it.
///
/// It belongs to the thread that drives the store, as its vectors do: clones are the same memory, and none is `Send`.
/// Other threads can have that thread work for them (an endpoint's handle runs closures), own far memory on a store of
/// their own, or share a [`FarMapping`](crate::FarMapping), which any thread can load from and store to. So this does
/// not compile:
///
/// ```compile_fail,E0277
/// # use sinew_far_memory::{FarMemory, FarVec};
/// fn send<S: sinew_remote_memory::Store + Send + 'static>(memory: FarMemory<S>) {
///     std::thread::spawn(move || drop(memory.flush()));
/// }
/// ```
///
/// Every access checks in ordinary code whether the page is local, and fetches it if not: a page whose copies are all
/// lost is an error, not a signal. Meanwhile the thread waits for the store: it spins for a while, then sleeps. Once
/// everything has been used once, nothing is allocated from the heap.
///
/// Written data is at the store after [`Self::flush`]. Data not flushed is lost when the memory is dropped.
pub struct FarMemory<S>(Rc<Inner<S>>);

struct Inner<S> {
    pager: RefCell<Pager<S>>,
    extents: RefCell<Extents>,
    lists: RefCell<SpareLists>,
}

/// Empty page lists of dropped guards, kept for reuse.
#[derive(Default)]
pub struct SpareLists {
    /// Lists of guards for reading.
    pub shared: Vec<Vec<(u32, Frozen)>>,
    /// Lists of guards for writing.
    pub unshared: Vec<Vec<(u32, MessageBuffer)>>,
}

impl<S> Clone for FarMemory<S> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<S: Store> std::fmt::Debug for FarMemory<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FarMemory").field("pages", &self.pages()).field("stats", &self.stats()).finish()
    }
}

impl<S: Store> FarMemory<S> {
    /// Memory in the whole pages of a store. The buffers of all local pages are allocated from the store's arena here:
    /// a page takes [`Arena::block_len`](sinew_mem::Arena::block_len)`(4096, 4096)` bytes. `clock` must be the clock of
    /// the store's deadlines.
    ///
    /// # Errors
    ///
    /// [`FarError::Options`] for invalid options, and [`FarError::Buffers`] when the arena is too small.
    pub fn new(store: S, options: Options, clock: impl Clock + 'static) -> Result<Self, FarError> {
        let pager = Pager::new(store, options, Box::new(clock))?;
        let extents = RefCell::new(Extents::new(pager.pages()));
        Ok(Self(Rc::new(Inner { pager: RefCell::new(pager), extents, lists: RefCell::default() })))
    }

    #[inline]
    pub(crate) fn pager(&self) -> RefMut<'_, Pager<S>> {
        self.0.pager.borrow_mut()
    }

    pub(crate) fn lists(&self) -> RefMut<'_, SpareLists> {
        self.0.lists.borrow_mut()
    }

    pub(crate) fn extents(&self) -> RefMut<'_, Extents> {
        self.0.extents.borrow_mut()
    }

    /// Number of whole pages in the store.
    pub fn pages(&self) -> u64 {
        self.0.pager.borrow().pages()
    }

    /// Writes every changed page to the store, and has it confirm that they have reached all their destinations.
    ///
    /// # Errors
    ///
    /// [`FarError::WriteBack`] and [`FarError::Unconfirmed`]; [`FarError::Borrowed`] when everything is written except
    /// pages that a guard for writing holds. Pages that were not written stay local.
    pub fn flush(&self) -> Result<(), FarError> {
        self.pager().flush()
    }

    /// Takes the error of the last background write that failed; `None` if it was taken before. The page stays local
    /// and changed, and is retried when its room is needed or by [`Self::flush`].
    pub fn write_failure(&self) -> Option<FarError> {
        self.pager().write_failure()
    }

    /// Runs one turn of the store, without waiting. Returns whether there was anything to do. Accesses do this while
    /// they wait; call it when there is nothing to access and requests in flight are to make progress. A store that
    /// renews a lease does so only here: a program that neglects a remote volume for longer than its lease (`lease_ns`
    /// of `sinew_remote_memory::volume::VolumeConfig`) loses it to whichever program opens it meanwhile. Call this
    /// several times in each lease, even when there is nothing to access.
    pub fn turn(&self) -> bool {
        self.pager().turn()
    }

    /// Counts of operations, and of pages that are local now.
    pub fn stats(&self) -> Stats {
        self.0.pager.borrow().stats()
    }

    /// State of the store.
    pub fn status(&self) -> Status {
        self.0.pager.borrow().store().status()
    }

    /// Flushes, and returns the store.
    ///
    /// # Errors
    ///
    /// As for [`Self::flush`]. The outer error is the memory itself, unchanged, while vectors or clones of it are left.
    pub fn into_store(self) -> Result<Result<S, FarError>, Self> {
        match Rc::try_unwrap(self.0) {
            Ok(inner) => {
                let mut pager = inner.pager.into_inner();
                Ok(pager.flush().and_then(|()| pager.into_store()))
            }
            Err(shared) => Err(Self(shared)),
        }
    }
}
