//! `sinew serve memory`: a donor.

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use sinew::Program;
use sinew::fabric::verbs::Device;
use sinew::host::SystemEntropy;
use sinew::prelude::*;
use sinew::remote_memory::donor::{KEY_LEN_MIN, Key, Service, ServiceConfig};
use sinew_harness::units::{self, parse_size};

use crate::serve::ThreadArgs;
use crate::verbs::{Carried, DeviceArgs, Job};
use crate::{Outcome, Usage};

const AFTER_HELP: &str = "\
Others keep volumes in this memory, which they read and write by themselves, over --fabric; ADDRESS is where they ask for slabs of it. What a
volume had is made zeros before another gets it. Memory is taken from the system as it is used, and is gone with the server: a volume has
copies at several donors.

Beyond shared memory and this host, who asks has to have the key of --key-file, any 16 bytes or more that all hosts of a pool have; or, with
--open, may be anybody.

Examples:
  sinew serve memory shm://donor1 --memory 8G
  sinew serve memory ibverbs://0.0.0.0:7200 --fabric ibverbs --memory 8G --key-file pool.key
  head -c 32 /dev/urandom > pool.key        makes a key";

/// Give memory to volumes of others until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Where to be asked: shm://NAME, udp://HOST:PORT or ibverbs://HOST:PORT
    address: String,
    /// Bytes to give
    #[arg(long, allow_negative_numbers = true, value_parser = parse_size)]
    memory: usize,
    /// A file with the key that callers have to have
    #[arg(long, value_name = "FILE", conflicts_with = "open")]
    key_file: Option<PathBuf>,
    /// Let anybody have memory who reaches the address
    #[arg(long)]
    open: bool,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

/// The least memory that is worth it: a slab of a small volume.
const MEMORY_MIN: usize = 1 << 20;

/// Whether only this host's programs reach an address.
fn is_of_this_host(address: &str) -> bool {
    let Some((scheme, rest)) = address.split_once("://") else { return false };
    let rest = rest.split(['?', '/']).next().unwrap_or_default();
    let host = rest.rsplit_once(':').map_or(rest, |(host, _)| host).trim_matches(['[', ']']);
    scheme == "shm" || host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|host| host.is_loopback())
}

impl Args {
    fn check(&self) -> anyhow::Result<()> {
        self.device.check()?;
        ensure!(self.threads.threads() == 1, "--threads: a donor is asked so rarely that one thread is enough");
        ensure!(
            self.memory >= MEMORY_MIN,
            "--memory {}: at least {}, for example --memory 8G",
            units::size(self.memory),
            units::size(MEMORY_MIN)
        );
        let is_near = is_of_this_host(&self.address) && self.device.fabric == Carried::Shm;
        ensure!(
            is_near || self.open || self.key_file.is_some(),
            "{}: others than programs of this host reach it, and would get memory that they can read and write. Give them a key \
             (--key-file FILE, the same on all hosts of the pool), or let everybody in (--open)",
            self.address
        );
        Ok(())
    }

    fn key(&self) -> anyhow::Result<Option<Key>> {
        let Some(path) = &self.key_file else { return Ok(None) };
        let bytes = std::fs::read(path).with_context(|| format!("reading the key file {}", path.display()))?;
        match Key::new(&bytes) {
            Some(key) => Ok(Some(key)),
            None => bail!(
                "the key file {} has {} bytes: a key has at least {KEY_LEN_MIN}; make one with: head -c 32 /dev/urandom",
                path.display(),
                bytes.len()
            ),
        }
    }
}

/// Serves until a signal, or, as a child, until standard input ends.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.check().map_err(Usage::of)?;
    let addresses = args.threads.addresses(&args.address).map_err(Usage::of)?;
    let key = args.key()?;
    args.device.run(Serving { args, addresses, key })
}

struct Serving<'a> {
    args: &'a Args,
    addresses: Vec<String>,
    key: Option<Key>,
}

impl Job for Serving<'_> {
    type Result = Outcome;

    fn run<D: Device + 'static>(self, device: D, _: Carried) -> anyhow::Result<Outcome> {
        let Self { args, addresses, key } = self;
        let (threads, memory) = (&args.threads, args.memory);
        let start = || {
            // Who has gone is told, so that strangers leave nothing behind.
            let config = Config { client_events: true, ..threads.config() };
            let nexus = Nexus::builder().config(config).build()?;
            let server = nexus.server().program(move |_endpoint, _rpc| {
                let config = ServiceConfig::new(memory, key.clone());
                let service = Service::new(&device, config, Box::new(SystemEntropy::new()?));
                let service = service.with_context(|| format!("exposing {} of memory", units::size(memory)))?;
                Ok::<_, anyhow::Error>(Part { service })
            });
            threads.start(server, addresses)
        };
        let advice = |_: &str| format!("It gives {} of memory.", units::size(memory));
        let Some(reports) = threads.serve(start, advice)? else { return Ok(Outcome::Failed) };
        threads.tell_reports(&reports)?;
        Ok(Outcome::Done)
    }
}

/// The donor's thread: it answers who asks for slabs; reads and writes go past it.
struct Part<D: Device> {
    service: Service<D>,
}

impl<D: Device> Program for Part<D> {
    type Error = anyhow::Error;

    fn turn(&mut self, rpc: &mut Rpc) -> anyhow::Result<Flow> {
        let service = &mut self.service;
        let busy = rpc.turn_with(|call| service.take(call));
        while let Some(event) = rpc.poll_client_event() {
            self.service.hear(event);
        }
        while rpc.poll_completion().is_some() || rpc.poll_event().is_some() {}
        Ok(busy.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_others_reach_are_known_as_such() {
        let near =
            ["shm://a", "udp://127.0.0.1:7000", "udp://[::1]:7000", "udp://localhost:0", "ibverbs://127.0.0.5:1?gid=1"];
        let far = ["udp://0.0.0.0:7000", "udp://10.0.0.1:7000", "ibverbs://[::]:1", "udp://host:7", "nothing"];
        for (addresses, expected) in [(near, true), (far, false)] {
            addresses.iter().for_each(|address| assert_eq!(is_of_this_host(address), expected, "{address}"));
        }
    }
}
