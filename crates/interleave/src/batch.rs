//! The engine: several lookups in turn on one thread.
//!
//! # Design
//!
//! Both interfaces of the crate, async lookups and the attribute, run on this engine. The attribute turns a plain
//! function into an `async` one, with an await in place of each mark.
//!
//! - **Slots lie on the stack, in a ring.** A lookup is polled and dropped in its slot. When it ends, the slot takes
//!   the next input at once. So a short lookup does not wait for a long one, as it would if lookups ran in groups.
//!   Empty slots leave the ring, so they cost nothing.
//! - **A switch to the next lookup costs little**: a prefetch, two instructions of the engine, and the jump that the
//!   compiler makes of the await. No waker is called. [`Switch`](crate::Switch) panics in builds with assertions if
//!   another executor polls it, because it would never wake that executor.
//! - **Cost** (`costs.toml`). Async lookups take 12 % more instructions than the same states written by hand as a
//!   future in this engine: they set a flag in each `Switch`, which the compiler cannot know to be set. They take 46 %
//!   more than a loop written for one table, which keeps the table's addresses in registers.
//! - **A panic ends its own lookup.** The engine is left and entered again, the other lookups end, and then the first
//!   panic is resumed.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Most lookups that any batch can run at once.
pub const WIDTH_MAX: usize = 256;

/// A runner of lookups, up to `MAX` at once, which take room on the stack.
///
/// A processor core handles some ten to fifty cache misses at once, so 16 is a good first width; lookups that touch
/// several lines between two switches do better with less.
///
/// ```
/// use sinew_interleave::Batch;
///
/// let fixed = Batch::<16>::new();
/// let chosen = Batch::<64>::of_width(24)?;
/// assert_eq!((fixed.width(), chosen.width()), (16, 24));
/// # Ok::<(), sinew_interleave::WidthError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch<const MAX: usize> {
    width: usize,
}

/// A width that a batch cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a batch cannot run {width} lookups at once: choose 1 to {max}")]
pub struct WidthError {
    /// The width asked for.
    pub width: usize,
    /// The greatest width that the batch has room for.
    pub max: usize,
}

impl<const MAX: usize> Default for Batch<MAX> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const MAX: usize> Batch<MAX> {
    /// A batch that runs `MAX` lookups at once. A `MAX` of 0 or of more than [`WIDTH_MAX`] does not compile.
    ///
    /// ```compile_fail
    /// let _ = sinew_interleave::Batch::<257>::new();
    /// ```
    #[inline(always)]
    pub const fn new() -> Self {
        const { assert!(MAX > 0 && MAX <= WIDTH_MAX, "a batch runs 1 to 256 lookups at once") };
        Self { width: MAX }
    }

    /// A batch that runs `width` lookups at once, chosen at run time.
    ///
    /// # Errors
    ///
    /// [`WidthError`] for 0 and for more than `MAX`.
    pub const fn of_width(width: usize) -> Result<Self, WidthError> {
        if width == 0 || width > Self::new().width {
            return Err(WidthError { width, max: MAX });
        }
        Ok(Self { width })
    }

    /// Number of lookups that run at once.
    pub const fn width(&self) -> usize {
        self.width
    }

    /// Runs a lookup for each input and puts the results into `results`, in the order of the inputs. Returns the number
    /// of lookups: that of the inputs, or of the results if these are fewer; inputs beyond that are not taken.
    ///
    /// Lookups start in the order of the inputs and run in turn, each up to its next [`fetch`](crate::fetch). When one
    /// ends, the lookup for the next input starts in its place. Nothing is allocated, and no waker is called.
    ///
    /// # Panics
    ///
    /// If a lookup panics. The others end first, and their results are in `results`, where the place of a lookup that
    /// panicked is unchanged. The first panic is resumed; others are dropped.
    #[inline(always)]
    pub fn run<I, F>(&self, inputs: I, results: &mut [F::Output], lookup: impl FnMut(I::Item) -> F) -> usize
    where
        I: IntoIterator,
        F: Future,
    {
        // Results first: an input is taken only when there is a place for its result.
        self.engine(results.iter_mut().zip(inputs), lookup, |place, result| *place = result)
    }

    /// Same as [`Self::run`], but hands each result to `take`, with its input's number, in the order in which the
    /// lookups end. Returns the number of inputs.
    ///
    /// # Panics
    ///
    /// If a lookup, `take` or `inputs` panics. Lookups that have begun end first, and so do lookups for the inputs
    /// still to come, unless it was `inputs` that panicked: then no more are taken from it.
    #[inline(always)]
    pub fn for_each<I, F>(
        &self,
        inputs: I,
        lookup: impl FnMut(I::Item) -> F,
        take: impl FnMut(usize, F::Output),
    ) -> usize
    where
        I: IntoIterator,
        F: Future,
    {
        self.engine((0..).zip(inputs), lookup, take)
    }

