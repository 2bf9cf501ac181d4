//! Load drivers in threads of their own, all of which work at the same time.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use sinew::host::{HostClock, Interrupt};

use crate::crew::{BoxedMember, Crew, Member};
use crate::load::{Drive, Slice};

type Order<L> = Arc<dyn Fn(&mut L) -> anyhow::Result<()> + Send + Sync>;

struct Driver<L: ?Sized, H> {
    load: Box<L>,
    _hold: H,
}

impl<L: Drive + ?Sized, H> Member for Driver<L, H> {
    type Order = Order<L>;
    type Answer = ();

    fn execute(&mut self, order: Order<L>) -> anyhow::Result<()> {
        order(&mut self.load)
    }

    fn tend(&mut self) {
        self.load.tend_peers();
    }
}

/// Threads, each with a driver. They end when this is dropped.
pub struct Drivers<L: ?Sized> {
    crew: Crew<Order<L>, ()>,
    interrupt: Interrupt,
}

impl<L: Drive + ?Sized + 'static> Drivers<L> {
    /// Starts a thread on each of the processors, in which `make` makes its driver, and a value that has to live as
    /// long.
    ///
    /// # Errors
    ///
    /// As [`Crew::start`].
    pub fn start<H: 'static>(
        cpus: &[Option<usize>],
        interrupt: Interrupt,
        make: impl Fn(usize) -> anyhow::Result<(Box<L>, H)> + Clone + Send + 'static,
    ) -> anyhow::Result<Self> {
        let make = move |index| {
            let (load, _hold) = make(index)?;
            Ok(Box::new(Driver { load, _hold }) as BoxedMember<_, _>)
        };
        Ok(Self { crew: Crew::start(cpus, make)?, interrupt })
    }

    /// Has each driver, whose index `order` is given, do something that takes about `duration`. Returns the results, in
    /// the order of the drivers.
    ///
    /// # Errors
    ///
    /// A driver failed, or is stuck.
    pub fn each<A: Send + 'static>(
        &self,
        duration: Duration,
        order: impl Fn(usize, &mut L) -> anyhow::Result<A> + Send + Sync + 'static,
    ) -> anyhow::Result<Vec<A>> {
        let (order, (answer, answers)) = (Arc::new(order), mpsc::channel());
        let order_of = |index| -> Order<L> {
            let (order, answer) = (Arc::clone(&order), answer.clone());
            Arc::new(move |load: &mut L| {
                // The receiver is gone if it has given up waiting.
                let _ = answer.send((index, order(index, load)?));
                Ok(())
            })
        };
        self.crew.order_each(order_of, duration)?;
        let mut answers: Vec<(usize, A)> = answers.try_iter().collect();
        answers.sort_unstable_by_key(|(index, _)| *index);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    /// Has all drivers work for a slice, each after `prepare` has prepared it. Returns the slices.
    ///
    /// # Errors
    ///
    /// As [`Self::each`].
    pub fn slices(
        &self,
        duration: Duration,
        prepare: impl Fn(usize, &mut L) + Send + Sync + 'static,
    ) -> anyhow::Result<Vec<Slice>> {
        let interrupt = self.interrupt;
        self.each(duration, move |index, load| {
            prepare(index, load);
            load.drive(&HostClock::new(), duration, interrupt)
        })
    }
}
