//! The TOML: one struct per section, loading, and the checks across sections.
//!
//! May use: `units`. Never does: touch the host.
