//! The parts and options of an `xdp://` address.

use std::net::IpAddr;
use std::str::FromStr;

use sinew_fabric::{Address, AddressError};

use crate::interface::{InterfaceOptions, Mode};

const EXPECTED: &str = "INTERFACE/IP:PORT, with an IPv6 address in brackets";
const KNOWN: [&str; 8] = ["mode", "zerocopy", "ring", "chunks", "coalesce", "gateway", "arena", "mtu"];

/// The place of a port: `xdp://INTERFACE/IP:PORT`. A client may leave out everything after the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpAddress {
    /// The network interface, on its own host.
    pub interface: String,
    /// The IP address.
    pub address: Option<IpAddr>,
    /// The UDP port.
    pub port: Option<u16>,
}

/// Configuration of a port; the options of an `xdp://` address. The interface's options count only if this process does
/// not have it open yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpOptions {
    /// `mode`: `auto`, `native` or `generic`; `zerocopy`: `auto` or `off`; `ring`: frames in each ring, a power of two
    /// from 64 to 32,768.
    pub interface: InterfaceOptions,
    /// `chunks`: frames for which there is memory, for all ports of the interface together; 64 to 1,048,576. By default
    /// enough for eight ports, or, if that would be more than 131,072, for fewer, but at least for one.
    pub chunks: Option<usize>,
    /// `coalesce`: `on`, the default: packets to one peer that are submitted together share a datagram, up to what the
    /// interface carries in one piece, and wait up to 6 us for each other while every turn of the caller's loop brings
    /// more. `off`: every packet is a datagram of its own.
    pub coalesce: bool,
    /// `gateway`: for a port with an address that the kernel does not have, the host to which it sends all packets,
    /// except those to hosts from which packets came: they are answered by the way they came. Without it, every host is
    /// assumed to be on the interface's own network. Other ports use the kernel's routes.
    pub gateway: Option<IpAddr>,
    /// `mtu`: bytes of the largest IP packet that is sent. At most, and by default, what the interface carries; at
    /// least 576, or 1280 for IPv6.
    pub mtu: Option<usize>,
    /// `arena`: bytes of address space for message buffers; 1 GiB by default. Memory is used only as buffers are.
    pub arena: usize,
}

impl Default for XdpOptions {
    fn default() -> Self {
        Self {
            interface: InterfaceOptions::default(),
            chunks: None,
            coalesce: true,
            gateway: None,
            mtu: None,
            arena: 1 << 30,
        }
    }
}

impl FromStr for Mode {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "native" => Ok(Self::Native),
            "generic" => Ok(Self::Generic),
            _ => Err(()),
        }
    }
}

/// A switch in an option: `on` or `auto`, or `off`.
struct Switch(bool);

impl FromStr for Switch {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "on" | "auto" => Ok(Self(true)),
            "off" => Ok(Self(false)),
            _ => Err(()),
        }
    }
}

impl XdpOptions {
    /// Reads the options of an address.
    ///
    /// # Errors
    ///
    /// [`AddressError`]: another scheme than `xdp://`, an option that does not exist, or a value out of range.
    pub fn of(address: &Address) -> Result<Self, AddressError> {
        address.check_scheme("xdp", EXPECTED)?;
        address.check_options(&KNOWN)?;
        let default = Self::default();
        let number = |name: &str, what: &str, least: usize, most: usize| -> Result<Option<usize>, AddressError> {
            let expected = format!("{what} from {least} to {most}");
            match address.parsed_option::<usize>(name, &expected)? {
                Some(value) if !(least..=most).contains(&value) || (name == "ring" && !value.is_power_of_two()) => {
                    Err(AddressError::BadValue {
                        address: address.to_string(),
                        option: name.to_owned(),
                        value: value.to_string(),
                        expected,
                    })
                }
                value => Ok(value),
            }
        };
        let ring = number("ring", "a power of two", 64, 32_768)?;
        Ok(Self {
            interface: InterfaceOptions {
                mode: address.parsed_option("mode", "auto, native or generic")?.unwrap_or_default(),
                zero_copy: address.parsed_option::<Switch>("zerocopy", "auto or off")?.is_none_or(|switch| switch.0),
                ring: ring.map_or(default.interface.ring, |ring| ring as u32),
            },
            chunks: number("chunks", "a number", 64, 1 << 20)?,
            coalesce: address.parsed_option::<Switch>("coalesce", "on, off or auto")?.is_none_or(|switch| switch.0),
            gateway: address.parsed_option("gateway", "an IP address")?,
            mtu: number("mtu", "a number of bytes", 576, 65_535)?,
            arena: number("arena", "a number of bytes", 1 << 16, 1 << 40)?.unwrap_or(default.arena),
        })
    }
}

