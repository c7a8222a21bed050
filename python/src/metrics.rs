//! Metrics of runs as columns for Arrow.

use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, Int64Builder, StringBuilder};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Field as ArrowField, Schema};
use pyo3::prelude::*;
use slackline_metrics::{Field, FieldValue};

use crate::columns::{Table, table_of};
use crate::error::SlacklineError;

/// Values of a metric in all rows. The type is known from the first value that is not missing.
enum Column {
    /// Number of rows whose value is missing.
    Missing(usize),
    Text(StringBuilder),
    Number(Int64Builder),
    Flag(BooleanBuilder),
}

/// Rows of metrics, as columns.
#[derive(Default)]
pub(crate) struct MetricColumns {
    columns: Vec<(&'static str, Column)>,
    rows: usize,
}

impl Column {
    fn push(&mut self, name: &str, value: &FieldValue) -> PyResult<()> {
        if let Column::Missing(rows) = *self {
            *self = Column::of(value, rows);
        }
        match (&mut *self, value) {
            (Column::Missing(rows), _) => *rows += 1,
            (Column::Text(column), FieldValue::Text(text)) => column.append_value(text),
            (Column::Number(column), FieldValue::Count(count)) => {
                column.append_value(i64::try_from(*count).unwrap_or(i64::MAX));
            }
            (Column::Number(column), FieldValue::Signed(number)) => column.append_value(*number),
            (Column::Flag(column), FieldValue::Flag(flag)) => column.append_value(*flag),
            (Column::Text(column), FieldValue::Missing) => column.append_null(),
            (Column::Number(column), FieldValue::Missing) => column.append_null(),
            (Column::Flag(column), FieldValue::Missing) => column.append_null(),
            _ => {
                let message = format!("the metric `{name}` has values of two types");
                return Err(SlacklineError::new_err(message));
            }
        }
        Ok(())
    }

    /// Creates a column for values of the type of `value`. The column begins with `missing` rows
    /// without a value.
    fn of(value: &FieldValue, missing: usize) -> Column {
        match value {
            FieldValue::Missing => Column::Missing(missing),
            FieldValue::Text(_) => {
                let mut column = StringBuilder::new();
                (0..missing).for_each(|_| column.append_null());
                Column::Text(column)
            }
            FieldValue::Count(_) | FieldValue::Signed(_) => {
                let mut column = Int64Builder::new();
                column.append_nulls(missing);
                Column::Number(column)
            }
            FieldValue::Flag(_) => {
                let mut column = BooleanBuilder::new();
                column.append_nulls(missing);
                Column::Flag(column)
            }
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            // A metric without a value in any row is a number: texts and flags always have values.
            Column::Missing(rows) => {
                let mut column = Int64Builder::new();
                column.append_nulls(rows);
                Arc::new(column.finish())
            }
            Column::Text(mut column) => Arc::new(column.finish()),
            Column::Number(mut column) => Arc::new(column.finish()),
            Column::Flag(mut column) => Arc::new(column.finish()),
        }
    }
}

impl MetricColumns {
    /// Adds a row. All rows have the same metrics in the same order.
    pub(crate) fn push(&mut self, row: &[Field]) -> PyResult<()> {
        if self.rows == 0 {
            self.columns = row.iter().map(|(name, _)| (*name, Column::Missing(0))).collect();
        }
        let names = self.columns.iter().map(|(name, _)| name);
        if !names.eq(row.iter().map(|(name, _)| name)) {
            return Err(SlacklineError::new_err("the rows have different metrics"));
        }
        for ((name, column), (_, value)) in self.columns.iter_mut().zip(row) {
            column.push(name, value)?;
        }
        self.rows += 1;
        Ok(())
    }

    /// Returns the columns as a table. Every column is nullable, so that tables of all runs have
    /// the same schema.
    pub(crate) fn finish(self) -> PyResult<Table> {
        let columns: Vec<(&str, ArrayRef)> =
            self.columns.into_iter().map(|(name, column)| (name, column.finish())).collect();
        let field = |(name, column): &(&str, ArrayRef)| {
            let kind: &DataType = column.data_type();
            ArrowField::new(*name, kind.clone(), true)
        };
        let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
        table_of(schema, columns.into_iter().map(|(_, column)| column).collect(), self.rows)
    }
}
