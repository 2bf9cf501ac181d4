//! Programs that experiments run on simulated hosts.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_fabric::{Address, Clock, PacketPort, PortError, SeededGenerator};
use sinew_mem::MessageBuffer;
use sinew_rpc::{
    Algorithm, Call, Config, Congestion, Nexus, RequestType, Rpc, SessionEvent, SessionId, TimelyConfig, Timeout,
};
use sinew_sim::{Actor, ActorState, Cluster, HostId, Network, PortConfig, SimClock, SimPort};

/// An endpoint on a simulated host.
pub type Endpoint = Rpc<SimPort, SimClock>;

/// Requests that are answered with [`SHORT`] bytes, whatever they hold.
pub const SINK: RequestType = RequestType::new(1);
/// Bytes of an answer to [`SINK`] (nsdi19 6.4).
pub const SHORT: usize = 32;

/// Opens an endpoint at `sim://NAME`.
///
/// # Errors
///
/// [`PortError`].
pub fn open(
    network: &Network,
    nexus: &Nexus,
    host: HostId,
    name: &str,
    port: PortConfig,
) -> Result<Endpoint, PortError> {
    let port = network.open(host, name, port)?;
    let generator = Box::new(SeededGenerator::new(network.random()));
    Ok(Rpc::new(nexus, port, network.clock(), generator))
}

/// Opens an endpoint at `sim://NAME`, and starts the program that `make` makes of it.
pub fn start<A: Actor + 'static>(
    cluster: &mut Cluster,
    nexus: &Nexus,
    host: HostId,
    name: &str,
    port: PortConfig,
    make: impl FnOnce(Endpoint, SimClock) -> A,
) {
    let rpc = open(cluster.network(), nexus, host, name, port).expect("experiments name their ports once");
    let (place, clock) = (rpc.port().place(), cluster.clock());
    cluster.add(name, [place], Box::new(make(rpc, clock)));
}

/// State shared by endpoints that answer [`SINK`].
///
/// # Panics
///
/// If the configuration's limits contradict each other; experiments must use valid ones.
pub fn sink(config: Config) -> Nexus {
    let nexus = Nexus::builder().config(config).handle(SINK, |call: Call| call.reply(&[0; SHORT]));
    nexus.build().expect("the limits make sense")
}

/// Limits and times of nsdi19's endpoints: a fixed retransmission time-out of 5 ms, whatever the round trips (5.2.3).
pub fn nsdi19() -> Config {
    Config { timeout: Timeout::Fixed, ..Config::default() }
}

/// Congestion control that measures round trips and never slows down, since no round trip is too long for it.
pub fn measuring(rate_gbps: f64) -> Congestion {
    let never = TimelyConfig { low_ns: u64::MAX, ..TimelyConfig::default() };
    Congestion::new(rate_gbps, Algorithm::Timely(never))
}

/// Turns the loop once; an endpoint that was idle waits.
pub fn turn<P: PacketPort>(rpc: &mut Rpc<P, SimClock>) -> ActorState {
    let busy = rpc.turn();
    wait(busy, rpc, None)
}

/// Next step of a program. One that was idle waits, until `until_ns` at the latest.
pub fn wait<P: PacketPort>(busy: bool, rpc: &mut Rpc<P, SimClock>, until_ns: Option<u64>) -> ActorState {
    if busy {
        return ActorState::Work;
    }
    // A simulated port only notes that it wants to be woken. A program that has something to do at once must not wait
    // for that.
    match (rpc.wait(None), until_ns) {
        (Ok(false), _) => ActorState::Work,
        (_, Some(until_ns)) => ActorState::IdleUntil(until_ns),
        (_, None) => ActorState::Idle,
    }
}

/// A program that answers calls.
pub struct Server(pub Endpoint);

impl Actor for Server {
    fn turn(&mut self) -> ActorState {
        turn(&mut self.0)
    }
}

/// Results of all clients of one kind.
#[derive(Debug, Default)]
pub struct SenderResult {
    /// Calls that were answered.
    pub calls: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Time of each answered call, in ns.
    pub latencies_ns: Vec<u64>,
    /// Each round trip that was measured, in ns.
    pub rtts_ns: Vec<u64>,
}

impl SenderResult {
    /// Clears the results, after a warm-up.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Value that a fraction `part` of a sorted list's entries do not exceed; `None` if the list is empty.
pub fn percentile(sorted: &[u64], part: f64) -> Option<u64> {
    let index = (sorted.len() as f64 * part) as usize;
    sorted.get(index.min(sorted.len().checked_sub(1)?)).copied()
}

/// A program that keeps a window of requests of one length in flight on one session.
pub struct Sender {
    rpc: Endpoint,
    clock: SimClock,
    session: SessionId,
    is_open: bool,
    free_buffers: Vec<(MessageBuffer, MessageBuffer)>,
    /// Time at which each call began, by its tag.
    began_ns: Vec<u64>,
    free_tags: Vec<usize>,
    found: Rc<RefCell<SenderResult>>,
}

impl Sender {
    /// A sender to `sim://SERVER`.
    pub fn new(
        rpc: Endpoint,
        clock: SimClock,
        server: &str,
        len: usize,
        window: usize,
        found: &Rc<RefCell<SenderResult>>,
    ) -> Self {
        let mut rpc = rpc;
        let address: Address = format!("sim://{server}").parse().expect("an address");
        let session = rpc.begin_connect(&address).expect("the server has a port");
        let buffer = |len| rpc.alloc(len).expect("the arena is large enough");
        let free_buffers = (0..window).map(|_| (buffer(len), buffer(SHORT))).collect();
        let free_tags = (0..window).collect();
        Self {
            clock,
            session,
            is_open: false,
            free_buffers,
            began_ns: vec![0; window],
            free_tags,
            found: Rc::clone(found),
            rpc,
        }
    }
}

impl Actor for Sender {
    fn turn(&mut self) -> ActorState {
        while let Some(event) = self.rpc.poll_event() {
            self.is_open |= matches!(event, SessionEvent::Connected(_));
        }
        let mut found = self.found.borrow_mut();
        while let Some(completion) = self.rpc.poll_completion() {
            let tag = completion.tag as usize;
            match completion.result {
                Ok(()) => {
                    found.calls += 1;
                    found.latencies_ns.push(self.clock.now_ns().saturating_sub(self.began_ns[tag]));
                }
                Err(_) => found.failed += 1,
            }
            self.free_tags.push(tag);
            self.free_buffers.push((completion.request, completion.response));
        }
        while let Some(rtt_ns) = self.rpc.poll_rtt_ns() {
            found.rtts_ns.push(rtt_ns);
        }
        drop(found);
        while self.is_open
            && let Some((request, response)) = self.free_buffers.pop()
        {
            let Some(tag) = self.free_tags.pop() else { break };
            self.began_ns[tag] = self.clock.now_ns();
            if self.rpc.enqueue_request(self.session, SINK, request, response, tag as u64).is_err() {
                self.found.borrow_mut().failed += 1;
                break;
            }
        }
        turn(&mut self.rpc)
    }
}
