//! Export of traces to the formats of other tools. Each exporter is a sink for records. Its memory
//! does not grow with the length of the run.

#![forbid(unsafe_code)]

mod perfetto;
pub mod proto;

pub use perfetto::Perfetto;
