//! Tests of members.

mod classics;
mod durable;
mod hostile;
mod members;
mod swarm;
mod world;
