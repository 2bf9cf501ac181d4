//! Options for sockets at which clients of foreign protocols connect.

/// Parses an address to listen at, `HOST:PORT` or `unix:PATH`. An error ends with the example.
pub fn parse_address(text: &str, example: &str) -> Result<String, String> {
    let problem = match text.strip_prefix("unix:") {
        Some("") => "the path of the socket is missing",
        Some(_) => return Ok(text.to_owned()),
        None => match text.rsplit_once(':') {
            None => "the port is missing",
            Some(("", _)) => "the host is missing",
            Some((_, port)) if port.parse::<u16>().is_err() => "the port must be a number up to 65535",
            Some(_) => return Ok(text.to_owned()),
        },
    };
    Err(format!("{problem}: {example}"))
}

/// Parses the mode of a Unix socket.
pub fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "must be three octal digits, for example 770".to_owned())
}
