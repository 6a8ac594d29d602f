//! Seeded simulations: the arbiter and the store under stalls, skew, dead sides, torn and failed writes.
#[path = "../common/mod.rs"]
mod common;

mod arbiter;
mod day;
mod store;
