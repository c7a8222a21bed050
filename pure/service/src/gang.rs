//! Gangs: machines of several hosts that are promised time all together or not at all.
//!
//! No host knows another. Whoever starts a gang has each host *hold* its member first: admitted and
//! promised to nobody yet, for [`LEASE`] by that host's own clock. If all do, each is told when to
//! *begin*, and that is written down there. If any does not, or is not heard of, the others are
//! told that the gang is *broken*: a member that has not begun ends, one that has goes on alone,
//! unless its gang is strict. Whoever starts it may die at any time: what is held lapses.
//!
//! One thing no order of words can give: where it dies, or is cut off from a host, between two of
//! the last words, who has heard them begins and who has not does not.

use slackline_units::Span;

use crate::name::Name;

/// For how long a member is held that nobody tells to begin.
pub const LEASE: Span = Span::from_secs(10);

/// A member may be told to begin at most so long before: clocks that differ by more are wrong.
pub const AHEAD: Span = Span::from_secs(60);

/// The gang that a reservation is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gang {
    /// Its name: the same on all of its hosts.
    pub name: Name,
    /// Whether its members end when one is lost; else they go on.
    pub is_strict: bool,
}

/// What a host is told about its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Hold it.
    Hold,
    /// It begins when all do.
    Begin,
    /// The gang is broken: it is without this member.
    Break {
        /// Which one.
        lost: usize,
    },
}

/// What a host says to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It is done.
    Yes,
    /// It is not, and has no effect.
    No,
    /// Nothing was heard: it may be done or not.
    Nothing,
}

/// The hosts of a gang.
pub trait Hosts {
    /// Tells the hosts of these members, all at once; what each says, in their order.
    fn tell(&mut self, word: Word, members: &[usize]) -> Vec<Said>;
}

/// What became of a gang that was to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Started {
    /// All of it begins.
    All,
    /// None of it does, because of these members.
    None {
        /// Who was refused, or not heard of.
        because: Vec<usize>,
        /// Who may be held or begin all the same: they could not be told.
        untold: Vec<usize>,
    },
}

/// Starts a gang of so many members: all or none.
pub fn start(hosts: &mut impl Hosts, members: usize) -> Started {
    let all: Vec<usize> = (0..members).collect();
    for word in [Word::Hold, Word::Begin] {
        let said = hosts.tell(word, &all);
        let is = |member: &usize| said.get(*member).copied().unwrap_or(Said::Nothing);
        let because: Vec<usize> =
            all.iter().copied().filter(|member| is(member) != Said::Yes).collect();
        let Some(&lost) = because.first() else { continue };
        // Of one that was refused nothing is held; one that was to begin is.
        let may_be = |member: &usize| word == Word::Begin || is(member) != Said::No;
        let concerned: Vec<usize> = all.iter().copied().filter(may_be).collect();
        let told = hosts.tell(Word::Break { lost }, &concerned);
        let is_untold = |(_, said): &(usize, Said)| *said == Said::Nothing;
        let untold = concerned.into_iter().zip(told).filter(is_untold);
        return Started::None { because, untold: untold.map(|(member, _)| member).collect() };
    }
    Started::All
}
