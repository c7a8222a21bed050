//! The keeper: a child process that knows which threads must be restored to which state.
//!
//! The keeper reads lines from its owner. It records each line in memory and, if possible, in the
//! journal. Then it answers each line with one line. The owner sends these lines:
//!
//! ```text
//! owner PID START DIRECTORY   the owner, and the directory of the journal; the first line
//! hold ...                    entry of a thread that the owner may change after the answer
//! all                         the list is complete; from now on it replaces an older journal
//! free TID                    a thread that the owner has restored
//! ```
//!
//! The answer is `journal` if the list is also in the journal, and `no-journal` if it is not. A
//! line that is not in the protocol gets the answer `what`.
//!
//! A thread can leave its process tree and keep the scheduling class that the fence set. So the
//! keeper also reads and records the threads of process trees a few times a second.
//!
//! When the owner has closed its end of the socket or has ended, the keeper restores all threads on
//! its list and ends. A thread whose entry has the word `kept` is restored only after the time in
//! the entry. Until then a new Slackline process can adopt the thread: it removes the entry from
//! the journal. If the owner was a service with Slackline's systemd unit, the keeper does not wait,
//! because systemd starts the service again only when the keeper has ended. The unit then runs
//! `slackline doctor --free --unless-kept`, which starts a timer that restores the kept threads.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, setsid};

use super::at_work::{KeeperLock, keepers_have_ended};
use super::budget::{self, give_back_budgets};
use super::entry::{Entry, HoldMethod, TaskIdentity, path, task_identity, trees_first};
use super::give_back::{exists, give_back, is_moot};
use super::journal;
use slackline_linux::causes::with_causes;
use slackline_linux::cgroup::{TreePlace, restore_grace_periods};
use slackline_linux::step::FifoPriority;
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, ignore_signal, lock_memory, own_tid, process_of, set_scheduling,
};
use slackline_linux::thread::{Stat, TaskFd};

