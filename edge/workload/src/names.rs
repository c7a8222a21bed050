//! Names of VMs in a scenario, made from names in files.

use std::collections::BTreeSet;

/// Maximum length of the part of a name that is taken from a file.
const LONGEST: usize = 40;

/// Names that VMs of the scenario have.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeSet<String>);

impl Names {
    /// Returns a name for a VM: the name `from`, with `-` in place of all characters that a
    /// scenario does not allow. A number is appended if another VM has the name already.
    pub(crate) fn make(&mut self, from: &str) -> String {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let plain: String = from.chars().map(|c| if is_allowed(c) { c } else { '-' }).collect();
        let plain: String = plain.trim_matches('-').chars().take(LONGEST).collect();
        let plain = match plain.as_str() {
            "" | "total" => "vm".to_owned(),
            _ => plain,
        };
        let mut name = plain.clone();
        let mut number = 2_u32;
        while !self.0.insert(name.clone()) {
            name = format!("{plain}-{number}");
            number += 1;
        }
        name
    }
}

/// Returns the last part of a path without its extension.
pub(crate) fn stem(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.rsplit_once('.') {
        Some((stem, _)) if !stem.is_empty() => stem,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::{Names, stem};

    #[test]
    fn converted_vm_names_are_unique_and_allowed_in_a_scenario() {
        let mut names = Names::default();
        assert_eq!(names.make("web server/1"), "web-server-1");
        assert_eq!(names.make("web.server.1"), "web-server-1-2");
        assert_eq!(names.make("total"), "vm");
        assert_eq!(names.make("==="), "vm-2");
        assert_eq!(names.make(&"x".repeat(90)).len(), 40);
    }

    #[test]
    fn stem_of_a_path_has_neither_folder_nor_extension() {
        assert_eq!(stem("fastStorage/2013-8/1.csv"), "1");
        assert_eq!(
            stem("146-179_surfsnel_dsl_internl_net_root"),
            "146-179_surfsnel_dsl_internl_net_root"
        );
        assert_eq!(stem(".hidden"), ".hidden");
    }
}
