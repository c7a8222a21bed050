//! Tests of demands, the gate and predictions, on simulated recordings.

mod demand;
mod edits;
mod gates;
mod others;
mod predictions;
mod properties;
mod record;
mod stays;
