//! Tests that need no privileges: real data, bad bytes, command-line goldens.
// How long a command took is measured in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../common/mod.rs"]
mod common;

mod arbiter_truth;
mod bad_bytes;
mod cli_store;
mod config_examples;
mod docs_sizing;
mod gap_rules;
mod gap_truth;
mod generate;
mod golden;
mod ledger;
mod no_alloc;
mod packets;
mod pipeline;
mod replay;
mod sources;
mod store;
