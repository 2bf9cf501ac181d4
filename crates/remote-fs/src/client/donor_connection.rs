//! The connection of one lane to a donor.

use sinew_remote_memory::pool::{AccessMethod, DonorHandle};
use sinew_rpc::{Endpoint, SharedEndpoint};

/// One lane's connection to a donor.
pub(super) struct DonorConnection<E: Endpoint, A: AccessMethod> {
    pub handle: DonorHandle<SharedEndpoint<E>, A>,
    /// Client number and epoch under which the donor has admitted this lane.
    pub admitted: Option<(u64, u32)>,
    pub incarnation: u64,
    /// A run of the donor that is over and had a wanted copy, and the time before which the donor is not asked about
    /// that run again.
    pub gone_incarnation: Option<(u64, u64)>,
    /// Time before which the donor is not tried again.
    pub retry_at_ns: u64,
    pub last_error: String,
}

impl<E: Endpoint, A: AccessMethod> DonorConnection<E, A> {
    /// Checks that the connection leads to the run of the donor that has the copy.
    pub fn check_incarnation(&self, incarnation: u64) -> Result<(), String> {
        if self.incarnation == incarnation {
            return Ok(());
        }
        Err("it has restarted, and lost its contents".into())
    }
}
