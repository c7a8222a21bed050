//! What each vCPU wanted, was promised and got, and what is checked of it once a run is over.

use slackline_policy::Promise;
use slackline_units::{Span, Time, VcpuId};

use crate::books::Breach;

/// From joining to leaving.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) vcpu: VcpuId,
    /// What it was promised, and from when on.
    pub(crate) promises: Vec<(Time, Option<Promise>)>,
    /// Whether it has ever been held to a cap.
    pub(crate) was_capped: bool,
    /// When it was awake: from, and until if that is over.
    pub(crate) awake: Vec<(Time, Option<Time>)>,
    /// When it ran.
    pub(crate) runs: Vec<(Time, Time)>,
    /// When it left.
    pub(crate) left: Option<Time>,
}

/// What happened in a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) lives: Vec<Life>,
    pub(crate) end: Time,
}

impl Life {
    /// Adds time in which it ran.
    pub(crate) fn ran(&mut self, from: Time, to: Time) {
        match self.runs.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => self.runs.push((from, to)),
        }
    }

    fn is_awake(&self, at: Time) -> bool {
        self.awake.iter().any(|&(from, until)| from <= at && until.is_none_or(|until| at <= until))
    }

    /// What it was promised with the stretch for which that held.
    fn tenures(&self, end: Time) -> impl Iterator<Item = (Promise, Time, Time)> {
        let end = self.left.unwrap_or(end);
        let nexts = self.promises.iter().skip(1).map(|&(from, _)| from).chain([end]);
        let tenures = self.promises.iter().zip(nexts);
        tenures.filter_map(|(&(from, promise), until)| Some((promise?, from, until)))
    }
}

/// How much of some stretches, in order, lies in windows that are asked about in order.
struct Overlap<'a> {
    stretches: &'a [(Time, Time)],
}

impl Overlap<'_> {
    fn within(&mut self, from: Time, to: Time) -> Span {
        while let [(_, end), rest @ ..] = self.stretches
            && *end <= from
        {
            self.stretches = rest;
        }
        let inside = self.stretches.iter().take_while(|stretch| stretch.0 < to);
        inside.map(|&(start, end)| end.min(to) - start.max(from)).sum()
    }
}

impl History {
    /// Until when slices are owed whatever happens. Who gives a share up may have used more of it
    /// than the time that has passed; if somebody else is given that share at once, both together
    /// want more than there is until the period is over.
    fn settled(&self) -> Time {
        let ran = self.lives.iter().flat_map(|life| &life.runs).map(|run| run.0);
        let ran = ran.min().unwrap_or(self.end);
        let changes = self
            .lives
            .iter()
            .flat_map(|life| life.promises.iter().skip(1).map(|&(from, _)| from).chain(life.left));
        changes.filter(|&at| at > ran).min().unwrap_or(self.end)
    }

    /// Every period, counted from the promise, that lies wholly within it: who was awake all the
    /// time got at least its slice, and who must not have more had no more.
    pub(crate) fn check_slices(&self) -> Result<(), Breach> {
        let settled = self.settled();
        for life in &self.lives {
            let awake: Vec<_> =
                life.awake.iter().map(|&(from, until)| (from, until.unwrap_or(self.end))).collect();
            for (promise, from, until) in life.tenures(self.end) {
                let (slice, period) = (promise.reservation.slice(), promise.reservation.period());
                let mut got = Overlap { stretches: &life.runs };
                let mut wanted = Overlap { stretches: &awake };
                let mut start = from;
                while start.after(period) <= until.min(settled) {
                    let (end, vcpu) = (start + period, life.vcpu);
                    let had = got.within(start, end);
                    if had < slice && wanted.within(start, end) == period {
                        return Err(Breach::ShortSlice(vcpu, start));
                    }
                    if had > slice && promise.exact {
                        return Err(Breach::OverSlice(vcpu, start));
                    }
                    start = end;
                }
            }
        }
        Ok(())
    }

    /// Where all are equal and take turns of at most `turn`, those who were awake when somebody
    /// began to wait have one turn each before it, and all CPUs are busy with them: it waits for
    /// at most (awake - 1) * turn / CPUs.
    pub(crate) fn check_waits(&self, turn: Option<Span>, cpus: usize) -> Result<(), Breach> {
        for life in &self.lives {
            for (from, until) in waits(life, self.end) {
                let awake = self.lives.iter().filter(|life| life.is_awake(from)).count() as u64;
                let waited = (until - from) * cpus as u64;
                if turn.is_some_and(|turn| waited > turn * (awake - 1)) {
                    return Err(Breach::Waited(life.vcpu, from));
                }
            }
        }
        Ok(())
    }
}

/// When a vCPU was awake and did not run.
fn waits(life: &Life, end: Time) -> Vec<(Time, Time)> {
    let mut waits = Vec::new();
    for &(from, until) in &life.awake {
        let until = until.unwrap_or(end);
        let mut since = from;
        for &(start, stop) in life.runs.iter().filter(|run| from < run.1 && run.0 < until) {
            waits.push((since, start.max(since)));
            since = stop;
        }
        waits.push((since, until.max(since)));
    }
    waits.retain(|(from, until)| from < until);
    waits
}
