//! The exchange between the nodes of a parallel program: each tells all others that it has come to
//! the end of a round, and waits until all have told it.
//!
//! A message is a datagram of [`MARK`] and the number of the round, little-endian. One that is lost
//! is sent again by whoever waits: to be asked by somebody who is behind is to be told that he
//! lacks one. A node that ends says so, and nobody waits for it any more.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};
use slackline_units::Span;

use crate::LoadError;
use crate::clock::monotonic;
use crate::end::End;

/// What a message begins with.
const MARK: [u8; 8] = *b"SLKLBSP1";
const MESSAGE: usize = 16;
/// The round of a node that has ended.
const ENDED: u64 = u64::MAX;
/// After so long without an answer a message may be lost.
const AGAIN: Span = Span::from_ms(20);

/// A node's place among the others.
#[derive(Debug)]
pub struct Node {
    /// Where it is sent to, bound.
    pub socket: UdpSocket,
    /// All other nodes.
    pub others: Vec<SocketAddr>,
}

/// A node at work.
#[derive(Debug)]
pub(crate) struct Exchange {
    socket: UdpSocket,
    /// Each other node, and to which round it is known to have come.
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

    /// Ends a round when all have; whether the end of all came first.
    pub(crate) fn meet(&mut self, end: &End) -> Result<bool, LoadError> {
        self.round += 1;
        for index in 0..self.others.len() {
            self.tell(self.others[index].0, self.round);
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
                    self.tell(other, self.round);
                }
                again = monotonic().after(AGAIN);
            }
        }
    }

    /// Takes what has come in.
    fn take(&mut self) {
        let mut message = [0; MESSAGE + 1];
        loop {
            let (count, from) = match self.socket.recv_from(&mut message) {
                Ok(received) => received,
                // That nobody listens yet at the other end of what was sent.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return,
            };
            let Some(told) = read(&message[..count]) else { continue };
            let Some(other) = self.others.iter_mut().find(|(other, _)| *other == from) else {
                continue;
            };
            other.1 = other.1.max(told);
            if told < self.round {
                self.tell(from, self.round);
            }
        }
    }

    /// What does not get there is told again.
    fn tell(&self, other: SocketAddr, round: u64) {
        let mut message = [0; MESSAGE];
        message[..8].copy_from_slice(&MARK);
        message[8..].copy_from_slice(&round.to_le_bytes());
        let _ = self.socket.send_to(&message, other);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        for &(other, _) in &self.others {
            self.tell(other, ENDED);
        }
    }
}

/// The round that a message tells; none if it is not one of ours.
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
        let all: Vec<SocketAddr> = sockets.iter().map(|it| it.local_addr().expect("it")).collect();
        sockets.map(|socket| {
            let own = socket.local_addr().expect("it has one");
            let others = all.iter().copied().filter(|&other| other != own).collect();
            Node { socket, others }
        })
    }

    /// So much longer than anything takes.
    fn later() -> End {
        End::at(monotonic().after(Span::from_secs(60)))
    }

    #[test]
    fn nobody_goes_on_before_all_have_come() {
        let come = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for node in nodes::<4>() {
                let come = &come;
                scope.spawn(move || {
                    let mut exchange = Exchange::new(node).expect("a socket");
                    for round in 1..=200 {
                        come.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        assert!(!exchange.meet(&later()).expect("it can wait"));
                        let come = come.load(std::sync::atomic::Ordering::SeqCst);
                        assert!(come >= 4 * round, "{come} after round {round}");
                    }
                });
            }
        });
    }

    #[test]
    fn who_has_ended_is_not_waited_for() {
        let [ends, stays] = nodes::<2>();
        let stays = std::thread::spawn(move || {
            let mut exchange = Exchange::new(stays).expect("a socket");
            (0..3).map(|_| exchange.meet(&later()).expect("it can wait")).collect::<Vec<bool>>()
        });
        let mut exchange = Exchange::new(ends).expect("a socket");
        assert!(!exchange.meet(&later()).expect("it can wait"));
        drop(exchange);
        assert_eq!(stays.join().expect("no panic"), [false; 3]);
    }

    /// What is lost is told again, what is none of ours and what strangers say counts for nothing.
    #[test]
    fn messages_may_be_lost_and_strangers_may_write() {
        let [one, other] = nodes::<2>();
        let (to, by) = (one.socket.local_addr().expect("it"), other.socket);
        let one = std::thread::spawn(move || {
            let mut exchange = Exchange::new(one).expect("a socket");
            exchange.meet(&later()).expect("it can wait")
        });
        let stranger = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let first = [&MARK[..], &1_u64.to_le_bytes()].concat();
        stranger.send_to(&first, to).expect("it is sent");
        for bad in [&b"SLKLBSP1"[..], b"", &[0; 16], &[&first[..], &[0]].concat()] {
            by.send_to(bad, to).expect("it is sent");
        }
        // Three of its messages are as good as lost; it goes on telling.
        let mut message = [0; MESSAGE];
        for _ in 0..4 {
            assert_eq!(by.recv(&mut message).expect("it tells"), MESSAGE);
            assert_eq!(read(&message), Some(1));
            assert!(!one.is_finished(), "nobody has told it anything");
        }
        by.send_to(&first, to).expect("it is sent");
        assert!(!one.join().expect("no panic"));
    }

    /// Who is behind lacks a message, and gets it from who is ahead.
    #[test]
    fn who_is_behind_is_told_again() {
        let [ahead, behind] = nodes::<2>();
        let (to, by) = (ahead.socket.local_addr().expect("it"), behind.socket);
        let mut exchange = Exchange::new(ahead).expect("a socket");
        exchange.round = 7;
        by.send_to(&[&MARK[..], &6_u64.to_le_bytes()].concat(), to).expect("it is sent");
        let mut message = [0; MESSAGE];
        by.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("it can");
        while exchange.others[0].1 < 6 {
            exchange.take();
        }
        assert_eq!(by.recv(&mut message).expect("it is told"), MESSAGE);
        assert_eq!(read(&message), Some(7));
    }

    #[test]
    fn waiting_ends_with_the_end() {
        let [alone, _silent] = nodes::<2>();
        let mut exchange = Exchange::new(alone).expect("a socket");
        let end = End::at(monotonic().after(Span::from_ms(50)));
        assert!(exchange.meet(&end).expect("it can wait"));
        assert!(end.at <= monotonic());
    }
}
