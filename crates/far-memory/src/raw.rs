//! Far memory accessed by plain loads and stores: an area of address space whose missing pages a handler thread fetches
//! (userfaultfd).

mod area;
mod handler;
mod uffd;

pub use area::{Control, FarMapping, MapError, MapOptions, OnLoss};
pub use handler::Handler;
