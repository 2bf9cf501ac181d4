//! Echo (nsdi15 4): each frame goes out of the port that a number in it names, and there is nothing to look up. What is left is what the ports and the pipeline cost.

use sinew_fabric::frames::{ETHERNET_HEADER_LEN, LentFrame};

use crate::burst::{Application, Fate, Fates, Outbox};
use crate::counters::{Counters, Reason};
use crate::form::Form;
use crate::headers;

/// See the [module](self). The number is the first four bytes behind the Ethernet header, the highest first, and counts modulo the ports. Both addresses change places, so
/// that what comes back to its sender is for it.
#[derive(Debug)]
pub struct Echo {
    ports: u32,
    counters: Counters,
}

impl Echo {
    /// Over so many ports, at least one.
    pub fn new(ports: u16) -> Self {
        Self { ports: ports.max(1).into(), counters: Counters::default() }
    }
}

impl Application for Echo {
    fn process<L: LentFrame>(&mut self, _: u16, _: u64, frames: &mut [L], fates: &mut Fates, _: &mut Outbox) {
        fates.clear();
        self.counters.received += frames.len() as u64;
        for frame in frames {
            let bytes = frame.bytes_mut();
            let Some(number) = bytes.get(ETHERNET_HEADER_LEN..ETHERNET_HEADER_LEN + 4) else {
                self.counters.drop(Reason::Truncated);
                fates.push(Fate::Drop);
                continue;
            };
            let number = u32::from_be_bytes([number[0], number[1], number[2], number[3]]);
            let (to, from) = (headers::destination(bytes), headers::source(bytes));
            headers::address(bytes, from, to);
            fates.push(Fate::Forward((number % self.ports) as u16));
            self.counters.forwarded += 1;
        }
    }

    fn set_form(&mut self, _: Form) {}

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
