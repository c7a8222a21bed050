//! A process tree that the fence will give back, for whoever schedules it as one.
//!
//! All its processes are in one group (see [`TreePlace`]), and so is whatever they start. The
//! kernel's list of who is in the group says who is to be ordered about; nobody keeps a list that
//! could be older than that. Threads are made real-time so that those that they start are so as
//! well, on the same CPU, from their first instruction: between a fork and the next look nobody of
//! the tree runs elsewhere, or less, or longer than the others. They take turns (`SCHED_RR`), and
//! whoever ran longest ago may be put before the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackline_units::{CpuId, CpuSet, Span};

use super::entry::Entry;
use super::give_back::{
    GiveBackError, GivenBack, Original, ROUNDS, give_back, ignore_gone, is_ours, leaver_back,
};
use super::held::{Drift, Leaving};
use slackline_linux::cgroup::{CgroupError, Step, TreePlace};
use slackline_linux::step::{Act, ActError, FifoPriority};
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, favour, get_affinity, get_scheduling, nice_of, set_affinity,
    set_scheduling,
};
use slackline_linux::thread::{ThreadRef, means_gone};

/// A held process tree: all that may be done to it, until it is given back. Clones are the same.
#[derive(Clone, Debug)]
pub struct HeldTree(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    place: TreePlace,
    /// The threads that were there when it was held, the one that its entry names first.
    first: Vec<ThreadRef>,
    /// What those are given back as that have been started since.
    default: Original,
    orders: Mutex<Orders>,
}

#[derive(Debug)]
struct Orders {
    switch: File,
    wanted: Wanted,
    /// Where they are kept; none is where each was.
    cpus: Option<CpuSet>,
    /// Where they are kept instead of on one CPU, if they run on several at once.
    wide: Option<CpuSet>,
    is_frozen: bool,
    originals: BTreeMap<Tid, Original>,
    /// Threads that the kernel keeps on no CPU for anybody, such as the workers of `io_uring`. They
    /// stay ordinary.
    unbound: BTreeSet<Tid>,
    given_back: bool,
    rest: Option<Rest>,
}

/// All of a tree were asleep and as they should be.
#[derive(Debug)]
struct Rest {
    /// What they had used by then.
    used: Span,
    /// How often it was taken since that nothing has changed.
    passed_over: u32,
}

impl Rest {
    fn since(used: Span) -> Rest {
        Rest { used, passed_over: 0 }
    }

    /// Whether it goes on, as far as can be said without looking.
    fn lasts(&mut self, used: Span) -> bool {
        let lasts = self.used == used && self.passed_over < PASSED_OVER;
        self.passed_over += u32::from(lasts);
        lasts
    }
}

/// So often one after the other it is taken that nobody has come into a tree that used nothing.
const PASSED_OVER: u32 = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Original,
    First,
    Raised(FifoPriority),
}

impl HeldTree {
    /// # Errors
    /// When the file that freezes it cannot be opened.
    pub(super) fn new(
        place: TreePlace,
        first: Vec<(ThreadRef, Original)>,
    ) -> Result<HeldTree, CgroupError> {
        let path = place.switch();
        let switch = OpenOptions::new().write(true).open(&path);
        let switch =
            switch.map_err(|source| CgroupError::refused(Step::OpenSwitch, &path, source))?;
        let Some(&(_, default)) = first.first() else {
            return Err(CgroupError::Empty { group: place.group });
        };
        let originals = first.iter().map(|(thread, original)| (thread.tid(), *original)).collect();
        let first = first.into_iter().map(|(thread, _)| thread).collect();
        let orders = Orders {
            switch,
            wanted: Wanted::Original,
            cpus: None,
            wide: None,
            is_frozen: false,
            originals,
            unbound: BTreeSet::new(),
            given_back: false,
            rest: None,
        };
        Ok(HeldTree(Arc::new(Shared { place, first, default, orders: Mutex::new(orders) })))
    }

    /// The group that it is in.
    #[must_use]
    pub fn place(&self) -> &TreePlace {
        &self.0.place
    }

    /// The threads that were there when it was held.
    #[must_use]
    pub fn first(&self) -> &[ThreadRef] {
        &self.0.first
    }

