//! The `sluice` binary: parses the command line and runs one command.

fn main() -> std::process::ExitCode {
    sluice::cli::main()
}
