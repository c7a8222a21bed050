//! CPU series: the mean use of VMs in intervals of five minutes.

mod azure;
mod bitbrains;
mod planetlab;

use std::fmt::Write as _;

use crate::bursts::Bursts;
use crate::error::WorkloadError;
use crate::names::Names;
use crate::write::{WrittenScenario, counted, head, jobs_file, quoted};
use crate::{BurstModel, Kind, Options, SourceFile};

/// Millionths of a CPU in a CPU.
pub(crate) const CPU: u64 = 1_000_000;
/// Length of an interval of all known series, in seconds.
const INTERVAL: u64 = 300;
/// Maximum distance in seconds between a reading and the start of its interval. A reading that is
/// further away is counted as repaired.
const FAR: u64 = 60;
/// Maximum number of VMs in a scenario.
const MOST_VMS: usize = 1_000;
/// Maximum number of jobs in a scenario. A job is about 20 bytes of a file.
const MOST_JOBS: u64 = 5_000_000;
/// Maximum number of CPUs of a simulated host.
const MOST_CPUS: u64 = 256;
/// Maximum number of intervals of a series: ten years.
const MOST_INTERVALS: u64 = 10 * 366 * 288;

/// Maximum number of intervals of all series together: 1,000 VMs in a month, and a little more.
const MOST_SLOTS: u64 = 10_000_000;

/// One reading of a series.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Line of the file, counted from 1.
    pub(crate) line: u64,
    /// Time in seconds since an arbitrary start.
    pub(crate) at: u64,
    /// Number of cores. Zero if the file says so.
    pub(crate) cores: u64,
    /// Use in millionths of the capacity of all cores.
    pub(crate) ppm: u64,
}

/// Readings of one VM, as a file contains them.
#[derive(Debug)]
pub(crate) struct Readings {
    /// Name of the VM in the file. If the file does not name the VM, the name of the file.
    pub(crate) vm: String,
    pub(crate) readings: Vec<Reading>,
}

/// Use of one VM in intervals of equal length without gaps.
#[derive(Debug)]
struct Series {
    name: String,
    cores: u64,
    /// Use of each interval in millionths of the capacity of all cores.
    uses: Vec<u64>,
}

/// Number of repairs of each kind, for all series together.
#[derive(Debug, Default)]
struct Repairs {
    /// Time of the earliest reading of any VM, in seconds.
    start: u64,
    /// Number of VMs whose first reading is at least an interval later than the earliest reading of
    /// any VM.
    late: usize,
    /// Number of readings that are more than [`FAR`] seconds away from the start of their interval.
    off: usize,
    /// Number of readings above the capacity.
    above: usize,
    /// Number of intervals without a reading, after the first reading of their VM.
    missing: usize,
    /// Number of readings that are replaced by a later reading in the same interval.
    doubled: usize,
    /// Number of readings with 0 cores.
    coreless: usize,
    /// Number of readings that have fewer cores than another reading of the same VM. Readings with
    /// 0 cores are not counted.
    changed: usize,
}

