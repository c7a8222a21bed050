//! Identity of the peer of a Unix socket or of a loopback connection, as the kernel reports it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use slackline_linux::sys::peer_groups;

/// Returns the user id and all group ids that the peer had when it connected.
///
/// # Errors
/// If the kernel does not report these ids.
pub(super) fn of(socket: BorrowedFd<'_>) -> io::Result<(u32, Vec<u32>)> {
    let peer = socket_peercred(socket)?;
    let mut groups = peer_groups(socket)?;
    groups.push(peer.gid.as_raw());
    Ok((peer.uid.as_raw(), groups))
}

/// Finder of the users at the other ends of loopback connections. It asks the kernel over a netlink
/// socket. The field is `None` if the socket could not be opened, and then no user is found. An
/// example is a systemd unit that does not allow `AF_NETLINK`.
#[derive(Debug)]
pub struct LoopbackPeers(Option<OwnedFd>);

/// Type of a netlink message that asks about a socket, and of the answer (`SOCK_DIAG_BY_FAMILY`).
const BY_FAMILY: u16 = 20;

/// Length of the head of a netlink message.
const MESSAGE_HEAD: usize = 16;

/// Length of a `struct inet_diag_sockid`, which contains the addresses of a connection.
const SOCKET_ID: usize = 48;

impl LoopbackPeers {
    /// Opens the netlink socket. If that fails, no user will be found.
    #[must_use]
    pub fn open() -> LoopbackPeers {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let protocol = Some(netlink::SOCK_DIAG);
        LoopbackPeers(socket_with(family, kind, SocketFlags::CLOEXEC, protocol).ok())
    }

    /// Returns the id of the user who opened a connection from `peer` to `own`. Both addresses are
    /// of this host. `None` if the user cannot be found, or has already closed the connection.
    pub(super) fn user_of(&self, own: SocketAddr, peer: SocketAddr) -> Option<u32> {
        let socket = self.0.as_ref()?;
        let mut id = Vec::with_capacity(SOCKET_ID);
        id.extend(peer.port().to_be_bytes());
        id.extend(own.port().to_be_bytes());
        id.extend(octets(peer.ip()));
        id.extend(octets(own.ip()));
        // Any interface, and any cookie of the kernel.
        id.extend([0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
        let ports = id[..4].to_vec();
        let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        send(socket, &request(family, &id), SendFlags::DONTWAIT).ok()?;
        let mut answer = [0; 512];
        let (length, _) = recv(socket, &mut answer, RecvFlags::DONTWAIT).ok()?;
        let answer = answer.get(..length)?;
        let number = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
        // The head is followed by a `struct inet_diag_msg`: four bytes, the addresses, and five
        // numbers.
        let addresses = MESSAGE_HEAD + 4;
        let numbers = addresses + SOCKET_ID;
        let is_it = kind == BY_FAMILY && answer.get(addresses..addresses + 4)? == ports;
        let (user, inode) = (number(numbers + 12)?, number(numbers + 16)?);
        // A socket without an inode was closed, and its user is no longer known.
        (is_it && inode != 0).then_some(user)
    }
}

/// Returns a netlink message that asks about the TCP socket with the addresses in `id`.
fn request(family: AddressFamily, id: &[u8]) -> Vec<u8> {
    const IS_REQUEST: u16 = 1;
    const TCP: u8 = 6;
    let family = u8::try_from(family.as_raw()).unwrap_or_default();
    let length = u32::try_from(MESSAGE_HEAD + 8 + id.len()).unwrap_or_default();
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(BY_FAMILY.to_ne_bytes());
    message.extend(IS_REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    // A `struct inet_diag_req_v2`: family, protocol, no extensions, and sockets in any state.
    message.extend([family, TCP, 0, 0, 255, 255, 255, 255]);
    message.extend(id);
    message
}

/// Returns an address as the 16 bytes that the kernel expects.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => {
            let mut all = [0; 16];
            all[..4].copy_from_slice(&address.octets());
            all
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn socket_peer_credentials_are_user_and_groups_of_peer_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (uid, groups) = of(ours.as_fd()).unwrap();
        assert_eq!(uid, rustix::process::getuid().as_raw());
        assert!(groups.contains(&rustix::process::getgid().as_raw()), "{groups:?}");
        for group in rustix::process::getgroups().unwrap() {
            assert!(groups.contains(&group.as_raw()), "{groups:?}");
        }
    }
    #[test]
    fn user_of_a_loopback_connection_is_found() {
        let peers = LoopbackPeers::open();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let own = listener.local_addr().unwrap();
            let client = TcpStream::connect(own).unwrap();
            let (_server, peer) = listener.accept().unwrap();
            let uid = rustix::process::getuid().as_raw();
            assert_eq!(peers.user_of(own, peer), Some(uid), "{address}");
            drop(client);
            assert_eq!(peers.user_of(own, peer), None, "the client has closed its socket");
        }
    }

    #[test]
    fn loopback_connection_of_another_user_is_attributed_to_that_user() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: needs root");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap();
        let code = format!("exec 3<>/dev/tcp/127.0.0.1/{}; sleep 60", own.port());
        let mut command = Command::new("bash");
        command.args(["-c", &code]).uid(65_534).gid(65_534).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (_server, peer) = listener.accept().unwrap();
        assert_eq!(LoopbackPeers::open().user_of(own, peer), Some(65_534));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
