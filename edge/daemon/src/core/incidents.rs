//! Stored recordings of missed deadlines (incidents), in a subfolder of the ledger's folder. The
//! name of a file contains the time, the number of missed deadlines, and the VM.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use slackline_control::link::Answer;
use slackline_control::{Incident, Kind, Problem};
use slackline_metrics::CulpritFinder;
use slackline_trace::Reader;

use super::own::OwnVms;
use crate::record::culprits_for;
use crate::run_days::RunDays;

/// Maximum number of stored incidents. There are two more limits: on the total size of the files,
/// and on the age of each file. If there are too many incidents or bytes, the oldest incidents of
/// the VM with the most incidents or bytes are deleted. The newest incident is deleted only when it
/// is too old.
const MOST: usize = 200;
const MOST_BYTES: u64 = 256 << 20;

/// Maximum age of an incident, in days. Only days on which a daemon has run count.
const MOST_DAYS: usize = 30;

/// Maximum number of recordings that clients have requested and that are still in the folder. If a
/// client requests another recording, the oldest of them is deleted.
const MOST_ASIDE: usize = 4;

/// Suffix of the file names of incidents.
const ENDING: &str = ".trace";

/// Stored incidents. The incidents from before the start of the daemon come first, sorted by
/// number. Newer incidents follow in the order in which they were saved.
#[derive(Debug)]
pub(super) struct Incidents {
    folder: PathBuf,
    days: RunDays,
    all: Vec<Incident>,
    /// Files of recordings that clients have requested, oldest first.
    aside: VecDeque<PathBuf>,
}

impl Incidents {
    /// Opens the folder of incidents, and creates it if needed. Deletes incidents that are too old.
    ///
    /// # Errors
    /// If the folder cannot be created or read.
    pub(super) fn open(folder: &Path, now_ns: u64) -> io::Result<Incidents> {
        create(folder)?;
        let mut all = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            if let Some((at_ms, missed, name)) = parsed(&name) {
                let (bytes, at_ns) = (entry.metadata()?.len(), at_ms.saturating_mul(1_000_000));
                let file = Some(entry.path().display().to_string());
                all.push(Incident { id: at_ms, at_ns, name, missed, bytes, file });
            } else if name.ends_with(".part") || name.starts_with("saved-") {
                // The daemon was killed while it wrote this file, or no client fetched the file.
                let _ = fs::remove_file(entry.path());
            }
        }
        all.sort_by_key(|incident| incident.id);
        let mut incidents = Incidents { all, ..Incidents::empty(folder) };
        incidents.tidy(now_ns);
        Ok(incidents)
    }

    /// Returns an empty store of incidents. The folder is created when the first incident is saved.
    pub(super) fn empty(folder: &Path) -> Incidents {
        let days = RunDays::open(folder.join("days"));
        Incidents { folder: folder.into(), days, all: Vec::new(), aside: VecDeque::new() }
    }

    pub(super) fn newest_first(&self) -> impl Iterator<Item = &Incident> {
        self.all.iter().rev()
    }

    /// Returns the culprits in the recording of an incident: the causes of a VM's waiting time. If
    /// `own` is given, the caller is a tenant, who may see only the VMs in `own`.
    pub(super) fn why(&self, id: u64, own: Option<&OwnVms>) -> Result<Answer, Problem> {
        let may_see = |it: &Incident| own.is_none_or(|own| own.has_incident(&it.name, it.at_ns));
        let incident = self.all.iter().find(|it| it.id == id && may_see(it));
        let absent = || {
            let detail = format!("there is no incident {id}");
            let problem = Problem::new(Kind::NoSuchPage, detail);
            problem.hinting("list incidents with `slackline incidents`")
        };
        let Incident { name, file: Some(file), .. } = incident.ok_or_else(absent)? else {
            return Err(absent());
        };
        let unreadable = |error: &dyn std::fmt::Display| {
            Problem::new(Kind::NotNow, format!("cannot read the incident {id}: {error}"))
        };
        let file = File::open(file).map_err(|error| unreadable(&error))?;
        let mut why = CulpritFinder::new(name);
        let reader = Reader::new(file);
        let read = reader.and_then(|mut reader| reader.pass_to(&mut why));
        read.map_err(|error| unreadable(&error))?;
        let names = own.map(OwnVms::names);
        Ok(Answer::Why(Box::new(culprits_for(name, why.answer(), names.as_ref()))))
    }

    /// Stores the recording that `write` writes as an incident.
    ///
    /// # Errors
    /// If the file cannot be written. An incomplete file is removed.
    pub(super) fn save(
        &mut self,
        (now_ns, name, missed): (u64, &str, u64),
        write: impl FnOnce(File) -> io::Result<()>,
    ) -> io::Result<&Incident> {
        create(&self.folder)?;
        let mut id = now_ns / 1_000_000;
        while self.all.iter().any(|incident| incident.id == id) {
            id += 1;
        }
        let file = self.folder.join(format!("{id}-{missed}-{name}{ENDING}"));
        let bytes = whole(&file, write)?;
        let at_ns = id.saturating_mul(1_000_000);
        let (name, file) = (name.into(), Some(file.display().to_string()));
        self.all.push(Incident { id, at_ns, name, missed, bytes, file });
        self.tidy(now_ns);
        Ok(self.all.last().expect("the newest incident is kept"))
    }

    /// Stores a recording that a client has requested and that is not an incident. Returns the path
    /// of the file. If there are [`MOST_ASIDE`] such files already, deletes the oldest of them.
    ///
    /// # Errors
    /// If the file cannot be written. An incomplete file is removed.
    pub(super) fn save_aside(
        &mut self,
        now_ns: u64,
        write: impl FnOnce(File) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        create(&self.folder)?;
        if self.aside.len() >= MOST_ASIDE {
            // The client may have deleted the file.
            let _ = self.aside.pop_front().map(fs::remove_file);
        }
        let file = self.folder.join(format!("saved-{now_ns}{ENDING}"));
        whole(&file, write)?;
        self.aside.push_back(file.clone());
        Ok(file)
    }

    /// Deletes incidents that exceed the limits. The age limit applies also to the newest incident,
    /// because incidents contain names of VMs and processes.
    pub(super) fn tidy(&mut self, now_ns: u64) {
        let oldest = self.days.oldest(now_ns, MOST_DAYS);
        let is_old = |incident: &Incident| incident.at_ns < oldest;
        let mut bytes: u64 = self.all.iter().map(|incident| incident.bytes).sum();
        loop {
            let is_excess = self.all.len() > MOST || bytes > MOST_BYTES;
            let gone = match self.all.iter().position(is_old) {
                Some(old) => old,
                None if is_excess && self.all.len() > 1 => self.surplus(),
                None => return,
            };
            let gone = self.all.remove(gone);
            bytes -= gone.bytes;
            let _ = gone.file.map(fs::remove_file);
        }
    }
}

