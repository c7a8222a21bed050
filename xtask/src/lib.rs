//! Tasks of CI and developers behind `./test`: all checks as `cargo xtask ci`, and each check
//! alone.

pub mod browser;
pub mod ci;
pub mod contract;
pub mod dist;
pub mod fit;
pub mod fuzz;
pub mod guest;
pub mod libvirt;
pub mod long_run;
pub mod manager;
pub mod metadata;
pub mod mutants;
pub mod no_std;
pub mod outside;
pub mod python;
pub mod quick;
pub mod rt_app;
pub mod scenarios;
pub mod service;
pub mod soak;
pub mod step;
pub mod tests;
pub mod tidy;
