//! Real-time budgets of cgroups.
//!
//! If the kernel has `RT_GROUP_SCHED`, each cgroup of the version 1 controller `cpu` has a
//! real-time budget on each CPU: `cpu.rt_runtime_us` in every `cpu.rt_period_us`. Its threads can
//! run as real-time threads only while this budget is not exhausted. A new cgroup, such as the
//! cgroup that libvirt makes for each vCPU, has no budget. The budgets of a cgroup's children may
//! add up to at most the cgroup's own budget. So budgets are raised from the top of the hierarchy
//! down, and restored from the bottom up.
//!
//! Before the first budget is raised, the original budget of each cgroup is written to the file
//! `PID-START.budgets` beside the journal, one line per cgroup. The file is removed once all
//! budgets are restored.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use slackline_units::{Reservation, Span};

use super::Fence;
use super::entry::{path, path_text};
use super::give_back::exists;
use super::journal::owner_of;
use slackline_linux::cgroup::{CgroupError, cpu_group_of};
use slackline_linux::sys::Tid;
use slackline_linux::thread::ThreadRef;

const RUNTIME: &str = "cpu.rt_runtime_us";
const PERIOD: &str = "cpu.rt_period_us";
pub(super) const SUFFIX: &str = "budgets";

/// Margin for overruns in each period of a budget. If the dispatcher stops a thread late, the
/// thread may use up to this much CPU time beyond its share. Without the margin, the thread could
/// exhaust its cgroup's budget, and would then not run until the next period.
const MARGIN: Span = Span::from_ms(10);

