//! The capture job: sources of frames, the queue worker, the arbiter worker.
//!
//! May use: `runtime`, `config`, `feed`, `wire`, `sync`, `sys`, `units`.
//! Never does: wait for a disk; hold a frame in the reorder window.

pub mod source;
