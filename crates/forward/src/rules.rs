//! A loader for Snort rules. It reads the `content` options, the ports and the protocol.
//!
//! ```text
//! alert tcp any any -> any 80 (msg:"one"; content:"GET /|20|x"; nocase; content:"secret"; sid:1;)
//! ```
//!
//! A rule is one line, which `\` at the end continues. Of the head, the protocol and the ports are used: a rule for one
//! port or a list of ports applies to those ports, and every other form (`any`, ranges, variables, `!`) applies to all
//! packets of the protocol. Of the options, `content` is used, with a following `nocase`. Negated contents (`!"..."`)
//! are left out.

use sinew_store::lookup::patterns::Pattern;

use crate::headers::protocol;
use crate::routes::LineError;

/// Packets that a rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ports {
    /// All packets of the protocol.
    Any,
    /// Packets from this port.
    From(u16),
    /// Packets to this port.
    To(u16),
}

/// A pattern of a rule, with the packets in which it is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The IP protocol; `None` for all.
    pub protocol: Option<u8>,
    /// Ports of the packets.
    pub ports: Ports,
    /// The bytes to look for.
    pub pattern: Pattern,
    /// First line of the rule, counted from 1.
    pub line: usize,
}

/// Reads rules. Returns the contents of every rule, once for each port.
///
/// # Errors
///
/// The first line that is wrong: a rule without a head or options, a content that is empty or has a wrong escape, or an
/// option that is not closed.
pub fn parse(text: &str) -> Result<Vec<Content>, LineError> {
    let mut contents = Vec::new();
    let mut rule = String::new();
    let mut first_line = 0;
    let mut end = 0;
    for (at, line) in text.lines().enumerate() {
        end = at + 1;
        if rule.is_empty() {
            first_line = at + 1;
            if line.trim().is_empty() || line.trim_start().starts_with('#') {
                continue;
            }
        }
        let (part, is_continued) = line.trim_end().strip_suffix('\\').map_or((line, false), |part| (part, true));
        rule += part;
        if is_continued {
            rule.push(' ');
            continue;
        }
        read(&rule, first_line, &mut contents).map_err(|problem| LineError { line: first_line, problem })?;
        rule.clear();
    }
    if !rule.is_empty() {
        return Err(LineError { line: end, problem: "the rule continues past the end of the file".to_owned() });
    }
    Ok(contents)
}

fn read(rule: &str, line: usize, contents: &mut Vec<Content>) -> Result<(), String> {
    let options_start = rule.find('(').ok_or("a rule has options in parentheses")?;
    let options = rule[options_start + 1..].trim_end().strip_suffix(')').ok_or("the options are not closed by `)`")?;
    let head = words(&rule[..options_start])?;
    let [_action, protocol, _, from, direction, _, to] = &head[..] else {
        return Err("a rule's head is ACTION PROTOCOL ADDRESS PORT -> ADDRESS PORT".to_owned());
    };
    if !["->", "<>"].contains(&&**direction) {
        return Err(format!("`{direction}` is no direction: write -> or <>"));
    }
    let protocol = match protocol.to_ascii_lowercase().as_str() {
        "ip" => None,
        "tcp" => Some(protocol::TCP),
        "udp" => Some(protocol::UDP),
        "icmp" => Some(protocol::ICMP),
        other => return Err(format!("`{other}` is no protocol of rules: ip, tcp, udp or icmp")),
    };
    let mut patterns: Vec<(Vec<u8>, bool)> = Vec::new();
    // Whether the last content is used, so that a following `nocase` applies to it.
    let mut is_exact = false;
    for option in split_options(options)? {
        let (name, value) =
            option.split_once(':').map_or((option.trim(), None), |(name, value)| (name.trim(), Some(value.trim())));
        match (name, value) {
            ("content", Some(value)) => {
                is_exact = !value.starts_with('!');
                let (text, more) = quoted(value.trim_start_matches('!').trim_start())?;
                // Snort 3 writes options of a content behind commas.
                let is_any_case = more.split(',').any(|word| word.trim() == "nocase");
                let bytes = unescaped(text)?;
                if bytes.is_empty() {
                    return Err("a content is empty".to_owned());
                }
                if is_exact {
                    patterns.push((bytes, is_any_case));
                }
            }
            ("content", None) => return Err("`content` says nothing: write content:\"...\"".to_owned()),
            ("nocase", _) if is_exact => {
                if let Some((_, is_any_case)) = patterns.last_mut() {
                    *is_any_case = true;
                }
            }
            _ => {}
        }
    }
    let (from, to) = (ports(from)?, ports(to)?);
    let mut all_ports: Vec<Ports> = match (&from, &to) {
        (None, None) => vec![Ports::Any],
        (_, Some(to)) => to.iter().copied().map(Ports::To).collect(),
        (Some(from), None) => from.iter().copied().map(Ports::From).collect(),
    };
    if **direction == *"<>" {
        // The same packets in the other direction.
        match (&from, &to) {
            (None, None) => {}
            (_, Some(to)) => all_ports.extend(to.iter().copied().map(Ports::From)),
            (Some(from), None) => all_ports.extend(from.iter().copied().map(Ports::To)),
        }
    }
    for ports in all_ports {
        contents.extend(patterns.iter().map(|(bytes, is_any_case)| {
            let pattern = if *is_any_case { Pattern::any_case(bytes.clone()) } else { Pattern::exact(bytes.clone()) };
            Content { protocol, ports, pattern, line }
        }));
    }
    Ok(())
}

