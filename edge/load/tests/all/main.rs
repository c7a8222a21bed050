//! Tests of the load process.

mod load;
mod loopback;
