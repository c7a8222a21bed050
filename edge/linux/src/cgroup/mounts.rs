//! Mount points of the cgroup hierarchies, and the cgroups of threads in them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::{Controller, Version};

/// A mounted cgroup hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) version: Version,
    /// Path, as the kernel names it, of the cgroup that is visible at `point`.
    root: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// Returns the directory where the hierarchy is mounted.
    pub(super) fn point(&self) -> &Path {
        &self.point
    }

    /// Returns true if `folder` is below the directory where the hierarchy is mounted.
    pub(super) fn shows(&self, folder: &Path) -> bool {
        folder.strip_prefix(&self.point).is_ok_and(|below| !below.as_os_str().is_empty())
    }

    /// Returns the folder of a cgroup, given its path as the kernel names it. `None` if the cgroup
    /// is not visible below this mount.
    pub(super) fn place(&self, group: &Path) -> Option<PathBuf> {
        // The kernel writes `/..` for a cgroup outside of this process's cgroup namespace.
        if group.components().any(|part| part == std::path::Component::ParentDir) {
            return None;
        }
        let below = group.strip_prefix(&self.root).ok()?;
        // Joining with an empty path would add a slash.
        if below.as_os_str().is_empty() {
            return Some(self.point.clone());
        }
        Some(self.point.join(below))
    }
}

/// Parses the mounts of cgroup hierarchies from the text of `mountinfo`, in the order of its lines.
/// Returns the mounts of version 2, and those of version 1 that have this controller.
pub(super) fn parse(text: &[u8], controller: Controller) -> Vec<Mount> {
    text.split(|&byte| byte == b'\n').filter_map(|line| mount(line, controller)).collect()
}

/// Parses one line of `mountinfo`:
/// `id parent device root point options [more ...] - type source options`.
fn mount(line: &[u8], controller: Controller) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let dash = fields.iter().position(|&field| field == b"-")?;
    let &[kind, _, options, ..] = &fields[dash + 1..] else { return None };
    let wanted = controller.name().as_bytes();
    let has_it = || options.split(|&byte| byte == b',').any(|option| option == wanted);
    let version = match kind {
        b"cgroup2" => Version::V2,
        b"cgroup" if has_it() => Version::V1,
        _ => return None,
    };
    Some(Mount { version, root: path(fields.get(3)?), point: path(fields.get(4)?) })
}

/// Parses the cgroup of a thread from the text of its `cgroup` file, whose lines have the form
/// `number:controllers:group`. `None` if no line is for this version and controller.
pub(super) fn group_of(text: &[u8], version: Version, controller: Controller) -> Option<PathBuf> {
    let wanted = controller.name().as_bytes();
    text.split(|&byte| byte == b'\n').find_map(|line| {
        let mut fields = line.splitn(3, |&byte| byte == b':');
        let (number, controllers) = (fields.next()?, fields.next()?);
        let matches = match version {
            Version::V2 => number == b"0" && controllers.is_empty(),
            Version::V1 => controllers.split(|&byte| byte == b',').any(|name| name == wanted),
        };
        matches
            .then(|| fields.next().map(|group| PathBuf::from(OsString::from_vec(group.into()))))?
    })
}

/// Decodes a path in `mountinfo`, in which spaces and some other characters are written as a
/// backslash and three octal digits.
fn path(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match escaped {
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
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &[u8] = b"\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime shared:9 - cgroup cgroup rw,name=systemd
41 31 0:38 /jail /mnt/my\\040groups rw,relatime shared:3 master:1 - cgroup2 cgroup2 rw
";

    #[test]
    fn cgroup_v1_and_v2_are_found_at_any_mount_point() {
        let mounts = parse(HYBRID, Controller::Freezer);
        assert_eq!(
            mounts.iter().map(|mount| mount.version).collect::<Vec<_>>(),
            [Version::V1, Version::V2]
        );
        assert_eq!(mounts[0].place(Path::new("/")), Some("/sys/fs/cgroup/freezer".into()));
        assert_eq!(mounts[0].place(Path::new("/a/b")), Some("/sys/fs/cgroup/freezer/a/b".into()));
        assert_eq!(mounts[1].place(Path::new("/jail/vm 1")), Some("/mnt/my groups/vm 1".into()));
    }

    #[test]
    fn cgroup_outside_mounted_part_of_hierarchy_has_no_path() {
        let mounts = parse(HYBRID, Controller::Freezer);
        assert_eq!(mounts[1].place(Path::new("/elsewhere")), None);
        assert_eq!(mounts[0].place(Path::new("/../other")), None);
    }

    #[test]
    fn cgroup_of_a_thread_is_parsed_for_each_cgroup_hierarchy() {
        let text = b"6:cpu,freezer:/a\n9:name=systemd:/x\n0::/user.slice/with:colon\n";
        assert_eq!(
            group_of(text, Version::V2, Controller::Freezer),
            Some("/user.slice/with:colon".into())
        );
        assert_eq!(group_of(text, Version::V1, Controller::Freezer), Some("/a".into()));
        assert_eq!(group_of(b"9:name=systemd:/x\n", Version::V1, Controller::Cpu), None);
    }
}
