//! HERD: Using RDMA Efficiently for Key-Value Services.

pub mod fig2;
pub mod fig3;
pub mod fig5;
pub mod fig6;
pub mod fig7;

use sinew_sim::nic::Profile;

/// The Apt cluster's NIC.
fn apt() -> Profile {
    Profile::built_in("cx3").expect("it is built in")
}

/// A row that follows from what the profile was told: the NIC's advertised rate of messages.
fn input(row: crate::experiment::Row) -> crate::experiment::Row {
    crate::experiment::Row { against: crate::experiment::Against::Calibrated, ..row }
}
