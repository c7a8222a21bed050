//! Reading of traces that are in memory.

use super::{ReadError, Reader};
use crate::sink::Sink;

impl Reader<&[u8]> {
    /// Passes all remaining entries of a trace in memory to a sink.
    ///
    /// This function is not generic, so it is compiled with the optimization of this crate.
    /// [`Reader::pass_to`] is compiled with the optimization of the calling crate.
    ///
    /// # Errors
    /// If the trace is cut short or damaged, or refers to an unknown vCPU or CPU.
    pub fn pass_all_to(&mut self, mut sink: &mut dyn Sink) -> Result<(), ReadError> {
        self.pass_to(&mut sink)
    }
}
