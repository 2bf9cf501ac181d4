//! The options that an `udp://` address may have.

use std::str::FromStr;

use sinew_fabric::{Address, AddressError};

/// Sharing of system calls and datagrams between packets that are submitted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Coalesce {
    /// `off`: every packet is a datagram of its own. Bursts still share `sendmmsg` and `recvmmsg`.
    Off,
    /// `gso`: every packet is a datagram of its own, but runs of equally long ones to one peer are handed to the kernel
    /// in one piece, which it cuts (`UDP_SEGMENT`), and received in one piece where it joins them (`UDP_GRO`).
    Segments,
    /// `on` or `auto`, the default: packets to one peer share datagrams up to what the path carries ([`crate::frame`]),
    /// and runs of equally long datagrams go as in `gso`. While every turn of the caller's loop adds packets, they wait
    /// up to 6 us for each other, which triples the rate of small batches and doubles their latency.
    #[default]
    Frames,
}

impl FromStr for Coalesce {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "off" => Ok(Self::Off),
            "gso" => Ok(Self::Segments),
            "on" | "auto" => Ok(Self::Frames),
            _ => Err(()),
        }
    }
}

/// Settings of a port: the options of an `udp://` address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// `mtu`: bytes of the largest IP packet that is sent on networks, headers included, where the route allows it. 576
    /// to 65,535; 1500 by default. Set it to 9000 where every switch on the path carries that.
    pub mtu: usize,
    /// `packet`: bytes of the largest packet that the port receives or sends, 512 to 60,000. By default it is the
    /// largest of [`crate::PACKET_LENS`] for which the receive buffer holds enough packets.
    pub packet_len_max: Option<usize>,
    /// `coalesce`: `off`, `gso`, `on` or `auto`.
    pub coalesce: Coalesce,
    /// `rcvbuf`: bytes of receive buffer, in the kernel's accounting, 4,096 to 2^30. By default 8 MiB or as much as the
    /// system allows.
    pub receive_buffer: Option<usize>,
    /// `sndbuf`: bytes of send buffer, in the kernel's accounting, 4,096 to 2^30. By default 4 MiB or as much as the
    /// system allows.
    pub send_buffer: Option<usize>,
    /// `arena`: bytes of address space for message buffers, 2^16 to 2^40; 1 GiB by default. Memory is used only as
    /// buffers are.
    pub arena: usize,
}

const KNOWN: [&str; 6] = ["mtu", "packet", "coalesce", "rcvbuf", "sndbuf", "arena"];

impl Default for UdpOptions {
    fn default() -> Self {
        Self {
            mtu: 1_500,
            packet_len_max: None,
            coalesce: Coalesce::default(),
            receive_buffer: None,
            send_buffer: None,
            arena: 1 << 30,
        }
    }
}

impl UdpOptions {
    /// Reads the options of an address.
    ///
    /// # Errors
    ///
    /// [`AddressError`]: the scheme is not `udp://`, an option does not exist, or a value is out of range.
    pub fn of(address: &Address) -> Result<Self, AddressError> {
        address.check_scheme("udp", "HOST:PORT")?;
        address.check_options(&KNOWN)?;
        let default = Self::default();
        let number = |name: &str, least: usize, most: usize| -> Result<Option<usize>, AddressError> {
            let expected = format!("a number of bytes from {least} to {most}");
            match address.parsed_option::<usize>(name, &expected)? {
                Some(value) if !(least..=most).contains(&value) => Err(AddressError::BadValue {
                    address: address.to_string(),
                    option: name.to_owned(),
                    value: value.to_string(),
                    expected,
                }),
                value => Ok(value),
            }
        };
        Ok(Self {
            mtu: number("mtu", 576, 65_535)?.unwrap_or(default.mtu),
            packet_len_max: number("packet", 512, 60_000)?,
            coalesce: address.parsed_option("coalesce", "off, gso, on or auto")?.unwrap_or_default(),
            receive_buffer: number("rcvbuf", 4_096, 1 << 30)?,
            send_buffer: number("sndbuf", 4_096, 1 << 30)?,
            arena: number("arena", 1 << 16, 1 << 40)?.unwrap_or(default.arena),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Result<UdpOptions, AddressError> {
        UdpOptions::of(&text.parse().unwrap())
    }

    #[test]
    fn options_are_read_and_the_rest_stays_at_its_default() {
        let read = options("udp://h:1?mtu=9000&coalesce=gso&rcvbuf=100000").unwrap();
        let expected =
            UdpOptions { mtu: 9000, coalesce: Coalesce::Segments, receive_buffer: Some(100_000), ..Default::default() };
        assert_eq!(read, expected);
        assert_eq!(options("udp://").unwrap(), UdpOptions::default());
    }

    #[test]
    fn limits_hold_on_both_sides() {
        for (good, bad) in [("mtu=576", "mtu=575"), ("packet=60000", "packet=60001"), ("coalesce=on", "coalesce=yes")] {
            assert!(options(&format!("udp://?{good}")).is_ok(), "{good}");
            let error = options(&format!("udp://?{bad}")).unwrap_err();
            assert!(matches!(error, AddressError::BadValue { .. }), "{bad}");
        }
        let error = options("udp://?ring=3").unwrap_err().to_string();
        assert!(error.contains("ring") && error.contains("coalesce"), "{error}");
    }
}
