//! Writes a model as a scenario. Long lists of jobs go into files next to the scenario.

use std::borrow::Cow;
use std::fmt::Write as _;

use slackline_demand::{Demand, VcpuDemand};
use slackline_policy::{Field, FieldError, Kind, Value, Values};
use slackline_scenario::{Scenario, ScenarioError};
use slackline_units::{CpuId, CpuSet, Span, Time};

use crate::form::Form;
use crate::model::{
    Competitor, Model, ModelChange, ModelChangeKind, ModelDomain, ModelVcpu, Share, vcpu_name,
    written,
};
use crate::{others, stays};

/// Slice of ordinary threads that Linux uses on hosts with two or three CPUs.
const FAIR_SLICE: Span = Span::from_us(1_400);
/// Maximum number of jobs that are written into the scenario itself. More jobs go to a file.
const FEW_JOBS: usize = 4;
/// Names of the levels of CPU groups in `[host]`, the narrowest first.
const LEVELS: [&str; 4] = ["cores", "caches", "nodes", "sockets"];

/// A scenario as text, and the files that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenScenario {
    /// Text of the scenario.
    pub text: String,
    /// Name and text of each file with jobs.
    pub files: Vec<(String, String)>,
}

/// Reason why a model cannot be written.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// The policy does not accept the parameters of a vCPU.
    Share { name: String, error: FieldError },
}

/// A job: the time in nanoseconds at which it is ready, and its work. If the work is `None`, the
/// job never ends.
type Job = (u64, Option<u64>);

impl WrittenScenario {
    /// Parses the written scenario.
    ///
    /// # Errors
    /// If a scenario cannot express the model, for example because of an invalid CPU.
    pub fn scenario(&self) -> Result<Scenario, ScenarioError> {
        Scenario::with_files(&self.text, &|path| {
            let file = self.files.iter().find(|(name, _)| name == path);
            file.map(|(_, text)| text.clone()).ok_or_else(|| "there is no such file".into())
        })
    }
}

impl Model {
    /// Writes the scenario of the model. The names of files with jobs begin with `stem`.
    pub(crate) fn write(
        &self,
        demand: &Demand,
        form: Form,
        stem: &str,
    ) -> Result<WrittenScenario, WriteError> {
        let mut out =
            Writer { model: self, demand, form, stem, text: self.head(form), files: vec![] };
        let labels = self.labels();
        for (domain, label) in self.domains.iter().zip(&labels) {
            out.domain(domain, label)?;
        }
        for competitor in &self.competitors {
            out.competitor(competitor);
        }
        for (cpu, jobs) in &demand.others.interference {
            out.interference(*cpu, jobs);
        }
        for (domain, label) in self.domains.iter().zip(&labels) {
            out.changes(domain, label)?;
        }
        Ok(WrittenScenario { text: out.text, files: out.files })
    }

    fn head(&self, form: Form) -> String {
        let mut text = String::from("# Written by `slackline whatif`: demand of a recording, ");
        text += match form {
            Form::Open => "open form.\n",
            Form::Closed => "closed form.\n",
        };
        let _ = writeln!(text, "title = {}", quoted(&self.title));
        let _ = writeln!(text, "length = \"{}\"", self.length);
        let _ = writeln!(text, "warmup = \"{}\"", self.warmup);
        let _ = writeln!(text, "seed = {}", self.seed);
        let fields = fields(&self.policy);
        let comma = if fields.is_empty() { "" } else { ", " };
        let _ = writeln!(text, "policy = {{ name = \"{}\"{comma}{fields} }}", self.spec.name);
        let _ = writeln!(text, "\n[host]\ncpus = {}", self.cpus);
        for (name, groups) in LEVELS.iter().zip(&self.groups) {
            let groups: Vec<String> = groups.iter().map(list).collect();
            if !groups.is_empty() {
                let _ = writeln!(text, "{name} = [{}]", groups.join(", "));
            }
        }
        let costs = &self.costs;
        let spans =
            [("switch", costs.switch), ("migrate", costs.migrate), ("ipi", costs.interrupt)];
        for (key, span) in spans.into_iter().filter(|(_, span)| !span.is_zero()) {
            let _ = writeln!(text, "{key} = \"{span}\"");
        }
        if let Some(lateness) = costs.lateness {
            let _ = writeln!(text, "timer_lateness = \"{lateness}\"");
        }
        if let Some((tick, phase)) = costs.fair {
            let fair = format!("slice = \"{FAIR_SLICE}\", tick = \"{tick}\", phase = \"{phase}\"");
            let _ = writeln!(text, "fair = {{ {fair} }}");
        }
        for (key, pass) in ["timer_pass", "wake_pass"].into_iter().zip(costs.passes) {
            let _ = pass.map(|pass| writeln!(text, "{key} = \"{pass}\""));
        }
        if let Some((period, cost)) = costs.tick {
            let _ = writeln!(text, "tick = \"{period}\"\ntick_cost = \"{cost}\"");
        }
        text
    }
}

