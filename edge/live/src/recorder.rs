//! Recordings of a host as traces: [`assembler`] turns switches and wakes into records,
//! [`identity`] says which threads they are of, [`anonymise`] takes names out again, [`host`]
//! records a host without a session, and [`ring`] keeps the last minute of one.

pub mod anonymise;
pub mod assembler;
pub mod host;
pub mod identity;
pub mod ring;
pub mod standing;
