//! Proof that the crates `units` and `policy` need no operating system.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::metadata::Metadata;
use crate::step;

/// A target without an operating system, for which std does not exist.
const BARE: &str = "x86_64-unknown-none";

/// Packages that must not use std.
const PACKAGES: [&str; 2] = ["slackline-units", "slackline-policy"];

/// Source of a program with its own panic handler. If a dependency used std, there would be two
/// panic handlers, and the compiler would reject the program.
const PROGRAM: &str = "\
#![no_std]
extern crate alloc;
extern crate slackline_policy;
extern crate slackline_units;

use core::alloc::{GlobalAlloc, Layout};

struct Nothing;

unsafe impl GlobalAlloc for Nothing {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static NOTHING: Nothing = Nothing;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
";

/// Builds the packages for a target without std. If that target is not available, links them into a
/// program that cannot contain std. Returns a line that names the check that was made.
///
/// # Errors
///
/// If the packages do not build.
pub fn prove(metadata: &Metadata) -> Result<String> {
    if has_bare_target() {
        let mut cargo = step::cargo();
        cargo.args(["build", "--quiet", "--locked", "--target", BARE]);
        cargo.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
        step::run(&mut cargo)?;
        return Ok(format!("{} build for {BARE}", PACKAGES.join(" and ")));
    }
    build_program(metadata)?;
    Ok(format!("{} link without std ({BARE} cannot be added here)", PACKAGES.join(" and ")))
}

/// Tries to install the target, and returns true if it is installed.
fn has_bare_target() -> bool {
    let rustc = || std::process::Command::new("rustc");
    let folder = step::output(rustc().args(["--print", "target-libdir", "--target", BARE]));
    let there = |folder: &str| Path::new(folder.trim()).is_dir();
    folder.as_deref().is_ok_and(there)
        || step::output(std::process::Command::new("rustup").args(["target", "add", BARE])).is_ok()
}

fn build_program(metadata: &Metadata) -> Result<()> {
    let folder = metadata.target.join("no-std");
    fs::create_dir_all(&folder)?;
    let mut manifest = String::from(
        "[package]\nname = \"bare\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [lib]\npath = \"bare.rs\"\ncrate-type = [\"staticlib\"]\n\n\
         [profile.dev]\npanic = \"abort\"\n\n[dependencies]\n",
    );
    let root = std::env::current_dir()?;
    for package in PACKAGES {
        let found = metadata.crates.iter().find(|one| one.package == package);
        let path = root.join(found.map_or("", |one| &one.folder));
        manifest.push_str(&format!("{package} = {{ path = {:?} }}\n", path.display().to_string()));
    }
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::write(folder.join("bare.rs"), PROGRAM)?;
    let mut cargo = step::cargo();
    cargo.args(["build", "--quiet", "--offline", "--target-dir"]).arg(folder.join("target"));
    step::run(cargo.current_dir(&folder))
}
