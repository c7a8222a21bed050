//! A VM of a scenario, for a search for its smallest slice by simulation.

use slackline_scenario::{Claim, ClaimHosts, Scenario};
use slackline_units::Span;
use thiserror::Error;
use toml::{Table, Value};

use super::FitRefusal;
use super::simulated::{SearchError, SimulatedFit, SliceRange};
use crate::claims::expects_refusal;

/// Default number of seeds with which each slice is tested.
pub const USUAL_SEEDS: u64 = 60;

/// A VM of a scenario. A search finds the smallest slice of the VM with which all claims of the
/// scenario hold.
#[derive(Clone, Debug)]
pub struct SearchedVm {
    /// The scenario as TOML.
    table: Table,
    name: String,
    /// Index of the VM's table among the tables `[[domain]]`.
    domain: usize,
    policy: &'static str,
    period: Span,
    /// Number of copies of the VM. `None` if its table has no `copies`.
    copies: Option<i64>,
}

/// Reason why the smallest slice of a VM cannot be searched for.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SearchedVmError {
    /// The scenario has no claim about a run, or the scenario claims that admission is refused.
    #[error("the scenario has no [[claim]] that a run could break")]
    NoClaims,
    /// The scenario has no VM with this name.
    #[error("the scenario has no such VM: `{name}`")]
    NoVm {
        /// Name of the VM that was asked for.
        name: String,
        /// Names of all VMs.
        known: Vec<String>,
        /// Name of the VM of which `name` is a copy. `None` if it is not a copy.
        copy_of: Option<String>,
    },
    /// The scenario has several VMs, and none was named.
    #[error("the scenario has {} VMs", known.len())]
    SeveralVms {
        /// Names of all VMs.
        known: Vec<String>,
    },
    /// Shares of the policy have no slice.
    #[error("shares of `{policy}` have no slice")]
    NoSlice {
        /// Name of the policy.
        policy: &'static str,
    },
    /// Neither the question nor the VM states a period.
    #[error("`{vm}` has no share.{policy} with a period")]
    NoPeriod {
        /// Name of the VM.
        vm: String,
        /// Name of the policy.
        policy: &'static str,
    },
    /// The step of the search is zero, or longer than the period.
    #[error("the step {step} must be greater than zero and at most the period {period}")]
    Step {
        /// Step of the search.
        step: Span,
        /// Period of the reservation.
        period: Span,
    },
}

impl SearchedVmError {
    /// Returns advice in one line. `option` formats the name of an option for the front end.
    #[must_use]
    pub fn hint(&self, option: impl Fn(&str) -> String) -> String {
        match self {
            SearchedVmError::NoClaims => {
                "write [[claim]] that = \"jobs late of NAME\", is = \"at most 0\"".into()
            }
            SearchedVmError::NoVm { copy_of: Some(vm), .. } => {
                format!("set {} to {vm}: all its copies have one reservation", option("vm"))
            }
            SearchedVmError::NoVm { known, .. } => format!("use one of: {}", known.join(", ")),
            SearchedVmError::SeveralVms { known } => {
                format!("name one VM with {}: {}", option("vm"), known.join(", "))
            }
            SearchedVmError::NoSlice { .. } => "use a policy with slices, such as `edf`".into(),
            SearchedVmError::NoPeriod { .. } => format!("set {} to 10ms", option("period")),
            SearchedVmError::Step { .. } => format!("use a shorter {}", option("step")),
        }
    }
}

