//! Load for an ordered index: GETs of random keys, and now and then a sum over the values from a random key on (nsdi19
//! 7.2). Each answer is checked.

use std::ops::{Bound, Range};

use anyhow::{Context, bail, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use sinew::Endpoint;
use sinew::fabric::Clock;
use sinew::kv::ordered::Pipeline;
use sinew::kv::ordered::protocol::{Request, Response};

use super::cache::Fills;
use super::{Load, Slice, Span, State};

/// Length of a key, and of a value, in bytes, as in the paper.
pub const KEY_LEN: usize = 8;
/// Resolution of the share of scans.
const PARTS: u32 = 10_000;
/// Odd factor that spreads numbers over all keys, and gives each number a key of its own.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Load that a client keeps in flight.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Requests in flight.
    pub window: usize,
    /// Requests enqueued together.
    pub batch: usize,
    /// Keys of the index.
    pub keys: u64,
    /// Share of requests that are sums over a scan, from 0 to 1.
    pub scan_share: f64,
    /// Keys of a scan.
    pub scan_len: u32,
}

/// Key of a number. The order of keys is not that of numbers.
pub fn key_of(number: u64) -> [u8; KEY_LEN] {
    number.wrapping_mul(SPREAD).to_be_bytes()
}

/// Value of a number's key. The sum over all keys fits into a u128.
pub fn value_of(number: u64) -> [u8; KEY_LEN] {
    number.to_le_bytes()
}

/// Expected sums of scans.
#[derive(Clone, Debug)]
struct Sums {
    /// Numbers in the order of their keys.
    order: Vec<u32>,
    /// Sum of the values before each place in the order.
    before: Vec<u128>,
}

impl Sums {
    fn new(keys: u64) -> Self {
        let mut order: Vec<u32> = (0..keys as u32).collect();
        order.sort_unstable_by_key(|number| key_of(u64::from(*number)));
        let mut sum = 0;
        let mut before = vec![0];
        before.extend(order.iter().map(|number| {
            sum += u128::from(*number);
            sum
        }));
        Self { order, before }
    }

    /// Sum of up to `len` values from a place on, and the number of these values.
    fn of(&self, place: usize, len: u32) -> (u128, u32) {
        let end = (place + len as usize).min(self.order.len());
        (self.before[end] - self.before[place], (end - place) as u32)
    }
}

/// A driver of an index's client.
pub struct Index<E: Endpoint, C> {
    pipeline: Pipeline<E>,
    clock: C,
    shape: Shape,
    sums: Sums,
    random: SmallRng,
    /// Scans among every [`PARTS`] requests.
    scans: u32,
    /// Tags that are not in flight.
    idle: Vec<u32>,
    /// Requests in flight, by tag.
    in_flight: Vec<InFlight>,
    /// Keys still to be stored before the load begins.
    filling: Range<u64>,
    span: Span,
    slice: Slice,
}

#[derive(Clone, Copy)]
enum IndexRequest {
    Put,
    Get { number: u64 },
    Sum { place: usize },
}

#[derive(Clone, Copy)]
struct InFlight {
    kind: IndexRequest,
    began_ns: u64,
}

impl<E: Endpoint, C: Clock> Index<E, C> {
    /// Sends requests over a pipeline whose window is at least [`Shape::window`]. Keys are drawn from `seed`.
    pub fn new(pipeline: Pipeline<E>, clock: C, shape: Shape, seed: u64) -> Self {
        let nothing = InFlight { kind: IndexRequest::Put, began_ns: 0 };
        Self {
            pipeline,
            clock,
            shape,
            // Sums are only needed where there are scans.
            sums: Sums::new(if shape.scan_share > 0.0 { shape.keys } else { 0 }),
            random: SmallRng::seed_from_u64(seed),
            scans: (shape.scan_share * f64::from(PARTS)).round() as u32,
            idle: (0..shape.window as u32).collect(),
            in_flight: vec![nothing; shape.window],
            filling: 0..0,
            span: Span::default(),
            slice: Slice::new(),
        }
    }

    fn start(&mut self, kind: IndexRequest, began_ns: u64) -> anyhow::Result<()> {
        let Some(tag) = self.idle.pop() else { bail!("no idle request") };
        self.in_flight[tag as usize] = InFlight { kind, began_ns };
        let (key, value);
        let request = match kind {
            IndexRequest::Get { number } => {
                key = key_of(number);
                Request::Get { key: &key }
            }
            IndexRequest::Put => {
                let Some(number) = self.filling.next() else { bail!("nothing is left to store") };
                (key, value) = (key_of(number), value_of(number));
                Request::Put { key: &key, value: &value }
            }
            IndexRequest::Sum { place } => {
                key = key_of(u64::from(self.sums.order[place]));
                Request::Sum { range: (Bound::Included(&key), Bound::Unbounded), limit: self.shape.scan_len }
            }
        };
        Ok(self.pipeline.submit(&request, u64::from(tag))?)
    }

