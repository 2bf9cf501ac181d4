//! The tables of `store::lookup`, filled.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::Context;
use sinew::store::lookup::cuckoo::Cuckoo;
use sinew::store::lookup::ipv4::Ipv4Table;
use sinew::store::lookup::ipv6::Ipv6Table;
use sinew::store::lookup::mac::{MacAddress, MacTable};
use sinew::store::lookup::names::{Name, NameTable};
use sinew_interleave::Batch;

use super::{Form, Lookups, WIDTH_MAX, mixed};

/// Looks keys up in a table that has the three forms.
macro_rules! look_up {
    ($table:expr, $form:expr, $width:expr, $keys:expr, $found:expr) => {
        match $form {
            Form::Plain => $keys.iter().zip($found).for_each(|(key, found)| *found = $table.get(*key)),
            Form::Interleaved => {
                let batch = Batch::<WIDTH_MAX>::of_width($width).unwrap_or_default();
                $table.get_all(batch, $keys.iter().copied(), $found);
            }
            Form::Grouped => {
                for (keys, found) in $keys.chunks($width).zip($found.chunks_mut($width)) {
                    $table.get_grouped(keys, found);
                }
            }
        }
    };
}

/// The cuckoo table of numbers: keys are consecutive numbers, mixed, and all that are looked up are there (nsdi15 3.3).
#[derive(Debug)]
pub struct Numbers {
    table: Cuckoo,
    count: u64,
}

impl Numbers {
    /// A table of `count` numbers.
    ///
    /// # Errors
    ///
    /// There is no memory for it.
    pub fn new(count: usize) -> anyhow::Result<Self> {
        let mut table = Cuckoo::new(count, 1)?;
        for number in 1..=count as u64 {
            table.insert(mixed(number), number)?;
        }
        Ok(Self { table, count: count as u64 })
    }
}

impl Lookups for Numbers {
    type Key = u64;
    type Found = Option<u64>;

    fn draw(&self, random: u64) -> (u64, Option<u64>) {
        let number = 1 + random % self.count;
        (mixed(number), Some(number))
    }

    fn bytes(&self) -> usize {
        self.table.bytes()
    }

    fn look_up(&self, form: Form, width: usize, keys: &[u64], found: &mut [Option<u64>]) {
        look_up!(self.table, form, width, keys, found);
    }
}

/// A switch's table: the stations' addresses are consecutive numbers, mixed, and all that are looked up are there
/// (nsdi15 4).
#[derive(Debug)]
pub struct Stations {
    table: MacTable,
    count: u64,
}

impl Stations {
    /// A table of `count` stations.
    ///
    /// # Errors
    ///
    /// There is no memory for it.
    pub fn new(count: usize) -> anyhow::Result<Self> {
        let mut table = MacTable::new(count, 1)?;
        for number in 0..count as u64 {
            table.insert(station(number), number as u16)?;
        }
        Ok(Self { table, count: count as u64 })
    }
}

/// The address of a station: locally administered, and unicast. The multiplier is odd, so fewer than 2^40 stations all
/// have different addresses.
pub(crate) fn station(number: u64) -> MacAddress {
    let [.., a, b, c, d, e] = number.wrapping_mul(0xB5_9F4A_7C15).to_be_bytes();
    [2, a, b, c, d, e]
}

impl Lookups for Stations {
    type Key = MacAddress;
    type Found = Option<u16>;

    fn draw(&self, random: u64) -> (MacAddress, Option<u16>) {
        let number = random % self.count;
        (station(number), Some(number as u16))
    }

    fn bytes(&self) -> usize {
        self.count as usize * 64 / 7
    }

    fn look_up(&self, form: Form, width: usize, keys: &[MacAddress], found: &mut [Option<u16>]) {
        look_up!(self.table, form, width, keys, found);
    }
}

/// A prefix of [`Ipv4`]'s, by its number.
pub(crate) fn ipv4_prefix(at: u64) -> (Ipv4Addr, u8) {
    let (bits, draw) = (mixed(2 * at), mixed(2 * at + 1));
    let len = match draw % 1000 {
        0..2 => 8,
        2..132 => 9 + (draw >> 32) % 11,
        132..252 => 20 + (draw >> 32) % 2,
        252..372 => 22,
        372..462 => 23,
        462..990 => 24,
        _ => 25 + (draw >> 32) % 8,
    };
    (Ipv4Addr::from_bits(bits as u32), len as u8)
}

/// Routes of IPv4: random prefixes whose lengths are distributed about as in BGP tables. Of 1,000, two have 8 bits, 130
/// have 9 to 19, 120 have 20 or 21, 120 have 22, 90 have 23, 528 have 24 and ten have more (nsdi15 4: 1 % are longer
/// than 24). The addresses looked up are random.
#[derive(Debug)]
pub struct Ipv4 {
    table: Ipv4Table,
}

impl Ipv4 {
    /// A table of `routes` routes.
    ///
    /// # Errors
    ///
    /// The table is too small for them.
    pub fn new(routes: usize) -> anyhow::Result<Self> {
        let route = |at: u64| {
            let (prefix, len) = ipv4_prefix(at);
            (prefix, len, (mixed(2 * at + 1) >> 48) as u32)
        };
        let list: Vec<_> = (1..=routes as u64).map(route).collect();
        let table = Ipv4Table::load(1 << 16, &list).map_err(|(at, error)| anyhow::anyhow!("route {at}: {error}"))?;
        Ok(Self { table })
    }
}

impl Lookups for Ipv4 {
    type Key = Ipv4Addr;
    type Found = Option<u32>;