    /// The threads that are there now.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn threads(&self) -> Result<Vec<Tid>, CgroupError> {
        self.0.place.threads()
    }

    /// Whether nobody is left of it.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        !self.0.place.is_populated()
    }

    /// What says what all of it has used.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn usage(&self) -> io::Result<TreeUsage> {
        File::open(self.0.place.usage()).map(TreeUsage)
    }

    /// Makes all its threads real-time at `priority`, and with them those that they start.
    ///
    /// # Errors
    /// When it was given back, or the kernel refuses.
    pub fn raise(&self, priority: FifoPriority) -> Result<(), ActError> {
        self.want(Wanted::Raised(priority))
    }

    /// Makes them the first of the ordinary threads.
    ///
    /// # Errors
    /// When it was given back, or the kernel refuses.
    pub fn favour(&self) -> Result<(), ActError> {
        self.want(Wanted::First)
    }

    /// Schedules each as it was originally.
    ///
    /// # Errors
    /// When it was given back, or the kernel refuses.
    pub fn lower(&self) -> Result<(), ActError> {
        self.want(Wanted::Original)
    }

    /// From now on all these CPUs are the one that it runs on.
    pub fn widen(&self, cpus: CpuSet) {
        self.lock().wide = Some(cpus);
    }

    /// The CPUs that are the one that it runs on, if there are several.
    #[must_use]
    pub fn wide(&self) -> Option<CpuSet> {
        self.lock().wide
    }

    /// How many CPUs are the one that it runs on.
    #[must_use]
    pub fn width(&self) -> usize {
        self.lock().wide.map_or(1, |wide| wide.iter().count())
    }

    /// Has the kernel count what these threads have used up to now, also on other CPUs than the
    /// caller's: of who is running it else does so at its next tick, milliseconds later. That is so
    /// wherever a thread is given another class, and then its own again. What fails here is
    /// counted at the tick.
    pub fn count(&self, tids: impl Iterator<Item = Tid>) {
        let orders = self.lock();
        let other = match orders.wanted {
            Wanted::Raised(priority) => Scheduling::Fifo { priority: priority.number().into() },
            Wanted::First => Scheduling::Other { nice: -19 },
            Wanted::Original => return,
        };
        if orders.given_back {
            return;
        }
        let other = SchedulingOf { class: other, reset_on_fork: false };
        for tid in tids {
            let _ = set_scheduling(tid, &other);
            let _ = match orders.wanted {
                Wanted::Raised(priority) => set_scheduling(tid, &round_robin(priority.number())),
                Wanted::First | Wanted::Original => favour(tid),
            };
        }
    }

    /// Keeps all on one CPU, or on all that are that.
    ///
    /// # Errors
    /// When it was given back, or the kernel refuses.
    pub fn pin(&self, cpu: CpuId) -> Result<(), ActError> {
        let wide = self.orders()?.wide;
        self.keep_on(Some(wide.unwrap_or(CpuSet::one(cpu)))).map(drop)
    }

    /// Keeps all on these CPUs, or each where it was; says where they were kept before.
    ///
    /// # Errors
    /// When it was given back, or the kernel refuses.
    pub fn keep_on(&self, cpus: Option<CpuSet>) -> Result<Option<CpuSet>, ActError> {
        let mut orders = self.orders()?;
        let before = orders.cpus;
        if before != cpus {
            orders.cpus = cpus;
            if let Err(error) = self.bring(&mut orders) {
                orders.cpus = before;
                return Err(error);
            }
        }
        Ok(before)
    }

    /// Keeps all of it from running, whoever is started meanwhile.
    ///
    /// # Errors
    /// When it was given back, or the kernel refuses.
    pub fn hold_back(&self) -> Result<(), ActError> {
        self.freeze(&mut *self.orders()?, true)
    }

    /// Lets it run again.
    ///
    /// # Errors
    /// When it was given back, or the kernel refuses.
    pub fn let_go(&self) -> Result<(), ActError> {
        self.freeze(&mut *self.orders()?, false)
    }

    /// Puts one of its threads before the others that are as urgent.
    ///
    /// # Errors
    /// When it was given back, or the kernel refuses.
    pub fn put_first(&self, tid: Tid) -> Result<(), ActError> {
        let orders = self.orders()?;
        let Wanted::Raised(priority) = orders.wanted else { return Ok(()) };
        // On several CPUs it stays more urgent until all are counted: so the kernel moves it to a
        // CPU whose thread is not to run first.
        let lowers = orders.wide.is_none();
        // The kernel puts whoever is made less urgent before those who are so already.
        let steps = [priority.number() + 1, priority.number()];
        for &priority in &steps[..1 + usize::from(lowers)] {
            let done = set_scheduling(tid, &round_robin(priority));
            ignore_gone(done)
                .map_err(|source| refused(tid, Act::Raise(FifoPriority::CHOSEN), source))?;
        }
        Ok(())
    }

    /// Looks whether all are as they should be, also those who came in otherwise than by being
    /// started; says who is there, who is not as was ordered, and who has left the group.
    /// `known` are others that were in it.
    ///
    /// # Errors
    /// When it was given back, or the kernel refuses.
    pub fn audit(&self, known: &[Tid]) -> Result<TreeAudit, ActError> {
        let mut orders = self.orders()?;
        let there = self.list()?;
        let is_there: BTreeSet<Tid> = there.iter().copied().collect();
        let known: BTreeSet<Tid> = known.iter().chain(orders.originals.keys()).copied().collect();
        let left = known.difference(&is_there).copied().collect();
        orders.unbound.retain(|tid| is_there.contains(tid));
        let mut changed = Vec::new();
        for &tid in &there {
            if !orders.originals.contains_key(&tid) {
                self.bring_one(&mut orders, tid)?;
            } else if let Some(drift) = orders.drift_of(tid) {
                changed.push((tid, drift));
            }
        }
        Ok(TreeAudit { there, changed, left })
    }

    /// Makes threads as they were ordered to be.
    ///
    /// # Errors
    /// When it was given back, or the kernel refuses.
    pub fn undo(&self, tids: &[Tid]) -> Result<(), ActError> {
        let mut orders = self.orders()?;
        tids.iter().try_for_each(|&tid| self.bring_one(&mut orders, tid))
    }

    /// The CPUs that all are kept on, if they are kept anywhere.
    #[must_use]
    pub fn kept_on(&self) -> Option<CpuSet> {
        self.lock().cpus
    }

    /// True if a thread is scheduled as only threads of trees are.
    #[must_use]
    pub fn is_as_ordered(&self, tid: Tid) -> bool {
        get_scheduling(tid).is_ok_and(|now| is_ours(now.class))
    }

    /// The group, if others have frozen or thawed it against what was ordered.
    #[must_use]
    pub fn foreign_freeze(&self) -> Option<PathBuf> {
        let orders = self.lock();
        let is = std::fs::read_to_string(self.0.place.switch()).ok()?;
        let is_frozen = is.trim() == "1";
        (is_frozen != orders.is_frozen).then(|| self.0.place.group.clone())
    }

    /// A thread that has left the group is not its business any more: if it is as we made it, it is
    /// given back. If that fails, it has ended.
    pub fn let_leave(&self, tid: Tid) {
        let mut orders = self.lock();
        let original = orders.originals.remove(&tid).unwrap_or(self.0.default);
        let _ = leaver_back(tid, original);
    }

    /// Leaves all of it to whoever has changed it, as [`Held::leave`](super::Held::leave) does.
    /// Returns what threads are given back as that are not as they were ordered.
    ///
    /// # Errors
    /// When it was given back, or the kernel refuses.
    pub fn leave(&self, how: Leaving) -> Result<Vec<(Tid, Original)>, ActError> {
        let mut orders = self.orders()?;
        let mut changed = Vec::new();
        for tid in self.list()? {
            let Some(drift) = orders.drift_of(tid) else { continue };
            let Some(mut original) = self.original(&mut orders, tid)? else { continue };
            original.affinity = drift.cpus.filter(|_| !how.by_cpuset).unwrap_or(original.affinity);
            original.scheduling = drift.class.unwrap_or(original.scheduling);
            orders.originals.insert(tid, original);
            changed.push((tid, original));
        }
        (orders.wanted, orders.cpus) = (Wanted::Original, None);
        self.bring(&mut orders)?;
        if !how.stays_stopped {
            self.freeze(&mut orders, false)?;
        }
        Ok(changed)
    }

    /// All of it were asleep and as they should be when they had used that much.
    pub fn has_rested(&self, used: Span) {
        self.lock().rest = Some(Rest::since(used));
    }

    /// Whether it need not be looked at: as nothing was used since all of it were asleep, nobody
    /// there has done anything. Who was put into it asleep, or made otherwise than he should be, is
    /// found when he runs, or when it is looked at all the same, some time later.
    #[must_use]
    pub fn is_resting(&self, used: Span) -> bool {
        self.lock().rest.as_mut().is_some_and(|rest| rest.lasts(used))
    }

    /// Refuses all further orders and undoes those given.
    ///
    /// # Errors
    /// The first step that failed. Orders are refused all the same.
    pub(super) fn give_back(&self, entry: &Entry) -> Result<GivenBack, GiveBackError> {
        let mut orders = self.lock();
        orders.given_back = true;
        give_back(entry)
    }

    fn want(&self, wanted: Wanted) -> Result<(), ActError> {
        let mut orders = self.orders()?;
        if orders.wanted == wanted {
            return Ok(());
        }
        let before = std::mem::replace(&mut orders.wanted, wanted);
        self.bring(&mut orders).inspect_err(|_| orders.wanted = before)
    }

    /// Makes all threads as they should be, and those that are started while this goes on.
    fn bring(&self, orders: &mut Orders) -> Result<(), ActError> {
        let mut done = BTreeSet::new();
        for _ in 0..ROUNDS {
            let there = self.list()?;
            let new: Vec<Tid> = there.iter().copied().filter(|tid| done.insert(*tid)).collect();
            if new.is_empty() {
                orders.originals.retain(|tid, _| done.contains(tid));
                break;
            }
            for tid in new {
                self.bring_one(orders, tid)?;
            }
        }
        Ok(())
    }

    fn bring_one(&self, orders: &mut Orders, tid: Tid) -> Result<(), ActError> {
        let Some(original) = self.original(orders, tid)? else { return Ok(()) };
        let cpus = orders.cpus.unwrap_or(original.affinity);
        // First, so that none is real-time elsewhere because of us.
        match set_affinity(tid, &cpus) {
            // Where it was, a cpuset of ours may not let it be.
            Err(error) if is_invalid(&error) && orders.cpus.is_none() => {}
            Err(error) if is_invalid(&error) => {
                orders.unbound.insert(tid);
                let set = ignore_gone(set_scheduling(tid, &original.scheduling));
                return set.map_err(|source| refused(tid, Act::Lower, source));
            }
            set => ignore_gone(set).map_err(|source| refused(tid, Act::Confine, source))?,
        }
        orders.unbound.remove(&tid);
        let (act, set) = match orders.wanted {
            Wanted::Original => (Act::Lower, set_scheduling(tid, &original.scheduling)),
            Wanted::First => (Act::Favour, favour(tid)),
            Wanted::Raised(priority) => {
                (Act::Raise(priority), set_scheduling(tid, &round_robin(priority.number())))
            }
        };
        ignore_gone(set).map_err(|source| refused(tid, act, source))
    }

    /// What a thread is given back as; none if it has ended. Of one that was started while it was
    /// ours, only its nice value is its own.
    fn original(&self, orders: &mut Orders, tid: Tid) -> Result<Option<Original>, ActError> {
        if let Some(&original) = orders.originals.get(&tid) {
            return Ok(Some(original));
        }
        let now = match get_scheduling(tid) {
            Err(error) if means_gone(&error) => return Ok(None),
            now => now.map_err(|source| refused(tid, Act::Lower, source))?,
        };
        let Original { mut scheduling, affinity } = self.0.default;
        if !is_ours(now.class) {
            scheduling = now;
        } else if let (Scheduling::Other { .. }, Ok(nice)) = (scheduling.class, nice_of(tid)) {
            scheduling.class = Scheduling::Other { nice };
        }
        let original = Original { scheduling, affinity };
        orders.originals.insert(tid, original);
        Ok(Some(original))
    }

    fn list(&self) -> Result<Vec<Tid>, ActError> {
        let list = self.0.place.threads();
        list.map_err(|error| {
            let source = match error {
                CgroupError::Refused { source, .. } => source,
                error => io::Error::other(error),
            };
            refused(self.carrier(), Act::Confine, source)
        })
    }

    fn freeze(&self, orders: &mut Orders, is_frozen: bool) -> Result<(), ActError> {
        if orders.is_frozen != is_frozen {
            let (text, act) = if is_frozen { ("1", Act::Freeze) } else { ("0", Act::Thaw) };
            let written = orders.switch.write_all_at(text.as_bytes(), 0);
            written.map_err(|source| match source.raw_os_error() {
                // Its group was removed, so all of it has ended.
                Some(libc::ENODEV) => ActError::Gone { tid: self.carrier() },
                _ => refused(self.carrier(), act, source),
            })?;
            orders.is_frozen = is_frozen;
        }
        Ok(())
    }

    fn carrier(&self) -> Tid {
        self.0.first[0].tid()
    }

    fn orders(&self) -> Result<MutexGuard<'_, Orders>, ActError> {
        let orders = self.lock();
        if orders.given_back {
            return Err(ActError::GivenBack { tid: self.carrier() });
        }
        Ok(orders)
    }

    /// A panic in the middle of an order leaves at worst a call that is made once too often.
    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.0.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What all of a tree has used, those that have ended included, in whole microseconds.
