//! eRPC: Datacenter RPCs can be General and Fast.

pub mod table5;
