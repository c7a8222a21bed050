//! Test that the commands in the book succeed: every block marked `sh` is executed, chapter by
//! chapter. Blocks marked `sh,root` or `sh,norun` are skipped, since they need root, two hosts or
//! several minutes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::PROGRAM;

fn root() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).expect("the repository")
}

/// Returns the files with the suffix `.md` in a folder and its subfolders, in order.
fn chapters(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(chapters(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Returns the blocks marked exactly `sh`, each with the number of its first line.
fn shell_blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let Some(mark) = line.strip_prefix("```").filter(|mark| !mark.is_empty()) else { continue };
        let block = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        let block = block.collect::<Vec<_>>().join("\n");
        if mark == "sh" {
            blocks.push((number + 1, block));
        }
    }
    blocks
}

/// Executes the blocks of one chapter in a new folder with links to scenarios and papers. Returns
/// the failures.
fn type_chapter(chapter: &Path) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    for shared in ["scenarios", "papers"] {
        symlink(root().join(shared), folder.path().join(shared)).expect("a link");
    }
    let programs = Path::new(PROGRAM).parent().expect("a folder").to_owned();
    let path = std::env::join_paths([programs, "/usr/bin".into(), "/bin".into()]).expect("a path");
    let mut failed = Vec::new();
    for (line, block) in shell_blocks(&fs::read_to_string(chapter).expect("a chapter")) {
        let mut shell = Command::new("sh");
        shell.args(["-eu", "-c", &block]).current_dir(folder.path()).env("PATH", &path);
        let output = shell.stdin(Stdio::null()).output().expect("a shell");
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            failed.push(format!("{}:{line}: {}\n{said}", chapter.display(), output.status));
        }
    }
    failed
}

#[test]
fn every_shell_block_of_the_manual_runs_without_error() {
    let mut chapters = chapters(&root().join("docs"));
    assert!(chapters.len() > 10, "the book has chapters");
    chapters.push(root().join("README.md"));
    let failed: Vec<String> = chapters.iter().flat_map(|file| type_chapter(file)).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn book_test_skips_shell_blocks_that_need_root() {
    let text =
        "a\n```sh\none\ntwo\n```\n```sh,root\nno\n```\n```\nneither\n```\n```sh\nthree\n```\n";
    let expected = [(3, "one\ntwo".to_owned()), (13, "three".to_owned())];
    assert_eq!(shell_blocks(text), expected);
}
