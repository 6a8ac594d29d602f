//! What a person sees of a running appliance: the status page in a headless Chromium, `sluice top` and `sluice stat` in a
//! terminal. A binary of its own, so that no other test takes the CPUs from a browser.
// How long something may take to be seen is measured in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../common/mod.rs"]
mod common;

mod appliance;
mod browser;
mod health;
mod terminal;
