//! Credit without rounding: each VM receives what is due by its weight and uses at most what its
//! cap allows. Amounts are exact to the nanosecond, and the cost does not grow with the number of
//! vCPUs.
//!
//! `level` distributes credit by weight. `budgets` enforces caps. `waiting` lets no vCPU wait while
//! a CPU idles that its affinity allows. Accounts, lists by class and passes are those of the rest
//! of the policy.

mod budgets;
pub(super) mod level;
mod waiting;
