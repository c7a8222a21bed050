//! The workspace and everything below it, as cargo sees them.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::step;

/// What cargo says about the workspace.
#[derive(Debug)]
pub struct Metadata {
    /// Where things are built.
    pub target: PathBuf,
    /// Our crates.
    pub crates: Vec<Crate>,
    /// Everybody else's, for all targets and features.
    pub foreign: Vec<Foreign>,
}

/// A crate of the workspace.
#[derive(Debug)]
pub struct Crate {
    /// The name of its package.
    pub package: String,
    /// Its folder from the root, such as `pure/units`.
    pub folder: String,
    /// What it depends on, by package name, tests left out.
    pub normal: Vec<String>,
    /// What it depends on in tests and build scripts only.
    pub other: Vec<String>,
}

/// A package that is not ours.
#[derive(Debug)]
pub struct Foreign {
    /// Name and version.
    pub name: String,
    /// The version.
    pub version: String,
    /// The licence expression, if it states one.
    pub license: Option<String>,
}

impl Crate {
    /// The name of its folder, by which people and ARCHITECTURE.md call it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.folder.rsplit('/').next().unwrap_or(&self.folder)
    }
}

/// Asks cargo.
///
/// # Errors
///
/// When cargo fails or says something new.
pub fn read() -> Result<Metadata> {
    let mut cargo = step::cargo();
    let text = step::output(cargo.args(["metadata", "--format-version=1", "--locked"]))?;
    parse(&text).context("cargo metadata says something unknown")
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
