#![doc = include_str!("../README.md")]

mod batch;
mod prefetch;
mod switch;

pub use batch::{Batch, WIDTH_MAX, WidthError};
pub use prefetch::prefetch;
pub use sinew_interleave_macros::interleave;
#[doc(hidden)]
pub use switch::finding;
pub use switch::{Switch, alone, fetch, switch};
