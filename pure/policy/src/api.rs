//! Types that the `Policy` trait uses: parameters, topology, and the host state that a policy may
//! read.

pub(crate) mod field;
pub(crate) mod moment;
pub(crate) mod nearest;
pub(crate) mod roster;
pub(crate) mod spec;
pub(crate) mod text_form;
pub(crate) mod topology;
