//! Donors from the side of who uses them: options that say which, and how they are reached.

use anyhow::{Context, ensure};
use sinew::SharedEndpoint;
use sinew::fabric::Address;
use sinew::fabric::readiness::wait_on;
use sinew::fabric::verbs::Device;
use sinew::fabric::{Clock, Readiness};
use sinew::host::{HostClock, Interrupt};
use sinew::prelude::*;
use sinew::remote_memory::donor::Key;
use sinew::remote_memory::engine::RpcPathConfig;
use sinew::remote_memory::pool::{Pool, PoolConfig, VerbsDonors};
use sinew::remote_memory::volume::{DONORS_MAX, DonorId, Donors};
use sinew_harness::run::Interrupted;

use crate::fabrics::{self, Fabric, Purpose};
use crate::memory::reach::{By, ByArgs, KeyArgs, is_of_this_host};
use crate::verbs::{Carried, Job};

/// How donors are reached.
#[derive(clap::Args, Clone, Debug)]
pub struct DonorArgs {
    #[command(flatten)]
    by: ByArgs,
    #[command(flatten)]
    key: KeyArgs,
}

/// Something to do with donors, whatever reads and writes their memory.
pub trait WithDonors {
    type Result;

    fn run<D: Donors + 'static>(self, donors: D, names: &Names) -> anyhow::Result<Self::Result>;
}

/// What donors are called by people: their addresses.
#[derive(Clone, Debug)]
pub struct Names(Vec<(DonorId, String)>);

impl Names {
    fn of(addresses: &[Address]) -> Self {
        let named = |address: &Address| (DonorId::of(&address.to_string()), address.to_string());
        Self(addresses.iter().map(named).collect())
    }

    /// What is said of donors, with their addresses in place of their numbers.
    pub fn told(&self, text: impl ToString) -> String {
        let put = |text: String, (id, name): &(DonorId, String)| text.replace(&format!("donor {:016x}", id.0), name);
        self.0.iter().fold(text.to_string(), put)
    }

    /// Their addresses, in their order.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(_, name)| name.as_str())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl DonorArgs {
    /// What reads and writes their memory.
    pub fn by(&self) -> &ByArgs {
        &self.by
    }

    /// The key, if one was given.
    pub fn key(&self) -> anyhow::Result<Option<Key>> {
        self.key.key()
    }

    /// Whether a key was given.
    pub fn has_key(&self) -> bool {
        self.key.key_file.is_some()
    }

    /// Whether only programs of this host reach an address, and memory that is given there.
    pub fn is_near(&self, address: &str) -> bool {
        is_of_this_host(address) && self.by.by(address) != By::Ibverbs
    }

    /// Whether they make sense for donors at these addresses, whatever the machine.
    pub fn check(&self, addresses: &[String]) -> anyhow::Result<()> {
        let first = addresses.first().context("name donors: where `sinew serve memory` gives memory")?;
        ensure!(addresses.len() <= DONORS_MAX, "{} donors: a volume has up to {DONORS_MAX}", addresses.len());
        let fabric = fabrics::check(first, Purpose::Call)?;
        for (index, address) in addresses.iter().enumerate() {
            ensure!(
                fabrics::check(address, Purpose::Call)? == fabric,
                "{first} and {address}: all donors of a volume are on one fabric"
            );
            ensure!(!addresses[..index].contains(address), "{address} is named twice");
        }
        self.by.check(first)
    }

    /// Does something with the donors at these addresses. Buffers come from an arena of `arena_len` bytes.
    pub fn run<J: WithDonors>(&self, addresses: &[String], arena_len: usize, job: J) -> anyhow::Result<J::Result> {
        self.check(addresses)?;
        let parsed = addresses.iter().map(|address| Ok(address.parse()?)).collect::<anyhow::Result<Vec<Address>>>()?;
        let fabric = Fabric::of(&parsed[0]).context("an address of another fabric")?;
        let options = match self.by.device() {
            Some(device) if fabric == Fabric::Ibverbs => format!("?device={device}"),
            _ => String::new(),
        };
        let nexus = Nexus::builder().build()?;
        let rpc = SharedEndpoint::new(Rpc::open_with(&nexus, &fabric.client_address(&options, Some(&addresses[0])))?);
        let config = PoolConfig { key: self.key.key()?, ..PoolConfig::default() };
        let names = Names::of(&parsed);
        let opening = Reaching { rpc, addresses: parsed, arena_len, config, names, job };
        match self.by.device_args(&addresses[0]) {
            Some(device) => device.run(opening),
            None => opening.by_calls(),
        }
    }
}

struct Reaching<J> {
    rpc: SharedEndpoint<Rpc>,
    addresses: Vec<Address>,
    arena_len: usize,
    config: PoolConfig,
    names: Names,
    job: J,
}

impl<J: WithDonors> Reaching<J> {
    fn by_calls(self) -> anyhow::Result<J::Result> {
        let Self { rpc, addresses, arena_len, config, names, job } = self;
        let donors = Pool::by_calls(&rpc, addresses, arena_len, RpcPathConfig::default(), &config)
            .context("reserving memory for buffers")?;
        job.run(donors, &names)
    }
}

impl<J: WithDonors> Job for Reaching<J> {
    type Result = J::Result;

    fn run<D: Device + 'static>(self, device: D, _: Carried) -> anyhow::Result<J::Result> {
        let Self { rpc, addresses, arena_len, config, names, job } = self;
        let donors = addresses.into_iter().map(|address| (address, rpc.share()));
        job.run(VerbsDonors::new(&device, donors, arena_len, config)?, &names)
    }
}

/// Turns something that has donors until it comes to something, and sleeps where there is nothing to do.
///
/// # Errors
///
/// What `turn` says; [`Interrupted`] after a signal.
pub fn drive<S: Readiness, T>(
    source: &mut S,
    interrupt: Interrupt,
    mut turn: impl FnMut(&mut S) -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    /// A signal is seen within this time.
    const LOOK_NS: u64 = 20_000_000;
    let clock = HostClock::new();
    loop {
        if let Some(done) = turn(source)? {
            return Ok(done);
        }
        ensure!(!interrupt.is_set(), Interrupted);
        let now_ns = clock.now_ns();
        wait_on(&mut [source as &mut dyn Readiness], now_ns, Some(now_ns + LOOK_NS)).context("waiting for donors")?;
    }
}
