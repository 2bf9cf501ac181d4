//! Runs a measurement of a sequencer: its server, its clients, and alternating slices of calls, of the comparison and
//! of ranges.

use std::time::Duration;

use serde_json::{Value, json};
use sinew::fabric::verbs::Device;
use sinew::host::{HostClock, Interrupt};
use sinew::sequencer::rpc::RpcClient;
use sinew::shm::Hub;
use sinew::{Endpoint, FabricEndpoint};
use sinew_harness::load::Slice;
use sinew_harness::load::echo::{self, Answer};
use sinew_harness::load::sequencer::{SeenNumbers, Sequencer, SequencerLoad};
use sinew_harness::reference::Yardstick;
use sinew_harness::run::Progress;
use sinew_harness::{Comparison, Drivers, Figure, MeasureSides, Measured, Unit, machine, units};

use super::Design;
use super::limit::header_only_echo_mops;
use super::verbs::connect;
use crate::child::ServerProcess;
use crate::echo::{EchoPlan, Echoes};
use crate::endpoint_args::LimitArgs;
use crate::fabrics::{self, Fabric};
use crate::interrupted;
use crate::measure::Setting;
use crate::verbs::{DeviceArgs, Job, VerbsFabric};

/// Length of the echoes that RPC is compared with, in bytes: that of an answer.
const ECHO_LEN: usize = 16;

/// A measurement to make.
#[derive(Clone)]
pub struct SequencerPlan {
    pub design: Design,
    pub fabric: Fabric,
    pub device: DeviceArgs,
    /// Address of a server that is already running.
    pub address: Option<String>,
    pub window: usize,
    pub batch: usize,
    /// Numbers in each call when ranges are measured; 1 leaves that out.
    pub range: u32,
    /// Setting with one server thread.
    pub setting: Setting,
}

impl SequencerPlan {
    /// Limits of both sides' endpoints: one session has the whole window.
    fn limits(&self) -> LimitArgs {
        let slots = (self.window as u16).next_power_of_two().min(64);
        LimitArgs { credits: Some(self.window.max(32) as u16), slots, ..LimitArgs::default() }
    }

    /// Starts a server of a design, unless one is running, and returns its address.
    fn server(&self, design: Design) -> anyhow::Result<(Option<ServerProcess>, String)> {
        if let Some(address) = &self.address {
            return Ok((None, address.clone()));
        }
        let mut args: Vec<String> = ["serve", "sequencer", "--design", &design.name()].map(str::to_owned).into();
        if design == Design::Rpc {
            args.push(self.fabric.fresh_address("")?);
            args.extend(self.limits().to_args(&self.setting.server_cpus));
        } else {
            args.push("127.0.0.1:0".to_owned());
            args.extend(self.device.to_args());
            args.extend(
                self.setting.server_cpus.iter().flatten().flat_map(|cpu| ["--pin".to_owned(), cpu.to_string()]),
            );
        }
        let server = ServerProcess::spawn(&args)?;
        let address = server.address()?.to_owned();
        Ok((Some(server), address))
    }

    fn echo(&self) -> EchoPlan {
        let shape = echo::Shape { size: ECHO_LEN, answer: Answer::Echo, window: self.window, batch: self.batch };
        EchoPlan { fabric: self.fabric, options: String::new(), limits: self.limits(), shape, sessions: 1 }
    }
}

/// Client threads of a sequencer.
type Clients = Drivers<dyn SequencerLoad>;

/// Driver of a thread over RPC.
fn boxed(
    mut rpc: impl Endpoint + 'static,
    address: &str,
    window: usize,
    batch: usize,
) -> anyhow::Result<(Box<dyn SequencerLoad>, ())> {
    let session = rpc.connect(address)?;
    let client = RpcClient::new(rpc, session, window, None)?;
    Ok((Box::new(Sequencer::new(client, HostClock::new(), window, batch)), ()))
}

/// Comparison of a figure: its kind, its description, and a function that measures a slice of it.
type ComparedSide<'a> = (Comparison, &'static str, Box<dyn FnMut(Duration) -> anyhow::Result<f64> + 'a>);

/// Sides that take turns: a sequencer's clients, the comparison, and the clients once more, for ranges.
struct SequencerSides<'a> {
    clients: Clients,
    compared: Option<ComparedSide<'a>>,
    range: u32,
    /// First number that has not been accounted for: each from here on must be handed out once.
    from: u64,
    numbers: u64,
    gaps: u64,
    sum: Slice,
}

fn mops(slices: &[Slice]) -> f64 {
    slices.iter().map(Slice::mops).sum()
}

