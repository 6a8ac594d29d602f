//! The `sluice` binary: parses the command line and runs one command.

/// The program's allocator: it takes huge pages, which the system's does not (docs/design/0034-huge-pages.md). Its settings are built in by
/// `.cargo/config.toml`; `MALLOC_CONF` in the environment overrides them.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    sluice::cli::main()
}
