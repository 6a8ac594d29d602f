//! Tests that need root: AF_XDP on veth pairs in network namespaces of their own.
#[path = "../common/mod.rs"]
mod common;

mod capture;
mod verdicts;
mod xsk;
