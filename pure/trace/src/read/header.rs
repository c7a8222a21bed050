//! Decoding of the header.

use std::io::Read;

use slackline_units::{CpuId, Span};

use super::decode::Decoder;
use super::input::Input;
use super::{Damage, Part, State};
use crate::header::Header;
use crate::record::Knowledge;
use crate::write::{HAS_INDEX, MAGIC, OLDEST_VERSION, VERSION};

/// Properties of the file that the header states.
pub(super) struct FileFlags {
    pub(super) is_recording: bool,
    pub(super) has_index: bool,
}

impl<R: Read> Input<R> {
    /// Reads the first bytes of the file, its version and its header.
    pub(super) fn header(&mut self, state: &mut State) -> Part<(Header, FileFlags)> {
        let magic =
            self.decode(state, |decoder| decoder.take(MAGIC.len() as u64).map(<[u8]>::to_vec));
        if magic.ok().as_deref() != Some(MAGIC) {
            return Err(Damage::NotATrace);
        }
        self.decode(state, |decoder| decoder.read_version())?;
        let read = self.decode(state, |decoder| decoder.read_header())?;
        state.cpus = read.0.cpus;
        Ok(read)
    }
}

impl Decoder<'_> {
    fn read_version(&mut self) -> Part<()> {
        let mut version = 0_u32;
        loop {
            match self.byte()? {
                b'\n' => break,
                digit @ b'0'..=b'9' => {
                    let next = version.checked_mul(10);
                    let next = next.and_then(|next| next.checked_add(u32::from(digit - b'0')));
                    version = next.ok_or(Damage::Damaged)?;
                }
                _ => return Err(Damage::Damaged),
            }
        }
        let is_read = (OLDEST_VERSION..=VERSION).contains(&version);
        if is_read { Ok(()) } else { Err(Damage::Version(version)) }
    }

    fn read_header(&mut self) -> Part<(Header, FileFlags)> {
        let (title, machine) = (self.text()?, self.text()?);
        let (policy, parameters) = (self.text()?, self.text()?);
        let (seed, cpus) = (self.number()?, self.index(CpuId::LIMIT)?);
        let mut groups = Vec::new();
        for _ in 0..self.number()? {
            groups.push((0..self.number()?).map(|_| self.set()).collect::<Part<_>>()?);
        }
        let warmup = Span::from_ns(self.number()?);
        let flags = self.number()?;
        let resolution = Span::from_ns(self.number()?);
        let [sleep, stretches, has_dispatch, overhead] = [1, 2, 4, 8].map(|flag| flags & flag != 0);
        let knows = Knowledge { sleep, stretches, resolution, overhead };
        let dispatch = Span::from_ns(if has_dispatch { self.number()? } else { 0 });
        let scenario = self.text()?;
        let file = FileFlags { is_recording: flags & 16 != 0, has_index: flags & HAS_INDEX != 0 };
        let header = Header {
            title,
            machine,
            policy,
            parameters,
            seed,
            cpus,
            groups,
            dispatch,
            warmup,
            knows,
            scenario,
        };
        Ok((header, file))
    }
}
