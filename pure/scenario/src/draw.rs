//! Random durations, and all other random draws.
//!
//! Every stream of draws belongs to one entity, such as a vCPU, and to one purpose. The seed of a
//! stream is computed from the entity, the purpose and the seed of the run only. So an additional
//! vCPU, or more draws for one purpose, does not change the draws of any other stream. The
//! generator is PCG-64. It is seeded through SplitMix64, since seeds that people choose differ in a
//! few low bits only. Only an exponential draw uses floats. The logarithm is computed by libm
//! instead of the platform, so every computer draws the same values.

use core::fmt;
use core::str::FromStr;

use rand_core::Rng;
use rand_pcg::Pcg64;
use slackline_policy::nearest;
use slackline_units::{CpuId, ParseSpanError, Span, VcpuId};
use thiserror::Error;

/// Random duration, which is drawn again each time it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// Always the same duration.
    Fixed(Span),
    /// Every nanosecond from `least` to `most`, both included, with the same probability.
    Uniform {
        /// Shortest duration, which is included.
        least: Span,
        /// Longest duration, which is included.
        most: Span,
    },
    /// Exponentially distributed, like the gaps between independent events. The drawn duration is a
    /// whole number of nanoseconds and can be zero. The longest possible duration is 37 times the
    /// mean. Its probability is 2^-53.
    Exponential {
        /// Mean of the distribution.
        mean: Span,
    },
    /// A measured distribution, given by its quantiles at [`PERCENTILES`]. Between two quantiles
    /// every nanosecond has the same probability.
    Quantiles([Span; PERCENTILES.len()]),
}

/// Percentiles that describe a measured distribution, from its minimum to its maximum.
pub const PERCENTILES: [u64; 7] = [0, 25, 50, 75, 90, 99, 100];

impl Draw {
    /// Returns the mean of an exponential draw, or the maximum of any other draw. Zero only if
    /// every drawn duration is zero.
    #[must_use]
    pub const fn scale(&self) -> Span {
        match *self {
            Draw::Fixed(span) => span,
            Draw::Uniform { most, .. } => most,
            Draw::Exponential { mean } => mean,
            Draw::Quantiles([.., most]) => most,
        }
    }
}

impl fmt::Display for Draw {
    /// Writes the draw as in a scenario: `4ms`, `uniform 1ms 3ms`, `exponential 4ms`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Draw::Fixed(span) => span.fmt(out),
            Draw::Uniform { least, most } => write!(out, "uniform {least} {most}"),
            Draw::Exponential { mean } => write!(out, "exponential {mean}"),
            Draw::Quantiles(spans) => {
                out.write_str(QUANTILES)?;
                spans.iter().try_for_each(|span| write!(out, " {span}"))
            }
        }
    }
}

/// Reason why a text is not a random duration.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ParseDrawError {
    /// The first word is neither a duration nor a distribution.
    #[error("`{word}` is not a distribution")]
    UnknownWay {
        /// First word of the text.
        word: String,
        /// Distribution with a similar name. `None` if no name is similar.
        meant: Option<&'static str>,
    },
    /// The number of durations does not match the distribution.
    #[error("`{way}` takes {wants}, not {given}")]
    Count {
        /// Name of the distribution.
        way: &'static str,
        /// Number of durations that the distribution takes, in words.
        wants: &'static str,
        /// Number of durations in the text.
        given: usize,
    },
    /// A duration is not valid.
    #[error("`{text}` {why}")]
    NotASpan {
        /// Duration as written in the text.
        text: String,
        /// Reason why the duration is not valid.
        why: ParseSpanError,
    },
    /// A quantile is larger than the quantile that follows it.
    #[error("the quantile {quantile} is more than the next one, {next}")]
    Falling {
        /// Quantile that is too large, as written in the text.
        quantile: Span,
        /// Quantile that follows in the list, as written in the text. It is smaller than
        /// `quantile`.
        next: Span,
    },
    /// The minimum of a range exceeds its maximum.
    #[error("the minimum {least} is more than the maximum {most}")]
    LeastOverMost {
        /// Minimum, as written in the text.
        least: Span,
        /// Maximum, as written in the text, which is less than the minimum.
        most: Span,
    },
}

