//! Pairs of virtual interfaces that the program makes for benchmarks over AF_XDP when no address is given. Each server
//! is at one end of a pair, and its clients are at the other. Pairs disappear with the processes that use them.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use sinew::xdp::testbed::{Pair, PairOptions, Side};

static PAIRS: Mutex<Vec<Arc<Pair>>> = Mutex::new(Vec::new());

fn pairs() -> MutexGuard<'static, Vec<Arc<Pair>>> {
    PAIRS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a pair, with addresses in a network of its own.
pub fn pair() -> anyhow::Result<Arc<Pair>> {
    let mut pairs = pairs();
    let network = u8::try_from(pairs.len()).context("no more networks for pairs are left")?;
    let made = Pair::new(PairOptions { network, ..PairOptions::default() }).context(
        "making a pair of virtual interfaces (run it as root, or give the address of a server at an existing interface)",
    )?;
    let made = Arc::new(made);
    pairs.push(Arc::clone(&made));
    Ok(made)
}

/// Address for a server, at the end of a new pair.
pub fn server_address() -> anyhow::Result<String> {
    let pair = pair()?;
    Ok(format!("xdp://{}/{}:0", Side::B.interface(), pair.options().v4(Side::B)))
}

/// The pair whose server end has this address.
fn pair_of(address: &str) -> Option<Arc<Pair>> {
    let place = match address.strip_prefix("udp://") {
        Some(place) => place,
        None => address.strip_prefix("xdp://")?.strip_prefix(Side::B.interface())?.strip_prefix('/')?,
    };
    let ip: Ipv4Addr = place.split(':').next()?.parse().ok()?;
    pairs().iter().find(|pair| pair.options().v4(Side::B) == ip).cloned()
}

/// The client's interface towards a server. It is named in the server's address, which the user writes for the client's
/// own host.
pub fn client_interface(server: Option<&str>) -> &str {
    match server {
        Some(address) if pair_of(address).is_none() => {
            let place = address.strip_prefix("xdp://").unwrap_or(address);
            place.split(['/', '?']).next().unwrap_or(place)
        }
        _ => Side::A.interface(),
    }
}

/// Calls `act` in the namespace of a server's clients: the other end of its pair, if it is at one.
pub fn in_client<T>(server: &str, act: impl FnOnce() -> T) -> anyhow::Result<T> {
    in_namespace(Side::A, pair_of(server), act)
}

/// Calls `act` in the namespace of a server with these arguments.
pub fn in_server<T>(args: &[String], act: impl FnOnce() -> T) -> anyhow::Result<T> {
    in_namespace(Side::B, args.iter().find_map(|arg| pair_of(arg)), act)
}

fn in_namespace<T>(side: Side, pair: Option<Arc<Pair>>, act: impl FnOnce() -> T) -> anyhow::Result<T> {
    match pair {
        Some(pair) => pair.at(side).within(act).context("going to a network namespace"),
        None => Ok(act()),
    }
}
