//! Recordings of a host as traces. [`host`] records a host on which no session schedules, and
//! [`ring`] keeps the last minute of a recording. [`assembler`] turns switches and wakes into
//! records, [`identity`] names the threads, and [`anonymise`] removes names again.

pub mod anonymise;
pub mod assembler;
pub mod host;
pub mod identity;
pub mod ring;
pub mod standing;
