//! The devices of this machine: which can be used, and why the others cannot.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::path::Path;
use std::ptr::NonNull;

use sinew_fabric::verbs::VerbsError;

use crate::abi::*;
use crate::library::{Library, error_of, last_error, system};
use crate::port::{PortInfo, text};

/// A device, as it describes itself.
#[derive(Debug)]
pub struct DeviceInfo {
    /// Its name, for example `mlx5_0`.
    pub name: String,
    /// Its ports; empty if it could not be asked.
    pub ports: Vec<PortInfo>,
    /// Reason why none of its ports can be used, with a remedy; `None` if each port has its own.
    pub trouble: Option<String>,
}

/// Lists the devices of this machine, with the reasons why any cannot be used.
///
/// # Errors
///
/// [`VerbsError::NoDevice`] when there is no device, or no library to ask, with a remedy.
pub fn devices() -> Result<Vec<DeviceInfo>, VerbsError> {
    let list = List::get(Library::get()?)?;
    Ok(list.devices().map(|device| list.describe(device)).collect())
}

/// The library's list, which keeps its devices from being freed until they are opened.
pub(crate) struct List {
    library: &'static Library,
    start: NonNull<*mut ibv_device>,
    len: usize,
}

impl List {
    pub fn get(library: &'static Library) -> Result<Self, VerbsError> {
        let mut len: c_int = 0;
        // SAFETY: room for a number.
        let start = unsafe { (library.ibv_get_device_list)(&raw mut len) };
        let Some(start) = NonNull::new(start) else {
            return Err(match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ENOSYS) => {
                    VerbsError::NoDevice(no_device(&known_to_kernel()))
                }
                error => system("asking for the list of RDMA devices", error, None),
            });
        };
        let list = Self { library, start, len: usize::try_from(len).unwrap_or(0) };
        if list.len == 0 { Err(VerbsError::NoDevice(no_device(&known_to_kernel()))) } else { Ok(list) }
    }

    pub fn devices(&self) -> impl Iterator<Item = *mut ibv_device> {
        // SAFETY: the library made the list with `len` entries, and it lives as long as we do.
        (0..self.len).map(|index| unsafe { *self.start.as_ptr().add(index) })
    }

    pub fn name(&self, device: *mut ibv_device) -> String {
        // SAFETY: a device of the list, whose name is a string.
        unsafe { text((*device).name.as_ptr()) }
    }

    fn describe(&self, device: *mut ibv_device) -> DeviceInfo {
        let name = self.name(device);
        let described = self.open(device).and_then(|context| {
            let attributes = context.attributes()?;
            (1..=attributes.phys_port_cnt).map(|number| context.port(number)).collect()
        });
        match described {
            Ok(ports) => DeviceInfo { name, ports, trouble: self.unsupported_reason(device) },
            Err(error) => DeviceInfo { name, ports: Vec::new(), trouble: Some(error.to_string()) },
        }
    }

    /// Reason why this kind of device cannot be used, if it cannot.
    pub fn unsupported_reason(&self, device: *mut ibv_device) -> Option<String> {
        // SAFETY: a device of the list.
        let why = match unsafe { (*device).transport_type } {
            IBV_TRANSPORT_IB => return None,
            IBV_TRANSPORT_IWARP => "it speaks iWARP, whose connections need a connection manager",
            IBV_TRANSPORT_USNIC | IBV_TRANSPORT_USNIC_UDP => "it speaks usNIC, which has neither RC nor UC",
            _ => "it speaks its vendor's own protocol",
        };
        Some(format!("{why}; Sinew uses devices that speak InfiniBand or RoCE"))
    }

    pub fn open(&self, device: *mut ibv_device) -> Result<Context, VerbsError> {
        // SAFETY: a device of the list.
        let context = unsafe { (self.library.ibv_open_device)(device) };
        let Some(context) = NonNull::new(context) else {
            let error = io::Error::last_os_error();
            // SAFETY: a device of the list, whose name is a string.
            let file = Path::new("/dev/infiniband").join(unsafe { text((*device).dev_name.as_ptr()) });
            // The library reports a device as absent when its file may not be opened.
            let why = File::options().read(true).write(true).open(&file).err().unwrap_or(error);
            let remedy = remedy_for_file(&why);
            let doing = format!("opening the RDMA device {} ({})", self.name(device), file.display());
            return Err(system(doing, why, remedy));
        };
        Ok(Context { library: self.library, context, name: self.name(device) })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: made by the library; the contexts of opened devices keep those alive.
        unsafe { (self.library.ibv_free_device_list)(self.start.as_ptr()) };
    }
}

