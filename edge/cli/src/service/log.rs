//! Events for `slackline log`, which are requested page by page.

use slackline_control::client::Client;
use slackline_control::{Event, PAGE};

use super::args::{Log, Since};
use crate::date::now;
use crate::problem::Problem;

/// Default number of events that are shown.
const USUAL: usize = 20;

/// Returns the requested events, oldest first.
pub(super) fn events(args: &Log, client: &mut Client) -> Result<Vec<Event>, Problem> {
    let since = args.since.map(|since| match since {
        Since::At(ns) => ns,
        Since::Ago(ago) => now().saturating_sub(ago.ns()),
    });
    let most = match (args.last, since) {
        (Some(last), _) => usize::try_from(last).unwrap_or(usize::MAX),
        (None, Some(_)) => usize::MAX,
        (None, None) => USUAL,
    };
    let mut events: Vec<Event> = Vec::new();
    while events.len() < most {
        let limit = (most - events.len()).min(PAGE);
        let before = events.last().map(|event| event.seq);
        let (page, _) = client.log(args.name.as_deref(), before, limit)?;
        let is_last = page.len() < limit;
        let is_wanted = |event: &Event| since.is_none_or(|since| event.at_ns >= since);
        let is_older = !page.iter().all(is_wanted);
        events.extend(page.into_iter().take_while(is_wanted));
        if is_last || is_older {
            break;
        }
    }
    events.reverse();
    Ok(events)
}
