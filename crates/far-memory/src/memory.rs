//! Far memory: one store, and who has which pages of it.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;

use sinew_fabric::Clock;
use sinew_mem::{Frozen, MessageBuffer};
use sinew_remote_memory::{Status, Store};

use crate::error::FarError;
use crate::extents::Extents;
use crate::options::{Options, Stats};
use crate::pager::Pager;

/// Memory whose pages lie in a [`Store`], with so many of them here: vectors ([`FarVec`](crate::FarVec)) lie in it.
///
/// It belongs to the thread that drives the store, as vectors in it do: clones are the same memory, and none is `Send`. Other threads have that thread work
/// for them (an endpoint's handle runs closures), have far memory of their own on a store of their own, or share a
/// [`FarMapping`](crate::FarMapping), which any thread loads from and stores to.
///
/// Every access looks whether the page is here, and fetches it if not, in ordinary code: a page whose copies are all lost is an error, and no signal. The
/// thread waits for the store meanwhile: it spins for a while, then it sleeps. Nothing is allocated from the heap once everything has been used once.
///
/// What was written is at the store after [`Self::flush`]; what was not, goes with the memory when it is dropped.
pub struct FarMemory<S>(Rc<Inner<S>>);

struct Inner<S> {
    pager: RefCell<Pager<S>>,
    extents: RefCell<Extents>,
    lists: RefCell<Lists>,
}

/// Lists of guards that are over, to be used again.
#[derive(Default)]
pub struct Lists {
    /// Of guards for reading.
    pub shared: Vec<Vec<(u32, Frozen)>>,
    /// Of guards for writing.
    pub own: Vec<Vec<(u32, MessageBuffer)>>,
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
    /// Memory in the whole pages of a store. Their buffers come from the store's arena, all of them now: a page takes
    /// [`Arena::block_len`](sinew_mem::Arena::block_len)`(4096, 4096)` bytes of it. `clock` is what the store's deadlines are on.
    ///
    /// # Errors
    ///
    /// [`FarError::Options`], and [`FarError::Buffers`] when the arena is too small.
    pub fn new(store: S, options: Options, clock: impl Clock + 'static) -> Result<Self, FarError> {
        let pager = Pager::new(store, options, Box::new(clock))?;
        let extents = RefCell::new(Extents::new(pager.pages()));
        Ok(Self(Rc::new(Inner { pager: RefCell::new(pager), extents, lists: RefCell::default() })))
    }

    #[inline]
    pub(crate) fn pager(&self) -> RefMut<'_, Pager<S>> {
        self.0.pager.borrow_mut()
    }

    pub(crate) fn lists(&self) -> RefMut<'_, Lists> {
        self.0.lists.borrow_mut()
    }

    pub(crate) fn extents(&self) -> RefMut<'_, Extents> {
        self.0.extents.borrow_mut()
    }

    /// Pages of the store.
    pub fn pages(&self) -> u64 {
        self.0.pager.borrow().pages()
    }

    /// Writes every changed page to the store, and has it confirm that they are where they are to be.
    ///
    /// # Errors
    ///
    /// [`FarError::WriteBack`], [`FarError::Unconfirmed`]; [`FarError::Borrowed`] when all is written but what a guard for writing has. What was not written
    /// stays.
    pub fn flush(&self) -> Result<(), FarError> {
        self.pager().flush()
    }

    /// The last write in the background that failed, told once. Its page stays local and changed, and is tried again when its room is needed, or
    /// by [`Self::flush`].
    pub fn write_failure(&self) -> Option<FarError> {
        self.pager().write_failure()
    }

    /// Turns the store, without waiting. Returns whether there was anything to do. Accesses do so when they wait; whoever has nothing to access and wants what is
    /// on its way to go on calls it. A store that gives signs of life does so here alone: a program that lets a remote volume alone for longer than its lease
    /// (`lease_ns` of `sinew_remote_memory::volume::VolumeConfig`) loses the volume to whoever opens it meanwhile, so it calls this some times in each lease,
    /// also where it has nothing to access.
    pub fn turn(&self) -> bool {
        self.pager().turn()
    }

    /// What was done, and how much is here.
    pub fn stats(&self) -> Stats {
        self.0.pager.borrow().stats()
    }

    /// How well the store is.
    pub fn status(&self) -> Status {
        self.0.pager.borrow().store().status()
    }

    /// Flushes, and gives the store back.
    ///
    /// # Errors
    ///
    /// As for [`Self::flush`]; the memory itself, when vectors or clones of it are left. Then nothing was done.
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
