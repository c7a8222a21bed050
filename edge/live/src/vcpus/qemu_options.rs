//! Values of options on QEMU's command line, and the monitors that they describe.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Value of one option on QEMU's command line. It has the form `backend,key=value,key,…`. A comma
/// inside a value is written as `,,`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuOptions(Vec<Vec<u8>>);

impl QemuOptions {
    /// Splits an option value at its commas. Does not fail: any bytes are a valid value.
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

    /// Returns the part of the value before the first comma. It is a name, or a key with its value.
    #[must_use]
    pub fn first(&self) -> &[u8] {
        &self.0[0] // An empty value has one empty part.
    }

    /// Returns the value of a key. If the option has the key several times, returns the first
    /// value. `None` if the option does not have the key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.0.iter().find_map(|part| part.strip_prefix(key.as_bytes())?.strip_prefix(b"="))
    }

    fn is_on(&self, key: &str) -> bool {
        self.get(key) == Some(b"on") || self.0.iter().any(|part| part == key.as_bytes())
    }

    /// Returns true if QEMU listens on the socket of this option, and the socket has a path. If the
    /// key `server` is missing, QEMU connects to another process instead of listening. With the key
    /// `abstract`, the socket has no path.
    fn listens(&self) -> bool {
        self.is_on("server") && !self.is_on("abstract")
    }
}

/// Returns the QMP socket on which a QEMU with these arguments listens. Monitors with `pretty` are
/// skipped, because their messages take several lines each. The running time is proportional to the
/// length of the arguments. That matters because any user can choose them.
pub(super) fn qmp_socket_among(words: &[&[u8]]) -> Option<PathBuf> {
    let options = || {
        words.windows(2).filter_map(|pair| {
            let name = pair[0].strip_prefix(b"-")?;
            Some((name.strip_prefix(b"-").unwrap_or(name), pair[1]))
        })
    };
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    // The first socket of each id, with its path if QEMU listens on it.
    let mut devices: BTreeMap<Vec<u8>, Option<PathBuf>> = BTreeMap::new();
    for (_, value) in options().filter(|(name, _)| *name == b"chardev") {
        let value = QemuOptions::parse(value);
        if let Some(id) = value.get("id").filter(|_| value.first() == b"socket") {
            let listening = || value.get("path").filter(|_| value.listens()).map(path);
            devices.entry(id.to_vec()).or_insert_with(listening);
        }
    }
    let device = |id: &[u8]| devices.get(id).cloned().flatten();
    options().find_map(|(name, value)| match name {
        b"qmp" => {
            let value = QemuOptions::parse(value);
            match value.first().strip_prefix(b"unix:") {
                Some(socket) => value.listens().then(|| path(socket)),
                None => device(value.first().strip_prefix(b"chardev:")?),
            }
        }
        b"mon" => {
            let value = QemuOptions::parse(value);
            let is_meant = value.get("mode") == Some(b"control") && !value.is_on("pretty");
            let id = value.get("chardev").unwrap_or(value.first());
            device(id).filter(|_| is_meant)
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn qmp_socket_among_thousands_of_options_is_found_quickly() {
        let mut words: Vec<&[u8]> = [&b"-qmp"[..], b"chardev:none"].repeat(10_000);
        let began = Instant::now();
        assert_eq!(qmp_socket_among(&words), None);
        words.extend([&b"-chardev"[..], b"socket,id=none,path=/run/qmp,server=on"]);
        assert_eq!(qmp_socket_among(&words), Some("/run/qmp".into()));
        let took = began.elapsed();
        assert!(took < Duration::from_secs(1), "it took {took:?}");
    }

    #[test]
    fn first_qemu_socket_with_id_of_the_monitor_is_used() {
        let words: [&[u8]; 10] = [
            b"-mon",
            b"chardev=m,mode=control",
            b"-chardev",
            b"pty,id=m",
            b"-chardev",
            b"socket,id=m,path=/a,server=on",
            b"-chardev",
            b"socket,id=m,path=/b,server=on",
            b"-chardev",
            b"socket,id=n,path=/c",
        ];
        assert_eq!(qmp_socket_among(&words), Some("/a".into()));
        let other = [&b"-qmp"[..], b"chardev:n"];
        assert_eq!(qmp_socket_among(&[&words[..], &other].concat()), Some("/a".into()));
        assert_eq!(qmp_socket_among(&[&words[2..], &other].concat()), None);
    }
}
