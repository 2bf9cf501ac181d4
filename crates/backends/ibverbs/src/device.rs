//! An open device, at one of its ports.

use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::str::FromStr;
use std::sync::Arc;

use sinew_fabric::verbs::{Attributes, GATHER_MAX, Transport, VerbsError};

use crate::abi::*;
use crate::gid::Gid;
use crate::library::Library;
use crate::list::{Context, List};
use crate::port::PortInfo;
use crate::work_id::DEPTH_MAX;

/// Lengths of inline data to try, since no device reports its limit.
const INLINE_LENS: [u32; 6] = [1024, 512, 256, 128, 64, 32];

/// Choice of a device, port and GID: `rxe0`, `mlx5_0:2`, `mlx5_0:1?gid=3`. Parts that are left out are chosen
/// automatically.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// The device's name; `None` for the first with a usable port.
    pub device: Option<String>,
    /// The port, from 1; `None` for the first usable one.
    pub port: Option<u8>,
    /// The index in the port's GID table; `None` for the best GID.
    pub gid_index: Option<u8>,
}

impl FromStr for Selector {
    type Err = VerbsError;

    fn from_str(text: &str) -> Result<Self, VerbsError> {
        let wrong = || {
            VerbsError::NoDevice(format!(
                "`{text}` names no RDMA device: write for example rxe0, mlx5_0:1 or mlx5_0:1?gid=3"
            ))
        };
        let number = |text: &str| text.parse::<u8>().map_err(|_| wrong());
        let (place, gid) = match text.split_once('?') {
            Some((place, option)) => (place, Some(option.strip_prefix("gid=").ok_or_else(wrong)?)),
            None => (text, None),
        };
        let (device, port) = match place.split_once(':') {
            Some((device, port)) => (device, Some(port)),
            None => (place, None),
        };
        if device.contains('/') {
            return Err(wrong());
        }
        Ok(Self {
            device: (!device.is_empty()).then(|| device.to_owned()),
            port: port.map(number).transpose()?,
            gid_index: gid.map(number).transpose()?,
        })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.device.as_deref().unwrap_or("any device"))?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// An RDMA device, open at one of its ports. Clones are the same device, and everything made on it keeps it open.
#[derive(Clone, Debug)]
pub struct IbDevice(pub(crate) Arc<DeviceInner>);

#[derive(Debug)]
pub(crate) struct DeviceInner {
    pub context: Context,
    pub port: PortInfo,
    /// The port's name, by which others find it.
    pub gid: Option<Gid>,
    pub attributes: Attributes,
    /// Most completions of a queue.
    pub completions_max: usize,
    /// Most pieces of a work request.
    pub sges_max: usize,
    /// Most of a peer's READs and atomics that a queue pair accepts at once.
    pub reads_in: u8,
    /// Most of our own READs and atomics in flight.
    pub reads_out: u8,
}

impl IbDevice {
    /// Opens a device at a port.
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoDevice`] when there is no library, no such device or no usable one, with the reasons and
    /// remedies; [`VerbsError::System`] when the device may not be opened.
    pub fn open(selector: &Selector) -> Result<Self, VerbsError> {
        let list = List::get(Library::get()?)?;
        let named = |name: &str| selector.device.as_deref().is_none_or(|wanted| wanted == name);
        let mut reasons = Vec::new();
        for device in list.devices() {
            let name = list.name(device);
            if !named(&name) {
                continue;
            }
            let opened = match list.unsupported_reason(device) {
                Some(why) => Err(VerbsError::NoDevice(format!("{name}: {why}"))),
                None => list.open(device).and_then(|context| Self::at_port(context, selector)),
            };
            match opened {
                Ok(device) => return Ok(device),
                // A named device's own error is the most precise.
                Err(error) if selector.device.is_some() => return Err(error),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        if selector.device.is_some() {
            let names: Vec<_> = list.devices().map(|device| list.name(device)).collect();
            reasons.push(format!("there is no RDMA device {selector}; there is {}", names.join(", ")));
        }
        Err(VerbsError::NoDevice(reasons.join("; ")))
    }

    fn at_port(context: Context, selector: &Selector) -> Result<Self, VerbsError> {
        let limits = context.attributes()?;
        let numbers = match selector.port {
            Some(number) if (1..=limits.phys_port_cnt).contains(&number) => number..=number,
            Some(number) => {
                let count = limits.phys_port_cnt;
                return Err(VerbsError::NoDevice(format!("{} has {count} ports, and no port {number}", context.name)));
            }
            None => 1..=limits.phys_port_cnt,
        };
        let mut reasons = Vec::new();
        for number in numbers {
            let port = context.port(number)?;
            match &port.trouble {
                None => return Self::new(context, &limits, port, selector.gid_index),
                Some(why) => reasons.push(format!("{}:{number} ({}): {why}", context.name, port.state)),
            }
        }
        Err(VerbsError::NoDevice(reasons.join("; ")))
    }

    fn new(
        context: Context,
        limits: &ibv_device_attr,
        mut port: PortInfo,
        gid_index: Option<u8>,
    ) -> Result<Self, VerbsError> {
        if let Some(index) = gid_index {
            let found = port.gids.iter().find(|gid| gid.index == index).cloned();
            port.chosen = Some(found.ok_or_else(|| {
                let known: Vec<_> = port.gids.iter().map(ToString::to_string).collect();
                VerbsError::NoDevice(format!(
                    "{}:{} has no GID {index}; it has {}",
                    context.name,
                    port.number,
                    known.join(", ")
                ))
            })?);
        }
        let count = |limit: i32| usize::try_from(limit).unwrap_or(0);
        let byte = |limit: i32| limit.clamp(0, 16) as u8;
        let (reads_in, reads_out) = (byte(limits.max_qp_rd_atom), byte(limits.max_qp_init_rd_atom));
        // A receive of a datagram has one piece more, for its addresses. READs may have fewer than others.
        let fewer = if limits.max_sge_rd > 0 { limits.max_sge.min(limits.max_sge_rd) } else { limits.max_sge };
        let gather_max = count(fewer).saturating_sub(1).clamp(1, GATHER_MAX);
        let attributes = Attributes {
            name: format!("{}:{}, {port}", context.name, port.number),
            mtu: port.mtu,
            message_len_max: port.message_len_max,
            inline_max: find_inline_max(&context, gather_max)?,
            gather_max,
            // Our work identifiers have no room for more.
            queue_depth_max: count(limits.max_qp_wr).min(DEPTH_MAX),
            reads_max: reads_out.into(),
            atomics: limits.atomic_cap != IBV_ATOMIC_NONE,
            line_rate_bps: port.rate_bps,
        };
        Ok(Self(Arc::new(DeviceInner {
            gid: port.chosen.clone(),
            attributes,
            completions_max: count(limits.max_cqe),
            sges_max: count(limits.max_sge),
            reads_in,
            reads_out,
            port,
            context,
        })))
    }

    /// The device's name, for example `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.0.context.name
    }

