//! Tests of the host with a scripted policy and scripted hardware.

#[path = "../story/mod.rs"]
mod story;

mod asked;
mod faults;
mod turns;
