//! Gangs: VMs on several hosts that begin their reservations together. Either all of them begin, or
//! none of them.
//!
//! The hosts of a gang do not know each other. A client, the starter, first asks each host to
//! *hold* its member. The host then admits the member and reserves its capacity for [`LEASE`],
//! measured by the host's clock. If all hosts agree, the starter tells each host when to *begin*,
//! and each host writes that to its ledger. If a host refuses or does not answer, the starter tells
//! the other hosts that the gang is *broken*. The reservation of a member that has not begun then
//! ends. A member that has begun continues alone, unless the gang is strict. The starter may die at
//! any time, because the reservations of held members expire.
//!
//! No protocol can exclude one case: the starter dies, or loses its connection, while it sends the
//! last messages. Hosts that received the message to begin then begin, and the other hosts do not.

use slackline_units::Span;

use crate::name::Name;

/// Time for which the capacity of a gang member is reserved while the host waits for the order to
/// begin.
pub const LEASE: Span = Span::from_secs(10);

/// Longest time from now until a gang member may begin. A longer time is refused, because it shows
/// that the clocks of the hosts differ.
pub const AHEAD: Span = Span::from_secs(60);

/// Gang to which a reservation belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gang {
    /// Name of the gang, which is the same on all hosts of the gang.
    pub name: Name,
    /// True if all members end when one member is lost. If false, the remaining members continue.
    pub is_strict: bool,
}

/// Message to a host about its member of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GangMessage {
    /// Reserve the capacity of the member, but do not begin it yet.
    Hold,
    /// Begin the member at the time at which all members of the gang begin.
    Begin,
    /// The gang is broken, because one of its members is lost.
    Break {
        /// Index of the lost member among the members of the gang.
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
    /// The host did not reply. It is unknown whether the host has carried out the message.
    Nothing,
}

/// Connection to the hosts of a gang.
pub trait Hosts {
    /// Sends a message to the hosts of the given members, without waiting for one host before the
    /// next. Returns the replies in the order of `members`.
    fn tell(&mut self, word: GangMessage, members: &[usize]) -> Vec<GangReply>;
}

/// Outcome of an attempt to start a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GangStart {
    /// All members begin together.
    All,
    /// No member begins, because the hosts of some members refused or did not reply.
    None {
        /// Members whose host refused or did not reply.
        because: Vec<usize>,
        /// Members whose hosts did not confirm the message that the gang is broken. Such a member
        /// may still be held, or may begin.
        untold: Vec<usize>,
    },
}

/// Starts a gang with `members` members. Either all of them begin, or none of them.
pub fn start(hosts: &mut impl Hosts, members: usize) -> GangStart {
    let all: Vec<usize> = (0..members).collect();
    for word in [GangMessage::Hold, GangMessage::Begin] {
        let said = hosts.tell(word, &all);
        let is = |member: &usize| said.get(*member).copied().unwrap_or(GangReply::Nothing);
        let because: Vec<usize> =
            all.iter().copied().filter(|member| is(member) != GangReply::Yes).collect();
        let Some(&lost) = because.first() else { continue };
        // A host that refused to hold its member holds nothing. A host that was ordered to begin
        // may still have its member, whatever it replied.
        let may_be = |member: &usize| word == GangMessage::Begin || is(member) != GangReply::No;
        let concerned: Vec<usize> = all.iter().copied().filter(may_be).collect();
        let told = hosts.tell(GangMessage::Break { lost }, &concerned);
        let is_untold = |(_, said): &(usize, GangReply)| *said == GangReply::Nothing;
        let untold = concerned.into_iter().zip(told).filter(is_untold);
        return GangStart::None { because, untold: untold.map(|(member, _)| member).collect() };
    }
    GangStart::All
}
