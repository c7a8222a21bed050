//! What Xen did, and the exact rules do otherwise: to be read beside the reference, section 7.
//!
//! Credits are whole and few, and are given to all who are active: a cap, a share and a rest are
//! rounded up to one (`accounting`, and `sharing` for the arithmetic).

mod accounting;
mod sharing;
