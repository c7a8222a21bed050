//! Network packets, and the table of packets in flight.

/// Kind of message that a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketMessage {
    /// Request of a client to open a connection.
    Open,
    /// Reply of the host to `Open`.
    Opened,
    /// Reply of a client to `Opened`.
    Confirmed,
    /// Request of a client that expects an answer.
    Request,
    /// Data of the answer to a client's request.
    Data,
    /// Acknowledgement by a client of a packet of the answer.
    Ack,
    /// Request of a client to close the connection.
    Close,
    /// Reply of the host to `Close`.
    Closed,
    /// Message of a client that fits into one packet.
    Ping,
    /// Answer to `Ping`, which fits into one packet.
    Pong,
    /// Request of a guest to a server outside the host.
    Ask,
    /// Packet of the server's answer to `Ask`.
    Told,
    /// Data of a stream.
    Stream,
    /// Acknowledgement of this number of stream packets.
    StreamAck(u8),
}

/// Packet of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(super) flow: u32,
    /// Generation of the connection's number. A packet of an older generation belongs to a
    /// connection that has ended.
    pub(super) turn: u32,
    pub(super) says: PacketMessage,
}

impl Packet {
    /// Returns true if the packet is full of data. All other packets count as almost empty.
    #[inline]
    pub(super) fn has_data(self) -> bool {
        matches!(self.says, PacketMessage::Data | PacketMessage::Stream | PacketMessage::Told)
    }
}

/// Packets in flight by number. The number of a packet that has arrived is reused.
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
        self.free.push(u32::try_from(place).expect("the number of packets fits in 32 bits"));
        self.packets[place]
    }
}
