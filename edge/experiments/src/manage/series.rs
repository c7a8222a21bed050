//! Series of demand: one number per VM and round, from which a scenario is made.

use std::fmt::Write as _;

use slackline_scenario::{Purpose, Scenario, ScenarioError, Stream};
use slackline_units::{CpuShare, Span};
use thiserror::Error;

/// Period of a VM whose column heading states no period.
const USUAL_PERIOD: Span = Span::from_ms(10);

/// Share of each VM in the first round, in millionths of the demand of that round.
const FIRST_SHARE: u64 = 1_200_000;

/// Smallest demand for which the share of a VM in the first round is computed, in millionths of a
/// CPU.
const LEAST_DEMAND: u64 = 10_000;

/// Largest sum of the shares in the first round, in millionths of a CPU. With the batch VM, which
/// has 1 %, this is what admission accepts.
const FIRST_SUM: u64 = 940_000;

/// Name of the VM that uses all slack.
pub const BATCH: &str = "batch";

/// Demand of some VMs over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Title in one line.
    pub title: String,
    /// Names and periods of the VMs.
    pub vms: Vec<(String, Span)>,
    /// Demand of each VM in each round, in millionths of a CPU.
    pub rounds: Vec<Vec<u32>>,
}

/// Reason why a text is not a series.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SeriesError {
    /// A line has more or fewer fields than there are VMs.
    #[error("cannot read line {line}: it has {is} numbers, and there are {vms} VMs")]
    Fields {
        /// Number of the line.
        line: usize,
        /// Number of fields of the line.
        is: usize,
        /// Number of VMs in the column headings.
        vms: usize,
    },
    /// A number is not a percentage.
    #[error("cannot read line {line}: `{written}` is not a percentage from 0 to 100")]
    Number {
        /// Number of the line.
        line: usize,
        /// Field as the file states it.
        written: String,
    },
    /// A column heading is neither a name nor a name with a period.
    #[error("cannot read the titles: `{written}` is not like `web` or `web@20ms`")]
    Title {
        /// Column heading as the file states it.
        written: String,
    },
    /// Two VMs have the same name.
    #[error("cannot read line {line}: there are two VMs called `{name}`")]
    EqualNames {
        /// Number of the line.
        line: usize,
        /// Name of both VMs.
        name: String,
    },
    /// The series has no VM or no round.
    #[error("cannot read a series that has no VM or no round")]
    Empty,
}

impl Series {
    /// Reads a series. The first line that is not a comment has the names of the VMs. Each further
    /// line has the demand of one round, in percent of a CPU.
    ///
    /// # Errors
    /// If a line is not valid. The first such line is reported.
    pub fn read(text: &str) -> Result<Series, SeriesError> {
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let (mut title, mut vms) = (String::new(), Vec::new());
        let mut rounds = Vec::new();
        for (index, line) in lines.by_ref() {
            if let Some(comment) = line.strip_prefix('#') {
                title = if title.is_empty() { comment.trim().to_owned() } else { title };
                continue;
            }
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            if vms.is_empty() {
                vms = fields.iter().map(|field| name(field)).collect::<Result<Vec<_>, _>>()?;
                if let Some(name) = equal_name(&vms) {
                    return Err(SeriesError::EqualNames { line: index + 1, name: name.to_owned() });
                }
                continue;
            }
            if fields.len() != vms.len() {
                let (line, is, vms) = (index + 1, fields.len(), vms.len());
                return Err(SeriesError::Fields { line, is, vms });
            }
            let number = |field: &&str| {
                let share: Option<f64> = field.parse().ok();
                let share = share.filter(|share| (0.0..=100.0).contains(share));
                let wrong = SeriesError::Number { line: index + 1, written: (*field).into() };
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // In range.
                share.map(|share| (share * 10_000.0).round() as u32).ok_or(wrong)
            };
            rounds.push(fields.iter().map(number).collect::<Result<_, _>>()?);
        }
        let is_empty = vms.is_empty() || rounds.is_empty();
        if is_empty { Err(SeriesError::Empty) } else { Ok(Series { title, vms, rounds }) }
    }