impl SequencerSides<'_> {
    /// Measures a slice of the sequencer. Returns the rate of calls, or an error if a number was handed out twice or
    /// was too low.
    fn calls(&mut self, duration: Duration, count: u32) -> anyhow::Result<f64> {
        let from = self.from;
        let mut slices = self.clients.slices(duration, move |_, client| client.expect(count, from))?;
        let mut all = SeenNumbers::new(from);
        for seen in self.clients.each(Duration::ZERO, |_, client| Ok(client.take_seen()))? {
            all.add(&seen)?;
        }
        for slice in &mut slices {
            if count > 1 {
                slice.latency.reset();
            }
            self.sum.add(slice);
        }
        self.numbers += all.numbers;
        // The first number of the first slice is unknown, so gaps count only from the second on.
        if from > 0 {
            self.gaps += all.end - from - all.numbers;
        }
        self.from = all.end;
        Ok(mops(&slices))
    }
}

impl MeasureSides for SequencerSides<'_> {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        match (side, &mut self.compared) {
            (0, _) => self.calls(duration, 1).map(Some),
            (1, beside) => beside.as_mut().map(|(_, _, slice)| slice(duration)).transpose(),
            _ => self.calls(duration, self.range).map(Some),
        }
    }

    fn reset_sums(&mut self) {
        self.sum.latency.reset();
    }
}

/// Measures.
pub fn measure(plan: &SequencerPlan, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    interrupted::run_interruptible(|interrupt| match plan.design {
        Design::Rpc => over_rpc(plan, interrupt, progress),
        _ => plan.device.run(OnVerbs { plan, interrupt, progress }),
    })
}

/// Measures the sequencer over RPC beside echoes.
fn over_rpc(plan: &SequencerPlan, interrupt: Interrupt, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let (server, address) = plan.server(Design::Rpc)?;
    let (limits, fabric, window, batch) = (plan.limits(), plan.fabric, plan.window, plan.batch);
    let Setting { client_cpus, server_cpus, .. } = &plan.setting;
    let echo = ServerProcess::start(&fabric.fresh_address("")?, server_cpus, &limits)?;
    let make = move |_| match fabrics::open(fabric, &limits, "", &address, &Hub::new())? {
        FabricEndpoint::Shm(rpc) => boxed(rpc, &address, window, batch),
        FabricEndpoint::Udp(rpc) => boxed(rpc, &address, window, batch),
        FabricEndpoint::Ibverbs(rpc) => boxed(rpc, &address, window, batch),
        FabricEndpoint::Xdp(rpc) => boxed(rpc, &address, window, batch),
        FabricEndpoint::Other(rpc) => boxed(rpc, &address, window, batch),
    };
    let clients = Drivers::start(client_cpus, interrupt, make)?;
    // One server thread echoes for all clients.
    let addresses = vec![echo.address()?.to_owned(); client_cpus.len()];
    let echoes = Echoes::start(&plan.echo(), client_cpus, &addresses, &Hub::new(), interrupt)?;
    let what = "RPC echoes of 16 B, as many in flight, each checked";
    let slice = Box::new(move |duration| Ok(mops(&echoes.slice(1, duration)?)));
    let compared = Some((Comparison::Baseline, what, slice as Box<_>));
    measure_alternately(plan, clients, compared, [server.as_ref(), Some(&echo)], interrupt, progress)
}

struct OnVerbs<'a, 'b> {
    plan: &'a SequencerPlan,
    interrupt: Interrupt,
    progress: &'a mut Progress<'b>,
}

impl Job for OnVerbs<'_, '_> {
    type Result = Figure;

    fn run<D: Device + 'static>(self, device: D, fabric: VerbsFabric) -> anyhow::Result<Figure> {
        let Self { plan, interrupt, progress } = self;
        let (design, window) = (plan.design, plan.window);
        let (server, address) = plan.server(design)?;
        let base =
            if design == Design::HerdOpt && plan.address.is_none() { Some(plan.server(Design::Herd)?) } else { None };
        let start = |design, address: &str| {
            let (device, address, batch) = (device.clone(), address.to_owned(), plan.batch);
            let make = move |_| connect(&device, (design, fabric), &address, window, batch);
            Drivers::start(&plan.setting.client_cpus, interrupt, make)
        };
        let clients = start(design, &address)?;
        let pair = machine::pair(&plan.setting.client_cpus, &plan.setting.server_cpus);
        let compared: Option<ComparedSide<'_>> = match (design, &base) {
            (_, Some((_, address))) => {
                let clients = start(Design::Herd, address)?;
                let slice = move |duration| Ok(mops(&clients.slices(duration, |_, client| client.expect(1, 0))?));
                Some((Comparison::Baseline, "HERD's calls one at a time", Box::new(slice)))
            }
            (Design::SpecS0, None) => {
                let slice = |duration| header_only_echo_mops(&device, pair, window, duration);
                Some((Comparison::Baseline, "datagrams without data, echoed, as many in flight", Box::new(slice)))
            }
            _ => None,
        };
        let servers = [server.as_ref(), base.as_ref().and_then(|(server, _)| server.as_ref())];
        measure_alternately(plan, clients, compared, servers, interrupt, progress)
    }
}

