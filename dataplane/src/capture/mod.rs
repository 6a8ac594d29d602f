//! The capture job: sources of frames, the queue worker, the arbiter worker.
//!
//! May use: `runtime`, `config`, `feed`, `wire`, `sync`, `sys`, `units`.
//! Never does: wait for a disk; hold a frame in the reorder window.

pub mod arbiter_worker;
pub mod conservation;
pub mod file_worker;
mod health;
pub mod items;
pub mod links;
pub mod metrics;
pub mod plan;
pub mod quality;
pub mod queue_worker;
pub mod replay;
pub mod source;
pub mod stats;
pub mod status;
