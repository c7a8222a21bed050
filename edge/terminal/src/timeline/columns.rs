//! A window of time that is divided into columns of a picture.

use slackline_units::{Span, Time};

/// Window of a timeline. The lengths of its columns differ by at most a nanosecond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    from: Time,
    span: Span,
    columns: usize,
}

impl Window {
    /// Creates a window of at most `columns` columns. `span` must not be zero. No column is shorter
    /// than a nanosecond.
    pub(crate) fn new(from: Time, span: Span, columns: usize) -> Window {
        let most = usize::try_from(span.ns()).unwrap_or(usize::MAX);
        Window { from, span, columns: columns.clamp(1, most) }
    }

    pub(crate) fn from(&self) -> Time {
        self.from
    }

    pub(crate) fn end(&self) -> Time {
        self.from.after(self.span)
    }

    pub(crate) fn span(&self) -> Span {
        self.span
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the length of a column.
    pub(crate) fn length(&self, column: usize) -> Span {
        self.edge(column + 1) - self.edge(column)
    }

    /// Returns the column that contains a time. `None` if the time is outside of the window.
    pub(crate) fn column_of(&self, at: Time) -> Option<usize> {
        if at < self.from || at >= self.end() {
            return None;
        }
        // This is the last column whose start, rounded down, is not after `at`.
        let since = u128::from((at - self.from).ns()) + 1;
        let column = (since * self.columns as u128 - 1) / u128::from(self.span.ns());
        Some(usize::try_from(column).expect("the column is within the window"))
    }

    /// Returns the columns that overlap an interval, with the length of each overlap.
    pub(crate) fn spread(self, (from, to): (Time, Time)) -> impl Iterator<Item = (usize, Span)> {
        let (from, to) = (from.max(self.from), to.min(self.end()));
        let first = if from < to { self.column_of(from) } else { None };
        let touched = first.into_iter().flat_map(move |first| first..self.columns);
        touched
            .map(move |column| (column, overlap((from, to), self.bounds(column))))
            .take_while(|(_, part)| !part.is_zero())
    }

    fn bounds(&self, column: usize) -> (Time, Time) {
        (self.edge(column), self.edge(column + 1))
    }

    /// Returns the time at which a column starts.
    pub(crate) fn edge(&self, column: usize) -> Time {
        self.from.after(part(self.span, (column as u64, self.columns as u64)))
    }
}

/// Returns the length of the overlap of two intervals.
pub(crate) fn overlap(one: (Time, Time), other: (Time, Time)) -> Span {
    one.1.min(other.1).since(one.0.max(other.0))
}

/// Returns `whole × numerator / denominator`, rounded down. The numerator must not be larger than
/// the denominator.
pub(crate) fn part(whole: Span, (numerator, denominator): (u64, u64)) -> Span {
    let part = u128::from(whole.ns()) * u128::from(numerator) / u128::from(denominator);
    Span::from_ns(u64::try_from(part).expect("a part is not longer than the whole"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_of_a_timeline_is_in_exactly_one_column() {
        for (span, columns) in [(10, 3), (7, 7), (100, 9), (5, 20)] {
            let window = Window::new(Time::from_ns(50), Span::from_ns(span), columns);
            let mut lengths = vec![0; window.columns()];
            for at in 50..50 + span {
                lengths[window.column_of(Time::from_ns(at)).unwrap()] += 1;
            }
            for (column, length) in lengths.into_iter().enumerate() {
                assert_eq!(window.length(column), Span::from_ns(length), "{span} in {columns}");
            }
        }
    }

    #[test]
    fn timeline_interval_is_divided_among_the_columns_it_covers() {
        let window = Window::new(Time::from_ns(100), Span::from_ns(40), 4);
        let spread = |from, to| -> Vec<_> {
            let spread = window.spread((Time::from_ns(from), Time::from_ns(to)));
            spread.map(|(column, part)| (column, part.ns())).collect()
        };
        assert_eq!(spread(105, 125), [(0, 5), (1, 10), (2, 5)]);
        assert_eq!(spread(0, 500), [(0, 10), (1, 10), (2, 10), (3, 10)]);
        assert_eq!(spread(110, 110), []);
        assert_eq!(spread(0, 100), []);
        assert_eq!(spread(140, 150), []);
    }
}
