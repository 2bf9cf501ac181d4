//! Tests of the service, in a simulated world.

mod copies;
mod facts;
mod random;
pub(crate) mod world;
