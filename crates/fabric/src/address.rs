//! Addresses as people write them, and peers as ports know them.

use std::fmt::{self, Write as _};
use std::str::FromStr;

/// Address of a port: `scheme://rest?option=value&...`.
///
/// The scheme names the fabric, which alone knows what the rest means (`shm://name`, `udp://host:port`). A text with
/// characters that control a terminal or turn the direction of text is not an address, since messages show addresses
/// unescaped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    scheme: String,
    rest: String,
    options: Vec<(String, String)>,
}

/// Whether a character can be shown: it neither controls a terminal nor turns the direction of text.
fn is_printable(char: char) -> bool {
    let is_format =
        matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    !char.is_control() && !is_format
}

/// A text as an error quotes it: characters that would control a terminal are escaped.
///
/// ```
/// assert_eq!(sinew_fabric::address::shown("shm://\u{1b}[31m").to_string(), "shm://\\u{1b}[31m");
/// ```
pub fn shown(text: &str) -> impl fmt::Display + '_ {
    fmt::from_fn(move |f| {
        text.chars().try_for_each(|char| match is_printable(char) {
            true => f.write_char(char),
            false => write!(f, "{}", char.escape_unicode()),
        })
    })
}

/// Reason why a text is not an address. Quoted parts go through [`shown`], so that none of them controls a terminal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// There is no `://`.
    #[error("`{}` is not an address: write fabric://where, for example shm://name or udp://127.0.0.1:7000", shown(.0))]
    NoScheme(String),
    /// The part between the scheme and the options is not what the fabric needs there.
    #[error("`{address}`: {problem}; write {expected}", address = shown(.address), problem = shown(.problem))]
    Malformed {
        /// The whole text.
        address: String,
        /// The mistake.
        problem: String,
        /// The form that it should have.
        expected: String,
    },
    /// The address is of another fabric than the port to which it was handed.
    #[error(
        "`{address}` is an address of the fabric `{scheme}`, and this endpoint is on `{own}`: write {expected}, or open an \
         endpoint with {scheme}:// for it",
        address = shown(.address),
        scheme = shown(.scheme),
    )]
    WrongFabric {
        /// The whole text.
        address: String,
        /// The fabric that it names.
        scheme: String,
        /// The port's fabric.
        own: String,
        /// The form of that fabric's addresses.
        expected: String,
    },
    /// An option without a value.
    #[error(
        "`{address}`: the option `{option}` has no value; write ?{option}=VALUE",
        address = shown(.address),
        option = shown(.option),
    )]
    OptionWithoutValue {
        /// The whole text.
        address: String,
        /// The option's name.
        option: String,
    },
    /// The fabric does not know this option.
    #[error(
        "`{address}`: no such option `{option}` (known here: {known})",
        address = shown(.address),
        option = shown(.option),
    )]
    UnknownOption {
        /// The whole text.
        address: String,
        /// The option's name.
        option: String,
        /// The options that exist.
        known: String,
    },
    /// The fabric cannot read an option's value.
    #[error(
        "`{address}`: the option `{option}` cannot be `{value}`: {expected}",
        address = shown(.address),
        option = shown(.option),
        value = shown(.value),
    )]
    BadValue {
        /// The whole text.
        address: String,
        /// The option's name.
        option: String,
        /// The value given.
        value: String,
        /// The form that it should have.
        expected: String,
    },
}

impl Address {
    /// An address without options.
    pub fn new(scheme: &str, rest: &str) -> Self {
        Self { scheme: scheme.to_owned(), rest: rest.to_owned(), options: Vec::new() }
    }

    /// The fabric, such as `shm`.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The part after `://`, without the options.
    pub fn rest(&self) -> &str {
        &self.rest
    }

    /// The same address with something else after `://`.
    #[must_use]
    pub fn with_rest(mut self, rest: &str) -> Self {
        rest.clone_into(&mut self.rest);
        self
    }

