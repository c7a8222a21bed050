//! Entry point of `cargo xtask`, which selects a task of the library.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use slackline_xtask::{
    browser, ci, contract, dist, fit, fuzz, guest, libvirt, manager, metadata, mutants, no_std,
    outside, python, quick, rt_app, scenarios, service, soak, tests, tidy,
};

const USAGE: &str = "\
usage: cargo xtask COMMAND

Checks:
  ci       make all checks of CI, as `./test` does: fmt, tidy, no-std, docs, build, scenarios,
           browser, python, tests
  ci all   make also the long checks: contract, service, fuzz, soak. Takes an hour; as root
  quick    check fmt and tidy, and test the changed crates without live tests
  tidy     check rules that the compiler does not: line lengths, dependencies, SPECIFICATION
  test     run the tests, without those in xtask/long-tests.txt
  test all run all tests
  no-std   check that the crates `units` and `policy` can be built without `std`
  scenarios [--release]
           check the example scenarios, with a debug build or the release build
  python   build the wheel of the Python module and test it
  browser  test the page in a real browser; as root

Long checks, run by hand:
  mutants  [CRATE ..] [--shard K/N] [--file PATTERN ..] [--stages N]
           change one expression at a time, and report changes that no test notices
  contract [--scripts N] [--seed N]
           run random event scripts under every policy; default 20,000
  service  [--seeds N] [--from M]
           simulate the service with random requests and faults; default 10,000 seeds
  manager  [--seeds N | --runs N]
           --seeds: test the manager with N random predictors and wrong measurements (the default,
           with a million); --runs: simulate N hosts with a manager that predicts with `whatif`
  fit      [--sets N]
           check the proof and the trace of `fit` for N random task sets; default 1,000
  fuzz     [--minutes N] [http|body|link|proc|qmp|hook]
           test parsers with random untrusted input; default 5 minutes for each target
  soak     [--minutes N]
           kill the processes of a live session in turn; default 5 minutes; as root
  soak-mechanisms [--rounds N]
           for each mechanism of `--enforce`, kill processes of `hold` and of the daemon in turn;
           default 200 times; as root
  soak-service [--minutes N] [--kills N]
           start and end VMs of a daemon, with N kills and then a fault each minute; default 10
           minutes; as root
  observe  [--minutes N]
           compare the daemon's reports with the kernel's counters while builds, scripts and an
           adversary are scheduled; default 20 minutes; as root
  attack   [--minutes N]
           attack a daemon as users with few rights, over its socket and over TLS, and measure what
           others notice; default 30 minutes; as root
  mutate   [--count N]
           give mutated traces, recordings, scenarios, hook texts and ledgers to the program;
           default 20000; as root
  rt-app   [--seconds N]
           compare imported threads with rt-app itself; default 20 seconds per run; as root
  sweep    [--scenarios N]
           sweep N scenarios of 1 ms on a Dask cluster of this machine, after `python`; default
           1,000,000
  libvirt  reserve CPU time for a guest of a real libvirt; as root

Tools:
  words    [FOLDER]
           list comments, test names and type names that break a rule of STYLE.md
  words --lower
           lower the counts in xtask/words.txt to the counts of the tree
  page-picture
           make the picture of the page in README
  dist     make the tarball and the Debian package in target/package
  guest    fetch the guest that live tests boot";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match command(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command(arguments: &[String]) -> Result<ExitCode> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // Cargo sets this variable to the folder of this crate. All paths below are relative to the
    // root of the repository.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(std::path::PathBuf::from);
    if let Some(root) = here.as_deref().and_then(Path::parent) {
        std::env::set_current_dir(root)?;
    }
    match words.as_slice() {
        ["ci"] => ci::run(ci::Extent::Usual),
        ["ci", "all"] => ci::run(ci::Extent::All),
        ["quick"] => said(&quick::run(&metadata::read()?)?),
        ["tidy"] => Ok(exit(tidy::tidy(&metadata::read()?)?)),
        ["words", "--lower"] => Ok(exit(tidy::lower_words()?)),
        ["words"] => tidy::list_words("").map(|()| ExitCode::SUCCESS),
        ["words", folder] => tidy::list_words(folder).map(|()| ExitCode::SUCCESS),
        ["no-std"] => said(&no_std::prove(&metadata::read()?)?),
        ["test"] => Ok(exit(tests::run(tests::Selection::Usual)?.failed == 0)),
        ["test", "all"] => Ok(exit(tests::run(tests::Selection::All)?.failed == 0)),
        ["scenarios"] => said(&ci::scenarios(&metadata::read()?)?),
        ["scenarios", "--release"] => said(&scenarios::run_released(&metadata::read()?)?),
        ["python"] => said(&python::run()?),
        ["browser"] => said(&browser::run(&tests::build()?.program)?),
        ["page-picture"] => said(&browser::picture(&tests::build()?.program)?),
        ["mutants", rest @ ..] => mutants::run(&mutants::MutantSelection::read(rest)?),
        ["contract", rest @ ..] => contract::run(&contract::Scripts::read(rest)?),
        ["soak"] => soak::session("5"),
        ["soak", "--minutes", minutes] => soak::session(minutes),
        ["soak-mechanisms"] => soak::mechanisms("200"),
        ["soak-mechanisms", "--rounds", rounds] => soak::mechanisms(rounds),
        ["soak-service", options @ ..] => soak::service(options),
        ["service"] => service::run("10000", "0"),
        ["service", "--seeds", seeds] => service::run(seeds, "0"),
        ["service", "--seeds", seeds, "--from", from] => service::run(seeds, from),
        ["manager"] => manager::run("1000000"),
        ["manager", "--seeds", seeds] => manager::run(seeds),
        ["manager", "--runs", seeds] => manager::run_with_predictor(seeds),
        ["fit"] => fit::run("1000"),
        ["fit", "--sets", sets] => fit::run(sets),
        ["observe"] => outside::observe("20"),
        ["observe", "--minutes", minutes] => outside::observe(minutes),
        ["attack"] => outside::attack("30"),
        ["attack", "--minutes", minutes] => outside::attack(minutes),
        ["mutate"] => outside::mutate("20000"),
        ["mutate", "--count", count] => outside::mutate(count),
        ["rt-app"] => rt_app::run("20"),
        ["rt-app", "--seconds", seconds] => rt_app::run(seconds),
        ["sweep"] => python::long_sweep("1000000"),
        ["sweep", "--scenarios", count] => python::long_sweep(count),
        ["fuzz"] => fuzz::run("5", None),
        ["fuzz", "--minutes", minutes] => fuzz::run(minutes, None),
        ["fuzz", "--minutes", minutes, target] => fuzz::run(minutes, Some(target)),
        ["fuzz", target] => fuzz::run("5", Some(target)),
        ["dist"] => said(&dist::run(&metadata::read()?)?),
        ["guest"] => {
            let guest = guest::fetch(Path::new(".cache/guest"))?;
            println!("kernel    {}", guest.kernel.display());
            println!("initramfs {}", guest.initramfs.display());
            Ok(ExitCode::SUCCESS)
        }
        ["libvirt"] => libvirt::run(),
        [] | ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        [other, ..] => bail!("there is no command `{other}`, or its arguments are wrong\n{USAGE}"),
    }
}

fn said(words: &str) -> Result<ExitCode> {
    println!("{words}");
    Ok(ExitCode::SUCCESS)
}

fn exit(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
