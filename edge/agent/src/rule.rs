//! Rules that select urgent tasks. The tasks that a rule selects form a class. The order of the
//! rules is the order of urgency of the classes.

use std::fmt;
use std::str::FromStr;

use slackline_units::Urgency;

use crate::stat::Stat;

/// Rule that selects the tasks of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Tasks with this name. The kernel limits the name of a task to 15 bytes.
    Name(String),
    /// Tasks in this cgroup or in a cgroup below it.
    Cgroup(String),
    /// Tasks in a real-time class.
    RealTime,
    /// Tasks with this nice value or a lower one, and all real-time tasks.
    Nice(i8),
}

/// Error: the text is not a valid rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRule(String);

impl fmt::Display for NoRule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoRule(text) = self;
        write!(out, "`{text}` is not a rule for urgent tasks: write ")?;
        out.write_str("name=NAME, cgroup=/PATH, real-time, or nice=N from -20 to -1")
    }
}

impl std::error::Error for NoRule {}

impl FromStr for Rule {
    type Err = NoRule;

    fn from_str(text: &str) -> Result<Rule, NoRule> {
        let none = || NoRule(text.to_owned());
        match text.split_once('=') {
            None if text == "real-time" => Ok(Rule::RealTime),
            Some(("name", name)) if (1..=15).contains(&name.len()) => Ok(Rule::Name(name.into())),
            Some(("cgroup", path)) if path.starts_with('/') => Ok(Rule::Cgroup(path.into())),
            Some(("nice", nice)) => {
                let nice = nice.parse().ok().filter(|nice| (-20..0).contains(nice));
                nice.map(Rule::Nice).ok_or_else(none)
            }
            _ => Err(none()),
        }
    }
}

impl Rule {
    /// Returns true if the rule selects the task `task`. The function `cgroup` reads the task's
    /// cgroup file, and returns `None` if the file is unreadable.
    pub(crate) fn is_about(&self, task: &Stat, cgroup: impl FnOnce() -> Option<String>) -> bool {
        match self {
            Rule::Name(name) => task.name == *name,
            Rule::RealTime => task.is_real_time,
            Rule::Nice(nice) => task.is_real_time || task.nice <= *nice,
            Rule::Cgroup(path) => cgroup().is_some_and(|of| is_below(&of, path)),
        }
    }

    /// Returns the urgency of a task that this rule selects. The urgency follows from the task's
    /// scheduling class and priority. If the rule selects by name or cgroup, the urgency is at
    /// least that of a task with nice -20.
    pub(crate) fn urgency(&self, task: &Stat) -> Urgency {
        const LEAST_NICE: Urgency = Urgency(100);
        match self {
            Rule::Name(_) | Rule::Cgroup(_) => task.urgency.min(LEAST_NICE),
            Rule::RealTime | Rule::Nice(_) => task.urgency,
        }
    }
}

/// Returns true if `of`, the text of a `/proc/PID/cgroup` file, names the cgroup `path` or a cgroup
/// below `path`, in any hierarchy.
fn is_below(of: &str, path: &str) -> bool {
    let path = path.trim_end_matches('/');
    let mut groups = of.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    groups.any(|group| {
        group.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_urgency_rule_is_refused_with_list_of_valid_rules() {
        let read = |text: &str| text.parse::<Rule>().ok();
        assert_eq!(read("name=nginx"), Some(Rule::Name("nginx".into())));
        assert_eq!(read("cgroup=/web"), Some(Rule::Cgroup("/web".into())));
        assert_eq!(read("real-time"), Some(Rule::RealTime));
        assert_eq!(read("nice=-5"), Some(Rule::Nice(-5)));
        for bad in ["", "name=", "name=sixteen-bytes-ab", "cgroup=web", "nice=0", "nice=x", "rt"] {
            let error = bad.parse::<Rule>().expect_err(bad).to_string();
            assert!(error.starts_with(&format!("`{bad}`")) && error.contains("nice=N"), "{error}");
        }
    }

    #[test]
    fn urgency_rule_for_cgroup_matches_only_cgroup_and_its_descendants() {
        let of = "3:cpu:/other\n0::/web/one\n";
        assert!(is_below(of, "/web") && is_below(of, "/web/") && is_below(of, "/web/one"));
        assert!(is_below(of, "/other") && is_below(of, "/"));
        assert!(!is_below(of, "/we") && !is_below(of, "/web/one/two"));
    }
}
