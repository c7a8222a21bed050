//! What threads do, learned from the kernel: one file a source.

pub mod perf;