    /// Writes the series in the form that [`Series::read`] reads.
    #[must_use]
    pub fn write(&self) -> String {
        let mut text = format!("# {}\n", self.title);
        let titles = self.vms.iter().map(|(name, period)| match *period {
            USUAL_PERIOD => name.clone(),
            period => format!("{name}@{period}"),
        });
        let _ = writeln!(text, "{}", titles.collect::<Vec<String>>().join(","));
        for round in &self.rounds {
            let fields = round.iter().map(|ppm| format!("{}.{}", ppm / 10_000, ppm / 1_000 % 10));
            let _ = writeln!(text, "{}", fields.collect::<Vec<String>>().join(","));
        }
        text
    }

    /// Makes a scenario. Each VM has one job in each period of the VM. The work of the job is the
    /// demand of the round, varied by up to `noise_ppm` millionths. A batch VM uses all slack. If
    /// `is_limited` is true, each share is a hard limit. Each VM begins with 1.2 times the demand
    /// of its first round. If the sum is more than 94 %, all shares are smaller by the same factor.
    ///
    /// # Errors
    /// If a name is not valid, or if the policy does not accept a period.
    pub fn scenario(&self, made: &SeriesRun) -> Result<Scenario, ScenarioError> {
        let mut text = format!("title = {:?}\n", self.title);
        let _ = writeln!(text, "length = \"{}\"", made.round * self.rounds.len() as u64);
        let _ = writeln!(text, "seed = {}", made.seed);
        let _ = writeln!(text, "policy = {{ name = {:?} }}", made.policy);
        let mut files = Vec::new();
        let first_shares = self.first_shares();
        for (index, (name, period)) in self.vms.iter().enumerate() {
            let slice = *period * first_shares[index] / 1_000_000;
            let limited = made.is_limited;
            let cap = slice.ns() * 1_000_000 / period.ns();
            let cap = CpuShare::from_ppm(u32::try_from(cap).unwrap_or(u32::MAX));
            let cap = if limited { cap.to_string() } else { "none".into() };
            let _ = writeln!(
                text,
                "[[domain]]\nname = {name:?}\nwork = {{ kind = \"jobs\", file = \"{name}.csv\" }}\n\
                 share.edf = {{ slice = \"{slice}\", period = \"{period}\", phase = \"0ms\", \
                 exact = {limited} }}\n\
                 share.sedf = {{ slice = \"{slice}\", period = \"{period}\", extra = {} }}\n\
                 share.credit = {{ weight = 256, cap = {cap:?} }}",
                !limited
            );
            files.push((format!("{name}.csv"), self.jobs(index, made)));
        }
        let _ = writeln!(
            text,
            "[[domain]]\nname = {BATCH:?}\nwork = {{ kind = \"spin\" }}\n\
             share.edf = {{ slice = \"100us\", period = \"10ms\" }}\n\
             share.sedf = {{ slice = \"100us\", period = \"10ms\" }}\n\
             share.credit = {{ weight = 64 }}"
        );
        Scenario::with_files(&text, &|path| {
            let file = files.iter().find(|(name, _)| name == path);
            file.map(|(_, text)| text.clone()).ok_or_else(|| "there is no such file".into())
        })
    }

    /// Returns the share of each VM in the first round, in millionths of a CPU.
    fn first_shares(&self) -> Vec<u64> {
        let share = |ppm: &u32| u64::from(*ppm).max(LEAST_DEMAND) * FIRST_SHARE / 1_000_000;
        let wanted: Vec<u64> = self.rounds[0].iter().map(share).collect();
        let sum = wanted.iter().sum::<u64>().max(FIRST_SUM);
        wanted.iter().map(|share| share * FIRST_SUM / sum).collect()
    }

    fn jobs(&self, vm: usize, made: &SeriesRun) -> String {
        let period = self.vms[vm].1;
        let mut stream = Stream::new(made.seed, vm as u64, Purpose::Work);
        let mut text = String::from("ready_ns,work_ns\n");
        let end = made.round * self.rounds.len() as u64;
        for nth in 0..end / period {
            let ready = period * nth;
            let round = usize::try_from(ready / made.round).expect("a round has an index");
            let work = period * u64::from(self.rounds[round][vm]) / 1_000_000;
            let work = stream.vary(work, made.noise_ppm).min(period);
            if !work.is_zero() {
                let _ = writeln!(text, "{},{}", ready.ns(), work.ns());
            }
        }
        text
    }
}

