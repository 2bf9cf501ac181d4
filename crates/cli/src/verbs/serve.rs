//! `sinew verbs serve`: the other side of measurements.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use sinew::fabric::Waker;
use sinew::fabric::verbs::Device;
use sinew::host::{Interrupt, Lobby, LobbyLimits, Rendezvous, RendezvousListener};

use sinew_harness::load::verbs::{Findings, LinkAddress, NTH_MASK, VerbsPlan};
use sinew_harness::machine;

use super::control::{self, LIMITS, Talk};
use super::device::{Carried, DeviceArgs, Job};
use super::worker::{self, Answer, Order};
use crate::serve::{FAILED, READY, SERVING, end_with_stdin};
use crate::{Outcome, Usage, output};

const AFTER_HELP: &str = "\
Serves measurements until Ctrl-C, each with threads, queue pairs and memory of its own. Who measures names HOST:PORT, where the two
sides tell each other what they need. Shared memory carries between processes of one user.

Examples:
  sinew verbs serve 127.0.0.1:7100
  sinew verbs rate --op write --address 127.0.0.1:7100
  sinew verbs serve 0.0.0.0:7100 --fabric ibverbs      on one host, and on another:
  sinew verbs bw --fabric ibverbs --address 10.0.0.1:7100";

/// Measurements at a time.
const SESSIONS_MAX: usize = 16;
const LOOK: Duration = Duration::from_millis(50);
/// A worker that does not answer in this time is stuck in its device.
const PATIENCE: Duration = Duration::from_secs(20);

/// Serve measurements of verbs until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// Where clients come to; port 0 is any that is free
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:0", value_parser = parse_address)]
    at: String,
    /// Keep the threads of a measurement on these processors, in turn
    #[arg(long, value_name = "CPU", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Serve for a parent process: say `ready`, and end when standard input does
    #[arg(long, hide = true)]
    child: bool,
}

/// Looks whether it can be an address; what a name stands for is found out later.
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

    fn run<D: Device + 'static>(self, device: D, carried: Carried) -> anyhow::Result<Outcome> {
        let Self { args, interrupt } = self;
        // Who says nothing has a place there, and none among those who measure.
        let mut lobby = Lobby::new(RendezvousListener::bind(&args.at, LIMITS)?, LobbyLimits::default());
        output::print(format_args!("{SERVING}{}", lobby.address()))?;
        if args.child {
            output::print(READY)?;
        } else {
            let at = lobby.address();
            output::print(format_args!(
                "Stop with Ctrl-C. Measure with: sinew verbs rate --fabric {} --address {at}",
                carried.name()
            ))?;
        }
        let sessions = AtomicUsize::new(0);
        std::thread::scope(|threads| {
            while !interrupt.is_set() {
                let heard = lobby.next(LOOK);
                if !args.child {
                    lobby.turned_away().for_each(output::complain);
                }
                let (rendezvous, hello) = match heard {
                    Ok(Some(heard)) => heard,
                    Ok(None) => continue,
                    Err(error) => {
                        output::complain(error);
                        std::thread::sleep(LOOK);
                        continue;
                    }
                };
                // Only this thread adds to the count.
                let is_full = sessions.load(Ordering::Relaxed) >= SESSIONS_MAX;
                sessions.fetch_add(1, Ordering::Relaxed);
                let (device, sessions) = (&device, &sessions);
                threads.spawn(move || {
                    if let Err(error) = session(device, carried, args, (rendezvous, &hello), interrupt, is_full)
                        && !args.child
                    {
                        output::complain(output::describe(&error));
                    }
                    sessions.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        Ok(Outcome::Done)
    }
}

/// One measurement, and what is told of its failure.
fn session<D: Device>(
    device: &D,
    carried: Carried,
    args: &Args,
    (rendezvous, hello): (Rendezvous, &[u8]),
    interrupt: Interrupt,
    is_full: bool,
) -> anyhow::Result<()> {
    let peer = rendezvous.peer();
    let mut talk = Talk::new(rendezvous, interrupt);
    let result = if is_full {
        Err(anyhow::anyhow!("{SESSIONS_MAX} measurements run here already: try again later"))
    } else {
        std::thread::scope(|threads| serve_one(device, carried, args, &mut talk, hello, threads))
    };
    if let Err(error) = &result
        && !interrupt.is_set()
    {
        // Who asked may be the one that is gone.
        let _ = talk.tell(&json!({ "error": output::describe(error) }));
    }
    result.with_context(|| format!("the measurement of {peer}"))
}

struct WorkerThread<'scope> {
    orders: Option<mpsc::Sender<Order>>,
    answers: mpsc::Receiver<anyhow::Result<Answer>>,
    waker: Option<Waker>,
    thread: Option<ScopedJoinHandle<'scope, ()>>,
    links: usize,
}

impl WorkerThread<'_> {
    fn order(&self, order: Order) {
        // One that has ended says why when it is asked for its answer.
        let _ = self.orders.as_ref().map(|orders| orders.send(order));
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    fn answer(&self) -> anyhow::Result<Answer> {
        self.answers.recv_timeout(PATIENCE).context("a server thread ended, or does not answer")?
    }
}

impl Drop for WorkerThread<'_> {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(waker) = &self.waker {
            waker.wake();
        }
        let _ = self.thread.take().map(ScopedJoinHandle::join);
    }
}

