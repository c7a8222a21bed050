//! Pictures: what each way of unblocking, each way of handing out slack, and each rule changes.
//! Where columns are quanta the quantum is a millisecond.

use crate::picture::picture;

/// Reference §13.5. The first period begins one slice late, and best effort takes the rest.
#[test]
fn a_guarantee_beside_best_effort() {
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

/// Reference §13.6. Of equal scores the first to come is first, and a quantum costs 1/weight.
#[test]
fn quanta_go_by_weight() {
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

/// Reference §13.5: without a weight a slice counts, 5 of 20 ms as much as a weight of 32.
#[test]
fn slack_goes_by_slice_over_period() {
    picture(
        "sedf rules=xen-3.0.3 quantum=1ms",
        "
            a slice=5ms period=20ms rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b extra-weight=32       rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
            cpu0                    ababaaaaaababababababababaaaaaababababab
        ",
    );
}

/// Asleep for the third millisecond of its period: it waits for the next one, or goes on with
/// what is left once the sleep counts as used.
#[test]
fn a_short_sleep() {
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

/// Asleep beyond the end of its period: the next one begins where it would have, or at once, or
/// at once and short for a while, or it has its part of the one that goes on.
#[test]
fn a_long_sleep() {
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

/// With too little left of the slice, a burst has the period that the device has, 5 ms here. The
/// first one is skipped for what was used before, and each further one is twice as long.
#[test]
fn a_burst_follows_its_device() {
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

/// Who has never blocked counts as asleep for ever: by Xen's rules it begins a slice later, however
/// it unblocks.
#[test]
fn the_first_period_begins_a_slice_later() {
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

/// With extra support a wake after a short sleep cuts a quantum of slack short, also where slack
/// goes by weight alone and nobody is made up to: a is worth more slack and has it from then on.
#[test]
fn extra_support_cuts_a_quantum_short() {
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

/// Nobody.
#[test]
fn slack_none() {
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

/// Everybody in turn.
#[test]
fn slack_round_robin() {
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

/// By slice/period: 1/5, 3/10, 1/10.
#[test]
fn slack_weighted() {
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

/// Only who lost something by blocking, a quantum of it.
#[test]
fn slack_penalty() {
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

/// First who lost something by blocking, then by slice/period.
#[test]
fn slack_two_level() {
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

/// A slice of 8 ms is lost by a short sleep: for good, but for one quantum, or until it has been
/// made up for.
#[test]
fn lost_slices_are_made_up_for() {
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

/// A loss that the period leaves no room for is forgotten with it, or pursued.
#[test]
fn a_loss_ends_with_its_period() {
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

/// A gap shorter than a quantum before a period begins.
#[test]
fn gaps() {
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
fn the_first_period() {
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

/// Who sleeps in the middle of a quantum pays for all of it, or for what it used.
#[test]
fn whole_quanta() {
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

/// Two are promised 12 of 10 ms. What the other missed is forgotten, or made up for once there is
/// slack.
#[test]
fn misses() {
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
