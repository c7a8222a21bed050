//! Balancers on whole simulated hosts: the runs that hands can work out, at every phase of the
//! start, and what holds on random hosts. Nothing costs anything here, but in `paid`.

mod hosts;
mod paid;
mod random;

use hosts::{Guest, Host, MS, run};

/// Best effort, of this weight, on this CPU at first.
fn loops(placed: &[(usize, u64)]) -> Vec<Guest> {
    let guest = |&(cpu, weight): &(usize, u64)| Guest::hog(cpu, weight);
    placed.iter().map(guest).collect()
}

fn reserved(cpu: usize, slice: u64) -> Guest {
    Guest::promised(cpu, slice * MS, 20 * MS)
}

struct Case {
    id: &'static str,
    cpus: usize,
    guests: Vec<Guest>,
    /// By balancer: shares in thousandths of a CPU, of those who have no reservation.
    shares: [(&'static str, Vec<u64>); 2],
    /// Moves a second, under both.
    moves: [u64; 2],
}

fn hosts_by_hand() -> Vec<Case> {
    let case = |id, cpus, guests, literal: &[u64], repaired: &[u64], moves| {
        let shares = [("thesis", literal.to_vec()), ("repaired", repaired.to_vec())];
        Case { id, cpus, guests, shares, moves }
    };
    let with = |cpu, slice, placed: &[(usize, u64)]| {
        let mut guests = loops(placed);
        guests.push(reserved(cpu, slice));
        guests
    };
    let r1 = [583; 3];
    let three = [667; 3];
    let heavy = loops(&[(0, 4), (0, 1), (1, 1), (1, 1)]);
    let heavier = loops(&[(0, 10), (0, 1), (1, 1), (1, 1)]);
    let alone = [1_000, 333, 333, 333];
    vec![
        case("R1", 2, with(0, 5, &[(0, 1), (1, 1), (1, 1)]), &r1, &r1, [4, 4]),
        case("R2", 2, with(0, 5, &[(0, 1), (0, 1), (1, 1)]), &r1, &r1, [4, 4]),
        case("R3", 2, loops(&[(0, 1), (0, 1), (1, 1)]), &three, &three, [4, 4]),
        case("R4", 2, loops(&[(0, 1); 3]), &three, &three, [4, 4]),
        case(
            "R5",
            4,
            loops(&[(0, 1), (1, 1), (2, 1), (3, 1), (0, 1)]),
            &[667, 1_000, 1_000, 667, 667],
            &[800; 5],
            [4, 4],
        ),
        case("R6 half", 2, with(0, 10, &[(0, 1)]), &[1_000], &[1_000], [0, 0]),
        case("R6 quarter", 2, with(0, 5, &[(0, 1)]), &[750], &[1_000], [0, 0]),
        case(
            "R7",
            2,
            loops(&[(0, 1), (0, 1), (1, 2), (1, 2)]),
            &[333, 333, 667, 667],
            &[333, 333, 667, 667],
            [0, 0],
        ),
        case("R8 four", 2, heavy, &alone, &alone, [0, 0]),
        case("R8 ten", 2, heavier, &[909, 91, 500, 500], &alone, [0, 0]),
        case(
            "R9",
            2,
            loops(&[(0, 3), (1, 2), (1, 2)]),
            &[1_000, 500, 500],
            &[1_000, 500, 500],
            [0, 0],
        ),
    ]
}

/// R1 to R9 of the reference, from 2 s on.
#[test]
fn whole_runs_are_what_hands_work_out() {
    for Case { id, cpus, guests, shares, moves } in hosts_by_hand() {
        for ((balancer, expected), moves) in shares.into_iter().zip(moves) {
            let host = Host { cpus, balancer, length: 62_000 * MS, ..Host::default() };
            let got = run(&host, &guests);
            let window = 2_000..62_000;
            for (slot, expected) in expected.into_iter().enumerate() {
                let had = got.had(slot, window.clone()).ns() / (60 * MS);
                let near = had.abs_diff(expected) <= 1; // Thousandths, rounded.
                assert!(near, "{id}, {balancer}: {slot} had {had}");
            }
            let made = got.moves(window.clone()) as u64;
            assert_eq!(made, 60 * moves, "{id}, {balancer}: moves in a minute");
            assert_eq!(got.missed(host.length), [], "{id}, {balancer}: slices missed");
        }
    }
}

/// R1 to R4 with tau by runs: the same shares. (R5 by the thesis depends on who is moved first.)
#[test]
fn tau_by_runs_rotates_too() {
    for Case { id, cpus, guests, shares, .. } in hosts_by_hand().into_iter().take(4) {
        let [_, (balancer, expected)] = shares;
        let fields = ", tau = 'runs'".to_owned();
        let host = Host { cpus, balancer, fields, length: 62_000 * MS, ..Host::default() };
        let got = run(&host, &guests);
        for (slot, expected) in expected.into_iter().enumerate() {
            let had = got.had(slot, 2_000..62_000).ns() / 60_000_000;
            assert!(had.abs_diff(expected) <= 2, "{id}: {slot} had {had} of {expected}");
        }
    }
}

/// R10: two islands of two CPUs, with three and with four loops; nobody crosses.
#[test]
fn islands_are_balanced_each_by_itself() {
    let island = |cpus: &[usize], starts: &[usize]| {
        let guest = |&cpu: &usize| Guest { cpus: Some(cpus.to_vec()), ..Guest::hog(cpu, 1) };
        starts.iter().map(guest).collect::<Vec<_>>()
    };
    let guests = [island(&[0, 1], &[0, 0, 0]), island(&[2, 3], &[2, 2, 2, 3])].concat();
    for balancer in ["thesis", "repaired"] {
        let host = Host { cpus: 4, balancer, length: 62_000 * MS, ..Host::default() };
        let got = run(&host, &guests);
        let had = |slot| got.had(slot, 2_000..62_000).ns() / 60_000_000;
        let had: Vec<u64> = (0..7).map(had).collect();
        let near = |slots: &[u64], share: u64| slots.iter().all(|had| had.abs_diff(share) <= 1);
        assert!(near(&had[..3], 667) && near(&had[3..], 500), "{balancer}: {had:?}");
        assert_eq!(got.moves(2_000..62_000), 240, "{balancer}");
        let crosses = got.stretches.iter().find(|on| (on.slot < 3) != (on.cpu < 2));
        assert!(crosses.is_none(), "{balancer}: {crosses:?}");
    }
}

/// R11, figure 4.3: one of those on CPU 1 may also run on CPU 3. All four CPUs are a group; who may
/// not run on CPU 2 never does, and the bridge is crossed.
#[test]
fn a_bridge_between_islands_is_for_who_may_cross_it() {
    let on = |cpu: usize, cpus: &[usize]| Guest { cpus: Some(cpus.to_vec()), ..Guest::hog(cpu, 1) };
    let guests =
        vec![on(0, &[0, 1]), on(0, &[0, 1]), on(1, &[0, 1]), on(1, &[0, 1, 3]), on(2, &[2, 3])];
    for balancer in ["thesis", "repaired"] {
        let host = Host { cpus: 4, balancer, length: 30_000 * MS, ..Host::default() };
        let got = run(&host, &guests);
        for on in &got.stretches {
            let allowed = guests[on.slot].cpus.as_ref().expect("all are confined");
            assert!(allowed.contains(&on.cpu), "{balancer}: {on:?}");
        }
        let bridged = got.stretches.iter().any(|on| on.slot == 3 && on.cpu == 3);
        assert!(bridged, "{balancer}: CPU 3 is empty and CPU 1 is crowded");
        let had = |slot| got.had(slot, 2_000..29_000).ns() / 27_000_000;
        let had: Vec<u64> = (0..5).map(had).collect();
        let near = |slots: &[u64], share: u64| slots.iter().all(|had| had.abs_diff(share) <= 1);
        assert!(near(&had[..3], 667) && near(&had[3..], 1_000), "{balancer}: {had:?}");
    }
}

/// Figures 4.4 and 4.5: a loop beside dom0, which has 5 ms of every 20 ms, and two on the other
/// CPU. Whenever they start between two runs each has the same, at most an exchange apart from
/// another, and dom0 has its slice in each of its periods.
#[test]
fn three_loops_beside_dom0_overlap_exactly() {
    for (balancer, phase) in ["thesis", "repaired"]
        .into_iter()
        .flat_map(|balancer| (0..10).map(move |tenth| (balancer, tenth * 50 + tenth * tenth)))
    {
        let mut guests = loops(&[(0, 1), (1, 1), (1, 1)]);
        guests.iter_mut().for_each(|guest| guest.joins = phase * MS);
        guests.insert(0, reserved(0, 5));
        let host = Host { balancer, length: 61_000 * MS, ..Host::default() };
        let got = run(&host, &guests);
        let sums = got.sums(phase..phase + 60_000, 10);
        let spread =
            |sums: &Vec<u64>| sums[1..].iter().max().unwrap() - sums[1..].iter().min().unwrap();
        let widest = sums.iter().map(spread).max().expect("a run");
        assert!(widest <= 140 * MS, "{balancer} at {phase} ms: {widest} ns apart");
        for had in &sums.last().expect("a run")[1..] {
            assert!(had.abs_diff(35_000 * MS) <= 350 * MS, "{balancer} at {phase} ms: {had} ns");
        }
        assert_eq!(got.missed(host.length), [], "{balancer} at {phase} ms");
        let levels = |slot: usize| {
            let samples = sums.windows(11).map(move |steps| steps[10][slot] - steps[0][slot]);
            let near = |level: u64| samples.clone().any(|had| had.abs_diff(level * MS) <= MS);
            near(75) && near(50)
        };
        assert!((1..4).all(levels), "{balancer} at {phase} ms: alone at 0.75, in a pair at 0.5");
    }
}

/// On one CPU there is nothing to balance, and nothing happens for it.
#[test]
fn on_one_cpu_a_balancer_is_not_there() {
    let guests = vec![Guest::hog(0, 1), Guest::hog(0, 3), Guest::promised(0, 5 * MS, 20 * MS)];
    let [none, others @ ..] = ["none", "thesis", "repaired", "planned"].map(|balancer| {
        let host = Host { cpus: 1, balancer, length: 2_000 * MS, ..Host::default() };
        run(&host, &guests).trace
    });
    assert!(others.iter().all(|other| *other == none));
}

/// Who may only run on CPU 0 from now on goes there and stays, and may go again when it may.
#[test]
fn where_somebody_may_run_changes_while_it_runs() {
    let text = hosts::text(
        &Host { balancer: "repaired", length: 30_000 * MS, ..Host::default() },
        &loops(&[(0, 1), (1, 1), (1, 1)]),
    );
    let change =
        |at: u64, cpus: &str| format!("[[change]]\nat = '{at}s'\ndomain = 'g2'\ncpus = {cpus}\n");
    let text = text + &change(10, "[0]") + &change(20, "[0, 1]");
    let got = hosts::run_text(&text, &[]);
    let cpus = |from: u64, to: u64| {
        let own = got.stretches.iter().filter(|on| on.slot == 2);
        let (from, to) = (from * 1_000 * MS, to * 1_000 * MS);
        let inside = own.filter(|on| on.from.ns() >= from && on.to.ns() <= to);
        let mut cpus: Vec<usize> = inside.map(|on| on.cpu).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    };
    assert_eq!(cpus(0, 10), [0, 1]);
    assert_eq!(cpus(10, 20), [0]);
    assert_eq!(cpus(20, 30), [0, 1]);
}

/// Three on two: each has two thirds of every second, for two moves a second, one a period of half
/// a second. R9: what swapping cannot give, the plan does.
#[test]
fn a_plan_is_exact_with_few_moves() {
    type Case = (&'static [(usize, u64)], &'static [u64]);
    let cases: [Case; 3] = [
        (&[(0, 1), (0, 1), (1, 1)], &[667, 667, 667]),
        (&[(0, 3), (1, 2), (1, 2)], &[857, 571, 571]),
        (&[(0, 10), (0, 1), (1, 1), (1, 1)], &[1_000, 333, 333, 333]),
    ];
    for (placed, expected) in cases {
        let host = Host { balancer: "planned", length: 62_000 * MS, ..Host::default() };
        let got = run(&host, &loops(placed));
        for (slot, expected) in expected.iter().enumerate() {
            let had = got.had(slot, 2_000..62_000).ns() / (60 * MS);
            assert!(had.abs_diff(*expected) <= 2, "{placed:?}: {slot} had {had} of {expected}");
            for second in 2..62 {
                let had = got.had(slot, second * 1_000..(second + 1) * 1_000).ns() / MS;
                assert!(had.abs_diff(*expected) <= 5, "{placed:?}: {slot} had {had} in {second}");
            }
        }
        let moves = if placed.len() == 3 { 120 } else { 0 };
        assert_eq!(got.moves(2_000..62_000), moves, "{placed:?}");
    }
}

/// The same beside dom0, at ten phases; no slice is missed.
#[test]
fn a_plan_keeps_three_loops_beside_dom0_together() {
    for phase in (0..10).map(|tenth| tenth * 50 + tenth * tenth) {
        let mut guests = loops(&[(0, 1), (1, 1), (1, 1)]);
        guests.iter_mut().for_each(|guest| guest.joins = phase * MS);
        guests.insert(0, reserved(0, 5));
        let host = Host { balancer: "planned", length: 62_000 * MS, ..Host::default() };
        let got = run(&host, &guests);
        for slot in 1..4 {
            let had = got.had(slot, 2_000..62_000).ns() / (60 * MS);
            assert!(had.abs_diff(583) <= 3, "at {phase} ms {slot} had {had}");
        }
        assert_eq!(got.missed(host.length), [], "at {phase} ms");
    }
}

/// The two threads of one core exchange vCPUs as two cores do: three equal loops have two thirds of
/// the time each, and one exchange of two vCPUs in each half second.
#[test]
fn threads_of_one_core_exchange_vcpus() {
    for balancer in ["thesis", "repaired"] {
        let host = Host {
            threads: 2,
            balancer,
            keys: "smt = '65%'".into(),
            length: 62_000 * MS,
            ..Host::default()
        };
        let got = run(&host, &loops(&[(0, 1), (0, 1), (1, 1)]));
        for slot in 0..3 {
            let had = got.had(slot, 2_000..62_000).ns() / (60 * MS);
            assert!(had.abs_diff(667) <= 1, "{balancer}: {slot} had {had}");
        }
        assert_eq!(got.moves(2_000..62_000), 240, "{balancer}: moves in a minute");
    }
}

/// R12 and R13: two and three loops on two cores of two threads, each of which does 0.65 of a
/// core's work while the other one is busy. Work, in thousandths of a core.
#[test]
fn threads_of_a_core_are_not_whole_cpus() {
    let whole = |work: [u64; 3], moves| (work, moves);
    let cases = [
        ("thesis", "0.65cpu", vec![(0, 1), (1, 1)], whole([650, 650, 0], 0)),
        ("repaired", "0.65cpu", vec![(0, 1), (1, 1)], whole([1_000, 1_000, 0], 0)),
        // Who believes that threads are CPUs sees nothing to balance.
        ("repaired", "1cpu", vec![(0, 1), (1, 1)], whole([650, 650, 0], 0)),
        ("thesis", "0.65cpu", vec![(0, 1), (1, 1), (2, 1)], whole([650, 825, 825], 240)),
        ("repaired", "0.65cpu", vec![(0, 1), (1, 1), (2, 1)], whole([767, 767, 767], 240)),
    ];
    for (balancer, believed, placed, (work, moves)) in cases {
        let host = Host {
            cpus: 4,
            threads: 2,
            balancer,
            fields: format!(", smt-believed = '{believed}'"),
            keys: "smt = '65%'".into(),
            length: 62_000 * MS,
            ..Host::default()
        };
        let got = run(&host, &loops(&placed));
        let mut done: Vec<u64> =
            (0..placed.len()).map(|slot| got.work(slot, 2_000..62_000).ns() / (60 * MS)).collect();
        done.sort_unstable();
        for (done, expected) in done.iter().zip(work) {
            assert!(done.abs_diff(expected) <= 2, "{balancer}, {believed}: {done} of {work:?}");
        }
        assert_eq!(got.moves(2_000..62_000), moves, "{balancer}, {believed}");
    }
}
