//! Bindings: references from reservations to VMs.

use std::fmt;
use std::str::FromStr;

/// Reference to a VM: a kind and a name of that kind, such as `libvirt:web`, `unit:db.service`,
/// `cgroup:/machine.slice/a` or `pid:4711`. A binding of any kind but `pid` stays valid when the VM
/// restarts. A binding contains neither an index nor a path that another user chose.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Binding {
    kind: BindingKind,
    name: String,
}

/// Kind of a [`Binding`]: the kind of VM, and the property by which the VM is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BindingKind {
    /// A libvirt domain, by its name.
    Libvirt,
    /// A QEMU VM, by the name on its command line.
    Qemu,
    /// A QEMU VM, by its UUID.
    Uuid,
    /// A Firecracker VM, by its id.
    Firecracker,
    /// A Cloud Hypervisor VM, by the name of its API socket.
    CloudHypervisor,
    /// A systemd unit, by its name. All its processes together are one vCPU.
    Unit,
    /// A cgroup, by its path below the root of the hierarchy. All its processes together are one
    /// vCPU.
    Group,
    /// A process, by its process id. A binding of this kind becomes invalid when the process ends.
    Pid,
}

/// Reason why a text is not a [`Binding`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindingError {
    /// The text has no colon, or the word before the colon is not a known kind.
    #[error(
        "`{0}` does not begin with libvirt:, qemu:, uuid:, firecracker:, cloud-hypervisor:, \
         unit:, cgroup: or pid:"
    )]
    Kind(String),
    /// The name after the colon is empty.
    #[error("`{0}:` needs a name")]
    Empty(BindingKind),
    /// The name is longer than the kind of the binding allows.
    #[error("the name after `{kind}:` has {is} bytes; at most {most} are allowed")]
    TooLong {
        /// Kind of the binding.
        kind: BindingKind,
        /// Length of the name in bytes.
        is: usize,
        /// Maximum length of a name of this kind, in bytes.
        most: usize,
    },
    /// The name has the wrong form for its kind.
    #[error("`{kind}:{}` is {}", name.escape_debug(), kind.form())]
    Form {
        /// Kind of the binding.
        kind: BindingKind,
        /// Name that was given.
        name: String,
    },
}

impl BindingKind {
    /// All kinds of bindings, in the order in which help texts list them.
    pub const ALL: [BindingKind; 8] = [
        BindingKind::Libvirt,
        BindingKind::Qemu,
        BindingKind::Uuid,
        BindingKind::Firecracker,
        BindingKind::CloudHypervisor,
        BindingKind::Unit,
        BindingKind::Group,
        BindingKind::Pid,
    ];

    /// Returns the word before the colon of a binding, such as `qemu` in `qemu:web`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            BindingKind::Libvirt => "libvirt",
            BindingKind::Qemu => "qemu",
            BindingKind::Uuid => "uuid",
            BindingKind::Firecracker => "firecracker",
            BindingKind::CloudHypervisor => "cloud-hypervisor",
            BindingKind::Unit => "unit",
            BindingKind::Group => "cgroup",
            BindingKind::Pid => "pid",
        }
    }

    /// Returns true if bindings of this kind outlast the VM. After the VM has ended, such a binding
    /// refers to the next VM that is started under that name.
    #[must_use]
    pub const fn lasts(self) -> bool {
        !matches!(self, BindingKind::Pid)
    }

    /// Returns the maximum length of a name of this kind of binding, in bytes.
    const fn longest(self) -> usize {
        match self {
            BindingKind::Group => 1024,
            _ => 255,
        }
    }

    const fn form(self) -> &'static str {
        match self {
            BindingKind::Uuid => "not a UUID, 8-4-4-4-12 hexadecimal digits",
            BindingKind::Group => {
                "not a path that begins with `/` and has no `.`, `..` or empty part"
            }
            BindingKind::Pid => "not the number of a process",
            BindingKind::Unit => "not the name of a unit, such as `web.service`",
            _ => "not a name: it has a control character or a `/`",
        }
    }

    fn fits(self, name: &str) -> bool {
        let is_plain = !name.contains(|letter: char| letter.is_control());
        match self {
            BindingKind::Uuid => is_uuid(name),
            BindingKind::Group => is_plain && is_path(name),
            BindingKind::Pid => {
                let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
                is_number && !name.starts_with('0') && name.parse::<i32>().is_ok()
            }
            BindingKind::Unit => {
                let (stem, suffix) = name.rsplit_once('.').unwrap_or_default();
                is_plain
                    && !name.contains('/')
                    && !stem.is_empty()
                    && ["service", "scope", "slice"].contains(&suffix)
            }
            _ => is_plain && !name.contains('/'),
        }
    }
}

