//! Client requests about the flight recorder, and about predictions that the daemon compares with
//! measurements.

use hyper::Method;

use super::{Answered, Client, RepeatableRequest, escaped};
use crate::{
    AppliedChange, AppliedPlan, Culprits, Incident, Length, Prediction, PredictionRecord,
    Recording, WhatIf, WhatIfAnswer,
};

impl Client {
    /// Returns the programs and other causes that kept the VM `name` from running in the last
    /// minute.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn why(&mut self, name: &str) -> Answered<Culprits> {
        self.ask(&RepeatableRequest::get(format!("/v1/why/{}", escaped(name))))
    }

    /// Returns the culprits of the incident with the number `id`. [`Client::incidents`] returns the
    /// numbers.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn why_incident(&mut self, id: u64) -> Answered<Culprits> {
        self.ask(&RepeatableRequest::get(format!("/v1/incidents/{id}")))
    }

    /// Returns the saved incidents, newest first.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn incidents(&mut self) -> Answered<Vec<Incident>> {
        self.ask(&RepeatableRequest::get("/v1/incidents"))
    }

    /// Asks the daemon to compare these predictions of an applied plan with measurements from now
    /// on.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn predict(&mut self, predictions: &[Prediction]) -> Answered<Vec<PredictionRecord>> {
        self.ask(
            &RepeatableRequest::write(Method::POST, "/v1/predictions".into()).with(&predictions),
        )
    }

    /// Returns the predictions of all applied plans, oldest first.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn predictions(&mut self) -> Answered<Vec<PredictionRecord>> {
        self.ask(&RepeatableRequest::get("/v1/predictions"))
    }

    /// Saves a recording on the daemon's host. The recording begins `since` ago and ends now.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn record(&mut self, since: Length) -> Answered<Recording> {
        self.ask(&RepeatableRequest::write(
            Method::POST,
            format!("/v1/recordings?since={}", since.0),
        ))
    }

    /// Predicts how the VMs would have run in the last seconds with the changes in `asked`.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn whatif(&mut self, asked: &WhatIf) -> Answered<WhatIfAnswer> {
        self.ask(&RepeatableRequest::write(Method::POST, "/v1/whatif".into()).with(asked))
    }

    /// Undoes the last list or change that the caller applied.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn undo(&mut self) -> Answered<Vec<AppliedChange>> {
        self.ask(&RepeatableRequest::write(Method::POST, "/v1/undo".into()))
    }

    /// Returns the last list or change that the caller applied. `None` if there is none.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn plan(&mut self) -> Answered<Option<AppliedPlan>> {
        self.ask(&RepeatableRequest::get("/v1/plan"))
    }
}
