//! A trace in, numbers out.
