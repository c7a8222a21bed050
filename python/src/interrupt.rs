//! Long computations that Ctrl-C ends.

use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use pyo3::prelude::*;

/// Time between two checks for a signal.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Flags that a computation and its caller share.
#[derive(Default)]
pub(crate) struct StopFlag {
    stops: AtomicBool,
    has_ended: AtomicBool,
}

impl StopFlag {
    /// Returns `Break` if the computation must stop.
    pub(crate) fn flow(&self) -> ControlFlow<()> {
        match self.stops.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// Wakes the caller when the computation ends, also by a panic.
struct EndSignal<'a> {
    flags: &'a StopFlag,
    caller: Thread,
}

impl Drop for EndSignal<'_> {
    fn drop(&mut self) {
        self.flags.has_ended.store(true, Ordering::Release);
        self.caller.unpark();
    }
}

/// Calls `compute` on another thread, without the interpreter's lock. If a signal handler of Python
/// raises an exception, such as KeyboardInterrupt, the computation is asked to stop, and its result
/// is dropped.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    compute: impl FnOnce(&StopFlag) -> T + Send,
) -> PyResult<T> {
    let flags = &StopFlag::default();
    let signal = EndSignal { flags, caller: thread::current() };
    let mut raised = None;
    let result = thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let _signal = signal;
            compute(flags)
        });
        while !flags.has_ended.load(Ordering::Acquire) {
            py.detach(|| thread::park_timeout(CHECK_INTERVAL));
            if let Err(error) = py.check_signals() {
                flags.stops.store(true, Ordering::Relaxed);
                raised.get_or_insert(error);
            }
        }
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    });
    raised.map_or(Ok(result), Err)
}
