//! Queues of vCPUs.

pub(crate) mod fifo;
pub(crate) mod ordered;
