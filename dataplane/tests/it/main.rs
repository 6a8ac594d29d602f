//! Tests that need no privileges: real data, bad bytes, command-line goldens.
#[path = "../common/mod.rs"]
mod common;

mod arbiter_truth;
mod bad_bytes;
mod cli_store;
mod gap_rules;
mod gap_truth;
mod generate;
mod golden;
mod no_alloc;
mod packets;
mod sources;
mod store;
