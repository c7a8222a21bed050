//! Every speed and precision that is promised, measured beside its peer.

mod balance;
mod commands;
mod counting;
mod cpus;
mod live;
mod policy;
mod report;
mod scale;
mod service;
mod simso;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// Measures what is promised, beside its peer in the same run.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
    /// Also writes what came out to `bench/results/<name>.md`.
    #[arg(long, global = true)]
    save: bool,
}

#[derive(Subcommand)]
enum Bench {
    /// The simulator beside SimSo, which is installed for it.
    Simso {
        /// How often each runs, in turn.
        #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(5..))]
        rounds: u32,
    },
    /// The simulator at 10 to 100,000 vCPUs beside a bare heap, and its memory.
    Scale {
        /// How often each size is measured; the fastest counts.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
    },
    /// The simulator with 8, 64 and 256 CPUs and 32 vCPUs a CPU under every policy; counts
    /// instructions with valgrind.
    Cpus {
        /// How often each is timed; the fastest counts.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Only these policies; all if none is named.
        #[arg(long, value_delimiter = ',')]
        policies: Vec<String>,
    },
    /// Whole commands against real time and what is promised of them.
    Commands {
        /// How often the short ones run.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
    },
    /// Each policy at 2 to 100,000 vCPUs, beside the original where there is one.
    Policy {
        /// How often each is measured.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Only these policies; all if none is named.
        #[arg(long, value_delimiter = ',')]
        policies: Vec<String>,
        /// Only with so many vCPUs; the usual sizes if none is given.
        #[arg(long, value_delimiter = ',')]
        vcpus: Vec<usize>,
    },
    /// A run of each balancer on 8 to 256 CPUs.
    Balance {
        /// How often each is measured.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
    },
    /// The live host beside the kernel's own limits; needs root.
    Live {
        /// How long each measurement takes, of which there are five a row: 15 minutes in all.
        #[arg(long, default_value_t = 12)]
        seconds: u64,
        /// Only these parts: three, busy, percent, fine, change, mixed. What is saved keeps what it
        /// has of the others.
        #[arg(long, value_delimiter = ',')]
        parts: Vec<String>,
    },
    /// The live host with up to 1,000 processes on a CPU, and fed from memory with up to 128 CPUs;
    /// needs root.
    LiveScale {
        /// How long each measurement takes.
        #[arg(long, default_value_t = 20)]
        seconds: u64,
    },
    /// ALERT on the live host: Slackline beside the kernel's own limits; needs root.
    Alert {
        /// For how many seconds each share is measured in each way.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..))]
        seconds: u64,
    },
    /// The daemon beside the kernel and the disk: changes, restarts, memory, a flood; needs root.
    Service {
        /// Only these parts: idle, full, flood, gang, many, pairs, seeds. What is saved keeps what
        /// it has of the others. All take about six minutes.
        #[arg(long, value_delimiter = ',')]
        parts: Vec<String>,
    },
    /// Runs a scale scenario and prints its peak memory in KiB; `scale` starts this.
    #[command(hide = true)]
    Memory { vcpus: usize, events: u64 },
    /// Runs one of the scenarios of `cpus` and prints what it took; `cpus` starts this.
    #[command(hide = true)]
    CpusRun { policy: String, load: String, cpus: usize, ms: u64 },
    /// Never ends, and says when it goes on; `service` starts this.
    #[command(hide = true)]
    Member,
    /// Never ends; `live` starts this.
    #[command(hide = true)]
    Busy {
        threads: usize,
        #[arg(long, default_value_t = 0)]
        processes: usize,
    },
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let (name, table) = match arguments.bench {
        Bench::Simso { rounds } => ("simso", of_one_machine(&simso::run(rounds)?)?),
        Bench::Scale { rounds } => ("scale", of_one_machine(&scale::run(rounds)?)?),
        Bench::Cpus { rounds, policies } => {
            ("cpus", of_one_machine(&cpus::run(rounds, &policies)?)?)
        }
        Bench::Balance { rounds } => ("balance", of_one_machine(&balance::run(rounds)?)?),
        Bench::Commands { rounds } => ("commands", of_one_machine(&commands::run(rounds)?)?),
        Bench::Policy { rounds, policies, vcpus } => {
            ("policy", of_one_machine(&policy::run(rounds, &policies, &vcpus)?)?)
        }
        Bench::Live { seconds, parts } => {
            let before = fs::read_to_string(results().join("live.md")).unwrap_or_default();
            ("live", live::run(seconds, &parts, &before)?)
        }
        Bench::LiveScale { seconds } => {
            ("live-scale", of_one_machine(&live::scale::run(seconds)?)?)
        }
        Bench::Service { parts } => {
            let before = fs::read_to_string(results().join("service.md")).unwrap_or_default();
            ("service", service::run(&parts, &before)?)
        }
        Bench::Alert { seconds } => ("alert", of_one_machine(&live::alert::run(seconds)?)?),
        Bench::Memory { vcpus, events } => {
            println!("{}", scale::peak_memory(vcpus, events)?);
            return Ok(());
        }
        Bench::CpusRun { policy, load, cpus, ms } => {
            println!("{}", cpus::tell(&policy, &load, cpus, ms)?);
            return Ok(());
        }
        Bench::Member => return service::gang::play_member(),
        Bench::Busy { threads, processes } => return live::play_busy(threads, processes),
    };
    let text = format!("# {name}\n\n{table}");
    print!("{text}");
    if arguments.save {
        let folder = results();
        fs::create_dir_all(&folder).context("no folder for the results")?;
        fs::write(folder.join(format!("{name}.md")), text).context("the result is not saved")?;
    }
    Ok(())
}

/// What was measured in one go, below the machine that it ran on.
fn of_one_machine(table: &str) -> Result<String> {
    Ok(format!("{}\n{table}", report::machine()?))
}

fn results() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("results")
}
