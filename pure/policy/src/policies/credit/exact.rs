//! Credit as it would be without rounding: what is due by weight is given, and no more than a cap
//! allows is used, to the nanosecond and at a cost that does not grow with the number of vCPUs.
//!
//! `level` gives credit by weight. `budgets` hold domains to their caps. `waiting` lets nobody wait
//! where a CPU idles. The core is with the rest of the policy: accounts, lists by class, passes.

mod budgets;
pub(super) mod level;
mod waiting;
