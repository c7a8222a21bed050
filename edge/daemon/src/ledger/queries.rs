//! Queries of the ledger that have no reply yet, and their limits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use slackline_service::Principal;

use super::NotHandedOver;

/// Maximum number of queries of all principals that have no reply yet.
pub const MOST_QUERIES: usize = 64;

/// Maximum number of queries of one principal that have no reply yet.
pub const QUERIES_OF_ONE: usize = 4;

/// Queries without a reply, by ticket. Each has the principal that asked, and a flag that is true
/// if the caller has disconnected.
#[derive(Debug, Default)]
pub(super) struct OpenQueries(BTreeMap<u64, (Principal, Arc<AtomicBool>)>);

impl OpenQueries {
    /// Adds a query. Returns the flag that, when set, makes the writer drop the query.
    ///
    /// # Errors
    /// If the principal, or all principals together, have too many queries.
    pub(super) fn begin(
        &mut self,
        ticket: u64,
        by: Principal,
    ) -> Result<Arc<AtomicBool>, NotHandedOver> {
        if self.0.values().filter(|(of, _)| *of == by).count() >= QUERIES_OF_ONE {
            return Err(NotHandedOver::TooManyOfOne);
        }
        if self.0.len() >= MOST_QUERIES {
            return Err(NotHandedOver::TooManyQueries);
        }
        let is_dropped = Arc::new(AtomicBool::new(false));
        self.0.insert(ticket, (by, Arc::clone(&is_dropped)));
        Ok(is_dropped)
    }

    /// Sets the flag by which the writer drops a query. The query counts until the writer has
    /// replied.
    pub(super) fn cancel(&self, ticket: u64) {
        if let Some((_, is_dropped)) = self.0.get(&ticket) {
            is_dropped.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn cancel_all(&self) {
        self.0.keys().for_each(|ticket| self.cancel(*ticket));
    }

    /// Removes a query, because its reply has arrived.
    pub(super) fn end(&mut self, ticket: u64) {
        self.0.remove(&ticket);
    }
}
