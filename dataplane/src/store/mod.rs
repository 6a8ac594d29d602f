//! The store: `.tri` segments of checksummed blocks, seekable by (stream, sequence) and by time.
//!
//! May use: `wire`, `sys`, `config`, `units` (only `store_worker` uses `runtime`; `block*` files use neither `sys` nor `runtime`).
//! Never does: hold a frame token across a turn; rewrite a sector; stop the capture.
