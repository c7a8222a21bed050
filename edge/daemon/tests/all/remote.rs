//! Tests of clients on other hosts. The front server serves them only over TLS 1.3, and only with a
//! known token or certificate.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::common::{Front, fine, status};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustix::net::{AddressFamily, SocketType};
use slackline_control::client::{Client, ClientError, Remote, WaitOutcome};
use slackline_control::link::{Answer, Ask, CallerIdentity, Request};
use slackline_control::{Kind, Problem, Role};
use slackline_daemon::front::{self, TlsError, TlsFiles};
use tempfile::TempDir;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

/// A certificate authority for a test, with the files of the certificates that it has signed.
struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let own = params.self_signed(&key).unwrap();
        let authority =
            Authority { folder: tempfile::tempdir().unwrap(), issuer: Issuer::new(params, key) };
        std::fs::write(authority.ca(), own.pem()).unwrap();
        authority
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ca(&self) -> PathBuf {
        self.path("ca")
    }

    /// Signs a certificate that is valid until the year `until`. Returns the paths of the
    /// certificate and of its key.
    fn sign(&self, name: &str, until: i32) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let (certificate, secret) = (self.path(name), self.path(&format!("{name}.key")));
        std::fs::write(&certificate, signed.pem()).unwrap();
        write_private(&secret, &key.serialize_pem());
        (certificate, secret)
    }
}

fn write_private(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

const SECRET: &str = "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f";

fn token() -> String {
    format!("slk_{SECRET}")
}

fn hash(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hash of the certificate that the simulated daemon core knows.
static ENROLLED: OnceLock<String> = OnceLock::new();
/// True after the test has revoked the token.
static REVOKED: AtomicBool = AtomicBool::new(false);

/// Answers a request like a daemon core that knows two credentials: a token with the role operator,
/// and a certificate with the role viewer.
fn knowing(ask: &Ask) -> Option<Result<Answer, Problem>> {
    let role = match &ask.who {
        CallerIdentity::User { .. } => Some(Role::Administrator),
        CallerIdentity::Loopback => None,
        CallerIdentity::Token(known) => {
            (*known == hash(token().as_bytes())).then_some(Role::Operator)
        }
        CallerIdentity::Certificate(known) => {
            (Some(known) == ENROLLED.get()).then_some(Role::Viewer)
        }
    };
    match (role, &ask.request) {
        (None, _) => Some(Err(Problem::new(Kind::NotKnown, "a reason that nobody is told"))),
        (Some(role), Request::Whoami) => Some(Ok(Answer::You(role))),
        _ => fine(ask),
    }
}

/// Answers a request like a daemon core that knows a single token. The token is revoked while the
/// client is connected.
fn revoking(ask: &Ask) -> Option<Result<Answer, Problem>> {
    match ask.who {
        CallerIdentity::Token(_) if REVOKED.load(Ordering::SeqCst) => {
            Some(Err(Problem::new(Kind::NotKnown, "revoked")))
        }
        _ => knowing(ask),
    }
}

struct Served {
    authority: Authority,
    address: SocketAddr,
    front: Front,
}

impl Served {
    fn new(says: crate::common::Says, until: i32) -> Served {
        let authority = Authority::new();
        let (certificate, key) = authority.sign("server", until);
        let files = TlsFiles { certificate, key, client_ca: Some(authority.ca()) };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tls = files.load().unwrap();
        let front = Front::with(says, Some(front::Remote { listener, tls }));
        Served { authority, address, front }
    }

    fn remote(&self) -> Remote {
        let url = format!("https://localhost:{}", self.address.port());
        Remote { url, ca: Some(self.authority.ca()), token: None, certificate: None }
    }

    fn with_token(&self, token: &str) -> Remote {
        let path = self.authority.path("token");
        write_private(&path, token);
        Remote { token: Some(path), ..self.remote() }
    }

    /// Sends bytes over TLS and returns all bytes that the front server sends back.
    fn raw(&self, version: &'static SupportedProtocolVersion, bytes: &[u8]) -> io::Result<String> {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_file(self.authority.ca()).unwrap();
        roots.add(ca).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_protocol_versions(&[version]).unwrap();
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(40)))?;
        let mut stream = StreamOwned::new(connection, stream);
        stream.write_all(bytes)?;
        let mut text = Vec::new();
        match stream.read_to_end(&mut text) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
            _ => Ok(String::from_utf8(text).unwrap()),
        }
    }
}

