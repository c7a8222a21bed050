//! Tests that output files are either complete or absent, even if the disk is full, the folder is
//! missing or protected, or the run is killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::live::{self, wait_until};
use crate::common::{GOOD, Place, Ran, files_in};
use rustix::process::Signal;

/// A file system of one megabyte that has one free page.
struct FullDisk<'a> {
    folder: PathBuf,
    _place: &'a Place,
}

impl FullDisk<'_> {
    fn mount(place: &Place) -> Option<FullDisk<'_>> {
        let folder = place.path("disk");
        fs::create_dir(&folder).expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "slackline-test"]).arg(&folder);
        let mounted = mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        if !mounted {
            println!("skipped: needs the right to mount");
            return None;
        }
        let disk = FullDisk { folder, _place: place };
        // The file leaves one page free.
        fs::write(disk.folder.join("filler"), vec![1; (1 << 20) - (1 << 12)])
            .expect("the disk has space for the filler");
        Some(disk)
    }
}

impl Drop for FullDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.folder).status();
    }
}

/// Returns a scenario whose output exceeds a page.
fn long() -> String {
    GOOD.replace("400ms", "20s")
}

#[track_caller]
fn no_room(ran: Ran, disk: &Path) {
    let ran = ran.refused(3).says("error: cannot write disk/made: ").says("free disk space");
    assert!(ran.err.contains("space"), "{}", ran.err);
    assert_eq!(files_in(disk), ["filler"]);
}

#[test]
fn simulation_that_fills_disk_prints_error_and_leaves_no_file() {
    let place = Place::with(&long());
    let Some(disk) = FullDisk::mount(&place) else { return };
    for option in ["--save", "--perfetto"] {
        no_room(place.run(&["sim", "it.toml", option, "disk/made"]), &disk.folder);
    }
    // With two outputs there is one error, and neither file remains.
    let both = ["sim", "it.toml", "--save", "disk/made", "--perfetto", "disk/too"];
    no_room(place.run(&both), &disk.folder);
    place.run(&["sim", "it.toml", "--save", "it.trace"]).good();
    no_room(place.run(&["show", "it.trace", "--perfetto", "disk/made"]), &disk.folder);
    // An existing file keeps its contents.
    fs::write(disk.folder.join("made"), b"old").unwrap();
    place.run(&["sim", "it.toml", "--save", "disk/made"]).refused(3);
    assert_eq!(fs::read(disk.folder.join("made")).unwrap(), b"old");
}

/// Manual pages and results of papers are several files. Each is complete or absent.
#[test]
fn several_outputs_on_full_disk_leave_no_partial_file() {
    let place = Place::new();
    place.run(&["man", "--to", "."]).ended_with(0);
    let Some(disk) = FullDisk::mount(&place) else { return };
    let ran = place.run(&["man", "--to", "disk"]).refused(3).says("error: cannot write disk/");
    assert!(ran.err.contains("space"), "{}", ran.err);
    for name in files_in(&disk.folder).iter().filter(|name| *name != "filler") {
        let page = fs::read(disk.folder.join(name)).expect("a page");
        assert!(page == place.read(name), "{name} is not complete");
        fs::remove_file(disk.folder.join(name)).expect("a page can be removed");
    }
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../papers/tests/tiny");
    let paper = place.path("papers/tiny");
    fs::create_dir_all(&paper).expect("a folder");
    for entry in fs::read_dir(tiny).expect("the tiny paper") {
        let file = entry.expect("a file of it").path();
        fs::copy(&file, paper.join(file.file_name().expect("a name"))).expect("a copy");
    }
    std::os::unix::fs::symlink(&disk.folder, paper.join("results")).expect("a link");
    place.run(&["paper", "run", "tiny", "--seeds", "1"]).ended_with(3).says("space");
    assert_eq!(files_in(&disk.folder), ["filler"]);
    // Existing results keep their contents.
    let old = disk.folder.join("fig-1.csv");
    fs::write(&old, b"old").expect("a page is free");
    place.run(&["paper", "run", "tiny", "--seeds", "1"]).ended_with(3);
    assert_eq!(fs::read(&old).expect("the old results"), b"old");
}

