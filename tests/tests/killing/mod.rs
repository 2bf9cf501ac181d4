//! What tests share that kill processes at random moments.
#![allow(dead_code)] // Each test program uses some of it.

pub mod donor;
pub mod plan;
pub mod running;
