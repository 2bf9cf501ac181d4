//! Tests of the service, in a simulated world.

mod facts;
mod random;
pub(crate) mod world;
