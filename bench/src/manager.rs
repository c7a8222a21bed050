//! The workload manager beside fixed shares, an oracle and three rules of the field.

use anyhow::Result;

pub(crate) fn run() -> Result<String> {
    Ok(String::new())
}
