//! Choice of a host for a reservation. The choice is bin packing, based on the available capacity
//! that each host reports. A report can be outdated when it is used, so the chosen host can still
//! refuse the reservation.

use std::cmp::Reverse;

use slackline_units::Reservation;

use crate::replies::Room;

/// Strategy to choose one of the hosts that have enough capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// First host in the given order.
    First,
    /// Host that would have the least capacity left. Larger capacities on other hosts then remain
    /// for large reservations.
    Best,
    /// Host that would have the most capacity left. Load is then spread evenly over the hosts.
    Worst,
}

/// Returns the hosts that have enough capacity for `vcpus` vCPUs with the reservation `each`. Hosts
/// are returned as indexes into `hosts`, in the order in which a client should ask them. An entry
/// of `hosts` is `None` if the host did not answer.
#[must_use]
pub fn order(fit: Fit, hosts: &[Option<Room>], each: Reservation, vcpus: u16) -> Vec<usize> {
    let left = |room: &Option<Room>| left(room.as_ref()?, each, vcpus);
    let all = hosts.iter().enumerate();
    let mut fits: Vec<(usize, u128)> =
        all.filter_map(|(host, room)| Some((host, left(room)?))).collect();
    match fit {
        Fit::First => {}
        Fit::Best => fits.sort_by_key(|(_, left)| *left),
        Fit::Worst => fits.sort_by_key(|(_, left)| Reverse(*left)),
    }
    fits.into_iter().map(|(host, _)| host).collect()
}

/// Returns the total capacity that the CPUs of a host would have left after the reservation, in
/// nanoseconds per period. `None` if the reservation does not fit.
fn left(room: &Room, each: Reservation, vcpus: u16) -> Option<u128> {
    let slice = u128::from(each.slice().ns());
    let slices = room.cpus.iter().map(|cpu| u128::from(cpu.slice_ns));
    let fit: u128 = slices.clone().map(|room| room / slice).sum();
    let all: u128 = slices.sum();
    (fit >= u128::from(vcpus)).then(|| all - slice * u128::from(vcpus))
}

#[cfg(test)]
mod tests {
    use slackline_units::Span;

    use super::*;
    use crate::replies::RoomOn;
    use crate::times::Length;

    fn room(slices: &[u64]) -> Option<Room> {
        let on = |(cpu, &ms): (usize, &u64)| RoomOn {
            cpu: u32::try_from(cpu).unwrap(),
            slice: Length(Span::from_ms(ms)),
            slice_ns: Span::from_ms(ms).ns(),
        };
        let period = Span::from_ms(1_000);
        let cpus = slices.iter().enumerate().map(on).collect();
        Some(Room { period: Length(period), period_ns: period.ns(), cpus })
    }

    fn each(ms: u64) -> Reservation {
        Reservation::new(Span::from_ms(ms), Span::from_ms(1_000)).unwrap()
    }

    #[test]
    fn placement_among_hosts_considers_only_hosts_with_enough_capacity() {
        let hosts = [room(&[100]), room(&[500]), None, room(&[300]), room(&[150, 150])];
        let order = |fit, ms, vcpus| order(fit, &hosts, each(ms), vcpus);
        assert_eq!(order(Fit::First, 120, 1), [1, 3, 4]);
        assert_eq!(order(Fit::Best, 120, 1), [3, 4, 1]);
        assert_eq!(order(Fit::Worst, 120, 1), [1, 3, 4]);
        // Two half-free CPUs cannot take one large vCPU, but they can take two small vCPUs.
        assert_eq!(order(Fit::Best, 300, 1), [3, 1]);
        assert_eq!(order(Fit::Best, 150, 2), [3, 4, 1]);
        assert_eq!(order(Fit::First, 501, 1), [0; 0]);
    }

    /// Returns the next random number of the generator SplitMix64 by Steele, Lea and Flood.
    fn draw(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns the largest total size of items in `sizes` that can be packed into three bins. Tries
    /// all packings.
    fn most(sizes: &[u64], bins: [u64; 3]) -> u64 {
        let Some((&size, rest)) = sizes.split_first() else { return 0 };
        let mut best = most(rest, bins);
        for (bin, &free) in bins.iter().enumerate() {
            // Two bins with equal free space give equal results, so only one of them is tried.
            if free >= size && !bins[..bin].contains(&free) {
                let mut bins = bins;
                bins[bin] -= size;
                best = best.max(size + most(rest, bins));
            }
        }
        best
    }

    /// Places 100 sets of eight reservations on three hosts. Each set needs about 1.2 times the
    /// capacity of the hosts. The reservations of a set are placed one after another, without
    /// knowledge of the later ones. The total that fits is compared with the optimum for the set.
    #[test]
    fn sequential_placement_of_reservations_reaches_80_percent_of_optimum() {
        for (fit, least_percent) in [(Fit::First, 90), (Fit::Best, 90), (Fit::Worst, 80)] {
            let (mut placed, mut optimum, mut state) = (0, 0, 1);
            for _ in 0..100 {
                let sizes: Vec<u64> = (0..8).map(|_| 100 + draw(&mut state) % 600).collect();
                let mut bins = [900; 3];
                for &size in &sizes {
                    let hosts = bins.map(|bin| room(&[bin]));
                    if let Some(&host) = order(fit, &hosts, each(size), 1).first() {
                        bins[host] -= size;
                        placed += size;
                    }
                }
                optimum += most(&sizes, [900; 3]);
            }
            println!("{fit:?}: {} of 1000 of the optimum", placed * 1000 / optimum);
            assert!(placed * 100 >= optimum * least_percent, "{fit:?}: {placed} of {optimum}");
            assert!(
                placed < optimum,
                "{fit:?} equals the optimum, which knows all sizes in advance"
            );
        }
    }
}
