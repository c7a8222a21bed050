//! Tests of reproducing a paper.

mod live;
mod results;
mod tiny;
