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
    pub last_error: NotAdmitted,
    /// Client number and epoch that the donor refuses.
    pub expelled_as: Option<(u64, u32)>,
}

/// Reason why a donor does not admit a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NotAdmitted {
    pub why: String,
    /// Whether the donor refuses the client's number, which was expelled, or is taken for one that was.
    pub is_expelled: bool,
}

impl From<String> for NotAdmitted {
    fn from(why: String) -> Self {
        Self { why, is_expelled: false }
    }
}

impl From<&str> for NotAdmitted {
    fn from(why: &str) -> Self {
        Self::from(why.to_owned())
    }
}

impl<E: Endpoint, A: AccessMethod> DonorConnection<E, A> {
    /// Checks that the connection leads to the run of the donor that has the copy.
    pub fn check_incarnation(&self, incarnation: u64) -> Result<(), NotAdmitted> {
        if self.incarnation == incarnation {
            return Ok(());
        }
        Err("it has restarted, and lost its contents".into())
    }
}
