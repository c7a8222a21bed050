//! Exchange between the nodes of a parallel program. Each node reports to all other nodes that it
//! has finished a round, and waits until all other nodes have reported the round.
//!
//! A message is a datagram with [`MARK`] and the number of the round, little-endian. A waiting node
//! repeats its message, because the message may have been lost. A message with an older round than
//! the node's own shows that the sender may have missed the node's latest message. The node then
//! sends its latest message to that sender again. A node that ends reports its end, and the other
//! nodes no longer wait for it.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};
use slackline_units::Span;

use crate::LoadError;
use crate::clock::monotonic;
use crate::end::End;

/// Start of every message.
const MARK: [u8; 8] = *b"SLKLBSP1";
const MESSAGE: usize = 16;
/// Round number that a node reports when it ends.
const ENDED: u64 = u64::MAX;
/// Time after which a waiting node repeats its message.
const AGAIN: Span = Span::from_ms(20);

/// Socket and addresses of a node: one of the processes of a parallel program, which wait for each
/// other after every round.
#[derive(Debug)]
pub struct Node {
    /// Bound socket of the node, to which the other nodes send.
    pub socket: UdpSocket,
    /// Addresses of all other nodes of the program.
    pub others: Vec<SocketAddr>,
}

impl Node {
    /// Returns a copy that shares the socket. With the copy, the parent process can report the end
    /// of the node after the node's process was killed.
    ///
    /// # Errors
    /// If no descriptors are left.
    pub fn try_clone(&self) -> std::io::Result<Node> {
        Ok(Node { socket: self.socket.try_clone()?, others: self.others.clone() })
    }

    /// Reports to all other nodes that this node has ended.
    pub fn report_end(&self) {
        self.others.iter().for_each(|&other| tell(&self.socket, other, ENDED));
    }
}

/// State of the exchange of a running node.
#[derive(Debug)]
pub(crate) struct Exchange {
    socket: UdpSocket,
    /// Address of each other node, and the latest round that it has reported as finished.
    others: Vec<(SocketAddr, u64)>,
    round: u64,
}

impl Exchange {
    pub(crate) fn new(node: Node) -> Result<Exchange, LoadError> {
        let others = node.others.into_iter().map(|other| (other, 0)).collect();
        let set = node.socket.set_nonblocking(true);
        set.map_err(|source| LoadError::Network { source })?;
        Ok(Exchange { socket: node.socket, others, round: 0 })
    }

    /// Reports to all other nodes that this node has finished a round, and waits until all other
    /// nodes have finished that round. Returns true if the load ended first.
    pub(crate) fn meet(&mut self, end: &End) -> Result<bool, LoadError> {
        self.round += 1;
        for index in 0..self.others.len() {
            tell(&self.socket, self.others[index].0, self.round);
        }
        let mut again = monotonic().after(AGAIN);
        loop {
            self.take();
            if self.others.iter().all(|&(_, round)| round >= self.round) {
                return Ok(false);
            }
            let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
            if end.wait(&mut fds, again)? {
                return Ok(true);
            }
            if monotonic() >= again {
                for &(other, _) in self.others.iter().filter(|(_, round)| *round < self.round) {
                    tell(&self.socket, other, self.round);
                }
                again = monotonic().after(AGAIN);
            }
        }
    }

