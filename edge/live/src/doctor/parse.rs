//! Parsers for files of the kernel.

use std::path::PathBuf;

/// Options with which a kernel was built.
#[derive(Clone, Debug)]
pub(super) struct Config(String);

impl Config {
    pub(super) fn new(text: String) -> Config {
        Config(text)
    }

    /// Returns the value of an option (`y`, `m`, a number). `None` if the option is not set.
    pub(super) fn value(&self, option: &str) -> Option<&str> {
        let of = |line: &'_ str| -> Option<usize> {
            let (name, value) = line.split_once('=')?;
            (name == option).then_some(value.len())
        };
        self.0.lines().find_map(|line| of(line).map(|length| &line[line.len() - length..]))
    }
}

/// A mounted cgroup hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) kind: HierarchyKind,
    /// Path, within the hierarchy, of the cgroup that appears as the directory `point`.
    pub(super) root: PathBuf,
    /// Directory at which the hierarchy is mounted.
    pub(super) point: PathBuf,
    /// True if the hierarchy is mounted with `favordynmods`.
    pub(super) favours_moves: bool,
}

/// Version of a hierarchy. Version 1 comes with the names of the hierarchy's controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HierarchyKind {
    V1 { controllers: Vec<String> },
    V2,
}

impl HierarchyKind {
    /// Returns true if this is the version 1 hierarchy of a controller.
    pub(super) fn controls(&self, controller: &str) -> bool {
        match self {
            HierarchyKind::V1 { controllers } => controllers.iter().any(|name| name == controller),
            HierarchyKind::V2 => false,
        }
    }
}

/// Returns the mounted cgroup hierarchies from the text of `mountinfo`: lines of `id parent device
/// root point options [more ...] - type source options`.
pub(super) fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    mountinfo.lines().filter_map(hierarchy).collect()
}

fn hierarchy(line: &str) -> Option<Hierarchy> {
    let (place, filesystem) = line.split_once(" - ")?;
    let mut filesystem = filesystem.split(' ');
    let (kind, options) = (filesystem.next()?, filesystem.nth(1)?);
    let kind = match kind {
        "cgroup2" => HierarchyKind::V2,
        "cgroup" => HierarchyKind::V1 { controllers: controllers(options) },
        _ => return None,
    };
    let mut place = place.split(' ').skip(3);
    let (root, point) = (place.next()?, place.next()?);
    let favours_moves = options.split(',').any(|name| name == "favordynmods");
    Some(Hierarchy { kind, root: unescaped(root), point: unescaped(point), favours_moves })
}

/// Returns the names of controllers among the mount options of a version 1 cgroup hierarchy.
fn controllers(options: &str) -> Vec<String> {
    let common =
        ["rw", "ro", "xattr", "noprefix", "clone_children", "cpuset_v2_mode", "favordynmods"];
    let own = options.split(',').filter(|name| !common.contains(name) && !name.contains('='));
    own.map(str::to_owned).collect()
}

/// Decodes a path as the kernel writes it, in which a space is `\040`, for example.
fn unescaped(text: &str) -> PathBuf {
    let mut pieces = text.split('\\');
    let mut path = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let code = piece.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                path.push(code.into());
                path.push_str(&piece[3..]);
            }
            None => {
                path.push('\\');
                path.push_str(piece);
            }
        }
    }
    path.into()
}

/// Returns the cgroup of this process in a hierarchy of kind `kind`, from the text of
/// `/proc/self/cgroup`, whose lines have the form `number:controllers:group`. `None` if no line is
/// of this hierarchy.
pub(super) fn own_group(text: &str, kind: &HierarchyKind) -> Option<PathBuf> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, names, group) = (fields.next()?, fields.next()?, fields.next()?);
        let same = match kind {
            HierarchyKind::V2 => number == "0" && names.is_empty(),
            HierarchyKind::V1 { controllers } => {
                controllers.iter().any(|wanted| names.split(',').any(|name| name == wanted))
            }
        };
        same.then(|| group.into())
    })
}