/// The words of a head. A list in brackets is one word.
fn words(head: &str) -> Result<Vec<String>, String> {
    let (mut words, mut depth) = (vec![String::new()], 0);
    for c in head.chars() {
        match c {
            '[' => depth += 1,
            ']' if depth == 0 => return Err("a `]` closes nothing".to_owned()),
            ']' => depth -= 1,
            _ => {}
        }
        match words.last_mut() {
            Some(word) if !c.is_whitespace() => word.push(c),
            Some(word) if depth == 0 && !word.is_empty() => words.push(String::new()),
            _ => {}
        }
    }
    if depth > 0 {
        return Err("a `[` is not closed".to_owned());
    }
    words.retain(|word| !word.is_empty());
    Ok(words)
}

/// The ports that are listed by number; `None` for any other form.
fn ports(text: &str) -> Result<Option<Vec<u16>>, String> {
    let list = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !list.split(',').all(|part| is_number(part.trim())) {
        return Ok(None);
    }
    let port = |part: &str| part.trim().parse().map_err(|_| format!("`{}` is no port", part.trim()));
    list.split(',').map(port).collect::<Result<Vec<u16>, String>>().map(Some)
}

/// Splits the options, each ended by a `;` outside quotes.
fn split_options(text: &str) -> Result<Vec<&str>, String> {
    let (mut options, mut start, mut is_quoted, mut is_escaped) = (Vec::new(), 0, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            ';' if !is_quoted => {
                options.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if is_quoted {
        return Err("a quotation mark is not closed".to_owned());
    }
    let rest = text[start..].trim();
    if !rest.is_empty() {
        return Err(format!("`{rest}` is not ended by `;`"));
    }
    options.retain(|option| !option.is_empty());
    Ok(options)
}

/// Splits off the leading quoted text, and returns what follows it.
fn quoted(text: &str) -> Result<(&str, &str), String> {
    let inside = text.strip_prefix('"').ok_or_else(|| format!("`{text}`: a content stands in quotation marks"))?;
    let mut is_escaped = false;
    for (at, c) in inside.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return Ok((&inside[..at], &inside[at + 1..])),
            _ => {}
        }
    }
    Err("a quotation mark is not closed".to_owned())
}

/// The bytes of a content: `|41 42|` is hexadecimal, and `\` makes the next byte literal.
fn unescaped(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = behind;
        match first {
            b'|' => {
                let end = rest.iter().position(|byte| *byte == b'|').ok_or("a `|` is not closed")?;
                hex(&rest[..end], &mut bytes)?;
                rest = &rest[end + 1..];
            }
            b'\\' => {
                let [byte, behind @ ..] = rest else { return Err("a content ends with `\\`".to_owned()) };
                bytes.push(*byte);
                rest = behind;
            }
            byte => bytes.push(*byte),
        }
    }
    Ok(bytes)
}

