//! A server's thread: it answers requests until its next order.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use sinew::fabric::Waker;
use sinew::fabric::verbs::Device;
use sinew_harness::load::verbs::{Findings, LinkAddress, Responder, VerbsPlan};
use sinew_harness::machine::{self, Idle};

/// How long messages that are on their way are waited for.
const PATIENCE: Duration = Duration::from_millis(500);
/// Orders are looked for every so many turns.
const TURNS_PER_LOOK: u32 = 64;
/// One that has nothing to answer looks so often at its queue pairs all the same.
const REST: Duration = Duration::from_millis(20);

/// What a worker is told.
pub enum Order {
    /// Queue pairs to connect with.
    Connect(Vec<LinkAddress>),
    /// Answer until the next order.
    Go,
    /// Rest, and say what came of each link's requests, of which so many were made in all.
    Check(Vec<u64>),
}

/// What it answers.
pub enum Answer {
    Addresses(Vec<LinkAddress>, Waker),
    Done,
    Checked(Findings),
}

/// Runs a worker with `count` links, until nobody gives orders any more.
pub fn run<D: Device>(
    device: &D,
    domain: &D::Domain,
    plan: &VerbsPlan,
    (cpu, count): (Option<usize>, usize),
    orders: &mpsc::Receiver<Order>,
    answers: &mpsc::Sender<anyhow::Result<Answer>>,
) {
    let obey = || -> anyhow::Result<()> {
        machine::pin(cpu)?;
        let mut responder = Responder::new(device, domain, plan, count)?;
        // Nobody who asked is there any more: then there is nothing to do.
        let _ = answers.send(Ok(Answer::Addresses(responder.addresses()?, responder.waker())));
        serve(&mut responder, orders, answers)
    };
    if let Err(error) = obey() {
        let _ = answers.send(Err(error));
    }
}

fn serve<D: Device>(
    responder: &mut Responder<D>,
    orders: &mpsc::Receiver<Order>,
    answers: &mpsc::Sender<anyhow::Result<Answer>>,
) -> anyhow::Result<()> {
    let (idle, mut works, mut turns) = (Idle::new(), false, 0u32);
    loop {
        turns = turns.wrapping_add(1);
        if !works || turns.is_multiple_of(TURNS_PER_LOOK) {
            let heard = if works {
                orders.try_recv().map_err(|error| error == mpsc::TryRecvError::Empty)
            } else {
                orders.recv_timeout(REST).map_err(|error| error == mpsc::RecvTimeoutError::Timeout)
            };
            let answer = match heard {
                Err(true) => None,
                Err(false) => return Ok(()),
                Ok(Order::Connect(addresses)) => Some(responder.connect(&addresses).map(|()| Answer::Done)?),
                Ok(Order::Go) => {
                    works = true;
                    Some(Answer::Done)
                }
                Ok(Order::Check(made)) => {
                    works = false;
                    let began = Instant::now();
                    // Messages may be on their way.
                    while !responder.is_settled(&made)? && began.elapsed() < PATIENCE {
                        responder.turn()?;
                    }
                    Some(Answer::Checked(responder.check(&made)?))
                }
            };
            answer.map_or(Ok(()), |answer| answers.send(Ok(answer))).unwrap_or(());
        }
        if responder.turn()? == 0 && works {
            if responder.rest()? {
                // It was perhaps woken for an order.
                turns |= TURNS_PER_LOOK - 1;
            } else {
                idle.pass();
            }
        }
    }
}
