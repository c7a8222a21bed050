//! Tests of reading scenarios.

mod bad;
mod good;
mod jobs;
