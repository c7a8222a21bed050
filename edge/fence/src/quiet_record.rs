//! Record of an idle process tree, so that later audits of the tree can be skipped.

use slackline_units::Span;

/// Record of an audit of a process tree. The audit found every thread blocked, and every thread had
/// the class and the CPUs that were ordered.
#[derive(Debug)]
pub(super) struct QuietRecord {
    /// CPU time that the tree had used at the time of the recorded audit.
    used: Span,
    /// Number of audits that were skipped since the recorded audit.
    passed_over: u32,
}

impl QuietRecord {
    pub(super) fn since(used: Span) -> QuietRecord {
        QuietRecord { used, passed_over: 0 }
    }

    /// Returns true if the tree needs no audit: it has used no CPU time since the record, and fewer
    /// than [`PASSED_OVER`] audits have been skipped. In that case, counts one more skipped audit.
    pub(super) fn lasts(&mut self, used: Span) -> bool {
        let lasts = self.used == used && self.passed_over < PASSED_OVER;
        self.passed_over += u32::from(lasts);
        lasts
    }
}

/// Maximum number of consecutive audits that are skipped for a tree that uses no CPU time.
const PASSED_OVER: u32 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_of_ten_audits_of_idle_process_tree_are_skipped() {
        let used = Span::from_ms(3);
        let mut record = QuietRecord::since(used);
        let skipped = (0..20).map(|_| record.lasts(used));
        assert_eq!(skipped.take_while(|lasts| *lasts).count(), 9);
        assert!(!record.lasts(used), "nine audits were skipped, so the tenth is made");
        assert!(!QuietRecord::since(used).lasts(used + Span::from_us(1)));
    }
}