/// Error when a real-time budget is raised or restored.
#[derive(Debug, thiserror::Error)]
pub enum BudgetError {
    /// A cgroup cannot get the budget that it needs, because the cgroups above it have too little.
    #[error(
        "cannot give cgroup {} a real-time budget of {asked} us per period: {room} us are free",
        group.display()
    )]
    NoRoom {
        /// Path of the cgroup that cannot get the budget.
        group: PathBuf,
        /// Budget that the cgroup would need, in microseconds per period.
        asked: u64,
        /// Budget that is available, in microseconds per period.
        room: u64,
    },
    /// A file could not be read or written.
    #[error("cannot read or write {}: {source}", path.display())]
    Refused {
        /// Path of the file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The cgroup of the thread could not be found.
    #[error(transparent)]
    Group(#[from] CgroupError),
}

/// Cgroups whose real-time budgets the fence has raised. The fence raises budgets for held threads:
/// the threads that it has recorded and will restore.
#[derive(Debug)]
pub(super) struct Budgets {
    journal: PathBuf,
    /// Original budget of each cgroup whose budget was raised, in microseconds per period.
    before: BTreeMap<PathBuf, u64>,
    /// Real-time budget that each held thread needs. If several threads of a vCPU are in one
    /// cgroup, only the first of them is in this map.
    needs: BTreeMap<Tid, BudgetNeed>,
}

/// Real-time budget that a held thread needs in its cgroup, in microseconds per period.
#[derive(Clone, Debug)]
struct BudgetNeed {
    root: PathBuf,
    leaf: PathBuf,
    us: u64,
}

impl Budgets {
    /// Returns a record without raised budgets. `journal` is the file to which original budgets are
    /// written.
    pub(super) fn new(journal: PathBuf) -> Budgets {
        Budgets { journal, before: BTreeMap::new(), needs: BTreeMap::new() }
    }

    /// Raises the real-time budgets of the cgroups of one vCPU's threads, so that the budgets
    /// suffice for the reservation `promise`. Usually there is one cgroup. If `promise` is `None`,
    /// each cgroup gets the largest budget that one CPU allows.
    ///
    /// # Errors
    /// If the cgroups above one of these cgroups have too little budget. Budgets that were raised
    /// before this failure stay raised.
    pub(super) fn grant(
        &mut self,
        threads: &[ThreadRef],
        promise: Option<Reservation>,
    ) -> Result<(), BudgetError> {
        let mut groups = BTreeMap::new();
        for thread in threads {
            match cpu_group_of(thread) {
                Err(_) if thread.is_gone().unwrap_or(false) => {}
                found => {
                    if let Some(group) = found? {
                        groups.entry(group).or_insert(thread.tid());
                    }
                }
            }
        }
        for ((root, leaf), tid) in groups {
            if leaf != root && leaf.join(RUNTIME).exists() {
                self.need(tid, BudgetNeed { root, leaf, us: 0 }, &[promise])?;
            }
        }
        Ok(())
    }

    /// Changes the real-time budgets that were raised for one vCPU's threads, so that the budgets
    /// suffice for each reservation in `promises`.
    ///
    /// # Errors
    /// If the cgroups above the cgroup of a thread have too little budget. The cgroup of that
    /// thread then keeps its budget.
    pub(super) fn regrant(
        &mut self,
        tids: &[Tid],
        promises: &[Option<Reservation>],
    ) -> Result<(), BudgetError> {
        for tid in tids {
            // A cgroup that was removed has no threads left, so it needs no budget.
            if let Some(need) = self.needs.get(tid).filter(|need| need.leaf.is_dir()).cloned() {
                self.need(*tid, need, promises)?;
            }
        }
        Ok(())
    }

    /// Removes the budget need of a thread that was restored, and lowers the budgets of its cgroup
    /// and of the cgroups above. A budget that cannot be lowered now is restored when all threads
    /// are released.
    pub(super) fn revoke(&mut self, tid: Tid) {
        if let Some(need) = self.needs.remove(&tid) {
            self.lower(&need);
        }
    }

    fn need(
        &mut self,
        tid: Tid,
        need: BudgetNeed,
        promises: &[Option<Reservation>],
    ) -> Result<(), BudgetError> {
        let BudgetNeed { root, leaf, .. } = need;
        let (most, period) = (read(&root.join(RUNTIME))?, read(&leaf.join(PERIOD))?);
        let us = promises.iter().map(|promise| needed(*promise, period, most)).max().unwrap_or(0);
        let beside = self.needs.iter().filter(|(one, need)| **one != tid && need.leaf == leaf);
        let all = us + beside.map(|(_, need)| need.us).sum::<u64>();
        let raised = plan(&root, &leaf, all)?;
        let new = raised.iter().filter(|(group, ..)| !self.before.contains_key(group));
        let new: Vec<_> = new.map(|(group, had, _)| (group.clone(), *had)).collect();
        if !new.is_empty() {
            self.before.extend(new);
            self.write()?;
        }
        for (group, _, wanted) in &raised {
            write(&group.join(RUNTIME), *wanted)?;
        }
        let need = BudgetNeed { root, leaf, us };
        if let Some(before) = self.needs.insert(tid, need) {
            self.lower(&before);
        }
        Ok(())
    }

    /// Returns the cgroup of a held thread, and the cgroup's budget in microseconds per period, if
    /// another program has cut this budget below the needs of held threads. Otherwise returns
    /// `None`. The budgets of the cgroups above need no check: they cannot be cut below this
    /// budget.
    fn cut(&self, tid: Tid) -> Option<(&Path, u64)> {
        let leaf = &self.needs.get(&tid)?.leaf;
        let needed = self.needs.values().filter(|need| need.leaf == *leaf).map(|need| need.us);
        let has = read(&leaf.join(RUNTIME)).ok()?;
        (has < needed.sum::<u64>()).then_some((leaf.as_path(), has))
    }

    /// Lowers the budgets of the cgroup `need.leaf` and of the cgroups above it. The new budgets
    /// are those that held threads still need, but at least the original budgets. Stops at the
    /// first cgroup whose budget cannot be lowered.
    fn lower(&mut self, need: &BudgetNeed) {
        let mut group = need.leaf.as_path();
        while group != need.root {
            if group.is_dir() {
                let Some(had) = self.before.get(group) else { break };
                let of_threads = self.needs.values().filter(|need| need.leaf == group);
                let needed = of_threads.map(|need| need.us).sum::<u64>() + beside_of(group, group);
                let (wanted, file) = ((*had).max(needed), group.join(RUNTIME));
                let Ok(has) = read(&file) else { break };
                if wanted < has && write(&file, wanted).is_err() {
                    break;
                }
            } else {
                // Sibling cgroups may have been removed too, and no event reports that.
                self.before.retain(|group, _| group.is_dir());
            }
            let Some(parent) = group.parent() else { break };
            group = parent;
        }
    }

    /// Restores the original budget of every cgroup.
    ///
    /// # Errors
    /// If the budget of a cgroup could not be restored. The error is about the first such cgroup.
    /// The file of original budgets still lists all of them.
    pub(super) fn give_back(&mut self) -> Result<(), BudgetError> {
        if self.before.is_empty() {
            return Ok(());
        }
        restore(&self.journal)?;
        self.before.clear();
        self.needs.clear();
        Ok(())
    }

    fn write(&self) -> Result<(), BudgetError> {
        let lines = self.before.iter().map(|(group, had)| format!("{} {had}\n", path_text(group)));
        let refused = |source| BudgetError::Refused { path: self.journal.clone(), source };
        if let Some(folder) = self.journal.parent() {
            super::journal::make_directory(folder)
                .map_err(|error| refused(io::Error::other(error)))?;
        }
        let new = self.journal.with_extension("new-budgets");
        fs::write(&new, lines.collect::<String>()).map_err(refused)?;
        fs::rename(&new, &self.journal).map_err(refused)
    }
}

impl Fence {
    /// Returns the cgroup of a held thread, and the cgroup's real-time budget and period as text in
    /// microseconds, if another program has cut this budget below the needs of held threads.
    /// Otherwise returns `None`.
    #[must_use]
    pub fn cut_budget(&self, tid: Tid) -> Option<(PathBuf, String)> {
        let (group, has) = self.budgets.cut(tid)?;
        let period = read(&group.join(PERIOD)).ok()?;
        Some((group.to_path_buf(), format!("{has} {period}")))
    }
}

/// Restores the budgets that dead Slackline processes had raised. A dead process is skipped if its
/// journal of held threads still exists. Returns one error for each dead process whose budgets were
/// not all restored.
#[must_use]
pub fn give_back_budgets(directory: &Path) -> Vec<BudgetError> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_dead = |file: &PathBuf| {
        let owner = owner_of(file, SUFFIX);
        owner.is_some_and(|owner| matches!(exists(owner.id, owner), Ok(false)))
            && !path_of_journal(file).exists()
    };
    files.filter(is_dead).filter_map(|file| restore(&file).err()).collect()
}

