//! CPU amounts and CPU lists as users type them, and hints in the same notation.

use std::ops::Deref;

use slackline_units::{CpuId, CpuShare, Span};

/// List of CPU numbers, which users type as in `0-3,6`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuList(Vec<usize>);

impl Deref for CpuList {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

/// Parses a list of CPUs.
pub(crate) fn cpu_list(text: &str) -> Result<CpuList, String> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            let wrong =
                || format!("`{part}` is neither a CPU nor a range; write it as `2` or `0-3,6`");
            text.trim().parse::<usize>().map_err(|_| wrong())
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("`{part}` ends before it begins; write it as `{last}-{first}`"));
        }
        if last - first >= CpuId::LIMIT {
            return Err(format!("`{part}` has more than {} CPUs, the maximum", CpuId::LIMIT));
        }
        cpus.extend(first..=last);
    }
    Ok(CpuList(cpus))
}

/// Returns a hint to reserve at most `slice` per period for each of `parts` vCPUs. The hint states
/// the total share. `None` if that share is below a hundredth of a percent.
pub(crate) fn share_hint(slice: Span, period: Span, parts: u64) -> Option<String> {
    let ppm =
        u128::from(slice.ns()) * u128::from(parts) * 1_000_000 / u128::from(period.ns().max(1));
    let (whole, hundredths) = (ppm / 10_000, ppm / 100 % 100);
    match (whole, hundredths) {
        (0, 0) => None,
        (0..10, _) => Some(format!("use `--cpu {whole}.{hundredths:02}%`")),
        _ => Some(format!("use `--cpu {whole}%`")),
    }
}

/// Returns a hint for a share that was read as a number of CPUs, but that the user probably meant
/// in percent. `None` unless the share is a whole number of at least two CPUs.
pub(crate) fn percent_hint(share: CpuShare) -> Option<String> {
    let cpus = share.ppm() / 1_000_000;
    let is_whole = share.ppm().is_multiple_of(1_000_000);
    (is_whole && cpus > 1).then(|| format!("for {cpus} % of a CPU write `--cpu {cpus}%`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_list_is_parsed_and_malformed_list_is_refused() {
        assert_eq!(&*cpu_list("0-3,6").expect("a list"), [0, 1, 2, 3, 6]);
        assert_eq!(&*cpu_list("5").expect("a list"), [5]);
        assert_eq!(&*cpu_list("1, 3").expect("a list"), [1, 3]);
        let says = |text| cpu_list(text).expect_err("no list");
        assert_eq!(says("3-1"), "`3-1` ends before it begins; write it as `1-3`");
        assert!(says("0-99999999").contains("more than 256 CPUs"));
        for wrong in ["", "a", "1,", "-", "1-", "1-2-3", "-1"] {
            assert!(says(wrong).contains("write it as"), "{wrong}");
        }
    }

    #[test]
    fn cpu_share_hint_suggests_a_percentage_for_the_cpu_option() {
        let hint = |us, parts| share_hint(Span::from_us(us), Span::from_ms(10), parts);
        assert_eq!(hint(9_456, 1).as_deref(), Some("use `--cpu 94%`"));
        assert_eq!(hint(9_456, 2).as_deref(), Some("use `--cpu 189%`"));
        assert_eq!(hint(57, 1).as_deref(), Some("use `--cpu 0.57%`"));
        assert_eq!(hint(0, 1), None);
        let typed = |ppm| percent_hint(CpuShare::from_ppm(ppm));
        assert_eq!(typed(50_000_000).as_deref(), Some("for 50 % of a CPU write `--cpu 50%`"));
        assert_eq!([typed(1_500_000), typed(1_000_000), typed(300_000)], [None, None, None]);
    }
}