/// Name of the uniform distribution.
const UNIFORM: &str = "uniform";
const EXPONENTIAL: &str = "exponential";
const QUANTILES: &str = "quantiles";

impl FromStr for Draw {
    type Err = ParseDrawError;

    /// Reads a random duration, such as `4ms`, `uniform 1ms 3ms` or `exponential 4ms`.
    fn from_str(text: &str) -> Result<Draw, ParseDrawError> {
        let text = text.trim();
        if !text.starts_with(char::is_alphabetic) {
            return Ok(Draw::Fixed(span(text)?));
        }
        let (way, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let given: Vec<&str> = rest.split_whitespace().collect();
        match (way, given.as_slice()) {
            (UNIFORM, &[least, most]) => {
                let (least, most) = (span(least)?, span(most)?);
                if least > most {
                    return Err(ParseDrawError::LeastOverMost { least, most });
                }
                Ok(Draw::Uniform { least, most })
            }
            (EXPONENTIAL, &[mean]) => Ok(Draw::Exponential { mean: span(mean)? }),
            (QUANTILES, given) => quantiles(given),
            (UNIFORM, given) => Err(ParseDrawError::Count {
                way: UNIFORM,
                wants: "2 durations",
                given: given.len(),
            }),
            (EXPONENTIAL, given) => Err(ParseDrawError::Count {
                way: EXPONENTIAL,
                wants: "1 duration",
                given: given.len(),
            }),
            _ => Err(ParseDrawError::UnknownWay {
                word: way.to_owned(),
                meant: nearest(way, [UNIFORM, EXPONENTIAL, QUANTILES].into_iter()),
            }),
        }
    }
}

fn quantiles(given: &[&str]) -> Result<Draw, ParseDrawError> {
    let spans = given.iter().map(|text| span(text)).collect::<Result<Vec<Span>, _>>()?;
    let wrong = |spans: Vec<Span>| ParseDrawError::Count {
        way: QUANTILES,
        wants: "7 durations, the quantiles at 0, 25, 50, 75, 90, 99 and 100 %",
        given: spans.len(),
    };
    let spans: [Span; PERCENTILES.len()] = spans.try_into().map_err(wrong)?;
    match spans.windows(2).find(|pair| pair[0] > pair[1]) {
        Some(pair) => Err(ParseDrawError::Falling { quantile: pair[0], next: pair[1] }),
        None => Ok(Draw::Quantiles(spans)),
    }
}

fn span(text: &str) -> Result<Span, ParseDrawError> {
    text.parse().map_err(|why| ParseDrawError::NotASpan { text: text.to_owned(), why })
}

/// Purpose of a stream of draws. Each purpose has a stream of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Durations of the steps of a vCPU's program.
    Work,
    /// Lateness of a CPU's timers.
    Timer,
    /// Choice of the orders (instructions to the hardware) that the host refuses on purpose, per
    /// CPU.
    Refusal,
    /// Durations of the steps of a domain's tasks.
    Task,
    /// Deviations of the costs of a domain's operating system.
    Noise,
    /// Requests and packets of a client.
    Client,
    /// Delays of the packets of a client.
    Delay,
    /// Seek times of the disk.
    Disk,
    /// Properties of a host that is generated at random before it runs.
    Host,
    /// Release times of a program's work.
    Arrival,
    /// CPU time of the scheduling passes of a CPU.
    Pass,
}

/// A stream of random draws. A seed gives the same draws on every computer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream(Pcg64);

