//! What-if questions: how would VMs have run with other parameters, policies or neighbours?

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use slackline_service::Terms;
use slackline_units::{Reservation, Span};

use crate::periods::RecordedPeriods;
use crate::times::Length;

/// Longest recording that a question can use: the length of time that the flight recorder keeps.
const LONGEST: Span = Span::from_secs(60);

/// Default length of the recording.
const USUAL: Length = Length(Span::from_secs(10));

/// Maximum number of changes in one question.
pub const MOST_CHANGES: usize = 64;

/// Maximum length of each text in a question, in bytes.
const LONGEST_TEXT: usize = 256;

/// Question: how would the VMs have run in the last seconds with these changes? A question without
/// changes only asks whether the recording allows a prediction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WhatIf {
    /// Length of the recording, at most 60 s.
    #[serde(default = "usual")]
    pub since: Length,
    /// Changes of the parameters of VMs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<SetParameters>,
    /// VMs that are added beside the recorded VMs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<AddedVm>,
    /// Names of recorded VMs that are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
    /// Other policy, or other parameters of the policy, such as `sedf:slack=weighted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// CPUs that the host would use, such as `0-3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// VMs or vCPUs that are confined to one CPU.
    #[serde(default, rename = "move", skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<MovedVm>,
    /// True to get the measured and predicted demand and missed periods of each VM, instead of the
    /// ordinary prediction.
    #[serde(default, skip_serializing_if = "is_false")]
    pub periods: bool,
    /// True if the daemon must make a new recording, even if it still keeps a recent recording for
    /// the caller.
    #[serde(default, skip_serializing_if = "is_false")]
    pub fresh: bool,
}

/// Changed parameters of a VM, or of one vCPU such as `web.1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SetParameters {
    /// Name of the VM or vCPU.
    pub name: String,
    /// Parameters of the policy and their values, such as `"slice": "3ms"`.
    #[serde(flatten)]
    pub fields: BTreeMap<String, FieldValue>,
}

/// Value of a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum FieldValue {
    /// Truth value of a flag, such as `exact`.
    Flag(bool),
    /// Whole number without a unit, such as a weight.
    Number(u64),
    /// Text, such as a time with its unit.
    Text(String),
}

/// VM that is added beside the recorded VMs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AddedVm {
    /// Name of the new VM.
    pub name: String,
    /// Name of a recorded VM. The new VM gets the work and the parameters of this VM.
    pub like: String,
}

/// VM or vCPU that is confined to one CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MovedVm {
    /// Name of the VM or vCPU.
    pub name: String,
    /// Number of the CPU.
    pub to_cpu: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

const fn usual() -> Length {
    USUAL
}

/// Returns true if a value is a time with a unit.
fn is_length(value: &FieldValue) -> bool {
    value.written().parse::<Span>().is_ok()
}

impl Default for WhatIf {
    fn default() -> WhatIf {
        WhatIf {
            since: USUAL,
            set: Vec::new(),
            add: Vec::new(),
            remove: Vec::new(),
            policy: None,
            cpus: None,
            moves: Vec::new(),
            periods: false,
            fresh: false,
        }
    }
}

impl FieldValue {
    /// Returns the value as text, in the form in which scenario files contain it.
    #[must_use]
    pub fn written(&self) -> String {
        match self {
            FieldValue::Flag(value) => value.to_string(),
            FieldValue::Number(value) => value.to_string(),
            FieldValue::Text(value) => value.clone(),
        }
    }
}

impl WhatIf {
    /// Checks the limits of a question.
    ///
    /// # Errors
    /// If the recording is too long, if there are too many changes, or if a text is too long or not
    /// a single word.
    pub fn check(&self) -> Result<(), String> {
        let Length(since) = self.since;
        if since == Span::ZERO || since > LONGEST {
            return Err(format!("`since` is {since}; it must be above 0s and at most {LONGEST}"));
        }
        let fields = self.set.iter().map(|set| set.fields.len()).sum::<usize>();
        let changes = fields + self.add.len() + self.remove.len() + self.moves.len();
        if changes > MOST_CHANGES {
            return Err(format!("{changes} changes are given; at most {MOST_CHANGES} are allowed"));
        }
        if let Some(set) = self.set.iter().find(|set| set.fields.is_empty()) {
            return Err(format!("`set` of `{}` has no parameter", set.name.escape_debug()));
        }
        let is_word = |text: &str| {
            let is_short = (1..=LONGEST_TEXT).contains(&text.len());
            is_short && !text.contains(|c: char| c.is_whitespace() || c.is_control())
        };
        match self.texts().into_iter().find(|text| !is_word(text)) {
            None => Ok(()),
            Some(text) => {
                let shown: String = text.chars().take(40).flat_map(char::escape_debug).collect();
                Err(format!("`{shown}` is not a word of 1 to {LONGEST_TEXT} bytes"))
            }
        }
    }