/// Runs the keeper. Its standard input is the socket to the owner.
///
/// Returns a failure if a thread could not be restored. The error is printed on standard error, and
/// the journal, if there is one, still lists the thread.
#[must_use]
pub fn keeper_main() -> ExitCode {
    prepare();
    let link = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    let link = match link {
        Ok(link) => link,
        Err(error) => {
            complain(&format!("the keeper cannot read from the scheduling process: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let mut keeper = Keeper::default();
    // However the connection ended, the threads on the list must be restored now.
    if let Err(error) = keeper.listen(&link) {
        complain(&format!("the keeper lost its connection to the scheduling process: {error}"));
    }
    keeper.give_all_back()
}

/// Protects the keeper: it ignores signals of the terminal, gets a real-time priority, and has its
/// memory locked. Errors are ignored, because a keeper without protection is better than none.
fn prepare() {
    // Start a new session, so that signals from the terminal do not reach the keeper.
    let _ = setsid();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::PIPE] {
        let _ = ignore_signal(signal);
    }
    let class = Scheduling::Fifo { priority: FifoPriority::KEEPER.number().into() };
    let _ = set_scheduling(own_tid(), &SchedulingOf { class, reset_on_fork: true });
    let _ = lock_memory();
    // With this value the kernel never kills the keeper to free memory.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    let _ = rustix::thread::set_name(c"slackline-keep");
}

/// Writes a message to standard error. Errors are ignored, because standard error may be closed and
/// the keeper must continue.
fn complain(what: &str) {
    let _ = writeln!(io::stderr(), "slackline: {what}");
}

#[derive(Default)]
struct Keeper {
    owner: Option<TaskFd>,
    /// True if the systemd unit of the owner restores kept threads in place of the keeper.
    is_service: bool,
    journal: Option<PathBuf>,
    /// True if `held` contains all threads of the owner. Only then may the list replace the
    /// journal.
    complete: bool,
    held: Vec<Entry>,
    /// Threads that were seen in the process trees of `held`. Each is still in its tree, or has a
    /// scheduling class that the fence gives to trees.
    members: BTreeMap<Tid, Entry>,
    /// Entries from the journal of an earlier keeper of the same owner. They are used until the
    /// owner has sent its complete list.
    older: Vec<Entry>,
    /// Lock that shows other programs that this keeper is running.
    at_work: Option<KeeperLock>,
    /// Time of the next reading of process trees. `None` if there are no trees.
    next_look: Option<Instant>,
}

/// Answer to a line if the list is in memory and in the journal.
const WRITTEN: &str = "journal\n";
/// Answer to a line if the list is in memory, but not in the journal.
const UNWRITTEN: &str = "no-journal\n";
/// Answer to a line that is not in the protocol.
const WHAT: &str = "what\n";

/// Environment variable that the systemd unit of the daemon sets. If it is set, a timer of the unit
/// restores the kept threads of a killed daemon. The keeper then ends without waiting until the
/// time of the kept threads has passed.
const KEPT_BY_UNIT: &str = "SLACKLINE_KEPT_BY_UNIT";

/// Interval at which the threads of process trees are read. On kernels that do not report the end
/// of the owner, the keeper also checks at this interval if the owner still exists. Usually the
/// closed socket shows the end, but not if another process has inherited the socket.
const LOOK: Duration = Duration::from_millis(100);

/// Maximum number of process trees that are all read at the interval [`LOOK`]. With more trees the
/// interval is longer in proportion, which limits the CPU time for reading.
const TREES: usize = 16;

impl Keeper {
    /// Serves the owner until the owner closes its end of the socket or has ended.
    fn listen(&mut self, mut link: &UnixStream) -> io::Result<()> {
        let mut unread = Vec::new();
        let mut buffer = [0; 16_384];
        let mut orphaned = false;
        loop {
            // Once the owner has ended, the keeper reads the lines that have arrived and does not
            // wait for more. Another process may have inherited the owner's end of the socket and
            // keep it open.
            if !orphaned {
                orphaned = self.wait(link)?;
                link.set_nonblocking(orphaned)?;
            }
            let count = match link.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            unread.extend_from_slice(&buffer[..count]);
            if let Some(end) = unread.iter().rposition(|&byte| byte == b'\n') {
                let lines: Vec<u8> = unread.drain(..=end).collect();
                let answer = self.hear(String::from_utf8_lossy(&lines).split_terminator('\n'));
                // If the owner has ended, the answer cannot be delivered. Read its last lines
                // anyway.
                if let Err(error) = link.write_all(answer.as_bytes())
                    && !orphaned
                    && error.kind() != io::ErrorKind::BrokenPipe
                {
                    return Err(error);
                }
            }
        }
    }

    /// Waits until the socket can be read or the owner has ended. Meanwhile reads the threads of
    /// process trees at intervals. Returns true if the owner has ended.
    fn wait(&mut self, link: &UnixStream) -> io::Result<bool> {
        loop {
            let owner = self.owner.as_ref();
            let end = owner.and_then(TaskFd::pollable);
            let mut fds = vec![PollFd::new(link, PollFlags::IN)];
            fds.extend(end.map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)));
            let must_look = owner.is_some() && end.is_none() || self.trees().next().is_some();
            let times = match end {
                Some(_) => u32::try_from(self.trees().count().div_ceil(TREES)).unwrap_or(u32::MAX),
                None => 1,
            };
            // Lines that the owner sends do not delay the reading of process trees.
            let now = Instant::now();
            let at = must_look.then(|| self.next_look.unwrap_or(now + LOOK * times.max(1)));
            let left = at.map(|at| Timespec::try_from(at.saturating_duration_since(now)));
            let left = left.transpose().map_err(io::Error::other)?;
            let polled = poll(&mut fds, left.as_ref());
            let has_ended = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
            self.next_look = at;
            if at.is_some_and(|at| at <= Instant::now()) {
                if self.owner.as_ref().is_some_and(|owner| owner.has_exited().unwrap_or(false)) {
                    return Ok(true);
                }
                self.look_at_trees();
                self.next_look = None;
            }
            match polled {
                Ok(0) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(has_ended),
            }
        }
    }

    /// Returns the held process trees. Each has its entry, which is the entry of its first thread.
    fn trees(&self) -> impl Iterator<Item = (&Entry, &TreePlace)> {
        self.held.iter().filter_map(|entry| match &entry.way {
            HoldMethod::Tree(place) => Some((entry, place)),
            _ => None,
        })
    }

    /// Records, for each held process tree, its threads that have no entry of their own. Drops
    /// recorded threads that need not be restored any more.
    fn look_at_trees(&mut self) {
        let (mut there, mut new) = (BTreeSet::new(), Vec::new());
        let held: BTreeSet<Tid> = self.held.iter().map(|entry| entry.thread.id).collect();
        for (tree, place) in self.trees() {
            // A cgroup that cannot be read now is read at the next interval.
            for tid in place.all_threads().unwrap_or_default() {
                there.insert(tid);
                if !self.members.contains_key(&tid) && !held.contains(&tid) {
                    new.extend(member_of(tree, tid));
                }
            }
        }
        let before = self.members.len();
        // A thread that has left its tree and has no class that the fence gives to trees need not
        // be restored.
        self.members
            .retain(|tid, it| if there.contains(tid) { is_there(it) } else { !is_moot(it) });
        if self.members.len() < before || !new.is_empty() {
            self.members.extend(new.into_iter().map(|entry| (entry.thread.id, entry)));
            self.write();
        }
    }

    /// Processes lines from the owner, and updates the journal once for all of them. Returns the
    /// answers.
    fn hear<'a>(&mut self, lines: impl Iterator<Item = &'a str>) -> String {
        let understood: Vec<bool> = lines.map(|line| self.take_in(line)).collect();
        let is_written = understood.contains(&true) && self.write();
        let answer = |understood| match (understood, is_written) {
            (false, _) => WHAT,
            (true, true) => WRITTEN,
            (true, false) => UNWRITTEN,
        };
        understood.into_iter().map(answer).collect()
    }

    /// Processes one line from the owner. Returns false if the line is not in the protocol.
    fn take_in(&mut self, line: &str) -> bool {
        let mut fields = line.split_ascii_whitespace();
        match fields.next() {
            Some("owner") => task_identity(&mut fields)
                .zip(fields.next().and_then(path))
                .is_some_and(|(owner, directory)| self.meet(owner, &directory)),
            Some("hold") => Entry::from_line(line).is_some_and(|entry| {
                self.forget(entry.thread.id);
                self.held.push(entry);
                true
            }),
            Some("free") => {
                let tid = fields.next().and_then(|tid| tid.parse().ok()).and_then(Tid::new);
                tid.is_some_and(|tid| self.forget(tid))
            }
            Some("all") => {
                self.complete = true;
                self.older.clear();
                true
            }
            _ => false,
        }
    }

    fn forget(&mut self, tid: Tid) -> bool {
        self.held.retain(|entry| entry.thread.id != tid);
        if self.trees().next().is_none() {
            self.members.clear();
        }
        true
    }

    /// Records the owner. Returns false if the owner does not exist any more, because it was killed
    /// while this keeper started. Then the journal of an earlier keeper is the only list of the
    /// owner's threads.
    fn meet(&mut self, owner: TaskIdentity, directory: &Path) -> bool {
        let held = TaskFd::open(owner.id);
        let Some(held) = held.ok().filter(|_| matches!(exists(owner.id, owner), Ok(true))) else {
            let path = journal::path_for(directory, owner);
            self.older = journal::read(&path).unwrap_or_default();
            self.journal = (!self.older.is_empty()).then_some(path);
            self.at_work = KeeperLock::begin(directory, owner);
            return false;
        };
        self.owner = Some(held);
        self.is_service = std::env::var_os(KEPT_BY_UNIT).is_some();
        match journal::make_directory(directory) {
            Ok(()) => {
                self.at_work = KeeperLock::begin(directory, owner);
                journal::sweep(directory);
                let _ = keepers_have_ended(directory, Duration::ZERO);
                // If a budget cannot be restored now, the next keeper tries again.
                let _ = give_back_budgets(directory);
                let path = journal::path_for(directory, owner);
                self.older = journal::read(&path).unwrap_or_default();
                self.journal = Some(path);
            }
            Err(error) => complain(&format!(
                "scheduled threads are not in a journal, so nothing would restore them if the \
                 keeper were killed: {error}"
            )),
        }
        true
    }

    /// Writes the list to the journal. Until the owner has sent its complete list, the journal of
    /// an earlier keeper is kept. Returns true if the list is in the journal.
    fn write(&mut self) -> bool {
        let Some(path) = &self.journal else { return false };
        if !self.complete {
            return true;
        }
        let entries: Vec<&Entry> = self.held.iter().chain(self.members.values()).collect();
        match journal::write(path, &entries) {
            Ok(()) => true,
            Err(error) => {
                complain(&format!("the journal of scheduled threads is not up to date: {error}"));
                false
            }
        }
    }

    fn give_all_back(mut self) -> ExitCode {
        restore_grace_periods();
        // Members of a tree are restored after the tree and after its first threads.
        self.look_at_trees();
        self.held.extend(std::mem::take(&mut self.members).into_values());
        for entry in std::mem::take(&mut self.older) {
            if self.held.iter().all(|held| held.thread != entry.thread) {
                self.held.push(entry);
            }
        }
        trees_first(&mut self.held);
        let is_kept = |entry: &Entry| entry.kept_for().is_some() && self.journal.is_some();
        let held = std::mem::take(&mut self.held);
        let (kept, held): (Vec<_>, _) = held.into_iter().partition(is_kept);
        self.held = held;
        let restored = self.give_held_back(&kept);
        let keep_for = kept.iter().filter_map(Entry::kept_for).max();
        match keep_for {
            Some(_) if self.is_service => restored,
            Some(time) if !self.wait_for_adoption(time) => {
                self.held.extend(self.still_listed(kept));
                self.give_held_back(&[])
            }
            _ => restored,
        }
    }

    /// Waits for `time`, or until new Slackline processes have adopted all threads in the journal.
    /// Returns true if all threads were adopted.
    fn wait_for_adoption(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        let Some(journal) = &self.journal else { return false };
        while Instant::now() < end {
            if !journal.exists() {
                return true;
            }
            std::thread::sleep(LOOK.min(end.saturating_duration_since(Instant::now())));
        }
        false
    }

    /// Returns the entries of `kept` that are still in the journal. A new Slackline process that
    /// adopts a thread removes its entry from the journal.
    fn still_listed(&self, kept: Vec<Entry>) -> Vec<Entry> {
        let journal = self.journal.as_ref();
        let listed = journal.and_then(|path| journal::read(path).ok()).unwrap_or_default();
        let is_listed = |entry: &Entry| listed.iter().any(|one| one.thread == entry.thread);
        kept.into_iter().filter(is_listed).collect()
    }

    /// Restores all threads in `held` except those in `kept`. The entries in `kept` stay in the
    /// journal, and their threads are left as they are.
    fn give_held_back(&mut self, kept: &[Entry]) -> ExitCode {
        /// Maximum number of attempts to restore a thread. An attempt can fail because an exiting
        /// thread blocks the removal of its cgroup for a moment. Other errors usually persist.
        const TRIES: usize = 3;
        let mut errors = Vec::new();
        for _ in 0..TRIES {
            errors.clear();
            self.held.retain(|entry| match give_back(entry) {
                Ok(_) => false,
                // The thread has exited in the meantime, so nothing is left to restore.
                Err(_) if is_moot(entry) => false,
                Err(error) => {
                    errors.push(error);
                    true
                }
            });
        }
        self.complete = true;
        self.held.extend(kept.iter().cloned());
        self.write();
        self.held.retain(|entry| kept.iter().all(|kept| kept.thread != entry.thread));
        let budgets = self.journal.as_ref().map(|path| path.with_extension(budget::SUFFIX));
        let budgets = budgets.map_or(Ok(()), |path| budget::restore(&path));
        if let Err(error) = &budgets {
            complain(&with_causes(error));
        }
        if let Some(at_work) = self.at_work.take() {
            at_work.end();
        }
        // Reported last, because writing to a pipe may block.
        for error in &errors {
            complain(&with_causes(error));
        }
        if self.held.is_empty() && budgets.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn is_there(entry: &Entry) -> bool {
    exists(entry.process.id, entry.thread).unwrap_or(true)
}

/// Returns an entry for a thread of a process tree. `None` if the thread has ended. With the entry,
/// the thread can be restored after it has left the tree. Its original state is copied from the
/// tree's entry.
fn member_of(tree: &Entry, tid: Tid) -> Option<Entry> {
    let pid = process_of(tid).ok()?;
    let started = |tid| Some(Stat::of(pid, tid).ok()?.started());
    Some(Entry {
        process: TaskIdentity { id: pid, started: started(pid)? },
        thread: TaskIdentity { id: tid, started: started(tid)? },
        way: HoldMethod::Member,
        cpuset: None,
        cell: None,
        first: None,
        kept: None,
        ..tree.clone()
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::super::ourselves;
    use super::*;
    use slackline_linux::sys::{get_affinity, get_scheduling};

    struct Sleeper(Child);

    impl Sleeper {
        fn id(&self) -> Tid {
            Tid::new(i32::try_from(self.0.id()).unwrap()).unwrap()
        }

        fn is_stopped(&self) -> bool {
            Stat::of(self.id(), self.id()).unwrap().stopped()
        }

        /// Returns true if the process has the class that [`limited_sleeper`] has set.
        fn is_limited(&self) -> bool {
            get_scheduling(self.id()).unwrap().class == Scheduling::Idle
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    /// Starts a process and stops it. Returns the process, and the journal entry for it.
    fn held_sleeper() -> (Sleeper, Entry) {
        let sleeper = Sleeper(Command::new("sleep").arg("1000").spawn().unwrap());
        let id = sleeper.id();
        let who = TaskIdentity { id, started: Stat::of(id, id).unwrap().started() };
        let entry = Entry {
            process: who,
            thread: who,
            scheduling: get_scheduling(id).unwrap(),
            affinity: get_affinity(id).unwrap(),
            way: HoldMethod::Process,
            cpuset: None,
            cell: None,
            first: None,
            kept: None,
        };
        TaskFd::open(id).unwrap().signal(Signal::STOP).unwrap();
        while !sleeper.is_stopped() {
            std::thread::yield_now();
        }
        (sleeper, entry)
    }

    /// Starts a process and sets its class, which stands for a limit by the kernel. Returns the
    /// process with its journal entry. The limit is kept for `time` after the owner has died.
    fn limited_sleeper(time: Duration) -> (Sleeper, Entry) {
        let (sleeper, entry) = held_sleeper();
        TaskFd::open(sleeper.id()).unwrap().signal(Signal::CONT).unwrap();
        let class = Scheduling::Idle;
        set_scheduling(sleeper.id(), &SchedulingOf { class, reset_on_fork: false }).unwrap();
        (sleeper, Entry { way: HoldMethod::Nothing, kept: Some(time), ..entry })
    }

    fn heard(keeper: &mut Keeper, line: &str) -> String {
        keeper.hear(std::iter::once(line))
    }

    fn hello(owner: TaskIdentity, directory: &Path) -> String {
        let directory = super::super::entry::path_text(directory);
        format!("owner {} {} {directory}", owner.id, owner.started)
    }

    #[test]
    fn new_keeper_uses_old_journal_until_all_threads_are_reported() {
        for (told_all, stopped_after) in [(false, false), (true, true)] {
            let directory = tempfile::tempdir().unwrap();
            let owner = ourselves().unwrap();
            let (sleeper, entry) = held_sleeper();
            journal::write(&journal::path_for(directory.path(), owner), &[&entry]).unwrap();
            let mut keeper = Keeper::default();
            assert_eq!(heard(&mut keeper, &hello(owner, directory.path())), WRITTEN);
            if told_all {
                assert_eq!(heard(&mut keeper, "all"), WRITTEN);
            }
            assert_eq!(keeper.give_all_back(), ExitCode::SUCCESS);
            assert_eq!(sleeper.is_stopped(), stopped_after);
        }
    }

    /// The owner is killed while its keeper is starting. The keeper then restores the threads in
    /// the journal.
    #[test]
    fn keeper_restores_threads_if_scheduler_died_before_keeper_started() {
        let directory = tempfile::tempdir().unwrap();
        let (sleeper, entry) = held_sleeper();
        let owner = held_sleeper().1.process; // Killed by now.
        let path = journal::path_for(directory.path(), owner);
        journal::write(&path, &[&entry]).unwrap();
        let mut keeper = Keeper::default();
        assert_eq!(heard(&mut keeper, &hello(owner, directory.path())), WHAT);
        assert_eq!(keeper.give_all_back(), ExitCode::SUCCESS);
        assert!(!sleeper.is_stopped());
        assert!(!path.exists());
    }

    #[test]
    fn keeper_process_refuses_malformed_messages() {
        let mut keeper = Keeper::default();
        let lines = ["all", "no", "free 7"].into_iter();
        assert_eq!(keeper.hear(lines), [UNWRITTEN, WHAT, UNWRITTEN].concat());
        for line in
            ["", "hello", "hold 1 2 3", "free", "free -1", "owner 1", "owner 2147483647 1 /"]
        {
            assert_eq!(heard(&mut keeper, line), WHAT, "{line}");
        }
        assert_eq!(heard(&mut keeper, "free 10"), UNWRITTEN);
    }

    /// The keeper never waits for a line as long as the interval at which it reads process trees.
    #[test]
    fn keeper_finds_new_processes_while_scheduler_sends_many_messages() {
        use std::io::BufRead;
        let directory = tempfile::tempdir().unwrap();
        let owner = ourselves().unwrap();
        let ((_first, entry), (member, _)) = (held_sleeper(), held_sleeper());
        let group = directory.path().join("group");
        std::fs::create_dir(&group).unwrap();
        std::fs::write(group.join("cgroup.threads"), format!("{}\n", member.id())).unwrap();
        let way = HoldMethod::Tree(TreePlace { group, origin: None });
        let entry = Entry { way, ..entry };
        let (mut to, link) = UnixStream::pair().unwrap();
        let keeper = std::thread::spawn(move || Keeper::default().listen(&link));
        let mut answers = io::BufReader::new(to.try_clone().unwrap());
        let journal = journal::path_for(directory.path(), owner);
        let is_listed = || {
            let entries = journal::read(&journal).unwrap_or_default();
            entries.iter().any(|entry| entry.thread.id == member.id())
        };
        write!(to, "{}\n{}\n", hello(owner, directory.path()), entry.to_line()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_listed() && Instant::now() < deadline {
            to.write_all(b"all\n").unwrap();
            answers.read_line(&mut String::new()).unwrap();
        }
        assert!(is_listed());
        to.shutdown(std::net::Shutdown::Both).unwrap();
        keeper.join().unwrap().unwrap();
    }

    /// A thread whose journal entry is kept stays limited for a while after its owner ends,
    /// and is then restored. If a new scheduler removes the entry from the journal before that, the
    /// keeper does not restore the thread.
    #[test]
    fn keeper_restores_thread_after_delay_unless_new_scheduler_takes_over() {
        for is_adopted in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let owner = ourselves().unwrap();
            let (sleeper, entry) = limited_sleeper(Duration::from_millis(700));
            let path = journal::path_for(directory.path(), owner);
            let mut keeper = Keeper::default();
            assert_eq!(heard(&mut keeper, &hello(owner, directory.path())), WRITTEN);
            assert_eq!(heard(&mut keeper, &entry.to_line()), WRITTEN);
            assert_eq!(heard(&mut keeper, "all"), WRITTEN);
            let waiting = std::thread::spawn(move || keeper.give_all_back());
            std::thread::sleep(Duration::from_millis(200));
            assert!(sleeper.is_limited(), "a kept thread is not restored before its time");
            assert_eq!(journal::read(&path).unwrap(), std::slice::from_ref(&entry));
            if is_adopted {
                std::fs::remove_file(&path).unwrap();
            }
            assert_eq!(waiting.join().unwrap(), ExitCode::SUCCESS);
            assert_eq!(sleeper.is_limited(), is_adopted);
            assert!(!path.exists());
        }
    }

    /// The kernel enforces the limits of two threads. The owner dies while one of them is stopped.
    #[test]
    fn keeper_resumes_stopped_thread_immediately_despite_retention_time() {
        let directory = tempfile::tempdir().unwrap();
        let owner = ourselves().unwrap();
        let hour = Duration::from_hours(1);
        let ((stopped, entry), (other, kept)) = (held_sleeper(), limited_sleeper(hour));
        let entry = Entry { kept: Some(hour), ..entry };
        let mut keeper = Keeper::default();
        assert_eq!(heard(&mut keeper, &hello(owner, directory.path())), WRITTEN);
        // Under systemd the keeper does not wait until the hour has passed.
        keeper.is_service = true;
        for line in [entry.to_line().as_str(), kept.to_line().as_str(), "all"] {
            assert_eq!(heard(&mut keeper, line), WRITTEN);
        }
        assert_eq!(keeper.give_all_back(), ExitCode::SUCCESS);
        assert!(!stopped.is_stopped(), "no other program would resume the process");
        assert!(other.is_limited());
        let path = journal::path_for(directory.path(), owner);
        assert_eq!(journal::read(&path).unwrap(), [kept]);
    }

    /// systemd starts a service again only when its keeper has ended, so this keeper does not wait
    /// until the time of the kept thread has passed.
    #[test]
    fn keeper_of_systemd_service_ends_with_kernel_limits_in_force() {
        let directory = tempfile::tempdir().unwrap();
        let owner = ourselves().unwrap();
        let (sleeper, entry) = limited_sleeper(Duration::from_hours(1));
        let mut keeper = Keeper::default();
        assert_eq!(heard(&mut keeper, &hello(owner, directory.path())), WRITTEN);
        keeper.is_service = true;
        assert_eq!(heard(&mut keeper, &entry.to_line()), WRITTEN);
        assert_eq!(heard(&mut keeper, "all"), WRITTEN);
        assert_eq!(keeper.give_all_back(), ExitCode::SUCCESS);
        assert!(sleeper.is_limited(), "a kept thread was restored");
        let path = journal::path_for(directory.path(), owner);
        assert_eq!(journal::read(&path).unwrap(), [entry]);
    }
}
