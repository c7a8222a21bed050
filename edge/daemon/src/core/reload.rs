//! What the service is told in files is read again when somebody asks for it: by a thread of its
//! own, since the core waits for no disk.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use super::{Core, Costs, Listen, Prices};
use crate::people::People;
use slackline_linux::with_causes;

/// How files are read again.
pub struct Reload {
    /// Readable whenever somebody wants it.
    pub signal: UnixStream,
    /// Reads the table of prices, if there is one; or says in words why it cannot be read.
    pub prices: Box<dyn Fn() -> Result<Option<Prices>, String> + Send>,
}

/// What was read again.
pub(super) struct Seen {
    prices: Result<Option<Prices>, String>,
    people: io::Result<People>,
    /// Whether the front, which reads certificates as it starts, would start.
    tls: Result<(), String>,
}

/// Who reads.
pub(super) struct Reader {
    read: Receiver<Seen>,
    /// Readable once something was read.
    bell: UnixStream,
    _thread: JoinHandle<()>,
}

impl Reader {
    pub(super) fn start(reload: Reload, listen: Option<Listen>) -> io::Result<Reader> {
        let (bell, ringing) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        let (tell, read) = channel();
        let work = move || run(&reload, listen.as_ref(), &tell, &ringing);
        let _thread = Builder::new().name("reload".into()).spawn(work)?;
        Ok(Reader { read, bell, _thread })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn take(&self) -> Option<Seen> {
        // However often it rang, what was read last counts.
        let _ = (&self.bell).read(&mut [0; 64]);
        self.read.try_iter().last()
    }
}

fn run(reload: &Reload, listen: Option<&Listen>, tell: &Sender<Seen>, ringing: &UnixStream) {
    let mut signal = &reload.signal;
    // It ends with the process, or with whoever would hear of it.
    while signal.read(&mut [0; 64]).is_ok_and(|count| count > 0) {
        let tls = listen.map_or(Ok(()), |listen| listen.tls.load().map(drop));
        let read = Seen {
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
    /// What was read again holds from now on; what makes no sense stays as it was.
    pub(super) fn reload(&mut self, tell: &mut dyn FnMut(&str)) {
        let Some(Seen { prices, people, tls }) = self.reader.take() else { return };
        match prices {
            Ok(prices) => {
                let now = self.host.now();
                // What was had until now is paid for as it was priced.
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
        match people {
            Ok(people) => self.access.set_people(people),
            Err(error) => tell(&format!("cannot reload groups, which stay as they were: {error}")),
        }
        match tls {
            Ok(()) => {
                if let Some(front) = &mut self.host.front {
                    front.renew();
                    tell("reloaded groups and certificates, with a new front");
                }
            }
            Err(says) => {
                tell(&format!("cannot reload certificates, which stay as they were: {says}"));
            }
        }
    }
}
