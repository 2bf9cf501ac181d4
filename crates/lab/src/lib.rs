//! Experiments on simulated clusters.

#![forbid(unsafe_code)]

pub mod swarm;