pub(crate) fn convert(
    kind: Kind,
    files: &[SourceFile<'_>],
    options: &Options,
    stem: &str,
) -> Result<WrittenScenario, WorkloadError> {
    let mut assumptions = assumed(kind, options);
    let mut read = Vec::new();
    for file in files {
        let readings = match kind {
            Kind::Azure => azure::read(file, options.cores)?,
            Kind::PlanetLab => vec![planetlab::read(file, options.cores)?],
            _ => vec![bitbrains::read(file, &mut assumptions)?],
        };
        read.extend(readings.into_iter().map(|one| (file.name, one)));
    }
    // All VMs share one time axis. A VM whose readings begin later is idle until then.
    let first = read.iter().filter_map(|(_, one)| Some(one.readings.first()?.at)).min();
    let mut repairs = Repairs { start: first.unwrap_or_default(), ..Repairs::default() };
    check_size(&read, repairs.start)?;
    let mut names = Names::default();
    let apply = |(file, one)| repairs.apply(file, &mut names, &one);
    let mut all = read.into_iter().map(apply).collect::<Result<Vec<_>, _>>()?;
    let length = cut(&mut all, options)?;
    assumptions.extend(repairs.sentences());
    check_jobs(&all, length, options)?;
    let cpus = cpus(&all, length, options)?;
    if options.cpus.is_none() {
        let cpus = usize::try_from(cpus).unwrap_or(usize::MAX);
        let cpus = counted(cpus, "CPU");
        assumptions.push(format!("the host has {cpus}, as many as the largest total use needs"));
    }
    let title = format!("{} of {} series", counted(all.len(), "VM"), kind.name());
    let span = options.interval * length as u64;
    let mut text = head(kind.name(), (&title, span, "{ name = \"credit\" }"), &assumptions);
    let _ = writeln!(text, "\n[host]\ncpus = {cpus}");
    let (domains, files) = domains(&all, options, stem);
    let axis = match options.bursts.len() {
        0 | 1 => String::new(),
        _ => axis(&all, &options.bursts, stem),
    };
    Ok(WrittenScenario { text: text + &domains, axis, files, assumptions })
}

/// Checks the number of VMs and of their intervals. A VM has intervals for all time up to its last
/// reading, even if it has few readings.
fn check_size(read: &[(&str, Readings)], start: u64) -> Result<(), WorkloadError> {
    let (vms, hint) = (read.len(), "split the file");
    if vms > MOST_VMS {
        let why = format!("cannot convert {vms} VMs: a scenario of series has at most {MOST_VMS}");
        return Err(WorkloadError::Options { why, hint });
    }
    let last = read.iter().filter_map(|(_, one)| one.readings.iter().map(|it| it.at).max());
    let slots = last.map(|last| ((last - start) / INTERVAL + 1).min(MOST_INTERVALS)).sum::<u64>();
    if slots > MOST_SLOTS {
        let why = format!(
            "cannot convert {slots} intervals of {vms} VMs: at most {MOST_SLOTS} are possible"
        );
        return Err(WorkloadError::Options { why, hint });
    }
    Ok(())
}

fn assumed(kind: Kind, options: &Options) -> Vec<String> {
    let mut all = Vec::new();
    let models: Vec<&str> = options.bursts.iter().map(|model| model.name()).collect();
    // A burst is at most as long as an interval.
    let (interval, burst) = (options.interval, options.burst.min(options.interval));
    all.push(format!("each interval of 300 s is simulated as {interval} with the same mean use"));
    let models = models.join(", or ");
    all.push(format!(
        "bursts follow the model {models}: a mean of 300 s does not say when a VM was runnable"
    ));
    if options.bursts.iter().any(|model| *model != BurstModel::Block) {
        all.push(format!(
            "jobs of `even` are {burst} apart, jobs of `random` have a mean length of {burst}"
        ));
    }
    all.push("the vCPUs of a VM are equally busy at the same times".to_owned());
    let percent = match kind {
        Kind::Azure => "100 % is all cores of a VM, and `avg cpu` is the use of the VM",
        Kind::PlanetLab => "100 % is all cores of a VM",
        _ => "100 % in `CPU usage [%]` is all cores of a VM",
    };
    all.push(percent.to_owned());
    if kind != Kind::Bitbrains {
        let cores = usize::from(options.cores);
        all.push(format!(
            "each VM has {}, because the file does not state the number of cores",
            counted(cores, "core")
        ));
    }
    all
}

impl Repairs {
    /// Puts readings into intervals without gaps.
    fn apply(
        &mut self,
        file: &str,
        names: &mut Names,
        of: &Readings,
    ) -> Result<Series, WorkloadError> {
        let Some(first) = of.readings.first() else {
            return Err(WorkloadError::file(file, "the file has no readings"));
        };
        let cores = of.readings.iter().map(|it| it.cores).max().unwrap_or_default();
        if cores == 0 || cores > MOST_CPUS {
            let why = format!("VM `{}` has {cores} cores; 1 to {MOST_CPUS} are possible", of.vm);
            return Err(WorkloadError::line(file, first.line, why));
        }
        let mut uses: Vec<Option<u64>> = Vec::new();
        let mut last = first.at;
        for reading in &of.readings {
            if reading.at < last {
                let why =
                    format!("time {} comes after {last}; times must not decrease", reading.at);
                return Err(
                    WorkloadError::line(file, reading.line, why).advise("sort the file by time")
                );
            }
            last = reading.at;
            let since = reading.at - self.start;
            let slot = (since + INTERVAL / 2) / INTERVAL;
            self.off += usize::from(since.abs_diff(slot * INTERVAL) > FAR);
            if slot >= MOST_INTERVALS {
                let why = format!(
                    "the reading is {slot} intervals after the first reading of all VMs; at most \
                     {MOST_INTERVALS} intervals are possible"
                );
                return Err(WorkloadError::line(file, reading.line, why));
            }
            let slot = usize::try_from(slot).unwrap_or(usize::MAX);
            self.coreless += usize::from(reading.cores == 0);
            self.changed += usize::from(reading.cores != 0 && reading.cores != cores);
            self.above += usize::from(reading.ppm > CPU);
            if slot >= uses.len() {
                uses.resize(slot + 1, None);
            }
            self.doubled += usize::from(uses[slot].is_some());
            uses[slot] = Some(scaled(reading, cores));
        }
        self.late += usize::from(first.at >= self.start + INTERVAL);
        let own = uses.iter().skip_while(|it| it.is_none());
        self.missing += own.filter(|it| it.is_none()).count();
        let uses = uses.into_iter().map(Option::unwrap_or_default).collect();
        Ok(Series { name: names.make(&of.vm), cores, uses })
    }

    fn sentences(&self) -> Vec<String> {
        let say = |count: usize, noun: &str, text: &str| {
            let verb = if count == 1 { "is" } else { "are" };
            (count > 0).then(|| format!("{} {}", counted(count, noun), text.replace("BE", verb)))
        };
        [
            say(self.above, "reading", "above the capacity BE taken as the capacity"),
            say(self.missing, "interval", "without a reading BE taken as idle"),
            say(self.late, "VM", "without a reading at the start BE idle until the first reading"),
            say(self.off, "reading", "BE more than a minute away from the start of an interval"),
            say(self.doubled, "reading", "BE replaced by a later reading of the same interval"),
            say(self.coreless, "reading", "with 0 cores BE taken as idle"),
            say(self.changed, "reading", "with fewer cores BE scaled to the VM's most cores"),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Returns the use of a reading in millionths of the capacity of `cores` cores.
fn scaled(reading: &Reading, cores: u64) -> u64 {
    reading.ppm.min(CPU) * reading.cores / cores
}

/// Reduces all series to the requested intervals. Returns the number of intervals of the longest
/// series.
fn cut(all: &mut [Series], options: &Options) -> Result<usize, WorkloadError> {
    let longest = all.iter().map(|it| it.uses.len()).max().unwrap_or_default();
    let Some((first, last)) = options.part else { return Ok(longest) };
    if first > last || last >= longest {
        let why = format!(
            "cannot take the intervals {first} to {last}: the series have {longest} intervals, \
             numbered from 0"
        );
        return Err(WorkloadError::Options {
            why,
            hint: "count intervals from 0: --intervals 0-287",
        });
    }
    for series in &mut *all {
        series.uses = series.uses.iter().skip(first).take(last - first + 1).copied().collect();
    }
    Ok(all.iter().map(|it| it.uses.len()).max().unwrap_or_default())
}

fn check_jobs(all: &[Series], length: usize, options: &Options) -> Result<(), WorkloadError> {
    let each = Bursts::most_jobs(options.interval, options.burst);
    let models = options.bursts.len() as u64;
    let jobs = (length as u64)
        .saturating_mul(all.len() as u64)
        .saturating_mul(each)
        .saturating_mul(models);
    if jobs <= MOST_JOBS {
        return Ok(());
    }
    let why = format!("cannot write about {jobs} jobs: at most {MOST_JOBS} are possible");
    Err(WorkloadError::Options { why, hint: "take some of the intervals: --intervals 0-287" })
}

/// Returns the number of CPUs of the host. It is the number that the largest total use needs, or
/// the number of cores of the largest VM if that is larger.
fn cpus(all: &[Series], length: usize, options: &Options) -> Result<u64, WorkloadError> {
    if let Some(cpus) = options.cpus {
        return Ok(u64::from(cpus));
    }
    let total = |slot: usize| -> u64 {
        all.iter().map(|it| it.uses.get(slot).copied().unwrap_or_default() * it.cores).sum()
    };
    let most = (0..length).map(total).max().unwrap_or_default().div_ceil(CPU);
    let largest = all.iter().map(|it| it.cores).max().unwrap_or_default();
    let cpus = most.max(largest).max(1);
    if cpus > MOST_CPUS {
        let why = format!("the VMs use {cpus} CPUs at once; a host has at most {MOST_CPUS}");
        return Err(WorkloadError::Options { why, hint: "choose a smaller host with --cpus 256" });
    }
    Ok(cpus)
}

/// Returns the tables of all VMs, and the files of their jobs.
fn domains(all: &[Series], options: &Options, stem: &str) -> (String, Vec<(String, String)>) {
    let (mut text, mut files) = (String::new(), Vec::new());
    for (number, series) in (0..).zip(all) {
        for &model in &options.bursts {
            let spans = (options.interval, options.burst);
            let mut bursts = Bursts::new(model, spans, (number, options.seed));
            let mut jobs = Vec::new();
            for &ppm in &series.uses {
                bursts.extend(ppm, &mut jobs);
            }
            files.push((file_name(stem, series, model), jobs_file(&jobs)));
        }
        let _ = writeln!(text, "\n[[domain]]\nname  = {}", quoted(&series.name));
        if series.cores > 1 {
            let _ = writeln!(text, "vcpus = {}", series.cores);
        }
        let file = file_name(stem, series, options.bursts[0]);
        let _ = writeln!(text, "work  = {{ kind = \"jobs\", file = {} }}", quoted(&file));
        text.push_str("share.credit = { weight = 256 }\nshare.fair   = {}\n");
    }
    (text, files)
}

fn file_name(stem: &str, series: &Series, model: BurstModel) -> String {
    format!("{stem}-{}-{}.jobs", series.name, model.name())
}

/// Returns an `[[axis]]` of a scenario with a point for each burst model.
fn axis(all: &[Series], models: &[BurstModel], stem: &str) -> String {
    let mut text = String::from("\n[[axis]]\nname = \"bursts\"\n");
    for &model in models {
        let _ = writeln!(text, "\n[[axis.point]]\nname = \"{}\"\n[axis.point.set]", model.name());
        for series in all {
            let file = quoted(&file_name(stem, series, model));
            let _ = writeln!(text, "\"domain.{}.work.file\" = {file}", series.name);
        }
    }
    text
}

/// Reads the next line of a CSV file into `record`. Returns the number of the line, or `None` at
/// the end of the file.
fn next_line(
    file: &SourceFile<'_>,
    lines: &mut csv::Reader<&[u8]>,
    record: &mut csv::StringRecord,
) -> Result<Option<u64>, WorkloadError> {
    let line = lines.position().line();
    let found = lines.read_record(record);
    let found = found.map_err(|error| WorkloadError::line(file.name, line, error.to_string()))?;
    Ok(found.then(|| record.position().map_or(line, csv::Position::line)))
}

/// Returns a text from a file in a form that fits into a message.
fn shown(text: &str) -> String {
    let short: String =
        text.chars().take(40).map(|c| if c.is_control() { '?' } else { c }).collect();
    if short.len() < text.len() { format!("{short}...") } else { short }
}
