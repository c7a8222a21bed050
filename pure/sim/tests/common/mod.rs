//! Access to the scenarios of the repository.

#![allow(dead_code)] // Not every test uses all of it.

use std::path::PathBuf;

use slackline_scenario::Scenario;

/// Returns the folder of the scenarios.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

/// Returns every scenario with its name, sorted by name.
pub(crate) fn scenarios() -> Vec<(String, Scenario)> {
    let entries = folder().read_dir().expect("the folder of scenarios can be read");
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("the folder of scenarios can be read").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    assert!(!paths.is_empty(), "there are scenarios");
    let read = |path: PathBuf| {
        let name =
            path.file_stem().expect("a scenario file has a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("a scenario file can be read");
        let load = |other: &str| {
            std::fs::read_to_string(folder().join(other)).map_err(|error| error.to_string())
        };
        let scenario = Scenario::with_files(&text, &load);
        (name.clone(), scenario.unwrap_or_else(|error| panic!("{name}: {error}")))
    };
    paths.into_iter().map(read).collect()
}