/// Returns the path of a journal of held threads. It is the journal of the owner whose original
/// budgets are in the file `budgets`.
fn path_of_journal(budgets: &Path) -> PathBuf {
    budgets.with_extension(super::journal::SUFFIX)
}

/// Returns the budget that a reservation needs in one period of the cgroup, in microseconds. The
/// budget is the reservation's share of that period, plus one slice and a margin for overruns. The
/// slice is added because the periods of the reservation and of the cgroup start at different
/// times. The result is at most `most`. Without a reservation, the result is `most`.
fn needed(promise: Option<Reservation>, period: u64, most: u64) -> u64 {
    let Some(promise) = promise else { return most };
    let share = u128::from(period) * u128::from(promise.slice().ns());
    let share = u64::try_from(share / u128::from(promise.period().ns())).unwrap_or(most);
    let us = |span: Span| span.ns() / 1000;
    (share + us(promise.slice()) + us(MARGIN)).min(most)
}

/// Returns the cgroups whose budgets must be raised so that `leaf` can have the budget `needs`,
/// parents first. Each item contains the path, the current budget and the new budget. The budgets
/// are in microseconds.
fn plan(root: &Path, leaf: &Path, needs: u64) -> Result<Vec<(PathBuf, u64, u64)>, BudgetError> {
    let mut raised = Vec::new();
    let (mut group, mut wanted) = (leaf.to_path_buf(), needs);
    while group != root {
        let has = read(&group.join(RUNTIME))?;
        if wanted <= has {
            break;
        }
        raised.push((group.clone(), has, wanted));
        let Some(parent) = group.parent().map(Path::to_path_buf) else { break };
        wanted += beside_of(&parent, &group);
        group = parent;
    }
    if group == root && wanted > read(&root.join(RUNTIME))? {
        let room = room(root, leaf)?;
        return Err(BudgetError::NoRoom { group: leaf.to_path_buf(), asked: needs, room });
    }
    raised.reverse();
    Ok(raised)
}

