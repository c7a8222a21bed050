//! ALERT, the allocation error test: how exactly a share is delivered, second by second.
//! Source: Cherkasova, Gupta, Vahdat, "Comparison of the Three CPU Schedulers in Xen", 2007,
//! section 5.2, cited as [ALERT].
//!
//! The CPU share of a domain that computes without a break is limited to A. U is the CPU time that
//! the domain receives in a second, in the unit of A. The *error* is (U - A)/A, positive if the
//! domain receives more than its share. [ALERT] defines (A - U)/A, which cannot exceed 100 %. Yet
//! [ALERT] reports errors of up to 370 % and calls positive errors over-allocation, so its plots
//! must show (U - A)/A.
//!
//! Errors are taken for consecutive whole seconds from the end of the warm-up. An incomplete second
//! at the end of the run is left out. Errors are in millionths of A.

use slackline_trace::{Header, Record, Sink, VcpuName};
use slackline_units::{CpuShare, Span, Time, VcpuId};

use crate::split::Stretch;

const SECOND: Span = Span::from_secs(1);
const MILLION: i128 = 1_000_000;

/// Sink that sums up the CPU time of each domain in each whole second.
#[derive(Debug)]
pub struct WholeSeconds {
    start: Time,
    now: Time,
    /// CPU time by domain number, then by second.
    used: Vec<Vec<Span>>,
}

impl WholeSeconds {
    /// Creates a sink for the run that this header describes.
    #[must_use]
    pub fn new(header: &Header) -> WholeSeconds {
        let start = Time::START.after(header.warmup);
        WholeSeconds { start, now: Time::START, used: Vec::new() }
    }

    /// Returns the CPU time of each domain, by its number, in each whole second of the run.
    #[must_use]
    pub fn finish(mut self) -> Vec<Vec<Span>> {
        let whole = self.now.max(self.start).since(self.start) / SECOND;
        let whole = usize::try_from(whole).expect("the seconds of a run fit in memory");
        self.used.iter_mut().for_each(|seconds| seconds.resize(whole, Span::ZERO));
        self.used
    }

    fn begin(&mut self, domain: usize) {
        if self.used.len() <= domain {
            self.used.resize(domain + 1, Vec::new());
        }
    }

    #[inline]
    fn used(&mut self, domain: usize, mut stretch: Stretch) {
        if stretch.from < self.start {
            stretch = stretch.split(self.start).1;
        }
        if stretch.to <= self.start {
            return;
        }
        let mut second = (stretch.from - self.start) / SECOND;
        self.begin(domain);
        let seconds = &mut self.used[domain];
        loop {
            let ends = self.start + SECOND * (second + 1);
            let nth = usize::try_from(second).expect("the seconds of a run fit in memory");
            if nth >= seconds.len() {
                seconds.resize(nth + 1, Span::ZERO);
            }
            if stretch.to <= ends {
                seconds[nth] += stretch.used;
                return;
            }
            let (before, after) = stretch.split(ends);
            seconds[nth] += before.used;
            (stretch, second) = (after, second + 1);
        }
    }
}

fn domain_of(vcpu: VcpuId) -> usize {
    vcpu.domain().number() as usize
}

impl Sink for WholeSeconds {
    fn named(&mut self, named: &VcpuName) {
        self.begin(domain_of(named.vcpu));
    }

    #[inline]
    fn record(&mut self, record: &Record) {
        match *record {
            Record::Ran { vcpu, from, to, used, .. } => {
                self.now = self.now.max(to);
                self.used(domain_of(vcpu), Stretch { from, to, used });
            }
            Record::Ended { at } => self.now = self.now.max(at),
            _ => {}
        }
    }
}

/// Returns the allocation error (U - A)/A in millionths, rounded towards zero. U is `used`, and A
/// is `share` × `over`. Zero if A is zero.
#[must_use]
pub fn allocation_error(used: Span, over: Span, share: CpuShare) -> i64 {
    let due = i128::from(share.ppm()) * i128::from(over.ns());
    if due == 0 {
        return 0;
    }
    let error = (i128::from(used.ns()) * MILLION - due) * MILLION / due;
    i64::try_from(error).unwrap_or(i64::MAX)
}

/// Allocation errors of ALERT over many seconds, in millionths of the share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationErrors {
    /// Allocation errors in ascending order, in millionths of the share.
    errors: Vec<i64>,
}

impl FromIterator<i64> for AllocationErrors {
    fn from_iter<I: IntoIterator<Item = i64>>(errors: I) -> AllocationErrors {
        let mut errors: Vec<i64> = errors.into_iter().collect();
        errors.sort_unstable();
        AllocationErrors { errors }
    }
}

impl AllocationErrors {
    /// Returns the allocation errors in ascending order, in millionths of the share.
    #[must_use]
    pub fn sorted(&self) -> &[i64] {
        &self.errors
    }

    /// Returns the fraction of all seconds, in millionths, whose allocation error is below `error`
    /// millionths of the share. `None` if no second was measured.
    #[must_use]
    pub fn below(&self, error: i64) -> Option<u64> {
        self.part(self.errors.partition_point(|&other| other < error))
    }

    /// Returns the fraction of all seconds, in millionths, whose allocation error is above `error`
    /// millionths of the share. `None` if no second was measured.
    #[must_use]
    pub fn above(&self, error: i64) -> Option<u64> {
        self.part(self.errors.len() - self.errors.partition_point(|&other| other <= error))
    }

    /// Returns the smallest of the allocation errors of all seconds. A negative value is the
    /// largest shortfall. `None` if no second was measured.
    #[must_use]
    pub fn smallest(&self) -> Option<i64> {
        self.errors.first().copied()
    }

    /// Returns the largest of the allocation errors of all seconds. A positive value is the largest
    /// excess. `None` if no second was measured.
    #[must_use]
    pub fn largest(&self) -> Option<i64> {
        self.errors.last().copied()
    }

    /// Returns the median allocation error. If the number of errors is even, this is the lower of
    /// the two middle errors. `None` if there are fewer than two errors.
    #[must_use]
    pub fn median(&self) -> Option<i64> {
        let middle = self.errors.len().checked_sub(2)?.div_ceil(2);
        self.errors.get(middle).copied()
    }

    /// Returns the mean of the absolute allocation errors of all seconds, in millionths of the
    /// share. `None` if no second was measured.
    #[must_use]
    pub fn mean_size(&self) -> Option<u64> {
        let sum: u128 = self.errors.iter().map(|error| u128::from(error.unsigned_abs())).sum();
        let mean = sum.checked_div(self.errors.len() as u128)?;
        u64::try_from(mean).ok()
    }

    fn part(&self, count: usize) -> Option<u64> {
        let part = (count as u128 * 1_000_000).checked_div(self.errors.len() as u128)?;
        u64::try_from(part).ok()
    }
}
