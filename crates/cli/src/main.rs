//! The `sinew` command.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    sinew_cli::main()
}