    /// Runs a lookup for each input, which comes with a ticket. The ticket is handed to `take` with the result.
    #[inline]
    fn engine<I, F, P, T>(&self, inputs: I, lookup: impl FnMut(P) -> F, take: impl FnMut(T, F::Output)) -> usize
    where
        I: Iterator<Item = (T, P)>,
        F: Future,
    {
        let mut slots = [const { Slot::<F, T>::EMPTY }; MAX];
        let mut lookups = RunningLookups {
            current: std::ptr::null_mut(),
            begun: 0,
            is_asking: false,
            inputs: Some(inputs),
            lookup,
            take,
        };
        let mut panic: Option<Box<dyn Any + Send>> = None;
        // Only the current slot can be left in the middle of a step by a panic, and `give_up` empties it.
        while let Err(payload) = catch_unwind(AssertUnwindSafe(|| lookups.run(&mut slots[..self.width]))) {
            panic.get_or_insert(payload);
            lookups.give_up(&mut slots[..self.width]);
        }
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
        lookups.begun
    }
}

/// A place for a lookup.
struct Slot<F, T> {
    /// Pinned: it is polled and dropped in this slot, and never moved.
    lookup: Option<F>,
    ticket: Option<T>,
    /// The next slot that has a lookup; the last leads back to the first.
    next: *mut Slot<F, T>,
}

impl<F, T> Slot<F, T> {
    const EMPTY: Self = Self { lookup: None, ticket: None, next: std::ptr::null_mut() };
}

/// Lookups in progress.
struct RunningLookups<I, F, L, T, K> {
    /// The current slot.
    current: *mut Slot<F, T>,
    /// Inputs taken so far.
    begun: usize,
    /// Whether `inputs` is being asked for its next input.
    is_asking: bool,
    /// `None` once there are no more inputs, or `inputs` has panicked.
    inputs: Option<I>,
    lookup: L,
    take: K,
}

impl<I, F, L, P, T, K> RunningLookups<I, F, L, T, K>
where
    I: Iterator<Item = (T, P)>,
    F: Future,
    L: FnMut(P) -> F,
    K: FnMut(T, F::Output),
{
    /// Begins lookups in the free slots, and polls all in turn until they are done. After a panic it is called again
    /// with the same slots, some of which then have lookups.
    #[inline(always)]
    fn run(&mut self, slots: &mut [Slot<F, T>]) {
        let start = slots.as_mut_ptr();
        // The ring of the slots that have a lookup.
        let (mut first, mut last) = (std::ptr::null_mut::<Slot<F, T>>(), std::ptr::null_mut::<Slot<F, T>>());
        for at in 0..slots.len() {
            // SAFETY: `at` is inside the slice, which is ours alone; this reference to the slot ends before the next is
            // made.
            let slot = unsafe { &mut *start.add(at) };
            if slot.lookup.is_none() && !self.begin(slot) {
                continue;
            }
            let slot: *mut Slot<F, T> = slot;
            if first.is_null() {
                first = slot;
            } else {
                // SAFETY: as above.
                unsafe { (*last).next = slot };
            }
            last = slot;
        }
        if first.is_null() {
            return;
        }
        // SAFETY: as above.
        unsafe { (*last).next = first };
        let mut context = Context::from_waker(Waker::noop());
        let (mut before, mut at) = (last, first);
        loop {
            // SAFETY: the ring has slots of the slice only; this reference ends before the next is made.
            let slot = unsafe { &mut *at };
            self.current = at;
            // SAFETY: a slot of the ring has a lookup, which stays where it is until it is dropped there.
            let lookup = unsafe { Pin::new_unchecked(slot.lookup.as_mut().unwrap_unchecked()) };
            match lookup.poll(&mut context) {
                Poll::Pending => {
                    before = at;
                    at = slot.next;
                }
                Poll::Ready(result) => {
                    if let Some(ticket) = slot.ticket.take() {
                        (self.take)(ticket, result);
                    }
                    // The next lookup takes its first turn at once.
                    if !self.begin(slot) {
                        slot.lookup = None;
                        if before == at {
                            return;
                        }
                        at = slot.next;
                        // SAFETY: as above.
                        unsafe { (*before).next = at };
                    }
                }
            }
        }
    }

    /// Begins the next input's lookup in a slot; returns false if there is no input.
    #[inline(always)]
    fn begin(&mut self, slot: &mut Slot<F, T>) -> bool {
        self.current = slot;
        let Some(inputs) = &mut self.inputs else { return false };
        self.is_asking = true;
        let input = inputs.next();
        self.is_asking = false;
        let Some((ticket, input)) = input else {
            self.inputs = None;
            return false;
        };
        self.begun += 1;
        slot.ticket = Some(ticket);
        slot.lookup = Some((self.lookup)(input));
        true
    }

    /// Empties the current slot after a panic.
    #[cold]
    fn give_up(&mut self, slots: &mut [Slot<F, T>]) {
        if self.is_asking {
            self.inputs = None;
        }
        if let Some(slot) = slots.iter_mut().find(|slot| std::ptr::eq(*slot, self.current)) {
            // If dropping the lookup panics too, the slot is empty all the same: the assignment still writes it.
            let _ = catch_unwind(AssertUnwindSafe(|| slot.lookup = None));
        }
    }
}
