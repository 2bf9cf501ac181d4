//! Frames through applications of `forward`, on one thread and without ports (nsdi15 4): a router's work without that
//! of its network card.
//!
//! Frames are drawn in advance, together with where each must go; every outcome is compared inside the timed run.
//! Before each burst the first bytes of its frames are written anew, as a network card would, since routers change
//! them.

mod latency;
mod loads;

use std::time::{Duration, Instant};

use anyhow::ensure;
use arrayvec::ArrayVec;
use sinew::fabric::MAX_BURST;
use sinew::fabric::frames::LentFrame;
use sinew::forward::{Application, Fate, Fates, Form, Outbox};

pub use latency::{AtLoad, Latencies};
pub use loads::{echo, ipv4, ipv6, names, switch};

/// Length of a frame in bytes: Ethernet's minimum without its check sequence. Longer headers make it longer.
const FRAME_LEN: usize = 60;
/// Bytes between the beginnings of frames in a burst.
const FRAME_ROOM: usize = 128;
/// Bursts between readings of the clock.
const STRETCH: usize = 64;

/// An application, and frames for it.
#[derive(Debug)]
pub struct Pipeline<A> {
    application: A,
    /// Size of its table, in bytes.
    pub table_bytes: usize,
    template: Vec<u8>,
    /// Offset and number of the bytes that differ between frames.
    at: usize,
    len: usize,
    differences: Vec<u8>,
    expected: Vec<Fate>,
    room: Vec<u8>,
    next: usize,
}

/// A frame of a burst.
struct Lent<'a>(&'a mut [u8]);

impl LentFrame for Lent<'_> {
    fn bytes(&self) -> &[u8] {
        self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0
    }
}

impl<A: Application> Pipeline<A> {
    /// An application with a table of `table_bytes` bytes, and frames that are `template` with `differences` in place
    /// of the bytes from `at` on. The plain form decides where each frame must go; all have to be forwarded.
    fn new(
        application: A,
        table_bytes: usize,
        mut template: Vec<u8>,
        at: usize,
        differences: Vec<Vec<u8>>,
    ) -> anyhow::Result<Self> {
        template.resize(template.len().max(FRAME_LEN), 0);
        ensure!(template.len() <= FRAME_ROOM, "a frame of {} bytes is too long", template.len());
        let len = differences.first().map_or(0, Vec::len);
        let mut pipeline = Self {
            application,
            table_bytes,
            template,
            at,
            len,
            differences: differences.concat(),
            expected: Vec::new(),
            room: vec![0; MAX_BURST * FRAME_ROOM],
            next: 0,
        };
        pipeline.application.set_form(Form::Plain);
        let mut expected = Vec::with_capacity(differences.len());
        let (mut fates, mut outbox) = (Fates::new(), Outbox::new());
        while expected.len() < differences.len() {
            let count = MAX_BURST.min(differences.len() - expected.len());
            pipeline.burst(expected.len(), count, &mut fates, &mut outbox);
            expected.extend(fates.drain(..));
        }
        let gone = expected.iter().filter(|fate| !matches!(fate, Fate::Forward(_))).count();
        ensure!(gone == 0 && outbox.is_empty(), "the application does not forward {gone} of {} frames", expected.len());
        pipeline.expected = expected;
        Ok(pipeline)
    }

    /// Passes the `count` frames from `first` on through the application.
    #[inline(always)]
    fn burst(&mut self, first: usize, count: usize, fates: &mut Fates, outbox: &mut Outbox) {
        let mut frames = ArrayVec::<Lent<'_>, MAX_BURST>::new();
        let differences = self.differences[first * self.len..].chunks_exact(self.len);
        for (room, difference) in self.room.chunks_exact_mut(FRAME_ROOM).zip(differences).take(count) {
            let frame = &mut room[..self.template.len()];
            frame.copy_from_slice(&self.template);
            frame[self.at..self.at + self.len].copy_from_slice(difference);
            frames.push(Lent(frame));
        }
        // The time stays 0, so that no neighbour has to be asked for again.
        self.application.process(0, 0, &mut frames, fates, outbox);
    }

    /// Forwards bursts of `width` frames, up to [`MAX_BURST`], for `duration`. Returns millions of frames a second.
    ///
    /// # Errors
    ///
    /// A frame did not go where it should.
    pub fn mops(&mut self, form: Form, width: usize, duration: Duration) -> anyhow::Result<f64> {
        self.application.set_form(form);
        let width = width.clamp(1, MAX_BURST.min(self.expected.len()));
        let (mut fates, mut outbox) = (Fates::new(), Outbox::new());
        let began = Instant::now();
        let (mut count, mut good) = (0, true);
        while began.elapsed() < duration {
            for _ in 0..STRETCH {
                let first = if self.next + width > self.expected.len() { 0 } else { self.next };
                self.burst(first, width, &mut fates, &mut outbox);
                good &= fates[..] == self.expected[first..first + width];
                self.next = first + width;
                count += width;
            }
        }
        ensure!(good, "a frame did not go where it should");
        Ok(count as f64 / began.elapsed().as_secs_f64() / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<A: Application>(pipeline: anyhow::Result<Pipeline<A>>) {
        let mut pipeline = pipeline.unwrap();
        for form in [Form::Plain, Form::default(), Form::Grouped] {
            for width in [1, 7, MAX_BURST] {
                assert!(pipeline.mops(form, width, Duration::from_millis(1)).unwrap() > 0.0);
            }
        }
        pipeline.expected[0] = Fate::Drop;
        pipeline.next = 0;
        assert!(pipeline.mops(Form::Plain, 1, Duration::from_millis(1)).is_err(), "what is wrong is noticed");
    }

    #[test]
    fn every_frame_goes_on_in_every_form_and_what_is_wrong_is_noticed() {
        check(echo(1000));
        check(ipv4(1000, 1000));
        check(ipv6(1000, 1000));
        check(switch(1000, 1000));
        check(names(1000, 1000));
    }
}
