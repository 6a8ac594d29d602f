//! Tests that need root: AF_XDP on veth pairs in network namespaces of their own.
// Real sockets and links are waited for in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../common/mod.rs"]
mod common;

mod appliance;
mod bench_nic;
mod capture;
mod clock_step;
mod doctor;
mod faults;
mod health;
mod hosts;
mod ledger_bench;
mod ledger_disk;
mod live;
mod play;
mod privilege;
mod readme;
mod refusals;
mod ring;
mod ring_serve;
mod stall;
mod verdicts;
mod xsk;