/// Returns the largest real-time budget that the cgroup of a thread could have. `None` if cgroups
/// have no budgets on this host, or if the thread is in the root cgroup, which has no limit.
///
/// # Errors
/// If a file cannot be read, or the cgroup is not visible to this process.
pub fn room_of(thread: &ThreadRef) -> Result<Option<BudgetLimit>, BudgetError> {
    match cpu_group_of(thread)? {
        Some((root, group)) if group != root && group.join(RUNTIME).exists() => {
            let (most, period) = (room(&root, &group)?, read(&group.join(PERIOD))?);
            Ok(Some(BudgetLimit { group, most, period }))
        }
        _ => Ok(None),
    }
}

/// Largest real-time budget that a cgroup could have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetLimit {
    /// Folder of the cgroup.
    pub group: PathBuf,
    /// Largest possible budget, in microseconds per period.
    pub most: u64,
    /// Period of the budget, in microseconds.
    pub period: u64,
}

/// Returns the largest budget that the cgroup `leaf` could have. If budgets of cgroups above it are
/// raised, `leaf` can get more. For example, `/a/b/leaf` can get the budget of `/a`, less the
/// budgets of all siblings of `/a/b` and of all siblings of `leaf`. The result is the largest such
/// amount over all cgroups above `leaf`, or the present budget of `leaf` if that is larger.
fn room(root: &Path, leaf: &Path) -> Result<u64, BudgetError> {
    let mut most = read(&leaf.join(RUNTIME))?;
    let (mut group, mut beside) = (leaf, 0);
    while let Some(parent) = group.parent().filter(|_| group != root) {
        beside += beside_of(parent, group);
        most = most.max(read(&parent.join(RUNTIME))?.saturating_sub(beside));
        group = parent;
    }
    Ok(most)
}

/// Returns the sum of the budgets of all cgroups in `parent` except `group`.
fn beside_of(parent: &Path, group: &Path) -> u64 {
    let folders = fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path());
    let others = folders.filter(|other| other != group);
    others.filter_map(|other| read(&other.join(RUNTIME)).ok()).sum()
}

/// Restores the original budget of every cgroup in the file `journal`, children first, and removes
/// the file. If the file does not exist, does nothing. So the call can be repeated.
///
/// # Errors
/// If the budget of a cgroup could not be restored. The function tries all cgroups, and returns the
/// error of the first that failed.
pub(super) fn restore(journal: &Path) -> Result<(), BudgetError> {
    /// Time for which a failing write is retried. After a thread was made ordinary, the kernel may
    /// count it as real-time for a moment, and then refuses to lower the budget.
    const PATIENCE: Duration = Duration::from_millis(200);
    let refused = |source| BudgetError::Refused { path: journal.to_path_buf(), source };
    let text = match fs::read_to_string(journal) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        text => text.map_err(refused)?,
    };
    let garbled = || refused(io::ErrorKind::InvalidData.into());
    let mut groups = BTreeMap::new();
    for line in text.lines() {
        let (group, had) = line.split_once(' ').ok_or_else(garbled)?;
        let had: u64 = had.parse().map_err(|_| garbled())?;
        groups.insert(path(group).ok_or_else(garbled)?, had);
    }
    let mut result = Ok(());
    let deadline = Instant::now() + PATIENCE;
    // In reverse order of paths a group precedes its parent.
    for (group, had) in groups.into_iter().rev().filter(|(group, _)| group.is_dir()) {
        let written = loop {
            match write(&group.join(RUNTIME), had) {
                Err(_) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                written => break written,
            }
        };
        result = result.and(written);
    }
    result?;
    fs::remove_file(journal).map_err(refused)
}