impl SearchedVm {
    /// Finds the VM in a scenario. If `vm` is `None`, the scenario must have only one VM. If
    /// `period` is `None`, the period of the VM's share is used.
    ///
    /// # Errors
    /// If the scenario does not have this VM or has no claim about a run, or if the VM has no slice
    /// or no period.
    pub fn of(
        scenario: &Scenario,
        vm: Option<&str>,
        period: Option<Span>,
    ) -> Result<SearchedVm, SearchedVmError> {
        let applies = |on: ClaimHosts| matches!(on, ClaimHosts::Both | ClaimHosts::Sim);
        let has_claims = scenario.claims.iter().any(|claim| applies(claim.on));
        if !has_claims || expects_refusal(scenario) {
            return Err(SearchedVmError::NoClaims);
        }
        let table: Table = scenario.text.parse().expect("the scenario was parsed");
        let name_of =
            |domain: &Value| domain.get("name").and_then(Value::as_str).map(str::to_owned);
        let domains = table.get("domain").and_then(Value::as_array);
        let known: Vec<String> = domains.into_iter().flatten().filter_map(name_of).collect();
        let domain = match vm {
            None if known.len() == 1 => 0,
            None => return Err(SearchedVmError::SeveralVms { known }),
            Some(vm) => match known.iter().position(|name| name == vm) {
                Some(domain) => domain,
                None => {
                    let copy_of = copy_of(vm, domains.map_or(&[][..], Vec::as_slice));
                    return Err(SearchedVmError::NoVm { name: vm.into(), known, copy_of });
                }
            },
        };
        let spec = scenario.policy.spec;
        let has = |field: &str| spec.share_fields.iter().any(|known| known.name == field);
        if !has("slice") || !has("period") {
            return Err(SearchedVmError::NoSlice { policy: spec.name });
        }
        let name = known[domain].clone();
        let share = share_of(&table, domain, spec.name);
        let own = share.and_then(|share| share.get("period")?.as_str()?.parse().ok());
        let Some(period) = period.or(own) else {
            return Err(SearchedVmError::NoPeriod { vm: name, policy: spec.name });
        };
        let copies = domains.and_then(|all| all[domain].get("copies")?.as_integer());
        Ok(SearchedVm { table, name, domain, policy: spec.name, period, copies })
    }

    /// Returns the name of the VM for the title of an answer, with the number of its copies.
    #[must_use]
    pub fn title(&self) -> String {
        match self.copies {
            None => format!("`{}`", self.name),
            Some(copies) => format!("each of the {copies} copies of `{}`", self.name),
        }
    }

    /// Returns a warning if every slice that was tried passes, and the only claims about the VM do
    /// not show whether its jobs are late. `None` otherwise.
    #[must_use]
    pub fn warning(&self, scenario: &Scenario, found: &SimulatedFit) -> Option<String> {
        if found.below.is_some() {
            return None;
        }
        let own = || scenario.claims.iter().filter(|claim| self.is_about(claim));
        if own().any(|claim| claim.metric != "misses" && claim.metric != "promised") {
            return None;
        }
        let blind = own().find(|claim| claim.metric == "misses")?;
        let name = blind.of.as_ref().unwrap_or(&self.name);
        Some(format!(
            "`misses of {name}` counts periods in which the reservation was not delivered, not \
             late jobs; a claim on `jobs late of {name}` shows whether the slice suffices"
        ))
    }

    /// Returns true if a claim is about the VM: its copies, its vCPUs, its tasks or the whole run.
    fn is_about(&self, claim: &Claim) -> bool {
        let Some(of) = &claim.of else { return true };
        let is_vm = |name: &str| {
            name == self.name || self.copies.is_some_and(|all| is_copy(name, &self.name, all))
        };
        let vm = of.split_once('/').map_or(of.as_str(), |(vm, _)| vm);
        is_vm(vm) || vm.rsplit_once('.').is_some_and(|(vm, _)| is_vm(vm))
    }

