//! Tracks that show what each vCPU waited for.

use std::io::Write;

use slackline_units::{Time, VcpuId};

use super::{Perfetto, TracePacket};
use crate::proto::{TYPE_SLICE_BEGIN, TYPE_SLICE_END, TrackDescriptor, TrackEvent};

/// First id of the tracks of waits. It is above the ids of the CPUs' tracks.
const FIRST_WAIT_TRACK: u64 = 1 << 41;

impl<W: Write> Perfetto<W> {
    /// Adds a track that shows why a vCPU waited. Each part has a start, an end and a cause.
    /// Adjacent parts with the same cause are joined. If a part begins before the previous part
    /// ends, its overlapping beginning is cut off.
    pub fn waits(&mut self, vcpu: VcpuId, name: &str, mut parts: Vec<(Time, Time, String)>) {
        parts.sort();
        let uuid = FIRST_WAIT_TRACK + vcpu.slot() as u64;
        let name = Some(format!("{name} waits for"));
        self.out.track(TrackDescriptor { uuid, name, thread: None, counter: None });
        let mut slices: Vec<(Time, Time, String)> = Vec::new();
        for (from, to, cause) in parts {
            match slices.last_mut() {
                Some((_, end, last)) if *end >= from && *last == cause => *end = (*end).max(to),
                Some((_, end, _)) if *end >= to => {}
                Some((_, end, _)) => {
                    let from = from.max(*end);
                    slices.push((from, to, cause));
                }
                None => slices.push((from, to, cause)),
            }
        }
        for (from, to, cause) in slices.into_iter().filter(|(from, to, _)| from < to) {
            self.slice(uuid, from, TYPE_SLICE_BEGIN, Some(cause));
            self.slice(uuid, to, TYPE_SLICE_END, None);
        }
    }

    fn slice(&mut self, track_uuid: u64, at: Time, r#type: i32, name: Option<String>) {
        let categories = name.iter().map(|_| "slackline".to_owned()).collect();
        let event = TrackEvent { r#type, track_uuid, name, categories, ..TrackEvent::default() };
        self.out.packet(TracePacket {
            timestamp: Some(at.ns()),
            track_event: Some(event),
            ..TracePacket::default()
        });
    }
}
