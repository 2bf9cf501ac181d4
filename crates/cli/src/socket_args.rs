//! Options for sockets that clients of other protocols come in at.

/// An address to listen at, `HOST:PORT` or `unix:PATH`, or what is wrong with it, with an example.
pub fn parse_address(text: &str, example: &str) -> Result<String, String> {
    let problem = match text.strip_prefix("unix:") {
        Some("") => "the path of the socket is missing",
        Some(_) => return Ok(text.to_owned()),
        None => match text.rsplit_once(':') {
            None => "the port is missing",
            Some(("", _)) => "the host is missing",
            Some((_, port)) if port.parse::<u16>().is_err() => "the port is no number up to 65535",
            Some(_) => return Ok(text.to_owned()),
        },
    };
    Err(format!("{problem}: {example}"))
}

/// The mode of a Unix socket.
pub fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "three octal digits are needed, for example 770".to_owned())
}
