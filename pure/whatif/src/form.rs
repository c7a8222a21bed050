//! Forms in which a demand is played.

/// Form in which a demand is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A job is ready at its recorded time, or when the job before ends.
    Open,
    /// A job is ready after the recorded think time, counted from the end of the job before.
    Closed,
}

impl Form {
    /// Both forms, open first.
    pub const ALL: [Form; 2] = [Form::Open, Form::Closed];
}
