//! The interfaces that this process has open, which its ports share.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use sinew_fabric::PortError;
use sinew_mem::atomic::plain::Arc;

use super::{Capture, Interface, InterfaceOptions, find};
use crate::bpf::KEY_LEN;
use crate::memory::Memory;
use crate::sys::namespace;
use crate::sys::netlink::Netlink;

/// An open interface by its namespace and number, and the places that its ports have.
struct OpenInterface {
    namespace: (u64, u64),
    index: u32,
    interface: Weak<Interface>,
    claimed: HashSet<[u8; KEY_LEN]>,
}

static OPEN: Mutex<Vec<OpenInterface>> = Mutex::new(Vec::new());

fn open() -> MutexGuard<'static, Vec<OpenInterface>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The interface of this name in the thread's namespace. If this process does not have it open, it is opened, and
/// `memory` makes its memory, from its MTU and the number of its queues.
pub(crate) fn shared(
    name: &str,
    capture: Capture,
    options: InterfaceOptions,
    memory: impl FnOnce(usize, usize) -> Result<Arc<Memory>, PortError>,
) -> Result<Arc<Interface>, PortError> {
    let system = |doing: &str, source| PortError::System { doing: format!("{doing} for {name}"), source };
    let netlink = Netlink::open().map_err(|error| system("asking the kernel", error))?;
    let link = find(&netlink, name)?;
    let namespace = namespace::identity().map_err(|error| system("reading the network namespace", error))?;
    // Held while an interface is opened, so that two threads do not both open it.
    let mut open = open();
    open.retain(|entry| entry.interface.strong_count() > 0);
    let index = link.index;
    if let Some(entry) = open.iter().find(|entry| entry.namespace == namespace && entry.index == index)
        && let Some(interface) = entry.interface.upgrade()
    {
        if interface.capture == capture {
            return Ok(interface);
        }
        return Err(PortError::Taken {
            address: format!("the interface {name}"),
            holder: " by ports of this process that take other frames than these".to_owned(),
        });
    }
    if !link.is_up {
        return Err(super::unavailable_error(
            format!("the interface {name} is down"),
            &format!("switch it on: ip link set {name} up"),
        ));
    }
    let memory = memory(link.mtu, super::queues_of(name, &link) as usize)?;
    let interface = Arc::new(Interface::open(name, link, memory, capture, options)?);
    open.push(OpenInterface { namespace, index, interface: Arc::downgrade(&interface), claimed: HashSet::new() });
    Ok(interface)
}

fn entry_of<T>(interface: &Arc<Interface>, then: impl FnOnce(&mut OpenInterface) -> T) -> Option<T> {
    let mut open = open();
    let entry = open.iter_mut().find(|entry| std::ptr::eq(entry.interface.as_ptr(), Arc::as_ptr(interface)))?;
    Some(then(entry))
}

/// Claims a place for one port; returns whether it was free.
pub(super) fn claim(interface: &Arc<Interface>, key: [u8; KEY_LEN]) -> bool {
    entry_of(interface, |entry| entry.claimed.insert(key)).unwrap_or(false)
}

/// Frees a place.
pub(super) fn unclaim(interface: &Arc<Interface>, key: &[u8; KEY_LEN]) {
    entry_of(interface, |entry| entry.claimed.remove(key));
}
