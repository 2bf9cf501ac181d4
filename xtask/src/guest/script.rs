//! The script that the guest runs once it sees the host's files: first what only the host knows, then the rest of the
//! boot.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

const SETUP: &[u8] = include_bytes!("setup.sh");

/// Variables about the host or this program, which the command does not get.
const HOST_VARIABLES: &[&str] = &["XDG_RUNTIME_DIR", "LD_LIBRARY_PATH", "OUT_DIR", "PWD", "OLDPWD", "SHLVL", "_"];

/// Beginnings of the names of variables that cargo sets for the program that it runs.
const CARGO_VARIABLES: &[&str] = &["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];

/// Work for the guest.
pub struct Script {
    /// Prefix of each line that is for us rather than for the command's output.
    pub mark: String,
    /// The folder of the kernel's modules.
    pub modules: PathBuf,
    /// Bytes in a packet of the network device under rxe0.
    pub mtu: u32,
    /// Folders that the command shares with the host, both ways.
    pub shares: Vec<PathBuf>,
    /// Folder in which the command runs.
    pub folder: PathBuf,
    pub variables: Vec<(OsString, OsString)>,
    pub command: Vec<OsString>,
}

impl Script {
    /// The script, for `sh`.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let mut line = |words: &[&[u8]]| {
            text.extend_from_slice(&words.join(&b' '));
            text.push(b'\n');
        };
        line(&[&assign("mark", self.mark.as_bytes())]);
        line(&[&assign("modules", self.modules.as_os_str().as_bytes())]);
        line(&[&assign("mtu", self.mtu.to_string().as_bytes())]);
        line(&[b"mount_shares() { :"]);
        for (index, folder) in self.shares.iter().enumerate() {
            line(&[b"share", share_tag(index).as_bytes(), &quoted(folder.as_os_str())]);
        }
        line(&[b"}"]);
        line(&[b"job() {"]);
        line(&[b"cd", &quoted(self.folder.as_os_str()), b"|| exit 125"]);
        let variables = self.variables.iter().map(|(name, value)| {
            let path_end: &[u8] = if name == "PATH" { b":/usr/sbin:/sbin" } else { b"" };
            quoted(OsStr::from_bytes(&[name.as_bytes(), b"=", value.as_bytes(), path_end].concat()))
        });
        let command = self.command.iter().map(|word| quoted(word));
        let mut words: Vec<Vec<u8>> = vec![b"exec env -i".to_vec()];
        words.extend(variables);
        words.push(b"\"$@\"".to_vec());
        words.extend(command);
        line(&[&words.join(&b' ')]);
        line(&[b"}"]);
        text.extend_from_slice(SETUP);
        text
    }
}

/// Name under which the guest mounts a share.
pub fn share_tag(index: usize) -> String {
    format!("share{index}")
}

/// Returns those of our environment variables that a command in the guest should see.
pub fn variables() -> Vec<(OsString, OsString)> {
    let is_host_only = |name: &OsStr| {
        let bytes = name.as_bytes();
        HOST_VARIABLES.iter().any(|variable| name == *variable)
            || CARGO_VARIABLES.iter().any(|beginning| bytes.starts_with(beginning.as_bytes()))
    };
    std::env::vars_os().filter(|(name, _)| !is_host_only(name)).collect()
}

fn assign(name: &str, value: &[u8]) -> Vec<u8> {
    [name.as_bytes(), b"=", &quoted(OsStr::from_bytes(value))].concat()
}

/// Quotes a word for `sh`, whatever it holds.
fn quoted(word: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for &byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend_from_slice(b"'\\''"),
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn script(command: &[&str]) -> Script {
        Script {
            mark: "<mark>".into(),
            modules: "/m".into(),
            mtu: 4200,
            shares: vec!["/it's here".into(), "/there".into()],
            folder: "/".into(),
            variables: vec![("PATH".into(), std::env::var_os("PATH").unwrap()), ("ODD".into(), "a 'b'\n\"$c\"".into())],
            command: command.iter().map(OsString::from).collect(),
        }
    }

    /// Runs the part of the script that only the host knows, then the lines of `then`, with `sh`.
    fn run(script: &Script, then: &str) -> std::process::Output {
        let mut text = script.to_bytes();
        text.truncate(text.len() - SETUP.len());
        text.extend_from_slice(then.as_bytes());
        Command::new("sh").arg("-c").arg(OsStr::from_bytes(&text)).output().unwrap()
    }

    #[test]
    fn a_command_keeps_its_words_its_variables_and_its_status() {
        let words =
            script(&["sh", "-c", "printf '%s|' \"$@\" \"$ODD\"; pwd; exit 42", "-", "a  b", "", "*", "'", "\n"]);
        let output = run(&words, "(job)");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "a  b||*|'|\n|a 'b'\n\"$c\"|/\n");
        assert_eq!(output.status.code(), Some(42));
        assert_eq!(run(&script(&["no-such-program-here"]), "(job)").status.code(), Some(127));
    }

    #[test]
    fn a_command_sees_no_other_variables() {
        let output = run(&script(&["env"]), "export STRAY=1; (job nice -n 1)");
        let seen = String::from_utf8(output.stdout).unwrap();
        assert!(seen.contains("ODD=") && !seen.contains("STRAY"), "{seen}");
    }

    #[test]
    fn shares_are_mounted_by_tag_wherever_they_lie() {
        let output = run(&script(&["true"]), "share() { printf '%s at %s\\n' \"$@\"; }; mount_shares");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "share0 at /it's here\nshare1 at /there\n");
    }
}
