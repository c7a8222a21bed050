//! Queues of vCPUs: first in first out, and ordered by a key.

pub(crate) mod fifo;
pub(crate) mod ordered;