impl Stream {
    /// Creates the stream of one entity for one purpose in the run with this seed. The kind of
    /// entity, such as a vCPU or a CPU, depends on the purpose. The number `entity` must not change
    /// when other entities are added.
    #[must_use]
    pub fn new(seed: u64, entity: u64, purpose: Purpose) -> Stream {
        let purpose = match purpose {
            Purpose::Work => 1,
            Purpose::Timer => 2,
            Purpose::Refusal => 3,
            Purpose::Task => 4,
            Purpose::Noise => 5,
            Purpose::Client => 6,
            Purpose::Delay => 7,
            Purpose::Disk => 8,
            Purpose::Host => 9,
            Purpose::Arrival => 10,
            Purpose::Pass => 11,
        };
        // Each word is mixed before the next is added, so that sums of small words do not collide.
        let mut mix = SplitMix64(seed);
        for word in [entity, purpose] {
            mix = SplitMix64(mix.next() ^ word);
        }
        let mut wide = || u128::from(mix.next()) << 64 | u128::from(mix.next());
        let (state, stream) = (wide(), wide());
        Stream(Pcg64::new(state, stream))
    }

    /// Creates the random stream of a program's release times from the program's own stream. Must
    /// be called before the first draw from the program's own stream.
    #[must_use]
    pub(crate) fn of_arrivals(&self) -> Stream {
        Stream::new(self.clone().0.next_u64(), 0, Purpose::Arrival)
    }

    /// Creates the stream of a vCPU for one purpose. The stream depends on the domain of the vCPU
    /// and on its number in the domain. It does not depend on how many vCPUs other domains have.
    #[must_use]
    pub fn of_vcpu(seed: u64, vcpu: VcpuId, purpose: Purpose) -> Stream {
        let entity = u64::from(vcpu.domain().number()) << 16 | u64::from(vcpu.number());
        Stream::new(seed, entity, purpose)
    }

    /// Creates the stream of a CPU for one purpose.
    #[must_use]
    pub fn of_cpu(seed: u64, cpu: CpuId, purpose: Purpose) -> Stream {
        Stream::new(seed, cpu.index() as u64, purpose)
    }

    /// Draws the next duration. A fixed duration does not advance the stream.
    #[inline(always)]
    pub fn draw(&mut self, draw: &Draw) -> Span {
        match *draw {
            Draw::Fixed(span) => span,
            Draw::Uniform { least, most } => self.uniform(least, most),
            Draw::Exponential { mean } => exponential(mean, self.0.next_u64()),
            Draw::Quantiles(spans) => between_quantiles(&spans, self.0.next_u64()),
        }
    }

    fn uniform(&mut self, least: Span, most: Span) -> Span {
        least + Span::from_ns(self.at_most((most - least).ns()))
    }

    /// Draws a duration that differs from `span` by at most `ppm` millionths of `span`, uniformly.
    /// If `ppm` is zero, the stream does not advance.
    #[inline]
    pub fn vary(&mut self, span: Span, ppm: u32) -> Span {
        const MILLION: u64 = 1_000_000;
        // 64 bits are used if they suffice, because wider divisions take longer than all other
        // steps together.
        let most = match span.ns().checked_mul(u64::from(ppm)) {
            Some(product) => product / MILLION,
            None => span.ns() / MILLION * u64::from(ppm),
        };
        if most == 0 {
            return span;
        }
        Span::from_ns(span.ns() - most + self.at_most(2 * most))
    }

    /// Returns true with a probability of `ppm` millionths. If the probability is 0 or 1, the
    /// stream does not advance.
    pub fn chance(&mut self, ppm: u32) -> bool {
        const MILLION: u32 = 1_000_000;
        match ppm {
            0 => false,
            MILLION.. => true,
            _ => self.at_most(u64::from(MILLION) - 1) < u64::from(ppm),
        }
    }

    /// Draws an index below `count`, uniformly.
    ///
    /// # Panics
    /// If `count` is zero.
    pub fn pick(&mut self, count: usize) -> usize {
        let last = u64::try_from(count).ok().and_then(|count| count.checked_sub(1));
        let number = self.at_most(last.expect("a draw needs at least one value"));
        usize::try_from(number).expect("the number is below `count`")
    }

