//! Interleaves lookups on one thread, so that their cache misses overlap.
//!
#![doc = include_str!("../README.md")]

mod batch;
mod prefetch;
mod switch;

pub use batch::{Batch, WIDTH_MAX, WidthError};
pub use prefetch::prefetch;
/// ```
/// use sinew_interleave::interleave;
///
/// /// Counts the steps along `chain` until they lead to 0.
/// #[interleave(batch = count_all, width = 16)]
/// fn count(chain: &[usize], #[each] start: usize) -> usize {
///     let (mut at, mut steps) = (start, 0);
///     while at != 0 {
///         fetch!(&chain[at]);
///         at = chain[at];
///         steps += 1;
///     }
///     steps
/// }
///
/// let chain = [0, 0, 1, 2];
/// assert_eq!(count(&chain, 3), 3);
/// let mut counts = [0; 4];
/// assert_eq!(count_all(&chain, [0, 1, 2, 3], &mut counts), 4);
/// assert_eq!(counts, [0, 1, 2, 3]);
/// ```
///
pub use sinew_interleave_macros::interleave;
#[doc(hidden)]
pub use switch::finding;
pub use switch::{Switch, alone, fetch, switch};
