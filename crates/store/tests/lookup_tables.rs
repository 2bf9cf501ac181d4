//! Each lookup table compared with a simple model, in all three forms.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use sinew_interleave::Batch;
use sinew_store::lookup::cuckoo::{Cuckoo, CuckooError, Packed, Packing, Wide};
use sinew_store::lookup::ipv4::Ipv4Table;
use sinew_store::lookup::ipv6::Ipv6Table;
use sinew_store::lookup::mac::{MacError, MacTable};
use sinew_store::lookup::names::{COMPONENTS_MAX, NAME_LEN_MAX, Name, NameError, NameTable};
use sinew_store::lookup::{HOP_MAX, RouteError};

/// Compares the three forms for these keys with the expected results.
macro_rules! check_forms {
    ($table:expr, $keys:expr, $expected:expr) => {{
        let keys: Vec<_> = $keys.into_iter().collect();
        let expected: Vec<_> = keys.iter().map(|key| $expected(*key)).collect();
        let plain: Vec<_> = keys.iter().map(|key| $table.get(*key)).collect();
        prop_assert_eq!(&plain, &expected, "plain");
        let mut found = vec![None; keys.len()];
        $table.get_all(Batch::<7>::new(), keys.iter().copied(), &mut found);
        prop_assert_eq!(&found, &expected, "interleaved");
        found.fill(None);
        $table.get_grouped(&keys, &mut found);
        prop_assert_eq!(&found, &expected, "grouped");
    }};
}

#[derive(Clone, Debug)]
enum Change<K> {
    Insert(K, u16),
    Remove(K),
}

fn changes<K: Clone + std::fmt::Debug>(key: impl Strategy<Value = K> + Clone) -> impl Strategy<Value = Vec<Change<K>>> {
    let insert = (key.clone(), any::<u16>()).prop_map(|(key, hop)| Change::Insert(key, hop));
    prop::collection::vec(prop_oneof![3 => insert, 1 => key.prop_map(Change::Remove)], 0..120)
}

fn check_cuckoo<P: Packing>(capacity: usize, seed: u64, changes: Vec<Change<u64>>) -> Result<(), TestCaseError> {
    let mut table: Cuckoo<P> = Cuckoo::new(capacity, seed).unwrap();
    let mut model = BTreeMap::new();
    for change in changes {
        match change {
            Change::Insert(key, value) => match table.insert(key, value.into()) {
                Ok(old) => prop_assert_eq!(old, model.insert(key, u64::from(value))),
                Err(CuckooError::Full { items, .. }) => {
                    prop_assert!(items == model.len() && items >= capacity, "{} of {}", items, capacity);
                }
                Err(error) => prop_assert!(false, "{}", error),
            },
            Change::Remove(key) => prop_assert_eq!(table.remove(key), model.remove(&key)),
        }
        prop_assert_eq!(table.len(), model.len());
    }
    check_forms!(table, 0..130u64, |key| model.get(&key).copied());
    let reader = table.reader();
    for key in 0..130 {
        prop_assert_eq!(reader.get(key), model.get(&key).copied());
    }
    Ok(())
}

fn v4(bits: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(bits)
}

/// Looks up an address in a list of routes, by examining all of them.
fn longest<A: Copy>(routes: &BTreeMap<(u8, u128), u32>, bits: impl Fn(A) -> u128) -> impl Fn(A) -> Option<u32> {
    move |address| {
        let covers = |len: u8, prefix: u128| len == 0 || (bits(address) ^ prefix) >> (128 - u32::from(len)) == 0;
        routes.iter().rev().find(|((len, prefix), _)| covers(*len, *prefix)).map(|(_, hop)| *hop)
    }
}

fn cut(bits: u128, len: u8) -> u128 {
    if len == 0 { 0 } else { bits >> (128 - u32::from(len)) << (128 - u32::from(len)) }
}

