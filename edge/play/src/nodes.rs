//! Where the nodes of parallel programs reach each other: each has a port of the loopback, bound
//! before any of them starts, so that no message comes too early for its receiver.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use slackline_load::Node;
use slackline_scenario::Scenario;
use slackline_units::VcpuId;

/// The nodes that have not been started yet, each with its own end and where the others are.
#[derive(Debug, Default)]
pub(crate) struct Nodes(HashMap<VcpuId, Node>);

impl Nodes {
    /// A port for each node of a scenario.
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

    /// The place of a vCPU, if it is a node; once.
    pub(crate) fn take(&mut self, vcpu: VcpuId) -> Option<Node> {
        self.0.remove(&vcpu)
    }
}