fn host(remote: &Remote) -> Result<String, ClientError> {
    Ok(Client::connect_to(remote)?.host()?.0.name)
}

#[track_caller]
fn is_not_known(asked: Result<String, ClientError>) {
    match asked {
        Err(ClientError::Refused(problem)) => assert_eq!(problem.kind, Kind::NotKnown),
        other => panic!("{other:?}"),
    }
}

#[test]
fn remote_client_is_answered_only_if_its_token_is_known() {
    let served = Served::new(knowing, 2100);
    assert_eq!(host(&served.with_token(&token())).unwrap(), "here");
    let mut client = Client::connect_to(&served.with_token(&token())).unwrap();
    assert!(client.release("web", None).is_ok());
    is_not_known(host(&served.remote()));
    is_not_known(host(&served.with_token(&token().replace("0f0f", "0f0e"))));
    // All strangers get the same answer, whatever they request and whichever invalid credentials
    // they send.
    let request = |path: &str, more: &str| format!("GET {path} HTTP/1.1\r\nhost: h\r\n{more}\r\n");
    let unknown = format!("authorization: Bearer slk_{}\r\n", "1".repeat(64));
    let twice = format!("authorization: Bearer {0}\r\nauthorization: Bearer {0}\r\n", token());
    let mut answers = Vec::new();
    for (path, more) in
        [("/v1/host", ""), ("/nothing", ""), ("/v1/host", &*unknown), ("/v1/host", &*twice)]
    {
        let text = served.raw(&TLS13, request(path, more).as_bytes()).unwrap();
        let kept = text.lines().filter(|line| !line.starts_with("date:"));
        answers.push(kept.collect::<Vec<_>>().join("\n"));
    }
    assert!(answers[0].starts_with("HTTP/1.1 401 Unauthorized"), "{}", answers[0]);
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert!(!answers[0].contains("reason") && answers[0].contains("content-length: 0"));
}

#[test]
fn remote_connection_with_tls_below_version_1_3_is_refused() {
    let served = Served::new(knowing, 2100);
    let get = b"GET /v1/host HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
    assert!(served.raw(&TLS13, get).is_ok());
    let refused = served.raw(&TLS12, get).unwrap_err();
    assert!(refused.to_string().to_lowercase().contains("protocolversion"), "{refused}");
    let mut plain = TcpStream::connect(served.address).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
    plain.write_all(get).unwrap();
    let mut answer = Vec::new();
    // The connection may also be reset.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    // The connection of a client that sends nothing is closed in time, and delays no other client.
    let mut silent = TcpStream::connect(served.address).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
    let begun = Instant::now();
    assert_eq!(host(&served.with_token(&token())).unwrap(), "here");
    assert!(begun.elapsed() < Duration::from_secs(20));
    let _ = silent.read_to_end(&mut answer);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(served.front.connect().peer_addr().is_ok(), "local clients are no longer served");
}

#[test]
fn client_certificate_must_be_signed_by_the_ca_and_enrolled() {
    let served = Served::new(knowing, 2100);
    let enrolled = served.authority.sign("enrolled", 2100);
    let der = CertificateDer::from_pem_file(&enrolled.0).unwrap();
    ENROLLED.set(hash(&der)).unwrap();
    let with = |certificate| Remote { certificate: Some(certificate), ..served.remote() };
    let known = with(enrolled);
    assert_eq!(host(&known).unwrap(), "here");
    // The certificate's owner is a viewer.
    match Client::connect_to(&known).unwrap().release("web", None) {
        Err(ClientError::Refused(problem)) => assert_eq!(problem.kind, Kind::NotAllowed),
        other => panic!("{other:?}"),
    }
    is_not_known(host(&with(served.authority.sign("another", 2100))));
    for wrong in [Authority::new().sign("stranger", 2100), served.authority.sign("old", 2001)] {
        let asked = host(&with(wrong));
        assert!(!matches!(asked, Ok(_) | Err(ClientError::Refused(_))), "{asked:?}");
    }
}