impl Hierarchy {
    /// Returns the directory of this process's own cgroup in this hierarchy. `cgroup` is the text
    /// of `/proc/self/cgroup`. `None` if `cgroup` has no line of this hierarchy, or the cgroup is
    /// not visible below the mount point.
    pub(super) fn own_directory(&self, cgroup: &str) -> Option<PathBuf> {
        let group = own_group(cgroup, &self.kind)?;
        let below = group.strip_prefix(&self.root).ok()?;
        // The kernel writes `/..` for a cgroup outside of this process's cgroup namespace.
        let above = below.components().any(|part| part == std::path::Component::ParentDir);
        // Joining with an empty path would add a slash.
        (!above).then(|| match below.as_os_str().is_empty() {
            true => self.point.clone(),
            false => self.point.join(below),
        })
    }
}

/// CPU time of all CPUs together since the host booted, in ticks of 1/100 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuTicks {
    pub(super) total: u64,
    pub(super) stolen: u64,
}

/// Parses the first line of `/proc/stat`: user, nice, system, idle, waiting for devices,
/// interrupts, soft interrupts, stolen, guest and guest nice. Guest time is contained in user time,
/// and guest nice time in nice time.
pub(super) fn cpu_ticks(stat: &str) -> Option<CpuTicks> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let numbers: Option<Vec<u64>> =
        line.split_ascii_whitespace().map(|number| number.parse().ok()).collect();
    let numbers = numbers?;
    Some(CpuTicks { total: numbers.get(..8)?.iter().sum(), stolen: *numbers.get(7)? })
}

/// Name and scheduling parameters of a thread, parsed from its `stat` file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ThreadStat {
    pub(super) name: String,
    /// True if the thread is a kernel thread.
    pub(super) kernel: bool,
    /// Real-time priority: 1 to 99 for `SCHED_FIFO` and `SCHED_RR`, else 0.
    pub(super) priority: u32,
    /// The kernel's number of the thread's scheduling class.
    pub(super) policy: u32,
}

pub(super) fn thread_stat(text: &str) -> Option<ThreadStat> {
    /// Flag `PF_KTHREAD` among a task's flags in its `stat` file, which marks a kernel thread.
    const KERNEL_THREAD: u64 = 0x0020_0000;
    // The name is in parentheses and may contain parentheses and spaces itself.
    let (name, rest) = text.rsplit_once(')')?;
    let (_, name) = name.split_once('(')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // proc(5) counts fields from 1, so the first field after the name has number 3.
    let field = |number: usize| fields.get(number - 3);
    let flags: u64 = field(9)?.parse().ok()?;
    Some(ThreadStat {
        name: name.to_owned(),
        kernel: flags & KERNEL_THREAD != 0,
        priority: field(40)?.parse().ok()?,
        policy: field(41)?.parse().ok()?,
    })
}

