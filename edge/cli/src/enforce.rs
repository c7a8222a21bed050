//! Mechanism that a user names by `--enforce`.

use std::fmt;
use std::str::FromStr;

use slackline_policy::nearest;
use slackline_units::Enforcement;

/// Value of the option `--enforce`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enforce {
    /// Choose a mechanism by the request and by the results of the last trial on this host.
    Auto,
    /// Use this mechanism for the whole request.
    Named(Enforcement),
}

const AUTO: &str = "auto";

impl FromStr for Enforce {
    type Err = String;

    fn from_str(text: &str) -> Result<Enforce, String> {
        if text == AUTO {
            return Ok(Enforce::Auto);
        }
        text.parse().map(Enforce::Named).map_err(|_| {
            let names = || std::iter::once(AUTO).chain(Enforcement::ALL.map(Enforcement::name));
            match nearest(text, names()) {
                Some(meant) => format!("there is no mechanism `{text}`; did you mean `{meant}`?"),
                None => {
                    let names: Vec<&str> = names().collect();
                    format!("there is no mechanism `{text}`; use one of {}", names.join(", "))
                }
            }
        })
    }
}

impl fmt::Display for Enforce {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Enforce::Auto => out.write_str(AUTO),
            Enforce::Named(enforcement) => enforcement.fmt(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_unknown_enforcement_mechanism_suggests_valid_names() {
        assert_eq!("auto".parse(), Ok(Enforce::Auto));
        assert_eq!("deadline".parse(), Ok(Enforce::Named(Enforcement::Deadline)));
        let near = "deadlin".parse::<Enforce>().unwrap_err();
        assert_eq!(near, "there is no mechanism `deadlin`; did you mean `deadline`?");
        let far = "magic".parse::<Enforce>().unwrap_err();
        assert!(far.ends_with("use one of auto, dispatcher, deadline, quota, weight"), "{far}");
    }
}
