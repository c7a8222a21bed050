//! The workspace and its dependencies, as cargo reports them.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::step;

/// Report of cargo about the workspace.
#[derive(Debug)]
pub struct Metadata {
    /// Folder in which cargo builds.
    pub target: PathBuf,
    /// Crates of the workspace.
    pub crates: Vec<Crate>,
    /// Packages from outside the workspace, for all targets and features.
    pub foreign: Vec<Foreign>,
}

/// A crate of the workspace.
#[derive(Debug)]
pub struct Crate {
    /// Name of the package.
    pub package: String,
    /// Folder of the crate, relative to the root, such as `pure/units`.
    pub folder: String,
    /// Dependencies by package name, except those of tests and build scripts.
    pub normal: Vec<String>,
    /// Dependencies that only tests and build scripts use, by package name.
    pub other: Vec<String>,
}

/// A package from outside the workspace.
#[derive(Debug)]
pub struct Foreign {
    /// Name of the package.
    pub name: String,
    /// Version of the package.
    pub version: String,
    /// Licence expression. `None` if the package states no licence.
    pub license: Option<String>,
}

impl Crate {
    /// Returns the name of the crate's folder, which ARCHITECTURE.md uses for the crate.
    #[must_use]
    pub fn name(&self) -> &str {
        self.folder.rsplit('/').next().unwrap_or(&self.folder)
    }
}

/// Reads the metadata from cargo.
///
/// # Errors
///
/// If cargo fails, or its output has an unknown form.
pub fn read() -> Result<Metadata> {
    let mut cargo = step::cargo();
    let text = step::output(cargo.args(["metadata", "--format-version=1", "--locked"]))?;
    parse(&text).context("cannot parse the output of cargo metadata")
}

fn parse(text: &str) -> Result<Metadata> {
    let value: Value = serde_json::from_str(text)?;
    let root = string(&value, "workspace_root")?;
    let (mut crates, mut foreign) = (Vec::new(), Vec::new());
    for package in list(&value, "packages")? {
        let name = string(package, "name")?;
        if !package["source"].is_null() {
            let license = package["license"].as_str().map(str::to_owned);
            foreign.push(Foreign { name, version: string(package, "version")?, license });
            continue;
        }
        let manifest = string(package, "manifest_path")?;
        let folder = manifest.strip_prefix(&root).context("a crate outside the workspace")?;
        let folder = folder.trim_start_matches('/').trim_end_matches("/Cargo.toml").to_owned();
        let (mut normal, mut other) = (Vec::new(), Vec::new());
        for dependency in list(package, "dependencies")? {
            let kind = if dependency["kind"].is_null() { &mut normal } else { &mut other };
            kind.push(string(dependency, "name")?);
        }
        crates.push(Crate { package: name, folder, normal, other });
    }
    crates.sort_by(|a, b| a.folder.cmp(&b.folder));
    Ok(Metadata { target: string(&value, "target_directory")?.into(), crates, foreign })
}

fn string(value: &Value, key: &str) -> Result<String> {
    Ok(value[key].as_str().with_context(|| format!("no text `{key}`"))?.to_owned())
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value[key].as_array().with_context(|| format!("no list `{key}`"))
}
