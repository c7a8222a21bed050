//! TLS 1.3 for clients on other hosts: configuration of the server, and identification of clients
//! by their credentials.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::digest::{SHA256, digest};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{
    NoServerSessionStorage, ServerConnection, WebPkiClientVerifier,
};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// Files for TLS. The front process reads them as root, before it drops its rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// File with the certificate of the daemon and the chain of certificates up to its root.
    pub certificate: PathBuf,
    /// File with the private key of the certificate. Only its owner may be able to read the file.
    pub key: PathBuf,
    /// File with the certificate of the CA that signs client certificates. `None` if clients have
    /// only tokens.
    pub client_ca: Option<PathBuf>,
}

/// Reason why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing or invalid.
    #[error("cannot use {}: {says}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem.
        says: String,
    },
    /// Users other than the owner of the key file may access the file.
    #[error("cannot use {}: other users may access it (mode {mode:04o})", path.display())]
    Open {
        /// Path of the key file.
        path: PathBuf,
        /// Permission bits of the key file.
        mode: u32,
    },
    /// Certificate and key do not match.
    #[error("cannot use {} with its key: {says}", path.display())]
    Unfit {
        /// Path of the certificate.
        path: PathBuf,
        /// Error of the TLS library.
        says: String,
    },
}

impl TlsError {
    /// Returns advice on how to fix the problem with the TLS files.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            TlsError::File { .. } => "use PEM files for certificates and keys",
            TlsError::Open { .. } => "restrict the file with `chmod 600`",
            TlsError::Unfit { .. } => "give --key the key of this certificate",
        }
    }
}

impl TlsFiles {
    /// Reads the files and returns a TLS configuration from them. With this configuration, only TLS
    /// 1.3 is accepted, sessions are not resumed, and no data is accepted before the handshake is
    /// complete.
    ///
    /// # Errors
    /// If a file is missing or invalid, if other users may access the key, or if the key does not
    /// match the certificate.
    pub fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let chain = certificates(&self.certificate)?;
        let key = private(&self.key)?;
        let provider = Arc::new(default_provider());
        let unfit = |says: String| TlsError::Unfit { path: self.certificate.clone(), says };
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let config = config.with_protocol_versions(&[&TLS13]);
        let config = config.map_err(|error| unfit(error.to_string()))?;
        let config = match &self.client_ca {
            None => config.with_no_client_auth(),
            Some(path) => {
                let wrong = |says: String| TlsError::File { path: path.clone(), says };
                let mut roots = RootCertStore::empty();
                for one in certificates(path)? {
                    roots.add(one).map_err(|error| wrong(error.to_string()))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                // A client without a certificate may have a token.
                let verifier = verifier.allow_unauthenticated().build();
                config.with_client_cert_verifier(verifier.map_err(|e| wrong(e.to_string()))?)
            }
        };
        let mut config =
            config.with_single_cert(chain, key).map_err(|error| unfit(error.to_string()))?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |says: String| TlsError::File { path: path.to_path_buf(), says };
    let all = CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?;
    let all = all.collect::<Result<Vec<_>, _>>().map_err(|error| wrong(error.to_string()))?;
    if all.is_empty() { Err(wrong("it contains no certificate".into())) } else { Ok(all) }
}

/// Loads a private key from a file that only its owner may read.
fn private(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let wrong = |says: String| TlsError::File { path: path.to_path_buf(), says };
    let about = std::fs::metadata(path).map_err(|error: io::Error| wrong(error.to_string()))?;
    let mode = about.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(TlsError::Open { path: path.to_path_buf(), mode });
    }
    PrivateKeyDer::from_pem_file(path).map_err(|error| wrong(error.to_string()))
}

/// Returns the identifier of a credential: the SHA-256 of its bytes, in hexadecimal digits.
pub(crate) fn known_by(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the identifier of the client's certificate. `None` if the client has sent no
/// certificate. The TLS handshake has verified that the client CA signed the certificate, and that
/// the client has the key of the certificate.
pub(super) fn certificate_of(connection: &ServerConnection) -> Option<String> {
    let certificate = connection.peer_certificates()?.first()?;
    Some(known_by(certificate))
}

/// Returns the identifier of the certificate in a PEM text. `None` if the text contains no
/// certificate.
pub(super) fn certificate_in(pem: &str) -> Option<String> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    // The certificate is not verified here. TLS verifies it when its owner connects.
    (!der.is_empty()).then(|| known_by(&der))
}

/// Returns the identifier of the token in an HTTP header. `None` if the header does not have the
/// form `Bearer TOKEN`.
pub(super) fn token_in(header: &str) -> Option<String> {
    let token = header.strip_prefix("Bearer ")?;
    let secret = token.strip_prefix(TOKEN)?;
    let is_hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    (secret.len() == 64 && secret.as_bytes().iter().all(is_hex)).then(|| known_by(token.as_bytes()))
}

/// Prefix of all tokens. By this prefix, tools that scan repositories for leaked secrets can find
/// tokens.
pub(crate) const TOKEN: &str = "slk_";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_well_formed_bearer_token_is_hashed() {
        let secret = "0f".repeat(32);
        let known = token_in(&format!("Bearer slk_{secret}")).unwrap();
        assert_eq!(known, known_by(format!("slk_{secret}").as_bytes()));
        assert_eq!(known.len(), 64);
        for wrong in [
            String::new(),
            format!("slk_{secret}"),
            format!("bearer slk_{secret}"),
            format!("Bearer {secret}"),
            format!("Bearer slk_{}", &secret[1..]),
            format!("Bearer slk_{}", secret.to_uppercase()),
            format!("Basic slk_{secret}"),
        ] {
            assert_eq!(token_in(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn hash_of_a_bearer_token_is_its_sha256() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(known_by(b""), empty);
    }
}
