//! Listening sockets for clients on other hosts, and for metrics.

use std::net::{SocketAddr, TcpListener};

use super::{Listen, ServeError, ServeOptions};

/// Returns a listening socket for clients on other hosts. The TLS files are loaded first, so that
/// the daemon does not start with faulty ones.
fn listen(at: &Listen) -> Result<TcpListener, ServeError> {
    at.tls.load()?;
    bind(at.address)
}

/// Returns the sockets for clients on other hosts and for metrics, in this order.
pub(super) fn listen_elsewhere(
    options: &ServeOptions,
) -> Result<[Option<TcpListener>; 2], ServeError> {
    let remote = options.listen.as_ref().map(listen).transpose()?;
    Ok([remote, options.metrics.map(bind).transpose()?])
}

fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
    let refused = |source| ServeError::NotListening { address, source };
    TcpListener::bind(address).map_err(refused)
}

/// Checks that metrics without TLS are served on a loopback address only.
pub(super) fn check_loopback(metrics: Option<SocketAddr>) -> Result<(), ServeError> {
    match metrics.filter(|address| !address.ip().is_loopback()) {
        Some(address) => Err(ServeError::NotLoopback { address }),
        None => Ok(()),
    }
}
