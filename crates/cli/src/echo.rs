//! Client threads that echo over RPC: `sinew rpc bench` measures them, and other services over RPC are compared with
//! them.

use std::time::Duration;

use anyhow::{Context, anyhow};
use serde_json::Value;
use sinew::host::{HostClock, Interrupt, WakeOnInterrupt};
use sinew::prelude::*;
use sinew::rpc::ConnectError;
use sinew::shm::Hub;
use sinew::{Endpoint, FabricEndpoint};
use sinew_harness::Drivers;
use sinew_harness::load::Slice;
use sinew_harness::load::echo::{Calls, Echo, Shape, open_sessions};

use crate::advice;
use crate::endpoint_args::LimitArgs;
use crate::fabrics::{self, Fabric};

/// Work of the client threads.
#[derive(Clone, Debug)]
pub struct EchoPlan {
    pub fabric: Fabric,
    /// `?name=value...`, appended to addresses made here.
    pub options: String,
    pub limits: LimitArgs,
    pub shape: Shape,
    /// Sessions of each thread.
    pub sessions: usize,
}

/// Client threads that echo.
pub struct Echoes(Drivers<dyn Calls>);

/// Driver of a thread, whose sleeps Ctrl-C ends.
fn boxed(
    mut rpc: impl Endpoint + 'static,
    plan: &EchoPlan,
    address: &str,
    interrupt: Interrupt,
) -> anyhow::Result<(Box<dyn Calls>, WakeOnInterrupt)> {
    let wake = interrupt.wake_on_interrupt(rpc.waker());
    let sessions = open_sessions(&mut rpc, address, plan.sessions, || interrupt.is_set())?;
    Ok((Box::new(Echo::new(rpc, HostClock::new(), sessions, plan.shape)), wake))
}

impl Echoes {
    /// Starts a thread on each of `cpus`, each with one of `addresses`.
    pub fn start(
        plan: &EchoPlan,
        cpus: &[Option<usize>],
        addresses: &[String],
        hub: &Hub,
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        let (plan, addresses, hub) = (plan.clone(), addresses.to_vec(), hub.clone());
        let make = move |index: usize| {
            let (address, endpoint) =
                (&addresses[index], fabrics::open(plan.fabric, &plan.limits, &plan.options, &addresses[index], &hub)?);
            let member = match endpoint {
                FabricEndpoint::Shm(rpc) => boxed(rpc, &plan, address, interrupt),
                FabricEndpoint::Udp(rpc) => boxed(rpc, &plan, address, interrupt),
                FabricEndpoint::Ibverbs(rpc) => boxed(rpc, &plan, address, interrupt),
                FabricEndpoint::Xdp(rpc) => boxed(rpc, &plan, address, interrupt),
                FabricEndpoint::Other(rpc) => boxed(rpc, &plan, address, interrupt),
            };
            // The first thread found its server, so the server has fewer threads than we have.
            member.map_err(|error| match index > 0 && is_no_server(&error) {
                true => anyhow!(
                    "--threads {0} needs a server with as many threads, and there is none at {1}: start it with `sinew rpc serve {2} --threads {0}`",
                    addresses.len(),
                    address,
                    addresses[0]
                ),
                false => advice::with_start_hint(error, "sinew rpc serve", address),
            })
        };
        Drivers::start(cpus, interrupt, make).map(Self)
    }

    /// Measures one slice, with `sessions` sessions of each thread.
    pub fn slice(&self, sessions: usize, duration: Duration) -> anyhow::Result<Vec<Slice>> {
        self.0.slices(duration, move |_, calls| calls.use_sessions(sessions))
    }

    /// Counters of the first thread's server, and of that thread itself.
    pub fn report(&self) -> anyhow::Result<[Value; 2]> {
        let of_first = |index, calls: &mut (dyn Calls + 'static)| (index == 0).then(|| calls.report()).transpose();
        self.0.each(Duration::ZERO, of_first)?.into_iter().flatten().next().context("there is no client thread")
    }
}

/// Whether an error says that no server thread is at an address. A time-out and a closed peer count, too: the socket
/// may be silent, or may have belonged to another process.
fn is_no_server(error: &anyhow::Error) -> bool {
    advice::is_no_server(error)
        || matches!(
            error.downcast_ref(),
            Some(ConnectError::TimedOut { .. } | ConnectError::Failed { cause: Cause::PeerClosed, .. })
        )
}
