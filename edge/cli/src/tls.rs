//! Options of the daemon's front process, and files of its TLS server. The front process parses
//! requests and has no privileges.

use std::path::PathBuf;

use clap::Args;

/// Options of the daemon's front process, which parses requests and has no privileges.
#[derive(Debug, Args)]
pub(crate) struct ServeFront {
    #[command(flatten)]
    pub(crate) tls: Tls,
    /// Also serve metrics, on a listening socket received from `slackline serve`.
    #[arg(long)]
    pub(crate) metrics: bool,
    /// Also serve the web page, on a listening socket received from `slackline serve`.
    #[arg(long)]
    pub(crate) page: bool,
}

/// Files of the TLS server.
#[derive(Debug, Args)]
pub(crate) struct Tls {
    /// Server certificate with its intermediate certificates, as PEM.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) certificate: Option<PathBuf>,
    /// Private key of the certificate, as PEM with mode 0600.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) key: Option<PathBuf>,
    /// CA of client certificates, as PEM [default: accept tokens only].
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) client_ca: Option<PathBuf>,
}

impl Tls {
    pub(crate) fn files(&self) -> Option<slackline_daemon::front::TlsFiles> {
        let (certificate, key) = (self.certificate.clone()?, self.key.clone()?);
        let client_ca = self.client_ca.clone();
        Some(slackline_daemon::front::TlsFiles { certificate, key, client_ca })
    }
}
