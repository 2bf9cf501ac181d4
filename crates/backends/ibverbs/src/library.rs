//! The library libibverbs, opened when it is first needed and never closed.

use std::error::Error;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io;
use std::sync::OnceLock;

use sinew_fabric::verbs::VerbsError;

use crate::abi::*;

/// File name of the library's stable interface in every distribution.
const NAME: &str = "libibverbs.so.1";

macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The library's functions. Each is safe to call from any thread (ibverbs(7)).
        #[derive(Debug)]
        pub struct Library {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn find(library: &libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of the header (`abi`); the default version of each symbol is meant.
                unsafe {
                    Ok(Self {
                        $($name: *library.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(stringify!($name))?,)*
                    })
                }
            }
        }
    };
}

functions! {
    ibv_fork_init() -> c_int;
    ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list(*mut *mut ibv_device);
    ibv_open_device(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device(*mut ibv_context) -> c_int;
    ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibv_query_gid(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq(*mut ibv_cq) -> c_int;
    ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(*mut ibv_cq, c_uint);
    ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    ibv_destroy_qp(*mut ibv_qp) -> c_int;
    ibv_create_ah(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    ibv_destroy_ah(*mut ibv_ah) -> c_int;
    ibv_port_state_str(c_uint) -> *const c_char;
}

impl Library {
    /// The library.
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoDevice`] when it is not installed, with what to install.
    pub fn get() -> Result<&'static Self, VerbsError> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        LIBRARY.get_or_init(|| Self::open(NAME)).as_ref().map_err(|why| VerbsError::NoDevice(why.clone()))
    }

    fn open(name: &str) -> Result<Self, String> {
        // The loader's own message is the source of libloading's error.
        let why = |error: libloading::Error| error.source().map_or_else(|| error.to_string(), ToString::to_string);
        // SAFETY: libibverbs' initialisers have no conditions of their own.
        let library = unsafe { libloading::Library::new(name) }.map_err(|error| {
            format!(
                "{name} cannot be opened ({}); install it: `apt install libibverbs1 ibverbs-providers`, or `dnf install \
                 libibverbs`",
                why(error)
            )
        })?;
        let found = Self::find(&library)
            .map_err(|error| format!("{name} is too old, or is another library: {}", why(error)))?;
        // Never unloaded: its drivers keep threads and memory that outlive every device.
        std::mem::forget(library);
        // Kernels before 5.12 must be told to leave memory that devices write in place when a program forks; on later
        // ones this does nothing. Forked children use none of that memory, so a refusal harms only those programs that
        // fork on such a kernel.
        // SAFETY: it precedes every other call.
        unsafe { (found.ibv_fork_init)() };
        Ok(found)
    }
}

/// The system's error of a call that returned null or a negative number.
pub fn last_error(doing: impl Into<String>) -> VerbsError {
    system(doing, io::Error::last_os_error(), None)
}

/// The system's error of a call that returns the error's number.
pub fn error_of(doing: impl Into<String>, status: c_int) -> VerbsError {
    // Some old drivers return -1, and leave the number in `errno`.
    let source = if status > 0 { io::Error::from_raw_os_error(status) } else { io::Error::last_os_error() };
    system(doing, source, None)
}

pub fn system(doing: impl Into<String>, source: io::Error, remedy: Option<&'static str>) -> VerbsError {
    VerbsError::System { doing: doing.into(), source, remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_what_to_install() {
        let why = Library::open("libibverbs.so.0-none").err().unwrap();
        assert!(why.contains("libibverbs.so.0-none") && why.contains("apt install libibverbs1"), "{why}");
    }

    #[test]
    fn another_library_is_not_taken_for_it() {
        let why = Library::open("libc.so.6").err().unwrap();
        assert!(why.contains("another library") && why.contains("ibv_"), "{why}");
    }
}