    fn draw(&mut self) -> IndexRequest {
        let number = self.random.random_range(0..self.shape.keys);
        let is_scan = self.scans > 0 && self.random.random_range(0..PARTS) < self.scans;
        if is_scan { IndexRequest::Sum { place: number as usize } } else { IndexRequest::Get { number } }
    }

    /// Starts the requests that there is room for. Returns whether there were any.
    fn start_some(&mut self) -> anyhow::Result<bool> {
        if self.idle.len() < self.shape.batch {
            return Ok(false);
        }
        let now_ns = self.clock.now_ns();
        for _ in 0..self.shape.batch {
            let kind = self.draw();
            self.start(kind, now_ns)?;
        }
        Ok(true)
    }

    /// Takes and checks the answers that have arrived, and counts them if they came in time.
    fn take_answers(&mut self, counts: bool) -> anyhow::Result<()> {
        let mut now_ns = None;
        while let Some(answer) = self.pipeline.poll() {
            let tag = answer.tag as u32;
            let InFlight { kind, began_ns } = self.in_flight[tag as usize];
            match (kind, answer.response.context("a request failed")?) {
                (IndexRequest::Put, Response::Done { .. }) => {}
                (IndexRequest::Get { number }, Response::Value(value)) => {
                    ensure!(value == value_of(number), "the index gave a wrong value");
                    if counts {
                        self.slice.gets += 1;
                        self.slice.hits += 1;
                        let now_ns = *now_ns.get_or_insert_with(|| self.clock.now_ns());
                        self.slice.latency.saturating_record(now_ns.saturating_sub(began_ns));
                    }
                }
                (IndexRequest::Sum { place }, Response::Sum(sum)) => {
                    let expected = self.sums.of(place, self.shape.scan_len);
                    ensure!((sum.sum, sum.added) == expected, "the index gave a wrong sum");
                }
                (_, other) => bail!("an answer to another request: {other:?}"),
            }
            self.slice.done += u64::from(counts);
            self.idle.push(tag);
        }
        Ok(())
    }
}

impl<E: Endpoint, C: Clock> Fills for Index<E, C> {
    fn fill(&mut self, keys: Range<u64>) {
        self.filling = keys;
    }
}

impl<E: Endpoint, C: Clock> Load for Index<E, C> {
    fn begin(&mut self, now_ns: u64, end_ns: u64) -> anyhow::Result<()> {
        self.span = Span::begin(now_ns, end_ns);
        self.slice = Slice::new();
        Ok(())
    }

    fn turn(&mut self, now_ns: u64) -> anyhow::Result<State> {
        let fills = !self.filling.is_empty();
        let goes_on = fills || self.span.may_start(now_ns, self.slice.done);
        let mut is_busy = fills;
        if fills {
            while !self.filling.is_empty() && !self.idle.is_empty() {
                self.start(IndexRequest::Put, 0)?;
            }
        } else if goes_on {
            is_busy = self.start_some()?;
        }
        is_busy |= self.pipeline.turn();
        self.take_answers(goes_on && !fills)?;
        if !goes_on && self.idle.len() == self.shape.window {
            return Ok(State::Over);
        }
        Ok(State::of(is_busy))
    }

    fn end(&mut self) -> Slice {
        let slice = std::mem::take(&mut self.slice);
        Slice { elapsed_ns: self.span.elapsed_ns(), ..slice }
    }

    fn tend(&mut self) {
        // A bounded number of turns, whatever keeps arriving.
        let _ = (0..1000).take_while(|_| self.pipeline.turn()).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_of_the_values_behind_a_key_in_the_order_of_the_keys() {
        let sums = Sums::new(1000);
        let mut numbers: Vec<u64> = (0..1000).collect();
        numbers.sort_unstable_by_key(|number| key_of(*number));
        for (place, len) in [(0, 1), (0, 128), (500, 128), (900, 128), (999, 128)] {
            let values = numbers[place..].iter().take(len as usize).map(|number| u128::from(*number));
            assert_eq!(sums.of(place, len), (values.clone().sum(), values.count() as u32));
        }
    }
}
