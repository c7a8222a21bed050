//! Series of PlanetLab: a whole percentage on each line, the mean use in five minutes.

use crate::SourceFile;
use crate::error::WorkloadError;
use crate::names::stem;
use crate::series::{CPU, INTERVAL, Reading, Readings, shown};

pub(crate) fn read(file: &SourceFile<'_>, cores: u16) -> Result<Readings, WorkloadError> {
    let mut readings = Vec::new();
    let mut empty = None;
    for (line, text) in (1..).zip(file.bytes.split(|&byte| byte == b'\n')) {
        let text = String::from_utf8_lossy(text);
        let text = text.trim();
        if text.is_empty() {
            empty = empty.or(Some(line));
            continue;
        }
        if let Some(line) = empty {
            let error = WorkloadError::line(file.name, line, "the line is empty");
            return Err(error.advise("an interval without use is `0`"));
        }
        let percent = text.parse::<u64>().ok().filter(|&percent| percent <= 10_000);
        let Some(percent) = percent else {
            let why = format!("`{}` is not a whole percentage", shown(text));
            let error = WorkloadError::line(file.name, line, why);
            return Err(error.advise("a PlanetLab file has one number on each line"));
        };
        let at = readings.len() as u64 * INTERVAL;
        let ppm = percent * (CPU / 100);
        readings.push(Reading { line, at, cores: u64::from(cores), ppm });
    }
    Ok(Readings { vm: stem(file.name).to_owned(), readings })
}
