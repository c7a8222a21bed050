//! Subjects of an allocation error test: policies with parameters, and the scenario of a trial (a
//! single run).

use std::fmt::Write as _;

use slackline_policy::{ALL, Field, FieldError, Kind, SIMULATED_ONLY, Spec, Values, find, nearest};
use slackline_units::{CpuShare, Span};
use thiserror::Error;

/// Cases of SEDF and Credit with the rules that are nearest to those of the Xen in the paper. The
/// paper measured a development tree of Xen, between October and December 2006, that was never
/// released.
pub const AS_PUBLISHED: [&str; 2] = ["sedf:rules=xen-3.0.3", "credit:rules=xen-2006-10-30"];

/// Policy that is tested by default, in addition to SEDF and Credit.
pub const OURS: &str = "edf";

/// Returns the policies that a test compares by default.
#[must_use]
pub fn usual_cases(form: Form) -> Vec<&'static str> {
    match form {
        Form::One => AS_PUBLISHED.into_iter().chain([OURS]).collect(),
        Form::Smp => vec![AS_PUBLISHED[1]],
    }
}

/// Period of all shares in a test, for policies whose shares have a period. The paper used this
/// period.
const PERIOD: Span = Span::from_ms(10);

/// Share to which Dom0 (the driver domain) is limited.
const DOM0: CpuShare = CpuShare::from_ppm(60_000);

/// Period of the load of Dom0 (the driver domain), which computes for `DOM0_WORK` in each period.
/// With this load the test reproduces the published errors of Credit. With an idle Dom0 it does
/// not.
const DOM0_PERIOD: Span = Span::from_us(7_300);
const DOM0_WORK: Span = Span::from_us(150);

/// Time at the start of a trial that is simulated but not measured.
const WARMUP: Span = Span::from_secs(2);

/// Costs of the simulated host. The costs have the order of magnitude of the paper's test machine,
/// but are neither stated in the paper nor fitted to its results. The timer slop is that of Xen:
/// timers that are due within 50 us expire together.
const HOST: &str =
    "switch = \"5us\"\ntimer_lateness = \"exponential 5us\"\ntimer_slop = \"50us\"\n";

/// A policy with parameters, as the subject of an allocation error test.
#[derive(Clone, Debug)]
pub struct Case {
    /// Text of the case as users write it on the command line.
    pub name: String,
    /// Specification of the policy.
    pub spec: &'static Spec,
    settings: Vec<Setting>,
}

/// A parameter and its value, as a scenario states them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    name: &'static str,
    value: String,
    whose: ParameterOwner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParameterOwner {
    Policy,
    Share,
}

/// Reason why a case cannot be tested.
#[derive(Clone, Debug, Error)]
pub enum CaseError {
    /// No policy has this name.
    #[error("there is no policy `{name}`")]
    NoPolicy {
        /// Name as the user wrote it.
        name: String,
    },
    /// The policy cannot limit a vCPU.
    #[error("`{policy}` cannot limit a VM: it has no hard limit")]
    CannotLimit {
        /// Name of the policy.
        policy: &'static str,
    },
    /// Neither the policy nor its shares have this field.
    #[error("`{}` has no field `{name}`", .policy.name)]
    NoField {
        /// Description of the policy.
        policy: &'static Spec,
        /// Name of the field as the user wrote it.
        name: String,
    },
    /// A setting without `=`, which cannot set a field.
    #[error("`{text}` does not set a parameter of the policy")]
    SetsNothing {
        /// Setting as the user wrote it.
        text: String,
    },
}

/// Kind of allocation error test: the domains and the number of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Dom0 and a domain that always computes, on one CPU.
    One,
    /// Three domains that always compute, on two CPUs.
    Smp,
}

/// Parameters of one run of an allocation error test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Kind of test to which this run belongs.
    pub form: Form,
    /// Share to which each measured domain is limited.
    pub target: CpuShare,
    /// Measured time, without the warm-up.
    pub length: Span,
    /// Seed of the times at which domains join, and of the lateness of timers.
    pub seed: u64,
}

impl Form {
    /// Returns the number of limited domains whose deviation from the target share is measured.
    pub(super) fn measured(self) -> usize {
        match self {
            Form::One => 1,
            Form::Smp => 3,
        }
    }
}

