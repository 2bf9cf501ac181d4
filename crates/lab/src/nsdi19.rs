//! eRPC: Datacenter RPCs can be General and Fast.

pub mod fig4;
pub mod fig5;
pub mod fig6;
pub mod incast_background;
mod large_calls;
pub mod table3;
pub mod table4;
pub mod table5;
