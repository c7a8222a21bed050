//! Release files: a tarball, and a package for Debian 12 and later, both in `target/package`.
//!
//! The program is built with the profile `dist` and contains the commit from which it was built.
//! All files are first placed below `target/package/root`, at the paths at which they will be
//! installed. The tarball contains that folder, and `cargo-deb` makes the package from its files.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::metadata::Metadata;
use crate::step;

/// Compilation target of the release. The agent is linked statically for this target, so that it
/// runs in any guest.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Files that are copied from the repository without a change, each with the path at which it is
/// installed.
const FILES: [(&str, &str); 13] = [
    ("edge/daemon/systemd/slackline.service", "usr/lib/systemd/system/slackline.service"),
    ("edge/daemon/systemd/slackline.socket", "usr/lib/systemd/system/slackline.socket"),
    ("edge/daemon/systemd/slackline.sysusers", "usr/lib/sysusers.d/slackline.conf"),
    ("packaging/sysctl.conf", "usr/lib/sysctl.d/60-slackline.conf"),
    ("edge/daemon/monitoring/slackline-alerts.yml", "usr/share/slackline/slackline-alerts.yml"),
    ("examples/prometheus.yml", "usr/share/slackline/prometheus.yml"),
    (
        "edge/daemon/monitoring/slackline-dashboard.json",
        "usr/share/slackline/slackline-dashboard.json",
    ),
    ("README.md", "usr/share/doc/slackline/README.md"),
    ("CHANGELOG.md", "usr/share/doc/slackline/CHANGELOG.md"),
    ("SECURITY.md", "usr/share/doc/slackline/SECURITY.md"),
    ("LICENSE-APACHE", "usr/share/doc/slackline/LICENSE-APACHE"),
    ("LICENSE-MIT", "usr/share/doc/slackline/LICENSE-MIT"),
    ("scenarios/mixed.toml", "usr/share/doc/slackline/examples/mixed.toml"),
];

/// Shells for which completions are installed, each with the path from which the shell loads them.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/slackline"),
    ("zsh", "usr/share/zsh/vendor-completions/_slackline"),
    ("fish", "usr/share/fish/vendor_completions.d/slackline.fish"),
];

/// Builds all release files. Returns their paths, one per line.
///
/// # Errors
///
/// If files are not committed, `cargo-deb` is missing, or a build fails.
pub fn run(metadata: &Metadata) -> Result<String> {
    let commit = committed()?;
    step::output(step::cargo().args(["deb", "--version"]))
        .context("needs cargo-deb: `cargo install --locked cargo-deb` installs it")?;
    // The assets in edge/cli/Cargo.toml have paths in this folder, even if cargo builds in another
    // one.
    let package = PathBuf::from("target/package");
    let root = package.join("root");
    if package.exists() {
        fs::remove_dir_all(&package)?;
    }
    let program = build_program(metadata, &commit)?;
    install(&program, &root.join("usr/bin/slackline"))?;
    install(&build_agent(metadata)?, &root.join("usr/lib/slackline/slackline-agent"))?;
    for (from, to) in FILES {
        install(Path::new(from), &root.join(to))?;
    }
    write_generated(&program, &root)?;
    let licences = root.join("usr/share/doc/slackline/THIRD-PARTY-LICENSES");
    write(&licences, &third_party_licences()?)?;
    let tarball = pack_tarball(&root, &package)?;
    let deb = pack_deb(&package)?;
    Ok(format!("{}\n{}", sized(&tarball)?, sized(&deb)?))
}

/// Returns the commit of the tree. Fails if files are not committed.
fn committed() -> Result<String> {
    let git = |words: &[&str]| step::output(Command::new("git").args(words));
    let changes = git(&["status", "--porcelain"])?;
    ensure!(
        changes.is_empty(),
        "cannot make a release: {} files are not committed, and the program would name a commit \
         that it was not built from",
        changes.lines().count()
    );
    Ok(git(&["rev-parse", "HEAD"])?.trim().to_owned())
}

fn build_program(metadata: &Metadata, commit: &str) -> Result<PathBuf> {
    let mut cargo = step::cargo();
    cargo.args(["build", "--profile", "dist", "--locked", "--package", "slackline"]);
    step::run(cargo.env("SLACKLINE_COMMIT", commit))?;
    Ok(metadata.target.join("dist/slackline"))
}

