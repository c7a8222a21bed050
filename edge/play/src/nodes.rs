//! Addresses of the nodes of parallel programs. Each node has a port of the loopback interface. All
//! ports are bound before any node starts, so that no message arrives before its receiver listens.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use slackline_load::Node;
use slackline_scenario::Scenario;
use slackline_units::VcpuId;

/// Nodes of parallel programs that have not started yet. Each node has its bound socket and the
/// addresses of the other nodes of its program.
#[derive(Debug, Default)]
pub(crate) struct Nodes(HashMap<VcpuId, Node>);

impl Nodes {
    /// Binds a port for each node of a scenario.
    pub(crate) fn bind(scenario: &Scenario) -> io::Result<Nodes> {
        let mut programs: BTreeMap<&str, Vec<(VcpuId, UdpSocket, SocketAddr)>> = BTreeMap::new();
        for domain in scenario.domains.iter().filter(|domain| domain.live.is_none()) {
            let Some(program) = &domain.parallel else { continue };
            for &vcpu in &domain.vcpus {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
                let address = socket.local_addr()?;
                programs.entry(program).or_default().push((vcpu, socket, address));
            }
        }
        let mut nodes = HashMap::new();
        for program in programs.into_values() {
            let all: Vec<SocketAddr> = program.iter().map(|&(_, _, address)| address).collect();
            for (vcpu, socket, own) in program {
                let others = all.iter().copied().filter(|&other| other != own).collect();
                nodes.insert(vcpu, Node { socket, others });
            }
        }
        Ok(Nodes(nodes))
    }

    /// Removes and returns the node of a vCPU. `None` if the vCPU is not a node, or if its node was
    /// removed before.
    pub(crate) fn take(&mut self, vcpu: VcpuId) -> Option<Node> {
        self.0.remove(&vcpu)
    }
}
