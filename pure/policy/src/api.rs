//! The vocabulary of the trait: parameters, topology, the state that the host lends to a policy.

pub(crate) mod field;
pub(crate) mod moment;
pub(crate) mod nearest;
pub(crate) mod roster;
pub(crate) mod spec;
pub(crate) mod text_form;
pub(crate) mod topology;