    /// Draws a whole number from 0 to `most`, uniformly. Source: Lemire, "Fast random integer
    /// generation in an interval", 2019.
    #[inline]
    fn at_most(&mut self, most: u64) -> u64 {
        if most == u64::MAX {
            return self.0.next_u64();
        }
        let values = most + 1;
        loop {
            let product = u128::from(self.0.next_u64()) * u128::from(values);
            #[allow(clippy::cast_possible_truncation)] // Takes the two halves of the product.
            let (number, low) = ((product >> 64) as u64, product as u64);
            // Some of the 2^64 words are discarded, so that the remaining words divide evenly among
            // the numbers. The count of discarded words is less than `values`. It is computed last
            // because that is slow.
            if low >= values || low >= values.wrapping_neg() % values {
                return number;
            }
        }
    }
}

/// Returns the duration at a random percentile. Between two quantiles, the duration is
/// interpolated.
fn between_quantiles(spans: &[Span; PERCENTILES.len()], word: u64) -> Span {
    // 48 random bits, as a fraction of 100 %.
    let at = u128::from(word >> 16) * 100;
    let bound = |percent: u64| u128::from(percent) << 48;
    let above = PERCENTILES.iter().position(|&percent| at < bound(percent));
    let above = above.unwrap_or(PERCENTILES.len() - 1).max(1);
    let (low, high) = (bound(PERCENTILES[above - 1]), bound(PERCENTILES[above]));
    let width = u128::from((spans[above] - spans[above - 1]).ns());
    // The result is less than `width`, which is a `u64`.
    let part = u64::try_from(width * (at - low) / (high - low)).unwrap_or(u64::MAX);
    spans[above - 1] + Span::from_ns(part)
}

/// Returns an exponentially distributed duration: `-mean ln u`, with `u` in (0, 1] from 53 random
/// bits.
#[allow(
    clippy::float_arithmetic,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)] // A logarithm needs floats. They are never negative, and hold each ns up to 2^53 (104 days).
