//! Echo (nsdi15 4): each frame leaves by the port that a number in it names, so there is nothing to look up. The cost
//! that remains is that of the ports and the pipeline.

use sinew_fabric::frames::{ETHERNET_HEADER_LEN, LentFrame};

use crate::burst::{Application, Fate, Fates, Outbox};
use crate::counters::{Counters, Reason};
use crate::form::Form;
use crate::headers;

/// The echo application; see the [module](self). The number is the first four bytes behind the Ethernet header,
/// big-endian, modulo the number of ports. The two Ethernet addresses are swapped, so that a frame that returns to its
/// sender is addressed to it.
#[derive(Debug)]
pub struct Echo {
    ports: u32,
    counters: Counters,
}

impl Echo {
    /// An echo over `ports` ports; 0 counts as 1.
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
            headers::set_addresses(bytes, from, to);
            fates.push(Fate::Forward((number % self.ports) as u16));
            self.counters.forwarded += 1;
        }
    }

    fn set_form(&mut self, _: Form) {}

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
