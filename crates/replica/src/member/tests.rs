//! Tests of members.

mod classics;
mod durable;
mod hostile;
mod leaders;
mod members;
mod swarm;
mod world;
