//! Other systems' programs, started and driven so that Sinew can be measured beside them.
//!
//! They belong to nobody else: a [`Server`] ends, and a [`Folder`] goes, with the process that made it, even if that is
//! killed. A program that is not installed is a [`Missing`], which names the package that has it.
#![forbid(unsafe_code)]

pub mod etcd;
mod folder;
pub mod memcached;
pub mod redis;
mod server;

pub use folder::Folder;
pub use server::{Missing, Place, Server};
