//! Tests of volumes over donors in memory.

mod facts;
mod leases;
mod model;
mod opening;
mod random;
mod removing;
mod revival;
