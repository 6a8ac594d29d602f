//! Seeded simulations: the arbiter and the store under stalls, skew, dead sides, torn and failed writes; the ring and its
//! mirrors over a bad network; the ledger stream under stalls, cuts, restarts and overrun.
#[path = "../common/mod.rs"]
mod common;

mod arbiter;
mod day;
mod ledger;
mod ledger_restart;
mod ledger_slow;
mod ledger_world;
mod ring;
mod ring_paths;
mod ring_world;
mod store;
