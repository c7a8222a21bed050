//! Timelines that show the effect of each rule of unblocking, of each distribution of slack, and of
//! each other rule. In timelines whose columns are one quantum long, the quantum is 1 ms.

use crate::picture::picture;

/// Reference on SEDF, §13.5: a best-effort vCPU gets the CPU time beyond the slice. By Xen's rules
/// the first period begins one slice late. By Slackline's rules it begins at once.
#[test]
fn sedf_vcpu_receives_slice_each_period_beside_best_effort_vcpu() {
    picture(
        "sedf rules=xen-3.0.3",
        "
            a slice=5ms period=20ms extra=false rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b                                   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                bbbbbaaaaabbbbbbbbbbbbbbbaaaaabbbbbbbbbbbbbb
        ",
    );
    picture(
        "sedf",
        "
            a slice=5ms period=20ms extra=false rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b                                   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                aaaaabbbbbbbbbbbbbbbaaaaabbbbbbbbbbbbbbbaaaa
        ",
    );
}

/// Reference on SEDF, §13.6: of equal scores the vCPU that arrived first is first. A quantum costs
/// 1/weight.
#[test]
fn sedf_slack_is_divided_in_proportion_to_extra_weight() {
    picture(
        "sedf rules=xen-3.0.3 quantum=1ms",
        "
            x extra-weight=1 rrrrrrrrrrrrrrrrrrrrrrrr
            y extra-weight=2 rrrrrrrrrrrrrrrrrrrrrrrr
            cpu0             xyyxyyxyyxyyxyyxyyxyyxyy
        ",
    );
    picture(
        "sedf quantum=1ms",
        "
            x extra-weight=1 rrrrrrrrrrrrrrrrrrrrrrrr
            y extra-weight=2 rrrrrrrrrrrrrrrrrrrrrrrr
            cpu0             xyyxyyxyyxyyxyyxyyxyyxyy
        ",
    );
}

/// Reference on SEDF, §13.5: without an extra-weight, slice/period counts. 5 of 20 ms count as an
/// extra-weight of 32.
#[test]
fn sedf_extra_weight_defaults_to_slice_over_period() {
    picture(
        "sedf rules=xen-3.0.3 quantum=1ms",
        "
            a slice=5ms period=20ms rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b extra-weight=32       rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                    ababaaaaaababababababababaaaaaababababab
        ",
    );
}

/// The vCPU blocks for the third millisecond of its period. Depending on the rule of unblocking, it
/// then waits for the next period, or continues with the budget that is left after the blocked time
/// is deducted.
#[test]
fn sedf_unblocking_rule_decides_the_budget_after_a_short_block() {
    picture(
        "sedf compensation=none first-period=at-once unblocking=isochronous",
        "
            a slice=6ms period=20ms extra=false latency=5ms rrzrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=8ms period=40ms extra=false             rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                            aabbbbbbbb..........aaaaaa....
        ",
    );
    picture(
        "sedf compensation=none first-period=at-once unblocking=conservative",
        "
            a slice=6ms period=20ms extra=false latency=5ms rrzrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=8ms period=40ms extra=false             rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                            aabbbbbbbb..........aaaaaa....
        ",
    );
    picture(
        "sedf compensation=none first-period=at-once unblocking=latency-hint",
        "
            a slice=6ms period=20ms extra=false latency=5ms rrzrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=8ms period=40ms extra=false             rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                            aabbbbbbbb..........aaaaaa....
        ",
    );
    picture(
        "sedf compensation=none first-period=at-once unblocking=short-resume",
        "
            a slice=6ms period=20ms extra=false latency=5ms rrzrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=8ms period=40ms extra=false             rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                            aabaaabbbbbbb.......aaaaaa....
        ",
    );
    picture(
        "sedf compensation=none first-period=at-once unblocking=burst",
        "
            a slice=6ms period=20ms extra=false latency=5ms rrzrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=8ms period=40ms extra=false             rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                            aabaaabbbbbbb.......aaaaaa....
        ",
    );
    picture(
        "sedf compensation=none first-period=at-once unblocking=extra-support",
        "
            a slice=6ms period=20ms extra=false latency=5ms rrzrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=8ms period=40ms extra=false             rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                            aabbbbbbbb..........aaaaaa....
        ",
    );
    picture(
        "sedf compensation=none first-period=at-once unblocking=proportional",
        "
            a slice=6ms period=20ms extra=false latency=5ms rrzrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=8ms period=40ms extra=false             rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                            aabaaaabbbbbbb......aaaaaa....
        ",
    );
}

