//! Tests of the service, in a simulated world.

mod copies;
mod facts;
mod random;
mod room;
pub(crate) mod world;
