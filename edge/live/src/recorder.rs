//! What ran on a host, as a trace: [`assembler`] turns switches and wakes into records,
//! [`identity`] says which threads they are of, and [`tap`] hands over what a session sees anyway.

pub mod assembler;
pub mod identity;