/// The vCPU blocks beyond its deadline. Depending on the rule of unblocking, it gets budget again
/// at the fixed start of its next period, or in a new period that begins at the wake. The new
/// period has full length or is shorter. One rule gives it a part of its slice for the rest of the
/// current period.
#[test]
fn sedf_unblocking_rule_decides_the_period_after_a_long_block() {
    picture(
        "sedf compensation=none first-period=at-once unblocking=isochronous",
        "
            a slice=4ms period=10ms extra=false latency=5ms rrzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrr
            b slice=20ms period=50ms extra=false            rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                            aabbbbbbbbbbbbbbbbbbaaaabb....aaaa....
        ",
    );
    picture(
        "sedf compensation=none first-period=at-once unblocking=conservative",
        "
            a slice=4ms period=10ms extra=false latency=5ms rrzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrr
            b slice=20ms period=50ms extra=false            rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                            aabbbbbbbbbbbbbaaaabbbbbbaaaab.....aaa
        ",
    );
    picture(
        "sedf compensation=none first-period=at-once unblocking=latency-hint",
        "
            a slice=4ms period=10ms extra=false latency=5ms rrzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrr
            b slice=20ms period=50ms extra=false            rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                            aabbbbbbbbbbbbbaabbbaaaabbbb..aaaa....
        ",
    );
    picture(
        "sedf compensation=none first-period=at-once unblocking=short-resume",
        "
            a slice=4ms period=10ms extra=false latency=5ms rrzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrr
            b slice=20ms period=50ms extra=false            rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                            aabbbbbbbbbbbbbaaaabbbbbbaaaab.....aaa
        ",
    );
    picture(
        "sedf compensation=none first-period=at-once unblocking=burst",
        "
            a slice=4ms period=10ms extra=false latency=5ms rrzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrr
            b slice=20ms period=50ms extra=false            rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                            aabbbbbbbbbbbbbaabbbaaaabbbb..aaaa....
        ",
    );
    picture(
        "sedf compensation=none first-period=at-once unblocking=extra-support",
        "
            a slice=4ms period=10ms extra=false latency=5ms rrzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrr
            b slice=20ms period=50ms extra=false            rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                            aabbbbbbbbbbbbbaaaabbbbbbaaaab.....aaa
        ",
    );
    picture(
        "sedf compensation=none first-period=at-once unblocking=proportional",
        "
            a slice=4ms period=10ms extra=false latency=5ms rrzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrr
            b slice=20ms period=50ms extra=false            rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                            aabbbbbbbbbbbbbaabbbaaaabbbb..aaaa....
        ",
    );
}

/// With too little budget left, rule `burst` makes the period as long as the interval of the
/// device's wake-ups, 5 ms. The time used before counts as used in the first short period. That
/// period is therefore skipped. Each further short period is twice as long.
#[test]
fn sedf_burst_unblocking_sets_period_to_interval_between_wakes() {
    picture(
        "sedf compensation=none first-period=at-once unblocking=short-resume",
        "
            a slice=4ms period=20ms extra=false rrzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                aa..................aaaa................aaaa..
        ",
    );
    picture(
        "sedf compensation=none first-period=at-once unblocking=burst",
        "
            a slice=4ms period=20ms extra=false rrzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                aa.......................aa........aaaa.......
        ",
    );
}

/// By Xen's rules a vCPU that has never blocked counts as blocked forever. So its first period
/// begins a slice later, under each rule of unblocking.
#[test]
fn xen_sedf_first_period_begins_one_slice_after_wake() {
    for unblocking in ["isochronous", "conservative", "short-resume", "burst", "extra-support"] {
        picture(
            &format!("sedf rules=xen-3.0.3 unblocking={unblocking}"),
            "
                a slice=4ms period=20ms extra=false rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
                cpu0                                ....aaaa................aaaa..
            ",
        );
    }
}

/// With `extra-support` a wake-up after a short block ends a quantum of slack early. This holds
/// even if slack is divided by weight only and compensates no loss. From then on `a` receives
/// slack, since it has the larger share.
#[test]
fn sedf_wake_ends_slack_quantum_early_with_unblocking_extra_support() {
    picture(
        "sedf rules=thesis first-period=at-once quantum=4ms slack=weighted",
        "
            a slice=4ms period=20ms rrzrrrrrrrrrrrrrrrrr
            b                       rrrrrrrrrrrrrrrrrrrr
            cpu0                    aabaaaaaaaaaaaaaaaa.
        ",
    );
    picture(
        "sedf rules=thesis first-period=at-once quantum=4ms slack=weighted unblocking=conservative",
        "
            a slice=4ms period=20ms rrzrrrrrrrrrrrrrrrrr
            b                       rrrrrrrrrrrrrrrrrrrr
            cpu0                    aabbbbaaaaaaaaaaaa..
        ",
    );
}