/// The remedy when a device's file cannot be opened.
fn remedy_for_file(why: &io::Error) -> Option<&'static str> {
    match why.kind() {
        io::ErrorKind::PermissionDenied => Some(
            "let this user read and write it, by the rules of the package rdma-core or by a group that may; hand it to a \
             container (`--device=/dev/infiniband`)",
        ),
        io::ErrorKind::NotFound => {
            Some("`modprobe ib_uverbs`, and hand it to a container (`--device=/dev/infiniband`)")
        }
        _ => None,
    }
}

/// The kernel's devices, whether or not the library can use them.
fn known_to_kernel() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn no_device(known: &[String]) -> String {
    if known.is_empty() {
        return "there is no RDMA device here; for one in software, as root: `modprobe -a ib_uverbs rdma_rxe` and `rdma link add \
                rxe0 type rxe netdev eth0`"
            .into();
    }
    format!(
        "the kernel has RDMA devices ({}) that libibverbs cannot use: install their drivers (`apt install ibverbs-providers`, \
         or `dnf install rdma-core`), `modprobe ib_uverbs`, and hand /dev/infiniband to a container",
        known.join(", ")
    )
}

/// An open device.
#[derive(Debug)]
pub(crate) struct Context {
    pub library: &'static Library,
    context: NonNull<ibv_context>,
    pub name: String,
}

// SAFETY: the library's functions on a context may be called from any thread (ibverbs(7)); we change nothing in it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub fn as_ptr(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    pub fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the context lives as long as we do, and its functions were set when it was opened.
        unsafe { &(*self.as_ptr()).ops }
    }

    pub fn attributes(&self) -> Result<ibv_device_attr, VerbsError> {
        // SAFETY: zeros are a value of this plain structure.
        let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open device, and room for the answer.
        let status = unsafe { (self.library.ibv_query_device)(self.as_ptr(), &raw mut attributes) };
        if status != 0 {
            return Err(error_of(format!("asking {} what it can do", self.name), status));
        }
        Ok(attributes)
    }

    pub fn port(&self, number: u8) -> Result<PortInfo, VerbsError> {
        // SAFETY: our device is open.
        unsafe { PortInfo::query(self.library, self.as_ptr(), &self.name, number) }
    }

    /// Makes a protection domain, which must be gone before the device is.
    pub fn alloc_pd(&self) -> Result<NonNull<ibv_pd>, VerbsError> {
        // SAFETY: our device is open.
        let pd = unsafe { (self.library.ibv_alloc_pd)(self.as_ptr()) };
        NonNull::new(pd).ok_or_else(|| last_error(format!("making a protection domain on {}", self.name)))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything made on the device holds it open by an `Arc`, so nothing is left.
        unsafe { (self.library.ibv_close_device)(self.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_opened_has_a_remedy() {
        let of = |number| remedy_for_file(&io::Error::from_raw_os_error(number));
        assert!(of(libc::EACCES).unwrap().contains("rdma-core"));
        assert!(of(libc::ENOENT).unwrap().contains("modprobe"));
        assert_eq!(of(libc::EBUSY), None);
    }

    #[test]
    fn a_machine_without_devices_is_told_how_to_get_one() {
        assert!(no_device(&[]).contains("rdma link add rxe0"));
        let why = no_device(&["mlx5_0".into(), "mlx5_1".into()]);
        assert!(why.contains("mlx5_0, mlx5_1") && why.contains("ibverbs-providers"), "{why}");
    }
}