    /// Handles the messages that have arrived from other nodes.
    fn take(&mut self) {
        let mut message = [0; MESSAGE + 1];
        loop {
            let (count, from) = match self.socket.recv_from(&mut message) {
                Ok(received) => received,
                // The kernel reports that no process listens yet at an address to which a message
                // was sent.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return,
            };
            let Some(told) = read(&message[..count]) else { continue };
            let Some(other) = self.others.iter_mut().find(|(other, _)| *other == from) else {
                continue;
            };
            other.1 = other.1.max(told);
            if told < self.round {
                tell(&self.socket, from, self.round);
            }
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        for &(other, _) in &self.others {
            tell(&self.socket, other, ENDED);
        }
    }
}

/// Sends the number of a round to another node. The message may be lost. A waiting node repeats it.
fn tell(socket: &UdpSocket, other: SocketAddr, round: u64) {
    let mut message = [0; MESSAGE];
    message[..8].copy_from_slice(&MARK);
    message[8..].copy_from_slice(&round.to_le_bytes());
    let _ = socket.send_to(&message, other);
}

/// Parses the round number in a message. `None` if the message is not one of this protocol.
fn read(message: &[u8]) -> Option<u64> {
    let round = message.strip_prefix(&MARK)?;
    Some(u64::from_le_bytes(round.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes<const N: usize>() -> [Node; N] {
        let socket = |_| UdpSocket::bind("127.0.0.1:0").expect("a port");
        let sockets: [UdpSocket; N] = std::array::from_fn(socket);
        let all: Vec<SocketAddr> = sockets
            .iter()
            .map(|it| it.local_addr().expect("a bound socket has an address"))
            .collect();
        sockets.map(|socket| {
            let own = socket.local_addr().expect("a bound socket has an address");
            let others = all.iter().copied().filter(|&other| other != own).collect();
            Node { socket, others }
        })
    }

    /// Returns an end of a load at a time long after the test.
    fn later() -> End {
        End::at(monotonic().after(Span::from_secs(60)))
    }

    #[test]
    fn bsp_node_waits_until_all_nodes_have_finished_the_round() {
        let come = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for node in nodes::<4>() {
                let come = &come;
                scope.spawn(move || {
                    let mut exchange = Exchange::new(node).expect("a socket");
                    for round in 1..=200 {
                        come.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        assert!(!exchange.meet(&later()).expect("the exchange can wait"));
                        let come = come.load(std::sync::atomic::Ordering::SeqCst);
                        assert!(come >= 4 * round, "{come} after round {round}");
                    }
                });
            }
        });
    }

    #[test]
    fn bsp_nodes_do_not_wait_for_an_ended_node() {
        let [ends, stays] = nodes::<2>();
        let stays = std::thread::spawn(move || {
            let mut exchange = Exchange::new(stays).expect("a socket");
            (0..3)
                .map(|_| exchange.meet(&later()).expect("the exchange can wait"))
                .collect::<Vec<bool>>()
        });
        let mut exchange = Exchange::new(ends).expect("a socket");
        assert!(!exchange.meet(&later()).expect("the exchange can wait"));
        drop(exchange);
        assert_eq!(stays.join().expect("no panic"), [false; 3]);
    }

    /// The exchange of the killed node does not report its end. A copy of the node does so.
    #[test]
    fn end_of_killed_bsp_node_is_reported_by_its_parent() {
        let [killed, stays] = nodes::<2>();
        let copy = killed.try_clone().expect("a descriptor");
        std::mem::forget(Exchange::new(killed).expect("a socket"));
        let stays = std::thread::spawn(move || {
            let mut exchange = Exchange::new(stays).expect("a socket");
            exchange.meet(&later()).expect("the exchange can wait")
        });
        copy.report_end();
        assert!(!stays.join().expect("no panic"));
    }

    /// Lost messages are repeated. Malformed messages, and messages from addresses that are not
    /// nodes, are ignored.
    #[test]
    fn bsp_node_sends_lost_messages_again_and_ignores_foreign_messages() {
        let [one, other] = nodes::<2>();
        let (to, by) =
            (one.socket.local_addr().expect("a bound socket has an address"), other.socket);
        let one = std::thread::spawn(move || {
            let mut exchange = Exchange::new(one).expect("a socket");
            exchange.meet(&later()).expect("the exchange can wait")
        });
        let stranger = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let first = [&MARK[..], &1_u64.to_le_bytes()].concat();
        stranger.send_to(&first, to).expect("the datagram is sent");
        for bad in [&b"SLKLBSP1"[..], b"", &[0; 16], &[&first[..], &[0]].concat()] {
            by.send_to(bad, to).expect("the datagram is sent");
        }
        // The test ignores three messages of the node, as if they were lost. The node continues to
        // send.
        let mut message = [0; MESSAGE];
        for _ in 0..4 {
            assert_eq!(by.recv(&mut message).expect("the node sends"), MESSAGE);
            assert_eq!(read(&message), Some(1));
            assert!(!one.is_finished(), "the node got no message");
        }
        by.send_to(&first, to).expect("the datagram is sent");
        assert!(!one.join().expect("no panic"));
    }

    /// A node is one round behind because it missed a message. The node that is ahead sends the
    /// message again.
    #[test]
    fn lagging_bsp_node_is_sent_message_of_the_current_round() {
        let [ahead, behind] = nodes::<2>();
        let (to, by) =
            (ahead.socket.local_addr().expect("a bound socket has an address"), behind.socket);
        let mut exchange = Exchange::new(ahead).expect("a socket");
        exchange.round = 7;
        by.send_to(&[&MARK[..], &6_u64.to_le_bytes()].concat(), to).expect("the datagram is sent");
        let mut message = [0; MESSAGE];
        by.set_read_timeout(Some(std::time::Duration::from_secs(60)))
            .expect("a timeout can be set");
        while exchange.others[0].1 < 6 {
            exchange.take();
        }
        assert_eq!(by.recv(&mut message).expect("the node answers"), MESSAGE);
        assert_eq!(read(&message), Some(7));
    }

    #[test]
    fn bsp_node_stops_waiting_for_other_nodes_when_run_ends() {
        let [alone, _silent] = nodes::<2>();
        let mut exchange = Exchange::new(alone).expect("a socket");
        let end = End::at(monotonic().after(Span::from_ms(50)));
        assert!(exchange.meet(&end).expect("the exchange can wait"));
        assert!(end.at <= monotonic());
    }
}
