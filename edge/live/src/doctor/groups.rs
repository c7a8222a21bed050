//! Probes of cgroups, and of the ability to freeze a single thread with a cgroup.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::parse::{Hierarchy, HierarchyKind, hierarchies};
use super::probe::{Host, ProbeError, Verdict, read};
use slackline_linux::cgroup::{self, Step};
use slackline_linux::sys::own_tid;

fn mounted() -> Result<Vec<Hierarchy>, ProbeError> {
    Ok(hierarchies(&read("/proc/self/mountinfo")?))
}

pub(super) fn version(_: &Host) -> Result<Verdict, ProbeError> {
    let mounts = mounted()?;
    let v2 = mounts.iter().find(|mount| mount.kind == HierarchyKind::V2);
    let v1 = mounts.iter().filter_map(|mount| match &mount.kind {
        HierarchyKind::V1 { controllers } if !controllers.is_empty() => Some(controllers.join("+")),
        _ => None,
    });
    let v1: Vec<String> = v1.collect();
    Ok(match (v2, v1.as_slice()) {
        (Some(v2), []) => Verdict::good(format!("version 2 at {}", v2.point.display())),
        (Some(v2), _) => Verdict::good(format!(
            "hybrid: version 2 at {}, version 1 for {}",
            v2.point.display(),
            v1.join(" ")
        )),
        (None, []) => Verdict::missing("no cgroup hierarchy is mounted")
            .hint("mount cgroups by `mount -t cgroup2 none /sys/fs/cgroup`"),
        (None, _) => Verdict::limited(format!("version 1 only, for {}", v1.join(" ")))
            .hint("add version 2 by `mount -t cgroup2 none DIRECTORY` on an empty directory"),
    })
}

pub(super) fn freezer(_: &Host) -> Result<Verdict, ProbeError> {
    let mounts = mounted()?;
    let cgroup = read("/proc/self/cgroup")?;
    let own = |wanted: &dyn Fn(&HierarchyKind) -> bool| {
        mounts.iter().find(|mount| wanted(&mount.kind)).and_then(|it| it.own_directory(&cgroup))
    };
    let v2 = own(&|kind| *kind == HierarchyKind::V2).map(|place| try_v2(&place));
    if let Some(Ok(())) = v2 {
        return Ok(Verdict::good("threaded cgroups of version 2 can be made and frozen"));
    }
    let v2 = v2.map_or("not mounted".into(), |tried| match tried {
        Ok(()) => "works".to_owned(),
        Err(error) => error.to_string(),
    });
    let v1 = own(&|kind| kind.controls("freezer")).map(|place| try_v1(&place));
    Ok(match v1 {
        Some(Ok(())) => Verdict::limited(format!("cgroup version 1 only (version 2: {v2})"))
            .hint("mount version 2: version 1 is slower, and its frozen threads cannot be killed"),
        Some(Err(error)) => Verdict::missing(format!("cgroup v2: {v2}; cgroup v1: {error}"))
            .hint("run as root, with cgroups mounted writable"),
        None => Verdict::missing(format!("cgroup v2: {v2}; cgroup v1: not mounted"))
            .hint("run as root, with cgroups mounted writable"),
    })
}

/// Finds out whether the kernel moves threads to other cgroups without waiting for an RCU grace
/// period. During such a wait no cgroup of version 2 can be frozen or thawed. Slackline shortens
/// the wait of its own moves where it can, but it cannot shorten the wait of moves by other
/// programs. The probe does not measure the wait, because that would delay VMs.
pub(super) fn moves(host: &Host) -> Result<Verdict, ProbeError> {
    let mounts = mounted()?;
    let Some(v2) = mounts.iter().find(|mount| mount.kind == HierarchyKind::V2) else {
        return Ok(Verdict::good("without version 2, moving a thread does not block the freezer"));
    };
    if v2.favours_moves {
        return Ok(Verdict::good("moving a thread is quick: version 2 uses `favordynmods`"));
    }
    let found = "when a program moves a thread, many kernels block the freezer for 8 to 40 ms";
    let hint = if host.is_at_least(6, 0)? {
        format!("`mount -o remount,favordynmods {}`; forks then cost more", v2.point.display())
    } else {
        "Linux 6.0 and later have the mount option `favordynmods`, which avoids this".to_owned()
    };
    Ok(Verdict::limited(found).hint(hint))
}

/// Finds out whether cgroups of version 2 have the file `cpu.rt.max`. The root cgroup never has it,
/// so the cgroups below the root are examined.
pub(super) fn reservations(_: &Host) -> Result<Verdict, ProbeError> {
    let mounts = mounted()?;
    let Some(v2) = mounts.iter().find(|mount| mount.kind == HierarchyKind::V2) else {
        return Ok(Verdict::missing("cgroups of version 2 are not mounted"));
    };
    let below = fs::read_dir(&v2.point).into_iter().flatten().flatten();
    let mut below = below.map(|entry| entry.path()).filter(|path| path.is_dir());
    Ok(if below.any(|group| group.join("cpu.rt.max").exists()) {
        Verdict::good("cgroups have cpu.rt.max; Slackline does not use it")
    } else {
        Verdict::missing("no cgroup has the file cpu.rt.max")
    })
}

/// A cgroup that the probe created. It is removed when this value is dropped.
struct Group(PathBuf);

impl Group {
    fn make(parent: &Path) -> io::Result<Group> {
        // Unlike cgroups of scheduled threads, the name does not begin with `slackline-`.
        let group = parent.join(format!("doctor-of-slackline-{}", own_tid()));
        fs::create_dir(&group)?;
        Ok(Group(group))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The cgroup is empty, so the removal fails only if another program has removed it first.
        let _ = fs::remove_dir(&self.0);
    }
}

fn try_v2(parent: &Path) -> io::Result<()> {
    let group = Group::make(parent)?;
    let threaded = cgroup::write(&group.0.join("cgroup.type"), "threaded", Step::MakeThreaded);
    threaded.map_err(io::Error::other)?;
    fs::write(group.0.join("cgroup.freeze"), "0")
}

fn try_v1(parent: &Path) -> io::Result<()> {
    let group = Group::make(parent)?;
    fs::write(group.0.join("freezer.state"), "THAWED")
}
