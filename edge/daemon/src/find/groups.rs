//! What the cgroup of a process says: whose machine it is, which container, which unit. Groups are
//! made by those who may, so unlike a command line they cannot be chosen by whoever starts a
//! process; their names can, in part.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A group that is known by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// What it is.
    pub(super) what: What,
    /// What it is called, as the kernel has it but for systemd's escapes: any bytes.
    pub(super) name: Vec<u8>,
    /// The whole group, as the kernel names it.
    pub(super) group: PathBuf,
}

/// What a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A container.
    Container,
    /// A unit of systemd.
    Unit,
}

/// The group of version 2 that a process is in, as the kernel names it, by the text of its `cgroup`
/// file. The kernel writes no line break as it is in a name, but as `\012`.
#[must_use]
pub(super) fn unified(text: &[u8]) -> Option<&[u8]> {
    groups(text).find_map(|(controllers, group)| controllers.is_empty().then_some(group))
}

/// Every group that a process is in: its controllers (none for version 2), and its name.
fn groups(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut fields = line.splitn(3, |&byte| byte == b':');
        let _hierarchy = fields.next()?;
        Some((fields.next()?, fields.next()?))
    })
}

/// What libvirt calls the machine that a process is, in as far as it can be part of a group's name:
/// it leaves out what is neither letter nor digit, dot nor hyphen, and cuts long names short.
/// None for a process that libvirt has not put into a machine's group.
#[must_use]
pub(super) fn of_libvirt(text: &[u8]) -> Option<Vec<u8>> {
    groups(text).find_map(|(_, group)| {
        let mut above: Option<&[u8]> = None;
        for part in group.split(|&byte| byte == b'/') {
            // Only root makes groups here, and systemd for root's sake.
            let is_machines = matches!(above, Some(b"machine.slice" | b"machine"));
            if is_machines && let Some(name) = machine(part) {
                return Some(name);
            }
            // Slices may be nested: `machine.slice/machine-important.slice`.
            if !(is_machines && part.ends_with(b".slice")) {
                above = Some(part);
            }
        }
        None
    })
}

/// The name in `machine-qemu-N-NAME.scope`, as systemd has it, or in `qemu-N-NAME.libvirt-qemu`, as
/// libvirt makes it without systemd.
fn machine(part: &[u8]) -> Option<Vec<u8>> {
    let scope = part.strip_prefix(b"machine-").and_then(|part| part.strip_suffix(b".scope"));
    let whole = match scope {
        Some(escaped) => unescape(escaped),
        None => part.strip_suffix(b".libvirt-qemu")?.to_vec(),
    };
    let rest = whole.strip_prefix(b"qemu-")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let name = rest[digits..].strip_prefix(b"-").filter(|_| digits > 0)?;
    Some(name.to_vec())
}

/// What systemd has written as `\xNN`, as it was.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail.strip_prefix(b"x").and_then(|tail| tail.get(..2));
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let meant = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let meant = meant.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match meant {
            Some(meant) if byte == b'\\' => {
                bytes.push(meant);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    bytes
}

/// Whether a machine's group can be that of a machine of this name: what is left of the name, when
/// all but letters and digits are taken away, begins with what is left of the group's.
///
/// A process in the group of one machine may say that it is another one. This tells.
#[must_use]
pub(super) fn fits(of_group: &[u8], name: &[u8]) -> bool {
    /// systemd takes machine names of up to 64 bytes, with driver and number before the name.
    const CUT: usize = 40;
    let plain = |text: &[u8]| -> Vec<u8> {
        text.iter().copied().filter(u8::is_ascii_alphanumeric).collect()
    };
    let (short, whole) = (plain(of_group), plain(name));
    whole.starts_with(&short) && (short.len() == whole.len() || of_group.len() >= CUT)
}

/// The identity that Firecracker's jailer gave: it makes a group `firecracker/ID`.
#[must_use]
pub(super) fn of_jailer(text: &[u8]) -> Option<&[u8]> {
    groups(text).find_map(|(_, group)| {
        let mut parts = group.rsplit(|&byte| byte == b'/');
        let id = parts.next().filter(|id| !id.is_empty())?;
        (parts.next()? == b"firecracker").then_some(id)
    })
}

/// The container or unit that a process of version 2 is in; the innermost, where one is in another.
#[must_use]
pub(super) fn known(group: &[u8]) -> Option<Known> {
    let mut end = group.len();
    loop {
        let start = group[..end].iter().rposition(|&byte| byte == b'/')?;
        let part = &group[start + 1..end];
        let above = group[..start].rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let container = container(part, above).map(|name| (What::Container, name));
        let unit = || part.ends_with(b".service").then(|| (What::Unit, part.to_vec()));
        if let Some((what, name)) = container.or_else(unit) {
            let group = PathBuf::from(OsString::from_vec(group[..end].to_vec()));
            return Some(Known { what, name, group });
        }
        end = start;
    }
}

/// The name of a container, by the name of its group and of the one above it.
fn container(part: &[u8], above: &[u8]) -> Option<Vec<u8>> {
    const SCOPES: [&str; 4] = ["docker-", "libpod-", "cri-containerd-", "crio-"];
    if let Some(scope) = part.strip_suffix(b".scope") {
        let id = SCOPES.iter().find_map(|prefix| scope.strip_prefix(prefix.as_bytes()));
        if let Some(id) = id.filter(|id| is_id(id)) {
            return Some(id.to_vec());
        }
        // `machine-NAME.scope` is of systemd-nspawn, unless it is of a virtual machine.
        let name = unescape(scope.strip_prefix(b"machine-")?);
        let is_machine = above == b"machine.slice" && !name.starts_with(b"qemu-");
        return is_machine.then_some(name);
    }
    if let Some(name) = part.strip_prefix(b"lxc.payload.") {
        return (!name.is_empty()).then(|| name.to_vec());
    }
    let is_runtime = above == b"docker" || above == b"libpod_parent" || above.starts_with(b"pod");
    (is_runtime && is_id(part)).then(|| part.to_vec())
}

/// 64 hexadecimal digits, as all container runtimes have them.
fn is_id(text: &[u8]) -> bool {
    text.len() == 64 && text.iter().all(u8::is_ascii_hexdigit)
}
