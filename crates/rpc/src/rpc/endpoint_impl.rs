//! The [`Endpoint`] trait for [`Rpc`].

use std::io;

use sinew_fabric::{Address, Armed, Clock, Descriptor, PacketPort, PortStats, Readiness, Waker};
use sinew_mem::{AllocError, MessageBuffer};

use super::Rpc;
use crate::call::{BurstCalls, Call, DeferredCall};
use crate::config::Config;
use crate::endpoint::{Endpoint, forward, forward_common};
use crate::error::{CallBackError, ConnectError, Error, Rejected};
use crate::events::{ClientEvent, SessionEvent};
use crate::lanes::LaneId;
use crate::live::StatsReader;
use crate::names::{CallId, ClientId, Completion, RequestType, SessionId, SessionSlots};
use crate::nexus::{EndpointInfo, NexusError};
use crate::options::{CallOptions, ConnectOptions};
use crate::reply::Reply;
use crate::stats::Stats;

// Inherent methods take precedence over those of the trait, which have the same names.
impl<P: PacketPort, C: Clock> Endpoint for Rpc<P, C> {
    forward!(|self| self, |self| self);
}
