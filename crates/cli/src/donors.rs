//! Donors as their users see them: options that name them, and ways to reach them.

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
use sinew::rpc::Endpoint;
use sinew_harness::run::Interrupted;

use crate::fabrics::{self, Fabric, Purpose};
use crate::paging;
use crate::reach::{AccessArgs, AccessMeans, KeyArgs, is_of_this_host};
use crate::verbs::{Job, VerbsFabric};

/// Options that say how to reach donors.
#[derive(clap::Args, Clone, Debug)]
pub struct DonorArgs {
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    key: KeyArgs,
}

/// Work to do with donors, whether their memory is accessed by verbs or by calls.
pub trait WithDonors {
    type Result;

    fn run<D: Donors + 'static>(self, donors: D, names: &DonorNames) -> anyhow::Result<Self::Result>;
}

/// Human-readable names of donors: their addresses.
#[derive(Clone, Debug)]
pub struct DonorNames(Vec<(DonorId, String)>);

impl DonorNames {
    fn of(addresses: &[Address]) -> Self {
        let named = |address: &Address| (DonorId::from_address(&address.to_string()), address.to_string());
        Self(addresses.iter().map(named).collect())
    }

    /// Replaces donors' numbers in a message by their addresses.
    pub fn with_addresses(&self, text: impl ToString) -> String {
        let put = |text: String, (id, name): &(DonorId, String)| text.replace(&format!("donor {:016x}", id.0), name);
        self.0.iter().fold(text.to_string(), put)
    }

    /// Addresses, in the order in which they were given.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(_, name)| name.as_str())
    }

    /// Number of donors.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl DonorArgs {
    /// How the donors' memory is accessed.
    pub fn access(&self) -> &AccessArgs {
        &self.access
    }

    /// The key, if one was given.
    pub fn key(&self) -> anyhow::Result<Option<Key>> {
        self.key.key()
    }

    /// Whether a key was given.
    pub fn has_key(&self) -> bool {
        self.key.key_file.is_some()
    }

    /// Whether only programs of this host can reach an address and the memory lent there.
    pub fn is_local_only(&self, address: &str) -> bool {
        is_of_this_host(address) && self.access.means_for(address) != AccessMeans::Ibverbs
    }

    /// Checks these options for donors at `addresses`, as far as that is possible without examining the machine.
    pub fn check(&self, addresses: &[String]) -> anyhow::Result<()> {
        let first = addresses.first().context("name donors: addresses where `sinew serve memory` runs")?;
        ensure!(addresses.len() <= DONORS_MAX, "{} donors: a volume has up to {DONORS_MAX}", addresses.len());
        let fabric = fabrics::check(first, Purpose::Call)?;
        for (index, address) in addresses.iter().enumerate() {
            ensure!(
                fabrics::check(address, Purpose::Call)? == fabric,
                "{first} and {address}: the donors of a volume must be on one fabric"
            );
            ensure!(!addresses[..index].contains(address), "{address} is named twice");
        }
        self.access.check(first)
    }

    /// Runs `job` with the donors at these addresses, whose data pass through these buffers.
    pub fn run<J: WithDonors>(&self, addresses: &[String], buffers: Buffers, job: J) -> anyhow::Result<J::Result> {
        self.check(addresses)?;
        let parsed = addresses.iter().map(|address| Ok(address.parse()?)).collect::<anyhow::Result<Vec<Address>>>()?;
        let fabric = Fabric::of(&parsed[0]).context("an address of an unknown fabric")?;
        let device = self.access.device().filter(|_| fabric == Fabric::Ibverbs).map(fabrics::device_option);
        let options = fabrics::options_of(device.as_deref());
        let nexus = Nexus::builder().build()?;
        let rpc = SharedEndpoint::new(Rpc::open_with(&nexus, &fabric.client_address(&options, Some(&addresses[0])))?);
        let config = PoolConfig { key: self.key.key()?, ..PoolConfig::default() };
        let names = DonorNames::of(&parsed);
        let opening = OpeningDonors { rpc, addresses: parsed, buffers, config, names, job };
        match self.access.device_args(&addresses[0]) {
            Some(device) => device.run(opening),
            None => opening.by_calls(),
        }
    }
}

/// Buffers for data on their way to donors and back.
#[derive(Clone, Copy)]
pub struct Buffers {
    /// Bytes that they can take.
    pub len: usize,
    /// Whether this host pages to what they carry, so that memory is taken for them at the start.
    pub are_for_paging: bool,
}

impl Buffers {
    /// Buffers that take memory as they are used.
    pub fn new(len: usize) -> Self {
        Self { len, are_for_paging: false }
    }
}

struct OpeningDonors<J> {
    rpc: SharedEndpoint<Rpc>,
    addresses: Vec<Address>,
    buffers: Buffers,
    config: PoolConfig,
    names: DonorNames,
    job: J,
}

impl<J: WithDonors> OpeningDonors<J> {
    fn by_calls(self) -> anyhow::Result<J::Result> {
        let Self { rpc, addresses, buffers, config, names, job } = self;
        let donors = Pool::by_calls(&rpc, addresses, buffers.len, RpcPathConfig::default(), &config)
            .context("reserving memory for buffers")?;
        if buffers.are_for_paging {
            rpc.back_buffers(paging::DATA);
            donors.arena().back(paging::DATA);
        }
        job.run(donors, &names)
    }
}

impl<J: WithDonors> Job for OpeningDonors<J> {
    type Result = J::Result;

    fn run<D: Device + 'static>(self, device: D, _: VerbsFabric) -> anyhow::Result<J::Result> {
        let Self { rpc, addresses, buffers, config, names, job } = self;
        let donors = addresses.into_iter().map(|address| (address, rpc.share()));
        let donors = VerbsDonors::new(&device, donors, buffers.len, config)?;
        if buffers.are_for_paging {
            rpc.back_buffers(paging::MESSAGES);
            donors.arena().back(paging::DATA);
        }
        job.run(donors, &names)
    }
}

/// Calls `turn` until it returns a result, and sleeps while there is nothing to do.
///
/// # Errors
///
/// Those of `turn`; [`Interrupted`] after a signal.
pub fn drive<S: Readiness, T>(
    source: &mut S,
    interrupt: Interrupt,
    mut turn: impl FnMut(&mut S) -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    /// Longest time until a signal is noticed.
    const CHECK_INTERVAL_NS: u64 = 20_000_000;
    let clock = HostClock::new();
    loop {
        if let Some(done) = turn(source)? {
            return Ok(done);
        }
        ensure!(!interrupt.is_set(), Interrupted);
        let now_ns = clock.now_ns();
        wait_on(&mut [source as &mut dyn Readiness], now_ns, Some(now_ns + CHECK_INTERVAL_NS))
            .context("waiting for donors")?;
    }
}
