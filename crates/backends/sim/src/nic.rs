//! A modelled NIC.

mod profile;

pub use profile::{Caches, Core, Framing, Link, Pcie, Profile, Registration, Units, WqeLayout};
