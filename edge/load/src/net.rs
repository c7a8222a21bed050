//! Sockets on the loopback, and the protocols between both ends of a connection.
//!
//! A request is an HTTP/1.0 request on its own connection. The header of the answer has the length
//! of the answer, and the server closes the connection. A ping is a datagram of eight bytes that is
//! sent back unchanged. A stream is a connection with data in one direction only. A request to a
//! file server is two numbers of eight bytes, little-endian. They are the number of requested
//! bytes, and the nanoseconds after which the server should send them.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};
use slackline_units::{Span, Time};

use crate::LoadError;
use crate::clock::monotonic;
use crate::end::End;

/// Size of a ping, and of its answer, in bytes.
pub(crate) const PING: usize = 8;
/// Maximum time that a server waits for its peer to send or receive.
pub(crate) const PATIENCE: Span = Span::from_secs(5);
/// Interval at which a thread that waits for its peer checks whether the load is over.
const LOOK: Duration = Duration::from_millis(100);
/// Maximum size of a header, and of a single receive, in bytes.
const HEADER: usize = 8 << 10;

/// Data to send. Its content does not matter.
pub(crate) static DATA: [u8; 1 << 16] = [0x20; 1 << 16];

/// Returns the loopback address with this port.
pub(crate) fn here(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Listens on a TCP port. Port zero means any free port. At most `waiting` connections wait to be
/// accepted.
pub(crate) fn listener(port: u16, waiting: usize) -> Result<TcpListener, LoadError> {
    let cannot = |error: rustix::io::Errno| LoadError::NoPort { port, source: error.into() };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
    let socket = socket.map_err(cannot)?;
    // Connections that an earlier server left behind must not prevent this server from listening.
    sockopt::set_socket_reuseaddr(&socket, true).map_err(cannot)?;
    bind(&socket, &here(port)).map_err(cannot)?;
    listen(&socket, i32::try_from(waiting).unwrap_or(i32::MAX)).map_err(cannot)?;
    Ok(TcpListener::from(socket))
}

/// Listens on one port number for HTTP requests over TCP and for pings over UDP.
pub(crate) fn requests(port: u16, waiting: usize) -> Result<(TcpListener, UdpSocket), LoadError> {
    // A port that is free for TCP may be taken for UDP, and the reverse.
    const TRIES: usize = 100;
    let mut tries = 0;
    loop {
        let tcp = listener(port, waiting)?;
        let udp = port_of(&tcp).and_then(|port| {
            UdpSocket::bind(here(port)).map_err(|source| LoadError::NoPort { port, source })
        });
        tries += 1;
        match udp {
            Err(LoadError::NoPort { .. }) if port == 0 && tries < TRIES => {}
            Err(error) => return Err(error),
            Ok(udp) => {
                udp.set_nonblocking(true).map_err(|source| LoadError::Network { source })?;
                return Ok((tcp, udp));
            }
        }
    }
}

pub(crate) fn port_of(listener: &TcpListener) -> Result<u16, LoadError> {
    let address = listener.local_addr().map_err(|source| LoadError::Network { source })?;
    Ok(address.port())
}

/// Starts a TCP connection without waiting. The stream becomes writable when the connection is
/// made, or when it has failed.
pub(crate) fn connecting(to: SocketAddr) -> io::Result<TcpStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    match connect(&socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// Makes a TCP connection. Its reads and writes return at intervals even without progress, so that
/// the caller can check whether the load is over. `window` is the approximate number of bytes in
/// flight, within the limits of the kernel.
pub(crate) fn connected(to: SocketAddr, window: Option<u64>) -> Result<TcpStream, LoadError> {
    let none = |source: io::Error| LoadError::NoServer { to, source };
    let cannot = |error: rustix::io::Errno| none(error.into());
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
    let socket = socket.map_err(cannot)?;
    if let Some(window) = window {
        let window = usize::try_from(window).unwrap_or(usize::MAX).min(1 << 30);
        // The kernel doubles this value, to include its own data structures.
        sockopt::set_socket_send_buffer_size(&socket, window).map_err(cannot)?;
        sockopt::set_socket_recv_buffer_size(&socket, window).map_err(cannot)?;
    }
    connect(&socket, &to).map_err(cannot)?;
    let stream = TcpStream::from(socket);
    patient(&stream).map_err(none)?;
    Ok(stream)
}

/// Sets timeouts on a connection. Its reads and writes then return at intervals, so that the caller
/// can check whether the load is over.
pub(crate) fn patient(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_write_timeout(Some(LOOK))
}

/// Result of an exchange of data with the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeOutcome {
    /// All data was sent or received.
    Whole,
    /// The peer has closed the connection, was silent for too long, or sent malformed data.
    Gone,
    /// The load is over.
    End,
}

fn is_waiting(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Sends `bytes` bytes of data and adds their number to `sent`. Stops if the load ends, or if the
/// time `until` has passed and the peer accepts no more data.
pub(crate) fn send_data(
    mut stream: &TcpStream,
    bytes: u64,
    (until, end): (Time, &End),
    sent: &mut u64,
) -> Result<ExchangeOutcome, LoadError> {
    let mut left = bytes;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(DATA.len());
        match stream.write(&DATA[..most]) {
            Ok(count) => {
                *sent += count as u64;
                left -= count as u64;
            }
            Err(error) if is_waiting(&error) => {
                if end.is_over()? {
                    return Ok(ExchangeOutcome::End);
                }
                if monotonic() >= until {
                    return Ok(ExchangeOutcome::Gone);
                }
            }
            Err(_) => return Ok(ExchangeOutcome::Gone),
        }
    }
    Ok(ExchangeOutcome::Whole)
}

/// Sends a short header, for which the send buffer of a connection always has space.
pub(crate) fn send_header(mut stream: &TcpStream, header: &[u8]) -> ExchangeOutcome {
    if stream.write_all(header).is_ok() { ExchangeOutcome::Whole } else { ExchangeOutcome::Gone }
}

/// Receives data until `is_whole` returns true for a received piece. Stops if the load ends, or if
/// the time `until` has passed and the peer sends no more data.
pub(crate) fn receive(
    mut stream: &TcpStream,
    (until, end): (Time, &End),
    is_whole: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<ExchangeOutcome, LoadError> {
    let mut bytes = [0; HEADER];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(ExchangeOutcome::Gone),
            Ok(count) if is_whole(&bytes[..count]) => return Ok(ExchangeOutcome::Whole),
            Ok(_) => {}
            Err(error) if is_waiting(&error) => {
                if end.is_over()? {
                    return Ok(ExchangeOutcome::End);
                }
                if monotonic() >= until {
                    return Ok(ExchangeOutcome::Gone);
                }
            }
            Err(_) => return Ok(ExchangeOutcome::Gone),
        }
    }
}