fn hex(digits: &[u8], bytes: &mut Vec<u8>) -> Result<(), String> {
    let digits: Vec<u8> = digits.iter().copied().filter(|digit| !digit.is_ascii_whitespace()).collect();
    let wrong = || format!("`|{}|` is no row of bytes in hexadecimal", String::from_utf8_lossy(&digits));
    for pair in digits.chunks(2) {
        let [high, low] = pair else { return Err(wrong()) };
        let digit = |digit: &u8| char::from(*digit).to_digit(16);
        let (Some(high), Some(low)) = (digit(high), digit(low)) else { return Err(wrong()) };
        bytes.push((high * 16 + low) as u8);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_read_with_their_ports_and_their_case() {
        let text = "# local rules\n\nalert tcp $EXTERNAL_NET any -> $HOME_NET [80, 8080] (msg:\"a; b\"; content:\"GET |20 0d0A|\\\"x\\;\"; nocase; \\\n  content:!\"not\"; nocase; content:\"y\"; sid:1;)\nalert udp any 53 <> any any (content:\"z\", fast_pattern, nocase; sid:2;)\nalert ip any any -> any 1:1024 (content:\"|FF|\";)\n";
        let contents = parse(text).unwrap();
        let of = |protocol, ports, pattern, line| Content { protocol, ports, pattern, line };
        let get = Pattern::any_case(b"GET  \r\n\"x;".to_vec());
        let expected = [
            of(Some(6), Ports::To(80), get.clone(), 3),
            of(Some(6), Ports::To(80), Pattern::exact(b"y"), 3),
            of(Some(6), Ports::To(8080), get, 3),
            of(Some(6), Ports::To(8080), Pattern::exact(b"y"), 3),
            of(Some(17), Ports::From(53), Pattern::any_case(b"z"), 5),
            of(Some(17), Ports::To(53), Pattern::any_case(b"z"), 5),
            of(None, Ports::Any, Pattern::exact([0xFF]), 6),
        ];
        assert_eq!(contents, expected);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (rule, problem) in [
            ("alert tcp any any -> any 80", "options in parentheses"),
            ("alert tcp any any -> any 80 (content:\"x\";", "not closed by `)`"),
            ("alert tcp any any -> any (content:\"x\";)", "a rule's head is"),
            ("alert tcp any any <- any 80 (content:\"x\";)", "no direction"),
            ("alert ftp any any -> any 80 (content:\"x\";)", "no protocol"),
            ("alert tcp any any -> any 99999 (content:\"x\";)", "`99999` is no port"),
            ("alert tcp any any -> any [80 (content:\"x\";)", "`[` is not closed"),
            ("alert tcp any any -> any 80] (content:\"x\";)", "`]` closes nothing"),
            ("alert tcp any any -> any 80 (content:x;)", "stands in quotation marks"),
            ("alert tcp any any -> any 80 (content:\"\";)", "a content is empty"),
            ("alert tcp any any -> any 80 (content;)", "`content` says nothing"),
            ("alert tcp any any -> any 80 (content:\"|4|\";)", "no row of bytes"),
            ("alert tcp any any -> any 80 (content:\"|4g|\";)", "no row of bytes"),
            ("alert tcp any any -> any 80 (content:\"|41\";)", "`|` is not closed"),
            ("alert tcp any any -> any 80 (content:\"x;)", "quotation mark is not closed"),
            ("alert tcp any any -> any 80 (content:\"x\")", "not ended by `;`"),
            ("alert tcp any any -> any 80 (content:\"x\"; \\", "continues past the end"),
        ] {
            let error = parse(&format!("\nalert ip any any -> any any (content:\"ok\";)\n{rule}")).unwrap_err();
            assert!(error.line == 3 && error.problem.contains(problem), "{rule}: {error}");
        }
    }
}
