//! The agent's channel to the host: a virtio-serial port of the VM, or a Unix socket to which the
//! host connects.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use slackline_units::frame::FRAME;

/// Name of the virtio-serial port in the guest.
pub const PORT: &str = "slackline.gaps.0";

/// Location of the channel to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelPlace {
    /// A port of virtio-serial, by its name.
    Port(String),
    /// A Unix socket, on which the agent listens for a host.
    Socket(PathBuf),
}

/// Error: the agent could not open its channel to the host.
#[derive(Debug)]
pub struct NoChannel {
    to: ChannelPlace,
    source: io::Error,
}

impl fmt::Display for NoChannel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            ChannelPlace::Port(name) => {
                write!(out, "cannot open the virtio-serial port `{name}`: {}", self.source)
            }
            ChannelPlace::Socket(path) => {
                write!(out, "cannot listen at {}: {}", path.display(), self.source)
            }
        }
    }
}

impl std::error::Error for NoChannel {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// The open channel to the host.
pub(crate) enum Channel {
    Port(File),
    Socket { listener: UnixListener, path: PathBuf, host: Option<UnixStream> },
}

impl Channel {
    pub(crate) fn open(to: &ChannelPlace) -> Result<Channel, NoChannel> {
        let opened = match to {
            ChannelPlace::Port(name) => port(name).map(Channel::Port),
            ChannelPlace::Socket(path) => listen(path),
        };
        opened.map_err(|source| NoChannel { to: to.clone(), source })
    }

    /// Accepts the connection of a waiting host. Returns true if a host was accepted, which then
    /// needs all reports. Returns false if no host waits, and always for a virtio-serial port.
    pub(crate) fn has_news(&mut self) -> bool {
        let Channel::Socket { listener, host, .. } = self else { return false };
        match listener.accept() {
            Ok((stream, _)) => {
                *host = stream.set_nonblocking(true).is_ok().then_some(stream);
                true
            }
            Err(_) => false,
        }
    }

    /// Sends a frame without blocking. Returns false if the frame was not sent completely, because
    /// the host does not read fast enough or is not connected.
    pub(crate) fn send(&mut self, frame: &[u8; FRAME]) -> bool {
        let sent = match self {
            Channel::Port(file) => file.write(frame),
            Channel::Socket { host: Some(host), .. } => host.write(frame),
            Channel::Socket { host: None, .. } => return false,
        };
        // A frame that was sent only in part counts as not sent. The host finds the start of the
        // next frame.
        matches!(sent, Ok(FRAME))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Channel::Socket { path, .. } = self {
            let _ = fs::remove_file(path);
        }
    }
}

/// Opens the virtio-serial port `name`. Works also in guests in which udev makes no links to the
/// ports.
fn port(name: &str) -> io::Result<File> {
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let open = |path: &Path| OpenOptions::new().write(true).custom_flags(nonblocking).open(path);
    let link = Path::new("/dev/virtio-ports").join(name);
    if link.exists() {
        return open(&link);
    }
    for entry in fs::read_dir("/sys/class/virtio-ports")?.flatten() {
        let named = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if named.trim_end() == name {
            return open(&Path::new("/dev").join(entry.file_name()));
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Listens for the host at the socket path `path`. A socket file that already exists at the path is
/// removed first.
fn listen(path: &Path) -> io::Result<Channel> {
    if path.symlink_metadata().is_ok_and(|it| it.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(Channel::Socket { listener, path: path.into(), host: None })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// If the host stops reading, the channel fills up. The agent then drops a report that does not
    /// fit into the channel, and does not block.
    #[test]
    fn agent_drops_report_instead_of_blocking_if_channel_is_full() {
        let folder = std::env::temp_dir().join(format!("slackline-agent-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("socket");
        let mut channel = Channel::open(&ChannelPlace::Socket(path.clone())).expect("a socket");
        assert!(!channel.has_news() && !channel.send(&[1; FRAME]));
        let mut host = UnixStream::connect(&path).expect("the agent listens");
        assert!(channel.has_news() && !channel.has_news());
        let sent = (0..1_000_000).take_while(|_| channel.send(&[1; FRAME])).count();
        assert!(sent < 1_000_000, "the buffer of a socket is finite");
        let mut bytes = vec![0; sent * FRAME];
        host.read_exact(&mut bytes).expect("all sent bytes arrive");
        assert!(channel.send(&[2; FRAME]));
        drop(host);
        assert!(!channel.send(&[3; FRAME]));
        drop(channel);
        assert!(!path.exists());
        fs::remove_dir(&folder).expect("the folder is empty");
    }

    #[test]
    fn error_about_a_missing_virtio_serial_port_names_the_port() {
        let error =
            Channel::open(&ChannelPlace::Port("slackline.none".into())).err().expect("no port");
        assert!(
            error.to_string().starts_with("cannot open the virtio-serial port `slackline.none`: ")
        );
    }
}
