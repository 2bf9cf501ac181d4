//! Threads that obey orders: clients, and servers of measurements.
//!
//! Much of what a thread works with cannot be sent to another thread, so it is made there and stays there. All threads
//! of a crew obey an order at the same time, and answer.

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;

use crate::machine;

/// Time after which a member without orders tends its peers.
const TENDING: Duration = Duration::from_millis(200);
/// Time that a member has to answer, beyond that of its order.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Work of a thread of a crew.
pub trait Member {
    /// Orders that it can be given.
    type Order;
    /// Its answer to an order.
    type Answer;

    /// Obeys an order.
    ///
    /// # Errors
    ///
    /// Whatever ends the measurement.
    fn execute(&mut self, order: Self::Order) -> anyhow::Result<Self::Answer>;

    /// Called now and then while there are no orders, to show peers that it is alive.
    fn tend(&mut self) {}
}

/// Threads, each with a [`Member`]. They end when this is dropped.
pub struct Crew<O, A> {
    threads: Vec<Thread<O, A>>,
}

struct Thread<O, A> {
    /// `None` once the thread is to end.
    orders: Option<mpsc::Sender<O>>,
    answers: mpsc::Receiver<anyhow::Result<A>>,
    handle: Option<JoinHandle<()>>,
}

/// A member, as [`Crew::start`] takes it.
pub type BoxedMember<O, A> = Box<dyn Member<Order = O, Answer = A>>;

impl<O: Clone + Send + 'static, A: Send + 'static> Crew<O, A> {
    /// Starts a thread on each of the processors, in which `make` makes its member from the thread's index. Threads
    /// start one after the other, so that the first error is the one to report.
    ///
    /// # Errors
    ///
    /// A thread could not be pinned, or `make` failed.
    pub fn start(
        cpus: &[Option<usize>],
        make: impl Fn(usize) -> anyhow::Result<BoxedMember<O, A>> + Clone + Send + 'static,
    ) -> anyhow::Result<Self> {
        let mut crew = Self { threads: Vec::new() };
        for (index, cpu) in cpus.iter().copied().enumerate() {
            let (orders, incoming) = mpsc::channel();
            let (outgoing, answers) = mpsc::channel();
            let (ready, is_ready) = mpsc::channel();
            let make = make.clone();
            let work = move || match machine::pin(cpu).and_then(|()| make(index)) {
                Ok(member) => {
                    let _ = ready.send(Ok(()));
                    serve(member, &incoming, &outgoing);
                }
                Err(error) => drop(ready.send(Err(error))),
            };
            let name = format!("member {index}");
            let handle = std::thread::Builder::new().name(name).spawn(work).context("starting a measuring thread")?;
            crew.threads.push(Thread { orders: Some(orders), answers, handle: Some(handle) });
            is_ready.recv().context("a measuring thread panicked")??;
        }
        Ok(crew)
    }

    /// Gives all members the same order at once, which takes about `duration`. Returns their answers, in their order.
    ///
    /// # Errors
    ///
    /// A member failed, or is stuck.
    pub fn order(&self, order: &O, duration: Duration) -> anyhow::Result<Vec<A>> {
        self.order_each(|_| order.clone(), duration)
    }

    /// Gives each member an order of its own.
    ///
    /// # Errors
    ///
    /// As [`Self::order`].
    pub fn order_each(&self, order: impl Fn(usize) -> O, duration: Duration) -> anyhow::Result<Vec<A>> {
        self.begin_each(order);
        self.answers(duration)
    }

    /// Gives each member an order of its own, which ends when the owner of the crew says so. Then [`Self::answers`]
    /// returns the results.
    pub fn begin_each(&self, order: impl Fn(usize) -> O) {
        for (index, thread) in self.threads.iter().enumerate() {
            // A thread that has ended gives the reason when it is asked for its answer.
            let _ = thread.orders.as_ref().map(|orders| orders.send(order(index)));
        }
    }

    /// Waits for the members' answers to the last order, which takes about `duration` from now on.
    ///
    /// # Errors
    ///
    /// As [`Self::order`].
    pub fn answers(&self, duration: Duration) -> anyhow::Result<Vec<A>> {
        self.threads.iter().map(|thread| thread.answer(duration)).collect()
    }

    /// Gives the first member an order, and returns its answer.
    ///
    /// # Errors
    ///
    /// As [`Self::order`].
    pub fn order_first(&self, order: O) -> anyhow::Result<A> {
        let first = self.threads.first().context("there is no thread to measure with")?;
        let _ = first.orders.as_ref().map(|orders| orders.send(order));
        first.answer(Duration::ZERO)
    }
}

impl<O, A> Thread<O, A> {
    fn answer(&self, duration: Duration) -> anyhow::Result<A> {
        self.answers.recv_timeout(duration + ANSWER_TIMEOUT).context("a measuring thread ended, or is stuck")?
    }
}

fn serve<O, A>(mut member: BoxedMember<O, A>, orders: &mpsc::Receiver<O>, answers: &mpsc::Sender<anyhow::Result<A>>) {
    loop {
        match orders.recv_timeout(TENDING) {
            Ok(order) => drop(answers.send(member.execute(order))),
            Err(mpsc::RecvTimeoutError::Timeout) => member.tend(),
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl<O, A> Drop for Crew<O, A> {
    fn drop(&mut self) {
        self.threads.iter_mut().for_each(|thread| drop(thread.orders.take()));
        for thread in &mut self.threads {
            // A thread that panicked has reported it.
            let _ = thread.handle.take().map(JoinHandle::join);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Adder(u64);

    impl Member for Adder {
        type Order = u64;
        type Answer = u64;

        fn execute(&mut self, order: u64) -> anyhow::Result<u64> {
            anyhow::ensure!(order < 100, "too much");
            self.0 += order;
            Ok(self.0)
        }
    }

    fn adder(index: usize) -> anyhow::Result<BoxedMember<u64, u64>> {
        anyhow::ensure!(index < 3, "there is no fourth");
        Ok(Box::new(Adder(index as u64)))
    }

    #[test]
    fn all_members_obey_and_answer_in_their_order() {
        let crew = Crew::start(&[None; 3], adder).unwrap();
        assert_eq!(crew.order(&10, Duration::ZERO).unwrap(), [10, 11, 12]);
        assert_eq!(crew.order_each(|index| index as u64, Duration::ZERO).unwrap(), [10, 12, 14]);
        assert_eq!(crew.order_first(1).unwrap(), 11);
        assert_eq!(crew.order(&100, Duration::ZERO).unwrap_err().to_string(), "too much");
    }

    #[test]
    fn a_member_that_cannot_be_made_says_why() {
        let error = Crew::start(&[None; 4], adder).err().unwrap();
        assert_eq!(error.to_string(), "there is no fourth");
        assert!(Crew::start(&[Some(usize::MAX)], adder).is_err(), "no such processor");
    }
}
