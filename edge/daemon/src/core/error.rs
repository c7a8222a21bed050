//! Errors that prevent the daemon's start, or that end the daemon.

use std::io;
use std::net::SocketAddr;

use slackline_live::session::SessionError;
use slackline_units::CpuId;

use super::socket::SocketError;
use crate::front::TlsError;
use crate::ledger::LedgerError;

/// Reason why the daemon cannot start or must end.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// At least one of the requested CPUs is not online.
    #[error("cannot schedule CPU {}: not online on this host", super::listed(cpus))]
    NoSuchCpus {
        /// Kernel's numbers of the CPUs that are not online.
        cpus: Vec<CpuId>,
    },
    /// A file in which the kernel gives information cannot be read.
    #[error("cannot read {what}: {source}")]
    Unreadable {
        /// Description of the file, such as `the boot id`.
        what: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The front process needs more file descriptors than a process may have.
    #[error("cannot start: a process may open only {most} files, and the daemon needs {needed}")]
    FewDescriptors {
        /// Hard limit on open files per process.
        most: u64,
        /// Number of descriptors that the front process needs.
        needed: u64,
    },
    /// The ledger cannot be opened or written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The socket for local clients cannot be set up.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The socket for remote clients cannot be set up.
    #[error("cannot listen on {address}: {source}")]
    NotListening {
        /// Address on which the daemon should listen.
        address: SocketAddr,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The address for metrics or the web page can be reached from other hosts.
    #[error("cannot serve {what} without TLS on {address}: it is not a loopback address")]
    NotLoopback {
        /// Name of the option: `metrics` or `page`.
        what: &'static str,
        /// Address that the option names.
        address: SocketAddr,
    },
    /// The live session cannot start, or has failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A thread or process of the daemon cannot be started.
    #[error("cannot start {what}: {source}")]
    NotStarted {
        /// Description of the thread or process.
        what: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl ServeError {
    /// Returns advice on how to fix the error. `None` if there is no advice.
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
            ServeError::NotLoopback { what, address } => Some(format!(
                "use `--{what} 127.0.0.1:{}`, or `--listen` for other hosts",
                address.port()
            )),
            ServeError::Session(error) => error.hint(),
            ServeError::FewDescriptors { needed, .. } => {
                Some(format!("raise the hard limit of open files: `ulimit -Hn {needed}`"))
            }
            ServeError::Unreadable { .. } | ServeError::NotStarted { .. } => None,
        }
    }

    /// Returns true if wrong options of the daemon caused the error, and not the host.
    #[must_use]
    pub const fn is_about_the_input(&self) -> bool {
        matches!(
            self,
            ServeError::NoSuchCpus { .. } | ServeError::Tls(_) | ServeError::NotLoopback { .. }
        )
    }

    /// Returns true if the error is a bug of the daemon.
    #[must_use]
    pub const fn is_bug(&self) -> bool {
        match self {
            ServeError::Session(error) => error.is_bug(),
            _ => false,
        }
    }
}
