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
/// None for a process that is not below `/machine.slice` or `/machine`, where only root makes
/// groups, and systemd for root's sake. A domain that its owner has put elsewhere, by a
/// `<partition>`, is a QEMU like any other.
pub(super) fn of_libvirt(text: &[u8]) -> Option<Vec<u8>> {
    groups(text).find_map(|(_, group)| {
        let mut parts = group.split(|&byte| byte == b'/').skip(1);
        if !matches!(parts.next()?, b"machine.slice" | b"machine") {
            return None;
        }
        // Slices may be nested: `machine.slice/machine-important.slice`.
        machine(parts.find(|part| !part.ends_with(b".slice"))?)
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
    // Of a name without a letter, digit, dot or hyphen nothing is left, nor a hyphen before it.
    let name = match &rest[digits..] {
        [] => &[][..],
        rest => rest.strip_prefix(b"-")?,
    };
    (digits > 0).then(|| name.to_vec())
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
pub(super) fn of_jailer(text: &[u8]) -> Option<&[u8]> {
    groups(text).find_map(|(_, group)| {
        let mut parts = group.rsplit(|&byte| byte == b'/');
        let id = parts.next().filter(|id| !id.is_empty())?;
        (parts.next()? == b"firecracker").then_some(id)
    })
}

/// The container or unit that a process of version 2 is in; the innermost, where one is in another.
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

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Of libvirt 9.0 without systemd, on a host with both versions of cgroups.
    const WITHOUT_SYSTEMD: &[u8] = b"9:name=systemd:/
8:pids:/
7:blkio:/machine/qemu-1-myvm2ndab.libvirt-qemu
3:cpuset:/machine/qemu-1-myvm2ndab.libvirt-qemu/emulator
1:cpu:/machine/qemu-1-myvm2ndab.libvirt-qemu/emulator
0::/machine/qemu-1-myvm2ndab.libvirt-qemu/emulator
";

    fn scope(name: &str) -> Vec<u8> {
        format!("0::/machine.slice/machine-qemu\\x2d2\\x2d{name}.scope/libvirt/emulator\n").into()
    }

    #[test]
    fn a_domain_of_libvirt_is_known_by_its_group() {
        assert_eq!(of_libvirt(WITHOUT_SYSTEMD), Some(b"myvm2ndab".into()));
        assert_eq!(of_libvirt(&scope("ubuntu22.04")), Some(b"ubuntu22.04".into()));
        assert_eq!(of_libvirt(&scope("a\\x2db")), Some(b"a-b".into()));
        for of_no_letters in [
            "0::/machine.slice/machine-qemu\\x2d1.scope/libvirt/emulator\n",
            "0::/machine/qemu-1.libvirt-qemu\n",
        ] {
            let name = of_libvirt(of_no_letters.as_bytes());
            assert_eq!(name.as_deref(), Some(&b""[..]), "{of_no_letters}");
        }
        assert!(fits(b"", "тест".as_bytes()) && !fits(b"", b"web"));
        let nested = b"0::/machine.slice/machine-gold.slice/machine-qemu\\x2d2\\x2dweb.scope\n";
        assert_eq!(of_libvirt(nested), Some(b"web".into()));
    }

    #[test]
    fn a_group_that_anybody_can_make_is_none_of_libvirt() {
        for group in [
            "0::/user.slice/user-1000.slice/user@1000.service/machine-qemu\\x2d2\\x2dweb.scope\n",
            "0::/user.slice/machine/qemu-1-web.libvirt-qemu\n0::/machine-qemu-1-web.scope\n",
            "0::/machine.slice/machine-lxc\\x2d2\\x2dweb.scope\n",
            "0::/machine.slice/machine-qemu\\x2dx\\x2dweb.scope\n",
            "0::/machine.slice/a.scope/machine-qemu\\x2d1\\x2dweb.scope\n",
            "0::/machine.slice/qemu-1-web\n",
            "",
        ] {
            assert_eq!(of_libvirt(group.as_bytes()), None, "{group}");
        }
    }

    #[test]
    fn a_group_fits_the_name_that_libvirt_made_it_from() {
        assert!(fits(b"myvm2ndab", b"my vm: 2nd, \"a,b\""));
        assert!(fits(b"ubuntu22.04", b"ubuntu22.04"));
        assert!(!fits(b"web", b"db"));
        // The machine `web` cannot be had by one that is called nearly so.
        assert!(!fits(b"web", b"web2"));
        assert!(!fits(b"web2", b"web"));
        let long = "a".repeat(200);
        assert!(fits(&long.as_bytes()[..50], long.as_bytes()));
    }

    #[test]
    fn containers_and_units_are_known_by_their_groups() {
        let id = "0123456789abcdef".repeat(4);
        let found = |group: String| {
            known(group.as_bytes()).map(|known| {
                let group = known.group.to_str().expect("text").to_owned();
                (known.what, String::from_utf8(known.name).expect("text"), group)
            })
        };
        for (group, end) in [
            (format!("/system.slice/docker-{id}.scope"), ""),
            (format!("/system.slice/docker-{id}.scope"), "/init"),
            (format!("/docker/{id}"), "/a/b"),
            (format!("/machine.slice/libpod-{id}.scope"), "/container"),
            (format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope"), ""),
            (format!("/kubepods/besteffort/pod1-2/{id}"), ""),
        ] {
            let expected = Some((What::Container, id.clone(), group.clone()));
            assert_eq!(found(group.clone() + end), expected, "{group}");
        }
        let nspawn = "/machine.slice/machine-deb\\x2d12.scope";
        let expected = Some((What::Container, "deb-12".to_owned(), nspawn.to_owned()));
        assert_eq!(found(format!("{nspawn}/payload")), expected);
        let unit = "/system.slice/system-a.slice/a@1.service";
        let expected = Some((What::Unit, "a@1.service".to_owned(), unit.to_owned()));
        assert_eq!(found(format!("{unit}/child")), expected);
        for none in ["/", "", "/user.slice/user-0.slice/session-1.scope", "/docker/short"] {
            assert_eq!(found(none.to_owned()), None, "{none}");
        }
    }

    #[test]
    fn a_jail_tells_its_id() {
        assert_eq!(of_jailer(b"0::/firecracker/web-1\n"), Some(b"web-1".as_slice()));
        assert_eq!(of_jailer(b"0::/a/firecracker/web-1\n"), Some(b"web-1".as_slice()));
        assert_eq!(of_jailer(b"0::/firecracker/\n0::/x/y\n"), None);
    }

    proptest! {
        #[test]
        fn garbage_is_no_more_than_garbage(text in vec(any::<u8>(), 0..200)) {
            of_libvirt(&text);
            of_jailer(&text);
            unified(&text);
            known(&text);
            unescape(&text);
        }

        #[test]
        fn parts_in_any_order_are_read(
            parts in vec(prop::sample::select(vec![
                "/", "machine.slice", "machine", "machine-qemu", "\\x2d", "\\x2", "\\", "-", "1",
                "web", ".scope", ".service", ".libvirt-qemu", "qemu-1-", "0::", "\n", ":",
                "machine-", "docker-", "lxc.payload.", "firecracker",
            ]), 0..12),
        ) {
            let text = parts.concat();
            for text in [text.as_bytes(), format!("0::/{text}").as_bytes()] {
                of_libvirt(text);
                of_jailer(text);
                unified(text).and_then(known);
            }
        }

        /// However a name is put together, the group that is made of it fits it.
        #[test]
        fn a_group_made_from_a_name_fits_it(name in "[ -~]{1,80}") {
            let kept: String = name.chars().filter(char::is_ascii_alphanumeric).take(40).collect();
            prop_assert!(fits(kept.as_bytes(), name.as_bytes()));
        }
    }
}
