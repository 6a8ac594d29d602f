//! The `sluice` binary: parses the command line and runs one command.

/// The program's allocator: it takes huge pages, which the system's does not (docs/design/0034-huge-pages.md). Its settings are built in by
/// `.cargo/config.toml`; `MALLOC_CONF` in the environment overrides them.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Addresses that are reserved at the start, and no memory: what the allocator maps piece by piece would begin and end inside of huge
/// pages, and those parts would lie on small ones. Twice what the pools of one server hold (256 MiB).
const RESERVED_BYTES: usize = 512 << 20;

fn main() -> std::process::ExitCode {
    let mut reserved = Vec::<u8>::new();
    // Where so much is not allowed, memory comes in pieces after all.
    let _ = reserved.try_reserve_exact(RESERVED_BYTES);
    drop(std::hint::black_box(reserved));
    sluice::cli::main()
}