    /// Converts the slices, periods and phases of the question from the periods of reservations to
    /// the periods of recordings. They differ because the daemon enforces a long period as several
    /// shorter periods, and a recording has these shorter periods.
    ///
    /// `terms_of` returns the terms of the reservation with a name. Parameters that are invalid as
    /// a reservation are not converted. If the new period is shorter than the present slice, that
    /// slice is added to the question, so that the prediction refuses slice and period together.
    pub fn set_enforced_parts(&mut self, terms_of: impl Fn(&str) -> Option<Terms>) {
        let asked = self.clone();
        // Only the daemon's policy has phases.
        let policy = asked.policy.as_deref().and_then(|policy| policy.split(':').next());
        let has_phases = policy.is_none_or(|policy| policy == "edf");
        for SetParameters { name, fields } in &mut self.set {
            if !["slice", "period", "phase"].iter().any(|key| fields.contains_key(*key)) {
                continue;
            }
            let Some(part) = asked.enforced_part(name, &terms_of) else {
                // The recording has a shorter slice, which can fit into the new period. Policies
                // other than the daemon's may have no parameter `slice`.
                let slice = asked.too_long_slice(name, &terms_of).filter(|_| has_phases);
                if let Some(slice) = slice.map(|slice| FieldValue::Text(slice.to_string())) {
                    fields.entry("slice".to_owned()).or_insert(slice);
                }
                continue;
            };
            let (slice, period) = (part.each().slice(), part.each().period());
            let is_kept = !has_phases || fields.get("phase").is_some_and(|it| !is_length(it));
            let phase = part.phase().filter(|_| !is_kept);
            let set = [("slice", Some(slice)), ("period", Some(period)), ("phase", phase)];
            for (key, length) in set {
                let value = length.map(|length| FieldValue::Text(length.to_string()));
                fields.extend(value.map(|value| (key.to_owned(), value)));
            }
        }
    }

    /// Returns the terms that the daemon would enforce for the VM or vCPU `name` with the
    /// parameters of the question. In these terms a long period is divided into shorter periods.
    /// `None` if the daemon divides neither the requested nor the present period, or if no terms
    /// are known.
    fn enforced_part(&self, name: &str, terms_of: impl Fn(&str) -> Option<Terms>) -> Option<Terms> {
        let (terms, [slice, period, phase]) = self.set_lengths(name, terms_of)?;
        let slice = slice.unwrap_or(terms.each().slice());
        let period = period.unwrap_or(terms.each().period());
        let each = Reservation::new(slice, period).ok()?;
        let wanted = Terms::new(each, terms.exact(), terms.vcpus()).ok()?;
        let phase = phase.or(terms.phase()).map(|phase| phase % period);
        let part = wanted.with_phase(phase).ok()?.in_each_second();
        let is_divided = part.each() != each || terms.in_each_second().each() != terms.each();
        is_divided.then_some(part)
    }

    /// Returns the slice that the VM or vCPU `name` would have under the question, if this slice is
    /// longer than the period. `None` if the slice fits into the period, or if the daemon does not
    /// divide the present period.
    fn too_long_slice(&self, name: &str, terms_of: impl Fn(&str) -> Option<Terms>) -> Option<Span> {
        let (terms, [slice, period, _]) = self.set_lengths(name, terms_of)?;
        let slice = slice.unwrap_or(terms.each().slice());
        let period = period.unwrap_or(terms.each().period());
        let is_divided = terms.in_each_second().each() != terms.each();
        (is_divided && slice > period).then_some(slice)
    }

