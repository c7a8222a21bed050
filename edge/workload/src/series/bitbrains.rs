//! Series of Bitbrains (GWA-T-12): one file for each VM, with a title line and columns separated by
//! semicolons and tabs.

use csv::{ReaderBuilder, StringRecord, Trim};

use crate::SourceFile;
use crate::decimal::scaled;
use crate::error::WorkloadError;
use crate::names::stem;
use crate::series::{Reading, Readings, next_line, shown};

/// Times from this number on are milliseconds. As seconds they would be after the year 5000.
const MILLISECONDS: u64 = 100_000_000_000;

/// Titles of the columns that are read.
const TITLES: [&str; 3] = ["Timestamp [ms]", "CPU cores", "CPU usage [%]"];

pub(crate) fn read(
    file: &SourceFile<'_>,
    assumptions: &mut Vec<String>,
) -> Result<Readings, WorkloadError> {
    let mut builder = ReaderBuilder::new();
    builder.has_headers(true).flexible(true).delimiter(b';').trim(Trim::All);
    let mut lines = builder.from_reader(file.bytes);
    let titles = lines.headers();
    let titles = titles.map_err(|error| WorkloadError::line(file.name, 1, error.to_string()))?;
    let columns = TITLES.map(|title| titles.iter().position(|it| it == title));
    let [Some(time), Some(cores), Some(percent)] = columns else {
        let missing = columns.iter().zip(TITLES).find(|(column, _)| column.is_none());
        let why = format!("column `{}` is missing", missing.map_or("", |(_, title)| title));
        return Err(WorkloadError::line(file.name, 1, why)
            .advise("a Bitbrains file begins with `Timestamp [ms];`"));
    };
    let mut readings = Vec::new();
    let mut record = StringRecord::new();
    while let Some(line) = next_line(file, &mut lines, &mut record)? {
        let bad = |column: usize, what: &str| {
            let text = record.get(column).unwrap_or_default();
            let why = format!("`{}` is not {what}", shown(text));
            WorkloadError::line(file.name, line, why)
        };
        let number = |column: usize, digits| record.get(column).and_then(|it| scaled(it, digits));
        let at = number(time, 0).ok_or_else(|| bad(time, "a time"))?;
        let cores = number(cores, 0).ok_or_else(|| bad(cores, "a number of cores"))?;
        let ppm = number(percent, 4).ok_or_else(|| bad(percent, "a percentage"))?;
        let at = if at >= MILLISECONDS { at / 1_000 } else { at };
        readings.push(Reading { line, at, cores, ppm });
    }
    let seconds = "times below 100,000,000,000 in `Timestamp [ms]` are seconds, as published";
    let is_new = !assumptions.iter().any(|it| it == seconds);
    if is_new {
        assumptions.push(seconds.to_owned());
    }
    Ok(Readings { vm: stem(file.name).to_owned(), readings })
}