impl Incidents {
    /// Returns the index of the incident that is deleted next because a limit is exceeded. If there
    /// are too many incidents, returns the oldest incident of the VM with the most incidents. If
    /// there are too many bytes, returns the oldest incident of the VM whose incidents have the
    /// most bytes. The newest incident is never chosen.
    fn surplus(&self) -> usize {
        let older = &self.all[..self.all.len() - 1];
        let mut held: BTreeMap<&str, (u64, usize)> = BTreeMap::new();
        let is_by_number = self.all.len() > MOST;
        for (index, incident) in older.iter().enumerate() {
            let size = if is_by_number { 1 } else { incident.bytes };
            held.entry(&incident.name).or_insert((0, index)).0 += size;
        }
        let most = held.into_values().max_by_key(|&(size, oldest)| (size, Reverse(oldest)));
        most.map_or(0, |(_, oldest)| oldest)
    }
}

/// Creates the folder of incidents, unless it exists. Only root can read the folder. If the
/// ledger's folder above it is missing, it is not created: an administrator may have moved it away
/// for a moment.
fn create(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(_) if folder.is_dir() => Ok(()),
        created => created,
    }
}

/// Writes a file under a temporary name, and renames the file when it is complete. Returns the size
/// of the file in bytes.
fn whole(file: &Path, write: impl FnOnce(File) -> io::Result<()>) -> io::Result<u64> {
    let part = file.with_extension("part");
    let begin = || File::options().write(true).create(true).truncate(true).mode(0o600).open(&part);
    let written = begin().and_then(write).and_then(|()| fs::metadata(&part));
    let written = written.and_then(|found| fs::rename(&part, file).map(|()| found.len()));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

fn parsed(name: &str) -> Option<(u64, u64, String)> {
    let mut parts = name.strip_suffix(ENDING)?.splitn(3, '-');
    let (at, missed) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((at, missed, parts.next()?.into()))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const DAY: u64 = 24 * 3600;

    /// Returns the number of incident files in a folder.
    fn files(folder: &Path) -> usize {
        let names = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file"));
        names.filter(|entry| entry.path().extension().is_some_and(|it| it == "trace")).count()
    }

    /// Applies the limits once on each day of `days`. Days are counted since 1970.
    fn pass_days(incidents: &mut Incidents, days: std::ops::RangeInclusive<u64>) {
        days.for_each(|day| incidents.tidy(day * DAY * SECOND));
    }

    fn save(incidents: &mut Incidents, at_s: u64, bytes: usize) -> u64 {
        let write = |mut file: File| file.write_all(&vec![0; bytes]);
        incidents.save((at_s * SECOND, "web-1", 3), write).expect("a folder for the test").id
    }

    #[test]
    fn incident_recordings_are_found_at_restart_and_partial_files_removed() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let mut incidents = Incidents::open(folder.path(), 0).expect("a folder for the test");
        let first = save(&mut incidents, 1_000, 10);
        let second = save(&mut incidents, 1_000, 20);
        assert_eq!((first, second), (1_000_000, 1_000_001));
        fs::write(folder.path().join("5-1-x.part"), "x").expect("a file for the test");
        let fails = |_: File| Err(io::ErrorKind::StorageFull.into());
        assert!(incidents.save((2_000 * SECOND, "web-1", 3), fails).is_err());
        assert!(!folder.path().join("2000000-3-web-1.part").exists());
        let again = Incidents::open(folder.path(), 0).expect("a folder for the test");
        assert_eq!(again.all, incidents.all);
        assert_eq!(again.newest_first().map(|it| it.bytes).collect::<Vec<_>>(), [20, 10]);
        assert_eq!(again.all[0].name, "web-1");
        assert!(!folder.path().join("5-1-x.part").exists());
        assert_eq!(files(folder.path()), 2);
    }

    #[test]
    fn oldest_incident_recordings_beyond_number_or_age_limit_are_deleted() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let mut incidents = Incidents::open(folder.path(), 0).expect("a folder for the test");
        for at in 0..250 {
            save(&mut incidents, 1_000 + at, 1);
        }
        assert_eq!((incidents.all.len(), incidents.all[0].id), (MOST, 1_050_000));
        pass_days(&mut incidents, 0..=30);
        assert_eq!(incidents.all.len(), MOST);
        let month = 31 * DAY;
        save(&mut incidents, 1_249 + month, 1);
        assert_eq!((incidents.all.len(), files(folder.path())), (1, 1));
        // The files have no content on the disk.
        let mut save_large = |at_s: u64, bytes: u64| {
            let write = |file: File| file.set_len(bytes);
            incidents.save((at_s * SECOND, "web-1", 3), write).expect("a folder for the test");
            incidents.all.len()
        };
        let lengths = [0, 1, 2].map(|at| save_large(1_250 + month + at, MOST_BYTES / 2));
        assert_eq!(lengths, [2, 2, 2], "256 MiB in total");
        assert_eq!(save_large(1_253 + month, MOST_BYTES + 1), 1, "the newest is kept");
    }

    /// The incident files of this test contain no traces. So `why` always fails: with `NotNow` if
    /// the tenant may see the incident, and with `NoSuchPage` if not.
    #[test]
    fn incident_of_former_owner_is_hidden_from_tenant() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let mut incidents = Incidents::open(folder.path(), 0).expect("a folder for the test");
        let ids = [1_000, 2_000].map(|at| save(&mut incidents, at, 1));
        let begun = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_500);
        let own = OwnVms::new(std::iter::once(("web-1".to_owned(), Some(begun))));
        let kind = |id, own| incidents.why(id, own).expect_err("no recording").kind;
        assert_eq!(ids.map(|id| kind(id, None)), [Kind::NotNow; 2]);
        assert_eq!(ids.map(|id| kind(id, Some(&own))), [Kind::NoSuchPage, Kind::NotNow]);
    }

    #[test]
    fn many_incidents_of_one_vm_displace_no_incidents_of_others() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let mut incidents = Incidents::open(folder.path(), 0).expect("a folder for the test");
        let mut save_of = |name: &str, at_s: u64, bytes: u64| {
            let write = |file: File| file.set_len(bytes);
            incidents.save((at_s * SECOND, name, 3), write).expect("a folder for the test");
            let of = |name| incidents.all.iter().filter(|it| it.name == name).count();
            (of("web"), of("noisy"))
        };
        save_of("web", 1_000, 1);
        let saved = (0..500).map(|nth| save_of("noisy", 1_001 + nth, 1)).last();
        assert_eq!(saved, Some((1, 199)));
        assert_eq!(save_of("noisy", 2_000, MOST_BYTES / 2), (1, 199));
        // Its older incidents are deleted until the total size is within the limit.
        assert_eq!(save_of("noisy", 2_001, MOST_BYTES / 2), (1, 1));
        assert_eq!(save_of("web", 2_002, 1), (2, 1), "the newest is kept");
    }

    #[test]
    fn only_the_newest_four_requested_recordings_are_kept() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let mut incidents = Incidents::open(folder.path(), 0).expect("a folder for the test");
        let write = |mut file: File| file.write_all(b"x");
        for at in 1..=10 {
            let file = incidents.save_aside(at, write).expect("a folder for the test");
            assert!(file.exists(), "the newest recording is kept");
        }
        let is_there = |at| folder.path().join(format!("saved-{at}{ENDING}")).exists();
        let kept: Vec<u64> = (1..=10).filter(|&at| is_there(at)).collect();
        assert_eq!(kept, [7, 8, 9, 10]);
    }

    #[test]
    fn incident_folder_that_could_not_be_created_is_created_later() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = folder.path().join("incidents");
        // A file at the path of the folder prevents its creation.
        fs::write(&path, "x").expect("a file for the test");
        assert!(Incidents::open(&path, 0).is_err());
        let mut incidents = Incidents::empty(&path);
        let write = |mut file: File| file.write_all(b"x");
        assert!(incidents.save((SECOND, "web-1", 3), write).is_err());
        assert_eq!(incidents.newest_first().count(), 0);
        fs::remove_file(&path).expect("a file for the test");
        save(&mut incidents, 2, 1);
        assert_eq!(Incidents::open(&path, 0).expect("a folder").newest_first().count(), 1);
    }

    #[test]
    fn old_incident_recordings_are_deleted_without_new_incidents() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let mut incidents = Incidents::open(folder.path(), 0).expect("a folder for the test");
        for day in 0..3 {
            save(&mut incidents, day * DAY, 1);
        }
        let mut after = |day| {
            pass_days(&mut incidents, 3..=day);
            (incidents.all.len(), files(folder.path()))
        };
        assert_eq!((after(30), after(31)), ((3, 3), (2, 2)));
        let again = |day: u64| {
            let again = Incidents::open(folder.path(), day * DAY * SECOND);
            (again.expect("a folder for the test").all.len(), files(folder.path()))
        };
        assert_eq!((again(32), again(33)), ((1, 1), (0, 0)));
    }

    /// The wall clock is 31 days ahead for a moment. The first incident is saved before that
    /// moment, the second during it, and the third after it.
    #[test]
    fn step_of_the_wall_clock_deletes_no_incident() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let start = 20_000 * DAY;
        let mut incidents =
            Incidents::open(folder.path(), start * SECOND).expect("a folder for the test");
        let ids = [start, start + 31 * DAY, start + 5].map(|at| save(&mut incidents, at, 1));
        assert_eq!(ids, [start, start + 31 * DAY, start + 5].map(|at| at * 1_000));
        for step in [31 * DAY, 10_000 * DAY, 0] {
            incidents.tidy((start + step) * SECOND);
            let again = Incidents::open(folder.path(), (start + step) * SECOND);
            assert_eq!(again.expect("a folder for the test").all.len(), 3);
        }
        pass_days(&mut incidents, 20_001..=20_030);
        assert_eq!(incidents.all.len(), 3);
        incidents.tidy((start + 31 * DAY) * SECOND);
        assert_eq!(incidents.newest_first().map(|it| it.id).collect::<Vec<_>>(), [ids[1]]);
    }
}
