//! Cgroups of a process, which identify the libvirt domain, container or systemd unit of the
//! process.
//!
//! Cgroups are more reliable than command lines, which any user can choose: making a cgroup needs
//! write access to its parent. Still, users can choose parts of some cgroup names.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A cgroup of a known kind, recognised by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownGroup {
    /// Kind of the cgroup.
    pub(super) what: GroupKind,
    /// Name of the cgroup as the kernel's bytes, with systemd's escapes resolved. The bytes may be
    /// invalid as text.
    pub(super) name: Vec<u8>,
    /// Path of the cgroup, in the form that `/proc/PID/cgroup` has.
    pub(super) group: PathBuf,
}

/// Kind of a known cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupKind {
    /// A container of any runtime.
    Container,
    /// A unit of systemd.
    Unit,
}

/// Returns the version 2 cgroup of a process, from the text of its `cgroup` file. `None` if the
/// file names no such cgroup. A line break in a cgroup's name appears as `\012` in that file.
pub(super) fn unified(text: &[u8]) -> Option<&[u8]> {
    groups(text).find_map(|(controllers, group)| controllers.is_empty().then_some(group))
}

/// Returns the cgroups of a process as pairs of controllers and path. The controllers are empty for
/// version 2.
fn groups(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut fields = line.splitn(3, |&byte| byte == b':');
        let _hierarchy = fields.next()?;
        Some((fields.next()?, fields.next()?))
    })
}

/// Returns the name of the libvirt VM that a process runs, as it appears in its cgroup's name. In
/// the cgroup's name, libvirt drops all characters except letters, digits, dots and hyphens, and
/// shortens long VM names.
///
/// Returns `None` if the process is outside of `/machine.slice` and `/machine`. Only root, or
/// systemd on behalf of root, creates cgroups there. A domain whose owner has moved it elsewhere
/// with `<partition>` counts as an ordinary QEMU.
pub(super) fn of_libvirt(text: &[u8]) -> Option<Vec<u8>> {
    groups(text).find_map(|(_, group)| {
        let mut parts = group.split(|&byte| byte == b'/').skip(1);
        if !matches!(parts.next()?, b"machine.slice" | b"machine") {
            return None;
        }
        // Slices may be nested: `machine.slice/machine-important.slice`. Without systemd, libvirt
        // puts the VMs of a partition below `machine/important.partition`.
        let is_above = |part: &&[u8]| part.ends_with(b".slice") || part.ends_with(b".partition");
        machine(parts.find(|part| !is_above(part))?)
    })
}

/// Returns the name of a VM, from the name of its cgroup. The cgroup's name is
/// `machine-qemu-N-NAME.scope` if systemd created the cgroup, and `qemu-N-NAME.libvirt-qemu` if
/// libvirt did.
fn machine(part: &[u8]) -> Option<Vec<u8>> {
    let scope = part.strip_prefix(b"machine-").and_then(|part| part.strip_suffix(b".scope"));
    let whole = match scope {
        Some(escaped) => unescape(escaped),
        None => part.strip_suffix(b".libvirt-qemu")?.to_vec(),
    };
    let rest = whole.strip_prefix(b"qemu-")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // libvirt leaves out all characters except letters, digits, dots and hyphens. If none of the
    // name is left, the hyphen before the name is missing too.
    let name = match &rest[digits..] {
        [] => &[][..],
        rest => rest.strip_prefix(b"-")?,
    };
    (digits > 0).then(|| name.to_vec())
}

/// Resolves systemd's escapes: `\xNN` becomes the byte NN.
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

/// Returns true if a cgroup whose name contains `of_group` can belong to a VM named `name`. The
/// comparison ignores characters other than letters and digits. `name` must begin with `of_group`.
/// If `of_group` is so short that it cannot have been cut off, both must be equal.
///
/// The comparison detects a process that is in the cgroup of one VM and claims to be another VM.
pub(super) fn fits(of_group: &[u8], name: &[u8]) -> bool {
    /// Minimum length of a VM's name in a cgroup that may have been shortened. Systemd allows 64
    /// bytes for the whole name `qemu-NUMBER-NAME`, and the NUMBER has a varying length. So a
    /// shortened NAME has somewhat less than 64 bytes, and 40 is a safe lower bound.
    const CUT: usize = 40;
    let plain = |text: &[u8]| -> Vec<u8> {
        text.iter().copied().filter(u8::is_ascii_alphanumeric).collect()
    };
    let (short, whole) = (plain(of_group), plain(name));
    whole.starts_with(&short) && (short.len() == whole.len() || of_group.len() >= CUT)
}

/// Returns the id of a VM, from the cgroup `firecracker/ID` that Firecracker's jailer makes for the
/// VM. `None` if the process is in no such cgroup.
pub(super) fn of_jailer(text: &[u8]) -> Option<&[u8]> {
    groups(text).find_map(|(_, group)| {
        let mut parts = group.rsplit(|&byte| byte == b'/');
        let id = parts.next().filter(|id| !id.is_empty())?;
        (parts.next()? == b"firecracker").then_some(id)
    })
}

