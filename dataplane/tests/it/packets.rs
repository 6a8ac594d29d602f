//! See the module's name; filled by its own part of the work.