/// Few values for each byte, so that prefixes cover each other.
fn clustered<const N: usize>() -> impl Strategy<Value = [u8; N]> + Clone {
    prop::array::uniform(prop_oneof![Just(0u8), Just(1), Just(255)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_cuckoo_table_is_a_map(capacity in 1usize..90, seed in any::<u64>(), changes in changes(1u64..120)) {
        check_cuckoo::<Wide>(capacity, seed, changes.clone())?;
        check_cuckoo::<Packed>(capacity, seed, changes)?;
    }

    #[test]
    fn a_mac_table_is_a_map(changes in changes(clustered::<6>())) {
        let mut table = MacTable::new(200, 1).unwrap();
        let mut model = BTreeMap::new();
        let mut addresses = Vec::new();
        for change in changes {
            match change {
                Change::Insert(address, port) => {
                    addresses.push(address);
                    if address[0] & 1 == 1 || address == [0; 6] {
                        prop_assert!(matches!(table.insert(address, port), Err(MacError::NoStation(_))));
                    } else {
                        prop_assert_eq!(table.insert(address, port).unwrap(), model.insert(address, port));
                    }
                }
                Change::Remove(address) => prop_assert_eq!(table.remove(address), model.remove(&address)),
            }
        }
        prop_assert_eq!(table.len(), model.len());
        addresses.push([2, 2, 2, 2, 2, 2]);
        check_forms!(table, addresses.clone(), |address| model.get(&address).copied());
        let reader = table.reader();
        prop_assert!(addresses.iter().all(|address| reader.get(*address) == model.get(address).copied()));
    }
}

proptest! {
    // Few cases, since each table has 64 MB for the first 24 bits.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn ipv4_routes_are_the_longest_prefixes(changes in changes((clustered::<4>(), 0u8..=33))) {
        let mut table = Ipv4Table::new(1000).unwrap();
        let (mut routes, mut addresses) = (BTreeMap::new(), vec![v4(0), v4(u32::MAX)]);
        for change in changes {
            let (Change::Insert((bytes, len), _) | Change::Remove((bytes, len))) = change;
            let (address, key) = (Ipv4Addr::from(bytes), (len, cut(u128::from(u32::from_be_bytes(bytes)) << 96, len)));
            addresses.extend([address, v4(address.to_bits() ^ 1), v4(address.to_bits() ^ 1 << 9)]);
            match change {
                _ if len > 32 => {
                    let refused = RouteError::TooLong { len, max: 32 };
                    prop_assert_eq!(table.insert(address, len, 1), Err(refused));
                    prop_assert_eq!(table.remove(address, len), Err(refused));
                }
                Change::Insert(_, hop) => {
                    prop_assert_eq!(table.insert(address, len, hop.into()), Ok(routes.insert(key, hop.into())));
                }
                Change::Remove(_) => {
                    prop_assert_eq!(table.remove(address, len), routes.remove(&key).ok_or(RouteError::Absent { len }));
                }
            }
        }
        prop_assert_eq!(table.routes(), routes.len());
        check_forms!(table, addresses, longest(&routes, |address: Ipv4Addr| u128::from(address.to_bits()) << 96));
        for (len, prefix) in routes.keys() {
            table.remove(v4((*prefix >> 96) as u32), *len).unwrap();
        }
        prop_assert_eq!((table.routes(), table.groups()), (0, 0), "what is empty has no groups");
    }

    #[test]
    fn ipv6_routes_are_the_longest_prefixes(changes in changes((clustered::<16>(), 0u8..=129))) {
        let mut table = Ipv6Table::new(2000).unwrap();
        let (mut routes, mut addresses) = (BTreeMap::new(), vec![Ipv6Addr::UNSPECIFIED]);
        for change in changes {
            let (Change::Insert((bytes, len), _) | Change::Remove((bytes, len))) = change;
            let address = Ipv6Addr::from(bytes);
            let key = (len, cut(address.to_bits(), len.min(128)));
            addresses.extend([0, 1, 64, 100].map(|bit| Ipv6Addr::from_bits(address.to_bits() ^ 1 << bit)));
            match change {
                _ if len > 128 => {
                    let refused = RouteError::TooLong { len, max: 128 };
                    prop_assert_eq!(table.insert(address, len, 1), Err(refused));
                    prop_assert_eq!(table.remove(address, len), Err(refused));
                }
                Change::Insert(_, hop) => {
                    prop_assert_eq!(table.insert(address, len, hop.into()), Ok(routes.insert(key, hop.into())));
                }
                Change::Remove(_) => {
                    prop_assert_eq!(table.remove(address, len), routes.remove(&key).ok_or(RouteError::Absent { len }));
                }
            }
        }
        prop_assert_eq!(table.routes(), routes.len());
        check_forms!(table, addresses, longest(&routes, |address: Ipv6Addr| address.to_bits()));
        for (len, prefix) in routes.keys() {
            table.remove(Ipv6Addr::from_bits(*prefix), *len).unwrap();
        }
        prop_assert_eq!((table.routes(), table.groups()), (0, 0), "what is empty has no groups");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn names_lead_where_their_longest_prefix_does(
        changes in changes("(/[ab]{1,2}){1,4}|/"),
        names in prop::collection::vec("(/[ab]{1,2}){1,6}|/", 0..60),
    ) {
        let mut table = NameTable::new(200, 1 << 16, 3).unwrap();
        let mut model = BTreeMap::new();
        for change in &changes {
            match change {
                Change::Insert(text, hop) => {
                    let old = table.insert(Name::new(text.as_bytes()).unwrap(), *hop).unwrap();
                    prop_assert_eq!(old, model.insert(text.as_str(), *hop));
                }
                Change::Remove(text) => {
                    let old = table.remove(Name::new(text.as_bytes()).unwrap());
                    prop_assert_eq!(old, model.remove(text.as_str()));
                }
            }
        }
        prop_assert_eq!(table.len(), model.len());
        let expected = |name: Name<'_>| {
            let mut text = std::str::from_utf8(name.bytes()).unwrap();
            loop {
                if let Some(hop) = model.get(if text.is_empty() { "/" } else { text }) {
                    return Some(*hop);
                }
                text = &text[..text.rfind('/')?];
            }
        };
        check_forms!(table, names.iter().map(|text| Name::new(text.as_bytes()).unwrap()), expected);
    }

    #[test]
    fn names_are_slashes_with_something_between(text in "[/a]{0,8}") {
        let is_name = text == "/" || text.starts_with('/') && !text.contains("//") && !text.ends_with('/');
        match Name::new(text.as_bytes()) {
            Ok(name) => prop_assert!(is_name && name.components() == text.matches('/').count() - usize::from(text == "/")),
            Err(NameError::EmptyComponent { at }) => {
                prop_assert!(text[..at].ends_with('/') && text[at..].chars().next().is_none_or(|next| next == '/'));
            }
            Err(error) => prop_assert!(!text.starts_with('/'), "{}", error),
        }
    }
}

#[test]
fn a_cuckoo_table_takes_what_it_was_made_for() {
    for capacity in [1, 7, 8, 100, 5000] {
        let mut table: Cuckoo = Cuckoo::new(capacity, 1).unwrap();
        for key in 1..=capacity as u64 {
            table.insert(key.wrapping_mul(0x1_0000_0001), key).unwrap_or_else(|error| panic!("{error} at {key}"));
        }
    }
}

#[test]
fn what_a_packed_table_cannot_hold_is_refused() {
    let mut table: Cuckoo<Packed> = Cuckoo::new(10, 1).unwrap();
    assert!(table.insert((1 << 48) - 1, 0xFFFF).is_ok());
    assert!(matches!(table.insert(1 << 48, 0), Err(CuckooError::TooLarge { .. })));
    assert!(matches!(table.insert(1, 0x1_0000), Err(CuckooError::TooLarge { .. })));
    assert!(matches!(table.insert(0, 1), Err(CuckooError::ZeroKey)));
    assert_eq!((table.get(0), table.get(1 << 48), table.remove(0)), (None, None, None));
    assert!(matches!(Cuckoo::<Wide>::new(usize::MAX, 1), Err(CuckooError::Capacity { .. })));
}

#[test]
fn next_hops_and_groups_have_limits() {
    let mut table = Ipv4Table::new(1).unwrap();
    assert_eq!(table.insert(v4(0), 24, HOP_MAX), Ok(None));
    assert_eq!(table.insert(v4(0), 24, HOP_MAX + 1), Err(RouteError::Hop { hop: HOP_MAX + 1 }));
    assert_eq!(table.insert(v4(0), 25, 1), Ok(None));
    assert_eq!(table.insert(v4(1 << 8), 25, 1), Err(RouteError::Full { groups: 1 }));
    assert_eq!((table.get(v4(1 << 8)), table.routes()), (None, 2));
    // A group that was freed is used again.
    assert_eq!(table.remove(v4(0), 25), Ok(1));
    assert_eq!(table.insert(v4(1 << 8), 32, 3), Ok(None));
    assert_eq!([v4(0), v4(1 << 8), v4(257)].map(|address| table.get(address)), [Some(HOP_MAX), Some(3), None]);
    assert!(matches!(Ipv6Table::new(usize::MAX), Err(RouteError::Groups { .. })));
    let mut table = Ipv6Table::new(13).unwrap();
    assert_eq!(table.insert(Ipv6Addr::LOCALHOST, 128, 7), Ok(None));
    assert_eq!((table.groups(), table.get(Ipv6Addr::LOCALHOST), table.get(Ipv6Addr::UNSPECIFIED)), (13, Some(7), None));
    assert_eq!(table.insert("::1:0".parse().unwrap(), 112, 7), Ok(None), "its groups are there");
    assert_eq!(table.insert("1::".parse().unwrap(), 25, 7), Err(RouteError::Full { groups: 13 }));
}

#[test]
fn many_routes_are_loaded_at_once_and_a_bad_one_is_named() {
    let mut routes: Vec<_> = (0..1000).map(|at: u32| (v4(at << 8 | 7), 16 + (at % 17) as u8, at)).collect();
    let loaded = Ipv4Table::load(2000, &routes).unwrap();
    let mut one_by_one = Ipv4Table::new(2000).unwrap();
    for (prefix, len, hop) in &routes {
        one_by_one.insert(*prefix, *len, *hop).unwrap();
    }
    for bits in (0..1 << 18).step_by(3) {
        assert_eq!(loaded.get(v4(bits)), one_by_one.get(v4(bits)), "{}", v4(bits));
    }
    routes[500].1 = 33;
    assert_eq!(Ipv4Table::load(2000, &routes).err(), Some((500, RouteError::TooLong { len: 33, max: 32 })));
}

#[test]
fn prefixes_of_names_have_limits() {
    let mut table = NameTable::new(10, 128 << 10, 1).unwrap();
    let of = |components: usize| "/c".repeat(components);
    let (longest, longer) = (of(COMPONENTS_MAX), of(COMPONENTS_MAX + 1));
    table.insert(Name::new(longest.as_bytes()).unwrap(), 5).unwrap();
    assert!(matches!(table.insert(Name::new(longer.as_bytes()).unwrap(), 5), Err(NameError::Components { .. })));
    assert_eq!(table.get(Name::new(longer.as_bytes()).unwrap()), Some(5), "longer names are found by their prefixes");
    let text = format!("/{}", "x".repeat(NAME_LEN_MAX));
    let (fits, long) = (Name::new(&text.as_bytes()[..NAME_LEN_MAX]).unwrap(), Name::new(text.as_bytes()).unwrap());
    table.insert(fits, 6).unwrap();
    assert!(matches!(table.insert(long, 6), Err(NameError::TooLong { .. })));
    assert_eq!((table.get(fits), table.get(long), table.remove(long)), (Some(6), None, None));
    let further = format!("/y{}", &text[2..NAME_LEN_MAX]);
    let further = Name::new(further.as_bytes()).unwrap();
    assert!(matches!(table.insert(further, 6), Err(NameError::TextFull { .. })));
    assert_eq!(table.remove(fits), Some(6));
    assert_eq!(table.get(further), None);
}

#[test]
fn readers_find_what_is_there_while_items_are_moved() {
    const KEPT: u64 = 400;
    let mut table: Cuckoo = Cuckoo::new(1000, 1).unwrap();
    for key in 1..=KEPT {
        table.insert(key, !key).unwrap();
    }
    let reader = table.reader();
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let reading = std::thread::spawn(move || {
        let mut rounds = 0;
        let mut values = vec![None; KEPT as usize];
        while is_done.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) || rounds == 0 {
            reader.get_all(Batch::<8>::new(), 1..=KEPT, &mut values);
            for (key, value) in (1..).zip(&values) {
                assert_eq!(*value, Some(!key), "{key}");
                assert_eq!(reader.get(key), Some(!key));
            }
            rounds += 1;
        }
    });
    // The table is filled completely and emptied again, so that the kept items are moved.
    for round in 0..100 {
        let mut key = KEPT + 1 + round * 10_000;
        let first = key;
        while table.insert(key, 1).is_ok() {
            key += 1;
        }
        (first..key).for_each(|key| assert_eq!(table.remove(key), Some(1)));
    }
    drop(done);
    reading.join().unwrap();
}
