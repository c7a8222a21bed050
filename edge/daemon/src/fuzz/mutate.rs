//! Generator of damaged samples. The generated samples depend only on the seed and the valid
//! samples.

/// Maximum length of a generated sample, in bytes.
const LONGEST: usize = 1 << 16;

/// Pieces of text that have a special meaning for one of the fuzzed parsers.
const PIECES: [&[u8]; 40] = [
    b"-name",
    b"--id",
    b"guest=",
    b",",
    b",,",
    b"=",
    b"\0",
    b"\n",
    b"\r\n",
    b"\\x2d",
    b"\\",
    b"/",
    b"..",
    b"0::",
    b"machine.slice",
    b".scope",
    b"(",
    b")",
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b":",
    b"-1",
    b"0",
    b"18446744073709551616",
    b"1e999",
    b"null",
    b"\\u0000",
    b"\xff\xfe",
    b"<",
    b">",
    b"</",
    b"<!DOCTYPE a [",
    b"&#0;",
    b"xmlns:s='urn:slackline:1'",
    b"Content-Length: 1\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"\"slice\":\"1ms\",",
];

/// Source of damaged samples for one fuzzing target.
pub(super) struct Mutator<'a> {
    state: u64,
    samples: &'a [&'a [u8]],
}

impl<'a> Mutator<'a> {
    pub(super) fn new(seed: u64, samples: &'a [&'a [u8]]) -> Mutator<'a> {
        // A state of zero would stay zero forever, so the lowest bit is set.
        Mutator { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, samples }
    }

    /// Returns the next sample: a valid sample to which one to eight changes were made.
    pub(super) fn next(&mut self) -> Vec<u8> {
        let mut sample = self.one_of(self.samples).to_vec();
        for _ in 0..=self.below(8) {
            self.change(&mut sample);
        }
        sample.truncate(LONGEST);
        sample
    }

    fn change(&mut self, sample: &mut Vec<u8>) {
        let at = self.below(sample.len() + 1);
        let most = 1 << self.below(12);
        let to = at + self.below(sample.len() - at + 1).min(most);
        match self.below(8) {
            0 if at < sample.len() => {
                let bit = 1 << self.below(8);
                sample[at] ^= bit;
            }
            1 if at < sample.len() => {
                sample[at] = u8::try_from(self.below(256)).unwrap_or_default();
            }
            2 => drop(sample.drain(at..to)),
            3 => {
                let part = sample[at..to].to_vec();
                for _ in 0..=self.below(4) {
                    sample.splice(at..at, part.iter().copied());
                }
            }
            4 => {
                let piece = self.one_of(&PIECES);
                sample.splice(at..at, piece.iter().copied());
            }
            5 => {
                let piece = self.one_of(&PIECES);
                sample.splice(at..to, piece.iter().copied());
            }
            6 => {
                let other = self.one_of(self.samples);
                let from = self.below(other.len() + 1);
                sample.splice(at..to, other[from..].iter().copied());
            }
            _ => {
                // A piece is repeated, for deep or long input.
                let piece = self.one_of(&PIECES);
                let most = 1 << self.below(12);
                let times = self.below(most) + 1;
                sample.splice(at..at, piece.repeat(times));
            }
        }
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Returns a number below `most`, which must not be zero.
    fn below(&mut self, most: usize) -> usize {
        // Marsaglia's xorshift with a multiplication.
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let drawn = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(drawn).unwrap_or(0) % most
    }
}
