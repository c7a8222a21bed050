//! The front: reads what strangers write, and passes on what makes sense, with who they are.
//!
//! A process of its own without any right: no user of note, no capability, no way to get one. It
//! gets a listening socket and a link to the core when it is started, and opens nothing more. It
//! holds nothing that must not be lost: when it dies, connections end, and the core starts another.

mod accept;
mod body;
mod caller;
mod calls;
mod events;
pub(crate) mod handed;
mod limits;
mod link;
mod metrics;
#[cfg(feature = "openapi")]
mod openapi;
mod pages;
mod patience;
mod peer;
mod remotes;
pub(crate) mod rights;
pub(crate) mod tls;

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use tokio_rustls::rustls::ServerConfig;

use crate::people::{People, front_user};
use limits::Limits;
use link::Link;
use metrics::Served;

#[cfg(feature = "openapi")]
pub use openapi::built;
pub use pages::STORED;
pub use tls::{TlsError, TlsFiles};

/// The process: its standard input is the link, its standard output the listening socket; with
/// files for TLS, another one for other machines comes over the link first. Ends when the core
/// does.
#[must_use]
pub fn main(tls: Option<&TlsFiles>) -> ExitCode {
    match begin(tls) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If nobody can hear it, the exit code still says it.
            let _ = io::Write::write_all(
                &mut io::stderr(),
                format!("<3>slackline front: {error}\n").as_bytes(),
            );
            ExitCode::from(3)
        }
    }
}

fn begin(tls: Option<&TlsFiles>) -> io::Result<()> {
    let own = |descriptor: io::Result<OwnedFd>| descriptor;
    let link = UnixStream::from(own(io::stdin().as_fd().try_clone_to_owned())?);
    let listener = UnixListener::from(own(io::stdout().as_fd().try_clone_to_owned())?);
    let people = People::of_this_host()?;
    let remote = tls.map(|files| {
        let tls = files.load().map_err(io::Error::other)?;
        Ok::<_, io::Error>(Remote { listener: handed::take(&link)?, tls })
    });
    let remote = remote.transpose()?;
    give_up_rights()?;
    calls::leave_few()?;
    serve(link, listener, people, remote)
}

/// Where other machines connect, and how they are spoken with.
#[derive(Debug)]
pub struct Remote {
    /// Where.
    pub listener: TcpListener,
    /// How.
    pub tls: Arc<ServerConfig>,
}

/// Gives up every right, as the front does: for whoever is about to read what strangers wrote.
/// There must be one thread only.
///
/// # Errors
/// When anything is left, or there is nobody to become.
pub fn give_up_rights() -> io::Result<()> {
    rights::give_up(front_user()?)
}

/// Serves whoever connects until the other end of the link is closed.
///
/// # Errors
/// When the descriptors are not what they should be, or what the core says makes no sense.
pub fn serve(
    link: UnixStream,
    listener: UnixListener,
    people: People,
    remote: Option<Remote>,
) -> io::Result<()> {
    link.set_nonblocking(true)?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (link, core) = Link::open(tokio::net::UnixStream::from_std(link)?);
        let front = Arc::new(Front {
            link,
            people,
            limits: Arc::new(Mutex::new(Limits::default())),
            served: Mutex::new(Served::default()),
        });
        let listener = tokio::net::UnixListener::from_std(listener)?;
        tokio::select! {
            ended = core => ended,
            () = accept::accept(listener, &front) => Ok(()),
            ended = accept::accept_remote(remote, &front) => ended,
        }
    })
}

/// What all connections share.
struct Front {
    link: Link,
    people: People,
    limits: Arc<Mutex<Limits>>,
    served: Mutex<Served>,
}
