//! A door for memcached clients.

pub mod protocol;
