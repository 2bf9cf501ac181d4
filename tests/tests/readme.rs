//! The README's first service.

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{Folder, PATIENCE, Process, run, text};
use rustix::process::Signal;

const README: &str = include_str!("../../README.md");

/// Returns a program without its first line, which says what it is for.
fn shown(program: &str) -> &str {
    program.split_once("\n\n").unwrap().1.trim()
}

#[test]
fn the_readme_shows_the_programs_that_are_run_here() {
    for program in [
        include_str!("../../crates/sinew/examples/shout_server.rs"),
        include_str!("../../crates/sinew/examples/shout_client.rs"),
    ] {
        assert!(README.contains(&format!("```rust\n{}\n```", shown(program))), "not in README.md:\n{program}");
    }
}

#[test]
fn the_readmes_first_service_answers_its_client_and_ends_with_ctrl_c() {
    let folder = Folder::new();
    let program = |path: &str| {
        let mut command = Command::new(path);
        command.env("XDG_RUNTIME_DIR", &folder.0);
        command
    };
    let mut server = Process::start(&mut program(env!("CARGO_BIN_EXE_readme-server")));
    let began = Instant::now();
    let output = loop {
        let output = run(&mut program(env!("CARGO_BIN_EXE_readme-client")));
        if output.status.success() {
            break output;
        }
        let message = text(&output.stderr);
        assert!(message.contains("no server at shm://shout"), "{message}");
        assert!(began.elapsed() < PATIENCE, "{message}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(text(&output.stdout), "HELLO\n");
    server.signal(Signal::INT);
    assert!(server.wait().success());
    assert_eq!(folder.names(), Vec::<String>::new(), "a server that ended leaves nothing behind");
}

#[test]
fn every_example_runs_to_its_end() {
    let folder = Folder::new();
    for (path, argument, shows) in [
        (env!("CARGO_BIN_EXE_example-fast-echo"), Some("30"), "calls in 30 ms"),
        (env!("CARGO_BIN_EXE_example-worker"), None, "pong"),
        (env!("CARGO_BIN_EXE_example-nested-call"), None, "bytes"),
        (env!("CARGO_BIN_EXE_example-subscribe"), None, "3 clients will hear of it"),
        (env!("CARGO_BIN_EXE_example-event-loop"), None, "visitors heard: pong, welcome"),
        (env!("CARGO_BIN_EXE_example-one-sided"), None, "visitors: 1; the first wrote: hello from another process"),
    ] {
        // A race between the end of the first example and its server's falling asleep would show in some runs only, so
        // that example runs ten times.
        for _ in 0..if argument.is_some() { 10 } else { 1 } {
            let output = run(Command::new(path).args(argument).env("XDG_RUNTIME_DIR", &folder.0));
            assert!(output.status.success(), "{path}: {}", text(&output.stderr));
            assert!(text(&output.stdout).contains(shows), "{path}: {}", text(&output.stdout));
        }
    }
}

#[test]
fn an_example_tells_an_error_in_words() {
    let output = run(Command::new(env!("CARGO_BIN_EXE_example-one-sided")).arg("sit"));
    assert!(!output.status.success());
    assert_eq!(text(&output.stderr), "usage: one_sided [serve|visit shm|ibverbs HOST:PORT]\n");
}
