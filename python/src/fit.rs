//! The smallest reservation with which a VM meets its deadlines.

mod answer;
mod question;
mod simulated;

pub(crate) use answer::{
    Fit, FitPeriod, FitProof, FitReservation, FitTrace, ProofPoint, TaskResponse, TriedPeriods,
};
pub(crate) use question::fit;