impl Case {
    /// Parses a case such as `credit:rules=xen-3.0.3:cap=...`. The settings in `all` are added to
    /// the case.
    ///
    /// # Errors
    /// If there is no such policy or field, or if the policy cannot limit a vCPU.
    pub fn read(text: &str, all: &[String]) -> Result<Case, CaseError> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let spec = find(name).ok_or_else(|| CaseError::NoPolicy { name: name.into() })?;
        if spec.limit.is_none() {
            return Err(CaseError::CannotLimit { policy: spec.name });
        }
        let mut case = Case { name: spec.name.into(), spec, settings: Vec::new() };
        for setting in parts.chain(all.iter().map(String::as_str)) {
            case.set(setting)?;
        }
        Ok(case)
    }

    /// Returns the case with one more setting. If the case already sets the same field, the new
    /// setting replaces the old one.
    ///
    /// # Errors
    /// If neither the policy nor its shares have a field for the setting.
    pub fn with(&self, setting: &str) -> Result<Case, CaseError> {
        let mut case = self.clone();
        case.set(setting)?;
        Ok(case)
    }

    fn set(&mut self, text: &str) -> Result<(), CaseError> {
        let nothing = || CaseError::SetsNothing { text: text.into() };
        let (name, value) = text.split_once('=').ok_or_else(nothing)?;
        let tables = [
            (ParameterOwner::Policy, self.spec.policy_fields),
            (ParameterOwner::Share, self.spec.share_fields),
        ];
        let found = tables.into_iter().find_map(|(whose, fields)| {
            Some((whose, fields.iter().find(|field| field.name == name.trim())?))
        });
        let no_field = || CaseError::NoField { policy: self.spec, name: name.trim().into() };
        let (whose, field) = found.ok_or_else(no_field)?;
        let value = written(field, value.trim());
        self.settings.retain(|setting| setting.name != field.name);
        self.settings.push(Setting { name: field.name, value, whose });
        let plain =
            |setting: &Setting| format!(":{}={}", setting.name, setting.value.trim_matches('"'));
        self.name = self.settings.iter().map(plain).fold(self.spec.name.into(), |a, b| a + &b);
        Ok(())
    }

    /// Returns the ablations: cases that differ from this case in a single rule of the policy.
    #[must_use]
    pub fn ablations(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for field in self.spec.policy_fields {
            let Kind::Choice(words) = field.kind else { continue };
            let said = self.settings.iter().find(|setting| setting.name == field.name);
            let now = said.map_or(field.default, |setting| Some(setting.value.trim_matches('"')));
            for word in words.iter().filter(|word| now != Some(word)) {
                let other = self.with(&format!("{}={word}", field.name));
                cases.push(other.expect("the field is one of the policy"));
            }
        }
        cases.retain(|case| case.conflict().is_none());
        cases
    }

    /// Returns a conflict between settings of the case. `None` if no settings conflict.
    fn conflict(&self) -> Option<FieldError> {
        let settings =
            self.settings.iter().filter(|setting| setting.whose == ParameterOwner::Policy);
        let plain =
            |setting: &Setting| format!(" {}={}", setting.name, setting.value.trim_matches('"'));
        let written: String = settings.map(plain).collect();
        let values = Values::read_written(self.spec.policy_fields, &written).ok()?;
        (self.spec.conflict)(&values)
    }

    /// Returns the scenario of a trial.
    #[must_use]
    pub fn scenario(&self, trial: Trial) -> String {
        let Trial { form, target, length, seed } = trial;
        let mut text = format!(
            "title = \"ALERT: {} limited to {target}\"\nlength = \"{}\"\nwarmup = \"{WARMUP}\"\n\
             seed = {seed}\npolicy = {{ name = \"{}\"",
            self.name,
            length + WARMUP,
            self.spec.name,
        );
        for setting in
            self.settings.iter().filter(|setting| setting.whose == ParameterOwner::Policy)
        {
            let _ = write!(text, ", {} = {}", setting.name, setting.value);
        }
        // The reserve is set to zero, because Dom0 uses the capacity that the policy would
        // otherwise keep free.
        let keeps = |field: &Field| field.name == RESERVE;
        let says = |setting: &Setting| setting.name == RESERVE;
        if self.spec.policy_fields.iter().any(keeps) && !self.settings.iter().any(says) {
            let _ = write!(text, ", {RESERVE} = \"0cpu\"");
        }
        let cpus = if form == Form::Smp { 2 } else { 1 };
        let _ = write!(text, " }}\n\n[host]\ncpus = {cpus}\n{HOST}");
        match form {
            Form::One => {
                let (work, period) = (DOM0_WORK, DOM0_PERIOD);
                let offset = drawn(seed, target, 0) % period.ns();
                let offset = Span::from_ns(offset);
                let periodic = format!(
                    "kind = \"periodic\", period = \"{period}\", work = \"{work}\", \
                     offset = \"{offset}\""
                );
                text += &self.domain("dom0", &periodic, DOM0, Span::ZERO);
                let joins = Span::from_ns(drawn(seed, target, 1) % PHASES.ns());
                text += &self.domain("dom1", SPIN, target, joins);
            }
            Form::Smp => {
                for (name, nth) in [("dom0", 0), ("dom1", 1), ("dom2", 2)] {
                    let joins = Span::from_ns(drawn(seed, target, nth) % PHASES.ns());
                    text += &self.domain(name, SPIN, target, joins);
                }
            }
        }
        text
    }

    fn domain(&self, name: &str, work: &str, share: CpuShare, joins: Span) -> String {
        let of_share =
            || self.settings.iter().filter(|setting| setting.whose == ParameterOwner::Share);
        let period = of_share().find(|setting| setting.name == "period");
        let period = period.and_then(|setting| setting.value.trim_matches('"').parse().ok());
        let limit = self.spec.limit.expect("a case has a policy that can limit");
        let mut terms = limit(share, period.unwrap_or(PERIOD));
        for setting in of_share() {
            terms.retain(|(name, _)| *name != setting.name);
            terms.push((setting.name, setting.value.clone()));
        }
        let terms: Vec<String> =
            terms.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let (policy, terms) = (self.spec.name, terms.join(", "));
        format!(
            "\n[[domain]]\nname = \"{name}\"\njoins = \"{joins}\"\nwork = {{ {work} }}\n\
             share.{policy} = {{ {terms} }}\n"
        )
    }
}

