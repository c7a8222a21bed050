//! Reading of a scenario from TOML, except for its domains.

use std::collections::BTreeMap;

use slackline_policy::Values;
use slackline_units::{CpuId, Span};
use toml::de::DeTable;

use crate::error::{ErrorKind, ScenarioError};
use crate::kinds::jobs;
use crate::names::Names;
use crate::parameters::ShareOwner;
use crate::run::{Load, RunContext};
use crate::table::{Item, Mistake, Source, Table, printable, shown};
use crate::{Change, Claim, Domain, Hold, Interference, PolicyChoice, Scenario};
use crate::{domain, host, io, keys, parameters, terms};

pub(crate) fn read(text: &str, load: Load<'_>) -> Result<Scenario, ScenarioError> {
    let source = Source::new(text);
    let scenario = scenario(&source, load).map_err(|fault| source.error(fault))?;
    let spec = scenario.policy.spec;
    scenario.check_shares(spec)?;
    Ok(scenario)
}

fn scenario(source: &Source<'_>, load: Load<'_>) -> Result<Scenario, Mistake> {
    let document = DeTable::parse(source.text).map_err(|error| syntax(source, &error))?;
    let root = Table::root(source, document.get_ref()).taught(&keys::SCENARIO)?;
    let title = root.need("title", "title = \"two web servers\"")?.text()?;
    let title: String = title.chars().map(printable).collect();
    let length = root.need("length", "length = \"30s\"")?.some_span()?;
    let warmup = root.maybe("warmup", |item| warmup(item, length))?.unwrap_or(Span::ZERO);
    let seed = root.maybe("seed", |item| item.number(0..=u64::MAX))?.unwrap_or(1);
    let policy = policy(root.need("policy", "policy = { name = \"edf\" }")?)?;
    let policies = root.maybe("policies", |item| policies(item, &policy))?.unwrap_or_default();
    let host = host::read(root.maybe("host", |item| item.table("`host`"))?)?;
    let has_driver = root.get("driver").is_some();
    let driver = root.get("driver").and_then(|item| item.table("`driver`").ok()?.get("domain"));
    let driver = driver.and_then(|item| item.text().ok());
    let run = RunContext { source, load, length, cpus: host.cpus, has_driver, driver };
    let (domains, names) = domain::read(&run, &root.each("domain", "a domain")?)?;
    let io = io::read(&root, &domains, &names, host.cpus)?;
    let mut interference = Vec::new();
    for table in root.each("interference", "a CPU that is taken")? {
        let cpu = table.need("cpu", "cpu = 0")?.number(0..=host.cpus as u64 - 1)?;
        let cpu = CpuId::new(usize::try_from(cpu).expect("a number of a CPU"));
        interference.push(Interference { cpu, jobs: jobs::ready(&run, &table)? });
    }
    let mut changes = Vec::new();
    for table in root.each("change", "a change")? {
        changes.push(change(&run, table, &domains, &names)?);
    }
    changes.sort_by_key(|change| change.at);
    let mut claims = Vec::new();
    for table in root.each("claim", "a claim")? {
        claims.push(Claim::read(source, table, &domains, &names)?);
    }
    let text = source.text.to_owned();
    let scenario = Scenario {
        title,
        text,
        length,
        warmup,
        seed,
        policy,
        host,
        domains,
        io,
        interference,
        changes,
        claims,
        policies,
    };
    Ok(scenario)
}

fn syntax(source: &Source<'_>, error: &toml::de::Error) -> Mistake {
    let span = error.span().unwrap_or(0..0);
    let before = source.text.get(..span.start).unwrap_or("");
    let is_value = before.trim_end().ends_with('=') && !span.is_empty();
    let unquoted = is_value.then(|| source.excerpt(span.clone()));
    // If the value contains a quote or a bracket, its fault is not missing quotes.
    let unquoted = unquoted.filter(|text| !text.contains(['"', '\'', '[', '{']));
    Mistake::new(span.start, ErrorKind::Syntax { message: shown(error.message()), unquoted })
}

fn warmup(item: Item<'_>, length: Span) -> Result<Span, Mistake> {
    let warmup = item.span()?;
    if warmup >= length {
        return Err(item.fault(ErrorKind::WarmupTooLong { warmup, length }));
    }
    Ok(warmup)
}

fn policy(item: Item<'_>) -> Result<PolicyChoice, Mistake> {
    let example = "a table, as in { name = \"edf\" }";
    let table = item.table("`policy`").map_err(|_| item.wrong_type(example))?;
    let name = table.need("name", "policy = { name = \"edf\" }")?;
    let spec = parameters::policy(name.text()?, name.at())?;
    Ok(PolicyChoice { spec, values: parameters::of_policy(spec, &table)? })
}

fn policies(
    item: Item<'_>,
    chosen: &PolicyChoice,
) -> Result<BTreeMap<&'static str, Values>, Mistake> {
    let mut policies = BTreeMap::new();
    for item in item.table("`policies`")?.items() {
        let spec = parameters::policy(item.key, item.key_at)?;
        if spec.name == chosen.spec.name {
            return Err(Mistake::new(item.key_at, ErrorKind::PolicyTwice { spec }));
        }
        policies.insert(spec.name, parameters::of_policy(spec, &item.table("`policies`")?)?);
    }
    Ok(policies)
}

fn change(
    run: &RunContext<'_>,
    table: Table<'_>,
    domains: &[Domain],
    names: &Names,
) -> Result<Change, Mistake> {
    let table = table.taught(&keys::CHANGE)?;
    let at = table.need("at", "at = \"5s\"")?;
    let whose = table.need("domain", "domain = \"web\"")?;
    let (domain, vcpu) = names.find(whose.text()?, domains, &whose)?;
    let (joins, leaves) = (domains[domain].joins, domains[domain].leaves);
    let time = run.time(&at)?;
    let written = at.written();
    if time <= joins {
        return Err(at.fault(ErrorKind::BeforeJoining { written, joins }));
    }
    if let Some(leaves) = leaves.filter(|&leaves| leaves <= time) {
        return Err(at.fault(ErrorKind::AfterLeaving { written, leaves }));
    }
    let vcpus = domains[domain].vcpus.len();
    let whose = vcpu.map_or(ShareOwner::Domain(vcpus), |_| ShareOwner::Vcpu(vcpus));
    let shares = parameters::shares(&table, whose)?;
    let cpus = table.maybe("cpus", |item| terms::cpus(&item, run.cpus))?;
    let hold = table.maybe("paused", |item| item.flag())?;
    let hold = hold.map(|paused| if paused { Hold::Pause } else { Hold::Release });
    if shares.is_empty() && cpus.is_none() && hold.is_none() {
        return Err(Mistake::new(table.at, ErrorKind::EmptyChange));
    }
    let (line, _) = run.source.position(table.at);
    Ok(Change { at: time, domain, vcpu, cpus, hold, line, shares })
}