    /// The port, with its names.
    pub fn port(&self) -> &PortInfo {
        &self.0.port
    }
}

pub(crate) fn qp_type(transport: Transport) -> u32 {
    match transport {
        Transport::Rc => IBV_QPT_RC,
        Transport::Uc => IBV_QPT_UC,
        Transport::Ud => IBV_QPT_UD,
    }
}

/// Finds the longest inline data that queue pairs of every transport with this many pieces take, by making some: no
/// device reports it.
fn find_inline_max(context: &Context, pieces: usize) -> Result<usize, VerbsError> {
    let library = context.library;
    let pd = context.alloc_pd()?;
    // SAFETY: an open device; no channel.
    let cq = unsafe { (library.ibv_create_cq)(context.as_ptr(), 4, null_mut(), null_mut(), 0) };
    let makes = |transport, inline_len: u32| {
        let mut wanted = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: pieces.max(1) as u32,
                max_recv_sge: 1,
                max_inline_data: inline_len,
            },
            qp_type: qp_type(transport),
            sq_sig_all: 0,
        };
        // SAFETY: a domain and a queue of the same open device, and a description that is written to.
        match NonNull::new(unsafe { (library.ibv_create_qp)(pd.as_ptr(), &raw mut wanted) }) {
            // SAFETY: made above, and used by nobody.
            Some(qp) => unsafe { (library.ibv_destroy_qp)(qp.as_ptr()) == 0 },
            None => false,
        }
    };
    let mut longest = None;
    if !cq.is_null() {
        for transport in Transport::ALL.into_iter().filter(|&transport| makes(transport, 0)) {
            let len = INLINE_LENS.into_iter().find(|&len| makes(transport, len)).unwrap_or(0);
            longest = Some(longest.map_or(len, |longest: u32| longest.min(len)));
        }
    }
    // SAFETY: made above; no queue pair is left.
    unsafe {
        if !cq.is_null() {
            (library.ibv_destroy_cq)(cq);
        }
        (library.ibv_dealloc_pd)(pd.as_ptr());
    }
    Ok(longest.unwrap_or(0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_read_as_it_is_written() {
        let read = |text: &str| text.parse::<Selector>().ok().map(|s| (s.device, s.port, s.gid_index));
        assert_eq!(read(""), Some((None, None, None)));
        assert_eq!(read("rxe0"), Some((Some("rxe0".into()), None, None)));
        assert_eq!(read("mlx5_0:2"), Some((Some("mlx5_0".into()), Some(2), None)));
        assert_eq!(read("mlx5_0:1?gid=3"), Some((Some("mlx5_0".into()), Some(1), Some(3))));
        assert_eq!(read("?gid=3"), Some((None, None, Some(3))));
        for bad in ["rxe0:", "rxe0:x", "rxe0:1:2", "rxe0?gid", "rxe0?gid=", "rxe0?gid=300", "rxe0?mtu=1", "../x"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
