//! Transfer of listening sockets from the core process to the front process. The sockets are sent
//! over the link between the processes, before the first message.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Byte that is sent with the descriptor. A descriptor cannot be sent without data.
const CARRIER: [u8; 1] = *b"\n";

/// Sends a listening socket to the front process over the link.
///
/// # Errors
/// If the kernel refuses to send the socket.
pub(crate) fn hand_over(link: &UnixStream, listener: &TcpListener) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [listener.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(link, &[IoSlice::new(&CARRIER)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Waits for the listening socket that is sent over the link.
///
/// # Errors
/// If anything other than a socket is received.
pub(super) fn take(link: &UnixStream) -> io::Result<TcpListener> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut carrier = CARRIER;
    let mut parts = [IoSliceMut::new(&mut carrier)];
    recvmsg(link, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let handed = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let none =
        || io::Error::new(io::ErrorKind::InvalidData, "no socket was passed to the front process");
    handed.map(TcpListener::from).ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn listening_socket_that_is_passed_to_another_process_accepts_connections() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        hand_over(&ours, &listener).unwrap();
        drop(listener);
        let listener = take(&theirs).unwrap();
        assert_eq!(listener.local_addr().unwrap(), address);
        assert!(TcpStream::connect(address).is_ok());
        drop(ours);
        assert!(take(&theirs).is_err());
    }
}
