//! Processes that are killed at random moments, and checks of what must survive them.

mod deployment;
mod donor;
pub mod files;
mod health;
mod own_files;
mod pages;
pub mod plan;
pub mod replica;
mod running;
mod shadow;
pub mod swap;
pub mod swap_device;
pub mod volumes;
mod writers;
