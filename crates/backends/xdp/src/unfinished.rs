//! Checksums and segmentation that the kernel at the other end of a virtual pair leaves undone.

use std::io;

use crate::sys::ethtool;
use crate::sys::netlink::Netlink;

/// The command that makes the kernel finish the packets that it sends to an interface. It is returned if the interface
/// is an end of a virtual pair whose other end is in the same network namespace, and that kernel leaves checksums or
/// segmentation to it. Nothing is known about ends in other namespaces, or about other interfaces.
///
/// # Errors
///
/// There is no such interface, or the system reports another error.
///
/// ```no_run
/// if let Some(command) = sinew_xdp::finishing_command("veth0")? {
///     eprintln!("packets will be dropped until you run: {command}");
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn finishing_command(interface: &str) -> io::Result<Option<String>> {
    let netlink = Netlink::open()?;
    let Some(peer) = netlink.link(interface)?.peer else { return Ok(None) };
    let name = netlink.name(peer)?;
    let left = ethtool::offloads_on(&name)?;
    let switches: Vec<String> = left.iter().map(|what| format!("{what} off")).collect();
    Ok((!left.is_empty()).then(|| format!("ethtool -K {name} {}", switches.join(" "))))
}
