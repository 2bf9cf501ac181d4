//! Tests of the last copy.

mod facts;
mod files;
mod model;
mod random;
