//! Being asked to stop.

use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::problem::Problem;

/// A socket that becomes readable when somebody wants us to stop.
pub(crate) fn stop_signal() -> Result<(UnixStream, UnixStream), Problem> {
    let cannot = |source| Problem::Unreadable { file: "a socket pair".into(), source };
    let (read, write) = UnixStream::pair().map_err(cannot)?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let write = write.try_clone().map_err(cannot)?;
        signal_hook::low_level::pipe::register(signal, write).map_err(cannot)?;
    }
    Ok((read, write))
}
