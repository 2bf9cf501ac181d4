//! Client threads that echo over RPC: what `sinew rpc bench` measures, and what services over RPC stand beside.

use std::time::Duration;

use anyhow::{anyhow, bail};
use serde_json::Value;
use sinew::host::{HostClock, Interrupt, WakeOnInterrupt};
use sinew::prelude::*;
use sinew::rpc::ConnectError;
use sinew::shm::Hub;
use sinew::{Endpoint, FabricEndpoint};
use sinew_harness::crew::{BoxedMember, Crew, Member};
use sinew_harness::load::echo::{Echo, Shape, open_sessions};
use sinew_harness::load::{Slice, drive};

use crate::advice;
use crate::endpoint_args::LimitArgs;
use crate::fabrics::{self, Fabric};

/// What client threads are to do.
#[derive(Clone, Debug)]
pub struct EchoPlan {
    pub fabric: Fabric,
    /// `?name=value...` for addresses made here.
    pub options: String,
    pub limits: LimitArgs,
    pub shape: Shape,
    /// Sessions of each thread.
    pub sessions: usize,
}

/// Orders for them.
#[derive(Clone, Copy)]
pub enum Ask {
    /// Measure, over so many of the sessions.
    Slice { sessions: usize, duration: Duration },
    /// The server's counters, and those of the client.
    Report,
}

pub enum Answer {
    Slice(Slice),
    Report([Value; 2]),
}

/// Client threads that echo.
pub struct Echoes(Crew<Ask, Answer>);

struct EchoMember<E> {
    echo: Echo<E, HostClock>,
    clock: HostClock,
    interrupt: Interrupt,
    /// Ctrl-C ends a sleep of the loop.
    _wake: WakeOnInterrupt,
}

impl<E: Endpoint> EchoMember<E> {
    fn boxed(
        mut rpc: E,
        plan: &EchoPlan,
        address: &str,
        interrupt: Interrupt,
    ) -> anyhow::Result<BoxedMember<Ask, Answer>>
    where
        E: 'static,
    {
        let wake = interrupt.wake_on_interrupt(rpc.waker());
        let sessions = open_sessions(&mut rpc, address, plan.sessions, || interrupt.is_set())?;
        let echo = Echo::new(rpc, HostClock::new(), sessions, plan.shape);
        Ok(Box::new(Self { echo, clock: HostClock::new(), interrupt, _wake: wake }))
    }
}

impl<E: Endpoint> Member for EchoMember<E> {
    type Order = Ask;
    type Answer = Answer;

    fn obey(&mut self, ask: Ask) -> anyhow::Result<Answer> {
        Ok(match ask {
            Ask::Slice { sessions, duration } => {
                self.echo.use_sessions(sessions);
                Answer::Slice(drive(&mut self.echo, &self.clock, duration, self.interrupt)?)
            }
            Ask::Report => Answer::Report(self.echo.report()?),
        })
    }

    fn tend(&mut self) {
        self.echo.tend();
    }
}

impl Echoes {
    /// Starts a thread on each of the processors, with an address each.
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
                (&addresses[index], fabrics::open(plan.fabric, &plan.limits, &plan.options, &hub)?);
            let member = match endpoint {
                FabricEndpoint::Shm(rpc) => EchoMember::boxed(rpc, &plan, address, interrupt),
                FabricEndpoint::Udp(rpc) => EchoMember::boxed(rpc, &plan, address, interrupt),
                FabricEndpoint::Ibverbs(rpc) => EchoMember::boxed(rpc, &plan, address, interrupt),
                FabricEndpoint::Other(rpc) => EchoMember::boxed(rpc, &plan, address, interrupt),
            };
            // The first thread's address was good: this is a server with fewer threads than we.
            member.map_err(|error| match index > 0 && is_nobody_there(&error) {
                true => anyhow!(
                    "--threads {0} needs a server with as many, and nobody is at {1}: start it as `sinew rpc serve {2} --threads {0}`",
                    addresses.len(),
                    address,
                    addresses[0]
                ),
                false => advice::serve_there(error, "sinew rpc serve", address),
            })
        };
        Crew::start(cpus, make).map(Self)
    }

    /// Measures a slice over so many sessions of each thread.
    pub fn slice(&self, sessions: usize, duration: Duration) -> anyhow::Result<Vec<Slice>> {
        let answers = self.0.order(&Ask::Slice { sessions, duration }, duration)?;
        answers
            .into_iter()
            .map(|answer| if let Answer::Slice(slice) = answer { Ok(slice) } else { confused() })
            .collect()
    }

    /// The counters of the first thread's server, and its own.
    pub fn report(&self) -> anyhow::Result<[Value; 2]> {
        match self.0.order_first(Ask::Report)? {
            Answer::Report(counters) => Ok(counters),
            Answer::Slice(_) => confused(),
        }
    }
}

/// Whether an address of a server's further threads leads to nobody: also where a socket says nothing, or was somebody's before.
fn is_nobody_there(error: &anyhow::Error) -> bool {
    advice::is_nobody_there(error)
        || matches!(
            error.downcast_ref(),
            Some(ConnectError::TimedOut { .. } | ConnectError::Failed { cause: Cause::PeerClosed, .. })
        )
}

fn confused<T>() -> anyhow::Result<T> {
    bail!("a client thread answered something else than it was asked")
}
