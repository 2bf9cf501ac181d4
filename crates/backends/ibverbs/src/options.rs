//! Options of an address for a port that is a queue pair.

use sinew_fabric::verbs::port::UdPortConfig;
use sinew_fabric::{Address, AddressError};

use crate::device::{IbDevice, Selector};
use crate::port::Link;

/// Scheme of addresses, before `://`.
pub const SCHEME: &str = "ibverbs";

/// Configuration of a port; the options of an `ibverbs://` address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IbOptions {
    /// `device`, such as `rxe0` or `mlx5_0:2` (its second port), and `gid`, an index in that port's GID table. By
    /// default the first usable device and port, and the best GID.
    pub device: Selector,
    /// `receives` and `sends`: packets that can wait to be received (4096 by default) and to be sent (1024), 1 to
    /// 65,536, as far as the device has room for them. `arena`: bytes for message buffers, including those of received
    /// packets; 256 MiB by default. All of them are locked in memory.
    pub port: UdPortConfig,
}

impl Default for IbOptions {
    fn default() -> Self {
        let port = UdPortConfig { arena_bytes: 256 << 20, ..UdPortConfig::default() };
        Self { device: Selector::default(), port }
    }
}

impl IbOptions {
    /// Names of all options.
    pub const KNOWN: &[&str] = &["device", "gid", "receives", "sends", "arena"];

    /// Reads the options of an address.
    ///
    /// # Errors
    ///
    /// [`AddressError`]: another scheme than `ibverbs://`, an option that does not exist, or a value out of range.
    pub fn of(address: &Address) -> Result<Self, AddressError> {
        address.check_scheme(SCHEME, "HOST:PORT")?;
        address.check_options(Self::KNOWN)?;
        let default = Self::default();
        let number = |name: &str, least: usize, most: usize, unit: &str| {
            let expected = format!("a number of {unit} from {least} to {most}");
            match address.parsed_option::<usize>(name, &expected)? {
                Some(value) if !(least..=most).contains(&value) => Err(bad_value(address, name, expected)),
                value => Ok(value),
            }
        };
        let mut device = match address.option("device") {
            None => Selector::default(),
            Some(name) => {
                name.parse().ok().filter(|device: &Selector| device.gid_index.is_none()).ok_or_else(|| {
                    bad_value(address, "device", "a device's name, such as rxe0, or mlx5_0:2 with its port".to_owned())
                })?
            }
        };
        device.gid_index = number("gid", 0, u8::MAX.into(), "an entry in the GID table")?.map(|index| index as u8);
        let port = UdPortConfig {
            receive_packets: number("receives", 1, 1 << 16, "packets")?.unwrap_or(default.port.receive_packets),
            send_packets: number("sends", 1, 1 << 16, "packets")?.unwrap_or(default.port.send_packets),
            arena_bytes: number("arena", 1 << 20, 1 << 40, "bytes")?.unwrap_or(default.port.arena_bytes),
            ..default.port
        };
        Ok(Self { device, port })
    }

    /// Adds the device, port and GID that were chosen to an address.
    pub fn with_chosen_port(address: Address, device: &IbDevice) -> Address {
        let port = device.port();
        let address = address.with_option("device", &format!("{}:{}", device.name(), port.number));
        match &port.chosen {
            Some(gid) if port.link == Link::Ethernet => address.with_option("gid", &gid.index.to_string()),
            _ => address,
        }
    }
}

fn bad_value(address: &Address, option: &str, expected: String) -> AddressError {
    let value = address.option(option).unwrap_or_default().to_owned();
    AddressError::BadValue { address: address.to_string(), option: option.to_owned(), value, expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Result<IbOptions, AddressError> {
        IbOptions::of(&text.parse().unwrap())
    }

    #[test]
    fn options_are_read_and_the_rest_stays_at_its_default() {
        let read = options("ibverbs://h:1?device=mlx5_0:2&gid=3&receives=64").unwrap();
        assert_eq!(read.device, "mlx5_0:2?gid=3".parse().unwrap());
        assert_eq!(read.port, UdPortConfig { receive_packets: 64, ..IbOptions::default().port });
        assert_eq!(options("ibverbs://").unwrap(), IbOptions::default());
    }

    #[test]
    fn limits_hold_on_both_sides() {
        for (good, bad) in [
            ("receives=1", "receives=0"),
            ("sends=65536", "sends=65537"),
            ("arena=1048576", "arena=1048575"),
            ("gid=255", "gid=256"),
            ("device=rxe0", "device=rxe0?gid=1"),
            ("device=rxe0:1", "device=rxe0:x"),
        ] {
            assert!(options(&format!("ibverbs://?{good}")).is_ok(), "{good}");
            let error = options(&format!("ibverbs://?{bad}")).unwrap_err();
            assert!(matches!(error, AddressError::BadValue { .. }), "{bad}");
        }
        let error = options("ibverbs://?ring=3").unwrap_err().to_string();
        assert!(error.contains("ring") && error.contains("device"), "{error}");
        assert!(options("udp://?arena=9").is_err());
    }
}
