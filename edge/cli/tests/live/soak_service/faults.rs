//! Faults that the soak test causes, and the checks after each fault.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::soak::{DISK, SHOWS, STATE, Soak};
use crate::common::live::{kill, let_pass, nap};

/// A fault that the test causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    CoreDies,
    FrontDies,
    KeeperDies,
    CoreAndKeeperDie,
    AllDie,
    MachineDies,
    FrontStops,
    DiskFills,
    FolderGoes,
}

impl Fault {
    pub const ALL: [Fault; 9] = [
        Fault::CoreDies,
        Fault::FrontDies,
        Fault::KeeperDies,
        Fault::CoreAndKeeperDie,
        Fault::AllDie,
        Fault::MachineDies,
        Fault::FrontStops,
        Fault::DiskFills,
        Fault::FolderGoes,
    ];
    /// Faults that do not end the daemon's core process, which schedules the VMs.
    pub const BUT_THE_CORE: [Fault; 6] = [
        Fault::FrontDies,
        Fault::KeeperDies,
        Fault::MachineDies,
        Fault::FrontStops,
        Fault::DiskFills,
        Fault::FolderGoes,
    ];
    /// Faults that end none of the daemon's own processes.
    pub const BUT_OURS: [Fault; 4] =
        [Fault::MachineDies, Fault::FrontStops, Fault::DiskFills, Fault::FolderGoes];
    /// Faults that only kill processes.
    pub const KILLS: [Fault; 6] = [
        Fault::CoreDies,
        Fault::FrontDies,
        Fault::KeeperDies,
        Fault::CoreAndKeeperDie,
        Fault::AllDie,
        Fault::MachineDies,
    ];

    /// Returns the processes that the fault kills. Each is given as a word in its command line.
    pub fn kills(self) -> &'static [&'static str] {
        match self {
            Fault::CoreDies => &["serve"],
            Fault::FrontDies => &["serve-front"],
            Fault::KeeperDies => &["keep"],
            Fault::CoreAndKeeperDie => &["serve", "keep"],
            Fault::AllDie => &["serve", "keep", "serve-front"],
            _ => &[],
        }
    }
}

/// Latest time of a kill, in milliseconds after the requests of a round begin.
const LATEST_MS: u64 = 120;

impl Soak<'_> {
    /// Causes a fault while requests are sent, and then checks all conditions.
    pub fn meet(&mut self, fault: Fault) {
        match fault {
            Fault::MachineDies => self.a_machine_dies(),
            Fault::FrontStops => self.the_front_stops(),
            Fault::DiskFills => self.the_disk_fills(),
            Fault::FolderGoes => self.the_folder_goes(),
            _ => self.processes_die(fault.kills()),
        }
        *self.met.entry(fault).or_default() += 1;
        self.all_is_well();
    }

    fn processes_die(&mut self, words: &[&str]) {
        let pids: Vec<i32> =
            words.iter().filter_map(|word| self.live.processes_of(word).first().copied()).collect();
        let after = Duration::from_micros(self.dice.below(LATEST_MS * 1000));
        let killer = thread::spawn(move || {
            let_pass(after);
            pids.iter().for_each(|&pid| kill(pid, Signal::KILL));
            Instant::now()
        });
        // Requests follow each other without a pause, so that the kill interrupts one.
        while !killer.is_finished() {
            self.act();
        }
        let killed = killer.join().expect("the killer does not panic");
        if words.contains(&"serve") {
            self.core_died(killed, words.contains(&"keep"));
        }
    }

    fn a_machine_dies(&mut self) {
        let there: Vec<usize> = self.changeable().filter(|&it| self.has_machine(it)).collect();
        if !there.is_empty() {
            let which = there[self.dice.pick(there.len())];
            self.slots[which].end_machine();
        }
    }

    fn the_front_stops(&mut self) {
        let Some(front) = self.live.processes_of("serve-front").first().copied() else { return };
        kill(front, Signal::STOP);
        let_pass(Duration::from_secs(2));
        self.threads_are_as_they_should();
        kill(front, Signal::CONT);
    }

    fn the_disk_fills(&mut self) {
        let path = self.live.place.path(DISK).join("filler");
        let mut filler = File::create(&path).expect("the disk has space for an empty file");
        while filler.write(&[1; 4096]).is_ok_and(|count| count > 0) {}
        drop(filler);
        self.is_disk_full = true;
        self.go_on(Duration::from_secs(2));
        self.threads_are_as_they_should();
        if self.dice.below(4) == 0 && self.may_die {
            self.processes_die(&["serve"]);
        }
        fs::remove_file(&path).expect("the test owns the file");
        self.is_disk_full = false;
        self.it_gets_well();
        self.slots.iter_mut().for_each(|slot| slot.was.clear());
    }

    fn the_folder_goes(&mut self) {
        let (here, there) = (self.live.place.path(STATE), self.live.place.path(DISK).join("away"));
        fs::rename(&here, &there).expect("the test owns the folder");
        self.go_on(Duration::from_secs(2));
        fs::rename(&there, &here).expect("the test owns the folder");
        self.it_gets_well();
        self.slots.iter_mut().for_each(|slot| slot.was.clear());
    }

    /// Waits until pending commits are written and the daemon reports that it is healthy.
    fn it_gets_well(&mut self) {
        let deadline = Instant::now() + SHOWS;
        loop {
            let health = self.ask("GET", "/health", None);
            if health.as_ref().is_some_and(|(_, health)| health["good"] == true) {
                return;
            }
            if Instant::now() > deadline {
                return self.find(format!("the daemon is not healthy again: {health:?}"));
            }
            nap();
        }
    }
}

/// A small file system for the ledger.
pub struct Disk(std::path::PathBuf);

impl Disk {
    pub fn mount(folder: &Path, size: &str) -> Option<Disk> {
        fs::create_dir(folder).expect("the test owns the folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "slackline-test"]).arg(folder);
        if mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            return Some(Disk(folder.to_path_buf()));
        }
        println!("skipped: needs the right to mount");
        None
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