/// Returns the innermost container or service that contains the version 2 cgroup `group`. `None` if
/// no container or service contains it.
pub(super) fn known(group: &[u8]) -> Option<KnownGroup> {
    let mut end = group.len();
    loop {
        let start = group[..end].iter().rposition(|&byte| byte == b'/')?;
        let part = &group[start + 1..end];
        let above = group[..start].rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let container = container(part, above).map(|name| (GroupKind::Container, name));
        let unit = || part.ends_with(b".service").then(|| (GroupKind::Unit, part.to_vec()));
        if let Some((what, name)) = container.or_else(unit) {
            let group = PathBuf::from(OsString::from_vec(group[..end].to_vec()));
            return Some(KnownGroup { what, name, group });
        }
        end = start;
    }
}

/// Returns the name of a container. `part` is the name of its cgroup, and `above` the name of the
/// parent cgroup. `None` if the cgroup is not that of a container.
fn container(part: &[u8], above: &[u8]) -> Option<Vec<u8>> {
    const SCOPES: [&str; 4] = ["docker-", "libpod-", "cri-containerd-", "crio-"];
    if let Some(scope) = part.strip_suffix(b".scope") {
        let id = SCOPES.iter().find_map(|prefix| scope.strip_prefix(prefix.as_bytes()));
        if let Some(id) = id.filter(|id| is_id(id)) {
            return Some(id.to_vec());
        }
        // `machine-NAME.scope` belongs to systemd-nspawn, unless it is a VM.
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

/// Returns true if a text consists of 64 hexadecimal digits. The container ids of Docker, Podman,
/// containerd and CRI-O have this form.
fn is_id(text: &[u8]) -> bool {
    text.len() == 64 && text.iter().all(u8::is_ascii_hexdigit)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Cgroups of a VM of libvirt 9.0 without systemd, on a host with both versions of cgroups.
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
    fn libvirt_domain_is_recognized_by_the_cgroup_of_its_process() {
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
        let partition = b"0::/machine/gold.partition/qemu-1-web.libvirt-qemu/emulator\n";
        assert_eq!(of_libvirt(partition), Some(b"web".into()));
    }

    #[test]
    fn cgroup_outside_libvirt_slices_is_not_recognized_as_libvirt_domain() {
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
    fn libvirt_cgroup_name_matches_only_the_original_vm_name() {
        assert!(fits(b"myvm2ndab", b"my vm: 2nd, \"a,b\""));
        assert!(fits(b"ubuntu22.04", b"ubuntu22.04"));
        assert!(!fits(b"web", b"db"));
        // A VM with a similar name cannot pass as `web`.
        assert!(!fits(b"web", b"web2"));
        assert!(!fits(b"web2", b"web"));
        let long = "a".repeat(200);
        assert!(fits(&long.as_bytes()[..50], long.as_bytes()));
    }

    #[test]
    fn containers_and_systemd_units_are_recognized_by_their_cgroups() {
        let id = "0123456789abcdef".repeat(4);
        let found = |group: String| {
            known(group.as_bytes()).map(|known| {
                let group = known.group.to_str().expect("the group is text").to_owned();
                (known.what, String::from_utf8(known.name).expect("the name is text"), group)
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
            let expected = Some((GroupKind::Container, id.clone(), group.clone()));
            assert_eq!(found(group.clone() + end), expected, "{group}");
        }
        let nspawn = "/machine.slice/machine-deb\\x2d12.scope";
        let expected = Some((GroupKind::Container, "deb-12".to_owned(), nspawn.to_owned()));
        assert_eq!(found(format!("{nspawn}/payload")), expected);
        let unit = "/system.slice/system-a.slice/a@1.service";
        let expected = Some((GroupKind::Unit, "a@1.service".to_owned(), unit.to_owned()));
        assert_eq!(found(format!("{unit}/child")), expected);
        for none in ["/", "", "/user.slice/user-0.slice/session-1.scope", "/docker/short"] {
            assert_eq!(found(none.to_owned()), None, "{none}");
        }
    }

    #[test]
    fn firecracker_id_is_parsed_from_cgroup_made_by_jailer() {
        assert_eq!(of_jailer(b"0::/firecracker/web-1\n"), Some(b"web-1".as_slice()));
        assert_eq!(of_jailer(b"0::/a/firecracker/web-1\n"), Some(b"web-1".as_slice()));
        assert_eq!(of_jailer(b"0::/firecracker/\n0::/x/y\n"), None);
    }

    proptest! {
        #[test]
        fn arbitrary_cgroup_text_is_parsed_without_panic(text in vec(any::<u8>(), 0..200)) {
            of_libvirt(&text);
            of_jailer(&text);
            unified(&text);
            known(&text);
            unescape(&text);
        }

        #[test]
        fn random_sequence_of_cgroup_name_parts_is_parsed_without_panic(
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

        /// For any VM name, the cgroup name that libvirt makes from it matches that VM name.
        #[test]
        fn libvirt_cgroup_name_of_any_vm_matches_the_vm_name(name in "[ -~]{1,80}") {
            let kept: String = name.chars().filter(char::is_ascii_alphanumeric).take(40).collect();
            prop_assert!(fits(kept.as_bytes(), name.as_bytes()));
        }
    }
}
