//! Seeded simulations: the arbiter and the store under stalls, skew, dead sides, torn and failed writes; the ledger stream under
//! stalls, cuts, restarts and overrun.
#[path = "../common/mod.rs"]
mod common;

mod arbiter;
mod day;
mod ledger;
mod store;