struct Writer<'a> {
    model: &'a Model,
    demand: &'a Demand,
    form: Form,
    stem: &'a str,
    text: String,
    files: Vec<(String, String)>,
}

impl Writer<'_> {
    /// Writes a domain. `label` is its name in the scenario.
    fn domain(&mut self, domain: &ModelDomain, label: &str) -> Result<(), WriteError> {
        let _ = writeln!(self.text, "\n[[domain]]\nname = {}", quoted(label));
        if domain.vcpus.len() > 1 {
            let _ = writeln!(self.text, "vcpus = {}", domain.vcpus.len());
        }
        let (begin, length, least) = (self.model.begin, self.model.length, Span::from_ns(1));
        let joins = domain.joined.since(begin).min(length.left_after(least));
        if !joins.is_zero() {
            let _ = writeln!(self.text, "joins = \"{joins}\"");
        }
        let leaves = domain.left.map(|left| left.since(begin).max(joins + least));
        if let Some(leaves) = leaves.filter(|&leaves| leaves < length) {
            let _ = writeln!(self.text, "leaves = \"{leaves}\"");
        }
        if let Some(lateness) = domain.stop_lateness {
            let _ = writeln!(self.text, "stop_lateness = \"{lateness}\"");
        }
        if let Some(pass) = domain.wake_pass {
            let _ = writeln!(self.text, "wake_pass = \"{pass}\"");
        }
        let absent = others::share(self.model.spec);
        for (number, vcpu) in domain.vcpus.iter().enumerate() {
            if number > 0 {
                let _ = writeln!(self.text, "\n[[domain.vcpu]]\nnumber = {number}");
            }
            let full = vcpu_name(label, number, domain.vcpus.len());
            let work = self.work(&full, domain, vcpu);
            let _ = writeln!(self.text, "work = {work}");
            let share = absent.as_ref().filter(|_| vcpu.comes_later).unwrap_or(&vcpu.share);
            self.share((domain, number), share)?;
            let all = CpuSet::first_n(self.model.cpus);
            if let Some(cpus) = vcpu.cpus.or((number > 0).then_some(all)) {
                let _ = writeln!(self.text, "cpus = {}", list(&cpus));
            }
            if let Some(cpu) = vcpu.starts_on {
                let _ = writeln!(self.text, "starts_on = {}", cpu.index());
            }
        }
        Ok(())
    }

    /// Writes the parameters of vCPU `number` of a domain. No edit can change a reservation of the
    /// service or a VM without a prediction. If the policy refuses the parameters of such a domain,
    /// writes the parameters that other programs of the host have.
    fn share(
        &mut self,
        (domain, number): (&ModelDomain, usize),
        share: &Share,
    ) -> Result<(), WriteError> {
        let spec = self.model.spec;
        let read = |share: &Share| Values::read_written(spec.share_fields, &written(share));
        let mut values = read(share);
        if (domain.is_service || domain.left_out.is_some())
            && values.is_err()
            && let Some(share) = others::share(spec)
        {
            values = read(&share);
        }
        let name = || vcpu_name(&domain.name, number, domain.vcpus.len());
        let values = values.map_err(|error| WriteError::Share { name: name(), error })?;
        self.values(&values);
        Ok(())
    }

    fn values(&mut self, values: &Values) {
        let _ = writeln!(self.text, "share.{} = {{ {} }}", self.model.spec.name, fields(values));
    }

    fn work(&mut self, name: &str, domain: &ModelDomain, vcpu: &ModelVcpu) -> String {
        let demand = self.demand;
        let stays: Vec<&VcpuDemand> = vcpu.stays.iter().map(|&at| &demand.vcpus[at]).collect();
        let stay = match stays[..] {
            [only] if domain.left_out.is_none() => Cow::Borrowed(only),
            _ => Cow::Owned(stays::all_jobs(&stays)),
        };
        let end = self.model.begin + self.model.length;
        let mut jobs = jobs(&stay, self.form, vcpu.is_rotated, (domain.joined, end));
        let can_repeat = self.model.is_edited
            && self.form == Form::Closed
            && domain.left_out.is_none()
            && !vcpu.comes_later;
        let think = if can_repeat { stay.think_after_last(end) } else { None };
        let repeats = think.is_some();
        if let Some((think, &(first, _))) = think.zip(jobs.first()) {
            // In a repetition, the think time of the first job follows this think time. So it is
            // subtracted here.
            let first = if vcpu.is_rotated { think.ns() } else { first };
            jobs.push((think.ns().saturating_sub(first), Some(0)));
        }
        self.jobs(name, jobs, repeats)
    }

    /// Writes the ordinary programs of a CPU as a domain without a reservation.
    fn competitor(&mut self, competitor: &Competitor) {
        let spec = self.model.spec;
        let Some(share) = others::share(spec) else { return };
        let name = others::name(competitor);
        let (_, demand) = &self.demand.others.competitors[competitor.source];
        let Some(cpu) = self.model.place_of(competitor.cpu) else { return };
        let (begin, cpu) = (self.model.begin, cpu.index());
        let _ = writeln!(self.text, "\n[[domain]]\nname = {}", quoted(&name));
        let jobs = jobs(demand, self.form, false, (begin, begin + self.model.length));
        let work = self.jobs(&name, jobs, false);
        let _ = writeln!(self.text, "work = {work}\ncpus = [{cpu}]");
        let values = Values::read_written(spec.share_fields, &written(&share));
        self.values(&values.expect("the policy accepts these parameters"));
    }

    /// Writes, as interference on a CPU, the jobs of threads that have precedence over all vCPUs.
    fn interference(&mut self, cpu: CpuId, jobs: &[slackline_demand::Job]) {
        let Some(cpu) = self.model.place_of(cpu).filter(|_| !jobs.is_empty()) else { return };
        let file = format!("{}-interference-{}.csv", self.stem, cpu.index());
        let mut text = String::from("ready_ns,work_ns\n");
        for job in jobs {
            let ready = job.ready.since(self.model.begin).ns();
            let _ = writeln!(text, "{ready},{}", job.work.ns());
        }
        let cpu = cpu.index();
        let _ = writeln!(self.text, "\n[[interference]]\ncpu = {cpu}\nfile = {}", quoted(&file));
        self.files.push((file, text));
    }

    /// Writes the work of a vCPU. Long lists of jobs go to a file.
    fn jobs(&mut self, name: &str, jobs: Vec<Job>, repeats: bool) -> String {
        let repeats = if repeats { ", repeat = true" } else { "" };
        let (key, title) = match self.form {
            Form::Open => ("ready", "ready_ns,work_ns"),
            Form::Closed => ("think", "think_ns,work_ns"),
        };
        if jobs.len() <= FEW_JOBS {
            let span = |ns: u64| format!("\"{}\"", Span::from_ns(ns));
            let times: Vec<String> = jobs.iter().map(|&(time, _)| span(time)).collect();
            let works = jobs.iter().map(|&(_, work)| work.map_or("\"forever\"".into(), span));
            let (times, works) = (times.join(", "), works.collect::<Vec<String>>().join(", "));
            return format!("{{ kind = \"jobs\", {key} = [{times}], work = [{works}]{repeats} }}");
        }
        let file = format!("{}-{name}.csv", self.stem);
        let mut text = format!("{title}\n");
        for (time, work) in jobs {
            let _ = match work {
                Some(work) => writeln!(text, "{time},{work}"),
                None => writeln!(text, "{time},forever"),
            };
        }
        let work = format!("{{ kind = \"jobs\", file = {}{repeats} }}", quoted(&file));
        self.files.push((file, text));
        work
    }

    fn changes(&mut self, domain: &ModelDomain, label: &str) -> Result<(), WriteError> {
        let end = self.model.begin + self.model.length;
        let end = domain.left.map_or(end, |left| left.min(end));
        let all = CpuSet::first_n(self.model.cpus);
        for (number, vcpu) in domain.vcpus.iter().enumerate() {
            let name = vcpu_name(label, number, domain.vcpus.len());
            let within = |change: &&ModelChange| domain.joined < change.at && change.at < end;
            for change in vcpu.changes.iter().filter(within) {
                let at = change.at - self.model.begin;
                let _ = writeln!(self.text, "\n[[change]]\nat = \"{at}\"");
                let _ = writeln!(self.text, "domain = {}", quoted(&name));
                match &change.what {
                    ModelChangeKind::Paused(paused) => {
                        let _ = writeln!(self.text, "paused = {paused}");
                    }
                    ModelChangeKind::Terms { share, cpus } => {
                        self.share((domain, number), share)?;
                        let _ = writeln!(self.text, "cpus = {}", list(&cpus.unwrap_or(all)));
                    }
                    ModelChangeKind::Absent => {
                        if let Some(share) = others::share(self.model.spec) {
                            self.share((domain, number), &share)?;
                        }
                        let _ = writeln!(self.text, "paused = true");
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the jobs of a vCPU. In the open form their times are relative to the join of the VM. In
/// the closed form their times are think times. If the VM joins later than in the recording, the
/// jobs are adapted. In the open form, the last job that was ready before the join is ready at the
/// join, and earlier jobs are left out. In the closed form, the first think time is shortened by
/// the delay of the join.
fn jobs(stay: &VcpuDemand, form: Form, is_rotated: bool, (joined, end): (Time, Time)) -> Vec<Job> {
    let later = |ns: u64| {
        (ns + stay.joined.since(joined).ns()).saturating_sub(joined.since(stay.joined).ns())
    };
    let is_endless = stay.is_endless();
    let mut jobs: Vec<Job> = match form {
        Form::Open => stay.arrivals().map(|(at, work)| (at.ns(), Some(work.ns()))).collect(),
        Form::Closed => stay.thinking().map(|(at, work)| (at.ns(), Some(work.ns()))).collect(),
    };
    if is_endless {
        if let Some(last) = jobs.last_mut() {
            last.1 = None;
        }
    } else if is_rotated {
        rotate(&mut jobs, form, end.since(stay.joined));
    }
    match form {
        Form::Open => {
            let before = joined.since(stay.joined).ns();
            let earlier = jobs.partition_point(|job| job.0 < before);
            jobs.drain(..earlier.saturating_sub(1));
            jobs.iter_mut().for_each(|job| job.0 = later(job.0));
        }
        Form::Closed => jobs.iter_mut().take(1).for_each(|job| job.0 = later(job.0)),
    }
    jobs
}

/// Makes the jobs of a copied vCPU begin at another position in the recording, which is chosen by
/// the golden section. So the delay between copy and original is not a multiple of a period. The
/// jobs stay in order even if the last job becomes ready after `length`.
fn rotate(jobs: &mut [Job], form: Form, length: Span) {
    let place = jobs.len() * 382 / 1000;
    if place == 0 {
        return;
    }
    if let Form::Open = form {
        let last = jobs.last().map_or(0, |last| last.0);
        let (first, length) = (jobs[place].0, length.ns().max(last));
        for (index, job) in jobs.iter_mut().enumerate() {
            job.0 =
                if index >= place { job.0 - first } else { job.0 + length.saturating_sub(first) };
        }
    }
    jobs.rotate_left(place);
}

/// Writes parameters that differ from their defaults as a TOML table without its braces.
fn fields(values: &Values) -> String {
    let one = |(field, value): (&'static Field, Value)| {
        let value = value.to_string();
        let is_default = field.default == Some(value.as_str());
        (!is_default).then(|| match field.kind {
            Kind::Flag | Kind::Weight | Kind::Whole { .. } => format!("{} = {value}", field.name),
            _ => format!("{} = \"{value}\"", field.name),
        })
    };
    let all: Vec<String> = values.iter().filter_map(one).collect();
    all.join(", ")
}

/// Writes a set of CPUs as a TOML array.
fn list(cpus: &CpuSet) -> String {
    let cpus: Vec<String> = cpus.iter().map(|cpu| cpu.index().to_string()).collect();
    format!("[{}]", cpus.join(", "))
}

/// Writes a TOML string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push(' '),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The recording lasts 1,000 ns, and the last of the four jobs becomes ready at 1,050 ns. The
    /// copied vCPU begins with the second job.
    #[test]
    fn copied_jobs_stay_sorted_if_last_job_arrives_after_recording() {
        let mut jobs: Vec<Job> = [0, 300, 600, 1_050].map(|ready| (ready, Some(10))).to_vec();
        rotate(&mut jobs, Form::Open, Span::from_ns(1_000));
        let ready: Vec<u64> = jobs.iter().map(|job| job.0).collect();
        assert_eq!(ready, [0, 300, 750, 750]);
    }
}