/// Parameters with which a series becomes a scenario.
#[derive(Clone, Copy, Debug)]
pub struct SeriesRun {
    /// Length of a round.
    pub round: Span,
    /// Seed of the noise.
    pub seed: u64,
    /// Largest difference between the work of a job and the demand, in millionths of the demand.
    pub noise_ppm: u32,
    /// True if each share is a hard limit.
    pub is_limited: bool,
    /// Policy that schedules the host: `edf`, `sedf` or `credit`.
    pub policy: &'static str,
}

/// Returns a name that two VMs have. `None` if all names differ.
fn equal_name(vms: &[(String, Span)]) -> Option<&str> {
    let is_before = |(index, (name, _)): &(usize, &(String, Span))| {
        vms[..*index].iter().any(|(other, _)| other == name)
    };
    vms.iter().enumerate().find(is_before).map(|(_, (name, _))| name.as_str())
}

fn name(field: &str) -> Result<(String, Span), SeriesError> {
    let wrong = || SeriesError::Title { written: field.into() };
    let (name, period) = match field.split_once('@') {
        Some((name, period)) => (name, period.parse().map_err(|_| wrong())?),
        None => (field, USUAL_PERIOD),
    };
    let is_name = !name.is_empty() && name.starts_with(|c: char| c.is_ascii_lowercase());
    let is_good = is_name && !period.is_zero() && name != BATCH;
    if is_good { Ok((name.to_owned(), period)) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_series_is_unchanged_if_written_and_read_again() {
        let text = "# two VMs\nweb,db@20ms\n20.0,10.5\n30.0,0.0\n";
        let series = Series::read(text).expect("the text is valid");
        assert_eq!(series.vms[1], ("db".into(), Span::from_ms(20)));
        assert_eq!(series.rounds, [[200_000, 105_000], [300_000, 0]]);
        assert_eq!(series.write(), text);
    }

    #[test]
    fn demand_series_with_wrong_line_is_refused_with_line_number() {
        let error = |text| Series::read(text).expect_err("it is wrong");
        assert_eq!(error("web,db\n1\n"), SeriesError::Fields { line: 2, is: 1, vms: 2 });
        let written = "101".to_owned();
        assert_eq!(error("web\n1\n101\n"), SeriesError::Number { line: 3, written });
        assert_eq!(error("web@x\n1\n"), SeriesError::Title { written: "web@x".into() });
        assert_eq!(error("# nothing\n"), SeriesError::Empty);
        let name = "web".to_owned();
        let equal = SeriesError::EqualNames { line: 2, name };
        assert_eq!(error("# twice\nweb,db,web@20ms\n1,1,1\n"), equal);
    }

    #[test]
    fn demand_series_becomes_a_scenario_under_each_policy() {
        let series = Series::read("web,db@20ms\n20,10.5\n30,5\n").expect("the text is valid");
        for policy in ["edf", "sedf", "credit"] {
            for is_limited in [false, true] {
                let round = Span::from_secs(1);
                let made = SeriesRun { round, seed: 1, noise_ppm: 0, is_limited, policy };
                let scenario = series.scenario(&made);
                let scenario = scenario.unwrap_or_else(|error| panic!("{policy}: {error}"));
                assert_eq!(scenario.domains.len(), 3);
                assert_eq!(scenario.length, Span::from_secs(2));
            }
        }
    }

    #[test]
    fn series_starting_at_full_demand_is_admitted_under_each_policy() {
        for text in ["web,db\n50,40\n10,10\n", "web\n90\n10\n", "a,b\n99,99\n1,1\n"] {
            let series = Series::read(text).expect("the text is valid");
            for policy in ["edf", "sedf", "credit"] {
                let round = Span::from_secs(1);
                let made = SeriesRun { round, seed: 1, noise_ppm: 0, is_limited: false, policy };
                let scenario = series.scenario(&made).expect("the scenario is valid");
                assert!(scenario.admit().is_ok(), "{policy}: {text}");
            }
        }
        let series = Series::read("web,db\n50,40\n").expect("the text is valid");
        assert_eq!(series.first_shares(), [522_222, 417_777]);
        let series = Series::read("web,db\n20,0\n").expect("the text is valid");
        assert_eq!(series.first_shares(), [240_000, 12_000]);
    }
}
