//! Processes that are killed at random moments, and what has to be there all the same.

mod donor;
mod pages;
pub mod plan;
mod running;
pub mod volumes;
