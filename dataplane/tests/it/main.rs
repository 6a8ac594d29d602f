//! Tests that need no privileges: real data, bad bytes, command-line goldens.
// How long a command took is measured in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../common/mod.rs"]
mod common;

mod arbiter_truth;
mod bad_bytes;
mod cli_output;
mod cli_store;
mod config_check;
mod config_examples;
mod config_schema;
mod deploy;
mod docs_sizing;
mod doctor;
mod gap_rules;
mod gap_truth;
mod generate;
mod golden;
mod ledger;
mod ledger_archive;
mod ledger_bench;
mod ledger_client;
mod ledger_close;
mod ledger_hostile;
mod ledger_lake;
mod ledger_limits;
mod ledger_outside;
mod ledger_relay;
mod ledger_serve;
mod ledger_source;
mod ledger_vectors;
mod log;
mod metrics;
mod no_alloc;
mod packets;
mod pipeline;
mod replay;
mod report;
mod ring;
mod ring_feed;
mod ring_hostile;
mod ring_mirror;
mod ring_outside;
mod ring_probes;
mod ring_processes;
mod ring_sparse;
mod ring_stress;
mod ringfire_interop;
mod ringfire_mirror;
mod sources;
mod store;