fn build_agent(metadata: &Metadata) -> Result<PathBuf> {
    let mut cargo = step::cargo();
    cargo.args(["build", "--profile", "dist", "--locked", "--package", "slackline-agent"]);
    // Without `--target`, the flags would apply to build scripts too.
    step::run(cargo.args(["--target", TARGET]).env("RUSTFLAGS", "-C target-feature=+crt-static"))?;
    Ok(metadata.target.join(TARGET).join("dist/slackline-agent"))
}

/// Writes the files that the program itself prints: manual pages, completions and libvirt's hook.
fn write_generated(program: &Path, root: &Path) -> Result<()> {
    let print = |words: &[&str]| step::output(Command::new(program).args(words));
    let pages = root.join("usr/share/man/man1");
    fs::create_dir_all(&pages)?;
    step::run(Command::new(program).args(["man", "--to"]).arg(&pages))?;
    for (shell, to) in SHELLS {
        write(&root.join(to), &print(&["completions", shell])?)?;
    }
    let hook = print(&["hook", "libvirt", "--script"])?;
    // The program prints the path of the built program, which is replaced by the installed path.
    let hook = hook.replace(&program.display().to_string(), "/usr/bin/slackline");
    let to = root.join("usr/share/slackline/libvirt-hook");
    write(&to, &hook)?;
    step::run(Command::new("chmod").arg("755").arg(&to))
}

/// Returns name, version and licence texts of every crate that is linked into the program.
fn third_party_licences() -> Result<String> {
    let mut cargo = step::cargo();
    cargo.args(["metadata", "--format-version=1", "--locked", "--filter-platform", TARGET]);
    let metadata: Value = serde_json::from_str(&step::output(&mut cargo)?)?;
    let linked = linked_crates()?;
    let mut text = String::from("Slackline is linked with these crates.\n");
    for package in metadata["packages"].as_array().context("cargo metadata lists no packages")? {
        let field = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
        let (name, version) = (field("name"), field("version"));
        if package["source"].is_null() || !linked.contains(&format!("{name} v{version}")) {
            continue;
        }
        write!(text, "\n{}\n{name} {version}: {}\n", "-".repeat(80), field("license"))?;
        let manifest = PathBuf::from(field("manifest_path"));
        for licence in licence_files(manifest.parent().context("a manifest in no folder")?)? {
            write!(text, "\n{}\n", String::from_utf8_lossy(&fs::read(licence)?).trim_end())?;
        }
    }
    Ok(text)
}

/// Returns `NAME vVERSION` of every crate that is linked into the program or the agent.
fn linked_crates() -> Result<Vec<String>> {
    let mut cargo = step::cargo();
    cargo.args(["tree", "--locked", "--prefix=none", "--edges=normal", "--target", TARGET]);
    let tree = step::output(cargo.args(["-p", "slackline", "-p", "slackline-agent"]))?;
    let first_two = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    Ok(tree.lines().map(first_two).collect())
}

fn licence_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let is_licence = ["LICEN", "COPYING", "NOTICE"].iter().any(|it| name.starts_with(it));
        if is_licence && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn pack_tarball(root: &Path, package: &Path) -> Result<PathBuf> {
    let name = format!("slackline-{}-{TARGET}", env!("CARGO_PKG_VERSION"));
    let file = package.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--owner=root", "--group=root", "--sort=name"]);
    tar.arg(format!("--transform=s,^[.],{name},")).arg("--file").arg(&file);
    step::run(tar.arg("--directory").arg(root).arg("."))?;
    Ok(file)
}

fn pack_deb(package: &Path) -> Result<PathBuf> {
    let mut cargo = step::cargo();
    cargo.args(["deb", "--no-build", "--no-strip", "--profile", "dist", "-p", "slackline"]);
    step::run(cargo.arg("--output").arg(package))?;
    for entry in fs::read_dir(package)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            return Ok(path);
        }
    }
    bail!("cargo-deb made no package in {}", package.display())
}

fn install(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file in no folder")?)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

fn write(to: &Path, text: &str) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file in no folder")?)?;
    fs::write(to, text).with_context(|| format!("cannot write {}", to.display()))
}

fn sized(file: &Path) -> Result<String> {
    let kib = fs::metadata(file)?.len() / 1024;
    Ok(format!("{} ({kib} KiB)", file.display()))
}