/// Receives an HTTP request, or any data that ends with an empty line.
pub(crate) fn receive_request(stream: &TcpStream, end: &End) -> Result<ExchangeOutcome, LoadError> {
    let mut head = Head::default();
    let until = monotonic().after(PATIENCE);
    let mut is_bad = false;
    let talk = receive(stream, (until, end), &mut |bytes| {
        head.take(bytes);
        is_bad = head.is_bad();
        is_bad || head.body.is_some()
    })?;
    Ok(if is_bad { ExchangeOutcome::Gone } else { talk })
}

/// Header of an HTTP request or answer, received in pieces.
#[derive(Debug, Default)]
pub(crate) struct Head {
    text: Vec<u8>,
    /// Number of bytes that arrived after the header. `None` if the header is not complete.
    pub(crate) body: Option<u64>,
}

impl Head {
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
        let end = self.text.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(end) = end {
            self.body = Some((self.text.len() - end - 4) as u64);
            self.text.truncate(end);
        }
    }

    /// Returns true if the header exceeds the maximum size. It then counts as malformed.
    pub(crate) fn is_bad(&self) -> bool {
        self.body.is_none() && self.text.len() > HEADER
    }

    /// Returns the body length in the header of a successful answer. `None` if the header is not
    /// that of a successful answer, or states no length.
    pub(crate) fn length(&self) -> Option<u64> {
        let text = std::str::from_utf8(&self.text).ok()?;
        let mut lines = text.split("\r\n");
        let is_good = lines.next()?.split(' ').nth(1) == Some("200");
        let length = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        length.filter(|_| is_good)
    }
}

/// Text of an HTTP request.
pub(crate) const REQUEST: &[u8] = b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n";

/// Returns the HTTP header of an answer with a body of `bytes` bytes.
pub(crate) fn answer_header(bytes: u64) -> String {
    format!(
        "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {bytes}\r\n\
         Connection: close\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_header_is_parsed_for_any_chunk_size() {
        let whole = answer_header(10) + "0123456789";
        for length in 1..whole.len() {
            let (mut head, mut body) = (Head::default(), 0);
            for piece in whole.as_bytes().chunks(length) {
                match head.body {
                    None => {
                        head.take(piece);
                        body = head.body.unwrap_or(0);
                    }
                    Some(_) => body += piece.len() as u64,
                }
            }
            assert_eq!((head.length(), body), (Some(10), 10), "in pieces of {length}");
        }
    }

    #[test]
    fn http_answer_that_is_unsuccessful_or_malformed_has_no_length() {
        for text in [
            "HTTP/1.0 404 Not Found\r\nContent-Length: 10\r\n\r\n",
            "HTTP/1.0 200 OK\r\n\r\n",
            "HTTP/1.0 200 OK\r\nContent-Length: ten\r\n\r\n",
            "\r\n\r\n",
        ] {
            let mut head = Head::default();
            head.take(text.as_bytes());
            assert_eq!((head.length(), head.body), (None, Some(0)), "{text}");
        }
    }
}
