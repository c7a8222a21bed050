//! What ran on a host, as a trace: [`assembler`] turns switches and wakes into records,
//! [`identity`] says which threads they are of, [`anonymise`] takes names out again, and [`host`]
//! records a host without a session.

pub mod anonymise;
pub mod assembler;
pub mod host;
pub mod identity;
