//! The `sinew` command, as the end-to-end tests run it.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    sinew_cli::main()
}