    fn draw(&self, random: u64) -> (Ipv4Addr, Option<u32>) {
        let address = Ipv4Addr::from_bits(random as u32);
        (address, self.table.get(address))
    }

    fn bytes(&self) -> usize {
        (64 << 20) + self.table.groups() * 1024
    }

    fn look_up(&self, form: Form, width: usize, keys: &[Ipv4Addr], found: &mut [Option<u32>]) {
        look_up!(self.table, form, width, keys, found);
    }
}

/// Routes of IPv6: random prefixes of 48 to 64 bits; each address that is looked up has one of them (nsdi15 3.3).
#[derive(Debug)]
pub struct Ipv6 {
    table: Ipv6Table,
    routes: u64,
}

impl Ipv6 {
    /// A table of `routes` routes.
    ///
    /// # Errors
    ///
    /// The table is too small for them.
    pub fn new(routes: usize) -> anyhow::Result<Self> {
        let mut table = Ipv6Table::new(routes.saturating_mul(5))?;
        for at in 1..=routes as u64 {
            let (prefix, len) = ipv6_prefix(at);
            table.insert(prefix, len, at as u32 & 0xFFFF).with_context(|| format!("route {at}"))?;
        }
        Ok(Self { table, routes: routes as u64 })
    }
}

/// A prefix of [`Ipv6`]'s, by its number; bits beyond its length are not zero.
pub(crate) fn ipv6_prefix(at: u64) -> (Ipv6Addr, u8) {
    (Ipv6Addr::from_bits(u128::from(mixed(at)) << 64), 48 + (mixed(!at) % 17) as u8)
}

impl Lookups for Ipv6 {
    type Key = Ipv6Addr;
    type Found = Option<u32>;

    fn draw(&self, random: u64) -> (Ipv6Addr, Option<u32>) {
        let (prefix, _) = ipv6_prefix(1 + random % self.routes);
        let address = Ipv6Addr::from_bits(prefix.to_bits() | u128::from(mixed(random)));
        (address, self.table.get(address))
    }

    fn bytes(&self) -> usize {
        (64 << 20) + self.table.groups() * 1024
    }

    fn look_up(&self, form: Form, width: usize, keys: &[Ipv6Addr], found: &mut [Option<u32>]) {
        look_up!(self.table, form, width, keys, found);
    }
}

/// Routes of names: prefixes of two or three components of eight letters, and names of 36 bytes, each with a prefix in
/// the table (nsdi15 4: names of 32 bytes).
#[derive(Debug)]
pub struct Names {
    table: NameTable,
    prefixes: u64,
    /// The names to look up.
    texts: Vec<[u8; NAME_LEN]>,
}

/// Length of a name, in bytes.
pub(crate) const NAME_LEN: usize = 36;
/// Number of different names that are looked up.
const NAMES: usize = 1 << 18;

impl Names {
    /// A table of `prefixes` prefixes.
    ///
    /// # Errors
    ///
    /// There is no memory for it.
    pub fn new(prefixes: usize) -> anyhow::Result<Self> {
        let mut table = NameTable::new(prefixes, prefixes.saturating_mul(40), 1)?;
        for at in 1..=prefixes as u64 {
            let text = name_text(at);
            let len = if at % 2 == 0 { 18 } else { 27 };
            table.insert(Name::new(&text[..len])?, at as u16).with_context(|| format!("prefix {at}"))?;
        }
        let mut names = Self { table, prefixes: prefixes as u64, texts: Vec::new() };
        names.texts = (0..NAMES as u64).map(|at| name_text(1 + mixed(at) % names.prefixes)).collect();
        Ok(names)
    }
}

/// A name of [`Names`]', by its number: `/` and eight letters, four times.
pub(crate) fn name_text(at: u64) -> [u8; NAME_LEN] {
    let mut text = [b'/'; NAME_LEN];
    for (component, letters) in text.chunks_exact_mut(9).enumerate() {
        let bits = mixed(at.wrapping_mul(8) + component as u64);
        for (nth, letter) in letters[1..].iter_mut().enumerate() {
            *letter = b'a' + (bits >> (nth * 8)) as u8 % 26;
        }
    }
    text
}

impl Lookups for Names {
    /// Index of a name.
    type Key = u32;
    type Found = Option<u16>;

    fn draw(&self, random: u64) -> (u32, Option<u16>) {
        let at = random as u32 % NAMES as u32;
        (at, Name::new(&self.texts[at as usize]).ok().and_then(|name| self.table.get(name)))
    }

    fn bytes(&self) -> usize {
        self.prefixes as usize * (16 * 8 / 7 + 40)
    }

    fn look_up(&self, form: Form, width: usize, keys: &[u32], found: &mut [Option<u16>]) {
        // Each name is checked, as if it came from a packet.
        let name = |at: &u32| Name::new(&self.texts[*at as usize]).ok();
        match form {
            Form::Plain => {
                keys.iter()
                    .zip(found)
                    .for_each(|(key, found)| *found = name(key).and_then(|name| self.table.get(name)));
            }
            Form::Interleaved => {
                let batch = Batch::<WIDTH_MAX>::of_width(width).unwrap_or_default();
                self.table.get_all(batch, keys.iter().filter_map(name), found);
            }
            Form::Grouped => {
                for (keys, found) in keys.chunks(width).zip(found.chunks_mut(width)) {
                    let names: Vec<Name<'_>> = keys.iter().filter_map(name).collect();
                    self.table.get_grouped(&names, found);
                }
            }
        }
    }
}
