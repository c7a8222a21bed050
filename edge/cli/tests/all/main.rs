//! Tests of the program that need no CPU of their own.

#[path = "../common/mod.rs"]
mod common;

mod alert;
mod apply;
mod bad_input;
mod book;
mod commands;
mod compares;
mod formats;
mod help;
mod interrupted;
mod loads;
mod manual;
mod papers;
mod places;
mod points;
mod service;
mod smaller;
mod sweep;
mod whatif;
