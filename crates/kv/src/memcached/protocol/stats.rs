//! `stats`.

use super::commands::VERSION;
use super::numbers::push_number;
use super::service::Work;
use super::session::Step;
use super::tokens::Words;

impl Work<'_, '_> {
    pub(super) fn stats(&mut self, words: &Words<'_>) -> Step {
        match words.get(1).copied() {
            None => self.all_stats(),
            Some(b"reset") => {
                self.service.counters.iter().for_each(super::Counters::reset);
                self.say("RESET");
            }
            Some(b"settings") => {
                let limits = *self.limits();
                self.stat("maxbytes", self.sum("limit_maxbytes"));
                self.stat("item_size_max", limits.item_len_max as u64);
                self.stat("num_threads", self.service.counters.len() as u64);
                self.say("STAT cas_enabled yes");
                self.say("STAT flush_enabled yes");
                self.say("END");
            }
            Some(b"detail") => self.say("CLIENT_ERROR usage: stats detail on|off|dump"),
            Some(b"sizes") => self.say("STAT sizes_status disabled\r\nEND"),
            // There are no slabs here.
            Some(b"items" | b"slabs" | b"conns") => self.say("END"),
            Some(_) => self.say("ERROR"),
        }
        Step::Done(0)
    }

    fn all_stats(&mut self) {
        self.service.publish(self.cache);
        self.stat("pid", u64::from(std::process::id()));
        // The clock began when the server did, or in 1970.
        let unix_s = self.service.epoch_unix_s + u64::from(self.now_s);
        self.stat("uptime", unix_s.saturating_sub(self.service.began_unix_s));
        self.stat("time", unix_s);
        self.say(&format!("STAT version {VERSION}"));
        self.stat("pointer_size", u64::from(usize::BITS));
        self.stat("threads", self.service.counters.len() as u64);
        let names: Vec<&str> = self.service.count().all().map(|(name, _)| name).collect();
        for name in names {
            self.stat(name, self.sum(name));
        }
        self.say("END");
    }

    /// Over all threads.
    fn sum(&self, name: &str) -> u64 {
        let all = self.service.counters.iter().flat_map(|counters| counters.all());
        all.filter(|(other, _)| *other == name).fold(0, |sum, (_, counter)| sum.wrapping_add(counter.get()))
    }

    fn stat(&mut self, name: &str, value: u64) {
        self.out.extend_from_slice(b"STAT ");
        self.out.extend_from_slice(name.as_bytes());
        self.out.push(b' ');
        push_number(self.out, value);
        self.out.extend_from_slice(b"\r\n");
    }
}
