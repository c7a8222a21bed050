//! Credit without rounding: each VM receives the CPU time due by its weight and uses at most the
//! time that its cap allows. Amounts are exact to the nanosecond, and the cost does not grow with
//! the number of vCPUs.
//!
//! `level` distributes credit by weight. `budgets` enforces caps. `waiting` lets no vCPU wait while
//! a CPU that its affinity allows is idle. Accounts, lists by class and passes are the same as
//! under Xen's rules.

mod budgets;
pub(super) mod level;
mod waiting;
