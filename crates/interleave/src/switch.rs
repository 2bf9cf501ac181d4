//! The points at which one lookup gives way to the others.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::prefetch::prefetch;

/// Asks the cache for `value`. Await the result before reading the value; the other lookups of the batch run meanwhile.
///
/// ```
/// # use sinew_interleave::{Batch, fetch};
/// let squares: Vec<u64> = (0..1000).map(|n| n * n).collect();
/// let mut found = [0; 4];
/// Batch::<4>::new().run([3, 1, 4, 999], &mut found, async |at: usize| {
///     fetch(&squares[at]).await;
///     squares[at]
/// });
/// assert_eq!(found, [9, 1, 16, 998_001]);
/// ```
#[inline(always)]
pub fn fetch<T>(value: &T) -> Switch {
    prefetch(value);
    switch()
}

/// Lets the other lookups of the batch run. It is for lookups that prefetch by other means than [`fetch`].
#[inline(always)]
pub fn switch() -> Switch {
    Switch { is_over: false }
}

/// Future that [`switch`] returns. Only a [`Batch`](crate::Batch) and [`alone`] can run it: it wakes nobody, so that
/// another executor would wait for ever, and with debug assertions it panics there.
#[derive(Debug)]
#[must_use = "a lookup goes on at once unless it awaits this"]
pub struct Switch {
    is_over: bool,
}

impl Future for Switch {
    type Output = ();

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        debug_assert!(
            context.waker().will_wake(Waker::noop()),
            "lookups are run by Batch::run or alone, and no other executor"
        );
        if self.is_over {
            return Poll::Ready(());
        }
        self.is_over = true;
        Poll::Pending
    }
}

/// Tells the compiler that a lookup returns an `R`. It is for the expansion of the attribute
/// [`interleave`](crate::interleave).
#[doc(hidden)]
#[inline(always)]
pub fn finding<R, F: Future<Output = R>>(lookup: F) -> F {
    lookup
}

/// Runs one lookup, with no others beside it.
///
/// ```
/// # use sinew_interleave::{alone, fetch};
/// let table = [1, 2, 3];
/// assert_eq!(alone(async { fetch(&table[1]).await; table[1] }), 2);
/// ```
#[inline(always)]
pub fn alone<F: Future>(lookup: F) -> F::Output {
    let mut lookup = std::pin::pin!(lookup);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(result) = lookup.as_mut().poll(&mut context) {
            return result;
        }
    }
}
