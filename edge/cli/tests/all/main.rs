//! Tests of the program that schedule no CPU of this host, so several tests can run at a time.

#[path = "../common/mod.rs"]
mod common;

mod alert;
mod apply;
mod bad_input;
mod book;
mod commands;
mod compares;
mod diff;
mod fit;
mod formats;
mod help;
mod hints;
mod history;
mod hostile_traces;
mod imports;
mod interrupted;
mod loads;
mod manage;
mod manual;
mod merge;
mod papers;
mod parts;
mod places;
mod points;
mod service;
mod smaller;
mod sweep;
mod top;
mod whatif;
mod workloads;