/// Returns the effective capabilities of a thread, one bit each, from the text of its `status`
/// file. `None` if the text has no valid line `CapEff:`.
pub(super) fn effective_capabilities(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const V1: &str = "\
25 30 0:22 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
28 25 0:25 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
29 25 0:26 / /sys/fs/cgroup/systemd rw shared:10 - cgroup cgroup rw,xattr,name=systemd
31 25 0:27 / /sys/fs/cgroup/freezer rw shared:11 - cgroup cgroup rw,freezer
";
    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 /jail /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
41 31 0:38 / /mnt/my\\040groups rw,relatime shared:3 master:1 - cgroup2 cgroup2 rw
";
    const V2: &str = "\
30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,favordynmods
36 30 0:31 / /sys/fs/pstore rw,nosuid shared:14 - pstore pstore rw
";

    #[test]
    fn cgroup_v1_mounts_yield_one_hierarchy_per_controller_set() {
        let found = hierarchies(V1);
        let names = |at: usize| match &found[at].kind {
            HierarchyKind::V1 { controllers } => controllers.join("+"),
            HierarchyKind::V2 => "version 2".into(),
        };
        assert_eq!([names(0), names(1), names(2)], ["cpu+cpuacct", "", "freezer"]);
        let cgroup = "5:freezer:/\n4:cpu,cpuacct:/user.slice\n1:name=systemd:/init.scope\n";
        let directory = found[0].own_directory(cgroup);
        assert_eq!(directory.as_deref(), Some(Path::new("/sys/fs/cgroup/cpu,cpuacct/user.slice")));
        assert_eq!(
            found[2].own_directory(cgroup).as_deref(),
            Some("/sys/fs/cgroup/freezer".as_ref())
        );
    }

    #[test]
    fn cgroup_mounts_of_hybrid_host_are_parsed_into_both_versions() {
        let found = hierarchies(HYBRID);
        assert_eq!(found.len(), 2);
        assert!(found[0].kind.controls("cpu") && !found[1].kind.controls("cpu"));
        let cgroup = "1:cpu:/jail/a\n0::/b\n";
        let directory = |at: usize| found[at].own_directory(cgroup);
        assert_eq!(directory(0).as_deref(), Some(Path::new("/sys/fs/cgroup/cpu/a")));
        assert_eq!(directory(1).as_deref(), Some(Path::new("/mnt/my groups/b")));
        assert_eq!(found[0].own_directory("1:cpu:/elsewhere\n"), None);
        assert_eq!(found[1].own_directory("0::/../../b\n"), None);
    }

    #[test]
    fn cgroup_v2_mount_is_parsed_into_one_hierarchy() {
        let found = hierarchies(V2);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].kind, HierarchyKind::V2);
        assert!(found[0].favours_moves && !hierarchies(HYBRID)[1].favours_moves);
        let directory = found[0].own_directory("0::/user.slice/with:colon\n");
        assert_eq!(directory.as_deref(), Some(Path::new("/sys/fs/cgroup/user.slice/with:colon")));
    }

    #[test]
    fn stolen_time_is_parsed_from_eighth_number_in_proc_stat() {
        let stat = "cpu  100 20 30 4000 5 6 7 80 90 10\ncpu0 100 20 30 4000 5 6 7 80 90 10\n";
        assert_eq!(cpu_ticks(stat), Some(CpuTicks { total: 4248, stolen: 80 }));
        assert_eq!(cpu_ticks("cpu  1 2 3\n"), None);
        assert_eq!(cpu_ticks("intr 1\n"), None);
    }

    #[test]
    fn thread_scheduling_class_is_parsed_from_proc_pid_stat() {
        let text = "18 (migration/0) S 2 0 0 0 -1 69238848 0 0 0 0 0 36 0 0 -100 0 1 0 3 0 0 \
                    18446744073709551615 0 0 0 0 0 0 0 2147483647 0 0 0 0 17 0 99 1 0 0 0 0";
        let stat = thread_stat(text).unwrap();
        assert_eq!((stat.name.as_str(), stat.kernel), ("migration/0", true));
        assert_eq!((stat.priority, stat.policy), (99, 1));
        assert_eq!(thread_stat(&text.replace("migration/0", "a) R (b")).unwrap().name, "a) R (b");
        assert_eq!(thread_stat("18 (cut off) S 2 0"), None);
    }

    #[test]
    fn capabilities_are_parsed_from_the_effective_set_in_proc_status() {
        let status = "Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000800000\n";
        assert_eq!(effective_capabilities(status), Some(1 << 23));
        assert_eq!(effective_capabilities("Name:\tx\n"), None);
    }

    #[test]
    fn kernel_config_option_that_is_not_set_has_no_value() {
        let config =
            Config::new("CONFIG_HZ_250=y\n# CONFIG_EXT is not set\nCONFIG_HZ=250\n".into());
        assert_eq!(config.value("CONFIG_HZ"), Some("250"));
        assert_eq!(config.value("CONFIG_EXT"), None);
    }
}
