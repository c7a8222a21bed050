//! The service: holds reservations for machines that come and go, and answers people and programs.

pub mod core;
pub mod find;
pub mod front;
#[cfg(test)]
mod fuzz;
pub mod hook;
pub mod ledger;
mod monitors;
pub mod notices;
pub mod people;
