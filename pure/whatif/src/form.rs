//! Forms of a simulation: the rule that decides when each recorded job becomes ready.

/// Rule that decides when each recorded job becomes ready in a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A job is ready at its recorded time, or when the previous job ends if that is later.
    Open,
    /// A job is ready after its recorded think time, counted from the end of the previous job.
    Closed,
}

impl Form {
    /// Both forms of a simulation, the open form first.
    pub const ALL: [Form; 2] = [Form::Open, Form::Closed];
}