    /// Returns the present terms of the VM or vCPU `name`. Returns also the slice, period and phase
    /// that the question sets. `None` if no terms are known.
    fn set_lengths(
        &self,
        name: &str,
        terms_of: impl Fn(&str) -> Option<Terms>,
    ) -> Option<(Terms, [Option<Span>; 3])> {
        let of_vm = |vm: &str| {
            // An added VM has the terms of the VM that it copies.
            let copied = self.add.iter().rev().fold(vm, |vm, added| match added.name == vm {
                true => added.like.as_str(),
                false => vm,
            });
            terms_of(copied)
        };
        let vm_of_vcpu = name.rsplit_once('.').map(|(vm, _)| vm);
        let vm = vm_of_vcpu.filter(|_| of_vm(name).is_none()).unwrap_or(name);
        let terms = of_vm(vm)?;
        let length = |key: &str| {
            let of = |name: &str| {
                let mut sets = self.set.iter().rev().filter(|set| set.name == name);
                sets.find_map(|set| set.fields.get(key)?.written().parse::<Span>().ok())
            };
            of(name).or_else(|| of(vm))
        };
        Some((terms, ["slice", "period", "phase"].map(length)))
    }

    fn texts(&self) -> Vec<String> {
        let mut texts = self.remove.clone();
        texts.extend(self.policy.iter().chain(&self.cpus).cloned());
        texts.extend(self.add.iter().flat_map(|it| [it.name.clone(), it.like.clone()]));
        texts.extend(self.moves.iter().map(|it| it.name.clone()));
        for SetParameters { name, fields } in &self.set {
            texts.push(name.clone());
            texts.extend(fields.iter().flat_map(|(field, value)| [field.clone(), value.written()]));
        }
        texts
    }
}

/// Answer to a what-if question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhatIfAnswer {
    /// Prediction in the format of `slackline whatif --json`.
    #[serde(flatten)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub prediction: BTreeMap<String, Value>,
    /// Revision of the host when the recording ended: the number of the event that last changed a
    /// reservation.
    pub revision: u64,
    /// Time since the end of the recording, in nanoseconds. The daemon keeps a recording for 10 s
    /// for further questions of the caller. If a reservation changes or a question asks for a fresh
    /// recording, the daemon drops it earlier.
    pub age_ns: u64,
    /// Largest share that admission would accept now, for each VM that is named in `set` and has a
    /// reservation.
    pub largest: Vec<LargestShare>,
}

impl WhatIfAnswer {
    /// Returns the measured and predicted periods of the VMs. `None` if the question did not ask
    /// for periods, or if the daemon's version cannot predict periods.
    #[must_use]
    pub fn periods(&self) -> Option<RecordedPeriods> {
        serde_json::from_value(self.prediction.get("periods")?.clone()).ok()
    }
}

