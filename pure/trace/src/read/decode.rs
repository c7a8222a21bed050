//! Decoding of bytes, numbers, texts, times and ids, from which all entries are made.

use slackline_units::{ClientId, CpuId, CpuSet, TaskId, Time, VcpuId};

use super::{Damage, Part, State};
use crate::effort::LATEST;
use crate::encode::LONGEST_TEXT;

/// Maximum number of bytes of an encoded number.
const LONGEST_NUMBER: usize = 10;

/// Decoder of a part of a trace, for example of one entry.
pub(super) struct Decoder<'a> {
    rest: &'a [u8],
    /// Time to which the next encoded time is relative.
    pub(super) last: Time,
    pub(super) state: &'a mut State,
}

impl<'a> Decoder<'a> {
    /// Creates a decoder of the bytes that follow `state`.
    pub(super) fn new(bytes: &'a [u8], state: &'a mut State) -> Decoder<'a> {
        Decoder { rest: bytes, last: state.last, state }
    }

    /// Returns the bytes that are not decoded yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn take(&mut self, length: u64) -> Part<&'a [u8]> {
        let length = usize::try_from(length).map_err(|_| Damage::CutOff)?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Damage::CutOff)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Part<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Damage::CutOff)?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn byte(&mut self) -> Part<u8> {
        self.array().map(|[byte]| byte)
    }

    /// Decodes the fixed eight bytes of a checksum or of a length at the end of a trace.
    pub(super) fn word(&mut self) -> Part<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn number(&mut self) -> Part<u64> {
        let mut value = 0;
        for (place, &byte) in self.rest.iter().take(LONGEST_NUMBER).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[place + 1..];
                return Ok(value);
            }
        }
        Err(if self.rest.len() < LONGEST_NUMBER { Damage::CutOff } else { Damage::Damaged })
    }

    pub(super) fn index(&mut self, limit: usize) -> Part<usize> {
        let value = usize::try_from(self.number()?).map_err(|_| Damage::Damaged)?;
        (value <= limit).then_some(value).ok_or(Damage::Damaged)
    }

    pub(super) fn small(&mut self) -> Part<u32> {
        u32::try_from(self.number()?).map_err(|_| Damage::Damaged)
    }

    pub(super) fn text(&mut self) -> Part<String> {
        let length = self.number()?;
        self.text_of(length)
    }

    pub(super) fn entry_text(&mut self) -> Part<String> {
        let length = self.index(LONGEST_TEXT)?;
        self.text_of(length as u64)
    }

    fn text_of(&mut self, length: u64) -> Part<String> {
        String::from_utf8(self.take(length)?.to_vec()).map_err(|_| Damage::Damaged)
    }

    pub(super) fn task(&mut self) -> Part<TaskId> {
        u16::try_from(self.number()?).map(TaskId::new).map_err(|_| Damage::Damaged)
    }

    pub(super) fn client(&mut self) -> Part<ClientId> {
        u16::try_from(self.number()?).map(ClientId::new).map_err(|_| Damage::Damaged)
    }

    pub(super) fn maybe_task(&mut self) -> Part<Option<TaskId>> {
        let Some(number) = self.number()?.checked_sub(1) else { return Ok(None) };
        u16::try_from(number).map(|number| Some(TaskId::new(number))).map_err(|_| Damage::Damaged)
    }

    pub(super) fn vcpu(&mut self) -> Part<VcpuId> {
        let slot = self.number()?;
        self.state.vcpus.get(&slot).copied().ok_or(Damage::UnknownVcpu(slot))
    }

    pub(super) fn cpu(&mut self) -> Part<CpuId> {
        let number = self.number()?;
        self.known_cpu(number)
    }

    /// Returns the CPU with this number.
    ///
    /// # Errors
    /// If the header has no such CPU.
    pub(super) fn known_cpu(&self, number: u64) -> Part<CpuId> {
        let known = usize::try_from(number).ok().filter(|&cpu| cpu < self.state.cpus);
        known.map(CpuId::new).ok_or(Damage::UnknownCpu(number))
    }

    /// Decodes a set of CPUs, which can contain CPUs that the header does not have.
    pub(super) fn set(&mut self) -> Part<CpuSet> {
        (0..self.number()?).map(|_| self.index(CpuId::LIMIT - 1).map(CpuId::new)).collect()
    }

    pub(super) fn signed(&mut self) -> Part<i64> {
        let value = self.number()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    pub(super) fn time(&mut self) -> Part<Time> {
        self.last = self.after(self.last)?;
        Ok(self.last)
    }

    /// Decodes the time of an event that was reported to a policy. In a replay, a policy adds its
    /// periods to the time, and the sums must not overflow.
    pub(super) fn time_of_event(&mut self) -> Part<Time> {
        let at = self.time()?;
        (at <= LATEST).then_some(at).ok_or(Damage::Damaged)
    }

    pub(super) fn after(&mut self, at: Time) -> Part<Time> {
        let difference = self.signed()?.cast_unsigned();
        Ok(Time::from_ns(at.ns().wrapping_add(difference)))
    }

    pub(super) fn before(&mut self, at: Time) -> Part<Time> {
        let difference = self.signed()?.cast_unsigned();
        Ok(Time::from_ns(at.ns().wrapping_sub(difference)))
    }
}
