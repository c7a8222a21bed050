//! Cells and headings of CSV files.

/// Returns a text as a CSV cell, quoted if necessary. Line breaks become blanks.
pub(crate) fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"").replace('\n', " ")),
        false => text.to_owned(),
    }
}

/// Returns the headings of the columns of axes in a CSV file. `others` are the headings of the
/// other columns. An axis with the name of another column has the heading `axis_NAME`, so that no
/// two columns have the same heading.
pub(crate) fn axis_headings(axes: &[&str], others: &[&str]) -> Vec<String> {
    let heading = |&axis: &&str| {
        let mut heading = axis.to_owned();
        while others.contains(&&*heading) || (heading != axis && axes.contains(&&*heading)) {
            heading.insert_str(0, "axis_");
        }
        heading
    };
    axes.iter().map(heading).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_heading_of_scenario_axis_is_prefixed_if_already_used() {
        let headings = |axes: &[&str]| axis_headings(axes, &["cpus", "policy", "seed"]);
        assert_eq!(headings(&["slice", "cpus", "seed"]), ["slice", "axis_cpus", "axis_seed"]);
        assert_eq!(headings(&["axis_cpus", "cpus"]), ["axis_cpus", "axis_axis_cpus"]);
    }
}
