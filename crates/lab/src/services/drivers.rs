//! Load drivers as actors.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_fabric::Clock;
use sinew_harness::load::{Load, Slice, State};
use sinew_sim::{Actor, Cluster, Doing, SimClock};

/// Time between two turns in which a finished driver tends its peers.
const TENDING_NS: u64 = 200;

/// Results of all drivers.
#[derive(Debug, Default)]
pub struct Found {
    slices: Vec<Slice>,
    left: usize,
    error: Option<String>,
}

impl Found {
    /// Lets time pass until all drivers are done.
    ///
    /// # Panics
    ///
    /// When one is not done by `end_ns`, or has failed: experiments run on clusters that work.
    pub fn wait(found: &Rc<RefCell<Self>>, cluster: &mut Cluster, end_ns: u64) {
        let is_over = |found: &RefCell<Self>| {
            let found = found.borrow();
            found.left == 0 || found.error.is_some()
        };
        let ended = cluster.run_while(end_ns, |_| is_over(found));
        let found = found.borrow();
        assert_eq!((&found.error, ended), (&None, Ok(true)), "{} drivers are not done", found.left);
    }

    /// Requests per second, in millions, over all drivers.
    pub fn mops(&self) -> f64 {
        self.slices.iter().map(Slice::mops).sum()
    }

    /// The first failure of a driver, if there was one.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Result of each driver, in the order in which they ended.
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// Sum of all slices, except for their time.
    pub fn sum(&self) -> Slice {
        let mut sum = Slice::new();
        self.slices.iter().for_each(|slice| sum.add(slice));
        sum
    }
}

/// A driver on a core of its own.
pub struct Driven<L> {
    load: L,
    clock: SimClock,
    /// Lengths of the slices that it is driven for: the last counts, the others warm up.
    slices_ns: Vec<u64>,
    begun: usize,
    /// Time after which it has a turn although nothing has arrived.
    look_ns: u64,
    found: Rc<RefCell<Found>>,
    at_end: Option<AtEnd<L>>,
    /// Whether it keeps tending its peers once it is done (`stays`), and whether it is done (`is_over`).
    stays: bool,
    is_over: bool,
}

/// Function that is called with a driver when it ends.
type AtEnd<L> = Box<dyn FnOnce(&mut L)>;

impl<L: Load> Driven<L> {
    /// A driver for some slices, of which the last counts.
    pub fn new(load: L, clock: SimClock, slices_ns: &[u64], look_ns: u64, found: &Rc<RefCell<Found>>) -> Self {
        found.borrow_mut().left += 1;
        let found = Rc::clone(found);
        Self {
            load,
            clock,
            slices_ns: slices_ns.to_vec(),
            begun: 0,
            look_ns,
            found,
            at_end: None,
            stays: false,
            is_over: false,
        }
    }

    /// Calls `look` with the driver when it ends.
    #[must_use]
    pub fn at_end(self, look: impl FnOnce(&mut L) + 'static) -> Self {
        Self { at_end: Some(Box::new(look)), ..self }
    }

    /// Makes it tend its peers after its end, since others' calls may wait for it.
    #[must_use]
    pub fn staying(self) -> Self {
        Self { stays: true, ..self }
    }

    fn step(&mut self) -> anyhow::Result<Doing> {
        let now_ns = self.clock.now_ns();
        if self.is_over {
            self.load.tend();
            return Ok(Doing::IdleUntil(self.clock.now_ns() + TENDING_NS));
        }
        if self.begun == 0 {
            self.begin(now_ns)?;
        }
        Ok(match self.load.turn(now_ns)? {
            State::Busy => Doing::Work,
            State::Idle => Doing::IdleUntil(now_ns + self.look_ns),
            State::Over => {
                let slice = self.load.end();
                if self.begun < self.slices_ns.len() {
                    self.begin(now_ns)?;
                    return Ok(Doing::Work);
                }
                if let Some(look) = self.at_end.take() {
                    look(&mut self.load);
                }
                let mut found = self.found.borrow_mut();
                found.slices.push(slice);
                found.left -= 1;
                self.is_over = true;
                if self.stays { Doing::Work } else { Doing::Done }
            }
        })
    }

    fn begin(&mut self, now_ns: u64) -> anyhow::Result<()> {
        self.begun += 1;
        self.load.begin(now_ns, now_ns + self.slices_ns[self.begun - 1])
    }
}

impl<L: Load> Actor for Driven<L> {
    fn turn(&mut self) -> Doing {
        self.step().unwrap_or_else(|error| {
            self.found.borrow_mut().error.get_or_insert(format!("{error:#}"));
            Doing::Done
        })
    }
}
