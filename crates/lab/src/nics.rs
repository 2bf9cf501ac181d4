//! Programs on simulated hosts with modelled NICs.

pub mod atomics;
pub mod cluster;
pub mod connections;
mod published;
pub mod rates;
pub mod real;
pub mod verbs;
pub mod windows;
