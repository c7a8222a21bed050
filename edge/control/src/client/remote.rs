//! Connection to a daemon on another host: TLS 1.3, with a token or a client certificate.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::ClientError;

/// Time limit for connecting, including the TLS handshake.
const CONNECTED_WITHIN: Duration = Duration::from_secs(5);

/// Maximum length of a token, in bytes.
const LONGEST_TOKEN: usize = 256;

/// Address of a daemon on another host, and the client's credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address in the form `https://NAME:PORT`.
    pub url: String,
    /// Certificate of the CA that signed the daemon's certificate. With `None`, connecting fails.
    pub ca: Option<PathBuf>,
    /// File that contains the client's token. `None` if the client has no token.
    pub token: Option<PathBuf>,
    /// Files of the client's certificate and of its private key. `None` if the client has no
    /// certificate.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// Address and credentials of a [`Remote`], read from its files and checked.
#[derive(Clone)]
pub(super) struct RemoteCredentials {
    /// Name and port as `NAME:PORT`.
    pub(super) authority: String,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
    /// Value of the HTTP header `Authorization`. `None` if the client has no token.
    pub(super) bearer: Option<String>,
}

impl std::fmt::Debug for RemoteCredentials {
    /// Writes only the address. Secrets are never written.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "RemoteCredentials({})", self.authority)
    }
}

impl Remote {
    /// Reads and checks the files of the CA's certificate, of the token and of the client's
    /// certificate.
    pub(super) fn read(&self) -> Result<RemoteCredentials, ClientError> {
        let wrong = |says: &str| ClientError::BadHost { url: self.url.clone(), says: says.into() };
        let authority = self.url.strip_prefix("https://").map(|rest| rest.trim_end_matches('/'));
        let authority = authority.ok_or_else(|| wrong("it does not begin with https://"))?;
        let (name, port) = authority.rsplit_once(':').ok_or_else(|| wrong("it has no port"))?;
        if port.parse::<u16>().is_err() {
            return Err(wrong("its port is not a number from 0 to 65535"));
        }
        let bare = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(bare).map_err(|_| wrong("it has no valid host name"))?;
        let ca = self.ca.as_ref().ok_or_else(|| wrong("no CA is given with --ca"))?;
        let mut roots = RootCertStore::empty();
        for one in certificates(ca)? {
            roots.add(one).map_err(|error| bad(ca, error.to_string()))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_protocol_versions(&[&TLS13]);
        let config =
            config.map_err(|error| wrong(&error.to_string()))?.with_root_certificates(roots);
        let mut config = match &self.certificate {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                private(key)?;
                let own = PrivateKeyDer::from_pem_file(key);
                let own = own.map_err(|error| bad(key, error.to_string()))?;
                let fits = config.with_client_auth_cert(certificates(certificate)?, own);
                fits.map_err(|error| bad(certificate, error.to_string()))?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let bearer = self.token.as_deref().map(token).transpose()?;
        let bearer = bearer.map(|token| format!("Bearer {token}"));
        Ok(RemoteCredentials {
            authority: authority.into(),
            name,
            config: Arc::new(config),
            bearer,
        })
    }
}

impl RemoteCredentials {
    /// Connects to the daemon within the time limit [`CONNECTED_WITHIN`].
    pub(super) async fn open(&self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        let host = || self.authority.clone();
        let connecting = async {
            let stream = TcpStream::connect(&self.authority).await;
            let stream = stream.map_err(|source| ClientError::NoHost { host: host(), source })?;
            stream
                .set_nodelay(true)
                .map_err(|source| ClientError::NoHost { host: host(), source })?;
            let connector = TlsConnector::from(Arc::clone(&self.config));
            let stream = connector.connect(self.name.clone(), stream).await;
            stream.map_err(|source| ClientError::Untrusted { host: host(), source })
        };
        let late = |_| ClientError::NoHost { host: host(), source: io::ErrorKind::TimedOut.into() };
        let stream = timeout(CONNECTED_WITHIN, connecting).await.map_err(late)??;
        let (connection, driver) = handshake(TokioIo::new(stream)).await?;
        // The request that uses the connection reports errors of the connection.
        tokio::spawn(async move { driver.await.unwrap_or_default() });
        Ok(connection)
    }
}

fn bad(path: &Path, says: String) -> ClientError {
    ClientError::BadFile { path: path.into(), says }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let all = CertificateDer::pem_file_iter(path).map_err(|error| bad(path, error.to_string()))?;
    let all = all.collect::<Result<Vec<_>, _>>().map_err(|error| bad(path, error.to_string()))?;
    match all.is_empty() {
        true => Err(bad(path, "it contains no certificate".into())),
        false => Ok(all),
    }
}

/// Returns an error if users other than the owner may read or write a file with a secret.
fn private(path: &Path) -> Result<(), ClientError> {
    let about = std::fs::metadata(path).map_err(|error| bad(path, error.to_string()))?;
    match about.permissions().mode() & 0o777 {
        mode if mode & 0o077 != 0 => {
            Err(bad(path, format!("other users may access it (mode {mode:04o}); use `chmod 600`")))
        }
        _ => Ok(()),
    }
}

fn token(path: &Path) -> Result<String, ClientError> {
    private(path)?;
    let text = std::fs::read_to_string(path).map_err(|error| bad(path, error.to_string()))?;
    let text = text.trim();
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    if text.is_empty() || text.len() > LONGEST_TOKEN || !is_plain {
        return Err(bad(path, "it contains no token".into()));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_remote_daemon_address_or_token_file_is_refused() {
        let folder = std::env::temp_dir().join(format!("slackline-remote-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("token");
        std::fs::write(&file, "slk_1\n").unwrap();
        let says = |url: &str, token: Option<PathBuf>| {
            let remote = Remote { url: url.into(), ca: None, token, certificate: None };
            remote.read().unwrap_err().to_string()
        };
        assert!(says("http://a:1", None).contains("does not begin with https://"));
        assert!(says("https://a", None).contains("it has no port"));
        assert!(says("https://a:b", None).contains("port is not a number"));
        assert!(says("https://a:1", None).contains("no CA is given"));
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&file, mode(0o644)).unwrap();
        assert!(
            token(&file).unwrap_err().to_string().contains("other users may access it (mode 0644)")
        );
        std::fs::set_permissions(&file, mode(0o600)).unwrap();
        assert_eq!(token(&file).unwrap(), "slk_1");
        std::fs::write(&file, "two words").unwrap();
        assert!(token(&file).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