impl XdpAddress {
    /// Reads the place of a port.
    ///
    /// # Errors
    ///
    /// [`AddressError`]: no interface, something that is not an IP address, or an invalid port.
    pub fn of(address: &Address) -> Result<Self, AddressError> {
        address.check_scheme("xdp", EXPECTED)?;
        let malformed = |problem: &str| AddressError::Malformed {
            address: address.to_string(),
            problem: problem.to_owned(),
            expected: format!("xdp://{EXPECTED}"),
        };
        let (interface, place) = address.rest().split_once('/').unwrap_or((address.rest(), ""));
        // Names of interfaces have at most 15 bytes.
        let is_name = |byte: u8| byte.is_ascii_graphic() && byte != b':';
        if interface.is_empty() || interface.len() > 15 || !interface.bytes().all(is_name) {
            return Err(malformed("it names no network interface"));
        }
        let place = address.clone().with_rest(place);
        let (host, port) = place.host_and_port()?;
        let address = match host {
            None => None,
            Some(host) => Some(host.parse().map_err(|_| malformed(&format!("`{host}` is not an IP address")))?),
        };
        Ok(Self { interface: interface.to_owned(), address, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<XdpAddress, AddressError> {
        XdpAddress::of(&text.parse().unwrap())
    }

    fn options(text: &str) -> Result<XdpOptions, AddressError> {
        XdpOptions::of(&text.parse().unwrap())
    }

    #[test]
    fn addresses_say_an_interface_and_as_much_of_a_place_as_they_like() {
        let place = |address: Option<&str>, port| XdpAddress {
            interface: "veth0".to_owned(),
            address: address.map(|address| address.parse().unwrap()),
            port,
        };
        assert_eq!(read("xdp://veth0/10.0.0.1:7000"), Ok(place(Some("10.0.0.1"), Some(7000))));
        assert_eq!(read("xdp://veth0/[fd00::1]:7000"), Ok(place(Some("fd00::1"), Some(7000))));
        assert_eq!(read("xdp://veth0/fd00::1"), Ok(place(Some("fd00::1"), None)));
        assert_eq!(read("xdp://veth0/:9"), Ok(place(None, Some(9))));
        assert_eq!(read("xdp://veth0"), Ok(place(None, None)));
        for bad in
            ["xdp://", "xdp:///10.0.0.1:1", "xdp://10.0.0.1:7000", "xdp://veth0/host:7000", "xdp://veth0/10.0.0.1:x"]
        {
            assert!(matches!(read(bad), Err(AddressError::Malformed { .. })), "{bad}");
        }
        assert!(read("xdp://a-name-with-16-by/10.0.0.1:1").is_err());
        assert!(matches!(read("udp://10.0.0.1:1"), Err(AddressError::WrongFabric { .. })));
    }

    #[test]
    fn options_are_read_and_limits_hold_on_both_sides() {
        let read =
            options("xdp://v/?mode=native&zerocopy=off&ring=256&coalesce=off&gateway=10.0.0.9&mtu=1280").unwrap();
        assert_eq!(read.interface, InterfaceOptions { mode: Mode::Native, zero_copy: false, ring: 256 });
        assert!(!read.coalesce && read.gateway == Some("10.0.0.9".parse().unwrap()) && read.mtu == Some(1280));
        assert_eq!(options("xdp://v").unwrap(), XdpOptions::default());
        for (good, bad) in
            [("ring=64", "ring=32"), ("ring=32768", "ring=65"), ("chunks=64", "chunks=63"), ("mtu=576", "mtu=575")]
        {
            assert!(options(&format!("xdp://v?{good}")).is_ok(), "{good}");
            assert!(options(&format!("xdp://v?{bad}")).is_err(), "{bad}");
        }
        let error = options("xdp://v?queue=3").unwrap_err().to_string();
        assert!(error.contains("queue") && error.contains("coalesce"), "{error}");
    }
}
