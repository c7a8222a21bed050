//! Gangs: VMs on several hosts that begin their reservations together, all or none.
//!
//! No host knows another. The starter of a gang first has each host *hold* its member: the member
//! is admitted, and its capacity stays reserved but unused for [`LEASE`] by that host's own clock.
//! If all hosts do so, each host is told when to *begin*, and writes that to its ledger. If a host
//! refuses or does not answer, the others are told that the gang is *broken*: a member that has not
//! begun ends. A member that has begun goes on alone, unless the gang is strict. The starter may
//! die at any time, since held members expire.
//!
//! No protocol can exclude one case: if the starter dies, or is cut off from a host, between two of
//! the last messages, the hosts that received theirs begin and the others do not.

use slackline_units::Span;

use crate::name::Name;

/// Time for which a gang member's capacity is held without the member being told to begin.
pub const LEASE: Span = Span::from_secs(10);

/// Longest time ahead for which a gang member may be told to begin. A longer time means that the
/// clocks of the hosts differ.
pub const AHEAD: Span = Span::from_secs(60);

/// Gang that a reservation belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gang {
    /// Name of the gang, the same on all of its hosts.
    pub name: Name,
    /// True if all members end when one is lost. Otherwise the remaining members go on.
    pub is_strict: bool,
}

/// Message to a host about its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GangMessage {
    /// Reserve the capacity of the member, but do not start it yet.
    Hold,
    /// Start the member at the time at which all members of the gang start.
    Begin,
    /// The gang is broken: it has lost this member.
    Break {
        /// Index of the lost member.
        lost: usize,
    },
}

/// Reply of a host to a [`GangMessage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GangReply {
    /// The host has carried out the message.
    Yes,
    /// The host refused the message. Nothing changed on that host.
    No,
    /// The host did not reply. Perhaps it has carried out the message.
    Nothing,
}

/// Connection to the hosts of a gang.
pub trait Hosts {
    /// Sends a message to the hosts of these members, all at once. Returns their replies in the
    /// same order.
    fn tell(&mut self, word: GangMessage, members: &[usize]) -> Vec<GangReply>;
}

/// Outcome of starting a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GangStart {
    /// All members begin together.
    All,
    /// No member begins, since the hosts of some members refused or did not reply.
    None {
        /// Members whose host refused or did not reply.
        because: Vec<usize>,
        /// Members whose host could not be told that the gang is broken. They can still be held, or
        /// begin nevertheless.
        untold: Vec<usize>,
    },
}

/// Starts a gang with this number of members: all or none.
pub fn start(hosts: &mut impl Hosts, members: usize) -> GangStart {
    let all: Vec<usize> = (0..members).collect();
    for word in [GangMessage::Hold, GangMessage::Begin] {
        let said = hosts.tell(word, &all);
        let is = |member: &usize| said.get(*member).copied().unwrap_or(GangReply::Nothing);
        let because: Vec<usize> =
            all.iter().copied().filter(|member| is(member) != GangReply::Yes).collect();
        let Some(&lost) = because.first() else { continue };
        // A host that refused to hold holds nothing. A host that was told to begin still holds its
        // member.
        let may_be = |member: &usize| word == GangMessage::Begin || is(member) != GangReply::No;
        let concerned: Vec<usize> = all.iter().copied().filter(may_be).collect();
        let told = hosts.tell(GangMessage::Break { lost }, &concerned);
        let is_untold = |(_, said): &(usize, GangReply)| *said == GangReply::Nothing;
        let untold = concerned.into_iter().zip(told).filter(is_untold);
        return GangStart::None { because, untold: untold.map(|(member, _)| member).collect() };
    }
    GangStart::All
}
