//! A copy of the repository for mutation testing. Updating the copy keeps the time stamps of
//! unchanged files, so that cargo does not rebuild their crates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::step;

/// Name of a file in the copy. The file lists the files of the repository at the last update of the
/// copy, one path per line.
const LIST: &str = "files.txt";

/// Updates the copy of the repository in the folder `to`. Returns the absolute path of the copy.
pub(super) fn copy(to: &Path) -> Result<PathBuf> {
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others"]);
    let listing = step::output(git.arg("--exclude-standard")).context("no repository")?;
    let files: Vec<&str> = listing.split('\0').filter(|path| !path.is_empty()).collect();
    mirror(Path::new("."), to, &files)?;
    Ok(std::env::current_dir()?.join(to))
}

fn mirror(from: &Path, to: &Path, files: &[&str]) -> Result<()> {
    fs::create_dir_all(to)?;
    let before = fs::read_to_string(to.join(LIST)).unwrap_or_default();
    for gone in before.lines().filter(|file| !files.contains(file)) {
        let _ = fs::remove_file(to.join(gone));
    }
    fs::write(to.join(LIST), files.join("\n"))?;
    for file in files {
        let copy = to.join(file);
        // A deleted file is still listed until the deletion is committed.
        let Ok(bytes) = fs::read(from.join(file)) else {
            let _ = fs::remove_file(copy);
            continue;
        };
        if fs::read(&copy).is_ok_and(|there| there == bytes) {
            continue;
        }
        fs::create_dir_all(copy.parent().context("a file in no folder")?)?;
        fs::write(&copy, bytes).with_context(|| format!("cannot write {}", copy.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn tree_copy_for_mutation_testing_has_exactly_the_listed_files() {
        let folder = std::env::temp_dir().join(format!("slackline-mirror-{}", std::process::id()));
        let (from, to) = (folder.join("from"), folder.join("to"));
        fs::create_dir_all(from.join("deep")).expect("the folder can be created");
        fs::write(from.join("deep/a"), "1").expect("the file can be written");
        fs::write(from.join("b"), "2").expect("the file can be written");
        mirror(&from, &to, &["deep/a", "b"]).expect("the copy can be updated");
        let time = |name: &str| fs::metadata(to.join(name)).and_then(|data| data.modified()).ok();
        let (of_a, of_b) = (time("deep/a"), time("b"));
        assert!(of_a.is_some() && of_b.is_some());
        fs::write(to.join("deep/a"), "changed").expect("the file can be written");
        mirror(&from, &to, &["deep/a", "b"]).expect("the copy can be updated");
        assert_eq!(fs::read_to_string(to.join("deep/a")).expect("the file can be read"), "1");
        assert_eq!(time("b"), of_b);
        mirror(&from, &to, &["deep/a"]).expect("the copy can be updated");
        assert_eq!(time("b"), None);
        fs::remove_dir_all(folder).expect("the folder exists");
    }
}
