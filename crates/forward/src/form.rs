//! Forms of looking up the keys of a burst.

use sinew_fabric::MAX_BURST;
use sinew_interleave::{Batch, WidthError};

/// One of the three forms of lookup that every table has. All find the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One key after the other.
    Plain,
    /// By the interleaver; the batch sets how many lookups overlap.
    Interleaved(Batch<MAX_BURST>),
    /// With group prefetching written by hand.
    Grouped,
}

impl Form {
    /// The interleaved form, with `width` lookups at once.
    ///
    /// # Errors
    ///
    /// When `width` is 0 or more than [`MAX_BURST`].
    pub fn interleaved(width: usize) -> Result<Self, WidthError> {
        Batch::of_width(width).map(Self::Interleaved)
    }
}

impl Default for Form {
    fn default() -> Self {
        Self::Interleaved(Batch::new())
    }
}

/// Looks up keys in a table that has the three forms.
macro_rules! look_up {
    ($table:expr, $form:expr, $keys:expr, $found:expr) => {
        match $form {
            $crate::Form::Plain => {
                $keys.iter().zip($found.iter_mut()).for_each(|(key, found)| *found = $table.get(*key));
            }
            $crate::Form::Interleaved(batch) => {
                $table.get_all(batch, $keys.iter().copied(), $found);
            }
            $crate::Form::Grouped => $table.get_grouped($keys, $found),
        }
    };
}
pub(crate) use look_up;
