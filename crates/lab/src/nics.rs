//! Programs on simulated hosts with modelled NICs.

pub mod atomics;
pub mod cluster;
pub mod connections;
pub mod rates;
pub mod verbs;
pub mod windows;