fn exponential(mean: Span, word: u64) -> Span {
    let unit = ((word >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    Span::from_ns((-libm::log(unit) * mean.ns() as f64 + 0.5) as u64)
}

/// Generator that maps words which differ in few bits to unrelated words. Source: Steele, Lea and
/// Flood, "Fast splittable pseudorandom number generators", 2014.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use slackline_units::DomId;

    use super::*;

    const MILLION: u64 = 1_000_000;

    fn stream() -> Stream {
        Stream::new(1, 0, Purpose::Work)
    }

    #[test]
    fn random_distribution_is_unchanged_if_printed_and_parsed() {
        let quantiles = "quantiles 0s 1us 1us 2us 5us 1ms 2ms";
        for text in
            ["4ms", "0s", "uniform 1ms 3ms", "uniform 1ms 1ms", "exponential 4ms", quantiles]
        {
            assert_eq!(text.parse::<Draw>().unwrap().to_string(), text);
        }
        assert_eq!("  uniform  1ms\t3ms ".parse::<Draw>(), "uniform 1ms 3ms".parse());
    }

    #[test]
    fn invalid_random_distribution_is_refused_with_the_reason() {
        let cases = [
            ("", "`` is not a duration"),
            ("4", "`4` has no unit"),
            ("normal 4ms", "`normal` is not a distribution"),
            ("uniform 4ms", "`uniform` takes 2 durations, not 1"),
            ("uniform", "`uniform` takes 2 durations, not 0"),
            ("exponential 4ms 5ms", "`exponential` takes 1 duration, not 2"),
            (
                "quantiles 1us 2us",
                "`quantiles` takes 7 durations, the quantiles at 0, 25, 50, 75, 90, 99 and 100 %, \
                 not 2",
            ),
            (
                "quantiles 1us 2us 1us 3us 4us 5us 6us",
                "the quantile 2us is more than the next one, 1us",
            ),
            ("exponential 4", "`4` has no unit"),
            ("exponential -4ms", "`-4ms` is negative"),
            ("uniform 3ms 1ms", "the minimum 3ms is more than the maximum 1ms"),
        ];
        for (text, why) in cases {
            assert_eq!(text.parse::<Draw>().unwrap_err().to_string(), why, "{text}");
        }
    }

    /// The expected values are the first ones that the authors published for this seed.
    #[test]
    fn splitmix64_generator_returns_the_published_values() {
        let mut mix = SplitMix64(1_234_567);
        let first = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973];
        assert_eq!([mix.next(), mix.next()], first);
    }

    /// For u = 2^-53, 1/2 and 1 the draws are 53 ln 2, ln 2 and 0 times the mean.
    #[test]
    fn exponential_random_value_is_mean_times_negative_log_of_uniform() {
        let second = Span::from_secs(1);
        assert_eq!(exponential(second, 0), Span::from_ns(36_736_800_570));
        assert_eq!(exponential(second, ((1 << 52) - 1) << 11), Span::from_ns(693_147_181));
        assert_eq!(exponential(second, u64::MAX), Span::ZERO);
    }

    /// The expected values were computed independently, from the published algorithms with 128-bit
    /// integers and 50-digit logarithms. If a drawn value changes, every result that was published
    /// with a seed changes.
    #[test]
    fn random_streams_return_the_same_values_in_every_program_version() {
        let draws = ["uniform 1ms 3ms", "exponential 4ms", "uniform 0s 1ns", "exponential 1s"];
        let mut stream = Stream::new(42, 7, Purpose::Work);
        let drawn = draws.map(|draw| stream.draw(&draw.parse().unwrap()).ns());
        assert_eq!(drawn, [2_840_382, 973_235, 0, 1_056_853_832]);
        let mut stream = Stream::new(42, 7, Purpose::Refusal);
        let chances = [(); 12].map(|()| u8::from(stream.chance(300_000)));
        assert_eq!(chances, [1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 0]);
    }

    /// The sum of n draws is within four standard deviations of n times the mean. The standard
    /// deviation of the sum is sqrt(n) times the standard deviation of one draw.
    #[test]
    fn uniform_random_values_have_the_given_mean_and_bounds() {
        let (least, most) = (Span::from_us(1), Span::from_us(4));
        let (draw, mut stream) = (Draw::Uniform { least, most }, stream());
        // The standard deviation of a draw is its range divided by sqrt(12). The standard deviation
        // of the sum is 100 times the range.
        let (count, mean, deviation) = (120_000, 2_500, 3_000 * 100);
        let mut sum = 0;
        for _ in 0..count {
            let drawn = stream.draw(&draw);
            assert!(least <= drawn && drawn <= most);
            sum += drawn.ns();
        }
        assert!(sum.abs_diff(count * mean) < 4 * deviation, "{sum}");
    }

    #[test]
    fn uniform_random_values_are_drawn_equally_often() {
        let draw = "uniform 5ns 10ns".parse().unwrap();
        let (mut stream, mut counts) = (stream(), [0_u64; 6]);
        for _ in 0..600_000 {
            let drawn = stream.draw(&draw).ns() - 5;
            counts[usize::try_from(drawn).unwrap()] += 1;
        }
        // A count is binomial: its standard deviation is sqrt(600,000 * 1/6 * 5/6) < 289.
        assert!(counts.iter().all(|count| count.abs_diff(100_000) < 4 * 289), "{counts:?}");
    }

    #[test]
    fn uniform_64_bit_random_value_equals_the_next_generator_output() {
        let draw = Draw::Uniform { least: Span::ZERO, most: Span::MAX };
        assert_eq!(stream().draw(&draw).ns(), stream().0.next_u64());
    }

    #[test]
    fn random_values_drawn_from_given_quantiles_have_those_quantiles() {
        let draw: Draw = "quantiles 10us 20us 20us 40us 100us 1ms 9ms".parse().unwrap();
        let mut stream = stream();
        let mut drawn: Vec<u64> = (0..100_000).map(|_| stream.draw(&draw).ns()).collect();
        drawn.sort_unstable();
        for (percent, least, most) in [
            (0, 10_000, 10_100),
            (24, 19_000, 20_000),
            (50, 20_000, 20_200),
            (75, 39_500, 40_500),
            (90, 98_000, 110_000),
            (99, 950_000, 1_300_000),
        ] {
            let value = drawn[percent * 1_000];
            assert!((least..=most).contains(&value), "{percent} %: {value}");
        }
        assert!((8_500_000..9_000_000).contains(&drawn[99_999]), "{}", drawn[99_999]);
        let spans = [Span::from_us(5); PERCENTILES.len()];
        assert_eq!(between_quantiles(&spans, u64::MAX), Span::from_us(5));
    }

    #[test]
    fn exponential_random_values_have_the_given_mean_and_tail() {
        let (draw, mut stream) = ("exponential 4us".parse().unwrap(), stream());
        let (mut sum, mut beyond) = (0, 0_u64);
        for _ in 0..MILLION {
            let drawn = stream.draw(&draw).ns();
            sum += drawn;
            beyond += u64::from(drawn > 4_000);
        }
        // The standard deviation of a draw is its mean. The standard deviation of the sum of a
        // million draws is a thousand means.
        assert!(sum.abs_diff(MILLION * 4_000) < 4 * 1_000 * 4_000, "{sum}");
        // 1/e of the draws exceed the mean, with a standard deviation of sqrt(1,000,000 * 1/e * (1
        // - 1/e)) < 483. Rounding to nanoseconds changes the fraction by at most 1/8,000 of 1/e,
        // which is 46 draws in a million.
        assert!(beyond.abs_diff(367_879) < 4 * 483 + 46, "{beyond}");
    }

    #[test]
    fn random_event_occurs_with_the_given_probability() {
        let mut stream = stream();
        let hits = (0..MILLION).filter(|_| stream.chance(250_000)).count() as u64;
        // The standard deviation is sqrt(1,000,000 * 1/4 * 3/4) < 434.
        assert!(hits.abs_diff(250_000) < 4 * 434, "{hits}");
        assert!((0..1_000).all(|_| !stream.chance(0) && stream.chance(1_000_000)));
    }

    #[test]
    fn randomly_varied_duration_stays_within_bounds_and_keeps_its_mean() {
        let (span, mut stream, mut sum) = (Span::from_us(10), stream(), 0);
        for _ in 0..120_000 {
            let varied = stream.vary(span, 300_000);
            assert!(Span::from_us(7) <= varied && varied <= Span::from_us(13));
            sum += varied.ns();
        }
        // The standard deviation of a draw is its range of 6 us divided by sqrt(12). The standard
        // deviation of the sum is 100 times the range.
        assert!(sum.abs_diff(120_000 * 10_000) < 4 * 100 * 6_000, "{sum}");
        assert_eq!(stream.vary(span, 0), span);
        let year = Span::from_secs(365 * 24 * 60 * 60);
        assert!(stream.vary(year, 1_000_000) <= year * 2);
    }

    #[test]
    fn random_stream_does_not_advance_for_draws_with_fixed_results() {
        let (mut drawing, untouched) = (stream(), stream());
        assert_eq!(drawing.draw(&Draw::Fixed(Span::from_ms(4))), Span::from_ms(4));
        let _ = (drawing.chance(0), drawing.chance(1_000_000));
        assert_eq!(drawing, untouched);
    }

    #[test]
    fn random_streams_differ_if_seed_entity_or_purpose_differ() {
        let mut firsts = std::collections::BTreeSet::new();
        for seed in 0..20 {
            for entity in 0..20 {
                for purpose in [Purpose::Work, Purpose::Timer, Purpose::Refusal] {
                    firsts.insert(Stream::new(seed, entity, purpose).0.next_u64());
                }
            }
        }
        assert_eq!(firsts.len(), 20 * 20 * 3);
    }

    #[test]
    fn vcpu_random_stream_does_not_depend_on_slot_number() {
        let of = |slot| Stream::of_vcpu(1, VcpuId::new(slot, DomId::new(3), 1), Purpose::Work);
        assert_eq!(of(4), of(9));
        let other = Stream::of_vcpu(1, VcpuId::new(4, DomId::new(4), 1), Purpose::Work);
        assert_ne!(of(4), other);
    }
}
