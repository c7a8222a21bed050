//! Packets, and those that are on their way.

/// What a packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// From a client: a connection, please.
    Open,
    /// The answer to that.
    Opened,
    /// From a client: the answer to the answer.
    Confirmed,
    /// From a client: a request.
    Request,
    /// Data of an answer.
    Data,
    /// From a client: so much of the answer has come.
    Ack,
    /// From a client: no more.
    Close,
    /// The answer to that.
    Closed,
    /// One question that one packet answers, and that packet.
    Ping,
    Pong,
    /// A question to a server outside, and a part of its answer.
    Ask,
    Told,
    /// Data of a stream, and that so many packets of it have come.
    Stream,
    StreamAck(u8),
}

/// A packet of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(super) flow: u32,
    /// Which of the connections that have had this number.
    pub(super) turn: u32,
    pub(super) says: Says,
}

impl Packet {
    /// Whether it is full of data; all others have next to none.
    #[inline]
    pub(super) fn has_data(self) -> bool {
        matches!(self.says, Says::Data | Says::Stream | Says::Told)
    }
}

/// Packets on their way, by a small number; memory is used again.
#[derive(Default)]
pub(super) struct Flights {
    packets: Vec<Packet>,
    free: Vec<u32>,
}

impl Flights {
    pub(super) fn add(&mut self, packet: Packet) -> usize {
        if let Some(place) = self.free.pop() {
            self.packets[place as usize] = packet;
            return place as usize;
        }
        self.packets.push(packet);
        self.packets.len() - 1
    }

    pub(super) fn take(&mut self, place: usize) -> Packet {
        self.free.push(u32::try_from(place).expect("fewer packets than that"));
        self.packets[place]
    }
}
