//! Pairs of virtual interfaces of this program's own, for benchmarks over AF_XDP that are given no address: each server is at one end of a pair, and its
//! clients are at the other. They are gone with the processes that use them.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use sinew::xdp::testbed::{Pair, PairOptions, Side};

static PAIRS: Mutex<Vec<Arc<Pair>>> = Mutex::new(Vec::new());

fn pairs() -> MutexGuard<'static, Vec<Arc<Pair>>> {
    PAIRS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pair, with its interfaces' addresses in a network of its own.
pub fn pair() -> anyhow::Result<Arc<Pair>> {
    let mut pairs = pairs();
    let network = u8::try_from(pairs.len()).context("there are no more networks for pairs")?;
    let made = Pair::new(PairOptions { network, ..PairOptions::default() }).context(
        "making a pair of virtual interfaces (run it as root, or give the address of a server at an interface that there is)",
    )?;
    let made = Arc::new(made);
    pairs.push(Arc::clone(&made));
    Ok(made)
}

/// Where a server at the end of a new pair listens.
pub fn server_address() -> anyhow::Result<String> {
    let pair = pair()?;
    Ok(format!("xdp://{}/{}:0", Side::B.interface(), pair.options().v4(Side::B)))
}

/// The pair that an address is at the server's end of.
fn pair_of(address: &str) -> Option<Arc<Pair>> {
    let place = match address.strip_prefix("udp://") {
        Some(place) => place,
        None => address.strip_prefix("xdp://")?.strip_prefix(Side::B.interface())?.strip_prefix('/')?,
    };
    let ip: Ipv4Addr = place.split(':').next()?.parse().ok()?;
    pairs().iter().find(|pair| pair.options().v4(Side::B) == ip).cloned()
}

/// The interface that a client reaches a server from: that in the server's address, which the client's user writes for the client's own host.
pub fn client_interface(server: Option<&str>) -> &str {
    match server {
        Some(address) if pair_of(address).is_none() => {
            let place = address.strip_prefix("xdp://").unwrap_or(address);
            place.split(['/', '?']).next().unwrap_or(place)
        }
        _ => Side::A.interface(),
    }
}

/// Does something where the clients of a server are: at the other end of its pair, if it is at one.
pub fn at_client<T>(server: &str, act: impl FnOnce() -> T) -> anyhow::Result<T> {
    at(Side::A, pair_of(server), act)
}

/// Does something where a server with these arguments is to be.
pub fn at_server<T>(args: &[String], act: impl FnOnce() -> T) -> anyhow::Result<T> {
    at(Side::B, args.iter().find_map(|arg| pair_of(arg)), act)
}

fn at<T>(side: Side, pair: Option<Arc<Pair>>, act: impl FnOnce() -> T) -> anyhow::Result<T> {
    match pair {
        Some(pair) => pair.at(side).within(act).context("going to a network namespace"),
        None => Ok(act()),
    }
}
