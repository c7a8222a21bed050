//! Rules of Xen that differ from Slackline's exact rules.

mod accounting;
mod lists;
mod parking;
mod sharing;
mod ticks;