/// Largest share that admission would accept for a VM, if this share replaced its reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LargestShare {
    /// Name of the VM.
    pub name: String,
    /// Largest slice that admission would accept for each vCPU.
    pub slice: Length,
    /// The largest slice in nanoseconds.
    pub slice_ns: u64,
    /// Period for which the slice is computed: the period in the request or, without one, the
    /// period of the reservation.
    pub period: Length,
    /// The period in nanoseconds.
    pub period_ns: u64,
    /// Largest share of all vCPUs together, in millionths of a CPU.
    pub largest_ppm: u64,
    /// Reason for the limit, as a sentence.
    pub limit: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatif_request_of_web_page_is_parsed_with_default_values() {
        let text = r#"{"set":[{"name":"web","slice":"3ms","period":"10ms","exact":true}]}"#;
        let asked: WhatIf = serde_json::from_str(text).unwrap();
        assert_eq!(asked.since, Length(Span::from_secs(10)));
        assert_eq!(asked.set[0].fields.len(), 3);
        assert_eq!(asked.set[0].fields["exact"].written(), "true");
        assert_eq!(asked.check(), Ok(()));
        assert_eq!(serde_json::from_str::<WhatIf>("{}").unwrap(), WhatIf::default());
        assert!(serde_json::from_str::<WhatIf>(r#"{"sinse":"1s"}"#).is_err());
    }

    #[test]
    fn whatif_request_beyond_its_limits_is_refused() {
        let refused = |text: &str| serde_json::from_str::<WhatIf>(text).unwrap().check().is_err();
        assert!(refused(r#"{"since":"61s"}"#) && refused(r#"{"since":"0s"}"#));
        assert!(refused(r#"{"set":[{"name":"web"}]}"#));
        assert!(refused(r#"{"set":[{"name":"web","slice":"3ms period=1ms"}]}"#));
        assert!(refused(r#"{"remove":[""]}"#));
        let many = WhatIf { remove: vec!["a".into(); MOST_CHANGES + 1], ..WhatIf::default() };
        assert!(many.check().is_err());
    }
    #[test]
    fn whatif_prediction_divides_long_periods_as_the_daemon_does() {
        let terms_of = |name: &str| {
            let (slice, period, phase) = match name {
                "long" => (300, 1_000, None),
                "phased" => (300, 1_000, Some(250)),
                "short" => (2, 10, None),
                _ => return None,
            };
            let each = Reservation::new(Span::from_ms(slice), Span::from_ms(period)).ok()?;
            Terms::new(each, true, 1).ok()?.with_phase(phase.map(Span::from_ms)).ok()
        };
        let parts_under = |policy: Option<&str>, sets: &[(&str, &str, &str)]| {
            let set = sets.iter().map(|&(name, key, value)| SetParameters {
                name: name.to_owned(),
                fields: BTreeMap::from([(key.to_owned(), FieldValue::Text(value.to_owned()))]),
            });
            let add = [("copy", "long"), ("second", "copy")];
            let add = add.map(|(name, like)| AddedVm { name: name.into(), like: like.into() });
            let (set, add) = (set.collect(), Vec::from(add));
            let policy = policy.map(str::to_owned);
            let mut asked = WhatIf { set, add, policy, ..WhatIf::default() };
            asked.set_enforced_parts(terms_of);
            let fields = asked.set.pop().expect("the question sets a parameter").fields;
            let fields = fields.iter().map(|(key, value)| format!("{key} {}", value.written()));
            fields.collect::<Vec<String>>().join(", ")
        };
        let parts = |sets: &[(&str, &str, &str)]| parts_under(None, sets);
        let part = "period 100ms, slice 20ms";
        for name in ["long", "long.0", "copy", "second", "second.0"] {
            assert_eq!(parts(&[(name, "slice", "200ms")]), part);
        }
        assert_eq!(parts(&[("short", "slice", "3ms")]), "slice 3ms");
        assert_eq!(parts(&[("short", "period", "20ms")]), "period 20ms");
        let both = [("short", "slice", "100ms"), ("short", "period", "500ms")];
        assert_eq!(parts(&both), part);
        let of_vcpu = [("long", "period", "2s"), ("long.0", "slice", "400ms")];
        assert_eq!(parts(&of_vcpu), part);
        assert_eq!(parts(&[("phased", "slice", "200ms")]), "period 100ms, phase 50ms, slice 20ms");
        let slice = [("phased", "slice", "200ms")];
        assert_eq!(parts_under(Some("edf:place=pack"), &slice), parts(&slice));
        assert_eq!(parts_under(Some("sedf"), &slice), part, "the policy has no phases");
        let phase = parts(&[("phased", "phase", "720ms")]);
        assert_eq!(phase, "period 100ms, phase 20ms, slice 30ms");
        let phase = parts(&[("phased", "phase", "none")]);
        assert_eq!(phase, "period 100ms, phase none, slice 30ms");
        assert_eq!(parts(&[("long", "weight", "3")]), "weight 3");
        assert_eq!(parts(&[("long", "slice", "2s")]), "slice 2s");
        assert_eq!(parts(&[("other", "slice", "200ms")]), "slice 200ms");
    }

    /// The reservation has a slice of 300 ms in each second. The daemon enforces it, and records
    /// it, as a slice of 30 ms in each 100 ms.
    #[test]
    fn period_shorter_than_slice_is_predicted_with_undivided_slice() {
        let each = Reservation::new(Span::from_ms(300), Span::from_secs(1)).unwrap();
        let terms = Terms::new(each, true, 1).unwrap();
        let slice_under = |policy: Option<&str>, period: &str| {
            let text = format!(r#"{{"set":[{{"name":"long","period":"{period}"}}]}}"#);
            let mut asked: WhatIf = serde_json::from_str(&text).unwrap();
            asked.policy = policy.map(str::to_owned);
            asked.set_enforced_parts(|_| Some(terms));
            asked.set[0].fields.get("slice").map(FieldValue::written)
        };
        assert_eq!(slice_under(None, "200ms").as_deref(), Some("300ms"));
        assert_eq!(slice_under(None, "400ms").as_deref(), Some("75ms"));
        assert_eq!(slice_under(Some("gedf"), "200ms"), None, "it has no parameter `slice`");
    }
}
