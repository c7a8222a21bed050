//! Credit as it would be without rounding: what is due by weight is given, and no more than a cap
//! allows is used, to the nanosecond and at a cost that does not grow with the number of vCPUs.
//!
//! `level` gives credit by weight. `budgets` hold domains to their caps.

mod budgets;
pub(super) mod level;
