//! `sinew verbs serve`: the other side of measurements.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use sinew::fabric::Waker;
use sinew::fabric::verbs::Device;
use sinew::host::{Interrupt, Lobby, LobbyLimits, RendezvousListener};

use sinew_harness::crew::{BoxedMember, Crew, Member};
use sinew_harness::load::verbs::{ControlMessage, Findings, LinkAddress, NTH_MASK, Responder, Side, VerbsPlan};
use sinew_harness::machine::{self, Idle};

use super::control::{ANSWER_TIMEOUT, ControlConnection, LIMITS};
use super::device::{DeviceArgs, Job, VerbsFabric};
use crate::serve::{FAILED, READY, SERVING, end_with_stdin};
use crate::{Outcome, Usage, output};

const AFTER_HELP: &str = "\
Serves measurements until Ctrl-C, each with threads, queue pairs and memory of its own. Clients connect to HOST:PORT,
where the two sides exchange what they need. Shared memory works between processes of one user.

Examples:
  sinew verbs serve 127.0.0.1:7100
  sinew verbs rate --op write --address 127.0.0.1:7100     # elsewhere
  sinew verbs serve 0.0.0.0:7100 --fabric ibverbs          # on one host
  sinew verbs bw --fabric ibverbs --address 10.0.0.1:7100  # on another";

/// Measurements at a time.
const SESSIONS_MAX: usize = 16;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Longest wait for messages that are still in flight.
const SETTLING: Duration = Duration::from_millis(500);

/// Serve measurements of verbs until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// TCP address at which clients connect; port 0 means any free port
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:0", value_parser = parse_address)]
    at: String,
    /// Processors to pin the threads of a measurement to, in turn, separated by commas [default: none are pinned]
    #[arg(long, value_name = "CPU", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Serve for a parent process: print `ready`, and end when standard input does
    #[arg(long, hide = true)]
    child: bool,
}

/// Checks that this can be an address; a host name is resolved later.
pub fn parse_address(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').and_then(|(host, port)| port.parse::<u16>().ok().filter(|_| !host.is_empty()));
    port.map(|_| text.to_owned()).ok_or_else(|| "an address is HOST:PORT, as in 127.0.0.1:7100".to_owned())
}

/// Serves until a signal, or, as a child, until standard input ends.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    machine::check_pins(&args.pin).map_err(Usage::of)?;
    args.device.check().map_err(Usage::of)?;
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    if args.child {
        end_with_stdin(interrupt)?;
    }
    match args.device.run(Server { args, interrupt }) {
        Err(error) if args.child => {
            output::print(format_args!("{FAILED}{}", output::describe(&error)))?;
            Ok(Outcome::Failed)
        }
        result => result,
    }
}

struct Server<'a> {
    args: &'a Args,
    interrupt: Interrupt,
}