fn read(path: &Path) -> Result<u64, BudgetError> {
    let refused = |source| BudgetError::Refused { path: path.to_path_buf(), source };
    let text = fs::read_to_string(path).map_err(refused)?;
    // -1 means no limit.
    let number: i64 =
        text.trim().parse().map_err(|_| refused(io::ErrorKind::InvalidData.into()))?;
    Ok(u64::try_from(number).unwrap_or(u64::MAX / 4))
}

fn write(path: &Path, us: u64) -> Result<(), BudgetError> {
    let written = fs::write(path, us.to_string());
    written.map_err(|source| BudgetError::Refused { path: path.to_path_buf(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates folders that look like cgroups, each with a file that contains its budget.
    fn groups(all: &[(&str, u64)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, runtime) in all {
            let folder = root.path().join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(RUNTIME), format!("{runtime}\n")).unwrap();
        }
        root
    }

    #[test]
    fn real_time_budget_below_sum_of_needs_is_reported() {
        let root = groups(&[("vcpu", 300_000)]);
        let (leaf, tids) = (root.path().join("vcpu"), [1, 2].map(|tid| Tid::new(tid).unwrap()));
        let mut budgets = Budgets::new(root.path().join("budgets"));
        for tid in tids {
            let (root, leaf) = (root.path().to_path_buf(), leaf.clone());
            budgets.needs.insert(tid, BudgetNeed { root, leaf, us: 150_000 });
        }
        assert_eq!(budgets.cut(tids[0]), None);
        fs::write(leaf.join(RUNTIME), "299999\n").unwrap();
        assert_eq!(budgets.cut(tids[1]), Some((leaf.as_path(), 299_999)));
        fs::remove_dir_all(&leaf).unwrap();
        assert_eq!(budgets.cut(tids[0]), None);
    }

    #[test]
    fn real_time_budget_of_parent_cgroup_covers_all_child_cgroups() {
        let root = groups(&[
            ("", 950_000),
            ("machine", 0),
            ("other", 100_000),
            ("machine/web", 0),
            ("machine/web/vcpu0", 0),
            ("machine/web/vcpu1", 200_000),
        ]);
        let of = |name: &str| root.path().join(name);
        let raised = plan(root.path(), &of("machine/web/vcpu0"), 300_000).unwrap();
        assert_eq!(
            raised,
            [
                (of("machine"), 0, 500_000),
                (of("machine/web"), 0, 500_000),
                (of("machine/web/vcpu0"), 0, 300_000),
            ]
        );
        assert_eq!(plan(root.path(), &of("machine/web/vcpu1"), 200_000).unwrap(), []);
        let none = plan(root.path(), &of("machine/web/vcpu0"), 651_000).unwrap_err();
        assert!(matches!(none, BudgetError::NoRoom { asked: 651_000, room: 650_000, .. }));
    }

    /// The largest budget that `room` returns is the largest budget that `plan` accepts.
    #[test]
    fn real_time_budget_limit_equals_the_largest_accepted_budget() {
        let root = groups(&[
            ("", 950_000),
            ("machine", 0),
            ("other", 100_000),
            ("machine/web", 0),
            ("machine/web/vcpu0", 0),
            ("machine/web/vcpu1", 200_000),
            ("full", 850_000),
            ("full/a", 850_000),
            ("full/b", 0),
        ]);
        for (leaf, most) in [
            ("machine/web/vcpu0", 0),
            ("machine/web/vcpu1", 200_000),
            ("other", 100_000),
            ("full/a", 850_000),
            ("full/b", 0),
        ] {
            let leaf = root.path().join(leaf);
            assert_eq!(room(root.path(), &leaf).unwrap(), most, "{}", leaf.display());
            assert!(plan(root.path(), &leaf, most).is_ok());
            assert!(plan(root.path(), &leaf, most + 1).is_err(), "{}", leaf.display());
        }
        let root = groups(&[("", 950_000), ("machine", 0), ("machine/vcpu0", 0), ("other", 7)]);
        assert_eq!(room(root.path(), &root.path().join("machine/vcpu0")).unwrap(), 949_993);
    }

    #[test]
    fn restore_resets_every_real_time_budget_and_removes_the_journal() {
        let root = groups(&[("a", 500_000), ("a/b", 300_000)]);
        let (a, b) = (root.path().join("a"), root.path().join("a/b"));
        let journal = root.path().join("1-2.budgets");
        let before = [(a.clone(), 7), (b.clone(), 0), (root.path().join("gone"), 3)].into();
        let budgets = Budgets { journal: journal.clone(), before, needs: BTreeMap::new() };
        budgets.write().unwrap();
        restore(&journal).unwrap();
        assert_eq!((read(&a.join(RUNTIME)).unwrap(), read(&b.join(RUNTIME)).unwrap()), (7, 0));
        assert!(!journal.exists());
        restore(&journal).unwrap();
    }

    /// A daemon schedules the same VM many times, with different reservations.
    #[test]
    fn real_time_budgets_shrink_if_thread_leaves_or_reservation_shrinks() {
        let root = groups(&[
            ("", 950_000),
            ("machine", 0),
            ("machine/web", 0),
            ("machine/web/vcpu0", 0),
            ("machine/web/vcpu1", 0),
        ]);
        let of = |name: &str| root.path().join(name);
        let has = |name: &str| read(&of(name).join(RUNTIME)).unwrap();
        let leaf = |name: &str| {
            fs::write(of(name).join(PERIOD), "1000000").unwrap();
            BudgetNeed { root: root.path().to_path_buf(), leaf: of(name), us: 0 }
        };
        let (first, second) = (leaf("machine/web/vcpu0"), leaf("machine/web/vcpu1"));
        let promise = |slice| Reservation::new(Span::from_ms(slice), Span::from_ms(10)).ok();
        let [one, other] = [1, 2].map(|tid| Tid::new(tid).unwrap());
        let mut budgets = Budgets::new(of("1-2.budgets"));
        for _ in 0..20 {
            budgets.need(one, first.clone(), &[promise(2)]).unwrap();
            budgets.need(other, second.clone(), &[promise(1)]).unwrap();
            assert_eq!((has("machine"), has("machine/web/vcpu0")), (323_000, 212_000));
            budgets.regrant(&[one], &[promise(2), promise(4)]).unwrap();
            assert_eq!((has("machine"), has("machine/web/vcpu0")), (525_000, 414_000));
            // A refused budget changes no cgroup.
            assert!(budgets.regrant(&[one], &[promise(9)]).is_err());
            assert_eq!((has("machine"), has("machine/web/vcpu0")), (525_000, 414_000));
            budgets.regrant(&[one], &[promise(1)]).unwrap();
            assert_eq!((has("machine"), has("machine/web/vcpu0")), (222_000, 111_000));
            budgets.revoke(one);
            assert_eq!((has("machine"), has("machine/web/vcpu0")), (111_000, 0));
            budgets.revoke(other);
            assert_eq!((has("machine"), has("machine/web")), (0, 0));
        }
        // The cgroups of a VM are removed when the VM ends.
        budgets.need(one, first, &[promise(2)]).unwrap();
        fs::remove_dir_all(of("machine/web")).unwrap();
        budgets.regrant(&[one], &[promise(5)]).unwrap();
        budgets.revoke(one);
        assert_eq!(has("machine"), 0);
        assert_eq!(budgets.before.into_keys().collect::<Vec<_>>(), [of("machine")]);
    }

    /// A reservation of 2 ms in 10 ms needs 200 ms in each second, plus 2 ms for one slice and 10
    /// ms as the margin. The result is at most 950 ms.
    #[test]
    fn cgroup_real_time_budget_adds_slice_and_margin_to_share() {
        let of = |slice, period| Reservation::new(Span::from_ms(slice), Span::from_ms(period)).ok();
        assert_eq!(needed(of(2, 10), 1_000_000, 950_000), 212_000);
        assert_eq!(needed(of(9, 10), 1_000_000, 950_000), 919_000);
        assert_eq!(needed(of(600, 1000), 1_000_000, 950_000), 950_000);
        assert_eq!(needed(None, 1_000_000, 950_000), 950_000);
    }
}
