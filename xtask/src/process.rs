//! Running other programs.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, bail};

/// The workspace's folder.
pub fn workspace_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Folder for builds of this workspace: `CARGO_TARGET_DIR`, or else `target` in its root.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => workspace_root().join(dir),
        None => workspace_root().join("target"),
    }
}

/// Cargo of the workspace's own toolchain, which runs in the workspace's root.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace_root()).stdin(Stdio::null());
    command
}

/// Cargo of the nightly toolchain, which runs in the workspace's root.
pub fn nightly_cargo() -> Command {
    let mut command = Command::new("cargo");
    // The outer cargo names its toolchain in the environment, and the name there would win over `+nightly`.
    for name in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC", "RUSTDOC"] {
        command.env_remove(name);
    }
    command.arg("+nightly").current_dir(workspace_root()).stdin(Stdio::null());
    command
}

/// Processes whose CPU time [`cpu_ns`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuOf {
    /// The process with all of its threads.
    Itself,
    /// Children that have ended and were waited for.
    EndedChildren,
}

/// Length of a tick in `/proc/PID/stat` in nanoseconds: `USER_HZ` is 100, whatever the kernel's own tick rate.
const TICK_NS: f64 = 1e7;

/// Returns the CPU time that a process or its children took, in nanoseconds, in steps of [`TICK_NS`].
pub fn cpu_ns(pid: u32, of: CpuOf) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    // The name before it may contain spaces and brackets.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let first = match of {
        CpuOf::Itself => 11,
        CpuOf::EndedChildren => 13,
    };
    let ticks: Vec<f64> =
        fields.split_whitespace().skip(first).take(2).filter_map(|field| field.parse().ok()).collect();
    let &[user, system] = &ticks[..] else { bail!("{path} is not as expected: {text}") };
    Ok((user + system) * TICK_NS)
}

/// Runs a command to its end; what it writes goes to our own output.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let shown = show(command);
    let status = command.status().with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Runs a command to its end and returns its standard output; its standard error goes to ours.
pub fn output(command: &mut Command) -> anyhow::Result<String> {
    let shown = show(command);
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start {shown}"))?;
    if !output.status.success() {
        bail!("{shown}: {}\n{}", output.status, String::from_utf8_lossy(&output.stdout));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command to its end, and both prints its standard output as it comes and returns it.
pub fn tee(command: &mut Command) -> anyhow::Result<String> {
    let (seen, result) = tee_all(command);
    result.map(|()| seen)
}

/// As [`tee`], but returns what the command wrote even if it failed.
pub fn tee_all(command: &mut Command) -> (String, anyhow::Result<()>) {
    let mut seen = String::new();
    let result = tee_to(command, &mut seen);
    (seen, result)
}

/// Runs a command to its end, and returns what it wrote to its standard output and then to its standard error. Prints
/// nothing, so that commands can run beside each other.
pub fn quiet(command: &mut Command) -> (String, anyhow::Result<()>) {
    let shown = show(command);
    match command.output().with_context(|| format!("cannot start {shown}")) {
        Ok(output) => {
            let written = [output.stdout, output.stderr].concat();
            let result = if output.status.success() { Ok(()) } else { Err(anyhow!("{shown}: {}", output.status)) };
            (String::from_utf8_lossy(&written).into_owned(), result)
        }
        Err(error) => (String::new(), Err(error)),
    }
}

/// The same command, whose standard error goes to its standard output.
pub fn with_errors_in_output(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        shell.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.stdin(Stdio::null());
    shell
}

fn tee_to(command: &mut Command, seen: &mut String) -> anyhow::Result<()> {
    let shown = show(command);
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {shown}"))?;
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).with_context(|| format!("cannot read what {shown} writes"))? > 0 {
        let text = String::from_utf8_lossy(&line);
        print!("{text}");
        seen.push_str(&text);
        line.clear();
    }
    std::io::stdout().flush()?;
    let status = child.wait()?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Whether a program starts and succeeds; its output is thrown away.
pub fn works(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

/// Returns a command as one would type it.
pub fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Tests passed, summed over the `test result:` lines of a run.
pub fn tests_passed(output: &str) -> usize {
    let results = output.lines().filter_map(|line| line.trim().strip_prefix("test result: ok. "));
    results.filter_map(|rest| rest.split_once(" passed")?.0.parse::<usize>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_says_of_errors_is_in_its_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo \"$NAME\" >&2"]).env("NAME", "error");
        assert_eq!(output(&mut with_errors_in_output(&command)).unwrap(), "out\nerror\n");
    }

    #[test]
    fn a_process_that_computes_takes_the_processors_time() {
        let own = || cpu_ns(std::process::id(), CpuOf::Itself).unwrap();
        let began = own();
        while own() == began {}
        assert!(cpu_ns(u32::MAX, CpuOf::EndedChildren).is_err());
    }

    #[test]
    fn passed_tests_are_summed_over_all_binaries_and_filtered_ones_do_not_count() {
        let output = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.01s\n\
            noise\n\
            test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
            test result: FAILED. 5 passed; 1 failed; 0 ignored\n";
        assert_eq!(tests_passed(output), 15);
        assert_eq!(tests_passed(""), 0);
    }
}
