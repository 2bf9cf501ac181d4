//! A modelled NIC: what it is like, how long its work queue elements are, and what its requests send over PCI Express.

mod expected;
mod fields;
mod latency;
mod profile;
mod profile_file;
mod wqe;

pub use expected::{CQE, Crossings, Expected, Post, Requests, RequestsError, Step};
pub use profile::{Caches, Core, Framing, Link, Parameter, Pcie, Profile, Registration, Units, WqeLayout};
pub use wqe::{IMMEDIATE, Source, WQE_MAX};