/// Name of the policy field that keeps a part of each CPU free.
const RESERVE: &str = "reserve";

const SPIN: &str = "kind = \"spin\"";

/// Upper end of the range from which the join times of domains are drawn. The range begins at zero.
/// It is longer than any period of a policy.
const PHASES: Span = Span::from_ms(100);

/// Returns the assumptions of the test about facts that the paper does not state, as sentences for
/// users.
#[must_use]
pub fn assumptions(form: Form) -> Vec<String> {
    let host = HOST.trim().replace('\n', ", ");
    let mut items = vec![
        format!(
            "Simulated host: `{host}`. Only the order of magnitude of these costs is realistic. \
             They were not fitted, because the paper states no costs."
        ),
        format!("The first {WARMUP} are simulated but not measured."),
        format!(
            "All shares that have a period use {PERIOD}, as in the paper. Each VM joins at a \
             random time in the first {PHASES}, so runs with different seeds have different \
             phases and timers."
        ),
        "The version of Xen that the paper measured is not known. The rules are those of Xen's \
         source trees of October to December 2006. Only in these can the paper's extreme errors \
         occur."
            .into(),
    ];
    if form == Form::One {
        items.push(format!(
            "Dom0 is limited to {DOM0} and computes for {DOM0_WORK} every {DOM0_PERIOD}: the \
             largest errors of Credit need a Dom0 with some load."
        ));
    }
    items
}

/// Returns a pseudo-random number that depends only on the seed, the target share and the index
/// `nth` (splitmix64).
fn drawn(seed: u64, target: CpuShare, nth: u64) -> u64 {
    let start = seed.wrapping_mul(1 << 40).wrapping_add(u64::from(target.ppm()) << 4);
    let state = start.wrapping_add(nth).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Formats a value for a scenario: quoted, except for numbers and flags.
fn written(field: &Field, value: &str) -> String {
    match field.kind {
        Kind::Weight | Kind::Whole { .. } | Kind::Flag => value.into(),
        _ => format!("\"{}\"", value.trim_matches('"')),
    }
}

/// Returns all policies. The alert test simulates them.
fn policies() -> impl Iterator<Item = &'static Spec> {
    ALL.iter().chain(SIMULATED_ONLY).copied()
}

