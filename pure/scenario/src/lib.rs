//! What to run, as data: hosts, domains, workloads, changes and claims.
