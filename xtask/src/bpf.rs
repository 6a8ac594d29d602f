//! `cargo xtask bpf [--check]`: builds the XDP program.

/// Runs the task.
pub fn run(_check: bool) -> Result<(), String> {
    Err("bpf: this tree has no XDP program yet".into())
}
