//! CPU readings of Azure VMs (`vm_cpu_readings`): time in seconds, VM, and the least, largest and
//! mean use of the VM in percent. The published files have no title line. A title line that begins
//! with `timestamp` is skipped.

use std::collections::BTreeMap;

use csv::{ReaderBuilder, StringRecord, Trim};

use crate::SourceFile;
use crate::decimal::scaled;
use crate::error::WorkloadError;
use crate::series::{Reading, Readings, next_line, shown};

/// Number of columns of a line.
const COLUMNS: usize = 5;

pub(crate) fn read(file: &SourceFile<'_>, cores: u16) -> Result<Vec<Readings>, WorkloadError> {
    let mut builder = ReaderBuilder::new();
    builder.has_headers(false).flexible(true).trim(Trim::All);
    let mut lines = builder.from_reader(file.bytes);
    let mut vms: BTreeMap<String, Vec<Reading>> = BTreeMap::new();
    let mut order = Vec::new();
    let mut record = StringRecord::new();
    while let Some(line) = next_line(file, &mut lines, &mut record)? {
        if line == 1 && record.get(0).is_some_and(|first| first.starts_with("timestamp")) {
            continue;
        }
        if record.len() != COLUMNS {
            let why = format!("the line has {} columns, not {COLUMNS}", record.len());
            let error = WorkloadError::line(file.name, line, why);
            return Err(error.advise("columns are: time, VM, least, largest and mean use"));
        }
        let bad = |text: &str, what| {
            WorkloadError::line(file.name, line, format!("`{}` is not {what}", shown(text)))
        };
        let at = record[0].parse().map_err(|_| bad(&record[0], "a time in seconds"))?;
        let ppm = scaled(&record[4], 4).ok_or_else(|| bad(&record[4], "a percentage"))?;
        let reading = Reading { line, at, cores: u64::from(cores), ppm };
        let vm = vms.entry(record[1].to_owned()).or_insert_with(|| {
            order.push(record[1].to_owned());
            Vec::new()
        });
        vm.push(reading);
    }
    if order.is_empty() {
        return Err(WorkloadError::file(file.name, "the file has no readings"));
    }
    let take = |vm: String| Readings { readings: vms.remove(&vm).unwrap_or_default(), vm };
    Ok(order.into_iter().map(take).collect())
}
