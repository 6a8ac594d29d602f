//! What a measurement of ledgers says: samples, percentiles, the summary, the rows of a CSV, the gates.
//!
//! May use: `config` (durations), the other pure parts of `ledger`. Never does: read a clock, open anything, or print.

pub mod csv;
pub mod gate;
pub mod payload;
pub mod percentile;
pub mod sample;
pub mod summary;
pub mod text;
