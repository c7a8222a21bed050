//! Recordings of a host as traces. [`host`] records a host on which no session schedules, and
//! [`ring`] keeps the last minute of a recording. [`assembler`] converts context switches and
//! wake-ups to records, [`growing`] handles VMs whose new threads become vCPUs, [`offline`] handles
//! CPUs that went offline, [`identity`] finds the names of threads, and [`anonymise`] removes
//! names.

pub mod anonymise;
pub mod assembler;
pub mod growing;
pub mod host;
pub mod identity;
pub mod offline;
pub mod ring;
pub mod standing;
