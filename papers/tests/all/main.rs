//! Tests of the reproduction of papers.

mod live;
mod results;
mod tiny;