    /// Returns the name of the VM.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the policy.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        self.policy
    }

    /// Returns the period of the reservation.
    #[must_use]
    pub fn period(&self) -> Span {
        self.period
    }

    /// Returns the range of slices to search. The default step is 1 % of the period.
    ///
    /// # Errors
    /// If the step is zero, or longer than the period.
    pub fn range(
        &self,
        step: Option<Span>,
        (seed, seeds): (u64, u64),
    ) -> Result<SliceRange, SearchedVmError> {
        let period = self.period;
        let step = step.unwrap_or(Span::from_ns((period.ns() / 100).max(1)));
        if step.is_zero() || step > period {
            return Err(SearchedVmError::Step { step, period });
        }
        Ok(SliceRange { period, step, seed, seeds })
    }

    /// Returns the scenario as TOML, with another slice of the VM.
    #[must_use]
    pub fn with_slice(&self, slice: Span) -> Table {
        let mut table = self.table.clone();
        let domain = table
            .get_mut("domain")
            .and_then(|domains| domains.as_array_mut()?.get_mut(self.domain)?.as_table_mut())
            .expect("the domain was found before");
        let shares = domain.entry("share").or_insert(Value::Table(Table::new()));
        let share = shares
            .as_table_mut()
            .map(|shares| shares.entry(self.policy).or_insert(Value::Table(Table::new())));
        if let Some(share) = share.and_then(Value::as_table_mut) {
            share.remove("cpu");
            share.insert("slice".into(), slice.to_string().into());
            share.insert("period".into(), self.period.to_string().into());
        }
        table
    }

    /// Returns the scenario as TOML, with another slice of the VM and another seed.
    #[must_use]
    pub fn with_seed(&self, slice: Span, seed: u64) -> Table {
        let mut table = self.with_slice(slice);
        table.insert("seed".into(), Value::Integer(i64::try_from(seed).unwrap_or(i64::MAX)));
        table
    }

    /// Returns the keys of the VM's share with another slice. Other keys such as `exact` stay
    /// unchanged.
    #[must_use]
    pub fn share(&self, slice: Span) -> String {
        let table = self.with_slice(slice);
        let share = share_of(&table, self.domain, self.policy);
        let share = share.expect("with_slice makes the share");
        let period = format!("period = \"{}\"", self.period);
        let mut keys = vec![format!("slice = \"{slice}\""), period];
        let others = share.iter().filter(|(key, _)| *key != "slice" && *key != "period");
        keys.extend(others.map(|(key, value)| format!("{key} = {value}")));
        keys.join(", ")
    }

    /// Returns the refusal if even the largest slice does not suffice. `None` if the search failed
    /// for another reason.
    #[must_use]
    pub fn refusal<E>(&self, range: &SliceRange, error: &SearchError<E>) -> Option<FitRefusal> {
        let name = &self.name;
        let (message, hint) = match error {
            SearchError::Refused => (
                format!(
                    "cannot fit `{name}`: admission refuses even a slice of {} in {}",
                    range.step, range.period
                ),
                "reserve less for the other VMs",
            ),
            SearchError::Fails { slice, failed, smaller } => (
                format!(
                    "cannot fit `{name}`: with the largest slice that admission accepts, {slice} \
                     in {}, a claim fails with seed {}: {}; {smaller} smaller slices fail too",
                    range.period, failed.seed, failed.claim
                ),
                "use a shorter period, or reserve less for the other VMs; if a claim limits the \
                 slice from above, drop it, because `fit` does not try every slice",
            ),
            SearchError::Fresh { slice, failed } => (
                format!(
                    "cannot fit `{name}`: with {slice} in {}, the largest slice that passes with \
                     the seeds of the search, a claim fails with the fresh seed {}: {}",
                    range.period, failed.seed, failed.claim
                ),
                "weaken this claim, use a shorter period, or reserve less for the other VMs",
            ),
            SearchError::Scenario(_) | SearchError::Run(_) | SearchError::Stopped => return None,
        };
        Some(FitRefusal { message, hint: Some(hint.into()), is_bad_question: false })
    }
}

/// Returns true if `name` is the name `base-NUMBER` of one of the copies.
fn is_copy(name: &str, base: &str, copies: i64) -> bool {
    let number = name.strip_prefix(base).and_then(|rest| rest.strip_prefix('-'));
    number.is_some_and(|text| {
        let number = text.parse().ok().filter(|number| (0..copies).contains(number));
        number.is_some_and(|number| number.to_string() == text)
    })
}

/// Returns the name of the VM of which `name` is a copy, among the tables `[[domain]]`.
fn copy_of(name: &str, domains: &[Value]) -> Option<String> {
    domains.iter().find_map(|domain| {
        let base = domain.get("name")?.as_str()?;
        let copies = domain.get("copies")?.as_integer()?;
        is_copy(name, base, copies).then(|| base.to_owned())
    })
}

/// Returns the share of a domain under a policy.
fn share_of<'a>(table: &'a Table, domain: usize, policy: &str) -> Option<&'a Table> {
    let domain = table.get("domain")?.as_array()?.get(domain)?;
    domain.get("share")?.get(policy)?.as_table()
}

#[cfg(test)]
mod tests {
    use super::super::simulated::FailedSeed;
    use super::*;

    const TEXT: &str = "title = 't'\nlength = '2s'\npolicy = { name = 'edf' }\n\
        [[domain]]\nname = 'web'\nwork = { kind = 'spin' }\n\
        share.edf = { cpu = '10%', period = '10ms', exact = true }\n\
        [[domain]]\nname = 'db'\nwork = { kind = 'spin' }\n\
        share.edf = { slice = '1ms', period = '10ms' }\n\
        [[claim]]\nthat = 'misses of web'\nis = 'at most 0'\n";