    /// The same address with this value for an option, which replaces any earlier value.
    #[must_use]
    pub fn with_option(mut self, name: &str, value: &str) -> Self {
        self.options.retain(|(key, _)| key != name);
        self.options.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The host and the port of a `scheme://HOST:PORT`; `None` for a part that is left out. An IPv6 address loses its
    /// brackets.
    ///
    /// # Errors
    ///
    /// [`AddressError::Malformed`] when the port is not a number up to 65,535.
    pub fn host_and_port(&self) -> Result<(Option<&str>, Option<u16>), AddressError> {
        // A colon inside brackets belongs to the host.
        let (host, port) = match self.rest.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') && (!host.contains(':') || host.ends_with(']')) => {
                (host, Some(port))
            }
            _ => (&*self.rest, None),
        };
        let port = match port {
            None => None,
            Some(port) => Some(port.parse().map_err(|_| {
                let expected = format!("{}://HOST:PORT, with a port from 0 to 65535", self.scheme);
                self.malformed(format!("`{port}` is no port"), expected)
            })?),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Ok(((!host.is_empty()).then_some(host), port))
    }

    /// The host, and the port at which it can be called.
    ///
    /// # Errors
    ///
    /// As for [`Self::host_and_port`]; also when there is no port, or it is 0, which only a server can use.
    pub fn host_to_call(&self) -> Result<(Option<&str>, u16), AddressError> {
        match self.host_and_port()? {
            (host, Some(port)) if port != 0 => Ok((host, port)),
            (_, port) => {
                let problem = if port.is_none() { "it has no port" } else { "port 0 cannot be called" };
                let place = "HOST:PORT with the port that the server listens on, and an IPv6 address in brackets";
                Err(self.malformed(problem.to_owned(), format!("{}://{place}", self.scheme)))
            }
        }
    }

    /// Checks that the address is of the fabric `scheme`; `expected` is the form of such addresses after `://`.
    ///
    /// # Errors
    ///
    /// [`AddressError::WrongFabric`] when it is not.
    pub fn check_scheme(&self, scheme: &str, expected: &str) -> Result<(), AddressError> {
        if self.scheme == scheme {
            return Ok(());
        }
        Err(AddressError::WrongFabric {
            address: self.to_string(),
            scheme: self.scheme.clone(),
            own: scheme.to_owned(),
            expected: format!("{scheme}://{expected}"),
        })
    }

    fn malformed(&self, problem: String, expected: String) -> AddressError {
        AddressError::Malformed { address: self.to_string(), problem, expected }
    }

    /// The value of an option.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The value of an option, read as a `T`.
    ///
    /// # Errors
    ///
    /// [`AddressError::BadValue`] when it cannot be read as one.
    pub fn parsed_option<T: FromStr>(&self, name: &str, expected: &str) -> Result<Option<T>, AddressError> {
        let Some(value) = self.option(name) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| AddressError::BadValue {
            address: self.to_string(),
            option: name.to_owned(),
            value: value.to_owned(),
            expected: expected.to_owned(),
        })
    }

    /// Checks that every option is one of `known`.
    ///
    /// # Errors
    ///
    /// [`AddressError::UnknownOption`] with the first that is not known.
    pub fn check_options(&self, known: &[&str]) -> Result<(), AddressError> {
        match self.options.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some((option, _)) => Err(AddressError::UnknownOption {
                address: self.to_string(),
                option: option.clone(),
                known: if known.is_empty() { "none".to_owned() } else { known.join(", ") },
            }),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = text
            .split_once("://")
            .filter(|(scheme, _)| !scheme.is_empty())
            .ok_or_else(|| AddressError::NoScheme(text.to_owned()))?;
        if !text.chars().all(is_printable) {
            return Err(AddressError::Malformed {
                address: text.to_owned(),
                problem: "it has characters that must not be shown".to_owned(),
                expected: "it without them".to_owned(),
            });
        }
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let options = options
            .split('&')
            .filter(|option| !option.is_empty())
            .map(|option| match option.split_once('=') {
                Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
                None => Err(AddressError::OptionWithoutValue { address: text.to_owned(), option: option.to_owned() }),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { scheme: scheme.to_owned(), rest: rest.to_owned(), options })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.rest)?;
        for (index, (key, value)) in self.options.iter().enumerate() {
            write!(f, "{}{key}={value}", if index == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

/// A peer as one port knows it: small, comparable, and meaningless to any other port.
///
/// A port whose peers have addresses of their own packs the address in (an IPv6 socket address fits), so that packets
/// from strangers cost it no memory. A port with links packs a link's index and generation, so that a stale peer never
/// names a later link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(pub [u64; 3]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_scheme_rest_and_options() {
        let address: Address = "udp://[::1]:7000?mtu=9000&coalesce=off".parse().unwrap();
        assert_eq!((address.scheme(), address.rest()), ("udp", "[::1]:7000"));
        assert_eq!(address.option("coalesce"), Some("off"));
        assert_eq!(address.parsed_option::<u32>("mtu", "a number of bytes"), Ok(Some(9000)));
        assert!(address.parsed_option::<u32>("coalesce", "a number").is_err());
        assert!(address.check_options(&["mtu"]).is_err());
        assert_eq!(address.to_string(), "udp://[::1]:7000?mtu=9000&coalesce=off");
    }

    #[test]
    fn an_address_takes_another_place_and_other_options() {
        let address: Address = "udp://h:0?mtu=9000&coalesce=off&mtu=1".parse().unwrap();
        let address = address.with_rest("h:7").with_option("mtu", "2");
        assert_eq!(address.to_string(), "udp://h:7?coalesce=off&mtu=2");
    }

    #[test]
    fn hosts_and_ports_are_told_apart() {
        let parts = |text: &str| {
            let address: Address = text.parse().unwrap();
            let (host, port) = address.host_and_port().unwrap();
            (host.map(str::to_owned), port)
        };
        let some = |host: &str, port| (Some(host.to_owned()), port);
        assert_eq!(parts("udp://"), (None, None));
        assert_eq!(parts("udp://:7"), (None, Some(7)));
        assert_eq!(parts("udp://host"), some("host", None));
        assert_eq!(parts("udp://host:7"), some("host", Some(7)));
        assert_eq!(parts("udp://[::1]:7"), some("::1", Some(7)));
        assert_eq!(parts("udp://[::1]"), some("::1", None));
        assert_eq!(parts("udp://::1"), some("::1", None));
        assert!("udp://host:99999".parse::<Address>().unwrap().host_and_port().is_err());
        for (text, callable) in
            [("udp://host:7", true), ("udp://:7", true), ("udp://host:0", false), ("udp://host", false)]
        {
            assert_eq!(text.parse::<Address>().unwrap().host_to_call().is_ok(), callable, "{text}");
        }
    }

    #[test]
    fn texts_that_are_no_address_say_what_to_write() {
        for text in ["", "shout", "://x", ":/x"] {
            assert!(text.parse::<Address>().unwrap_err().to_string().contains("shm://"), "{text}");
        }
        assert!("shm://x?ring".parse::<Address>().is_err());
    }

    #[test]
    fn no_terminal_obeys_what_an_error_quotes() {
        for evil in ["\u{1b}[31m", "\u{9b}31m", "\r\n", "\u{202e}"] {
            let texts = ["shm://it", "it", "it://x", "shm://x?it", "shm://x?it=1", "shm://x?ring=it"];
            for text in texts.map(|text| text.replace("it", evil)) {
                let error = text.parse::<Address>().unwrap_err().to_string();
                assert!(error.chars().all(is_printable) && error.contains("\\u{"), "{error:?}");
            }
            // Addresses that a program puts together.
            let address = Address::new("shm", evil).with_option(evil, evil);
            let errors = [
                address.host_to_call().unwrap_err(),
                Address::new("shm", &format!("x:{evil}")).host_and_port().unwrap_err(),
                address.check_scheme("udp", "HOST:PORT").unwrap_err(),
                Address::new(evil, "x").check_scheme("udp", "HOST:PORT").unwrap_err(),
                address.check_options(&["ring"]).unwrap_err(),
                address.parsed_option::<u32>(evil, "a number").unwrap_err(),
            ];
            for error in errors.map(|error| error.to_string()) {
                assert!(error.chars().all(is_printable) && error.contains("\\u{"), "{error:?}");
            }
        }
        assert!("shm://caf\u{e9}".parse::<Address>().is_ok());
    }
}
