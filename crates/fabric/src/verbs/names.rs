//! Names for ports that are queue pairs.

use super::types::QpAddress;
use crate::address::Address;
use crate::port::PortError;

/// How ports that are queue pairs are found at addresses that people write: their own are numbers that change with each start,
/// and tell nobody where to ask.
///
/// It is used by the port's thread, so each of its calls may take a bounded time at most, whatever others do.
pub trait Names {
    /// What its addresses begin with, before `://`.
    fn scheme(&self) -> &'static str;

    /// Has `qp` found at `address` by everybody who looks there, until this is dropped. Returns the address with what was left open
    /// filled in.
    ///
    /// # Errors
    ///
    /// [`PortError`]: no such place here, or somebody has it.
    fn announce(&mut self, address: &Address, qp: &QpAddress) -> Result<Address, PortError>;

    /// What was announced at `address`.
    ///
    /// # Errors
    ///
    /// [`PortError`], which says where it looked.
    fn look_up(&mut self, address: &Address) -> Result<QpAddress, PortError>;
}
