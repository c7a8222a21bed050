//! Benchmarks of all speeds and precisions that Slackline promises. Each value is compared with
//! another system or with the kernel.

mod balance;
mod commands;
mod counting;
mod cpus;
mod live;
mod manager;
mod policy;
mod python;
mod report;
mod scale;
mod service;
mod simso;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// Measures everything that Slackline promises, together with comparable systems.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
    /// Print the result, and also write it to `bench/results/<name>.md`.
    #[arg(long, global = true)]
    save: bool,
}

#[derive(Subcommand)]
enum Bench {
    /// Compare the simulator with SimSo, which is installed if it is missing.
    Simso {
        /// Number of runs of each simulator. The simulators run in turn.
        #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(5..))]
        rounds: u32,
    },
    /// Compare the simulator at 10 to 100,000 vCPUs with a bare heap, and measure the simulator's
    /// memory.
    Scale {
        /// Number of runs of each size. The fastest run is used.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
    },
    /// Measure the simulator with 8, 64 and 256 CPUs and 32 vCPUs per CPU under every policy: time,
    /// and instructions if valgrind is installed.
    Cpus {
        /// Number of timed runs of each policy and size. The fastest run is used.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Only these policies; default: all.
        #[arg(long, value_delimiter = ',')]
        policies: Vec<String>,
    },
    /// Compare whole commands with real time and with their targets.
    Commands {
        /// Number of runs of each short command.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
    },
    /// Measure each policy with 2 to 100,000 vCPUs, and compare it with the stored costs of its
    /// original scheduler, if there is one.
    Policy {
        /// Number of runs of each policy and size.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Only these policies; default: all.
        #[arg(long, value_delimiter = ',')]
        policies: Vec<String>,
        /// Only these numbers of vCPUs; default: the usual sizes.
        #[arg(long, value_delimiter = ',')]
        vcpus: Vec<usize>,
    },
    /// Compare policies written in Python with equal built-in policies; needs the module of
    /// `cargo xtask python`.
    Python {
        /// Number of runs of each form of a policy.
        #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
    },
    /// Measure the cost of a run of each balancer on 8 to 256 CPUs.
    Balance {
        /// Number of rounds for each balancer and size. A round has 40 runs.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
    },
    /// Compare the live host with the kernel's own limits; needs root.
    Live {
        /// Seconds of each measurement. With five measurements per row, all parts take 15 minutes.
        #[arg(long, default_value_t = 12)]
        seconds: u64,
        /// Only these parts: three, busy, percent, fine, change, mixed, gaps. A saved result keeps
        /// the sections of all other parts.
        #[arg(long, value_delimiter = ',')]
        parts: Vec<String>,
    },
    /// Measure the live host with up to 1,000 processes on a CPU, and with up to 128 CPUs whose
    /// events are faked; needs root.
    LiveScale {
        /// Seconds of each measurement.
        #[arg(long, default_value_t = 20)]
        seconds: u64,
    },
    /// Run the allocation error test (ALERT) on the live host and with the kernel's own limits;
    /// needs root.
    Alert {
        /// Measured seconds for each share and each mechanism.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..))]
        seconds: u64,
    },
    /// Run ten scenarios with each mechanism of `--enforce`; needs root. MECH-12 is measured with
    /// `--auto --rounds 10 --seconds 60`, which takes two hours.
    Mechanisms {
        /// Measured seconds of each scenario and mechanism.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..))]
        seconds: u64,
        /// Instead of the scenarios, compare `auto` with the best mechanism (MECH-12).
        #[arg(long)]
        auto: bool,
        /// Number of runs of each mechanism with --auto. The mechanisms run one after another.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
        #[arg(requires = "auto")]
        rounds: u32,
    },
    /// Compare the daemon with the kernel and the disk: changes, restarts, memory, a flood; needs
    /// root.
    Service {
        /// Only these parts: idle, full, flood, gang, many, deadline, pairs, seeds, recorder,
        /// culprits, whatif, changes. A saved result keeps the sections of all other parts. All
        /// parts take about 24 minutes.
        #[arg(long, value_delimiter = ',')]
        parts: Vec<String>,
        /// Number of measured changes in the part `changes`. A change takes about 14 seconds.
        #[arg(long, default_value_t = 30)]
        changes: usize,
    },
    /// Compare the workload manager with fixed shares, an oracle and three other rules.
    Manager,
    /// Run a scale scenario and print its peak memory in KiB; started by `scale`.
    #[command(hide = true)]
    Memory { vcpus: usize, events: u64 },
    /// Run one of the scenarios of `cpus` and print its costs; started by `cpus`.
    #[command(hide = true)]
    CpusRun { policy: String, load: String, cpus: usize, ms: u64 },
    /// Compute forever and print the start of each slice; started by `service`.
    #[command(hide = true)]
    Member,
    /// Compute forever; started by `live`.
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
        Bench::Python { rounds } => ("python", of_one_machine(&python::run(rounds)?)?),
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
        Bench::Service { parts, changes } => {
            let before = fs::read_to_string(results().join("service.md")).unwrap_or_default();
            ("service", service::run((&parts, changes), &before)?)
        }
        Bench::Manager => ("manager", manager::run()?),
        Bench::Alert { seconds } => ("alert", of_one_machine(&live::alert::run(seconds)?)?),
        Bench::Mechanisms { seconds, auto: true, rounds } => {
            let table = live::mechanisms::compare_auto(seconds, rounds)?;
            ("mechanisms-auto", of_one_machine(&table)?)
        }
        Bench::Mechanisms { seconds, .. } => {
            ("mechanisms", of_one_machine(&live::mechanisms::run(seconds)?)?)
        }
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

/// Returns `table` below a description of the test machine. All results of the table are from this
/// machine.
fn of_one_machine(table: &str) -> Result<String> {
    Ok(format!("{}\n{table}", report::machine()?))
}

fn results() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("results")
}
