//! Names for ports that are queue pairs.

use super::types::QpAddress;
use crate::address::Address;
use crate::port::PortError;

/// Name service for ports that are queue pairs. It lets people write an address for them, since queue pairs' own
/// addresses are numbers that change with each start and do not say where to ask.
///
/// The port's thread uses it, so each of its calls must take a bounded time, whatever others do.
pub trait Names {
    /// Scheme of its addresses, before `://`.
    fn scheme(&self) -> &'static str;

    /// Makes `qp` findable at `address` for everybody who looks there, until this is dropped. Returns the address with
    /// omitted parts filled in.
    ///
    /// # Errors
    ///
    /// [`PortError`]: there is no such place here, or somebody has it.
    fn announce(&mut self, address: &Address, qp: &QpAddress) -> Result<Address, PortError>;

    /// The queue pair that was announced at `address`.
    ///
    /// # Errors
    ///
    /// [`PortError`], which says where it looked.
    fn look_up(&mut self, address: &Address) -> Result<QpAddress, PortError>;
}
