//! Listening sockets for clients on other hosts, for metrics, and for the web page.

use std::net::{SocketAddr, TcpListener};

use super::{Listen, ServeError, ServeOptions};

/// Returns a listening socket for clients on other hosts. The TLS files are loaded first, so that
/// the daemon does not start with faulty files.
fn listen(at: &Listen) -> Result<TcpListener, ServeError> {
    at.tls.load()?;
    bind(at.address)
}

/// Returns the listening sockets for clients on other hosts, for metrics and for the web page, in
/// this order. `None` for each socket that the options do not request.
pub(super) fn listen_elsewhere(
    options: &ServeOptions,
) -> Result<[Option<TcpListener>; 3], ServeError> {
    let remote = options.listen.as_ref().map(listen).transpose()?;
    let [metrics, page] = [options.metrics, options.page].map(|address| address.map(bind));
    Ok([remote, metrics.transpose()?, page.transpose()?])
}

fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
    let refused = |source| ServeError::NotListening { address, source };
    TcpListener::bind(address).map_err(refused)
}

/// Checks that metrics and the web page are not served to other hosts without TLS.
pub(super) fn check_loopback(options: &ServeOptions) -> Result<(), ServeError> {
    let metrics = options.metrics.map(|address| ("metrics", address));
    let page = options.page.map(|address| ("page", address));
    match [metrics, page].into_iter().flatten().find(|(_, address)| !address.ip().is_loopback()) {
        Some((what, address)) => Err(ServeError::NotLoopback { what, address }),
        None => Ok(()),
    }
}
