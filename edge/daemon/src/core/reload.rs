//! Reloading of prices, groups and certificates on request. A separate thread reads the files,
//! since the daemon's main thread must not wait for a disk.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use super::{Core, Costs, Listen, Prices, socket};
use crate::people::People;
use slackline_linux::with_causes;

/// Trigger for a reload, and the reader of prices.
pub struct Reload {
    /// Socket that becomes readable when a reload is requested.
    pub signal: UnixStream,
    /// Function that reads the table of prices. Returns `None` if there is no table. The error is
    /// the reason why the table cannot be read.
    pub prices: Box<dyn Fn() -> Result<Option<Prices>, String> + Send>,
}

/// Result of a reload: the prices, groups and certificates that were read.
pub(super) struct ReloadedFiles {
    prices: Result<Option<Prices>, String>,
    people: io::Result<People>,
    /// Result of a test of the new certificates. Without the test, an error would be found only
    /// when the next front process reads the certificates at its start.
    tls: Result<(), String>,
}

/// Thread that reloads files on request.
pub(super) struct Reader {
    read: Receiver<ReloadedFiles>,
    /// Socket that becomes readable when a reload has finished.
    bell: UnixStream,
    /// Path of the socket for local clients. `None` if the socket has no path in the file system.
    socket: Option<PathBuf>,
    _thread: JoinHandle<()>,
}

impl Reader {
    pub(super) fn start(
        reload: Reload,
        listen: Option<Listen>,
        listener: &UnixListener,
    ) -> io::Result<Reader> {
        let (bell, ringing) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        let (tell, read) = channel();
        let work = move || run(&reload, listen.as_ref(), &tell, &ringing);
        let _thread = Builder::new().name("reload".into()).spawn(work)?;
        Ok(Reader { read, bell, socket: socket::path_of(listener), _thread })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn take(&self) -> Option<ReloadedFiles> {
        // If several reloads have finished, the last one counts.
        let _ = (&self.bell).read(&mut [0; 64]);
        self.read.try_iter().last()
    }
}

fn run(
    reload: &Reload,
    listen: Option<&Listen>,
    tell: &Sender<ReloadedFiles>,
    ringing: &UnixStream,
) {
    let mut signal = &reload.signal;
    // The loop ends with the process, or when the core no longer receives results.
    while signal.read(&mut [0; 64]).is_ok_and(|count| count > 0) {
        let tls = listen.map_or(Ok(()), |listen| listen.tls.load().map(drop));
        let read = ReloadedFiles {
            prices: (reload.prices)(),
            people: People::of_this_host(),
            tls: tls.map_err(|error| with_causes(&error)),
        };
        if tell.send(read).is_err() || io::Write::write(&mut &*ringing, &[1]).is_err() {
            return;
        }
    }
}

impl Core {
    /// Applies a reload whose files have been read. If a file has errors, its previous values stay
    /// in force.
    pub(super) fn reload(&mut self, tell: &mut dyn FnMut(&str)) {
        let Some(ReloadedFiles { prices, people, tls }) = self.reader.take() else { return };
        match prices {
            Ok(prices) => {
                let now = self.host.now();
                // Time up to now is charged at the old prices.
                if let Some(costs) = &mut self.host.costs {
                    costs.count(now, self.service.listed());
                }
                self.host.costs = prices.map(|prices| match self.host.costs.take() {
                    Some(costs) => costs.at(prices),
                    None => Costs::new(prices, now),
                });
                tell("reloaded prices");
            }
            Err(says) => tell(&format!("cannot reload prices, which stay as they were: {says}")),
        }
        let has_groups = people.is_ok();
        match people {
            Ok(people) => {
                self.access.set_people(people);
                if let (Some(path), Some(group)) = (&self.reader.socket, people.administrators)
                    && let Err(error) = socket::let_group_in(path, group)
                {
                    tell(&format!(
                        "users who are only in group slackline-admin cannot connect to the socket: \
                         {error}"
                    ));
                }
            }
            Err(error) => {
                tell(&format!("cannot reload groups, which stay as they were: {error}"));
            }
        }
        let reloaded = if has_groups { "groups and certificates" } else { "certificates" };
        match tls {
            Ok(()) => {
                if let Some(front) = &mut self.host.front {
                    front.renew();
                    tell(&format!("reloaded {reloaded}, with a new front process"));
                }
            }
            Err(says) => {
                // The front process is not replaced, and it knows only the old groups.
                let groups = "; groups take effect when the certificates are valid";
                let groups = if has_groups { groups } else { "" };
                tell(&format!(
                    "cannot reload certificates, which stay as they were: {says}{groups}"
                ));
            }
        }
    }
}