#[test]
fn client_never_sends_token_to_unverified_server() {
    let served = Served::new(knowing, 2100);
    let other = Authority::new();
    let wrong = Remote { ca: Some(other.ca()), ..served.with_token(&token()) };
    assert!(matches!(host(&wrong), Err(ClientError::Untrusted { .. })));
    let url = format!("https://127.0.0.1:{}", served.address.port());
    let wrong = Remote { url, ..served.with_token(&token()) };
    assert!(
        matches!(host(&wrong), Err(ClientError::Untrusted { .. })),
        "the server has another name"
    );
    let expired = Served::new(knowing, 2001);
    let asked = host(&expired.with_token(&token()));
    assert!(matches!(asked, Err(ClientError::Untrusted { .. })), "{asked:?}");
    assert!(!served.front.has_asked() && !expired.front.has_asked(), "a token was sent");
}

#[test]
fn event_stream_ends_when_its_token_is_revoked() {
    let served = Served::new(revoking, 2100);
    let client = Client::connect_to(&served.with_token(&token())).unwrap();
    let mut stream = client.watch().unwrap();
    let first = stream.hear(Duration::from_secs(20)).unwrap();
    assert!(matches!(first, WaitOutcome::Frame(_)), "{first:?}");
    REVOKED.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    while let Ok(WaitOutcome::Frame(_) | WaitOutcome::Quiet) = stream.hear(Duration::from_secs(1)) {
        assert!(begun.elapsed() < Duration::from_secs(20), "the stream has not ended");
    }
}

#[test]
fn tls_file_that_is_missing_mismatched_or_exposed_is_refused() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("server", 2100);
    let files = TlsFiles { certificate, key, client_ca: None };
    assert!(files.load().is_ok());
    let (_, others) = authority.sign("other", 2100);
    let wrong = TlsFiles { key: others, ..files.clone() };
    assert!(matches!(wrong.load(), Err(TlsError::Unfit { .. })));
    let nothing = TlsFiles { certificate: authority.path("nothing"), ..files.clone() };
    assert!(nothing.load().unwrap_err().to_string().contains("nothing: "));
    let empty = authority.path("empty");
    std::fs::write(&empty, "no certificate").unwrap();
    let empty = TlsFiles { client_ca: Some(empty), ..files.clone() };
    assert!(empty.load().unwrap_err().to_string().contains("it contains no certificate"));
    std::fs::set_permissions(&files.key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = files.load().unwrap_err().to_string();
    assert!(error.ends_with("other users may access it (mode 0640)"), "{error}");
}

/// Connects to the front server from a local address and sends nothing.
fn silent_from(address: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &SocketAddr::from((address, 0)))?;
    rustix::net::connect(&socket, &to)?;
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Returns true if the front server has closed an idle connection.
fn is_closed(mut stream: &TcpStream) -> bool {
    !matches!(stream.read(&mut [0; 64]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

#[test]
fn valid_client_is_served_beside_nine_silent_remote_addresses() {
    let served = Served::new(knowing, 2100);
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let addresses: Vec<Ipv4Addr> =
                (2..11).map(|last| Ipv4Addr::new(127, 0, 0, last)).collect();
            let mut held: Vec<(Ipv4Addr, TcpStream)> = Vec::new();
            while !end.load(Ordering::SeqCst) {
                held.retain(|(_, stream)| !is_closed(stream));
                for &address in &addresses {
                    while held.iter().filter(|(of, _)| *of == address).count() < 4
                        && let Ok(stream) = silent_from(address, served.address)
                    {
                        held.push((address, stream));
                    }
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        std::thread::sleep(Duration::from_millis(500));
        let mut let_in = 0;
        for _ in 0..20 {
            let_in += u32::from(host(&served.with_token(&token())).is_ok());
            std::thread::sleep(Duration::from_millis(50));
        }
        end.store(true, Ordering::SeqCst);
        assert!(let_in >= 18, "{let_in} of 20 requests were answered");
    });
}

#[test]
fn browser_without_session_is_refused_over_tls_despite_valid_token() {
    let served = Served::new(knowing, 2100);
    for (site, code) in [("none", 403), ("cross-site", 403), ("same-origin", 401)] {
        let request = format!(
            "GET /v1/host HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: {site}\r\n\
             authorization: Bearer {}\r\nconnection: close\r\n\r\n",
            token()
        );
        let text = served.raw(&TLS13, request.as_bytes()).unwrap();
        assert_eq!(status(&text), code, "{text}");
    }
    assert!(!served.front.has_asked(), "a refused request reached the core");
}