/// With `slack=none`, time that no slice claims stays unused.
#[test]
fn sedf_unreserved_time_stays_idle_if_slack_field_is_none() {
    picture(
        "sedf rules=xen-3.0.3 first-period=at-once quantum=1ms slack=none",
        "
            a slice=6ms period=30ms rrzrrrrzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=6ms period=20ms rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            c slice=2ms period=20ms rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                    bbbbbbcc............bbbbbbcc..aaaaaa....bbbbbbcc............
        ",
    );
}

/// With `slack=round-robin`, slack goes to all vCPUs in turn.
#[test]
fn sedf_round_robin_slack_goes_to_all_vcpus_in_turn() {
    picture(
        "sedf rules=xen-3.0.3 first-period=at-once quantum=1ms slack=round-robin",
        "
            a slice=6ms period=30ms rrzrrrrzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=6ms period=20ms rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            c slice=2ms period=20ms rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                    bbbbbbccbcabcabcabcabbbbbbccbcaaaaaaabcabbbbbbccbcabcabcabca
        ",
    );
}

/// With `slack=weighted`, each vCPU's part of the slack is proportional to slice/period: 1/5, 3/10
/// and 1/10.
#[test]
fn sedf_weighted_slack_is_proportional_to_slice_over_period() {
    picture(
        "sedf rules=xen-3.0.3 first-period=at-once quantum=1ms slack=weighted",
        "
            a slice=6ms period=30ms rrzrrrrzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=6ms period=20ms rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            c slice=2ms period=20ms rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                    bbbbbbccbcababbcababbbbbbbccbcaaaaaaababbbbbbbccbcababbcabab
        ",
    );
}

/// With `slack=penalty`, slack goes only to vCPUs that lost budget by blocking, one quantum each.
#[test]
fn sedf_penalty_slack_goes_only_to_vcpus_with_lost_budget() {
    picture(
        "sedf rules=xen-3.0.3 first-period=at-once quantum=1ms slack=penalty",
        "
            a slice=6ms period=30ms rrzrrrrzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=6ms period=20ms rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            c slice=2ms period=20ms rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                    bbbbbbcca...........bbbbbbcc..aaaaaa....bbbbbbcc............
        ",
    );
}

/// Slack goes first to vCPUs that lost budget by blocking, then to all vCPUs by slice/period.
#[test]
fn sedf_two_level_slack_makes_up_lost_budget_first() {
    picture(
        "sedf rules=xen-3.0.3 first-period=at-once quantum=1ms slack=two-level",
        "
            a slice=6ms period=30ms rrzrrrrzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=6ms period=20ms rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            c slice=2ms period=20ms rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                    bbbbbbccabcababbcababbbbbbccbbaaaaaacababbbbbbccbbcababbcaba
        ",
    );
}

/// A vCPU loses a slice of 8 ms by a short block. The rule of compensation decides if slack returns
/// nothing, one quantum, or all of the lost budget.
#[test]
fn sedf_compensation_field_limits_lost_budget_repaid_from_slack() {
    picture(
        "sedf rules=xen-3.0.3 compensation=none first-period=at-once quantum=1ms",
        "
            a slice=8ms period=20ms extra=false rrzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=3ms period=10ms extra=false rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            c                                   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                bbbcccccccbbbcccccccbbbaaaaaaaabbbccccccbbbaaaaaaa
        ",
    );
    picture(
        "sedf rules=xen-3.0.3 first-period=at-once quantum=1ms",
        "
            a slice=8ms period=20ms extra=false rrzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=3ms period=10ms extra=false rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            c                                   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                bbbcacccccbbbcccccccbbbaaaaaaaabbbccccccbbbaaaaaaa
        ",
    );
    picture(
        "sedf rules=xen-3.0.2 first-period=at-once quantum=1ms",
        "
            a slice=8ms period=20ms extra=false rrzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=3ms period=10ms extra=false rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            c                                   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                bbbcaaaaaabbbaacccccbbbaaaaaaaabbbccccccbbbaaaaaaa
        ",
    );
    picture(
        "sedf rules=thesis first-period=at-once quantum=1ms",
        "
            a slice=8ms period=20ms extra=false rrzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=3ms period=10ms extra=false rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            c                                   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                bbbcaaaaaabbbaacccccbbbaaaaaaaabbbccccccbbbaaaaaaa
        ",
    );
    picture(
        "sedf unblocking=extra-support first-period=at-once quantum=1ms",
        "
            a slice=8ms period=20ms extra=false rrzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b slice=3ms period=10ms extra=false rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            c                                   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                bbbcaaaaaabbbaacccccbbbaaaaaaaabbbccccccbbbaaaaaaa
        ",
    );
}

