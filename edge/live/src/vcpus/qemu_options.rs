//! Values of options on QEMU's command line, and the monitors that they describe.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Value of an option on QEMU's command line: `backend,key=value,key,…`. A comma inside a value is
/// written as `,,`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuOptions(Vec<Vec<u8>>);

impl QemuOptions {
    /// Splits an option value at its commas. Any bytes are a valid value.
    #[must_use]
    pub fn parse(value: &[u8]) -> Self {
        let mut parts = vec![Vec::new()];
        let mut bytes = value.iter().copied().peekable();
        while let Some(byte) = bytes.next() {
            if byte == b',' && bytes.next_if_eq(&b',').is_none() {
                parts.push(Vec::new());
            } else if let Some(part) = parts.last_mut() {
                part.push(byte);
            }
        }
        Self(parts)
    }

    /// Returns the part before the first comma: a name, or a key with its value.
    #[must_use]
    pub fn first(&self) -> &[u8] {
        &self.0[0] // An empty value has one empty part.
    }

    /// Returns the value of a key. If the option has the key several times, the first value counts.
    /// `None` if the option does not have the key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.0.iter().find_map(|part| part.strip_prefix(key.as_bytes())?.strip_prefix(b"="))
    }

    fn is_on(&self, key: &str) -> bool {
        self.get(key) == Some(b"on") || self.0.iter().any(|part| part == key.as_bytes())
    }

    /// Returns true if QEMU listens on the socket of this option, and the socket has a path.
    /// Without `server`, QEMU connects to another process instead. With `abstract`, the socket has
    /// no path.
    fn listens(&self) -> bool {
        self.is_on("server") && !self.is_on("abstract")
    }
}

/// Returns the QMP socket on which a QEMU with these arguments listens. Monitors with `pretty` are
/// skipped, because their messages take several lines each.
pub(super) fn qmp_socket_among(words: &[&[u8]]) -> Option<PathBuf> {
    let options = || {
        words.windows(2).filter_map(|pair| {
            let name = pair[0].strip_prefix(b"-")?;
            Some((name.strip_prefix(b"-").unwrap_or(name), QemuOptions::parse(pair[1])))
        })
    };
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let device = |id: &[u8]| {
        let mut devices = options().filter(|(name, _)| *name == b"chardev").map(|(_, it)| it);
        let socket = devices.find(|it| it.get("id") == Some(id) && it.first() == b"socket")?;
        socket.get("path").filter(|_| socket.listens()).map(path)
    };
    options().find_map(|(name, value)| match name {
        b"qmp" => match value.first().strip_prefix(b"unix:") {
            Some(socket) => value.listens().then(|| path(socket)),
            None => device(value.first().strip_prefix(b"chardev:")?),
        },
        b"mon" if value.get("mode") == Some(b"control") && !value.is_on("pretty") => {
            device(value.get("chardev").unwrap_or(value.first()))
        }
        _ => None,
    })
}
