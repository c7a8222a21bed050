//! Columns of a run for Arrow. PyArrow, Polars, pandas and DuckDB read the columns without a copy.

use std::sync::Arc;

use arrow_array::builder::{StringDictionaryBuilder, UInt16Builder, UInt64Builder};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::UInt16Type;
use arrow_array::{
    Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchIterator, RecordBatchOptions,
};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use slackline_trace::{Record, Sink};
use slackline_units::{Time, VcpuId};

use crate::error::SlacklineError;

/// Columns of equal length. `pyarrow.table(t)`, `polars.DataFrame(t)` and DuckDB read the columns
/// without a copy.
#[pyclass(frozen, module = "slackline")]
pub(crate) struct Table {
    batch: RecordBatch,
}

#[pymethods]
impl Table {
    /// Names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.batch.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }

    /// Arrow's C stream interface, through which other libraries read the columns.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let batches = [Ok::<_, ArrowError>(self.batch.clone())];
        let batches = RecordBatchIterator::new(batches, self.batch.schema());
        let stream = FFI_ArrowArrayStream::new(Box::new(batches));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    fn __repr__(&self) -> String {
        format!("Table({} rows: {})", self.batch.num_rows(), self.column_names().join(", "))
    }
}

/// Sink that stores the run intervals, wake-ups and blocks of a run as columns.
pub(crate) struct Columns {
    names: Vec<String>,
    intervals: Intervals,
    events: Events,
}

#[derive(Default)]
struct Intervals {
    from: UInt64Builder,
    to: UInt64Builder,
    used: UInt64Builder,
    cpu: UInt16Builder,
    vcpu: Vec<VcpuId>,
    reserved: Vec<bool>,
}

#[derive(Default)]
struct Events {
    at: UInt64Builder,
    vcpu: Vec<VcpuId>,
    kind: Vec<&'static str>,
}

fn ns(time: Time) -> u64 {
    time.since(Time::START).ns()
}

impl Columns {
    /// Creates a sink for a run. `names` has the name of the vCPU in each slot.
    pub(crate) fn new(names: Vec<String>) -> Columns {
        Columns { names, intervals: Intervals::default(), events: Events::default() }
    }

    /// Returns the run intervals and the events.
    pub(crate) fn finish(mut self) -> PyResult<(Table, Table)> {
        let intervals = &mut self.intervals;
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("from_ns", Arc::new(intervals.from.finish())),
            ("to_ns", Arc::new(intervals.to.finish())),
            ("used_ns", Arc::new(intervals.used.finish())),
            ("cpu", Arc::new(intervals.cpu.finish())),
            ("vcpu", named(&intervals.vcpu, &self.names)?),
            ("reserved", Arc::new(BooleanArray::from(std::mem::take(&mut intervals.reserved)))),
        ];
        let events = &mut self.events;
        let mut kinds = StringDictionaryBuilder::<UInt16Type>::new();
        events.kind.iter().for_each(|kind| kinds.append_value(kind));
        let kinds: ArrayRef = Arc::new(kinds.finish());
        let happened: Vec<(&str, ArrayRef)> = vec![
            ("at_ns", Arc::new(events.at.finish())),
            ("vcpu", named(&events.vcpu, &self.names)?),
            ("event", kinds),
        ];
        Ok((table(columns)?, table(happened)?))
    }

    fn event(&mut self, at: Time, vcpu: VcpuId, kind: &'static str) {
        self.events.at.append_value(ns(at));
        self.events.vcpu.push(vcpu);
        self.events.kind.push(kind);
    }
}

/// Returns the names of vCPUs as a column that stores each name once.
fn named(vcpus: &[VcpuId], names: &[String]) -> PyResult<ArrayRef> {
    let mut column = StringDictionaryBuilder::<UInt16Type>::new();
    for vcpu in vcpus {
        let name = names.get(vcpu.slot()).map_or("", String::as_str);
        column.append(name).map_err(|error| SlacklineError::new_err(error.to_string()))?;
    }
    Ok(Arc::new(column.finish()))
}

/// Returns columns of equal length as a table.
pub(crate) fn table(columns: Vec<(&str, ArrayRef)>) -> PyResult<Table> {
    let field = |(name, column): &(&str, ArrayRef)| {
        let kind: &DataType = column.data_type();
        Field::new(*name, kind.clone(), column.null_count() > 0)
    };
    let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
    let rows = columns.first().map_or(0, |(_, column)| column.len());
    table_of(schema, columns.into_iter().map(|(_, column)| column).collect(), rows)
}

/// Returns columns with a schema as a table. `rows` is the number of rows, which a table has even
/// if it has no columns.
pub(crate) fn table_of(schema: Schema, columns: Vec<ArrayRef>, rows: usize) -> PyResult<Table> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let batch = RecordBatch::try_new_with_options(Arc::new(schema), columns, &options);
    Ok(Table { batch: batch.map_err(|error| SlacklineError::new_err(error.to_string()))? })
}

impl Sink for Columns {
    fn record(&mut self, record: &Record) {
        match *record {
            Record::Ran { vcpu, cpu, from, to, used, due, .. } => {
                self.intervals.from.append_value(ns(from));
                self.intervals.to.append_value(ns(to));
                self.intervals.used.append_value(used.ns());
                self.intervals.cpu.append_value(u16::try_from(cpu.index()).unwrap_or(u16::MAX));
                self.intervals.vcpu.push(vcpu);
                self.intervals.reserved.push(due);
            }
            Record::Joined { at, vcpu } => self.event(at, vcpu, "joined"),
            Record::Left { at, vcpu } => self.event(at, vcpu, "left"),
            Record::Woke { at, vcpu } => self.event(at, vcpu, "woke"),
            Record::Blocked { at, vcpu } => self.event(at, vcpu, "blocked"),
            Record::Paused { at, vcpu } => self.event(at, vcpu, "paused"),
            _ => {}
        }
    }
}
