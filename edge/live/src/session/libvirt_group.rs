//! Names of the cgroups in which libvirt runs its VMs.

/// Returns true if a process is in the cgroup of a libvirt VM. `groups` is the text of the file
/// `cgroup` of the process.
///
/// The VM's cgroup is below `/machine.slice` or `/machine`, and only slices and partitions that
/// root has made are in between. The names of cgroups further below are ignored, because a
/// container can choose them.
pub(super) fn has_libvirt_group(groups: &str) -> bool {
    groups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|group| {
        let mut parts = group.split('/').skip(1);
        if !matches!(parts.next(), Some("machine.slice" | "machine")) {
            return false;
        }
        let mut parts =
            parts.filter(|part| !part.ends_with(".slice") && !part.ends_with(".partition"));
        parts.next().is_some_and(is_name_of_vm)
    })
}

/// Returns true if a cgroup is called `machine-qemu-NUMBER-NAME.scope`, as systemd names it, or
/// `qemu-NUMBER-NAME.libvirt-qemu`. Systemd writes `-` as `\x2d`.
fn is_name_of_vm(part: &str) -> bool {
    let scope = part.strip_prefix("machine-").and_then(|part| part.strip_suffix(".scope"));
    let whole = scope.or_else(|| part.strip_suffix(".libvirt-qemu"));
    let rest = whole.and_then(|whole| whole.strip_prefix("qemu"));
    let number = rest.and_then(|rest| rest.strip_prefix("\\x2d").or(rest.strip_prefix('-')));
    number.is_some_and(|number| number.starts_with(|first: char| first.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libvirt_cgroup_is_recognised_only_directly_below_slices_of_root() {
        let is = |group: &str| has_libvirt_group(&format!("1:cpu:/\n0::{group}\n"));
        assert!(is("/machine.slice/machine-qemu\\x2d1\\x2dweb.scope/libvirt/vcpu0"));
        assert!(is("/machine.slice/machine-db.slice/machine-qemu-12-db.scope"));
        assert!(is("/machine/a.partition/qemu-3-web.libvirt-qemu/emulator"));
        assert!(!is("/machine.slice/c.scope/x.libvirt-qemu"));
        assert!(!is("/machine.slice/c.scope/machine-qemu\\x2d1\\x2dweb.scope"));
        assert!(!is("/machine.slice/x.libvirt-qemu"));
        assert!(!is("/user.slice/machine.slice/machine-qemu-1-web.scope"));
    }
}
