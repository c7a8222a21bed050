//! Linux services for threads and cgroups, as safe calls. All unsafe code of the project is in
//! [`sys`].

pub mod causes;
pub mod cgroup;
pub mod family;
pub mod owned_cpus;
pub mod step;
pub mod sys;
pub mod thread;
pub mod version;
pub mod wall_clock;

pub use causes::with_causes;
pub use wall_clock::{ClockStep, WallClock};