fn is_uuid(name: &str) -> bool {
    let parts = name.split('-');
    let is_hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts.clone().map(str::len).eq([8, 4, 4, 4, 12]) && parts.clone().all(is_hex)
}

fn is_path(name: &str) -> bool {
    let inside = name.strip_prefix('/');
    inside.is_some_and(|inside| inside.split('/').all(|part| !["", ".", ".."].contains(&part)))
}

impl fmt::Display for BindingKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.word())
    }
}

impl Binding {
    /// Creates a binding of the given kind and name. A UUID is stored in lower case.
    ///
    /// # Errors
    /// If the name is empty, too long, or of the wrong form for its kind.
    pub fn new(kind: BindingKind, name: &str) -> Result<Binding, BindingError> {
        let (is, most) = (name.len(), kind.longest());
        if name.is_empty() {
            return Err(BindingError::Empty(kind));
        }
        if is > most {
            return Err(BindingError::TooLong { kind, is, most });
        }
        if !kind.fits(name) {
            return Err(BindingError::Form { kind, name: name.to_owned() });
        }
        let name = match kind {
            BindingKind::Uuid => name.to_ascii_lowercase(),
            _ => name.to_owned(),
        };
        Ok(Binding { kind, name })
    }

    /// Returns the kind of the binding.
    #[must_use]
    pub const fn kind(&self) -> BindingKind {
        self.kind
    }

    /// Returns the name after the colon of the binding, such as `web` in `qemu:web`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the process id in the binding. `None` if the binding is not of kind `pid`.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        matches!(self.kind, BindingKind::Pid).then(|| self.name.parse().ok()).flatten()
    }

    /// Returns true if the binding outlasts the VM: after the VM has ended, it refers to the next
    /// VM that is started under that name.
    #[must_use]
    pub const fn lasts(&self) -> bool {
        self.kind.lasts()
    }
}

impl FromStr for Binding {
    type Err = BindingError;

    fn from_str(text: &str) -> Result<Binding, BindingError> {
        let unknown = || BindingError::Kind(text.escape_debug().take(80).collect());
        let (word, name) = text.split_once(':').ok_or_else(unknown)?;
        let kind = BindingKind::ALL.into_iter().find(|kind| kind.word() == word);
        Binding::new(kind.ok_or_else(unknown)?, name)
    }
}

impl fmt::Display for Binding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.kind, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_vm_bindings_are_unchanged_if_printed_and_parsed() {
        for text in [
            "libvirt:ubuntu22.04",
            "qemu:guest=1",
            "uuid:0f9c27aa-0000-4000-8000-00000000beef",
            "firecracker:a-b",
            "cloud-hypervisor:vm",
            "unit:db.service",
            "cgroup:/machine.slice/a",
            "pid:4711",
        ] {
            assert_eq!(text.parse::<Binding>().unwrap().to_string(), text);
        }
        let upper = "uuid:0F9C27AA-0000-4000-8000-00000000BEEF".parse::<Binding>().unwrap();
        assert_eq!(upper.name(), "0f9c27aa-0000-4000-8000-00000000beef");
        assert_eq!("pid:4711".parse::<Binding>().unwrap().pid(), Some(4711));
        assert_eq!("qemu:4711".parse::<Binding>().unwrap().pid(), None);
    }

    #[test]
    fn invalid_vm_binding_is_refused_with_the_reason() {
        let says = |text: &str| text.parse::<Binding>().unwrap_err().to_string();
        assert!(says("web").starts_with("`web` does not begin with libvirt:"));
        assert_eq!(says("pid:"), "`pid:` needs a name");
        assert_eq!(says("pid:0"), "`pid:0` is not the number of a process");
        assert_eq!(says("pid:-1"), "`pid:-1` is not the number of a process");
        assert_eq!(says("pid:4294967297"), "`pid:4294967297` is not the number of a process");
        assert!(says("cgroup:/a/../b").contains("not a path that begins with `/`"));
        assert!(says("cgroup:a").contains("not a path that begins with `/`"));
        assert!(says("qemu:a/b").contains("not a name"));
        assert!(says("qemu:a\u{1b}[2J").contains("\\u{1b}"));
        assert!(says("unit:db").contains("not the name of a unit"));
        assert!(says("uuid:1").contains("not a UUID"));
        assert!(says(&format!("qemu:{}", "a".repeat(256))).contains("256 bytes; at most 255"));
    }
}
