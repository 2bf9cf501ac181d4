//! An Ethernet switch's table (CuckooSwitch's, as in nsdi15 4): from the address of a station to the port that it is behind.

use sinew_interleave::Batch;

use super::cuckoo::{Cuckoo, CuckooError, CuckooReader, Packed};

/// An Ethernet address.
pub type MacAddress = [u8; 6];

/// Bit of the first byte: the address is a group's.
const GROUP: u8 = 1;

/// Why an address cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum MacError {
    /// It is no station's: a group's, or all zero.
    #[error("{} is no station's address, so no port has it", text(.0))]
    NoStation(MacAddress),
    /// As the table that it stands in says.
    #[error(transparent)]
    Table(#[from] CuckooError),
}

/// As it is written down.
fn text(address: &MacAddress) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

#[inline(always)]
fn key_of(address: MacAddress) -> u64 {
    let [a, b, c, d, e, f] = address;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// A table of addresses, as its writer has it: 2-8 cuckoo hashing with buckets of one cache line.
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
    /// An empty table for so many stations; see [`Cuckoo::new`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn new(stations: usize, seed: u64) -> Result<Self, MacError> {
        Ok(Self(Cuckoo::new(stations, seed)?))
    }

    /// Stations there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts a station behind a port; returns the one that it was behind.
    ///
    /// # Errors
    ///
    /// [`MacError`]: the address is no station's, or the table is full.
    pub fn insert(&mut self, address: MacAddress, port: u16) -> Result<Option<u16>, MacError> {
        if address[0] & GROUP != 0 || address == [0; 6] {
            return Err(MacError::NoStation(address));
        }
        let old = self.0.insert(key_of(address), port.into())?;
        Ok(old.map(|port| port as u16))
    }

    /// Forgets a station; returns the port that it was behind.
    pub fn remove(&mut self, address: MacAddress) -> Option<u16> {
        self.0.remove(key_of(address)).map(|port| port as u16)
    }

    /// The port of a station.
    #[inline(always)]
    pub fn get(&self, address: MacAddress) -> Option<u16> {
        self.0.get(key_of(address)).map(|port| port as u16)
    }

    /// [`Self::get`] as a lookup that lets others run.
    #[inline(always)]
    pub async fn look_up(&self, address: MacAddress) -> Option<u16> {
        self.0.look_up(key_of(address)).await.map(|port| port as u16)
    }

    /// [`Self::get`] of each address, interleaved; results come in the order of the addresses. Returns how many there were.
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

    /// Somebody who reads while the table is written, from another thread.
    pub fn reader(&self) -> MacReader {
        MacReader(self.0.reader())
    }
}

/// Reads a table that another thread writes.
#[derive(Clone, Debug)]
pub struct MacReader(CuckooReader<Packed>);

impl MacReader {
    /// The port of a station.
    #[inline(always)]
    pub fn get(&self, address: MacAddress) -> Option<u16> {
        self.0.get(key_of(address)).map(|port| port as u16)
    }

    /// [`Self::get`] as a lookup that lets others run.
    #[inline(always)]
    pub async fn look_up(&self, address: MacAddress) -> Option<u16> {
        self.0.look_up(key_of(address)).await.map(|port| port as u16)
    }
}
