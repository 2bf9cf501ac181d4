//! The table of an Ethernet switch (CuckooSwitch's, as in nsdi15 4): from a station's address to the port that it is
//! behind.

use sinew_interleave::Batch;

use super::cuckoo::{Cuckoo, CuckooError, CuckooReader, Packed};

/// An Ethernet address.
pub type MacAddress = [u8; 6];

/// Bit of the first byte that marks a group address.
const GROUP: u8 = 1;

/// Reason why an address cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum MacError {
    /// The address is not a station's: it is a group's, or all zero.
    #[error("{} is not a station's address, so it cannot be behind a port", text(.0))]
    NoStation(MacAddress),
    /// An error of the underlying table.
    #[error(transparent)]
    Table(#[from] CuckooError),
}

/// Formats an address.
fn text(address: &MacAddress) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

#[inline(always)]
fn key_of(address: MacAddress) -> u64 {
    let [a, b, c, d, e, f] = address;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// A table of addresses, as seen by its writer: 2-8 cuckoo hashing with buckets of one cache line.
///
/// ```
/// use sinew_store::lookup::mac::MacTable;
///
/// let mut table = MacTable::new(1000, 7)?;
/// table.insert([2, 0, 0, 0, 0, 1], 4)?;
/// assert_eq!(table.get([2, 0, 0, 0, 0, 1]), Some(4));
/// assert_eq!(table.get([2, 0, 0, 0, 0, 2]), None);
/// # Ok::<(), sinew_store::lookup::mac::MacError>(())
/// ```
#[derive(Debug)]
pub struct MacTable(Cuckoo<Packed>);

impl MacTable {
    /// Makes an empty table for this many stations; see [`Cuckoo::new`].
    ///
    /// # Errors
    ///
    /// As [`Cuckoo::new`].
    pub fn new(stations: usize, seed: u64) -> Result<Self, MacError> {
        Ok(Self(Cuckoo::new(stations, seed)?))
    }

    /// Number of stations.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no stations.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records the port of a station; returns its earlier port.
    ///
    /// # Errors
    ///
    /// [`MacError`]: the address is not a station's, or the table is full.
    pub fn insert(&mut self, address: MacAddress, port: u16) -> Result<Option<u16>, MacError> {
        if address[0] & GROUP != 0 || address == [0; 6] {
            return Err(MacError::NoStation(address));
        }
        let old = self.0.insert(key_of(address), port.into())?;
        Ok(old.map(|port| port as u16))
    }

    /// Removes a station; returns its port.
    pub fn remove(&mut self, address: MacAddress) -> Option<u16> {
        self.0.remove(key_of(address)).map(|port| port as u16)
    }

    /// Returns the port of a station.
    #[inline(always)]
    pub fn get(&self, address: MacAddress) -> Option<u16> {
        self.0.get(key_of(address)).map(|port| port as u16)
    }

    /// [`Self::get`] as a lookup that lets others run while it waits.
    #[inline(always)]
    pub async fn look_up(&self, address: MacAddress) -> Option<u16> {
        self.0.look_up(key_of(address)).await.map(|port| port as u16)
    }

    /// [`Self::get`] of each address, interleaved; results are in the order of the addresses. Returns the number of
    /// addresses.
    #[inline(always)]
    pub fn get_all<const MAX: usize>(
        &self,
        batch: Batch<MAX>,
        addresses: impl IntoIterator<Item = MacAddress>,
        ports: &mut [Option<u16>],
    ) -> usize {
        batch.run(addresses, ports, |address| self.look_up(address))
    }

    /// [`Self::get`] of each address, with group prefetching by hand.
    #[inline]
    pub fn get_grouped(&self, addresses: &[MacAddress], ports: &mut [Option<u16>]) {
        const GROUP_LEN: usize = super::GROUP_MAX;
        for (addresses, ports) in addresses.chunks(GROUP_LEN).zip(ports.chunks_mut(GROUP_LEN)) {
            let (mut keys, mut values) = ([0; GROUP_LEN], [None; GROUP_LEN]);
            for (key, address) in keys.iter_mut().zip(addresses) {
                *key = key_of(*address);
            }
            self.0.get_grouped(&keys[..addresses.len()], &mut values[..addresses.len()]);
            for (port, value) in ports.iter_mut().zip(values) {
                *port = value.map(|port: u64| port as u16);
            }
        }
    }

    /// Makes a reader for use by another thread while this one writes the table.
    pub fn reader(&self) -> MacReader {
        MacReader(self.0.reader())
    }
}

/// Reads a table that another thread writes.
#[derive(Clone, Debug)]
pub struct MacReader(CuckooReader<Packed>);

impl MacReader {
    /// Returns the port of a station.
    #[inline(always)]
    pub fn get(&self, address: MacAddress) -> Option<u16> {
        self.0.get(key_of(address)).map(|port| port as u16)
    }

    /// [`Self::get`] as a lookup that lets others run while it waits.
    #[inline(always)]
    pub async fn look_up(&self, address: MacAddress) -> Option<u16> {
        self.0.look_up(key_of(address)).await.map(|port| port as u16)
    }
}
