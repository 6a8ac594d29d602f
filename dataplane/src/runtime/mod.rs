//! Workers on pinned cores, the links between them, and the launch in phases.
//!
//! May use: `config`, `sync`, `sys`, `units`.
//! Never does: know what a worker does.

pub mod control;
pub mod health;
pub mod http;
pub mod launch;
pub mod link;
pub mod vitals;
pub mod worker;
