//! Recordings of a host as traces: [`assembler`] turns switches and wakes into records,
//! [`identity`] names the threads, [`anonymise`] removes names again, [`host`] records a host
//! without a session, and [`ring`] keeps the last minute of one.

pub mod anonymise;
pub mod assembler;
pub mod host;
pub mod identity;
pub mod ring;
pub mod standing;