#[derive(Debug)]
pub struct TreeUsage(File);

impl TreeUsage {
    /// As the kernel counted it up to the last switch of each.
    ///
    /// # Errors
    /// When the group is gone, or the kernel does not say.
    pub fn read(&self) -> io::Result<Span> {
        // Three numbers of at most 20 digits stand first.
        let mut text = [0; 128];
        let length = self.0.read_at(&mut text, 0)?;
        let text = std::str::from_utf8(&text[..length]).ok();
        let used = text.and_then(|text| text.lines().next()?.strip_prefix("usage_usec "));
        let used = used.and_then(|number| number.parse().ok());
        used.map(Span::from_us).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

fn round_robin(priority: u8) -> SchedulingOf {
    let class = Scheduling::RoundRobin { priority: priority.into() };
    SchedulingOf { class, reset_on_fork: false }
}

impl Orders {
    /// How a thread differs from what was ordered. `None` if it does not, or has ended.
    fn drift_of(&self, tid: Tid) -> Option<Drift> {
        let (class, cpus) = (get_scheduling(tid).ok()?, get_affinity(tid).ok()?);
        if self.unbound.contains(&tid) {
            return None;
        }
        let is_as_ordered = match self.wanted {
            Wanted::Original => {
                let is_its_own = |it: &Original| it.scheduling.class == class.class;
                !is_ours(class.class) || self.originals.get(&tid).is_some_and(is_its_own)
            }
            Wanted::First => class.class == Scheduling::Other { nice: -20 },
            Wanted::Raised(priority) => class == round_robin(priority.number()),
        };
        let ordered = self.cpus.unwrap_or(cpus);
        Drift::of((!is_as_ordered).then_some(class), (cpus != ordered).then_some(cpus))
    }
}

/// What a look at all threads of a tree found.
#[derive(Debug, Default)]
pub struct TreeAudit {
    /// Who is there.
    pub there: Vec<Tid>,
    /// Who is not as was ordered.
    pub changed: Vec<(Tid, Drift)>,
    /// Who was there before and is not: it has ended, or is in another group.
    pub left: Vec<Tid>,
}

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINVAL)
}

fn refused(tid: Tid, act: Act, source: io::Error) -> ActError {
    // That one thread is gone does not end the tree.
    ActError::Refused { tid, act, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_uses_nothing_is_looked_at_each_tenth_time_and_one_that_does_at_once() {
        let used = Span::from_ms(3);
        let mut rest = Rest::since(used);
        let looked = (0..20).map(|_| rest.lasts(used));
        assert_eq!(looked.take_while(|lasts| *lasts).count(), 9);
        assert!(!rest.lasts(used), "until it has been looked at");
        assert!(!Rest::since(used).lasts(used + Span::from_us(1)));
    }
}