impl CaseError {
    /// Returns one line of advice on how to correct the case.
    #[must_use]
    pub fn hint(&self) -> String {
        let meant = |name: &str| format!("did you mean `{name}`?");
        match self {
            CaseError::NoPolicy { name } => {
                let nearest = nearest(name, policies().map(|spec| spec.name));
                nearest.map_or_else(|| "list policies with `slackline help`".into(), meant)
            }
            CaseError::CannotLimit { .. } => {
                let can = policies().filter(|spec| spec.limit.is_some());
                let can: Vec<&str> = can.map(|spec| spec.name).collect();
                format!("use one of {}", can.join(", "))
            }
            CaseError::NoField { policy, name } => {
                let fields = policy.policy_fields.iter().chain(policy.share_fields);
                let lists = || format!("list parameters with `slackline help {}`", policy.name);
                nearest(name, fields.map(|field| field.name)).map_or_else(lists, meant)
            }
            CaseError::SetsNothing { .. } => "write a setting such as `period=10ms`".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_scenario::Scenario;

    fn trial(form: Form) -> Trial {
        let target = CpuShare::from_ppm(50_000);
        Trial { form, target, length: Span::from_secs(10), seed: 3 }
    }

    #[test]
    fn alert_test_scenario_is_admitted_under_every_limiting_policy() {
        for spec in ALL.iter().filter(|spec| spec.limit.is_some()) {
            let case = Case::read(spec.name, &[]).unwrap();
            for (form, ppm) in [(Form::One, 900_000), (Form::One, 10_000), (Form::Smp, 660_000)] {
                let trial = Trial { target: CpuShare::from_ppm(ppm), ..trial(form) };
                let text = case.scenario(trial);
                let scenario = Scenario::read(&text)
                    .unwrap_or_else(|error| panic!("{}: {error}\n{text}", spec.name));
                // A policy that assigns each vCPU to one CPU cannot place three shares of 66 % on
                // two CPUs.
                if form == Form::One {
                    scenario
                        .admit()
                        .unwrap_or_else(|error| panic!("{}: {error}\n{text}", spec.name));
                }
            }
        }
    }

    #[test]
    fn alert_case_settings_become_policy_or_share_parameters() {
        let case = Case::read("edf:quantum=5ms", &["period=20ms".into()]).unwrap();
        let text = case.scenario(trial(Form::One));
        assert!(text.contains("name = \"edf\", quantum = \"5ms\", reserve = \"0cpu\""), "{text}");
        let share = "slice = \"1ms\", exact = true, overrun = \"repay\", period = \"20ms\"";
        assert!(text.contains(share), "{text}");
        assert_eq!(case.name, "edf:quantum=5ms:period=20ms");
        assert_eq!(case.with("period=10ms").unwrap().name, "edf:quantum=5ms:period=10ms");
    }

    #[test]
    fn alert_scenarios_with_different_seeds_or_targets_differ_in_phase() {
        let case = Case::read("edf", &[]).unwrap();
        let text = |seed, ppm| {
            let target = CpuShare::from_ppm(ppm);
            case.scenario(Trial { seed, target, ..trial(Form::One) })
        };
        assert_eq!(text(1, 10_000), text(1, 10_000));
        let joins = |text: &str| {
            text.lines().filter(|line| line.starts_with("joins")).nth(1).map(String::from)
        };
        assert_ne!(joins(&text(1, 10_000)), joins(&text(2, 10_000)));
        assert_ne!(joins(&text(1, 10_000)), joins(&text(1, 20_000)));
    }

    #[test]
    fn ablation_of_an_alert_case_changes_exactly_one_rule() {
        let case = Case::read("edf", &[]).unwrap();
        let names: Vec<String> = case.ablations().into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["edf:place=pack", "edf:place=split", "edf:unblocking=new-period"]);
    }

    /// The rules of Xen and of the thesis admit all reservations. So the settings `place=pack` and
    /// `place=split` conflict with these rules.
    #[test]
    fn ablations_of_alert_case_omit_conflicting_settings() {
        let places = |case: &str| {
            let ablations = Case::read(case, &[]).unwrap().ablations();
            ablations.iter().filter(|it| it.name.contains(":place=")).count()
        };
        assert_eq!(["sedf", "sedf:rules=thesis"].map(places), [2, 0]);
    }
}
