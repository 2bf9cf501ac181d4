//! Objects of another host's memory, by whichever way is the best at the moment.
//!
//! apnet19 measures that no way to read is the best: it depends on the object's size, on how many dependent accesses lead to it, and on
//! the load of both processors (4.1, 4.2), and asks for a library that hides the choice and changes it as the load changes (5).
//!
//! [`policy`] decides, from what gets took: it is pure.

mod choice;
mod estimate;
pub mod policy;

pub use choice::{ACCESSES_MAX, Choice, Class, Notice, Way};
