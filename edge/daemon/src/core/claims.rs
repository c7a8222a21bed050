//! What of this machine is this daemon's alone: no CPU is scheduled by two of them.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use slackline_units::CpuId;

/// The right to CPUs, for as long as it is kept, by whatever end it comes to.
#[derive(Debug)]
pub(super) struct Claims(#[allow(dead_code)] Vec<OwnedFd>);

/// Why CPUs cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another daemon has this one.
    #[error("another daemon schedules CPU {} already", cpu.index())]
    Taken {
        /// Which.
        cpu: CpuId,
    },
    /// The kernel refuses.
    #[error("cannot claim CPU {}: {source}", cpu.index())]
    Refused {
        /// Which.
        cpu: CpuId,
        /// What it says.
        source: io::Error,
    },
}

impl Claims {
    /// Takes these CPUs: a name in the kernel for each, that is free again when we end.
    pub(super) fn take(cpus: &[CpuId]) -> Result<Claims, ClaimError> {
        let claims = cpus.iter().map(|&cpu| {
            let refused = |errno: Errno| match errno {
                Errno::ADDRINUSE => ClaimError::Taken { cpu },
                errno => ClaimError::Refused { cpu, source: errno.into() },
            };
            let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
            let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).map_err(refused)?;
            let name = format!("slackline/cpu/{}", cpu.index());
            let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(refused)?;
            bind(&socket, &name).map_err(refused)?;
            Ok(socket)
        });
        Ok(Claims(claims.collect::<Result<_, _>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_one_daemons_until_that_ends() {
        // The last numbers there can be: no machine that tests run on has them.
        let cpus = [CpuId::LIMIT - 2, CpuId::LIMIT - 1].map(CpuId::new);
        let first = Claims::take(&cpus[..1]).unwrap();
        let Err(ClaimError::Taken { cpu }) = Claims::take(&cpus) else {
            panic!("a CPU was given twice");
        };
        assert_eq!(cpu, cpus[0]);
        // What could be had of it has been given back.
        drop(Claims::take(&cpus[1..]).unwrap());
        drop(first);
        assert!(Claims::take(&cpus).is_ok());
    }
}
