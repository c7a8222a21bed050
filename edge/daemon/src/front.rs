//! The front: the process that parses untrusted requests. The front passes valid requests to the
//! core (the daemon's main process) with the identity of the caller.
//!
//! The front runs as an unprivileged user, without capabilities and without a way to get any. At
//! its start it receives its listening sockets and a link to the core. It also reads the users and
//! groups of the host and the TLS files. After it has dropped its rights, it opens no files. The
//! front keeps no state that must survive: when it dies, its connections end, and the core starts
//! another front.

mod accept;
mod accounts;
mod body;
mod browser;
mod caller;
mod calls;
mod events;
mod grants;
pub(crate) mod handed;
mod limits;
mod link;
mod metrics;
#[cfg(feature = "openapi")]
mod openapi;
mod page;
mod pages;
mod patience;
mod peer;
mod plans;
mod recordings;
mod remotes;
pub(crate) mod rights;
mod sessions;
mod timeline;
pub(crate) mod tls;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use tokio_rustls::rustls::ServerConfig;

use crate::people::{People, front_user};
use limits::Limits;
use link::Link;
use metrics::RequestMetrics;
use sessions::Sessions;

#[cfg(feature = "openapi")]
pub use openapi::built;
pub use page::{PageSite, TIMELINE_SCRIPT};
pub use pages::STORED;
pub use peer::LoopbackPeers;
pub use sessions::SessionTimes;
pub use tls::{TlsError, TlsFiles};

/// Runs the front process, and returns when the core (the daemon's main process) has ended. The
/// standard input of the front is the link to the core, and its standard output is the listening
/// socket for local clients. If `tls` is given, the core first sends a TCP socket for other hosts
/// over the link. The sockets of `others` follow.
#[must_use]
pub fn main(tls: Option<&TlsFiles>, others: OtherSockets) -> ExitCode {
    match begin(tls, others) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr is closed, the exit code still reports the failure.
            let _ = io::Write::write_all(
                &mut io::stderr(),
                format!("<3>slackline front: {error}\n").as_bytes(),
            );
            ExitCode::from(3)
        }
    }
}

/// Loopback sockets that the core process sends to the front process, in the order of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherSockets {
    /// True if the core sends a socket for metrics.
    pub metrics: bool,
    /// True if the core sends a socket for browsers.
    pub page: bool,
}

fn begin(tls: Option<&TlsFiles>, others: OtherSockets) -> io::Result<()> {
    let own = |descriptor: io::Result<OwnedFd>| descriptor;
    let link = UnixStream::from(own(io::stdin().as_fd().try_clone_to_owned())?);
    let listener = UnixListener::from(own(io::stdout().as_fd().try_clone_to_owned())?);
    let people = People::of_this_host()?;
    let remote = tls.map(|files| {
        let tls = files.load().map_err(io::Error::other)?;
        Ok::<_, io::Error>(Remote { listener: handed::take(&link)?, tls })
    });
    let remote = remote.transpose()?;
    let metrics = others.metrics.then(|| handed::take(&link)).transpose()?;
    let page = others.page.then(|| {
        let listener = handed::take(&link)?;
        let address = listener.local_addr()?;
        Ok::<_, io::Error>(PageSite { listener, address, times: SessionTimes::USUAL })
    });
    let page = page.transpose()?;
    let peers = LoopbackPeers::open();
    give_up_rights()?;
    calls::leave_few()?;
    serve(link, FrontSockets { listener, remote, metrics, page, peers }, people)
}

/// Sockets on which the front process listens.
#[derive(Debug)]
pub struct FrontSockets {
    /// Socket for local clients.
    pub listener: UnixListener,
    /// Socket for clients on other hosts. `None` if the daemon does not serve other hosts.
    pub remote: Option<Remote>,
    /// Loopback socket for metrics. `None` if only the other sockets serve metrics.
    pub metrics: Option<TcpListener>,
    /// Loopback socket for browsers. `None` if no loopback socket serves the web page.
    pub page: Option<PageSite>,
    /// Finder of the user who opened a loopback connection.
    pub peers: LoopbackPeers,
}

/// Listening socket for other hosts, with its TLS configuration.
#[derive(Debug)]
pub struct Remote {
    /// Listening socket for TCP.
    pub listener: TcpListener,
    /// Configuration of the TLS server.
    pub tls: Arc<ServerConfig>,
}

/// Drops all rights that the front process must not have. Must be called before untrusted input
/// is parsed, while the process has only one thread.
///
/// # Errors
/// If a right remains, if the host has no unprivileged user for the front process, or if the user
/// file cannot be read.
pub fn give_up_rights() -> io::Result<()> {
    rights::give_up(front_user()?)
}

/// Drops all rights of the calling thread, as [`give_up_rights`] does. If the process has several
/// threads, each of them must call this function.
pub(crate) fn give_up_rights_of_thread(user: Option<(u32, u32)>) -> io::Result<()> {
    rights::give_up(user)
}

/// Serves all connections until the core (the daemon's main process) closes the link.
///
/// # Errors
/// If a descriptor is of the wrong kind, or a message from the core cannot be parsed.
pub fn serve(
    link: UnixStream,
    FrontSockets { listener, remote, metrics, page, peers }: FrontSockets,
    people: People,
) -> io::Result<()> {
    link.set_nonblocking(true)?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let times = page.as_ref().map_or(SessionTimes::USUAL, |site| site.times);
        let (link, core) = Link::open(tokio::net::UnixStream::from_std(link)?);
        let front = Arc::new(Front {
            link,
            people,
            limits: Arc::new(Mutex::new(Limits::default())),
            served: Mutex::new(RequestMetrics::default()),
            has_page: page.is_some(),
            page: page.as_ref().map(|site| site.address),
            sessions: Mutex::new(Sessions::new(times)),
            peers,
        });
        tokio::select! {
            ended = core => ended,
            ended = accept::accept(listener, &front) => ended,
            ended = accept::accept_remote(remote, &front) => ended,
            ended = accept::accept_scrapers(metrics, &front) => ended,
            ended = accept::accept_browsers(page, &front) => ended,
        }
    })
}

/// State of the front process that all connections share.
struct Front {
    link: Link,
    people: People,
    limits: Arc<Mutex<Limits>>,
    served: Mutex<RequestMetrics>,
    has_page: bool,
    /// Loopback address of the web page. `None` if no loopback socket serves the page.
    page: Option<SocketAddr>,
    sessions: Mutex<Sessions>,
    peers: LoopbackPeers,
}
