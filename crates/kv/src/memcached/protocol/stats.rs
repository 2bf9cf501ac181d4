//! The `stats` command.

use std::time::Duration;

use sinew_mem::atomic::Ordering;

use super::commands::VERSION;
use super::counters::Counters;
use super::numbers::push_number;
use super::service::Work;
use super::session::CommandStep;
use super::tokens::Words;

impl Work<'_, '_> {
    pub(super) fn stats(&mut self, words: &Words<'_>) -> CommandStep {
        match words.get(1).copied() {
            None => self.all_stats(),
            Some(b"reset") => {
                self.service.publish(self.cache);
                self.service.shared.counters.iter().for_each(Counters::reset);
                self.service.shared.detail.reset();
                self.push_line("RESET");
            }
            Some(b"settings") => self.settings(),
            Some(b"detail") => self.detail(words.get(2).copied()),
            Some(b"sizes") => self.push_line("STAT sizes_status disabled\r\nEND"),
            // There are no slabs here.
            Some(b"items" | b"slabs" | b"conns") => self.push_line("END"),
            Some(_) => self.push_line("ERROR"),
        }
        CommandStep::Done(0)
    }

    fn detail(&mut self, what: Option<&[u8]>) {
        let detail = &self.service.shared.detail;
        match what {
            Some(b"on") => {
                detail.switch(true);
                self.has_detail = true;
                self.push_line("OK");
            }
            Some(b"off") => {
                detail.switch(false);
                self.has_detail = false;
                self.push_line("OK");
            }
            Some(b"dump") => {
                detail.dump(self.out);
                self.push_line("END");
            }
            _ => self.push_line("CLIENT_ERROR usage: stats detail on|off|dump"),
        }
    }

    fn settings(&mut self) {
        let shared = std::sync::Arc::clone(&self.service.shared);
        let info = &shared.info;
        let (path, host) = match info.address.strip_prefix("unix:") {
            Some(path) => (path, None),
            None => ("NULL", info.address.rsplit_once(':')),
        };
        let (inter, port) = host.unwrap_or(("NULL", "0"));
        let yes_or_no = |yes| if yes { "yes" } else { "no" };
        self.publish_and_stat("maxbytes", "limit_maxbytes");
        self.stat("maxconns", info.connections_max as u64);
        self.stat_text("tcpport", port);
        self.stat("udpport", 0);
        self.stat_text("inter", inter);
        self.stat("verbosity", shared.verbosity.load(Ordering::Relaxed).into());
        self.stat_text("evictions", if info.evicts { "on" } else { "off" });
        self.stat_text("domain_socket", path);
        self.stat_text("umask", &format!("{:o}", info.socket_mode));
        self.stat_text("shutdown_command", "no");
        self.stat("num_threads", shared.counters.len() as u64);
        self.stat_text("stat_key_prefix", ":");
        self.stat_text("detail_enabled", yes_or_no(shared.detail.is_on()));
        self.stat_text("cas_enabled", "yes");
        self.stat_text("binding_protocol", "ascii");
        self.stat_text("auth_enabled_sasl", "no");
        self.stat_text("auth_enabled_ascii", "no");
        self.stat("item_size_max", self.limits().item_len_max as u64);
        self.stat_text("maxconns_fast", "yes");
        self.stat_text("flush_enabled", "yes");
        self.stat_text("dump_enabled", "no");
        self.stat("idle_timeout", info.idle_timeout_s.into());
        self.stat("connection_memory", shared.budget.max() as u64);
        self.push_line("END");
    }

    fn publish_and_stat(&mut self, name: &str, counter: &str) {
        self.service.publish(self.cache);
        self.stat(name, self.sum(counter));
    }

    fn all_stats(&mut self) {
        self.service.publish(self.cache);
        let shared = std::sync::Arc::clone(&self.service.shared);
        self.stat("pid", u64::from(std::process::id()));
        // The clock began when the server did, or in 1970.
        let unix_s = self.service.epoch_unix_s + u64::from(self.now_s);
        self.stat("uptime", unix_s.saturating_sub(self.service.began_unix_s));
        self.stat("time", unix_s);
        self.stat_text("version", VERSION);
        self.stat("pointer_size", u64::from(usize::BITS));
        let [user, system] = (shared.info.cpu_times)();
        self.stat_text("rusage_user", &seconds(user));
        self.stat_text("rusage_system", &seconds(system));
        self.stat("max_connections", shared.info.connections_max as u64);
        self.stat("threads", shared.counters.len() as u64);
        let names: Vec<&str> = self.service.count().all().map(|(name, _)| name).collect();
        for name in names {
            self.stat(name, self.sum(name));
        }
        self.stat("connection_bytes", shared.budget.used() as u64);
        self.stat("limit_connection_bytes", shared.budget.max() as u64);
        self.push_line("END");
    }

    /// Sum of a counter over all threads.
    fn sum(&self, name: &str) -> u64 {
        let all = self.service.shared.counters.iter().flat_map(Counters::all);
        all.filter(|(other, _)| *other == name).fold(0, |sum, (_, counter)| sum.wrapping_add(counter.get()))
    }

    fn stat(&mut self, name: &str, value: u64) {
        self.out.extend_from_slice(b"STAT ");
        self.out.extend_from_slice(name.as_bytes());
        self.out.push(b' ');
        push_number(self.out, value);
        self.out.extend_from_slice(b"\r\n");
    }

    fn stat_text(&mut self, name: &str, value: &str) {
        self.push_line(&format!("STAT {name} {value}"));
    }
}

/// Formats a time as memcached formats that of `getrusage`.
fn seconds(time: Duration) -> String {
    format!("{}.{:06}", time.as_secs(), time.subsec_micros())
}
