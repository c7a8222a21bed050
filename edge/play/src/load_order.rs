//! What a load process is told to do, and how it is started.

use std::net::SocketAddr;
use std::process::Command;

use slackline_load::system::Callers;
use slackline_scenario::io::{Client, ClientKind, Way};
use slackline_scenario::{Domain, Program, Scenario, System};
use slackline_units::{DomId, Time, VcpuId};

/// What a load process is to do.
#[derive(Debug)]
pub struct LoadOrder<'a> {
    /// Which part it plays.
    pub part: Part<'a>,
    /// The seed of the run.
    pub seed: u64,
    /// When it begins, on the monotonic clock.
    pub start: Time,
}

/// A part that a load process plays.
#[derive(Debug)]
pub enum Part<'a> {
    /// A vCPU with a program.
    Program {
        /// The steps.
        program: &'a Program,
        /// Whose draws it makes.
        vcpu: VcpuId,
        /// Where the other nodes are, of a node of a parallel program. Its own socket is then its
        /// standard input.
        others: &'a [SocketAddr],
    },
    /// A domain with tasks that need devices.
    System {
        /// The tasks.
        system: &'a System,
        /// Whose draws they make.
        domain: DomId,
        /// Who talks to it.
        from: Callers,
        /// The port of the server that it asks for files, if it does.
        files: Option<u16>,
    },
    /// Somebody outside.
    Client {
        /// What it does.
        client: &'a Client,
        /// Its number, which says what it draws.
        number: usize,
        /// The port that it talks to.
        port: u16,
        /// When it begins, in the time of the run.
        begins: Time,
    },
    /// The server outside that tasks ask for files.
    Files,
}

/// Makes the command of a load process, which writes what it has to tell on its standard output.
pub type LoadCommand<'a> = &'a dyn Fn(&LoadOrder<'_>) -> Command;

/// Who talks to a domain.
pub(crate) fn callers(scenario: &Scenario, domain: &Domain) -> Callers {
    let mut callers = Callers::default();
    for client in scenario.io.iter().flat_map(|io| &io.clients) {
        if scenario.domains[client.to].id != domain.id {
            continue;
        }
        match client.kind {
            ClientKind::Stream { way: Way::In, .. } => callers.inward = true,
            ClientKind::Stream { way: Way::Out, .. } => callers.outward = true,
            _ => callers.requests = true,
        }
    }
    callers
}
