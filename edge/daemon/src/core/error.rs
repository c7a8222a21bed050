//! Why there is no service.

use std::io;
use std::net::SocketAddr;

use slackline_live::session::SessionError;
use slackline_units::CpuId;

use super::socket::SocketError;
use crate::front::TlsError;
use crate::ledger::LedgerError;

/// Why there is no service, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// CPUs that are not there.
    #[error("cannot schedule CPU {}: not online on this host", super::listed(cpus))]
    NoSuchCpus {
        /// Which.
        cpus: Vec<CpuId>,
    },
    /// What the kernel says cannot be read.
    #[error("cannot read {what}: {source}")]
    Unreadable {
        /// What.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The front needs more descriptors than it may have.
    #[error("a process here may open {most} files, and {needed} are needed")]
    FewDescriptors {
        /// The hard limit.
        most: u64,
        /// How many are needed.
        needed: u64,
    },
    /// There is no ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Nobody can connect.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Nobody can connect from other machines.
    #[error("cannot listen on {address}: {source}")]
    NotListening {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// This machine cannot be scheduled, or no longer.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A thread or process of ours cannot be started.
    #[error("cannot start {what}: {source}")]
    NotStarted {
        /// Which.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

impl ServeError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            ServeError::NoSuchCpus { .. } => Some("list CPUs with `slackline doctor`".into()),
            ServeError::Ledger(error) => error.hint(),
            ServeError::Socket(error) => Some(error.hint().into()),
            ServeError::Tls(error) => Some(error.hint().into()),
            ServeError::NotListening { .. } => {
                Some("use an address of this host and a free port from 1024 on".into())
            }
            ServeError::Session(error) => error.hint(),
            ServeError::FewDescriptors { needed, .. } => {
                Some(format!("raise the hard limit of open files: `ulimit -Hn {needed}`"))
            }
            ServeError::Unreadable { .. } | ServeError::NotStarted { .. } => None,
        }
    }

    /// Whether it is what was asked for that is wrong, not this machine.
    #[must_use]
    pub const fn is_about_the_input(&self) -> bool {
        matches!(self, ServeError::NoSuchCpus { .. } | ServeError::Tls(_))
    }

    /// Whether this is a fault of ours.
    #[must_use]
    pub const fn is_bug(&self) -> bool {
        match self {
            ServeError::Session(error) => error.is_bug(),
            _ => false,
        }
    }
}