fn serve_one<'scope, D: Device>(
    device: &'scope D,
    carried: Carried,
    args: &Args,
    talk: &mut Talk,
    hello: &[u8],
    threads: &'scope Scope<'scope, '_>,
) -> anyhow::Result<()> {
    let first = talk.read(hello)?;
    ensure!(
        first["fabric"].as_str() == Some(carried.name()),
        "this server is one of --fabric {}, and {} was asked for",
        carried.name(),
        first["fabric"]
    );
    let plan = VerbsPlan::from_json(&first["plan"])?;
    let links = plan.links();
    let domain = device.protection_domain()?;
    let mut workers = Vec::new();
    for index in 0..plan.sides().1 {
        let count = links.iter().filter(|(_, server)| *server == index).count();
        let cpu = match &args.pin[..] {
            [] => plan.cpus.get(index).copied().flatten().filter(|cpu| machine::cpus().contains(cpu)),
            pins => Some(pins[index % pins.len()]),
        };
        let (orders, incoming) = mpsc::channel();
        let (outgoing, answers) = mpsc::channel();
        let (domain, plan) = (domain.clone(), plan.clone());
        let thread = threads.spawn(move || worker::run(device, &domain, &plan, (cpu, count), &incoming, &outgoing));
        workers.push(WorkerThread { orders: Some(orders), answers, waker: None, thread: Some(thread), links: count });
    }
    let mut addresses = Vec::new();
    for worker in &mut workers {
        let Answer::Addresses(own, waker) = worker.answer()? else { bail!("a server thread is confused") };
        worker.waker = Some(waker);
        addresses.extend(own.iter().map(LinkAddress::to_json));
    }
    talk.tell(&json!({ "links": addresses }))?;
    let mut theirs = LinkAddress::list(&talk.hear_within(control::PATIENCE)?, links.len())?.into_iter();
    for worker in &workers {
        worker.order(Order::Connect(theirs.by_ref().take(worker.links).collect()));
    }
    workers.iter().try_for_each(|worker| worker.answer().map(|_| ()))?;
    talk.tell(&json!({ "ready": true }))?;
    loop {
        // A client that is done closes the connection.
        let Ok(said) = talk.hear() else { return Ok(()) };
        let answer = obey(&said, &workers, links.len())?;
        talk.tell(&answer)?;
    }
}

fn obey(said: &Value, workers: &[WorkerThread<'_>], links: usize) -> anyhow::Result<Value> {
    if said["go"].as_bool() == Some(true) {
        workers.iter().for_each(|worker| worker.order(Order::Go));
        workers.iter().try_for_each(|worker| worker.answer().map(|_| ()))?;
        return Ok(json!({ "gone": true }));
    }
    let made = said["check"].as_array().context("neither `go` nor `check` was said")?;
    let made: Option<Vec<u64>> = made.iter().map(Value::as_u64).collect();
    // No link gets as far as its requests' ids do.
    let made = made
        .filter(|made| made.len() == links && made.iter().all(|&made| made <= NTH_MASK))
        .context("`check` does not count the links")?;
    let mut made = made.into_iter();
    for worker in workers {
        worker.order(Order::Check(made.by_ref().take(worker.links).collect()));
    }
    let mut sum = Findings::default();
    for worker in workers {
        let Answer::Checked(findings) = worker.answer()? else { bail!("a server thread is confused") };
        sum.add(findings);
    }
    Ok(json!({ "received": sum.received, "wrong": sum.wrong, "lost": sum.lost, "looked": sum.looked }))
}