impl Job for Server<'_> {
    type Result = Outcome;

    fn run<D: Device + 'static>(self, device: D, fabric: VerbsFabric) -> anyhow::Result<Outcome> {
        let Self { args, interrupt } = self;
        // A client that says nothing waits in the lobby, and takes no place from those that measure.
        let mut lobby = Lobby::new(RendezvousListener::bind(&args.at, LIMITS)?, LobbyLimits::default());
        output::print(format_args!("{SERVING}{}", lobby.address()))?;
        if args.child {
            output::print(READY)?;
        } else {
            let address = lobby.address();
            output::print(format_args!(
                "Stop with Ctrl-C. Measure with: sinew verbs rate --fabric {} --address {address}",
                fabric.name()
            ))?;
        }
        let sessions = AtomicUsize::new(0);
        std::thread::scope(|threads| {
            while !interrupt.is_set() {
                let accepted = lobby.next(POLL_INTERVAL);
                if !args.child {
                    lobby.turned_away().for_each(output::complain);
                }
                let (rendezvous, hello) = match accepted {
                    Ok(Some(arrival)) => arrival,
                    Ok(None) => continue,
                    Err(error) => {
                        output::complain(error);
                        std::thread::sleep(POLL_INTERVAL);
                        continue;
                    }
                };
                // Only this thread adds to the count.
                let is_full = sessions.load(Ordering::Relaxed) >= SESSIONS_MAX;
                sessions.fetch_add(1, Ordering::Relaxed);
                let (device, sessions) = (&device, &sessions);
                threads.spawn(move || {
                    let (peer, mut connection) = (rendezvous.peer(), ControlConnection::new(rendezvous, interrupt));
                    let served = if is_full {
                        Err(anyhow!("{SESSIONS_MAX} measurements run here already: try again later"))
                    } else {
                        serve(device, fabric, &args.pin, &mut connection, &hello)
                    };
                    if let Err(error) = served {
                        if !interrupt.is_set() {
                            // The client may be gone.
                            let _ = connection.send(&ControlMessage::Error(output::describe(&error)));
                        }
                        if !args.child {
                            output::complain(output::describe(&error.context(format!("the measurement of {peer}"))));
                        }
                    }
                    sessions.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        Ok(Outcome::Done)
    }
}

/// Serves one measurement, until its client closes the connection.
fn serve<D: Device + 'static>(
    device: &D,
    own_fabric: VerbsFabric,
    pins: &[usize],
    connection: &mut ControlConnection,
    hello: &[u8],
) -> anyhow::Result<()> {
    let ControlMessage::Begin(fabric, plan) = connection.parse(hello)? else {
        return Err(connection.unexpected_answer());
    };
    let own = own_fabric.name();
    ensure!(fabric == own, "this server serves --fabric {own}, but {fabric:?} was asked for");
    plan.check()?;
    let (workers, ours) = Workers::start(device, &plan, pins)?;
    let count = ours.len();
    connection.send(&ControlMessage::Links(ours))?;
    let theirs = connection.receive(ANSWER_TIMEOUT)?;
    workers.order(&connection.links(theirs, count)?, Order::Connect)?;
    connection.send(&ControlMessage::Ready)?;
    while let Ok(message) = connection.receive(Duration::MAX) {
        let answer = match message {
            ControlMessage::Go => workers.start_answering(),
            // No link makes more requests than their ids can number.
            ControlMessage::Check(made) if made.len() == count && made.iter().all(|&made| made <= NTH_MASK) => {
                workers.stop_answering()?;
                ControlMessage::Found(workers.order(&made, Order::Check)?)
            }
            _ => return Err(connection.unexpected_answer()),
        };
        connection.send(&answer)?;
    }
    Ok(())
}

/// Order for a server's thread, which answers with its findings.
#[derive(Clone)]
enum Order {
    /// Connects its queue pairs with these.
    Connect(Vec<LinkAddress>),
    /// Answers requests until all threads are to rest.
    Answer,
    /// Checks each link's requests, whose number is given.
    Check(Vec<u64>),
}

/// A server's thread.
struct Worker<D: Device> {
    responder: Responder<D>,
    rests: Arc<AtomicBool>,
}

impl<D: Device> Member for Worker<D> {
    type Order = Order;
    type Answer = Findings;

    fn execute(&mut self, order: Order) -> anyhow::Result<Findings> {
        let Self { responder, rests } = self;
        match order {
            Order::Connect(addresses) => responder.connect(&addresses)?,
            Order::Answer => {
                let idle = Idle::new();
                while !rests.load(Ordering::Relaxed) {
                    if responder.turn()? == 0 && !responder.rest()? {
                        idle.pass();
                    }
                }
            }
            Order::Check(made) => {
                let began = Instant::now();
                return responder.check(&made, || began.elapsed() < SETTLING);
            }
        }
        Ok(Findings::default())
    }

    fn tend(&mut self) {
        // An error here occurs again when there is work.
        let _ = self.responder.turn();
    }
}

/// The threads of a measurement.
struct Workers {
    crew: Crew<Order, Findings>,
    /// Number of links of each thread; in the list of all links, the threads' links follow one another.
    counts: Vec<usize>,
    /// Whether the threads rest, or are to come to rest.
    rests: Arc<AtomicBool>,
    /// Wakers of the threads.
    wakers: Vec<Waker>,
}

impl Workers {
    /// Starts the threads. Returns the addresses of their links, too.
    fn start<D: Device + 'static>(
        device: &D,
        plan: &VerbsPlan,
        pins: &[usize],
    ) -> anyhow::Result<(Self, Vec<LinkAddress>)> {
        let counts: Vec<usize> = plan.links_of(Side::Server).iter().map(Vec::len).collect();
        let cpu = |index: usize| match pins {
            [] => plan.cpus.get(index).copied().flatten().filter(|cpu| machine::cpus().contains(cpu)),
            pins => Some(pins[index % pins.len()]),
        };
        let cpus: Vec<Option<usize>> = (0..counts.len()).map(cpu).collect();
        let (sender, receiver) = mpsc::channel();
        let rests = Arc::new(AtomicBool::new(true));
        let (device, domain, plan) = (device.clone(), device.protection_domain()?, plan.clone());
        let (of_each, ends) = (counts.clone(), rests.clone());
        let crew = Crew::start(&cpus, move |index| {
            let (responder, addresses) = Responder::new(&device, &domain, &plan, of_each[index])?;
            sender.send((addresses, responder.waker()))?;
            Ok(Box::new(Worker { responder, rests: ends.clone() }) as BoxedMember<_, _>)
        })?;
        let (ours, wakers): (Vec<_>, Vec<_>) = receiver.try_iter().unzip();
        Ok((Self { crew, counts, rests, wakers }, ours.concat()))
    }

    /// Gives each thread its part of a list over all links, and returns the findings of all threads together.
    fn order<T: Clone>(&self, items: &[T], order: fn(Vec<T>) -> Order) -> anyhow::Result<Findings> {
        let first = |index: usize| self.counts[..index].iter().sum::<usize>();
        let part = |index: usize| items[first(index)..first(index + 1)].to_vec();
        let mut sum = Findings::default();
        self.crew.order_each(|index| order(part(index)), Duration::ZERO)?.into_iter().for_each(|found| sum.add(found));
        Ok(sum)
    }

    fn start_answering(&self) -> ControlMessage {
        if self.rests.swap(false, Ordering::Relaxed) {
            self.crew.begin_each(|_| Order::Answer);
        }
        ControlMessage::Ready
    }

    fn stop_answering(&self) -> anyhow::Result<()> {
        if !self.rests.swap(true, Ordering::Relaxed) {
            self.wakers.iter().for_each(Waker::wake);
            self.crew.answers(Duration::ZERO)?;
        }
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let _ = self.stop_answering();
    }
}
