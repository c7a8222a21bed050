//! Tests of metrics on scripted traces.

#[path = "../script/mod.rs"]
mod script;

mod alert;
mod cpu_seconds;
mod deadlines;
mod names;
mod over_time;
mod shares;
mod views;
mod why;
mod xenmon;
