//! Workers on pinned cores, the links between them, metrics and the control thread.
//!
//! May use: `config`, `sync`, `sys`, `units`.
//! Never does: know what a worker does.