/// Depending on the rule of compensation, a loss that slack cannot compensate within the period is
/// dropped at the end of the period or carried over.
#[test]
fn sedf_drops_loss_at_period_end_with_compensation_in_period() {
    picture(
        "sedf unblocking=proportional compensation=in-period",
        "
            a slice=4ms period=10ms extra=false zzzzzzzzrrrrrrrrrrrrrrrr
            b                                   rrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                bbbbbbbbaaaaaabbbbbbaaaa
        ",
    );
    picture(
        "sedf unblocking=proportional compensation=whole-loss",
        "
            a slice=4ms period=10ms extra=false zzzzzzzzrrrrrrrrrrrrrrrr
            b                                   rrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                bbbbbbbbaaaaaaaabbbbaaaa
        ",
    );
    picture(
        "sedf unblocking=proportional compensation=none",
        "
            a slice=4ms period=10ms extra=false zzzzzzzzrrrrrrrrrrrrrrrr
            b                                   rrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                bbbbbbbbabaaaabbbbbbaaaa
        ",
    );
}

/// Depending on the field `below-quantum`, slack that lasts less than a quantum until a period
/// begins is used or left idle.
#[test]
fn sedf_below_quantum_field_decides_if_short_gap_stays_idle() {
    picture(
        "sedf first-period=at-once quantum=3ms below-quantum=idle",
        "
            a slice=3ms period=10ms extra=false rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b                                   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                aaabbbbbb.aaabbbbbb.aaabbbbbb.aaabbbbbb.
        ",
    );
    picture(
        "sedf first-period=at-once quantum=3ms below-quantum=used",
        "
            a slice=3ms period=10ms extra=false rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b                                   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                aaabbbbbbbaaabbbbbbbaaabbbbbbbaaabbbbbbb
        ",
    );
}

#[test]
fn sedf_first_period_field_decides_if_period_begins_at_wake() {
    picture(
        "sedf rules=xen-3.0.3 first-period=after-a-slice",
        "
            a slice=3ms period=10ms extra=false rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                ...aaa.......aaa.......aaa....
        ",
    );
    picture(
        "sedf rules=xen-3.0.3 first-period=at-once",
        "
            a slice=3ms period=10ms extra=false rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                aaa.......aaa.......aaa.......
        ",
    );
}

/// Depending on the field `quantum-charge`, a vCPU that blocks within a quantum is charged for the
/// whole quantum or for the used part.
#[test]
fn sedf_quantum_charge_field_decides_if_unused_part_is_charged() {
    picture(
        "sedf quantum=2ms quantum-charge=whole",
        "
            a extra-weight=1 rzrrzrrzrrzrrzrrzrrzrrzrrzrrzrrzrrzr
            b extra-weight=2 rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0             abbbbaabbabbabbabbabbabbabbabbabbabb
        ",
    );
    picture(
        "sedf quantum=2ms quantum-charge=used",
        "
            a extra-weight=1 rzrrzrrzrrzrrzrrzrrzrrzrrzrrzrrzrrzr
            b extra-weight=2 rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0             abbabbabbabbabbabbabbabbabbabbabbabb
        ",
    );
}

/// Two vCPUs reserve 12 ms of every 10 ms together. Depending on the field `misses`, missed budget
/// is dropped, or compensated by later slack.
#[test]
fn sedf_misses_field_decides_if_slack_repays_missed_budget() {
    picture(
        "sedf rules=xen-3.0.3 first-period=at-once misses=forgotten",
        "
            a slice=6ms period=10ms extra=false rrrrrrrrrrrrrrrrrrrrzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz
            b slice=6ms period=10ms extra=false rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                aaaaaabbbbbbaaaaaabbbbbbbbbbbbbbbbbb....bbbbbb....
        ",
    );
    picture(
        "sedf rules=xen-3.0.3 first-period=at-once misses=repaid",
        "
            a slice=6ms period=10ms extra=false rrrrrrrrrrrrrrrrrrrrzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz
            b slice=6ms period=10ms extra=false rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                                aaaaaabbbbaaaaaabbbbbbbbbb....bbbbbb....bbbbbb....
        ",
    );
}
