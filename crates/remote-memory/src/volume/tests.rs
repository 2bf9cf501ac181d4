//! Tests of volumes over donors in memory.

mod facts;
mod model;
mod random;
mod removing;
