//! Decides about reservations: who may have what, under which name, and what comes of it when
//! machines come and go. Commands and facts in, effects out; it knows no file, no socket, no clock.