    #[test]
    fn slice_search_replaces_cpu_key_and_keeps_other_share_keys() {
        let scenario = Scenario::read(TEXT).unwrap();
        let period = Some(Span::from_ms(5));
        let vm = SearchedVm::of(&scenario, Some("web"), period).unwrap();
        let slice = Span::from_ms(2);
        assert_eq!(vm.share(slice), "slice = \"2ms\", period = \"5ms\", exact = true");
        let changed = Scenario::read(&vm.with_seed(slice, 7).to_string()).unwrap();
        assert_eq!(changed.seed, 7);
        assert_eq!(vm.range(None, (1, 3)).unwrap().step, Span::from_us(50));
        let long = vm.range(Some(Span::from_ms(6)), (1, 3)).unwrap_err();
        let text = "the step 6ms must be greater than zero and at most the period 5ms";
        assert_eq!(long.to_string(), text);
    }

    #[test]
    fn slice_search_treats_all_copies_of_a_vm_together() {
        let text = TEXT.replace("name = 'web'", "name = 'web'\ncopies = 3");
        let text = text.replace("misses of web", "misses of web-0");
        let scenario = Scenario::read(&text).unwrap();
        let vm = SearchedVm::of(&scenario, Some("web"), None).unwrap();
        assert_eq!(vm.title(), "each of the 3 copies of `web`");
        let error = SearchedVm::of(&scenario, Some("web-2"), None).unwrap_err();
        let hint = error.hint(|name| format!("--{name}"));
        assert_eq!(hint, "set --vm to web: all its copies have one reservation");
        let error = SearchedVm::of(&scenario, Some("web-3"), None).unwrap_err();
        assert_eq!(error.hint(str::to_owned), "use one of: web, db");
    }

    #[test]
    fn claim_on_misses_without_claim_on_late_jobs_causes_warning() {
        let mut found = SimulatedFit {
            slice: Span::from_us(100),
            fresh_from: 61,
            rounds: 1,
            failing_at_most: 0.05,
            below: None,
            above: None,
            runs: 120,
        };
        let of = |text: &str, found: &SimulatedFit| {
            let scenario = Scenario::read(text).unwrap();
            SearchedVm::of(&scenario, Some("web"), None).unwrap().warning(&scenario, found)
        };
        assert!(of(TEXT, &found).is_some_and(|hint| hint.contains("`jobs late of web`")));
        for late in ["jobs late of web", "jobs late", "jobs of web/0"] {
            let claim = format!("[[claim]]\nthat = '{late}'\nis = 'at most 0'\n");
            assert_eq!(of(&format!("{TEXT}{claim}"), &found), None, "{late}");
        }
        assert_eq!(of(&TEXT.replace("misses of web", "misses of db"), &found), None);
        let copies = TEXT.replace("name = 'web'", "name = 'web'\ncopies = 3");
        let copy = |name: &str| of(&copies.replace("misses of web", name), &found);
        assert!(copy("misses of web-2").is_some_and(|hint| hint.contains("`jobs late of web-2`")));
        for other in ["web-3", "web-10", "web--1", "web-02"] {
            let text = copies.replace("'db'", &format!("'{other}'"));
            let text = text.replace("misses of web", &format!("misses of {other}"));
            assert_eq!(of(&text, &found), None, "{other}");
        }
        // A claim that a smaller slice breaks decides.
        let failed = FailedSeed { seed: 1, claim: "misses of web is at most 0".into() };
        found.below = Some((Span::from_us(50), failed));
        assert_eq!(of(TEXT, &found), None);
    }

    #[test]
    fn slice_search_needs_an_existing_vm_and_a_claim() {
        let scenario = Scenario::read(TEXT).unwrap();
        let of = |vm| SearchedVm::of(&scenario, vm, None).unwrap_err();
        let known = vec!["web".to_owned(), "db".to_owned()];
        assert_eq!(of(None), SearchedVmError::SeveralVms { known: known.clone() });
        let name = "sea".to_owned();
        assert_eq!(of(Some("sea")), SearchedVmError::NoVm { name, known, copy_of: None });
        let text = TEXT.split("[[claim]]").next().unwrap();
        let scenario = Scenario::read(text).unwrap();
        let error = SearchedVm::of(&scenario, Some("db"), None).unwrap_err();
        assert_eq!(error, SearchedVmError::NoClaims);
    }
}