#[test]
fn live_run_that_fills_the_disk_leaves_no_file() {
    let Some(live) = live::begin() else { return };
    let Some(disk) = FullDisk::mount(&live.place) else { return };
    live.place.write("it.toml", GOOD.replace("400ms", "3s").as_bytes());
    for option in ["--save", "--perfetto"] {
        no_room(live.run(&["run", "it.toml", option, "disk/made"]), &disk.folder);
    }
    live.nothing_is_left();
}

#[test]
fn device_named_as_output_is_written_and_not_replaced() {
    use std::os::unix::fs::FileTypeExt;
    let place = Place::with(GOOD);
    let is_device = |path: &str| fs::metadata(path).unwrap().file_type().is_char_device();
    place.run(&["sim", "it.toml", "--save", "/dev/full"]).refused(3).says("cannot write /dev/full");
    place.run(&["sim", "it.toml", "--save", "/dev/null"]).good();
    assert!(is_device("/dev/full") && is_device("/dev/null"));
}

#[test]
fn output_to_symbolic_link_replaces_target_and_keeps_link() {
    let place = Place::with(GOOD);
    place.write("old", b"old");
    std::os::unix::fs::symlink("old", place.path("link")).unwrap();
    place.run(&["sim", "it.toml", "--save", "link"]).good();
    assert!(fs::symlink_metadata(place.path("link")).unwrap().is_symlink());
    place.run(&["show", "old", "--table"]).good();
    assert_eq!(place.files(), ["it.toml", "link", "old"]);
}

#[test]
fn unwritable_output_file_is_refused_before_run() {
    let place = Place::with(GOOD);
    place.write("file", b"");
    for name in ["nowhere/made", "file/made", "/proc/made", "."] {
        for option in ["--save", "--perfetto", "--csv"] {
            for command in ["sim", "run"] {
                let ran = place.run(&[command, "it.toml", option, name]);
                let begins = format!("error: cannot write {name}: ");
                assert!(ran.complaint().starts_with(&begins), "{command} {name}: {}", ran.err);
                assert!(!ran.err.contains(".slackline-"), "{}", ran.err);
                ran.refused(2);
            }
        }
    }
    assert_eq!(place.files(), ["file", "it.toml"]);
}

/// A run that is killed at any time leaves either a complete output file or none. If the file
/// system supports unnamed files, the run leaves no hidden file either.
#[test]
fn run_killed_while_saving_leaves_complete_file_or_none() {
    let place = Place::with(&GOOD.replace("400ms", "10h"));
    let hidden = |name: &String| name.starts_with(".slackline-");
    for more in 0..3 {
        let mut command = place.command(&["sim", "it.toml", "--save", "made"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let files = format!("/proc/{}/fd", child.id());
        let is_ours = |file: std::io::Result<fs::DirEntry>| {
            let link = file.and_then(|file| fs::read_link(file.path())).unwrap_or_default();
            link.starts_with(place.folder.path()).then(|| link.to_string_lossy().into_owned())
        };
        let begun = || fs::read_dir(&files).into_iter().flatten().find_map(is_ours);
        wait_until("the output file to be created", || begun().is_some());
        let is_nameless = begun().is_some_and(|link| link.ends_with(" (deleted)"));
        (0..more * 10).for_each(|_| live::nap());
        live::kill(i32::try_from(child.id()).unwrap(), Signal::KILL);
        child.wait().unwrap();
        assert!(!place.path("made").exists());
        let left: Vec<String> = place.files().into_iter().filter(hidden).collect();
        assert!(!is_nameless || left.is_empty(), "{left:?}");
        left.iter().for_each(|name| fs::remove_file(place.path(name)).unwrap());
    }
}
