//! Load drivers as actors.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_fabric::Clock;
use sinew_harness::load::{Load, Slice, State};
use sinew_sim::{Actor, ActorState, Cluster, SimClock};

/// Time between two turns in which a finished driver tends its peers.
const TENDING_NS: u64 = 200;

/// Results of all drivers.
#[derive(Debug, Default)]
pub struct DriverResults {
    slices: Vec<Slice>,
    running: usize,
    error: Option<String>,
}

impl DriverResults {
    /// Lets time pass until all drivers are done.
    ///
    /// # Panics
    ///
    /// When one is not done by `end_ns`, or has failed: experiments run on clusters that work.
    pub fn wait(found: &Rc<RefCell<Self>>, cluster: &mut Cluster, end_ns: u64) {
        let is_over = |found: &RefCell<Self>| {
            let found = found.borrow();
            found.running == 0 || found.error.is_some()
        };
        let ended = cluster.run_while(end_ns, |_| is_over(found));
        let found = found.borrow();
        assert_eq!((&found.error, ended), (&None, Ok(true)), "{} drivers are not done", found.running);
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
    slices_begun: usize,
    /// Time after which it has a turn although nothing has arrived.
    idle_turn_ns: u64,
    found: Rc<RefCell<DriverResults>>,
    at_end: Option<AtEnd<L>>,
    /// Whether it keeps tending its peers once it is done (`keeps_tending`), and whether it is done (`is_done`).
    keeps_tending: bool,
    is_done: bool,
}

/// Function that is called with a driver when it ends.
type AtEnd<L> = Box<dyn FnOnce(&mut L)>;

impl<L: Load> Driven<L> {
    /// A driver for some slices, of which the last counts.
    pub fn new(
        load: L,
        clock: SimClock,
        slices_ns: &[u64],
        idle_turn_ns: u64,
        found: &Rc<RefCell<DriverResults>>,
    ) -> Self {
        found.borrow_mut().running += 1;
        let found = Rc::clone(found);
        Self {
            load,
            clock,
            slices_ns: slices_ns.to_vec(),
            slices_begun: 0,
            idle_turn_ns,
            found,
            at_end: None,
            keeps_tending: false,
            is_done: false,
        }
    }

    /// Calls `callback` with the driver when it ends.
    #[must_use]
    pub fn at_end(self, callback: impl FnOnce(&mut L) + 'static) -> Self {
        Self { at_end: Some(Box::new(callback)), ..self }
    }

    /// Makes it tend its peers after its end, since others' calls may wait for it.
    #[must_use]
    pub fn staying(self) -> Self {
        Self { keeps_tending: true, ..self }
    }

    fn step(&mut self) -> anyhow::Result<ActorState> {
        let now_ns = self.clock.now_ns();
        if self.is_done {
            self.load.tend();
            return Ok(ActorState::IdleUntil(self.clock.now_ns() + TENDING_NS));
        }
        if self.slices_begun == 0 {
            self.begin(now_ns)?;
        }
        Ok(match self.load.turn(now_ns)? {
            State::Busy => ActorState::Work,
            State::Idle => ActorState::IdleUntil(now_ns + self.idle_turn_ns),
            State::Over => {
                let slice = self.load.end();
                if self.slices_begun < self.slices_ns.len() {
                    self.begin(now_ns)?;
                    return Ok(ActorState::Work);
                }
                if let Some(callback) = self.at_end.take() {
                    callback(&mut self.load);
                }
                let mut found = self.found.borrow_mut();
                found.slices.push(slice);
                found.running -= 1;
                self.is_done = true;
                if self.keeps_tending { ActorState::Work } else { ActorState::Done }
            }
        })
    }

    fn begin(&mut self, now_ns: u64) -> anyhow::Result<()> {
        self.slices_begun += 1;
        self.load.begin(now_ns, now_ns + self.slices_ns[self.slices_begun - 1])
    }
}

impl<L: Load> Actor for Driven<L> {
    fn turn(&mut self) -> ActorState {
        self.step().unwrap_or_else(|error| {
            self.found.borrow_mut().error.get_or_insert(format!("{error:#}"));
            ActorState::Done
        })
    }
}