/// Measures the clients and the comparison alternately.
fn measure_alternately(
    plan: &SequencerPlan,
    clients: Clients,
    compared: Option<ComparedSide<'_>>,
    servers: [Option<&ServerProcess>; 2],
    interrupt: Interrupt,
    progress: &mut Progress<'_>,
) -> anyhow::Result<Figure> {
    let comparison = compared.as_ref().map(|(comparison, what, _)| (*comparison, *what));
    let mut turns =
        SequencerSides { clients, compared, range: plan.range, from: 0, numbers: 0, gaps: 0, sum: Slice::new() };
    let judged = if comparison.is_some() { 2 } else { 1 };
    // If the sequencer was started elsewhere, its processor is unknown.
    let servers = servers.into_iter().flatten().filter(|_| plan.address.is_none()).map(ServerProcess::id);
    let run = plan.setting.run(judged, servers, Some(Yardstick::RingRoundTrip), interrupt);
    let measured = run.measure_alternately(if plan.range > 1 { 3 } else { 2 }, &mut turns, progress)?;
    let SequencerSides { numbers, gaps, sum, .. } = turns;
    Ok(figure(plan, &measured, comparison, sum, [numbers, gaps]))
}

fn figure(
    plan: &SequencerPlan,
    measured: &Measured,
    comparison: Option<(Comparison, &'static str)>,
    sum: Slice,
    [numbers, gaps]: [u64; 2],
) -> Figure {
    let SequencerPlan { design, fabric, window, batch, range, .. } = plan;
    let clients = plan.setting.client_cpus.len();
    let of_all = if clients > 1 { format!(", of {clients} clients together") } else { String::new() };
    let title = format!("sequencer {} over {}, a number a call{of_all}", design.name(), fabric.name());
    let mut figure = measured.figure("seq", title, Unit::Mops, 0);
    if let Some((comparison, what)) = comparison {
        figure = figure.compared_with(measured, 1, comparison, what);
    }
    figure.lines.push(format!("{window} in flight in batches of {batch}"));
    let ranges: Option<Value> = (*range > 1).then(|| {
        let calls = units::median(&measured.slices(2));
        let numbers = calls * f64::from(*range);
        let [calls_text, numbers_text] = [calls, numbers].map(units::figure);
        figure.lines.push(format!("in ranges of {range}: {calls_text} M calls/s, {numbers_text} M numbers/s"));
        json!({ "count": range, "rate_mops": units::rounded(calls), "numbers_mops": units::rounded(numbers) })
    });
    let Slice { done, lost, .. } = sum;
    let [done_text, lost_text] = [done, lost].map(|calls| units::counted(calls, "call"));
    let [numbers_text, gaps_text] = [numbers, gaps].map(|numbers| units::counted(numbers, "number"));
    figure.lines.push(format!("{done_text} and {numbers_text} checked: each once, and in order"));
    figure.lines.push(format!("{lost_text} lost, {gaps_text} in gaps"));
    if *fabric == Fabric::Shm && *design == Design::Atomics {
        figure.lines.push(ATOMICS.to_owned());
    }
    figure.setup = json!({
        "design": design.name(),
        "fabric": fabric.name(),
        "clients": clients,
        "window": window,
        "batch": batch,
        "seconds": plan.setting.duration.as_secs_f64(),
        "client_cpus": plan.setting.client_cpus,
        "server_cpu": plan.setting.server_cpus[0],
    });
    figure.details = json!({
        "ranges": ranges, "calls_checked": done, "numbers_checked": numbers, "lost": lost, "gaps": gaps,
    });
    figure.latency = Some(sum.latency);
    figure
}

/// Remark on the design, shown with its figure.
const ATOMICS: &str = "over shared memory the atomic is the processor's own: no NIC locks the word for as long as PCIe takes, \
                       which makes this design the slowest on NICs (atc16 4.2.3)";
